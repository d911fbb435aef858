"""The peer of bench/vision.py: transformers + peft training on records with images. Prints one JSON object.

    python bench/peer_vision.py --folder DIR --batch-size 4 --steps 5 --dtype bf16 --threads 2

DIR: what bench/vision_model.py writes. LoRA in the language model, the projector in full; AdamW; gradient clipping. bf16 is what TRL and Axolotl users
get: frozen weights in bf16, what trains in fp32, autocast. A step reads, decodes and processes its images, tokenises and renders nothing: that is done
for all records first. All records have the same length, so there is no padding and no mask. The first step warms up and is not counted.
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

IGNORE_INDEX = -100


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5, help="timed steps")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing, which is TRL's default")
    parser.add_argument("--only-import", action="store_true", help="end after the imports: their memory")
    return parser.parse_args()


def build_model(args):
    """Frozen base, LoRA adapter of the language model, and the projector, which trains in full."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    base = AutoModelForImageTextToText.from_pretrained(args.folder / "base", dtype=dtype, attn_implementation="sdpa")
    base.config.use_cache = False
    if args.checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
    model = PeftModel.from_pretrained(base, args.folder / "adapter", is_trainable=True)
    for name, parameter in model.named_parameters():
        if "multi_modal_projector" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    return model.train()


class Records:
    """Tokens and labels of all records, made as transformers' processor of the model makes them; images are read by the step."""

    def __init__(self, args) -> None:
        import torch
        from transformers import AutoTokenizer
        from vision_model import model_of_bench
        from vision_models import OPEN, pictures_of, without_marks

        model = model_of_bench()
        processor = importlib.import_module("transformers.models.siglip.image_processing_pil_siglip").SiglipImageProcessorPil
        self.folder, self.processor = args.folder, processor(**model.processor.settings)
        tokenizer = AutoTokenizer.from_pretrained(args.folder / "base")
        template = model.form.template(model.image, marks_answers=True)
        lines = (args.folder / "records.jsonl").read_text().splitlines()
        conversations = [json.loads(line)["messages"] for line in lines]
        self.pictures = [pictures_of(messages) for messages in conversations]
        rows = model.kind.top["image_seq_length"]
        tokens, labels = [], []
        for messages in conversations:
            rendered = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False).replace(model.feature, model.feature * rows)
            assert OPEN in rendered
            text, spans = without_marks(rendered)
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            answers = [any(begin <= first and last <= end for begin, end in spans) for first, last in encoded.offset_mapping]
            tokens.append(encoded.input_ids)
            labels.append([token if answer else IGNORE_INDEX for token, answer in zip(encoded.input_ids, answers)])
        self.tokens, self.labels = torch.tensor(tokens), torch.tensor(labels)

    def batch(self, begin: int, end: int) -> dict:
        from transformers.image_utils import load_image

        images = [load_image(str(self.folder / name)) for names in self.pictures[begin:end] for name in names]
        pixels = self.processor(images, return_tensors="pt")["pixel_values"]
        return {"input_ids": self.tokens[begin:end], "labels": self.labels[begin:end], "pixel_values": pixels}


def measure(args) -> dict:
    import torch

    torch.set_num_threads(args.threads)
    records = Records(args)
    model = build_model(args)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=args.learning_rate, weight_decay=0.0, fused=True)
    loaded = current_resident_bytes()
    step_seconds, image_seconds, processor_seconds, losses, first_step_seconds = [], [], [], [], 0.0
    for step in range(args.steps + 1):
        began, used = time.perf_counter(), time.process_time()
        batch = records.batch(step * args.batch_size, (step + 1) * args.batch_size)
        images_done = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == 0:
            first_step_seconds = seconds_since_process_start()
        else:
            step_seconds.append(time.perf_counter() - began)
            image_seconds.append(images_done - began)
            processor_seconds.append(time.process_time() - used)
    tokens = batch["input_ids"].numel()
    return {
        "tokens_per_second": tokens / statistics.median(step_seconds),
        "tokens_per_second_best": tokens / min(step_seconds),
        "step_seconds": step_seconds,
        "processor_seconds": processor_seconds,
        "image_seconds": statistics.median(image_seconds),
        "first_step_seconds": first_step_seconds,
        "peak_memory_bytes": peak_resident_bytes(),
        "loaded_bytes": loaded,
        "trained_values": sum(parameter.numel() for parameter in parameters),
        "losses": losses,
        "dtype": args.dtype,
        "label_tokens": int((records.labels[: args.batch_size] != IGNORE_INDEX).sum()),
        "versions": {name: str(importlib.import_module(name).__version__) for name in ("torch", "transformers", "peft")},
    }


def peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def current_resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def imported() -> dict:
    """What the program's libraries take, before there is a model."""
    import peft  # noqa: F401
    import torch

    importlib.import_module("transformers.models.llava.modeling_llava")
    torch.set_num_threads(1)
    return {"peak_memory_bytes": peak_resident_bytes()}


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent))
    arguments = parse_arguments()
    print(json.dumps(imported() if arguments.only_import else measure(arguments)))
