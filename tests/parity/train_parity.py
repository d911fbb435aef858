"""Training parity: `sftrun train` against what transformers + peft gave (tests/data/train/), and against itself.

    python tests/parity/train_parity.py --sftrun build/bin/sftrun [--only variants processes resume]

variants   every tests/data/train/<variant>: per-step loss to 1e-5 relative and gradient norm to 1e-4 of expected.json; the
           exported adapter, loaded by real PEFT (or the model, by transformers), gives the reference's logits
processes  1, 2, 4 processes x accumulation 1, 2, 4 at one global batch, dropout on, with and without packing
resume     stopped by SIGTERM, and resumed from an older checkpoint after a crash: equal bit for bit to never stopped

--quick leaves out two variants, runs of four processes and most ways to accumulate, SIGTERM with one process and the crash.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import (
    REPOSITORY,
    Sftrun,
    Verdicts,
    compare_metrics,
    load_adapter,
    relative_to_largest,
    training_metrics,
)

DATA = REPOSITORY / "tests" / "data" / "train"
LOSS, GRAD_NORM, LOGITS = 1e-5, 1e-4, 1e-4  # the reference moves by 3e-7 when its micro-batch size changes
DROPOUT_RUN = DATA / "lora_all_linear" / "run.yaml"
EXIT_STOPPED = 75
STOPPABLE_STEPS, QUICK_STOPPABLE_STEPS = 300, 150  # of some milliseconds each: enough for a signal to arrive on the way
# With --quick, of tests/data/train: rank-stabilised LoRA is in lora_variants_parity.py, models with a head of their own in families_parity.py.
NOT_QUICK = ("lora_rslora", "full_untied")
QUICK_SHARES = {False: [(1, 1), (1, 4), (2, 2)], True: [(1, 1), (2, 2)]}  # by packing: processes, accumulation
BIT_EQUAL_KEYS = ["step", "loss", "grad_norm", "learning_rate", "label_tokens", "tokens"]


# ---- Against the reference


def load_trained(variant: Path, output: Path):
    """The model that sftrun wrote, loaded by the libraries that its users load it with."""
    import torch
    from transformers import AutoModelForCausalLM

    if (output / "model").exists():
        return AutoModelForCausalLM.from_pretrained(output / "model", dtype=torch.float32)
    config = json.loads((variant / "init_adapter" / "adapter_config.json").read_text())
    base = variant / "init_adapter" / config["base_model_name_or_path"]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return load_adapter(model, output / "adapter")


def check_variant(sftrun: Sftrun, variant: Path, scratch: Path, verdicts: Verdicts) -> None:
    from reference_training import logits_of
    from safetensors.torch import load_file

    name = variant.name
    expected = json.loads((variant / "expected.json").read_text())
    tensors = load_file(variant / "expected.safetensors")
    output = scratch / name
    metrics = sftrun.train(variant / "run.yaml", output)
    compare_metrics(verdicts, name, metrics, expected["metrics"], LOSS, GRAD_NORM)

    model = load_trained(variant, output)
    logits = logits_of(model, expected["probe"]["input_ids"])
    distance = relative_to_largest(logits, tensors["probe_logits"])
    verdicts.below(f"{name}: logits of what it wrote, loaded by PEFT/transformers", distance, LOGITS)
    moved = relative_to_largest(tensors["initial_probe_logits"], tensors["probe_logits"])
    verdicts.expect(f"{name}: training moves the logits beyond the limit", moved > 100 * LOGITS, f"{moved:.1e}")
    if (output / "adapter").exists():
        check_adapter_tensors(name, load_file(output / "adapter" / "adapter_model.safetensors"), tensors, verdicts)


def check_adapter_tensors(name: str, written: dict, expected: dict, verdicts: Verdicts) -> None:
    prefix = "final."
    names = {key[len(prefix) :] for key in expected if key.startswith(prefix)}
    verdicts.expect(f"{name}: tensor names of the adapter", set(written) == names)
    worst = max(relative_to_largest(written[key], expected[prefix + key]) for key in names & set(written))
    # Adam divides by the gradient's own size: where that is near zero, rounding moves a weight visibly.
    verdicts.below(f"{name}: tensors of the adapter", worst, 1e-3)


def check_variants(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    assert all((DATA / name).is_dir() for name in NOT_QUICK), NOT_QUICK
    for expected in sorted(DATA.glob("*/expected.json")):
        if not (quick and expected.parent.name in NOT_QUICK):
            check_variant(sftrun, expected.parent, scratch, verdicts)


# ---- Against itself: processes and accumulation


def write_records(path: Path, count: int) -> Path:
    rng = random.Random(3)
    words = "amber birch cobalt delta ember fjord glade heron inlet jetty knoll larch".split()
    texts = [" ".join(rng.choices(words, k=rng.randrange(1, 9))) for _ in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def dropout_settings(records: Path, packing: bool, max_steps: int) -> dict:
    return {
        "data__train": records,
        "data__packing": packing,
        "data__shuffle": True,
        "tuning__lora__dropout": 0.1,
        "train__max_steps": max_steps,
    }


def check_processes(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    global_batch = 16
    records = write_records(scratch / "records.jsonl", 150)
    without_dropout = {"tuning__lora__dropout": 0.0}
    for packing in (False, True):
        settings = dropout_settings(records, packing, max_steps=12)
        first = None
        shares = QUICK_SHARES[packing] if quick else [(processes, accumulation) for processes in (1, 2, 4) for accumulation in (1, 2, 4)]
        for processes, accumulation in shares:
            name = f"packing {'on' if packing else 'off'}, {processes} x {accumulation}"
            share = {
                "train__batch_size": global_batch // (processes * accumulation),
                "train__grad_accum": accumulation,
            }
            output = scratch / name.replace(" ", "-")
            metrics = sftrun.train(DROPOUT_RUN, output, processes, **settings, **share)
            ranks = {len(line["loss_per_rank"]) for line in metrics}
            verdicts.expect(f"{name}: ranks", ranks == {processes}, str(ranks))
            if first:
                compare_metrics(verdicts, name, metrics, first, LOSS, GRAD_NORM)
                continue
            first = metrics
            if quick and packing:
                continue
            plain = sftrun.train(DROPOUT_RUN, scratch / "plain", 1, **{**settings, **share, **without_dropout})
            acts = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(first, plain))
            verdicts.expect(f"{name}: dropout acts", acts > 1e-3, f"{acts:.1e}")
            shutil.rmtree(scratch / "plain")


# ---- Against itself: stop and resume


def bit_equal(ours: list[dict], theirs: list[dict]) -> bool:
    return [[line[key] for key in BIT_EQUAL_KEYS] for line in ours] == [
        [line[key] for key in BIT_EQUAL_KEYS] for line in theirs
    ]


def check_same_run(name: str, resumed: Path, uninterrupted: Path, verdicts: Verdicts) -> None:
    ours, theirs = training_metrics(resumed), training_metrics(uninterrupted)
    verdicts.expect(f"{name}: losses and gradient norms, bit for bit", bit_equal(ours, theirs), f"{len(ours)} steps")
    adapters = [run / "adapter" / "adapter_model.safetensors" for run in (resumed, uninterrupted)]
    verdicts.expect(f"{name}: adapter, byte for byte", adapters[0].read_bytes() == adapters[1].read_bytes())


def lines_of(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()


def check_resume_after_crash(sftrun: Sftrun, scratch: Path, settings: dict, verdicts: Verdicts) -> None:
    """A copy of a run as a crash after step 8 leaves it: checkpoint of step 5, metrics beyond it, no adapter."""
    whole, crashed = scratch / "whole", scratch / "crashed"
    settings = {**settings, "train__save_steps": 5}
    sftrun.train(DROPOUT_RUN, whole, 1, **settings)
    shutil.copytree(whole, crashed)
    shutil.rmtree(crashed / "adapter")
    for checkpoint in (crashed / "checkpoints").iterdir():
        if checkpoint.name != "step-000005":
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    kept = lines_of(crashed)[:8]
    (crashed / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    sftrun.train(DROPOUT_RUN, crashed, 1, **settings)
    resumed = lines_of(crashed)
    verdicts.expect("resume after crash: steps 1 to 5 are not trained again", resumed[:5] == kept[:5])
    verdicts.expect("resume after crash: steps 6 to 8 are", all(a != b for a, b in zip(resumed[5:8], kept[5:])))
    check_same_run("resume after crash", crashed, whole, verdicts)


def stop_when_it_has_steps(command: list[str], run: Path, steps: int) -> int:
    """Sends SIGTERM to the launcher when metrics.jsonl has that many lines. @return exit code"""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        if (run / "metrics.jsonl").exists() and len(lines_of(run)) >= steps:
            process.send_signal(signal.SIGTERM)
            break
        time.sleep(0.005)
    try:
        return process.wait(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise RuntimeError(f"still running 120 s after SIGTERM: {' '.join(command)}") from None


def check_resume_after_sigterm(
    sftrun: Sftrun, scratch: Path, settings: dict, processes: int, steps: int, verdicts: Verdicts
) -> None:
    name = f"SIGTERM with {processes} process(es)"
    settings = {**settings, "train__max_steps": steps, "train__batch_size": 4 // processes, "train__grad_accum": 1}
    whole, stopped = scratch / f"never-stopped-{processes}", scratch / f"stopped-{processes}"
    sftrun.train(DROPOUT_RUN, whole, processes, **settings)
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    code = stop_when_it_has_steps(sftrun.train_command(DROPOUT_RUN, stopped, processes, dotted), stopped, 20)
    done = len(lines_of(stopped))
    verdicts.expect(f"{name}: exit code", code == EXIT_STOPPED, f"{code} after step {done}")
    verdicts.expect(f"{name}: stopped on the way", 20 <= done < steps, f"step {done}")
    before = lines_of(stopped)
    sftrun.train(DROPOUT_RUN, stopped, processes, **settings)
    verdicts.expect(f"{name}: goes on where it was", lines_of(stopped)[:done] == before)
    check_same_run(name, stopped, whole, verdicts)


def check_resume(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    settings = dropout_settings(write_records(scratch / "resume.jsonl", 60), packing=True, max_steps=12)
    if quick:
        return check_resume_after_sigterm(sftrun, scratch, settings, 2, QUICK_STOPPABLE_STEPS, verdicts)
    check_resume_after_crash(sftrun, scratch, settings, verdicts)
    for processes in (1, 2):
        check_resume_after_sigterm(sftrun, scratch, settings, processes, STOPPABLE_STEPS, verdicts)


PARTS = {"variants": check_variants, "processes": check_processes, "resume": check_resume}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a part of each, as in `make test`: see above")
    parser.add_argument("--keep", help="a new directory to write the runs to, instead of a temporary one")
    args = parser.parse_args()
    if args.keep and Path(args.keep).exists():
        parser.error(f"--keep {args.keep}: exists, and runs in it would be resumed: give another")
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(args.keep or temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for part in args.only:
            try:
                PARTS[part](Sftrun(args.sftrun), scratch, verdicts, args.quick)
            except RuntimeError as error:
                verdicts.expect(part, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
