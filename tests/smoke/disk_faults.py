"""Disks that are full or may not be written, for the tests in broken_runs.py. Standard library only."""

import contextlib
import os
import pathlib
import shutil
import subprocess

NOBODY = 65534
TIMEOUT = 60  # s, of one command


class Skipped(Exception):
    """What this machine lacks for a case."""


@contextlib.contextmanager
def small_disk(folder):
    """2 MiB at run/, which only processes under the prefix see; yields the prefix, and where this process sees run/."""
    if not shutil.which("nsenter"):
        raise Skipped("no disk can be mounted: no nsenter")
    (folder / "run").mkdir()
    mount = 'mount -t tmpfs -o size=2m none "$0" && echo mounted && exec cat'  # cat holds it until its input ends
    try:
        holder = subprocess.Popen(["unshare", "-m", "sh", "-c", mount, folder / "run"], cwd="/", stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as failure:
        raise Skipped(f"no disk can be mounted: {failure}") from failure
    with holder:
        if holder.stdout.readline() != "mounted\n":
            raise Skipped(f"no disk can be mounted: {holder.stderr.read().strip()}")
        prefix = ("nsenter", "-t", str(holder.pid), "-m", "sh", "-c", f'cd "{folder}" && exec "$0" "$@"')
        yield prefix, pathlib.Path(f"/proc/{holder.pid}/root{folder}/run")


# Says of every file system that 400 KiB are free, and makes rank 0 slow to write down its error: what the others make of its
# end must not be told instead.
NO_SPACE = """
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>
static int slow_open(const char* name, const char* path, int flags, int mode) {
  struct timespec left = {0, 300000000};
  if (strstr(path, "error-rank-0") && (flags & O_CREAT)) while (nanosleep(&left, &left)) {}
  int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, name);
  return real(path, flags, mode);
}
#define MODE_OF(mode, last) int mode; { va_list rest; va_start(rest, last); mode = va_arg(rest, int); va_end(rest); }
int open(const char* path, int flags, ...) { MODE_OF(mode, flags) return slow_open("open", path, flags, mode); }
int open64(const char* path, int flags, ...) { MODE_OF(mode, flags) return slow_open("open64", path, flags, mode); }
int statvfs(const char* path, struct statvfs* space) {
  memset(space, 0, sizeof *space);
  space->f_bsize = space->f_frsize = 4096;
  space->f_blocks = 1000;
  space->f_bfree = space->f_bavail = 100;
  return 0;
}
int statvfs64(const char* path, struct statvfs64* space) { return statvfs(path, (struct statvfs*)space); }
"""


def almost_full(folder):
    """The prefix of a command that finds 400 KiB free on every disk."""
    if not shutil.which("cc"):
        raise Skipped("no C compiler (cc)")
    source, library = folder / "no_space.c", folder / "no_space.so"
    source.write_text(NO_SPACE)
    compiler = ["cc", "-w", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(compiler, check=True, timeout=TIMEOUT)
    return ("env", f"LD_PRELOAD={library}")


@contextlib.contextmanager
def read_only(folder, name):
    """A read-only folder; yields the prefix of a command for which it is one, also where the test is root."""
    path = folder / name
    path.mkdir(parents=True)
    prefix = ()
    if os.geteuid() == 0:
        for each in (folder, *folder.rglob("*")):
            os.lchown(each, NOBODY, NOBODY)
        prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
        try:
            subprocess.run([*prefix, folder / "sftrun", "--version"], check=True, capture_output=True, timeout=TIMEOUT)
        except (OSError, subprocess.CalledProcessError) as failure:
            raise Skipped(f"the program does not run as nobody: {failure}") from failure
    path.chmod(0o555)
    try:
        yield prefix
    finally:
        path.chmod(0o755)
