#!/usr/bin/env python3
"""Checks a build on this machine's GPUs and writes what came of it as JSON, each part the moment it is done.

    scripts/gpu/check.py --build build --output bench/gpu-check.json       # a build of this machine: make gpu-check
    scripts/gpu/check.py --archive gpu.tar.xz --output gpu-check.json      # one of another machine: scripts/gpu/pack.sh

unpack    with --archive: every file's sha256, and that LibTorch here is the version that the build is of
kernels   bin/gpu_tests: every CUDA kernel beside the CPU
models    bin/gpu_tests: models of all families, quantised bases and optimizers beside the CPU
training  tests/data/train on one GPU: fp32 beside what transformers + peft computed, bf16 beside the same on this CPU
images    three steps of tiny models with images beside the same on this CPU, tower and projector trained, too; then sftrun bench --images on
          shapes of released models
nccl      two ranks on two GPUs; where there is one, both on it, each named another host
bandwidth bin/quant_bandwidth: quantised matrices unpacked and multiplied, beside a copy of the card's memory
adapters  bin/adapter_bandwidth: the products of LoRA adapters and their gradients, beside a copy of the card's memory
attention bin/attention_speed: FlashAttention beside cuDNN's kernel and, with images that are seen both ways, sftrun's own, forward and backward
memory    tests/smoke/memory_plan.py on one GPU: the tensors of a run beside what sftrun memory-check plans for it
bench     sftrun bench and bench/peer_train.py in turn, bf16 (where --peer-python has transformers and peft), also with Liger's kernels
          and bitsandbytes' NF4 (where it has them)
With --also or --only:
compare   bench/compare.py: `sftrun train` and other trainers in turn on packed conversations and on full sequences, with and without recomputation, a minute of
          steady state each; losses by step, clocks and power
shapes    sftrun bench and bench/peer_train.py at the shapes of published tables: 4096 tokens, experts with LoRA, 32k and 128k tokens, 70B in NF4

A part that runs over its time is ended with all that it started, and the next begins. Exit code 0: every part that ran is ok;
1: one is not; 3: those that ran are, but time was out. docs/gpu-check.md says how to read the result. Standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import datetime
import hashlib
import importlib.util
import json
import lzma
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import uuid
import zlib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1] if HERE.parts[-2:] == ("scripts", "gpu") else HERE  # a checkout, or wherever this file was copied to
RUNS = ("lora_all_linear", "lora_qv", "lora_rslora", "full_tied", "full_untied", "partial_norms")
RUNS_REHEARSED = ("lora_qv", "full_tied")  # numbers are not compared there: one of each kind
NCCL_RUNS = ("lora_all_linear", "full_tied")
OF_TWO = ("train.grad_accum=1",)  # two ranks take the examples that one takes in two parts: the same global batch
LOSS = 1e-4  # relative, at any step, in fp32; on a CPU 1e-5 is kept
LOSS_BF16 = 5e-3  # on a CPU bf16 is up to 1e-3 from fp32
LIMITS = {"kernels": 150, "models": 180, "training": 120, "images": 100, "nccl": 100, "bandwidth": 60, "adapters": 30, "attention": 60, "memory": 100, "bench": 300, "compare": 540, "shapes": 400}  # seconds
RESERVED = 200  # seconds of the budget that are kept for the bench, whatever comes before it takes
LEAST = 10  # seconds left, or a part is not begun
QUIET = 120  # seconds without a line, and gpu_tests hangs
JOBS = 4  # runs of tiny models at once
PARTS_RUN_TOGETHER = ("kernels", "models", "training", "nccl", "memory")  # they compare numbers and measure no times
CPUS_FOR_ALL, GIB_FOR_ALL = 12, 24  # processors and memory of the card, or they run one after the other
IMAGE_KINDS = ("qwen2_5_vl", "gemma3")  # windows and three axes of positions; images that are seen both ways
ALL_PARTS = ("tuning.mode=full", "tuning.train_parts=[language, projector, vision]")
# Shape, its kind, tokens of an example, GiB of the card that are needed. An example has two images of 1024 x 768, a step two examples.
IMAGE_WORKS = (("qwen2_5_vl-3b", "qwen2_5_vl", 2560, 24), ("gemma3-4b", "gemma3", 1024, 32))
SMALL_WORK = ("qwen3-0.6b", 128)  # the shape, and tokens of a micro-batch
OF_MODELS = "GpuModels*:GpuOptimizers*:GpuPassGraphs*:GpuGraphs*"
# Shape, tokens of an example, examples of a step, GiB of the card that each needs, formats of the frozen base (FP8 has no peer).
WORKS = (("qwen3-0.6b", 2048, 8, {"sftrun": 20, "transformers": 72, "liger": 32}, (None,)),
         ("qwen3-8b", 2048, 2, {"sftrun": 36, "transformers": 79, "liger": 48}, (None, "nf4", "fp8")))
# What docs/gpu-performance.md predicts for: LoRA r 16 on all linear layers.
TUNED = ("tuning.lora.r=16", "tuning.lora.alpha=32", "tuning.lora.target_modules=[all-linear]")
PEER_TUNED = ("--lora-r", "16", "--all-linear")
ONLY_IF_NAMED = ("compare", "shapes")  # of the parts: they take minutes
# Of bench/compare.py, the most telling first: shape, lengths, tokens of a sequence, sequences of a micro-batch, micro-batches of a step, recomputation, GiB of the card that are needed.
COMPARISONS = {
    "qwen3-8b, packed": ("qwen3-8b", "azure-conversations", 2048, 2, 4, False, 60),
    "qwen3-8b, packed, recomputed": ("qwen3-8b", "azure-conversations", 2048, 2, 4, True, 40),
    "qwen3-8b, uniform": ("qwen3-8b", "uniform", 2048, 2, 4, False, 60),
    "qwen3-8b, uniform, recomputed": ("qwen3-8b", "uniform", 2048, 2, 4, True, 40),
    "qwen3-0.6b, packed": ("qwen3-0.6b", "azure-conversations", 2048, 8, 1, False, 40),
    "qwen3-0.6b, packed, recomputed": ("qwen3-0.6b", "azure-conversations", 2048, 8, 1, True, 40),
    "qwen3-0.6b, uniform": ("qwen3-0.6b", "uniform", 2048, 8, 1, False, 40),
    "qwen3-0.6b, short conversations": ("qwen3-0.6b", "demo", 2048, 8, 1, False, 40),
    "llama-3-8b, packed": ("llama-3-8b", "azure-conversations", 4096, 2, 4, False, 76),
}
COMPARISONS_REHEARSED = {
    "llama-tiny, packed": ("llama-tiny", "azure-conversations", 512, 2, 2, False, 0),
    "llama-tiny, uniform, recomputed": ("llama-tiny", "uniform", 64, 2, 2, True, 0),
}
FASTEST = {"qwen3-0.6b": 140_000}  # tokens/s that no side reaches, of other shapes 25,000: the data last for the steady state
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
# Of published tables: shape, tokens of an example, examples of a step, format of the base, recomputation, LoRA on experts, GiB of the card that each side needs.
SHAPES = {
    "llama-3-8b, 2 x 4096": ("llama-3-8b", 4096, 2, None, False, False, {"sftrun": 56, "peer": 76}),
    "qwen2.5-7b, 2 x 4096": ("qwen2_5-7b", 4096, 2, None, False, False, {"sftrun": 56, "peer": 76}),
    "qwen3-30b-a3b, experts, 2 x 2048": ("qwen3-30b-a3b", 2048, 2, None, True, True, {"sftrun": 110, "peer": 135}),
    "gpt-oss-20b, experts, 2 x 2048": ("gpt-oss-20b", 2048, 2, None, True, True, {"sftrun": 76, "peer": 110}),
    "llama-3-8b, 1 x 32768": ("llama-3-8b", 32768, 1, None, True, False, {"sftrun": 60, "peer": 76}),
    "llama-3-8b, 1 x 131072": ("llama-3-8b", 131072, 1, None, True, False, {"sftrun": 110, "peer": 135}),
    "llama-3-70b, nf4, 1 x 2048": ("llama-3-70b", 2048, 1, "nf4", True, False, {"sftrun": 76, "peer": 135}),
}
SHAPES_REHEARSED = {"llama-tiny, 1 x 64": ("llama-tiny", 64, 1, None, True, False, {}), "qwen3_moe-mini, experts, 1 x 64": ("qwen3_moe-mini", 64, 1, None, True, True, {})}
MEMORY_REHEARSED = ("LoRA",)  # with fewer tokens, but more than a CUDA graph is captured for
MARK = "SFTRUN_GPU_CHECK"  # in the environment of everything that a step starts, whatever its session
NOT_COMPARED = "numbers not compared (rehearsal)"


class Over(Exception):
    """A step was ended because its time was over."""

    def __init__(self, why, done):
        super().__init__(why)
        self.done = done


class Stopped(BaseException):
    """A signal asked this program to end."""


# ---- Processes


def marked(mark):
    wanted, found = f"{MARK}={mark}".encode(), []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def end_all(mark, group):
    """Kills what carries the mark, in whatever session or group it is, and waits a moment for it to go."""
    for _ in range(50):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
        left = marked(mark)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.05)


class Done:
    def __init__(self, code, output, errors, seconds):
        self.code, self.output, self.errors, self.seconds = code, output, errors, seconds

    @property
    def text(self):
        return self.output + self.errors

    def tail(self, size=2000):
        return self.text[-size:] or f"exit code {self.code}"


def text_of(file, most=4 << 20):
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - most))
    return file.read().decode(errors="replace")


STOP = threading.Event()  # a signal has asked for the end: what runs is ended, and nothing more is begun


def run(command, env, limit, quiet=None, cwd=None):
    """Runs a command in a session of its own. Over, with what it printed, after `limit` seconds, or `quiet` without output."""
    mark, began = uuid.uuid4().hex, time.monotonic()
    if STOP.is_set():
        raise Over("not begun: ended by a signal", Done(None, "", "", 0))
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen([str(part) for part in command], env={**env, MARK: mark}, stdin=subprocess.DEVNULL,
                                   stdout=output, stderr=errors, start_new_session=True, cwd=cwd)
        why, size, grew = None, -1, began
        try:
            while process.poll() is None and why is None:
                now = time.monotonic()
                if os.fstat(output.fileno()).st_size != size:
                    size, grew = os.fstat(output.fileno()).st_size, now
                if STOP.is_set():
                    why = "ended by a signal"
                elif now - began > limit:
                    why = f"ended after {limit:.0f} s"
                elif quiet is not None and now - grew > quiet:
                    why = f"ended: silent for {quiet:.0f} s"
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(min(0.2, max(0.01, limit - (now - began))))
        finally:
            end_all(mark, process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that a driver holds is left behind
                process.wait(5)
        done = Done(process.returncode, text_of(output), text_of(errors), time.monotonic() - began)
    if why:
        raise Over(why, done)
    return done


# ---- What a part has


class Check:
    """Where things are on this machine, and the report."""

    def __init__(self, arguments):
        self.arguments, self.rehearsal = arguments, arguments.rehearse is not None
        self.few_runs = self.rehearsal and not arguments.all_runs
        self.end = time.monotonic() + arguments.budget
        self.report = {"date": datetime.date.today().isoformat(), "rehearsal": self.rehearsal, "budget_s": arguments.budget, "machine": {}, "parts": {}}
        self.lock, self.log_bytes = threading.RLock(), 0
        self.cpus = int(os.environ.get("SFTRUN_GPU_CHECK_CPUS") or len(os.sched_getaffinity(0)))
        self.log = arguments.output.with_suffix(".log")  # begun when there is something to check: what an earlier run wrote stays till then
        self.use(arguments.build)

    def use(self, build):
        self.build = build
        self.data = next((folder for folder in (build / "tests/data", ROOT / "tests/data") if folder.exists()), ROOT / "tests/data")
        self.bench = build / "bench" if (build / "bench/arch").exists() else ROOT / "bench"

    def prepare(self, scratch):
        """The environment of our programs; that of others is left as it is."""
        self.scratch = scratch
        first = [folder for folder in (self.arguments.rehearse, self.arguments.libraries) if folder]
        folders = [*first, self.build / "carried", *torch_libraries(self.arguments.torch_python)]
        before = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
        self.env = {**os.environ, "SFTRUN_TEST_DATA": str(self.data), "XDG_CACHE_HOME": str(scratch / "cache"),
                    "LD_LIBRARY_PATH": ":".join([str(folder) for folder in folders if folder.exists()] + before)}
        # libtorch_cpu has a search path of its own for CUDA's runtime, before LD_LIBRARY_PATH: the stand-ins come with their driver.
        driver = self.arguments.rehearse / "libcuda.so.1" if self.arguments.rehearse else None
        if driver and driver.exists():
            self.env["LD_PRELOAD"] = str(driver)

    def save(self):
        with self.lock:
            part = self.arguments.output.with_name(f".{self.arguments.output.name}.part")
            part.write_text(json.dumps(self.report, indent=2) + "\n")
            os.replace(part, self.arguments.output)

    def keep(self, command, done, why=""):
        text = f"$ {' '.join(map(str, command))}\n{done.output[-200_000:]}{done.errors[-50_000:]}\n[exit code {done.code}, {done.seconds:.1f} s] {why}\n"
        with self.lock:
            if self.log_bytes < 12 << 20:
                self.log_bytes += len(text)
                with self.log.open("a", errors="replace") as log:
                    log.write(text)

    def kept_after(self, name):
        """Seconds that a part leaves for the bench, where that is still to come."""
        comes = name != "bench" and "bench" in self.arguments.only and "bench" not in self.arguments.skip
        return min(RESERVED, 0.4 * self.arguments.budget) if comes else 0

    def left(self):
        return self.end - time.monotonic()


class Part:
    """One part under way: its result so far is in the report, whatever happens next."""

    def __init__(self, check, name):
        self.check, self.name, self.result = check, name, {"state": "running"}
        limit = check.arguments.limits.get(name, LIMITS.get(name, 30))
        self.end = min(time.monotonic() + limit, check.end - check.kept_after(name))
        with check.lock:
            check.report["parts"][name] = self.result
        check.save()

    def run(self, command, limit=1e9, env=None, **more):
        left = self.end - time.monotonic()
        if left < 0.1:
            raise Over("not begun: the part's time is over", Done(None, "", "", 0))
        try:
            done = run(command, self.check.env if env is None else env, min(limit, left), **more)
        except Over as over:
            self.check.keep(command, over.done, str(over))
            raise
        self.check.keep(command, done)
        return done

    def put(self, key, value):
        """A step's result, at once."""
        with self.check.lock:
            self.result.setdefault("runs", {})[key] = value
        print(f"  {self.name}, {key}: {brief(value)}", flush=True)
        self.check.save()

    def each(self, work, jobs):
        """Calls of which each gives a result, several at once; whether all are ok. One over its time costs itself only."""
        def one(item):
            key, call = item
            try:
                self.put(key, call())
            except Over as over:
                self.put(key, {"ok": False, "error": str(over), "output": over.done.text[-1000:]})
            except Exception as error:
                self.put(key, {"ok": False, "error": f"{type(error).__name__}: {error}"})

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, work.items()))
        return all(self.result["runs"][key]["ok"] for key in work)


def brief(value):
    return json.dumps({key: item for key, item in value.items() if not isinstance(item, (list, dict)) and len(str(item)) < 200})


# ---- This machine


def torch_libraries(python):
    """Folders with LibTorch and what comes with it, of the Python that has it; it is not loaded."""
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if found.returncode != 0 or not found.stdout.strip():
        sys.exit(f"error: {python} has no torch\n  fix: name a Python that has it: --torch-python")
    torch = pathlib.Path(found.stdout.strip()).parent
    return [torch / "lib", *sorted((torch.parent / "nvidia").glob("*/lib"))]


def torch_version(python):
    file = torch_libraries(python)[0].parent / "version.py"
    match = re.search(r"__version__ = '([^']+)'", file.read_text()) if file.exists() else None
    return match[1] if match else None


def cards(check):
    """A line for each, and the memory of the smallest in bytes; the driver's tool is not on every machine."""
    try:
        info = json.loads(run([check.build / "bin/sftrun", "gpu-info", "--json"], check.env, 60).output)
        gpus = info["gpus"]
    except (Over, OSError, ValueError, KeyError):
        info, gpus = {}, []
    lines = [f"{gpu.get('name')}, {gpu.get('memory_total_bytes')} bytes, driver {info.get('driver_version')}" for gpu in gpus]
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, Over):
        done = run(query, check.env, 60)
        lines = done.output.strip().splitlines() if done.code == 0 and done.output.strip() else lines
    memory = [gpu.get("memory_total_bytes") for gpu in gpus if gpu.get("memory_total_bytes")]
    return {"cards": lines, "memory_bytes": min(memory, default=None), "cpus": len(os.sched_getaffinity(0)), "gpu_info": info}


# ---- The archive


def sha256(path):
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def unpack(archive, folder):
    """@return what is wrong with it, or nothing"""
    try:
        with tarfile.open(archive) as packed:
            members = packed.getmembers()
            for member in members:
                if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in pathlib.PurePath(member.name).parts:
                    return f"{member.name} does not belong into such an archive"
            packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        listed = [line.split("  ", 1) for line in (folder / "SHA256SUMS").read_text().splitlines()]
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError, UnicodeDecodeError) as error:
        return f"the archive is damaged: {error}"
    wanted = {name.removeprefix("./"): known for known, name in listed}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"SHA256SUMS"}
    wrong = sorted(set(wanted) ^ there) + [name for name in sorted(set(wanted) & there) if sha256(folder / name) != wanted[name]]
    return f"missing, too many or changed: {', '.join(wrong[:8])}" if wrong else None


def check_unpack(part, folder):
    check, python = part.check, part.check.arguments.torch_python
    began = time.monotonic()
    error = unpack(check.arguments.archive, folder)
    part.result["seconds_to_unpack"] = round(time.monotonic() - began, 1)
    if error:
        return {"ok": False, "error": error}
    about = json.loads((folder / "about.json").read_text()) if (folder / "about.json").exists() else {}
    here = torch_version(python)
    check.use(folder)
    if about.get("torch") and here and about["torch"].split("+")[0] != here.split("+")[0]:
        return {"ok": False, "error": f"the build is of LibTorch {about['torch']}, and {python} has {here}", "about": about}
    return {"ok": True, "about": about, "torch": here}


# ---- Parts: tests

TEST_LINE = re.compile(r"^\[ +(RUN|OK|FAILED|SKIPPED) +\] (\S+?)(?:,.*)?(?: \(\d+ ms\))?$")


def test_states(output):
    """name -> [RUN, OK, FAILED or SKIPPED, what it printed]; RUN: it never ended."""
    states, current = {}, None
    for line in output.splitlines():
        match = TEST_LINE.match(line.rstrip())
        if match and match[1] == "RUN":
            current = match[2]
            states[current] = ["RUN", ""]
        elif match and match[2] == current:
            states[current][0], current = match[1], None
        elif line.startswith("[==========]"):
            current = None
        elif current and len(states[current][1]) < 3000:
            states[current][1] += line + "\n"
    return states


def listed_tests(text):
    names, suite = [], ""
    for line in text.splitlines():
        line = line.split("#")[0].rstrip()
        if line.endswith(".") and not line.startswith(" "):
            suite = line
        elif line.startswith("  ") and suite:
            names.append(suite + line.strip())
    return names


def beside_others(check, threads):
    """For tiny models: threads that wait for one another by spinning take longer than the work where cores are few."""
    return {**check.env, "OMP_NUM_THREADS": str(max(1, threads)), "OMP_WAIT_POLICY": "passive"}


def check_tests(part, pattern):
    """All at once; where that is not clean each test that is not, alone, as one may spoil the card for those after it."""
    program, why = part.check.build / "bin/gpu_tests", None
    left, cpus = part.end - time.monotonic(), len(os.sched_getaffinity(0))
    env = beside_others(part.check, min(4, cpus))
    try:
        done = part.run([program, f"--gtest_filter={pattern}", "--gtest_color=no"], limit=0.7 * left, env=env, quiet=min(QUIET, 0.6 * left))
    except Over as over:
        done, why = over.done, str(over)
    states = test_states(done.output)
    failed = {name: text for name, (state, text) in states.items() if state in ("FAILED", "RUN")}
    result = {"tests": len(states), "passed": sum(state == "OK" for state, _ in states.values()), "seconds": round(done.seconds, 1), "failed": failed}
    if not states:
        return {"ok": False, "error": why or done.tail(), **result}
    if done.code == 0 and not failed and why is None:
        return {"ok": True, **result}
    part.result.update(result)
    part.check.save()
    crashed = why is not None or done.code not in (0, 1) or any(state == "RUN" for state, _ in states.values())
    if crashed:
        result["error"] = why or f"exit code {done.code}: {done.errors[-1000:]}"
        with contextlib.suppress(Over):
            every = listed_tests(part.run([program, f"--gtest_filter={pattern}", "--gtest_list_tests"], limit=60).output)
            failed |= {name: "did not run" for name in every if name not in states}
    if part.check.rehearsal:
        ended = not crashed
        return {**result, "ok": ended, "note": NOT_COMPARED, "failed": {name: text[:200] for name, text in failed.items()}}

    env = {**beside_others(part.check, cpus // JOBS), "CUDA_LAUNCH_BLOCKING": "1"}

    def alone(name):
        again = part.run([program, f"--gtest_filter={name}", "--gtest_color=no"], limit=60, env=env)
        return {"ok": again.code == 0, "output": "" if again.code == 0 else again.tail(3000)}

    part.each({f"alone: {name}": lambda name=name: alone(name) for name in failed}, JOBS)
    return {"ok": False, **result}


# ---- Parts: training


def losses_of(done, folder):
    """The losses of a run, or what went wrong."""
    if done.code != 0:
        return None, done.tail()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line], None


def train(part, name, folder, device, dtype, *more):
    yaml = part.check.data / "train" / name / "run.yaml"
    env = beside_others(part.check, len(os.sched_getaffinity(0)) // JOBS)
    command = [part.check.build / "bin/sftrun", "train", "--config", yaml, "--device", device, *more, f"output.dir={folder}", f"model.dtype={dtype}"]
    return losses_of(part.run(command, env=env, limit=90), folder)


def expected_losses(part, name):
    text = (part.check.data / "train" / name / "expected.json").read_text()
    return [line["loss"] for line in json.loads(text)["metrics"]]


def distance(losses, others):
    return max(abs(a / b - 1) if a == a else float("inf") for a, b in zip(losses, others))


def compared(part, losses, error, expected, limit):
    if error:
        return {"ok": False, "error": error}
    if len(losses) != len(expected):
        return {"ok": False, "error": f"{len(losses)} steps in place of {len(expected)}"}
    if part.check.rehearsal:
        return {"ok": True, "note": NOT_COMPARED}
    worst = distance(losses, expected)
    return {"ok": worst <= limit, "loss_relative": worst if worst < 1e300 else "not finite", "limit": limit}


def check_training(part):
    scratch = pathlib.Path(tempfile.mkdtemp(dir=part.check.scratch))

    def fp32(name, graphs):
        losses, error = train(part, name, scratch / f"{name}-fp32-{graphs}", "cuda", "fp32", "--nproc-per-node", "1", f"train.cuda_graphs={graphs}")
        return compared(part, losses, error, expected_losses(part, name), LOSS)

    def offload(name, weights):
        settings = [f"parallel.offload.{what}=cpu" for what in (weights, "activations", "optimizer")]
        losses, error = train(part, name, scratch / f"{name}-offload", "cuda", "fp32", "--nproc-per-node", "1", "train.gradient_checkpointing=true", *settings)
        # The stand-in runs no kernel, and the host computes updates with what is in its memory.
        if part.check.rehearsal and weights == "params" and error and "not finite" in error:
            return {"ok": True, "note": NOT_COMPARED}
        return compared(part, losses, error, expected_losses(part, name), LOSS)

    def bf16(name):
        here, error = train(part, name, scratch / f"{name}-cpu", "cpu", "bf16", "--nproc-per-node", "1")
        if error:
            return {"ok": False, "error": f"on the CPU: {error}"}
        losses, error = train(part, name, scratch / f"{name}-bf16", "cuda", "bf16", "--nproc-per-node", "1", "train.cuda_graphs=off")
        apart = distance(here, expected_losses(part, name))
        return {**compared(part, losses, error, here, max(LOSS_BF16, 2 * apart)), "cpu_bf16_to_fp32": apart}

    runs = RUNS_REHEARSED if part.check.few_runs else RUNS
    # A run that fails with graphs alone tells of the graphs.
    ok = part.each({f"{name}, fp32": lambda name=name: fp32(name, "off") for name in runs}, JOBS)
    ok = part.each({f"{name}, fp32, graphs": lambda name=name: fp32(name, "on") for name in runs}, JOBS) and ok
    ok = part.each({f"{RUNS[0]}, fp32, offload": lambda: offload(RUNS[0], "base"), "full_tied, fp32, offload": lambda: offload("full_tied", "params")}, JOBS) and ok
    return {"ok": part.each({f"{name}, bf16": lambda name=name: bf16(name) for name in runs}, JOBS) and ok}


def vision_folders(check):
    """tests/cuda/vision_folders.py, which makes models with images."""
    file = next(path for path in (check.build / "tests/cuda/vision_folders.py", ROOT / "tests/cuda/vision_folders.py") if path.exists())
    spec = importlib.util.spec_from_file_location("vision_folders", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_images(part):
    scratch, made = pathlib.Path(tempfile.mkdtemp(dir=part.check.scratch)), vision_folders(part.check)
    records = made.write_conversations(scratch, 24)
    models = {kind: made.vision_folder(scratch / kind, kind) for kind in IMAGE_KINDS}

    def losses(kind, parts, device, dtype):
        settings = [*(ALL_PARTS if parts == "all parts" else ()), f"model.name={models[kind]}", "model.max_seq_len=256", f"data.train={records}", "data.format=auto",
                    "data.cache_dir=none", "tuning.lora.init_from=", "train.max_steps=3", "train.learning_rate=0.002", "train.cuda_graphs=off"]
        return train(part, RUNS[0], scratch / f"{kind}-{parts}-{device}-{dtype}", device, dtype, "--nproc-per-node", "1", *settings)

    def beside_cpu(kind, parts):
        fp32, error = losses(kind, parts, "cpu", "fp32")
        if error:
            return {"ok": False, "error": f"on the CPU: {error}"}
        here = compared(part, *losses(kind, parts, "cuda", "fp32"), fp32, LOSS)
        part.put(f"{kind}, {parts}, bf16", compared(part, *losses(kind, parts, "cuda", "bf16"), fp32, LOSS_BF16))
        return here

    work = {f"{kind}, {parts}, fp32": lambda kind=kind, parts=parts: beside_cpu(kind, parts) for kind in IMAGE_KINDS for parts in ("LoRA", "all parts")}
    part.each(work, JOBS)
    part.each(image_benches(part, made, scratch), 1)
    return {"ok": all(run["ok"] for run in part.result["runs"].values())}


def image_benches(part, made, scratch):
    """name -> call of each shape that fits on the card; of a tiny model in a rehearsal."""
    check, card, work = part.check, part.check.report["machine"].get("memory_bytes"), {}

    def bench(folder, seq_len, size, steps):
        return measured(part, [check.build / "bin/sftrun", "bench", "--arch", folder / "config.json", "--images", "2", "--image-size", size, "--seq-len", str(seq_len),
                               "--batch-size", "2", "--steps", str(steps), "--dtype", "bf16", "--device", "cuda", "--json", *TUNED])

    if check.rehearsal:
        return {f"bench {IMAGE_KINDS[0]}": lambda: bench(scratch / IMAGE_KINDS[0], 64, "32x24", 2)}
    for shape, kind, seq_len, gib in IMAGE_WORKS:
        if card is not None and card < gib << 30:
            work[f"bench {shape}"] = lambda gib=gib: {"ok": True, "left_out": f"the card has {card >> 30} GiB, and {gib} are needed"}
            continue
        folder = made.shape_folder(scratch / shape, kind, check.bench / "arch" / f"{shape}.json")
        work[f"bench {shape}"] = lambda folder=folder, seq_len=seq_len: bench(folder, seq_len, "1024x768", 8)
    return work


def free_port():
    """Below the ports of outgoing connections: one of these could be taken before it is listened to."""
    for port in random.SystemRandom().sample(range(15000, 30000), 64):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free TCP port among 64")


REFUSED = re.compile(r"[^\n]*(?:Duplicate GPU|invalid usage|ncclInvalidUsage)[^\n]*", re.I)


def two_ranks_on_one(part, name, folder, settings):
    """Each believes to be alone on a host of its own: NCCL takes a card once for each host."""
    port = free_port()
    yaml = part.check.data / "train" / name / "run.yaml"
    command = [part.check.build / "bin/sftrun", "train", "--config", yaml, "--device", "cuda", f"output.dir={folder}", "model.dtype=fp32", *settings]

    def rank(number):
        env = {"RANK": number, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": number, "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": port, "NCCL_HOSTID": f"rank{number}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1, "NCCL_DEBUG": "WARN"}
        try:
            return part.run(command, env={**part.check.env, **{key: str(value) for key, value in env.items()}}, limit=60)
        except Over as over:
            over.done.errors += f"\n{over}"
            return over.done

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first, second = pool.map(rank, range(2))
    refused = REFUSED.search(first.text) or REFUSED.search(second.text)
    if refused and (first.code, second.code) != (0, 0):
        return {"ok": True, "refused": refused[0].strip()[:500]}
    if first.code == 0 and second.code != 0:
        return {"ok": False, "error": f"rank 1: {second.tail()}"}
    losses, error = losses_of(first, folder)
    return compared(part, losses, error, expected_losses(part, name), LOSS)


def check_nccl(part):
    scratch = pathlib.Path(tempfile.mkdtemp(dir=part.check.scratch))
    many = len(part.check.report["machine"]["cards"]) > 1
    part.result["cards"] = 2 if many else 1

    def two(name, strategy, settings):
        folder = scratch / f"{name}-{strategy}"
        if not many:
            return two_ranks_on_one(part, name, folder, settings)
        losses, error = train(part, name, folder, "cuda", "fp32", "--nproc-per-node", "2", *settings)
        return compared(part, losses, error, expected_losses(part, name), LOSS)

    runs = [(name, "ddp", OF_TWO) for name in NCCL_RUNS]
    runs += [(NCCL_RUNS[0], "fsdp", ["parallel.strategy=fsdp", *OF_TWO])]
    # Both ranks compute every micro-batch.
    runs += [(NCCL_RUNS[0], strategy, [f"parallel.strategy={strategy}"]) for strategy in ("pipeline", "tensor")]
    if part.check.few_runs:
        runs = runs[1:3]
    return {"ok": part.each({f"{name}, {strategy}": lambda name=name, strategy=strategy, settings=settings: two(name, strategy, settings)
                             for name, strategy, settings in runs}, 1)}


# ---- Parts: speed


def lines_of(part, *command):
    try:
        done = part.run(command)
    except Over as over:
        return {"ok": False, "error": str(over), "lines": over.done.output.splitlines()}
    return {"ok": done.code == 0, "lines": done.output.splitlines(), **({} if done.code == 0 else {"error": done.tail()})}


def check_bandwidth(part):
    return lines_of(part, part.check.build / "bin/quant_bandwidth", "1" if part.check.rehearsal else "128", "15", "cuda")


def check_adapters(part):
    return lines_of(part, part.check.build / "bin/adapter_bandwidth", *(("64", "1") if part.check.rehearsal else ("4096", "9")))


def check_attention(part):
    return lines_of(part, part.check.build / "bin/attention_speed", *(("1", "2048") if part.check.rehearsal else ("9", "32768", "images")))


def check_memory(part):
    """In a rehearsal, too, numbers are compared: LibTorch's allocator is the real one there."""
    check = part.check
    script = next((path for path in (check.build / "tests/smoke/memory_plan.py", ROOT / "tests/smoke/memory_plan.py") if path.exists()), None)
    if script is None:
        return {"ok": False, "error": "tests/smoke/memory_plan.py is not there"}
    command = [sys.executable, script, "--sftrun", check.build / "bin/sftrun", "--device", "cuda"]
    listed = part.run([*command, "--list"], env=dict(os.environ))
    if listed.code != 0:
        return {"ok": False, "error": listed.tail()}
    cases = MEMORY_REHEARSED if check.rehearsal else listed.output.splitlines()

    def case(name):
        done = part.run([*command, "--case", name, "--json", *(["--tokens", "12288"] if check.rehearsal else [])])
        line = next((line for line in done.output.splitlines() if line.startswith("{")), None)
        return json.loads(line) if line else {"ok": False, "error": done.tail()}

    return {"ok": part.each({name: lambda name=name: case(name) for name in cases}, 1 if not check.rehearsal else 2)}


def peer_lacks(python, modules):
    code = f"import importlib.util as u; print(' '.join(n for n in {modules!r} if u.find_spec(n) is None))"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return python
    return found.stdout.strip() if found.returncode == 0 else found.stderr[-200:]


@contextlib.contextmanager
def card_state(part):
    """A dictionary that gets, after the body: the most and the first MiB that the card's driver counts, all processes', and of the last half of the time the SM's clock and the power, median and most."""
    found = {}
    query = ["nvidia-smi", "-i", "0", "--query-gpu=memory.used,clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "250"]
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(query, stdout=output, stderr=subprocess.DEVNULL, start_new_session=True, env={**os.environ})
        except OSError:
            yield found
            return
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            output.seek(0)
            samples = []
            for line in output.read().decode(errors="replace").splitlines():
                with contextlib.suppress(ValueError):  # [N/A], and a line that was cut off
                    samples.append([float(value) for value in line.split(",")])
            samples = [sample for sample in samples if len(sample) == 3]
            if samples:
                found |= {"card_memory_mib": int(max(sample[0] for sample in samples)), "card_memory_mib_before": int(samples[0][0])}
                late = samples[len(samples) // 2:]
                found |= {name: [statistics.median(sample[i] for sample in late), max(sample[i] for sample in late)] for i, name in ((1, "sm_mhz"), (2, "power_w"))}


def measured(part, command, env=None):
    with card_state(part) as card:
        done = part.run(command, env=env)
    try:
        result = json.loads(done.output.strip().splitlines()[-1]) if done.code == 0 else None
    except (ValueError, IndexError):
        result = None
    if result is None:
        return {"ok": False, "error": done.tail()}
    kept = ("tokens_per_second", "tokens_per_second_best", "images_per_second", "records_per_hour", "preprocessed_images_per_second", "first_step_seconds", "peak_memory_bytes", "loss", "versions")
    return {"ok": True, **{key: result[key] for key in kept if key in result}, "step_seconds": result.get("step_seconds"), "process_seconds": round(done.seconds, 1), **card}


def check_bench(part):
    check, arguments = part.check, part.check.arguments
    lacking = peer_lacks(arguments.peer_python, ("torch", "transformers", "peft"))
    kernels = ("transformers",) if lacking or peer_lacks(arguments.peer_python, ("liger_kernel", "triton")) else ("transformers", "liger")
    has_nf4 = not lacking and not peer_lacks(arguments.peer_python, ("bitsandbytes",))
    part.result["peer"] = f"left out: {arguments.peer_python} lacks {lacking}" if lacking else arguments.peer_python
    card = check.report["machine"].get("memory_bytes")
    works = WORKS if not check.rehearsal else (("llama-tiny", 32, 1, {}, (None,)),)
    steps, work = ("2" if check.rehearsal else "8"), {}

    def rivals_of(quant, is_small):
        """All of them for a small model in bf16, the fastest for others; none for a format that the peers do not have."""
        if quant and not (quant == "nf4" and has_nf4):
            return ()
        return kernels if is_small and not quant else kernels[-1:]

    def add(name, source, seq_len, batch, needs, quant, is_small=False):
        common = [*source, "--seq-len", str(seq_len), "--batch-size", str(batch), "--steps", steps, "--dtype", "bf16", "--device", "cuda"]
        ours = [check.build / "bin/sftrun", "bench", *common, "--json", *TUNED, *([f"tuning.quant={quant}"] if quant else [])]
        peer = [arguments.peer_python, "-W", "ignore", check.bench / "peer_train.py", *common, *PEER_TUNED,
                *(["--quant", quant] if quant else [])]

        def fitting(who, call):
            gib = needs.get(who, 0)
            if card is None or card >= gib << 30:
                return call
            return lambda: {"ok": True, "left_out": f"the card has {card >> 30} GiB, and {gib} are needed"}

        work[f"{name}, sftrun"] = fitting("sftrun", lambda: measured(part, ours))
        if not lacking:
            for each in rivals_of(quant, is_small):
                command = [*peer, "--kernels", each]
                work[f"{name}, {each}"] = fitting(each, lambda command=command: measured(part, command, env=dict(os.environ)))

    for shape, seq_len, batch, needs, quants in works:
        for quant in quants:
            add(f"{shape}{f', {quant}' if quant else ''}", ["--arch", str(check.bench / "arch" / f"{shape}.json")], seq_len, batch, needs, quant,
                is_small=shape == works[0][0])
    if arguments.model:
        for quant in (None, "nf4"):
            add(f"{arguments.model.name}{', nf4' if quant else ''}", ["--model", str(arguments.model)], 512, 16, {}, quant)
    for graphs in ("off", "on"):  # what a launch costs shows where a micro-batch has few tokens
        shape, tokens = (works[0][0], 32) if check.rehearsal else SMALL_WORK
        command = [check.build / "bin/sftrun", "bench", "--arch", check.bench / "arch" / f"{shape}.json", "--seq-len", str(tokens), "--batch-size", "1",
                   "--steps", str(5 * int(steps)), "--dtype", "bf16", "--device", "cuda", "--json", *TUNED, f"train.cuda_graphs={graphs}"]
        work[f"{shape}, {tokens} tokens, graphs {graphs}, sftrun"] = lambda command=command: measured(part, command)
    ok = part.each(work, 1)
    runs, ratios = part.result["runs"], {}
    for name, each in ((key.rpartition(", ")[0], kernel) for key in runs for kernel in kernels if key.endswith(f", {kernel}")):
        ours, peer = runs.get(f"{name}, sftrun", {}), runs[f"{name}, {each}"]
        if ours.get("tokens_per_second") and peer.get("tokens_per_second"):
            ratio = {"tokens_per_second": ours["tokens_per_second"] / peer["tokens_per_second"]}
            if ours.get("card_memory_mib") and peer.get("card_memory_mib"):
                ratio["card_memory"] = peer["card_memory_mib"] / ours["card_memory_mib"]
            ratios[f"{name}, to {each}"] = ratio
    return {"ok": ok, "above_1_is_in_favour_of_sftrun": dict(sorted(ratios.items()))}


# ---- Parts: other trainers


def chosen_cases(check, cases):
    """Those whose names begin as --cases says; all without it."""
    wanted = check.arguments.cases
    return {name: case for name, case in cases.items() if not wanted or any(name.startswith(begin) for begin in wanted)}


def too_small(check, gib):
    card = check.report["machine"].get("memory_bytes")
    return {"ok": True, "left_out": f"the card has {card >> 30} GiB, and {gib} are needed"} if card is not None and card < gib << 30 else None


def module_of(folder, name):
    """A script of bench/, with what it imports from there."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))


def check_compare(part):
    """Sides take turns; what a peer fails with is a result. The model stays on the disk until the next architecture."""
    check, arguments = part.check, part.check.arguments
    scratch, compare, held = pathlib.Path(tempfile.mkdtemp(dir=check.scratch)), module_of(check.bench, "compare"), None
    cases = chosen_cases(check, COMPARISONS_REHEARSED if check.rehearsal else COMPARISONS)
    python = arguments.peer_python
    lacking = peer_lacks(python, ("torch", "transformers", "peft"))
    small = check.rehearsal and bool(lacking)
    if lacking and not small:
        return {"ok": False, "error": f"{python} lacks {lacking}, which makes the model that all sides load"}
    steady, rounds = (0.1, 1) if check.rehearsal else (arguments.steady, arguments.rounds)
    # sftrun over stand-ins computes nothing, and the peers in a rehearsal compute on the CPU: no loss is compared there.
    sides = [side for side in arguments.sides or compare.DEFAULT_SIDES if side == "sftrun" or not small]
    if unknown := sorted(set(sides) - set(compare.SIDES)):
        return {"ok": False, "error": f"--sides {' '.join(unknown)}: choose of {', '.join(compare.SIDES)}"}
    conclusions = part.result["comparisons"] = {}
    for name, (shape, lengths, seq_len, batch, accumulation, recompute, gib) in cases.items():
        if left_out := too_small(check, gib):
            part.put(name, left_out)
            continue
        if held and held != shape:
            shutil.rmtree(scratch / held, ignore_errors=True)
        held = shape
        sequences = 64 if check.rehearsal else max(64, int(1.2 * steady * FASTEST.get(shape, 25_000)) // seq_len)
        common = [sys.executable, check.bench / "compare.py", "--work", scratch / shape, "--arch", check.bench / "arch" / f"{shape}.json", "--lengths", lengths, "--seq-len", str(seq_len), "--batch-size",
                  str(batch), "--accumulation", str(accumulation), "--sequences", str(sequences), "--steady", str(steady), "--peer-python", python, "--sftrun", check.build / "bin/sftrun",
                  *(["--recompute"] if recompute else [])]
        device = ["--device", "cpu" if check.rehearsal else "cuda"]
        done = part.run([*common, *device, "--prepare", *(["--small"] if small else [])], env=dict(os.environ))
        if done.code != 0:
            part.put(name, {"ok": False, "error": done.tail()})
            continue
        part.put(f"{name}, data", {"ok": True, **json.loads(done.output.strip().splitlines()[-1])})
        runs = {side: [] for side in sides}
        for number in range(rounds):
            for side in sides:
                if number and all("failed" in run for run in runs[side]):
                    continue
                ours = side == "sftrun"
                try:
                    done = part.run([*common, *(["--device", "cuda"] if ours else device), "--one", side], env=check.env if ours else dict(os.environ))
                    run = json.loads(done.output.strip().splitlines()[-1])
                except Over as over:
                    run = {"failed": str(over)}
                except (ValueError, IndexError):
                    run = {"failed": done.tail()}
                runs[side].append(run)
                part.put(f"{name}, {side}, round {number + 1}", {"ok": not ours or "failed" not in run, **run})
                conclusions[name] = compare.conclusions(runs, "bf16")
                if check.rehearsal:
                    conclusions[name] = {"note": NOT_COMPARED}
    return {"ok": all(run["ok"] for run in part.result.get("runs", {}).values()) and all(of["ok"] for each in conclusions.values() for of in each.get("losses", {}).values())}


def check_shapes(part):
    check, arguments = part.check, part.check.arguments
    lacking = peer_lacks(arguments.peer_python, ("torch", "transformers", "peft"))
    kernels = "transformers" if lacking or peer_lacks(arguments.peer_python, ("liger_kernel", "triton")) else "liger"
    part.result["peer"] = f"left out: {arguments.peer_python} lacks {lacking}" if lacking else f"{arguments.peer_python}, {kernels}"
    steps, work = "2" if check.rehearsal else "6", {}

    def peer(command):
        """Failures of the peer are results: it may have no memory for a shape, or no kernel."""
        result = measured(part, command, env=dict(os.environ))
        return result if result["ok"] else {"ok": True, "failed": result["error"][-1000:]}

    for name, (shape, seq_len, batch, quant, recompute, experts, needs) in chosen_cases(check, SHAPES_REHEARSED if check.rehearsal else SHAPES).items():
        common = ["--arch", str(check.bench / "arch" / f"{shape}.json"), "--seq-len", str(seq_len), "--batch-size", str(batch), "--steps", steps, "--dtype", "bf16"]
        ours = [check.build / "bin/sftrun", "bench", *common, "--device", "cuda", "--json", *TUNED, *([f"tuning.quant={quant}"] if quant else []),
                *(["train.gradient_checkpointing=true"] if recompute else []), *([f"tuning.lora.target_parameters=[{', '.join(EXPERTS)}]"] if experts else [])]
        theirs = [arguments.peer_python, "-W", "ignore", check.bench / "peer_train.py", *common, "--device", "cpu" if check.rehearsal else "cuda", *PEER_TUNED, "--kernels", kernels,
                  *(["--quant", quant] if quant else []), *(["--checkpointing"] if recompute else []), *(["--target-parameters", *EXPERTS] if experts else [])]
        left_out = {side: too_small(check, needs.get(side, 0)) for side in ("sftrun", "peer")}
        work[f"{name}, sftrun"] = lambda command=ours, out=left_out["sftrun"]: out or measured(part, command)
        if not lacking:
            work[f"{name}, peer"] = lambda command=theirs, out=left_out["peer"]: out or peer(command)
    ok, ratios = part.each(work, 1), {}
    for key, run in part.result.get("runs", {}).items():
        name, _, side = key.rpartition(", ")
        mine = part.result["runs"].get(f"{name}, sftrun", {})
        if side == "peer" and run.get("tokens_per_second") and mine.get("tokens_per_second"):
            ratios[name] = mine["tokens_per_second"] / run["tokens_per_second"]
    return {"ok": ok, "above_1_is_in_favour_of_sftrun": ratios}


# ---- All of it

CHECKS = {
    "kernels": lambda part: check_tests(part, f"-{OF_MODELS}"),
    "models": lambda part: check_tests(part, OF_MODELS),
    "training": check_training,
    "images": check_images,
    "nccl": check_nccl,
    "bandwidth": check_bandwidth,
    "adapters": check_adapters,
    "attention": check_attention,
    "memory": check_memory,
    "bench": check_bench,
    "compare": check_compare,
    "shapes": check_shapes,
}


def perform(check, name, call):
    """Runs a part and records it, however it ends."""
    if check.left() < min(LEAST, 0.1 * check.arguments.budget):
        with check.lock:
            check.report["parts"][name] = {"state": "not run: out of time"}
        check.save()
        return
    print(f"{name} …", flush=True)
    part, began = Part(check, name), time.monotonic()
    outcome, state = {}, None
    try:
        outcome = call(part)
    except Over as over:
        outcome = {"ok": False, "error": str(over), "output": over.done.text[-2000:]}
    except Stopped:
        state = "ended by a signal"
        raise
    except Exception as error:  # one part's trouble is not the next one's
        outcome = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    finally:
        if STOP.is_set() and not outcome.get("ok"):
            state = "ended by a signal"  # in a thread of `perform_all` no exception says so
        with check.lock:
            part.result.update(outcome)
            part.result["state"] = state or ("ok" if outcome.get("ok") else "failed")
            part.result.pop("ok", None)
            part.result["seconds"] = round(time.monotonic() - began, 1)
        check.save()
    print(f"{name}: {part.result['state']} after {part.result['seconds']} s", flush=True)


def perform_all(check, chosen):
    together = [name for name in chosen if name in PARTS_RUN_TOGETHER]
    memory = check.report["machine"].get("memory_bytes") or 0
    if len(together) < 2 or check.cpus < CPUS_FOR_ALL or memory < GIB_FOR_ALL << 30:
        together = []
    with concurrent.futures.ThreadPoolExecutor(len(together) or 1) as pool:
        list(pool.map(lambda name: perform(check, name, CHECKS[name]), together))
    for name in chosen:
        if name not in together:
            perform(check, name, CHECKS[name])


def check_hang(part):
    """Of a rehearsal: a program and its child, of another session, that do not end by themselves."""
    child = "import subprocess, time; subprocess.Popen(['sleep', '3600'], start_new_session=True); time.sleep(3600)"
    try:
        part.run([sys.executable, "-c", child], limit=1)
    except Over as over:
        return {"ok": True, "note": f"{over}, as it should"}
    return {"ok": False, "error": "what hangs was not ended"}


def seconds_by_part(text):
    name, _, seconds = text.partition("=")
    if name not in LIMITS:
        raise argparse.ArgumentTypeError(f"of {', '.join(LIMITS)}")
    return name, float(seconds)


def parse_arguments():
    here = ROOT / ".venv/bin/python"
    peer = ROOT / ".venv-ref/bin/python"

    def folder(path):
        return pathlib.Path(path).resolve()

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--build", type=folder, default=ROOT / "build", help="build folder, or an unpacked archive [build]")
    source.add_argument("--archive", type=folder, help="what scripts/gpu/pack.sh made")
    parser.add_argument("--output", type=folder, default=ROOT / "bench/gpu-check.json", help="the log is beside it, as .log")
    parser.add_argument("--torch-python", default=str(here) if here.exists() else "python3", help="a Python with torch, whose libraries are used [%(default)s]")
    parser.add_argument("--peer-python", default=str(peer) if peer.exists() else "python3", help="a Python with transformers and peft [%(default)s]")
    parser.add_argument("--model", type=folder, help="directory of a model for the bench, too, dense and in NF4")
    usual = [name for name in CHECKS if name not in ONLY_IF_NAMED]
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), default=usual, metavar="PART", help="these parts alone")
    parser.add_argument("--also", nargs="+", choices=ONLY_IF_NAMED, default=[], metavar="PART", help=f"these parts, too: {', '.join(ONLY_IF_NAMED)}")
    parser.add_argument("--skip", nargs="+", choices=list(CHECKS), default=[], metavar="PART", help="all parts but these")
    parser.add_argument("--cases", nargs="+", default=[], metavar="BEGINNING", help="of compare and shapes: those whose names begin so [all, in their order]")
    parser.add_argument("--sides", nargs="+", metavar="SIDE", help="of compare: sides of bench/compare.py [its usual ones]")
    parser.add_argument("--steady", type=float, default=60, metavar="SECONDS", help="of compare: a run's steady state [%(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="of compare: turns of each side [%(default)s]")
    parser.add_argument("--budget", type=float, default=540, metavar="SECONDS", help="for everything; what is then left is not run [540]")
    parser.add_argument("--limit", type=seconds_by_part, action="append", default=[], metavar="PART=SECONDS", help=f"{LIMITS}")
    parser.add_argument("--libraries", type=folder, metavar="FOLDER", help="libraries that are to be found before all others")
    parser.add_argument("--rehearse", type=folder, metavar="FOLDER", help="libraries that stand in for CUDA's: numbers are not compared")
    parser.add_argument("--all-runs", action="store_true", help="in a rehearsal, too, every training run and every run over NCCL")
    arguments = parser.parse_args()
    arguments.limits = dict(arguments.limit)
    known = [*COMPARISONS, *SHAPES, *COMPARISONS_REHEARSED, *SHAPES_REHEARSED]
    for begin in arguments.cases:
        if not any(name.startswith(begin) for name in known):
            parser.error(f"--cases {begin}: no case begins so; choose of {'; '.join([*COMPARISONS, *SHAPES])}")
    arguments.only += [name for name in arguments.also if name not in arguments.only]
    return arguments


def stop(number, _):
    if STOP.is_set():
        return  # what the first one began is under way
    STOP.set()
    raise Stopped(f"signal {number}")


def main():
    arguments = parse_arguments()
    chosen = [name for name in CHECKS if name in arguments.only and name not in arguments.skip]
    if not arguments.archive and not (arguments.build / "bin/sftrun").exists():
        sys.exit(f"error: {arguments.build} has no bin/sftrun\n  fix: make gpu-check builds it; or name another folder with --build")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    check = Check(arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    parts = check.report["parts"]
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        try:
            whole = True
            if arguments.archive:
                perform(check, "unpack", lambda part: check_unpack(part, pathlib.Path(scratch) / "unpacked"))
                whole = parts["unpack"]["state"] == "ok"
            if whole:
                check.prepare(pathlib.Path(scratch))
                check.report["machine"] = cards(check)
                if not check.report["machine"]["cards"]:
                    sys.exit("error: neither nvidia-smi nor sftrun gpu-info finds a GPU on this machine\n  fix: run this where there is one")
                check.log.write_text("")
                if check.rehearsal:
                    perform(check, "hang", check_hang)
            if whole:
                perform_all(check, chosen)
            for name in chosen:
                parts.setdefault(name, {"state": "not run: the archive cannot be used"})
        except Stopped as signalled:
            check.report["error"] = str(signalled)
            for name in chosen:
                parts.setdefault(name, {"state": f"not run: {signalled}"})
    check.save()
    for name, result in parts.items():
        print(f"{name}: {result['state']}{'; ' + result['error'][:300] if 'error' in result else ''}")
    print(f"wrote {arguments.output} and {check.log.name}")
    states = [result["state"] for result in parts.values()]
    if "error" in check.report or any(not state.startswith(("ok", "not run: out of time")) for state in states):
        return 1
    return 0 if all(state == "ok" for state in states) else 3


if __name__ == "__main__":
    sys.exit(main())
