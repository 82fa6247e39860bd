#!/usr/bin/env bash
# Runs the pinned clang-tidy with the checks of .clang-tidy over the C++ sources; any finding fails.
#
# Usage: bash scripts/lint.sh [--changed | FILE...]
#   --changed   only files that differ from the last commit
#   FILE...     only these .cpp files
# Takes about a quarter of a minute a file that sees libtorch. Configures build/ where nothing has yet.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

changed=false
files=()
for argument in "$@"; do
  case $argument in
    --changed) changed=true ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $argument, see --help" ;;
    *) files+=("$(cd "$caller" && realpath --relative-to="$root" "$argument")") ;;
  esac
done

bash scripts/setup.sh --dev
if $changed; then
  mapfile -t files < <({ git diff --name-only --diff-filter=d HEAD; git ls-files -o --exclude-standard; } | grep '\.cpp$')
  ((${#files[@]})) || { say "clang-tidy: no .cpp file has changed"; exit 0; }
elif ((${#files[@]} == 0)); then
  mapfile -t files < <(cpp_files | grep '\.cpp$')
fi
[[ -f build/compile_commands.json ]] || step configure-release "Configuring (preset release)" cmake --preset release

# clang cannot read GCC's precompiled header; its text, which the same -include names, does as well. It does not know
# all of GCC's warnings either, and the compiler's own -Werror (preset ci) is no concern of this script.
quiet=(--extra-arg=-Wno-error --extra-arg=-Wno-ignored-gch --extra-arg=-Wno-unknown-warning-option)
say "clang-tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" "$venv/bin/clang-tidy" -p build --quiet "${quiet[@]}" --warnings-as-errors='*' ||
  die "clang-tidy has findings."
say "clang-tidy: no findings"
