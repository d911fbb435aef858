#!/usr/bin/env bash
# Proves that set-up works on a bare machine: makes a root file system with nothing but the distribution's base, git, make
# and python3, copies this checkout into it, and runs `make build` and a command of the program there.
#
#   scripts/check-bare-root.sh [--suite bookworm|jammy|noble] [--root DIR] [--mirror URL] [--no-check-gpg] [--keep] [--ccache] [-- COMMAND …]
#
# Needs root, debootstrap and about 15 GB. COMMAND (default: make build) runs in the copied checkout. An existing DIR that
# holds a root file system is used again, so that a failed run can go on; without --keep it is removed at the end.
# --no-check-gpg makes an Ubuntu where Ubuntu's archive keys are not packaged (Debian 12): for proofs, not for use.
# --ccache lends this machine's compiler cache, so that files compiled here before are not compiled again there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=bookworm root= mirror= check_gpg=yes keep=no lend_ccache=no
while (($#)); do
  case "$1" in
    --suite) suite=$2 && shift ;;
    --root) root=$2 && shift ;;
    --mirror) mirror=$2 && shift ;;
    --no-check-gpg) check_gpg=no ;;
    --keep) keep=yes ;;
    --ccache) lend_ccache=yes ;;
    --) shift && break ;;
    *) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "$0" >&2 && exit 2 ;;
  esac
  shift
done
command=("$@")
((${#command[@]})) || command=(make build)
[ "$(id -u)" = 0 ] || { echo "error: a root file system can only be made by root" >&2 && exit 2; }
command -v debootstrap >/dev/null || { echo "error: debootstrap is missing; install it" >&2 && exit 2; }
checkout=$PWD  # the same path inside and outside
root=${root:-$(mktemp -d)/root}

say() { printf 'check-bare-root: %s\n' "$*"; }
started=$SECONDS
lap() { say "$* ($((SECONDS - started)) s since the start)"; }

# The mirror this machine uses for that suite, if it has one; else debootstrap's own default.
if [ -z "$mirror" ]; then
  mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 2>/dev/null | awk -v s="$suite" '$1 == s {print $2; exit}')
fi
case "$suite" in
  jammy | noble)
    [ $check_gpg = no ] || [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] ||
      { echo "error: Ubuntu's archive keys are missing; apt-get install ubuntu-keyring, or pass --no-check-gpg" >&2 && exit 2; }
    ;;
esac
if [ ! -x "$root/usr/bin/apt-get" ]; then
  say "making a bare $suite in $root"
  mkdir -p "$root"
  components=main
  case "$suite" in jammy | noble) components=main,universe ;; esac
  recipe=  # a debootstrap older than an Ubuntu lacks its script; all of Ubuntu's are one and the same
  if [ ! -e "/usr/share/debootstrap/scripts/$suite" ]; then
    recipe=/usr/share/debootstrap/scripts/jammy mirror=${mirror:-http://archive.ubuntu.com/ubuntu}
  fi
  # shellcheck disable=SC2086
  debootstrap $([ $check_gpg = yes ] || echo --no-check-gpg) --variant=minbase --components=$components "$suite" "$root" $mirror $recipe >"$root/../debootstrap.log" 2>&1 ||
    { tail -n 5 "$root/../debootstrap.log" >&2 && echo "error: debootstrap of $suite failed; is its mirror reachable?" >&2 && exit 5; }
fi
lap "bare root is there"

# How this machine reaches its package registries is carried in; nothing else of its environment is.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
  if [ -e $file ]; then cp -L $file "$root$file"; fi
done
environment=(CHECKOUT="$checkout" HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive)
for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_PROXY PIP_TRUSTED_HOST PIP_DEFAULT_TIMEOUT \
  http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  [ -z "${!name:-}" ] || environment+=("$name=${!name}")
done
mkdir -p "$root$checkout"
certificates=${PIP_CERT:-$(pip config get global.cert 2>/dev/null || true)}
if [ -n "$certificates" ]; then  # under a name of its own: installing ca-certificates there writes the usual one anew
  cp -L "$certificates" "$root/srv/certificates.crt"
  environment+=(PIP_CERT=/srv/certificates.crt)
fi

git ls-files --cached --others --exclude-standard -z | xargs -0 -I{} sh -c '[ ! -e "$1" ] || printf "%s\0" "$1"' _ {} |
  tar --null -T - -cf - | tar -C "$root$checkout" -xf -

ccache_dir=
if [ $lend_ccache = yes ]; then ccache_dir=$(ccache --get-config cache_dir); fi
# Mounts live in a namespace of their own and are gone with it.
inside() {  # inside SCRIPT [ARGUMENTS]
  # shellcheck disable=SC2016
  CCACHE=$ccache_dir unshare --mount --pid --fork --kill-child bash -c '
    root=$1 && shift
    [ -z "$CCACHE" ] || { mkdir -p "$root/root/.cache/ccache" && mount --bind "$CCACHE" "$root/root/.cache/ccache"; }
    mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/dev/shm"
    exec chroot "$root" env -i "$@"' _ "$root" "${environment[@]}" bash -euo pipefail -c "$@"
}

inside 'apt-get update -qq && apt-get install -y -qq --no-install-recommends git make python3 >/dev/null'
lap "git, make and python3 are installed, nothing else"

if [ ! -e "$root/usr/bin/g++" ]; then  # not in a root that is used again
  inside 'cd "$CHECKOUT" && chown -R nobody: . && rc=0
    setpriv --reuid=nobody --clear-groups scripts/bootstrap.sh >/tmp/no-root.txt 2>&1 || rc=$?
    cat /tmp/no-root.txt
    [ $rc = 2 ] && grep -q "apt-get install" /tmp/no-root.txt'
  lap "without root, bootstrap.sh says what to install"
fi

inside 'cd "$CHECKOUT" && "$@"' _ "${command[@]}"
lap "done: ${command[*]}"

inside 'cd "$CHECKOUT" && time scripts/bootstrap.sh && build/bin/sftrun --version && build/bin/sftrun gpu-info &&
  tests/smoke/two_processes.py --sftrun build/bin/sftrun'
lap "a second bootstrap finds everything; a run on two processes works"
if [ $keep = no ]; then rm -rf "$root"; else say "kept: $root"; fi
