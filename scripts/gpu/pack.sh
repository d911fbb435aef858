#!/usr/bin/env bash
# A build for another machine's GPU: the programs, their libraries and, in carried/, those of this system that the other may lack.
# LibTorch is not among them: the other machine has the same version (scripts/gpu/check.py finds it).
#
#     scripts/gpu/pack.sh build build-gpu && …/scripts/gpu/check.py --build build-gpu
set -euo pipefail

build=${1:?from which build?} target=${2:?into which folder?}
for file in bin/sftrun bin/gpu_tests bin/quant_bandwidth lib/libsftrun_engine.so lib/libsftrun_cuda.so; do
  if [[ ! -e $build/$file ]]; then
    echo "error: $build has no $file" >&2
    echo "  fix: build it with CUDA: ninja -C $build all quant_bandwidth" >&2
    exit 1
  fi
done
mkdir -p "$target/bin" "$target/lib" "$target/carried"
cp -p "$build"/bin/{sftrun,gpu_tests,quant_bandwidth} "$target/bin/"
cp -p "$build"/lib/libsftrun_*.so "$target/lib/"
strip --strip-unneeded "$target"/bin/* "$target"/lib/*
# What belongs to the C library, the compiler, the driver or LibTorch is the other machine's own.
own='/site-packages/|/cuda[^/]*/|/(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+|libcuda)[-.]'
ldd "$target"/bin/* "$target"/lib/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | grep -Ev "$own" |
  while read -r library; do cp -L "$library" "$target/carried/"; done
du -sh "$target" | awk '{print "packed " $1 " into " $2}'
