"""The records of metrics.jsonl that a running program adds."""

from __future__ import annotations

import json
import os
import pathlib
from typing import BinaryIO

from sftrun.words import Record


class MetricsTail:
    """New lines of a file. The program replaces the file where a resumed or restarted run drops the lines after its checkpoint: lines that were read before, or were
    there at the start, are then passed over."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._known: set[int] = set()  # hashes of lines
        self.read()

    def __del__(self) -> None:
        if self._file:
            self._file.close()

    def read(self) -> list[Record]:
        """The records that were added since the last call."""
        new = self._read_on()
        if self._is_replaced():
            if self._file:
                self._file.close()
            self._file = self._path.open("rb")
            new += self._read_on()
        return new

    def _is_replaced(self) -> bool:
        try:
            now = os.stat(self._path)
        except FileNotFoundError:
            return False
        # An open file keeps its number, so that no other one has it.
        return self._file is None or not os.path.samestat(now, os.fstat(self._file.fileno()))

    def _read_on(self) -> list[Record]:
        new = []
        while self._file and (line := self._file.readline()):
            if not line.endswith(b"\n"):
                self._file.seek(-len(line), os.SEEK_CUR)  # it is being written
                break
            if hash(line) not in self._known:
                self._known.add(hash(line))
                new.append(json.loads(line))
        return new
