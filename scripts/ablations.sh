#!/usr/bin/env bash
# Runs the ablations (experiments/ablations/) and the claims on sixteen passages of the demo's model and writes the tables
# and pictures of experiments/ablations/README.md into results/reference/ablations/. Resumable: what is stored is not run
# again.
#
# Usage: bash scripts/ablations.sh [--few] [NAME...]
#        bash scripts/ablations.sh --times [NAME...]
#   --few    two passages of each source instead of eight: a quarter of the time, no verdicts on claims
#   --times  no run: the cells and seconds that stand in results/ablations, by experiment
#   NAME     only these experiments (grid, norm, …, claims, claims_switches)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

few=() names=() times=""
for option in "$@"; do
  case $option in
    --few) few=(--set 'dataset=[
      {source: capture, path: datasets/smollm2/passages/persuasion_0.h5, text: Austen},
      {source: capture, path: datasets/smollm2/passages/emma_0.h5, text: Austen},
      {source: capture, path: datasets/smollm2/passages/jargon_0.h5, text: Jargon File},
      {source: capture, path: datasets/smollm2/passages/jargon_4.h5, text: Jargon File}]') ;;
    --times) times=1 ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $option, see --help" ;;
    *) names+=("$option") ;;
  esac
done

for name in "${names[@]}"; do
  [[ -e experiments/ablations/$name.yaml || $name == claims || $name == claims_switches ]] ||
    die "there is no experiment '$name'; choose from $(basename -s .yaml experiments/ablations/*.yaml experiments/claims*.yaml | paste -sd ' ')"
done

# tables NAME: the options of `kvlab table` for the tables of an experiment, one table a line; `only BASE` before them keeps the
# rows whose label begins with BASE. NAME_synthetic has the tables of NAME, with patterns in the place of texts.
tables() {
  local by=text rope=""
  [[ $1 != *_synthetic ]] || by=dataset
  case ${1%_synthetic} in
    grid)
      echo "--rows label --cols key.codec.grid --value wo_rel --against float_zero"
      echo "--rows $by,label --cols key.codec.grid --value wo_rel --against float_zero"
      ;;
    rounding)
      echo "--rows label --cols key.codec.rounding --value wo_rel --against half_even"
      [[ $by == text ]] || echo "--rows dataset,label --cols key.codec.rounding --value wo_rel --against half_even"
      ;;
    scale_type)
      echo "--rows label --cols key.codec.params --value wo_rel --against fp32"
      [[ $by == text ]] || echo "--rows dataset,label --cols key.codec.params --value wo_rel --against fp32"
      echo "--rows label --cols key.codec.params --value bits_at_32k"
      ;;
    norm)
      echo "--rows key.token_scale,key.order,key.norm_op --cols label --value wo_rel"
      echo "--rows label,key.order --cols key.token_scale --value wo_rel --against l2_heads"
      echo "--rows label,key.token_scale --cols key.order --value wo_rel --against rotate_scale"
      [[ $by == text ]] || echo "--rows dataset,label --cols key.token_scale --value wo_rel --against l2_heads"
      ;;
    rotation_kind)
      echo "--rows key.rotate --cols label --value wo_rel"
      echo "--rows label --cols key.rotate --value wo_rel --against hadamard"
      echo "--rows $by,key.rotate --cols label --value wo_rel"
      echo "--rows label --cols key.rotate --value logit_mse --against hadamard"
      ;;
    clip)
      echo "--rows key.codec.clip --cols label --value wo_rel"
      echo "--rows label --cols key.codec.clip --value wo_rel --against 0.96"
      [[ $by == text ]] || echo "--rows dataset,label --cols key.codec.clip --value wo_rel --against 0.96"
      ;;
    window)
      echo "--rows window.sink,window.recent,window.flush --cols label --value wo_rel"
      echo "--rows label,window.sink,window.recent --cols window.flush --value wo_rel --against full"
      echo "--rows label,window.recent,window.flush --cols window.sink --value wo_rel --against 0"
      [[ $by == text ]] || echo "--rows dataset,label --cols window.sink --value wo_rel --against 0"
      echo "--rows window.sink,window.recent,window.flush --cols label --value bits_at_32k"
      ;;
    centering)
      echo "--rows label --cols key.center --value wo_rel --against none"
      echo "--rows $by,label --cols key.center --value wo_rel --against none"
      ;;
    covariance)
      echo "--rows label,value.covariance --cols key.covariance_scope --value wo_rel --against layer"
      echo "--rows $by,label,value.covariance --cols key.covariance_scope --value wo_rel --against layer"
      ;;
    bound) echo "--rows dataset,label --value tni_bound,tni_block_mse,tni_block_ratio" ;;
    additivity)
      echo "--rows label --value wo_rel,wo_rel_k,wo_rel_v"
      if [[ $by == dataset ]]; then echo "--rows label --cols dataset --value wo_rel"; return; fi
      echo "--rows layer --cols label --value wo_rel_k"
      echo "--rows layer --cols label --value wo_rel_v"
      ;;
    additivity_model) echo "--rows label --value dnll,next_kl" ;;
    equal_bytes)
      echo "--rows label,group,key.codec.bits --value bits_per_element_hist,bits_at_32k,bits_at_128k,wo_rel,attn_kl"
      echo "--rows group,key.codec.bits --cols label --value wo_rel --against kivi"
      echo "--rows group,key.codec.bits --cols label --value attn_kl --against kivi"
      ;;
    length | length_model)
      echo "--rows label --cols tokens --value wo_rel"
      echo "--rows label --cols tokens --value bits_per_element"
      ;;
    token_scale_type)
      echo "--rows label --cols key.token_scale_params --value wo_rel --against fp32"
      [[ $by == text ]] || echo "--rows dataset,label --cols key.token_scale_params --value wo_rel --against fp32"
      echo "--rows key.token_scale_params --cols label --value bits_at_32k"
      ;;
    layers)
      echo "--rows label --value bits_per_element,bits_at_32k,bits_at_128k"
      for base in kivi oscar_cov oscar_ots; do echo "only $base --rows label --value wo_rel,attn_kl --against $base"; done
      ;;
    dynamic_window)
      echo "--rows label --value bits_per_element,bits_at_32k,bits_at_128k"
      for base in kcvt_base oscar_ots; do
        for window in 32 128; do
          echo "only $base --rows label --value wo_rel,attn_kl --against '$base, fixed $window'"
        done
      done
      ;;
    rope_side)
      [[ $by == text ]] || rope=rope,
      echo "--rows ${rope}label --cols key.space --value wo_rel --against post_rope"
      echo "--rows $rope$by,label --cols key.space --value wo_rel --against post_rope"
      ;;
    calibration)
      echo "--rows label --cols text --value wo_rel --against 'Austen from Austen'"
      echo "--rows label --cols text --value wo_rel --against 'Jargon from Jargon'"
      ;;
    calibration_tokens)
      if [[ $by == dataset ]]; then
        echo "--rows label --cols text --value wo_rel --against 'from 2048'"
        echo "--rows dataset --cols label --value wo_rel"
        return
      fi
      echo "--rows calibration.from,calibration.tokens --cols label --value wo_rel"
      echo "--rows label --cols calibration.from,calibration.tokens --value wo_rel --against '0 / 2048'"
      echo "--rows $by,calibration.from,calibration.tokens --cols label --value wo_rel"
      ;;
    oscar_cov_parts)
      echo ""
      [[ $by == text ]] || echo "--rows group --cols label --value wo_rel --against U·H·P"
      ;;
    oscar_ots_parts)
      echo ""
      [[ $by == text ]] || echo "--rows label --cols dataset --value wo_rel"
      ;;
    token_classes)
      echo "--rows dataset --cols label --value tni_block_mse"
      echo "--rows dataset --cols label --value out_rel"
      ;;
    equal_bytes_model)
      echo "--rows label,group,key.codec.bits --value bits_per_element_hist,bits_at_32k,bits_at_128k,dnll"
      echo "--rows group,key.codec.bits --cols label --value dnll --against kivi"
      ;;
    equal_bytes_own)
      echo "--rows label,key.codec.bits --value bits_per_element,bits_at_32k,bits_at_128k,wo_rel,attn_kl"
      ;;
    gaussian_limit) echo "--rows label --value bits_per_element_hist,k_nmse,v_nmse" ;;
    water_filling) echo "--rows label --value bits_per_element_hist,k_residual_trace,k_bits_needed" ;;
    *) echo "" ;;
  esac
}

# backend NAME: the packed one where it has every row of the experiment.
backend() {
  case $1 in
    additivity* | bound | dynamic_window* | equal_bytes* | gaussian_limit | rope_side* | token_classes | \
      token_scale_type* | water_filling | claims*) echo reference ;;
    *) echo cpu ;;
  esac
}

# pictures NAME: the options of kvplot, one picture a line; `as SUFFIX` before them adds to the picture's name.
pictures() {
  case $1 in
    equal_bytes) echo "--kind pareto --x bits_per_element_hist" ;;
    equal_bytes_model) echo "--kind pareto --x bits_per_element_hist --value dnll" ;;
    equal_bytes_own* | dynamic_window*) echo "--kind pareto --x bits_per_element" ;;
    gaussian_limit) echo "--kind pareto --x bits_per_element_hist --value k_nmse" ;;
    layers | scale_type* | token_scale_type* | window*) echo "--kind pareto --x bits_at_32k" ;;
    error_shares*) echo "--kind cumulative" ;;
    additivity)
      echo "as keys --kind heads --value out_rel_k --only kivi --only oscar_ots --only oscar_cov"
      echo "as values --kind heads --value out_rel_v --only kivi --only oscar_ots --only oscar_cov"
      ;;
    additivity_model) echo "--kind means --value dnll --x part" ;;
    additivity_synthetic | oscar_ots_parts_synthetic) echo "--kind means --x dataset" ;;
    oscar_cov_parts | oscar_ots_parts) echo "--kind heads" ;;
    oscar_cov_parts_synthetic) echo "--kind means --x group" ;;
    calibration | calibration_tokens_synthetic) echo "--kind means --x text" ;;
    calibration_tokens*) echo "--kind means --x calibration.tokens --where calibration.from=0" ;;
    centering*) echo "--kind means --x key.center" ;;
    clip*) echo "--kind means --x key.codec.clip" ;;
    covariance*) echo "--kind means --x key.covariance_scope" ;;
    grid*) echo "--kind means --x key.codec.grid" ;;
    length | length_model) echo "--kind means --x tokens" ;;
    norm*) echo "--kind means --x key.token_scale" ;;
    bound) echo "--kind means --value tni_block_mse --x dataset" ;;
    rope_side) echo "--kind means --x key.space" ;;
    rope_side_synthetic)
      echo "as after --kind means --x key.space --where rope=after"
      echo "as before --kind means --x key.space --where rope=before"
      ;;
    rotation_kind*) echo "--kind means --x key.rotate" ;;
    rounding*) echo "--kind means --x key.codec.rounding" ;;
    token_classes) echo "--kind means --value k_nmse --x dataset" ;;
    water_filling) echo "--kind pareto --x bits_per_element_hist --value k_residual_trace" ;;
  esac
}

# prepare_model: what whole-model runs take (experiments/model/perplexity.yaml).
prepare_model() {
  python datasets/prepare_model.py --out models/smollm2 &&
    python datasets/tokenize_text.py --model models/smollm2 --text datasets/cache/texts/austen_persuasion.txt \
      --start-at 'Sir Walter Elliot' --tokens 2048 --passages 4 --out datasets/smollm2/eval.h5
}

# only BASE: of a Markdown table, the rows whose label begins with BASE.
only() { awk -v base="$1" '!/^\|/ || /^\| (label|---) / || index($0, "| " base) == 1'; }

# frontiers NAME: what no row with no more bits beats, for each error that the experiment of equal bytes has.
frontiers() {
  local name=$1 x=bits_per_element_hist rows=label,group,key.codec.bits values=(wo_rel attn_kl) value
  [[ $name != equal_bytes_own* ]] || x=bits_per_element rows=label,key.codec.bits
  [[ $name != equal_bytes_model ]] || values=(dnll)
  for value in "${values[@]}"; do
    python scripts/frontier.py "results/ablations/$name.h5" --x "$x" --rows "$rows" --value "$value"
    echo
  done
}

# report NAME: writes the tables of an experiment that was run, and draws its pictures.
report() {
  local name=$1 line options base suffix
  while read -r line; do
    mapfile -t options < <(xargs -r -n1 <<< "$line") # takes quotes
    base=""
    [[ ${options[0]-} != only ]] || { base=${options[1]} options=("${options[@]:2}"); }
    build/bin/kvlab table "results/ablations/$name.h5" "${options[@]}" --format markdown | only "$base"
    echo
  done < <(tables "$name") > "$out/$name.md"
  case $name in
    claims_switches)
      build/bin/kvlab claims "results/ablations/$name.h5" --json | python scripts/claims_table.py --switches >> "$out/$name.md"
      ;;
    claims) build/bin/kvlab claims "results/ablations/$name.h5" --json | python scripts/claims_table.py >> "$out/$name.md" ;;
    gaussian_limit | water_filling) python scripts/wasted_bits.py "results/ablations/$name.h5" >> "$out/$name.md" ;;
    token_classes) python scripts/token_classes.py "results/ablations/$name.h5" >> "$out/$name.md" ;;
    error_shares*) python scripts/error_shares.py "results/ablations/$name.h5" >> "$out/$name.md" ;;
    additivity_model) python scripts/sum_of_parts.py "results/ablations/$name.h5" >> "$out/$name.md" ;;
    equal_bytes | equal_bytes_model | equal_bytes_own*) frontiers "$name" >> "$out/$name.md" ;;
  esac
  while read -r -a options; do
    suffix=""
    [[ ${options[0]} != as ]] || { suffix=_${options[1]} options=("${options[@]:2}"); }
    kvplot "results/ablations/$name.h5" "${options[@]}" --width text --out "$out/$name$suffix.svg"
  done < <(pictures "$name")
}

# run_one FILE: synthetic experiments take no passages.
run_one() {
  local file=$1 name passages=()
  name=$(basename "$file" .yaml)
  grep -q '^include:.*passages.yaml' "$file" && passages=("${few[@]}")
  say "Running $file"
  build/bin/kvlab run "$file" --backend "$(backend "$name")" "${passages[@]}" --out "results/ablations/$name.h5"
  report "$name"
}

if [[ -n $times ]]; then
  shopt -s nullglob
  files=(results/ablations/*.h5)
  ((${#names[@]} == 0)) || files=("${names[@]/#/results/ablations/}") files=("${files[@]/%/.h5}")
  ((${#files[@]} > 0)) || die "results/ablations holds no results: nothing was run"
  python scripts/seconds.py "${files[@]}"
  exit 0
fi
out=results/reference/ablations
bash scripts/setup.sh
build release kvlab
step passages "Capturing sixteen passages and two long texts into datasets/smollm2" \
  python datasets/prepare_demo.py --out datasets/smollm2 --passages --long
step model "Making models/smollm2 and four passages of token ids" prepare_model
mkdir -p results/ablations "$out"
for file in experiments/ablations/*.yaml experiments/claims*.yaml; do
  name=$(basename "$file" .yaml)
  if ((${#names[@]} == 0)) || [[ " ${names[*]} " == *" $name "* ]]; then run_one "$file"; fi
done
say "Tables and pictures: $out"
