#!/usr/bin/env bash
# From a fresh machine to the table of the demo: every method on the keys and values of a real model.
# Installs what is missing, builds, captures the model's tensors (once), runs what results/demo.h5 lacks, prints the
# table. A second run only does what has changed.
#
# Usage: bash scripts/demo.sh [--no-progress]
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

bash scripts/setup.sh --no-plots
build release kvlab kvlab_bench
demo_data
say "Running experiments/demo.yaml, results go to results/demo.h5"
start=$SECONDS
build/bin/kvlab run experiments/demo.yaml "${progress[@]}"
say "Ran in $((SECONDS - start)) s; the whole script took $SECONDS s so far"
build/bin/kvlab table results/demo.h5
say "Pictures and a report: bash scripts/setup.sh && .venv/bin/kvplot report results/demo.h5"
