#!/usr/bin/env bash
# Collects the programs with the libraries they need, PyTorch's apart, in one folder that runs on another machine.
# Needs a finished build and patchelf (bash scripts/setup.sh --dev).
#
# Usage: bash scripts/bundle.sh [--build FOLDER] [OUT]
#   --build FOLDER    where the programs were built, by default build
#   OUT               the folder to be made, by default build/bundle; one that is there is replaced
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Arguments are seen from where the script was called.
place() { (cd "$caller" && realpath -m "$1"); }

build=build out=
while (($#)); do
  case $1 in
    --build) build=$(place "${2:?--build needs a folder}"); shift ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option $1, see --help" ;;
    *) out=$(place "$1") ;;
  esac
  shift
done
out=${out:-$root/build/bundle}
command -v patchelf > /dev/null || die "there is no patchelf; bash scripts/setup.sh --dev installs it"
[[ -x $build/bin/kvlab ]] || die "$build/bin/kvlab is missing; build first, or name another folder by --build"
[[ ! -e $out || -e $out/kvlab ]] || die "$out is there and no bundle; name another folder"

# What every Linux with a C++ program has, and what comes with PyTorch.
is_foreign() { [[ $1 =~ ^(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s)\.so.*|lib(torch|c10).*)$ ]]; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }

# HDF5 asks for libcurl, and with it for twenty libraries, to read files from Amazon S3. Nothing here does: a library
# whose functions do nothing keeps the loader content, and HDF5 then says that it cannot connect.
make_curl() {
  local functions
  functions=$(nm -D --undefined-only "$1" | sed -n 's/.* U \(curl_[a-z_]*\).*/\1/p')
  for name in $functions; do printf 'void *%s(void) { return 0; }\n' "$name"; done |
    gcc -shared -fPIC -s -x c - -o "$out/lib/libcurl.so.4" -Wl,-soname,libcurl.so.4 \
      -Wl,--version-script=<(printf 'CURL_OPENSSL_4 { global: curl_*; local: *; };\n')
}

rm -rf "$out"
mkdir -p "$out/lib"
waiting=()
for file in kvlab kvlab_bench kvlab_gpu_check libkvlab_kernels_cuda.so libkvlab_torch_cuda.so; do
  [[ -e $build/bin/$file ]] || continue
  cp "$build/bin/$file" "$out/"
  waiting+=("$build/bin/$file")
done
while ((${#waiting[@]})); do
  file=${waiting[0]}
  waiting=("${waiting[@]:1}")
  for name in $(needed "$file"); do
    if is_foreign "$name" || [[ -e $out/$name || -e $out/lib/$name ]]; then continue; fi
    if [[ $name == libcurl.so.4 ]]; then
      make_curl "$file"
      continue
    fi
    path=$(ldd "$file" | awk -v name="$name" '$1 == name { print $3 }')
    [[ -e $path ]] || die "$name, which ${file##*/} needs, is not found"
    cp -L "$path" "$out/lib/$name"
    waiting+=("$path")
  done
done
# DT_RPATH, as DT_RUNPATH does not reach the libraries of libraries.
find "$out" -type f -exec chmod u+w {} + -exec strip --strip-unneeded {} + \
  -exec patchelf --force-rpath --set-rpath "\$ORIGIN:\$ORIGIN/lib" {} \;

version=$(sed -n 's/^torch==//p' scripts/requirements.txt)
cat > "$out/README.txt" <<END
kvlab with the libraries it needs, but for PyTorch $version, for Linux on x86-64. On a machine that has it:

  export LD_LIBRARY_PATH=\$(python3 -c 'from importlib.util import find_spec; print(find_spec("torch").submodule_search_locations[0] + "/lib")')
  ./kvlab --version
  ./kvlab_gpu_check                                  # the CUDA kernels against the CPU's, where there is a GPU
  ./kvlab_bench --benchmark_filter=backend:cuda --kvlab_out bench.h5
  ./kvlab table bench.h5

Another machine's GPU needs compute capability 8.x or 9.0 and a driver for CUDA 13.
END
say "$out: $(du -sm --apparent-size "$out" | cut -f1) MiB"
