#!/usr/bin/env python3
"""Parts of the module sftrun that need no run: finding the program, its environment, its errors, words of the command line, new lines of metrics.jsonl, and types.

    tests/python/module_test.py [TestCase …]

Standard library only; with mypy installed, its check, too.
"""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import sftrun  # noqa: E402
from sftrun import errors, metrics_tail, program, words  # noqa: E402

TIMEOUT = 60


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name).resolve()

    def script(self, name, text="#!/bin/sh\n"):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def environment(self, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SFTRUN", "PYTHON"))}
        return kept | {"PYTHONPATH": str(ROOT / "python")} | {name: str(value) for name, value in variables.items()}


class FindProgram(InFolder):
    def found(self, **variables):
        with mock.patch.dict(os.environ, self.environment(**variables), clear=True):
            return sftrun.find_program()

    def test_order(self):
        named, on_path = self.script("named"), self.script("path/sftrun")
        packaged = self.script("package/bin/sftrun")
        with mock.patch.object(program, "__file__", str(self.folder / "package/program.py")):
            self.assertEqual(self.found(SFTRUN=named, PATH=on_path.parent), str(named))
            self.assertEqual(self.found(PATH=on_path.parent), str(packaged))
            packaged.unlink()
            self.assertEqual(self.found(PATH=on_path.parent), str(on_path))
            with self.assertRaisesRegex(sftrun.SftrunError, "the program sftrun was not found") as caught:
                self.found(PATH=self.folder)
        self.assertIn("set SFTRUN", caught.exception.fix)
        with self.assertRaisesRegex(sftrun.SftrunError, "no such program: nothing/here") as caught:
            self.found(SFTRUN="nothing/here", PATH=on_path.parent)
        self.assertEqual((caught.exception.exit_code, caught.exception.at), (2, "SFTRUN in the environment"))


class Main(InFolder):
    SHOW = '#!/bin/sh\necho "torch=$SFTRUN_TORCH_ROOT arrow=$SFTRUN_ARROW_ROOT"\nprintf "%s|" "$@"\nexit 7\n'

    def run_module(self, *arguments, **variables):
        return subprocess.run([sys.executable, "-m", "sftrun", *arguments], env=self.environment(**variables), capture_output=True, text=True, timeout=TIMEOUT)

    def test_becomes_the_program(self):
        done = self.run_module("train", "a b", "", SFTRUN=self.script("program", self.SHOW))
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (7, "train|a b||"))

    def test_libraries_are_found_without_imports(self):
        site = self.folder / "site"
        for package, file in (("torch", "lib/libtorch_cpu.so"), ("pyarrow", "libarrow.so.2600")):
            path = site / package / file
            path.parent.mkdir(parents=True)
            path.touch()
            (site / package / "__init__.py").write_text("raise SystemExit('imported')\n")
        shutil.copytree(ROOT / "python/sftrun", site / "sftrun", ignore=shutil.ignore_patterns("__pycache__"))  # as the wheel has it
        self.script("site/sftrun/bin/sftrun", self.SHOW)
        self.assertIn(f"torch={site / 'torch'} arrow={site / 'pyarrow'}\n", self.run_module(PYTHONPATH=site).stdout)
        self.assertIn(f"torch=/mine arrow={site / 'pyarrow'}\n", self.run_module(PYTHONPATH=site, SFTRUN_TORCH_ROOT="/mine").stdout)
        built = self.script("program", self.SHOW)  # with the LibTorch that it was built with
        self.assertIn("torch= arrow=\n", self.run_module(PYTHONPATH=site, SFTRUN=built).stdout)
        (site / "torch/lib/libtorch_cpu.so").unlink()  # a folder of that name without the library
        self.assertIn("torch= ", self.run_module(PYTHONPATH=site).stdout)

    def test_does_not_start_itself(self):
        script = self.script("bin/sftrun", f"#!{sys.executable}\nimport sftrun.__main__\nsftrun.__main__.main()\n")
        for variables in ({"PATH": script.parent}, {"SFTRUN": script}):
            done = subprocess.run([script], env=self.environment(**variables), capture_output=True, text=True, timeout=TIMEOUT)
            self.assertEqual(done.returncode, 2)
            self.assertRegex(done.stderr, r"^error: .*\n  at   .*\n  fix: ")

    def test_import_is_light(self):
        code = "import sys, sftrun; print(sorted({'torch', 'numpy', 'pyarrow', 'pandas'} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], env=self.environment(), capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(done.stdout, "[]\n", done.stderr)


class Errors(unittest.TestCase):
    def test_every_answer_of_the_document(self):
        blocks = re.findall(r"\(exit (\d+)\)\n```\n\$ [^\n]*\n(error: .*?)\n```", (ROOT / "docs/errors.md").read_text(), re.DOTALL)
        self.assertGreater(len(blocks), 100)
        for code, text in blocks:
            error = errors.error_of(int(code), "[12:00:00.000] [info] begins\n" + text)
            self.assertEqual("error: " + str(error), text)
            self.assertTrue(error.exit_code == int(code) and error.message and not error.message.startswith("error"), text)
        self.assertGreater(sum(len(errors.problems_in(text)) > 1 for _, text in blocks), 2)
        self.assertGreater(sum(bool(errors.problems_in(text)[0].fix) for _, text in blocks), 90)

    def test_without_an_error_text(self):
        self.assertIn("was killed by signal 9", str(errors.error_of(-9, "")))
        self.assertEqual(errors.error_of(75, "SIGTERM: stopping").fix, "the same call resumes the run")
        self.assertEqual(str(errors.error_of(1, "a\nlast")), "sftrun ended with exit code 1\n  at   last")


class Words(unittest.TestCase):
    def test_flags(self):
        flags = {"nproc_per_node": 2, "overwrite": True, "quiet": False, "adapter": None, "stop": ["a", "-b"], "temperature": 0.5, "output": pathlib.Path("x y")}
        self.assertEqual(words.flag_words(flags), ["--nproc-per-node=2", "--overwrite", "--stop=a", "--stop=-b", "--temperature=0.5", "--output=x y"])

        self.assertEqual(words.flag_words({"prompt": "", "json": True}), ["--prompt", "", "--json"])

    def test_overrides(self):
        overrides = {"a.b": 1e-05, "a.c": True, "a.d": None, "a.e": ["q", 1], "a.f": "x: ü", "a.g": pathlib.Path("runs/x")}
        self.assertEqual(words.ConfigFile("run.yaml").words(overrides),
                         ["--config", "run.yaml", "a.b=1e-05", "a.c=true", "a.d=null", 'a.e=["q", 1]', 'a.f="x: ü"', 'a.g="runs/x"'])

    def test_file_of_a_mapping_goes_with_it(self):
        file = words.ConfigFile({"model": {"name": pathlib.Path("m")}})
        path = pathlib.Path(file.path)
        self.assertIn('"name": "m"', path.read_text())
        del file
        self.assertFalse(path.parent.exists())


class MetricsTail(InFolder):
    def test_file_is_replaced(self):
        path = self.folder / "metrics.jsonl"

        def lines(*steps, at=0):
            return "".join(f'{{"step": {step}, "at": {at}}}\n' for step in steps)

        def read():
            return [(record["step"], record["at"]) for record in tail.read()]

        def replace(text):
            (self.folder / "new").write_text(text)
            (self.folder / "new").rename(path)

        path.write_text(lines(1, 2, 3))  # of an earlier run
        tail = metrics_tail.MetricsTail(path)
        self.assertEqual(read(), [])
        replace(lines(1, 2) + lines(3, at=1))  # resumed from step 2
        self.assertEqual(read(), [(3, 1)])
        with path.open("a") as file:
            file.write(lines(4, at=1) + '{"step": 5')
            file.flush()
            self.assertEqual(read(), [(4, 1)])
            file.write(', "at": 1}\n')
        self.assertEqual(read(), [(5, 1)])
        with path.open("a") as file:
            file.write(lines(6, at=1))
        replace(lines(1, 2) + lines(3, at=1) + lines(4, at=2))  # a restart from step 3; step 6 was not read yet
        self.assertEqual(read(), [(6, 1), (4, 2)])
        path.rename(self.folder / "old")
        self.assertEqual(read(), [])
        path.write_text(lines(1, at=3))  # with --overwrite
        self.assertEqual(read(), [(1, 3)])

    def test_no_file_yet(self):
        tail = metrics_tail.MetricsTail(self.folder / "metrics.jsonl")
        self.assertEqual(tail.read(), [])
        (self.folder / "metrics.jsonl").write_text('{"step": 1}\n')
        self.assertEqual(tail.read(), [{"step": 1}])


class RunDirectory(InFolder):
    def test_what_is_no_run(self):
        with self.assertRaisesRegex(FileNotFoundError, "run.json"):
            sftrun.Run.open(self.folder)
        run = sftrun.Run(self.folder)
        self.assertEqual((run.status, run.metrics, run.adapter, run.summary), (None, [], None, {}))
        self.assertIn("not begun", repr(run))

    def test_html_is_escaped(self):
        self.assertIn("a&lt;b&gt;", sftrun.Run(self.folder / "a<b>")._repr_html_())


class Types(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_mypy(self):
        with tempfile.TemporaryDirectory() as cache:
            checked = [ROOT / "python/sftrun", *([ROOT / "configs/examples/from-python/search.py"] if importlib.util.find_spec("optuna") else [])]
            done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--python-version", "3.10", "--cache-dir", cache, *checked], capture_output=True, text=True,
                                  env=os.environ | {"MYPYPATH": str(ROOT / "python")}, cwd=ROOT, timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
