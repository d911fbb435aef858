"""Models and texts that a run takes a second for."""

import json
import pathlib
import struct

DATA = pathlib.Path(__file__).resolve().parents[2] / "data"
TOKENIZER = DATA / "train/models/tied"  # one token a character; digits are among the first forty
VOCABULARY = 98


def families():
    return sorted(path.name for path in (DATA / "families").iterdir() if (path / "model.safetensors").exists())


def has_experts(family):
    config = json.loads((DATA / "families" / family / "config.json").read_text())
    text = config.get("text_config", config)
    return any(text.get(key) for key in ("num_experts", "num_local_experts"))


def dense_families():
    return [family for family in families() if not has_experts(family)]


def link_all(folder, of, pattern):
    for path in of.glob(pattern):
        (folder / path.name).symlink_to(path)


def family_model(folder, family):
    """A family's model, which has no tokenizer, with one."""
    folder.mkdir(parents=True)
    link_all(folder, DATA / "families" / family, "*.json")
    link_all(folder, DATA / "families" / family, "model*.safetensors")
    link_all(folder, TOKENIZER, "tokenizer*.json")
    return folder


def write_texts(path, count, lengths=(40,)):
    """Digits, of these lengths in turn, a micro-batch's: every one is of one shape. 40 are more than kernels for a few rows take."""
    texts = (str(7919**20 * (n + 1))[:lengths[n % len(lengths)]] for n in range(count))
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def dense_config(layers, hidden, head_dim=64):
    heads = hidden // head_dim
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2), "head_dim": head_dim, "intermediate_size": 2 * hidden,
            "vocab_size": VOCABULARY, "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "hidden_act": "silu", "bos_token_id": 0,
            "eos_token_id": 1, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "rope_theta": 10000.0}


def dense_shapes(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        one = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden], "self_attn.q_proj": [queries, hidden],
               "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, queries],
               "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in one.items()})
    return shapes


def mixture_config(layers, hidden, head_dim=64):
    """Qwen3-MoE: 8 experts of which a token has 2."""
    config = dense_config(layers, hidden, head_dim)
    return {**config, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": hidden // 2, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}


def mixture_shapes(config):
    hidden, inner, experts = config["hidden_size"], config["moe_intermediate_size"], config["num_experts"]
    matrices = {"gate_proj": [inner, hidden], "up_proj": [inner, hidden], "down_proj": [hidden, inner]}
    shapes = {name: shape for name, shape in dense_shapes(config).items() if ".mlp." not in name}
    for layer in range(config["num_hidden_layers"]):
        one = {"mlp.gate": [experts, hidden], "self_attn.q_norm": [config["head_dim"]], "self_attn.k_norm": [config["head_dim"]]}
        one.update({f"mlp.experts.{expert}.{name}": shape for expert in range(experts) for name, shape in matrices.items()})
        shapes.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in one.items()})
    return shapes


def write_safetensors(path, shapes):
    """bf16, all the same small number."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<H", 0x3C23) * (offset // 2))


def written_model(folder, config, shapes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", shapes)
    link_all(folder, TOKENIZER, "tokenizer*.json")
    return folder


def dense_model(folder, layers, hidden):
    config = dense_config(layers, hidden)
    return written_model(folder, config, dense_shapes(config))


def mixture_model(folder, layers, hidden):
    config = mixture_config(layers, hidden)
    return written_model(folder, config, mixture_shapes(config))
