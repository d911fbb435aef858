#!/usr/bin/env python3
"""What happens to a run from outside: workers that die, signals, a second run, a full disk, numbers that overflow.

    tests/smoke/broken_runs.py --sftrun build/bin/sftrun            # a test
    tests/smoke/broken_runs.py --sftrun build/bin/sftrun --write    # writes the table into docs/errors.md

Standard library only. Each case runs in a folder of its own, with a tiny model, and must leave its exit code, its error
printed once, and no process behind. It returns exit code and words for its row of the table in docs/errors.md, which
begins with the first line of its docstring: an error's row holds what the program printed. With --quick every case is run, but some
repeat less: fewer starts that are interrupted, fewer parts of the tokenised data, no resuming where another case resumes likewise.
"""

import argparse
import concurrent.futures
import contextlib
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
import disk_faults
import errors_document
import held_up

BEGIN, END = "<!-- table: written by tests/smoke/broken_runs.py --write -->\n", "<!-- end of table -->\n"
GOES_ON = "a checkpoint; the same command resumes from it"

SANITIZED = QUICK = False
TWO_STEPS = ["train.max_steps=2", "train.save_steps=1"]
LONG = ["train.max_steps=1000000", "train.epochs=1000000", "train.save_every=0"]
PATIENCE = 120  # s, until a run has come as far as a case needs


class Run:
    """`sftrun train` in the background."""

    def __init__(self, folder, processes, *more, prefix=()):
        self.folder = folder
        self.metrics = folder / "run/metrics.jsonl"
        command = [*bad_input.TRAIN[:-1], str(processes), *more]
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen([*prefix, folder / "sftrun", *command], cwd=folder, env=bad_input.environment(folder),
                                            stdout=subprocess.DEVNULL, stderr=errors)

    def wait_for_steps(self, count=2):
        end = time.monotonic() + PATIENCE
        while not self.metrics.exists() or self.metrics.read_text().count("\n") < count:
            assert self.process.poll() is None, f"ended early: {self.errors.read_text()}"
            assert time.monotonic() < end, f"no step: {self.errors.read_text()}"
            time.sleep(0.01)
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


def kill(pids):
    """SIGKILL to each that still runs."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def checkpoints(folder):
    return sorted(path.name for path in (folder / "run/checkpoints").glob("step-*"))


def steps(folder):
    """Of the training lines in metrics.jsonl."""
    lines = map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())
    return [line["step"] for line in lines if "loss" in line]


def expect(holds, what, text=""):
    assert holds, f"{what}\n{text}"


def expect_error(ended, code, *parts):
    actual, text, _ = ended
    expect(actual == code, f"exit code {actual}, expected {code}", text)
    errors = re.findall(r"^error: .*", text, re.MULTILINE)
    expect(len(errors) == 1, f"{len(errors)} errors printed, expected 1", text)
    for part in parts:
        expect(re.search(part, text), f"the message has no /{part}/", text)
    return code, errors_document.in_a_cell(errors_document.printed_error(text))


def expect_success(ended, *parts):
    code, text, _ = ended
    expect(code == 0, f"exit code {code}", text)
    for part in parts:
        expect(re.search(part, text), f"the log has no /{part}/", text)


def train_two_steps(folder):
    bad_input.trained(*bad_input.TRAIN, *TWO_STEPS)(folder)
    expect(checkpoints(folder) == ["step-000001", "step-000002"], f"checkpoints: {checkpoints(folder)}")


# The cases

def worker_killed(folder):
    """A worker is killed (`kill -9`)."""
    run = Run(folder, 2, *LONG).wait_for_steps()
    [victim] = [pid for pid, rank in processes_in(folder).items() if rank == "1"]
    os.kill(victim, signal.SIGKILL)
    ended = run.end()
    row = expect_error(ended, 5, r"error: .*rank 1", "SIGKILL", r"\n  at   run/logs/rank-1.log")
    expect(ended[2] < 30, f"the others ended {ended[2]:.0f} s later")
    return row


def worker_fails_at_start(folder):
    """Both workers find the model file cut short: one error, not two."""
    os.truncate(folder / "model/model.safetensors", 20000)
    return expect_error(Run(folder, 2).end(), 3, "ends at byte", r"\n  at   model/model.safetensors", r"\n  fix: ")


def port_in_use(folder):
    """The port of `--master-port` is taken."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        return expect_error(Run(folder, 2, "--master-port", port).end(), 2, f"port {port} is already in use",
                            r"\n  at   --master-port", r"\n  fix: ")


def expect_nothing_saved(folder):
    expect(not checkpoints(folder), f"written: {checkpoints(folder)}")
    expect(not (folder / "run/adapter").exists(), "an adapter is written")


def not_a_number(folder):
    """Gradients overflow: no weight moves, and the message names the records."""
    ended = Run(folder, 1, "train.max_steps=20", "train.epochs=100", "train.learning_rate=1", "train.warmup_ratio=0",
                "tuning.lora.alpha=1e30", "train.save_steps=1").end()
    row = expect_error(ended, 5, "not finite at step 1;", r"\n  at   train\.jsonl, lines 1, 2, 3, 4 of this step's batch",
                       r"\n  fix: .*no checkpoint was written yet")
    expect_nothing_saved(folder)
    return row


def one_ranks_gradient(folder):
    """One record and two processes: only one rank's gradients overflow, and all stop."""
    (folder / "train.jsonl").write_text("\n\n" + bad_input.lines(bad_input.GOOD_RECORD))
    ended = Run(folder, 2, "train.max_steps=4", "train.epochs=4", "data.packing=false", "train.batch_size=1", "train.grad_accum=1",
                "train.learning_rate=1", "train.warmup_ratio=0", "train.save_steps=1", "tuning.lora.alpha=1e30").end()
    row = expect_error(ended, 5, "the gradient norm is not finite at step 1;", r"\n  at   train\.jsonl, line 3 of this step's batch")
    expect_nothing_saved(folder)
    expect(not steps(folder), f"steps counted: {steps(folder)}")
    return row


BAD_RECORD = {"messages": [{"role": "user", "content": "~"}, bad_input.GOOD_RECORD["messages"][1]]}


def one_bad_record(folder):
    """A weight is NaN, and only one record uses it: the error names its line, whichever rank has it."""
    (folder / "train.jsonl").write_text("\n" + bad_input.lines(*[bad_input.GOOD_RECORD] * 3, BAD_RECORD))
    bad_input.untie_with_a_bad_weight(folder)
    ended = Run(folder, 2, "train.max_steps=4", "train.epochs=2", "data.shuffle=false", "data.packing=false", "train.batch_size=1",
                "train.grad_accum=1").end()
    row = expect_error(ended, 5, "the loss is not finite at step 2", r"train\.jsonl, line 5 of the micro-batch where it appeared")
    expect_nothing_saved(folder)
    return row


def base_is_broken(folder):
    """The loss is NaN from the first step because the base has NaN: the error names its tensor, not the data."""
    (folder / "train.jsonl").write_text(bad_input.lines(BAD_RECORD))
    bad_input.untie_with_a_bad_weight(folder)
    row = expect_error(Run(folder, 2, *TWO_STEPS).end(), 3, "tensor `model.embed_tokens.weight` of the base has NaN or infinite",
                       r"\n  at   model", r"\n  fix: download or copy")
    expect_nothing_saved(folder)
    return row


def third_step_bad(folder):
    """The loss is not finite at step 3: the checkpoints of steps 1 and 2 stay, and the newest is named."""
    (folder / "train.jsonl").write_text(bad_input.lines(*[bad_input.GOOD_RECORD] * 2, BAD_RECORD))
    bad_input.untie_with_a_bad_weight(folder)
    ended = Run(folder, 1, "train.max_steps=9", "train.epochs=3", "train.save_steps=1", "data.shuffle=false", "data.packing=false",
                "train.batch_size=1", "train.grad_accum=1").end()
    row = expect_error(ended, 5, "the loss is not finite at step 3;", r"\n  at   train\.jsonl, line 3 of",
                       r"\n  fix: .*the newest checkpoint is of step 2")
    expect(checkpoints(folder) == ["step-000001", "step-000002"], f"checkpoints: {checkpoints(folder)}")
    expect(steps(folder) == [1, 2], f"steps counted: {steps(folder)}")
    expect(not (folder / "run/adapter").exists(), "an adapter is written")
    return row


def weights_overflow(folder):
    """Loss and gradients are finite, but the updated weights are not: they are not saved."""
    ended = Run(folder, 1, *TWO_STEPS, "train.learning_rate=1", "train.weight_decay=1e39", "train.scheduler=constant",
                "train.warmup_ratio=0").end()
    row = expect_error(ended, 5, "the weights are not finite after step 1;", r"\n  at   run; ",
                       r"\n  fix: .*no checkpoint was written yet")
    expect_nothing_saved(folder)
    expect(steps(folder) == [1], f"steps counted: {steps(folder)}")
    return row


def stopped(folder, number, code, resumes=True):
    run = Run(folder, 2, *LONG).wait_for_steps()
    run.process.send_signal(number)
    ended = run.end()
    expect(ended[0] == code, f"exit code {ended[0]}, expected {code}", ended[1])
    expect("error:" not in ended[1], "stopping on request is no error", ended[1])
    [name] = checkpoints(folder)
    if not resumes:
        return code, GOES_ON
    again = Run(folder, 2, *LONG).wait_for_steps((folder / "run/metrics.jsonl").read_text().count("\n") + 1)
    again.process.send_signal(number)
    code_again, text, _ = again.end()
    expect(code_again == code, f"exit code {code_again} when resumed", text)
    expect(f"resuming from run/checkpoints/{name}" in text, "it starts afresh", text)
    return code, GOES_ON


def wait_until_signals_are_taken(pid):
    """Until the program blocks or catches SIGINT: on a busy machine its libraries may take long to be loaded. While a thread is started, all
    signals are blocked, which is no answer."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        masks = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("Sig"))
        has = lambda mask, number: int(masks[mask], 16) >> (number - 1) & 1  # noqa: E731
        if has("SigCgt", signal.SIGINT) or has("SigBlk", signal.SIGINT) and not has("SigBlk", signal.SIGUSR2):
            return
        time.sleep(0.005)
    expect(False, "SIGINT is neither blocked nor caught")


def interrupted_early(folder):
    """Ctrl-C at any moment of the start, also under a shell that ignores it for its background jobs."""
    if SANITIZED:
        raise disk_faults.Skipped("with sanitizers the program itself starts later than that")
    prefixes = ((), ("sh", "-c", 'trap "" INT; exec "$0" "$@"'))
    for number, delay in enumerate((0, 0.1, 0.2, 0.3, 0.5)):
        for prefix in (prefixes[number % 2],) if QUICK else prefixes:
            run = Run(folder, 2, *LONG, prefix=prefix)
            wait_until_signals_are_taken(run.process.pid)
            time.sleep(delay)
            run.process.send_signal(signal.SIGINT)
            code, text, seconds = run.end()
            expect(code == 130, f"exit code {code} after {delay} s", text)
            expect("error:" not in text and seconds < 20, f"ended after {seconds} s", text)
            shutil.rmtree(folder / "run", ignore_errors=True)
    return 130, "ends without an error"


def interrupted(folder):
    """Ctrl-C, and the same command again."""
    return stopped(folder, signal.SIGINT, 130)


def terminated(folder):
    """SIGTERM, and the same command again."""
    return stopped(folder, signal.SIGTERM, 75, resumes=not QUICK)


MASTER_OF = "_ZN6sftrun8parallel8Strategy9master_ofERKNS_6layers9ParameterE"  # for each tensor that is written
WRITE_TEXT_FILES = "_ZN6sftrun5model16write_text_filesERKNS_7weights10CheckpointERKNSt10filesystem7__cxx114pathES9_RKSt8optionalINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEE"


def stopped_in_result(folder, shim, call, processes, result, *more):
    """SIGTERM while rank 0 is in a call of a function of the engine; then the same command again, if the run has not ended."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    hold = held_up.HeldUp(shim, folder, call=call)
    run = Run(folder, processes, *more, prefix=hold.prefix)
    end = time.monotonic() + PATIENCE
    while not hold.held.exists():
        expect(run.process.poll() is None and time.monotonic() < end, f"rank 0 makes no call {call}", run.errors.read_text())
        time.sleep(0.01)
    expect((folder / f"run/.unfinished-{result}").is_dir(), "it does not write the result")
    run.process.send_signal(signal.SIGTERM)
    while "SIGTERM: " not in run.errors.read_text():
        expect(time.monotonic() < end, "the launcher says nothing of the signal", run.errors.read_text())
        time.sleep(0.01)
    for pid, rank in processes_in(folder).items():  # the launcher's own signal may be on its way
        if rank is not None:
            os.kill(pid, signal.SIGTERM)
    hold.go_on()
    return run.end()


def stopped_while_the_result_is_written(folder):
    """SIGTERM while the result is written, and the same command again."""
    if reason := held_up.why_not():
        raise disk_faults.Skipped(reason)
    held_up.require_symbols(folder / "sftrun", [MASTER_OF, WRITE_TEXT_FILES])
    for number, symbol in enumerate((MASTER_OF, WRITE_TEXT_FILES)):
        held_up.compile_shim(symbol, folder / f"shim-{number}.so")
    divided = ["tuning.mode=full", "parallel.strategy=fsdp"]
    runs = ((2, "model", divided), (1, "adapter", []))
    for processes, result, more in runs[:1] if QUICK else runs:
        expect_success(Run(folder, processes, *more, f"output.dir=whole-{result}").end())
        expected = contents_of(folder / f"whole-{result}" / result)
        # Those of a checkpoint of an adapter come before.
        num_before = expected["adapter_model.safetensors"].count(b'"data_offsets"') if result == "adapter" else 0
        code, text, _ = stopped_in_result(folder, folder / "shim-0.so", num_before + 3, processes, result, *more)
        expect(code == 75 and "error:" not in text, f"exit code {code}", text)
        expect("rerun the same command to resume" in text, "it does not say how to go on", text)
        left = sorted(path.name for path in (folder / "run").iterdir() if path.name.lstrip(".").startswith(("unfinished", result)))
        expect(not left and checkpoints(folder) == ["step-000001"], f"left: {left}, {checkpoints(folder)}")
        expect_success(Run(folder, processes, *more).end(), "resuming from run/checkpoints/step-000001")
        expect(contents_of(folder / "run" / result) == expected, "the result of the resumed run is another")
        code, text, _ = stopped_in_result(folder, folder / "shim-1.so", 1, processes, result, *more)  # after the last tensor
        expect(code == 0 and "error:" not in text, f"exit code {code}", text)
        expect(contents_of(folder / "run" / result) == expected, "the result is another")
    return 75, "what was trained is in the last checkpoint; the same command writes the result. After its last tensor the result is completed"


def contents_of(result):
    """The bytes of each file but the model card, which has times."""
    return {path.name: path.read_bytes() for path in result.iterdir() if path.name != "README.md"}


def second_run(folder):
    """A second run in the run directory of one that is running, which continues."""
    first = Run(folder, 1, *LONG).wait_for_steps()
    done = subprocess.run([folder / "sftrun", *bad_input.TRAIN], cwd=folder, env=bad_input.environment(folder),
                          capture_output=True, text=True, timeout=PATIENCE)
    row = expect_error((done.returncode, done.stderr, 0), 2, f"another run is using this run directory: pid {first.process.pid} on ",
                       r"\n  at   run/\.lock\n", r"\n  fix: ")
    first.wait_for_steps(len(steps(folder)) + 2)
    first.process.send_signal(signal.SIGINT)
    code, text, _ = first.end()
    expect(code == 130 and "error:" not in text, f"exit code {code} of the first run", text)
    done = steps(folder)
    expect(done == list(range(1, len(done) + 1)), f"steps of the first run: {done}")
    expect(checkpoints(folder) == [f"step-{done[-1]:06}"], f"checkpoints of the first run: {checkpoints(folder)}")
    return row


def launcher_killed_and_started_again_at_once(folder):
    """The launcher is killed (`kill -9`), and the same command started while its workers may still run."""
    command = ["train.max_steps=20", "train.epochs=20", "train.save_steps=1"]
    first = Run(folder, 2, *command).wait_for_steps(3)
    first.process.kill()
    second = Run(folder, 2, *command)
    expect(first.process.wait() == -signal.SIGKILL, "the first run ended before it was killed")
    ended = second.end()
    if ended[0] != 0:
        expect_error(ended, 2, "another run is using this run directory", r"\n  fix: wait for it")
        wait_until_none_left(folder)
        ended = Run(folder, 2, *command).end()
    expect_success(ended, "resuming from run/checkpoints/step-")
    expect(steps(folder) == list(range(1, 21)), f"steps: {steps(folder)}")
    return 0, "the workers end with their launcher; the second run resumes from the last checkpoint, and no step counts twice"


def changed_data_allowed(folder):
    """Other data, and `--allow-changed-data`."""
    train_two_steps(folder)
    (folder / "train.jsonl").write_text(bad_input.lines(*[bad_input.GOOD_RECORD] * 5))
    shutil.rmtree(folder / "run/checkpoints/step-000002")
    expect_success(Run(folder, 1, *TWO_STEPS, "--allow-changed-data").end(), "resuming from run/checkpoints/step-000001")
    return 0, "resumes from the last checkpoint with the new data"


def weights_changed(folder):
    """A bit of the base model's weights changes between two parts of a run of two ranks."""
    train_two_steps(folder)
    shutil.rmtree(folder / "run/checkpoints/step-000002")
    flip_a_bit(folder / "model/model.safetensors", (folder / "model/model.safetensors").stat().st_size - 3)
    row = expect_error(Run(folder, 2, *TWO_STEPS).end(), 2, "the base model's weights have changed: model.safetensors",
                       r"\n  at   run/checkpoints/step-000001", r"\n  fix: to resume, give the run the model files")
    expect_only_step_1(folder, with_adapter=True)
    if QUICK:
        return row
    flip_a_bit(folder / "model/model.safetensors", (folder / "model/model.safetensors").stat().st_size - 3)
    expect_success(Run(folder, 2, *TWO_STEPS).end(), "resuming from run/checkpoints/step-000001")
    return row


def model_moved(folder):
    """The model's files are moved, and settings in config.json that do not affect training change."""
    train_two_steps(folder)
    shutil.rmtree(folder / "run/checkpoints/step-000002")
    (folder / "model").rename(folder / "moved")
    config = folder / "moved/config.json"
    config.write_text(config.read_text().replace('"transformers_version": "', '"transformers_version": "9.'))
    expect_success(Run(folder, 2, *TWO_STEPS, "model.name=moved").end(), "resuming from run/checkpoints/step-000001")
    return 0, "resumes from the last checkpoint"


def goes_back(folder):
    """`--resume` names a checkpoint before the run's end."""
    train_two_steps(folder)
    expect_success(Run(folder, 1, *TWO_STEPS, "--resume", "run/checkpoints/step-000001").end(),
                   "resuming from run/checkpoints/step-000001", "step-000002 .*renamed to abandoned-step-000002")
    found = sorted(os.listdir(folder / "run/checkpoints"))
    expect(found == ["abandoned-step-000002", "step-000001", "step-000002"], f"checkpoints: {found}")
    expect((folder / "run/adapter").exists() and (folder / "run/adapter.old-1").exists(), "the earlier result is not kept")
    expect(steps(folder) == [1, 2], f"steps counted: {steps(folder)}")
    return 0, "later checkpoints are now `abandoned-step-…`, the earlier result `adapter.old-1`; the metrics hold each step once"


def damaged_newest_is_passed_over(folder):
    """The newest checkpoint is damaged."""
    train_two_steps(folder)
    os.truncate(folder / "run/checkpoints/step-000002/state.json", 20)
    expect_success(Run(folder, 1, *TWO_STEPS).end(), "skipping run/checkpoints/step-000002: the checkpoint's state file is damaged",
                   "resuming from run/checkpoints/step-000001")
    expect(steps(folder) == [1, 2], f"steps counted: {steps(folder)}")
    return 0, "says so and resumes from the one before it"


def flip_a_bit(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def tokens_damaged(folder):
    """The cached tokenized data are damaged: a bit in each part of the file, in turn."""
    command = [*TWO_STEPS, "data.cache_dir=cache"]
    expect_success(Run(folder, 2, *command).end())
    [kept] = (folder / "cache").glob("*/examples")
    whole, adapter = kept.read_bytes(), folder / "run/adapter/adapter_model.safetensors"
    undisturbed = adapter.read_bytes()
    for part in ("tokens", "footer") if QUICK else ("magic", "tokens", "index", "checksums", "header", "footer"):
        flip_a_bit(kept, part_of_tokenised_file(whole, part))
        shutil.rmtree(folder / "run")
        ended = Run(folder, 2, *command).end()
        expect_success(ended, "or damaged; tokenizing again")
        expect(ended[1].count("tokenizing again") == 1, f"warned of {part} more than once", ended[1])
        expect(adapter.read_bytes() == undisturbed, f"another adapter after damage of the {part}")
        expect(kept.read_bytes() == whole, f"{part}: the file was not made anew")
    return 0, "says so and tokenizes anew, on one of the ranks"


def part_of_tokenised_file(content, part):
    """A place in it, by what its footer says (include/sftrun/data/example_store.h)."""
    index, num_examples, header, _, _ = struct.unpack_from("<5Q", content, len(content) - 48)
    return {"magic": 3, "tokens": 8, "index": index, "checksums": index + 32 * num_examples, "header": header,
            "footer": len(content) - 12}[part]


def expect_only_step_1(folder, with_adapter=False):
    found = os.listdir(folder / "run/checkpoints")
    expect(found == ["step-000001"], f"checkpoints: {found}")
    expect(not list((folder / "run").glob(".unfinished*")), f"left over: {os.listdir(folder / 'run')}")
    expect((folder / "run/adapter").exists() == with_adapter, "an adapter is written, or gone")


def disk_full(folder):
    """A checkpoint's second file does not fit (here under `ulimit -f`): the partial checkpoint is removed, the one before it stays."""
    train_two_steps(folder)
    shutil.rmtree(folder / "run/checkpoints/step-000002")
    shutil.rmtree(folder / "run/adapter")
    below_optimizer_file = ("sh", "-c", 'trap "" XFSZ; ulimit -f 40; exec "$0" "$@"')  # blocks of 512 bytes
    row = expect_error(Run(folder, 1, *TWO_STEPS, prefix=below_optimizer_file).end(), 5, "while saving, after step 2: cannot write: ",
                       r"\n  at   run/checkpoints/.*optimizer\.safetensors")
    expect_only_step_1(folder)
    expect_success(Run(folder, 1, *TWO_STEPS).end(), "resuming from run/checkpoints/step-000001")
    expect(steps(folder) == [1, 2], f"steps counted: {steps(folder)}")
    shutil.rmtree(folder / "run")
    in_parts = ["tuning.mode=full", "parallel.strategy=fsdp"]  # of each rank; the other one's may be complete
    expect_error(Run(folder, 2, *TWO_STEPS, *in_parts, prefix=below_optimizer_file).end(), 5, "cannot write: ")
    found = os.listdir(folder / "run/checkpoints")
    expect(not found, f"left of a divided checkpoint: {found}")
    return row


def disk_fills_up(folder):
    """The disk fills up while the run continues; the same command is refused until there is space."""
    command = ["train.max_steps=50", "train.epochs=50", "train.save_steps=1"]  # some 40 checkpoints fit
    with disk_faults.small_disk(folder) as (prefix, run_dir):
        _, said = expect_error(Run(folder, 1, *command, prefix=prefix).end(), 5, "cannot write: No space left on device",
                               r"\n  fix: free disk space")
        found = sorted(os.listdir(run_dir / "checkpoints"))
        expect(10 < len(found) < 50 and found[0] == "step-000001" and found[-1] == f"step-{len(found):06}", f"left: {found}")
        expect_error(Run(folder, 1, *command, prefix=prefix).end(), 5, "the disk has .* free")
        for name in found[:-1]:
            shutil.rmtree(run_dir / "checkpoints" / name)
        expect_success(Run(folder, 1, *command, prefix=prefix).end(), f"resuming from run/checkpoints/{found[-1]}")
    return 5, "`cannot write: No space left on device`; " + re.search("`fix: .*", said).group()  # in one file or another


def disk_space_checked_first(folder):
    """Too little disk space for a checkpoint and the result is found before the first step."""
    if SANITIZED:
        raise disk_faults.Skipped("a sanitizer's library must be loaded first")
    row = expect_error(Run(folder, 2, prefix=disk_faults.almost_full(folder)).end(), 5, r"the disk has 400\.00 KiB free, and a checkpoint",
                       r"\n  at   run; ", r"\n  fix: free disk space")
    expect_nothing_saved(folder)
    expect(not (folder / "run/metrics.jsonl").exists(), "a step was made")
    return row


def run_directory_read_only(folder):
    """The run directory may not be written."""
    with disk_faults.read_only(folder, "run") as prefix:
        row = expect_error(Run(folder, 2, prefix=prefix).end(), 2, "cannot write to the run directory: Permission denied",
                           r"\n  at   run/\.lock", r"\n  fix: choose an output\.dir with write permission")
        expect(not os.listdir(folder / "run"), f"written: {os.listdir(folder / 'run')}")
    return row


def checkpoints_read_only(folder):
    """The run directory may be written, the folder `checkpoints` in it not: found before the first step."""
    with disk_faults.read_only(folder, "run/checkpoints") as prefix:
        row = expect_error(Run(folder, 2, prefix=prefix).end(), 5, "while loading: cannot write: Permission denied",
                           r"\n  at   run/checkpoints/", r"\n  fix: choose a directory you may write to")
        expect(not os.listdir(folder / "run/checkpoints"), "something is written")
        expect(not (folder / "run/adapter").exists(), "an adapter is written")
    return row


CONSTANT = ["train.scheduler=constant", "train.save_steps=1"]


def metrics_of(folder):
    return [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]


def trained(folder):
    return (folder / "run/adapter/adapter_model.safetensors").read_bytes()


def more_steps(folder):
    """A finished run is continued for more epochs, with a schedule that does not depend on its length."""
    expect_success(Run(folder, 1, *CONSTANT, "train.max_steps=3", "train.epochs=5").end())
    whole = trained(folder)
    shutil.rmtree(folder / "run")
    expect_success(Run(folder, 1, *CONSTANT, "train.max_steps=2", "train.epochs=5").end())
    expect_success(Run(folder, 1, *CONSTANT, "train.max_steps=3", "train.epochs=5").end(), "the run now has 3 steps instead of 2",
                   "resuming from run/checkpoints/step-000002")
    expect(trained(folder) == whole, "another adapter than that of a run of three steps")
    expect(steps(folder) == [1, 2, 3], f"steps counted: {steps(folder)}")
    expect_error(Run(folder, 1, *CONSTANT, "train.max_steps=1", "train.epochs=5").end(), 2, "give 1 step, but 3 are already done")
    return 0, "continues, and ends as a run that had them from the beginning"


def other_rates(folder):
    """More steps, with a schedule that depends on the run's length."""
    expect_success(Run(folder, 1, "train.max_steps=4", "train.epochs=9", "train.save_steps=1").end())
    longer = ["train.max_steps=8", "train.epochs=9", "train.save_steps=1"]
    row = expect_error(Run(folder, 1, *longer).end(), 2, "the run now has 8 steps instead of 4: with this train.scheduler the learning rates of completed steps would differ",
                       r"\n  fix: add --allow-changed-length to continue on the new schedule")
    expect(steps(folder) == [1, 2, 3, 4], f"steps counted: {steps(folder)}")
    expect_success(Run(folder, 1, *longer, "--allow-changed-length").end(), "the run now has 8 steps instead of 4")
    rates = [line["learning_rate"] for line in metrics_of(folder)]
    expect(steps(folder) == list(range(1, 9)) and rates[4] > rates[3] and rates[7] < rates[4], f"learning rates: {rates}")
    return row


def overwritten(folder):
    """`--overwrite`, on two ranks, with another setting."""
    train_two_steps(folder)
    before = trained(folder)
    ended = Run(folder, 2, *TWO_STEPS, "train.learning_rate=0.01", "--overwrite").end()
    expect_success(ended, "the earlier run in run is now run/old-1")
    expect(ended[1].count("is now run/old-1") == 1, "said more than once", ended[1])
    aside = folder / "run/old-1"
    for name in ("adapter/adapter_model.safetensors", "checkpoints/step-000002/state.json", "metrics.jsonl", "run.json", "tensorboard",
                 "config.resolved.yaml", "logs/rank-0.log"):
        expect((aside / name).exists(), f"{name} is not in {os.listdir(aside)}")
    expect((aside / "adapter/adapter_model.safetensors").read_bytes() == before != trained(folder), "not the adapters expected")
    expect(steps(folder) == [1, 2] and checkpoints(folder) == ["step-000001", "step-000002"], "the new run is not whole")
    expect_error(Run(folder, 1, "--overwrite", "--resume", "auto").end(), 2, "--overwrite and --resume are both given")
    return 0, "the files of the earlier run are now in `old-1`; a new run starts"


def parts_removed(folder):
    """Metrics, event files and a log are removed while the run continues."""
    command = ["train.max_steps=500", "train.epochs=1000", "train.save_every=0"]
    run = Run(folder, 2, *command).wait_for_steps()
    (folder / "run/metrics.jsonl").unlink()
    shutil.rmtree(folder / "run/tensorboard")
    row = expect_error(run.end(), 3, "removed from the run directory during the run: metrics.jsonl, tensorboard",
                       r"\n  fix: the result is complete")
    expect((folder / "run/adapter/adapter_model.safetensors").exists(), "no adapter is written")
    shutil.rmtree(folder / "run")
    run = Run(folder, 2, *command).wait_for_steps()
    (folder / "run/logs/rank-1.log").unlink()
    expect_error(run.end(), 3, r"removed from the run directory .*: logs/rank-1\.log")
    return row


def model_removed(folder):
    """The base model is removed while all of it trains."""
    command = ["tuning.mode=full", "train.max_steps=500", "train.epochs=1000", "train.save_every=0"]
    run = Run(folder, 1, *command).wait_for_steps()
    (folder / "model").rename(folder / "away")
    row = expect_error(run.end(), 3, "the base model was removed while the run trained", r"\n  at   model\n",
                       r"\n  fix: put the model back .* resumes from run/checkpoints/step-000500 and writes the result")
    expect(checkpoints(folder) == ["step-000500"], f"checkpoints: {checkpoints(folder)}")
    expect(not (folder / "run/model").exists(), "half a model is written")
    (folder / "away").rename(folder / "model")
    expect_success(Run(folder, 1, *command).end(), "this run was already complete")
    expect((folder / "run/model/model.safetensors").exists(), "no model is written")
    return row


def unread(folder, *more):
    """Exit code of a run whose output nobody reads after its first byte."""
    read, write = os.pipe()
    command = [folder / "sftrun", *bad_input.TRAIN, *TWO_STEPS, *more]
    process = subprocess.Popen(command, cwd=folder, env=bad_input.environment(folder), stdout=write, stderr=write)
    os.close(write)
    expect(os.read(read, 1), "nothing is printed")
    os.close(read)
    return process.wait(timeout=PATIENCE)


def output_is_not_read(folder):
    """Standard output is closed (a closed pipe, as behind `head -1`)."""
    code = unread(folder)
    log = (folder / "run/logs/rank-0.log").read_text()
    expect(code == 0, f"exit code {code}", log)
    expect("step 2/2" in log, "the log has no step 2", log)
    expect((folder / "run/adapter/adapter_model.safetensors").exists(), "no adapter is written")
    code = unread(folder, "train.seed=7")
    expect(code == 2, f"exit code {code} of a run that is refused")
    return 0, "the run continues, and its log is in `logs/`; an error keeps its exit code"


def small_data(folder):
    """A small data set with default settings: there are steps, the first changes the weights, and a model card is written."""
    (folder / "train.jsonl").write_text(bad_input.lines(*[bad_input.GOOD_RECORD] * 60))
    config = folder / "run.yaml"
    config.write_text(config.read_text().replace("train: { max_steps: 1 }\n", "").replace("max_seq_len: 128", "max_seq_len: 2048"))
    ended = Run(folder, 1).end()
    expect_success(ended, "a small data set", r"steps in .* tokens/s", "loss .* at step 1, .* at step ", "peak memory")
    lines = metrics_of(folder)
    expect(len(lines) >= 9 and lines[0]["learning_rate"] > 0 and lines[-1]["loss"] < lines[0]["loss"], f"metrics: {lines}")
    card = (folder / "run/adapter/README.md").read_text()
    expect("library_name: peft" in card and "on train.jsonl" in card and str(folder) not in card, "the model card", card)
    alone = Run(folder, 1, "train.max_steps=1", "train.warmup_steps=1", "--overwrite").end()
    expect_success(alone, "nothing will be trained: the learning rate of every step is 0")
    return 0, "packed sequences are shorter, so that an epoch has more steps; if every learning rate is 0, a warning says so"


CASES = [worker_killed, worker_fails_at_start, port_in_use, not_a_number, one_bad_record, base_is_broken, one_ranks_gradient, third_step_bad,
         weights_overflow, disk_full, disk_fills_up, disk_space_checked_first, run_directory_read_only, checkpoints_read_only, interrupted_early,
         interrupted, terminated, stopped_while_the_result_is_written, second_run, launcher_killed_and_started_again_at_once, goes_back,
         damaged_newest_is_passed_over, tokens_damaged, weights_changed, model_moved, changed_data_allowed, more_steps, other_rates, overwritten,
         parts_removed, model_removed, output_is_not_read, small_data]


def wait_until_none_left(folder):
    end = time.monotonic() + 10
    while processes_in(folder) and time.monotonic() < end:
        time.sleep(0.1)
    expect(not processes_in(folder), f"processes left behind: {processes_in(folder)}")


def run_case(program, case):
    """Exit code and words for the table, None if skipped; and what is wrong, None if nothing is."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        bad_input.good_folder(folder, program)
        try:
            answer = case(folder)
            wait_until_none_left(folder)
            return answer, None
        except disk_faults.Skipped as reason:
            print(f"SKIPPED {case.__name__}: {reason}")
            return None, None
        except Exception as failure:  # whatever it is, the case must be named
            return None, f"FAIL {case.__name__}: {type(failure).__name__}: {failure}"
        finally:
            kill(processes_in(folder))


def rows(answers):
    """The table; a case without an answer keeps the row that it has."""
    shown = errors_document.shown_between(BEGIN, END)
    for case, answer in zip(CASES, answers):
        if answer:
            code, said = answer
            yield f"| {case.__doc__.splitlines()[0].removesuffix('.')} | {code} | {said} | `{case.__name__}` |\n"
        else:
            yield from re.findall(rf"^\| .* \| `{case.__name__}` \|\n", shown, re.MULTILINE)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--sanitized", action="store_true", help="the program was built with sanitizers")
    parser.add_argument("--quick", action="store_true", help="with fewer repetitions, as in `make test`")
    parser.add_argument("--case", help="only this one, without the table")
    arguments = parser.parse_args()
    global SANITIZED, QUICK
    SANITIZED, QUICK = arguments.sanitized, arguments.quick
    program = arguments.sftrun.resolve()
    chosen = [case for case in CASES if arguments.case in (None, case.__name__)]
    assert chosen, f"no case {arguments.case}"
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        found = list(pool.map(lambda case: run_case(program, case), chosen))
    failures = [failure for _, failure in found if failure]
    if not arguments.case:
        head = "| what happens | exit code | message, or what is done | case |\n|---|---|---|---|\n"
        parts = ["\n" + head, *rows([answer for answer, _ in found]), "\n"]
        failures += errors_document.compare_or_write(BEGIN, END, parts, arguments.write)
    for failure in failures:
        print(failure)
    print(f"{len(chosen)} cases, {len(failures)} problems")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
