"""A model, an adapter and pairs of answers that bench/preference.py measures both sides on; random weights.

    python bench/preference_data.py DIR SEQ_LEN PROMPT PAIRS

Every word of the texts is a token, so that each sequence has exactly SEQ_LEN tokens, PROMPT of them in the prompt; the last is the end of the text.
"""

import json
import random
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
END = "</s>"


def write_tokenizer(size: int, folder: Path) -> None:
    names = ["<unk>", "<s>", END, *(f"w{i}" for i in range(size - 3))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token=END).save_pretrained(folder)


def write_model(folder: Path) -> None:
    arch = json.loads((HERE / "arch" / "llama-135m.json").read_text())
    write_tokenizer(arch["vocab_size"], folder / "base")
    del arch["architectures"], arch["torch_dtype"]
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**arch), dtype=torch.float32)
    base.save_pretrained(folder / "base")
    adapter = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=TARGETS, task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in adapter.named_parameters():
        if "lora_B" in name:  # a trained adapter's B is not zero
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.02
    adapter.save_pretrained(folder / "adapter")


def write_pairs(path: Path, seq_len: int, prompt: int, count: int) -> None:
    rng = random.Random(2)

    def words(number: int) -> str:
        return " ".join(f"w{rng.randrange(40000)}" for _ in range(number))

    with path.open("w") as lines:
        for _ in range(count):
            answers = {key: f" {words(seq_len - prompt - 1)} {END}" for key in ("chosen", "rejected")}
            lines.write(json.dumps({"prompt": words(prompt)} | answers) + "\n")


if __name__ == "__main__":
    target, length, prompt_length, pairs = Path(sys.argv[1]), *map(int, sys.argv[2:])
    write_model(target)
    write_pairs(target / "pairs.jsonl", length, prompt_length, pairs)
