"""Images in llama.cpp: what `sftrun merge` writes for it of tiny vision-language models, beside `sftrun score` and `generate`.

    .venv-ref/bin/pip install --no-binary llama-cpp-python "$(grep llama-cpp scripts/requirements-converter.txt | cut -d'#' -f1)"
    python tests/parity/mmproj_parity.py --sftrun build/bin/sftrun [--only qwen3_vl gemma3 …] [--keep FOLDER]

answer   llama.cpp, with the text model's file and the image side's (libmtmd), in F32 on the CPU: the log-probability of an answer about an
         image, token by token, against `sftrun score` of the model's folder
greedy   the tokens that llama.cpp finds likeliest, against `sftrun generate`
adapter  the same for a model with an adapter on all linear layers of all three parts (one model)
Images have the sizes that the processors want, so that nothing is resized, which llama.cpp does in its own way. Without llama-cpp-python
the test is skipped.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import sys
import tempfile
from pathlib import Path

try:
    import llama_cpp
    from llama_cpp import mtmd_cpp
except ImportError:
    print("llama-cpp-python is not installed (scripts/requirements-converter.txt)")
    sys.exit(77)

from harness import Sftrun, Verdicts  # noqa: I001  (sets sys.path)

import numpy as np
import torch
import vision_models
from adapters import fill_b
from make_images import random_pixels
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from vision_models import MODELS, VisionModel

SEED = 5
GREEDY_TOKENS = 6
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
ANSWER = "two red shapes"
ADAPTED = "qwen3_vl"


@dataclasses.dataclass(frozen=True)
class Picture:
    width: int
    height: int
    before: str = ""  # what the template writes around an image and libmtmd writes itself
    after: str = ""
    tower: dict = dataclasses.field(default_factory=dict)  # keys of vision_config: llama.cpp's constants
    text: dict = dataclasses.field(default_factory=dict)  # keys of text_config
    settings: dict = dataclasses.field(default_factory=dict)  # of the image processor
    tolerance: float = 1e-3  # of an answer's log-probability, relative
    why: str = ""


VISION = ("<|vision_start|>", "<|vision_end|>")
PICTURES = {
    # Wider than a window.
    "qwen2_5_vl": Picture(120, 32, *VISION, tower={"window_size": 112}, settings={"size": {"shortest_edge": 64, "longest_edge": 1 << 16}}),
    # In llama.cpp the last layer takes no features of DeepStack, which this model has two of.
    "qwen3_vl": Picture(24, 16, *VISION, text={"num_hidden_layers": 3}),
    "qwen3_5": Picture(24, 16, *VISION),
    "gemma3": Picture(16, 16, "<start_of_image>", "<end_of_image>", tolerance=3e-3, why="its projection is always F16"),
    "gemma4": Picture(60, 42, "<|image>", "<image|>"),
    "smolvlm": Picture(16, 16, settings={"size": {"longest_edge": 16}}),
    "internvl": Picture(16, 16, "<img>", "</img>"),
    "llava": Picture(16, 16),
    "llava_siglip": Picture(16, 16),
    "mistral3": Picture(24, 16, "", "[IMG_END]"),
}


def tokenizer_of(tokens: list[str]) -> Tokenizer:
    """Bytes, split as GPT-2 does, which llama.cpp has a name for."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "h"), ("th", "e"), ("r", "e"), ("re", "d")]
    vocabulary = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", *tokens]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in dict.fromkeys(special)])
    return tokenizer


vision_models.tokenizer_of = tokenizer_of


def model_for(name: str) -> VisionModel:
    picture, model = PICTURES[name], MODELS[name]
    processor = dataclasses.replace(model.processor, settings=model.processor.settings | picture.settings)
    kind = dataclasses.replace(model.kind, text=model.kind.text | picture.text)
    return dataclasses.replace(model, kind=kind, processor=processor, tower=model.tower | picture.tower)


def write_image(path: Path, picture: Picture) -> np.ndarray:
    image = random_pixels(np.random.default_rng(SEED), "RGB", picture.width, picture.height)
    image.save(path)
    return np.ascontiguousarray(np.asarray(image), np.uint8)


# Kept alive here; everything that llama.cpp says is in its errors.
SILENCE = llama_cpp.llama_log_callback(lambda level, text, data: None)


class LlamaCpp:
    """A text model and its image side."""

    def __init__(self, text: Path, images: Path) -> None:
        llama_cpp.llama_log_set(SILENCE, ctypes.c_void_p(0))
        mtmd_cpp.mtmd_log_set(SILENCE, ctypes.c_void_p(0))
        mtmd_cpp.mtmd_helper_log_set(SILENCE, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(text).encode(), self.model_parameters())
        if not self.model:
            raise RuntimeError(f"llama.cpp does not load {text.name}")
        parameters = mtmd_cpp.mtmd_context_params_default()
        parameters.use_gpu, parameters.warmup, parameters.print_timings, parameters.n_threads = False, False, False, 1
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.images = mtmd_cpp.mtmd_init_from_file(str(images).encode(), self.model, parameters)
        if not self.images:
            raise RuntimeError(f"llama.cpp does not load {images.name}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.num_tokens = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    @staticmethod
    def model_parameters():
        parameters = llama_cpp.llama_model_default_params()
        parameters.use_extra_bufts = False
        return parameters

    def context(self):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = 1024
        parameters.n_threads = parameters.n_threads_batch = 1
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.type_k = parameters.type_v = 0  # F32
        return llama_cpp.llama_init_from_model(self.model, parameters)

    def tokens_of(self, text: str) -> list[int]:
        found = (llama_cpp.llama_token * 512)()
        count = llama_cpp.llama_tokenize(self.vocabulary, text.encode(), len(text.encode()), found, len(found), False, True)
        return list(found[:count])

    def read_prompt(self, context, prompt: str, pixels: np.ndarray) -> int:
        """@return the position behind it"""
        height, width, _ = pixels.shape
        bitmap = mtmd_cpp.mtmd_bitmap_init(width, height, (ctypes.c_uint8 * pixels.size).from_buffer_copy(pixels.tobytes()))
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        text = mtmd_cpp.mtmd_input_text(text=prompt.encode(), text_len=len(prompt.encode()), add_special=False, parse_special=True)
        bitmaps = (mtmd_cpp.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if mtmd_cpp.mtmd_tokenize(self.images, chunks, ctypes.byref(text), bitmaps, 1):
            raise RuntimeError("llama.cpp does not tokenise the prompt")
        self.prompt_tokens = mtmd_cpp.mtmd_helper_get_n_tokens(chunks)
        end = llama_cpp.llama_pos(0)
        if mtmd_cpp.mtmd_helper_eval_chunks(self.images, context, chunks, 0, 0, 1024, True, ctypes.byref(end)):
            raise RuntimeError("llama.cpp does not compute the prompt")
        return end.value

    def log_probabilities(self, context) -> np.ndarray:
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (self.num_tokens,)).astype(np.float64)
        return logits - np.logaddexp.reduce(logits)

    def follow(self, context, token: int, position: int) -> None:
        batch = llama_cpp.llama_batch_init(1, 0, 1)
        batch.n_tokens, batch.token[0], batch.pos[0], batch.n_seq_id[0], batch.logits[0] = 1, token, position, 1, True
        batch.seq_id[0][0] = 0
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp does not compute a token")

    def score(self, prompt: str, pixels: np.ndarray, answer: str) -> float:
        context, total = self.context(), 0.0
        position = self.read_prompt(context, prompt, pixels)
        for token in self.tokens_of(answer):
            total += self.log_probabilities(context)[token]
            self.follow(context, token, position)
            position += 1
        return total

    def text_of(self, tokens: list[int]) -> str:
        """As sftrun writes what is no UTF-8."""
        pieces = b""
        for token in tokens:
            piece = ctypes.create_string_buffer(64)
            length = llama_cpp.llama_token_to_piece(self.vocabulary, token, piece, len(piece), 0, False)
            pieces += piece.raw[:length]
        return pieces.decode(errors="replace")

    def greedy(self, prompt: str, pixels: np.ndarray, count: int) -> str:
        context, found = self.context(), []
        position = self.read_prompt(context, prompt, pixels)
        for _ in range(count):
            found.append(int(self.log_probabilities(context).argmax()))
            self.follow(context, found[-1], position)
            position += 1
        return self.text_of(found)


def texts_of(model: VisionModel, picture: Picture) -> tuple[str, str]:
    """The prompt with llama.cpp's marker for the image, and the answer as it is scored."""
    marker = mtmd_cpp.mtmd_default_marker().decode()
    image = model.image.replace(picture.before, "") if picture.before else model.image
    image = image.replace(picture.after, "") if picture.after else image
    rest = image.replace(model.feature, "", 1) if model.feature in image else image.rstrip("\n") and ""
    form = model.form
    prompt = f"{form.begin}{form.user[0]}{marker}{rest}What?{form.user[1]}{form.assistant[0]}"
    return prompt, f"{form.space}{ANSWER}{form.end}"


def merge(sftrun: Sftrun, folder: Path, output: Path, *options: str) -> tuple[Path, Path]:
    written = json.loads(sftrun.run("merge", *options, "--output", str(output), "--format", "gguf", "--dtype", "f32", "--json"))
    return Path(written["path"]), Path(written["mmproj"])


def write_adapter(folder: Path, adapter: Path) -> None:
    torch.manual_seed(SEED)
    model = vision_models.load(folder)
    names = sorted({name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "lm_head" not in name})
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=names))
    fill_b(adapted)
    adapted.save_pretrained(adapter)


def compare(sftrun: Sftrun, name: str, folder: Path, scratch: Path, options: list[str], label: str, verdicts: Verdicts) -> None:
    picture, model = PICTURES[name], model_for(name)
    pixels = write_image(scratch / "image.png", picture)
    question = {"role": "user", "content": [{"type": "image", "path": str(scratch / "image.png")}, {"type": "text", "text": "What?"}]}
    record = {"messages": [question, {"role": "assistant", "content": ANSWER}]}
    [ours] = sftrun.jsonl("score", [record], scratch, *options, *ON_CPU)
    llama = LlamaCpp(*merge(sftrun, folder, scratch / f"merged-{label}", *options))
    prompt, answer = texts_of(model, picture)
    theirs = llama.score(prompt, pixels, answer)
    difference = abs(theirs - ours["logprob"]) / abs(ours["logprob"])
    blank = llama.score(prompt, np.zeros_like(pixels), answer)
    print(f"{label}: sftrun {ours['logprob']:.5f} ({ours['tokens']} tokens), llama.cpp {theirs:.5f}, of a black image {blank:.5f}")
    verdicts.below(f"{label}: log-probability of an answer", difference, picture.tolerance)
    verdicts.expect(f"{label}: the image counts", abs(blank - theirs) > 10 * picture.tolerance * abs(theirs))
    [generated] = sftrun.jsonl("generate", [{"messages": [question]}], scratch, *options, *ON_CPU, "--temperature", "0", "--max-new-tokens",
                               str(GREEDY_TOKENS))
    greedy = llama.greedy(prompt, pixels, GREEDY_TOKENS)
    verdicts.expect(f"{label}: greedy tokens", generated["generated"] == greedy, f"{generated['generated']!r}, llama.cpp {greedy!r}")


def check_model(sftrun: Sftrun, name: str, verdicts: Verdicts, scratch: Path) -> None:
    folder = scratch / name
    vision_models.write_folder(model_for(name), folder, SEED)
    compare(sftrun, name, folder, scratch, ["--model", str(folder)], name, verdicts)
    if name != ADAPTED:
        return
    adapter = scratch / "adapter"
    write_adapter(folder, adapter)
    compare(sftrun, name, folder, scratch, ["--model", str(folder), "--adapter", str(adapter)], f"{name} with an adapter", verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    parser.add_argument("--keep", type=Path, help="write everything into this folder")
    args = parser.parse_args()
    verdicts = Verdicts()
    for name in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            if args.keep:
                folder = args.keep / name
                folder.mkdir(parents=True)
            try:
                check_model(Sftrun(args.sftrun), name, verdicts, folder)
            except RuntimeError as error:
                verdicts.expect(name, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
