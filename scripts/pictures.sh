#!/usr/bin/env bash
# Makes the pictures of the README and of results/README.md, in results/reference: runs what results/ lacks of the
# experiments behind them, on the model's captures, and draws. The same results give the same bytes.
#
# Usage: bash scripts/pictures.sh [--no-progress]
# Needs a finished build; three minutes where scripts/demo.sh has run.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

progress=()
for option in "$@"; do
  case $option in
    --no-progress) progress=(--no-progress) ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $option, see --help" ;;
  esac
done
[[ -x build/bin/kvlab ]] || die "build/bin/kvlab is missing; bash scripts/demo.sh builds it"

bash scripts/setup.sh
demo_data
for experiment in demo ablations/oscar_ots_parts token_errors sweeps/group_window; do
  build/bin/kvlab run "experiments/$experiment.yaml" "${progress[@]}"
done
out=results/reference
# The presets of the 2-bit papers without what only stands beside them; all 45 would be crowded.
few=()
for label in int2_naive int2_naive_symmetric int2_naive_windows kivi kivi_g128 kcvt_base token_scale hadamard oscar_ots \
  quarot quarot_token quarot_windows quarot_windows_centered oscar_cov oscar_cov_exact oscar_cov_centered optr oscar_optr; do
  few+=(--only "$label")
done
kvplot results/demo.h5 --kind pareto --width text --out "$out/pareto.svg" "${few[@]}"
kvplot results/oscar_ots_parts.h5 --kind heads --width text --out "$out/oscar_ots_parts.svg" \
  --only base --only "scale only" --only "rotation only" --only both --where dataset=eval_austen
kvplot results/token_errors.h5 --kind norms --width text --out "$out/norms.png"
for kind in position cumulative tokens; do
  kvplot results/token_errors.h5 --kind "$kind" --width text --out "$out/$kind.svg"
done
kvplot results/token_errors.h5 --kind channels --width text --out "$out/channels.png"
few=()
for label in kivi oscar_ots quarot_windows oscar_cov oscar_cov_centered optr; do few+=(--only "$label (window.flush=block)"); done
kvplot results/group_window.h5 --kind heat --width text --out "$out/heat.svg" "${few[@]}"
