"""The Python side of bench/compare.py: makes the model that all sides load, and trains it with TRL's SFTTrainer or with Unsloth. Prints one JSON object.

    python bench/peer_packed.py model --arch bench/arch/qwen3-0.6b.json --work DIR --device cuda     # DIR/model, DIR/adapter
    python bench/peer_packed.py trl --work DIR --batch-size 2 --accumulation 4 --steady 60 --device cuda --kernels liger
    python bench/peer_packed.py unsloth --work DIR …

trl gets the packed sequences of rows.jsonl in their order, which are those of `sftrun train`, and starts from the same adapter, so losses can be compared step by step. Attention
does not cross documents: with flash_attn by its kernel for documents of many lengths, else by a mask over the whole micro-batch.
unsloth packs and labels the records' texts itself, as its published scripts do.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import packed_work

WARM_UP = 3  # steps before the steady state
LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "bias": "none", "task_type": "CAUSAL_LM"}
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["model", "trl", "unsloth"])
    parser.add_argument("--work", type=Path, required=True, help="folder of bench/compare.py")
    parser.add_argument("--arch", type=Path, help="model: config.json, whose weights are random")
    parser.add_argument("--batch-size", type=int, default=2, help="packed sequences of a micro-batch")
    parser.add_argument("--accumulation", type=int, default=4)
    parser.add_argument("--steady", type=float, default=60, metavar="SECONDS", help="measured after the first steps")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--kernels", choices=["transformers", "liger"], default="transformers")
    parser.add_argument("--attention", choices=["auto", "sdpa", "flash_attention_2", "flex_attention"], default="auto", help="auto: flash_attention_2 with flash_attn on a GPU, else sdpa")
    return parser.parse_args()


def dtype_of(args):
    import torch

    return torch.bfloat16 if args.dtype == "bf16" else torch.float32


def write_model(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.arch)
    config.eos_token_id, config.pad_token_id, config.bos_token_id = packed_work.EOS, packed_work.PAD, None
    with torch.device(args.device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype_of(args))
    folder = args.work / "model"
    model.save_pretrained(folder)
    for name, text in packed_work.tokenizer_files(min(config.vocab_size, packed_work.MOST_WORDS)).items():
        (folder / name).write_text(text)
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", **LORA))
    adapted.save_pretrained(args.work / "adapter")
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def attention_of(args):
    if args.attention != "auto":
        return args.attention
    return "flash_attention_2" if args.device == "cuda" and importlib.util.find_spec("flash_attn") else "sdpa"


def settings_of(args, output, **more):
    from trl import SFTConfig

    return SFTConfig(
        output_dir=output, per_device_train_batch_size=args.batch_size, gradient_accumulation_steps=args.accumulation, max_steps=10**6, learning_rate=2e-4,
        lr_scheduler_type="constant", weight_decay=0.0, max_grad_norm=1.0, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=0,
        bf16=args.dtype == "bf16", use_cpu=args.device == "cpu", gradient_checkpointing=args.recompute, use_liger_kernel=args.kernels == "liger", **more)


def clock_of(args):
    """A callback that stops training after the steady state, and the steps that it saw."""
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self):
            self.steps, self.tokens, self.labels, self.last, self.steady_began, self.steady_ended = [], 0, 0, time.time(), None, None

        def on_step_begin(self, _, state, control, **more):
            if not self.steps:
                self.last = time.time()

        def on_step_end(self, _, state, control, **more):
            if args.device == "cuda":
                torch.cuda.synchronize()
            now = time.time()
            self.steps.append({"tokens": self.tokens, "label_tokens": self.labels, "seconds": now - self.last})
            self.tokens, self.labels, self.last = 0, 0, now
            if len(self.steps) == WARM_UP:
                self.steady_began = now
            elif self.steady_began and now - self.steady_began >= args.steady:
                control.should_training_stop, self.steady_ended = True, now

        def on_log(self, _, state, control, logs=None, **more):
            if logs and "loss" in logs and self.steps:
                self.steps[-1]["loss"] = logs["loss"]

    return Clock()


def counting(trainer_class, clock):
    """Counts the tokens that a step really has, and takes the records in order."""
    from torch.utils.data import SequentialSampler

    class Counting(trainer_class):
        def _get_train_sampler(self, dataset=None):
            return SequentialSampler(dataset if dataset is not None else self.train_dataset)

        def training_step(self, model, inputs, *rest, **more):
            mask = inputs.get("attention_mask")
            clock.tokens += int(mask.sum()) if mask is not None and mask.dim() == 2 else inputs["input_ids"].numel()
            clock.labels += int((inputs["labels"] != packed_work.IGNORE_INDEX).sum())
            return super().training_step(model, inputs, *rest, **more)

    return Counting


def result_of(args, clock, packages, **more):
    import torch

    found = {}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    peak = torch.cuda.max_memory_reserved() if args.device == "cuda" else None
    return {"steps": clock.steps, "warm_up": WARM_UP, "steady_began": clock.steady_began, "steady_ended": clock.steady_ended or clock.last, "peak_memory_bytes": peak, "versions": found, **more}


def train_with_trl(args):
    from datasets import Dataset
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTTrainer

    attention, rows = attention_of(args), packed_work.read_rows(args.work)
    model = AutoModelForCausalLM.from_pretrained(args.work / "model", dtype=dtype_of(args), attn_implementation=attention, device_map=args.device)
    model.config.use_cache = False
    adapter = args.work / "adapter"
    model = PeftModel.from_pretrained(model, adapter, is_trainable=True) if adapter.exists() else get_peft_model(model, LoraConfig(target_modules="all-linear", **LORA))
    clock = clock_of(args)
    with tempfile.TemporaryDirectory() as output:
        settings = settings_of(args, output, padding_free=True, max_length=None, shuffle_dataset=False, dataset_kwargs={"skip_prepare_dataset": True})
        trainer = counting(SFTTrainer, clock)(model=model, args=settings, train_dataset=Dataset.from_list(rows), processing_class=AutoTokenizer.from_pretrained(args.work / "model"), callbacks=[clock])
        trainer.train()
    return result_of(args, clock, ("torch", "transformers", "peft", "trl", "liger_kernel", "flash_attn"), attention=attention, kernels=args.kernels)


def train_with_unsloth(args):
    from unsloth import FastLanguageModel  # before TRL, which it changes
    from datasets import Dataset
    from trl import SFTTrainer

    work = json.loads((args.work / "work.json").read_text())
    model, tokenizer = FastLanguageModel.from_pretrained(model_name=str(args.work / "model"), max_seq_length=work["seq_len"], dtype=dtype_of(args), load_in_4bit=False, local_files_only=True)
    checkpointing = "unsloth" if args.recompute else False
    model = FastLanguageModel.get_peft_model(model, r=LORA["r"], lora_alpha=LORA["lora_alpha"], lora_dropout=0, bias="none", target_modules=LINEARS, use_gradient_checkpointing=checkpointing)
    with (args.work / "train.jsonl").open() as file:
        records = [json.loads(line) for line in file]
    data = Dataset.from_list([{"text": record["prompt"] + record["completion"] + tokenizer.eos_token} for record in records])
    clock = clock_of(args)
    with tempfile.TemporaryDirectory() as output:
        settings = settings_of(args, output, dataset_text_field="text", packing=True, max_length=work["seq_len"])
        settings.gradient_checkpointing = False  # the model's own, above
        trainer = counting(SFTTrainer, clock)(model=model, args=settings, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
        trainer.train()
    return result_of(args, clock, ("torch", "transformers", "peft", "trl", "unsloth", "unsloth_zoo", "xformers", "flash_attn"), labels="every token", order="its own")


def main():
    args = parse_arguments()
    sys.stdout, printed = sys.stderr, sys.stdout  # libraries print
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    result = {"model": write_model, "trl": train_with_trl, "unsloth": train_with_unsloth}[args.what](args)
    print(json.dumps(result), file=printed)


if __name__ == "__main__":
    main()
