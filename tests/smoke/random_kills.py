#!/usr/bin/env python3
"""Kills runs at random moments, again and again, and compares the result with the undisturbed run's.

    tests/smoke/random_kills.py --sftrun build/bin/sftrun [--kills 100] [--seed 1]
    tests/smoke/random_kills.py --sftrun build/bin/sftrun --combined           # of plans of several axes
    tests/smoke/random_kills.py --sftrun build/bin/sftrun --seed 1 --run 17    # one disturbed run again

Standard library only. LoRA, QLoRA, full training and streamed data take turns, each with one process and with two; then
the sharded strategies and pipelines, with two processes and with four: full training writes divided checkpoints there. Or, with
--combined, plans of several axes (dp_shard and tp, pp and dp_shard, …) with four processes and with eight.
SIGKILL for the launcher, a worker, all workers, or a worker and the launcher: while loading, in a step, a checkpoint or
an evaluation, and while the result is written. After each kill no process may be left, the launcher (where it lives)
must say which worker it lost, and every checkpoint must be whole; then the same command resumes, from the newest
checkpoint. Or the launcher, which lives, restarts the workers itself (--max-restarts). In the end metrics, TensorBoard events, checkpoints and
result must be those of the undisturbed run, bit for bit. `make test` asks for 3 kills, in two or four kinds of runs, and for 2 of several axes;
`make test-full` for 30 and 60.
The choices follow from the seed, the moments only nearly: the folder of a run that fails is kept.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import bad_input  # noqa: E402
import broken_runs  # noqa: E402
import strategy_parity  # noqa: E402
import two_processes  # noqa: E402

STEPS, SAVE_STEPS, EVAL_STEPS = 24, 3, 4
YAML = f"""\
model: {{ name: model, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8, dropout: 0.1, target_modules: all-linear }} }}
data: {{ train: train.jsonl, val: val.jsonl }}
train:
  {{ max_steps: {STEPS}, epochs: 50, global_batch_size: 4, learning_rate: 2.0e-3, warmup_steps: 2, eval_on_start: true,
     eval_steps: {EVAL_STEPS}, save_steps: {SAVE_STEPS}, save_total_limit: 3 }}
output: {{ dir: run, tensorboard: true }}
"""
# Of metrics.jsonl: what a clock or the memory says.
MEASURED = {"tokens_per_second", "step_seconds", "peak_memory_bytes", "eval_seconds", "gpu_utilization", "memory_used_bytes", "cpu_utilization",
            *(f"{part}_seconds" for part in ("data", "forward", "backward", "communication", "optimizer", "other"))}
COMPUTED_EVENTS = {"train/loss", "train/grad_norm", "train/learning_rate", "eval/loss", "rank_0/loss", "rank_1/loss"}

# What differs between the kinds of runs, and what each leaves.
Scenario = collections.namedtuple("Scenario", "name processes overrides checkpoint_files result")
LORA_FILES = ("adapter_model.safetensors", "optimizer.safetensors")
FULL_FILES = ("trainable.safetensors", "optimizer.safetensors")
KINDS = {
    "lora": ([], LORA_FILES, "adapter/adapter_model.safetensors"),
    "qlora": (["tuning.mode=qlora"], LORA_FILES, "adapter/adapter_model.safetensors"),
    "full": (["tuning.mode=full", "train.learning_rate=1e-4"], FULL_FILES, "model/model.safetensors"),
    "streamed": (["data.streaming=true", "data.shuffle_buffer=16"], LORA_FILES, "adapter/adapter_model.safetensors"),
}
SCENARIOS = [Scenario(f"{name} on {processes}", processes, *KINDS[name]) for name in KINDS for processes in (1, 2)]
DIVIDED = [("zero1 2", "lora"), ("zero2 2", "lora"), ("zero3 2", "full"), ("fsdp 4", "qlora"), ("fsdp 4", "full"), ("hybrid", "lora"),
           ("pipeline 2", "lora"), ("pipeline 2", "full"), ("tensor 2", "lora"), ("tensor 2", "full")]
COMBINED = [("pipeline 2 x fsdp 2", "full"), ("fsdp 2 x tensor 2", "lora"), ("pipeline 2 x zero1 2", "full"), ("pipeline 2 x tensor 2", "lora"),
            ("zero1 2 x tensor 2", "full"), ("pipeline 2 x fsdp 2", "qlora"), ("fsdp 2 x tensor 2", "full"), ("pipeline 2 x fsdp 2", "streamed"),
            ("pipeline 2 x tensor 2", "full"), ("fsdp 2 x ddp 2 x tensor 2", "lora"), ("pipeline 2 x fsdp 2 x tensor 2", "full")]


def divided(plan, kind):
    """Where base weights train, each rank writes a part of the checkpoint, except with tensor parallelism."""
    overrides, files, result = KINDS[kind]
    processes, settings = strategy_parity.plan_of(plan)
    if kind == "full" and "tensor" not in plan:
        files = ("parts.json", *(f"{part}-rank-{rank:05}.safetensors" for part in ("trainable", "optimizer") for rank in range(processes)))
    more = [f"{key}={value}" for key, value in settings.items()]
    return Scenario(f"{plan} {kind}", processes, [*overrides, *more], files, result)


SCENARIOS += [divided(*of) for of in DIVIDED]
COMBINED_SCENARIOS = [divided(*of) for of in COMBINED]
TARGETS = ["launcher", "worker", "all workers", "worker and launcher"]
RESTARTED = ", restarted by the launcher"
PHASES = ["load", "step", "evaluation", "checkpoint", "result"]
MAX_KILLS = 5  # of one run
RESTARTED_PART = 0.4  # of the kills that the launcher survives
MAX_PROBLEMS = 10  # then it ends early
POLL = 0.001  # s
UNTIL_GONE = 10  # s, from a kill until no process is left
PATIENCE = 120  # s, for a run to end or to come as far as a kill needs: 16 processes may share two processors

Kill = collections.namedtuple("Kill", "aim times delay target rank")
Outcome = collections.namedtuple("Outcome", "number scenario kills slowest_end problem")
Reference = collections.namedtuple("Reference", "scenario folder load_s life_s")  # an undisturbed run


# What the run directory says while a run goes on

def metrics(folder):
    """The whole lines; one that is torn is none."""
    path = folder / "run/metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def steps_done(folder):
    return sum("loss" in line for line in metrics(folder))


def evaluates(folder):
    """Whether the newest line is of a step that an evaluation follows."""
    lines = metrics(folder)
    return bool(lines) and "loss" in lines[-1] and lines[-1]["step"] % EVAL_STEPS == 0


def saves(folder):
    return any((folder / "run/checkpoints").glob(".unfinished-*"))


def newest_checkpoint(folder):
    return max((int(name.removeprefix("step-")) for name in broken_runs.checkpoints(folder)), default=0)


def writes_result(folder):
    return newest_checkpoint(folder) == STEPS


# A kill comes `delay` seconds after one of these has grown `times` times.
SIGNS = {"step": steps_done, "evaluation": evaluates, "checkpoint begins": saves, "checkpoint ends": newest_checkpoint,
         "result": writes_result}


def written(folder):
    """When the metrics were last written, and the newest checkpoint: a run changes neither before it has loaded."""
    path = folder / "run/metrics.jsonl"
    return (path.stat().st_mtime_ns if path.exists() else 0), newest_checkpoint(folder)


def phase_reached(folder, before):
    """What a kill has interrupted; `before` is what was written before the start. A step comes first, then its line of
    metrics, its evaluation, its checkpoint."""
    lines, saved = metrics(folder), newest_checkpoint(folder)
    step = lines[-1]["step"] if lines else 0
    if written(folder) == before:
        return "load"
    if saves(folder):
        return "checkpoint"
    if saved == STEPS:
        return "result"
    if step <= saved == before[1]:  # the lines after the checkpoint are gone, no step is done
        return "load"
    if evaluates(folder):
        return "evaluation"
    return "checkpoint" if step % SAVE_STEPS == 0 and saved < step else "step"


# Kills

def choose_kill(choice, reference):
    aim = choice.choice(["load", "any time", *SIGNS])
    if aim in SIGNS:
        times, delay = choice.randint(1, 4) if aim != "result" else 1, choice.choice([0, choice.uniform(0, 0.04)])
    else:
        times, delay = 0, choice.uniform(0, reference.load_s if aim == "load" else reference.life_s)
    return Kill(aim, times, delay, choice.choice(TARGETS), choice.choice(all_ranks(reference)))


def all_ranks(reference):
    return [str(rank) for rank in range(reference.scenario.processes)]


def wait_for_moment(run, kill):
    """False if the run ended before."""
    end = time.monotonic() + PATIENCE
    sign = SIGNS.get(kill.aim, lambda folder: 0)
    last, times = sign(run.folder), kill.times
    while times > 0 and run.process.poll() is None:
        now = sign(run.folder)
        times -= now > last
        last = now
        broken_runs.expect(time.monotonic() < end, f"no {kill.aim} within {PATIENCE} s", run.errors.read_text())
        time.sleep(POLL)
    time.sleep(kill.delay)
    return run.process.poll() is None


def victims(run, kill, reference):
    """Process ids, waited for where the workers have not started; none if the run ended before."""
    end = time.monotonic() + PATIENCE
    wanted = {"launcher": [], "all workers": all_ranks(reference)}.get(kill.target, [kill.rank])
    while run.process.poll() is None:
        workers = [pid for pid, rank in broken_runs.processes_in(run.folder).items() if rank in wanted]
        if len(workers) == len(wanted):
            return workers + [run.process.pid] * ("launcher" in kill.target)
        broken_runs.expect(time.monotonic() < end, f"workers {wanted} do not start", run.errors.read_text())
        time.sleep(POLL)
    return []


def strike(run, kill, choice, reference):
    pids = victims(run, kill, reference)
    choice.shuffle(pids)
    broken_runs.kill(pids)  # some may be about to end


def expect_all_gone(folder, killed_at):
    while left := broken_runs.processes_in(folder):
        broken_runs.expect(time.monotonic() < killed_at + UNTIL_GONE, f"left after {UNTIL_GONE} s: {left}")
        time.sleep(POLL)


def expect_end_of_killed(ended, kill):
    if "launcher" not in kill.target:
        lost = kill.rank if kill.target == "worker" else r"\d"
        broken_runs.expect_error(ended, 5, f"error: .*first failure on rank {lost} ", "SIGKILL", r"\n  fix: ")
    else:
        broken_runs.expect(ended[0] in (-signal.SIGKILL, 5), f"exit code {ended[0]}", ended[1])


# What a run leaves

def expect_whole_safetensors(path):
    content = path.read_bytes()
    [header_bytes] = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + header_bytes])
    end = max(tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__")
    expected = 8 + header_bytes + end
    broken_runs.expect(len(content) == expected, f"{path}: {len(content)} bytes, not {expected}")


def expect_whole_folder(folder, lengths):
    """All files that it must hold, each of its length (None: any)."""
    for name, length in lengths.items():
        path = folder / name
        broken_runs.expect(path.exists(), f"{path} is missing")
        broken_runs.expect(length in (None, path.stat().st_size), f"{path}: {path.stat().st_size} bytes, not {length}")
        if path.suffix == ".safetensors":
            expect_whole_safetensors(path)


def expect_nothing_corrupt(folder, reference):
    for name in broken_runs.checkpoints(folder):
        checkpoint = folder / "run/checkpoints" / name
        files = json.loads((checkpoint / "state.json").read_text())["files"]
        expect_whole_folder(checkpoint, {name: file["bytes"] for name, file in files.items()})
    result = pathlib.Path("run") / pathlib.Path(reference.scenario.result).parent
    if (folder / result).exists():
        expect_whole_folder(folder / result, dict.fromkeys(os.listdir(reference.folder / result)))
    if (folder / "run/run.json").exists():
        json.loads((folder / "run/run.json").read_text())


def computed(folder):
    """metrics.jsonl without what differs from run to run."""
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in metrics(folder)]


def protobuf_fields(message):
    """Number and value of each field: an integer, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        number, wire_type = divmod(varint(), 8)
        if wire_type == 0:
            yield number, varint()
        else:
            length = varint() if wire_type == 2 else {1: 8, 5: 4}[wire_type]
            yield number, message[at:at + length]
            at += length


def events(folder):
    """Tag, step and value of every computed scalar that TensorBoard would find."""
    found = []
    for path in (folder / "run/tensorboard").glob("*tfevents*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            [length] = struct.unpack_from("<Q", content, at)
            event = dict(protobuf_fields(content[at + 12:at + 12 + length]))
            at += 12 + length + 4
            for _, value in protobuf_fields(event.get(5, b"")):
                parts = dict(protobuf_fields(value))
                tag = parts[1].decode()
                if tag in COMPUTED_EVENTS:
                    found.append((tag, event.get(2, 0), parts[2]))
    return sorted(found)


def expect_equal(what, actual, expected):
    differing = [f"  {a}\n  not {e}" for a, e in zip(actual, expected) if a != e]
    broken_runs.expect(len(actual) == len(expected) and not differing,
                       f"{what}: {len(actual)}, in the undisturbed run {len(expected)}; first difference:",
                       "".join(differing[:1]))


def expect_same_result(folder, reference):
    expect_equal("lines of metrics", computed(folder), computed(reference.folder))
    expect_equal("TensorBoard's events", events(folder), events(reference.folder))
    for name in broken_runs.checkpoints(reference.folder):
        for file in reference.scenario.checkpoint_files:
            expect_same_bytes(folder, reference.folder, f"checkpoints/{name}/{file}")
    expect_same_bytes(folder, reference.folder, reference.scenario.result)
    names = [str(path.relative_to(folder)) for path in (folder / "run").rglob("*")]
    unfinished = [name for name in names if ".unfinished" in name or ".tmp-" in name]
    broken_runs.expect(not unfinished, f"left unfinished: {unfinished}")


def expect_same_bytes(folder, reference, name):
    same = (folder / "run" / name).read_bytes() == (reference / "run" / name).read_bytes()
    broken_runs.expect(same, f"{name} differs from that of the undisturbed run")


# Runs

def prepare(folder, program):
    bad_input.good_folder(folder, program)
    (folder / "run.yaml").write_text(YAML)
    two_processes.write_lines(folder / "train.jsonl", [two_processes.record(n) for n in range(2, 66)])
    two_processes.write_lines(folder / "val.jsonl", [two_processes.record(n) for n in range(66, 114)])


def start(folder, scenario, *more):
    return broken_runs.Run(folder, scenario.processes, *scenario.overrides, *more)


def undisturbed(folder, program, scenario):
    """With the seconds until the first step was done, and until the end."""
    folder.mkdir()
    prepare(folder, program)
    begin = time.monotonic()
    run = start(folder, scenario).wait_for_steps(1)
    load_s = time.monotonic() - begin
    code, text, _ = run.end()
    broken_runs.expect(code == 0, f"the undisturbed run ({scenario.name}) ends with {code}", text)
    return Reference(scenario, folder, load_s, time.monotonic() - begin)


def expect_resumed_from(run, newest):
    """No step is lost that a checkpoint holds."""
    text = run.errors.read_text()
    broken_runs.expect(newest == 0 or f"resuming from run/checkpoints/step-{newest:06}" in text,
                       f"not resumed from step {newest}", text)


def kill_and_restart(folder, reference, kill, choice):
    """The same, where the launcher has a restart left: it brings the run to its end."""
    before, phase = written(folder), None
    run = start(folder, reference.scenario, "--max-restarts", "1")
    if wait_for_moment(run, kill):
        strike(run, kill, choice, reference)
        phase = phase_reached(folder, before)
    code, text, _ = run.end()
    expect_all_gone(folder, time.monotonic())
    broken_runs.expect(code == 0, f"exit code {code} with a restart", text)
    expect_nothing_corrupt(folder, reference)
    return (phase if "restart 1 of 1, from the last checkpoint" in text else None), 0


def kill_once(folder, reference, kill, choice):
    """The phase that was interrupted, None if the run was complete before; and the seconds until all had ended."""
    before = written(folder)
    run = start(folder, reference.scenario)
    if wait_for_moment(run, kill):
        strike(run, kill, choice, reference)
    killed_at = time.monotonic()
    ended = run.process.wait(timeout=UNTIL_GONE), run.errors.read_text(), 0
    expect_all_gone(folder, killed_at)
    slowest_end = time.monotonic() - killed_at
    if ended[0] == 0:
        return None, slowest_end
    expect_end_of_killed(ended, kill)
    expect_nothing_corrupt(folder, reference)
    return phase_reached(folder, before), slowest_end


def disturbed(number, program, reference, seed):
    """One run with its kills, until it has ended by itself."""
    choice = random.Random(f"{seed} {number}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"random-kills-{seed}-{number}-")).resolve()
    prepare(folder, program)
    kills, kill, slowest_end = [], None, 0
    try:
        for _ in range(choice.randint(1, MAX_KILLS)):
            kill = choose_kill(choice, reference)
            restarts = "launcher" not in kill.target and choice.random() < RESTARTED_PART
            phase, end_s = (kill_and_restart if restarts else kill_once)(folder, reference, kill, choice)
            slowest_end = max(slowest_end, end_s)
            if phase is None:
                break
            kills.append((kill.target + RESTARTED * restarts, phase))
            if restarts:  # the run is complete
                break
        newest = newest_checkpoint(folder)
        run = start(folder, reference.scenario)
        code, text, _ = run.end()
        broken_runs.expect(code == 0, f"the last run ends with {code}", text)
        expect_resumed_from(run, newest)
        expect_same_result(folder, reference)
    except Exception as failure:  # whatever it is, the folder must be named
        broken_runs.kill(broken_runs.processes_in(folder))
        problem = (f"seed {seed}, run {number} ({reference.scenario.name}), after {len(kills)} kills {kills}, last {kill}; kept in {folder}\n"
                   f"{type(failure).__name__}: {failure}")
        return Outcome(number, reference.scenario.name, kills, slowest_end, problem)
    shutil.rmtree(folder)
    return Outcome(number, reference.scenario.name, kills, slowest_end, None)


def counts(names, seen):
    return ", ".join(f"{name} {seen.count(name)}" for name in names)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--kills", type=int, default=100, help="at least so many (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the choices (default 1)")
    parser.add_argument("--combined", action="store_true", help="plans of several axes, instead of one")
    parser.add_argument("--run", type=int, help="only the disturbed run of this number")
    arguments = parser.parse_args()
    program = arguments.sftrun.resolve()
    scenarios = COMBINED_SCENARIOS if arguments.combined else SCENARIOS

    outcomes, problems, kills = [], [], []
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        references = {}  # of the scenarios that had a turn
        numbers = [1, 2] if arguments.run is None else [arguments.run]
        while numbers:
            new = sorted({number % len(scenarios) for number in numbers} - references.keys())
            references |= zip(new, pool.map(
                lambda n: undisturbed(pathlib.Path(name).resolve() / scenarios[n].name.replace(" ", "-"), program, scenarios[n]), new))
            found = list(pool.map(lambda n: disturbed(n, program, references[n % len(scenarios)], arguments.seed), numbers))
            outcomes += found
            problems += [outcome.problem for outcome in found if outcome.problem]
            kills += [kill for outcome in found for kill in outcome.kills]
            enough = arguments.run is not None or len(kills) >= arguments.kills or len(problems) >= MAX_PROBLEMS
            numbers = [] if enough else [number + 2 for number in numbers]
    for problem in problems:
        print("FAIL", problem)
    by_scenario = collections.Counter({outcome.scenario: 0 for outcome in outcomes})
    for outcome in outcomes:
        by_scenario[outcome.scenario] += len(outcome.kills)
    print(f"seed {arguments.seed}: {', '.join(f'{name}: {number}' for name, number in sorted(by_scenario.items()))}")
    print(f"{len(kills)} kills ({counts([*TARGETS, *(target + RESTARTED for target in TARGETS[1:3])], [target for target, _ in kills])}; "
          f"{counts(PHASES, [phase for _, phase in kills])}), {len(outcomes)} runs, all processes gone after at most "
          f"{max(outcome.slowest_end for outcome in outcomes):.1f} s, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
