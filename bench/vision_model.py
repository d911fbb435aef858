"""A vision-language model, records and an adapter that bench/vision.py measures both sides on; random weights.

The model has LLaVA's layout: a tower like SigLIP's of 4 layers of 192, and a language model of the size of SmolLM2-135M. The folder is made as
tests/parity/vision_models.py makes those of tiny models: with tokenizer, image processor and chat template.
"""

from __future__ import annotations

import dataclasses
import json
import random
import string
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
for folder in ("tests/parity", "scripts/fixtures"):
    sys.path.append(str(HERE.parent / folder))

import torch
import vision_models
from image_processors_parity import HALF, write_model
from image_speed import picture
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForImageTextToText, GenerationConfig
from vision_models import SIXTEEN, VisionModel, make_tokenizer

IMAGE_SIDE, PATCH_SIDE = 224, 16
NUM_PICTURES = 8
TOWER = dict(model_type="siglip_vision_model", hidden_size=192, intermediate_size=768, num_hidden_layers=4, num_attention_heads=3, image_size=IMAGE_SIDE,
             patch_size=PATCH_SIDE, vision_use_head=False)
TOP = dict(image_seq_length=(IMAGE_SIDE // PATCH_SIDE) ** 2, vision_feature_select_strategy="full", vision_feature_layer=-1)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]


def model_of_bench() -> VisionModel:
    tiny = vision_models.MODELS["llava_siglip"]
    text = json.loads((HERE / "arch" / "llama-135m.json").read_text())
    del text["architectures"], text["torch_dtype"]
    settings = {"size": {"height": IMAGE_SIDE, "width": IMAGE_SIDE}, "image_mean": HALF, "image_std": HALF, "resample": 3}
    assert tiny.processor.settings == {"size": SIXTEEN}
    return dataclasses.replace(
        tiny,
        kind=dataclasses.replace(tiny.kind, text=text, vision=TOWER, top=TOP),
        processor=dataclasses.replace(tiny.processor, settings=settings, members=tiny.processor.members | {"patch_size": PATCH_SIDE}),
    )


def build(model: VisionModel, tokenizer):
    torch.manual_seed(0)
    kind, id_of = model.kind, tokenizer.convert_tokens_to_ids
    ends = {"bos_token_id": id_of("<s>"), "eos_token_id": id_of(model.form.end)}
    top = {**kind.top, **{key: id_of(token) for key, token in model.ids.items()}, "tie_word_embeddings": kind.text["tie_word_embeddings"]}
    config = AutoConfig.for_model(kind.family, text_config={**kind.text, **ends}, vision_config=kind.vision, **top)
    built = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    built.generation_config = GenerationConfig(**ends)
    return built


def write_adapter(built, folder: Path) -> None:
    """Of the language model. B is not 0, so that the first gradient of A is not."""
    torch.manual_seed(1)
    names = [name for name, _ in built.named_modules() if "language_model" in name and name.endswith(tuple(TARGETS))]
    adapted = get_peft_model(built, LoraConfig(r=8, lora_alpha=16, target_modules=names, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(0, 0.01)
    adapted.save_pretrained(folder, save_embedding_layers=False)


def write_pictures(folder: Path, width: int, height: int) -> list[str]:
    folder.mkdir(parents=True)
    names = [f"{number}.jpg" for number in range(NUM_PICTURES)]
    for number, name in enumerate(names):
        pixels = picture(width, height)
        pixels.rotate(90 * (number % 4), expand=False).save(folder / name, quality=90)
    return names


def write_records(file: Path, reader, pictures: list[str], args) -> None:
    """Records of exactly args.seq_len tokens: images, a question, and an answer that alone has labels. A letter is a token."""
    letters = random.Random(2)
    text = lambda count: "".join(letters.choices(string.ascii_lowercase, k=count))  # noqa: E731
    records = []
    for number in range((args.steps + 1) * args.batch_size):
        images = [f"images/{pictures[(number * args.images + i) % len(pictures)]}" for i in range(args.images)]

        def made(answer: int):
            return [vision_models.turn("user", *images, text(args.question)), vision_models.turn("assistant", text(answer))]

        answer = args.seq_len - len(reader.document(made(1)).tokens) + 1
        if answer < 1:
            sys.exit(f"{args.images} images and a question have {args.seq_len - answer + 1} tokens: raise --seq-len")
        records.append(made(answer))
        assert len(reader.document(records[-1]).tokens) == args.seq_len
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in records))


def write_all(folder: Path, args) -> None:
    """`base`, `adapter`, `images` and `records.jsonl` in the folder."""
    model = model_of_bench()
    write_model(model.processor, folder / "base")
    tokenizer = make_tokenizer(model)
    tokenizer.save_pretrained(folder / "base")
    built = build(model, tokenizer)
    built.save_pretrained(folder / "base")
    write_adapter(built, folder / "adapter")
    width, height = (int(side) for side in args.image_size.split("x"))
    pictures = write_pictures(folder / "images", width, height)
    write_records(folder / "records.jsonl", vision_models.Reader(model, folder / "base", folder), pictures, args)
