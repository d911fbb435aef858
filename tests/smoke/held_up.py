"""Holds up one rank of a run inside a function of the engine: a library that is loaded before the program (LD_PRELOAD) stands in front of
the function and waits there, on one rank, in one call, until a file appears. A C compiler and an x86-64 processor are needed."""

import platform
import shutil
import subprocess
import textwrap

# Saves the registers that may hold arguments, calls `hold_up`, and goes on to the function itself.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
void* hold_up(void) {
  static void* function;
  static int calls;
  if (function == 0) function = dlsym(dlopen("libsftrun_engine.so", RTLD_NOW | RTLD_NOLOAD), SYMBOL);
  const char* rank = getenv("RANK");
  if (rank == 0 || strcmp(rank, getenv("HELD_UP_RANK")) != 0 || ++calls != atoi(getenv("HELD_UP_CALL"))) return function;
  struct timespec short_time = {0, 20000000};
  close(open(getenv("HELD_UP_IS"), O_CREAT | O_WRONLY, 0666));
  while (access(getenv("HELD_UP_UNTIL"), F_OK) != 0) nanosleep(&short_time, 0);
  return function;
}
__asm__(".globl " SYMBOL "\n.type " SYMBOL ", @function\n" SYMBOL ":\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\nsub $24, %rsp\n"
        "movsd %xmm0, (%rsp)\nmovsd %xmm1, 8(%rsp)\ncall hold_up@PLT\nmovsd (%rsp), %xmm0\nmovsd 8(%rsp), %xmm1\n"
        "add $24, %rsp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%rax\n");
"""


def why_not():
    """Why this machine cannot hold ranks up; empty: it can."""
    if platform.machine() == "x86_64" and shutil.which("cc"):
        return ""
    return "the library that holds a rank up needs a C compiler and an x86-64 processor"


def require_symbols(program, symbols):
    """A function that was renamed would hold nobody up."""
    engine = (program.resolve().parent.parent / "lib/libsftrun_engine.so").read_bytes()
    missing = [symbol for symbol in symbols if b"\0" + symbol.encode() + b"\0" not in engine]
    if missing:
        raise SystemExit("error: the engine does not export\n" + textwrap.indent("\n".join(missing), "  "))


def compile_shim(symbol, path):
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", path, f'-DSYMBOL="{symbol}"'], input=SHIM, text=True, check=True)


class HeldUp:
    """One rank in one call of the function of a shim."""

    def __init__(self, shim, folder, rank=0, call=1):
        self.held, self.goes_on = folder / "held up", folder / "go on"
        for path in (self.held, self.goes_on):
            path.unlink(missing_ok=True)
        self.prefix = ("env", f"LD_PRELOAD={shim}", f"HELD_UP_RANK={rank}", f"HELD_UP_CALL={call}", f"HELD_UP_IS={self.held}",
                       f"HELD_UP_UNTIL={self.goes_on}")

    def go_on(self):
        self.goes_on.touch()
