#!/usr/bin/env python3
"""scripts/gpu/check.py with small programs in the place of a build: limits, hanging parts, the budget, results, archives.

    tests/scripts/gpu_check_test.py               # no CUDA, no build; some seconds: tests wait, three run at a time
    tests/scripts/gpu_check_test.py GpuCheck.NAME # one of them, as unittest takes it
"""

import hashlib
import io
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "scripts/gpu/check.py"
TOGETHER = 3  # tests

# What each program does is read from the file behave.json beside bin/: a dictionary of Python expressions' names below.
PROGRAM = r'''#!{python} -S
import json, os, pathlib, subprocess, sys, time
folder = pathlib.Path(__file__).resolve().parents[1]
behave = json.loads((folder / "behave.json").read_text())
name = pathlib.Path(__file__).name
arguments = sys.argv[1:]
option = lambda key: next((a.split("=", 1)[1] for a in arguments if a.startswith(key + "=")), None)
def hang():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with (folder / "hanging").open("a") as file:
        file.write(f"{{os.getpid()}} {{child.pid}}\n")
    time.sleep(600)
if name == "gpu_tests":
    pattern = option("--gtest_filter")
    tests = ["GpuModels.One"] if not pattern.startswith("-") and "Gpu" in pattern else ["Types/GpuKernels.A/fp32", "Types/GpuKernels.B/bf16", "GpuQuant.C"]
    alone = pattern in ("Types/GpuKernels.A/fp32", "Types/GpuKernels.B/bf16", "GpuQuant.C")
    tests = [pattern] if alone else tests
    if "--gtest_list_tests" in arguments:
        print("Types/GpuKernels.\n  A/fp32  # GetParam() = 6\n  B/bf16  # GetParam() = 15\nGpuQuant.\n  C")
        sys.exit(0)
    failed = 0
    print(f"[==========] Running {{len(tests)}} tests from 2 test suites.")
    for test in tests:
        print(f"[ RUN      ] {{test}}", flush=True)
        what = behave.get(test)
        if what == "hang" and not alone: hang()
        if what == "crash" and not alone: os.abort()
        if what in ("fail", "fail together") and not (alone and what == "fail together"):
            failed += 1
            print("here.cpp:3: Failure\nresult 0")
            print(f"[  FAILED  ] {{test}}, where GetParam() = 6 (12 ms)")
        else:
            print(f"[       OK ] {{test}} (12 ms)")
    print("[==========] 3 tests ran.")
    sys.exit(1 if failed else 0)
if name in ("quant_bandwidth", "adapter_bandwidth", "attention_speed"):
    if name == "quant_bandwidth" and behave.get("bandwidth") == "hang": hang()
    print("copy 100 GB/s")
    sys.exit(0)
if arguments[0] == "gpu-info":
    card = {{"name": "card", "memory_total_bytes": behave.get("card_gib", 16) << 30}}
    print(json.dumps({{"gpus": [card] * behave.get("cards", 1), "driver_version": "1"}}))
elif arguments[0] == "bench":
    time.sleep(0.2)
    print(json.dumps({{"tokens_per_second": 5.0, "images_per_second": 3.0, "step_seconds": [1.0], "peak_memory_bytes": 7, "loss": 1.0}}))
elif arguments[0] == "train":
    config = pathlib.Path(arguments[arguments.index("--config") + 1])
    run = config.parent
    if behave.get("train") == run.name: hang()
    if not (run / "expected.json").exists():  # of bench/compare.py
        settings = json.loads(config.read_text())
        with (folder / "compared").open("a") as file:
            file.write(json.dumps(settings) + "\n")
        if behave.get("compare") == "fail": sys.exit("error: no memory")
        out = pathlib.Path(settings["output"]["dir"])
        out.mkdir()
        for step in range(8):
            with (out / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({{"loss": 2.0, "tokens": 100, "label_tokens": 50, "step_seconds": 0.01, "peak_memory_bytes": [7]}}) + "\n")
            time.sleep(0.05)
        sys.exit(0)
    if "NCCL_HOSTID" in os.environ:
        assert os.environ["LOCAL_RANK"] == "0" and os.environ["NCCL_HOSTID"] == "rank" + os.environ["RANK"]
        if behave.get("nccl") == "refuse":
            sys.exit("rank 0: NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000")
    lines = json.loads((run / "expected.json").read_text())["metrics"]
    out = pathlib.Path(option("output.dir"))
    out.mkdir(exist_ok=True)
    factor = behave.get("losses", {{}}).get(run.name, behave.get("loss", 1.0)) if arguments[arguments.index("--device") + 1] == "cuda" else 1.0
    (out / "metrics.jsonl").write_text("".join(json.dumps({{"loss": line["loss"] * factor}}) + "\n" for line in lines))
'''


# In the place of tests/smoke/memory_plan.py.
MEMORY = """import json, sys
if "--list" in sys.argv:
    print("one\\ntwo, kept")
else:
    print(json.dumps({"ok": True, "case": sys.argv[sys.argv.index("--case") + 1], "peak_bytes": 5}))
"""

# The driver's tool, which counts memory, clock and power until it is ended; more fields it does not know.
DRIVERS_TOOL = """#!/bin/sh
case "$*" in *power.draw,*) exit 9;; *memory.used*) for mib in 100 900 300; do echo "$mib, 1980, 650.5"; done; exec sleep 60;; esac
exit 9
"""
# A Python with the peers, as far as is asked for.
PEER = """#!{python} -S
import json, sys, time
if "peer_train.py" in " ".join(sys.argv):
    time.sleep(0.2)
    print(json.dumps({{"tokens_per_second": 2.0, "step_seconds": [1.0], "peak_memory_bytes": 9, "loss": 1.0}}))
elif "peer_packed.py" in " ".join(sys.argv):
    if "unsloth" in sys.argv:
        sys.exit("No module named unsloth")
    print(json.dumps({{"steps": [{{"tokens": 100, "loss": 2.0, "seconds": 1.0}}] * 5, "steady_began": 10.0, "steady_ended": 12.0}}))
"""


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class GpuCheck(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name).resolve()
        self.build, self.output = self.folder / "build", self.folder / "out/result.json"
        (self.build / "bin").mkdir(parents=True)
        for name in ("sftrun", "gpu_tests", "quant_bandwidth", "adapter_bandwidth", "attention_speed"):
            program = self.build / "bin" / name
            program.write_text(PROGRAM.format(python=sys.executable))
            program.chmod(0o755)
        memory = self.build / "tests/smoke/memory_plan.py"
        memory.parent.mkdir(parents=True)
        memory.write_text(MEMORY)
        for name in ("lora_all_linear", "lora_qv", "lora_rslora", "full_tied", "full_untied", "partial_norms"):
            run = self.build / "tests/data/train" / name
            run.mkdir(parents=True)
            (run / "run.yaml").write_text("")
            (run / "expected.json").write_text(json.dumps({"metrics": [{"loss": 2.0}, {"loss": 1.5}]}))
        self.behave()
        # A Python that has torch, as far as is asked for; not the peers.
        self.python = self.folder / "python"
        torch = self.folder / "torch"
        torch.mkdir()
        (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\n")
        self.python.write_text(f"#!/bin/sh\ncase \"$*\" in *peft*) echo peft;; *) echo {torch}/__init__.py;; esac\n")
        self.python.chmod(0o755)
        # The driver's tool finds nothing, also where there is a driver.
        tool = self.folder / "path/nvidia-smi"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\nexit 9\n")
        tool.chmod(0o755)

    def behave(self, **what):
        (self.build / "behave.json").write_text(json.dumps(what))

    def command(self, *arguments, source=("--build",)):
        where = [*source, self.build] if source == ("--build",) else source
        return [str(part) for part in (sys.executable, CHECK, *where, "--output", self.output, "--torch-python", self.python, "--peer-python", self.python, *arguments)]

    def environment(self):
        return {**os.environ, "PATH": f"{self.folder}/path:/usr/bin:/bin"}

    def check(self, *arguments, **more):
        done = subprocess.run(self.command(*arguments, **more), capture_output=True, text=True, timeout=60, env=self.environment())
        self.said = done.stdout + done.stderr
        return done.returncode, json.loads(self.output.read_text()) if self.output.exists() else {}

    def states(self, report):
        return {name: part["state"] for name, part in report["parts"].items()}

    def hanging(self):
        file = self.build / "hanging"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def assert_nothing_hangs(self):
        pids = self.hanging()
        self.assertTrue(pids)
        self.assertEqual([pid for pid in pids if alive(pid)], [])

    def test_all_parts_of_a_good_build(self):
        code, report = self.check()
        self.assertEqual(code, 0, self.said)
        self.assertEqual(list(report["parts"]), ["kernels", "models", "training", "images", "nccl", "bandwidth", "adapters", "attention", "memory", "bench"])
        self.assertEqual(set(self.states(report).values()), {"ok"})
        self.assertEqual(report["parts"]["kernels"]["passed"], 3)
        self.assertEqual(len(report["parts"]["training"]["runs"]), 20)
        images = report["parts"]["images"]["runs"]
        self.assertEqual(len(images), 10)
        self.assertEqual([name for name, run in images.items() if "left_out" in run], ["bench qwen2_5_vl-3b", "bench gemma3-4b"])  # the card is small
        self.assertEqual(images["gemma3, all parts, bf16"]["loss_relative"], 0)
        self.assertEqual(report["parts"]["bandwidth"]["lines"], ["copy 100 GB/s"])
        self.assertEqual(report["parts"]["memory"]["runs"]["two, kept"], {"ok": True, "case": "two, kept", "peak_bytes": 5})
        self.assertIn("peft", report["parts"]["bench"]["peer"])
        self.assertIn("left_out", report["parts"]["bench"]["runs"]["qwen3-8b, sftrun"])  # the card is small
        self.assertIn("gtest_filter", self.output.with_suffix(".log").read_text())
        self.assertEqual(sorted(path.name for path in self.output.parent.iterdir()), ["result.json", "result.log"])

    def test_a_peer_and_what_the_card_holds(self):
        self.behave(card_gib=80)
        (self.folder / "path/nvidia-smi").write_text(DRIVERS_TOOL)
        peer = self.folder / "peer"
        peer.write_text(PEER.format(python=sys.executable))
        peer.chmod(0o755)
        code, report = self.check("--only", "bench", "--peer-python", peer)
        self.assertEqual(code, 0, self.said)
        bench = report["parts"]["bench"]
        runs = bench["runs"]
        ours, theirs = runs["qwen3-0.6b, sftrun"], runs["qwen3-0.6b, transformers"]
        self.assertEqual((ours["tokens_per_second"], theirs["tokens_per_second"]), (5.0, 2.0))
        self.assertEqual([(run["card_memory_mib"], run["card_memory_mib_before"]) for run in (ours, theirs)], [(900, 100)] * 2)
        self.assertEqual((ours["sm_mhz"], theirs["power_w"]), ([1980.0, 1980.0], [650.5, 650.5]))
        ratios = bench["above_1_is_in_favour_of_sftrun"]
        self.assertEqual(ratios["qwen3-0.6b, to transformers"], {"tokens_per_second": 2.5, "card_memory": 1.0})
        # The large model is compared with the faster of the peers, and FP8 with none.
        self.assertEqual(list(ratios), ["qwen3-0.6b, to liger", "qwen3-0.6b, to transformers", "qwen3-8b, nf4, to liger", "qwen3-8b, to liger"])
        self.assertEqual(runs["qwen3-8b, fp8, sftrun"]["tokens_per_second"], 5.0)
        # Both sides train the same updates.
        log = self.output.with_suffix(".log").read_text()
        self.assertIn("tuning.lora.r=16", log)
        self.assertIn("--lora-r 16 --all-linear", log)

    def test_a_card_that_is_too_small_for_the_peer(self):
        self.behave(card_gib=40)
        peer = self.folder / "peer"
        peer.write_text(PEER.format(python=sys.executable))
        peer.chmod(0o755)
        code, report = self.check("--only", "bench", "--peer-python", peer)
        self.assertEqual(code, 0, self.said)
        runs = report["parts"]["bench"]["runs"]
        self.assertEqual(runs["qwen3-8b, sftrun"]["tokens_per_second"], 5.0)
        self.assertIn("48 are needed", runs["qwen3-8b, liger"]["left_out"])

    def peer(self):
        peer = self.folder / "peer"
        peer.write_text(PEER.format(python=sys.executable))
        peer.chmod(0o755)
        return peer

    COMPARED = ("--only", "compare", "--cases", "qwen3-8b, packed, r", "--steady", "0.1")

    def test_other_trainers_take_turns(self):
        self.behave(card_gib=40)
        (self.folder / "path/nvidia-smi").write_text(DRIVERS_TOOL)
        code, report = self.check(*self.COMPARED, "--sides", "sftrun", "trl-liger", "unsloth", "--peer-python", self.peer())
        self.assertEqual(code, 0, self.said)
        part, name = report["parts"]["compare"], "qwen3-8b, packed, recomputed"
        turns = ("sftrun, round 1", "trl-liger, round 1", "unsloth, round 1", "sftrun, round 2", "trl-liger, round 2")  # what is not installed gets no second turn
        self.assertEqual(list(part["runs"]), [f"{name}, {what}" for what in ("data", *turns)])
        self.assertIn("No module named unsloth", part["runs"][f"{name}, unsloth, round 1"]["failed"])
        self.assertEqual(part["runs"][f"{name}, data"]["lengths"], "azure-conversations")
        result = part["comparisons"][name]
        self.assertEqual(set(result["tokens_per_second"]), {"sftrun", "trl-liger"})
        self.assertEqual(result["tokens_per_second"]["trl-liger"], 100)  # two steps of 100 tokens in two seconds
        self.assertGreater(result["above_1_is_in_favour_of_sftrun"]["trl-liger"], 1)
        self.assertEqual(result["losses"]["trl-liger"]["loss_relative"], 0)
        self.assertEqual(result["failed"], {"unsloth": "exit code 1: No module named unsloth"})
        for settings in map(json.loads, (self.build / "compared").read_text().splitlines()):
            self.assertTrue(settings["train"]["gradient_checkpointing"] and settings["data"]["packing"])
            self.assertEqual(settings["data"]["bin_tokens"], 2048)

    def test_a_side_of_ours_that_fails_fails_the_part(self):
        self.behave(card_gib=40, compare="fail")
        code, report = self.check(*self.COMPARED, "--sides", "sftrun", "--rounds", "1", "--peer-python", self.peer())
        self.assertEqual((code, self.states(report)), (1, {"compare": "failed"}), self.said)
        self.assertIn("no memory", report["parts"]["compare"]["runs"]["qwen3-8b, packed, recomputed, sftrun, round 1"]["failed"])

    def test_unknown_cases_and_sides(self):
        self.check("--only", "shapes", "--cases", "llama-4")
        self.assertIn("--cases llama-4: no case begins so; choose of qwen3-8b, packed; ", self.said)
        code, report = self.check(*self.COMPARED, "--sides", "sftrun", "axolotl", "--peer-python", self.peer())
        self.assertEqual((code, report["parts"]["compare"]["error"]), (1, "--sides axolotl: choose of sftrun, trl, trl-liger, trl-flex, unsloth, surogate, automodel"))

    def test_nobody_makes_the_model(self):
        code, report = self.check("--only", "compare")
        self.assertEqual(code, 1)
        self.assertIn("lacks peft", report["parts"]["compare"]["error"])

    def test_shapes_of_published_tables(self):
        self.behave(card_gib=120)
        code, report = self.check("--only", "shapes", "--peer-python", self.peer())
        self.assertEqual(code, 0, self.said)
        part = report["parts"]["shapes"]
        self.assertEqual(part["above_1_is_in_favour_of_sftrun"]["llama-3-8b, 2 x 4096"], 2.5)
        self.assertIn("135 are needed", part["runs"]["llama-3-8b, 1 x 131072, peer"]["left_out"])
        log = self.output.with_suffix(".log").read_text()
        self.assertIn("tuning.lora.target_parameters=[mlp.experts.gate_up_proj, mlp.experts.down_proj]", log)
        self.assertIn("--target-parameters mlp.experts.gate_up_proj mlp.experts.down_proj", log)
        self.assertIn("llama-3-70b.json --seq-len 2048 --batch-size 1 --steps 6 --dtype bf16 --device cuda --json tuning.lora.r=16 tuning.lora.alpha=32 "
                      "tuning.lora.target_modules=[all-linear] tuning.quant=nf4 train.gradient_checkpointing=true", log)
        self.assertTrue(all((ROOT / f"bench/arch/{name}.json").exists() for name in ("llama-3-8b", "qwen2_5-7b", "qwen3-30b-a3b", "gpt-oss-20b", "llama-3-70b")))

    def test_parts_that_hang_leave_the_bench_its_time(self):
        self.behave(bandwidth="hang")
        code, report = self.check("--only", "bandwidth", "bench", "--budget", "8")
        self.assertEqual(self.states(report), {"bandwidth": "failed", "bench": "ok"}, self.said)

    def test_only_and_skip(self):
        code, report = self.check("--only", "kernels", "bandwidth", "--skip", "kernels")
        self.assertEqual((code, self.states(report)), (0, {"bandwidth": "ok"}))

    def test_no_card(self):
        """What an earlier run wrote stays."""
        self.check("--only", "kernels")
        before, log = self.output.read_bytes(), self.output.with_suffix(".log").read_bytes()
        self.assertTrue(log)
        self.behave(cards=0)
        code, _ = self.check()
        self.assertEqual(code, 1)
        self.assertEqual((self.output.read_bytes(), self.output.with_suffix(".log").read_bytes()), (before, log))

    def test_no_build(self):
        (self.build / "bin/sftrun").unlink()
        self.output.parent.mkdir(exist_ok=True)
        self.output.write_text("{}")
        self.assertEqual(self.check(), (1, {}))

    def test_failing_tests_run_again_alone(self):
        self.behave(**{"Types/GpuKernels.A/fp32": "fail", "Types/GpuKernels.B/bf16": "fail together"})
        code, report = self.check("--only", "kernels", "models")
        self.assertEqual((code, self.states(report)), (1, {"kernels": "failed", "models": "ok"}))
        part = report["parts"]["kernels"]
        self.assertIn("here.cpp:3", part["failed"]["Types/GpuKernels.A/fp32"])
        self.assertFalse(part["runs"]["alone: Types/GpuKernels.A/fp32"]["ok"])
        self.assertTrue(part["runs"]["alone: Types/GpuKernels.B/bf16"]["ok"])

    def test_after_a_crash_the_others_run_alone(self):
        self.behave(**{"Types/GpuKernels.B/bf16": "crash"})
        _, report = self.check("--only", "kernels")
        part = report["parts"]["kernels"]
        self.assertEqual(part["passed"], 1)
        self.assertEqual(part["failed"]["GpuQuant.C"], "did not run")
        self.assertTrue(part["runs"]["alone: GpuQuant.C"]["ok"])

    def test_a_hanging_test_costs_its_part_only(self):
        self.behave(**{"Types/GpuKernels.B/bf16": "hang"})
        code, report = self.check("--only", "kernels", "bandwidth", "--limit", "kernels=3")
        self.assertEqual((code, self.states(report)), (1, {"kernels": "failed", "bandwidth": "ok"}))
        self.assertIn("ended", report["parts"]["kernels"]["error"])
        self.assertIn("alone: GpuQuant.C", report["parts"]["kernels"]["runs"])
        self.assert_nothing_hangs()

    def test_a_hanging_run_leaves_the_results_of_the_others(self):
        self.behave(train="full_tied")
        code, report = self.check("--only", "training", "bandwidth", "--limit", "training=3")
        self.assertEqual((code, report["parts"]["bandwidth"]["state"]), (1, "ok"))
        runs = report["parts"]["training"]["runs"]
        self.assertIn("ended after", runs["full_tied, fp32"]["error"])
        self.assertTrue(runs["lora_qv, fp32"]["ok"])
        self.assert_nothing_hangs()

    def test_budget(self):
        self.behave(bandwidth="hang")
        began = time.monotonic()
        code, report = self.check("--only", "bandwidth", "attention", "--budget", "2")
        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual((code, self.states(report)), (1, {"bandwidth": "failed", "attention": "not run: out of time"}))
        self.behave()
        code, report = self.check("--only", "kernels", "--budget", "0")
        self.assertEqual((code, self.states(report)), (3, {"kernels": "not run: out of time"}))

    def test_losses(self):
        self.behave(loss=1.001, losses={"full_tied": float("nan")})  # 0.001 is too much in fp32, not in bf16
        code, report = self.check("--only", "training", "nccl")
        self.assertEqual((code, self.states(report)), (1, {"training": "failed", "nccl": "failed"}))
        runs = report["parts"]["training"]["runs"]
        self.assertAlmostEqual(runs["lora_qv, fp32"]["loss_relative"], 1e-3, places=6)
        self.assertEqual((runs["lora_qv, fp32"]["ok"], runs["lora_qv, bf16"]["ok"]), (False, True))
        self.assertFalse(runs["full_tied, bf16"]["ok"])
        self.assertEqual(runs["full_tied, fp32"]["loss_relative"], "not finite")

    def test_images(self):
        self.behave(loss=1.001, card_gib=80)
        code, report = self.check("--only", "images")
        self.assertEqual((code, self.states(report)), (1, {"images": "failed"}))
        runs = report["parts"]["images"]["runs"]
        self.assertEqual((runs["gemma3, LoRA, fp32"]["ok"], runs["gemma3, LoRA, bf16"]["ok"]), (False, True))
        self.assertEqual((runs["bench gemma3-4b"]["ok"], runs["bench gemma3-4b"]["images_per_second"]), (True, 3.0))

    def test_refused_by_nccl(self):
        self.behave(nccl="refuse")
        code, report = self.check("--only", "nccl")
        self.assertEqual(code, 0, self.said)
        self.assertIn("Duplicate GPU", report["parts"]["nccl"]["runs"]["full_tied, ddp"]["refused"])
        self.behave(nccl="refuse", cards=2)  # two cards: the program's own launcher
        code, report = self.check("--only", "nccl")
        self.assertEqual((code, report["parts"]["nccl"]["cards"]), (0, 2))

    def test_results_are_whole_while_it_runs_and_after_a_signal(self):
        together = {"SFTRUN_GPU_CHECK_CPUS": "16"}
        for hanging, behaviour, more in (("bandwidth", {"bandwidth": "hang"}, {}), ("training", {"train": "lora_qv"}, {}),
                                         ("training", {"train": "lora_qv", "card_gib": 80}, together)):
            with self.subTest(hanging, **more):
                (self.build / "hanging").unlink(missing_ok=True)
                self.behave(**behaviour)
                process = subprocess.Popen(self.command("--only", "kernels", hanging, "bench"), env=self.environment() | more, stdout=subprocess.DEVNULL)
                end, seen = time.monotonic() + 30, set()
                while time.monotonic() < end and not (self.hanging() and ("kernels", "ok") in seen):  # together, the one may come before the other
                    if self.output.exists():
                        seen |= set(self.states(json.loads(self.output.read_text())).items())  # never half a file
                    time.sleep(0.01)
                seen |= set(self.states(json.loads(self.output.read_text())).items())
                self.assertIn(("kernels", "ok"), seen)
                self.assertIn((hanging, "running"), seen)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(60), 1)
                states = self.states(json.loads(self.output.read_text()))
                self.assertEqual(states["kernels"], "ok")
                self.assertEqual(states[hanging], "ended by a signal")
                self.assertTrue(states["bench"].startswith("not run"))
                self.assert_nothing_hangs()
                self.output.unlink()

    def test_rehearsal(self):
        self.behave(**{"Types/GpuKernels.A/fp32": "fail"}, loss=0.0)
        code, report = self.check("--rehearse", self.folder, "--only", "kernels", "training")
        self.assertEqual(code, 0, self.said)
        self.assertEqual(self.states(report), {"hang": "ok", "kernels": "ok", "training": "ok"})
        self.assertIn("not compared", report["parts"]["kernels"]["note"])
        self.assertIn("not compared", report["parts"]["training"]["runs"]["lora_qv, fp32"]["note"])
        self.behave(**{"Types/GpuKernels.A/fp32": "crash"})
        code, report = self.check("--rehearse", self.folder, "--only", "kernels")
        self.assertEqual((code, report["parts"]["kernels"]["state"]), (1, "failed"))

    # ---- Archives

    def pack(self, change=None, torch="2.11.0+cu130"):
        stage = self.folder / "stage"
        shutil.rmtree(stage, ignore_errors=True)
        shutil.copytree(self.build, stage)
        (stage / "about.json").write_text(json.dumps({"torch": torch}))
        files = sorted(path for path in stage.rglob("*") if path.is_file())
        sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(stage)}\n" for path in files)
        (stage / "SHA256SUMS").write_text(sums)
        if change:
            change(stage)
        archive = self.folder / "build.tar.xz"
        with tarfile.open(archive, "w:xz") as packed:
            packed.add(stage, ".")
        return archive

    def of_archive(self, archive):
        code, report = self.check("--only", "bandwidth", source=("--archive", archive))
        return code, self.states(report), report["parts"]["unpack"].get("error", "")

    def test_archive(self):
        code, states, _ = self.of_archive(self.pack())
        self.assertEqual((code, states), (0, {"unpack": "ok", "bandwidth": "ok"}), self.said)

    def test_archives_that_are_not_whole(self):
        refused = {"unpack": "failed", "bandwidth": "not run: the archive cannot be used"}
        cut = self.pack()
        cut.write_bytes(cut.read_bytes()[:-2000])
        flipped = bytearray(self.pack().read_bytes())
        flipped[len(flipped) // 2] ^= 0xFF
        cases = {"cut": (cut.read_bytes()[:-2000], "damaged"), "flipped": (bytes(flipped), "damaged"), "other": (b"no archive", "damaged"),
                 "changed": (self.pack(lambda stage: (stage / "behave.json").write_text("[]")).read_bytes(), "behave.json"),
                 "missing": (self.pack(lambda stage: (stage / "bin/sftrun").unlink()).read_bytes(), "bin/sftrun"),
                 "more": (self.pack(lambda stage: (stage / "stray").write_text("")).read_bytes(), "stray"),
                 "unlisted": (self.pack(lambda stage: (stage / "SHA256SUMS").unlink()).read_bytes(), "damaged"),
                 "link": (self.pack(lambda stage: (stage / "link").symlink_to("/etc")).read_bytes(), "does not belong"),
                 "version": (self.pack(torch="2.10.0").read_bytes(), "2.10.0")}
        for name, (data, said) in cases.items():
            with self.subTest(name):
                archive = self.folder / f"{name}.tar.xz"
                archive.write_bytes(data)
                code, states, error = self.of_archive(archive)
                self.assertEqual((code, states), (1, refused))
                self.assertIn(said, error)

    def test_archive_that_is_not_there(self):
        code, states, error = self.of_archive(self.folder / "none.tar.xz")
        self.assertEqual((code, states["unpack"]), (1, "failed"))
        self.assertIn("none.tar.xz", error)


def run_alone(name):
    """Whether the test passed, and what it said."""
    said = io.StringIO()
    result = unittest.TextTestRunner(stream=said).run(unittest.TestSuite([GpuCheck(name)]))
    return result.wasSuccessful() and result.testsRun == 1, said.getvalue()


def main():
    if len(sys.argv) > 1:
        unittest.main()
    tests = unittest.defaultTestLoader.getTestCaseNames(GpuCheck)
    with multiprocessing.get_context("fork").Pool(TOGETHER) as pool:
        ended = dict(zip(tests, pool.map(run_alone, tests, chunksize=1)))
    for test, (passed, said) in ended.items():
        print(f"{test}: {'ok' if passed else 'failed'}")
        if not passed:
            print(said)
    failed = [test for test, (passed, _) in ended.items() if not passed]
    print(f"{len(tests)} tests, {len(failed)} failed")
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main())
