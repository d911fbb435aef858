"""The program's errors as exceptions. An error has what is wrong, where, and what to do (docs/errors.md)."""

from __future__ import annotations

import dataclasses

PREFIX = "error: "
AT, FIX = "  at   ", "  fix: "
WITHOUT_ERROR = {75: "was stopped by SIGTERM", 130: "was interrupted"}  # exit codes
RESUME = "the same call resumes the run"


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem, in the three parts that the program prints. `at` and `fix` may be empty."""

    message: str
    at: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return PREFIX + self.message + (f"\n{AT}{self.at}" if self.at else "") + (f"\n{FIX}{self.fix}" if self.fix else "")


class SftrunError(Exception):
    """The program ended with an error, or was not found.

    exit_code   of the program: 2 usage or configuration, 3 data or model file, 4 out of memory, 5 a worker failed, 75 and 130 stopped; negative: killed by that signal
    problems    all problems of the report; `message`, `at` and `fix` are those of the first
    """

    def __init__(self, exit_code: int, problems: list[Problem]) -> None:
        super().__init__(exit_code, problems)
        self.exit_code = exit_code
        self.problems = problems

    @property
    def message(self) -> str:
        return self.problems[0].message

    @property
    def at(self) -> str:
        return self.problems[0].at

    @property
    def fix(self) -> str:
        return self.problems[0].fix

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems)).removeprefix(PREFIX)


def problems_in(text: str) -> list[Problem]:
    """The problems that the program printed. Lines that begin with none of the three parts continue the part before them."""
    found: list[list[str]] = []
    part = -1
    for line in text.splitlines():
        if line.startswith(PREFIX):
            found.append([line.removeprefix(PREFIX), "", ""])
            part = 0
        elif part < 0:
            continue  # of the log
        elif line.startswith((AT, FIX)):
            part = 1 if line.startswith(AT) else 2
            found[-1][part] = line[len(AT):]
        else:
            found[-1][part] += "\n" + line
    return [Problem(*parts) for parts in found]


def error_of(exit_code: int, text: str) -> SftrunError:
    """@param text  what the program printed to standard error"""
    problems = problems_in(text)
    if not problems:
        what = f"was killed by signal {-exit_code}" if exit_code < 0 else WITHOUT_ERROR.get(exit_code, f"ended with exit code {exit_code}")
        problems = [Problem(f"sftrun {what}", at="".join(text.splitlines()[-1:]), fix=RESUME if exit_code in WITHOUT_ERROR else "")]
    return SftrunError(exit_code, problems)
