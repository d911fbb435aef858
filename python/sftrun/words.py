"""Arguments of Python as words of a command line. The program judges them: this module knows no flag and no key."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Union

Path = Union[str, "os.PathLike[str]"]
Config = Union[Path, Mapping[str, Any]]
Overrides = Mapping[str, Any]
Record = dict[str, Any]
Flag = Union[str, int, float, "os.PathLike[str]", None, Sequence[Union[str, int, float, "os.PathLike[str]"]]]


class ConfigFile:
    """A configuration as a file. A mapping is written as JSON, which is YAML, into a temporary folder that lives as long as this object.

    Relative paths in a mapping are relative to the current directory, as the program looks there first. The default of output.dir is then runs/run.
    """

    def __init__(self, config: Config) -> None:
        if not isinstance(config, Mapping):
            self.path = os.fspath(config)
            return
        folder = tempfile.mkdtemp(prefix="sftrun-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.path = os.path.join(folder, "run.yaml")
        pathlib.Path(self.path).write_text(_json(config, indent=2), encoding="utf-8")

    def words(self, overrides: Overrides | None) -> list[str]:
        return ["--config", self.path, *(f"{key}={_json(value)}" for key, value in (overrides or {}).items())]


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, default=os.fspath)


def flag_words(flags: Mapping[str, Flag]) -> list[str]:
    """`max_new_tokens=8` is `--max-new-tokens 8`; True is the flag alone; None and False are no flag; a list repeats the flag."""
    words: list[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
            for one in values:
                text = str(one) if isinstance(one, (str, int, float)) else os.fspath(one)
                # With = a value may begin with a dash; after `--prompt=` alone the program takes the next word.
                words += [f"{flag}={text}"] if text else [flag, ""]
    return words
