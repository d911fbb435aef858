#!/usr/bin/env python3
"""Gives the program what users get wrong, and compares its answers, word by word, with those that docs/errors.md shows.

    tests/smoke/bad_input.py --sftrun build/bin/sftrun            # a test
    tests/smoke/bad_input.py --sftrun build/bin/sftrun --write    # writes the answers into docs/errors.md

Standard library only. Each case runs in a folder of its own that holds a good run.yaml, good data and a tiny good model,
of which the case spoils one thing. Every answer must name its exit code and come without a stack trace.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading

import errors_document

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
BEGIN, END = "<!-- answers: written by tests/smoke/bad_input.py --write -->\n", "<!-- end of answers -->\n"

GOOD_YAML = """\
model: { name: model, max_seq_len: 128 }
tuning: { mode: lora, lora: { r: 4 } }
data: { train: train.jsonl }
train: { max_steps: 1 }
output: { dir: run }
"""
GOOD_RECORD = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello there"}]}
ANSWER = '{"completion": "so 4", "answer": 4}'
TRAIN = ["train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1"]
CHECK = ["config", "check", "--config", "run.yaml"]

GENERATE = ["generate", "--model", "model", "--prompt", "hello", "--device", "cpu"]
GENERATE_GGUF = [a.replace("model", "model.gguf") if a == "model" else a for a in GENERATE]
REWARD = ["reward", "--input", "answers.jsonl", "--output", "rewarded.jsonl"]
SCORE = ["score", "--model", "model", "--input", "train.jsonl", "--output", "scored.jsonl", "--device", "cpu"]
TOKENIZE = ["tokenize", "--model", "model", "--input", "train.jsonl", "--output", "tokens.jsonl"]

USAGE, DATA, FAILED = 2, 3, 5
TIMEOUT = 120  # s, of one command


def edit(name, old, new):
    def spoil(folder):
        text = (folder / name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        (folder / name).write_text(text.replace(old, new))
    return spoil


def write(name, text):
    return lambda folder: (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())


def truncate(name, keep_bytes):
    return lambda folder: os.truncate(folder / name, keep_bytes)


def remove(name):
    return lambda folder: (folder / name).unlink()


def broken_link(name):
    """As the snapshots of a cache of which files were removed."""
    return all_of(remove(name), lambda folder: (folder / name).symlink_to("../../blobs/ab12"))


def gguf_cut_short(folder):
    shutil.copyfile(MODELS / "llama3-gguf/model-Q8_0.gguf", folder / "model.gguf")
    os.truncate(folder / "model.gguf", 30000)


def two_gguf_files(folder):
    (folder / "gguf").mkdir()
    for name in ("model-F16.gguf", "model-Q8_0.gguf"):
        shutil.copyfile(MODELS / "llama3-gguf" / name, folder / "gguf" / name)


def read_safetensors(path):
    """The header, and the bytes after it."""
    content = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", content)
    return json.loads(content[8:8 + header_bytes]), bytearray(content[8 + header_bytes:])


def write_safetensors(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def move_tensor(name, to):
    """A header that says the tensor is elsewhere in the file."""
    def spoil(folder):
        header, data = read_safetensors(folder / "model/model.safetensors")
        header[name]["data_offsets"] = to(*header[name]["data_offsets"], header)
        write_safetensors(folder / "model/model.safetensors", header, data)
    return spoil


def lying_gguf(after, at, number):
    """A GGUF file whose integer of eight bytes, `at` bytes after a name in it, is another."""
    def spoil(folder):
        content = bytearray((MODELS / "llama3-gguf/model-Q8_0.gguf").read_bytes())
        struct.pack_into("<Q", content, content.index(after) + len(after) + at, number)
        (folder / "model.gguf").write_bytes(content)
    return spoil


def corrupt_header(folder):
    path = folder / "model/model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:12] = b"????"  # the header's first bytes, after its length
    path.write_bytes(content)


def shard_missing(folder):
    shutil.rmtree(folder / "model")
    shutil.copytree(MODELS / "linear-bias-sharded", folder / "model")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(MODELS / "tied-gqa" / name, folder / "model" / name)
    (folder / "model/model-00003-of-00004.safetensors").unlink()


def all_of(*steps):
    def spoil(folder):
        for step in steps:
            step(folder)
    return spoil


def sftrun(*command):
    """A command that must work, before the one that must not."""
    def run(folder):
        done = subprocess.run([folder / "sftrun", *command], cwd=folder, env=environment(folder), capture_output=True, text=True,
                              timeout=TIMEOUT)
        assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stderr}"
    return run


RUNS, RUNS_LOCK = {}, threading.Lock()  # by their commands: the folder, and the bytes of each file in it
WITH_PLACES = (pathlib.Path("run/run.json"), pathlib.Path("run/adapter/adapter_config.json"))  # that name the folder, and are in no fingerprint


def trained(*command):
    """The finished run of a command in a good folder: made once, then copied."""
    def run(folder):
        with RUNS_LOCK:
            if command not in RUNS:
                RUNS[command] = folder.resolve(), {}  # and if it fails, no other case waits for it again
                sftrun(*command)(folder)
                RUNS[command][1].update({path.relative_to(folder): path.read_bytes() for path in (folder / "run").rglob("*") if path.is_file()})
                return
        first, contents = RUNS[command]
        assert contents, f"an earlier {' '.join(command)} failed"
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            here = content.replace(os.fsencode(first), os.fsencode(folder.resolve())) if name in WITH_PLACES else content
            (folder / name).write_bytes(here)
    return run


def other_model(folder):
    """A model of another width than the adapter's."""
    shutil.copytree(MODELS / "llama3-gguf", folder / "other", ignore=shutil.ignore_patterns("reference.*", "*.gguf"))


def data_set_of_subsets(folder):
    (folder / "set").mkdir()
    configs = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("en", "fr"))
    (folder / "set/README.md").write_text(f"---\nconfigs:\n{configs}---\n# A data set\n")
    for name in ("en", "fr"):
        shutil.copy(folder / "train.jsonl", folder / f"set/{name}.jsonl")


def whole_head(folder):
    """An adapter that carries lm_head beside its updates, as PEFT's `modules_to_save` makes one."""
    config = json.loads((folder / "run/adapter/adapter_config.json").read_text()) | {"modules_to_save": ["lm_head"]}
    (folder / "run/adapter/adapter_config.json").write_text(json.dumps(config))
    model = json.loads((folder / "model/config.json").read_text())
    shape = [model["vocab_size"], model["hidden_size"]]
    header, data = read_safetensors(folder / "run/adapter/adapter_model.safetensors")
    head = bytes(4 * shape[0] * shape[1])
    header["base_model.model.lm_head.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(head)]}
    write_safetensors(folder / "run/adapter/adapter_model.safetensors", header, data + head)


def untie_with_a_bad_weight(folder):
    """Gives the model a head of its own, and the embedding of BAD_RECORD's token a number that is none."""
    token = json.loads((folder / "model/tokenizer.json").read_text())["model"]["vocab"]["~"]
    edit("model/config.json", '"tie_word_embeddings": true', '"tie_word_embeddings": false')(folder)
    path = folder / "model/model.safetensors"
    header, data = read_safetensors(path)
    embedding = header["model.embed_tokens.weight"]
    begin, end = embedding["data_offsets"]
    header["lm_head.weight"] = embedding | {"data_offsets": [len(data), len(data) + end - begin]}
    data += data[begin:end]
    struct.pack_into("<f", data, begin + token * embedding["shape"][1] * 4, float("nan"))
    write_safetensors(path, header, data)


def odd_splits(folder):
    """A tokenizer that splits numbers as no tokenizer of llama.cpp's does."""
    path = folder / "model/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0] = {"type": "Digits", "individual_digits": False}
    path.write_text(json.dumps(tokenizer))


def dynamic_rope(folder):
    path = folder / "model/config.json"
    config = json.loads(path.read_text())
    config["rope_parameters"] |= {"rope_type": "dynamic", "factor": 4.0}
    path.write_text(json.dumps(config))


def damage_newest_checkpoint(folder):
    [path] = (folder / "run/checkpoints").glob("*/adapter_model.safetensors")
    os.truncate(path, path.stat().st_size // 2)


def change_the_middle_of_a_matrix(folder):
    """A quarter into the embedding, where no sample of its beginning, middle and end looks."""
    path = folder / "model/model.safetensors"
    header, data = read_safetensors(path)
    begin, end = header["model.embed_tokens.weight"]["data_offsets"]
    at = begin + (end - begin) // 4
    data[at] ^= 1
    write_safetensors(path, header, data)


def swap_two_tokens(folder):
    path = folder / "model/tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["llo"], vocabulary["\u0120and"] = vocabulary["\u0120and"], vocabulary["llo"]
    path.write_text(json.dumps(tokenizer))


def begin_template_with(text):
    def spoil(folder):
        path = folder / "model/chat_template.jinja"
        path.write_text(text + path.read_text())
    return spoil


def lines(*records):
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)


LATIN_1_RECORD = '{"messages": [{"role": "user", "content": "caf\u00e9"}, {"role": "assistant", "content": "yes"}]}'

DS_OFFLOAD = '{\n  "zero_optimization": {\n    "stage": 3,\n    "offload_param": { "device": "nvme" }\n  },\n  "bf16": {"enabled": true}\n}\n'
DS_BATCHES = '{\n  "train_batch_size": 30,\n  "train_micro_batch_size_per_gpu": 4,\n  "gradient_accumulation_steps": 2\n}\n'
DS_STAGE = '{\n  "zero_optimization": { "stage": 3 }\n}\n'
ACCELERATE = "distributed_type: MULTI_GPU\ndeepspeed_config: { zero_stage: 3 }\nnum_processes: 3\nnum_machines: 2\nfsdp: true\n"


# title, exit code, what is spoilt, command
CASES = [
    ("The command line", None, None, None),
    ("An unknown command", USAGE, None, ["trian"]),
    ("An unknown flag", USAGE, None, ["train", "--config", "run.yaml", "--nproc-per-nod", "2"]),
    ("A number that is not decimal", USAGE, None, [*GENERATE, "--max-new-tokens", "010"]),
    ("Configuration file not found", None, remove("run.yaml"), TRAIN),
    ("The configuration", None, None, None),
    ("A misspelt key", USAGE, edit("run.yaml", "max_steps: 1", "warmup_step: 10"), CHECK),
    ("Keys of other trainers", USAGE, edit("run.yaml", "max_steps: 1", "lr: 1e-4, saves_per_epoch: 1, report_to: wandb, load_in_4bit: true"), CHECK),
    ("Not YAML", USAGE, edit("run.yaml", "lora: { r: 4 } }", "lora: { r: 4 }"), CHECK),
    ("A list where a number belongs", USAGE, edit("run.yaml", "max_steps: 1", "max_steps: [1]"), CHECK),
    ("Several problems at once", USAGE,
     edit("run.yaml", "train: { max_steps: 1 }", "train: { epochs: three, learning_rate: -1, scheduler: cosin }"), CHECK),
    ("A value on the command line", USAGE, None, [*CHECK, "train.batch_size=0"]),
    ("A map with a number that is not finite", USAGE,
     edit("run.yaml", "train: train.jsonl", "train: train.jsonl, chat_template_kwargs: { budget: .inf }"), CHECK),
    ("Chat template not found", USAGE, edit("run.yaml", "max_seq_len: 128", "chat_template: chat.jinja"), CHECK),
    ("Batch sizes that do not divide", USAGE, edit("run.yaml", "max_steps: 1", "batch_size: 4, global_batch_size: 30"),
     [*TRAIN[:-1], "2"]),
    ("A module that the model does not have", USAGE, edit("run.yaml", "r: 4", "r: 4, target_modules: [q_prj]"), TRAIN),
    ("Regular expressions that match no tensor", USAGE,
     edit("run.yaml", "mode: lora, lora: { r: 4 }", "mode: partial, trainable: [laers]"), TRAIN),
    ("A load-balancing loss of a model without experts", USAGE,
     edit("run.yaml", "max_steps: 1", "max_steps: 1, router_aux_loss_coef: 0.01"), TRAIN),
    ("Adapter to start from not found", None, edit("run.yaml", "r: 4", "r: 4, init_from: nowhere"), TRAIN),
    ("An adapter of another rank to start from", None,
     all_of(trained(*TRAIN), edit("run.yaml", "r: 4", "r: 8, init_from: run/adapter"), edit("run.yaml", "dir: run", "dir: second")),
     TRAIN),
    ("Files of other tools", None, None, None),
    ("A file of DeepSpeed that asks for offload to a disk", USAGE, write("ds.json", DS_OFFLOAD), [*TRAIN, "--deepspeed", "ds.json"]),
    ("Batch sizes of DeepSpeed that do not divide", USAGE, write("ds.json", DS_BATCHES), ["config", "import", "ds.json"]),
    ("A run that contradicts its file of DeepSpeed", USAGE,
     all_of(write("ds.json", DS_STAGE), edit("run.yaml", "output:", "parallel: { deepspeed: ds.json, strategy: ddp }\noutput:")), CHECK),
    ("A file of Accelerate that contradicts itself", USAGE, write("accelerate.yaml", ACCELERATE),
     [*TRAIN, "--accelerate-config", "accelerate.yaml"]),
    ("A file of no known tool", USAGE, write("other.yaml", "lr: 1\n"), ["config", "import", "other.yaml"]),
    ("The data", None, None, None),
    ("Data file not found", None, remove("train.jsonl"), TRAIN),
    ("An empty data file", DATA, write("train.jsonl", ""), TRAIN),
    ("A line that is not JSON", DATA, write("train.jsonl", lines(GOOD_RECORD, '{"messages": [', GOOD_RECORD)), TRAIN),
    ("Not UTF-8", DATA, write("train.jsonl", lines(GOOD_RECORD).encode() + lines(LATIN_1_RECORD).encode("latin-1")), TRAIN),
    ("A record of no known form", DATA, write("train.jsonl", lines(GOOD_RECORD, {"question": "hello"})), TRAIN),
    ("A misspelt key in a message", DATA,
     write("train.jsonl", lines({"messages": [{"role": "user", "contents": "hello"}, GOOD_RECORD["messages"][1]]})), TRAIN),
    ("Several bad records", DATA,
     write("train.jsonl", lines(GOOD_RECORD, '{"messages": [', GOOD_RECORD, {"messages": [{"role": "assistant", "content": None}]})),
     TRAIN),
    ("Preference data", DATA, write("train.jsonl", lines({"prompt": "hello", "chosen": "hello there", "rejected": "no"})), TRAIN),
    ("Files of several formats in one pattern", DATA,
     all_of(write("a.jsonl", lines(GOOD_RECORD)), write("b.jsonl", lines({"instruction": "Say hello", "output": "hello"})),
            edit("run.yaml", "train: train.jsonl", "train: '[ab].jsonl'")), TRAIN),
    ("Two faulty data sets", DATA,
     all_of(write("a.jsonl", lines(GOOD_RECORD, {"messages": 3})), write("b.jsonl", lines({"text": "hello"}, {"text": 3})),
            edit("run.yaml", "train: train.jsonl", "train: [a.jsonl, train.jsonl, b.jsonl]")), TRAIN),
    ("A split of one file", DATA,
     edit("run.yaml", "train: train.jsonl", "train: [{path: train.jsonl, split: 'train[:10]'}]"), TRAIN),
    ("A data set of several subsets", DATA,
     all_of(data_set_of_subsets, edit("run.yaml", "train: train.jsonl", "train: set")), TRAIN),
    ("No token with a label", DATA, write("train.jsonl", lines({"messages": GOOD_RECORD["messages"][:1]})), TRAIN),
    ("A beginning-of-sequence token twice", DATA,
     all_of(other_model, edit("run.yaml", "name: model", "name: other"), write("train.jsonl", lines({"text": "<|begin|>hello"}))),
     TRAIN),
    ("No end-of-turn token with a label", DATA,
     all_of(write("template.jinja", "{% for m in messages %}{{ m.content + '\\n' }}{% endfor %}"),
            edit("run.yaml", "max_seq_len: 128", "max_seq_len: 128, chat_template: template.jinja")), TRAIN),
    ("A turn with a negative weight", DATA,
     write("train.jsonl", lines({"messages": [GOOD_RECORD["messages"][0], GOOD_RECORD["messages"][1] | {"weight": -1}]})), TRAIN),
    ("All examples too long", DATA, edit("run.yaml", "max_seq_len: 128", "max_seq_len: 2"), TRAIN),
    ("The model", None, None, None),
    ("Model not found", DATA, edit("run.yaml", "name: model", "name: modle"), TRAIN),
    ("A model directory without weights", DATA, remove("model/model.safetensors"), TRAIN),
    ("A truncated model file (safetensors)", DATA, truncate("model/model.safetensors", 20000), TRAIN),
    ("A truncated model file (GGUF)", DATA, gguf_cut_short, GENERATE_GGUF),
    ("A model file with a corrupt header (safetensors)", DATA, corrupt_header, TRAIN),
    ("A missing shard", DATA, shard_missing, TRAIN),
    ("A tensor of another shape than the configuration says", DATA,
     edit("model/config.json", '"intermediate_size": 40', '"intermediate_size": 48'), TRAIN),
    ("A tensor outside the file (safetensors)", DATA,
     move_tensor("model.norm.weight", lambda begin, end, _: [begin + 10**6, end + 10**6]), TRAIN),
    ("A tensor at an offset of more than 63 bits (safetensors)", DATA,
     move_tensor("model.norm.weight", lambda begin, end, _: [2**63, 2**63 + end - begin]), TRAIN),
    ("A tensor that ends before it begins (safetensors)", DATA,
     move_tensor("model.norm.weight", lambda begin, end, _: [end, begin]), TRAIN),
    ("Two overlapping tensors (safetensors)", DATA,
     move_tensor("model.layers.0.self_attn.v_proj.weight",
                 lambda begin, end, header: header["model.layers.0.self_attn.k_proj.weight"]["data_offsets"]), TRAIN),
    ("More tensors than the file can hold (GGUF)", DATA, lying_gguf(b"GGUF", 4, 2**60), GENERATE_GGUF),
    ("A name longer than the file (GGUF)", DATA, lying_gguf(b"GGUF", 20, 2**63), GENERATE_GGUF),
    ("More tokens than the file can hold (GGUF)", DATA, lying_gguf(b"tokenizer.ggml.tokens", 8, 2**61), GENERATE_GGUF),
    ("A tensor larger than memory (GGUF)", DATA, lying_gguf(b"blk.0.ffn_down.weight", 4, 2**62), GENERATE_GGUF),
    ("Not a GGUF file", DATA, write("model.gguf", "not a model, but long enough to hold a header of one"), GENERATE_GGUF),
    ("A model directory without configuration", DATA, remove("model/config.json"), TRAIN),
    ("A configuration of the model that is not JSON", DATA, write("model/config.json", "{"), TRAIN),
    ("A model without attention heads", DATA,
     edit("model/config.json", '"num_attention_heads": 6', '"num_attention_heads": 0'), TRAIN),
    ("A model without key and value heads", DATA,
     edit("model/config.json", '"num_key_value_heads": 2', '"num_key_value_heads": 0'), TRAIN),
    ("A model directory without tokenizer", DATA, remove("model/tokenizer.json"), TRAIN),
    ("A link to a missing file", DATA, broken_link("model/generation_config.json"), TOKENIZE),
    ("An architecture that is not supported", DATA, edit("model/config.json", '"model_type": "llama"', '"model_type": "mamba"'),
     TRAIN),
    ("Generating: model not found", DATA, None, [a.replace("model", "modle") if a == "model" else a for a in GENERATE]),
    ("Generating from a model with NaN weights", DATA, untie_with_a_bad_weight,
     [a.replace("hello", "~") for a in GENERATE]),
    ("A mistyped path of a model", DATA, lambda folder: (folder / "models/small").mkdir(parents=True),
     [a.replace("model", "models/smal") if a == "model" else a for a in GENERATE]),
    ("A directory of several GGUF files", DATA, two_gguf_files, [a.replace("model", "gguf") if a == "model" else a for a in GENERATE]),
    ("Several answers without sampling", USAGE, None, [*GENERATE, "-n", "4"]),
    ("Answers into a file that exists", USAGE, write("answers.jsonl", lines(GOOD_RECORD)),
     ["generate", "--model", "model", "--input", "train.jsonl", "--output", "answers.jsonl", "--device", "cpu"]),
    ("A table without a prompt", DATA, write("questions.csv", "question\nwhat?\n"),
     ["generate", "--model", "model", "--input", "questions.csv", "--output", "answers.jsonl", "--device", "cpu"]),
    ("Scoring: model not found", DATA, None, [a.replace("model", "modle") if a == "model" else a for a in SCORE]),
    ("Rewards", None, None, None),
    ("Mistakes in a list of rewards", USAGE,
     all_of(write("answers.jsonl", lines(ANSWER)), write("rewards.yaml", "- numbr\n- {name: length, maximum: 9, marjin: 2}\n- {name: regex}\n")),
     [*REWARD, "--reward-config", "rewards.yaml"]),
    ("A reference that a record does not have", DATA, write("answers.jsonl", lines(ANSWER, ANSWER.replace("answer", "solution"))),
     [*REWARD, "--reward", "number"]),
    ("A program that dies", FAILED, write("answers.jsonl", lines(ANSWER)),
     [*REWARD, "--reward", "{name: program, command: echo no judge >&2; exit 3, restarts: 0}"]),
    ("A program that says no number", DATA, write("answers.jsonl", lines(ANSWER)),
     [*REWARD, "--reward", "{name: program, command: echo good}"]),
    ("The adapter", None, None, None),
    ("Adapter not found", DATA, None, [*GENERATE, "--adapter", "nowhere"]),
    ("Scoring: adapter not found", DATA, None, [*SCORE, "--adapter", "nowhere"]),
    ("Merging: adapter not found", DATA, None, ["merge", "--model", "model", "--adapter", "nowhere", "--output", "merged"]),
    ("Merging: model not found", DATA, trained(*TRAIN),
     ["merge", "--model", "modle", "--adapter", "run/adapter", "--output", "merged"]),
    ("A directory without an adapter", DATA, None, [*GENERATE, "--adapter", "model"]),
    ("An adapter with a truncated configuration", DATA, all_of(trained(*TRAIN), truncate("run/adapter/adapter_config.json", 1)),
     ["merge", "--adapter", "run/adapter", "--output", "merged"]),
    ("More layers in the files than in the configuration", DATA, edit("model/config.json", '"num_hidden_layers": 2', '"num_hidden_layers": 1'), GENERATE),
    ("An adapter for another model", DATA, all_of(trained(*TRAIN), other_model),
     ["generate", "--model", "other", "--adapter", "run/adapter", "--prompt", "hello", "--device", "cpu"]),
    ("Merging an adapter for another model", DATA, all_of(trained(*TRAIN), other_model),
     ["merge", "--model", "other", "--adapter", "run/adapter", "--output", "merged"]),
    ("Merging into an unknown format", USAGE, None,
     ["merge", "--model", "model", "--adapter", "run/adapter", "--output", "merged", "--format", "vlm"]),
    ("A type of merged weights, for an adapter alone", USAGE, trained(*TRAIN),
     ["merge", "--adapter", "run/adapter", "--output", "for-vllm", "--format", "vllm", "--dtype", "bf16"]),
    ("Writing another model's adapter for vLLM", DATA, all_of(trained(*TRAIN), other_model),
     ["merge", "--model", "other", "--adapter", "run/adapter", "--output", "for-vllm", "--format", "vllm"]),
    ("Writing an adapter with a whole module for vLLM", DATA, all_of(trained(*TRAIN), whole_head),
     ["merge", "--adapter", "run/adapter", "--output", "for-vllm", "--format", "vllm"]),
    ("A type of GGUF files, for safetensors", USAGE, trained(*TRAIN),
     ["merge", "--adapter", "run/adapter", "--output", "merged", "--dtype", "q4_k_m"]),
    ("Shards of a GGUF file", USAGE, trained(*TRAIN),
     ["merge", "--adapter", "run/adapter", "--output", "merged", "--format", "gguf", "--max-shard-size", "1GB"]),
    ("A GGUF file of a tokenizer that llama.cpp has no name for", DATA, all_of(trained(*TRAIN), odd_splits),
     ["merge", "--adapter", "run/adapter", "--output", "merged", "--format", "gguf"]),
    ("A GGUF file of a model that GGUF cannot express", DATA, all_of(trained(*TRAIN), dynamic_rope),
     ["merge", "--adapter", "run/adapter", "--output", "merged", "--format", "gguf"]),
    ("An adapter with a whole module for llama.cpp", DATA, all_of(trained(*TRAIN), whole_head),
     ["merge", "--adapter", "run/adapter", "--output", "lora", "--format", "lora-gguf"]),
    ("The run directory", None, None, None),
    ("A directory that cannot be written", None, all_of(write("file", ""), edit("run.yaml", "dir: run", "dir: file/run")), TRAIN),
    ("A run directory with results of something else", USAGE, edit("run.yaml", "dir: run", "dir: ."), TRAIN),
    ("A run directory that is a model's", USAGE, edit("run.yaml", "dir: run", "dir: model"), TRAIN),
    ("`--resume never` with existing checkpoints", USAGE, trained(*TRAIN), [*TRAIN, "--resume", "never"]),
    ("Resume from a missing directory", DATA, None, [*TRAIN, "--resume", "run/checkpoints/step-000100"]),
    ("Resume under another configuration", USAGE,
     trained(*TRAIN), [*TRAIN, "train.max_steps=2", "train.learning_rate=1e-3"]),
    ("Resume with other data", USAGE,
     all_of(trained(*TRAIN), write("train.jsonl", lines(*[GOOD_RECORD] * 5))), [*TRAIN, "train.max_steps=2"]),
    ("Resume after a change in config.json", USAGE,
     all_of(trained(*TRAIN), edit("model/config.json", '"rope_theta": 10000.0', '"rope_theta": 50000.0'),
            edit("model/config.json", '"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-06')), TRAIN),
    ("Resume after a bit of one matrix changed", USAGE, all_of(trained(*TRAIN), change_the_middle_of_a_matrix), TRAIN),
    ("Resume with another tokenizer", USAGE, all_of(trained(*TRAIN), swap_two_tokens), TRAIN),
    ("Resume with another chat template", USAGE, all_of(trained(*TRAIN), begin_template_with("hi ")), TRAIN),
    ("Resume with another backend", USAGE, trained(*TRAIN), [*TRAIN, "tuning.backend=bnb"]),
    ("No complete checkpoint", DATA, all_of(trained(*TRAIN), remove("run/checkpoints/step-000001/state.json")), TRAIN),
    ("Resume from a damaged checkpoint", DATA, all_of(trained(*TRAIN), damage_newest_checkpoint),
     [*TRAIN, "--resume", "run/checkpoints/step-000001"]),
]


def good_folder(folder, program):
    shutil.copytree(MODELS / "tied-gqa", folder / "model", ignore=shutil.ignore_patterns("reference.*"))
    (folder / "run.yaml").write_text(GOOD_YAML)
    (folder / "train.jsonl").write_text(lines(*[GOOD_RECORD] * 4))
    (folder / "sftrun").symlink_to(program)


def environment(folder):
    own = {k: v for k, v in os.environ.items() if not k.startswith("SFTRUN_")}
    return own | {"XDG_CONFIG_HOME": str(folder), "OMP_NUM_THREADS": "1"}


def answer(folder, command):
    """The error as printed, and the exit code."""
    done = subprocess.run([folder / "sftrun", *command], cwd=folder, env=environment(folder), capture_output=True, text=True,
                          timeout=TIMEOUT)
    text = done.stderr.replace(str(folder) + "/", "")
    return errors_document.printed_error(text) or "(no error printed)\n" + text, done.returncode


def run_case(program, title, wanted, spoil, command):
    if command is None:
        return f"### {title}\n", []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        good_folder(folder, program)
        if spoil:
            spoil(folder)
        text, code = answer(folder, command)
    problems = []
    if wanted is not None and code != wanted or wanted is None and code not in (USAGE, DATA):
        problems.append(f"{title}: exit code {code}, expected {wanted or 'that of a user error'}")
    if not text.startswith("error:"):
        problems.append(f"{title}: no error printed\n{text}")
    repeated = [line for line in text.splitlines() if line.startswith("error:") and text.count(line) > 1]
    if repeated:
        problems.append(f"{title}: printed twice: {repeated[0]}\n{text}")
    if re.search(r"terminate called|Aborted|core dumped|#\d+ 0x", text):
        problems.append(f"{title}: a stack trace\n{text}")
    shown = " ".join(a if re.fullmatch(r"[-\w./=]+", a) else f'"{a}"' for a in command)
    return f"**{title}** (exit {code})\n```\n$ sftrun {shown}\n{text}\n```\n", problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:  # the commands wait more than they compute
        found = list(pool.map(lambda case: run_case(arguments.sftrun.resolve(), *case), CASES))
    sections = [section for section, _ in found]
    problems = [problem for _, of_case in found for problem in of_case]
    parts = ["\n", *(section + "\n" for section in sections)]
    problems += errors_document.compare_or_write(BEGIN, END, parts, arguments.write)
    for problem in problems:
        print("FAIL", problem)
    print(f"{sum(c[3] is not None for c in CASES)} cases, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
