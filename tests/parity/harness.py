"""What the parity scripts share: running sftrun, reading what it wrote, collecting verdicts."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts" / "fixtures"))
from differences import largest_relative_difference as difference  # noqa: E402

TIMEOUT_SECONDS = 1800


@dataclass
class Verdicts:
    """Prints one line per check; remembers the failures."""

    failures: list[str] = field(default_factory=list)
    count: int = 0

    def below(self, what: str, value: float, limit: float) -> None:
        self.expect(what, value <= limit, f"{value:.2e} (limit {limit:.0e})")  # NaN fails

    def expect(self, what: str, holds: bool, detail: str = "") -> None:
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{': ' + detail if detail else ''}", flush=True)
        if not holds:
            self.failures.append(what)

    def exit_code(self) -> int:
        print(f"\n{self.count - len(self.failures)} of {self.count} checks hold")
        for failure in self.failures:
            print(f"  failed: {failure}")
        return 1 if self.failures or not self.count else 0


@dataclass
class Measured(Verdicts):
    """Remembers the values, too."""

    values: dict[str, float] = field(default_factory=dict)

    def below(self, what: str, value: float, limit: float) -> None:
        self.values[what] = value
        super().below(what, value, limit)


def check_in_copies(names: list[str], check: Callable[[str], Measured], verdicts: Measured) -> None:
    """As many at a time as there are processors, by copies of this process: what it imported is most of a start."""
    workers = min(len(os.sched_getaffinity(0)), len(names))
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for measured in pool.imap(check, names, chunksize=1):
            verdicts.count += measured.count
            verdicts.failures += measured.failures
            verdicts.values |= measured.values


@dataclass(frozen=True)
class Sftrun:
    path: str

    def run(self, *arguments: str) -> str:
        """@return what it printed. Raises with its errors when it fails."""
        command = [self.path, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        if result.returncode != 0:
            tail = (result.stdout + result.stderr)[-3000:]
            raise RuntimeError(f"{' '.join(command)}\nexited with {result.returncode}:\n{tail}")
        return result.stdout

    def train_command(self, config: Path, output: Path, processes: int, overrides: dict) -> list[str]:
        settings = [f"{key}={as_yaml(value)}" for key, value in {"output.dir": output, **overrides}.items()]
        launch = ["--device", "cpu", "--nproc-per-node", str(processes)]
        return [self.path, "train", "--config", str(config), *launch, *settings]

    def train(self, config: Path, output: Path, processes: int = 1, **overrides) -> list[dict]:
        """Overrides are written with two underscores a level: train__max_steps=3. @return metrics by step."""
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        self.run(*self.train_command(config, output, processes, dotted)[1:])
        return training_metrics(output)

    def jsonl(self, command: str, records: list[dict], directory: Path, *arguments: str) -> list[dict]:
        """`sftrun <command> --input … --output …`; @return the output's records."""
        source, target = directory / f"{command}-in.jsonl", directory / f"{command}-out.jsonl"
        source.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
        target.unlink(missing_ok=True)  # not overwritten unasked
        self.run(command, *arguments, "--input", str(source), "--output", str(target))
        return [json.loads(line) for line in target.read_text().splitlines()]


class Served:
    """`sftrun serve` of a model. Enters with its URL"""

    def __init__(self, sftrun: Sftrun, model: Path, *arguments: str):
        self.command = [sftrun.path, "serve", "--model", model, "--device", "cpu", "--dtype", "fp32", "--port", "0", *arguments]

    def __enter__(self) -> str:
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stderr=self.log, stdout=subprocess.DEVNULL)
        while self.process.poll() is None:
            self.log.seek(0)
            if found := re.search(r"at (http://\S+/v1) ", self.log.read()):
                return found[1]
            time.sleep(0.05)
        self.log.seek(0)
        raise RuntimeError(f"sftrun serve does not start:\n{self.log.read()}")

    def __exit__(self, *_) -> None:
        self.process.terminate()
        self.process.wait(60)


@dataclass(frozen=True)
class ModelCase:
    """A model in `directory`, and what checks of it need."""

    name: str
    sftrun: Sftrun
    verdicts: Measured
    directory: Path

    @property
    def base(self) -> Path:
        return self.directory / "base"

    def below(self, what: str, value: float, limit: float) -> None:
        self.verdicts.below(f"{self.name}, {what}", value, limit)

    def expect(self, what: str, holds: bool, detail: str = "") -> None:
        self.verdicts.expect(f"{self.name}, {what}", holds, detail)


def as_yaml(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def train_section(recipe) -> dict:
    """`train` of a run's YAML, of a reference_training.Recipe; without batch sizes."""
    return {
        "max_steps": recipe.max_steps,
        "learning_rate": recipe.learning_rate,
        "scheduler": recipe.scheduler,
        "warmup_steps": recipe.warmup_steps,
        "weight_decay": recipe.weight_decay,
        "max_grad_norm": recipe.max_grad_norm,
        "eval_strategy": "no",
        "save_every": "0",
    }


def training_metrics(run_directory: Path) -> list[dict]:
    """The training lines of metrics.jsonl. Every optimizer step is there once, in order."""
    lines = [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
    metrics = [line for line in lines if "loss" in line]
    steps = [line["step"] for line in metrics]
    if steps != list(range(1, len(steps) + 1)):
        raise RuntimeError(f"{run_directory}/metrics.jsonl has steps {steps}")
    return metrics


def compare_metrics(
    verdicts: Verdicts, name: str, ours: list[dict], reference: list[dict], loss: float, grad_norm: float
) -> None:
    verdicts.expect(f"{name}: steps", len(ours) == len(reference), f"{len(ours)}")
    if len(ours) != len(reference):
        return
    verdicts.below(f"{name}: loss", difference(ours, reference, "loss"), loss)
    balanced = ["aux_loss" in line for line in ours]
    verdicts.expect(f"{name}: lines with aux_loss", balanced == ["aux_loss" in line for line in reference], str(sum(balanced)))
    if all(balanced):
        verdicts.below(f"{name}: aux_loss", difference(ours, reference, "aux_loss"), loss)
    verdicts.below(f"{name}: grad_norm", difference(ours, reference, "grad_norm"), grad_norm)
    rates = [(a["learning_rate"], b["learning_rate"]) for a, b in zip(ours, reference)]
    highest = max(theirs for _, theirs in rates)
    verdicts.below(f"{name}: learning_rate", max(abs(a - b) for a, b in rates) / highest, 1e-7)
    for key in ("label_tokens", "tokens"):
        same = [line[key] for line in ours] == [line[key] for line in reference]
        verdicts.expect(f"{name}: {key}", same)


def load_adapter(model, directory: Path):
    """With PEFT, which only warns of tensors that are missing or that it does not expect: here they are errors."""
    from peft import PeftModel

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peft_model = PeftModel.from_pretrained(model, directory)
    for warning in caught:
        text = str(warning.message)
        if "missing" in text.lower() or "unexpected" in text.lower():
            raise RuntimeError(f"PEFT on {directory}: {text}")
    return peft_model


def relative_to_largest(ours, reference) -> float:
    """Largest difference of two tensors over the largest magnitude of the reference."""
    if ours.shape != reference.shape:
        raise RuntimeError(f"shapes differ: {tuple(ours.shape)} and {tuple(reference.shape)}")
    return ((ours - reference).abs().max() / reference.abs().max()).item()
