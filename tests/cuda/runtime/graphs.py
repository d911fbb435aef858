"""Micro-batches as CUDA graphs: each size is captured once, and from then on a micro-batch is one launch, with no memory taken and no wait."""

import re

from cases import DENSE
from counting import MIXTURES, NOT_IN_A_MICRO_BATCH, difference, run, run_family, summary, tally
from tiny_models import families

ON = "train.cuda_graphs=on"
MODES_OF_DENSE = ["LoRA", "LoRA fp32", "LoRA fp16", "full", "nf4", "fp8", "int8", "gradient checkpointing", "DoRA", "LoRA dropout, head", "nf4 embeddings",
                  "full, gradient checkpointing", "full paged_adamw"]
# What is not captured, and the reason that the log gives.
WITHOUT = {r"qwen3_5.*": "delta nets", r"mixture, (experts adapted|full)|gpt_oss|mixtral|qwen3_moe": "auxiliary loss"}
STEPS = 4
# Of a replayed micro-batch, beside the graph: the batch into the graph's memory, angles of each rope, the loss out of it.
MOST_LAUNCHES = 4


def captured(events):
    return sum(event["event"] == "capture_end" for event in events)


def reason_of(name):
    return next((reason for pattern, reason in WITHOUT.items() if re.fullmatch(pattern, name)), None)


def uncaptured(title, done, reason):
    if not any("CUDA graphs: none" in line and reason in line for line in done.output.splitlines()):
        yield f"{title}: no word of {reason}"
    if captured(done.events(0)):
        yield f"{title}: captured all the same"


def check_micro_batch(title, more, captures):
    numbers = {name: number / STEPS for name, number in summary(more).items()}
    if captures != 1:
        yield f"{title}: {captures} captures of one shape"
    if numbers["graph launches"] != 1:
        yield f"{title}: {numbers['graph launches']:g} graph launches in every micro-batch"
    for what in ("cudaMalloc", "products", *NOT_IN_A_MICRO_BATCH):
        if numbers[what] > 0:
            yield f"{title}: {numbers[what]:g} {what} in every micro-batch beside its graph"
    if numbers["launches"] > MOST_LAUNCHES:
        yield f"{title}: {numbers['launches']:g} launches in every micro-batch beside its graph"


def check_mode(session, mode, devices=1):
    title = f"graphs {mode}, {devices} device{'s' if devices > 1 else ''}"
    runs = {accum: run(session, mode, devices, f"graphs {accum}", accum=accum, steps=STEPS, extra=[ON]) for accum in (2, 3)}
    for done in runs.values():
        if done.code:
            return [f"{title}: exit code {done.code}: {done.output.strip()[-300:]}"]
    if reason := reason_of(mode):
        return list(uncaptured(title, runs[2], reason))
    events = {accum: done.events(devices - 1) for accum, done in runs.items()}
    return list(check_micro_batch(title, difference(tally(events[3]), tally(events[2])), captured(events[3])))


def check_family(session, family):
    """One step of three micro-batches alike: the second is captured, and it and the third are launched."""
    done = run_family(session, family, "LoRA", "graphs", accum=3, extra=[ON])
    title = f"graphs {family}"
    if done.code:
        return [f"{title}: exit code {done.code}: {done.output.strip()[-300:]}"]
    if reason := reason_of(family):
        return list(uncaptured(title, done, reason))
    log = done.events(0)
    launched = sum(event["event"] == "graph_launch" for event in log)
    return [] if captured(log) == 1 and launched == 5 else [f"{title}: {captured(log)} captures, {launched} launches"]


def check_failed_capture(session, where):
    """The run goes on without graphs: matrices that a second stream unpacks are not waited for where nothing will unpack them."""
    done = run(session, "nf4", 1, f"graphs fail {where}", steps=STEPS, extra=[ON], settings={"SFTRUN_STANDIN_CAPTURES_FAIL": where})
    title = f"graphs, captures that fail when they have {where}"
    if done.code or f"step {STEPS}/{STEPS} loss" not in done.output:
        return [f"{title}: exit code {done.code}: {done.output.strip()[-300:]}"]
    told = any("CUDA graphs: a capture failed, so they are off for the rest of this run: " in line for line in done.output.splitlines())
    launched = any(event["event"] == "graph_launch" for event in done.events(0))
    return [f"{title}: {'no word of it' if not told else 'launched'}"] * (launched or not told)


def check(session, pool):
    jobs = [pool.submit(check_mode, session, mode) for mode in [*MODES_OF_DENSE, *MIXTURES]]
    jobs += [pool.submit(check_mode, session, "LoRA", 2)]
    jobs += [pool.submit(check_family, session, family) for family in [DENSE, *families()]]
    jobs += [pool.submit(check_failed_capture, session, where) for where in ("begun", "ended")]
    return [line for job in jobs for line in job.result()]
