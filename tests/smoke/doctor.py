#!/usr/bin/env python3
"""`sftrun doctor` on this machine, with a real all-reduce between processes over Gloo.

    tests/smoke/doctor.py --sftrun build/bin/sftrun [--fake-nvml build/lib/liblaunch_fake_nvml.so]

Standard library only.
alone       text and --json: every check has a verdict, every complaint a remedy; two processes sum and are timed
several     --nproc-per-node 3; two launchers as two machines; processes that another launcher has started
complaints  a low limit of open files, variables that slow runs down, a machine whose GPUs do not answer
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile

from free_ports import free_port

TIMEOUT = 240  # s, of one command
MATTERS = ("SFTRUN", "NCCL_", "GLOO_", "CUDA_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "OMP_", "SLURM", "OMPI", "PMI")

failures = []


def expect(what, holds, detail=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
    if not holds:
        failures.append(what)


class Doctor:
    def __init__(self, program, config_home):
        self.program = program
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(MATTERS)}
        self.environment |= {"XDG_CONFIG_HOME": str(config_home)}

    def start(self, *words, open_files=None, **variables):
        def limit():
            if open_files:
                resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
        return subprocess.Popen([self.program, "doctor", *map(str, words)], env=self.environment | variables, preexec_fn=limit,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *words, code=0, **options):
        process = self.start(*words, **options)
        out, err = process.communicate(timeout=TIMEOUT)
        if process.returncode != code:
            raise RuntimeError(f"doctor {words}: exit code {process.returncode}\n{out}{err}")
        return out

    def answer(self, *words, **options):
        return json.loads(self.run(*words, "--json", **options))


def complaints(answer):
    return {check["name"]: check["finding"] for check in answer["checks"] if check["verdict"] != "ok"}


def expect_reduced(what, result, world_size):
    good = (result["world_size"] == world_size and result["backend"] == "gloo" and result["bytes"] >= 1 << 20
            and result["bandwidth"] > 0 and 0 < result["latency_seconds"] < result["seconds"] < 60)
    # Bytes that a rank sends in a ring, per second.
    wire = 2 * (world_size - 1) / world_size * result["bytes"] / result["seconds"]
    expect(what, good and abs(result["bandwidth"] / wire - 1) < 1e-6, result)


def check_alone(doctor):
    text = doctor.run("--device", "cpu")
    expect("alone: the text", all(part in text for part in ("all-reduce", "2 processes over gloo on ", "Distributed state:", "0 problems")), text)
    answer = doctor.answer("--device", "cpu")
    verdicts = {check["verdict"] for check in answer["checks"]}
    expect("alone: verdicts", verdicts <= {"ok", "warning", "problem"} and answer["problems"] == 0, answer)
    expect("alone: a remedy for each complaint, and for nothing else",
           all((check["verdict"] == "ok") == (check["remedy"] == "") for check in answer["checks"]), answer["checks"])
    names = {check["name"] for check in answer["checks"]}
    expect("alone: what is checked", {"engine", "driver", "GPUs", "CPU", "memory", "/dev/shm", "disk", "open files", "locked memory",
                                      "network", "environment", "all-reduce"} <= names, names)
    expect("alone: a run would have one process", answer["distributed"]["world_size"] == 1, answer["distributed"])
    expect_reduced("alone: two processes for the all-reduce", answer["all_reduce"], 2)
    bare = doctor.answer("--no-all-reduce", "--device", "cpu")
    expect("alone: without the all-reduce", bare["all_reduce"] is None and "all-reduce" not in {c["name"] for c in bare["checks"]}, bare)


def check_several(doctor):
    answer = doctor.answer("--device", "cpu", "--nproc-per-node", 3)
    expect_reduced("several: three processes", answer["all_reduce"], 3)
    words = ["--device", "cpu", "--nproc-per-node", 1, "--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", free_port(), "--json"]
    launchers = [doctor.start(*words, "--node-rank", rank) for rank in range(2)]
    answers = [json.loads(launcher.communicate(timeout=TIMEOUT)[0]) for launcher in launchers]
    expect_reduced("several: two launchers", answers[0]["all_reduce"], 2)
    expect("several: the second launcher has no numbers", answers[1]["all_reduce"] is None and answers[1]["problems"] == 0, answers[1])
    port = str(free_port())
    ranks = [doctor.start("--device", "cpu", "--json", RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2",
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(2)]
    outputs = [rank.communicate(timeout=TIMEOUT)[0] for rank in ranks]
    expect("several: only rank 0 of another launcher prints", outputs[1] == "", outputs[1])
    answer = json.loads(outputs[0])
    expect_reduced("several: ranks of another launcher", answer["all_reduce"], 2)
    expect("several: it is named", answer["distributed"]["started_by"] == "torchrun", answer["distributed"])


def check_complaints(doctor, fake_nvml):
    answer = doctor.answer("--no-all-reduce", "--device", "cpu", open_files=256, NCCL_P2P_DISABLE="1")
    found = complaints(answer)
    expect("complaints: open files", "at most 256" in found.get("open files", ""), found)
    expect("complaints: a variable", "NCCL_P2P_DISABLE=1" in found.get("environment", ""), found)
    expect("complaints: warnings are no problems", answer["problems"] == 0 and answer["warnings"] >= 2, answer)
    answer = doctor.answer("--device", "cpu", code=5, GLOO_SOCKET_IFNAME="no-such-interface")
    found = complaints(answer)
    expect("complaints: an interface that is not there", "no-such-interface" in found.get("network", "") and "all-reduce" in found, found)
    if fake_nvml:
        answer = doctor.answer("--no-all-reduce", code=5, SFTRUN_NVML_LIBRARY=str(fake_nvml), FAKE_NVML_GPUS="NVIDIA A100,NVIDIA A100",
                               FAKE_NVML_DRIVER="535.54.03")
        expect("complaints: an old driver", "535.54.03 is too old" in complaints(answer).get("driver", ""), answer)
        expect("complaints: a run would use both GPUs", answer["distributed"]["world_size"] in (1, 2), answer["distributed"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--fake-nvml", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sftrun-doctor-test-") as scratch:
        doctor = Doctor(options.sftrun.resolve(), scratch)
        check_alone(doctor)
        check_several(doctor)
        check_complaints(doctor, options.fake_nvml and options.fake_nvml.resolve())
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
