#!/usr/bin/env python3
"""The whole program on a card of host memory (tests/cuda/device), beside the same runs on the CPU and beside transformers + peft.

    tests/cuda/device_parity.py --root build/host-backed [--all] [--only WORDS …]

reference   tests/data/train: 12 steps in fp32 beside what transformers + peft computed, on one card and on two, whole, in shards, in a
            pipeline, and with weights, trained ones too, and activations in the host's memory
families    three steps of every family, LoRA and full
graphs      the same, and the references, with micro-batches launched as CUDA graphs; elsewhere none are, but in resumed runs
images      models with images: LoRA of the language model, and tower and projector in full; packed, on two cards, dropout, answers to questions
features    vectors of another encoder, in front of texts and of images
bases       quantised bases, on sm_80, sm_89 and sm_90, whose code paths differ
optimizers  every optimizer and LoRA variant; 8-bit moments of matrices that are large enough to have them
resume      a run that was stopped and resumed ends with the bits of one that was not
attention   cuDNN's kernel on documents of one length, and which batches it is not used for
bad record  a loss that is NaN ends the run with its step and its record, though a later step is queued by then
Without --all a part of it, for `make test`: of the references one with full training in a pipeline, one with weights on the host, and six steps of
LoRA, and few models of each check. A case with graphs is not run without them, too: its first micro-batch of each size is.
Standard library only.
"""

import argparse
import array
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import vision_folders

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"
TOKENIZER = DATA / "train/models/tied"
REFERENCES = ("lora_all_linear", "lora_qv", "lora_rslora", "full_tied", "full_untied", "partial_norms")
MADE_FORMATS = ("nf4", "fp4", "fp8", "int8")  # include/sftrun/core/quant_format.h, `is_made`
FP32 = 2e-5  # relative, of losses beside another device's in fp32; gradient norms ten times as much
# Activations are rounded to e4m3: where one lies between two codes, its last bit decides by a sixteenth. The CPU's own kernels for AVX2 and
# AVX-512 are 8e-5 apart in these runs.
FP8 = 1e-3
REFERENCE = 1e-5  # beside transformers + peft
STEPS, QUICK_STEPS = 12, 6
CONSTANT = "lora_rslora"  # the reference whose rate is constant after the warm-up: a shorter run has the same first steps
# In 16 bits both devices round, in different orders: each is compared with the CPU in fp32, and the card may be this much further off.
WORSE, FLOOR = 3, 4e-3
ALL_PARTS = ("tuning.mode=full", "tuning.train_parts=[language, projector, vision]")
FEATURES = 6  # numbers of a row
GRAPHS, NO_GRAPHS = "train.cuda_graphs=on", "train.cuda_graphs=off"
# Of `make test`; and what the log gives a reason for (the routers' auxiliary loss is in some models' config.json).
GRAPHED = ("wide lora bf16", "wide fp8 bf16 sm_90", "wide nf4 bf16 sm_80", "gemma4_moe lora fp32", "dora, dropout, NEFTune")
MIXES = ("q4_k_m", "q5_k_m", "q6_k", "q4_0")  # of ggml
NOT_CAPTURED = ("qwen3_5", "plain backend", "gpt_oss lora", "gpt_oss full", "mixtral", "qwen3_moe", "on the host")


class Case:
    """Three steps of a model on the card and on the CPU."""

    def __init__(self, name, model, *overrides, dtype="fp32", quick=False, sm=90, align=512, loss=FP32, data=None, cards=1):
        """@param data a file of records; none: digits   @param cards that train together; the CPU is one process"""
        self.name, self.model, self.dtype, self.quick, self.loss, self.data, self.cards = name, model, dtype, quick, loss, data, cards
        self.overrides = [f"model.name={model}", *overrides]
        self.environment = {"SFTRUN_HOST_BACKED_SM": str(sm), "SFTRUN_HOST_BACKED_ALIGN": str(align)}


class Machine:
    def __init__(self, root, scratch, is_quick=False):
        self.root, self.scratch, self.is_quick, self.runs = root, scratch, is_quick, 0
        self.data = scratch / "digits.jsonl"
        self.fp32 = {}  # the CPU's rows, by their settings: cases in several types have the same
        chance = random.Random(5)
        lines = ["".join(chance.choice("0123456789!():+-.,") for _ in range(chance.randint(6, 40))) for _ in range(24)]
        self.data.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))

    def run(self, arguments, environment):
        libraries = [str(self.root / "stand-in"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        full = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "SFTRUN_HOST_BACKED_OPERATORS": str(HERE / "device/cuda_operators.txt"),
                "XDG_CACHE_HOME": str(self.scratch / "cache"), **environment}
        done = subprocess.run([str(self.root / "bin/sftrun"), *arguments], env=full, capture_output=True, text=True, timeout=600)
        output = done.stdout + done.stderr
        if done.returncode != 0 or "host-backed device:" in output or "destroy_process_group" in output:
            shown = [line for line in output.splitlines() if any(word in line for word in ("error:", "host-backed device:", "emulator:", "destroy_process_group"))]
            raise AssertionError(f"exit code {done.returncode}: {' | '.join(shown[:6]) or output[-600:]}")
        return done.stdout

    def train(self, config, device, overrides, environment=(), processes=1, folder=None):
        self.runs += 1
        folder = folder or self.scratch / f"run-{self.runs}"
        environment = {**dict(environment), "SFTRUN_HOST_BACKED_DEVICES": str(processes)}
        self.run(["train", "--config", str(config), "--device", device, "--nproc-per-node", str(processes), f"output.dir={folder}", *overrides], environment)
        return [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line]


def launched(folder):
    """How many micro-batches a run's log says were launched as graphs."""
    logs = "".join(path.read_text() for path in sorted((folder / "logs").glob("*.log")))
    found = re.search(r"(\d+) of \d+ micro-batches were one launch each", logs)
    return int(found.group(1)) if found else 0


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def worst(rows, expected, key):
    assert len(rows) == len(expected), f"{len(rows)} steps in place of {len(expected)}"
    return max(abs(row[key] - other[key]) / max(abs(other[key]), 1e-12) for row, other in zip(rows, expected))


def write_model(folder, hidden=64, layers=2, vocab=48, inner=128, head_scale=1, nan_of=None):
    """A random model with a tokenizer, large enough for 8-bit moments and for FP8 products of the hardware.
    @param nan_of a token whose embedding is NaN"""
    folder.mkdir()
    heads, head_dim = 4, hidden // 4
    settings = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
                "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": head_dim, "vocab_size": vocab, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
                "max_position_embeddings": 128, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu"}
    (folder / "config.json").write_text(json.dumps(settings))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name + ".weight": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (2 * head_dim, hidden), "self_attn.v_proj": (2 * head_dim, hidden), "self_attn.o_proj": (hidden, heads * head_dim),
            "self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner)}.items()}
    chance, header, parts, begin = random.Random(11), {}, [], 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        deviation = 0.15 * (head_scale if name == "lm_head.weight" else 1)
        values = array.array("f", (chance.gauss(1, 0.1) if len(shape) == 1 else chance.gauss(0, deviation) for _ in range(count)))
        if nan_of and name == "model.embed_tokens.weight":
            values[json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"][nan_of] * hidden] = math.nan
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, begin + 4 * count]}
        begin += 4 * count
        parts.append(values.tobytes())
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    add_tokenizer(folder)
    return folder


def add_tokenizer(folder):
    for file in TOKENIZER.glob("tokenizer*"):
        (folder / file.name).symlink_to(file)


def stored_models(scratch):
    """Models whose files hold their matrices in fewer bits."""
    models = {}
    for source in ("bnb-nf4", "bnb-fp4", "bnb-int8", "fp8-dynamic", "fp8-blocks", "int4-awq", "int4-gptq", "int4-compressed"):
        folder = models[source] = scratch / "models" / source
        folder.mkdir(parents=True)
        for file in (DATA / "models" / source).iterdir():
            (folder / file.name).symlink_to(file)
    models["Q8_0"] = DATA / "models/llama3-gguf/model-Q8_0.gguf"
    return models


def write_gguf(machine, mix):
    """A GGUF file as llama.cpp's users have them, of a model whose rows have whole blocks of 256."""
    wide, file = machine.scratch / "wide-256", machine.scratch / f"wide-256-{mix}.gguf"
    if not wide.exists():
        write_model(wide, hidden=256, inner=256, vocab=512)
    machine.run(["merge", "--model", str(wide), "--output", str(file), "--dtype", mix], {})
    return file


def family_models(scratch):
    models = {}
    for source in sorted((DATA / "families").iterdir()):
        if not (source / "model.safetensors").exists():
            continue
        folder = scratch / "models" / source.name
        folder.mkdir(parents=True)
        for file in source.iterdir():
            (folder / file.name).symlink_to(file)
        add_tokenizer(folder)
        models[source.name] = folder
    return models


def cases(scratch):
    models, wide = family_models(scratch), write_model(scratch / "wide")
    assert len(models) >= 20, f"{len(models)} families"
    quick = {"qwen3_5", "gpt_oss"}  # and gemma4_moe with graphs
    full, checkpointed = "tuning.mode=full", "train.gradient_checkpointing=true"
    every = [Case("wide lora bf16", wide, dtype="bf16", quick=True), Case("wide lora fp16", wide, dtype="fp16", quick=True)]
    for name, model in models.items():
        every += [Case(f"{name} lora fp32", model, quick=name in quick), Case(f"{name} lora bf16", model, dtype="bf16"),
                  Case(f"{name} full fp32 checkpointed", model, full, checkpointed),
                  Case(f"{name} full on the host fp32", model, full, "parallel.offload.params=cpu", quick=name == "gemma4")]
    for sm in (80, 89, 90):
        every += [Case(f"wide {quant} bf16 sm_{sm}", wide, f"tuning.quant={quant}", dtype="bf16", sm=sm) for quant in MADE_FORMATS]
        every.append(Case(f"qwen3_moe full bf16 sm_{sm}", models["qwen3_moe"], full, dtype="bf16", sm=sm))
    every += [Case(f"wide {quant} fp32", wide, f"tuning.quant={quant}", loss=FP8 if quant == "fp8" else FP32) for quant in MADE_FORMATS]
    every.append(Case("gpt_oss_mxfp4 as stored fp32", models["gpt_oss_mxfp4"]))
    for name, settings in {"nf4, scales in fp32": ["tuning.quant=nf4", "tuning.double_quant=false"],
                           "nf4, embeddings": ["tuning.quant=nf4", "tuning.quant_embeddings=true"],
                           "int8, embeddings": ["tuning.quant=int8", "tuning.quant_embeddings=true"]}.items():
        every += [Case(f"wide {name} {dtype}", wide, *settings, dtype=dtype) for dtype in ("fp32", "bf16")]
    for name, model in stored_models(scratch).items():  # of fp8-dynamic rows are short: one code weighs more
        every.append(Case(f"{name} as stored fp32", model, loss=2 * FP8 if name == "fp8-dynamic" else FP32, quick=name == "bnb-nf4"))
    every += [Case(f"{name} lora fp16", models[name], dtype="fp16") for name in ("llama", "gemma3", "phi3", "olmo2")]
    every.append(Case("wide adamw_8bit lora fp32", wide, "train.optimizer=adamw_8bit", "tuning.lora.r=64"))
    for optimizer in ("sgd", "lion", "adafactor", "muon"):
        every += [Case(f"wide {optimizer} {mode} fp32", wide, f"tuning.mode={mode}", f"train.optimizer={optimizer}", quick=f"{mode} {optimizer}" == "full muon")
                  for mode in ("full", "lora")]
    for optimizer in ("adamw_8bit", "paged_adamw", "paged_adamw_8bit"):
        every.append(Case(f"wide {optimizer} full fp32", wide, full, f"train.optimizer={optimizer}", quick=optimizer == "paged_adamw_8bit"))
    on_host = "parallel.offload.params=cpu"
    for optimizer in ("adamw_8bit", "lion", "muon", "adafactor"):
        every.append(Case(f"wide {optimizer} full on the host fp32", wide, full, on_host, f"train.optimizer={optimizer}", quick=optimizer == "adamw_8bit"))
    every += [Case(f"wide full on the host {dtype}", wide, full, on_host, dtype=dtype, quick=True) for dtype in ("bf16", "fp16")]
    every += [Case("dora, dropout, NEFTune", models["qwen3"], "tuning.lora.dora=true", "tuning.lora.dropout=0.1", "train.neftune_noise_alpha=5"),
              Case("pissa", models["qwen3"], "tuning.lora.init=pissa"), Case("LoRA+", wide, "train.loraplus_lr_ratio=4"),
              Case("plain backend", models["llama"], "tuning.backend=bnb"), Case("tight blocks", models["qwen3"], align=16),
              Case("pageable batches", models["llama"], "train.dataloader_pin_memory=false"), Case("unpacked windows", models["gemma3"], "data.packing=true")]
    every += [graphed(case) for case in every if not any(word in case.name for word in NOT_CAPTURED)]
    return every + media_cases(scratch, wide)


def media_cases(scratch, wide):
    """Models with images, and with features of another encoder. Their micro-batches are not captured."""
    pictures = vision_folders.write_conversations(scratch / "vision", 24)
    models = {name: vision_folders.vision_folder(scratch / "vision" / name, name) for name in vision_folders.KINDS}
    every = []
    for name, model in models.items():
        with_tower = [f"{name} tower fp32 checkpointed", model, *ALL_PARTS, "train.gradient_checkpointing=true", "data.packing=true"]
        every += [Case(f"images {name} lora fp32", model, data=pictures, quick=name == "gemma3"), Case(f"images {name} lora bf16", model, dtype="bf16", data=pictures),
                  Case(f"images {with_tower[0]}", *with_tower[1:], data=pictures, quick=name == "qwen2_5_vl")]
    for name in ("qwen3_vl", "gemma3"):
        every += [Case(f"images {name} tower {dtype}", models[name], *ALL_PARTS, dtype=dtype, data=pictures) for dtype in ("bf16", "fp16")]
    lora_of_all = ["tuning.train_parts=[language, projector, vision]", "tuning.lora.dropout=0.1"]
    every.append(Case("images qwen2_5_vl lora of all parts, dropout", models["qwen2_5_vl"], *lora_of_all, data=pictures))
    every.append(Case("images smolvlm nf4", models["smolvlm"], "tuning.quant=nf4", data=pictures))
    every.append(Case("images qwen2_5_vl pageable batches", models["qwen2_5_vl"], "train.dataloader_pin_memory=false", data=pictures))
    every.append(Case("images qwen2_5_vl tight blocks", models["qwen2_5_vl"], *ALL_PARTS, data=pictures, align=16))
    for strategy in ("ddp", "fsdp", "pipeline", "tensor"):
        every.append(Case(f"images gemma3 two cards, {strategy}", models["gemma3"], *ALL_PARTS, f"parallel.strategy={strategy}", data=pictures, cards=2))
    features = vision_folders.write_records_with_features(scratch / "vision", 24, width=FEATURES)
    projector = [f"model.projectors={{world: {{input_width: {FEATURES}, hidden: 8}}}}"]
    with_lora = [*projector, "tuning.train_parts={language: lora, projector: full}"]
    every += [Case(f"features of texts {dtype}", wide, *with_lora, dtype=dtype, data=features, quick=dtype == "fp32") for dtype in ("fp32", "bf16")]
    both = vision_folders.write_conversations(scratch / "vision/both", 24, features=FEATURES)
    every.append(Case("features beside images, tower", models["gemma3"], *projector, *ALL_PARTS, data=both))
    return every


def graphed(case):
    """The same case with graphs. Micro-batches of one document: their sizes come again."""
    twin = Case(f"{case.name}, graphs", case.model, *case.overrides[1:], GRAPHS, "train.batch_size=1", dtype=case.dtype, quick=case.name in GRAPHED, loss=case.loss)
    twin.environment = case.environment
    return twin


def check_case(machine, case):
    common = [NO_GRAPHS, *case.overrides, "train.max_steps=3", f"data.train={case.data or machine.data}", "tuning.lora.init_from=", "train.learning_rate=0.002"]
    common += ["data.format=auto", "data.cache_dir=none"] if case.data else []
    config = DATA / "train/lora_all_linear/run.yaml"
    folder = machine.scratch / f"case-{machine.runs}"
    accum = [] if case.cards == 1 or any(f"strategy={axis}" in word for word in common for axis in ("pipeline", "tensor")) else ["train.grad_accum=1"]
    card = machine.train(config, "cuda", [*common, f"model.dtype={case.dtype}", *accum], case.environment, case.cards, folder)
    assert (launched(folder) > 0) == (GRAPHS in common), f"{launched(folder)} micro-batches were launched as graphs"
    if tuple(common) not in machine.fp32:
        alone = ["parallel.strategy=auto"] if case.cards > 1 else []
        machine.fp32[tuple(common)] = machine.train(config, "cpu", [*common, *alone, "model.dtype=fp32"])
    fp32 = machine.fp32[tuple(common)]
    if case.dtype == "fp32":
        loss, norm = worst(card, fp32, "loss"), worst(card, fp32, "grad_norm")
        assert loss <= case.loss and norm <= 10 * case.loss, f"loss {loss:.1e}, grad_norm {norm:.1e}"
        return f"loss {loss:.1e}, grad_norm {norm:.1e}"
    if case.dtype == "fp16":  # which the CPU does not compute
        loss = worst(card, fp32, "loss")
        assert loss <= FLOOR, f"loss {loss:.1e} from fp32"
        assert all(row["loss_scale"] == 65536 for row in card), [row.get("loss_scale") for row in card]
        return f"loss {loss:.1e} from fp32"
    loss = worst(card, fp32, "loss")
    if loss <= FLOOR:
        return f"loss {loss:.1e} from fp32"
    cpu = worst(machine.train(config, "cpu", [*common, f"model.dtype={case.dtype}"]), fp32, "loss")
    assert loss <= WORSE * cpu, f"loss {loss:.1e} from fp32, where the CPU in {case.dtype} is {cpu:.1e} from it"
    return f"loss {loss:.1e} from fp32, the CPU's {cpu:.1e}"


def check_reference(machine, name, processes, graphs=NO_GRAPHS, strategy="auto", extra=()):
    steps = QUICK_STEPS if machine.is_quick and name == CONSTANT else STEPS
    # The same global batch. In a pipeline and with tensor parallelism all processes compute each of its parts.
    accum = [f"train.grad_accum={2 if strategy in ('pipeline', 'tensor') else 2 // processes}"]
    folder = machine.scratch / f"reference-{machine.runs}"
    settings = [graphs, f"parallel.strategy={strategy}", f"train.max_steps={steps}", *accum, *extra]
    rows = machine.train(DATA / "train" / name / "run.yaml", "cuda", settings, processes=processes, folder=folder)
    assert (launched(folder) > 0) == (graphs == GRAPHS), f"{launched(folder)} micro-batches were launched as graphs"
    expected = json.loads((DATA / "train" / name / "expected.json").read_text())["metrics"][:steps]
    loss = worst(rows, expected, "loss")
    assert loss <= REFERENCE, f"loss {loss:.1e}"
    # Of the card: the process takes some hundred MiB of the host's memory.
    assert all(0 < peak < 64 << 20 for row in rows for peak in row["peak_memory_bytes"]), "other memory than the card's in metrics.jsonl"
    return f"loss {loss:.1e} from transformers + peft in {steps} steps"


def check_memory(machine):
    """run.json and bench count the card's memory, and bench's weights are made there."""
    folder = machine.scratch / f"memory-{machine.runs}"
    machine.train(DATA / "train/lora_all_linear/run.yaml", "cuda", ["train.max_steps=2"], folder=folder)
    [rank] = json.loads((folder / "run.json").read_text())["ranks"]
    counted = rank["bytes"]
    assert all(0 < counted[part] < 64 << 20 for part in ("base", "trainable", "gradients", "optimizer", "activations_peak")), counted
    arch = machine.scratch / "wide/config.json"
    result = json.loads(machine.run(["bench", "--arch", str(arch), "--device", "cuda", "--dtype", "bf16", "--seq-len", "32", "--batch-size", "2", "--steps", "3",
                                     "--json"], {"SFTRUN_HOST_BACKED_DEVICES": "1"}))
    assert 0 < result["peak_memory_bytes"] < 64 << 20 and len(result["step_seconds"]) == 3, result
    assert 3 < result["loss"] < 5, f"loss {result['loss']} of random weights over 48 tokens"
    return f"activations {counted['activations_peak']}, bench {result['peak_memory_bytes']} bytes"


def check_memory_on_host(machine, cards):
    """With trained weights on the host a card holds no weights, gradients or optimizer state, and its plan knows it."""
    used = {}
    for place in ("none", "cpu"):
        folder = machine.scratch / f"memory-{machine.runs}"
        settings = ["tuning.mode=full", "train.max_steps=2", "train.batch_size=1", "train.grad_accum=2", "tuning.lora.init_from=", "model.dtype=bf16",
                    f"model.name={machine.scratch / 'deep'}", f"data.train={machine.data}", f"parallel.offload.params={place}"]
        machine.train(DATA / "train/lora_all_linear/run.yaml", "cuda", settings, processes=cards, folder=folder)
        report = json.loads((folder / "run.json").read_text())
        planned, [used[place], *_] = report["planned_bytes"], [rank["bytes"] for rank in report["ranks"]]
        for part in ("base", "trainable", "gradients", "optimizer"):
            counted = used[place][part]
            assert (counted > 0) == (place == "none" and part != "base"), f"{part} with params {place}: {counted} bytes"
            assert place == "none" or planned[part] == 0, f"{part} with params {place}: {planned[part]} bytes are planned"
        peak = used[place]["activations_peak"]
        assert place == "none" or peak <= 1.1 * planned["activations_peak"], f"{peak} bytes, {planned['activations_peak']} are planned"
    whole, rest = sum(used["none"].values()), sum(used["cpu"].values())
    assert rest < whole / 3, f"{rest} of {whole} bytes remain on the card"
    return f"{rest} of {whole} bytes remain on the card"


def check_resume(machine, *settings):
    """From the checkpoint after two of four steps on, beside four steps at once: the same bits."""
    config = DATA / "train/lora_all_linear/run.yaml"
    settings = ["tuning.lora.init_from=", "train.save_steps=2", "train.max_steps=4", f"data.train={machine.data}", *settings]
    folder = machine.scratch / f"resumed-{machine.runs}"
    whole = machine.train(config, "cuda", settings, folder=folder)
    for later in [*(folder / "checkpoints").glob("step-*4"), folder / "model", folder / "adapter"]:
        shutil.rmtree(later, ignore_errors=True)
    resumed = machine.train(config, "cuda", settings, folder=folder)
    assert [row["loss"] for row in whole] == [row["loss"] for row in resumed], "other losses after resuming"
    return whole


def check_overflow(machine):
    """Gradients beyond fp16: the step is left out, the scale halved, the schedule waits; a resumed run goes on with the scale."""
    model = write_model(machine.scratch / "steep", head_scale=40)
    rows = check_resume(machine, f"model.name={model}", "model.dtype=fp16", "train.learning_rate=0.002")
    assert rows[0]["grad_norm"] is None and rows[0]["loss_scale"] == 32768, rows[0]
    assert rows[1]["grad_norm"] is not None and rows[1]["learning_rate"] == rows[0]["learning_rate"], rows[1]
    assert rows[-1]["loss_scale"] in (16384, 32768), rows[-1]
    return f"loss_scale {[row['loss_scale'] for row in rows]}"


def check_attention(machine, choice):
    """Documents of 128 tokens, beside FlashAttention on the card and fp32 on the CPU; and documents of other lengths."""
    model, equal = machine.scratch / "wide", machine.scratch / "equal.jsonl"
    chance = random.Random(7)
    equal.write_text("".join(json.dumps({"text": "".join(chance.choice("0123456789") for _ in range(300))}) + "\n" for _ in range(16)))
    settings = [f"model.name={model}", "model.max_seq_len=128", "train.max_steps=3", "tuning.lora.init_from=", "train.learning_rate=0.002"]
    config = DATA / "train/lora_all_linear/run.yaml"

    def train(device, attention, data, dtype="bf16"):
        folder = machine.scratch / f"attention-{machine.runs}"
        rows = machine.train(config, device, [*settings, f"model.attention={attention}", f"model.dtype={dtype}", f"data.train={data}"], folder=folder)
        return rows, "".join(log.read_text() for log in folder.rglob("*.log"))

    rows, log = train("cuda", choice, equal)
    assert "channels, BFloat16: cuDNN" in log or choice == "measure" and "channels, BFloat16: FlashAttention" in log, "no shape was tried"
    flash, log = train("cuda", "flash", equal)
    assert "channels, BFloat16" not in log, "a shape was tried"
    fp32, _ = train("cpu", "auto", equal, "fp32")
    loss, allowed = worst(rows, fp32, "loss"), max(FLOOR, WORSE * worst(flash, fp32, "loss"))
    assert loss <= allowed, f"loss {loss:.1e} from fp32, FlashAttention's {worst(flash, fp32, 'loss'):.1e}"
    other, log = train("cuda", choice, machine.data)
    assert "different lengths" in log, "cuDNN was used for documents of different lengths"
    assert [row["loss"] for row in other] == [row["loss"] for row in train("cuda", "flash", machine.data)[0]], "not FlashAttention's losses"
    return f"loss {loss:.1e} from fp32, FlashAttention's {worst(flash, fp32, 'loss'):.1e}"


def check_bad_record(machine, processes, *settings):
    """One record's loss is NaN at step 3. It is found when step 4 is queued, and reported for step 3. No later step is logged or saved."""
    model, folder = write_model(machine.scratch / f"bad-{machine.runs}", nan_of="?"), machine.scratch / f"bad-run-{machine.runs}"
    machine.runs += 1
    data = folder.with_suffix(".jsonl")
    good = [json.dumps({"text": "0123456789"})] * (2 * processes + processes - 1)
    data.write_text("\n".join([*good, json.dumps({"text": "01?23"}), *good]) + "\n")
    arguments = ["train", "--config", str(DATA / "train/lora_all_linear/run.yaml"), "--device", "cuda", "--nproc-per-node", str(processes),
                 f"output.dir={folder}", f"model.name={model}", f"data.train={data}", "tuning.lora.init_from=", "data.shuffle=false", "data.packing=false",
                 "train.batch_size=1", "train.grad_accum=1", "train.max_steps=5", *settings]
    try:
        machine.run(arguments, {"SFTRUN_HOST_BACKED_DEVICES": str(processes)})
    except AssertionError as problem:
        told = str(problem)
    else:
        raise AssertionError("the run did not end with an error")
    assert told.startswith("exit code 5:") and "the loss is not finite at step 3; no weight was changed by this step" in told, told
    logs = "".join(path.read_text() for path in sorted((folder / "logs").glob("*.log")))
    assert f"line {len(good) + 1} of the micro-batch where it appeared" in logs, logs[-800:]
    logged = [line["step"] for line in read_lines(folder / "metrics.jsonl") if "loss" in line]
    assert logged == [1, 2], f"steps logged: {logged}"
    saved = sorted(path.name for path in (folder / "checkpoints").glob("step-*"))
    wanted = ["step-000001", "step-000002"] if "train.save_steps=1" in settings else []
    assert saved == wanted and not (folder / "adapter").exists(), f"saved: {saved}"
    return "found at step 3"


def check_generate(machine, model):
    said = []
    for device in ("cuda", "cpu"):
        output = machine.run(["generate", "--model", str(model), "--prompt", "12+34", "--device", device, "--dtype", "fp32", "--max-new-tokens", "12",
                              "--temperature", "0"], {})
        said.append(output.strip().splitlines()[-1])
    assert said[0] == said[1], f"{said}"
    return "the CPU's text"


def check_generate_records(machine, model):
    """Prompts of different lengths in batches, on every card of the machine."""
    records = machine.scratch / "prompts.jsonl"
    records.write_text("".join(json.dumps({"prompt": "12+34!():+-.,"[:1 + 5 * n % 13]}) + "\n" for n in range(7)))
    said = []
    for device in ("cuda", "cpu"):
        output = machine.scratch / f"answers-{device}.jsonl"
        machine.run(["generate", "--model", str(model), "--input", str(records), "--output", str(output), "--device", device, "--dtype", "fp32",
                     "--max-new-tokens", "12", "--batch-size", "2"], {"SFTRUN_HOST_BACKED_DEVICES": "2"})
        said.append(output.read_text())
    assert said[0] == said[1] and said[0].count("\n") == 7, f"{said}"
    return "the CPU's texts"


def check_generate_of_images(machine, name):
    """Questions about pictures in batches, beside the CPU's answers and log-probabilities."""
    model, folder = machine.scratch / "vision" / name, machine.scratch / f"asked-{machine.runs}"
    machine.runs += 1
    conversations = vision_folders.write_conversations(folder, 6, seed=8)
    said, scored = [], []
    for device in ("cuda", "cpu"):
        of, output = ["--model", str(model), "--device", device, "--dtype", "fp32"], folder / f"{device}.jsonl"
        one = ["--image", str(folder / "images/1.png"), "--prompt", "12+34", "--temperature", "0"]
        alone = machine.run(["generate", *of, *one, "--max-new-tokens", "8"], {}).strip().splitlines()[-1]
        machine.run(["generate", *of, "--input", str(conversations), "--output", str(output), "--max-new-tokens", "8", "--batch-size", "3"], {})
        said.append([alone, *(line["generated"] for line in read_lines(output))])
        machine.run(["score", *of, "--input", str(conversations), "--output", str(output)], {})
        scored.append([line["logprob"] for line in read_lines(output)])
    assert said[0] == said[1] and len(said[0]) == 7, f"{said}"
    difference = max(abs(card / cpu - 1) for card, cpu in zip(*scored))
    assert difference < FP32, f"scores {difference:.1e} from the CPU's"
    return f"the CPU's texts, scores {difference:.1e} from the CPU's"


def check_eval(machine, model):
    """The loss and the accuracy of texts, divided over the cards."""
    config, measured = machine.scratch / "evaluated.yaml", []
    config.write_text(f"model: {{ name: {model}, dtype: fp32, max_seq_len: 64 }}\ndata: {{ train: {machine.data}, val: {machine.data} }}\n")
    for device in ("cuda", "cpu"):
        command = ["eval", "--config", str(config), "--adapter", "none", "--no-generate", "--device", device, "--json"]
        measured.append(json.loads(machine.run(command, {"SFTRUN_HOST_BACKED_DEVICES": "2"}))["base"])
    difference = abs(measured[0]["loss"] / measured[1]["loss"] - 1)
    same = all(measured[0][key] == measured[1][key] for key in ("label_tokens", "token_accuracy"))
    assert difference < 1e-6 and same, f"{measured}"
    return f"loss {difference:.1e} from the CPU's"


def checks(machine, arguments):
    """(name, whether a part of `make test`, check)"""
    for name in REFERENCES:
        yield f"reference {name}", False, lambda name=name: check_reference(machine, name, 1)
        yield f"reference {name}, graphs", name == CONSTANT, lambda name=name: check_reference(machine, name, 1, GRAPHS)
    yield "reference lora_qv, two cards", False, lambda: check_reference(machine, "lora_qv", 2)
    for strategy in ("zero1", "zero2", "fsdp", "pipeline", "tensor"):
        yield f"reference full_untied, two cards, {strategy}", strategy == "pipeline", \
            lambda strategy=strategy: check_reference(machine, "full_untied", 2, strategy=strategy)
    for strategy in ("fsdp", "pipeline", "tensor"):
        yield f"reference lora_qv, two cards, {strategy}", False, \
            lambda strategy=strategy: check_reference(machine, "lora_qv", 2, strategy=strategy)
    for name in ("lora_all_linear", "lora_rslora", "partial_norms", "full_tied"):
        yield f"reference {name}, two cards, tensor", name == CONSTANT, lambda name=name: check_reference(machine, name, 2, strategy="tensor")
    # Frozen weights, inputs of layers and optimizer state wait in the host's memory.
    for name, cards, strategy in (("lora_qv", 1, "auto"), ("lora_all_linear", 2, "ddp"), ("lora_all_linear", 2, "fsdp"),
                                  ("lora_rslora", 2, "fsdp"), ("partial_norms", 1, "auto"), ("lora_rslora", 2, "pipeline")):
        offload = [f"parallel.offload.{what}=cpu" for what in ("optimizer", "activations") + (("base",) if strategy != "pipeline" else ())]
        yield f"reference {name}, {cards} cards, {strategy}, offload", (name, strategy) == (CONSTANT, "fsdp"), \
            lambda name=name, cards=cards, strategy=strategy, offload=offload: \
            check_reference(machine, name, cards, strategy=strategy, extra=["train.gradient_checkpointing=true", *offload])
    # Trained weights wait there, too, and the CPU updates them.
    for name, cards, strategy, extra in (("full_untied", 1, "auto", ()), ("full_tied", 2, "fsdp", ("parallel.fetch=per_micro_batch",)), ("full_untied", 2, "ddp", ()),
                                         ("partial_norms", 1, "auto", ("parallel.offload.base=cpu",)), ("lora_qv", 2, "fsdp", ())):
        offload = ["train.gradient_checkpointing=true", "parallel.offload.params=cpu", "parallel.offload.activations=cpu", *extra]
        yield f"reference {name}, {cards} cards, {strategy}, trained weights on the host", name == "full_tied", \
            lambda name=name, cards=cards, strategy=strategy, offload=offload: check_reference(machine, name, cards, strategy=strategy, extra=offload)
    for name in ("lora_qv", "lora_rslora"):
        yield f"reference {name}, two cards, graphs", name == CONSTANT, lambda name=name: check_reference(machine, name, 2, GRAPHS)
    listed = cases(machine.scratch)
    for case in listed:
        yield case.name, case.quick, lambda case=case: check_case(machine, case)
    for mix in MIXES:
        yield f"{mix} as stored fp32", mix == "q4_k_m", lambda mix=mix: check_case(machine, Case(mix, write_gguf(machine, mix)))
    yield "memory", True, lambda: check_memory(machine)
    write_model(machine.scratch / "deep", layers=12)
    for cards in (1, 2):
        yield f"memory, trained weights on the host, {cards} cards", False, lambda cards=cards: check_memory_on_host(machine, cards)
    yield "resume", False, lambda: check_resume(machine, "tuning.mode=full") and "the same bits"
    yield "resume, trained weights on the host", True, lambda: check_resume(machine, "tuning.mode=full", "parallel.offload.params=cpu") and "the same bits"
    yield "resume, moments on the host", False, lambda: check_resume(machine, "tuning.mode=full", "train.optimizer=paged_adamw") and "the same bits"
    yield "fp16 overflow and resume", True, lambda: check_overflow(machine)
    for processes, settings in ((1, ()), (2, ()), (1, ("train.save_steps=1",))):
        yield f"bad record, {processes} cards, {' '.join(settings) or 'no checkpoint'}", processes == 2 or bool(settings), \
            lambda processes=processes, settings=settings: check_bad_record(machine, processes, *settings)
    yield "generate", False, lambda: check_generate(machine, listed[0].model)
    for name in vision_folders.KINDS:
        yield f"generate {name} with images", name == "qwen3_vl", lambda name=name: check_generate_of_images(machine, name)
    yield "records on two cards", True, lambda: check_generate_records(machine, listed[0].model)
    yield "eval on two cards", True, lambda: check_eval(machine, listed[0].model)
    for choice in ("cudnn", "measure"):
        yield f"attention={choice}", choice == "cudnn", lambda choice=choice: check_attention(machine, choice)
    if not arguments.all:
        return
    for case in listed:
        if case.name.endswith("lora fp32"):
            yield f"generate {case.name}", False, lambda case=case: check_generate(machine, case.model)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=lambda path: pathlib.Path(path).resolve(), required=True, help="build/host-backed")
    parser.add_argument("--all", action="store_true", help="every case [those of `make test`]")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name holds one of these words")
    arguments = parser.parse_args()
    failures = count = 0
    with tempfile.TemporaryDirectory() as scratch:
        machine = Machine(arguments.root, pathlib.Path(scratch), is_quick=not (arguments.all or arguments.only))
        for name, is_quick, check in checks(machine, arguments):
            wanted = any(word in name for word in arguments.only) if arguments.only else is_quick or arguments.all
            if not wanted:
                continue
            count += 1
            try:
                print(f"ok    {name}: {check()}", flush=True)
            except (AssertionError, OSError, KeyError, subprocess.TimeoutExpired) as problem:
                failures += 1
                print(f"FAIL  {name}: {problem}", flush=True)
    print(f"{count - failures} of {count} hold")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
