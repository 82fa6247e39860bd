#!/usr/bin/env bash
# Runs the ablations (experiments/ablations/) and the claims on sixteen passages of the demo's model and writes the tables
# of experiments/ablations/README.md into results/ablations/. Resumable: what is stored is not run again.
#
# Usage: bash scripts/ablations.sh [--few] [NAME...]
#   --few   two passages of each source instead of eight: a quarter of the time, no verdicts on claims
#   NAME    only these experiments (grid, norm, …, claims)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

few=() names=()
for option in "$@"; do
  case $option in
    --few) few=(--set 'dataset=[
      {source: capture, path: datasets/smollm2/passages/persuasion_0.h5},
      {source: capture, path: datasets/smollm2/passages/emma_0.h5},
      {source: capture, path: datasets/smollm2/passages/jargon_0.h5},
      {source: capture, path: datasets/smollm2/passages/jargon_4.h5}]') ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $option, see --help" ;;
    *) names+=("$option") ;;
  esac
done

# tables NAME: the options of `kvlab table` for the tables of an experiment, one table a line.
tables() {
  case $1 in
    grid) echo "--rows label --cols key.codec.grid --value wo_rel" ;;
    rounding) echo "--rows label --cols key.codec.rounding --value wo_rel" ;;
    scale_type)
      echo "--rows label --cols key.codec.params --value wo_rel"
      echo "--rows label --cols key.codec.params --value bits_at_32k"
      ;;
    norm) echo "--rows key.token_scale,key.order,key.norm_op --cols label --value wo_rel" ;;
    rotation_kind)
      echo "--rows key.rotate --cols label --value wo_rel"
      echo "--rows key.rotate --cols label --value logit_mse"
      ;;
    clip) echo "--rows key.codec.clip --cols label --value wo_rel" ;;
    window)
      echo "--rows window.sink,window.recent,window.flush --cols label --value wo_rel"
      echo "--rows window.sink,window.recent,window.flush --cols label --value bits_at_32k"
      ;;
    centering) echo "--rows label --cols key.center --value wo_rel" ;;
    covariance) echo "--rows label,value.covariance --cols key.covariance_scope --value wo_rel" ;;
    bound) echo "--rows dataset,label --value tni_bound,tni_block_mse,tni_block_ratio" ;;
    additivity) echo "--rows label --value wo_rel,wo_rel_k,wo_rel_v" ;;
    equal_bytes) echo "--rows label,group,key.codec.bits --value bits_per_element_hist,wo_rel,attn_kl" ;;
    length)
      echo "--rows label --cols tokens --value wo_rel"
      echo "--rows label --cols tokens --value bits_per_element"
      ;;
    *) echo "" ;;
  esac
}

# run_one FILE: runs an experiment and writes its tables; synthetic ones take no passages.
run_one() {
  local file=$1 name passages=() options backend=cpu
  name=$(basename "$file" .yaml)
  grep -q 'common/passages.yaml' "$file" && passages=("${few[@]}")
  [[ $name != claims ]] || backend=reference  # the only one that has every method
  say "Running $file"
  build/bin/kvlab run "$file" --backend "$backend" "${passages[@]}" --out "results/ablations/$name.h5"
  while read -r -a options; do
    build/bin/kvlab table "results/ablations/$name.h5" "${options[@]}" --format markdown
    echo
  done < <(tables "$name") > "results/ablations/$name.md"
  if [[ $name == claims ]]; then build/bin/kvlab claims "results/ablations/$name.h5" > "results/ablations/$name.txt"; fi
}

bash scripts/setup.sh
build release kvlab
step passages "Capturing sixteen passages into datasets/smollm2/passages" \
  python datasets/prepare_demo.py --out datasets/smollm2 --passages
mkdir -p results/ablations
for file in experiments/ablations/*.yaml experiments/claims.yaml; do
  name=$(basename "$file" .yaml)
  if ((${#names[@]} == 0)) || [[ " ${names[*]} " == *" $name "* ]]; then run_one "$file"; fi
done
say "Tables: results/ablations/*.md"
