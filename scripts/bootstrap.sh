#!/usr/bin/env bash
# Finds or installs what sftrun is built from, and writes where it is to .cache/bootstrap.env for the Makefile.
# Runs again in about a second when nothing is missing.
#
#   scripts/bootstrap.sh [--cpu] [--cuda [auto|toolkit|never|always]] [--reference] [--vllm] [--trackers] [--lint]
#
#   --cpu         a LibTorch without CUDA: the CPU-only wheel if the package index has one
#   --cuda WHEN   the CUDA compiler, and a LibTorch with CUDA: auto (default) where there is a GPU, with the toolkit of this
#                 machine or the compiler's Python packages; toolkit also without a GPU, if there is a toolkit; never; always
#                 (also --cuda alone)
#   --reference   also .venv-ref: the reference implementation that the parity tests compare with; as root also Open MPI
#                 and Slurm, which tests start the program with, and Chromium, in which they open reports
#   --vllm        also .venv-vllm: vLLM for CPUs, which the full tests read and serve results with
#   --trackers    also .venv-trackers: MLflow, Weights & Biases and Trackio, to which the full tests send runs
#   --lint        also clang, clang-format and clang-tidy
#
# LibTorch is taken from the first of: SFTRUN_TORCH_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, the active Python environment, .venv
# (made here, with the torch wheel). System packages need root; without it the command to run is printed.
# Debian 12 and Ubuntu 22.04/24.04; elsewhere it says what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly torch_version=2.11.0      # the wheel that .venv gets
readonly torch_minimum=2.11        # the oldest LibTorch that this code is compiled against
readonly arrow_version=26.0.1      # pyarrow, whose wheel carries Apache Arrow's C++ headers and libraries
readonly cuda_packages=("nvidia-cuda-nvcc==13.0.*" "nvidia-cuda-crt==13.0.*" "nvidia-nvvm==13.0.*" "nvidia-cuda-cccl==13.0.*")

cpu_only=no cuda=auto reference=no vllm=no trackers=no lint=no
while (($#)); do
  case "$1" in
    --cpu) cpu_only=yes ;;
    --cuda)
      case "${2:-}" in
        auto | toolkit | never | always) cuda=$2 && shift ;;
        "" | -*) cuda=always ;;
        *) cuda=$2 && shift ;;
      esac
      ;;
    --cuda=*) cuda=${1#--cuda=} ;;
    --reference) reference=yes ;;
    --vllm) vllm=yes ;;
    --trackers) trackers=yes ;;
    --lint) lint=yes ;;
    -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
    *) echo "error: unknown option $1"$'\n'"  fix: scripts/bootstrap.sh --help" >&2 && exit 2 ;;
  esac
  shift
done
case "$cuda" in auto | toolkit | never | always) ;; *) echo "error: --cuda takes auto, toolkit, never or always" >&2 && exit 2 ;; esac

say() { printf 'bootstrap: %s\n' "$*"; }
fail() {  # fail CODE MESSAGE [FIX]
  printf 'error: %s\n' "$2" >&2
  [ -z "${3:-}" ] || printf '  fix: %s\n' "$3" >&2
  exit "$1"
}
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }  # at_least HAVE WANTED

# ---- System packages

find_compiler() {  # prints a g++ of version 12 or newer
  local candidate
  for candidate in ${CXX:-} g++ g++-14 g++-13 g++-12; do
    if command -v "$candidate" >/dev/null && at_least "$("$candidate" -dumpfullversion -dumpversion)" 12; then
      command -v "$candidate" && return
    fi
  done
  return 1
}

missing_headers() {  # missing_headers COMPILER: names the packages whose headers it does not find
  local header package
  while read -r header package; do
    printf '#if !__has_include(<%s>)\nmissing %s\n#endif\n' "$header" "$package"
  done <<'HEADERS' | "$1" -E -x c++ -std=c++20 - 2>/dev/null | sed -n 's/^missing //p'
yaml-cpp/yaml.h libyaml-cpp-dev
CLI/CLI.hpp libcli11-dev
spdlog/spdlog.h libspdlog-dev
fmt/format.h libfmt-dev
nlohmann/json.hpp nlohmann-json3-dev
gtest/gtest.h libgtest-dev
oniguruma.h libonig-dev
microhttpd.h libmicrohttpd-dev
histedit.h libedit-dev
gloo/rendezvous/store.h libgloo-dev
curl/curl.h libcurl4-openssl-dev
openssl/evp.h libssl-dev
xxhash.h libxxhash-dev
jpeglib.h libjpeg-dev
png.h libpng-dev
webp/demux.h libwebp-dev
HEADERS
}

can_make_venv() { "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }
find_python() {  # prints a Python that can make virtual environments and that torch has wheels for
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if command -v "$candidate" >/dev/null && can_make_venv "$candidate"; then
      command -v "$candidate" && return
    fi
  done
  return 1
}

missing_packages() {
  local compiler ubuntu_2204=no dygraphs=/usr/share/javascript/dygraphs/dygraph.min.js
  grep -qs '^VERSION_ID="22.04"' /etc/os-release && ubuntu_2204=yes
  if compiler=$(find_compiler); then
    missing_headers "$compiler"
  else
    if [ $ubuntu_2204 = yes ]; then echo g++-12; else echo g++; fi
    echo libyaml-cpp-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libgtest-dev libonig-dev \
      libmicrohttpd-dev libedit-dev libgloo-dev libcurl4-openssl-dev libssl-dev libxxhash-dev \
      libjpeg-dev libpng-dev libwebp-dev
  fi
  # Draws the charts of reports, which have tables only without it. Ubuntu 22.04 has no such package.
  [ $ubuntu_2204 = yes ] || [ -e $dygraphs ] || echo libjs-dygraphs
  command -v cmake >/dev/null || echo cmake
  command -v ninja >/dev/null || echo ninja-build
  command -v ccache >/dev/null || echo ccache
  command -v mold >/dev/null || echo mold
  find_python >/dev/null || echo python3-venv
  if [ $reference = yes ] && [ "$(id -u)" = 0 ]; then  # launchers that the tests start the program with
    command -v mpirun >/dev/null || echo openmpi-bin
    command -v ip >/dev/null || echo iproute2  # for two network namespaces as two machines
    # A browser that tests open reports in. Ubuntu's package needs snapd.
    command -v chromium >/dev/null || grep -qs '^ID=ubuntu' /etc/os-release || echo chromium fonts-dejavu-core
    command -v slurmctld >/dev/null && command -v munged >/dev/null || echo slurmctld slurmd slurm-client munge
  fi
  if [ $lint = yes ]; then
    command -v clang++ >/dev/null || echo clang
    command -v clang-format >/dev/null || echo clang-format
    command -v clang-tidy >/dev/null || echo clang-tidy
  fi
}

install_system_packages() {
  local packages
  packages=$(missing_packages | xargs)
  if [ -z "$packages" ]; then
    say "system packages: all there"
    return
  fi
  if ! command -v apt-get >/dev/null; then
    fail 2 "these are missing, and there is no apt-get to install them with: $packages" \
      "install what your distribution calls them (the names are Debian's), then run this again"
  fi
  local command="apt-get update && apt-get install -y --no-install-recommends $packages"
  if [ "$(id -u)" != 0 ]; then
    fail 2 "system packages are missing and this user may not install them" "run: sudo sh -c '$command'"
  fi
  say "installing system packages: $packages"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq || say "apt-get update had errors; going on with the lists there are"
  # shellcheck disable=SC2086
  apt-get install -y -qq --no-install-recommends $packages >.cache/apt.log 2>&1 ||
    { tail -n 20 .cache/apt.log >&2 && fail 5 "apt-get could not install: $packages" "see .cache/apt.log, then run this again"; }
  packages=$(missing_packages | xargs)
  [ -z "$packages" ] || fail 5 "still missing after installing: $packages"
}

# ---- LibTorch

torch_version_of() {  # major.minor of the LibTorch in a folder
  sed -n 's/^#define TORCH_VERSION_\(MAJOR\|MINOR\) //p' "$1/include/torch/headeronly/version.h" 2>/dev/null | xargs | tr ' ' .
}
torch_cuda_of() {  # its CUDA version; empty for a CPU-only one
  [ -e "$1/lib/libtorch_cuda.so" ] || return 0
  if [ -e "$1/version.py" ]; then
    sed -n "s/^cuda.*= '\(.*\)'/\1/p" "$1/version.py"
  else
    sed -n 's/.*+cu\([0-9]*\)\([0-9]\)$/\1.\2/p' "$1/build-version" 2>/dev/null
  fi
}
is_torch() { [ -e "$1/lib/libtorch_cpu.so" ] && [ -e "$1/include/ATen/ATen.h" ]; }

torch_root= torch_why=
use_torch() {  # use_torch FOLDER WHY [explicit]: takes it if it is one and new enough
  is_torch "$1" || return 1
  local version
  version=$(torch_version_of "$1")
  if at_least "${version:-0}" $torch_minimum; then
    torch_root=$(realpath "$1") torch_why=$2
    return 0
  fi
  [ -z "${3:-}" ] || fail 2 "LibTorch ${version:-(unknown version)} in $1 ($2) is too old; $torch_minimum or newer is needed" \
    "point $2 elsewhere, or unset it to have torch $torch_version installed into .venv"
  say "not using torch ${version:-of unknown version} in $1 ($2): $torch_minimum or newer is needed"
  return 1
}

find_torch() {
  local prefix found
  [ -z "${SFTRUN_TORCH_ROOT:-}" ] || use_torch "$SFTRUN_TORCH_ROOT" SFTRUN_TORCH_ROOT explicit ||
    fail 2 "SFTRUN_TORCH_ROOT=$SFTRUN_TORCH_ROOT holds no LibTorch (include/ATen/ATen.h and lib/libtorch_cpu.so)"
  [ -n "$torch_root" ] && return
  [ -z "${Torch_DIR:-}" ] || use_torch "$Torch_DIR/../../.." Torch_DIR explicit ||
    fail 2 "Torch_DIR=$Torch_DIR is not the share/cmake/Torch of a LibTorch"
  [ -n "$torch_root" ] && return
  local prefixes=${CMAKE_PREFIX_PATH:-}
  for prefix in ${prefixes//[:;]/ }; do
    use_torch "$prefix" CMAKE_PREFIX_PATH explicit && return
    use_torch "$prefix/../.." CMAKE_PREFIX_PATH explicit && return
  done
  # Looked up by file, not imported: importing torch takes seconds.
  found=$(python3 -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null || true)
  [ -n "$found" ] && use_torch "$found" "the active Python, $(command -v python3)" && return
  for found in .venv/lib/python3*/site-packages/torch; do
    use_torch "$found" "the wheel in .venv" && return
  done
  return 1
}

make_venv() {  # make_venv FOLDER
  [ -x "$1/bin/python" ] && return
  say "making the virtual environment $1"
  "$(find_python)" -m venv "$1"
}
# With progress on a terminal. Python compiles a file when it is first imported; most of these packages' files never are.
pip_install() {  # pip_install VENV ARGUMENTS
  local quiet=--quiet
  [ -t 1 ] && quiet=
  "$1/bin/python" -m pip install --disable-pip-version-check --no-compile $quiet "${@:2}"
}

install_cpu_torch() {
  say "installing torch $torch_version, CPU only"
  if pip_install .venv "torch==$torch_version+cpu" 2>/dev/null; then return; fi
  say "this machine's package index has no CPU-only torch (torch==$torch_version+cpu)."
  say "installing the ordinary wheel instead, with only the two NVIDIA libraries that its CPU library is linked to (0.6 GB to"
  say "download, not 2.5); sftrun builds and runs with it; Python's own 'import torch' does not. To have the CPU-only wheel,"
  say "add an index that carries it to pip's configuration, remove .venv and run this again."
  pip_install .venv --no-deps "torch==$torch_version"
  local pins
  pins=$(sed -n 's/^Requires-Dist: *cuda-toolkit\[[^]]*\] *== *\([0-9.]*\).*/\1/p' .venv/lib/python3*/site-packages/torch-*.dist-info/METADATA | head -n 1)
  touch .venv/cpu-only  # so that later runs do not try to build CUDA code against it
  pip_install .venv --no-warn-conflicts "cuda-toolkit[cudart,cupti]==${pins:?the torch wheel names no cuda-toolkit}"
}

# Without a GPU a LibTorch for CPUs is enough, but for CUDA code and for the Python programs of the tests.
needs_whole_torch() {
  [ $cpu_only = no ] && { [ "$cuda" = toolkit ] || [ "$cuda" = always ] || [ $reference = yes ] || [ $vllm = yes ] || has_gpu; }
}
complete_torch() {
  say "installing what torch $torch_version needs for CUDA and Python into .venv (about 2 GB to download)"
  rm .venv/cpu-only .venv/cpu-by-itself
  pip_install .venv "torch==$torch_version" || fail 5 "pip could not install torch==$torch_version whole (its message is above)" \
    "check the network and pip's configuration (pip config list), then run this again"
}

install_torch() {
  make_venv .venv
  if [ $cpu_only = yes ]; then
    install_cpu_torch
  elif ! needs_whole_torch; then
    say "no GPU here: a LibTorch for CPUs (BOOTSTRAP_FLAGS=--cuda installs the one with CUDA)"
    install_cpu_torch
    touch .venv/cpu-by-itself  # nobody asked for it
  else
    say "installing torch $torch_version into .venv (about 2.5 GB to download, 5 GB on disk)"
    pip_install .venv "torch==$torch_version" || fail 5 "pip could not install torch==$torch_version (its message is above)" \
      "check the network and pip's configuration (pip config list), then run this again; or set Torch_DIR to a LibTorch"
  fi
  find_torch || fail 5 "torch was installed into .venv but no LibTorch $torch_minimum or newer is found there"
}

# ---- CUDA

has_gpu() { [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidia0 ] || [ -e /dev/dxg ]; }
driver_version() {
  if [ -r /proc/driver/nvidia/version ]; then
    grep -oE 'Module +(for [^ ]+ +)?[0-9.]+' /proc/driver/nvidia/version | grep -oE '[0-9]+[0-9.]*$' | head -n 1
  elif command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1
  fi
}
check_driver() {  # check_driver CUDA_VERSION
  local driver needed
  case "${1%%.*}" in 13) needed=580 ;; 12) needed=525 ;; *) return ;; esac
  driver=$(driver_version)
  if [ -z "$driver" ]; then
    if has_gpu; then say "GPU: there, but its driver version cannot be read"; else say "GPU: none; the CPU will be used"; fi
  elif at_least "$driver" $needed; then
    say "GPU: driver $driver (CUDA ${1%%.*} needs $needed or newer)"
  else
    say "GPU: driver $driver is too old: CUDA ${1%%.*} needs $needed or newer, so sftrun would run on the CPU."
    say "     Update the NVIDIA driver to $needed or newer, or use a LibTorch of an older CUDA line (set Torch_DIR)."
  fi
}

nvcc_release() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p'; }
nvcc=
find_nvcc() {  # find_nvcc CUDA_VERSION: a compiler of the same major version
  local candidate release
  for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" \
    "$PWD"/.venv/lib/python3*/site-packages/nvidia/cu"${1%%.*}"/bin/nvcc; do
    [ -n "$candidate" ] && [ -x "$candidate" ] || continue
    release=$(nvcc_release "$candidate")
    if [ "${release%%.*}" = "${1%%.*}" ]; then
      nvcc=$candidate
      say "CUDA compiler: $nvcc ($release)"
      return 0
    fi
    say "not using $candidate: CUDA $release, while LibTorch is built for $1"
  done
  return 1
}
setup_cuda() {
  local version
  version=$(torch_cuda_of "$torch_root")
  if [ -z "$version" ]; then
    say "CUDA: this LibTorch has none; a CPU build"
    return
  fi
  if [ -e .venv/cpu-only ] && [[ "$torch_root" == "$PWD"/.venv/* ]]; then cpu_only=yes; fi
  [ $cpu_only = no ] && [ "$cuda" != never ] || { say "CUDA: not wanted; a CPU build" && return; }
  check_driver "$version"
  if [ "$cuda" = auto ] && ! has_gpu; then
    say "CUDA: no GPU here; the CUDA kernels are not built (BOOTSTRAP_FLAGS=--cuda builds them)"
    return
  fi
  find_nvcc "$version" && return
  if [ "$cuda" = toolkit ] && ! has_gpu; then
    say "CUDA compiler: none, and no GPU; the CUDA kernels are not built (BOOTSTRAP_FLAGS=--cuda installs the compiler)"
  elif [ "${version%%.*}" != 13 ]; then
    say "CUDA compiler: none for CUDA $version; install that toolkit and set CUDACXX to its nvcc. The CUDA kernels are not built."
  else
    make_venv .venv
    say "installing the CUDA 13.0 compiler into .venv"
    pip_install .venv "${cuda_packages[@]}" || fail 5 "pip could not install ${cuda_packages[*]}" \
      "install NVIDIA's CUDA toolkit 13.0, or pass --cuda never"
    ln -sfn lib "$(echo .venv/lib/python3*/site-packages/nvidia/cu13)/lib64"  # where nvcc looks for its static libraries
    find_nvcc "$version" || fail 5 "the CUDA compiler was installed into .venv but is not found there"
  fi
}

# ---- The reference implementation, for parity tests

pins_are_there() (  # pins_are_there FILE FOLDER...: every pin of a requirements file is installed in one of the folders
  shopt -s nocaseglob nullglob
  local file=$1 folder line name found
  shift
  while IFS= read -r line; do
    name=${line%%==*}
    name=${name//[-.]/_}  # installers write names in several ways
    found=()
    for folder; do found+=("$folder"/${name//_/[-_.]}-${line##*==}.dist-inf[o]); done
    [ ${#found[@]} -gt 0 ] || return 1
  done < <(sed -E 's/[ ]*#.*//;/^$/d' "$file")
)

reference_is_there() {  # some of it may be beside the torch that it uses
  local file
  [ -x .venv-ref/bin/python ] || return 1
  for file in scripts/requirements-reference*.txt; do
    pins_are_there "$file" .venv-ref/lib/python3*/site-packages "${torch_root%/torch}" || return 1
  done
}
setup_reference() {
  if reference_is_there; then
    say "reference stack: all there (.venv-ref)"
    return
  fi
  local torch_site=${torch_root%/torch} ref_site
  make_venv .venv-ref
  ref_site=$(echo .venv-ref/lib/python3*/site-packages)
  # The reference uses the very LibTorch that sftrun is built with, where that is a Python package of this Python.
  if [ -e "$torch_root/version.py" ] && [[ "$torch_site" == *"/$(basename "$(dirname "$ref_site")")/site-packages" ]]; then
    echo "$torch_site" >"$ref_site/torch.pth"
  fi
  say "installing the reference stack into .venv-ref (scripts/requirements-reference.txt)"
  pip_install .venv-ref -r scripts/requirements-reference.txt "torch==$torch_version" &&
    pip_install .venv-ref --no-deps -r scripts/requirements-reference-files.txt ||
    fail 5 "pip could not install the reference stack (its message is above)" "check the network, then run this again"
}

setup_deepspeed() {
  if pins_are_there scripts/requirements-deepspeed.txt .venv-ref/deepspeed; then
    say "DeepSpeed: there (.venv-ref/deepspeed)"
    return
  fi
  say "installing DeepSpeed into .venv-ref/deepspeed (scripts/requirements-deepspeed.txt)"
  rm -rf .venv-ref/deepspeed
  # It comes as source, whose setup imports torch: hence no build environment of its own. Nothing is compiled.
  pip_install .venv-ref wheel &&
    DS_BUILD_OPS=0 DS_ACCELERATOR=cpu pip_install .venv-ref --no-deps --no-build-isolation --target .venv-ref/deepspeed \
      -r scripts/requirements-deepspeed.txt ||
    fail 5 "pip could not install DeepSpeed (its message is above)" "check the network, then run this again"
}

# ---- vLLM, which reads what sftrun writes

setup_vllm() {
  if [ -x .venv-vllm/bin/python ] && pins_are_there scripts/requirements-vllm.txt .venv-vllm/lib/python3*/site-packages; then
    say "vLLM: there (.venv-vllm)"
    return
  fi
  local torch_site=${torch_root%/torch} site
  [ -e "$torch_root/version.py" ] || fail 2 "vLLM needs a torch for Python, and $torch_root is LibTorch alone" \
    "leave SFTRUN_TORCH_ROOT, Torch_DIR and CMAKE_PREFIX_PATH unset, so that torch $torch_version is installed into .venv"
  make_venv .venv-vllm
  site=$(echo .venv-vllm/lib/python3*/site-packages)
  echo "$torch_site" >"$site/torch.pth"
  say "installing vLLM into .venv-vllm (scripts/requirements-vllm.txt)"
  pip_install .venv-vllm --no-deps -r scripts/requirements-vllm.txt ||
    fail 5 "pip could not install vLLM (its message is above)" "check the network, then run this again"
}

# ---- Experiment trackers

setup_trackers() {
  if [ -x .venv-trackers/bin/python ] && pins_are_there scripts/requirements-trackers.txt .venv-trackers/lib/python3*/site-packages; then
    say "experiment trackers: there (.venv-trackers)"
    return
  fi
  make_venv .venv-trackers
  say "installing experiment trackers into .venv-trackers (scripts/requirements-trackers.txt)"
  pip_install .venv-trackers -r scripts/requirements-trackers.txt ||
    fail 5 "pip could not install the experiment trackers (its message is above)" "check the network, then run this again"
}

# ---- Apache Arrow, for CSV, Parquet and compressed data

arrow_root=
is_arrow() { [ -e "$1/include/arrow/api.h" ] && [ -e "$1/include/parquet/arrow/reader.h" ]; }
find_arrow() {
  local found
  for found in ${SFTRUN_ARROW_ROOT:-} .venv/lib/python3*/site-packages/pyarrow; do
    is_arrow "$found" && arrow_root=$(realpath "$found") && return
  done
  return 1
}
setup_arrow() {
  if ! find_arrow; then
    make_venv .venv
    say "installing pyarrow $arrow_version into .venv, for its C++ libraries"
    pip_install .venv --no-deps "pyarrow==$arrow_version" && find_arrow ||
      fail 5 "pip could not install pyarrow==$arrow_version (its message is above)" \
        "check the network, then run this again; or set SFTRUN_ARROW_ROOT to a folder with Arrow's include/ and lib/"
  fi
  say "Apache Arrow: $arrow_root"
}

# ---- All together

mkdir -p .cache
install_system_packages
compiler=$(find_compiler)
say "C++ compiler: $compiler ($("$compiler" -dumpfullversion -dumpversion))"
find_torch || install_torch
if [ -e .venv/cpu-by-itself ] && [[ "$torch_root" == "$PWD"/.venv/* ]] && needs_whole_torch; then complete_torch; fi
say "LibTorch: $(torch_version_of "$torch_root") in $torch_root (from $torch_why)"
setup_cuda
setup_arrow
[ $reference = no ] || { setup_reference && setup_deepspeed; }
[ $vllm = no ] || setup_vllm
[ $trackers = no ] || setup_trackers

settings=$(printf 'export SFTRUN_%s=%q\n' \
  TORCH_ROOT "$torch_root" CXX "$compiler" NVCC "$nvcc" ARROW_ROOT "$arrow_root")
if [ "$settings" != "$(cat .cache/bootstrap.env 2>/dev/null)" ]; then
  printf '%s\n' "$settings" >.cache/bootstrap.env
  say "wrote .cache/bootstrap.env"
fi
