"""The peer of `sftrun bench`: transformers + peft training the same work. Prints one JSON object.

    python bench/peer_train.py --arch bench/arch/llama-135m.json --dtype bf16 --threads 2
    python bench/peer_train.py --model DIR --chat conversations.jsonl --batch-size 32 --dtype bf16 --threads 2

LoRA r 8 on q, k, v, o; AdamW; gradient clipping. bf16 is what TRL and Axolotl users get: frozen weights in bf16, adapter
in fp32, autocast. The first step warms up and is not counted.

Without --chat: synthetic tokens, every position labelled. With it, TRL's way with data: all conversations are
rendered and tokenised first, then taken in random order, --batch-size a step, padded to the longest of them. Other than
TRL's defaults: only the assistant's tokens are labelled, there is no gradient checkpointing without --checkpointing, and the
loss is --loss's.
"""

import argparse
import importlib
import importlib.metadata
import itertools
import json
import os
import resource
import statistics
import time
from pathlib import Path

IGNORE_INDEX = -100
# What TRL's SFTTrainer asks of its loss: the others than log_probs feed its metrics.
TRL_LOSS_OUTPUTS = ("log_probs", "entropy", "is_top1")


def seconds_since_process_start() -> float:
    after_comm = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_ticks = int(after_comm[19])  # field 22 of proc(5): starttime, after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--arch", help="config.json: random weights")
    source.add_argument("--model", help="directory in Hugging Face layout")
    parser.add_argument("--chat", metavar="FILE", help="JSON lines of messages, instead of synthetic tokens")
    parser.add_argument("--seq-len", type=int, default=512, help="tokens an example; with --chat, the most")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    parser.add_argument(
        "--loss",
        choices=["transformers", "trl"],
        default="transformers",
        help="transformers: the model's own, over all logits at once; trl: SFTTrainer's, in tiles",
    )
    parser.add_argument("--kernels", choices=["transformers", "liger"], default="transformers", help="liger: Liger's for the model, its loss too")
    parser.add_argument("--quant", choices=["none", "nf4"], default="none", help="nf4: by bitsandbytes, factors quantised")
    parser.add_argument("--lora-r", type=int, default=8, help="rank; alpha is twice as much")
    parser.add_argument("--all-linear", action="store_true", help="adapters on every linear layer but the head; else on q, k, v, o")
    parser.add_argument("--target-parameters", nargs="+", help="parameters with adapters, such as mlp.experts.gate_up_proj: those of experts")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, which is TRL's default")
    args = parser.parse_args()
    if args.chat and not args.model:
        parser.error("--chat needs the tokenizer and the chat template of a --model")
    return args


def quantisation(args, dtype) -> dict:
    if args.quant == "none":
        return {}
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=args.quant, bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config, "device_map": args.device}


def quantise_linears(module, args, dtype) -> None:
    """Replaces all linear layers but the head by bitsandbytes', as from_pretrained does, of the weights that are there."""
    import torch
    from bitsandbytes.nn import Linear4bit, Params4bit

    for name, child in list(module.named_children()):
        if isinstance(child, torch.nn.Linear) and name != "lm_head":
            with torch.device("meta"):
                linear = Linear4bit(
                    child.in_features, child.out_features, child.bias is not None, dtype, compress_statistics=True, quant_type=args.quant
                )
            linear.weight = Params4bit(child.weight.data, requires_grad=False, compress_statistics=True, quant_type=args.quant).to(args.device)
            linear.bias = child.bias
            setattr(module, name, linear)
        else:
            quantise_linears(child, args, dtype)


def build_model(args):
    """Frozen base and LoRA adapter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig

    if args.kernels == "liger":
        from liger_kernel.transformers import AutoLigerKernelForCausalLM as AutoModelForCausalLM
    else:
        from transformers import AutoModelForCausalLM
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    torch.manual_seed(0)
    if args.model:
        base = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=dtype, attn_implementation=args.attention, **quantisation(args, dtype)
        )
    else:
        config = AutoConfig.from_pretrained(args.arch)
        with torch.device(args.device):  # made where they are used: a processor takes minutes for billions
            base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=args.attention)
        if args.quant != "none":
            quantise_linears(base, args, dtype)
            base.is_loaded_in_4bit = True  # what peft asks
    base.config.use_cache = False
    if args.loss == "trl":
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(base, outputs=TRL_LOSS_OUTPUTS)
    lora = LoraConfig(
        r=args.lora_r,
        lora_alpha=2 * args.lora_r,
        target_modules="all-linear" if args.all_linear else ["q_proj", "k_proj", "v_proj", "o_proj"],
        target_parameters=args.target_parameters,
        task_type="CAUSAL_LM",
    )
    if args.checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})  # as transformers' Trainer calls it
    return get_peft_model(base, lora).to(args.device).train()


def labelled(messages: list[dict], tokenizer) -> tuple[list[int], list[int]]:
    """Token ids and labels of a conversation. Of each assistant turn, what follows the generation prompt is labelled,
    through the end-of-turn token."""
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    spans = []
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            before = tokenizer.apply_chat_template(messages[:index], tokenize=False, add_generation_prompt=True)
            begin = len(before)
            spans.append((begin, text.index(tokenizer.eos_token, begin) + len(tokenizer.eos_token)))
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    labels = [
        token if any(begin < to and start < end for start, to in spans) else IGNORE_INDEX
        for token, (begin, end) in zip(encoding.input_ids, encoding.offset_mapping)
    ]
    return encoding.input_ids, labels


def read_conversations(args) -> list[tuple[list[int], list[int]]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.model)
    lines = Path(args.chat).read_text(encoding="utf-8").splitlines()
    conversations = [labelled(json.loads(line)["messages"], tokenizer) for line in lines if line]
    return [(tokens, labels) for tokens, labels in conversations if len(tokens) <= args.seq_len]


def padded(conversations: list[tuple[list[int], list[int]]]) -> dict:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens, labels = ([torch.tensor(column) for column in columns] for columns in zip(*conversations))
    mask = [torch.ones_like(row) for row in tokens]
    return {
        "input_ids": pad_sequence(tokens, batch_first=True),
        "attention_mask": pad_sequence(mask, batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
    }


def chat_batches(conversations: list[tuple[list[int], list[int]]], batch_size: int):
    """Batches without end, each epoch in a new random order; what does not fill a batch is left out."""
    import torch

    generator = torch.Generator().manual_seed(1)
    while True:
        order = torch.randperm(len(conversations), generator=generator).tolist()
        for begin in range(0, len(order) - batch_size + 1, batch_size):
            yield padded([conversations[index] for index in order[begin : begin + batch_size]])


def synthetic_batches(vocab_size: int, args):
    import torch

    generator = torch.Generator().manual_seed(1)
    while True:
        tokens = torch.randint(0, vocab_size, (args.batch_size, args.seq_len), generator=generator)
        yield {"input_ids": tokens, "labels": tokens}


def measure(args) -> dict:
    import torch

    torch.set_num_threads(args.threads)
    conversations = read_conversations(args) if args.chat else []
    if args.chat and len(conversations) < args.batch_size:
        raise SystemExit(f"{args.chat} has {len(conversations)} conversations of at most {args.seq_len} tokens")
    model = build_model(args)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, fused=True)
    if args.chat:
        batches = chat_batches(conversations, args.batch_size)
    else:
        batches = synthetic_batches(model.config.vocab_size, args)
    loss_choice = {"fused_lm_head": True} if args.loss == "trl" else {}
    step_seconds, step_tokens, step_positions, first_step_seconds = [], [], [], 0.0
    for step, batch in enumerate(itertools.islice(batches, args.steps + 1)):
        batch = {name: tensor.to(args.device) for name, tensor in batch.items()}
        began = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(**batch, **loss_choice).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        if step == 0:
            first_step_seconds = seconds_since_process_start()
        else:
            step_seconds.append(time.perf_counter() - began)
            step_positions.append(batch["input_ids"].numel())
            step_tokens.append(int(batch["attention_mask"].sum()) if args.chat else step_positions[-1])
    speeds = [tokens / seconds for tokens, seconds in zip(step_tokens, step_seconds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if args.device == "cuda":
        peak = torch.cuda.max_memory_reserved()  # taken from the card, what is kept for reuse included
    result = {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_best": max(speeds),
        "step_seconds": step_seconds,
        "step_tokens": step_tokens,
        "filled": sum(step_tokens) / sum(step_positions),
        "first_step_seconds": first_step_seconds,
        "peak_memory_bytes": peak,
        "dtype": args.dtype,
        "world_size": 1,
        "loss": loss.item(),
        "versions": versions(args),
    }
    if args.chat:
        result["data"] = {
            "conversations": len(conversations),
            "tokens": sum(len(tokens) for tokens, _ in conversations),
            "label_tokens": sum(label != IGNORE_INDEX for _, labels in conversations for label in labels),
        }
    return result


def versions(args) -> dict:
    names = ["torch", "transformers", "peft"] + (["trl"] if args.loss == "trl" else [])
    names += ["bitsandbytes"] if args.quant != "none" else []
    found = {name: str(importlib.import_module(name).__version__) for name in names}
    return found | ({"liger_kernel": importlib.metadata.version("liger_kernel")} if args.kernels == "liger" else {})


if __name__ == "__main__":
    print(json.dumps(measure(parse_arguments())))
