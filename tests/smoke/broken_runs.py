#!/usr/bin/env python3
"""What happens to a run from outside: workers that die, signals, a second run, a port in use, numbers that overflow.

    tests/smoke/broken_runs.py --sftrun build/bin/sftrun

Standard library only. docs/errors.md names the cases. Each runs in a folder of its own, with a tiny model, and must leave
its exit code, its error printed once, and no process behind.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import bad_input

LONG = ["train.max_steps=1000000", "train.epochs=1000000", "train.save_every=0"]
PATIENCE = 120  # s, until a run has come as far as a case needs


class Run:
    """`sftrun train` in the background."""

    def __init__(self, folder, processes, *more, prefix=()):
        self.folder = folder
        command = [*bad_input.TRAIN[:-1], str(processes), *more]
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen([*prefix, folder / "sftrun", *command], cwd=folder, env=bad_input.environment(folder),
                                            stdout=subprocess.DEVNULL, stderr=errors)

    def wait_for_steps(self, count=2):
        metrics, end = self.folder / "run/metrics.jsonl", time.monotonic() + PATIENCE
        while not metrics.exists() or metrics.read_text().count("\n") < count:
            assert self.process.poll() is None, f"ended early: {self.errors.read_text()}"
            assert time.monotonic() < end, f"no step: {self.errors.read_text()}"
            time.sleep(0.05)
        return self

    def end(self):
        """Exit code, what was printed on stderr, seconds until the end."""
        start = time.monotonic()
        code = self.process.wait(timeout=PATIENCE)
        return code, self.errors.read_text(), time.monotonic() - start


def processes_in(folder):
    """Process ids whose working directory is the case's folder, with their RANK."""
    found = {}
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "cwd") != str(folder):
                continue
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = next((v[5:].decode() for v in variables if v.startswith(b"RANK=")), None)
        found[int(process.name)] = rank
    return found


def checkpoints(folder):
    return sorted(path.name for path in (folder / "run/checkpoints").glob("step-*"))


def expect(holds, what, text=""):
    assert holds, f"{what}\n{text}"


def expect_error(ended, code, *parts):
    actual, text, _ = ended
    expect(actual == code, f"exit code {actual}, expected {code}", text)
    errors = re.findall(r"^error: .*", text, re.MULTILINE)
    expect(len(errors) == 1, f"{len(errors)} errors printed, expected 1", text)
    for part in parts:
        expect(re.search(part, text), f"the message has no /{part}/", text)


def worker_killed(folder):
    """A worker killed with SIGKILL."""
    run = Run(folder, 2, *LONG).wait_for_steps()
    [victim] = [pid for pid, rank in processes_in(folder).items() if rank == "1"]
    os.kill(victim, signal.SIGKILL)
    ended = run.end()
    expect_error(ended, 5, r"error: .*rank 1", "SIGKILL", r"\n  at   run/logs/rank-1.log")
    expect(ended[2] < 30, f"the others ended {ended[2]:.0f} s later")


def worker_fails_at_start(folder):
    """Both workers find the model file cut short: one error, not two."""
    os.truncate(folder / "model/model.safetensors", 20000)
    expect_error(Run(folder, 2).end(), 3, "ends at byte", r"\n  at   model/model.safetensors", r"\n  fix: ")


def port_in_use(folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        expect_error(Run(folder, 2, "--master-port", port).end(), 2, f"port {port} is already in use", r"\n  at   --master-port", r"\n  fix: ")


def not_a_number(folder):
    """Gradients that overflow: no weight moves, and the message names the records."""
    ended = Run(folder, 1, "train.max_steps=20", "train.epochs=100", "train.learning_rate=1", "train.warmup_ratio=0",
                "tuning.lora.alpha=1e30", "train.save_steps=1").end()
    expect_error(ended, 5, "not finite at step", r"\n  at   train\.jsonl, lines 1, 2, 3, 4 of this step's batch", r"\n  fix: ")
    expect(not checkpoints(folder), f"written after the overflow in step 1: {checkpoints(folder)}")
    expect(not (folder / "run/adapter").exists(), "an adapter is written")


def untie_with_a_bad_weight(folder, token):
    """Gives the model a head of its own, and one token's embedding a number that is none."""
    bad_input.edit("model/config.json", '"tie_word_embeddings": true', '"tie_word_embeddings": false')(folder)
    path = folder / "model/model.safetensors"
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    header, data = json.loads(content[8:8 + header_bytes]), bytearray(content[8 + header_bytes:])
    embedding = header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    header["lm_head.weight"] = embedding | {"data_offsets": [len(data), len(data) + end - begin]}
    data += data[begin:end]
    struct.pack_into("<f", data, begin + token * embedding["shape"][1] * 4, float("nan"))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def one_bad_record(folder):
    """A weight that is no number, which one record alone touches: its line is named, by whichever rank has it."""
    bad = {"messages": [{"role": "user", "content": "~"}, bad_input.GOOD_RECORD["messages"][1]]}
    (folder / "train.jsonl").write_text("\n" + bad_input.lines(*[bad_input.GOOD_RECORD] * 3, bad))
    untie_with_a_bad_weight(folder, json.loads((folder / "model/tokenizer.json").read_text())["model"]["vocab"]["~"])
    ended = Run(folder, 2, "train.max_steps=4", "data.packing=false", "train.batch_size=1", "train.grad_accum=2").end()
    expect_error(ended, 5, "the loss is not finite at step 1", r"train\.jsonl, line 5 of the micro-batch in which it arose")
    expect(not checkpoints(folder), f"written: {checkpoints(folder)}")


def stopped(folder, number, code):
    run = Run(folder, 2, *LONG).wait_for_steps()
    run.process.send_signal(number)
    ended = run.end()
    expect(ended[0] == code, f"exit code {ended[0]}, expected {code}", ended[1])
    expect("error:" not in ended[1], "stopping on request is no error", ended[1])
    [name] = checkpoints(folder)
    again = Run(folder, 2, *LONG).wait_for_steps((folder / "run/metrics.jsonl").read_text().count("\n") + 1)
    again.process.send_signal(number)
    code_again, text, _ = again.end()
    expect(code_again == code, f"exit code {code_again} when resumed", text)
    expect(f"resuming from run/checkpoints/{name}" in text, "it starts afresh", text)


def interrupted_early(folder):
    """Ctrl-C at any moment of the start, also from a shell that ignores it for its background jobs."""
    for delay in (0.1, 0.2, 0.3, 0.4, 0.6):
        for prefix in ((), ("sh", "-c", 'trap "" INT; exec "$0" "$@"')):
            run = Run(folder, 2, *LONG, prefix=prefix)
            time.sleep(delay)
            run.process.send_signal(signal.SIGINT)
            code, text, seconds = run.end()
            expect(code == 130, f"exit code {code} after {delay} s", text)
            expect("error:" not in text and seconds < 20, f"ended after {seconds} s", text)
            shutil.rmtree(folder / "run", ignore_errors=True)


def interrupted(folder):
    """Ctrl-C, and the same command again."""
    stopped(folder, signal.SIGINT, 130)


def terminated(folder):
    """SIGTERM, and the same command again."""
    stopped(folder, signal.SIGTERM, 75)


def second_run(folder):
    """A second run in the run directory of one that is running."""
    first = Run(folder, 1, *LONG).wait_for_steps()
    done = subprocess.run([folder / "sftrun", *bad_input.TRAIN], cwd=folder, env=bad_input.environment(folder),
                          capture_output=True, text=True, timeout=PATIENCE)
    first.process.send_signal(signal.SIGINT)
    first.end()
    expect_error((done.returncode, done.stderr, 0), 2, r"\n  at   run", r"\n  fix: ")


def changed_data_allowed(folder):
    """Data may change between a run and its continuation if the user says so."""
    expect(Run(folder, 1, *LONG[1:], "train.max_steps=2", "train.save_steps=1").end()[0] == 0, "the first run fails")
    (folder / "train.jsonl").write_text(bad_input.lines(*[bad_input.GOOD_RECORD] * 5))
    for name in checkpoints(folder)[1:]:
        shutil.rmtree(folder / "run/checkpoints" / name)
    code, text, _ = Run(folder, 1, *LONG[1:], "train.max_steps=2", "train.save_steps=1", "--allow-changed-data").end()
    expect(code == 0, f"exit code {code}", text)
    expect("resuming from" in text, "it starts afresh", text)


CASES = [worker_killed, worker_fails_at_start, port_in_use, not_a_number, one_bad_record, interrupted_early, interrupted, terminated,
         second_run, changed_data_allowed]


def run_case(program, case):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        bad_input.good_folder(folder, program)
        try:
            case(folder)
            end = time.monotonic() + 10
            while processes_in(folder) and time.monotonic() < end:
                time.sleep(0.1)
            expect(not processes_in(folder), f"processes left behind: {processes_in(folder)}")
        except (AssertionError, ValueError, subprocess.TimeoutExpired) as failure:
            return f"FAIL {case.__name__}: {failure}"
        finally:
            for pid in processes_in(folder):
                os.kill(pid, signal.SIGKILL)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    program = parser.parse_args().sftrun.resolve()
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        failures = [failure for failure in pool.map(lambda case: run_case(program, case), CASES) if failure]
    for failure in failures:
        print(failure)
    print(f"{len(CASES)} cases, {len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
