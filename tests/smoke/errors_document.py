"""docs/errors.md, of which bad_input.py and broken_runs.py write a part each: what the program answered. Standard library only."""

import pathlib
import re

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/errors.md"

# What differs from run to run in an error, and stands in docs/errors.md for it.
VARYING = {
    r"; ranks? [\d, ]+(was|were) stopped .* later": "",
    r"\b(rank |rank-)\d+": r"\1N",
    r"\b(local_rank|pid|port) \d+": r"\1 N",
    r"(\.unfinished-step-\d+-)\d+": r"\1N",
    r"(while training, after step) \d+": r"\1 N",
    r"\bpid N on .*": "pid N on HOST",
}


def printed_error(text):
    """The error in what was printed, without the log lines around it."""
    kept = []
    for line in text.splitlines():
        if line.startswith("error:") or kept and not re.match(r"\[(rank \d+|\d\d:)", line):  # not the log's lines
            kept.append(line.rstrip())
    return "\n".join(kept)


def in_a_cell(error):
    """An error for a table: one line, without the log's lines, and without numbers that differ from run to run."""
    error = re.sub(r"^  last lines of its log:\n(    \|.*\n)+", "", error.removeprefix("error: "), flags=re.MULTILINE)
    for pattern, name in VARYING.items():
        error = re.sub(pattern, name, error)
    return "; ".join(map(as_code, re.split(r"\n +", error)))


def as_code(line):
    fence = "``" if "`" in line else "`"
    return fence + re.sub(" +", " ", line).replace("|", "\\|") + fence


def shown_between(begin, end):
    """The part of docs/errors.md that a script writes."""
    return DOCUMENT.read_text().partition(begin)[2].partition(end)[0]


def compare_or_write(begin, end, parts, write):
    """What is wrong with the part of docs/errors.md that must hold `parts`; after writing, nothing."""
    written, shown = "".join(parts), shown_between(begin, end)
    if write:
        before, _, rest = DOCUMENT.read_text().partition(begin)
        DOCUMENT.write_text(before + begin + written + end + rest.partition(end)[2])
        return []
    if shown == written:
        return []
    return [f"not in docs/errors.md:\n{part}" for part in parts if part not in shown] + [
        "docs/errors.md shows other answers; look at the difference, then run this script with --write"]
