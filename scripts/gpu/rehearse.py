#!/usr/bin/env python3
"""The check of another machine's GPU, rehearsed where there is none: from packing to the last result.

    scripts/gpu/rehearse.py --build build --libraries build/stand-in-runtime

Packs the build, copies nothing but the archive and check.py into an empty folder, runs it there over libraries that stand in for
CUDA's (they count kernels and compute nothing), and reads the result. Numbers are not compared; all else is: unpacking, libraries,
starts, limits, a program that hangs, results. Of the training runs two are made, and two of those over NCCL; with --all all of them.
Exit code 0 when every part went as far as it can. Standard library only.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES, FILE_BYTES = 8, 16 << 20  # what may come back from such a machine


def fail(what, fix):
    sys.exit(f"error: {what}\n  fix: {fix}")


def packed(arguments, folder):
    archive = arguments.archive
    if archive is None:
        archive = folder / "gpu.tar.xz"
        subprocess.run([ROOT / "scripts/gpu/pack.sh", arguments.build, archive], check=True)
    print(f"archive: {archive.stat().st_size / (1 << 20):.1f} MiB", flush=True)
    return archive


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--archive", type=pathlib.Path, help="one that is packed already")
    parser.add_argument("--libraries", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build/stand-in-runtime")
    parser.add_argument("--output", type=pathlib.Path, help="folder in which the result stays")
    parser.add_argument("--budget", type=float, default=540)
    parser.add_argument("--torch-python", default=str(ROOT / ".venv/bin/python") if (ROOT / ".venv").exists() else "python3")
    parser.add_argument("--all", action="store_true", help="every training run, and every run over NCCL")
    parser.add_argument("more", nargs="*", help="further arguments of check.py, after --")
    arguments = parser.parse_args()
    if not arguments.libraries.is_dir():
        fail(f"{arguments.libraries} is not there", "name a folder with libraries in the place of CUDA's: --libraries")
    with tempfile.TemporaryDirectory(prefix="gpu-rehearsal-") as scratch:
        folder = pathlib.Path(scratch)
        out = (arguments.output or folder / "out").resolve()
        archive, script = packed(arguments, folder), folder / "there/check.py"
        script.parent.mkdir(parents=True)
        shutil.copy(ROOT / "scripts/gpu/check.py", script)  # alone: nothing of this checkout is beside it
        command = [sys.executable, script, "--archive", archive.resolve(), "--output", out / "gpu-check.json", "--torch-python", arguments.torch_python,
                   "--budget", str(arguments.budget), "--also", "compare", "shapes", "--rehearse", arguments.libraries, *(["--all-runs"] if arguments.all else []), *arguments.more]
        began = time.monotonic()
        code = subprocess.run([str(part) for part in command]).returncode
        seconds = time.monotonic() - began
        files = [path for path in out.iterdir() if path.is_file()]
        report = json.loads((out / "gpu-check.json").read_text())
    wrong = [f"{name}: {part['state']}" for name, part in report["parts"].items() if part["state"] != "ok"]
    if len(files) > FILES or any(not path.name.replace("-", "").replace(".", "").isalnum() for path in files):
        wrong.append(f"{len(files)} files: {', '.join(path.name for path in files)}")
    if seconds > arguments.budget + 10:
        wrong.append(f"took {seconds:.0f} s")
    print(f"rehearsed in {seconds:.0f} s, exit code {code}: {', '.join(wrong) or 'all parts ok'}")
    return 1 if wrong or code != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
