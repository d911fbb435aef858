"""Images in llama.cpp: what `sftrun merge` writes for it of tiny vision-language models, beside `sftrun score` and `generate`.

    python tests/parity/mmproj_parity.py --sftrun build/bin/sftrun --gguf-py-only      # in `make test`
    .venv-ref/bin/pip install --no-binary llama-cpp-python "$(grep llama-cpp scripts/requirements-converter.txt | cut -d'#' -f1)"
    python tests/parity/mmproj_parity.py --sftrun build/bin/sftrun [--only qwen3_vl gemma3 …] [--keep FOLDER]

files    a model with an adapter on all parts: both files are those of the model that `merge` writes as safetensors; names of files, what is
         not overwritten, and a model whose image side llama.cpp does not read
answer   llama.cpp, with the text model's file and the image side's (libmtmd), in F32 on the CPU: the log-probability of an answer about an
         image, token by token, against `sftrun score` of the model's folder
greedy   the tokens that llama.cpp finds likeliest, against `sftrun generate`
adapter  the same for a model with an adapter on all linear layers of all three parts (one model)
Images have the sizes that the processors want, so that nothing is resized, which llama.cpp does in its own way.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path

from harness import Sftrun, Verdicts  # noqa: I001  (sets sys.path)

import gguf
import numpy as np
import torch
import vision_models
from adapters import fill_b
from make_images import random_pixels
from peft import LoraConfig, get_peft_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from vision_models import MODELS, VisionModel

try:
    import llama_cpp
    from llama_cpp import mtmd_cpp
except ImportError:
    llama_cpp = None

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
    around: str = ""  # what only transformers' processor writes there
    tower: dict = dataclasses.field(default_factory=dict)  # keys of vision_config: llama.cpp's constants
    text: dict = dataclasses.field(default_factory=dict)  # keys of text_config
    settings: dict = dataclasses.field(default_factory=dict)  # of the image processor
    tolerance: float = 1e-4  # of an answer's log-probability, relative
    rolls_positions: bool = False  # llama.cpp puts the class token behind the patches: the test moves its position there, too
    is_compared: bool = True


VISION = ("<|vision_start|>", "<|vision_end|>")
PICTURES = {
    # Wider than a window.
    "qwen2_5_vl": Picture(120, 32, *VISION, tower={"window_size": 112}, settings={"size": {"shortest_edge": 64, "longest_edge": 1 << 16}}),
    # In llama.cpp the last layer takes no features of DeepStack, which this model has two of.
    "qwen3_vl": Picture(24, 16, *VISION, text={"num_hidden_layers": 3}),
    "qwen3_5": Picture(24, 16, *VISION, tolerance=3e-4),  # delta nets in another order of sums
    "gemma3": Picture(16, 16, "<start_of_image>", "<end_of_image>", "\n\n"),
    "gemma4_vision": Picture(60, 42, "<|image>", "<image|>", text={"final_logit_softcapping": 30.0}, tolerance=3e-5),
    "smolvlm": Picture(32, 32),  # four tiles and the whole image
    "internvl": Picture(16, 16, "<img>", "</img>", rolls_positions=True),
    # llama.cpp 0.3.36 puts the class token behind the patches, and then drops the first row: its answers are others.
    "llava": Picture(16, 16, is_compared=False),
    "llava_siglip": Picture(16, 16, text={"hidden_size": 32}),  # llama.cpp's Qwen 2 has heads that divide it
    "mistral3": Picture(24, 16, "", "[IMG_END]"),
}


def tokenizer_of(tokens: list[str]) -> Tokenizer:
    """Bytes, split as GPT-2 does, which llama.cpp has a name for."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("t", "h"), ("th", "e"), ("r", "e"), ("re", "d"), ("Ċ", "Ċ")]  # libmtmd asks for a token of two line breaks
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


def silence() -> None:
    """What llama.cpp has to say is in its errors."""
    global keeps_alive
    keeps_alive = llama_cpp.llama_log_callback(lambda level, text, data: None)
    for set_log in (llama_cpp.llama_log_set, mtmd_cpp.mtmd_log_set, mtmd_cpp.mtmd_helper_log_set):
        set_log(keeps_alive, ctypes.c_void_p(0))


class LlamaCpp:
    """A text model and its image side."""

    def __init__(self, text: Path, images: Path) -> None:
        silence()
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
            if llama_cpp.llama_vocab_is_eog(self.vocabulary, found[-1]):
                return self.text_of(found[:-1])
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
    prompt = f"{form.begin}{form.user[0]}{picture.around}{marker}{picture.around}{rest}What?{form.user[1]}{form.assistant[0]}"
    return prompt, f"{form.space}{ANSWER}{form.end}"


def merge(sftrun: Sftrun, output: Path, *options: str) -> tuple[Path, Path]:
    written = json.loads(sftrun.run("merge", *options, "--output", str(output), "--format", "gguf", "--dtype", "f32", "--json"))
    return Path(written["path"]), Path(written["mmproj"])


def roll_positions(images: Path) -> None:
    """The first row of the positions becomes the last one."""
    [table] = [tensor for tensor in gguf.GGUFReader(images).tensors if tensor.name == "v.position_embd.weight"]
    rows, content = np.array(table.data).reshape(-1, table.shape[0]), images.read_bytes()
    assert content.count(rows.tobytes()) == 1
    images.write_bytes(content.replace(rows.tobytes(), np.roll(rows, -1, 0).tobytes()))


def write_adapter(folder: Path, adapter: Path) -> None:
    torch.manual_seed(SEED)
    model = vision_models.load(folder)
    names = sorted({name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and "lm_head" not in name})
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=names))
    fill_b(adapted)
    adapted.save_pretrained(adapter)


def compare(sftrun: Sftrun, name: str, scratch: Path, options: list[str], label: str, verdicts: Verdicts) -> None:
    picture, model = PICTURES[name], model_for(name)
    pixels = write_image(scratch / "image.png", picture)
    question = {"role": "user", "content": [{"type": "image", "path": str(scratch / "image.png")}, {"type": "text", "text": "What?"}]}
    record = {"messages": [question, {"role": "assistant", "content": ANSWER}]}
    [ours] = sftrun.jsonl("score", [record], scratch, *options, *ON_CPU)
    text, images = merge(sftrun, scratch / f"merged-{label}", *options)
    if picture.rolls_positions:
        roll_positions(images)
    llama = LlamaCpp(text, images)
    prompt, answer = texts_of(model, picture)
    theirs = llama.score(prompt, pixels, answer)
    difference = abs(theirs - ours["logprob"]) / abs(ours["logprob"])
    blank = llama.score(prompt, np.zeros_like(pixels), answer)
    print(f"{label}: sftrun {ours['logprob']:.5f} ({ours['tokens']} tokens), llama.cpp {theirs:.5f}, of a black image {blank:.5f}")
    verdicts.expect(f"{label}: the image counts", abs(blank - theirs) > 3 * picture.tolerance * abs(theirs))
    if not picture.is_compared:
        return
    verdicts.below(f"{label}: log-probability of an answer", difference, picture.tolerance)
    [generated] = sftrun.jsonl("generate", [{"messages": [question]}], scratch, *options, *ON_CPU, "--temperature", "0", "--max-new-tokens",
                               str(GREEDY_TOKENS))
    greedy = llama.greedy(prompt, pixels, GREEDY_TOKENS)
    verdicts.expect(f"{label}: greedy tokens", generated["generated"] == greedy, f"{generated['generated']!r}, llama.cpp {greedy!r}")


def tensors_of(file: Path) -> dict[str, tuple]:
    return {t.name: (t.tensor_type.name, tuple(t.shape), t.data.tobytes()) for t in gguf.GGUFReader(file).tensors}


def differing(file: Path, other: Path) -> list[str]:
    a, b = tensors_of(file), tensors_of(other)
    return sorted(name for name in a.keys() | b.keys() if a.get(name) != b.get(name))


def refusal_of(sftrun: Sftrun, *arguments: str) -> str:
    try:
        sftrun.run(*arguments)
    except RuntimeError as error:
        return str(error)
    return ""


def check_files(sftrun: Sftrun, verdicts: Verdicts, scratch: Path) -> None:
    folder, adapter, merged = scratch / ADAPTED, scratch / "adapter", scratch / "merged"
    vision_models.write_folder(model_for(ADAPTED), folder, SEED)
    write_adapter(folder, adapter)
    of_adapter = ["--model", str(folder), "--adapter", str(adapter)]
    sftrun.run("merge", *of_adapter, "--output", str(merged), "--dtype", "f32")
    text, images = merge(sftrun, scratch / "both", *of_adapter)
    plain, plain_images = merge(sftrun, scratch / "plain", "--model", str(folder))
    twice, twice_images = merge(sftrun, scratch / "twice", "--model", str(merged))
    verdicts.expect("names", (text.name, images.name) == ("both-F32.gguf", "mmproj-both-F32.gguf"), f"{text.name}, {images.name}")
    verdicts.expect("text model: that of the merged folder", not differing(text, twice), str(differing(text, twice)))
    verdicts.expect("image side: that of the merged folder", not differing(images, twice_images), str(differing(images, twice_images)))
    changed = differing(images, plain_images)
    for name in ("v.blk.2.attn_qkv.weight", "v.deepstack.1.fc2.weight", "mm.0.weight"):
        verdicts.expect(f"image side: the adapter changes {name}", name in changed)
    verdicts.expect("image side: it does not change norms", not any("ln" in name for name in changed), str(changed))
    check_single_file(sftrun, folder, scratch, verdicts)
    check_refused(sftrun, adapter, scratch, verdicts)


def check_single_file(sftrun: Sftrun, folder: Path, scratch: Path, verdicts: Verdicts) -> None:
    """Of q8_0 the image side is in F16."""
    file, images = scratch / "one.gguf", scratch / "mmproj-one.gguf"
    command = ["merge", "--model", str(folder), "--output", str(file), "--dtype", "q8_0"]
    written = json.loads(sftrun.run(*command, "--json"))
    types = {name: kind for name, (kind, _, _) in tensors_of(images).items()}
    verdicts.expect("--output x.gguf: mmproj-x.gguf beside it", written["mmproj"] == str(images), str(written))
    verdicts.expect("q8_0: the image side in F16", types["mm.0.weight"] == "F16" and types["v.post_ln.weight"] == "F32", str(types))
    file.unlink()
    verdicts.expect("an image side is not overwritten", "the file of the image side exists" in refusal_of(sftrun, *command) and not file.exists())
    sftrun.run(*command, "--overwrite")
    verdicts.expect("--overwrite", file.exists())
    before = file.read_bytes()
    for make, reason in ((os.mkfifo, "is a named pipe"), (os.mkdir, "Is a directory")):
        images.rmdir() if images.is_dir() else images.unlink()
        make(images)
        refusal = refusal_of(sftrun, *command, "--overwrite")
        verdicts.expect(f"the image side's place: {reason}", reason in refusal and file.read_bytes() == before, refusal)
    settings = folder / "preprocessor_config.json"
    text = settings.read_text()
    settings.write_text(text[:-9])
    refusal = refusal_of(sftrun, "merge", "--model", str(folder), "--output", str(scratch / "damaged.gguf"))
    verdicts.expect("a damaged image processor", settings.name in refusal and not (scratch / "damaged.gguf").exists(), refusal)
    settings.unlink()
    sftrun.run("merge", "--model", str(folder), "--output", str(scratch / "alone.gguf"))
    verdicts.expect("no image processor: the text model alone", (scratch / "alone.gguf").exists() and not (scratch / "mmproj-alone.gguf").exists())
    settings.write_text(text)


def check_refused(sftrun: Sftrun, adapter: Path, scratch: Path, verdicts: Verdicts) -> None:
    """Other windows than llama.cpp's: the text model alone, and no adapter of the image side."""
    folder = scratch / "refused"
    model = model_for("qwen2_5_vl")
    vision_models.write_folder(dataclasses.replace(model, tower=model.tower | {"window_size": 8}), folder, SEED)
    written = json.loads(sftrun.run("merge", "--model", str(folder), "--output", str(scratch / "text.gguf"), "--dtype", "f32", "--json"))
    verdicts.expect("not read by llama.cpp: the text model alone", "mmproj" not in written and not (scratch / "mmproj-text.gguf").exists(), str(written))
    write_adapter(folder, adapter.with_name("other"))
    message = refusal_of(sftrun, "merge", "--model", str(folder), "--adapter", str(adapter.with_name("other")), "--output", str(scratch / "no.gguf"))
    verdicts.expect("not read by llama.cpp: adapters of it are refused", "the text model alone is written" in message, message)


def check_model(sftrun: Sftrun, name: str, verdicts: Verdicts, scratch: Path) -> None:
    folder = scratch / name
    vision_models.write_folder(model_for(name), folder, SEED)
    compare(sftrun, name, scratch, ["--model", str(folder)], name, verdicts)
    if name != ADAPTED:
        return
    adapter = scratch / "adapter"
    write_adapter(folder, adapter)
    compare(sftrun, name, scratch, ["--model", str(folder), "--adapter", str(adapter)], f"{name} with an adapter", verdicts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=PICTURES, default=list(PICTURES))
    parser.add_argument("--gguf-py-only", action="store_true", help="only what needs no llama.cpp")
    parser.add_argument("--keep", type=Path, help="write everything into this folder")
    args = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as scratch:
        check_files(Sftrun(args.sftrun), verdicts, Path(scratch))
    if args.gguf_py_only:
        return verdicts.exit_code()
    if llama_cpp is None:
        print("SKIPPED: llama-cpp-python is not installed (scripts/requirements-converter.txt), so the files alone were checked")
        return verdicts.exit_code() or 77
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
