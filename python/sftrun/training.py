"""Training: a run that this process has started."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from types import TracebackType

from sftrun.metrics_tail import MetricsTail
from sftrun.process import Process
from sftrun.run import Run
from sftrun.words import Config, ConfigFile, Flag, Overrides, Record, flag_words

STOPPED = (75, 130)  # exit codes after SIGTERM and SIGINT


def train(config: Config, overrides: Overrides | None = None, *, on_step: Callable[[Record], object] | None = None, quiet: bool = False, **flags: Flag) -> Run:
    """Trains, and waits for the end: `sftrun train`. The same call resumes a run that was stopped.

    config      a YAML file, or a mapping with the same keys
    overrides   keys with other values: {"train.learning_rate": 1e-4, "output.dir": "runs/first"}
    on_step     is called with each record of metrics.jsonl as the run writes it: those of steps, and of evaluations (with "eval_loss"). If it raises an exception,
                the run is stopped, which saves a checkpoint, and the exception goes on
    quiet       shows only warnings
    flags       those of `sftrun train`: nproc_per_node=2, device="cpu", overwrite=True

    KeyboardInterrupt stops the run as Ctrl-C does at a terminal: it saves a checkpoint. A second one ends it at once.
    @throws SftrunError if the run fails
    """
    return start(config, overrides, quiet=quiet, **flags).wait(on_step)


def start(config: Config, overrides: Overrides | None = None, *, quiet: bool = False, **flags: Flag) -> Training:
    """Starts to train, as `train` does, and does not wait. The run stops, with a checkpoint, when this process ends."""
    if "dry_run" in flags:
        raise TypeError("a dry run has no Run: use sftrun.dry_run")
    return Training(ConfigFile(config), overrides, flags | {"quiet": quiet})


class Training:
    """A run that was started. `for record in training:` has each record of metrics.jsonl as the run writes it, until the run ends;
    then SftrunError if it failed. As a context manager it waits for the end; an exception in the block stops the run.
    """

    def __init__(self, config: ConfigFile, overrides: Overrides | None, flags: dict[str, Flag]) -> None:
        self._config = config  # a temporary file as long as the run
        self._is_stopped = False
        # The program warns when it trains.
        shown = Process(["config", "show", "--json", *config.words(overrides)], is_shown=False).result()
        self.run = Run(json.loads(shown)["output"]["dir"])
        self._tail = MetricsTail(self.run.directory / "metrics.jsonl")
        self._process = Process(["train", *flag_words(flags), *config.words(overrides)])

    @property
    def pid(self) -> int:
        """Of the launcher, which passes signals on."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    def __iter__(self) -> Iterator[Record]:
        for _ in self._process.polls():
            yield from self._tail.read()
        self._result()

    def wait(self, on_step: Callable[[Record], object] | None = None) -> Run:
        """Waits for the end. `on_step`, exceptions and errors as for `train`."""
        with self._process.stopping_on_exceptions():
            for record in self:
                if on_step:
                    on_step(record)
        return self._result()

    def stop(self) -> Run:
        """Stops the run, which writes a checkpoint first, and waits for its end."""
        self._is_stopped = True
        self._process.stop(signal.SIGTERM)
        return self._result()

    def _result(self) -> Run:
        code = self._process.exit_code
        if code == 0 or (self._is_stopped and code in STOPPED):
            return self.run
        raise self._process.error()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.wait()
        else:
            self._process.stop(signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)

    def __repr__(self) -> str:
        return f"Training({'running' if self.is_running else 'ended'}, {self.run!r})"
