#!/usr/bin/env python3
"""Holds up one rank of a run, in a part of its work that is known, and reads whom the launcher names.

    tests/smoke/stalls.py --sftrun build/bin/sftrun [--stalls 50] [--seed 1] [--place NAME]

Standard library and a C compiler. A library that is loaded before the program (LD_PRELOAD) stands in front of a function of
the engine and sleeps there, on one rank, in one call; or the rank is stopped (SIGSTOP). The launcher must name this rank
alone, what it does, and the step; with its stack, where it is not stopped. Then the rank goes on, and the run must end as
if nothing had been. 2 to 4 processes over Gloo, under ddp, zero2, fsdp and hybrid. Exit code 77: no compiler, or a
processor that the library is not written for.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import bad_input
import broken_runs
import two_processes

SKIPPED = 77
PATIENCE = 120  # s
STALL_AFTER_S = 2
STEPS, SAVE_STEPS, EVAL_STEPS = 8, 3, 4
YAML = f"""\
model: {{ name: model, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8, target_modules: all-linear }} }}
data: {{ train: train.jsonl, val: val.jsonl }}
train:
  {{ max_steps: {STEPS}, epochs: 50, global_batch_size: 12, learning_rate: 2.0e-3, eval_steps: {EVAL_STEPS},
     save_steps: {SAVE_STEPS} }}
parallel: {{ stall_after: {STALL_AFTER_S}s }}
output: {{ dir: run, tensorboard: false }}
"""
# Processes and settings.
STRATEGIES = {
    "ddp": (2, 3, 4), "zero2": (2, 4), "fsdp": (2, 3, 4), "hybrid": (4,),
}

# A function of the engine, what the launcher says while a rank is in it, how many steps are ahead of metrics.jsonl then (None:
# no step is named), and the last call that every run makes.
Place = collections.namedtuple("Place", "symbol said ahead last_call ranks")
ALL, MAIN = "all", "rank 0"
PLACES = {
    "loading": Place("_ZN6sftrun6engine12load_decoderERKSt10shared_ptrIKNS_7weights10CheckpointEERKNS_5model14DecoderOptionsE",
                     "loading the model", None, 1, ALL),
    "data loader": Place("_ZN6sftrun5train14PlannedBatches2atEl", "in the data loader", 1, STEPS, ALL),
    "forward": Place("_ZNK6sftrun5model5Stage5embedERNS0_13MicroBatchRunE", "in the forward pass", 1, EVAL_STEPS - 1, ALL),
    "backward": Place("_ZNK6sftrun5model5Stage14layer_backwardERNS0_13MicroBatchRunEl", "in the backward pass", 1, STEPS, ALL),
    "optimizer": Place("_ZN6sftrun5train5AdamW4stepEdd", "in the optimizer", 1, STEPS - 1, ALL),
    "evaluation": Place("_ZNK6sftrun5train9Evaluator3runERNS_5model7DecoderERNS_8parallel8StrategyERKNS0_9ObjectiveERNS5_12CommunicatorE",
                        "in the evaluation", 0, STEPS // EVAL_STEPS, ALL),
    "checkpoint": Place("_ZNK6sftrun5train15CheckpointStore4saveERKNS0_18CheckpointContentsERKSt8optionalINS_7weights13AdapterConfigEERKNS0_10TrainStateElS5_IlE",
                        "writing a checkpoint", 0, STEPS // SAVE_STEPS, MAIN),
}
STOPPED = "stopped"

# Saves the registers that may hold arguments, calls `hold_up`, and goes on to the function itself.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
void* hold_up(void) {
  static void* function;
  static int calls;
  if (function == 0) function = dlsym(dlopen("libsftrun_engine.so", RTLD_NOW | RTLD_NOLOAD), SYMBOL);
  const char* rank = getenv("RANK");
  if (rank == 0 || strcmp(rank, getenv("HELD_UP_RANK")) != 0 || ++calls != atoi(getenv("HELD_UP_CALL"))) return function;
  struct timespec short_time = {0, 20000000};
  while (access(getenv("HELD_UP_UNTIL"), F_OK) != 0) nanosleep(&short_time, 0);
  return function;
}
__asm__(".globl " SYMBOL "\n.type " SYMBOL ", @function\n" SYMBOL ":\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\nsub $24, %rsp\n"
        "movsd %xmm0, (%rsp)\nmovsd %xmm1, 8(%rsp)\ncall hold_up@PLT\nmovsd (%rsp), %xmm0\nmovsd 8(%rsp), %xmm1\n"
        "add $24, %rsp\npop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%rax\n");
"""

Case = collections.namedtuple("Case", "place strategy processes rank call")


def compile_shims(folder):
    """A library for each function, by the name of its place."""
    shims = {}
    for number, (name, place) in enumerate(PLACES.items()):
        shims[name] = folder / f"shim-{number}.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", shims[name], f'-DSYMBOL="{place.symbol}"'], input=SHIM,
                       text=True, check=True)
    return shims


def choose(choice, name):
    strategy = choice.choice(list(STRATEGIES))
    processes = choice.choice(STRATEGIES[strategy])
    if name == STOPPED:
        return Case(name, strategy, processes, choice.randrange(processes), choice.uniform(0, 2))
    place = PLACES[name]
    rank = 0 if place.ranks == MAIN else choice.randrange(processes)
    return Case(name, strategy, processes, rank, choice.randint(1, place.last_call))


def cases(count, seed):
    """Every place in turn."""
    choice = random.Random(seed)
    names = [*PLACES, STOPPED]
    return [choose(choice, names[number % len(names)]) for number in range(count)]


def prepare(folder, program):
    bad_input.good_folder(folder, program)
    (folder / "run.yaml").write_text(YAML)
    two_processes.write_lines(folder / "train.jsonl", [two_processes.record(n) for n in range(2, 66)])
    two_processes.write_lines(folder / "val.jsonl", [two_processes.record(n) for n in range(66, 90)])


def start(folder, case, shims):
    variables = []
    if case.place != STOPPED:
        variables = [f"LD_PRELOAD={shims[case.place]}", f"HELD_UP_RANK={case.rank}", f"HELD_UP_CALL={case.call}",
                     f"HELD_UP_UNTIL={folder / 'go on'}"]
    strategy = [f"parallel.strategy={case.strategy}"] + ["parallel.dp_shard=2"] * (case.strategy == "hybrid")
    # One that is stopped trains until it is told to end, so that any moment is one of training.
    length = broken_runs.LONG if case.place == STOPPED else []
    return broken_runs.Run(folder, case.processes, *strategy, *length, prefix=("env", *variables))


def wait_for_text(run, pattern):
    """What matches it."""
    end = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, run.errors.read_text())):
        broken_runs.expect(run.process.poll() is None and time.monotonic() < end, f"the launcher does not say /{pattern}/",
                           run.errors.read_text())
        time.sleep(0.05)
    return found


def steps_done(folder):
    return len(broken_runs.steps(folder)) if (folder / "run/metrics.jsonl").exists() else 0


def expect_named_alone(run, case):
    """@return the first report of a rank that has come further than its start: here many processes start on few processors"""
    report = wait_for_text(run, r"warning: no progress for (?!.* been starting).*\n").group()
    named = set(re.findall(r"(ranks? [0-9, and-]+) (?:has|have|is|are) ", report))
    broken_runs.expect(named == {f"rank {case.rank}"}, f"named: {named}, not rank {case.rank}", report)
    return report


def held_up(folder, case, shims):
    place = PLACES[case.place]
    run = start(folder, case, shims)
    report = expect_named_alone(run, case)
    # When another rank is in the optimizer, rank 0 has written this step's metrics.
    ahead = 0 if case.place == "optimizer" and case.rank > 0 else place.ahead
    step = "" if ahead is None else rf" \(step {steps_done(folder) + ahead}\)"
    said = f"rank {case.rank} has been {place.said} for [^;]*{step};"
    broken_runs.expect(re.search(said, report), f"not /{said}/", report)
    # Another thread writes a checkpoint; the rank waits for it.
    function = "hold_up|nanosleep|CheckpointWriter::finish" if case.place == "checkpoint" else "hold_up|nanosleep"
    wait_for_text(run, rf"  stack of rank {case.rank} \(pid \d+\).*\n(    .*\n)*    .*({function})")
    (folder / "go on").touch()
    broken_runs.expect_success(run.end())
    broken_runs.expect(broken_runs.steps(folder) == list(range(1, STEPS + 1)), f"steps: {broken_runs.steps(folder)}")


def stopped(folder, case):
    run = start(folder, case, {}).wait_for_steps(1)
    time.sleep(case.call)
    [victim] = [pid for pid, rank in broken_runs.processes_in(folder).items() if rank == str(case.rank)]
    os.kill(victim, signal.SIGSTOP)
    try:
        report = expect_named_alone(run, case)
        done = steps_done(folder)
        said = rf"rank {case.rank} is stopped by a signal \(SIGSTOP\) .* \(step ({done}|{done + 1})\)"
        broken_runs.expect(re.search(said, report), f"not /{said}/", report)
        wait_for_text(run, f"kill -CONT {victim} continues rank {case.rank}")
    finally:
        os.kill(victim, signal.SIGCONT)
    run.wait_for_steps(done + 2)
    run.process.send_signal(signal.SIGTERM)
    code, text, _ = run.end()
    broken_runs.expect(code == 75, f"exit code {code}", text)


def check(number, case, program, shims):
    """The problem, or None."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"stall-{number}-")).resolve()
    prepare(folder, program)
    try:
        stopped(folder, case) if case.place == STOPPED else held_up(folder, case, shims)
    except Exception as failure:  # whatever it is, the folder must be named
        for pid in broken_runs.processes_in(folder):
            os.kill(pid, signal.SIGKILL)
        return f"stall {number}, {case}; kept in {folder}\n{type(failure).__name__}: {failure}"
    shutil.rmtree(folder)
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--stalls", type=int, default=50, help="default 50")
    parser.add_argument("--seed", type=int, default=1, help="of the choices (default 1)")
    parser.add_argument("--place", choices=[*PLACES, STOPPED], help="only stalls of this kind")
    arguments = parser.parse_args()
    if platform.machine() != "x86_64" or not shutil.which("cc"):
        print("SKIPPED: the library that holds a rank up needs a C compiler and an x86-64 processor")
        return SKIPPED
    program = arguments.sftrun.resolve()
    chosen = [(number, case) for number, case in enumerate(cases(arguments.stalls, arguments.seed))
              if arguments.place in (None, case.place)]
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        shims = compile_shims(pathlib.Path(name))
        problems = [found for found in pool.map(lambda item: check(*item, program, shims), chosen) if found]
    for problem in problems:
        print(problem)
    places = collections.Counter(case.place for _, case in chosen)
    print(f"{len(chosen)} stalls ({', '.join(f'{place} {count}' for place, count in places.items())}): "
          f"{len(chosen) - len(problems)} with the right rank, work and step")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
