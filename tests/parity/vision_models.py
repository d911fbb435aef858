"""Folders of tiny vision-language models, as users have them: random weights, tokenizer, image processor and chat template; and their records
as transformers reads them.

The models are those of vision_kinds.py with the vocabulary of their tokenizer. Processors have the settings of the family, for small patches.
The chat templates are in the form of the family's, but our own. `Reader` renders a template, puts the text of the model's processor for
images, tokenises the whole, and gives the values of the images. It needs no torchvision, which most of transformers' processors need.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import harness  # noqa: F401  (sets sys.path)

import numpy as np
import torch
import vision_kinds
from families import EAGER
from image_processors_parity import Case as ProcessorCase
from image_processors_parity import Reference, write_model
from make_image_records import tokenizer_of
from make_images import random_pixels
from reference_training import IGNORE_INDEX, Document
from transformers import AutoModelForImageTextToText, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast
from transformers.image_utils import load_image
from vision_kinds import Image, VisionKind

OPEN, CLOSE = "\ue000", "\ue001"  # around what is trained on, in the reference's copy of a template
CONTENT = """{%- macro content_of(message) -%}{%- if message.content is string -%}{{ message.content }}{%- else -%}
{%- for part in message.content -%}{%- if part.type == 'image' -%}{{ IMAGE }}{%- elif part.type == 'video' -%}{{ VIDEO }}{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}
{%- endif -%}{%- endmacro -%}"""


@dataclass(frozen=True)
class Form:
    """A chat template: what is around the turns of users and assistants."""

    user: tuple[str, str]
    assistant: tuple[str, str]
    end: str  # token after an answer, which is trained on
    begin: str = ""
    space: str = ""  # before an answer, but not in the prompt for one: the model has to write it, so it is trained on
    tokens: tuple[str, ...] = ()  # further ones

    def template(self, image: str, marks_answers: bool, video: str = "") -> str:
        opens, closes = (OPEN, CLOSE) if marks_answers else ("", "")
        text = f"{CONTENT.replace('IMAGE', repr(image)).replace('VIDEO', repr(video))}{{{{ {self.begin!r} }}}}{{%- for message in messages -%}}{{%- if message.role == 'user' -%}}"
        text += f"{{{{ {self.user[0]!r} }}}}{{{{ content_of(message) }}}}{{{{ {self.user[1]!r} }}}}{{%- else -%}}{{{{ {self.assistant[0]!r} }}}}"
        text += f"{opens}{{{{ {self.space!r} }}}}{{{{ content_of(message) }}}}{{{{ {self.end!r} }}}}{closes}{{{{ {self.assistant[1]!r} }}}}{{%- endif -%}}{{%- endfor -%}}"
        return text + f"{{%- if add_generation_prompt -%}}{{{{ {self.assistant[0]!r} }}}}{{%- endif -%}}"


CHATML = Form(("<|im_start|>user\n", "<|im_end|>\n"), ("<|im_start|>assistant\n", "\n"), "<|im_end|>")
GEMMA = Form(("<start_of_turn>user\n", "<end_of_turn>\n"), ("<start_of_turn>model\n", "\n"), "<end_of_turn>", begin="<s>",
             tokens=("<start_of_turn>", "<end_of_turn>"))
GEMMA4 = Form(("<|turn>user\n", "<turn|>\n"), ("<|turn>model\n", "\n"), "<turn|>", begin="<s>", tokens=("<|turn>", "<turn|>"))
SMOL = Form(("User:", "<end_of_utterance>\n"), ("Assistant:", "\n"), "<end_of_utterance>", begin="<|im_start|>", space=" ",
            tokens=("<end_of_utterance>",))
LLAVA = Form(("USER: ", " "), ("ASSISTANT:", ""), "</s>", begin="<s>", space=" ")
MISTRAL = Form(("[INST]", "[/INST]"), ("", ""), "</s>", begin="<s>", tokens=("[INST]", "[/INST]"))


@dataclass(frozen=True)
class VisionModel:
    """One test model with all its files."""

    kind: VisionKind
    processor: ProcessorCase
    form: Form
    image: str  # what the template writes for an image
    feature: str  # the token that stands for a row of features
    ids: dict[str, str]  # keys of config.json that are ids of tokens
    vision: str  # names of the tower's parameters begin with this one
    projector: tuple[str, ...]
    tokens: tuple[str, ...] = ()  # further ones
    tower: dict = field(default_factory=dict)  # keys of vision_config that differ from the kind's
    layers: int = 2  # of the text model
    undivided: str = ""  # why it cannot be divided into stages, as sftrun says
    named: dict[str, str] = field(default_factory=dict)  # tokens that transformers' processor asks the tokenizer for
    has_auto_processor: bool = False  # AutoProcessor loads it without torchvision
    video: str = ""  # what the template writes for a video

    @cached_property
    def all_tokens(self) -> list[str]:
        return list(dict.fromkeys([*self.form.tokens, self.feature, *self.ids.values(), *self.tokens]))

    def part_of(self, name: str) -> str:
        if name.startswith(self.projector):
            return "projector"
        return "vision" if name.startswith(self.vision) else "language"


QWEN_IDS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>", "vision_start_token_id": "<|vision_start|>",
            "vision_end_token_id": "<|vision_end|>"}
QWEN_SETTINGS = {"size": {"shortest_edge": 64, "longest_edge": 384}, "patch_size": 2, "temporal_patch_size": 2, "merge_size": 2}
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
GEMMA4_IDS = {"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>", "video_token_id": "<|video|>",
              "audio_token_id": "<|audio|>"}
ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3))
MULTI_MODAL = ("model.multi_modal_projector.",)
GEMMA3_CALL = {"do_convert_rgb": True, "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 4,
               "pan_and_scan_min_ratio_to_activate": 1.2}


def qwen(name: str, processor: str, settings: dict) -> VisionModel:
    # The layers that get features of DeepStack are in the first of two stages.
    has_deepstack = name == "qwen3_vl"
    return VisionModel(
        vision_kinds.KINDS[name], ProcessorCase(name, "qwen2_vl", "Qwen2VLImageProcessor", QWEN_SETTINGS | settings, processor), CHATML,
        "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad|>", QWEN_IDS, "model.visual.",
        ("model.visual.merger.", *(["model.visual.deepstack_merger_list."] if has_deepstack else [])), layers=3 if has_deepstack else 2, video="<|vision_start|><|video_pad|><|vision_end|>")


def gemma4(name: str) -> VisionModel:
    case = ProcessorCase(name, "gemma4", "Gemma4ImageProcessor", {"max_soft_tokens": 70, "patch_size": 2, "pooling_kernel_size": 3},
                         "gemma4.Gemma4Processor")
    return VisionModel(vision_kinds.KINDS[name], case, GEMMA4, "<|image|>", "<|image|>", GEMMA4_IDS, "model.vision_tower.",
                       ("model.embed_vision.",), tower={"position_embedding_size": 64},
                       undivided="the layers of this model share per-layer inputs" if name == "gemma4" else "")


def idefics3(name: str, kind: VisionKind, classes: str) -> VisionModel:
    case = ProcessorCase(name, name, f"{classes}ImageProcessor", {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}},
                         f"{name}.{classes}Processor", {"image_seq_len": 4}, call={"return_row_col_info": True})
    return VisionModel(kind, case, SMOL, "<image>", "<image>", {"image_token_id": "<image>"}, "model.vision_model.", ("model.connector.",),
                       ("<fake_token_around_image>", "<global-img>", *ROWS), has_auto_processor=name == "idefics3")


def llava(name: str, module: str, settings: dict, added: int, strategy: str) -> VisionModel:
    classes = {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}
    members = {"patch_size": 4, "num_additional_image_tokens": added, "vision_feature_select_strategy": strategy}
    return VisionModel(vision_kinds.KINDS[name], ProcessorCase(name, module, classes[module], settings, "llava.LlavaProcessor", members), LLAVA,
                       "<image>\n", "<image>", {"image_token_index": "<image>"}, "model.vision_tower.", MULTI_MODAL, has_auto_processor=True)


def next_inputs(images: list[Image]) -> dict:
    tiles = torch.nn.utils.rnn.pad_sequence([image.patches for image in images], batch_first=True)
    return {"pixel_values": tiles, "image_sizes": torch.tensor([image.grid for image in images])}


def llava_next() -> VisionModel:
    """Tiles of one image on canvases of other shapes: what is padded is taken out of the features again."""
    canvases = [[16, 32], [32, 16], [32, 32], [48, 16], [16, 48]]
    base = vision_kinds.KINDS["llava"]
    kind = dataclasses.replace(base, family="llava_next", seed=5, inputs=next_inputs, top={**base.top, "image_grid_pinpoints": canvases})
    case = ProcessorCase("llava_next", "llava_next", "LlavaNextImageProcessor",
                         {"size": {"shortest_edge": 16}, "crop_size": SIXTEEN, "image_grid_pinpoints": canvases}, "llava_next.LlavaNextProcessor",
                         {"patch_size": 4, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}, call={"do_pad": True})
    return VisionModel(kind, case, LLAVA, "<image>\n", "<image>", {"image_token_index": "<image>"}, "model.vision_tower.",
                       (*MULTI_MODAL, "model.image_newline"), has_auto_processor=True)


SIXTEEN = {"height": 16, "width": 16}
MODELS = {
    "qwen2_5_vl": qwen("qwen2_5_vl", "qwen2_5_vl.Qwen2_5_VLProcessor", {}),
    "qwen3_vl": qwen("qwen3_vl", "qwen3_vl.Qwen3VLProcessor", HALF),
    "qwen3_5": qwen("qwen3_5", "qwen3_vl.Qwen3VLProcessor", HALF),
    "gemma3": VisionModel(
        vision_kinds.KINDS["gemma3"],
        ProcessorCase("gemma3", "gemma3", "Gemma3ImageProcessor", {"size": SIXTEEN}, "gemma3.Gemma3Processor", {"image_seq_length": 4}, call=GEMMA3_CALL),
        GEMMA, "<start_of_image>", "<image_soft_token>",
        {"image_token_index": "<image_soft_token>", "boi_token_index": "<start_of_image>", "eoi_token_index": "<end_of_image>"},
        "model.vision_tower.", MULTI_MODAL,
        named={"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}, has_auto_processor=True),
    "gemma4": gemma4("gemma4"),
    "gemma4_vision": gemma4("gemma4_vision"),
    "smolvlm": idefics3("smolvlm", vision_kinds.KINDS["smolvlm"], "SmolVLM"),
    "idefics3": idefics3("idefics3", dataclasses.replace(vision_kinds.KINDS["smolvlm"], family="idefics3", seed=3), "Idefics3"),
    "llava": llava("llava", "clip", {"size": {"shortest_edge": 16}, "crop_size": SIXTEEN}, 1, "default"),
    # 18 pixels are four patches of 4, and two more that the tower leaves out, as in siglip-so400m-patch14-384
    "llava_siglip": dataclasses.replace(llava("llava_siglip", "siglip", {"size": {"height": 18, "width": 18}}, 0, "full"), tower={"image_size": 18}),
    "llava_next": llava_next(),
    "internvl": VisionModel(
        vision_kinds.KINDS["internvl"],
        ProcessorCase("internvl", "got_ocr2", "GotOcr2ImageProcessor", {"size": SIXTEEN, "min_patches": 1, "max_patches": 3},
                      "internvl.InternVLProcessor", {"image_seq_length": 4}, call={"crop_to_patches": True}),
        CHATML, "<IMG_CONTEXT>\n", "<IMG_CONTEXT>", {"image_token_id": "<IMG_CONTEXT>"}, "model.vision_tower.", MULTI_MODAL, ("<img>", "</img>")),
    "mistral3": VisionModel(
        vision_kinds.KINDS["mistral3"],
        ProcessorCase("mistral3", "pixtral", "PixtralImageProcessor", {"size": {"longest_edge": 24}, "patch_size": {"height": 2, "width": 2}},
                      "pixtral.PixtralProcessor", {"patch_size": 2, "spatial_merge_size": 2}, call={"patch_size": 4}),
        MISTRAL, "[IMG]", "[IMG]", {"image_token_index": "[IMG]"}, "model.vision_tower.", MULTI_MODAL, ("[IMG_BREAK]", "[IMG_END]")),
}


# ---- Folders


def make_tokenizer(model: VisionModel) -> PreTrainedTokenizerFast:
    template = model.form.template(model.image, marks_answers=False, video=model.video)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer_of(model.all_tokens), bos_token="<s>", eos_token=model.form.end,
                                   chat_template=template, extra_special_tokens=model.named)


def build(model: VisionModel, tokenizer: PreTrainedTokenizerFast, seed: int):
    kind, id_of = model.kind, tokenizer.convert_tokens_to_ids
    ends = {"bos_token_id": id_of("<s>"), "eos_token_id": id_of(model.form.end)}
    text = {**kind.text, **ends, "max_position_embeddings": 1024, "num_hidden_layers": model.layers}
    text |= {key: len(tokenizer) for key in text if key.startswith("vocab_size")}
    top = {**kind.top, **{key: id_of(token) for key, token in model.ids.items()}}
    built = vision_kinds.build(dataclasses.replace(kind, text=text, vision={**kind.vision, **model.tower}, top=top), seed)
    built.generation_config = GenerationConfig(**ends)
    return built


def write_folder(model: VisionModel, folder: Path, seed: int) -> None:
    """What `sftrun train` and transformers load."""
    write_model(model.processor, folder)
    settings = folder / "preprocessor_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"processor_class": model.processor.processor.split(".")[1]}))
    tokenizer = make_tokenizer(model)
    tokenizer.save_pretrained(folder)
    build(model, tokenizer, seed).save_pretrained(folder)


def load(folder: Path):
    """As saved, in fp32, with the attention that knows every feature."""
    return AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, **EAGER).eval()


# ---- Pictures and records


PICTURES = [("RGB", 37, 29, "png"), ("RGB", 21, 50, "jpg"), ("L", 33, 33, "png"), ("RGBA", 48, 19, "png"), ("RGB", 64, 45, "jpg"), ("P", 17, 23, "png"),
            ("RGB", 16, 16, "png"), ("L", 51, 40, "jpg")]


def write_pictures(folder: Path, seed: int) -> list[str]:
    """@return their names"""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    names = [f"{number}.{ending}" for number, (_, _, _, ending) in enumerate(PICTURES)]
    for name, (mode, width, height, _) in zip(names, PICTURES):
        random_pixels(rng, mode, width, height).save(folder / name)
    return names


def turn(role: str, *items: str) -> dict:
    """Items that are files of pictures become images."""
    part = lambda item: {"type": "image", "path": item} if item.startswith("images/") else {"type": "text", "text": item}  # noqa: E731
    return {"role": role, "content": [part(item) for item in items]}


def pictures_of(messages: list[dict]) -> list[str]:
    return [part["path"] for message in messages if not isinstance(message["content"], str) for part in message["content"] if part["type"] == "image"]


class Reader:
    """Records of conversations as transformers' processor of the model reads them."""

    def __init__(self, model: VisionModel, folder: Path, pictures: Path) -> None:
        """@param pictures the folder that the paths of images are relative to"""
        self.model, self.pictures = model, pictures
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.processor = Reference(model.processor)
        self.feature = self.tokenizer.convert_tokens_to_ids(model.feature)

    def text_of(self, messages: list[dict], marks_answers: bool, template: str | None = None, **keywords) -> str:
        """As the template writes it: the given one, or the model's own."""
        part = lambda item: item if item["type"] == "text" else {"type": item["type"]}  # noqa: E731
        shown = [m if isinstance(m["content"], str) else {**m, "content": [part(item) for item in m["content"]]} for m in messages]
        template = template or self.model.form.template(self.model.image, marks_answers, self.model.video)
        return self.tokenizer.apply_chat_template(shown, chat_template=template, tokenize=False, **keywords)

    def document(self, messages: list[dict]) -> Document:
        """Answers and the token behind each have labels."""
        images, texts = self.images_of(messages)
        text, spans = without_marks(self.expanded(self.text_of(messages, marks_answers=True), texts))
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        is_answer = [any(begin <= first and last <= end for begin, end in spans) for first, last in offsets]
        return Document(ids, [i if a else IGNORE_INDEX for i, a in zip(ids, is_answer)], self.inputs(ids, images))

    def answered(self, prompt: list[dict], answer: list[dict]) -> Document:
        """As a DPO trainer reads it: all behind what the whole has in common with the prompt alone has labels."""
        images, texts = self.images_of(prompt)  # answers have none
        tokens = []
        for messages, keywords in ((prompt, {"add_generation_prompt": True}), (prompt + answer, {})):
            text = self.expanded(self.text_of(messages, marks_answers=False, **keywords), texts)
            tokens.append(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        before, ids = tokens
        common = next((i for i, (a, b) in enumerate(zip(before, ids)) if a != b), len(before))
        return Document(ids, [IGNORE_INDEX] * common + ids[common:], self.inputs(ids, images))

    def expanded(self, text: str, texts: list[str]) -> str:
        return self.processor.expanded(text, texts)

    def images_of(self, messages: list[dict]) -> tuple[list[Image], list[str]]:
        """The images, and the text that stands for each."""
        images, texts = [], []
        for name in pictures_of(messages):
            output = self.processor.image_processor(load_image(str(self.pictures / name)), **self.model.processor.call, return_tensors="np")
            texts.append(self.processor.counter.replace_image_token(output, 0))
            images.append(image_of(output))
        return images, texts

    def inputs(self, ids: list[int], images: list[Image]) -> dict:
        kind = self.model.kind
        inputs = kind.inputs(images) if images else {}
        if kind.has_types:
            types = torch.tensor([[int(token == self.feature) for token in ids]])
            inputs["token_type_ids" if kind.family == "gemma3" else "mm_token_type_ids"] = types
        return inputs | {"use_cache": False}


def without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """The text without OPEN and CLOSE, and where the spans between them are in it."""
    pieces, spans, length = [], [], 0
    for index, piece in enumerate(text.replace(CLOSE, OPEN).split(OPEN)):
        if index % 2:
            spans.append((length, length + len(piece)))
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces), spans


def image_of(output: dict) -> Image:
    """What an image processor returns for one image, as vision_kinds.py has it."""
    values = torch.from_numpy(np.asarray(output["pixel_values"], np.float32))
    if "image_position_ids" in output:
        positions = np.asarray(output["image_position_ids"])[0]
        used = positions[positions[:, 0] >= 0]
        columns, rows = (used.max(0) + 1).tolist()
        return Image(0, values[0, : len(used)], (rows, columns))
    if "image_grid_thw" in output:
        _, rows, columns = np.asarray(output["image_grid_thw"])[0].tolist()
        return Image(0, values, (rows, columns))
    size = np.asarray(output["image_sizes"])[0].tolist() if "image_sizes" in output else (0, 0)
    return Image(0, values[0] if values.ndim == 5 else values, size)
