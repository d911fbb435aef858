"""`parallel.strategy: zero2` and `zero3` on two processes beside DeepSpeed's ZeRO stages 2 and 3 on two processes, on a CPU in fp32 over Gloo.

    .venv-ref/bin/python tests/parity/deepspeed_parity.py --sftrun build/bin/sftrun [--only NAME …]

What is trained and compared: sharded_reference.py. `make test` runs one adapter and one whole model; `--only` names others. DeepSpeed divides,
accumulates, clips and updates; the optimizer that it wraps is torch's AdamW.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"  # read when deepspeed is imported
sys.path.append(str(Path(sys.prefix) / "deepspeed"))  # scripts/requirements-deepspeed.txt tells why

from sharded_reference import MICRO_BATCHES, PROCESSES, adamw, documents_of, load_model, metrics_of_step, ranks_together, recipe_of, run, settings_of, share_of_rank, write_reference  # noqa: E402, I001

import deepspeed
import deepspeed.comm.torch
import torch
from peft import PeftModel, get_peft_model_state_dict
from reference_training import FORWARDS, Document, Recipe, global_batches

STRATEGIES = {"zero2": 2, "zero3": 3}
IN_EVERY_TEST = ["lora_all_linear", "full_untied"]


def deepspeed_settings(stage: int, recipe: Recipe) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "gradient_clipping": recipe.max_grad_norm,
        # By default stage 3 keeps tensors of up to 100,000 values whole: these models have no larger one.
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def require_divided(model, stage: int) -> None:
    """Stage 3 releases every weight after use; stage 2 keeps all."""
    whole = [name for name, parameter in model.named_parameters() if parameter.numel() > 0]
    if (stage == 3) == bool(whole):
        raise RuntimeError(f"stage {stage} keeps {len(whole)} whole weights")


def trained_tensors(model, stage: int) -> dict[str, torch.Tensor]:
    """Whole tensors, under the names in the file that PEFT or transformers writes. All ranks must call it together."""
    with deepspeed.zero.GatheredParameters(list(model.parameters())) if stage == 3 else nullcontext():
        tensors = get_peft_model_state_dict(model) if isinstance(model, PeftModel) else dict(model.named_parameters())
        return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def train_step(engine, batch: list[Document]) -> dict:
    label_tokens = sum(document.label_tokens for document in batch)
    total = 0.0
    for document in share_of_rank(batch):
        loss = FORWARDS["per_document"](engine, [document])
        total += loss.item()
        # DeepSpeed takes the mean over ranks and micro-batches; the loss of the batch needs the sum.
        engine.backward(loss / label_tokens * PROCESSES * MICRO_BATCHES)
        engine.step()
    return metrics_of_step(batch, total, float(engine.get_global_grad_norm()), engine.optimizer.param_groups[0]["lr"])


def train_reference(name: str, stage: int, output: Path) -> None:
    settings = settings_of(name)
    recipe = recipe_of(settings)
    model = load_model(name, settings).train()
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model, recipe), config=deepspeed_settings(stage, recipe))
    require_divided(model, stage)
    before = trained_tensors(model, stage)
    metrics = [train_step(engine, batch) for batch in global_batches(documents_of(name, settings), recipe)]
    write_reference(output, metrics, before, trained_tensors(model, stage))
    engine.destroy()


def reference_process(rank: int, names: list[str], scratch: Path) -> None:
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(PROCESSES), "LOCAL_SIZE": str(PROCESSES)}
    # It would compile an all-reduce over shared memory, for half a minute. Gloo has one.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # `deepspeed.comm.torch` may be PyTorch
    with ranks_together(rank, scratch):
        deepspeed.init_distributed(dist_backend="gloo")
        for strategy, stage in STRATEGIES.items():
            for name in names:
                train_reference(name, stage, scratch / "reference" / strategy / name)


if __name__ == "__main__":
    sys.exit(run(__doc__, list(STRATEGIES), reference_process, IN_EVERY_TEST))
