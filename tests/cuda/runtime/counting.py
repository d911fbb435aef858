"""How often a layer, a micro-batch and a step do what: differences between runs that differ in one of them."""

import collections
import functools
import json
import re

import stand_in
from cases import BASE, DENSE, MEDIA_MODES, MODES, steady_cases, steady_media
from tiny_models import dense_model, family_model, mixture_model, write_texts
from vision_folders import vision_folder, write_conversations

HIDDEN = 256  # heads of 64 channels: FlashAttention's
LAYERS = 2
# Of a mixture of experts: attention adapted; experts and routers, too, whose load is balanced; everything trained.
EXPERTS = "tuning.lora.target_parameters=[mlp.experts.gate_up_proj,mlp.experts.down_proj,mlp.gate.weight]"
MIXTURES = {
    "mixture": ["model.dtype=bf16"],
    "mixture, experts adapted": ["model.dtype=bf16", EXPERTS, "train.router_aux_loss_coef=0.01"],
    "mixture, full": ["tuning.mode=full", "model.dtype=bf16", "train.router_aux_loss_coef=0.01"],
    "mixture, nf4": ["tuning.quant=nf4", "model.dtype=bf16"],
}
COUNTED = ["LoRA", "nf4", "mixture", "mixture, experts adapted"]
ALSO_COUNTED = ["full", "fp8", "int8", "gradient checkpointing", "full paged_adamw", "mixture, full", "mixture, nf4"]
LAUNCHES = ("launch", "product")
# Kernels and products of a layer, forward and backward together, and in an evaluation's forward pass: no change may add to them unseen.
MAX_OF_A_LAYER = {"LoRA": 38, "nf4": 55, "mixture": 48, "mixture, experts adapted": 144, "int8": 55, "fp8": 54, "gradient checkpointing": 52, "full": 59, "full paged_adamw": 59}
MAX_FORWARD = {"LoRA": 14, "nf4": 24, "int8": 24, "fp8": 21, "gradient checkpointing": 14}
FEATURES = 6  # numbers of a row
LENGTHS = (40, 12)  # of a steady run's two documents
NOT_IN_A_MICRO_BATCH = ("copies that wait", "copies of pageable memory", "synchronisations")
RUNS = {"base": {}, "micro-batch": {"accum": 3}, "step": {"steps": 6}, "evaluation": {"val": 2}, "layer": {"layers": LAYERS + 1},
        "layer, micro-batch": {"layers": LAYERS + 1, "accum": 3}, "layer, evaluation": {"layers": LAYERS + 1, "val": 2}}
ON_TWO = ("base", "micro-batch", "step")  # of a quick test: a layer does there what it does on one


# What an elementwise kernel computes is in its template's arguments: the first of these that is not itself about how.
DOES = re.compile(r"\b(\w*Functor\w*|\w+_functor|\w+_kernel_cuda|\w+_kernel_impl)\b")
HOW = re.compile(r"gpu_kernel|func_wrapper|[AB]UnaryFunctor|opmath")


@functools.cache
def short(name):
    """A kernel's name without its arguments, and of its template's as much as tells it from others."""
    name = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name)[0]
    does = [word for word in DOES.findall(name) if not HOW.search(word) and word not in head]
    return f"{head} [{does[0]}]" if does and "at::native" in head else head


def product_name(event):
    return f"{event['op']} {event.get('transposed', '')}{' +=' if event.get('beta') else ''}"


def label(event, names):
    """What an event is counted as; none for what is not counted."""
    kind = event["event"]
    if kind == "launch":
        return "launch", short(names[event["kernel"]])
    if kind == "product":
        return "product", product_name(event)
    if kind == "copy":
        how = "blocking" if event["blocking"] else "waiting" if event["waits"] else "asynchronous"
        return "copy", f"{event['kind']} {event['host']} {how}"
    if kind == "sync":
        return "sync", event["of"]
    if kind == "nccl":
        return "nccl", event["kind"]
    if kind in ("malloc", "free", "host_malloc", "host_free", "memset", "graph_launch", "event_record", "event_wait", "host_register"):
        return kind, ""
    return None


def kernel_names(events):
    return {event["id"]: event["name"] for event in events if event["event"] == "kernel"}


def tally(events, names=None):
    """@param names  of kernels, where `events` are a part of a log"""
    names = names or kernel_names(events)
    return collections.Counter(filter(None, (label(event, names) for event in events)))


def difference(more, less):
    """Of two tallies; numbers below 0, which would be of an order that changed, stay to be seen."""
    result = collections.Counter(more)
    result.subtract(less)
    return collections.Counter({key: number for key, number in result.items() if number})


def divided(tally_, by):
    return {key: number / by if number % by else number // by for key, number in tally_.items()}


UPDATE = "sftrun::kernels::cuda::decide_update"  # of each step, before its weights move


def reads(events):
    """Of each wait for an event, how many steps' updates were queued after what it waits for: 0 for a read of the newest step."""
    names = kernel_names(events)
    updates, recorded, found = 0, {}, []
    for event in events:
        if event["event"] == "launch" and short(names[event["kernel"]]) == UPDATE:
            updates += 1
        elif event["event"] == "event_record":
            recorded[event["id"]] = updates
        elif event["event"] == "sync" and event["of"] == "event":
            found.append(updates - recorded.get(event["id"], updates))
    return found


def late_allocations(events):
    """Allocations after the second step; the last one's are of evaluation and checkpoint, too."""
    names = kernel_names(events)
    updates = [at for at, event in enumerate(events) if event["event"] == "launch" and short(names[event["kernel"]]) == UPDATE]
    found = sum(event["event"] == "malloc" for event in events[updates[1]:updates[-1]])
    if found:
        yield f"{found} cudaMalloc after the second step"


HELD = ("device_blocks", "pinned", "registered", "streams", "events", "communicators")


def kept_by_steps(few, many):
    """What a run of more steps has open at its end that one of fewer has not: something is not given back."""
    for what in HELD:
        if many[-1][what] > few[-1][what]:
            yield f"{what} open at the end: {many[-1][what]} after more steps, {few[-1][what]} after fewer"


def too_early(events, steps):
    """What is wrong with the reads of a run that is evaluated and saved after its last step alone: only that one may be read at once."""
    expected = [1] * (steps - 1) + [0]
    if (found := reads(events)) != expected:
        yield f"steps queued behind the one whose numbers are read: {found}, not {expected}"


def run(session, mode, devices, name, layers=LAYERS, accum=2, steps=4, val=1, extra=(), settings=None):
    folder = session.folder / "counts" / re.sub(r"\W+", "-", f"{mode} {devices} {name}")
    model = (mixture_model if mode in MIXTURES else dense_model)(folder / "model", layers, HIDDEN)
    write_texts(folder / "train.jsonl", accum * steps * devices * 2)
    write_texts(folder / "val.jsonl", val * devices)
    return session.run(f"counts {mode} {devices} {name}",
                       ["train", *BASE, *(MIXTURES | MODES)[mode], f"model.name={model}", f"data.train={folder}/train.jsonl",
                        f"data.val={folder}/val.jsonl", f"output.dir={folder}/run", f"train.grad_accum={accum}", f"train.max_steps={steps}", f"train.eval_steps={steps}",
                        "--nproc-per-node", str(devices), *extra], devices, **(settings or {}))


def run_family(session, family, mode, name, accum=2, val=1, extra=()):
    """Micro-batches of a long document and a short one: RoPE of some families goes by the length."""
    steps, folder = 2, session.folder / "steady" / re.sub(r"\W+", "-", f"{family} {mode} {name}")
    model = dense_model(folder / "model", 1, HIDDEN) if family == DENSE else family_model(folder / "model", family)
    write_texts(folder / "train.jsonl", accum * steps * 2, LENGTHS)
    write_texts(folder / "val.jsonl", val)
    return session.run(f"steady {family} {mode} {name}",
                       ["train", *BASE, *MODES[mode], f"model.name={model}", f"data.train={folder}/train.jsonl",
                        f"data.val={folder}/val.jsonl", f"output.dir={folder}/run", f"train.grad_accum={accum}",
                        f"train.max_steps={steps}", f"train.eval_steps={steps}", *extra], 1)


def run_media(session, kind, mode, name, accum=2, val=1):
    """Micro-batches of two conversations with one or two pictures of several sizes, and with features where the mode has a projector."""
    steps, folder = 2, session.folder / "steady" / re.sub(r"\W+", "-", f"images {kind} {mode} {name}")
    model, features = vision_folder(folder / "model", kind), FEATURES if "projectors" in str(MEDIA_MODES[mode]) else 0
    data, evaluated = (write_conversations(folder / part, count, images=(1, 2), features=features)
                       for part, count in (("train", accum * steps * 2), ("val", val)))
    return session.run(f"steady images {kind} {mode} {name}",
                       ["train", *BASE, *MEDIA_MODES[mode], f"model.name={model}", "model.max_seq_len=256", f"data.train={data}", f"data.val={evaluated}",
                        "data.format=auto", "data.cache_dir=none", f"output.dir={folder}/run", f"train.grad_accum={accum}", f"train.max_steps={steps}",
                        f"train.eval_steps={steps}"], 1)


ATTENTION = re.compile(r"flash|fmha|cudnn|softmax|sftrun::kernels::cuda::attention_forward")
OWN_ATTENTION, FLASH_ATTENTION = "sftrun::kernels::cuda::attention_forward", "pytorch_flash::flash_fwd_kernel"


def attention_of_media(kind, mode):
    """Kernels of the forward pass: towers and text in 16 bits have FlashAttention's, but for images that the text model sees both ways."""
    if "fp32" in mode:
        return {OWN_ATTENTION}
    return {FLASH_ATTENTION, OWN_ATTENTION} if kind == "gemma3" else {FLASH_ATTENTION}


def wrong_attention(events, kind, mode):
    names = kernel_names(events)
    found = {short(names[event["kernel"]]) for event in events if event["event"] == "launch"}
    found = {name for name in found if ATTENTION.search(name) and "bwd" not in name}
    if found != attention_of_media(kind, mode):
        yield f"kernels of attention: {sorted(found)}"


def check_steady_media(session, kind, mode, everything):
    failures = check_steady(session, f"images {kind}", mode, everything, functools.partial(run_media, session, kind, mode), evaluates=True)
    if failures:
        return failures
    done = run_media(session, kind, mode, "attention")
    return [f"steady images {kind}, {mode}: {line}" for line in wrong_attention(done.events(0), kind, mode)]


def check_steady(session, family, mode, everything, run_of=None, evaluates=False):
    """What waits or copies pageable memory in a micro-batch of a family, and in one that is evaluated: a run with more of them adds none.
    How a micro-batch is evaluated depends on the family, and on how embeddings are held. A quick test has more of both in one run."""
    run_of = run_of or functools.partial(run_family, session, family, mode)
    evaluates = evaluates or mode == "LoRA" or "embeddings" in mode
    title, trained, evaluated = f"steady {family}, {mode}", {"accum": 3}, {"val": 2} if evaluates else {}
    more = {"two more micro-batches": trained, "one more to evaluate": evaluated} if everything else {"more micro-batches": trained | evaluated}
    tallies, failures = {}, []
    for name, what in {"base": {}, **{name: what for name, what in more.items() if what}}.items():
        done = run_of(name, **what)
        if done.code:
            return [f"{title}, {name}: exit code {done.code}: {done.output.strip()[-300:]}"]
        tallies[name] = tally(done.events(0))
    base = tallies.pop("base")
    for name, found in tallies.items():
        added = difference(found, base)
        numbers = summary(added)
        failures += [f"{title}: {numbers[what]} more {what} with {name}" for what in NOT_IN_A_MICRO_BATCH if numbers[what] > 0]
        if not launches(added):
            failures.append(f"{title}: no launch in {name}")
    return failures


def unpinned(session):
    """What is wrong with train.dataloader_pin_memory, which says how batches are copied."""
    with_pageable = run(session, "LoRA", 1, "pageable", extra=["train.dataloader_pin_memory=false"])
    copies = total({key: number for key, number in tally(with_pageable.events(0)).items() if key[1].startswith("H2D pageable")}, "copy")
    micro_batches = 4 * 2
    if with_pageable.code:
        yield f"train.dataloader_pin_memory=false: exit code {with_pageable.code}"
    elif copies < micro_batches:
        yield f"train.dataloader_pin_memory=false: {copies} copies of pageable memory in {micro_batches} micro-batches"


def table_of(tallies, steps=4):
    """`tallies` of the runs above, or of some of them. Evaluation is of one micro-batch more, training of one more in each step."""
    micro = divided(difference(tallies["micro-batch"], tallies["base"]), steps)
    step = divided(difference(tallies["step"], tallies["base"]), 2)
    table = {"micro-batch": micro, "step of two micro-batches": step,
             "step without them": difference(step, {key: 2 * number for key, number in micro.items()})}
    if "layer, evaluation" in tallies:
        evaluated = difference(tallies["evaluation"], tallies["base"])
        evaluated_deeper = difference(tallies["layer, evaluation"], tallies["layer"])
        table |= {"evaluated micro-batch": evaluated, "layer, forward": launches(difference(evaluated_deeper, evaluated))}
    if "layer, micro-batch" in tallies:
        micro_deeper = divided(difference(tallies["layer, micro-batch"], tallies["layer"]), steps)
        both = table["layer, forward and backward"] = launches(difference(micro_deeper, micro))
        if "layer, forward" in table:
            table["layer, backward"] = launches(difference(both, table["layer, forward"]))
    return table


def launches(tally_):
    return {key: number for key, number in tally_.items() if key[0] in LAUNCHES}


def runs_of(mode, devices, everything):
    """Of a quick test without those that no limit is for."""
    if everything:
        return RUNS
    if devices > 1:
        return {name: RUNS[name] for name in ON_TWO}
    return {name: what for name, what in RUNS.items() if mode in MAX_FORWARD or "evaluation" not in name}


def count_mode(session, pool, mode, devices, everything):
    runs = {name: pool.submit(run, session, mode, devices, name, **what) for name, what in runs_of(mode, devices, everything).items()}
    if everything and (mode, devices) == (COUNTED[0], 1):
        runs["again"] = pool.submit(run, session, mode, devices, "again")
    done = {name: one.result() for name, one in runs.items()}
    title = f"{mode}, {devices} device{'s' if devices > 1 else ''}"
    failures = [f"counts of {title}, {name}: exit code {one.code}: {one.output.strip()[-300:]}" for name, one in done.items() if one.code]
    if failures:
        return title, {}, failures
    tallies = {name: tally(one.events(devices - 1)) for name, one in done.items()}
    if "again" in tallies and (changed := difference(tallies.pop("again"), tallies["base"])):
        failures.append(f"counts of {title}: the same run twice differs in {dict(changed)}")
    table = table_of(tallies)
    lines = [*steady_state(table), *too_many(table, mode)]
    for name, steps in (("base", 4), ("step", 6)):
        for rank in range(devices):
            events = done[name].events(rank)
            lines += [f"{name}, rank {rank}: {line}" for line in (*too_early(events, steps), *late_allocations(events))]
    if devices == 1:  # NCCL's watchdog gives events back when it comes to it
        lines += kept_by_steps(done["base"].events(0), done["step"].events(0))
    return title, table, failures + [f"counts of {title}: {line}" for line in lines]


def steady_state(table):
    """What may not happen again and again: of the later steps, which have all memory that they need."""
    for part in ("micro-batch", "step without them"):
        numbers = summary(table[part])
        for name in ("pinned allocations", "registrations"):
            if numbers[name]:
                yield f"{numbers[name]:g} {name} in every {part}"
    for part, allowed in (("micro-batch", 0), ("step without them", 1)):  # the step's one read is a wait for the step before
        numbers = summary(table[part])
        for name in NOT_IN_A_MICRO_BATCH:
            if numbers[name] > (allowed if name == "synchronisations" else 0):
                yield f"{numbers[name]:g} {name} in every {part}"


def too_many(table, mode):
    for part, most in (("layer, forward and backward", MAX_OF_A_LAYER), ("layer, forward", MAX_FORWARD)):
        found = sum(table.get(part, {}).values())
        if found > most.get(mode, found):
            yield f"{found:g} launches and products of a {part}, not {most[mode]}"


def count(session, pool, everything):
    """The tables by their titles, and what is wrong with them."""
    modes = [(mode, 1) for mode in COUNTED + (ALSO_COUNTED if everything else [])] + [("LoRA", 2)]
    tables, failures = {}, [f"counts: {line}" for line in unpinned(session)]
    for mode, devices in modes:
        title, table, lines = count_mode(session, pool, mode, devices, everything)
        tables[title] = table
        failures += lines
    steady = [pool.submit(check_steady, session, family, mode, everything) for family, mode in steady_cases(everything)]
    steady += [pool.submit(check_steady_media, session, kind, mode, everything) for kind, mode in steady_media(everything)]
    for one in steady:
        failures += one.result()
    return tables, failures


def total(tally_, counted):
    return sum(number for (kind, _), number in tally_.items() if kind == counted)


def summary(part):
    """One line of what is done, without the launches' names."""
    waits = sum(number for (kind, what), number in part.items() if kind == "copy" and what.endswith(("blocking", "waiting")))
    pageable = sum(number for (kind, what), number in part.items() if kind == "copy" and "pageable" in what)
    kinds = {"launches": "launch", "products": "product", "copies": "copy", "synchronisations": "sync", "memsets": "memset", "cudaMalloc": "malloc",
             "pinned allocations": "host_malloc", "registrations": "host_register", "graph launches": "graph_launch", "NCCL calls": "nccl"}
    numbers = {name: total(part, kind) for name, kind in kinds.items()}
    return {**numbers, "copies that wait": waits, "copies of pageable memory": pageable}


def show(tables):
    for title, table in tables.items():
        print(f"== {title}")
        for part, tally_ in table.items():
            print(f"  {part}: " + ", ".join(f"{number:g} {name}" for name, number in summary(tally_).items() if number))
            shown = tally_ if part.startswith("layer") else {key: n for key, n in tally_.items() if key[0] not in LAUNCHES}
            for (kind, what), number in sorted(shown.items(), key=lambda item: (item[0][0], -item[1], item[0][1])):
                print(f"    {number:6g} {kind:8} {what}")


def write(tables, path):
    def plain(tally_):
        return {"summary": summary(tally_), "events": {f"{kind} {what}".strip(): number for (kind, what), number in sorted(tally_.items())}}

    result = {title: {part: plain(tally_) for part, tally_ in table.items()} for title, table in tables.items()}
    path.write_text(json.dumps(result, indent=1) + "\n")
