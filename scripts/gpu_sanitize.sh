#!/usr/bin/env bash
# The four tools of compute-sanitizer on a part of the GPU checks (at most 300 tokens): encoding, attention with windows,
# norms and RoPE, and memcheck on clips by row. Needs a GPU and the CUDA Toolkit; under two minutes.
#
# Usage: bash scripts/gpu_sanitize.sh [PROGRAM]
#   PROGRAM   by default build/bin/kvlab_gpu_check
set -uo pipefail
program=${1:-build/bin/kvlab_gpu_check}
case $program in -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
subset=(d128/T129 attend/f1/d128/T300 decoder/turn)

skip() { echo "gpu_sanitize: ${#subset[@]} filters of 4 tools skipped: $1"; exit 4; }
tool=$(command -v compute-sanitizer || true)
[[ -n $tool ]] || tool=/usr/local/cuda/bin/compute-sanitizer
[[ -x $program ]] || skip "there is no $program, so no CUDA parts"
[[ -x $tool ]] || skip "there is no compute-sanitizer"
"$program" --filter decoder/turn/d64,batch1 > /dev/null
(($? != 4)) || skip "there is no GPU to check on"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
one() { # TOOL FILTER
  local log=$logs/$1.${2//[^a-z0-9]/_}
  "$tool" --tool "$1" --error-exitcode 9 "$program" --small --filter "$2" > "$log" 2>&1 && echo "ok    $1 $2" && return
  echo "FAIL  $1 $2"
  tail -n 30 "$log"
  touch "$logs/failed"
}
for name in memcheck racecheck initcheck synccheck; do
  (for filter in "${subset[@]}"; do one "$name" "$filter"; done) &
done
one memcheck "clip row"
wait
[[ ! -e $logs/failed ]]
