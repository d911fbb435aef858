"""sftrun on the demo model (SmolLM2-135M-Instruct) beside what the reference computed (tests/data/demo_model.json), in fp32.

    python tests/parity/demo_model_recorded.py --sftrun build/bin/sftrun

A part of `make test`. demo_model_parity.py makes the record (--write), runs the reference beside sftrun, and loads the adapters with PEFT.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from demo_run import GREEDY, IN_FP32, LOG_PROBABILITY, RECORD, RECORDED_STEPS, gguf_path, initial_adapter, largest_score_difference, write_run
from demo_texts import GENERATED, SCORED
from harness import Sftrun, Verdicts, compare_metrics

# The reference's own losses in fp32 are up to 8e-6 from those in fp64, and differ between processors.
LOSS, GRAD_NORM = {"bnb": 2e-5, "fused": 1e-5}, 1e-4
TRAINED_LOG_PROBABILITY = 1e-4  # with an adapter that was trained here, beside the reference's own


def check_score(sftrun: Sftrun, scratch: Path, record: dict, verdicts: Verdicts) -> None:
    scores = sftrun.jsonl("score", SCORED, scratch, "--model", str(gguf_path()), *IN_FP32)
    counts = [score["tokens"] for score in scores]
    verdicts.expect("score: labelled tokens", counts == [one["tokens"] for one in record["score"]], str(counts))
    worst = largest_score_difference(scores, [one["logprob"] for one in record["score"]])
    verdicts.below("score: log-probability", worst, LOG_PROBABILITY)


def check_generate(sftrun: Sftrun, scratch: Path, record: dict, verdicts: Verdicts) -> None:
    answers = sftrun.jsonl("generate", GENERATED, scratch, "--model", str(gguf_path()), *GREEDY)
    for answer, expected in zip(answers, record["generate"], strict=True):
        verdicts.expect(f"generate: {expected[:40]!r}", answer["generated"] == expected, repr(answer["generated"]))


def check_train(sftrun: Sftrun, scratch: Path, record: dict, verdicts: Verdicts) -> None:
    config = write_run(scratch, initial_adapter(scratch), RECORDED_STEPS)
    for backend, expected in record["train"].items():
        run = scratch / f"run-{backend}"
        metrics = sftrun.train(config, run, tuning__backend=backend)
        compare_metrics(verdicts, f"train, {backend}", metrics, expected["metrics"], LOSS[backend], GRAD_NORM)
        form = json.loads((run / "run.json").read_text())["base"]["form"]
        verdicts.expect(f"train, {backend}: the file's blocks are kept", form == "Q4_1", form)
        scores = sftrun.jsonl("score", SCORED, scratch, "--model", str(gguf_path()), "--adapter", str(run / "adapter"), *IN_FP32)
        worst = largest_score_difference(scores, expected["logprobs"])
        verdicts.below(f"score of the trained adapter, {backend}: log-probability", worst, TRAINED_LOG_PROBABILITY)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    sftrun, verdicts = Sftrun(parser.parse_args().sftrun), Verdicts()
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    for check in (check_score, check_generate, check_train):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(sftrun, Path(scratch), record, verdicts)
            except RuntimeError as error:
                verdicts.expect(check.__name__, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
