#!/usr/bin/env python3
"""What becomes of an adapter after its run: the bases it names, where it is said to load, and what merge writes of it.

    tests/smoke/merging.py --sftrun build/bin/sftrun

Standard library only.
requantised   `merge --dtype nf4|fp4|fp8|int8` writes, byte for byte, what `merge` and then `quantize` write
base          an adapter trained on a .gguf file names the model that the file says it was converted from, sftrun finds the file; else it
              names the file, and the run says what to do
readers       a run ends with where its adapter loads
next run      tuning.lora.init_from takes what --adapter takes: an adapter, a run, or one that has only checkpoints
modelfile     what merge writes for Ollama: a TEMPLATE, or a sentence why there is none
as trained    generate and score quantise a dense base as the adapter's training run did
convert       `merge` without an adapter: a fully trained model, from its run's directory, as a .gguf file, that as safetensors again
outputs       a .gguf file that --output names, what exists and --overwrite, --json
dense default a quantised base is merged dense, into the values that the adapter was trained on, and a line says how to get fewer bits
other base    merge, score and tuning.lora.init_from warn of a base that the adapter was not trained beside
report        merge measures what it changes where the adapter was trained beside a quantised base, or where it is asked to

--quick leaves out most of `requantised` and the commands whose like another check has.
"""

import argparse
import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
TIED, BNB, BNB_FP4, GGUF = MODELS / "tied-gqa", MODELS / "bnb-nf4", MODELS / "bnb-fp4", MODELS / "llama3-gguf/model-Q8_0.gguf"
TIMEOUT = 120  # s, of one command

RUN = """\
model: {{ name: {model}, max_seq_len: 64 }}
tuning: {{ mode: lora, lora: {{ r: 4, target_modules: [q_proj, v_proj, down_proj] }} }}
data: {{ train: train.jsonl, packing: false }}
train: {{ max_steps: 3, learning_rate: 0.02, warmup_steps: 0, batch_size: 2, global_batch_size: 2 }}
output: {{ dir: run }}
"""


class Case:
    """A folder with a run in it."""
    runs = {}  # of all cases, by model and settings: their folder, what they printed, the bytes of each file

    def __init__(self, sftrun, folder, failures, quick):
        self.sftrun, self.folder, self.failures, self.quick = sftrun, folder, failures, quick
        self.log = ""  # of the newest answer()
        (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"{n} and {n + 1} and {n + 2}"}) + "\n" for n in range(16)))

    def run(self, *words):
        done = subprocess.run([self.sftrun, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def refused(self, *words):
        """What is said by a command that ends with a usage error."""
        done = subprocess.run([self.sftrun, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        self.expect(f"refused: {' '.join(map(str, words))}", done.returncode == 2, f"exit code {done.returncode}: {done.stderr}")
        return done.stderr

    def answer(self, *words):
        """The one JSON object that a command prints on standard output."""
        done = subprocess.run([self.sftrun, *map(str, words), "--json"], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT, check=True)
        self.log = done.stderr
        return json.loads(done.stdout)

    def scores(self, model, *words):
        self.run("score", "--model", model, "--input", "train.jsonl", "--output", "scores.jsonl", "--device", "cpu", "--dtype", "fp32", *words)
        return [json.loads(line)["logprob"] for line in (self.folder / "scores.jsonl").read_text().splitlines()]

    def train(self, model, *settings):
        """What is printed. A run that another case had in its folder is copied."""
        (self.folder / "run.yaml").write_text(RUN.format(model=model))
        is_first = not (self.folder / "run").exists()
        if is_first and (model, settings) in self.runs:
            first, said, contents = self.runs[model, settings]
            for name, content in contents.items():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                here = content.replace(first, str(self.folder).encode()) if name.name == "run.json" else content
                (self.folder / name).write_bytes(here)
            return said
        said = self.run("train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1", *settings)
        if is_first and isinstance(model, pathlib.Path):  # else of a model in the folder
            files = [path for path in (self.folder / "run").rglob("*") if path.is_file()]
            self.runs[model, settings] = str(self.folder).encode(), said, {path.relative_to(self.folder): path.read_bytes() for path in files}
        return said

    def adapter_config(self):
        return json.loads((self.folder / "run/adapter/adapter_config.json").read_text())

    def expect(self, what, holds, detail=""):
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}")
        if not holds:
            self.failures.append(what)


def same_files(one, other):
    """What two directories differ in; merge's report is its own."""
    names = [{p.name for p in folder.iterdir()} - {"merge_report.json"} for folder in (one, other)]
    if names[0] != names[1]:
        return f"files {sorted(names[0] ^ names[1])}"
    return ", ".join(name for name in sorted(names[0]) if (one / name).read_bytes() != (other / name).read_bytes())


def check_requantised(case, name, model, settings, quantize, dtype="nf4"):
    """@param quantize flags for the second step of two"""
    case.train(model, *settings)
    shards = ["--max-shard-size", "20KB"]
    case.run("merge", "--adapter", "run/adapter", "--output", "dense", "--as-stored")
    case.run("quantize", "--model", "dense", "--method", dtype, "--output", "two", *quantize, *shards)
    case.run("merge", "--adapter", "run/adapter", "--output", "one", "--dtype", dtype, *shards)
    differ = same_files(case.folder / "one", case.folder / "two")
    case.expect(f"requantised, {name}: merge --dtype {dtype} is merge and quantize", not differ, differ)
    shards = list((case.folder / "one").glob("*.safetensors"))
    case.expect(f"requantised, {name}: several shards", len(shards) > 1, str(shards))
    case.run("score", "--model", "one", "--input", "train.jsonl", "--output", "scored.jsonl", "--device", "cpu")


def check_dense_modules(case):
    """A base in 4 bits says of which blocks its merged model is, and which modules stay dense; flags say it of others."""
    case.train(TIED)
    asked = ["--block-size", "32", "--no-double-quant", "--skip-modules", "layers.1.mlp"]
    case.run("merge", "--adapter", "run/adapter", "--output", "asked", "--dtype", "nf4", *asked)
    case.run("merge", "--adapter", "run/adapter", "--output", "in-between")
    case.run("quantize", "--model", "in-between", "--output", "asked-in-two", *asked)
    differ = same_files(case.folder / "asked", case.folder / "asked-in-two")
    case.expect("requantised, flags: merge --dtype nf4 is merge and quantize", not differ, differ)
    for words in (["--dtype", "fp8", "--block-size", "32"], ["--skip-modules", "down_proj"], ["--dtype", "nf4", "--skip-modules", "nowhere"]):
        refused = subprocess.run([case.sftrun, "merge", "--adapter", "run/adapter", "--output", "refused", *words], cwd=case.folder,
                                 capture_output=True, text=True, timeout=TIMEOUT)
        case.expect(f"requantised, flags: {words}", refused.returncode == 2 and not (case.folder / "refused").exists(), refused.stderr)
    shutil.rmtree(case.folder / "run")
    case.run("quantize", "--model", TIED, "--output", "base", "--block-size", "128", "--no-double-quant", "--skip-modules", "layers.0.mlp")
    flags = ["--block-size", "128", "--no-double-quant", "--skip-modules", "layers.0.mlp"]
    check_requantised(case, "a base in 4 bits with modules that are not", "base", [], flags, dtype="fp4")
    case.run("merge", "--adapter", "run/adapter", "--output", "other", "--dtype", "fp4", "--block-size", "32", "--skip-modules", "v_proj")
    case.run("quantize", "--model", "dense", "--method", "fp4", "--output", "other-in-two", "--block-size", "32", "--no-double-quant",
             "--skip-modules", "layers.0.mlp", "--skip-modules", "v_proj")
    differ = same_files(case.folder / "other", case.folder / "other-in-two")
    case.expect("requantised, flags over a base in 4 bits: what they do not say is the base's", not differ, differ)


def with_keys(content, keys):
    """A GGUF file with more metadata. What is put in is a multiple of the alignment long."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def entry(key, value):
        return text(key) + struct.pack("<I", 8) + text(value)

    added = b"".join(entry(key, value) for key, value in keys.items())
    added += entry("test.padding", " " * (-(len(added) + len(entry("test.padding", ""))) % 32))
    (count,) = struct.unpack_from("<Q", content, 16)
    return content[:16] + struct.pack("<Q", count + len(keys) + 1) + added + content[24:]


def check_named_source(case):
    source = {"general.source.url": "https://huggingface.co/owner/original"}
    (case.folder / "model.gguf").write_bytes(with_keys(GGUF.read_bytes(), source))
    said = case.train("model.gguf")
    config = case.adapter_config()
    case.expect("base: the model that the file was converted from", config["base_model_name_or_path"] == "owner/original", str(config))
    case.expect("base: said", "PEFT: loads directly, over owner/original, from which model.gguf was converted according to its metadata" in said, said)
    case.run("score", "--adapter", "run/adapter", "--input", "train.jsonl", "--output", "by-run.jsonl", "--device", "cpu")
    case.run("score", "--model", "model.gguf", "--adapter", "run/adapter", "--input", "train.jsonl", "--output", "by-name.jsonl", "--device", "cpu")
    scores = [(case.folder / name).read_text() for name in ("by-run.jsonl", "by-name.jsonl")]
    case.expect("base: an adapter finds the file of its run", scores[0] == scores[1])
    if case.quick:
        return
    checkpoint = sorted((case.folder / "run/checkpoints").iterdir())[-1]
    case.run("score", "--adapter", checkpoint, "--input", "train.jsonl", "--output", "by-checkpoint.jsonl", "--device", "cpu")


def check_unnamed_source(case):
    shutil.copy(GGUF, case.folder / "model.gguf")
    said = case.train("model.gguf")
    case.expect("base: the file itself", case.adapter_config()["base_model_name_or_path"] == str((case.folder / "model.gguf").resolve()),
                str(case.adapter_config()))
    case.expect("base: what to do is said", "so set base_model_name_or_path in run/adapter/adapter_config.json" in said, said)


def check_readers(case):
    """The commands that a run ends with can be run as they are."""
    said = case.train(TIED)
    case.expect("readers: PEFT and vLLM", "PEFT: loads directly" in said and "vLLM: loads directly" in said, said)
    commands = re.findall(r"`sftrun (merge [^`]*)`", said)
    case.expect("readers: a command for llama.cpp", [c.split()[2] for c in commands] == ["lora-gguf"], said)
    for command in commands:
        case.run(*command.split())
    shutil.rmtree(case.folder / "run")
    said = case.train(TIED, "tuning.lora.dora=true", "tuning.lora.r=24")
    case.expect("readers: DoRA", "vLLM: not as an adapter (DoRA)" in said and "llama.cpp's adapters do not support DoRA; merge it" in said, said)
    shutil.rmtree(case.folder / "run")
    said = case.train(TIED, "tuning.mode=full")
    case.expect("readers: of a whole model nothing", "PEFT" not in said and "vLLM" not in said, said)


def check_modelfile(case):
    """Of the merged model and of the adapter alone; of a template that is no function of whose turn it is, none."""
    said = case.train(GGUF)
    case.expect("base: the file itself", case.adapter_config()["base_model_name_or_path"] == str(GGUF), str(case.adapter_config()))
    case.expect("base: what to do is said", "so set base_model_name_or_path in run/adapter/adapter_config.json" in said, said)
    merge = ["merge", "--adapter", "run/adapter", "--model", GGUF, "--sample", "0"]
    said = case.run(*merge, "--output", "merged", "--format", "gguf")
    case.run(*merge[:-2], "--output", "lora", "--format", "lora-gguf")
    merged, lora = ((case.folder / name / "Modelfile").read_text() for name in ("merged", "lora"))
    template = merged[merged.index("TEMPLATE"):]
    case.expect("report: none where none is wanted", not (case.folder / "merged/merge_report.json").exists())
    case.expect("modelfile: how to use it", "Ollama: `ollama create merged -f merged/Modelfile`" in said, said)
    case.expect("modelfile: a TEMPLATE", "FROM ./merged-merged.gguf\nTEMPLATE \"\"\"" in merged and "{{ .Content }}" in template, merged)
    case.expect("modelfile: of the adapter", f"FROM {GGUF}\nADAPTER ./lora-lora.gguf\n{template}" in lora, lora)
    (case.folder / "run/adapter/chat_template.jinja").write_text("{{ strftime_now('%Y') }}{% for m in messages %}{{ m.role + m.content }}{% endfor %}")
    said = case.run(*merge, "--output", "dated", "--format", "gguf")
    dated = (case.folder / "dated/Modelfile").read_text()
    case.expect("modelfile: none, and why", "it prints the current date" in said and dated.startswith("# There is no TEMPLATE") and "\nTEMPLATE" not in dated, said + dated)


def check_next_run(case):
    """A run starts from an earlier one, or from as far as that has come."""
    def start_from(name, output):
        said = case.train(TIED, f"tuning.lora.init_from={name}", f"output.dir={output}")
        return re.search(r"adapter initialised from (\S+)", said).group(1)

    case.train(TIED)
    checkpoint = sorted((case.folder / "run/checkpoints").iterdir())[-1]
    case.expect("next run: from the adapter of a run", start_from("run", "second") == "run/adapter")
    shutil.move(case.folder / "run/adapter", case.folder / "moved")
    case.expect("next run: from the newest checkpoint", start_from("run", "third") == f"run/checkpoints/{checkpoint.name}")
    if not case.quick:  # other-base has it
        case.expect("next run: from an adapter", start_from("moved", "fourth") == "moved")
    losses = [[json.loads(line)["loss"] for line in (case.folder / name / "metrics.jsonl").read_text().splitlines()]
              for name in ("run", "second", "third")]
    case.expect("next run: with the trained adapter", losses[1] == losses[2] and losses[1][0] < losses[0][0], str(losses))
    scores = []
    for adapter in ("run", "moved"):
        case.run("score", "--adapter", adapter, "--input", "train.jsonl", "--output", "scores.jsonl", "--device", "cpu")
        scores.append((case.folder / "scores.jsonl").read_text())
    case.expect("next run: score takes a run without a result", scores[0] == scores[1])


def check_base_as_trained(case):
    """generate and score hold a dense base as the adapter's run did, also where the adapter lies elsewhere."""
    def score(*words):
        said = case.run("score", "--input", "train.jsonl", "--output", "scores.jsonl", "--device", "cpu", *words)
        return [json.loads(line)["logprob"] for line in (case.folder / "scores.jsonl").read_text().splitlines()], said

    case.train(TIED, "tuning.mode=qlora", "tuning.quant_block_size=32")
    case.run("quantize", "--model", TIED, "--output", "four-bits", "--block-size", "32")
    shutil.copytree(case.folder / "run/adapter", case.folder / "moved")
    trained, said = score("--adapter", "moved")
    case.expect("as trained: said", "nf4 in blocks of 32 with quantised scales, as in the adapter's training run" in said, said)
    case.expect("as trained: what quantize writes", trained == score("--adapter", "moved", "--model", "four-bits")[0])
    stored, said = score("--adapter", "moved", "--as-stored")
    case.expect("as stored", stored != trained and "as the adapter's run" not in said, said)
    (case.folder / "moved/sftrun_base.json").unlink()
    case.expect("an adapter that says nothing", score("--adapter", "moved")[0] == stored)
    answers = [case.run("generate", "--adapter", "run/adapter", "--prompt", "1 and", "--no-chat", "--max-new-tokens", "8", "--device", "cpu", *words)
               for words in ([], ["--as-stored"])[:1 if case.quick else 2]]
    case.expect("as trained: generate", "as in the adapter's training run" in answers[0] and "as in the adapter's" not in "".join(answers[1:]), str(answers))


def difference(one, other):
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def check_convert(case):
    """A model alone: what full training wrote, from its run's directory, and back again."""
    case.train(TIED, "tuning.mode=full")
    trained = case.scores("run")
    case.expect("convert: training changed the model", difference(trained, case.scores(TIED)) > 1e-3)
    written = case.answer("merge", "--model", "run", "--output", "full.gguf", "--dtype", "f32")
    file = case.folder / "full.gguf"
    expected = {"path": "full.gguf", "format": "gguf", "dtype": "f32", "bytes": file.stat().st_size, "measured": None}
    case.expect("convert: a run as GGUF", {key: written[key] for key in expected} == expected and written["types"] == {"F32": written["tensors"]}, str(written))
    case.expect("convert: a file and nothing beside it", sorted(p.name for p in case.folder.glob("full*")) == ["full.gguf"])
    case.expect("convert: the same scores", difference(case.scores("full.gguf"), trained) < 1e-3)
    case.run("merge", "--model", "full.gguf", "--output", "back", "--dtype", "f32")
    case.expect("convert: as safetensors again", difference(case.scores("back"), trained) < 1e-3)
    if not case.quick:
        case.run("merge", "--model", "run/model", "--output", "half", "--dtype", "f16")
        case.expect("convert: another type", difference(case.scores("half"), trained) < 0.1)
        case.run("merge", "--model", BNB, "--output", "unpacked", "--dtype", "f32")
        case.expect("convert: 4 bits unpacked", difference(case.scores("unpacked"), case.scores(BNB)) < 1e-3)
    (case.folder / "a").mkdir(), (case.folder / "b").mkdir()
    case.run("merge", "--model", "run", "--output", "a/m.gguf", "--dtype", "q8_0")
    quantised = case.answer("quantize", "--model", "run", "--method", "q8_0", "--output", "b/m.gguf")
    same = (case.folder / "a/m.gguf").read_bytes() == (case.folder / "b/m.gguf").read_bytes()
    case.expect("convert: quantize writes GGUF, too", same and quantised["dtype"] == "f16", str(quantised))  # its rows are no whole blocks
    case.expect("convert: nothing to do", "is a GGUF file already" in case.refused("merge", "--model", "full.gguf", "--output", "again.gguf"))
    case.expect("convert: adapters alone need one", "requires --adapter" in case.refused("merge", "--model", TIED, "--output", "x", "--format", "lora-gguf"))
    case.expect("convert: nothing is measured", "there is no --adapter" in case.refused("merge", "--model", TIED, "--output", "x", "--sample", "4"))


def check_outputs(case):
    case.train(TIED)
    merge = ["merge", "--adapter", "run/adapter"]
    said = case.answer(*merge, "--output", "new/mine.gguf", "--sample", "2")
    case.expect("outputs: the file that is named", (case.folder / "new/mine.gguf").is_file() and [p.name for p in (case.folder / "new").iterdir()] == ["mine.gguf"])
    case.expect("outputs: as JSON", said["format"] == "gguf" and said["measured"]["sequences"] == 2, str(said))
    if not case.quick:
        case.run(*merge, "--output", "lora.gguf", "--format", "lora-gguf")
        case.expect("outputs: an adapter as a file", (case.folder / "lora.gguf").read_bytes()[:4] == b"GGUF")
    dtypes = {}
    for words in (["--output", "vllm", "--format", "vllm"], ["--output", "lora", "--format", "lora-gguf"], ["--output", "dense"],
                  ["--output", "four", "--dtype", "nf4"]):
        said = case.answer(*merge, *words)
        dtypes[words[1]] = said["dtype"]
        weights = [p for p in (case.folder / words[1]).glob("*") if p.suffix in (".safetensors", ".gguf")]
        counted = (said["bytes"], said["tensors"]) == (sum(p.stat().st_size for p in weights), sum(said["types"].values()))
        case.expect(f"outputs: as JSON, {words[1:]}", counted and said["path"].startswith(words[1]) and said["measured"] is None, str(said))
    case.expect("outputs: dtype of what is dense and in 4 bits", (dtypes["dense"], dtypes["four"]) == ("f32", "nf4"), str(dtypes))
    before = (case.folder / "new/mine.gguf").read_bytes()
    case.expect("outputs: a file stays", "new/mine.gguf exists" in case.refused(*merge, "--output", "new/mine.gguf", "--dtype", "q8_0"))
    case.expect("outputs: unchanged", (case.folder / "new/mine.gguf").read_bytes() == before)
    case.run(*merge, "--output", "new/mine.gguf", "--dtype", "q8_0", "--overwrite")
    case.expect("outputs: replaced", len((case.folder / "new/mine.gguf").read_bytes()) < len(before))
    (case.folder / "dense/left.txt").write_text("of before")
    case.expect("outputs: a directory stays", "--overwrite" in case.refused(*merge, "--output", "dense") and (case.folder / "dense/left.txt").exists())
    case.run(*merge, "--output", "dense", "--overwrite")
    left = sorted(p.name for p in case.folder.glob("dense*"))
    case.expect("outputs: a directory replaced", left == ["dense"] and not (case.folder / "dense/left.txt").exists(), str(left))
    case.run("quantize", "--model", TIED, "--output", "four", "--overwrite")
    (case.folder / "notes").mkdir()
    (case.folder / "notes/a.txt").write_text("not a model")
    case.expect("outputs: other directories are not replaced", "is not replaced" in case.refused(*merge, "--output", "notes", "--overwrite"))
    case.expect("outputs: what is read is not removed", "would remove the input" in case.refused(*merge, "--output", "run/adapter", "--overwrite"))
    case.refused(*merge, "--output", "mine.gguf", "--format", "safetensors")


def check_dense_default(case):
    """By default the dequantised base, which the adapter was trained beside, dense."""
    case.train(TIED, "tuning.mode=qlora")
    with_adapter = case.scores(TIED, "--adapter", "run/adapter")
    said = case.run("merge", "--adapter", "run/adapter", "--output", "merged")
    dtype = json.loads((case.folder / "merged/config.json").read_text())
    case.expect("dense default: not quantised", "quantization_config" not in dtype, str(dtype))
    case.expect("dense default: said", "the base, dequantised from nf4" in said and "the merged model is fp32" in said and "--dtype nf4, fp4, fp8, int8 stores fewer bits" in said, said)
    case.expect("dense default: the adapter over its base", difference(case.scores("merged"), with_adapter) < 1e-3)
    report = json.loads((case.folder / "merged/merge_report.json").read_text())
    case.expect("dense default: no difference", report["kl_divergence"] < 1e-9, str(report))
    if not case.quick:
        case.run("merge", "--adapter", "run/adapter", "--output", "own.gguf", "--dtype", "f32")
        case.expect("dense default: as GGUF", difference(case.scores("own.gguf"), with_adapter) < 1e-3)
    said = case.run("merge", "--adapter", "run/adapter", "--output", "own", "--as-stored")
    report = json.loads((case.folder / "own/merge_report.json").read_text())
    case.expect("dense default: the base's own values on request", report["kl_divergence"] > 1e-6 and "dequantised from" not in said, str(report) + said)
    said = case.run("merge", "--adapter", "run/adapter", "--output", "four-bits", "--dtype", "nf4")
    case.run("merge", "--adapter", "run/adapter", "--output", "four-bits-own", "--dtype", "nf4", "--as-stored")
    differ = same_files(case.folder / "four-bits", case.folder / "four-bits-own")
    case.expect("dense default: 4 bits are made of the base's own values", not differ and "merging into the base's original values" in said, differ + said)
    shutil.rmtree(case.folder / "run")
    case.train(BNB)
    with_adapter = case.scores(BNB, "--adapter", "run/adapter")
    case.run("merge", "--adapter", "run/adapter", "--output", "of-bnb", "--dtype", "f32")
    case.expect("dense default: a base in 4 bits", difference(case.scores("of-bnb"), with_adapter) < 1e-3)
    if not case.quick:
        said = case.answer("merge", "--adapter", "run/adapter", "--output", "of-bnb-auto")
        case.expect("dense default: a base in 4 bits with auto", said["dtype"] in ("f32", "bf16") and set(said["types"]) <= {"F32", "BF16"}, str(said))
    shutil.rmtree(case.folder / "run")
    case.run("quantize", "--model", GGUF, "--method", "q4_0", "--output", "base.gguf")
    case.train("base.gguf")
    report = case.answer("merge", "--adapter", "run/adapter", "--output", "merged.gguf")
    case.expect("dense default: a GGUF file in 4 bits", "the base was in Q4_0; the merged model is Q8_0 where the adapter changes it" in case.log, case.log)
    case.expect("dense default: little is lost", report["types"].keys() >= {"Q4_0", "Q8_0"} and report["measured"]["kl_divergence"] < 1e-3, str(report))


def scale_norms(model, file):
    """Another model of the same shape: its norms, stored as F32, times 1.25."""
    content = bytearray((model / file).read_bytes())
    [size] = struct.unpack("<Q", content[:8])
    for name, entry in json.loads(content[8 : 8 + size]).items():
        if name.endswith("norm.weight"):
            first, last = (8 + size + offset for offset in entry["data_offsets"])
            count = (last - first) // 4
            content[first:last] = struct.pack(f"<{count}f", *(1.25 * value for value in struct.unpack(f"<{count}f", content[first:last])))
    (model / file).write_bytes(content)


def check_other_base(case):
    """A base of the same shape that the adapter was not trained beside is warned of, a copy of its own in another form is not."""
    warning = "was trained on another base model"
    case.train(TIED)
    shutil.copytree(TIED, case.folder / "other")
    scale_norms(case.folder / "other", "model.safetensors")
    shutil.copytree(case.folder / "run/adapter", case.folder / "moved")
    case.run("quantize", "--model", TIED, "--output", "four-bits")
    case.run("merge", "--model", TIED, "--adapter", "moved", "--output", "file", "--format", "gguf", "--dtype", "q8_0")

    case.run("merge", "--model", TIED, "--adapter", "moved", "--output", "merged")  # whose norms are the same

    def said(base, num_commands):
        commands = [lambda: case.run("merge", "--model", base, "--adapter", "moved", "--output", f"again-{len(list(case.folder.iterdir()))}"),
                    lambda: case.run("score", "--model", base, "--adapter", "moved", "--input", "train.jsonl", "--output", "scores.jsonl"),
                    lambda: case.train(base, "tuning.lora.init_from=moved", f"output.dir=run-{len(list(case.folder.iterdir()))}")]
        return [command() for command in commands[:num_commands if case.quick else 3]]

    for name, is_other, num_commands in (("other", True, 3), ("merged", True, 1), ("four-bits", False, 2), (TIED, False, 1)):
        lines = said(name, num_commands)
        case.expect(f"other base: {', '.join(('merge', 'score', 'init_from')[:len(lines)])} over {name}",
                    all((warning in line) == is_other for line in lines), str(lines))
    merged = next((case.folder / "file").glob("*.gguf"))
    case.expect("other base: a GGUF file has the norms", warning not in case.run("merge", "--model", merged, "--adapter", "moved", "--output", "from-file"))


def check_readers_of_quantised_bases(case):
    said = case.train(TIED, "tuning.mode=qlora")
    command = f"sftrun quantize --model {TIED} --method nf4 --output {TIED}-nf4"
    case.expect("readers: over the base in nf4", f"PEFT: loads directly, over the base in nf4, written by `{command}`" in said, said)
    shutil.rmtree(case.folder / "run")
    said = case.train(BNB, "tuning.quant=nf4", "tuning.mode=qlora")
    case.expect("readers: over files in nf4", re.search(r"PEFT: loads directly$", said, re.MULTILINE), said)


def check_report(case):
    def merge(output, *words):
        said = case.run("merge", "--adapter", "run/adapter", "--output", output, "--device", "cpu", *words)
        report = case.folder / output / "merge_report.json"
        return said, json.loads(report.read_text()) if report.exists() else None

    def train(*settings):
        shutil.rmtree(case.folder / "run", ignore_errors=True)
        case.train(TIED, *settings)

    if not case.quick:
        train("tuning.mode=lora")
        said, report = merge("dense")
        case.expect("report: none of a dense base", report is None and "--device has no effect: nothing is measured" in said, said)
        report = merge("dense-asked", "--sample", "4")[1]
        close = abs(report["kl_divergence"]) < 1e-9 and abs(report["loss_adapter"] / report["loss_merged"] - 1) < 1e-5
        case.expect("report: of a dense base where it is asked for", report["sequences"] == 4 and close, str(report))

    (case.folder / "val.jsonl").write_text("".join(json.dumps({"text": f"{n} or {n + 7}"}) + "\n" for n in range(6)))
    train("tuning.mode=qlora", "data.val=val.jsonl")
    said, report = merge("quantised", "--as-stored")
    case.expect("report: validation data", (report["data"], report["sequences"], report["trained_on"]["quant"]) == ("val.jsonl", 6, "nf4"), str(report))
    case.expect("report: said", "of the adapter over its base in nf4" in said and f"{report['loss_merged']:.4f} merged" in said, said)
    if report["loss_merged"] - report["loss_adapter"] >= 0.02:
        case.expect("report: the way out", "merge into the values that it was trained on, without --as-stored" in said, said)
    again = merge("again", "--dtype", "nf4")[1]
    case.expect("report: the same adapter, merged otherwise",
                again["loss_adapter"] == report["loss_adapter"] and again["kl_divergence"] != report["kl_divergence"] > 0, str(again))
    case.run("quantize", "--model", TIED, "--output", "four-bits")
    own = merge("own-values", "--model", "four-bits", "--dtype", "f32")[1]
    case.expect("report: merged into what it was trained on", own["kl_divergence"] < 1e-9, str(own))
    if not case.quick:
        case.expect("report: of a file", merge("of-a-file", "--data", "train.jsonl", "--sample", "3")[1]["data"] == "train.jsonl")
    (case.folder / "val.jsonl").rename(case.folder / "gone.jsonl")
    said, report = merge("without-data")
    case.expect("report: data that are gone are warned of", report is None and "not measured" in said and "val.jsonl" in said and "--data FILE" in said, said)

    shutil.copytree(case.folder / "run/adapter", case.folder / "moved")
    held = json.loads((case.folder / "moved/sftrun_base.json").read_text())
    stamped = json.loads((case.folder / "run/run.json").read_text())["base"]
    checkpoint = sorted((case.folder / "run/checkpoints").iterdir())[-1]
    case.expect("report: an adapter says how its base was held", held["form"] == "nf4" and held["tuning"]["quant"] == "nf4", str(held))
    case.expect("report: as run.json and checkpoints do", held == json.loads((checkpoint / "sftrun_base.json").read_text())
                and stamped == {key: value for key, value in held.items() if key not in ("norms", "layout")}, str(stamped))
    held_in = "base precision: nf4 in blocks of 64 with quantised scales"

    def merge_moved(output, *words):
        said = case.run("merge", "--adapter", "moved", "--output", output, "--device", "cpu", *words)
        return said, case.folder / output / "merge_report.json"

    said, report = merge_moved("moved-merged")
    case.expect("report: outside its run data must be named", not report.exists() and "not measured" in said and held_in in said, said)
    (case.folder / "gone.jsonl").rename(case.folder / "val.jsonl")
    inside, outside = merge("inside")[1], json.loads(merge_moved("outside", "--data", "val.jsonl")[1].read_text())
    del inside["trained_on"]["model"], outside["trained_on"]["model"]
    case.expect("report: the same inside and outside the run", inside == outside, f"{inside} {outside}")
    if not case.quick:
        own = json.loads(merge_moved("outside-own", "--data", "val.jsonl", "--model", "four-bits", "--dtype", "f32")[1].read_text())
        case.expect("report: outside the run, merged into what it was trained on", own["kl_divergence"] < 1e-9, str(own))
    held["fingerprint"] = "0"
    (case.folder / "moved/sftrun_base.json").write_text(json.dumps(held))
    said, report = merge_moved("other-base", "--data", "val.jsonl")
    case.expect("report: another base is told", not report.exists() and "in blocks of 64 with quantised scales) was not found" in said, said)

    train("tuning.mode=qlora", "data.val_split=5")
    report = merge("split")[1]
    case.expect("report: what was split off", report["sequences"] == 5 and "part for validation" in report["data"], str(report))

    if case.quick:
        return
    shutil.copy(GGUF, case.folder / "model.gguf")
    shutil.rmtree(case.folder / "run")
    case.train("model.gguf")
    report = merge("gguf", "--format", "gguf", "--dtype", "f16")[1]
    case.expect("report: a GGUF file's blocks", report["trained_on"]["quant"] == "Q8_0" and report["kl_divergence"] < 1e-4, str(report))


CHECKS = {
    "directory": lambda case: check_requantised(case, "a directory", TIED, [], []),
    "qlora": lambda case: check_requantised(case, "trained in nf4", TIED, ["tuning.mode=qlora"], []),
    "head": lambda case: check_requantised(case, "a head that parts", TIED, ["tuning.lora.modules_to_save=[lm_head]"], [], dtype="fp4"),
    "gguf": lambda case: check_requantised(case, "a GGUF file", GGUF, [], []),
    "fp8": lambda case: check_requantised(case, "trained in fp8", TIED, ["tuning.quant=fp8"], [], "fp8"),
    "int8": lambda case: check_requantised(case, "a base in int8", MODELS / "bnb-int8", [], [], "int8"),
    "bnb": lambda case: check_requantised(case, "a base in nf4", BNB, [], []),
    "bnb-fp4": lambda case: check_requantised(case, "a base in fp4", BNB_FP4, [], ["--no-double-quant"], dtype="fp4"),
    "dense-modules": check_dense_modules,
    "named-source": check_named_source,
    "unnamed-source": check_unnamed_source,
    "readers": check_readers,
    "readers-quantised": check_readers_of_quantised_bases,
    "modelfile": check_modelfile,
    "next-run": check_next_run,
    "base-as-trained": check_base_as_trained,
    "other-base": check_other_base,
    "report": check_report,
    "convert": check_convert,
    "outputs": check_outputs,
    "dense-default": check_dense_default,
}

# What --quick leaves out: bases of which a merge is quantised again, like those that it keeps; `modelfile` trains on an unnamed source, too.
SLOW = ("directory", "qlora", "gguf", "fp8", "int8", "bnb", "bnb-fp4", "unnamed-source")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--only", nargs="+", default=CHECKS, choices=CHECKS)
    parser.add_argument("--quick", action="store_true", help="without most bases that are quantised again, and fewer commands, as in `make test`")
    arguments = parser.parse_args()
    failures = []
    for name in [name for name in arguments.only if not (arguments.quick and name in SLOW)]:
        with tempfile.TemporaryDirectory() as folder:
            CHECKS[name](Case(arguments.sftrun.resolve(), pathlib.Path(folder).resolve(), failures, arguments.quick))
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
