#!/usr/bin/env bash
# A build for another machine's GPU, as one archive that Python's standard library opens: the programs, their libraries and, in
# carried/, those of this system that the other may lack; the tests' data, the benchmark's shapes and the scripts. LibTorch is
# not in it: the other machine has the same version (scripts/gpu/check.py finds it, and compares).
# PACK_MOST_MIB [44] is the largest archive that is made, PACK_XZ [-9e] how hard xz tries.
#
#     scripts/gpu/pack.sh build gpu.tar.xz && scripts/gpu/check.py --archive gpu.tar.xz --output gpu-check.json
set -euo pipefail

build=${1:?from which build?} archive=${2:?into which archive, as in gpu.tar.xz?} max_mib=${PACK_MOST_MIB:-44}
root=$(cd "$(dirname "$0")/../.." && pwd)
programs=(bin/sftrun bin/gpu_tests bin/quant_bandwidth bin/adapter_bandwidth bin/attention_speed)
libraries=(lib/libsftrun_engine.so lib/libsftrun_cuda.so) # not libsftrun_arrow.so, which needs a hundred megabytes of Arrow
for file in "${programs[@]}" "${libraries[@]}"; do
  if [[ ! -e $build/$file ]]; then
    echo "error: $build has no $file" >&2
    echo "  fix: build it with CUDA: make build BOOTSTRAP_FLAGS=--cuda && ninja -C $build sftrun sftrun_engine sftrun_cuda gpu_tests quant_bandwidth adapter_bandwidth attention_speed" >&2
    exit 1
  fi
done
if [[ $archive != *.tar.xz ]]; then
  echo "error: $archive: the archive is of xz, and is to be named .tar.xz" >&2
  exit 2
fi

stage=$(mktemp -d)
trap 'rm -rf "$stage" "$archive.part"' EXIT
mkdir -p "$stage/bin" "$stage/lib" "$stage/carried" "$stage/tests/data" "$stage/bench" "$stage/scripts"
for file in "${programs[@]}" "${libraries[@]}"; do
  strip --strip-unneeded -o "$stage/$file" "$build/$file"
done

# What belongs to the C library, the compiler, the driver or LibTorch is the other machine's own.
own='/torch/|/site-packages/|/cuda[^/]*/|/(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libutil|libgcc_s|libstdc\+\+|libcuda)[-.]'
files=()
for file in "${programs[@]}" "${libraries[@]}"; do files+=("$build/$file"); done
needed=$(ldd "${files[@]}")
if missing=$(grep 'not found' <<<"$needed"); then
  echo "error: libraries of this build are not on this machine:" >&2
  sort -u <<<"$missing" >&2
  exit 1
fi
awk '$2 == "=>" && $3 ~ /^\// {print $3}' <<<"$needed" | sort -u | { grep -Ev "$own" || true; } |
  while read -r library; do cp -L "$library" "$stage/carried/"; done

cp -r "$root"/tests/data/{families,models,train} "$stage/tests/data/"
mkdir -p "$stage/tests/cuda" "$stage/tests/data/vision" && cp "$root/tests/cuda/vision_folders.py" "$stage/tests/cuda/"
cp -r "$root"/tests/data/vision/{qwen2_5_vl,gemma3} "$stage/tests/data/vision/"
rm -f "$stage"/tests/data/vision/*/{reference,lora}.*
cp -r "$root"/bench/{arch,peer_train.py,peer_packed.py,packed_work.py,compare.py,lengths.json} "$stage/bench/"
cp -r "$root/scripts/gpu" "$root/scripts/same_losses.py" "$stage/scripts/"
mkdir "$stage/tests/smoke" && cp "$root/tests/smoke/memory_plan.py" "$stage/tests/smoke/"
find "$stage" -name __pycache__ -prune -exec rm -rf {} +

# The version of LibTorch, of a wheel or of its zip.
torch=$(awk '$1 == "libtorch_cpu.so" {print $3; exit}' <<<"$needed")
torch=$(dirname "${torch:-/nowhere/lib/x}")/..
version=$(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$torch/version.py" 2>/dev/null || cat "$torch/build-version" 2>/dev/null || true)
commit=$(git -C "$root" describe --always --dirty 2>/dev/null || true)
printf '{"torch": "%s", "commit": "%s", "made": "%s"}\n' "$version" "$commit" "$(date -u +%Y-%m-%dT%H:%MZ)" >"$stage/about.json"

(cd "$stage" && find . -type f ! -name SHA256SUMS -print0 | sort -z | xargs -0 sha256sum) >"$stage.sums"
mv "$stage.sums" "$stage/SHA256SUMS"

tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner -cf - . | xz "${PACK_XZ:--9e}" -T1 >"$archive.part"
bytes=$(stat -c %s "$archive.part")
largest() { (cd "$stage" && find . -type f -printf '%s %P\n' | sort -rn | awk -v most="$1" 'NR <= most {printf "  %7.1f MiB  %s\n", $1 / 1048576, $2}'); }
if ((bytes > max_mib * 1048576)); then
  echo "error: the archive has $((bytes >> 20)) MiB, and $max_mib are allowed; largest before compression:" >&2
  largest 8 >&2
  echo "  fix: build for fewer architectures (-DSFTRUN_CUDA_ARCHS), or leave data out here" >&2
  exit 1
fi
mv "$archive.part" "$archive"
awk -v bytes="$bytes" -v whole="$(du -sb "$stage" | cut -f1)" -v name="$archive" \
  'BEGIN {printf "packed %.1f MiB into %.1f MiB: %s\n", whole / 1048576, bytes / 1048576, name}'
largest 5
