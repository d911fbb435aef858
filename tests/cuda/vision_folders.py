"""Folders of tiny vision-language models with pictures, features and records, made with the standard library alone.

Weights and config.json are those of tests/data/vision, whose vocabulary has 48 tokens: a tokenizer of digits and punctuation, the tokens around
an image, a chat template and the image processor's settings are added.
"""

import json
import pathlib
import random
import struct
import zlib

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
TOKENIZER = DATA / "train/models/tied"
WORDS = 40  # ids below are of the tokenizer's characters
QWEN = {"size": {"shortest_edge": 64, "longest_edge": 384}, "patch_size": 2, "temporal_patch_size": 2, "merge_size": 2}
SIXTEEN = {"height": 16, "width": 16}
QWEN_TOKENS = {"<|image_pad|>": 40, "<|vision_start|>": 41, "<|vision_end|>": 42, "<|video_pad|>": 43}
QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


class Kind:
    """What a family's files say of images.
    @param image what the chat template writes for one   @param tokens further ones of the tokenizer, and their ids
    @param settings, members of preprocessor_config.json and processor_config.json   @param released the same of released models"""

    def __init__(self, image, tokens, processor, settings, members=None, released=()):
        self.image, self.tokens, self.files = image, tokens, (settings, members or {})
        self.processor, self.released = f"{processor}ImageProcessor", released


KINDS = {
    "qwen2_5_vl": Kind(QWEN_IMAGE, QWEN_TOKENS, "Qwen2VL", QWEN,
                       released=({"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "min_pixels": 3136, "max_pixels": 12845056}, {})),
    "qwen3_vl": Kind(QWEN_IMAGE, QWEN_TOKENS, "Qwen2VL", QWEN),
    "qwen3_5": Kind(QWEN_IMAGE, QWEN_TOKENS, "Qwen2VL", QWEN),
    "gemma3": Kind("<start_of_image>", {"<image_soft_token>": 40, "<start_of_image>": 41, "<end_of_image>": 42}, "Gemma3", {"size": SIXTEEN},
                   {"image_seq_length": 4}, released=({"size": {"height": 896, "width": 896}}, {"image_seq_length": 256})),
    "smolvlm": Kind("<image>", {"<image>": 40, "<fake_token_around_image>": 41, "<global-img>": 42,
                                **{f"<row_{row}_col_{column}>": 40 + 2 * row + column for row in (1, 2) for column in (1, 2)}},
                    "SmolVLM", {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}, {"image_seq_len": 4}),
    "llava": Kind("<image>", {"<image>": 40}, "CLIP", {"size": {"shortest_edge": 16}, "crop_size": SIXTEEN},
                  {"patch_size": 4, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}),
}


def template_of(image):
    return ("{%- for message in messages -%}{{ message.role[0] | replace('u', '<') | replace('a', '>') }}{%- if message.content is string -%}"
            "{{ message.content }}{%- else -%}{%- for part in message.content -%}{%- if part.type == 'image' -%}{{ '" + image + "' }}"
            "{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- if message.role == 'assistant' -%}{{ '<|eos|>' }}{%- endif -%}"
            "{%- endfor -%}{%- if add_generation_prompt -%}{{ '>' }}{%- endif -%}")


def write_tokenizer(folder, kind):
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    model = tokenizer["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if number < WORDS}
    tokenizer["added_tokens"] += [{**tokenizer["added_tokens"][0], "id": number, "content": token} for token, number in sorted(kind.tokens.items(), key=lambda item: item[1])]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template_of(kind.image)}))


def write_processor(folder, kind, settings, members):
    write_tokenizer(folder, kind)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": kind.processor, **settings}))
    if members:
        (folder / "processor_config.json").write_text(json.dumps(members))


def vision_folder(folder, name):
    """A model as `sftrun train` loads it."""
    folder.mkdir(parents=True)
    for file in ("config.json", "model.safetensors"):
        (folder / file).symlink_to(DATA / "vision" / name / file)
    write_processor(folder, KINDS[name], *KINDS[name].files)
    return folder


def shape_folder(folder, name, config):
    """What `sftrun bench --arch FOLDER/config.json --images N` reads: a released model's shape and image processor, with the tokenizer of
    tiny models.   @param name of a kind with `released`"""
    folder.mkdir(parents=True)
    (folder / "config.json").symlink_to(config)
    write_processor(folder, KINDS[name], *KINDS[name].released)
    return folder


# ---- Pictures, features and records


def write_picture(path, width, height, chance):
    """A PNG of random colours."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + chance.randbytes(3 * width) for _ in range(height))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def write_features(path, rows, width, chance):
    """A .npy file of fp32."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    values = struct.pack(f"<{rows * width}f", *(chance.gauss(0, 1) for _ in range(rows * width)))
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + values)


def digits(chance, most=9):
    return "".join(chance.choice("0123456789!():+-.,") for _ in range(chance.randint(3, most)))


SIZES = ((37, 29), (21, 50), (16, 16), (48, 19), (33, 33))  # of pictures, in pixels


def write_conversations(folder, count, sizes=SIZES, images=(1, 2, 0, 1), seed=3, features=0):
    """`count` conversations in folder/records.jsonl; the n-th has images[n % len(images)] pictures.
    @param features numbers in a row of the features that every second one has; 0: none"""
    chance = random.Random(seed)
    pictures = folder / "images"
    pictures.mkdir(parents=True, exist_ok=True)
    for number, (width, height) in enumerate(sizes):
        write_picture(pictures / f"{number}.png", width, height, chance)
    lines = []
    for number in range(count):
        shown = [{"type": "image", "path": f"images/{(number + i) % len(sizes)}.png"} for i in range(images[number % len(images)])]
        content = [{"type": "text", "text": digits(chance)}, *shown, {"type": "text", "text": digits(chance)}]
        if features and number % 2:
            write_features(pictures / f"{number}.npy", 1 + number % 5, features, chance)
            content.append({"type": "features", "path": f"images/{number}.npy"})
        lines.append({"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": digits(chance)}]})
    file = folder / "records.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def write_records_with_features(folder, count, width, seed=4):
    """Texts behind features of 1 to 5 rows."""
    chance = random.Random(seed)
    (folder / "features").mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        name = f"features/{number}.npy"
        write_features(folder / name, 1 + number % 5, width, chance)
        lines.append({"prompt": digits(chance), "completion": digits(chance), "features": name})
    file = folder / "with-features.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file
