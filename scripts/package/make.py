#!/usr/bin/env python3
"""Makes packages of a folder that scripts/package/build.sh built: a Python wheel, an archive, and a .deb.

    scripts/package/make.py TREE --out FOLDER [--only wheel archive deb]

Two runs on the same TREE write the same bytes: names are sorted, and every date is SOURCE_DATE_EPOCH (default: that of the last commit).
FOLDER gets the packages, the list of what is in them (CycloneDX) and SHA256SUMS.

Sources: Python Packaging User Guide, "Binary distribution format" (wheels), PEP 600 (manylinux), PEP 639 (licences), PEP 770 (lists of
parts in wheels), the Debian Policy Manual, CycloneDX 1.5.
"""
import argparse
import base64
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "python/sftrun"
PLATFORM = "manylinux_2_28_x86_64"
SUMMARY = "Fine-tunes language models on the GPUs people have: one compiled program on LibTorch"
PAGES = "https://github.com/sftrun/sftrun"


def text_in(file, pattern):
    found = re.search(pattern, (ROOT / file).read_text())
    if not found:
        sys.exit(f"error: {file} has no {pattern}")
    return found[1]


def version():
    return text_in("CMakeLists.txt", r"project\(sftrun VERSION ([\d.]+)")


def torch_requirement():
    """LibTorch's functions differ from one minor version to the next."""
    built = text_in("scripts/bootstrap.sh", r"torch_version=([\d.]+)")
    return f"torch=={built.rpartition('.')[0]}.*"


def arrow_requirement():
    return f"pyarrow=={text_in('scripts/bootstrap.sh', r'arrow_version=([0-9.]+)').split('.')[0]}.*"


def epoch():
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    done = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True)
    return int(done.stdout or 0)


def is_program(path):
    return path.parent.name == "bin" or ".so" in path.name


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def parts(tree):
    """(name, version, licence) of every library in the packages."""
    return [line.split("\t") for line in (tree / "share/doc/sftrun/parts.tsv").read_text().splitlines()]


def list_of_parts(tree):
    """A software bill of materials. The licence of LGPL's libmicrohttpd is the reason that it is a shared library of its own."""
    def component(name, number, licence):
        return {"type": "library", "name": name, "version": number, "licenses": [{"expression": licence}], "purl": f"pkg:deb/debian/{name}@{number}"}
    own = {"type": "application", "name": "sftrun", "version": version(), "licenses": [{"expression": "Apache-2.0"}], "purl": f"pkg:pypi/sftrun@{version()}"}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch()))
    components = [component(*part) for part in parts(tree)]
    return json.dumps({"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": {"timestamp": when, "component": own},
                       "components": components}, indent=1) + "\n"


class Wheel:
    """A zip file whose entries have one date, and the list of their checksums (RECORD)."""

    def __init__(self, path):
        self.path, self.entries, self.record = path, [], []

    def add(self, name, content, is_executable=False):
        self.entries.append((name, content, is_executable))

    def write(self, folder):
        date = time.gmtime(max(epoch(), 315532800))[:6]  # zip begins in 1980
        with zipfile.ZipFile(self.path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content, is_executable in self.entries:
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                self.record.append(f"{name},sha256={digest},{len(content)}")
                self.put(archive, name, content, is_executable, date)
            self.record.append(f"{folder}/RECORD,,")
            self.put(archive, f"{folder}/RECORD", "".join(line + "\n" for line in self.record).encode(), False, date)

    @staticmethod
    def put(archive, name, content, is_executable, date):
        entry = zipfile.ZipInfo(name, date)
        entry.external_attr = (0o100755 if is_executable else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, content, compresslevel=9)


def metadata(licences):
    lines = ["Metadata-Version: 2.4", "Name: sftrun", f"Version: {version()}", f"Summary: {SUMMARY}", "License-Expression: Apache-2.0",
             *(f"License-File: {name}" for name in licences), f"Project-URL: Homepage, {PAGES}", "Requires-Python: >=3.10",
             "Classifier: Environment :: GPU :: NVIDIA CUDA", "Classifier: Operating System :: POSIX :: Linux",
             "Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence", f"Requires-Dist: {torch_requirement()}",
             "Provides-Extra: data", f"Requires-Dist: {arrow_requirement()}; extra == 'data'", "Description-Content-Type: text/markdown"]
    return "\n".join(lines) + "\n\n" + (ROOT / "README.md").read_text()


def make_wheel(tree, out):
    folder = f"sftrun-{version()}.dist-info"
    wheel = Wheel(out / f"sftrun-{version()}-py3-none-{PLATFORM}.whl")
    for path in files_below(MODULE):
        if "__pycache__" not in path.parts:
            wheel.add(f"sftrun/{path.relative_to(MODULE)}", path.read_bytes())
    for room in ("bin", "lib"):
        for path in files_below(tree / room):
            wheel.add(f"sftrun/{path.relative_to(tree)}", path.read_bytes(), is_program(path))
    documents = tree / "share/doc/sftrun"
    licences = ["LICENSE", *(f"licences/{path.name}" for path in files_below(documents / "licences"))]
    for name in licences:
        wheel.add(f"{folder}/licenses/{name}", (documents / name).read_bytes())
    wheel.add(f"{folder}/sboms/sftrun.cdx.json", list_of_parts(tree).encode())
    wheel.add(f"{folder}/METADATA", metadata(licences).encode())
    wheel.add(f"{folder}/WHEEL", f"Wheel-Version: 1.0\nGenerator: sftrun\nRoot-Is-Purelib: false\nTag: py3-none-{PLATFORM}\n".encode())
    wheel.add(f"{folder}/entry_points.txt", b"[console_scripts]\nsftrun = sftrun.__main__:main\n")
    wheel.write(folder)
    return wheel.path


def tar_of(tree, top):
    """A tar file of the folder, below `top`; root's, with one date."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folders = {top} | {f"{top}/{path.relative_to(tree)}" for path in tree.rglob("*") if path.is_dir()}
        entries = [(name, None) for name in folders] + [(f"{top}/{path.relative_to(tree)}", path) for path in files_below(tree)]
        for name, path in sorted(entries, key=lambda entry: entry[0]):
            info = tarfile.TarInfo(name)
            info.mtime, info.uname, info.gname = epoch(), "root", "root"
            if path is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(info)
                continue
            content = path.read_bytes()
            info.size, info.mode = len(content), 0o755 if is_program(path) else 0o644
            archive.addfile(info, io.BytesIO(content))
    return memory.getvalue()


def make_archive(tree, out):
    name = f"sftrun-{version()}-linux-x86_64"
    path = out / f"{name}.tar.zst"
    content = tar_of(tree, name)
    done = subprocess.run(["zstd", "-19", "--single-thread", "-q", "-c"], input=content, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"error: zstd failed: {done.stderr.decode().strip()}\n  fix: apt-get install zstd")
    path.write_bytes(done.stdout)
    return path


def control(installed_bytes):
    return textwrap.dedent(f"""\
        Package: sftrun
        Version: {version()}
        Architecture: amd64
        Maintainer: sftrun <sftrun@users.noreply.github.com>
        Installed-Size: {(installed_bytes + 1023) // 1024}
        Depends: libc6 (>= 2.28), libgcc-s1 | libgcc1, libstdc++6 (>= 8)
        Recommends: ca-certificates, python3-venv
        Section: science
        Priority: optional
        Homepage: {PAGES}
        Description: fine-tunes language models on GPUs
         sftrun trains LoRA, QLoRA or all weights of language and vision-language
         models on one or many GPUs, and leaves adapters that PEFT, vLLM and
         llama.cpp read.
         .
         It needs LibTorch, which Debian does not have in this version:
         pip install '{torch_requirement()}' into a virtual environment, which is
         found when it is active, or SFTRUN_TORCH_ROOT=/path/to/torch.
        """)


def copyright_file():
    """In the form of Debian's Policy 12.5: our licence in short, and those of every part."""
    return textwrap.dedent("""\
        Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
        Upstream-Name: sftrun

        Files: *
        Copyright: the authors of sftrun
        License: Apache-2.0
         On Debian systems the licence is in /usr/share/common-licenses/Apache-2.0.
        Comment: The libraries in the package have the licences in /usr/share/doc/sftrun/licences.
        """)


def make_deb(tree, out):
    path = out / f"sftrun_{version()}_amd64.deb"
    with tempfile.TemporaryDirectory() as scratch:
        root = pathlib.Path(scratch) / "root"
        library, documents = root / "usr/lib/sftrun", root / "usr/share/doc/sftrun"
        for room in ("bin", "lib"):
            shutil.copytree(tree / room, library / room)
        shutil.copytree(tree / "share/doc/sftrun", documents)
        (documents / "LICENSE").unlink()  # Policy 12.5: not a second copy of a common licence
        (documents / "copyright").write_text(copyright_file())
        (documents / "sftrun.cdx.json").write_text(list_of_parts(tree))
        (root / "usr/bin").mkdir()
        (root / "usr/bin/sftrun").symlink_to("../lib/sftrun/bin/sftrun")
        (root / "DEBIAN").mkdir()
        (root / "DEBIAN/control").write_text(control(sum(file.stat().st_size for file in files_below(root))))
        for entry in [root, *root.rglob("*")]:
            if not entry.is_symlink():
                entry.chmod(0o755 if entry.is_dir() or is_program(entry) else 0o644)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(root), str(path)], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch())})
    return path


MAKERS = {"wheel": make_wheel, "archive": make_archive, "deb": make_deb}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--only", nargs="+", choices=MAKERS, default=list(MAKERS))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    made = [MAKERS[kind](options.tree, options.out) for kind in options.only]
    listing = options.out / "sftrun.cdx.json"
    listing.write_text(list_of_parts(options.tree))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in sorted([*made, listing])]
    (options.out / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    for path in made:
        print(f"{path.stat().st_size / 1e6:7.1f} MB  {path}")


if __name__ == "__main__":
    main()
