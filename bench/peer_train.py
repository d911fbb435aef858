"""The peer of `sftrun bench`: transformers + peft training the same work. Prints one JSON object.

    python bench/peer_train.py --arch bench/arch/llama-135m.json --dtype bf16 --threads 2

LoRA r 8 on q, k, v, o; synthetic tokens; every position labelled; AdamW; gradient clipping. bf16 is what TRL and Axolotl
users get: frozen weights in bf16, adapter in fp32, autocast. The first step warms up and is not counted.
"""

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path


def seconds_since_process_start() -> float:
    after_comm = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_ticks = int(after_comm[19])  # field 22 of proc(5): starttime, after boot
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--arch", help="config.json: random weights")
    source.add_argument("--model", help="directory in Hugging Face layout")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--attention", default="sdpa", help="transformers' attn_implementation")
    return parser.parse_args()


def build_model(args):
    """Frozen base and LoRA adapter."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    torch.manual_seed(0)
    if args.model:
        base = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=dtype, attn_implementation=args.attention
        )
    else:
        config = AutoConfig.from_pretrained(args.arch)
        base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=args.attention)
    base.config.use_cache = False
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, lora).to(args.device).train()


def measure(args) -> dict:
    import torch

    torch.set_num_threads(args.threads)
    model = build_model(args)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=2e-4, fused=True)
    generator = torch.Generator().manual_seed(1)
    shape = (args.batch_size, args.seq_len)
    step_seconds, first_step_seconds = [], 0.0
    for step in range(args.steps + 1):
        tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator).to(args.device)
        began = time.perf_counter()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # waits for the device
        if step == 0:
            first_step_seconds = seconds_since_process_start()
        else:
            step_seconds.append(time.perf_counter() - began)
    tokens_per_step = args.batch_size * args.seq_len
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated()
    return {
        "tokens_per_second": tokens_per_step / statistics.median(step_seconds),
        "tokens_per_second_best": tokens_per_step / min(step_seconds),
        "step_seconds": step_seconds,
        "first_step_seconds": first_step_seconds,
        "peak_memory_bytes": peak,
        "dtype": args.dtype,
        "world_size": 1,
        "loss": loss.item(),
        "versions": versions(),
    }


def versions() -> dict:
    import peft
    import torch
    import transformers

    return {module.__name__: str(module.__version__) for module in (torch, transformers, peft)}


if __name__ == "__main__":
    print(json.dumps(measure(parse_arguments())))
