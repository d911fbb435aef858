"""What the tests share that train on two processes with sftrun and with a library that divides the model: data, models, comparison.

Tiny Llamas of tests/data/train: LoRA from a given adapter over a frozen base, and training of every weight. 6 steps of AdamW in fp32 over Gloo,
two micro-batches per process and step, every step's gradients clipped. Compared are the tokens, the loss of every step, of all ranks and of
each, the gradient norm before clipping, and every trained tensor at the end: norm of the difference over the norm of the reference's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics  # noqa: I001  (sets sys.path)

import torch
import torch.distributed as dist
import yaml
from peft import PeftModel
from reference_training import Document, Recipe, decay_groups, encode_record, read_jsonl
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.multiprocessing import start_processes
from transformers import AutoModelForCausalLM

DATA = REPOSITORY / "tests" / "data" / "train"
LOSS, GRAD_NORM, WEIGHTS = 1e-5, 1e-4, 1e-4
PROCESSES, MICRO_BATCHES, STEPS = 2, 2, 6  # a micro-batch is one document
# Folders of tests/data/train, and a norm below those of all steps. The sizes of the steps' norms differ, so that Adam does not undo clipping.
CASES = {"lora_all_linear": 0.3, "lora_rslora": 0.6, "full_tied": 1.5, "full_untied": 1.5}
GROUP_TIMEOUT_S = 240  # of one wait: the machine may run many other tests
PRIVATE_CACHES = ("TORCH_EXTENSIONS_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
TRAIN_SETTINGS = {"max_steps": STEPS, "batch_size": 1, "grad_accum": MICRO_BATCHES, "scheduler": "constant", "warmup_steps": 0}


def settings_of(name: str) -> dict:
    """The variant's run.yaml with the settings of this test, as sftrun gets them on its command line."""
    run = yaml.safe_load((DATA / name / "run.yaml").read_text())
    run["train"] |= {**TRAIN_SETTINGS, "max_grad_norm": CASES[name]}
    return run


# ---- The reference, in each of its processes


@contextmanager
def ranks_together(rank: int, scratch: Path) -> Iterator[None]:
    """The process group of the reference, over the loopback: which address the machine's name has, and whether it has one, is no matter of this
    test. What libraries compile, they keep in the test's own folder: other tests run beside it. No rank leaves while another one needs it."""
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo"} | {name: str(scratch / name / str(rank)) for name in PRIVATE_CACHES}
    dist.init_process_group("gloo", init_method=f"file://{scratch}/rendezvous", rank=rank, world_size=PROCESSES,
                            timeout=datetime.timedelta(seconds=GROUP_TIMEOUT_S))
    yield
    dist.barrier()
    dist.destroy_process_group()


def recipe_of(run: dict) -> Recipe:
    settings = run["train"]
    return Recipe(max_steps=STEPS, global_batch_size=PROCESSES * MICRO_BATCHES, learning_rate=settings["learning_rate"], scheduler="constant",
                  warmup_steps=0, weight_decay=settings["weight_decay"], max_grad_norm=settings["max_grad_norm"])


def documents_of(name: str, run: dict) -> list[Document]:
    tokenizer = Tokenizer.from_file(str(DATA / name / run["model"]["name"] / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|eos|>")
    return [encode_record(record, tokenizer, eos) for record in read_jsonl(DATA / name / run["data"]["train"])]


def load_model(name: str, run: dict):
    model = AutoModelForCausalLM.from_pretrained(DATA / name / run["model"]["name"], dtype=torch.float32)
    if run["tuning"]["mode"] == "lora":
        model = PeftModel.from_pretrained(model, DATA / name / run["tuning"]["lora"]["init_from"], is_trainable=True)
    return model


def adamw(model, recipe: Recipe) -> torch.optim.AdamW:
    return torch.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)


def share_of_rank(batch: list[Document]) -> list[Document]:
    return batch[dist.get_rank()::PROCESSES]  # sftrun deals documents out in the same way


def losses_of_ranks(loss: float, label_tokens: int) -> torch.Tensor:
    """@return [PROCESSES, 2]: sum of token losses and number of label tokens of each rank"""
    mine = torch.tensor([loss, label_tokens], dtype=torch.float64)
    gathered = [torch.empty_like(mine) for _ in range(PROCESSES)]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered)


def metrics_of_step(batch: list[Document], loss: float, grad_norm: float, learning_rate: float) -> dict:
    """`loss`: sum of this rank's token losses. All ranks must call it together."""
    label_tokens = sum(document.label_tokens for document in batch)
    ranks = losses_of_ranks(loss, sum(document.label_tokens for document in share_of_rank(batch)))
    return {
        "loss": ranks[:, 0].sum().item() / label_tokens,
        "loss_per_rank": (ranks[:, 0] / ranks[:, 1]).tolist(),
        "grad_norm": grad_norm,
        "learning_rate": learning_rate,
        "label_tokens": label_tokens,
        "tokens": sum(len(document.tokens) for document in batch),
    }


def write_reference(output: Path, metrics: list[dict], before: dict, after: dict) -> None:
    """Writes the metrics and the trained tensors, before and after, from the first process."""
    if dist.get_rank() != 0:
        return
    output.mkdir(parents=True)
    (output / "metrics.json").write_text(json.dumps([{"step": step, **line} for step, line in enumerate(metrics, start=1)]))
    save_file(before, output / "before.safetensors")
    save_file(after, output / "after.safetensors")


# ---- Comparison


def norm_of_difference(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Relative to the norm of the reference."""
    if ours.shape != reference.shape:
        raise RuntimeError(f"shapes differ: {tuple(ours.shape)} and {tuple(reference.shape)}")
    return ((ours.double() - reference.double()).norm() / reference.double().norm()).item()


def compare_weights(verdicts: Verdicts, name: str, written: dict, reference: Path) -> None:
    before, after = load_file(reference / "before.safetensors"), load_file(reference / "after.safetensors")
    verdicts.expect(f"{name}: names of the trained tensors", written.keys() == after.keys(), f"{len(written)}")
    shared = written.keys() & after.keys()
    differences = {key: norm_of_difference(written[key], after[key]) for key in shared}
    worst = max(differences, key=differences.get)
    verdicts.below(f"{name}: trained tensors, the largest difference is of {worst}", differences[worst], WEIGHTS)
    least = min(norm_of_difference(before[key], after[key]) for key in shared)
    verdicts.expect(f"{name}: training moves every tensor beyond the limit", least > 30 * WEIGHTS, f"{least:.1e}")


def check_run_report(verdicts: Verdicts, name: str, output: Path, strategy: str) -> None:
    report = json.loads((output / "run.json").read_text())
    ran = [report[key] for key in ("strategy", "world_size", "comm_backend", "dtype")]
    verdicts.expect(f"{name}: strategy, processes, network and type", ran == [strategy, PROCESSES, "gloo", "fp32"], str(ran))


def loss_difference_of_ranks(ours: list[dict], reference: list[dict]) -> float:
    pairs = [pair for a, b in zip(ours, reference) for pair in zip(a["loss_per_rank"], b["loss_per_rank"], strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def check(sftrun: Sftrun, name: str, strategy: str, scratch: Path, verdicts: Verdicts) -> None:
    output, reference = scratch / "sftrun" / strategy / name, scratch / "reference" / strategy / name
    overrides = {f"train__{key}": value for key, value in {**TRAIN_SETTINGS, "max_grad_norm": CASES[name]}.items()}
    metrics = sftrun.train(DATA / name / "run.yaml", output, PROCESSES, parallel__strategy=strategy, **overrides)
    expected = json.loads((reference / "metrics.json").read_text())
    title = f"{strategy}, {name}"
    check_run_report(verdicts, title, output, strategy)
    compare_metrics(verdicts, title, metrics, expected, LOSS, GRAD_NORM)
    verdicts.below(f"{title}: loss of each rank", loss_difference_of_ranks(metrics, expected), LOSS)
    norms = [line["grad_norm"] for line in expected]
    verdicts.expect(f"{title}: every step is clipped", min(norms) > CASES[name], f"norms {min(norms):.2f} to {max(norms):.2f}, limit {CASES[name]}")
    file = "adapter/adapter_model.safetensors" if (output / "adapter").exists() else "model/model.safetensors"
    compare_weights(verdicts, title, load_file(output / file), reference)


def run(description: str, strategies: list[str], reference_process: Callable[..., None], cases: list[str] = list(CASES)) -> int:
    """The program of such a test. `reference_process(rank, names, scratch)` writes to scratch/reference/STRATEGY/NAME.

    @return the exit code
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=cases, metavar="NAME", help=", ".join(CASES))
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        # Forked, so that the libraries are imported once.
        start_processes(reference_process, args=(arguments.only, scratch), nprocs=PROCESSES, start_method="fork")
        for strategy in strategies:
            for name in arguments.only:
                try:
                    check(Sftrun(arguments.sftrun), name, strategy, scratch, verdicts)
                except RuntimeError as error:
                    verdicts.expect(f"{strategy}, {name}", False, str(error))
    return verdicts.exit_code()
