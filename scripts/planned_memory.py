#!/usr/bin/env python3
"""What `sftrun memory-check` plans for the models and cards that guides give memory figures of: the table of docs/memory.md.

    scripts/planned_memory.py --sftrun build/bin/sftrun            # prints it
    scripts/planned_memory.py --sftrun build/bin/sftrun --write    # puts it into the document
    scripts/planned_memory.py --sftrun build/bin/sftrun --check    # exit code 1: the document has another

A plan needs no weights and no GPU: tests/data/shapes.json has the shapes of the models, from their config.json. Standard library only.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHAPES = json.loads((ROOT / "tests/data/shapes.json").read_text())
GEMMA = json.loads((ROOT / "tests/data/spec/vision/released/gemma-3-4b.json").read_text())["config"]  # with its tower and projector
GEMMA_PROCESSOR = {"preprocessor_config.json": {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 896, "width": 896}},
                   "processor_config.json": {"image_seq_length": 256}}
DOCUMENT = ROOT / "docs/memory.md"
BEGIN, END = "<!-- planned_memory.py: begin -->\n", "<!-- planned_memory.py: end -->\n"
GB = 1e9
CHECKPOINTED = "train.gradient_checkpointing=true"


class Planner:
    """Calls the program."""

    def __init__(self, program):
        self.program = pathlib.Path(program).resolve()

    def plan(self, model, gpus, tokens, *settings, mode="qlora", batch_size=1, config=None, files=None, flags=()):
        """The JSON of a plan.   @param tokens of a sequence   @param settings overrides   @param config a shape that is not in the file
        @param files further files of the model's folder, by name   @param flags of memory-check"""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "config.json").write_text(json.dumps(config or SHAPES[model]))
            (path / "run.yaml").write_text(json.dumps({
                "model": {"name": folder, "max_seq_len": tokens}, "tuning": {"mode": mode, "lora": {"r": 16}}, "data": {"train": "train.jsonl"},
                "train": {"batch_size": batch_size, "grad_accum": 4}}))
            for name, content in (files or {}).items():
                (path / name).write_text(json.dumps(content))
            command = [self.program, "memory-check", "--config", path / "run.yaml", "--gpus", gpus, "--json", *flags, *settings]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{model} on {gpus}: {done.stderr}")
        return json.loads(done.stdout)


def gb(size):
    return f"{size / GB:.1f} GB"


def rows(planner):
    """Guide, its figure, ours, and what to make of the difference."""
    def training(gpus, parts, *settings):
        """TheWorld's: two sequences of 2048 tokens with an image of 896 x 896 pixels each."""
        return planner.plan("Gemma 3 4B", gpus, 2048, f"tuning.train_parts=[{parts}]", *settings, mode="full", batch_size=2, config=GEMMA,
                            files=GEMMA_PROCESSOR, flags=("--images", "1", "--image-size", "896x896"))

    def activations(plan):
        parts = plan["parts"]
        return parts["activations"] + parts["images"] + parts["tower_activations"] + max(parts["layer_backward"], parts["head"])

    one, two, everything = "1x H100", "2x H100", "projector, vision, language"
    fsdp = "parallel.strategy=fsdp"
    # With Gemma's own projector 82M values train.
    projectors = "model.projectors={world: {input_width: 2304, hidden: 16256, tokens: 64}}"
    whole, again = training(one, everything), training(one, everything, CHECKPOINTED)
    small, tower, sharded = training(one, "projector", projectors), training(one, "projector, vision"), training(two, everything, fsdp)
    note = "TheWorld's model is Gemma 3 4B with its tower and a projector of 82M values; two sequences of 2048 tokens, each with an image"
    yield "TheWorld", "weights of 4.4B in bf16: 8.8 GB", gb(small["parts"]["base"]), \
        f"configs/theworld/projection.yaml and features.yaml. {note}. Gemma 3 4B has 4.3B values, 2 bytes each"
    yield "TheWorld", "full: gradients 8.8, AdamW 35.2 GB", f"{gb(whole['parts']['gradients'])}, {gb(whole['parts']['optimizer'])}", \
        "gradients are fp32 here, twice theirs; moments 8 bytes a value, as theirs. fp32 masters, 4 bytes a value more, are not in their sum"
    yield "TheWorld", "full: 60 to 65 GB", gb(whole["peak_bytes"]), "18 bytes a value instead of 12. Theirs needs bf16 gradients and no masters, which loses small updates"
    yield "TheWorld", "full, activations: 8 to 12 GB", gb(activations(whole)), f"{gb(whole['parts']['tower_activations'])} of it in the tower: two images have 8192 patches"
    yield "TheWorld", "82M trained: gradients 0.16, AdamW 0.64 GB", f"{gb(small['parts']['gradients'])}, {gb(small['parts']['optimizer'])}", "gradients in fp32; moments agree"
    yield "TheWorld", "82M trained, ddp too: 17 to 21 GB", gb(small["peak_bytes"]), "their sum of terms is 17.6 to 21.6"
    yield "TheWorld", "with the vision encoder, 30% trained: 35 to 40 GB", gb(tower["peak_bytes"]), \
        "configs/theworld/vision.yaml. Tower and projector of Gemma 3 4B are 10% of its values, not 30%"
    yield "TheWorld", "the same, checkpointing: 25 to 30 GB", gb(training(one, "projector, vision", CHECKPOINTED)["peak_bytes"]), \
        "they save 10 GB of the 8 to 12 that activations take, with 30 to 40% saved: these do not agree"
    yield "TheWorld", "full, fsdp of 2: 34 to 38 GB", gb(sharded["peak_bytes"]), \
        "configs/theworld/full_fsdp.yaml. Whole units and NCCL are not in their sum; masters and fp32 gradients as above"
    yield "TheWorld", "full, fsdp of 2, checkpointing: 26 to 30 GB", gb(training(two, everything, fsdp, CHECKPOINTED)["peak_bytes"]), "as above"
    yield "TheWorld", "full, fsdp of 4: 20 to 24 GB", gb(training("4x H100", everything, fsdp)["peak_bytes"]), "as above"
    yield "TheWorld", "82M trained, fsdp of 2: 15 to 18 GB", gb(training(two, "projector", projectors, fsdp)["peak_bytes"]), "as above"
    yield "TheWorld", "full, checkpointing: 42 to 47 GB", gb(again["peak_bytes"]), "they save 18 GB of activations that are 8 to 12: impossible"
    yield "TheWorld", "checkpointing: 30 to 40% of activations", f"{1 - activations(again) / activations(whole):.0%}", \
        "inputs of layers and one layer remain, far less than their 60%; `mlp` and `attention` save parts. Measured on a CPU, with 4 layers only: 58% with LoRA, 56% in full training"
    yield "TheWorld", "checkpointing: 20 to 40% slower", "cannot be checked here", "a time, not a size: 33% more products in full training, 50% with LoRA (docs/scaling.md)"
    yield "TheWorld", "2 x H100, fsdp, full: 35 GB", gb(sharded["peak_bytes"]), "the same run as above"
    for model, gpus, batch, tokens, figure in (("Qwen2.5-7B", "2x RTX4090", 6, 1536, "~18 GB"), ("Gemma-3-27B", "2x H100", 8, 2048, "~65 GB"),
                                               ("Llama-3.1-70B", "4x H200", 16, 4096, "~120 GB")):
        with_it = planner.plan(model, gpus, tokens, CHECKPOINTED, batch_size=batch)
        without = planner.plan(model, gpus, tokens, batch_size=batch)
        remark = f"QLoRA r 16, {with_it['settings']['strategy']}; its configurations set checkpointing"
        if not with_it["fits"]:
            changes = " ".join(with_it["change"]["settings"])
            remark += f". It does not fit; with `{changes}` it does: {gb(with_it['change']['peak_bytes'])}"
        yield "SFT-Play", f"{model}, {gpus}, batches of {batch} x {tokens}: {figure}", f"{gb(with_it['peak_bytes'])}; without checkpointing {gb(without['peak_bytes'])}", remark
    gemma = planner.plan("Gemma-3-27B", "2x H200", 2048, CHECKPOINTED, "tuning.lora.r=32", batch_size="auto")
    yield "SFT-Play", "Gemma 27B in QLoRA: model ~13.5 GB, 127 GB left on an H200", f"{gb(gemma['parts']['base'])}", \
        "27B halves of a byte: without the factors of blocks, and the embedding (1.4B values) is in bf16"
    for model, gpus, batch, tokens, figure in (("Qwen2.5-14B", "2x RTX4090", 6, 1536, "fits 24 GB"), ("Gemma-3-27B", "2x A100-80GB", 8, 2048, "fits 80 GB"),
                                               ("Qwen2.5-14B", "2x RTX4090", 4, 2048, "fits 24 GB")):
        plan = planner.plan(model, gpus, tokens, CHECKPOINTED, batch_size=batch)
        yield "SFT-Play", f"{model}, {gpus}, batches of {batch} x {tokens}: {figure}", f"{gb(plan['peak_bytes'])}: {'fits' if plan['fits'] else 'does not fit'}", "QLoRA r 16"
    oss = planner.plan("gpt-oss-20b", "1x A100-80GB", 2048, CHECKPOINTED, "tuning.lora.r=8", "tuning.lora.target_modules=[q_proj, v_proj]", mode="lora")
    yield "Fine-tuning guide", "20B model: 42 GB", gb(oss["parts"]["base"]), "gpt-oss-20b in bf16. Its files are MXFP4, which stays: 13.8 GB"
    yield "Fine-tuning guide", "LoRA adapters: 20M values, 40 MB", f"{oss['parts']['trainable'] / 1e6:.0f} MB", \
        "r 8 on q and v: 4M values, each a master in fp32 and a copy in bf16; 20M values would be 120 MB"
    yield "Fine-tuning guide", "LoRA: 42.04 GB; elsewhere 43 GB a GPU", gb(oss["peak_bytes"]), "theirs are weights and adapters alone; with activations of 2048 tokens, and CUDA"
    yield "torchrun, Unsloth", "no sizes", "", "torchrun's guide has no memory figure but \"similar on all GPUs\", which ddp and fsdp give"


def table(planner):
    lines = ["| guide | its figure | planned | remark |\n", "|---|---|---|---|\n"]
    return "".join(lines + [f"| {' | '.join(row)} |\n" for row in rows(planner)])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, default=ROOT / "build/bin/sftrun")
    parser.add_argument("--write", action="store_true", help="put the table into docs/memory.md")
    parser.add_argument("--check", action="store_true", help="compare it with docs/memory.md")
    arguments = parser.parse_args()
    made, text = table(Planner(arguments.sftrun)), DOCUMENT.read_text()
    if arguments.check:
        is_current = text.partition(BEGIN)[2].partition(END)[0] == made
        print("the table is current" if is_current else "docs/memory.md has another table: scripts/planned_memory.py --write")
        return 0 if is_current else 1
    if arguments.write:
        DOCUMENT.write_text(text.partition(BEGIN)[0] + BEGIN + made + END + text.partition(END)[2])
    else:
        print(made, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
