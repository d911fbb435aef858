#!/usr/bin/env python3
"""Holds up one rank of a run, in a part of its work that is known, and reads whom the launcher names.

    tests/smoke/stalls.py --sftrun build/bin/sftrun [--stalls 50] [--seed 1] [--place NAME] [--combined]

Standard library and a C compiler. A rank is held up in one call of a function of the engine (held_up.py); or the rank is stopped (SIGSTOP).
The launcher must name this rank alone, what it does, and the step; with its stack, where it is not stopped. Then the rank goes on, and the run
must end as if nothing had been. 2 to 4 processes over Gloo, under ddp, zero2, fsdp and hybrid.

With --combined a rank of a plan of several axes is stopped (dp_shard and tp, pp and dp_shard, …; 4 and 8 processes). The report must say
besides what the others wait in, by axis and ranks: "rank 2 waits in all-reduce of tp (ranks 2 and 3)". Each group that is named must be one
of the plan, and one must have the rank that is stopped.

Exit code 77: no compiler, or a processor that the library is not written for.
"""

import argparse
import collections
import concurrent.futures
import math
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import bad_input  # noqa: E402
import broken_runs  # noqa: E402
import held_up  # noqa: E402
import strategy_parity  # noqa: E402
import two_processes  # noqa: E402

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
# As `strategy_parity.plan_of` has them.
PLANS = ["ddp 2", "ddp 3", "ddp 4", "zero2 2", "zero2 4", "fsdp 2", "fsdp 3", "fsdp 4", "hybrid"]
COMBINED = list(strategy_parity.COMBINED_PLANS)

# A function of the engine, what the launcher says while a rank is in it, how many steps are ahead of metrics.jsonl then (None:
# no step is named), and the last call that every run makes.
Place = collections.namedtuple("Place", "symbol said ahead last_call ranks")
ALL, MAIN = "all", "rank 0"
PLACES = {
    "loading": Place("_ZN6sftrun6engine12load_decoderERKSt10shared_ptrIKNS_7weights10CheckpointEERKNS_5model14DecoderOptionsE",
                     "loading the model", None, 1, ALL),
    "data loader": Place("_ZN6sftrun5train14PlannedBatches2atEl", "in the data loader", 1, STEPS, ALL),
    "forward": Place("_ZN6sftrun5model17embedding_forwardERNS0_7DecoderERNS0_13MicroBatchRunE", "in the forward pass", 1, EVAL_STEPS - 1, ALL),
    "backward": Place("_ZN6sftrun5model14layer_backwardERNS0_7DecoderERNS0_13MicroBatchRunElPKNS0_12InputStreamsE", "in the backward pass", 1, STEPS, ALL),
    "optimizer": Place("_ZN6sftrun5train5AdamW4stepEdd", "in the optimizer", 1, STEPS - 1, ALL),
    "evaluation": Place("_ZN6sftrun5train9Evaluator3runERNS_5model7DecoderERNS_8parallel8StrategyERKNS0_9ObjectiveERNS5_12CommunicatorERKSt8functionIFivEE",
                        "in the evaluation", 0, STEPS // EVAL_STEPS, ALL),
    "checkpoint": Place("_ZNK6sftrun5train15CheckpointStore4saveERKNS0_18CheckpointContentsERKSt8optionalINS_7weights13AdapterConfigEERKNS0_10TrainStateElS5_IlE",
                        "writing a checkpoint", 0, STEPS // SAVE_STEPS, MAIN),
}
STOPPED = "stopped"

Case = collections.namedtuple("Case", "place plan processes rank call")


def compile_shims(folder, program):
    """A library for each function, by the name of its place."""
    held_up.require_symbols(program, [place.symbol for place in PLACES.values()])
    shims = {}
    for number, (name, place) in enumerate(PLACES.items()):
        shims[name] = folder / f"shim-{number}.so"
        held_up.compile_shim(place.symbol, shims[name])
    return shims


def choose(choice, name, plan):
    processes, _ = strategy_parity.plan_of(plan)
    if name == STOPPED:
        return Case(name, plan, processes, choice.randrange(processes), choice.uniform(0, 2))
    place = PLACES[name]
    rank = 0 if place.ranks == MAIN else choice.randrange(processes)
    return Case(name, plan, processes, rank, choice.randint(1, place.last_call))


def cases(count, seed, combined):
    """Every place in turn, or every plan of several axes."""
    choice = random.Random(seed)
    if combined:
        return [choose(choice, STOPPED, COMBINED[number % len(COMBINED)]) for number in range(count)]
    names = [*PLACES, STOPPED]
    return [choose(choice, names[number % len(names)], choice.choice(PLANS)) for number in range(count)]


def prepare(folder, program, combined):
    bad_input.good_folder(folder, program)
    if combined:  # of six heads of attention four ranks cannot have equal shares
        shutil.rmtree(folder / "model")
        shutil.copytree(bad_input.MODELS / "llama3-gguf", folder / "model", ignore=shutil.ignore_patterns("reference.*", "*.gguf"))
    (folder / "run.yaml").write_text(YAML)
    two_processes.write_lines(folder / "train.jsonl", [two_processes.record(n) for n in range(2, 66)])
    two_processes.write_lines(folder / "val.jsonl", [two_processes.record(n) for n in range(66, 90)])


def start(folder, case, shims):
    prefix = () if case.place == STOPPED else held_up.HeldUp(shims[case.place], folder, case.rank, case.call).prefix
    plan = [f"{key}={value}" for key, value in strategy_parity.plan_of(case.plan)[1].items()]
    # One that is stopped trains until it is told to end, so that any moment is one of training.
    length = broken_runs.LONG if case.place == STOPPED else []
    return broken_runs.Run(folder, case.processes, *plan, *length, prefix=prefix)


def wait_for_text(run, pattern, since=0):
    """What matches it, in the launcher's messages from that character on."""
    end = time.monotonic() + PATIENCE
    while not (found := re.search(pattern, run.errors.read_text()[since:])):
        broken_runs.expect(run.process.poll() is None and time.monotonic() < end, f"the launcher does not say /{pattern}/",
                           run.errors.read_text())
        time.sleep(0.05)
    return found


def steps_done(folder):
    return len(broken_runs.steps(folder)) if (folder / "run/metrics.jsonl").exists() else 0


def expect_named_alone(run, case, since=0):
    """@return the first report of a rank that has come further than its start: here many processes start on few processors"""
    report = wait_for_text(run, r"warning: no progress for (?!.* been starting).*\n", since).group()
    named = set(re.findall(r"(ranks? [0-9, and-]+) (?:has|have|is|are) ", report))
    broken_runs.expect(named == {f"rank {case.rank}"}, f"named: {named}, not rank {case.rank}", report)
    return report


def group_of(sizes, rank, axes):
    """The ranks that differ from this one in their places along `axes` alone."""
    def places(of):
        found = {}
        for axis, size in reversed(sizes.items()):
            of, found[axis] = divmod(of, size)
        return {axis: place for axis, place in found.items() if axis not in axes}

    return {other for other in range(math.prod(sizes.values())) if places(other) == places(rank)}


def ranks_in(text):
    """Of "0-2 and 5"."""
    parts = [list(map(int, part.split("-"))) for part in re.split(r", | and ", text)]
    return {rank for part in parts for rank in range(part[0], part[-1] + 1)}


def axes_waited_for(report, case):
    """Checks what the other ranks wait in.   @return the axes of the groups that have the stopped rank; "": all ranks"""
    sizes, found = strategy_parity.sizes_of(case.plan), set()
    for axes, named in re.findall(r" waits? in [a-z-]+(?: of ([a-z_+]+) \(ranks? ([^)]*)\))?", report):
        ranks = ranks_in(named) if axes else set(range(case.processes))
        if axes:
            broken_runs.expect(ranks == group_of(sizes, min(ranks), axes.split("+")), f"{axes} has no group of ranks {named}", report)
        if case.rank in ranks:
            found.add(axes)
    broken_runs.expect(found, f"no rank waits for rank {case.rank}", report)
    return found


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
    before = len(run.errors.read_text())  # ranks that loaded for long, where many processes share few processors
    os.kill(victim, signal.SIGSTOP)
    try:
        report = expect_named_alone(run, case, before)
        done = steps_done(folder)
        said = rf"rank {case.rank} is stopped by a signal \(SIGSTOP\) .* \(step ({done}|{done + 1})\)"
        broken_runs.expect(re.search(said, report), f"not /{said}/", report)
        wait_for_text(run, f"kill -CONT {victim} continues rank {case.rank}")
        axes = axes_waited_for(report, case)
    finally:
        os.kill(victim, signal.SIGCONT)
    run.wait_for_steps(done + 2)
    run.process.send_signal(signal.SIGTERM)
    code, text, _ = run.end()
    broken_runs.expect(code == 75, f"exit code {code}", text)
    return axes


def check(number, case, program, shims):
    """The problem, or None; and the axes in which ranks wait for one that is stopped."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"stall-{number}-")).resolve()
    prepare(folder, program, case.plan in COMBINED)
    try:
        axes = stopped(folder, case) if case.place == STOPPED else held(folder, case, shims)
    except Exception as failure:  # whatever it is, the folder must be named
        broken_runs.kill(broken_runs.processes_in(folder))
        return f"stall {number}, {case}; kept in {folder}\n{type(failure).__name__}: {failure}", None
    shutil.rmtree(folder)
    return None, axes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--stalls", type=int, default=50, help="default 50")
    parser.add_argument("--seed", type=int, default=1, help="of the choices (default 1)")
    parser.add_argument("--combined", action="store_true", help="stop ranks of plans of several axes")
    parser.add_argument("--place", choices=[*PLACES, STOPPED], help="only stalls of this kind")
    arguments = parser.parse_args()
    if reason := held_up.why_not():
        print(f"SKIPPED: {reason}")
        return SKIPPED
    program = arguments.sftrun.resolve()
    chosen = [(number, case) for number, case in enumerate(cases(arguments.stalls, arguments.seed, arguments.combined))
              if arguments.place in (None, case.place)]
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        shims = compile_shims(pathlib.Path(name), program)
        results = list(pool.map(lambda item: check(*item, program, shims), chosen))
    problems = [problem for problem, _ in results if problem]
    for problem in problems:
        print(problem)
    places = collections.Counter(case.place for _, case in chosen)
    print(f"{len(chosen)} stalls ({', '.join(f'{place} {count}' for place, count in places.items())}): "
          f"{len(chosen) - len(problems)} with the right rank, work and step")
    if waited := collections.Counter(axis or "all ranks" for _, axes in results for axis in axes or ()):
        print("ranks that were stopped were waited for in collectives of", ", ".join(f"{axis} {count}" for axis, count in sorted(waited.items())))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
