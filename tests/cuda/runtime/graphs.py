"""Micro-batches as CUDA graphs: each size is captured once, and from then on a micro-batch is one launch, with no memory taken and no wait."""

import re

from cases import DENSE
from counting import MIXTURES, NOT_IN_A_MICRO_BATCH, kernel_names, run, run_family, summary, tally
from tiny_models import families

ON = "train.cuda_graphs=on"
MODES_OF_DENSE = ["LoRA", "LoRA fp32", "LoRA fp16", "full", "nf4", "fp8", "int8", "gradient checkpointing", "DoRA", "LoRA dropout, head", "nf4 embeddings",
                  "full, gradient checkpointing", "full paged_adamw"]
# What is not captured, and the reason that the log gives.
WITHOUT = {r"qwen3_5.*": "delta nets", r"mixture, (experts adapted|full)|gpt_oss|mixtral|qwen3_moe": "auxiliary loss"}
# Of a quick test: delta nets, RoPE by length, windows and soft caps, per-layer inputs, and mixtures with and without the auxiliary loss.
QUICK_FAMILIES = ["qwen3_5", "phi3", "llama_dynamic", "gemma2", "gemma4", "gpt_oss", "gpt_oss_mxfp4", "gemma4_moe"]
STEPS, ACCUM = 4, 3
# Of a replayed micro-batch, beside the graph: the batch into the graph's memory, angles of each rope, the loss out of it.
MAX_LAUNCHES = 4


def captured(events):
    return sum(event["event"] == "capture_end" for event in events)


def reason_of(name):
    return next((reason for pattern, reason in WITHOUT.items() if re.fullmatch(pattern, name)), None)


def uncaptured(title, done, reason):
    if not any("CUDA graphs: off" in line and reason in line for line in done.output.splitlines()):
        yield f"{title}: no word of {reason}"
    if captured(done.events(0)):
        yield f"{title}: captured all the same"


def check_micro_batches(title, events):
    """All are launched, as the shape was met before the first step. What is in one is seen in the last step, from one launch to the next."""
    launched = [at for at, event in enumerate(events) if event["event"] == "graph_launch"]
    if captured(events) != 1:
        yield f"{title}: {captured(events)} captures of one shape"
    if len(launched) != STEPS * ACCUM:
        yield f"{title}: {len(launched)} graph launches in {STEPS * ACCUM} micro-batches"
        return
    numbers = summary(tally(events[launched[-2] + 1 : launched[-1] + 1], kernel_names(events)))
    for what in ("cudaMalloc", "products", *NOT_IN_A_MICRO_BATCH):
        if numbers[what] > 0:
            yield f"{title}: {numbers[what]} {what} in a micro-batch beside its graph"
    if numbers["launches"] > MAX_LAUNCHES:
        yield f"{title}: {numbers['launches']} launches in a micro-batch beside its graph"


def check_mode(session, mode, devices=1):
    title = f"graphs {mode}, {devices} device{'s' if devices > 1 else ''}"
    done = run(session, mode, devices, "graphs", accum=ACCUM, steps=STEPS, extra=[ON])
    if done.code:
        return [f"{title}: exit code {done.code}: {done.output.strip()[-300:]}"]
    if reason := reason_of(mode):
        return list(uncaptured(title, done, reason))
    return list(check_micro_batches(title, done.events(devices - 1)))


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


def check(session, pool, everything):
    jobs = [pool.submit(check_mode, session, mode) for mode in [*MODES_OF_DENSE, *MIXTURES]]
    jobs += [pool.submit(check_mode, session, "LoRA", 2)]
    jobs += [pool.submit(check_family, session, family) for family in ([DENSE, *families()] if everything else QUICK_FAMILIES)]
    jobs += [pool.submit(check_failed_capture, session, where) for where in ("begun", "ended")]
    return [line for job in jobs for line in job.result()]
