"""Frames of videos: `sftrun train` beside transformers and PEFT, on tiny random models, in fp32 on the CPU.

    python tests/parity/videos_parity.py --sftrun build/bin/sftrun --load-frames build/bin/load_frames [--only qwen2_5_vl …] [--checks pixels training …]

pixels     values of random videos of all numbers of frames, by load_frames: transformers' pixel tensors to the bit, grids and refusals, with settings
           that released models have and others
preview    `sftrun preview` of conversations with videos, images beside them and none: the reference's tokens and labels; tokens of a video
training   5 steps of LoRA, without and with packing: loss to 1e-5 relative, gradient norm to 1e-4; and what was written gives the reference's logits.
           Without --quick also of all parts and in full, with gradient checkpointing, and in two processes with ddp, fsdp, pipeline and tensor
score      transformers' log-probabilities of answers about videos
generate   greedy answers in batches: each token is the likeliest by a pass of transformers over all before it

The reference takes frames as they are (do_sample_frames=False), with `fps` as their rate in VideoMetadata. transformers' video processors need torchvision:
where it is not installed, torchvision_functions.py has what they call.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torchvision_functions

torchvision_functions.provide()  # before transformers

from harness import Measured, Sftrun, check_in_copies, relative_to_largest  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import vision_parity  # noqa: E402
from image_processors_parity import class_of  # noqa: E402
from make_images import random_pixels  # noqa: E402
from reference_training import logits_of  # noqa: E402
from transformers.image_utils import load_image  # noqa: E402
from transformers.models.smolvlm import processing_smolvlm  # noqa: E402
from vision_models import CLOSE, MODELS, OPEN, Image, Reader, load, turn, write_folder, write_pictures  # noqa: E402
from vision_parity import Case, words, write_jsonl  # noqa: E402

NUMBERS = dict(enumerate("zero one two three four five six seven eight nine ten".split()))
processing_smolvlm.num2words = NUMBERS.get  # the package is not part of the reference; its words of larger numbers: tests/images/prompt_test.cpp

vision_parity.MAX_SEQ_LEN = 640  # SmolVLM2 writes much for each frame

HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
PATCHES = {"patch_size": 2, "temporal_patch_size": 2, "merge_size": 2}


@dataclass(frozen=True)
class VideoModel:
    """Of one of MODELS: its video processor."""

    module: str
    processor: str
    settings: dict  # of the model that is trained
    others: tuple[dict, ...]  # for pixels alone


QWEN2 = {"size": {"shortest_edge": 64, "longest_edge": 256}, **PATCHES}
QWEN3 = {"size": {"shortest_edge": 128, "longest_edge": 1024}, **PATCHES, **HALF}
QWEN3_OTHERS = (
    {"size": {"shortest_edge": 4096, "longest_edge": 25165824}, "patch_size": 16, **HALF},
    {"size": {"shortest_edge": 4096, "longest_edge": 60000}, "patch_size": 16, "cap_pixels_per_frame": True, "do_sample_frames": False, "fps": 1},
    {"size": {"shortest_edge": 512, "longest_edge": 90000}, "patch_size": 14, "cap_pixels_per_frame": True, "max_video_tokens": 8},
)
VIDEO_MODELS = {
    "qwen2_5_vl": VideoModel("qwen2_vl", "Qwen2VLVideoProcessor", QWEN2, (
        {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
        {"size": {"shortest_edge": 1000, "longest_edge": 9000}, "patch_size": 7, "temporal_patch_size": 3, "merge_size": 1, "do_normalize": False},
        {"size": {"shortest_edge": 3136, "longest_edge": 90000}, "cap_pixels_per_frame": True, "max_video_tokens": 30},
    )),
    "qwen3_vl": VideoModel("qwen3_vl", "Qwen3VLVideoProcessor", QWEN3, QWEN3_OTHERS),
    "qwen3_5": VideoModel("qwen3_vl", "Qwen3VLVideoProcessor", QWEN3, ()),
    "smolvlm": VideoModel("smolvlm", "SmolVLMVideoProcessor", {"size": {"longest_edge": 32}, "max_image_size": {"longest_edge": 16}}, (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1, "do_pad": True, "do_image_splitting": True, **HALF,
         "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}},
        {"size": {"height": 100, "width": 80}, "max_image_size": {"longest_edge": 70}, "resample": 3, "do_normalize": False},
        {"max_image_size": {"longest_edge": 48}, "video_sampling": {"fps": 1, "max_frames": 8, "video_size": {"longest_edge": 90}}},
    )),
}


# ---- Videos


@dataclass(frozen=True)
class Video:
    values: torch.Tensor
    grid: torch.Tensor | None  # [1, 3]
    second_per_grid: torch.Tensor | None


@dataclass(frozen=True)
class Visuals:
    images: list[Image]
    videos: list[Video]


def videos_of(messages: list[dict]) -> list[dict]:
    return [part for message in messages if not isinstance(message["content"], str) for part in message["content"] if part["type"] == "video"]


class VideoReader(Reader):
    """Records of conversations with videos as transformers' processor of the model reads them."""

    feature_text = "<|video_pad|>"

    def __init__(self, name: str, folder: Path, pictures: Path, settings: dict) -> None:
        super().__init__(MODELS[name], folder, pictures)
        model = VIDEO_MODELS[name]
        self.video_processor = class_of(model.module, model.processor, "video_processing")(**json.loads(json.dumps(settings)))  # it changes them
        self.processor.counter.__dict__.update(
            video_token="<|video_pad|>", vision_start_token="<|vision_start|>", vision_end_token="<|vision_end|>", video_processor=self.video_processor)
        self.video_feature = self.tokenizer.convert_tokens_to_ids(self.feature_text)

    def processed(self, part: dict) -> dict:
        frames = [load_image(str(self.pictures / name)) for name in part["video"]]
        metadata = {"total_num_frames": len(frames), "fps": part.get("fps"), "frames_indices": list(range(len(frames)))}
        if "timestamps" in part:
            metadata |= {"fps": 1, "frames_indices": list(part["timestamps"])}
        return self.video_processor([frames], video_metadata=[metadata], do_sample_frames=False, return_metadata=True, return_tensors="pt")

    def num_tokens(self, part: dict) -> int:
        text = self.processor.counter.replace_video_token(self.processed(part), 0)
        return self.tokenizer(text, add_special_tokens=False)["input_ids"].count(self.video_feature)

    def expanded(self, text: str, texts: tuple[list[str], list[str]]) -> str:
        return self.processor.expanded(text, *texts)

    def images_of(self, messages: list[dict]) -> tuple[Visuals, tuple[list[str], list[str]]]:
        images, texts = super().images_of(messages)
        videos, video_texts = [], []
        for part in videos_of(messages):
            output = self.processed(part)
            videos.append(self.video_of(output))
            video_texts.append(self.processor.counter.replace_video_token(output, 0))
        return Visuals(images, videos), (texts, video_texts)

    def video_of(self, output: dict) -> Video:
        rate = output["video_metadata"][0].sampled_fps
        # As a processor's tensor: float32.
        seconds = torch.tensor([self.video_processor.temporal_patch_size / rate])
        return Video(output["pixel_values_videos"], output["video_grid_thw"], seconds)

    def inputs(self, ids: list[int], visuals: Visuals) -> dict:
        inputs = super().inputs(ids, visuals.images)
        inputs["mm_token_type_ids"] = inputs["mm_token_type_ids"] + 2 * torch.tensor([[int(token == self.video_feature) for token in ids]])
        if visuals.videos:
            inputs["pixel_values_videos"] = torch.cat([video.values for video in visuals.videos])
            inputs["video_grid_thw"] = torch.cat([video.grid for video in visuals.videos])
            if self.model.kind.family == "qwen2_5_vl":
                inputs["second_per_grid_ts"] = [seconds for video in visuals.videos for seconds in video.second_per_grid]  # a list stays in float32
        return inputs


# DEFAULT_CHAT_TEMPLATE of SmolVLM's processor, which it takes for conversations with videos; what it writes for an answer is in ANSWER.
SMOL_TEMPLATE = """<|im_start|>{% for message in messages %}{{ message.role | capitalize }}\
{% if message.content[0].type == 'image' %}:{% else %}: {% endif %}{% for part in message.content %}\
{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}{% endfor %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""


class SmolReader(VideoReader):
    """Frames are images, of one tile each."""

    feature_text = "<image>"

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.processor.counter.video_token = "<video>"

    def text_of(self, messages: list[dict], marks_answers: bool, **keywords) -> str:
        if not videos_of(messages):
            return super().text_of(messages, marks_answers, **keywords)
        text = lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content  # noqa: E731
        shown = [{**m, "content": [part if part["type"] == "text" else {"type": part["type"]} for part in text(m["content"])]} for m in messages]
        ours = self.tokenizer.apply_chat_template(shown, chat_template=SMOL_TEMPLATE, tokenize=False, **keywords)
        assert ours == self.tokenizer.apply_chat_template(shown, chat_template=processing_smolvlm.DEFAULT_CHAT_TEMPLATE, tokenize=False, **keywords)
        if marks_answers:
            ours = re.sub(r"(?<=Assistant:)( [^<]*<end_of_utterance>)", rf"{OPEN}\1{CLOSE}", ours)
        return ours

    def images_of(self, messages: list[dict]) -> tuple[list[Image], tuple[list[str], list[str]]]:
        """Images and frames in order."""
        visuals, texts = super().images_of(messages)
        images, videos = iter(visuals.images), iter(visuals.videos)
        parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
        ordered = [next(images) if part["type"] == "image" else Image(0, next(videos).values, (0, 0)) for part in parts if part["type"] != "text"]
        return ordered, texts

    def video_of(self, output: dict) -> Video:
        (frames,) = output["pixel_values"]
        return Video(frames, None, None)

    def inputs(self, ids: list[int], visuals: list[Image]) -> dict:
        return Reader.inputs(self, ids, visuals)


def reader_class(name: str) -> type[VideoReader]:
    return SmolReader if name == "smolvlm" else VideoReader


def write_frames(folder: Path, rng: random.Random, name: str, count: int, longest: int, modes=("RGB", "RGB", "L", "RGBA", "P")) -> list[str]:
    """Frames of one size.   @return paths relative to the folder's parent"""
    size = [rng.randint(5, longest), rng.randint(5, longest)]  # transformers takes a side of 1 or 3 for the channels
    pixels = np.random.default_rng(rng.randrange(2**32))
    paths = []
    for number in range(count):
        mode = rng.choice(modes)
        path = folder / f"{name}-{number}.{'jpg' if mode in ('RGB', 'L') and rng.random() < 0.4 else 'png'}"
        random_pixels(pixels, mode, *size).save(path)
        paths.append(f"{folder.name}/{path.name}")
    return paths


def conversations(videos: list[list[str]], pictures: list[str]) -> list[list[dict]]:
    """Twelve, as vision_parity.UNPACKED has them."""
    rng = random.Random(5)
    video = iter(videos)
    image = iter(f"images/{name}" for name in pictures)
    answer = lambda most=3: turn("assistant", words(rng, most))  # noqa: E731

    def user(*items, **times) -> dict:
        made = turn("user", *[item if isinstance(item, str) else words(rng, 1) for item in items])
        for part, item in zip(made["content"], items):
            if isinstance(item, list):
                part.clear()
                part |= {"type": "video", "video": item, **times}
        return made

    return [
        [user(next(video), words(rng, 3), fps=2.0), answer()],
        [user(words(rng, 3) + "\n", next(video), fps=0.3), answer()],  # seconds apart
        [user(words(rng, 2), next(video), next(video), "\n" + words(rng, 2), fps=4), answer()],  # two side by side
        [{"role": "user", "content": words(rng, 5)}, {"role": "assistant", "content": words(rng, 5)}],  # none
        [user(next(video)), answer(), user(words(rng, 3)), answer()],  # without a rate
        [user(words(rng, 2)), answer(), user(next(video), next(image), words(rng, 1), fps=1.7), answer()],  # with an image
        [user(words(rng, 1)), answer(1)],
        [user(next(image), next(video), words(rng, 4), next(video), fps=30), answer(5)],
        [user(next(video), words(rng, 4), timestamps=None), answer(2)],
        *[[user(next(video), words(rng, 3), fps=3), answer(4)] for _ in range(3)],
    ]


def finished(messages: list[dict], name: str) -> list[dict]:
    """Timestamps for one of them, which only texts have exactly."""
    for part in videos_of(messages):
        if part.get("timestamps", 0) is None:
            del part["timestamps"]
            if name != "qwen2_5_vl":
                part["timestamps"] = [0.5 * number**2 for number in range(len(part["video"]))]
    return messages


COUNTS = (3, 5, 1, 4, 2, 3, 7, 5, 3, 2, 5, 4)


def write_processor(folder: Path, name: str, settings: dict) -> None:
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"video_processor_type": VIDEO_MODELS[name].processor, **settings}))


def make_case(name: str, sftrun: Sftrun, verdicts: Measured, scratch: Path, options: argparse.Namespace) -> Case:
    directory = scratch / name
    pictures = write_pictures(directory / "images", seed=1)
    write_folder(MODELS[name], directory / "base", MODELS[name].kind.seed)
    write_processor(directory / "base", name, VIDEO_MODELS[name].settings)
    (directory / "frames").mkdir()
    rng = random.Random(6)
    least = 2 if "qwen3" in name else 1  # Qwen3-VL refuses a single frame
    videos = [write_frames(directory / "frames", rng, f"v{number}", max(count, least), 40) for number, count in enumerate(COUNTS)]
    reader = reader_class(name)(name, directory / "base", directory, VIDEO_MODELS[name].settings)
    records = [finished(messages, name) for messages in conversations(videos, pictures)]
    write_jsonl(directory / "records.jsonl", [{"messages": messages} for messages in records])
    return Case(name, sftrun, verdicts, directory, reader, records, [reader.document(messages) for messages in records], options)


# ---- Checks


def check_pixels(case: Case) -> None:
    """Without the tower: settings of other models have other patches than it reads."""
    model, config = VIDEO_MODELS[case.name], case.base / "config.json"
    whole = config.read_text()
    config.write_text(json.dumps({key: value for key, value in json.loads(whole).items() if key != "vision_config"}))
    for number, settings in enumerate((model.settings, *model.others)):
        write_processor(case.base, case.name, settings)
        reader = reader_class(case.name)(case.name, case.base, case.directory, settings)
        compare_pixels(case, f"pixels, settings {number}", reader, random.Random(number), case.options.videos)
    write_processor(case.base, case.name, model.settings)
    config.write_text(whole)


def compare_pixels(case: Case, what: str, reader: VideoReader, rng: random.Random, count: int) -> None:
    folder = case.directory / "some"
    folder.mkdir(exist_ok=True)
    parts = [{"type": "video", "video": write_frames(folder, rng, str(n), rng.randint(1, 7), rng.choice((9, 60, 300))), "fps": 2} for n in range(count)]
    requests = []
    for number, part in enumerate(parts):
        frames = [str(case.directory / name) for name in part["video"]]
        record = {"messages": [{"role": "user", "content": [{**part, "video": frames}]}]}
        requests.append({"folder": str(case.base), "record": record, "output": str(folder / f"{number}.bin")})
    printed = subprocess.run([case.options.load_frames], input="\n".join(map(json.dumps, requests)), capture_output=True, text=True, check=True, timeout=600).stdout
    differ, refused = [], 0
    for part, request, line in zip(parts, requests, printed.splitlines(), strict=True):
        answer = json.loads(line)
        try:
            output = reader.processed(part)
        except (ValueError, RuntimeError) as error:  # the reference refuses some sizes
            refused += 1
            if "error" not in answer:
                differ.append(f"{part['video'][0]}: transformers refuses it: {error}")
            continue
        if "error" in answer:
            differ.append(f"{part['video'][0]}: {answer['error']}")
            continue
        differ += differences(part, answer, np.fromfile(request["output"], np.float32), output)
    case.expect(f"{what}: values and grids", not differ and refused < count / 2, "; ".join(differ[:2]) or f"{count - refused} videos, {refused} refused")


def differences(part: dict, answer: dict, values: np.ndarray, output: dict) -> list[str]:
    wanted = next(output[name] for name in ("pixel_values_videos", "pixel_values") if name in output).numpy().ravel()
    frames, *grid = output["video_grid_thw"][0].tolist() if "video_grid_thw" in output else (len(part["video"]), 0, 0)
    if answer["grid_thw"] != [[1 if grid[0] else 0, *grid]] * frames:
        return [f"{part['video'][0]}: grids {answer['grid_thw']}, transformers {[frames, *grid]}"]
    if values.size != wanted.size or not np.array_equal(values, wanted):
        return [f"{part['video'][0]}: {'sizes' if values.size != wanted.size else (values != wanted).sum()} differ of {len(part['video'])} frames"]
    return []


def check_preview(case: Case) -> None:
    vision_parity.check_preview(case)
    recipe = vision_parity.recipe_of(vision_parity.RECIPES["language"], 1, len(case.documents))
    config = vision_parity.write_run_yaml(case, "preview", {"mode": "lora"}, recipe)
    differ = []
    for n, (sequence, messages) in enumerate(zip(vision_parity.previewed(case, config, len(case.documents)), case.conversations, strict=True)):
        shown = [(len(video["frames"]), video["num_tokens"]) for video in sequence["videos"]]
        wanted = [(len(part["video"]), case.reader.num_tokens(part)) for part in videos_of(messages)]
        if shown != wanted:
            differ.append(f"sequence {n}: {shown}, reference {wanted}")
    case.expect("preview: frames and tokens of videos", not differ, "; ".join(differ))


@torch.no_grad()
def check_videos_matter(case: Case) -> None:
    """Otherwise nothing below would show whether frames are read."""
    document = vision_parity.probe(case)
    module = load(case.base)
    seen = logits_of(module, document.tokens, **document.inputs)
    name = "pixel_values" if case.name == "smolvlm" else "pixel_values_videos"
    other = logits_of(module, document.tokens, **{**document.inputs, name: -document.inputs[name]})
    moved = relative_to_largest(other, seen)
    case.expect("reference: other frames give other logits", moved > 100 * vision_parity.TRAINED_LOGITS, f"{moved:.2f}")


def check_training(case: Case) -> None:
    recipes = {"language": ["unpacked", "packed"]} if case.options.short else dict.fromkeys(("language", "lora", "full"), list(vision_parity.BATCHES))
    for recipe, batches in recipes.items():
        vision_parity.check_recipe(dataclasses.replace(case, options=argparse.Namespace(**{**vars(case.options), "batches": batches})), recipe)


CHECKS = {
    "pixels": check_pixels,
    "preview": check_preview,
    "videos": check_videos_matter,
    "training": check_training,
    "score": vision_parity.check_score,
    "generate": vision_parity.check_generate,
}


def check_model(name: str, options: argparse.Namespace) -> Measured:
    verdicts = Measured()
    with tempfile.TemporaryDirectory() as temporary:
        case = make_case(name, Sftrun(options.sftrun), verdicts, Path(options.keep or temporary), options)
        for check in options.checks or CHECKS:
            CHECKS[check](case)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--load-frames", help="the program; default: beside sftrun")
    parser.add_argument("--only", nargs="+", choices=VIDEO_MODELS)
    parser.add_argument("--checks", nargs="+", choices=CHECKS)
    parser.add_argument("--diagnose", action="store_true", help="where a training differs, compare the gradients of each tensor")
    parser.add_argument("--keep", help="a new directory to write models and runs to, instead of a temporary one")
    parser.add_argument("--quick", action="store_true", help="fewer videos and trainings, as in `make test`")
    options = parser.parse_args()
    options.load_frames = options.load_frames or str(Path(options.sftrun).with_name("load_frames"))
    options.short, options.quick = options.quick, False  # vision_parity's --quick means less
    options.videos = 12 if options.short else 60
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    verdicts = Measured()
    check_in_copies(options.only or list(VIDEO_MODELS), functools.partial(check_model, options=options), verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
