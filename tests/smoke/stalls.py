#!/usr/bin/env python3
"""Holds up one rank of a run, in a part of its work that is known, and reads whom the launcher names.

    tests/smoke/stalls.py --sftrun build/bin/sftrun [--stalls 50] [--seed 1] [--place NAME]

Standard library and a C compiler. A rank is held up in one call of a function of the engine (held_up.py); or the rank is stopped (SIGSTOP). The launcher must name this rank
alone, what it does, and the step; with its stack, where it is not stopped. Then the rank goes on, and the run must end as
if nothing had been. 2 to 4 processes over Gloo, under ddp, zero2, fsdp and hybrid. Exit code 77: no compiler, or a
processor that the library is not written for.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

import bad_input
import broken_runs
import held_up
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
    "evaluation": Place("_ZNK6sftrun5train9Evaluator3runERNS_5model7DecoderERNS_8parallel8StrategyERKNS0_9ObjectiveERNS5_12CommunicatorERKSt8functionIFivEE",
                        "in the evaluation", 0, STEPS // EVAL_STEPS, ALL),
    "checkpoint": Place("_ZNK6sftrun5train15CheckpointStore4saveERKNS0_18CheckpointContentsERKSt8optionalINS_7weights13AdapterConfigEERKNS0_10TrainStateElS5_IlE",
                        "writing a checkpoint", 0, STEPS // SAVE_STEPS, MAIN),
}
STOPPED = "stopped"

Case = collections.namedtuple("Case", "place strategy processes rank call")


def compile_shims(folder, program):
    """A library for each function, by the name of its place."""
    held_up.require_symbols(program, [place.symbol for place in PLACES.values()])
    shims = {}
    for number, (name, place) in enumerate(PLACES.items()):
        shims[name] = folder / f"shim-{number}.so"
        held_up.compile_shim(place.symbol, shims[name])
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
    prefix = () if case.place == STOPPED else held_up.HeldUp(shims[case.place], folder, case.rank, case.call).prefix
    strategy = [f"parallel.strategy={case.strategy}"] + ["parallel.dp_shard=2"] * (case.strategy == "hybrid")
    # One that is stopped trains until it is told to end, so that any moment is one of training.
    length = broken_runs.LONG if case.place == STOPPED else []
    return broken_runs.Run(folder, case.processes, *strategy, *length, prefix=prefix)


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


def held(folder, case, shims):
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
        stopped(folder, case) if case.place == STOPPED else held(folder, case, shims)
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
    if reason := held_up.why_not():
        print(f"SKIPPED: {reason}")
        return SKIPPED
    program = arguments.sftrun.resolve()
    chosen = [(number, case) for number, case in enumerate(cases(arguments.stalls, arguments.seed))
              if arguments.place in (None, case.place)]
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        shims = compile_shims(pathlib.Path(name), program)
        problems = [found for found in pool.map(lambda item: check(*item, program, shims), chosen) if found]
    for problem in problems:
        print(problem)
    places = collections.Counter(case.place for _, case in chosen)
    print(f"{len(chosen)} stalls ({', '.join(f'{place} {count}' for place, count in places.items())}): "
          f"{len(chosen) - len(problems)} with the right rank, work and step")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
