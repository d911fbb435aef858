#!/usr/bin/env python3
"""Provokes what docs/troubleshooting.md explains, and compares what the program prints with what the page shows.

    tests/smoke/troubleshooting.py --sftrun build/bin/sftrun            # a test
    tests/smoke/troubleshooting.py --sftrun build/bin/sftrun --write    # writes the answers into the page

Standard library only. An answer stands between `<!-- answer: name -->` and `<!-- end of answer -->`; each must have a case here, and each case
an answer there. Numbers that differ from run to run stand there as N.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import bad_input
import errors_document
from free_ports import free_port

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/troubleshooting.md"
ANSWER = re.compile(r"(<!-- answer: (\w+) -->\n)(.*?)(<!-- end of answer -->\n)", re.DOTALL)
VARYING = {r"(127\.0\.0\.1:|--master-port )\d+": r"\1PORT", r"\bport \d+": "port N", r"\bpid \d+": "pid N", r"allocate \d+ bytes": "allocate N bytes"}
MEMORY_KIB = 700_000  # of address space, for the run that needs more


def on_two_nodes(rank):
    return ["--device", "cpu", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]


def missing_rank(_):
    """Node 0 of two is started, node 1 is not."""
    return [*on_two_nodes(0), "parallel.timeout=5s"], {}, 5


def nothing_listens(_):
    """Node 1 of two is started, node 0 is not."""
    return [*on_two_nodes(1), "parallel.timeout=5s"], {}, 5


def half_an_environment(_):
    return [], {"RANK": "0", "WORLD_SIZE": "2"}, 2


def no_gpu(_):
    return ["--gpus", "2"], {"CUDA_VISIBLE_DEVICES": ""}, 2


def out_of_memory(folder):
    record = json.loads(bad_input.lines(bad_input.GOOD_RECORD).splitlines()[0])
    for message in record["messages"]:
        message["content"] = " ".join([message["content"]] * 150)
    (folder / "train.jsonl").write_text(bad_input.lines(*[json.dumps(record)] * 200))
    return ["--device", "cpu", "model.dtype=fp32", "train.batch_size=16", "train.global_batch_size=16", "model.max_seq_len=16384"], {}, 4


CASES = [missing_rank, nothing_listens, half_an_environment, no_gpu, out_of_memory]


def answer(program, case):
    """The block of the page: the command without the paths of this machine, and the error."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        bad_input.good_folder(folder, program)
        flags, variables, code = case(folder)
        command = [str(program), "train", "--config", "run.yaml", *flags]
        if case is out_of_memory:
            command = ["bash", "-c", f'ulimit -v {MEMORY_KIB}; exec "$@"', "_", *command]
        done = subprocess.run(command, cwd=folder, env={**bad_input.environment(folder), **variables}, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, f"{case.__name__}: exit code {done.returncode}, expected {code}\n{done.stderr}"
        shown = " ".join(["$", *(f"{key}={value}" for key, value in variables.items()), "sftrun train --config run.yaml", *flags])
        text = f"```\n{shown}\n{errors_document.printed_error(done.stderr).strip()}\n```\n"
        for pattern, replacement in VARYING.items():
            text = re.sub(pattern, replacement, text)
        return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    program, page = arguments.sftrun.resolve(), PAGE.read_text()
    names = [match[2] for match in ANSWER.finditer(page)]
    assert sorted(names) == sorted(case.__name__ for case in CASES), f"the page has the answers {names}"
    answers = {case.__name__: answer(program, case) for case in CASES}
    if arguments.write:
        PAGE.write_text(ANSWER.sub(lambda match: match[1] + answers[match[2]] + match[4], page))
        return 0
    wrong = [match[2] for match in ANSWER.finditer(page) if match[3] != answers[match[2]]]
    for name in wrong:
        print(f"docs/troubleshooting.md shows another answer than the program gives; --write after a look at it:\n{answers[name]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
