#!/usr/bin/env bash
# Builds sftrun for packages: a folder that runs on every Linux with glibc 2.28 or newer beside a LibTorch.
#
#   scripts/package/build.sh [--build build-package] [--cuda-archs release] [--jobs N]
#
# BUILD/tree gets bin/sftrun, lib/ and share/doc/sftrun (licences of all parts, list of parts). `make package` makes the wheel, the archive
# and the .deb of it. Needs what scripts/bootstrap.sh sets up; CUDA code is built where that found a CUDA compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build=build-package archs=release jobs=$(nproc)
while (($#)); do
  case "$1" in
    --build) build=$2 && shift ;;
    --cuda-archs) archs=$2 && shift ;;
    --jobs) jobs=$2 && shift ;;
    *) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
  esac
  shift
done
source .cache/bootstrap.env
parts=$PWD/.cache/package
mkdir -p "$parts"
# The date of the last commit, for everything that has a date.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH

scripts/package/older_system.py "$parts/older" --cxx "$SFTRUN_CXX"
JOBS=$jobs scripts/package/dependencies.sh "$parts" "$parts/older"
CXX="$SFTRUN_CXX" CUDACXX="${SFTRUN_NVCC:-}" cmake --preset release -B "$build" -DSFTRUN_PACKAGE="$parts" -DSFTRUN_BUILD_TESTS=OFF \
  -DSFTRUN_CUDA_ARCHS="$archs" -DSFTRUN_BUILD_CUDA="${SFTRUN_NVCC:+ON}" >"$build.configure.log" || { cat "$build.configure.log" >&2 && exit 5; }
mv "$build.configure.log" "$build/configure.log"
ninja -C "$build" -j "$jobs" program

tree=$build/tree
rm -rf "$tree"
cmake --install "$build" --prefix "$tree" >/dev/null
cp -L "$parts"/prefix/lib/libmicrohttpd.so.12 "$tree/lib/"
documents=$tree/share/doc/sftrun
mkdir -p "$documents/licences"
cp LICENSE README.md "$documents/"
cp "$parts"/licences/*.txt "$documents/licences/"
cp "$parts/parts.tsv" "$documents/parts.tsv"
find "$tree" -type f -exec chmod a+r,go-w {} +
echo "package: $(du -sh --apparent-size "$tree" | cut -f 1) in $tree"
