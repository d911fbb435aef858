"""`parallel.strategy: fsdp` on two processes beside PyTorch's FSDP2 (`fully_shard`) on two processes, on a CPU in fp32 over Gloo.

    .venv-ref/bin/python tests/parity/fsdp2_parity.py --sftrun build/bin/sftrun [--only NAME …]

Tiny Llamas of tests/data/train, with tied and untied embeddings: LoRA from a given adapter over a frozen base, and training of every weight.
6 steps of AdamW, two micro-batches per process and step, every step's gradients clipped. The reference loads transformers' model and PEFT's
adapter, and shards each decoder layer and the rest. Compared are the tokens, the loss of every step, of all ranks and of each, the gradient
norm before clipping, and every trained tensor at the end: norm of the difference over the norm of the reference's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics  # noqa: I001  (sets sys.path)

import torch
import torch.distributed as dist
import yaml
from peft import PeftModel, get_peft_model_state_dict
from reference_training import FORWARDS, Document, Recipe, decay_groups, encode_record, global_batches, read_jsonl
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.multiprocessing import start_processes
from transformers import AutoModelForCausalLM

DATA = REPOSITORY / "tests" / "data" / "train"
LOSS, GRAD_NORM, WEIGHTS = 1e-5, 1e-4, 1e-4
PROCESSES, MICRO_BATCHES, STEPS = 2, 2, 6  # a micro-batch is one document
# Folders of tests/data/train, and a norm below those of all steps. The sizes of the steps' norms differ, so that Adam does not undo clipping.
CASES = {"lora_all_linear": 0.3, "lora_rslora": 0.6, "full_tied": 1.5, "full_untied": 1.5}
TRAIN_SETTINGS = {"max_steps": STEPS, "batch_size": 1, "grad_accum": MICRO_BATCHES, "scheduler": "constant", "warmup_steps": 0}


def settings_of(name: str) -> dict:
    """The variant's run.yaml with the settings of this test, as sftrun gets them on its command line."""
    run = yaml.safe_load((DATA / name / "run.yaml").read_text())
    run["train"] |= {**TRAIN_SETTINGS, "max_grad_norm": CASES[name]}
    return run


# ---- The reference, in each of its processes


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


def shard(model) -> None:
    """Each decoder layer is a unit, and the root is one: embedding, last norm and head. Divides all parameters, also the frozen ones."""
    mesh = init_device_mesh("cpu", (PROCESSES,))
    llama = model.get_base_model() if isinstance(model, PeftModel) else model
    for layer in llama.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name, parameter in model.named_parameters():
        if not (isinstance(parameter, DTensor) and parameter.to_local().numel() < parameter.numel()):
            raise RuntimeError(f"not sharded: {name}")


def trained_tensors(model) -> dict[str, torch.Tensor]:
    """Whole tensors, under the names in the file that PEFT or transformers writes. All ranks must call it together."""
    if isinstance(model, PeftModel):
        shards = get_peft_model_state_dict(model)
    else:
        shards = dict(model.named_parameters())  # without the head, where it is tied
    return {name: shards[name].detach().full_tensor().contiguous() for name in shards}


def losses_of_ranks(loss: float, label_tokens: int) -> torch.Tensor:
    """@return [PROCESSES, 2]: sum of token losses and number of label tokens of each rank"""
    mine = torch.tensor([loss, label_tokens], dtype=torch.float64)
    gathered = [torch.empty_like(mine) for _ in range(PROCESSES)]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered)


def backward_of_rank(model, share: list[Document], label_tokens: int) -> float:
    """One backward pass for each document. `label_tokens`: of the whole batch. @return the sum of the rank's token losses"""
    total = 0.0
    for document in share:
        loss = FORWARDS["per_document"](model, [document])
        total += loss.item()
        # FSDP2 takes the mean over ranks: times their number it is the sum over ranks that the loss of the batch needs.
        (loss / label_tokens * PROCESSES).backward()
    return total


def train_step(model, optimizer, batch: list[Document], max_grad_norm: float) -> dict:
    rank = dist.get_rank()
    share = batch[rank::PROCESSES]  # sftrun deals documents out in the same way
    label_tokens = sum(document.label_tokens for document in batch)
    loss = backward_of_rank(model, share, label_tokens)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trained, max_grad_norm).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    ranks = losses_of_ranks(loss, sum(document.label_tokens for document in share))
    return {
        "loss": ranks[:, 0].sum().item() / label_tokens,
        "loss_per_rank": (ranks[:, 0] / ranks[:, 1]).tolist(),
        "grad_norm": norm.item(),
        "learning_rate": optimizer.param_groups[0]["lr"],
        "label_tokens": label_tokens,
        "tokens": sum(len(document.tokens) for document in batch),
    }


def train_reference(name: str, output: Path) -> None:
    """Writes metrics.json and the trained tensors, before and after, to `output`."""
    run = settings_of(name)
    recipe = recipe_of(run)
    model = load_model(name, run).train()
    shard(model)
    before = trained_tensors(model)
    optimizer = torch.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)
    batches = global_batches(documents_of(name, run), recipe)
    metrics = [{"step": step, **train_step(model, optimizer, batch, recipe.max_grad_norm)} for step, batch in enumerate(batches, start=1)]
    after = trained_tensors(model)
    if dist.get_rank() == 0:
        output.mkdir()
        (output / "metrics.json").write_text(json.dumps(metrics))
        save_file(before, output / "before.safetensors")
        save_file(after, output / "after.safetensors")


def reference_process(rank: int, names: list[str], scratch: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/rendezvous", rank=rank, world_size=PROCESSES,
                            timeout=datetime.timedelta(seconds=120))
    for name in names:
        train_reference(name, scratch / "reference" / name)
    dist.destroy_process_group()


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


def check_run_report(verdicts: Verdicts, name: str, output: Path) -> None:
    report = json.loads((output / "run.json").read_text())
    ran = [report[key] for key in ("strategy", "world_size", "comm_backend", "dtype")]
    verdicts.expect(f"{name}: strategy, processes, network and type", ran == ["fsdp", PROCESSES, "gloo", "fp32"], str(ran))


def loss_difference_of_ranks(ours: list[dict], reference: list[dict]) -> float:
    pairs = [pair for a, b in zip(ours, reference) for pair in zip(a["loss_per_rank"], b["loss_per_rank"], strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def check(sftrun: Sftrun, name: str, scratch: Path, verdicts: Verdicts) -> None:
    output, reference = scratch / "sftrun" / name, scratch / "reference" / name
    overrides = {f"train__{key}": value for key, value in {**TRAIN_SETTINGS, "max_grad_norm": CASES[name]}.items()}
    metrics = sftrun.train(DATA / name / "run.yaml", output, PROCESSES, parallel__strategy="fsdp", **overrides)
    expected = json.loads((reference / "metrics.json").read_text())
    check_run_report(verdicts, name, output)
    compare_metrics(verdicts, name, metrics, expected, LOSS, GRAD_NORM)
    verdicts.below(f"{name}: loss of each rank", loss_difference_of_ranks(metrics, expected), LOSS)
    norms = [line["grad_norm"] for line in expected]
    verdicts.expect(f"{name}: every step is clipped", min(norms) > CASES[name], f"norms {min(norms):.2f} to {max(norms):.2f}, limit {CASES[name]}")
    file = "adapter/adapter_model.safetensors" if (output / "adapter").exists() else "model/model.safetensors"
    compare_weights(verdicts, name, load_file(output / file), reference)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        (scratch / "reference").mkdir()
        # Forked, so that the libraries are imported once.
        start_processes(reference_process, args=(arguments.only, scratch), nprocs=PROCESSES, start_method="fork")
        for name in arguments.only:
            try:
                check(Sftrun(arguments.sftrun), name, scratch, verdicts)
            except RuntimeError as error:
                verdicts.expect(name, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
