#!/usr/bin/env python3
"""Image processors of sftrun and of transformers: the same sizes, tiles, tokens and values, to the bit.

    .venv-ref/bin/python tests/parity/image_processors_parity.py build/bin/process_images [--images N] [--seed N] [--only NAME] [--verbose]

N random images of odd sizes and of every mode that Pillow writes as PNG, for each configuration of each processor: defaults of the class and those
that released models have. The reference is transformers' class with Pillow, called as the model's processor calls it; tokens are those in the
text that the processor puts for an image, which is compared, too. Then values of the torchvision backend, whose arithmetic is repeated with PyTorch, on images that are
not resized, and what files are refused.
"""
import argparse
import io
import json
import random
import re
import subprocess
import sys
import tempfile
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from transformers import image_processing_backends
from transformers.image_utils import load_image
from transformers.utils import logging

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "fixtures"))

from make_images import random_pixels

MODES = ("1", "L", "LA", "P", "RGB", "RGB", "RGB", "RGBA", "I;16")
CLIP_MEAN, CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
IMAGENET_MEAN, IMAGENET_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HALF = [0.5] * 3


@dataclass
class Case:
    name: str
    module: str  # of transformers.models
    image_class: str  # without Pil
    settings: dict = field(default_factory=dict)  # of the image processor's file
    processor: str = ""  # "module.Class" that counts tokens
    members: dict = field(default_factory=dict)  # of that processor, and keys of processor_config.json
    model: dict = field(default_factory=dict)  # config.json
    call: dict = field(default_factory=dict)  # what the model's processor passes
    request: dict = field(default_factory=dict)
    nested: bool = False  # settings are in processor_config.json
    longest: int = 500  # of the images' sides
    slow: bool = False  # fewer images


QWEN = dict(module="qwen2_vl", image_class="Qwen2VLImageProcessor", processor="qwen2_5_vl.Qwen2_5_VLProcessor")
QWEN3_SIZE = {"longest_edge": 16777216, "shortest_edge": 65536}
GEMMA3 = dict(module="gemma3", image_class="Gemma3ImageProcessor", processor="gemma3.Gemma3Processor", members={"image_seq_length": 256})
GEMMA3_FILE = {"do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True, "image_mean": HALF,
               "image_std": HALF, "image_seq_length": 256, "resample": 2, "rescale_factor": 0.00392156862745098, "size": {"height": 896, "width": 896}}
GEMMA3_CALL = {"do_convert_rgb": True, "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 4,
               "pan_and_scan_min_ratio_to_activate": 1.2}
GEMMA4 = dict(module="gemma4", image_class="Gemma4ImageProcessor", processor="gemma4.Gemma4Processor")
SMOL = dict(module="smolvlm", image_class="SmolVLMImageProcessor", processor="smolvlm.SmolVLMProcessor", call={"return_row_col_info": True}, slow=True)
LLAVA = dict(processor="llava.LlavaProcessor",
             members={"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"})
CLIP_336 = {"crop_size": {"height": 336, "width": 336}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True, "do_rescale": True,
            "do_resize": True, "image_mean": CLIP_MEAN, "image_std": CLIP_STD, "resample": 3, "rescale_factor": 0.00392156862745098,
            "size": {"shortest_edge": 336}}
NEXT = dict(module="llava_next", image_class="LlavaNextImageProcessor", processor="llava_next.LlavaNextProcessor", members=LLAVA["members"],
            call={"do_pad": True}, slow=True)
PIXTRAL = dict(module="pixtral", image_class="PixtralImageProcessor", processor="pixtral.PixtralProcessor")
INTERN = dict(module="got_ocr2", image_class="GotOcr2ImageProcessor", processor="internvl.InternVLProcessor", members={"image_seq_length": 256},
              call={"crop_to_patches": True}, slow=True)

CASES = [
    Case("qwen2-vl, defaults", **QWEN),
    Case("qwen2.5-vl 3b", **QWEN, settings={"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
                                            "image_mean": CLIP_MEAN, "image_std": CLIP_STD}),
    Case("qwen2-vl, old size", **QWEN, settings={"size": {"min_pixels": 3136, "max_pixels": 200704}, "min_pixels": 3136, "max_pixels": 200704}),
    Case("qwen3-vl", **QWEN, settings={"size": QWEN3_SIZE, "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": HALF, "image_std": HALF}),
    Case("qwen3.5, few pixels", **QWEN, nested=True, settings={"size": {"longest_edge": 65536, "shortest_edge": 4096}, "patch_size": 16, "image_mean": HALF,
                                                              "image_std": HALF, "do_pad": True}),
    Case("qwen, other numbers", **QWEN, settings={"patch_size": 7, "merge_size": 3, "temporal_patch_size": 1, "resample": 2, "do_normalize": False}),
    Case("qwen, no rescaling", **QWEN, settings={"do_rescale": False, "image_mean": 100.0, "image_std": 3.0}),
    Case("gemma3, defaults", **GEMMA3, call=GEMMA3_CALL),
    Case("gemma3 4b", **GEMMA3, settings=GEMMA3_FILE, call=GEMMA3_CALL, slow=True),
    Case("gemma3, pan and scan", **GEMMA3, settings=GEMMA3_FILE | {"size": {"height": 224, "width": 224}}, call=GEMMA3_CALL | {"do_pan_and_scan": True},
         request={"pan_and_scan": True}, longest=1300),
    Case("gemma4, defaults", **GEMMA4),
    Case("gemma4, 70 tokens", **GEMMA4, nested=True,
         settings={"do_normalize": True, "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "max_soft_tokens": 70, "image_seq_length": 70,
                   "size": {"height": 224, "width": 224}}),
    Case("gemma4, 1120 tokens", **GEMMA4, settings={"max_soft_tokens": 1120, "resample": 2}, slow=True),
    Case("smolvlm2 500m", **SMOL, members={"image_seq_len": 64},
         settings={"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1, "do_image_splitting": True, "do_pad": True,
                   "image_mean": HALF, "image_std": HALF, "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}}),
    Case("smolvlm2 2.2b", **SMOL, members={"image_seq_len": 81}, settings={"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}}),
    Case("smolvlm, one tile", **SMOL, members={"image_seq_len": 64}, settings={"do_image_splitting": False, "max_image_size": {"longest_edge": 512}}),
    Case("smolvlm, not resized", **SMOL, members={"image_seq_len": 64}, settings={"do_resize": False, "max_image_size": {"longest_edge": 128}}),
    Case("idefics3, defaults", module="idefics3", image_class="Idefics3ImageProcessor", processor="idefics3.Idefics3Processor",
         members={"image_seq_len": 169}, call={"return_row_col_info": True}, slow=True),
    Case("clip, defaults", module="clip", image_class="CLIPImageProcessor"),
    Case("llava 1.5", module="clip", image_class="CLIPImageProcessor", **LLAVA, settings=CLIP_336),
    Case("clip, crop beyond the image", module="clip", image_class="CLIPImageProcessor", settings={"size": {"shortest_edge": 101, "longest_edge": 180},
                                                                                                 "crop_size": {"height": 150, "width": 117}}),
    Case("clip, within a box", module="clip", image_class="CLIPImageProcessor", settings={"size": {"max_height": 90, "max_width": 130}, "resample": 5}),
    Case("siglip, defaults", module="siglip", image_class="SiglipImageProcessor"),
    Case("siglip 384", module="siglip", image_class="SiglipImageProcessor", settings={"size": {"height": 384, "width": 384}, "resample": 3,
                                                                                      "image_mean": HALF, "image_std": HALF},
         processor="llava.LlavaProcessor", members={"patch_size": 14, "num_additional_image_tokens": 0, "vision_feature_select_strategy": "full"}),
    Case("llava, defaults", module="llava", image_class="LlavaImageProcessor", **LLAVA),
    Case("llava, padded", module="llava", image_class="LlavaImageProcessor", **LLAVA, settings=CLIP_336 | {"do_pad": True}),
    Case("llava-next", **NEXT, settings=CLIP_336 | {"do_pad": True, "aspect_ratio_setting": "anyres"}),
    Case("llava-next, tiles resized", **NEXT, settings={"size": {"shortest_edge": 140}, "crop_size": {"height": 126, "width": 126},
                                                       "image_grid_pinpoints": [[126, 252], [252, 126], [252, 252], [378, 126], [126, 378]]}),
    Case("pixtral 12b", **PIXTRAL, members={"patch_size": 16, "spatial_merge_size": 1}, call={"patch_size": 16}, slow=True),
    Case("mistral 3", **PIXTRAL, settings={"size": {"longest_edge": 1540}, "patch_size": {"height": 14, "width": 14}, "image_mean": CLIP_MEAN,
                                           "image_std": CLIP_STD, "do_center_crop": None, "data_format": "channels_first"},
         members={"patch_size": 14, "spatial_merge_size": 2}, call={"patch_size": 28}, longest=2000, slow=True),
    Case("mistral 3, small", **PIXTRAL, settings={"size": {"longest_edge": 154}}, members={"patch_size": 14, "spatial_merge_size": 2}, call={"patch_size": 28}),
    Case("internvl 3", **INTERN, settings={"size": {"height": 448, "width": 448}, "image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD, "crop_to_patches": False,
                                           "min_patches": 1, "max_patches": 12, "resample": 3}),
    Case("internvl, few tiles", **INTERN, settings={"size": {"height": 64, "width": 64}, "min_patches": 2, "max_patches": 5}),
]


def picture(rng, longest):
    """A PNG file of some mode and size, also very tall or wide, or equal to what processors resize to."""
    kind = rng.random()
    if kind < 0.1:
        size = [rng.randint(1, 9), rng.randint(100, 600)]
        rng.shuffle(size)
    elif kind < 0.2:
        size = [rng.choice([28, 56, 64, 112, 128, 224, 256, 336, 384, 448]) for _ in range(2)]
    else:
        size = [rng.randint(1, longest), rng.randint(1, longest)]
    file = io.BytesIO()
    random_pixels(np.random.default_rng(rng.randrange(2**32)), rng.choice(MODES), *size).save(file, "PNG")
    return file.getvalue()


def class_of(module, name, kind):
    if (module, kind) == ("pixtral", "processing"):  # imports torchvision for a function that the class with Pillow has, too
        sys.modules["transformers.models.pixtral.image_processing_pixtral"] = import_module("transformers.models.pixtral.image_processing_pil_pixtral")
    return getattr(import_module(f"transformers.models.{module}.{kind}_{module}"), name)


def token_counter(case, image_processor):
    """The model's processor without a tokenizer: what its __init__ takes from one is set here."""
    module, name = case.processor.split(".")
    processor = object.__new__(class_of(module, name, "processing"))
    processor.__dict__.update(tokens_of(module), image_processor=image_processor, **case.members)
    if module == "gemma3":
        tokens = GEMMA3_TOKENS
        processor.full_image_sequence = f"\n\n{tokens['boi_token']}{tokens['image_token'] * processor.image_seq_length}{tokens['eoi_token']}\n\n"
    return processor


GEMMA3_TOKENS = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}


def tokens_of(module):
    """As released tokenizers have them."""
    return {"qwen2_5_vl": {"image_token": "<|image_pad|>"}, "qwen3_vl": {"image_token": "<|image_pad|>"},
            "gemma3": {},
            "gemma4": {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
            "pixtral": {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
            "internvl": {"image_token": "<IMG_CONTEXT>", "start_image_token": "<img>", "end_image_token": "</img>"}}.get(
        module, {"image_token": "<image>", "fake_image_token": "<fake_token_around_image>", "global_image_token": "<global-img>",
                 "global_image_tag": "<global-img>"})


def shortened(text, token):
    """Runs of a token as their number."""
    return re.sub(f"(?:{re.escape(token)})+", lambda run: "{%d}" % (len(run[0]) // len(token)), text)


class Reference:
    def __init__(self, case):
        self.case = case
        self.image_processor = class_of(case.module, case.image_class + "Pil", "image_processing_pil")(**case.settings)
        self.counter = token_counter(case, self.image_processor) if case.processor else None

    def __call__(self, path):
        """Values as [rows, values], and shape, tokens and grids; or why not."""
        return self.of(load_image(str(path)))

    def of(self, image, **call):
        try:
            output = self.image_processor(image, **self.case.call, **call, return_tensors="np")
        except (ValueError, ZeroDivisionError) as error:
            return str(error)
        values = np.asarray(output["pixel_values"], np.float32)
        shape = list(values.shape[1:] if values.ndim == 5 else values.shape)
        if self.case.module == "gemma4":
            return self.of_gemma4(values, output)
        facts = {"shape": shape}
        if "image_grid_thw" in output:
            facts["grid_thw"] = output["image_grid_thw"][0].tolist()
        if "rows" in output:
            facts["tile_grid"] = [output["rows"][0][0], output["cols"][0][0]]
        if "pixel_attention_mask" in output:
            assert (output["pixel_attention_mask"] == 1).all()
        if self.counter:
            text = self.counter.replace_image_token(output, 0)
            facts |= self.of_text(text)
            if self.case.module == "pixtral":
                ends = text.replace("[IMG_BREAK]", "[IMG_END]").split("[IMG_END]")
                facts["token_grid"] = [len(ends) - 1, ends[0].count("[IMG]")]
        return values.reshape(shape[0], -1), facts

    def expanded(self, text, replacements, videos=()):
        """What a chat template wrote, with the text of the model's processor for each image and each video."""
        self.counter.image_token = "<start_of_image>" if self.case.module == "gemma3" else self.counter.image_token
        self.counter.__dict__.setdefault("video_token", None)
        (whole,), _ = self.counter.get_text_with_replacements([text], replacements, list(videos))
        return whole

    def of_text(self, text):
        token = GEMMA3_TOKENS["image_token"] if self.case.module == "gemma3" else self.counter.image_token
        return {"num_tokens": text.count(token), "prompt": shortened(text, token)}

    def of_gemma4(self, values, output):
        """Without padding, which is 0 with positions of -1."""
        positions = output["image_position_ids"][0]
        used = positions[:, 0] >= 0
        rows = int(used.sum())
        assert used[:rows].all() and (values[0, rows:] == 0).all() and (positions[rows:] == -1).all()
        width, height = (positions[:rows].max(0) + 1).tolist()
        assert (positions[:rows] == [[x, y] for y in range(height) for x in range(width)]).all()
        text = self.of_text(self.counter.replace_image_token(output, 0))
        return values[0, :rows], {"shape": [rows, values.shape[2]], "grid_thw": [1, height, width], **text}


@contextmanager
def sizes_alone():
    """transformers without pixels: images have a shape, and all values are one zero."""
    zeros = lambda height, width: np.broadcast_to(np.zeros((1, 1, 1), np.uint8), (3, height, width))
    same = lambda image, *_, **__: image
    with ExitStack() as stack:
        for module in (image_processing_backends, import_module("transformers.models.gemma4.image_processing_pil_gemma4")):
            name = "resize" if hasattr(module, "resize") else "np_resize"
            stack.enter_context(patch.object(module, name, lambda image, size, **_: zeros(*size) if min(size) > 0 else 1 // 0))
        for name in ("np_rescale", "np_normalize"):
            stack.enter_context(patch.object(image_processing_backends, name, same))
        yield zeros


class Program:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended on {request}"
        answer = json.loads(line)
        if "feature" in answer:
            answer["prompt"] = shortened(answer["prompt"], answer.pop("feature"))
        return answer


def write_model(case, folder, suffix=""):
    folder.mkdir(parents=True)
    settings = {"image_processor_type": case.image_class + suffix, "processor_class": "SomeProcessor", **case.settings}
    processor = dict(case.members)
    if case.nested:
        processor["image_processor"] = settings
        (folder / "preprocessor_config.json").write_text('{"image_processor_type": "OtherImageProcessor"}')
    else:
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    if processor:
        (folder / "processor_config.json").write_text(json.dumps(processor))
    if case.model:
        (folder / "config.json").write_text(json.dumps(case.model))


def differences(wanted, got, path):
    """What differs from the reference, or nothing."""
    if isinstance(wanted, str) or "error" in got:
        return None if isinstance(wanted, str) and "error" in got else f"{got.get('error', 'accepted')}, reference: {wanted if isinstance(wanted, str) else 'accepted'}"
    values, facts = wanted
    for key, value in facts.items():
        if got[key] != value:
            return f"{key} {got[key]}, not {value}"
    ours = np.fromfile(path, np.float32).reshape(values.shape)
    unequal = ours.view(np.uint32) != np.ascontiguousarray(values).view(np.uint32)
    if unequal.any():
        at = tuple(map(int, np.argwhere(unequal)[0]))
        return f"{unequal.sum()} of {unequal.size} values differ, first {at}: {ours[at]!r}, not {values[at]!r}"
    return None


def check_case(case, program, rng, images, folder):
    write_model(case, folder, rng.choice(["", "Fast", "Pil"]))
    reference, refused = Reference(case), 0
    for _ in range(max(images // 4, 1) if case.slow and images < 100 else images):
        file, output = folder / "image.png", folder / "values"
        file.write_bytes(picture(rng, case.longest))
        wanted = reference(file)
        refused += isinstance(wanted, str)
        got = program(folder=str(folder), file=str(file), output=str(output), **case.request)
        if problem := differences(wanted, got, output):
            yield f"{case.name}, {Image.open(file).size} {Image.open(file).mode}: {problem}"
        plan = program(folder=str(folder), file=str(file), **case.request)
        if plan != got:
            yield f"{case.name}: the plan alone is {plan}, not {got}"
    if refused:
        print(f"  {case.name}: {refused} images refused by both")


def random_length(rng, most):
    return round(most ** rng.random())


def check_sizes(case, program, rng, images, folder):
    """Larger images, and narrower ones."""
    write_model(case, folder)
    reference = Reference(case)
    with sizes_alone() as zeros:
        for _ in range(images):
            width, height = random_length(rng, 6000), random_length(rng, 6000)
            wanted = reference.of(zeros(height, width), input_data_format="channels_first")
            got = program(folder=str(folder), size=[width, height], **case.request)
            if "too large" in got.get("error", ""):  # docs/image-files.md: beyond 2^28 pixels
                continue
            if isinstance(wanted, str) or "error" in got:
                if not (isinstance(wanted, str) and "error" in got):
                    yield f"{case.name}, size {width} x {height}: {got}, reference: {wanted if isinstance(wanted, str) else wanted[1]}"
            elif any(got[key] != value for key, value in wanted[1].items()):
                yield f"{case.name}, size {width} x {height}: {got}, not {wanted[1]}"


def check_torchvision(program, rng, folder):
    """Rescaling and normalising as TorchvisionBackend does, on images of the size of the tile."""
    for number, settings in enumerate(({}, {"image_mean": IMAGENET_MEAN, "image_std": IMAGENET_STD}, {"do_normalize": False}, {"do_rescale": False},
                                       {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "rescale_factor": 1 / 127.5})):
        case = Case("torchvision", "siglip", "SiglipImageProcessor", {"size": {"height": 31, "width": 47}} | settings)
        write_model(case, folder / str(number))
        file, output = folder / "image.png", folder / "values"
        image = random_pixels(np.random.default_rng(rng.randrange(2**32)), "RGB", 47, 31)
        image.save(file)
        assert "error" not in program(folder=str(folder / str(number)), file=str(file), output=str(output), backend="torchvision")
        values = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())
        mean, std = torch.tensor(settings.get("image_mean", HALF)), torch.tensor(settings.get("image_std", HALF))
        factor = settings.get("rescale_factor", 1 / 255)
        if not settings.get("do_normalize", True):
            wanted = values * factor
        else:
            if settings.get("do_rescale", True):
                mean, std = mean * (1.0 / factor), std * (1.0 / factor)
            wanted = values.to(torch.float32).sub_(mean[:, None, None]).div_(std[:, None, None])
        got = torch.from_numpy(np.fromfile(output, np.float32)).reshape(wanted.shape)
        if not torch.equal(got, wanted):
            yield f"torchvision, {settings}: {(got != wanted).sum()} values differ"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("process_images")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    program, failures = Program(arguments.process_images), []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(CASES):
            if arguments.only in case.name:
                rng, place = random.Random(f"{arguments.seed} {number}"), Path(folder) / str(number)
                found = [*check_case(case, program, rng, arguments.images, place), *check_sizes(case, program, rng, arguments.images, place / "sizes")]
                failures += found
                if arguments.verbose:
                    print(f"{case.name}: {len(found)} failures", flush=True)
        failures += check_torchvision(program, random.Random(arguments.seed), Path(folder) / "torchvision")
    for line in failures[: None if arguments.verbose else 20]:
        print(line)
    print(f"{len(CASES)} configurations: {len(failures)} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
