"""The peer of bench/preference.py: TRL's DPOTrainer on the same pairs. Prints one JSON object.

    python bench/peer_preference.py --folder DIR --steps 3 --dtype bf16 --threads 2

DIR: what bench/preference_data.py writes. LoRA from the adapter, of which DPOTrainer keeps a frozen copy as the reference model. bf16 is what TRL's users get:
weights of the base in bf16, the adapter in fp32, autocast. The first step warms up and is not counted.
"""

import argparse
import importlib
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

from peer_train import seconds_since_process_start


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3, help="timed steps")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--max-length", type=int, default=2048)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, which is TRL's default")
    parser.add_argument("--only-import", action="store_true", help="end after the imports: their memory")
    return parser.parse_args()


def peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def timer_class():
    from transformers import TrainerCallback

    class Timer(TrainerCallback):
        def __init__(self):
            self.seconds, self.losses, self.first = [], [], 0.0

        def on_step_begin(self, *_, **__):
            self.began = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.began)
            self.first = self.first or seconds_since_process_start()

        def on_log(self, *_, logs=None, **__):
            if logs and "loss" in logs:
                self.losses.append(logs["loss"])

    return Timer


def exact_losses(trainer) -> list[float]:
    """Trainer logs rounded losses: those of compute_loss are kept instead."""
    losses, compute = [], trainer.compute_loss

    def compute_and_keep(*args, **kwargs):
        loss = compute(*args, **kwargs)
        losses.append(float((loss[0] if isinstance(loss, tuple) else loss).detach()))
        return loss

    trainer.compute_loss = compute_and_keep
    return losses


def measure(args) -> dict:
    import datasets
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    torch.set_num_threads(args.threads)
    is_bf16 = args.dtype == "bf16"
    tokenizer = AutoTokenizer.from_pretrained(args.folder / "base")
    tokenizer.pad_token = tokenizer.eos_token
    base = AutoModelForCausalLM.from_pretrained(args.folder / "base", dtype=torch.bfloat16 if is_bf16 else torch.float32, attn_implementation="sdpa")
    model = PeftModel.from_pretrained(base, args.folder / "adapter", is_trainable=True)
    settings = DPOConfig(
        output_dir=str(args.folder / "peer"), max_steps=args.steps + 1, per_device_train_batch_size=1, gradient_accumulation_steps=1, learning_rate=args.learning_rate,
        lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, beta=args.beta, max_length=args.max_length, use_cpu=True, bf16=is_bf16,
        gradient_checkpointing=args.checkpointing, report_to=[], save_strategy="no", logging_steps=1, train_sampling_strategy="sequential", disable_tqdm=True,
    )
    timer = timer_class()()
    rows = [json.loads(line) for line in (args.folder / "pairs.jsonl").read_text().splitlines()]
    trainer = DPOTrainer(model, args=settings, train_dataset=datasets.Dataset.from_list(rows), processing_class=tokenizer, callbacks=[timer])
    losses = exact_losses(trainer)
    trainer.train()
    tokens = 2 * args.max_length
    timed = timer.seconds[1:]
    return {
        "tokens_per_second": tokens / statistics.median(timed),
        "tokens_per_second_best": tokens / min(timed),
        "step_seconds": timed,
        "first_step_seconds": timer.first,
        "peak_memory_bytes": peak_resident_bytes(),
        "losses": losses,
        "versions": {name: str(importlib.import_module(name).__version__) for name in ("torch", "transformers", "peft", "trl")},
    }


def imported() -> dict:
    """What the program's libraries take, before there is a model."""
    import torch
    from trl import DPOTrainer  # noqa: F401

    torch.set_num_threads(1)
    return {"peak_memory_bytes": peak_resident_bytes()}


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent))
    arguments = parse_arguments()
    print(json.dumps(imported() if arguments.only_import else measure(arguments)))
