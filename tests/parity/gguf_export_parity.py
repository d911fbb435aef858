"""What `sftrun merge --format gguf` and `--format lora-gguf` write, in llama.cpp (llama-cpp-python) beside transformers and peft.

    .venv-ref/bin/python tests/parity/gguf_export_parity.py --sftrun build/bin/sftrun --gguf-py-only      # in `make test`
    .venv-ref/bin/pip install --no-binary llama-cpp-python "$(grep llama-cpp scripts/requirements-converter.txt | cut -d'#' -f1)"
    .venv-ref/bin/python tests/parity/gguf_export_parity.py --sftrun build/bin/sftrun [--cache build/reference-cache] [--only demo llama]

Building llama.cpp takes ten minutes and more, so what needs it is not in `make test`. Models: the demo's (SmolLM2 135M, from its own Q4_1
file and from a directory), and tiny random ones of other families; each with a random adapter on every linear layer.
weights  gguf-py reads tensors, quantised as it does itself, of what `sftrun merge` writes as safetensors (K blocks: close to it), and the
         adapter's A and B as the difference to the base
tokens   llama.cpp's token ids of texts are the tokenizer's
top 10   of the next token after 20 prompts: llama.cpp's (merged f16 and q8_0; base + adapter) share 9 at least with those of
         transformers, in fp32, of what `sftrun merge` writes as safetensors, or are as likely as the tenth of these up to a factor:
         llama.cpp computes with activations of 8 bits, and near ties change places
rounding of every type: with activations rounded as llama.cpp rounds them (as_llama_cpp.py), over the file's values and on what llama.cpp
         has of the layer before, every layer adds what llama.cpp's adds, and after each prompt last layer and head share 9 at least.
         Printed and not asked for, since it is 8 after some prompts: what is shared where layers follow each other, rounded or not, and by
         llama.cpp with itself
quantise llama-quantize (llama_model_quantize) makes of our F32 file the same tensors, byte for byte, as --dtype does of the model

--quick writes gemma3 as f32, q8_0 and q4_k_m only, and of a head that has parted from its embedding qwen2's, as the last two.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import gguf
import numpy as np
import torch
from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics  # and where what follows is found
import as_llama_cpp
import family_gguf

try:
    import llama_cpp
except ImportError:
    llama_cpp = None

NUM_PROMPTS, TOP, SHARED = 20, 10, 9
NEAR = 0.2  # of logits: what 8 bits leave open (0.13 was needed; over the vocabulary q8_0's differ by 0.12, as root of the mean square)
CLOSER = 5  # times: layers that round as llama.cpp does, than those that do not. Of blocks it is a hundred thousand times, where no code
            # came out as the next; what fp16 leaves is seen in its own rounding
PROMPTS = [
    "The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n    ", "2 + 2 =", "Water boils at",
    "The quick brown fox", "In 1969, the first man", "Dear Sir or Madam,", "Ingredients: flour, sugar,", "The opposite of hot is",
    "SELECT name FROM users WHERE", "My favourite colour is", "To open the door, turn the", "The sun rises in the", "She looked at him and",
    "Les enfants jouent dans", "import numpy as", "The largest planet in the solar system is", "A triangle has three", "Thank you for your",
]
TEXTS = [*PROMPTS, "  Leading spaces,\ttabs\tand\n\n\nempty lines   stay   as they are. ", "Numbers: 0 12 1234 1,000,000 and 3.5e-07.",
         "Ein café in Zürich: 12,50 € bitte.", "Ship it 🚀 or wait? 東京 is sunny; Москва is cold.", "I'll, we've, it's, DON'T; x_1 != y**2"]
TYPES = {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}  # llama.cpp's numbers of them
QUICK_TYPES = ("q8_0", "q4_k_m")
RANK = 4
KEPT = 1e-5  # relative, of losses over blocks and over their values
WORST_OF_K = 0.09  # relative error of Q4_K over random weights, near 0.075

# Rows of whole blocks of 256, and some that are not. Heads share keys.
SIZES = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=9, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
             max_position_embeddings=256, initializer_range=0.02)


def tiny_bytes(directory: Path) -> int:
    """A byte-level tokenizer of 256 bytes and merges trained on the texts; SmolLM's splits. @return its size"""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False,
                                                                 initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {"bos_token": special[0], "eos_token": special[2], "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return tokenizer.get_vocab_size()


def tiny_pieces(directory: Path) -> int:
    """SentencePiece's BPE with bytes, without a space before the text, as Gemma's."""
    import sentencepiece

    prefix = directory / "tokenizer"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 3), model_prefix=str(prefix), vocab_size=420, model_type="bpe", bos_id=2, eos_id=1, unk_id=3, pad_id=0,
        byte_fallback=True, add_dummy_prefix=False, normalization_rule_name="identity", remove_extra_whitespaces=False,
        split_digits=True, hard_vocab_limit=False, num_threads=1, minloglevel=2)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "add_bos_token": True,
             "tokenizer_class": "GemmaTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(names))
    return sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model").vocab_size()


def tiny_model(family: str, directory: Path) -> None:
    import transformers as hf

    directory.mkdir(parents=True)
    classes = {"llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {"tie_word_embeddings": False}),
               "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
               "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"tie_word_embeddings": False}),
               "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {"sliding_window": 128, "query_pre_attn_scalar": 64})}
    config_class, model_class, more = classes[family]
    size = (tiny_pieces if family == "gemma3" else tiny_bytes)(directory)
    if family == "llama":
        more = more | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                           "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}
    torch.manual_seed(sum(family.encode()))
    special = {"gemma3": dict(bos_token_id=2, eos_token_id=1, pad_token_id=0)}.get(family, dict(bos_token_id=0, eos_token_id=2))
    # More rows than tokens, as released models have.
    model = model_class(config_class(**SIZES, vocab_size=size + 13, **special, **more)).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(directory)


def write_adapter(directory: Path, target: Path, scale: float, modules: str | list[str] = "all-linear") -> None:
    """Random A and B on every linear layer, with rsLoRA's scale, which llama.cpp does not know."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = LoraConfig(r=RANK, lora_alpha=8, target_modules=modules, task_type="CAUSAL_LM", use_rslora=True)
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(scale * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    adapted.save_pretrained(target)


def silence() -> None:
    """llama.cpp speaks of every tensor that it quantises."""
    global quiet  # kept: the library calls it
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())


class Client:
    """A model in llama.cpp. Without the weights' other layouts, of which that for AMX faults here in 0.3.36."""

    def __init__(self, model: Path, adapter: Path | None = None):
        self.model, self.adapter = model, adapter
        self.results: dict[int, np.ndarray] = {}  # of layers, in the last evaluation
        self._on_tensor = llama_cpp.ggml_backend_sched_eval_callback(self._keep_result)
        self._ggml = ctypes.CDLL(str(next(Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so"))))
        self._ggml.ggml_get_name.restype, self._ggml.ggml_get_name.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
        self._ggml.ggml_nelements.restype, self._ggml.ggml_nelements.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        self._ggml.ggml_get_data_f32.restype = ctypes.POINTER(ctypes.c_float)
        self._ggml.ggml_get_data_f32.argtypes = [ctypes.c_void_p]
        low = llama_cpp.llama_cpp
        model_params, context_params = low.llama_model_default_params(), low.llama_context_default_params()
        model_params.use_extra_bufts = False
        context_params.cb_eval = self._on_tensor
        with mock.patch.object(low, "llama_model_default_params", lambda: model_params), \
                mock.patch.object(low, "llama_context_default_params", lambda: context_params):
            self.llama = llama_cpp.Llama(str(model), lora_path=str(adapter) if adapter else None, n_ctx=256, n_threads=1, verbose=False)

    def _keep_result(self, tensor: int, asks: bool, _) -> bool:
        name = self._ggml.ggml_get_name(tensor).decode()
        if name.startswith("l_out-") and not asks:
            values = np.ctypeslib.as_array(self._ggml.ggml_get_data_f32(tensor), (self._ggml.ggml_nelements(tensor),))
            self.results[int(name.removeprefix("l_out-"))] = values.reshape(-1, self.llama.n_embd()).copy()
        return name.startswith("l_out-")

    def tokenize(self, text: str, special: bool = False) -> list[int]:
        return self.llama.tokenize(text.encode(), add_bos=True, special=special)  # as the file says

    def logits(self, ids: list[int], at_a_time: int | None = None) -> np.ndarray:
        self.llama.reset()
        for first in range(0, len(ids), at_a_time or len(ids)):
            self.llama.eval(ids[first : first + (at_a_time or len(ids))])
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.llama.ctx, -1), (self.llama.n_vocab(),)).copy()

    def layers(self) -> list[np.ndarray]:
        return [self.results[i] for i in sorted(self.results)]


@torch.no_grad()
def reference_logits(directory: Path, prompts: list[list[int]]) -> np.ndarray:
    """[prompts, vocabulary]"""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return np.stack([model(torch.tensor([ids])).logits[0, -1].numpy() for ids in prompts])


def top_of(logits: np.ndarray) -> set[int]:
    return set(np.argsort(-logits)[:TOP].tolist())


def check_tokens(name: str, client: Client, expected: list[list[int]], verdicts: Verdicts) -> None:
    differing = [text for text, ids in zip(TEXTS, expected, strict=True) if client.tokenize(text) != ids]
    verdicts.expect(f"{name}: tokens of {len(TEXTS)} texts", not differing, repr(differing[:2]) if differing else "equal")


def in_words(shared: list[int]) -> str:
    return f"{min(shared)} to {max(shared)}, {sum(shared) / len(shared):.2f} on average"


def check_tops(name: str, client: Client, prompts: list[list[int]], expected: np.ndarray, verdicts: Verdicts) -> None:
    exact, near = [], []
    for ids, logits in zip(prompts, expected, strict=True):
        top = top_of(client.logits(ids))
        exact.append(len(top & top_of(logits)))
        near.append(sum(logits[token] >= np.sort(logits)[-TOP] - NEAR for token in top))
    verdicts.expect(f"{name}: top {TOP} of {len(prompts)} prompts", min(near) >= SHARED,
                    f"share {in_words(exact)}; up to near ties {min(near)} at least")


@torch.no_grad()
def check_roundings(name: str, client: Client, directory: Path, prompts: list[list[int]], verdicts: Verdicts) -> None:
    """llama.cpp computes with the file's values, and rounds what as_llama_cpp rounds: nothing else is between it and fp32."""
    rounding, exact = (as_llama_cpp.model_of_file(directory, client.model, client.adapter, rounds) for rounds in (True, False))
    shared, apart = {}, {"rounded": [], "not rounded": []}
    for ids in prompts:
        logits = client.logits(ids)
        results = client.layers()
        alone = client.logits(ids, at_a_time=1)
        last, differences = as_llama_cpp.layer_by_layer(rounding, ids, results)
        apart["rounded"] += differences
        last_exact, differences = as_llama_cpp.layer_by_layer(exact, ids, results)
        apart["not rounded"] += differences
        tokens = torch.tensor([ids])
        for what, other in (("last layer and head, as it rounds", last), ("last layer and head in fp32", last_exact),
                            ("as it rounds", rounding(tokens).logits[0, -1].numpy()),
                            ("over the file's values in fp32", exact(tokens).logits[0, -1].numpy()), ("by llama.cpp token by token", alone)):
            shared.setdefault(what, []).append(len(top_of(logits) & top_of(other)))
    what = "last layer and head, as it rounds"
    verdicts.expect(f"{name}: top {TOP} of each prompt, {what}", min(shared[what]) >= SHARED, in_words(shared.pop(what)))
    for what, counts in shared.items():
        print(f"     {name}: top {TOP} of {len(prompts)} prompts, {what}: {in_words(counts)}", flush=True)
    median = {what: float(np.median(values)) for what, values in apart.items()}
    verdicts.expect(f"{name}: layers as llama.cpp's", median["rounded"] < median["not rounded"] / CLOSER,
                    f"what one adds differs by {median['rounded']:.1e} (median; {max(apart['rounded']):.1e} at most), "
                    f"without rounding {median['not rounded']:.1e}")


def only_gguf(directory: Path) -> Path:
    [file] = directory.glob("*.gguf")
    return file


def check_quantised(name: str, ours: Path, dense: Path, kind: str, scratch: Path, verdicts: Verdicts) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = TYPES[kind], 2
    theirs = scratch / "theirs.gguf"
    done = llama_cpp.llama_model_quantize(str(dense).encode(), str(theirs).encode(), ctypes.byref(params))
    assert done == 0, f"llama_model_quantize: {done}"
    expected = {tensor.name: tensor for tensor in gguf.GGUFReader(theirs).tensors}
    tensors = gguf.GGUFReader(ours).tensors
    wrong, other_types, kinds = [], [], {}
    for tensor in tensors:
        other = expected[tensor.name]
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
        if other.tensor_type != tensor.tensor_type:
            other_types.append(f"{tensor.name} {tensor.tensor_type.name} for {other.tensor_type.name}")
        elif not np.array_equal(tensor.data, other.data):
            wrong.append(tensor.name)
    held = not wrong and not other_types and len(tensors) == len(expected)
    verdicts.expect(f"{name} {kind}: as llama-quantize", held, str((wrong + other_types)[:4] if not held else kinds))
    theirs.unlink()


def check_read_by_gguf_py(name: str, file: Path, directory: Path, verdicts: Verdicts) -> None:
    reader = gguf.GGUFReader(file)
    def value(key):
        return reader.fields[key].contents() if key in reader.fields else None

    template = json.loads((directory / "tokenizer_config.json").read_text()).get("chat_template")
    verdicts.expect(f"{name}: chat template in the file", value("tokenizer.chat_template") == template)
    config = json.loads((directory / "config.json").read_text())
    verdicts.expect(f"{name}: a token for each row of the embedding", len(value("tokenizer.ggml.tokens")) == config["vocab_size"])
    tied = config.get("tie_word_embeddings", True)
    verdicts.expect(f"{name}: a head of its own where it has one", tied != any(t.name == "output.weight" for t in reader.tensors))


def expected_tensors(directory: Path) -> dict[str, np.ndarray]:
    """What llama.cpp's converter would store of a directory, by its names, in fp32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    config = model.config
    names = family_gguf.tensor_names(config)
    found = {}
    for name, parameter in model.named_parameters():
        for part, values in family_gguf.in_gguf(config, name, parameter.detach().numpy()).items():
            found[family_gguf.stored_name(names, part)] = np.ascontiguousarray(values)
    return found


def check_weights(name: str, kind: str, file: Path, expected: dict[str, np.ndarray], verdicts: Verdicts) -> None:
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors if not tensor.name.startswith("rope_")}
    wrong, worst = [], 0.0
    for tensor_name, values in expected.items():
        tensor = tensors.get(tensor_name)
        if tensor is None:
            wrong.append(f"{tensor_name}: not there")
        elif tensor.tensor_type.name.endswith("_K"):
            read = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            worst = max(worst, float(np.linalg.norm(read - values) / np.linalg.norm(values)))
        elif not np.array_equal(gguf.quants.quantize(values, tensor.tensor_type), tensor.data):
            wrong.append(tensor_name)
    held = not wrong and len(tensors) == len(expected) and worst < WORST_OF_K
    verdicts.expect(f"{name} {kind}: weights", held, str(wrong[:4]) if wrong else f"{len(tensors)} tensors, K blocks off by {worst:.3f} at most")


def check_adapter(name: str, file: Path, base: dict[str, np.ndarray], merged: dict[str, np.ndarray], verdicts: Verdicts) -> None:
    """base + alpha / r * B A = merged, as llama.cpp computes it."""
    reader = gguf.GGUFReader(file)
    alpha = reader.fields["adapter.lora.alpha"].contents()
    tensors, worst = {tensor.name: tensor.data for tensor in reader.tensors}, 0.0
    for tensor_name, values in merged.items():
        update = values - base[tensor_name]
        if f"{tensor_name}.lora_a" in tensors:
            b = tensors[f"{tensor_name}.lora_b"]
            update = update - alpha / b.shape[1] * (b @ tensors[f"{tensor_name}.lora_a"])
        worst = max(worst, float(np.abs(update).max()))
    adapted = sum(name.endswith(".lora_a") for name in tensors)
    verdicts.expect(f"{name}: base + adapter = merged, {adapted} tensors", worst < 1e-5 and adapted > 0, f"{worst:.1e}")


def merge(sftrun: Sftrun, model: Path, adapter: Path, output: Path, *more: str) -> Path:
    sftrun.run("merge", "--model", str(model), "--adapter", str(adapter), "--output", str(output), *more)
    return output


def token_ids(sftrun: Sftrun, model: Path, scratch: Path) -> list[list[int]]:
    records = [{"text": text} for text in TEXTS]
    return [record["input_ids"] for record in sftrun.jsonl("tokenize", records, scratch, "--model", str(model))]


def check_model(sftrun: Sftrun, name: str, directory: Path, file: Path | None, scale: float, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    """@param directory of the base; file: the same base as GGUF, where there is one already"""
    adapter = scratch / "adapter"
    write_adapter(directory, adapter, scale)
    merged = merge(sftrun, directory, adapter, scratch / "merged", "--dtype", "f32")
    ids = token_ids(sftrun, directory, scratch)
    prompts = ids[:NUM_PROMPTS]
    expected = reference_logits(merged, prompts) if llama_cpp else np.zeros(0)
    if llama_cpp:
        changed = sum(len(top_of(a) & top_of(b)) for a, b in zip(expected, reference_logits(directory, prompts))) / NUM_PROMPTS
        verdicts.expect(f"{name}: the adapter changes the model", changed < SHARED, f"{changed:.2f} of {TOP} stay")
    dense = only_gguf(merge(sftrun, directory, adapter, scratch / "dense", "--format", "gguf", "--dtype", "f32"))
    check_read_by_gguf_py(name, dense, directory, verdicts)
    stored, stored_base = expected_tensors(merged), expected_tensors(directory)
    check_weights(name, "f32", dense, stored, verdicts)
    for kind in QUICK_TYPES if quick and name == "gemma3" else TYPES:
        ours = only_gguf(merge(sftrun, directory, adapter, scratch / kind, "--format", "gguf", "--dtype", kind))
        check_weights(name, kind, ours, stored, verdicts)
        if llama_cpp:
            client = Client(ours)
            if kind in ("f16", "q8_0"):
                check_tokens(f"{name} {kind}", client, ids, verdicts)
                check_tops(f"{name} {kind}", client, prompts, expected, verdicts)
            check_roundings(f"{name} {kind}", client, merged, prompts, verdicts)
            del client
        if llama_cpp and kind != "f16":  # llama-quantize leaves some tensors in fp32 that the converter stores in fp16
            check_quantised(name, ours, dense, kind, scratch, verdicts)
        if name == "llama" and kind not in ("f16", "bf16"):
            check_training(sftrun, name, kind, ours, scratch, verdicts)
        shutil.rmtree(scratch / kind)
    if not (quick and name == "gemma3"):
        check_parted_head(sftrun, name, directory, file, scale, scratch, verdicts, quick)
    lora = only_gguf(merge(sftrun, file or directory, adapter, scratch / "lora", "--format", "lora-gguf"))
    check_adapter(name, lora, stored_base, stored, verdicts)
    if not llama_cpp:
        return
    base = file or base_as_gguf(sftrun, directory, adapter, scratch)
    client = Client(base, lora)
    check_tops(f"{name} base + adapter", client, prompts, expected, verdicts)
    check_roundings(f"{name} base + adapter", client, directory, prompts, verdicts)
    del client
    if file:
        from_file = only_gguf(merge(sftrun, file, adapter, scratch / "from-file", "--format", "gguf", "--dtype", "q8_0"))
        client = Client(from_file)
        check_tokens(f"{name} q8_0 of the file", client, ids, verdicts)
        check_tops(f"{name} q8_0 of the file", client, prompts, expected, verdicts)
        as_it_is = only_gguf(merge(sftrun, file, adapter, scratch / "kept", "--format", "gguf"))
        before = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
        after = gguf.GGUFReader(as_it_is).tensors
        wide = {gguf.GGMLQuantizationType[kind] for kind in ("F32", "F16", "BF16", "Q8_0")}
        is_adapted = {tensor.name: "blk." in tensor.name and "norm" not in tensor.name for tensor in after}
        kept = [tensor.name for tensor in after
                if is_adapted[tensor.name] and before[tensor.name].tensor_type not in wide
                and tensor.tensor_type != gguf.GGMLQuantizationType.Q8_0
                or not is_adapted[tensor.name] and tensor.tensor_type != before[tensor.name].tensor_type]
        verdicts.expect(f"{name}: --dtype auto keeps the file's types, of what is adapted those of 8 bits and more", not kept and len(after) == len(before), ", ".join(kept))
        untouched = [tensor for tensor in after if "norm" in tensor.name or "embd" in tensor.name]
        verdicts.expect(f"{name}: and the bytes of what is not adapted",
                        all(np.array_equal(tensor.data, before[tensor.name].data) for tensor in untouched))


def check_training(sftrun: Sftrun, name: str, kind: str, file: Path, scratch: Path, verdicts: Verdicts) -> None:
    """Steps over the file's blocks as over the values that they stand for."""
    records, config = scratch / "records.jsonl", scratch / "run.yaml"
    records.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    config.write_text(json.dumps({  # which is YAML
        "model": {"name": str(file), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": {"r": 4, "alpha": 8, "target_modules": ["all-linear"]}},
        "data": {"train": str(records), "format": "text"},
        "train": {"max_steps": 3, "batch_size": 2, "grad_accum": 1, "learning_rate": 1e-2, "scheduler": "constant", "save_every": "0"},
        "output": {"tensorboard": False}}))
    kept, unpacked = (sftrun.train(config, scratch / f"train-{quant}", tuning__quant=quant) for quant in ("gguf", "none"))
    compare_metrics(verdicts, f"{name} {kind}: trained over blocks and over their values", kept, unpacked, KEPT, 10 * KEPT)
    forms = [json.loads((scratch / f"train-{quant}" / "run.json").read_text())["base"]["form"] for quant in ("gguf", "none")]
    verdicts.expect(f"{name} {kind}: blocks were kept", bool(forms[0]) and not forms[1], str(forms))
    for quant in ("gguf", "none"):
        shutil.rmtree(scratch / f"train-{quant}")


def check_parted_head(sftrun: Sftrun, name: str, directory: Path, file: Path | None, scale: float, scratch: Path, verdicts: Verdicts,
                      quick: bool) -> None:
    """An update of the head alone makes of a tied embedding two tensors."""
    if not json.loads((directory / "config.json").read_text()).get("tie_word_embeddings", True):
        return
    adapter = scratch / "head-adapter"
    write_adapter(directory, adapter, scale, ["q_proj", "lm_head"])
    merged = merge(sftrun, directory, adapter, scratch / "head-merged", "--dtype", "f32")
    stored = expected_tensors(merged)
    verdicts.expect(f"{name}: a parted head is a tensor of its own", "output.weight" in stored)
    for kind in QUICK_TYPES if quick else ("f32", *QUICK_TYPES):
        ours = only_gguf(merge(sftrun, directory, adapter, scratch / f"head-{kind}", "--format", "gguf", "--dtype", kind))
        check_weights(f"{name} parted head", kind, ours, stored, verdicts)
        if llama_cpp and kind == "f32":
            ids = token_ids(sftrun, directory, scratch)[:NUM_PROMPTS]
            check_tops(f"{name} parted head", Client(ours), ids, reference_logits(merged, ids), verdicts)
    if file:
        kept = {tensor.name: tensor for tensor in gguf.GGUFReader(only_gguf(merge(sftrun, file, adapter, scratch / "head-kept", "--format", "gguf"))).tensors}
        verdicts.expect(f"{name}: a parted head in the embedding's type", kept["output.weight"].tensor_type == kept["token_embd.weight"].tensor_type)


def base_as_gguf(sftrun: Sftrun, directory: Path, adapter: Path, scratch: Path) -> Path:
    """The base alone: merged with an adapter of zeros."""
    from safetensors.torch import load_file, save_file

    zeros = scratch / "zeros"
    shutil.copytree(adapter, zeros)
    weights = zeros / "adapter_model.safetensors"
    save_file({name: torch.zeros_like(tensor) for name, tensor in load_file(weights).items()}, weights)
    return only_gguf(merge(sftrun, directory, zeros, scratch / "base", "--format", "gguf", "--dtype", "f16"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", default=str(REPOSITORY / "build" / "bin" / "sftrun"))
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "build" / "reference-cache")
    parser.add_argument("--only", nargs="+", default=["llama", "qwen2", "qwen3", "gemma3", "demo"])
    parser.add_argument("--gguf-py-only", action="store_true", help="what needs no llama.cpp")
    parser.add_argument("--quick", action="store_true", help="fewer types of gemma3 and of parted heads, as in `make test`")
    options = parser.parse_args()
    global llama_cpp
    if options.gguf_py_only:
        llama_cpp = None
    elif not llama_cpp:
        raise SystemExit("error: llama-cpp-python is not installed\n  fix: install it as above, or give --gguf-py-only")
    if llama_cpp:
        silence()
    verdicts, sftrun = Verdicts(), Sftrun(options.sftrun)
    for name in options.only:
        with tempfile.TemporaryDirectory() as folder:
            scratch = Path(folder)
            if name == "demo":
                import demo_model

                check_model(sftrun, name, demo_model.hf_directory(options.cache), demo_model.gguf_path(), 0.15, scratch, verdicts, options.quick)
                continue
            tiny_model(name, scratch / "model")
            check_model(sftrun, name, scratch / "model", None, 0.3, scratch, verdicts, options.quick)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
