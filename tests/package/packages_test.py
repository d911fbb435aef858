#!/usr/bin/env python3
"""The packages as their users have them: what is in them, and a training run in bare systems.

    tests/package/packages_test.py --packages dist --torch .venv/lib/python3.11/site-packages/torch [--roots FOLDER] [--suites bookworm bullseye focal]
                                   [--from-index] [--only files roots]

`files` looks into the packages. `roots` makes root file systems with debootstrap (as root; kept in --roots for the next time) and installs
each package in each, trains the toy set on two processes, and asks `sftrun doctor`. bullseye and focal have glibc 2.31, older than the one
that packages are built on. LibTorch is that of --torch, which the roots see in /opt/packages; with --from-index the wheel's own dependencies
are downloaded in bookworm, as a user does (some 3 GB), and minutes and megabytes to the first step are printed.

Exit code 77: nothing that was asked for can run here.
"""
import argparse
import base64
import csv
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
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11)}  # of manylinux_2_28
MIRRORS = {"focal": ("http://archive.ubuntu.com/ubuntu", "/usr/share/debootstrap/scripts/jammy")}
LIMIT_MB = 60
failures = []


def expect(condition, what, said=""):
    print(("ok   " if condition else "FAIL ") + what + ("" if condition else f": {said}"), flush=True)
    if not condition:
        failures.append(what)


def one(folder, pattern):
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"error: {folder} holds {len(found)} files {pattern}\n  fix: make package")
    return found[0]


# ---- What is in them

def versions_needed(file):
    """Every version of glibc's and libstdc++'s symbols that a file asks for: ("GLIBC", (2, 17))."""
    text = subprocess.run(["readelf", "-V", "-W", file], capture_output=True, text=True, check=True).stdout
    needs = text.partition("version needs section")[2] or text.partition(".gnu.version_r")[2]
    return {(family, tuple(map(int, number.split(".")))) for family, number in re.findall(r"Name: (GLIBC|GLIBCXX|CXXABI)_([\d.]+)\b", needs)}


def check_binary(name, content, private):
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        newer = {need for need in versions_needed(file.name) if need[1] > NEWEST[need[0]]}
        expect(not newer, f"{name}: no symbol newer than manylinux_2_28's", newer)
        paths = subprocess.run(["readelf", "-d", "-W", file.name], capture_output=True, text=True, check=True).stdout
        runs = re.findall(r"(?:RUNPATH|RPATH)\).*\[(.*)\]", paths)
        expect(all(part.startswith("$ORIGIN") for run in runs for part in run.split(":")), f"{name}: libraries are found beside it", runs)
    named = [path for path in private if path.encode() in content]
    expect(not named, f"{name}: no path of the machine that built it", named)


def check_wheel(wheel, private):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        expect(len(names) == len(set(names)) and not any(name.startswith("/") or ".." in name for name in names), "wheel: names are sound", names)
        info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/WHEEL"))
        rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
        wrong = [name for name, digest, size in rows[:-1] if int(size) != len(archive.read(name))
                 or digest != "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()]
        expect({row[0] for row in rows} == set(names) and not wrong, "wheel: RECORD has every file and its checksum", wrong)
        told = archive.read(f"{info}/METADATA").decode()
        for line in ("Name: sftrun", "License-Expression: Apache-2.0", "Requires-Dist: torch==2."):
            expect(line in told, f"wheel: METADATA has {line}", told[:800])
        listed = [line.partition(": ")[2] for line in told.partition("\n\n")[0].splitlines() if line.startswith("License-File: ")]
        expect(len(listed) > 10 and all(f"{info}/licenses/{name}" in names for name in listed), "wheel: the licence of every part", listed)
        parts = json.loads(archive.read(f"{info}/sboms/sftrun.cdx.json"))
        expect(parts["bomFormat"] == "CycloneDX" and {"curl", "libmicrohttpd", "libssl-dev"} <= {part["name"] for part in parts["components"]},
               "wheel: a list of parts", parts)
        modes = {name: archive.getinfo(name).external_attr >> 16 & 0o777 for name in names}
        expect(modes["sftrun/bin/sftrun"] == 0o755, "wheel: the program may be executed", oct(modes["sftrun/bin/sftrun"]))
        binaries = [name for name in names if name.startswith(("sftrun/bin/", "sftrun/lib/"))]
        for name in binaries:
            check_binary(name, archive.read(name), private)
        python = [name for name in names if name.endswith(".so") and "cpython" in name]
        expect(not python, "wheel: nothing is compiled for one Python", python)
    megabytes = wheel.stat().st_size / 1e6
    expect(megabytes < LIMIT_MB, f"wheel: {megabytes:.1f} MB", f"limit {LIMIT_MB}")
    if shutil.which("auditwheel") and shutil.which("patchelf"):
        done = subprocess.run(["auditwheel", "show", wheel], capture_output=True, text=True)
        print(done.stdout)


def check_files(packages, torch):
    private = {str(ROOT) + "/", str(torch.parent), os.path.expanduser("~") + "/"} - {"/"}
    check_wheel(one(packages, "sftrun-*.whl"), private)
    sums = dict(reversed(line.split()) for line in (packages / "SHA256SUMS").read_text().splitlines())
    same = {name: hashlib.sha256((packages / name).read_bytes()).hexdigest() == digest for name, digest in sums.items()}
    expect(len(same) >= 4 and all(same.values()), "SHA256SUMS: of every package", same)
    control = subprocess.run(["dpkg-deb", "--info", one(packages, "sftrun_*.deb")], capture_output=True, text=True).stdout
    expect("Depends: libc6 (>= 2.28)" in control and "Installed-Size" in control, "deb: control file", control)


# ---- In bare systems

class BareSystem:
    """A root file system of a distribution, where commands run with the torch package and its neighbours in /opt/packages."""

    def __init__(self, suite, folder, torch):
        self.suite, self.path, self.torch = suite, folder / suite, torch
        if not (self.path / ".made").exists():
            shutil.rmtree(self.path, ignore_errors=True)
            mirror, recipe = MIRRORS.get(suite, ("http://deb.debian.org/debian", ""))
            started = time.monotonic()
            command = ["debootstrap", *(["--no-check-gpg", "--components=main,universe"] if recipe else []), "--variant=minbase",
                       "--include=ca-certificates,python3,python3-venv", suite, self.path, mirror, *([recipe] if recipe else [])]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"error: debootstrap of {suite} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            (self.path / ".made").touch()
            print(f"     {suite}: made in {time.monotonic() - started:.0f} s")
        (self.path / "opt/packages").mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.path / "trial", ignore_errors=True)
        (self.path / "trial").mkdir()

    def run(self, *words, environment=None, with_torch=True):
        """In namespaces of its own, so that nothing stays mounted and no process stays."""
        mounts = f"mount -t proc proc {self.path}/proc && mount -t tmpfs tmpfs {self.path}/dev/shm"
        if with_torch:
            mounts += f" && mount --bind {self.torch.parent} {self.path}/opt/packages"
        inside = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
                  **{name: value for name, value in os.environ.items() if name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") or name.endswith("_proxy")},
                  **(environment or {})}
        (self.path / "dev/shm").mkdir(exist_ok=True)
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", f'{mounts} && cd {self.path} && exec chroot . env -C /trial -i "$@"', "bash",
                               *(f"{name}={value}" for name, value in inside.items()), *map(str, words)], capture_output=True, text=True)

    def put(self, source, inside):
        target = self.path / inside.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copy(source, target)


def check_program(system, what, program, environment=None, with_torch=True):
    """The version, a run of two processes on the toy set, an answer, and what the machine check says."""
    def sftrun(*words):
        return system.run(program, *words, environment=environment, with_torch=with_torch)
    done = sftrun("--version")
    expect(done.returncode == 0 and re.search(r"^LibTorch +2\.", done.stdout, re.M), f"{what}: --version names LibTorch", done.stdout + done.stderr)
    run = f"/trial/{what.replace(' ', '-')}"
    done = sftrun("train", "--config", "/trial/run.yaml", "--device", "cpu", "--nproc-per-node", "2", "model.name=/trial/model", "data.train=/trial/toy/train.parquet",
                  "data.val=/trial/toy/val.jsonl", f"output.dir={run}")
    expect(done.returncode == 0, f"{what}: the toy set is trained, from a Parquet file", done.stderr[-3000:])
    if done.returncode == 0:
        metrics = [json.loads(line) for line in (system.path / run.lstrip("/") / "metrics.jsonl").read_text().splitlines()]
        losses = [line["loss"] for line in metrics if "loss" in line]
        expect(losses[-1] < 0.5 * losses[0], f"{what}: the loss falls ({losses[0]:.2f} to {losses[-1]:.2f})", losses)
        done = sftrun("generate", "--model", run, "--prompt", "hello", "--max-new-tokens", "4", "--device", "cpu")
        expect(done.returncode == 0, f"{what}: generate", done.stderr[-2000:])
    done = sftrun("doctor", "--no-all-reduce")
    expect("LibTorch 2." in done.stdout, f"{what}: doctor", done.stdout + done.stderr)


def prepare(system):
    toy = ROOT / "data/toy"
    system.put(toy, "/trial/toy")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "scripts/smoke/model.py", "--output", folder, "--seed", "1"], check=True, stdout=subprocess.DEVNULL)
        system.put(pathlib.Path(folder), "/trial/model")
    system.put(ROOT / "scripts/smoke/run.yaml", "/trial/run.yaml")


def unpack(system, packages):
    """The archive, to /opt/sftrun"""
    archive = one(packages, "sftrun-*.tar.zst")
    shutil.rmtree(system.path / "opt/sftrun", ignore_errors=True)
    content = subprocess.run(["zstd", "-dc", archive], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        top = tar.getnames()[0]
        tar.extractall(system.path / "opt", filter="fully_trusted") if hasattr(tarfile, "fully_trusted_filter") else tar.extractall(system.path / "opt")
    (system.path / "opt" / top).rename(system.path / "opt/sftrun")


def check_archive(system, packages):
    unpack(system, packages)
    done = system.run("/opt/sftrun/bin/sftrun", "generate", "--model", "/trial/model", "--prompt", "a", with_torch=False)
    expect(done.returncode == 5 and "pip install 'torch==2." in done.stderr, f"{system.suite}, archive: without LibTorch it says how to get one", done.stderr)
    check_program(system, f"{system.suite} archive", "/opt/sftrun/bin/sftrun", {"SFTRUN_TORCH_ROOT": "/opt/packages/torch", "SFTRUN_ARROW_ROOT": "/opt/packages/pyarrow"})


def check_deb(system, packages):
    deb = one(packages, "sftrun_*.deb")
    system.put(deb, "/trial/sftrun.deb")
    done = system.run("dpkg", "--install", "/trial/sftrun.deb")
    expect(done.returncode == 0, f"{system.suite}, deb: installed", done.stdout + done.stderr)
    # As a virtual environment that is active; the folder of Python's packages is /opt/packages.
    packages_of_python = system.path / "opt/venv-of-torch/lib/python3.11"
    packages_of_python.mkdir(parents=True, exist_ok=True)
    if not (packages_of_python / "site-packages").is_symlink():
        (packages_of_python / "site-packages").symlink_to("/opt/packages")
    check_program(system, f"{system.suite} deb", "sftrun", {"VIRTUAL_ENV": "/opt/venv-of-torch"})
    done = system.run("dpkg", "--purge", "sftrun")
    expect(done.returncode == 0 and not (system.path / "usr/lib/sftrun").exists(), f"{system.suite}, deb: removed whole", done.stdout + done.stderr)


def reach_index(system):
    """Lets the system use this machine's network.   @return variables for pip"""
    for name in ("/etc/resolv.conf", "/etc/hosts"):
        if pathlib.Path(name).exists():
            system.put(pathlib.Path(name), name)
    authorities = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")  # that this network has
    if not authorities or not pathlib.Path(authorities).exists():
        return {}
    system.put(pathlib.Path(authorities), "/trial/authorities.crt")
    return {"PIP_CERT": "/trial/authorities.crt"}


def check_wheel_in(system, packages, from_index):
    version = system.run("python3", "-c", "import sys; print(sys.version_info >= (3, 10), '%d.%d' % sys.version_info[:2])").stdout.split()
    if version[0] != "True":
        print(f"     {system.suite}: Python {version[1]} is older than LibTorch's wheel takes; the archive and the .deb work")
        return
    wheel = one(packages, "sftrun-*.whl")
    system.put(wheel, f"/trial/{wheel.name}")
    shutil.rmtree(system.path / "opt/venv", ignore_errors=True)
    started = time.monotonic()
    system.run("python3", "-m", "venv", "/opt/venv")
    trusted = reach_index(system)
    options = [] if from_index else ["--no-deps", "--no-index"]
    done = system.run("/opt/venv/bin/pip", "install", *options, f"/trial/{wheel.name}{'[data]' if from_index else ''}", environment=trusted, with_torch=False)
    expect(done.returncode == 0, f"{system.suite}, wheel: installed by pip", done.stdout[-1500:] + done.stderr[-1500:])
    if not from_index:  # the same as a package that another tool installed there
        (system.path / f"opt/venv/lib/python{version[1]}/site-packages/neighbours.pth").write_text("/opt/packages\n")
    check_program(system, f"{system.suite} wheel", "/opt/venv/bin/sftrun", with_torch=not from_index)
    if from_index:
        size = sum(path.stat().st_size for path in (system.path / "opt/venv").rglob("*") if path.is_file() and not path.is_symlink())
        print(f"     {system.suite}: from nothing to a trained run in {(time.monotonic() - started) / 60:.1f} min, {size / 1e6:.0f} MB installed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    parser.add_argument("--torch", type=pathlib.Path, required=True)
    parser.add_argument("--roots", type=pathlib.Path, default=ROOT / ".cache/package/roots")
    parser.add_argument("--suites", nargs="+", default=["bookworm", "bullseye", "focal"])
    parser.add_argument("--from-index", action="store_true")
    parser.add_argument("--only", nargs="+", choices=("files", "roots"), default=["files", "roots"])
    options = parser.parse_args()
    torch = options.torch.resolve()
    if "files" in options.only:
        check_files(options.packages, torch)
    if "roots" in options.only:
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            print("roots: not run; that needs root and debootstrap")
            sys.exit(1 if failures else 77)
        for suite in options.suites:
            system = BareSystem(suite, options.roots, torch)
            prepare(system)
            check_archive(system, options.packages)
            check_deb(system, options.packages)
            check_wheel_in(system, options.packages, options.from_index)
    print("packages: " + ("failed\n" + "\n".join(failures) if failures else "all as said"))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
