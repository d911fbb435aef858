#!/usr/bin/env python3
"""The module sftrun with the real program, on a tiny model: runs, their records as they are written, how they stop, errors, and the commands that answer with JSON.

    tests/python/runs_test.py --sftrun build/bin/sftrun [TestCase …]

Standard library only.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import sftrun  # noqa: E402

TOY = ROOT / "data/toy"
ENDLESS = 1000000  # steps; such a run is stopped
DEADLINE = 120  # s
# A script that trains as a cell of a notebook does: it says each step, and how the call ended.
CELL = """
import sys, sftrun
try:
    run = sftrun.train("run.yaml", {"train.max_steps": int(sys.argv[1])}, on_step=lambda record: print(record["step"], flush=True), quiet=True, device="cpu", nproc_per_node=2)
    print(run.status, flush=True)
except KeyboardInterrupt:
    print("interrupt", flush=True)
"""


def processes_of(folder):
    """The processes whose current directory is the folder, without this one: {pid: command line}."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.name != str(os.getpid()) and pathlib.Path(os.readlink(process / "cwd")) == folder and "State:\tZ" not in (process / "status").read_text():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ").strip()
    return found


def workers_of(folder):
    """The ranks of the run that trains there: children of the launcher, which is the first process of its session. sftrun-guard and its like are no ranks."""
    found = []
    for pid in processes_of(folder):
        process = pathlib.Path(f"/proc/{pid}")
        parent = int(process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1])
        if process.joinpath("comm").read_text() == "sftrun\n" and os.getsid(parent) == parent and process.joinpath("exe").samefile(f"/proc/{parent}/exe"):
            found.append(pid)
    return found


class InFolder(unittest.TestCase):
    """Each test is in a folder of its own, which is the current one, with a model and a configuration of relative paths."""

    @classmethod
    def setUpClass(cls):
        shared = tempfile.TemporaryDirectory()
        cls.addClassCleanup(shared.cleanup)
        cls.shared = pathlib.Path(shared.name).resolve()
        subprocess.run([ROOT / "scripts/smoke/model.py", "--output", cls.shared / "model"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()
        self.addCleanup(self.kill_rest)
        for name, target in (("model", self.shared / "model"), ("train.jsonl", TOY / "train.jsonl"), ("val.jsonl", TOY / "val.jsonl")):
            (self.folder / name).symlink_to(target)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        self.config = {"model": {"name": "model", "max_seq_len": 128}, "data": {"train": "train.jsonl", "cache_dir": self.folder / "cache"},
                       "train": {"max_steps": 4, "global_batch_size": 4, "scheduler": "constant"}, "output": {"dir": "runs/first"}}
        pathlib.Path("run.yaml").write_text(json.dumps(self.config, default=str))
        self.errors = io.StringIO()
        redirection = contextlib.redirect_stderr(self.errors)
        redirection.__enter__()
        self.addCleanup(redirection.__exit__, None, None, None)

    def kill_rest(self):  # of a test that failed
        for pid in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def train(self, *arguments, **flags):
        return sftrun.train(*arguments, **{"device": "cpu", "nproc_per_node": 1, "quiet": True} | flags)

    def endless(self, **flags):
        return sftrun.start(self.config, {"train.max_steps": ENDLESS}, **{"device": "cpu", "nproc_per_node": 1, "quiet": True} | flags)

    def expect_no_process(self):
        end = time.monotonic() + 5  # a killed worker may take a moment to go
        while processes_of(self.folder) and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(processes_of(self.folder), {})


class Runs(InFolder):
    def test_mapping(self):
        seen = []
        config = self.config | {"data": self.config["data"] | {"val": "val.jsonl"}}
        run = self.train(config, {"train.learning_rate": 1e-3, "train.eval_strategy": "steps", "train.eval_steps": 2}, on_step=seen.append, quiet=False)
        self.assertEqual(run.directory, self.folder / "runs/first")
        self.assertEqual([record["step"] for record in run.metrics], [1, 2, 3, 4])
        self.assertEqual([record["step"] for record in run.evaluations], [2, 4])
        self.assertEqual(seen, run.records)
        self.assertEqual((run.status, run.adapter, run.model), ("done", run.directory / "adapter", None))
        self.assertEqual((run.summary["last_step"], run.config["train"]["learning_rate"], run.config["model"]["name"]), (4, 1e-3, "model"))
        self.assertRegex(repr(run), r"Run\(directory: .*, status: done, loss: .* at step 4, eval_loss: .* at step 4\)")
        self.assertIn("<td", run._repr_html_())
        self.assertRegex(self.errors.getvalue(), r"\[info\] step 4/4 loss")
        self.assertEqual(sftrun.Run.open("runs/first").metrics, run.metrics)

    def test_settings_of_a_run_are_its_own(self):
        run = self.train("run.yaml")
        os.environ["SFTRUN_TRAIN__LEARNING_RATE"] = "0.5"
        self.addCleanup(os.environ.pop, "SFTRUN_TRAIN__LEARNING_RATE")
        self.assertEqual(run.config["train"]["learning_rate"], 2e-4)
        self.assertEqual(sftrun.config_show("run.yaml")["train"]["learning_rate"], 0.5)

    def test_a_resumed_run_has_new_records_only(self):
        seen = []
        self.train("run.yaml", on_step=seen.append)
        self.train("run.yaml", {"train.max_steps": 6}, on_step=seen.append, allow_changed_length=True, nproc_per_node=2)
        self.assertEqual([record["step"] for record in seen], [1, 2, 3, 4, 5, 6])
        self.train("run.yaml", on_step=seen.append, overwrite=True)
        self.assertEqual([record["step"] for record in seen], [1, 2, 3, 4, 5, 6, 1, 2, 3, 4])
        self.assertNotIn("[info]", self.errors.getvalue())

    def test_exception_stops_the_run(self):
        def on_step(record):
            if record["step"] == 3:
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.train(self.config, {"train.max_steps": ENDLESS}, on_step=on_step, nproc_per_node=2)
        self.expect_no_process()
        run = sftrun.Run.open("runs/first")
        self.assertEqual(run.status, "stopped")
        self.assertTrue((run.directory / f"checkpoints/step-{run.metrics[-1]['step']:06}").is_dir())

    def test_start_and_stop(self):
        training = self.endless()
        steps = []
        for record in training:
            steps.append(record["step"])
            if len(steps) == 3:
                break
        self.assertTrue(training.is_running)
        self.assertEqual((steps, training.run.status), ([1, 2, 3], "running"))
        self.assertIn("running", repr(training))
        run = training.stop()
        self.assertEqual((run.status, training.is_running), ("stopped", False))
        self.assertEqual(training.stop(), run)  # of an ended run
        self.expect_no_process()

    def test_context(self):
        with sftrun.start("run.yaml", quiet=True, device="cpu") as training:
            pass
        self.assertEqual(training.run.status, "done")
        with self.assertRaises(ZeroDivisionError), self.endless(overwrite=True) as training:
            next(iter(training))
            raise ZeroDivisionError
        self.assertEqual(training.run.status, "stopped")

    def test_stopped_by_somebody_else(self):
        training = self.endless()
        next(iter(training))
        os.kill(training.pid, signal.SIGTERM)
        with self.assertRaisesRegex(sftrun.SftrunError, "stopped by SIGTERM") as caught:
            training.wait()
        self.assertEqual((caught.exception.exit_code, caught.exception.fix), (75, "the same call resumes the run"))


class Interrupts(InFolder):
    def start_cell(self):
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
        return subprocess.Popen([sys.executable, "-c", CELL, str(ENDLESS)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, start_new_session=True)

    def test_interrupt_saves(self):
        cell = self.start_cell()
        for line in cell.stdout:
            if line == "3\n":
                break
        os.killpg(cell.pid, signal.SIGINT)  # as Jupyter does, to all processes of the kernel
        rest = cell.communicate(timeout=DEADLINE)[0]
        self.assertEqual(rest.splitlines()[-1], "interrupt")
        self.expect_no_process()
        run = sftrun.Run.open("runs/first")
        last = run.metrics[-1]["step"]
        self.assertEqual(run.status, "interrupted")
        self.assertTrue((run.directory / f"checkpoints/step-{last:06}").is_dir())
        run = self.train("run.yaml", {"train.max_steps": last + 2}, nproc_per_node=2, allow_changed_length=True)
        self.assertEqual(([record["step"] for record in run.metrics], run.status), (list(range(1, last + 3)), "done"))

    def test_second_interrupt_ends_at_once(self):
        cell = self.start_cell()
        cell.stdout.readline()
        workers = workers_of(self.folder)
        self.assertEqual(len(workers), 2, processes_of(self.folder))
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)  # so that no checkpoint is written
        os.kill(cell.pid, signal.SIGINT)
        time.sleep(1)
        self.assertIsNone(cell.poll())
        os.kill(cell.pid, signal.SIGINT)
        rest = cell.communicate(timeout=40)[0]
        self.assertEqual(rest.splitlines()[-1], "interrupt")
        self.expect_no_process()
        self.assertEqual(sftrun.Run.open("runs/first").status, "interrupted")

    def test_end_of_python_stops_the_run(self):
        cell = self.start_cell()
        cell.stdout.readline()
        cell.kill()
        cell.communicate(timeout=DEADLINE)
        end = time.monotonic() + DEADLINE
        while processes_of(self.folder) and time.monotonic() < end:
            time.sleep(0.05)
        self.expect_no_process()
        run = sftrun.Run.open("runs/first")
        self.assertEqual(run.status, "stopped")
        self.assertTrue(any((run.directory / "checkpoints").glob("step-*")))


class Errors(InFolder):
    def test_problems(self):
        with self.assertRaises(sftrun.SftrunError) as caught:
            self.train(self.config, {"train.max_step": 4, "model.nam": "x"})
        error = caught.exception
        self.assertEqual((error.exit_code, len(error.problems)), (2, 2))
        self.assertEqual((error.message, error.at, error.fix), ("unknown key `train.max_step`", "train.max_step=4 from the command line", "did you mean `train.max_steps`?"))
        self.assertEqual(self.errors.getvalue(), "")
        self.assertEqual(sftrun.config_check(self.config), [])
        self.assertEqual(sftrun.config_check(self.config, {"train.max_step": 4}), error.problems[:1])

    def test_flag(self):
        with self.assertRaisesRegex(sftrun.SftrunError, "did you mean --nproc-per-node") as caught:
            sftrun.train(self.config, nproc_per_nod=2)
        self.assertEqual(caught.exception.exit_code, 2)
        with self.assertRaisesRegex(ValueError, "null byte"):
            sftrun.generate("a\0b", model="model")
        with self.assertRaisesRegex(TypeError, "dry_run"):
            sftrun.train(self.config, dry_run=True)

    def test_files(self):
        for call in (self.train, sftrun.config_check, sftrun.preview, sftrun.dry_run):
            with self.assertRaisesRegex(sftrun.SftrunError, "no such file or directory: nothing.yaml") as caught:
                call("nothing.yaml")
            self.assertEqual(caught.exception.exit_code, 3)

    def test_worker_is_killed(self):
        training = self.endless(nproc_per_node=2)
        next(iter(training))
        workers = workers_of(self.folder)
        self.assertEqual(len(workers), 2, processes_of(self.folder))
        os.kill(workers[1], signal.SIGKILL)
        with self.assertRaisesRegex(sftrun.SftrunError, "killed by SIGKILL") as caught:
            for _ in training:
                pass
        self.assertEqual(caught.exception.exit_code, 5)
        self.assertIn("rank-", caught.exception.at)
        self.assertEqual(training.run.status, "failed")
        self.expect_no_process()


class Commands(InFolder):
    def test_commands(self):
        config = self.config | {"data": self.config["data"] | {"val": "val.jsonl"}}
        steps = {"train.eval_strategy": "epoch"}
        run = self.train(config, steps)
        on_cpu = {"device": "cpu"}

        example = sftrun.preview(config, steps, num_examples=1)["data_sets"][0]["sequences"][0]
        self.assertEqual(len(example["tokens"]), len(example["labels"]))
        plan = sftrun.memory_check("run.yaml", {"train.global_batch_size": 8})
        self.assertTrue(plan["fits"] and plan["peak_bytes"] > 0)
        self.assertFalse(sftrun.memory_check(config, steps, gpus="100MB")["fits"])
        self.assertIsInstance(sftrun.memory_check(), dict)
        self.assertIn("num_gpus", sftrun.call("gpu-info"))
        self.assertEqual(sftrun.config_show(config, {"train.epochs": 7})["train"]["epochs"], 7)
        self.assertIn("# steps: 4 optimizer steps", sftrun.dry_run(config, steps | {"output.dir": "runs/other"}, **on_cpu))
        self.assertFalse(pathlib.Path("runs/other").exists())

        one = sftrun.generate("Gold?", adapter=run, max_new_tokens=4, **on_cpu)
        self.assertEqual((one["prompt"], one["generated_tokens"]), ("Gold?", 4))
        apart = "a\u2028b\x85c"  # str.splitlines() would divide there
        several = sftrun.generate(["Gold?", {"messages": [{"role": "user", "content": apart}], "id": 7}], adapter=run, max_new_tokens=4, **on_cpu)
        self.assertEqual((several[0]["generated"], several[1]["id"], several[1]["messages"][0]["content"]), (one["generated"], 7, apart))
        sampled = sftrun.generate(["Gold?"], model="model", max_new_tokens=4, num_answers=3, temperature=1.0, seed=1, **on_cpu)
        self.assertEqual([answer["answer_index"] for answer in sampled], [0, 1, 2])
        with self.assertRaisesRegex(TypeError, "as a list"):
            sftrun.generate("Gold?", model="model", num_answers=3)
        self.assertEqual(sftrun.generate("", model="model", max_new_tokens=1, **on_cpu)["prompt"], "")
        self.assertEqual(sftrun.generate([], model="model", **on_cpu), [])
        scores = sftrun.score([{"prompt": "a", "completion": " b"}], adapter=run, **on_cpu)
        self.assertTrue(scores[0]["logprob"] < 0 and scores[0]["tokens"] >= 1)

        measured = sftrun.evaluate(config, steps, base=True, no_generate=True, **on_cpu)
        self.assertAlmostEqual(measured["adapter"]["loss"], run.evaluations[-1]["eval_loss"], places=2)
        self.assertIn("base", measured)
        self.assertEqual(sftrun.report(run)["output"], str(run.directory / "report.html"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    options, rest = parser.parse_known_args()
    for name in [name for name in os.environ if re.match("SFTRUN|HF_|(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_ADDR|MASTER_PORT)$", name)]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"SFTRUN": str(options.sftrun.resolve()), "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": home, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
