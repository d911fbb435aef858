#!/usr/bin/env python3
"""Runs the commands of configs/examples/from-python/README.md as they stand, with real nbconvert and Optuna, and interrupts a cell of a real Jupyter kernel.

    .venv-ref/bin/python tests/python/examples_test.py --sftrun build/bin/sftrun

A hub on this machine has a tiny model by the name that run.yaml gives it. Needs nbconvert, ipykernel and optuna; skipped without them.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/hub")]
import fake_hub  # noqa: E402
import sftrun  # noqa: E402

EXAMPLE = "configs/examples/from-python"
NEEDED = ("nbconvert", "ipykernel", "optuna")
TIMEOUT = 240  # s, of a command
TRIALS = 6  # of the page
CELL = """
import sftrun
run = sftrun.train("configs/examples/from-python/run.yaml", {"train.max_steps": 1000000, "output.dir": "runs/cell"}, on_step=lambda record: print(record["step"]), quiet=True)
"""


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.checkout = pathlib.Path(folder.name).resolve() / "checkout"
        shutil.copytree(ROOT / EXAMPLE, cls.checkout / EXAMPLE)  # a copy, as the notebook writes to a path from its own folder
        (cls.checkout / "scripts").symlink_to(ROOT / "scripts")
        tiny = cls.checkout / "models/tiny"
        subprocess.run([ROOT / "scripts/smoke/model.py", "--output", tiny, "--texts", ROOT / EXAMPLE / "data/units.jsonl"], check=True, stdout=subprocess.DEVNULL)
        hub = fake_hub.FakeHub()
        cls.addClassCleanup(hub.close)
        name = re.search(r"^  name: (\S+)", (ROOT / EXAMPLE / "run.yaml").read_text(), re.MULTILINE)[1]
        hub.add(name, {path.name: path.read_bytes() for path in tiny.iterdir()})
        kept = {name: value for name, value in os.environ.items() if not re.match("SFTRUN|HF_|JUPYTER|IPYTHON", name) and not name.lower().endswith("_proxy")}
        home = folder.name
        cls.environment = kept | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "python"), "SFTRUN": str(PROGRAM),
                                  "HF_ENDPOINT": hub.endpoint, "HF_HOME": f"{home}/hub", "XDG_CONFIG_HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "IPYTHONDIR": f"{home}/ipython",
                                  "JUPYTER_CONFIG_DIR": f"{home}/jupyter", "JUPYTER_RUNTIME_DIR": f"{home}/jupyter", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        commands = re.search(r"```bash\n(.*?)\n```", (ROOT / EXAMPLE / "README.md").read_text(), re.DOTALL)[1].splitlines()
        cls.notebook, cls.search = commands

    def run_command(self, command):
        done = subprocess.run(["bash", "-c", command], cwd=self.checkout, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("warning]", done.stderr)
        return done.stdout

    def test_notebook(self):
        cells = json.loads((ROOT / EXAMPLE / "train.ipynb").read_text())["cells"]
        self.assertTrue(all(not cell.get("outputs") and not cell.get("execution_count") for cell in cells), "the notebook is kept without outputs")
        self.run_command(self.notebook)
        cells = json.loads((self.checkout / "runs/notebook/train.ipynb").read_text())["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", [])]
        self.assertFalse([output for output in outputs if output["output_type"] == "error"])
        text = "\n".join("".join(output.get("text") or output["data"]["text/plain"]) for output in outputs)
        self.assertIn("[2][ kilograms][ are][ 2000][ grams][.]", text)
        self.assertRegex(text, r"\d+ MiB, fits: True")
        self.assertRegex(text, r"step  40  eval_loss \d")
        self.assertRegex(text, r"before: .*\n+after:  \d+ ")
        base, adapter = (float(re.search(rf"^{name} +loss (\S+)", text, re.MULTILINE)[1]) for name in ("base", "adapter"))
        self.assertLess(adapter, base - 1)
        self.assertIn("2 | unknown key `train.learning_rat` | did you mean `train.learning_rate`?", text)
        self.assertTrue(any("text/html" in output.get("data", {}) for output in outputs))
        run = sftrun.Run.open(self.checkout / "runs/from-python")
        self.assertEqual(run.status, "done")
        if importlib.util.find_spec("pandas"):
            import pandas

            table = pandas.DataFrame(run.metrics)
            self.assertEqual((len(table), list(table["loss"])), (40, [record["loss"] for record in run.metrics]))

    def test_search(self):
        said = self.run_command(self.search)
        trials = re.findall(r"^ +(\d+)  (\w+) +eval_loss (\S+) ", said, re.MULTILINE)
        self.assertEqual([int(number) for number, _, _ in trials], list(range(TRIALS)), said)
        states = [state for _, state, _ in trials]
        self.assertEqual(set(states), {"complete", "pruned"}, said)
        for number, state, loss in trials:
            run = sftrun.Run.open(self.checkout / f"runs/search/{number}")
            self.assertIn(run.status, ("done",) if state == "complete" else ("stopped", "done"))
            self.assertIn(float(loss), [round(record["eval_loss"], 4) for record in run.evaluations])
        best = min(float(loss) for _, state, loss in trials if state == "complete")
        self.assertIn(f"eval_loss {best:.4f}", said.splitlines()[-2])
        self.assertIn("runs/search/5", (self.checkout / "runs/search/report.html").read_text())

    def test_interrupted_cell(self):
        import jupyter_client

        manager = jupyter_client.KernelManager(kernel_name="python3")
        manager.start_kernel(cwd=str(self.checkout), env=self.environment)
        client = manager.client()

        def train_for_three_steps():
            cell, steps, end = client.execute(CELL), 0, time.monotonic() + TIMEOUT
            while steps < 3 and time.monotonic() < end:
                message = client.get_iopub_msg(timeout=TIMEOUT)
                if message["parent_header"].get("msg_id") == cell and message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                    steps += message["content"]["text"].count("\n")
            self.assertGreaterEqual(steps, 3)
            return cell

        try:
            client.start_channels()
            client.wait_for_ready(timeout=TIMEOUT)
            cell = train_for_three_steps()
            manager.interrupt_kernel()
            while (reply := client.get_shell_msg(timeout=TIMEOUT))["parent_header"]["msg_id"] != cell:
                pass
            self.assertEqual(reply["content"].get("ename"), "KeyboardInterrupt", reply)
            run = sftrun.Run.open(self.checkout / "runs/cell")
            first = run.metrics[-1]["step"]
            self.assertEqual(run.status, "interrupted")
            self.assertTrue((run.directory / f"checkpoints/step-{first:06}").is_dir())
            train_for_three_steps()  # resumes
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)  # interrupts, and kills
        end = time.monotonic() + TIMEOUT
        while run.status == "running" and time.monotonic() < end:
            time.sleep(0.1)
        self.assertIn(run.status, ("interrupted", "stopped"))
        steps = [record["step"] for record in run.metrics]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertGreater(len(steps), first)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    options, rest = parser.parse_known_args()
    missing = [package for package in NEEDED if not importlib.util.find_spec(package)]
    if missing:
        print(f"SKIPPED: {', '.join(missing)} not installed; `scripts/bootstrap.sh --reference` installs them")
        sys.exit(77)
    PROGRAM = options.sftrun.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
