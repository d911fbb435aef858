"""Commands that answer with JSON. Keyword arguments are the command's flags, as `sftrun COMMAND --help` lists them: max_new_tokens=8 is --max-new-tokens 8."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, overload

from sftrun.errors import Problem
from sftrun.process import Process
from sftrun.words import Config, ConfigFile, Flag, Overrides, Path, Record, flag_words


def call(*words: str, **flags: Flag) -> Any:
    """The JSON of any command that has the flag --json: call("gpu-info"), call("merge", adapter=run, output="mine").

    @throws SftrunError if the command fails
    """
    return json.loads(Process([*words, "--json", "--quiet", *flag_words(flags)]).result())


def _of_config(command: str, config: Config, overrides: Overrides | None, flags: Mapping[str, Flag]) -> Any:
    file = ConfigFile(config)
    return call(*command.split(), *file.words(overrides), **flags)


def config_show(config: Config, overrides: Overrides | None = None, **flags: Flag) -> Record:
    """The complete configuration, with defaults and automatic values."""
    return dict(_of_config("config show", config, overrides, flags))


def config_check(config: Config, overrides: Overrides | None = None, **flags: Flag) -> list[Problem]:
    """The problems of a configuration; an empty list if it is valid."""
    file = ConfigFile(config)
    process = Process(["config", "check", "--json", "--quiet", *flag_words(flags), *file.words(overrides)])
    process.wait()
    if not process.stdout:
        raise process.error()
    return [Problem(problem["message"], problem["at"], problem["fix"]) for problem in json.loads(process.stdout).get("problems", [])]


def dry_run(config: Config, overrides: Overrides | None = None, **flags: Flag) -> str:
    """Checks settings, model and first records, and starts nothing. @return the resolved run, as text    @throws SftrunError for the first problem"""
    file = ConfigFile(config)
    return Process(["train", "--dry-run", "--quiet", *flag_words(flags), *file.words(overrides)]).result()


def preview(config: Config, overrides: Overrides | None = None, **flags: Flag) -> Record:
    """The first examples as the model will see them: tokens, labels (-100: not trained on), and why. `num_examples=1`, `val=True`."""
    return dict(_of_config("preview", config, overrides, flags))


def memory_check(config: Config | None = None, overrides: Overrides | None = None, **flags: Flag) -> Record:
    """The memory that a run needs ("peak_bytes") and whether it "fits"; without a configuration the memory in use. `gpus="2x RTX4090"` plans for other GPUs."""
    return dict(call("memory-check", **flags) if config is None else _of_config("memory-check", config, overrides, flags))


def evaluate(config: Config, overrides: Overrides | None = None, **flags: Flag) -> Record:
    """The loss and other measures of a run's result on its validation data: `sftrun eval`. `base=True` compares with the base model."""
    return dict(_of_config("eval", config, overrides, flags))


def report(*runs: Path, **flags: Flag) -> Record:
    """Writes one HTML page about runs. @return its path ("output") and what it found"""
    return dict(call("report", *map(str, map(_path, runs)), **flags))


@overload
def generate(prompt: str, **flags: Flag) -> Record: ...  # type: ignore[overload-overlap]  # a str is iterable, too


@overload
def generate(prompt: Iterable[str | Mapping[str, Any]], **flags: Flag) -> list[Record]: ...


def generate(prompt: str | Iterable[str | Mapping[str, Any]], **flags: Flag) -> Record | list[Record]:
    """Answers to prompts: adapter=run (or model="…"), max_new_tokens=64, temperature=0.8.

    prompt      a text, or several texts and records with "prompt", "messages" or "text"
    @return for a text one record with "generated", for several a record for each answer, also with num_answers=4
    """
    if isinstance(prompt, str):
        if flags.get("num_answers", 1) != 1:
            raise TypeError("several answers are a list: give the prompt as a list, [prompt]")
        return dict(call("generate", prompt=prompt, **flags))
    return _records("generate", [{"prompt": one} if isinstance(one, str) else one for one in prompt], flags)


def score(records: Iterable[Mapping[str, Any]], **flags: Flag) -> list[Record]:
    """The records with "logprob", the log-probability of their labelled tokens, and "tokens", their number: adapter=run (or model="…")."""
    return _records("score", records, flags)


def _records(command: str, records: Iterable[Mapping[str, Any]], flags: Mapping[str, Flag]) -> list[Record]:
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    process = Process([command, "--input", "-", "--output", "-", "--quiet", *flag_words(flags)], stdin=lines.encode())
    return [json.loads(line) for line in process.result().split("\n") if line]  # splitlines() would divide at other characters, too


def _path(path: Path) -> str:
    return path if isinstance(path, str) else path.__fspath__()
