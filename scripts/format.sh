#!/usr/bin/env bash
# Formats the C++ sources with the pinned clang-format, or only checks them.
#
# Usage: bash scripts/format.sh [--check] [FILE...]
#   --check   changes nothing; prints what is not formatted and fails
#   FILE...   these files instead of all that git tracks or would track
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check=false
files=()
for argument in "$@"; do
  case $argument in
    --check) check=true ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $argument, see --help" ;;
    *) files+=("$(cd "$caller" && realpath "$argument")") ;;
  esac
done

bash scripts/setup.sh --dev
((${#files[@]})) || mapfile -t files < <(cpp_files)
((${#files[@]})) || die "there is no C++ file to format."
if $check; then
  "$venv/bin/clang-format" --dry-run -Werror --ferror-limit=1 "${files[@]}" || die "not formatted: run scripts/format.sh"
  say "clang-format: ${#files[@]} files are formatted"
else
  "$venv/bin/clang-format" -i "${files[@]}"
  say "clang-format: ${#files[@]} files done"
fi
