#!/usr/bin/env python3
"""What `sftrun train` shows on a terminal: runs in a pseudo-terminal whose screen pyte computes. Needs the package pyte.

    tests/smoke/terminal_view.py --sftrun build/bin/sftrun

Two ranks train a tiny model. Checked:
- while they train, the last lines are the live view: progress, and memory and utilisation of each rank; log lines stand whole above it, each
  view line is there once at the end, and no line of a single step
- the same in a narrow terminal, after the terminal was made smaller and larger, and after Ctrl-C
- a launcher that is killed leaves the cursor at the beginning of an empty line, the terminal's modes as they were, and no process
- NO_COLOR: no colours; TERM=dumb and a pipe: no control characters, and lines of steps
- --quiet, --verbose and SFTRUN_LOG
Exit code 1: something else.
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT = 120  # s, of one run
RUN = """\
model: {{ name: {model}, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8 }} }}
data: {{ train: {folder}/toy.jsonl }}
train: {{ max_steps: {steps}, epochs: 10000, global_batch_size: 4, learning_rate: 1.0e-3, warmup_steps: 0, logging_steps: 1 }}
output: {{ dir: {folder}/run, tensorboard: false }}
"""
LOG_LINE = re.compile(r"\[\d\d:\d\d:\d\d\.\d{3}\] \[(debug|info|warning)\]")
PROGRESS = re.compile(r"(loading|tokenizing|training|saving) (\[[=> ]{20}\] )?\d+/\d+( |$)")
RANKS = re.compile(r"rank 0  [\d.]+ [KMG]iB  CPU +\d+%")
COLOR = re.compile(rb"\x1b\[[\d;]*m")
STEP_LINE = "step 2/"

failures = []


def expect(what, holds, detail=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
    if not holds:
        failures.append(what)


class Terminal:
    """A command in a pseudo-terminal, and the screen that its user sees."""

    def __init__(self, command, columns=100, rows=30, environment=None):
        self.screen = pyte.HistoryScreen(columns, rows, history=5000, ratio=0.5)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.main, other = pty.openpty()
        self.resize(columns, rows)
        self.modes = termios.tcgetattr(other)
        # XTERM_VERSION: like xterm, pyte cuts drawn lines off where it becomes narrower.
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=other, stdout=other, stderr=other, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=clean_environment() | {"TERM": "xterm-256color", "XTERM_VERSION": "pyte"} | (environment or {}))
        self.other = other  # kept open: what is not read yet would be lost with the last writer

    def resize(self, columns, rows):
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))  # raises SIGWINCH

    def read(self, seconds=0.05):
        """What has come until then."""
        while select.select([self.main], [], [], seconds)[0]:
            data = os.read(self.main, 1 << 16)
            self.raw += data
            self.stream.feed(data)
            seconds = 0

    def until(self, holds):
        deadline = time.monotonic() + TIMEOUT
        while not holds():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"it did not come to that, code {self.process.poll()}:\n" + "\n".join(self.lines()))
            self.read()

    def end(self):
        """The exit code, after all was read."""
        deadline = time.monotonic() + TIMEOUT
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()
        self.read()
        return self.process.wait(timeout=1)

    def lines(self):
        """All lines that were ever shown, without empty ones at the end."""
        def text(row):
            return "".join(row[x].data for x in range(self.screen.columns)).rstrip()

        lines = [text(row) for row in self.screen.history.top] + [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def shows_step(self, least):
        shown = [re.search(r"training .*?(\d+)/\d+", line) for line in self.lines()[-3:]]
        return any(found and int(found[1]) >= least for found in shown)


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("SFTRUN_") and name != "NO_COLOR"} | {"OMP_NUM_THREADS": "1"}


class Runs:
    def __init__(self, sftrun, folder):
        self.sftrun, self.folder = sftrun, folder
        records = [{"messages": [{"role": "user", "content": f"What comes after {n}?"},
                                 {"role": "assistant", "content": f"The answer is {n + 1}."}]} for n in range(24)]
        (folder / "toy.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    def command(self, steps, *words):
        config = self.folder / "run.yaml"
        config.write_text(RUN.format(model=ROOT / "tests/data/models/tied-gqa", folder=self.folder, steps=steps))
        return [self.sftrun, "train", "--config", config, "--device", "cpu", "--nproc-per-node", "2", "--overwrite", *words]

    def piped(self, *words, steps=8, environment=None):
        return subprocess.run([str(word) for word in self.command(steps, *words)], env=clean_environment() | (environment or {}),
                              capture_output=True, text=True, timeout=TIMEOUT)


def check_end(name, terminal, code=0, step=None, expected=0):
    """Of a run that has ended: its lines are whole, and its view stands once below them."""
    lines = terminal.lines()
    shown = "\n".join(lines)
    expect(f"{name}: exit code {expected}", code == expected, f"{code}:\n{shown}")
    views = [number for number, line in enumerate(lines) if PROGRESS.match(line)]
    expect(f"{name}: the view is there once", len(views) == 1 and sum(bool(RANKS.match(line)) for line in lines) == 1, shown)
    expect(f"{name}: no line of a single step", not any(STEP_LINE in line for line in lines), shown)
    if step:
        expect(f"{name}: the view has the last step", any(f"{step}/{step}" in lines[number] for number in views), shown)
    expect(f"{name}: the cursor is below the last line", terminal.screen.cursor.x == 0 and not terminal.screen.display[terminal.screen.cursor.y].strip(),
           f"column {terminal.screen.cursor.x}")
    expect(f"{name}: the terminal's modes", termios.tcgetattr(terminal.other) == terminal.modes)


def messages_of(lines):
    """Log lines without what differs between two runs: times and other numbers."""
    log = [line for line in lines if LOG_LINE.search(line) and " step " not in line]
    return [re.sub(r"\d[\d.]*[kM]?( ms)?", "#", line[line.index("] [") + 2:]).replace("# s:", "#:") for line in log]


def check_wide(runs):
    runs.piped(steps=1)  # so that both runs find tokenized data and an earlier run
    terminal = Terminal(runs.command(40), columns=400)  # no log line is longer
    terminal.until(lambda: terminal.shows_step(3))
    view = terminal.lines()[-2:]
    expect("wide: progress is below", re.fullmatch(r"training \[[=> ]{20}\] \d+/40  loss \d\.\d{4}  (?:.* left  )?[\d.]+k? tok/s", view[0]), view)
    expect("wide: both ranks are below", re.fullmatch(r"rank 0  [\d.]+ MiB  CPU +\d+%   rank 1  [\d.]+ MiB  CPU +\d+%", view[1]), view)
    code = terminal.end()
    check_end("wide", terminal, code, 40)
    piped = runs.piped(steps=40)
    shown, wanted = messages_of(terminal.lines()), messages_of(piped.stderr.splitlines())
    expect("wide: every log line is there once, in order", len(wanted) > 8 and shown == wanted, f"{shown}\n{wanted}")
    strange = [line for line in terminal.lines() if line and not (LOG_LINE.search(line) or PROGRESS.match(line) or RANKS.match(line))]
    expect("wide: nothing else is shown", not strange, strange)
    expect("a pipe: lines of steps, no control characters", STEP_LINE in piped.stderr and "\x1b" not in piped.stderr + piped.stdout, piped.stderr)


def check_narrow(runs):
    terminal = Terminal(runs.command(40), columns=32, rows=12)
    terminal.until(lambda: terminal.shows_step(3))
    view = [line for line in terminal.lines()[-3:] if not LOG_LINE.match(line)]
    expect("narrow: one rank a row", view[-2].startswith("rank 0 ") and view[-1].startswith("rank 1 "), view)
    code = terminal.end()
    check_end("narrow", terminal, code, 40)


def check_resized(runs):
    terminal = Terminal(runs.command(150))
    for step, columns in ((3, 50), (20, 110), (40, 40)):  # pyte has another cursor than terminals if the height changes
        terminal.until(lambda step=step: terminal.shows_step(step))
        terminal.resize(columns, 30)
    code = terminal.end()
    check_end("resized", terminal, code, 150)


def check_interrupted(runs):
    terminal = Terminal(runs.command(5000))
    terminal.until(lambda: terminal.shows_step(3))
    os.write(terminal.main, b"\x03")
    code = terminal.end()
    check_end("Ctrl-C", terminal, code, expected=130)
    expect("Ctrl-C: it says what it does", any("SIGINT: stopping with a checkpoint" in line for line in terminal.lines()), terminal.lines())


def check_killed(runs):
    terminal = Terminal(runs.command(5000))
    terminal.until(lambda: terminal.shows_step(3))
    terminal.process.send_signal(signal.SIGKILL)
    code = terminal.end()
    check_end("killed", terminal, code, expected=-signal.SIGKILL)
    deadline = time.monotonic() + 10
    while (left := workers_of(runs.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    expect("killed: no process is left", not left, left)


def workers_of(folder):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(process.name)
        except OSError:
            continue
    return found


def check_plain_terminals(runs):
    terminal = Terminal(runs.command(8), environment={"NO_COLOR": "1", "COLORTERM": "truecolor"})
    code = terminal.end()
    check_end("NO_COLOR", terminal, code, 8)
    expect("NO_COLOR: no colours", not COLOR.search(terminal.raw), terminal.raw)
    terminal = Terminal(runs.command(8), environment={"TERM": "dumb"})
    expect("TERM=dumb: exit code", terminal.end() == 0)
    expect("TERM=dumb: lines of steps, no control characters", STEP_LINE.encode() in terminal.raw and b"\x1b" not in terminal.raw, terminal.raw)


def check_verbosity(runs):
    normal, quiet, verbose = runs.piped(), runs.piped("--quiet"), runs.piped("--verbose")
    by_variable = runs.piped(environment={"SFTRUN_LOG": "quiet"})
    for name, done in (("--quiet", quiet), ("--verbose", verbose), ("SFTRUN_LOG=quiet", by_variable)):
        expect(f"{name}: exit code", done.returncode == 0, done.stderr)
    for name, done in (("--quiet", quiet), ("SFTRUN_LOG=quiet", by_variable)):
        expect(f"{name}: no information, no steps", "[info]" not in done.stderr and STEP_LINE not in done.stderr, done.stderr)
    for name, done in (("--quiet", quiet), ("SFTRUN_LOG=quiet", by_variable)):
        results = done.stdout.splitlines()
        expect(f"{name}: prints the results", any("loss" in line for line in results) and results[-1].startswith("adapter: "), done.stdout)
    expect("normal: the results are in the log", "adapter: " in normal.stderr and normal.stdout == "", normal.stdout)
    log = (runs.folder / "run/logs/rank-0.log").read_text()
    expect("SFTRUN_LOG=quiet: the log file has everything", STEP_LINE in log, log)
    expect("normal: information of rank 0 only", "[info]" in normal.stderr and "[debug]" not in normal.stderr and "[rank 1]" not in normal.stderr,
           normal.stderr)
    warned = runs.piped("--quiet", "train.seed=1", environment={"TRAIN_UNUSED": "1", "SFTRUN_LOG": "verbose"})
    expect("a flag wins over the variable", "[info]" not in warned.stderr, warned.stderr)
    more = len(verbose.stderr.splitlines()) > len(normal.stderr.splitlines())
    expect("--verbose: more lines", more and "[info]" in verbose.stderr, verbose.stderr)
    terminal = Terminal(runs.command(8, "--quiet"))
    expect("--quiet on a terminal: exit code", terminal.end() == 0)
    expect("--quiet on a terminal: no view", not any(PROGRESS.match(line) for line in terminal.lines()), terminal.lines())
    wrong = runs.piped(environment={"SFTRUN_LOG": "loud"})
    expect("SFTRUN_LOG=loud is refused", wrong.returncode == 2 and "SFTRUN_LOG=loud is neither quiet, normal nor verbose" in wrong.stderr, wrong.stderr)
    both = runs.piped("--quiet", "--verbose")
    expect("--quiet and --verbose are refused", both.returncode == 2 and "excludes" in both.stderr, both.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    with tempfile.TemporaryDirectory(prefix="sftrun-terminal-") as folder:
        runs = Runs(sftrun, pathlib.Path(folder))
        for check in (check_wide, check_narrow, check_resized, check_interrupted, check_killed, check_plain_terminals, check_verbosity):
            check(runs)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
