#!/usr/bin/env python3
"""Makes a folder that the compiler links programs for older systems from.

    scripts/package/older_system.py FOLDER [--cxx g++] [--glibc 2.28] [--libstdcxx 3.4.25] [--cxxabi 1.3.11]

Programs are linked against the C library of the machine that builds them, and ask for the newest version of each function that it has.
A glibc holds every version that it ever had, so what an older one has can be read from this machine's: FOLDER gets libraries that name,
of each symbol, the newest version up to the limit, and hold no code. What is newer is an error of the linker, unless
src/portable/newer_functions.cpp has it, or, of the standard library of C++, the compiler's libstdc++.a, which is linked then
(as Red Hat's toolsets do). The defaults are those of manylinux_2_28, as of LibTorch's own wheel: glibc 2.28 and GCC 8's libstdc++.

Link with -B FOLDER -L FOLDER. What was used can be checked with `auditwheel show`.
"""
import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PORTABLE = ROOT / "src/portable"
# Before glibc 2.34 these were libraries of their own. Programs name them, so that an older dynamic linker loads them.
OF_GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libresolv.so.2")
SYMBOL = re.compile(r"\s*\d+:\s+([0-9a-f]+)\s+(\S+)\s+(FUNC|IFUNC|OBJECT|NOTYPE|GNU_UNIQUE|TLS)\s+(GLOBAL|WEAK|UNIQUE)\s+DEFAULT\s+(\w+)\s+([^@\s]+)@@?(\S+)")


def number(version):
    """(2, 2, 5) of GLIBC_2.2.5"""
    return tuple(int(part) for part in version.rpartition("_")[2].split("."))


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(map(str, command))} failed\n{done.stderr.strip()}")
    return done.stdout


class Library:
    """A shared library of this machine, and the versions of its symbols up to limits: {"GLIBC": (2, 28)}."""

    def __init__(self, cxx, name, limits):
        self.name = name
        self.path = pathlib.Path(run(cxx, f"-print-file-name={name}").strip())
        if not self.path.is_absolute():
            sys.exit(f"error: {name} was not found; is the C library's development package installed?")
        self.symbols = {}  # name: (version, type, size, binding, address)
        for line in run("readelf", "--dyn-syms", "-W", self.path).splitlines():
            found = SYMBOL.match(line)
            if not found or found[5] in ("UND", "ABS") or found[3] == "TLS":
                continue
            address, size, kind, binding, _, symbol, version = found.groups()
            family = version.rpartition("_")[0]
            if family not in limits or not re.fullmatch(r"[\d.]+", version.rpartition("_")[2]) or number(version) > limits[family]:
                continue
            if symbol not in self.symbols or number(version) > number(self.symbols[symbol][0]):
                self.symbols[symbol] = (version, "OBJECT" if kind in ("OBJECT", "GNU_UNIQUE") else "FUNC", int(size, 0), binding, address)

    def assembly(self):
        """A symbol of the same name, version, type, binding and size for each. Programs may copy an object: its size matters, and that its
        other names (environ, __environ) have the same place."""
        lines, places = [], {}
        for at, (symbol, (version, kind, size, binding, address)) in enumerate(sorted(self.symbols.items())):
            places.setdefault((kind, address if kind == "OBJECT" else at), []).append((f"local_{at}", symbol, version, size, binding))
        for (kind, _), names in places.items():
            lines += [".bss", ".balign 32"] if kind == "OBJECT" else [".text"]
            for local, symbol, version, size, binding in names:
                lines += [f".{'weak' if binding == 'WEAK' else 'globl'} {local}", f".type {local}, @{'object' if kind == 'OBJECT' else 'function'}",
                          f".size {local}, {max(size, 1)}", f"{local}:", f".symver {local}, {symbol}@@{version}, remove"]
            lines.append(f".skip {max(max(size for *_, size, _ in names), 1)}" if kind == "OBJECT" else "ret")
        return "\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""])

    def version_script(self):
        """Each version a node of its own. An older version that a symbol also had is not offered."""
        versions = sorted({version for version, *_ in self.symbols.values()}, key=lambda version: (version.rpartition("_")[0], number(version)))
        return "".join(f"{version} {{ }};\n" for version in versions)

    def write(self, cxx, folder):
        source, script = folder / f"{self.name}.s", folder / f"{self.name}.map"
        source.write_text(self.assembly())
        script.write_text(self.version_script())
        run(cxx, "-shared", "-nostdlib", "-fuse-ld=bfd", f"-Wl,-soname,{self.name},--version-script,{script}", source, "-o", folder / self.name)
        source.unlink()
        script.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--cxx", default="g++")
    parser.add_argument("--glibc", default="2.28")
    parser.add_argument("--libstdcxx", default="3.4.25", help="newest GLIBCXX version")
    parser.add_argument("--cxxabi", default="1.3.11", help="newest CXXABI version")
    options = parser.parse_args()
    cxx, folder = options.cxx, options.folder
    folder.mkdir(parents=True, exist_ok=True)

    for name in OF_GLIBC:
        Library(cxx, name, {"GLIBC": number(options.glibc)}).write(cxx, folder)
    Library(cxx, "libgcc_s.so.1", {"GCC": (8, 0)}).write(cxx, folder)
    Library(cxx, "libstdc++.so.6", {"GLIBCXX": number(options.libstdcxx), "CXXABI": number(options.cxxabi)}).write(cxx, folder)

    compile_only = (cxx, "-c", "-O2", "-fPIC", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    run(*compile_only, PORTABLE / "start.cpp", "-fno-exceptions", "-o", folder / "Scrt1.o")
    run(*compile_only, PORTABLE / "newer_functions.cpp", "-o", folder / "newer_functions.o")
    archive = folder / "libsftrun_newer_functions.a"
    archive.unlink(missing_ok=True)
    run("ar", "rcsD", archive, folder / "newer_functions.o")
    (folder / "newer_functions.o").unlink()
    newer = folder / "libsftrun_newer_stdcxx.a"
    newer.unlink(missing_ok=True)
    newer.symlink_to(run(cxx, "-print-file-name=libstdc++.a").strip())

    here = folder.resolve()
    nonshared = run(cxx, "-print-file-name=libc_nonshared.a").strip()
    loader = run(cxx, "-print-file-name=ld-linux-x86-64.so.2").strip()
    (folder / "libc.so").write_text(f"GROUP ( {here}/libc.so.6 {archive.resolve()} {nonshared} AS_NEEDED ( {loader} ) )\n")
    (folder / "libm.so").write_text(f"INPUT ( {here}/libm.so.6 )\n")
    (folder / "libstdc++.so").write_text(f"GROUP ( {here}/libstdc++.so.6 {here}/{newer.name} )\n")
    (folder / "libgcc_s.so").write_text(f"GROUP ( {here}/libgcc_s.so.1 -lgcc )\n")
    # Programs of before 2.34 name these.
    for short in ("pthread", "dl", "rt", "util", "resolv"):
        name = next(name for name in OF_GLIBC if name.startswith(f"lib{short}."))
        (folder / f"lib{short}.so").write_text(f"INPUT ( {here}/{name} )\n")
    print(f"{folder}: linked programs run on glibc {options.glibc} or newer with GLIBCXX_{options.libstdcxx} or newer")


if __name__ == "__main__":
    main()
