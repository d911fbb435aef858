"""A run, as its directory describes it (docs/run-directory.md)."""

from __future__ import annotations

import html
import json
import os
import pathlib

from sftrun.process import Process
from sftrun.words import Path, Record


def is_evaluation(record: Record) -> bool:
    return "eval_loss" in record or "eval_seconds" in record


class Run:
    """What a run directory has; the files are read at each access, also while the run trains. Functions that take an adapter take a Run, too."""

    def __init__(self, directory: Path) -> None:
        self.directory = pathlib.Path(directory).absolute()

    @classmethod
    def open(cls, directory: Path) -> Run:
        """@throws FileNotFoundError if it is no run directory"""
        run = cls(directory)
        if not (run.directory / "run.json").is_file():
            raise FileNotFoundError(f"no run directory, as it has no run.json: {run.directory}")
        return run

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def summary(self) -> Record:
        """run.json: versions, fingerprints, devices, memory, the last and the best evaluation. Empty before the run has begun."""
        file = self.directory / "run.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}

    @property
    def status(self) -> str | None:
        """running, done, stopped, interrupted or failed; None before the run has begun"""
        return self.summary.get("status")

    @property
    def records(self) -> list[Record]:
        """All lines of metrics.jsonl, in order."""
        file = self.directory / "metrics.jsonl"
        if not file.is_file():
            return []
        return [json.loads(line) for line in file.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]

    @property
    def metrics(self) -> list[Record]:
        """A record for each optimizer step: step, epoch, loss, grad_norm, learning_rate, … `pandas.DataFrame(run.metrics)` is a table of them."""
        return [record for record in self.records if not is_evaluation(record)]

    @property
    def evaluations(self) -> list[Record]:
        """A record for each evaluation: step, eval_loss, eval_perplexity, …"""
        return [record for record in self.records if is_evaluation(record)]

    @property
    def config(self) -> Record:
        """The settings of the run with every default and automatic value, as the program reads them from config.resolved.yaml."""
        file = os.fspath(self.directory / "config.resolved.yaml")
        return dict(json.loads(Process(["config", "show", "--json", "--config", file], has_settings=False, is_shown=False).result()))

    @property
    def adapter(self) -> pathlib.Path | None:
        """The folder of the trained adapter; None if the run has not written one."""
        return self._folder("adapter")

    @property
    def model(self) -> pathlib.Path | None:
        """The folder of the trained model, after full and partial training."""
        return self._folder("model")

    def _folder(self, name: str) -> pathlib.Path | None:
        return self.directory / name if (self.directory / name).is_dir() else None

    def _lines(self) -> list[tuple[str, str]]:
        lines = [("directory", os.fspath(self)), ("status", self.status or "not begun")]
        for name, records in (("loss", self.metrics), ("eval_loss", self.evaluations)):
            values = [(record["step"], record[name]) for record in records if record.get(name) is not None]
            if values:
                lines.append((name, f"{values[0][1]:.4f} at step {values[0][0]}, {values[-1][1]:.4f} at step {values[-1][0]}"))
        return lines

    def __repr__(self) -> str:
        return f"Run({', '.join(f'{name}: {value}' for name, value in self._lines())})"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{html.escape(value)}</td></tr>" for name, value in self._lines())
        return f"<table>{rows}</table>"
