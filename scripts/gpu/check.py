#!/usr/bin/env python3
"""Checks a build on this machine's GPUs and writes what came of it as JSON.

    scripts/gpu/check.py --build build --output bench/gpu-check.json

kernels   bin/gpu_tests: every CUDA kernel, models of all families, quantised bases and optimizers beside the CPU
training  tests/data/train: whole runs on one GPU in fp32 beside what transformers + peft computed
nccl      the same on two GPUs over NCCL, where there are two
bandwidth bin/quant_bandwidth: matrices in fewer bits unpacked and multiplied by one token's values, beside a copy of the card's memory
bench     bench/run.py beside transformers + peft, LoRA and QLoRA, where --peer-python has them; appended to bench/RESULTS.md

The build may come from another machine (scripts/gpu/pack.sh): LibTorch is then that of --torch-python. Standard library only.
"""

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUNS = ("lora_all_linear", "lora_qv", "lora_rslora", "full_tied", "full_untied", "partial_norms")
LOSS = 1e-4  # relative, at any step; on a CPU 1e-5 is kept
PARTS = ("kernels", "training", "nccl", "bandwidth", "bench")


def torch_libraries(python):
    """Folders with LibTorch and what comes with it, of the Python that has it."""
    code = "import pathlib, torch; print(pathlib.Path(torch.__file__).parent)"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"error: {python} has no torch\n  fix: name a Python that has it: --torch-python")
    torch = pathlib.Path(found.stdout.strip())
    return [torch / "lib", *sorted((torch.parent / "nvidia").glob("*/lib"))]


def environment(arguments):
    folders = [arguments.build / "carried", *torch_libraries(arguments.torch_python)]
    before = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
    return {**os.environ, "SFTRUN_TEST_DATA": str(ROOT / "tests/data"), "LD_LIBRARY_PATH": ":".join([str(f) for f in folders if f.exists()] + before)}


def cards():
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def check_kernels(arguments, env):
    with tempfile.TemporaryDirectory() as scratch:
        report = pathlib.Path(scratch) / "gtest.json"
        command = [str(arguments.build / "bin/gpu_tests"), f"--gtest_output=json:{report}"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        print(done.stdout[-6000:], done.stderr[-2000:], sep="\n")
        if not report.exists():
            return {"ok": False, "error": done.stderr[-2000:] or f"exit code {done.returncode}"}
        result = json.loads(report.read_text())
    failed = [f"{suite['name']}.{test['name']}: {test['failures'][0]['failure'][:400]}"
              for suite in result["testsuites"] for test in suite["testsuite"] if test.get("failures")]
    return {"ok": done.returncode == 0, "tests": result["tests"], "failed": failed}


def train(arguments, env, name, folder, processes):
    yaml = ROOT / "tests/data/train" / name / "run.yaml"
    command = [str(arguments.build / "bin/sftrun"), "train", "--config", str(yaml), "--device", "cuda",
               "--nproc-per-node", str(processes), f"output.dir={folder}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        return {"ok": False, "error": (done.stdout + done.stderr)[-2000:]}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    expected = [line["loss"] for line in json.loads((yaml.parent / "expected.json").read_text())["metrics"]]
    if len(losses) != len(expected):
        return {"ok": False, "error": f"{len(losses)} steps in place of {len(expected)}"}
    worst = max(abs(a / b - 1) for a, b in zip(losses, expected))
    return {"ok": worst <= LOSS, "loss_relative": worst}


def check_training(arguments, env, processes=1):
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in RUNS:
            results[name] = train(arguments, env, name, pathlib.Path(scratch) / name, processes)
            print(f"{name}, {processes} process(es): {results[name]}", flush=True)
    return {"ok": all(result["ok"] for result in results.values()), "processes": processes, "runs": results}


def check_nccl(arguments, env):
    if len(cards()) < 2:
        return {"ok": True, "left_out": "there is one GPU"}
    return check_training(arguments, env, processes=2)


def check_bandwidth(arguments, env):
    command = [str(arguments.build / "bin/quant_bandwidth"), "512", "15", "cuda"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    print(done.stdout, done.stderr[-2000:], sep="\n", flush=True)
    return {"ok": done.returncode == 0, "lines": done.stdout.splitlines()}


def has_peer(arguments):
    code = "import peft, torch, transformers"
    return subprocess.run([arguments.peer_python, "-c", code], capture_output=True).returncode == 0


def check_bench(arguments, env):
    if not has_peer(arguments):
        return {"ok": True, "left_out": f"{arguments.peer_python} lacks transformers or peft"}
    runs = {"lora": [], "qlora": ["--quant", "nf4"]} if arguments.model else {"lora": ["--arch", str(ROOT / "bench/arch/llama-135m.json")]}
    model = ["--model", str(arguments.model)] if arguments.model else []
    results = {}
    for name, flags in runs.items():
        command = [arguments.peer_python, str(ROOT / "bench/run.py"), "--sftrun", str(arguments.build / "bin/sftrun"),
                   "--peer-python", arguments.peer_python, "--device", "cuda", "--batch-size", "16", *model, *flags]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        print(done.stdout[-4000:], done.stderr[-2000:], sep="\n", flush=True)
        results[name] = {"ok": done.returncode == 0, "table": done.stdout[-4000:]}
    return {"ok": all(result["ok"] for result in results.values()), "runs": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "bench/gpu-check.json")
    parser.add_argument("--torch-python", default=str(ROOT / ".venv/bin/python") if (ROOT / ".venv").exists() else "python3")
    parser.add_argument("--peer-python", default=str(ROOT / ".venv-ref/bin/python") if (ROOT / ".venv-ref").exists() else "python3")
    parser.add_argument("--model", type=pathlib.Path, help="directory of the model for the bench [random weights; without QLoRA]")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    arguments = parser.parse_args()
    found = cards()
    if not found:
        sys.exit("error: nvidia-smi finds no GPU on this machine\n  fix: run this where there is one")
    env = environment(arguments)
    checks = {"kernels": check_kernels, "training": check_training, "nccl": check_nccl, "bandwidth": check_bandwidth, "bench": check_bench}
    results = {name: checks[name](arguments, env) for name in arguments.only}
    report = {"date": datetime.date.today().isoformat(), "cards": found, **results}
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    for name, result in results.items():
        print(f"{name}: {'ok' if result['ok'] else 'FAILED'}{' (left out: ' + result['left_out'] + ')' if 'left_out' in result else ''}")
    print(f"wrote {arguments.output}")
    return 0 if all(result["ok"] for result in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
