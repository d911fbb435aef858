"""What is run: families, modes and numbers of devices."""

import dataclasses
import itertools
import pathlib

from tiny_models import dense_families, families
from vision_folders import KINDS

BASE = ["--config", str(pathlib.Path(__file__).resolve().parent / "run.yaml"), "--device", "cuda"]
MODES = {
    "LoRA": ["model.dtype=bf16"],
    "LoRA fp32": ["model.dtype=fp32"],
    "LoRA fp16": ["model.dtype=fp16"],
    "full": ["tuning.mode=full", "model.dtype=bf16"],
    "full fp32": ["tuning.mode=full", "model.dtype=fp32"],
    "nf4": ["tuning.quant=nf4", "model.dtype=bf16"],
    "fp8": ["tuning.quant=fp8", "model.dtype=bf16"],
    "int8": ["tuning.quant=int8", "model.dtype=bf16"],
    "gradient checkpointing": ["train.gradient_checkpointing=true", "model.dtype=bf16"],
    "DoRA": ["tuning.lora.dora=true", "tuning.lora.dropout=0.1", "train.neftune_noise_alpha=5", "model.dtype=bf16"],
    "PiSSA": ["tuning.lora.init=pissa", "tuning.lora.r=1", "model.dtype=bf16"],
    "packed": ["data.packing=true", "model.dtype=bf16"],
    "deterministic": ["train.deterministic=true", "tuning.mode=full", "model.dtype=bf16"],
}
OPTIMIZERS = ["adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "sgd", "lion", "adafactor", "muon"]  # docs/optimizers.md
MODES |= {f"full {name}": ["tuning.mode=full", "model.dtype=bf16", f"train.optimizer={name}"] for name in OPTIMIZERS[1:]}
MODES |= {f"LoRA {name}": ["model.dtype=bf16", f"train.optimizer={name}"] for name in OPTIMIZERS[1:]}
# Met by counts of micro-batches alone.
STEADY_MODES = {
    "LoRA dropout": ["tuning.lora.dropout=0.1", "model.dtype=bf16"],
    "LoRA dropout, head": ["tuning.lora.dropout=0.1", "tuning.lora.target_modules=[o_proj, lm_head, embed_tokens]", "model.dtype=bf16"],
    "NEFTune": ["train.neftune_noise_alpha=5", "model.dtype=bf16"],
    "NEFTune fp32": ["train.neftune_noise_alpha=5", "model.dtype=fp32"],
    "DoRA alone": ["tuning.lora.dora=true", "model.dtype=bf16"],
    "DoRA, head": ["tuning.lora.dora=true", "tuning.lora.target_modules=[o_proj, lm_head, embed_tokens]", "model.dtype=bf16"],
    "nf4 embeddings": ["tuning.quant=nf4", "tuning.quant_embeddings=true", "model.dtype=bf16"],
    "fp4 embeddings": ["tuning.quant=fp4", "tuning.double_quant=false", "tuning.quant_embeddings=true", "model.dtype=bf16"],
    "int8 embeddings": ["tuning.quant=int8", "tuning.quant_embeddings=true", "model.dtype=bf16"],
    "nf4 DoRA": ["tuning.quant=nf4", "tuning.lora.dora=true", "tuning.lora.dropout=0.1", "model.dtype=bf16"],
    "full, gradient checkpointing": ["tuning.mode=full", "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "full NEFTune": ["tuning.mode=full", "train.neftune_noise_alpha=5", "model.dtype=bf16"],
    "packed NEFTune": ["data.packing=true", "train.neftune_noise_alpha=5", "model.dtype=bf16"],
}
MODES |= STEADY_MODES
# Of models with images; counts of micro-batches and device/ have them.
ALL_PARTS = "tuning.train_parts=[language, projector, vision]"
MEDIA_MODES = {
    "LoRA": ["model.dtype=bf16"],
    "LoRA fp32": ["model.dtype=fp32"],
    "tower full": ["tuning.mode=full", ALL_PARTS, "model.dtype=bf16"],
    "tower full, gradient checkpointing": ["tuning.mode=full", ALL_PARTS, "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "tower LoRA dropout": ["tuning.train_parts={language: lora, projector: full, vision: lora}", "tuning.lora.dropout=0.1", "model.dtype=bf16"],
    "features": ["tuning.train_parts={language: lora, projector: full}", "model.projectors={world: {input_width: 6, hidden: 8}}", "model.dtype=bf16"],
}
QUICK_MEDIA = [("gemma3", "features"), ("qwen2_5_vl", "tower full")]
SHARDED_MODES = {
    "fsdp": ["parallel.strategy=fsdp", "model.dtype=bf16"],
    "fsdp nf4": ["parallel.strategy=fsdp", "tuning.quant=nf4", "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "fsdp full": ["parallel.strategy=fsdp", "tuning.mode=full", "model.dtype=bf16"],
    "pipeline": ["parallel.strategy=pipeline", "train.grad_accum=4", "model.dtype=bf16"],
    "pipeline nf4": ["parallel.strategy=pipeline", "tuning.quant=nf4", "train.gradient_checkpointing=true", "train.grad_accum=3", "model.dtype=bf16"],
    "pipeline full": ["parallel.strategy=pipeline", "tuning.mode=full", "train.grad_accum=2", "model.dtype=bf16"],
    "tensor": ["parallel.strategy=tensor", "train.grad_accum=2", "model.dtype=bf16"],
    "tensor nf4": ["parallel.strategy=tensor", "tuning.quant=nf4", "train.gradient_checkpointing=true", "parallel.offload.activations=cpu",
                   "train.grad_accum=2", "model.dtype=bf16"],
    "tensor 2 x 2": ["parallel.strategy=tensor", "parallel.tp=2", "model.dtype=bf16"],
    "pipeline 2 x 2": ["parallel.strategy=pipeline", "parallel.pp=2", "train.grad_accum=3", "model.dtype=bf16"],
    "hybrid 2 x 2": ["parallel.strategy=hybrid", "parallel.dp_shard=2", "tuning.quant=nf4", "model.dtype=bf16"],
    # Axes together: collectives of several groups, in one order on all ranks.
    "fsdp 2 x tensor 2": ["parallel.dp_shard=2", "parallel.tp=2", "train.grad_accum=2", "model.dtype=bf16"],
    "fsdp 2 x tensor 2 full": ["parallel.dp_shard=2", "parallel.tp=2", "tuning.mode=full", "model.dtype=bf16"],
    "pipeline 2 x fsdp 2": ["parallel.pp=2", "parallel.dp_shard=2", "tuning.quant=nf4", "train.grad_accum=3", "model.dtype=bf16"],
    "pipeline 2 x zero1 2": ["parallel.strategy=zero1", "parallel.pp=2", "tuning.mode=full", "train.grad_accum=2", "model.dtype=bf16"],
    "pipeline 2 x tensor 2": ["parallel.pp=2", "parallel.tp=2", "train.gradient_checkpointing=true", "train.grad_accum=3", "model.dtype=bf16"],
    "fsdp 2 x ddp 2 x tensor 2": ["parallel.dp_replicate=2", "parallel.dp_shard=2", "parallel.tp=2", "model.dtype=bf16"],
    "pipeline 2 x ddp 2 x tensor 2": ["parallel.pp=2", "parallel.dp_replicate=2", "parallel.tp=2", "train.grad_accum=2", "model.dtype=bf16"],
    "pipeline 2 x fsdp 2 x tensor 2": ["parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2", "train.grad_accum=2", "model.dtype=bf16"],
    "fsdp per step": ["parallel.strategy=fsdp", "parallel.fetch=per_step", "train.grad_accum=2", "model.dtype=bf16"],
    "tensor full": ["parallel.strategy=tensor", "tuning.mode=full", "train.grad_accum=2", "model.dtype=bf16"],
    "offload": ["parallel.offload.base=cpu", "parallel.offload.activations=cpu", "parallel.offload.optimizer=cpu", "tuning.quant=nf4",
                "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "fsdp offload": ["parallel.strategy=fsdp", "parallel.offload.base=cpu", "parallel.offload.activations=cpu",
                     "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "full, weights on the host": ["parallel.offload.params=cpu", "tuning.mode=full", "train.grad_accum=2", "train.gradient_checkpointing=true",
                                  "parallel.offload.activations=cpu", "parallel.fetch=per_micro_batch", "model.dtype=bf16"],
    "fsdp full, weights on the host": ["parallel.strategy=fsdp", "parallel.offload.params=cpu", "tuning.mode=full", "train.grad_accum=2", "model.dtype=bf16"],
    "context": ["parallel.cp=2", "train.grad_accum=2", "model.dtype=bf16"],
    "fsdp over context, nf4": ["parallel.strategy=fsdp", "parallel.cp=2", "tuning.quant=nf4", "train.gradient_checkpointing=true", "model.dtype=bf16"],
    "pipeline 2 x context 2": ["parallel.pp=2", "parallel.cp=2", "train.grad_accum=2", "model.dtype=bf16"],
    "fsdp 2 x context 2 x tensor 2": ["parallel.dp_shard=2", "parallel.cp=2", "parallel.tp=2", "tuning.mode=full", "model.dtype=bf16"],
    "zero1 full": ["parallel.strategy=zero1", "tuning.mode=full", "model.dtype=bf16"],
    "zero2 full 8 bits": ["parallel.strategy=zero2", "tuning.mode=full", "train.optimizer=paged_adamw_8bit", "model.dtype=bf16"],
}
MODES |= SHARDED_MODES
# Of every family that has no experts: delta nets, RoPE by length, windows, soft caps, per-layer inputs.
STEADY_FAMILIES = ["qwen3_5", "phi3", "llama_dynamic", "gemma2", "gemma4"]
STEADY_MIXTURES = ["gpt_oss", "mixtral", "gemma4_moe", "qwen3_moe", "qwen3_5_moe"]
# Of a quick test: what has code of its own, and of similar modes the largest.
QUICK_STEADY_OF_DELTA_NETS = ["full"]
QUICK_STEADY = ["fp8", "gradient checkpointing", "full paged_adamw", "LoRA dropout, head", "DoRA, head", "nf4 embeddings", "nf4 DoRA", "packed NEFTune"]
QUICK_RESUMED = ["LoRA fp16", "nf4", "full adamw_8bit", "full paged_adamw", "fsdp nf4", "pipeline full", "tensor nf4", "zero2 full 8 bits",
                 "fsdp full, weights on the host"]
NOT_QUICK = ["LoRA paged_adamw", "LoRA paged_adamw_8bit", "LoRA sgd", "LoRA lion"]  # full training is with these, too
DENSE = "dense"  # tiny_models.dense_model: matrices of whole blocks, joint products
OF_ONE_FAMILY = "qwen3"  # that meets every mode
ON_TWO = [("llama", "LoRA"), ("qwen3", "full"), ("qwen3", "nf4"), ("gemma3", "full paged_adamw"), ("qwen3_moe", "LoRA"), ("mistral", "full paged_adamw_8bit"),
          ("qwen3", "fsdp"), ("llama", "fsdp nf4"), ("gemma3", "fsdp full"), ("qwen3_moe", "fsdp"), ("qwen3", "offload"), ("mistral", "fsdp offload"),
          ("qwen3_moe", "offload"), ("qwen3", "pipeline"), ("llama", "pipeline nf4"), ("gemma3", "pipeline full"), ("qwen3_5", "zero1 full"), ("llama", "tensor"),
          (DENSE, "tensor nf4"), ("gemma2", "tensor full"), ("mistral", "zero2 full 8 bits"),
          ("llama", "context"), ("llama", "fsdp over context, nf4"), ("qwen3", "fsdp per step"), ("qwen3", "full, weights on the host"), ("mistral", "fsdp full, weights on the host")]
# cuda.parity or cuda.strategies trains these on two devices, or a case here with more of the same.
NOT_QUICK_ON_TWO = [("qwen3", "full"), ("gemma3", "full paged_adamw"), ("qwen3", "nf4"), ("qwen3", "fsdp"), ("mistral", "fsdp offload"), ("qwen3_moe", "offload"),
                    ("qwen3", "pipeline"), ("llama", "tensor"), ("llama", "context"), ("qwen3_moe", "LoRA"), ("mistral", "full paged_adamw_8bit"),
                    ("qwen3", "full, weights on the host")]
ON_FOUR = [("llama", "fsdp"), ("llama", "tensor 2 x 2"), ("qwen3", "pipeline 2 x 2"), ("llama", "hybrid 2 x 2"), ("gemma4_moe", "pipeline"),
           ("llama", "fsdp 2 x tensor 2"), ("llama", "fsdp 2 x tensor 2 full"), (DENSE, "pipeline 2 x fsdp 2"), ("gemma3", "pipeline 2 x zero1 2"),
           ("llama", "pipeline 2 x tensor 2"), ("llama", "pipeline 2 x context 2")]
ON_EIGHT = [("llama", "fsdp 2 x context 2 x tensor 2"), ("llama", "fsdp 2 x ddp 2 x tensor 2"), ("llama", "pipeline 2 x ddp 2 x tensor 2"), ("llama", "pipeline 2 x fsdp 2 x tensor 2")]
# On two, and in groups of two, fsdp is; of the others the axes are in "pipeline 2 x fsdp 2 x tensor 2".
NOT_QUICK_ON_FOUR = [("llama", "fsdp"), ("llama", "fsdp 2 x tensor 2 full"), (DENSE, "pipeline 2 x fsdp 2"), ("gemma3", "pipeline 2 x zero1 2"),
                     ("llama", "pipeline 2 x tensor 2"), ("llama", "fsdp 2 x tensor 2"), ("llama", "tensor 2 x 2"), ("qwen3", "pipeline 2 x 2"), ("llama", "pipeline 2 x context 2")]
NOT_QUICK_ON_EIGHT = [("llama", "fsdp 2 x ddp 2 x tensor 2"), ("llama", "pipeline 2 x ddp 2 x tensor 2")]


assert {*QUICK_STEADY, *QUICK_STEADY_OF_DELTA_NETS, *QUICK_RESUMED, *NOT_QUICK} <= MODES.keys()
assert {*NOT_QUICK_ON_TWO} <= {*ON_TWO} and {*NOT_QUICK_ON_FOUR} <= {*ON_FOUR} and {*NOT_QUICK_ON_EIGHT} <= {*ON_EIGHT}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    family: str
    mode: str = "LoRA"
    devices: int = 1
    resumes: bool = False
    answers: bool = False
    scores: bool = False  # of those that answer

    @property
    def arguments(self):
        return [*BASE, *MODES[self.mode]]


def case(family, mode, devices, **what):
    return Case(f"{family}, {mode}, {devices} device{'s' if devices > 1 else ''}", family, mode, devices, **what)


def case_modes():
    return [mode for mode in MODES if mode not in STEADY_MODES and mode not in SHARDED_MODES]


def all_cases():
    found = [case(family, mode, devices, resumes=devices == 2, answers=devices == 1 and mode != "packed", scores=True)
             for family, mode, devices in itertools.product(families(), case_modes(), (1, 2))]
    found += [case(family, mode, 2, resumes=True) for family, mode in ON_TWO if mode in SHARDED_MODES]
    found += [case(family, mode, 8) for family, mode in ON_EIGHT]
    return found + [case(family, mode, 4, resumes=True) for family, mode in ON_FOUR]


def steady_cases(everything):
    """(family, mode) of runs whose micro-batches neither wait nor copy pageable memory."""
    mixtures = list(itertools.product(STEADY_MIXTURES, ["LoRA", "full"]))
    if everything:
        modes = [mode for mode in MODES if mode not in SHARDED_MODES]
        return [*itertools.product([DENSE, *dense_families()], modes), *mixtures]
    found = [(family, "LoRA") for family in STEADY_FAMILIES]
    found += [(family, ("LoRA", "full")[at % 2]) for at, family in enumerate(STEADY_MIXTURES)]
    found += [("qwen3_5", mode) for mode in QUICK_STEADY_OF_DELTA_NETS]
    return found + [(DENSE, mode) for mode in QUICK_STEADY]


def steady_media(everything):
    """(kind of vision_folders, mode) of the same for models with images."""
    return list(itertools.product(KINDS, MEDIA_MODES)) if everything else QUICK_MEDIA


def chosen_cases():
    """Every sixth family with the first mode (`gpu_tests` has them all), the modes with one family, and those that use the most of two,
    four and eight devices."""
    found = [case(family, "LoRA", 1, answers=True) for family in [family for family in families() if family != OF_ONE_FAMILY][::6]]
    found += [case(OF_ONE_FAMILY, mode, 1, resumes=mode in QUICK_RESUMED, answers=mode in ("LoRA", "nf4", "fp8", "int8"), scores=mode == "LoRA")
              for mode in case_modes() if mode not in NOT_QUICK]
    found += [case(family, mode, 2, resumes=mode in QUICK_RESUMED) for family, mode in ON_TWO if (family, mode) not in NOT_QUICK_ON_TWO]
    found += [case(family, mode, 8) for family, mode in ON_EIGHT if (family, mode) not in NOT_QUICK_ON_EIGHT]
    return found + [case(family, mode, 4) for family, mode in ON_FOUR if (family, mode) not in NOT_QUICK_ON_FOUR]
