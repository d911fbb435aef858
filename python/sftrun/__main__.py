"""The command `sftrun` of the wheel, and `python -m sftrun`: becomes the program, with the same arguments."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from sftrun.errors import SftrunError
from sftrun.program import find_program, program_environment


def main() -> NoReturn:
    try:
        program = find_program()
    except SftrunError as error:
        print(error.problems[0], file=sys.stderr)
        sys.exit(error.exit_code)
    os.execve(program, [program, *sys.argv[1:]], program_environment(program))


if __name__ == "__main__":
    main()
