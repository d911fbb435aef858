#!/usr/bin/env python3
"""bench/packed_work.py and bench/compare.py: packed sequences in the order of `sftrun train`, data, other trainers' logs, failures, conclusions.

    tests/scripts/packed_work_test.py --sftrun build/bin/sftrun     # a run of some steps on the CPU
"""

import argparse
import collections
import json
import os
import pathlib
import random
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402
import packed_work  # noqa: E402

SFTRUN = None
# In the place of a trainer: writes a step each 20 ms into FILE, until it is interrupted.
TRAINER = """#!{python}
import json, signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
print("words of the trainer", flush=True)
for step in range({steps}):
    with open({file!r}, "a") as file:
        file.write({line})
    time.sleep(0.02)
sys.exit({code})
"""


def arguments(folder, *more):
    return compare.parse_arguments(["--work", str(folder), "--steady", "0.1", "--sftrun", SFTRUN or "sftrun", "--device", "cpu", "--dtype", "fp32", "--small", *more])


class Lengths(unittest.TestCase):
    def test_tables_are_quantiles_of_a_named_source(self):
        tables = json.loads((ROOT / "bench/lengths.json").read_text())
        self.assertEqual(set(tables), {"azure-conversations", "demo"})
        for table in tables.values():
            totals = [sum(pair) for pair in table["pairs"]]
            self.assertEqual(len(totals), 512)
            self.assertEqual(totals, sorted(totals))
            self.assertTrue(all(len(pair) == 2 and min(pair) >= 0 for pair in table["pairs"]) and table["source"])
        self.assertRegex(tables["azure-conversations"]["source"], r"b469a113.*CC-BY-4\.0")

    def test_documents_longer_than_a_sequence_are_left_out(self):
        pairs = packed_work.documents("azure-conversations", 1024, 200)
        self.assertLessEqual(max(map(sum, pairs)), 1024)
        self.assertGreater(len({sum(pair) for pair in pairs}), 50)  # of many lengths: not what cuDNN's attention takes
        self.assertEqual(packed_work.documents(packed_work.UNIFORM, 64, 3), [(1, 63)] * 3)


class Packing(unittest.TestCase):
    def test_philox_by_its_published_vectors(self):
        self.assertEqual(packed_work.philox((0, 0, 0, 0), (0, 0)), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8))
        ones = (0xFFFFFFFF,) * 4
        self.assertEqual(packed_work.philox(ones, ones[:2]), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD))

    def test_every_document_is_in_one_sequence_that_holds_it(self):
        rng = random.Random(3)
        lengths = [rng.randint(1, 64) for _ in range(500)]
        for window in (packed_work.WINDOW, 100):
            bins = packed_work.bins_of(lengths, 64, window=window)
            self.assertEqual(sorted(place for places in bins for place in places), list(range(500)))
            self.assertLessEqual(max(sum(lengths[place] for place in places) for places in bins), 64)
            self.assertLess(len(bins), 1.1 * sum(lengths) / 64 + 6)

    def test_steps_are_those_of_the_program(self):
        """Tokens and labels of each step of `sftrun train`, over a window of many documents and, with 8192 to a window, over two."""
        if not SFTRUN:
            self.skipTest("no --sftrun")
        for lengths, seq_len, sequences in (("azure-conversations", 512, 48), ("demo", 4096, 140)):
            with self.subTest(lengths), tempfile.TemporaryDirectory() as name:
                args = arguments(name, "--arch", str(ROOT / "bench/arch/llama-tiny.json"), "--lengths", lengths, "--seq-len", str(seq_len), "--sequences", str(sequences), "--accumulation", "1",
                                 "--batch-size", "2", "--steady", "0.5")
                work = compare.prepare(args)
                self.assertEqual(work["documents"] > packed_work.WINDOW, lengths == "demo")
                result = compare.measure(args, "sftrun")
                self.assertNotIn("failed", result, result)
                rows = packed_work.read_rows(name)
                expected = [sum(len(row["input_ids"]) for row in rows[i : i + 2]) for i in range(0, len(rows), 2)]
                self.assertGreaterEqual(len(result["step_tokens"]), compare.WARM_UP + 1)
                self.assertEqual(result["step_tokens"], expected[: len(result["step_tokens"])])
                self.assertTrue(all(loss == loss for loss in result["losses"]))


class Data(unittest.TestCase):
    def test_rows_are_the_records_packed(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            work = packed_work.write(folder, 100, "demo", 128, 20)
            records, rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()], packed_work.read_rows(folder)
            documents = collections.Counter(record["prompt"] + record["completion"] + " <eos>" for record in records)
            packed = collections.Counter()
            for row in rows:
                begin = 0
                self.assertLessEqual(len(row["input_ids"]), 128)
                for length in row["seq_lengths"]:
                    ids, labels = row["input_ids"][begin : begin + length], row["labels"][begin : begin + length]
                    answer = labels.count(packed_work.IGNORE_INDEX)
                    self.assertEqual(labels, [packed_work.IGNORE_INDEX] * answer + ids[answer:])
                    self.assertEqual(ids[-1], packed_work.EOS)
                    packed[" ".join("<eos>" if i == packed_work.EOS else f"w{i}" for i in ids)] += 1
                    begin += length
            self.assertEqual(packed, documents)
            self.assertEqual((work["sequences"], work["documents"]), (len(rows), len(records)))
            self.assertLess(max(i for row in rows for i in row["input_ids"]), 100)


class Sides(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.log = self.folder / "log"

    def trainer(self, name, line, steps=1000, code=0, file=None):
        program = self.folder / name
        program.write_text(TRAINER.format(python=sys.executable, steps=steps, file=str(file or self.log), line=line, code=code))
        program.chmod(0o755)
        return program

    def test_a_trainer_is_interrupted_after_its_steady_state(self):
        program = self.trainer("trainer", 'json.dumps({"step": step}) + "\\n"')
        began = time.monotonic()
        result = compare.until_steady([program], lambda: compare.lines_of(self.log), arguments(self.folder))
        self.assertLess(time.monotonic() - began, 10)
        self.assertGreater(len(result["steps"]), compare.WARM_UP)
        self.assertLess(len(result["steps"]), 1000)
        self.assertGreater(result["steady_ended"], result["steady_began"])

    def test_a_trainer_that_ends_early_says_why(self):
        for steps, code in ((2, 0), (6, 3)):
            self.log.unlink(missing_ok=True)
            program = self.trainer("trainer", 'json.dumps({"step": step}) + "\\n"', steps, code)
            with self.assertRaisesRegex(compare.Failed, f"exit code {code} after {steps} steps: words of the trainer"):
                compare.until_steady([program], lambda: compare.lines_of(self.log), arguments(self.folder, "--steady", "30"))

    def test_a_trainer_that_uses_its_data_up_counts(self):
        program = self.trainer("trainer", 'json.dumps({"step": step}) + "\\n"', steps=8)
        self.assertEqual(len(compare.until_steady([program], lambda: compare.lines_of(self.log), arguments(self.folder, "--steady", "30"))["steps"]), 8)

    def test_surogates_log(self):
        """An array that is not closed yet; the log's file is named in the settings."""
        program = self.folder / "surogate"
        program.write_text(f"""#!{sys.executable}
import json, signal, sys, time
settings = json.load(open(sys.argv[2]))
assert sys.argv[1] == "sft" and settings["recompute"] is True and settings["per_device_train_batch_size"] == 2, settings
assert json.loads(open(settings["datasets"][0]["path"]).readline())["text"].endswith("<eos>")
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
with open(settings["log_file"], "w") as log:
    log.write('[{{"log": "info", "name": "card"}}')
    for step in range(1000):
        log.write(',\\n{{"log": "step", "step": %d, "step_tokens": 100, "duration_ms": 20, "norm": 0.1, "loss": 2.5, "lr": 0.1}}' % step)
        log.flush()
        time.sleep(0.02)
""")
        program.chmod(0o755)
        packed_work.write(self.folder, 100, "demo", 128, 8)
        args = arguments(self.folder, "--peer-python", str(self.folder / "python"), "--recompute", "--seq-len", "128")
        result = compare.measure(args, "surogate")
        self.assertEqual(result["tokens_per_second_median_step"], 5000)
        self.assertEqual(result["losses"][:2], [2.5, 2.5])
        self.assertEqual(result["order"], "its own")

    def test_automodels_log(self):
        program = self.folder / "automodel"
        program.write_text(f"""#!{sys.executable}
import json, pathlib, signal, sys, time
settings = json.load(open(sys.argv[1]))
assert settings["step_scheduler"]["global_batch_size"] == 8 and settings["distributed"]["activation_checkpointing"] is False, settings
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
folder = pathlib.Path(settings["checkpoint"]["checkpoint_dir"])
folder.mkdir()
for step in range(1000):
    with (folder / "training.jsonl").open("a") as log:
        log.write(json.dumps({{"step": step, "loss": 4.0, "tps": 64.0}}) + "\\n")
    time.sleep(0.02)
""")
        program.chmod(0o755)
        args = arguments(self.folder, "--peer-python", str(self.folder / "python"), "--lengths", "uniform", "--seq-len", "16")
        result = compare.measure(args, "automodel")
        self.assertEqual((result["step_tokens"][0], result["tokens_per_second_median_step"]), (128, 64.0), result)
        self.assertIn("full sequences only", compare.measure(arguments(self.folder), "automodel")["failed"])

    def test_what_is_not_installed_is_a_result(self):
        args = arguments(self.folder, "--peer-python", str(self.folder / "python"))
        os.environ["PATH"], kept = str(self.folder), os.environ["PATH"]
        try:
            self.assertIn("no program `surogate`", compare.measure(args, "surogate")["failed"])
        finally:
            os.environ["PATH"] = kept
        (self.folder / "python").write_text("#!/bin/sh\necho 'No module named unsloth' >&2\nexit 1\n")
        (self.folder / "python").chmod(0o755)
        self.assertEqual(compare.measure(args, "unsloth")["failed"], "exit code 1: No module named unsloth\n")


class Conclusions(unittest.TestCase):
    @staticmethod
    def run_of(speed, losses=(2.0, 1.0), tokens=(8, 8)):
        return {"tokens_per_second": speed, "losses": list(losses), "step_tokens": list(tokens)}

    def test_ratios_are_of_medians_and_losses_by_step(self):
        runs = {"sftrun": [self.run_of(30), self.run_of(10), self.run_of(20)], "trl-liger": [self.run_of(10, (2.0, 1.001, 5.0), (8, 8, 8))], "unsloth": [{"failed": "a\nlast words"}],
                "surogate": [{"failed": "once"}, self.run_of(40)]}
        result = compare.conclusions(runs, "fp32")
        self.assertEqual(result["above_1_is_in_favour_of_sftrun"], {"trl-liger": 2.0, "surogate": 0.5})
        self.assertEqual(result["failed"], {"unsloth": "last words"})
        losses = result["losses"]["trl-liger"]
        self.assertTrue(losses["ok"] and losses["steps"] == 2)
        self.assertAlmostEqual(losses["loss_relative"], 1 - 1 / 1.001)
        self.assertNotIn("surogate", result["losses"])  # other tokens in a step

    def test_other_losses_or_tokens_are_not_ok(self):
        ours = self.run_of(1)
        self.assertFalse(compare.compared_losses(ours, self.run_of(1, (2.0, 1.1)), "bf16")["ok"])
        self.assertIn("other tokens", compare.compared_losses(ours, self.run_of(1, tokens=(8, 9)), "bf16")["error"])
        self.assertFalse(compare.compared_losses(ours, self.run_of(1, (None, None)), "bf16")["ok"])

    def test_steps_shorter_than_the_watch_can_see_are_timed_by_the_run(self):
        steps = [{"tokens": 10, "seconds": 0.5}] * (compare.WARM_UP + 2)
        self.assertEqual(compare.summary({"steps": steps, "steady_began": 7, "steady_ended": 7})["tokens_per_second"], 20)

    def test_clocks_are_of_the_steady_state(self):
        watch = compare.CardWatch()
        watch.fields = [*watch.FIELDS, watch.REASONS]
        watch.samples = [(at, dict(zip(watch.fields, (clock, 2600, power, 50, 90, memory, 4)))) for at, clock, power, memory in ((0, 300, 70, 10), (5, 1900, 600, 90), (6, 1700, 700, 80), (9, 400, 100, 95))]
        result = watch.summary(4, 7)
        self.assertEqual((result["sm_mhz"], result["power_w"]), ([1700, 1800, 1900], [600, 650, 700]))
        self.assertEqual((result["card_memory_mib"], result["card_memory_mib_before"], result["clock_reasons"]), (95, 10, ["0x4"]))
        self.assertEqual(watch.summary(20, 30), {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--sftrun")
    known, rest = parser.parse_known_args()
    SFTRUN = str(pathlib.Path(known.sftrun).resolve()) if known.sftrun else None
    unittest.main(argv=[sys.argv[0], *rest])
