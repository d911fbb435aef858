#!/usr/bin/env bash
# Builds the libraries that a package of sftrun holds, from the source packages of this machine's Debian or Ubuntu.
#
#   scripts/package/dependencies.sh FOLDER OLDER_SYSTEM
#
# FOLDER/prefix gets static libraries with position-independent code (a distribution's own are for programs, not for libraries), and
# libmicrohttpd as a shared library, because its licence is the LGPL: who receives a package can replace it. OLDER_SYSTEM is the
# folder of older_system.py, which shared libraries are linked from. OpenSSL is the distribution's static
# library.
# FOLDER/parts.tsv lists every part with its version and licence; FOLDER/licences holds the licences' texts.
#
# What has been built is not built again. Nothing is installed; missing tools are named.
set -euo pipefail
(($# == 2)) || { sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd) older=$(cd "$2" && pwd)
prefix=$folder/prefix

# Debian's or Ubuntu's name of the source package, and the licence (SPDX).
readonly sources=("fmtlib MIT" "spdlog MIT" "yaml-cpp MIT" "libonig BSD-2-Clause" "xxhash BSD-2-Clause" "zlib Zlib" "libpng1.6 libpng-2.0"
  "libjpeg-turbo IJG AND BSD-3-Clause AND Zlib" "libwebp BSD-3-Clause" "curl curl" "ncurses MIT-X11" "libedit BSD-3-Clause" "libmicrohttpd LGPL-2.1-or-later")
# What is compiled in: the packages of this machine. Headers only, but for OpenSSL.
readonly installed=("libssl-dev Apache-2.0" "nlohmann-json3-dev MIT" "libcli11-dev BSD-3-Clause"
  "libgloo-dev BSD-3-Clause" "libstdc++-12-dev GPL-3.0-or-later WITH GCC-exception-3.1" "libjs-dygraphs MIT")

say() { printf 'package: %s\n' "$*"; }
fail() { printf 'error: %s\n  fix: %s\n' "$1" "$2" >&2 && exit 5; }
for tool in dpkg-source:dpkg-dev nasm:nasm cmake:cmake ninja:ninja-build; do
  command -v "${tool%%:*}" >/dev/null || fail "${tool%%:*} is missing, which packages are built with" "apt-get install ${tool##*:}"
done

# ---- Sources, with a list of packages of our own: this machine's may have no source packages.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 2>/dev/null | awk -v s="$suite" '$1 == s {print $2; exit}')
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keyring ] || keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg
mkdir -p "$folder/lists/partial" "$folder/source"
echo "deb-src [signed-by=$keyring] ${mirror:-http://deb.debian.org/debian} $suite main universe" >"$folder/sources.list"
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] && sed -i 's/ universe$//' "$folder/sources.list"
apt_source() {
  apt-get -qq -o Dir::Etc::sourcelist="$folder/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$folder/lists" \
    -o APT::Sandbox::User=root "$@"
}

fetch() {  # fetch NAME: the source package's folder below $folder/source
  local name=$1
  [ -e "$folder/source/$name/.fetched" ] && return
  rm -rf "${folder:?}/source/$name" && mkdir -p "$folder/source/$name/files"
  [ -e "$folder/lists/fetched" ] || { apt_source update >"$folder/apt.log" 2>&1 && touch "$folder/lists/fetched"; }
  (cd "$folder/source/$name/files" && apt_source source --download-only "$name" >>"$folder/apt.log" 2>&1) ||
    fail "the source package $name was not downloaded (see $folder/apt.log)" "check the network, then run this again"
  local patches=()
  [ "$name" != libedit ] || patches=(--skip-patches)  # Debian's make it need libbsd, which has no such library
  (cd "$folder/source/$name/files" && dpkg-source "${patches[@]}" -x ./*.dsc ../tree >>"$folder/apt.log" 2>&1)
  touch "$folder/source/$name/.fetched"
}

# Paths of this machine stay out of the libraries, so that two builds have the same bytes.
flags="-O2 -fPIC -ffunction-sections -fdata-sections -ffile-prefix-map=$folder=."
export CFLAGS=$flags CXXFLAGS=$flags SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0} ZERO_AR_DATE=1
JOBS=${JOBS:-$(nproc)}

with_cmake() {  # with_cmake FOLDER OPTION…
  local tree=$1 build
  build=$(dirname "${tree%%/cmake_unofficial}")/build
  shift
  rm -rf "$build"
  cmake -S "$tree" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-DNDEBUG -DCMAKE_CXX_FLAGS_RELEASE=-DNDEBUG \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_INSTALL_LIBDIR=lib "$@" && ninja -C "$build" -j "$JOBS" install
}
with_configure() {  # with_configure FOLDER OPTION…
  local tree=$1
  shift
  (cd "$tree" && ./configure --prefix="$prefix" "$@" && make -j "$JOBS" install)
}

build() {  # build NAME FOLDER
  case $1 in
    fmtlib) with_cmake "$2" -DFMT_TEST=OFF -DFMT_DOC=OFF ;;
    spdlog) with_cmake "$2" -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF ;;
    yaml-cpp) with_cmake "$2" -DYAML_BUILD_SHARED_LIBS=OFF -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF ;;
    libonig) with_cmake "$2" ;;
    xxhash) with_cmake "$2/cmake_unofficial" -DXXHASH_BUILD_XXHSUM=OFF ;;
    zlib) (cd "$2" && ./configure --static --prefix="$prefix" && make -j "$JOBS" install) ;;
    libpng1.6) with_cmake "$2" -DPNG_SHARED=OFF -DPNG_TESTS=OFF ;;
    libjpeg-turbo) with_cmake "$2" -DCMAKE_INSTALL_LIBDIR:PATH="$prefix/lib" -DENABLE_SHARED=OFF -DWITH_TURBOJPEG=OFF -DREQUIRE_SIMD=ON ;;
    libwebp) with_cmake "$2" -DWEBP_BUILD_{ANIM_UTILS,CWEBP,DWEBP,GIF2WEBP,IMG2WEBP,VWEBP,WEBPINFO,WEBPMUX,EXTRAS}=OFF ;;
    # HTTP only. Which file has the certificates is a question of the system that it runs on (src/hub/certificates.h).
    curl) with_cmake "$2" -DBUILD_CURL_EXE=OFF -DHTTP_ONLY=ON -DOPENSSL_USE_STATIC_LIBS=ON -DCURL_USE_LIBSSH2=OFF -DCURL_USE_LIBPSL=OFF \
      -DUSE_LIBIDN2=OFF -DUSE_NGHTTP2=OFF -DCURL_BROTLI=OFF -DCURL_ZSTD=OFF -DCURL_DISABLE_ALTSVC=ON -DCURL_DISABLE_HSTS=ON \
      -DCURL_CA_BUNDLE=none -DCURL_CA_PATH=none -DENABLE_MANUAL=OFF -DBUILD_TESTING=OFF ;;
    # Its library of terminals alone. Where a system has no list of them, the usual ones are known.
    ncurses)
      (cd "$2" && ./configure --prefix="$prefix" --with-termlib --without-shared --with-normal --without-debug --without-ada --without-cxx \
        --without-cxx-binding --without-progs --without-tests --without-manpages --disable-widec --disable-db-install \
        --with-default-terminfo-dir=/usr/share/terminfo --with-terminfo-dirs=/etc/terminfo:/lib/terminfo:/usr/share/terminfo \
        --with-fallbacks=xterm,xterm-256color,linux,screen,screen-256color,tmux,tmux-256color,vt100 && make -j "$JOBS" libs &&
        cp lib/libtinfo.a "$prefix/lib/") ;;
    libedit) with_configure "$2" --disable-shared --enable-static --with-pic --disable-examples ;;
    libmicrohttpd) LDFLAGS="-B$older/ -L$older -s" with_configure "$2" --disable-https --enable-shared --disable-static --disable-doc \
      --disable-examples --disable-curl ;;
  esac
}

mkdir -p "$prefix" "$folder/built" "$folder/licences"
: >"$folder/parts.tsv"
for entry in "${sources[@]}"; do
  name=${entry%% *} licence=${entry#* }
  fetch "$name"
  version=$(sed -n 's/^Version: \(.*\)/\1/p' "$folder/source/$name"/files/*.dsc | head -n 1)
  if [ "$(cat "$folder/built/$name" 2>/dev/null)" != "$version" ]; then
    say "$name $version"
    build "$name" "$folder/source/$name/tree" >"$folder/$name.log" 2>&1 ||
      { tail -n 15 "$folder/$name.log" >&2 && fail "$name was not built (see $folder/$name.log)" "mend what it says, then run this again"; }
    echo "$version" >"$folder/built/$name"
  fi
  cp "$folder/source/$name/tree/debian/copyright" "$folder/licences/$name.txt"
  printf '%s\t%s\t%s\n' "$name" "$version" "$licence" >>"$folder/parts.tsv"
done
for entry in "${installed[@]}"; do
  name=${entry%% *} licence=${entry#* }
  version=$(dpkg-query -W -f '${Version}' "$name" 2>/dev/null) || fail "$name is not installed, which packages hold a part of" "apt-get install $name"
  cp -L "/usr/share/doc/$name/copyright" "$folder/licences/$name.txt"
  printf '%s\t%s\t%s\n' "$name" "$version" "$licence" >>"$folder/parts.tsv"
done
say "$(wc -l <"$folder/parts.tsv") parts in $folder"
