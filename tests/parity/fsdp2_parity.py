"""`parallel.strategy: fsdp` on two processes beside PyTorch's FSDP2 (`fully_shard`) on two processes, on a CPU in fp32 over Gloo.

    .venv-ref/bin/python tests/parity/fsdp2_parity.py --sftrun build/bin/sftrun [--only NAME …]

What is trained and compared: sharded_reference.py. The reference loads transformers' model and PEFT's adapter, and shards each decoder layer
and the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sharded_reference import PROCESSES, adamw, documents_of, load_model, metrics_of_step, ranks_together, recipe_of, run, settings_of, share_of_rank, write_reference  # noqa: I001  (sets sys.path)

import torch
from peft import PeftModel, get_peft_model_state_dict
from reference_training import FORWARDS, Document, global_batches
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


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
    # label_tokens is of the whole batch
    loss = backward_of_rank(model, share_of_rank(batch), sum(document.label_tokens for document in batch))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trained, max_grad_norm).full_tensor()
    optimizer.step()
    optimizer.zero_grad()
    return metrics_of_step(batch, loss, norm.item(), optimizer.param_groups[0]["lr"])


def train_reference(name: str, output: Path) -> None:
    settings = settings_of(name)
    recipe = recipe_of(settings)
    model = load_model(name, settings).train()
    shard(model)
    before = trained_tensors(model)
    optimizer = adamw(model, recipe)
    batches = global_batches(documents_of(name, settings), recipe)
    metrics = [train_step(model, optimizer, batch, recipe.max_grad_norm) for batch in batches]
    write_reference(output, metrics, before, trained_tensors(model))


def reference_process(rank: int, names: list[str], scratch: Path) -> None:
    with ranks_together(rank, scratch):
        for name in names:
            train_reference(name, scratch / "reference" / "fsdp" / name)


if __name__ == "__main__":
    sys.exit(run(__doc__, ["fsdp"], reference_process))
