#!/usr/bin/env python3
"""No source uses std::regex: it recurses for each character, so that a long word ends the process. core/regex.h has PythonRegex."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    users = [path for folder in ("src", "include") for path in sorted((ROOT / folder).rglob("*"))
             if path.suffix in (".cpp", ".h", ".inl", ".cu", ".cuh") and re.search(r"#include <regex>|std::regex", path.read_text())]
    for path in users:
        print(f"{path.relative_to(ROOT)}: uses std::regex; use core/regex.h, or look for the characters", file=sys.stderr)
    return 1 if users else 0


if __name__ == "__main__":
    sys.exit(main())
