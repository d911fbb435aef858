"""Stand-ins for released models: their config.json with sparse files of weights, and the same model made tiny, with random ones.

Values are those of the config.json on the hub; tensors have the names and shapes of the files there. A sparse file has the length
of the real ones together and takes no room on the disk. Standard library only.
"""

import copy
import json
import pathlib
import random
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT_FILES = ROOT / "tests/data/models/tied-gqa"  # a tokenizer of 300 tokens with a chat template
VOCAB, BOS, EOS = 300, 2, 3
BYTES = {"BF16": 2, "U8": 1}


def llama(**sizes):
    return {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
            "initializer_range": 0.02, "mlp_bias": False, "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "torch_dtype": "bfloat16", "use_cache": True, **sizes}


def qwen2(**sizes):
    return {"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645,
            "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768, "model_type": "qwen2",
            "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": False,
            "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False, "vocab_size": 152064, **sizes}


def gemma3(**text):
    """What text_config does not say is the class's default: 4B has no word on heads."""
    return {"architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
            "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                            "sliding_window": 1024, **text},
            "torch_dtype": "bfloat16",
            "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                              "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
                              "patch_size": 14, "vision_use_head": False}}


RELEASED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": llama(
        bos_token_id=1, eos_token_id=2, pad_token_id=2, hidden_size=576, intermediate_size=1536, max_position_embeddings=8192,
        num_attention_heads=9, num_hidden_layers=30, num_key_value_heads=3, rope_scaling=None, rope_theta=100000,
        tie_word_embeddings=True, vocab_size=49152),
    "unsloth/Llama-3.2-1B-Instruct": llama(
        bos_token_id=128000, eos_token_id=128009, pad_token_id=128004, head_dim=64, hidden_size=2048, intermediate_size=8192,
        max_position_embeddings=131072, num_attention_heads=32, num_hidden_layers=16, num_key_value_heads=8,
        rope_scaling={"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        rope_theta=500000.0, tie_word_embeddings=True, vocab_size=128256),
    "meta-llama/Llama-3.1-70B-Instruct": llama(
        bos_token_id=128000, eos_token_id=[128001, 128008, 128009], hidden_size=8192, intermediate_size=28672,
        max_position_embeddings=131072, num_attention_heads=64, num_hidden_layers=80, num_key_value_heads=8,
        rope_scaling={"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"},
        rope_theta=500000.0, tie_word_embeddings=False, vocab_size=128256),
    "Qwen/Qwen2.5-14B-Instruct": qwen2(
        hidden_size=5120, intermediate_size=13824, max_window_layers=70, num_attention_heads=40, num_hidden_layers=48,
        num_key_value_heads=8),
    "google/gemma-3-4b-it": gemma3(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34),
    "google/gemma-3-27b-it": gemma3(
        head_dim=128, hidden_size=5376, intermediate_size=21504, num_attention_heads=32, num_hidden_layers=62,
        num_key_value_heads=16, query_pre_attn_scalar=168),
    "openai/gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "attention_bias": True, "attention_dropout": 0.0, "eos_token_id": 200002,
        "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "initializer_range": 0.02, "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
        "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64, "num_experts_per_tok": 4,
        "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "output_router_logits": False,
        "pad_token_id": 199999,
        "quantization_config": {"modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                           "model.embed_tokens", "lm_head"], "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                         "rope_type": "yarn", "truncate": False},
        "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088},
}
GEMMA3_DEFAULTS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
                   "tie_word_embeddings": True}


def tiny(config):
    """The same keys with small sizes, and the tokens of the tokenizer here."""
    config = copy.deepcopy(config)
    text = config.get("text_config", config)
    # Six layers where every sixth sees everything. MXFP4 has blocks of 32 values.
    text |= {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
             "num_hidden_layers": 6 if "text_config" in config else 2, "vocab_size": VOCAB, "bos_token_id": BOS,
             "eos_token_id": EOS, "pad_token_id": None}
    config |= {"eos_token_id": EOS}
    if "text_config" in config or "layer_types" in config:
        text["sliding_window"] = 16  # shorter than most records
    if "layer_types" in config:
        text["layer_types"] = text["layer_types"][:2]
    if "num_local_experts" in config:
        text["num_local_experts"] = 8
    return config


def layer_tensors(config):
    """Of one layer: name -> (dtype, shape)."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    family = config["model_type"]
    shapes = {"input_layernorm.weight": [hidden], "post_attention_layernorm.weight": [hidden],
              "self_attn.q_proj.weight": [queries, hidden], "self_attn.k_proj.weight": [keys, hidden],
              "self_attn.v_proj.weight": [keys, hidden], "self_attn.o_proj.weight": [hidden, queries]}
    if family in ("qwen2", "gpt_oss"):
        shapes |= {"self_attn.q_proj.bias": [queries], "self_attn.k_proj.bias": [keys], "self_attn.v_proj.bias": [keys]}
    if family == "gemma3_text":
        shapes |= {"pre_feedforward_layernorm.weight": [hidden], "post_feedforward_layernorm.weight": [hidden],
                   "self_attn.q_norm.weight": [head_dim], "self_attn.k_norm.weight": [head_dim]}
    if family != "gpt_oss":
        shapes |= {"mlp.gate_proj.weight": [inner, hidden], "mlp.up_proj.weight": [inner, hidden],
                   "mlp.down_proj.weight": [hidden, inner]}
        return {name: ("BF16", shape) for name, shape in shapes.items()}
    experts = config["num_local_experts"]
    shapes |= {"self_attn.o_proj.bias": [hidden], "self_attn.sinks": [config["num_attention_heads"]],
               "mlp.router.weight": [experts, hidden], "mlp.router.bias": [experts],
               "mlp.experts.gate_up_proj_bias": [experts, 2 * inner], "mlp.experts.down_proj_bias": [experts, hidden]}
    tensors = {name: ("BF16", shape) for name, shape in shapes.items()}
    for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        tensors[f"mlp.experts.{name}_blocks"] = ("U8", [experts, rows, columns // 32, 16])
        tensors[f"mlp.experts.{name}_scales"] = ("U8", [experts, rows, columns // 32])
    return tensors


def tensors_of(config):
    """As the files on the hub have them."""
    text = dict(config.get("text_config", config))
    if "text_config" in config:
        text = GEMMA3_DEFAULTS | text
    text.setdefault("head_dim", text["hidden_size"] // text["num_attention_heads"])
    prefix = "language_model.model." if "text_config" in config else "model."
    hidden = text["hidden_size"]
    tensors = {prefix + "embed_tokens.weight": ("BF16", [text["vocab_size"], hidden]), prefix + "norm.weight": ("BF16", [hidden])}
    for layer in range(text["num_hidden_layers"]):
        tensors |= {f"{prefix}layers.{layer}.{name}": tensor for name, tensor in layer_tensors(text).items()}
    if not text["tie_word_embeddings"]:
        tensors["lm_head.weight"] = ("BF16", [text["vocab_size"], hidden])
    if "vision_config" in config:  # two of the part that is not read
        tensors["vision_tower.vision_model.post_layernorm.weight"] = ("BF16", [1152])
        tensors["multi_modal_projector.mm_input_projection_weight"] = ("BF16", [1152, hidden])
    return tensors


def num_values(shape):
    count = 1
    for size in shape:
        count *= size
    return count


def random_bytes(name, dtype, shape, rng):
    count = num_values(shape)
    if dtype == "U8":  # MXFP4: pairs of 4-bit values; powers of two, biased by 127
        return bytes(rng.randrange(122, 125) for _ in range(count)) if name.endswith("_scales") else rng.randbytes(count)
    one = 1.0 if "norm" in name and not name.startswith("language_model.") else 0.0  # Gemma's multiply by 1 + weight
    # bf16 is the upper half of fp32.
    return b"".join(struct.pack("<f", one + rng.gauss(0, 0.2))[2:] for _ in range(count))


def write_text_files(folder, model_type):
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TEXT_FILES / name, folder / name)
    if model_type == "qwen2":  # whose class splits texts in one way alone: another's split would be warned of
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        qwen = json.loads((ROOT / "tests/data/text/qwen2.tokenizer.json").read_text())
        tokenizer |= {key: qwen[key] for key in ("normalizer", "pre_tokenizer", "decoder")}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def write_model(folder, config, rng=None):
    """A directory in Hugging Face layout; without `rng` its weights are a hole in the file."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_text_files(folder, config["model_type"])
    header, end = {}, 0
    for name, (dtype, shape) in tensors_of(config).items():
        begin, end = end, end + num_values(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        if rng is None:
            out.truncate(out.tell() + end)
            return
        for name, tensor in header.items():
            out.write(random_bytes(name, tensor["dtype"], tensor["shape"], rng))
