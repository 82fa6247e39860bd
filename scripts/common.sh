# Sourced by the scripts beside it: where things are, and how they talk.
# shellcheck shell=bash disable=SC2034

script=$(realpath "$0")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
logs=$root/build/logs
caller=$PWD
cd "$root" || exit
export PATH=$venv/bin:$PATH

# say TEXT...: one line of our own.
say() { printf '%s\n' "$*"; }

# die TEXT...: one sentence on stderr, then the end.
die() { printf '%s: %s\n' "${script##*/}" "$*" >&2; exit 1; }

# step LOG TEXT COMMAND...: says TEXT, runs COMMAND with its output in build/logs/LOG.log, then says how long it took.
# Where COMMAND fails, the end of the log follows and the script ends with COMMAND's code. A function given as COMMAND
# joins what must not go on after a failure with &&: bash's "set -e" does not reach in there.
step() {
  local log=$logs/$1.log text=$2 start=$SECONDS code=0
  shift 2
  mkdir -p "$logs"
  printf '%s ... ' "$text"
  "$@" > "$log" 2>&1 < /dev/null || code=$?
  if ((code)); then
    printf 'failed after %d s, exit code %d. The end of build/logs/%s:\n' $((SECONDS - start)) "$code" "${log##*/}"
    tail -n 40 "$log" | sed 's/^/  | /'
    exit "$code"
  fi
  printf '%d s\n' $((SECONDS - start))
}

# usage: the comment at the head of the calling script, as its --help.
usage() { sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$script"; }

# cpp_files: every C++ file that git tracks or would track, one a line.
cpp_files() {
  git ls-files -co --exclude-standard --deduplicate -- '*.cpp' '*.h' '*.cu' '*.cuh' |
    while read -r file; do if [[ -f $file ]]; then printf '%s\n' "$file"; fi; done
}

# build PRESET [TARGET...]: configures and builds with the CMake and Ninja of .venv; passes on what CMake says of CUDA.
build() {
  local preset=$1 targets=()
  (($# < 2)) || targets=(--target "${@:2}")
  step "configure-$preset" "Configuring (preset $preset)" cmake --preset "$preset"
  sed -n 's/^-- CUDA:/CUDA:/p' "$logs/configure-$preset.log"
  step "build-$preset" "Compiling (preset $preset)" \
    cmake --build --preset "$preset" --parallel "$(nproc)" "${targets[@]}"
}

# demo_data: the captures that the demo runs on, made once.
demo_data() {
  step demo-data "Capturing the demo's tensors into datasets/smollm2" \
    python datasets/prepare_demo.py --out datasets/smollm2
}
