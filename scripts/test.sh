#!/usr/bin/env bash
# Every check that a change must pass: formatting, a build without a warning, the unit tests under the address and
# undefined-behaviour sanitizers, then all tests (C++ and Python) through ctest. Installs what is missing.
#
# Usage: bash scripts/test.sh [--quick] [-L LABEL]
#   --quick    without the sanitizers
#   -L LABEL   only tests whose label matches, without the sanitizers: unit, program, python, peers, plots
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

quick=false
label=()
while (($#)); do
  case $1 in
    --quick) quick=true ;;
    -L) label=(-L "${2:?-L needs a label}"); quick=true; shift ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $1, see --help" ;;
  esac
  shift
done

# What fails does not stop what follows, so that one run shows all; ctest comes last and so has the last word.
failed=()
bash scripts/setup.sh --dev
bash scripts/format.sh --check || failed+=("formatting")
build ci
if ! $quick; then
  (build sanitize plain_tests tensor_tests kernel_tests model_tests
    step ctest-sanitize "Unit tests under the sanitizers" timeout 25m ctest --preset sanitize -L unit --parallel "$(nproc)") || failed+=("sanitizers")
fi
[[ ${label[1]:-} == unit ]] || demo_data  # the program's tests skip what they lack
ctest --preset ci --parallel "$(nproc)" "${label[@]}" || failed+=("tests")
((${#failed[@]} == 0)) || die "failed: ${failed[*]}"
