#!/usr/bin/env python3
"""The command line as users meet it: help, mistakes, exit codes, requests to the engine, and how soon it answers.

    tests/app/cli_test.py --sftrun build/bin/sftrun --fake-engine build/lib/libapp_fake_engine.so \
        --engine-without-torch build/lib/libapp_engine_without_torch.so --fake-torch build/tests/app/libtorch_cpu.so

Standard library only. The engine is a stand-in that prints what it is asked (fake_engine.cpp).
"""

import argparse
import json
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
GGUF = ROOT / "tests/data/models/llama3-gguf/model-Q8_0.gguf"
DONE, USAGE, DATA, FAILED, FAKE_ENGINE_CODE = 0, 2, 3, 5, 42
FAKE_TORCH_CODE = 1
COMMANDS = ["train", "generate", "eval", "score", "reward", "tokenize", "preview", "merge", "quantize", "bench", "download", "upload", "gpu-info",
            "memory-check", "report", "doctor", "config"]
RUN_YAML = "model: { name: model }\ndata: { train: train.jsonl }\n"
ADAPTER_CONFIG = {"peft_type": "LORA", "base_model_name_or_path": "model", "r": 8, "target_modules": ["q_proj"]}

arguments = None


def children_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "model").mkdir()
        (self.folder / "adapter").mkdir()
        self.write("adapter/adapter_config.json", json.dumps(ADAPTER_CONFIG))
        self.write("run.yaml", RUN_YAML)
        self.write("train.jsonl", '{"text": "hello"}\n')
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("SFTRUN_")}
        self.environment["XDG_CONFIG_HOME"] = str(self.folder)
        self.environment["SFTRUN_ENGINE"] = str(arguments.fake_engine)

    def write(self, name, text):
        (self.folder / name).write_text(text)

    def sftrun(self, *words):
        return subprocess.run([str(arguments.sftrun), *words], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=60)

    def expect(self, code, parts, *words):
        done = self.sftrun(*words)
        self.assertEqual(done.returncode, code, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr if code in (USAGE, DATA, FAILED) else done.stdout)
        return done

    def request(self, *words, of=None):
        """What the engine is asked.   @param of its command, where that is another than ours"""
        done = self.sftrun(*words)
        self.assertIn(done.returncode, (DONE, FAKE_ENGINE_CODE), done.stderr)
        command, _, request = done.stdout.partition(" ")
        self.assertEqual(command, of or words[0])
        return json.loads(request)

    # ---- Help and versions

    def test_help_names_every_command(self):
        for words in [], ["--help"], ["-h"]:
            done = self.expect(DONE, COMMANDS + ["Exit codes"], *words)
            self.assertEqual(done.stderr, "")

    def test_every_command_documents_its_flags_with_an_example(self):
        for command in COMMANDS[:-1]:
            self.expect(DONE, ["Usage: sftrun " + command, "Example:\n  sftrun " + command, "--help"], command, "--help")
        for action in ["init", "check", "show", "reference", "schema", "import"]:
            self.expect(DONE, ["Example:\n  sftrun config " + action], "config", action, "--help")
        self.expect(DONE, ["--nproc-per-node auto|N", "[auto]", "--max-restarts N", "--resume auto|never|DIR"], "train", "--help")
        self.expect(DONE, ["--max-new-tokens N", "[256]", "--chat,--no-chat"], "generate", "--help")

    def test_version_reads_libtorchs_without_loading_it(self):
        torch = self.folder / "site" / "torch"
        (torch / "lib").mkdir(parents=True)
        (torch / "lib" / "libtorch_cpu.so").touch()
        (torch / "version.py").write_text("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n")
        (torch.parent / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
        self.environment["LD_LIBRARY_PATH"] = str(torch / "lib")
        lines = self.expect(DONE, [], "--version").stdout.splitlines()
        versions = dict(line.split(None, 1) for line in lines)
        self.assertEqual(versions["LibTorch"], f"2.11.0+cu130 ({torch})")
        self.assertEqual(versions["CUDA"], "13.0")
        self.assertEqual(versions["NCCL"], "2.28.9")
        for library in ["sftrun", "yaml-cpp", "CLI11", "spdlog", "fmt", "nlohmann-json"]:
            self.assertRegex(versions[library], r"^\d+\.\d+")

    # ---- Mistakes

    def test_unknown_words_name_the_nearest(self):
        self.expect(USAGE, ["unknown command `sftrun trian`", "did you mean `sftrun train`?"], "trian")
        self.expect(USAGE, ["unknown command `sftrun config chek`", "did you mean `sftrun config check`?"], "config", "chek")
        for word, meant in {"export": "merge", "finetune": "train", "sft": "train", "infer": "generate", "inference": "generate",
                            "predict": "generate", "quantise": "quantize", "merge_lora": "merge", "check": "config check",
                            "version": "--version", "evaluate": "eval"}.items():
            self.expect(USAGE, [f"unknown command `sftrun {word}`", f"did you mean `sftrun {meant}`?"], word)
        self.expect(USAGE, ["did you mean `sftrun config check`?"], "config", "validate")
        self.expect(USAGE, ["unknown flag --confg", "did you mean --config?"], "train", "--confg", "run.yaml")
        self.expect(USAGE, ["unknown flag --max-new-token", "did you mean --max-new-tokens?"], "generate", "--max-new-token=3")
        self.expect(USAGE, ["unknown flag --lr", "train.learning_rate=VALUE"], "train", "--lr", "1e-4")
        self.expect(USAGE, ["unknown flag --report-to", "output.report_to=VALUE"], "train", "--report_to", "wandb")
        self.expect(USAGE, ["unknown flag --push-to-hub", "upload the result"], "train", "--push_to_hub")
        self.expect(USAGE, ["unknown flag --batch-size", "train.batch_size=VALUE"], "train", "--batch_size=4")
        self.expect(USAGE, ["unknown flag --train.batch_size", "train.batch_size=VALUE"], "train", "--train.batch_size=4")
        for words in ["trian", "--help"], ["help", "trian"], ["trian", "--help", "--json"]:
            self.expect(USAGE, ["unknown command `sftrun trian`", "did you mean `sftrun train`?"], *words)
        self.expect(USAGE, ["unknown command `sftrun config chek`"], "config", "chek", "--help")
        self.expect(USAGE, ["unexpected argument `more`"], "gpu-info", "more")
        self.expect(USAGE, ["--model or --adapter"], "chat")
        self.expect(USAGE, ["--port", "`65536` is above the largest value, 65535"], "serve", "--model", "model", "--port", "65536")
        self.expect(USAGE, ["--adapter =x", "NAME=ADAPTER"], "serve", "--adapter", "=x")
        self.expect(DATA, ["model is a directory", "name a model's config.json"], "bench", "--arch", "model")
        self.expect(DATA, ["x", "--adapter on the command line"], "serve", "--adapter", "name=./x")
        self.expect(USAGE, ["two models are named same"], "serve", "--model", "model", "--adapter", "same=adapter", "--served-model-name", "same")
        for names in ["--served-model-name", "a", "b"], ["--served-model-name", "a", "--served-model-name", "b"]:
            self.expect(USAGE, ["--served-model-name takes one name, not 2", "--adapter NAME=ADAPTER"], "serve", "--model", "model", *names)
        for flag in "--deepspeed", "--accelerate-config":
            self.expect(DATA, [f"no such file or directory: x", f"{flag} on the command line"], "train", "--config", "run.yaml", flag, "x")

    def test_suggested_words_are_accepted(self):
        merge = ["merge", "--adapter", "adapter", "--output"]
        for asked in "q4", "Q4_K":
            self.expect(USAGE, [f"`{asked.lower()}` is not one of auto, f32", "did you mean `q4_k_m`?"], *merge, "m.gguf", "--dtype", asked)
            self.expect(USAGE, [f"`{asked.lower()}` is not one of auto, bf16", "did you mean `q4_k_m`? For that write --format gguf"],
                        *merge, "m", "--dtype", asked)
        self.expect(USAGE, ["did you mean `nf4`?\n"], *merge, "m", "--dtype", "nf")
        self.expect(USAGE, ["did you mean `nf4`? For that name a directory as --output"], *merge, "m.gguf", "--dtype", "nf")
        self.expect(USAGE, ["`small` is not one of", "write one of them"], *merge, "m", "--dtype", "small")
        quantize = ["quantize", "--model", "model", "--output"]
        self.expect(USAGE, ["`q8` is not one of nf4", "did you mean `q8_0`?"], *quantize, "m", "--method", "q8")
        done = self.expect(USAGE, ["`nf` is not one of q8_0", "write one of them"], *quantize, "m.gguf", "--method", "nf")
        self.assertNotIn("nf4", done.stderr)
        self.expect(USAGE, ["unknown flag --worker-reques", "lists every flag"], "score", "--worker-reques", "x")
        self.expect(USAGE, ["`trainn` is not of the form", "write train."], "train", "--config", "run.yaml", "--dry-run", "trainn")

    def test_help_is_no_guess_for_a_flag(self):
        self.expect(USAGE, ["unknown flag --hepl", "`sftrun report --help` lists every flag"], "report", "run", "--hepl", "x")

    def test_flags_of_other_commands_name_those(self):
        for action in "check", "show":
            config = ["config", action, "--config", "run.yaml"]
            for words in ["--device", "cpu"], ["--no-cuda"]:
                done = self.expect(USAGE, [f"unknown flag {words[0]}", f"`sftrun config {action}` has no such flag",
                                           "`sftrun train --dry-run --device`"], *config, *words)
                self.assertNotIn("use the flag", done.stderr)
            self.expect(USAGE, ["`sftrun train --dry-run --nproc-per-node`"], *config, "--nproc-per-node", "2")
        self.expect(USAGE, ["unknown flag --html", "`sftrun report` has no such flag; `sftrun preview` has it"], "report", "run", "--html", "x")
        self.expect(USAGE, ["`sftrun chat` has no such flag; `sftrun generate` has it"], "chat", "--prompt", "x")
        self.expect(USAGE, ["use the flag --device cpu"], "train", "--config", "run.yaml", "--no-cuda")

    def test_words_before_the_command_are_refused(self):
        config = ["--config", "run.yaml"]
        for before, command, fix in [
                (["--dry-run"], ["train", *config], "sftrun train --dry-run"), (["train.epochs=1"], ["train", *config], "sftrun train train.epochs=1"),
                (["--quiet"], ["train", *config], "sftrun train --quiet"), (["--resume", "never"], ["train", *config], "sftrun train --resume never"),
                (config, ["train"], "sftrun train --config run.yaml"), (["run.yaml"], ["train"], "sftrun train --config run.yaml"),
                (["--temperature", "5"], ["generate", "--model", "model", "--prompt", "x"], "sftrun generate --temperature 5"),
                (["run"], ["report"], "sftrun report run")]:
            self.expect(USAGE, [f"`{before[0]}` stands before the command `{command[0]}`", f"write it after the command: {fix}\n"], *before, *command)
        self.expect(USAGE, ["`bogus` stands before the command `train`", "fix: remove it"], "bogus", "train", *config)
        self.expect(USAGE, ["unknown flag --nonsense"], "--nonsense", "train", *config)
        self.expect(USAGE, ["unknown flag --wibble"], "config", "--wibble", "check", *config)
        self.expect(USAGE, ["`train.epochs=x` stands before the command `check`", "sftrun config check train.epochs=x"],
                    "config", "train.epochs=x", "check", *config)
        self.expect(USAGE, ["sftrun config check --json"], "--json", "config", "check", *config)
        self.expect(DONE, [], "config", "--quiet", "check", *config)

    def test_flags_without_a_value(self):
        for words, fix in [(["train", "--config"], "--config FILE"), (["train", "--resume"], "--resume auto|never|DIR"),
                           (["generate", "--max-new-tokens"], "--max-new-tokens N"), (["chat", "-m"], "--model TEXT")]:
            done = self.expect(USAGE, [f"error: {fix.split()[0]} has no value", f"fix: write {fix}"], *words)
            self.assertNotIn("missing", done.stderr)

    def test_values_of_flags_are_checked(self):
        train = ["train", "--config", "run.yaml"]
        self.expect(USAGE, ["`gpu` is not one of auto, cuda or cpu; did you mean `cuda`?"], *train, "--device", "gpu")
        self.expect(USAGE, ["`two` is neither auto nor a whole number"], *train, "--nproc-per-node", "two")
        self.expect(USAGE, ["`0,x` is neither"], *train, "--gpus", "0,x")
        self.expect(USAGE, ["--node-rank 2 is not below --nnodes 2"], *train, "--nnodes", "2", "--node-rank", "2")
        self.expect(USAGE, ["`0` is not a whole number of at least 1"], "bench", "--model", "model", "--steps", "0")
        self.expect(USAGE, ["`lots` is not a size"], "merge", "--adapter", "adapter", "--output", "out", "--max-shard-size", "lots")
        self.expect(USAGE, ["`int4` is not one of"], "score", "--dtype", "int4")
        for asked, near in {"48": "32", "100": "128", "9999": "4096"}.items():
            self.expect(USAGE, [f"`{asked}` is not one of", f"did you mean `{near}`?"], "quantize", "--model", "m", "--output", "o", "--block-size", asked)

    def test_what_is_missing_or_too_much(self):
        self.expect(USAGE, ["`sftrun train` requires --config"], "train")
        self.expect(USAGE, ["write --config run.yaml"], "train", "run.yaml")
        self.expect(USAGE, ["requires --prompt or --input"], "generate", "--model", "model")
        self.expect(USAGE, ["--prompt and --input cannot be used together"], "generate", "--model", "model", "--prompt", "a",
                    "--input", "train.jsonl")
        self.expect(USAGE, ["requires --output with --input"], "generate", "--model", "model", "--input", "train.jsonl")
        self.expect(USAGE, ["--arch and --model cannot be used together"], "bench", "--model", "model", "--arch", "run.yaml")
        self.expect(USAGE, ["no such directory: nowhere"], "score", "--model", "model", "--input", "train.jsonl",
                    "--output", "nowhere/out.jsonl")
        self.expect(USAGE, ["adapter exists and is not an empty directory", "or replace it with --overwrite"], "merge", "--adapter", "adapter",
                    "--output", "adapter")
        self.expect(USAGE, ["--overwrite would remove the input adapter"], "merge", "--adapter", "adapter", "--output", "adapter", "--overwrite")
        self.expect(USAGE, ["`sftrun merge` requires --adapter, --checkpoint or --model"], "merge", "--output", "out")
        self.expect(USAGE, ["`sftrun merge` requires --adapter"], "merge", "--model", "model", "--output", "out", "--format", "vllm")
        self.expect(USAGE, ["--as-stored is only for adapters, and there is no --adapter"], "merge", "--model", "model", "--output", "out", "--as-stored")
        self.expect(USAGE, ["--output names a .gguf file, but --format is vllm"], "merge", "--adapter", "adapter", "--output", "out.gguf", "--format", "vllm")
        for_vllm = ["merge", "--adapter", "adapter", "--output", "out", "--format", "vllm"]
        self.expect(USAGE, ["--max-shard-size is only for safetensors models, but --format is vllm"], *for_vllm, "--max-shard-size", "1GB")
        self.expect(USAGE, ["--dtype is only for merged models"], *for_vllm, "--dtype", "auto")
        self.expect(USAGE, ["`gguff` is not one of"], "merge", "--adapter", "adapter", "--output", "out", "--format", "gguff")
        self.expect(USAGE, ["--sample is only for merged models, but --format is vllm"], *for_vllm, "--sample", "4")
        self.expect(DATA, ["no such file or directory: none.jsonl", "--data on the command line"], *for_vllm[:-2], "--data", "none.jsonl")
        for dtype, form, of in (("q4_0", "safetensors", "GGUF"), ("nf4", "gguf", "safetensors"), ("fp4", "lora-gguf", "safetensors")):
            self.expect(USAGE, [f"--dtype {dtype} is only for {of} models, but --format is {form}", f"fix: write --format {of.lower()}"], "merge",
                        "--adapter", "adapter", "--output", "out", "--format", form, "--dtype", dtype)

    def test_numbers_are_decimal(self):
        """Every flag of every command that takes a number, found by the help. CLI11 reads 010 as 8."""
        found = set()
        for command in [*COMMANDS[:-1], "chat", "serve", "config show"]:
            words = command.split()
            text = self.sftrun(*words, "--help").stdout
            for flag in re.findall(r"(--[a-z-]+) (?:N|NUMBER|auto\|N|N\|0,2,3)(?: |$)", text, re.M):
                found.add(flag)
                for number, prefix in ("010", "0"), ("0x1F90", "0x"):
                    self.expect(USAGE, [f"{flag}: `{number}` begins with {prefix}: write a decimal number"], *words, flag, number)
        self.assertLessEqual({"--max-new-tokens", "--port", "--threads", "--temperature", "--nproc-per-node", "--gpus", "--seed", "--world-size",
                              "--max-restarts", "--seq-len", "--num-examples"}, found)
        self.expect(USAGE, ["--num-beams 010: beam search"], "generate", "--model", "model", "--prompt", "a", "--num-beams", "010")

    def test_numbers_beyond_what_they_mean(self):
        serve, generate = ["serve", "--model", "model"], ["generate", "--model", "model", "--prompt", "a"]
        train, bench = ["train", "--config", "run.yaml"], ["bench", "--model", "model"]
        for words, flag, most in (
                (serve, "--max-waiting", 1_000_000), (serve, "--batch-size", 65536), (serve, "--max-new-tokens", 10**9), (serve, "--max-model-len", 10**9),
                (generate, "--batch-size", 65536), (generate, "--max-new-tokens", 10**9), (generate, "--top-k", 10**9), (train, "--nnodes", 65536),
                (train, "--node-rank", 65536), (train, "--max-restarts", 10**9), (bench, "--seq-len", 10**7), (bench, "--batch-size", 10**5),
                (bench, "--steps", 10**9), (["config", "show", "run.yaml"], "--world-size", 4096 * 65536)):
            for number in (most + 1, 2**32 + 1, 2**63 - 1, 2**63, 10**30):
                self.expect(USAGE, [f"`{number}` is above the largest value, {most}"], *words, flag, str(number))
        for words in (serve, generate, bench):
            self.expect(USAGE, ["`100000` is above the largest value, "], *words, "--threads", "100000")
        self.assertEqual(self.request(*generate, "--seed", str(2**63 - 1))["seed"], 2**63 - 1)
        self.expect(USAGE, [f"`{2**63}` is above the largest value"], *generate, "--seed", str(2**63))
        self.expect(USAGE, ["`99999999999999GiB` is not a size"], *serve, "--cache-memory", "99999999999999GiB")
        self.expect(USAGE, ["9… ("], *serve, "--max-waiting", "9" * 5000)

    def test_inputs_are_those_of_training(self):
        (self.folder / "set").mkdir()
        for name in ("train-0.jsonl", "train-1.jsonl", "test.jsonl"):
            self.write(f"set/{name}", '{"text": "a"}\n')
        for command in ("generate", "score", "tokenize"):
            words = [command, "--model", "model", "--output", "out.jsonl", "--input"]
            if command != "tokenize":  # which needs no engine, but a tokenizer
                self.assertEqual(self.request(*words, "set")["input"], "set")
                self.assertEqual(self.request(*words, "set/t*.jsonl")["input"], "set/t*.jsonl")
                self.assertEqual(self.request(*words, "set", "--split", "test")["split"], "test")
            self.expect(DATA, ["other", "train"], *words, "set", "--split", "other")
            self.expect(DATA, ["subset"], *words, "set", "--subset", "en")
            self.expect(DATA, ["set/x*"], *words, "set/x*")
            self.expect(USAGE, ["--subset and --split choose among the files of --input"], *words, "-", "--split", "test")
            self.expect(USAGE, ["is in the folder that --input reads"], *words[:4], "set/out.jsonl", "--input", "set")
            self.expect(USAGE, ["is among the files that --input names"], *words[:4], "set/tmp.jsonl", "--input", "set/t*.jsonl")
            self.expect(USAGE, ["is the file that --input reads"], *words[:4], "set/test.jsonl", "--input", "set/t*t.jsonl")

    def test_a_current_directory_that_was_removed(self):
        gone = self.folder / "gone"
        self.environment["PWD"] = str(gone)

        def sftrun(*words):
            gone.mkdir()
            return subprocess.run(["sh", "-c", 'rmdir "$PWD" && exec "$0" "$@"', arguments.sftrun, *words], cwd=gone, env=self.environment,
                                  capture_output=True, text=True, timeout=60)

        for words in (["train", "--config", "run.yaml"], ["config", "check", "--config", str(self.folder / "run.yaml")],
                      ["generate", "--adapter", "adapter", "--prompt", "hi"], ["report", "run"], ["config", "init", "--yes"]):
            done = sftrun(*words)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            self.assertEqual(done.stderr, "error: the current directory no longer exists\n"
                             f"  at   {gone}\n  fix: cd to another directory; if it was made again, enter it again: cd \"$PWD\"\n")
        for words in ["--help"], ["--version"], ["train", "--help"], ["config", "reference"], ["config", "schema"]:
            self.assertEqual(sftrun(*words).returncode, DONE, words)

    def test_files_that_are_not_there(self):
        self.expect(DATA, ["no such file or directory: none.yaml", "--config on the command line"], "train", "--config", "none.yaml")
        self.expect(DATA, ["no such model: modle"], "generate", "--model", "modle", "--prompt", "a")
        self.expect(DATA, ["no such file or directory: none.jsonl"], "tokenize", "--model", "model", "--input", "none.jsonl",
                    "--output", "out.jsonl")

    # ---- Requests to the engine

    def test_generate(self):
        asked = self.request("generate", "--model", "model", "--prompt", "hi", "--no-chat", "--max_new_tokens", "8",
                             "--top_p=0.9", "--dtype", "bfloat16", "--json")
        self.assertEqual(asked, {"model": "model", "adapter": None, "prompt": "hi", "images": [], "input": None, "output": None, "overwrite": False,
                                 "system": None, "chat": False, "max_new_tokens": 8, "temperature": 0.0, "top_p": 0.9,
                                 "top_k": None, "min_p": None, "repetition_penalty": None, "stop": [], "seed": None, "device": "auto",
                                 "chat_template_kwargs": None, "dtype": "bf16", "as_stored": False, "threads": None, "batch_size": None,
                                 "parallel": None, "folder": None, "places": {}, "subset": "", "split": "", "num_answers": 1, "logprobs": False, "json": True})
        self.assertTrue(self.request("generate", "--adapter", "adapter", "--prompt", "hi", "--as-stored")["as_stored"])
        self.assertTrue(self.request("generate", "--model", "model", "--prompt", "hi", "--chat")["chat"])
        self.assertEqual(self.request("generate", "--model", "model", "--prompt", "")["prompt"], "")
        asked = self.request("generate", "--model", "model", "--prompt", "a", "--stop", "[END]", "--stop", "a,b\n", "--repetition_penalty=1.2",
                             "--temperature", "1", "--min-p", "0.05")
        self.assertEqual((asked["stop"], asked["repetition_penalty"], asked["min_p"]), (["[END]", "a,b\n"], 1.2, 0.05))
        asked = self.request("generate", "--model", "model", "--prompt", "a", "-n", "3", "--temperature", "1", "--logprobs", "--json")
        self.assertEqual((asked["num_answers"], asked["logprobs"]), (3, True))
        self.expect(USAGE, ["-n 3: all answers to a prompt would be the same"], "generate", "--model", "model", "--prompt", "a", "--num-answers", "3")
        self.expect(USAGE, ["--num-beams 4: beam search is not supported"], "generate", "--model", "model", "--prompt", "a", "--num_beams", "4")
        self.expect(USAGE, ["--stop is empty"], "generate", "--model", "model", "--prompt", "a", "--stop", "")
        self.expect(USAGE, ["`0` is not a number from 0.01 to 100"], "generate", "--model", "model", "--prompt", "a", "--repetition-penalty", "0")
        self.assertEqual(self.request("generate", "--model", "model", "--input", "-", "--output", "-")["input"], "-")

    def test_generated_text_is_not_overwritten_unasked(self):
        words = ["generate", "--model", "model", "--input", "train.jsonl", "--output", "out.jsonl"]
        self.write("out.jsonl", "")  # holds nothing
        self.assertEqual(self.request(*words)["output"], "out.jsonl")
        self.write("out.jsonl", "results\n")
        self.expect(USAGE, ["error: out.jsonl exists", "add --overwrite to replace it"], *words)
        self.assertEqual(self.request(*words, "--overwrite")["output"], "out.jsonl")
        self.assertEqual(self.request(*words[:-1], "/dev/null")["output"], "/dev/null")
        self.assertEqual(self.request("score", *words[1:])["output"], "out.jsonl")
        for command in ("generate", "score", "tokenize"):
            for name in ("run.yaml", "weights.safetensors"):
                self.write(name, "something\n")
                self.expect(USAGE, [f"error: {name} exists", "--overwrite"], command, *words[1:-1], name)
            self.expect(USAGE, ["train.jsonl is the file that --input reads"], command, *words[1:-1], "train.jsonl", "--overwrite")

    def test_a_directory_with_one_gguf_file_is_that_model(self):
        def add(name):
            (self.folder / "gguf").mkdir(exist_ok=True)
            (self.folder / "gguf" / name).touch()

        words = ["generate", "--model", "gguf", "--prompt", "a"]
        add("mine-Q8_0.gguf")
        add("mmproj-mine.gguf")
        add("README.md")
        self.assertEqual(self.request(*words)["model"], "gguf/mine-Q8_0.gguf")
        add("mine-F16.gguf")
        self.expect(DATA, ["error: gguf holds 2 .gguf files: mine-F16.gguf, mine-Q8_0.gguf", "name one of them: gguf/mine-F16.gguf"], *words)
        add("config.json")
        self.assertEqual(self.request(*words)["model"], "gguf")
        shutil.rmtree(self.folder / "gguf")
        for number in (1, 2):
            add(f"big-0000{number}-of-00002.gguf")
        self.expect(DATA, ["split into several GGUF files, which is not supported: big-00001-of-00002.gguf, big-00002", "llama-gguf-split --merge"],
                    *words)

    def test_an_adapter_alone_finds_its_base(self):
        asked = self.request("generate", "--adapter", "adapter", "--prompt", "a_b --c_d")
        self.assertEqual((asked["model"], asked["adapter"], asked["chat"]), ("model", "adapter", None))
        self.assertEqual(asked["prompt"], "a_b --c_d")
        self.write("adapter/adapter_config.json", "{}")
        self.expect(DATA, ["does not say which model", "adapter_config.json"], "generate", "--adapter", "adapter", "--prompt", "a")

    def check_advice_names_flags_of_the_command(self, model, problem, adapter):
        """For an adapter in place of a model."""
        merge = f"merge it, and name the result: sftrun merge --adapter {adapter} --output {adapter}-merged"
        for words in ["generate", "--prompt", "a"], ["score", "--input", "train.jsonl", "--output", "out.jsonl"], ["serve"], ["chat"], ["merge", "--output", "out"]:
            self.expect(DATA, [problem, f"fix: name the adapter: --adapter {adapter}\n"], *words, "--model", model)
        self.expect(DATA, [problem, "fix: " + merge], "generate", "--prompt", "a", "--model", model, "--adapter", adapter)
        for words in ["bench"], ["quantize", "--output", "out"]:
            self.expect(DATA, [problem, "fix: " + merge], *words, "--model", model)
        for words in ["train", "--dry-run"], ["memory-check"], ["preview"], ["eval"]:
            done = self.expect(DATA, [problem, f"tuning.lora.init_from={adapter}; or {merge}"], *words, "--config", "run.yaml", f"model.name={model}",
                               *(["data.val=train.jsonl"] if words == ["eval"] else []))
            self.assertNotIn("--adapter runs", done.stderr.replace(merge, ""))
        if model == adapter:
            return  # its tokenizer is read, if it has one
        tokenize = ["tokenize", "--input", "train.jsonl", "--output", "out.jsonl", "--model", model]
        self.expect(DATA, [problem, "fix: name the adapter's base model, which has the tokenizer"], *tokenize)
        self.write(f"{adapter}/tokenizer.json", "{}")
        self.expect(DATA, [problem, f"fix: name the adapter's directory, which has a tokenizer: {adapter}"], *tokenize)
        (self.folder / adapter / "tokenizer.json").unlink()

    def test_a_runs_directory_stands_for_its_result(self):
        (self.folder / "runs/first").mkdir(parents=True)
        (self.folder / "adapter").rename(self.folder / "runs/first/adapter")
        asked = self.request("generate", "--adapter", "runs/first", "--prompt", "a")
        self.assertEqual(asked["adapter"], "runs/first/adapter")
        self.expect(DATA, ["runs/first is a run directory", "fix: name the adapter: --adapter runs/first/adapter"], "generate",
                    "--model", "runs/first", "--prompt", "a")
        self.check_advice_names_flags_of_the_command("runs/first", "is a run directory with an adapter", "runs/first/adapter")
        self.check_advice_names_flags_of_the_command("runs/first/adapter", "is an adapter, not a model", "runs/first/adapter")
        (self.folder / "runs/second/model").mkdir(parents=True)
        self.write("runs/second/model/config.json", "{}")
        self.assertEqual(self.request("generate", "--model", "runs/second", "--prompt", "a")["model"], "runs/second/model")
        self.expect(DATA, ["runs/second is a run directory with a model", "fix: name the model: --model runs/second/model"],
                    "generate", "--adapter", "runs/second", "--prompt", "a")

    def test_every_command_takes_a_run_for_its_adapter(self):
        for step in ("step-000002", "step-000010"):
            (self.folder / "runs/first/checkpoints" / step).mkdir(parents=True)
            shutil.copy(self.folder / "adapter/adapter_config.json", self.folder / "runs/first/checkpoints" / step)
        for words in (["generate", "--prompt", "a"], ["score", "--input", "train.jsonl", "--output", "out.jsonl"], ["merge", "--output", "out"]):
            asked = self.request(*words, "--adapter", "runs/first")
            self.assertEqual((asked["adapter"], asked["model"]), ("runs/first/checkpoints/step-000010", "model"), words[0])

    def test_a_run_that_was_killed_before_its_first_checkpoint(self):
        (self.folder / "runs/dead/checkpoints").mkdir(parents=True)
        self.write("runs/dead/run.json", "{}")
        for words in (["generate", "--prompt", "a", "--adapter"], ["generate", "--prompt", "a", "--model"], ["merge", "--output", "out", "--checkpoint"],
                      ["eval", "--config", "run.yaml", "data.val=train.jsonl", "--adapter"]):
            self.expect(DATA, ["the run runs/dead has no checkpoint yet", f"at   {words[-1]} on the", "repeat its `sftrun train` command"],
                        *words, "runs/dead")

    def test_flags_that_would_do_nothing(self):
        generate = ["generate", "--model", "model", "--prompt", "a"]
        self.expect(USAGE, ["--system has no effect with --no-chat"], *generate, "--system", "b", "--no-chat")

    # Words that change nothing, others with which they do | how the warning begins
    IDLE = [
        ("generate --model model --prompt a --top-p 0.9", "--temperature 1", "--top-p has no effect without --temperature: "),
        ("generate --model model --prompt a --seed 1 --top-k 3 --temperature 0", None, "--top-k, --seed have no effect without --temp"),
        ("chat --model model --min-p 0.1", "--temperature 1", "--min-p has no effect without --temperature"),
        ("generate --model model --prompt a --batch-size 2", None, "--batch-size has no effect with --prompt"),
        ("generate --model model --prompt a --overwrite", "--output new.jsonl", "--overwrite has no effect without --output"),
        ("generate --model model --input train.jsonl --output new.jsonl --json", None, "--json has no effect with --output"),
        ("score --model model --input train.jsonl --output - --overwrite", None, "--overwrite has no effect with --output -"),
        ("score --model model --input train.jsonl --output new.jsonl --as-stored", "--adapter adapter", "--as-stored has no effect without --adapter"),
        ("score --model model --input train.jsonl --output new.jsonl --temperature 2", "--topk 4", "--temperature has no effect without --topk"),
        ("serve --model model --as-stored", "--adapter adapter", "--as-stored has no effect without --adapter"),
        ("merge --adapter adapter --output new --sample 0 --data train.jsonl", None, "--data has no effect with --sample 0"),
        ("eval --config run.yaml data.val=train.jsonl --adapter adapter --overwrite", "--predictions new.jsonl",
         "--overwrite has no effect without --predictions"),
        ("eval --config run.yaml data.val=train.jsonl --adapter none --base", None, "--base has no effect with --adapter none"),
        ("eval --config run.yaml data.val=train.jsonl --adapter adapter data.shuffle=false", None, "data.shuffle has no effect in `sftrun eval`"),
        ("eval --config run.yaml data.val=train.jsonl --adapter adapter train.batch_size=4 train.grad_accum=2", None,
         "train.batch_size, train.grad_accum have no effect in `sftrun eval`; train.eval_batch_size"),
        ("bench --model model data.packing=false", None, "data.packing has no effect in `sftrun bench`"),
        ("bench --model model --images 1 data.packing=false data.max_image_pixels=99", None, "data.packing has no effect in `sftrun bench`"),
        ("bench --model model data.max_image_pixels=99", "--images 1", "data.max_image_pixels has no effect without --images in `sftrun bench`"),
        ("bench --model model train.batch_size=2", None, "train.batch_size has no effect in `sftrun bench`; use --batch-size"),
        ("preview --config run.yaml data.seed=3 data.shuffle=true", None, "data.shuffle, data.seed have no effect in `sftrun preview`"),
        ("config import axolotl.yaml --overwrite", "--output new.yaml", "--overwrite has no effect without --output"),
        ("train --config run.yaml --dry-run --resume never --allow-changed-data", None, "--allow-changed-data has no effect with --resume never"),
        ("train --config run.yaml --dry-run --overwrite --allow-changed-length", None, "--allow-changed-length has no effect with --overwrite"),
    ]

    def test_flags_without_an_effect_are_warned_of(self):
        self.write("axolotl.yaml", "base_model: model\ndatasets: [{path: train.jsonl}]\nadapter: lora\n")
        for words, more, begins in self.IDLE:
            with self.subTest(words=words):
                said = self.sftrun(*words.split()).stderr
                self.assertEqual(said.count(begins), 1, said)
                self.assertEqual(said.count("no effect"), 1, said)
                if more:
                    said = self.sftrun(*words.split(), *more.split()).stderr
                    self.assertNotIn("no effect", said)

    def test_one_process_of_a_run_warns(self):
        train = ["train", "--config", "run.yaml", "--dry-run", "--max-restarts", "3"]
        self.assertNotIn("no effect", self.sftrun(*train).stderr)
        self.environment |= {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}
        self.assertIn("--max-restarts has no effect: RANK and WORLD_SIZE say", self.sftrun(*train).stderr)
        self.environment["RANK"] = "1"
        self.assertNotIn("no effect", self.sftrun(*train).stderr)

    def test_eval(self):
        words = ["eval", "--config", "run.yaml"]
        self.expect(USAGE, ["the run has no validation data", "data.val=FILE"], *words)
        words += ["data.val=train.jsonl"]
        self.expect(DATA, ["the run has no result", "--adapter none"], *words)
        (self.folder / "runs/a run/adapter").mkdir(parents=True)
        self.write("runs/a run/run.json", "{}")
        self.write("runs/a run/config.resolved.yaml", RUN_YAML)
        for named in ["--adapter", "runs/a run"], ["--adapter", "runs/a run/adapter"], ["runs/a run"]:
            self.expect(USAGE, ["requires --config", "fix: write --config 'runs/a run/config.resolved.yaml'"], "eval", *named)
        asked = self.request(*words, "--adapter", "none", "--no-generate")
        self.assertEqual(asked["models"], [{"name": "base", "model": "model", "adapter": None}])
        self.assertEqual((asked["generate"], asked["config"]["data"]["val"]), (False, "train.jsonl"))
        self.assertEqual(asked["places"], {"model.name": "run.yaml:1:10", "data.train": "run.yaml:2:9", "data.val": "data.val=train.jsonl from the command line"})
        asked = self.request(*words, "--adapter", "adapter", "--base", "--max-records", "3", "model.dtype=fp32")
        self.assertEqual([(one["name"], one["adapter"]) for one in asked["models"]], [("base", None), ("adapter", "adapter")])
        self.assertEqual((asked["generate"], asked["max_records"], asked["dtype"]), (True, 3, "fp32"))
        # Sizes for another number of processes.
        self.request(*words, "--adapter", "adapter", "train.batch_size=4", "train.global_batch_size=30")
        (self.folder / "runs/run/model").mkdir(parents=True)
        self.write("runs/run/model/config.json", "{}")
        self.assertEqual(self.request(*words)["models"], [{"name": "model", "model": "runs/run/model", "adapter": None}])
        self.expect(USAGE, ["--predictions needs generated answers"], *words, "--no-generate", "--predictions", "answers.jsonl")
        for flag, value in (("--max-new-tokens", "5"), ("--max-records", "3"), ("--batch-size", "2"), ("--seed", "1"), ("--stop", "a")):
            self.expect(USAGE, [f"{flag} needs generated answers"], *words, "--no-generate", flag, value)
        self.expect(USAGE, ["train.jsonl exists", "--overwrite"], *words, "--predictions", "train.jsonl")
        self.expect(USAGE, ["data.val=FILE train.objective=sft data.format=auto"], *words, "train.objective=kto", "data.format=preference")
        pairs = [*words, "train.objective=dpo", "data.format=preference"]
        self.assertIsNone(self.request(*pairs)["reference"])
        self.assertEqual(self.request(*pairs, "tuning.mode=full")["reference"], {"name": "reference model", "model": "model", "adapter": None})
        self.assertEqual(self.request(*pairs, "tuning.lora.init_from=adapter")["reference"]["adapter"], "adapter")
        self.assertEqual(self.request(*pairs, "train.reference=adapter")["reference"]["adapter"], "adapter")
        self.expect(USAGE, ["train.ld_alpha=1"], *pairs, "tuning.mode=full", "train.ld_alpha=0.5")
        # Of a run on pairs, with what only training uses.
        self.write("pairs.yaml", "model: { name: model }\n"
                   "data: { train: { path: train.jsonl, format: preference }, val_split: 0.5, format: preference }\n"
                   "train: { objective: dpo, eval_strategy: steps, load_best_model_at_end: true, early_stopping_patience: 1,\n"
                   "         metric_for_best_model: eval_rewards/accuracies }\n")
        pairs = ["eval", "--config", "pairs.yaml", "--adapter", "none"]
        self.assertEqual(self.request(*pairs)["config"]["train"]["objective"], "dpo")
        self.expect(USAGE, ["fix: for answers, add them here: data.val=FILE train.objective=sft data.format=auto"], *pairs, "train.objective=kto")
        data = self.request(*pairs, "data.val=train.jsonl", "train.objective=sft", "data.format=auto")["config"]["data"]
        self.assertEqual((data["val"], data["val_split"]), ("train.jsonl", 0))
        self.expect(USAGE, ["`data.val` and `data.val_split` are both set"], *words, "data.val_split=0.5")

    def test_a_run_writes_nothing_into_the_directory_of_a_model(self):
        shutil.copytree(MODEL, self.folder / "model", dirs_exist_ok=True)
        (self.folder / "other/adapter").mkdir(parents=True)
        train = ["train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1"]
        for words, message in ((["output.dir=adapter"], "the directory of a model or an adapter itself"),
                               (["output.dir=adapter", "--overwrite"], "the directory of a model or an adapter itself"),
                               (["output.dir=other"], "the run directory has adapter but no checkpoint of this run")):
            for dry_run in [], ["--dry-run"]:
                self.expect(USAGE, [message, "choose another output.dir"], *train, *words, *dry_run)
        self.assertEqual(os.listdir(self.folder / "adapter"), ["adapter_config.json"])
        self.assertEqual(os.listdir(self.folder / "other"), ["adapter"])

    def test_variables_of_the_chat_template(self):
        flag = ["--chat-template-kwargs", '{"b": false, "a": [1]}']
        for words in (["generate", "--model", "model", "--prompt", "a"], ["score", "--model", "model", "--input", "train.jsonl", "--output", "-"],
                      ["chat", "--model", "model"], ["serve", "--model", "model"]):
            self.assertEqual(self.request(*words, *flag)["chat_template_kwargs"], flag[1])
            for wrong in ("[1]", "{", "enable_thinking=false", ""):
                self.expect(USAGE, ["--chat-template-kwargs", "is not a JSON object"], *words, flag[0], wrong)
            for number in ("1e400", "NaN"):
                self.expect(USAGE, ["--chat-template-kwargs: `a[1]` is not a finite number"], *words, flag[0], f'{{"a": [1, {number}]}}')

    def test_score(self):
        asked = self.request("score", "--model", "model", "--input", "train.jsonl", "--output", "out.jsonl", "--threads", "2")
        self.assertIn("sftrun-score-", asked.pop("folder"))
        self.assertEqual(asked, {"model": "model", "adapter": None, "input": "train.jsonl", "output": "out.jsonl",
                                 "chat_template_kwargs": None, "device": "auto", "dtype": "auto", "as_stored": False, "threads": 2,
                                 "parallel": None, "places": {}, "subset": "", "split": "", "json": False, "teacher": None})
        words = ["score", "--model", "model", "--input", "-", "--json"]
        self.assertTrue(self.request(*words, "--output", "out.jsonl")["json"])
        self.expect(USAGE, ["--json and --output - both write to standard output"], *words, "--output", "-")

    def test_teachers(self):
        words = ["score", "--model", "model", "--output", "scores"]
        asked = self.request(*words, "--topk", "8", "--config", "run.yaml", "data.seed=3", "--temperature", "2", "--overwrite")
        teacher = asked["teacher"]
        self.assertEqual({key: teacher[key] for key in ("topk", "temperature", "overwrite")}, {"topk": 8, "temperature": 2.0, "overwrite": True})
        self.assertEqual(teacher["config"]["data"]["seed"], 3)
        self.assertEqual(asked["output"], "scores")
        asked = self.request(*words, "--topk", "4", "--input", "train.jsonl")
        self.assertEqual((asked["teacher"]["student"], asked["teacher"]["temperature"]), (asked["model"], 1.0))
        self.expect(USAGE, ["--config and --input cannot be used together"], *words, "--topk", "8", "--config", "run.yaml", "--input", "train.jsonl")
        self.expect(USAGE, ["requires --config or --input"], *words, "--topk", "8")
        self.expect(USAGE, ["--config is for --topk"], *words, "--config", "run.yaml", "--input", "train.jsonl")
        self.expect(USAGE, ["train.jsonl is not a folder, and --topk writes one"], "score", "--model", "model", "--topk", "8", "--config", "run.yaml",
                    "--output", "train.jsonl")
        self.expect(USAGE, ["train.objective dpo reads other examples"], *words, "--topk", "8", "--config", "run.yaml", "train.objective=dpo")

    def test_divided_models(self):
        for words in (["generate", "--model", "model", "--prompt", "a"], ["score", "--model", "model", "--input", "train.jsonl", "--output", "out.jsonl"],
                      ["serve", "--model", "model"], ["chat", "--model", "model"]):
            asked = self.request(*words, "--strategy", "device_map", "--pp", "2")
            self.assertEqual(asked["parallel"], {"strategy": "device_map", "tp": None, "pp": 2})
            self.expect(USAGE, ["device_map divides the layers over the GPUs of one process", "use --strategy pipeline"], *words,
                        "--strategy", "device_map", "--nproc-per-node", "2")
            self.expect(USAGE, ["`--tp 2` divides the model over 2 processes, and there is one", "--tp on the command line", "add --nproc-per-node 2"],
                        *words, "--tp", "2", "--device", "cpu")
            self.assertIsNone(self.request(*words, "--device-map", "auto")["parallel"])  # it fits on one device
            self.assertEqual(self.request(*words, "--device-map", "balanced")["parallel"], {"strategy": "device_map", "tp": None, "pp": None})
            self.expect(USAGE, ["--device-map auto puts the layers on the GPUs of one process", "--device-map on the command line"], *words,
                        "--device-map", "auto", "--strategy", "tensor")
        self.expect(USAGE, ["several processes need files"], "score", "--model", "model", "--input", "-", "--output", "out.jsonl", "--strategy", "tensor",
                    "--nproc-per-node", "2", "--device", "cpu")

    def test_merge_of_a_checkpoint(self):
        checkpoint = "run/checkpoints/step-000002"
        for folder in (checkpoint, "lone"):
            (self.folder / folder).mkdir(parents=True)
            self.write(f"{folder}/state.json", "{}")
        asked = self.request("merge", "--checkpoint", checkpoint, "--model", "model", "--output", "out")
        self.assertEqual((asked["checkpoint"], asked["adapter"], asked["model"]), (checkpoint, None, "model"))
        for folder in ("run", "run/checkpoints"):
            self.expect(DATA, [f"{folder} is not a checkpoint", f"the newest is {checkpoint}"], "merge", "--checkpoint", folder, "--output", "out")
        self.expect(DATA, ["model is not a checkpoint", "step-000100"], "merge", "--checkpoint", "model", "--output", "out")
        self.expect(DATA, ["lone is not in a run directory", "--model MODEL"], "merge", "--checkpoint", "lone", "--output", "out")
        self.expect(USAGE, ["--adapter", "--checkpoint"], "merge", "--checkpoint", checkpoint, "--adapter", "adapter", "--output", "out")

    def test_merge(self):
        asked = self.request("merge", "--adapter", "adapter", "--output", "out", "--dtype", "float16", "--max-shard-size", "2GiB")
        self.assertEqual(asked, {"model": "model", "adapter": "adapter", "checkpoint": None, "output": "out", "dtype": "f16",
                                 "max_shard_size": 2 << 30, "format": "safetensors", "sample": None, "data": None, "device": "auto",
                                 "block_size": None, "no_double_quant": False, "skip_modules": [], "as_stored": False, "overwrite": False,
                                 "json": False})
        asked = self.request("merge", "--model", "model", "--output", "out.gguf", "--json")
        self.assertEqual((asked["adapter"], asked["format"], asked["json"]), (None, "gguf", True))
        asked = self.request("merge", "--adapter", "adapter", "--output", "out", "--dtype", "nf4", "--block-size", "128", "--no-double-quant",
                             "--skip-modules", "layers.0", "q_proj")
        self.assertEqual((asked["block_size"], asked["no_double_quant"], asked["skip_modules"]), (128, True, ["layers.0", "q_proj"]))
        for dtype, flag in (("int8", "--block-size"), ("bf16", "--skip-modules")):
            self.expect(USAGE, [f"{flag} is only for ", f"--dtype is {dtype}", "remove it"],
                        "merge", "--adapter", "adapter", "--output", "out", "--dtype", dtype, flag, "32")
        asked = self.request("merge", "--adapter", "adapter", "--output", "out", "--sample", "0", "--data", "train.jsonl", "--device", "cpu")
        self.assertEqual((asked["sample"], asked["data"], asked["device"]), (0, "train.jsonl", "cpu"))

    def test_quantize(self):
        asked = self.request("quantize", "--model", "model", "--output", "out", "--skip-modules", "layers.0", "q_proj", "--no-double-quant")
        self.assertEqual(asked, {"model": "model", "output": "out", "method": "nf4", "block_size": None, "no_double_quant": True,
                                 "skip_modules": ["layers.0", "q_proj"], "dtype": "auto", "max_shard_size": 5_000_000_000,
                                 "overwrite": False, "json": False})
        asked = self.request("quantize", "--model", "model", "--output", "out.gguf", "--method", "q4_k_m", of="merge")
        self.assertEqual((asked["format"], asked["dtype"], asked["adapter"]), ("gguf", "q4_k_m", None))
        self.expect(USAGE, ["--output names a .gguf file, but --method nf4 writes safetensors"], "quantize", "--model", "model", "--output", "out.gguf")
        self.expect(USAGE, ["--dtype is only for safetensors models, but --method q8_0 writes a GGUF file"], "quantize", "--model", "model", "--output", "out",
                    "--method", "q8_0", "--dtype", "bf16")
        self.expect(USAGE, ["`int3` is not one of nf4, fp4, fp8, int8, q8_0"], "quantize", "--model", "model", "--output", "out", "--method", "int3")
        self.expect(
            USAGE, ["--block-size is only for nf4, fp4, but --method is fp8", "remove it"],
            "quantize", "--model", "model", "--output", "out", "--method", "fp8", "--block-size", "32",
        )
        self.expect(USAGE, ["`sftrun quantize` requires --output"], "quantize", "--model", "model")
        self.expect(USAGE, ["adapter exists and is not an empty directory"], "quantize", "--model", "model", "--output", "adapter")

    def test_bench(self):
        asked = self.request("bench", "--model", "model", "--seq_len", "128", "tuning.lora.r=4", "--json", "train.seed=1")
        self.assertEqual(asked, {"arch": None, "model": "model", "seq_len": 128, "batch_size": 4, "steps": 5, "dtype": "auto",
                                 "device": "auto", "threads": None, "json": True, "profile": None, "images": None,
                                 "overrides": ["tuning.lora.r=4", "train.seed=1"],
                                 "places": {"train.seed": "train.seed=1 from the command line",
                                            "tuning.lora.r": "tuning.lora.r=4 from the command line"}})
        self.expect(USAGE, ["did you mean `tuning.lora.r`?"], "bench", "--model", "model", "tuning.lora.rr=4")

    def test_images_of_bench(self):
        asked = self.request("bench", "--model", "model", "--images", "3", "--image-size", "640x480")
        self.assertEqual(asked["images"], {"of_sequence": 3, "width": 640, "height": 480})
        asked = self.request("bench", "--model", "model", "--images", "1")
        self.assertEqual(asked["images"], {"of_sequence": 1, "width": 1024, "height": 1024})
        self.expect(USAGE, ["`640` is no size of an image", "--image-size"], "bench", "--model", "model", "--images", "3", "--image-size", "640")
        for size, limit in (("70000x1", "65535 pixels for a side"), ("14000x14000", "178956970 pixels")):
            self.expect(USAGE, ["images of " + size.replace("x", " x ") + " pixels are above the limit of image files, " + limit],
                        "bench", "--model", "model", "--images", "1", "--image-size", size)
        self.write("file", "")
        self.expect(USAGE, ["file is not a directory", "at   --profile"], "bench", "--model", "model", "--profile", "file")
        for command in (["bench", "--model", "model"], ["memory-check", "--config", "run.yaml"]):
            self.expect(USAGE, ["--image-size is of the images that --images counts", "fix: add --images"], *command, "--image-size", "640x480")
            self.expect(USAGE, ["`0` is not a whole number of at least 1"], *command, "--images", "0")

    def test_a_result_that_cannot_be_written_is_an_error(self):
        commands = [["--version"], ["train", "--help"], ["config", "show", "--config", "run.yaml"], ["config", "reference"],
                    ["config", "check", "--json", "--config", "run.yaml"], ["gpu-info"],
                    ["memory-check", "--config", "run.yaml", f"model.name={MODEL}"],
                    ["tokenize", "--model", str(MODEL), "--input", "train.jsonl", "--output", "-"]]
        reader, writer = os.pipe()
        os.close(reader)
        self.addCleanup(os.close, writer)
        for words in commands:
            with self.subTest(words=words):
                self.assertEqual(self.sftrun(*words).returncode, DONE)
                with open("/dev/full", "w") as full:
                    for output, prepare, reason in ((full, None, "No space left on device"),
                                                    (writer, lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN), "Broken pipe"),
                                                    (None, lambda: os.close(1), "standard output is closed")):
                        done = subprocess.run([str(arguments.sftrun), *words], cwd=self.folder, env=self.environment, stdout=output,
                                              stderr=subprocess.PIPE, text=True, timeout=60, preexec_fn=prepare)
                        self.assertEqual(done.returncode, FAILED, done.stderr)
                        self.assertIn("at   standard output", done.stderr)
                        self.assertIn(reason, done.stderr)

    def test_the_engines_exit_code_is_ours(self):
        self.assertEqual(self.sftrun("generate", "--model", "model", "--prompt", "a").returncode, FAKE_ENGINE_CODE)
        self.assertEqual(self.sftrun("score", "--model", "model", "--input", "train.jsonl", "--output", "o").returncode, DONE)

    def test_engines_that_cannot_be_loaded(self):
        generate = ["generate", "--model", "model", "--prompt", "a"]
        self.environment["SFTRUN_ENGINE"] = str(self.folder / "none.so")
        self.expect(FAILED, ["is not installed", "none.so", "make build"], *generate)
        self.environment["SFTRUN_ENGINE"] = str(self.folder / "run.yaml")
        self.expect(FAILED, ["cannot load the engine"], *generate)
        self.environment["SFTRUN_ENGINE"] = str(arguments.engine_without_torch)
        self.without_python_environments()
        self.expect(FAILED, ["cannot load the engine: libtorch_cpu.so", "looked for LibTorch 2.", "scripts/bootstrap.sh", "SFTRUN_TORCH_ROOT"], *generate)

    def without_python_environments(self):
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            self.environment.pop(name, None)
        self.environment["HOME"] = str(self.folder)

    def make_torch(self, root, version):
        """A folder that holds a library of LibTorch's name."""
        (root / "lib").mkdir(parents=True)
        for name in ("libc10.so", "libtorch_cpu.so"):
            shutil.copy(arguments.fake_torch, root / "lib" / name)
        (root / "version.py").write_text(f"__version__ = '{version}'\n")

    def test_libtorch_of_a_python_environment(self):
        self.without_python_environments()
        self.environment["SFTRUN_ENGINE"] = str(arguments.engine_without_torch)
        built = re.search(r"looked for LibTorch (\S+) in", self.sftrun("generate", "--model", "model", "--prompt", "a").stderr)[1]
        generate = ["generate", "--model", "model", "--prompt", "a"]
        other, same = self.folder / "venv/lib/python3.9/site-packages/torch", self.folder / ".local/lib/python3.12/site-packages/torch"
        self.make_torch(other, "1.0.0")
        self.environment["VIRTUAL_ENV"] = str(self.folder / "venv")
        self.expect(FAILED, [f"{other} (1.0.0)", f"pip install 'torch=={built}.*'"], *generate)
        self.make_torch(same, built + ".7+cpu")
        self.assertEqual(self.sftrun(*generate).returncode, FAKE_TORCH_CODE)
        self.assertIn(f"{built}.7+cpu ({same})", self.sftrun("--version").stdout)

    def test_libtorch_that_is_named(self):
        self.without_python_environments()
        self.environment["SFTRUN_ENGINE"] = str(arguments.engine_without_torch)
        generate = ["generate", "--model", "model", "--prompt", "a"]
        root = self.folder / "somewhere"
        self.environment["SFTRUN_TORCH_ROOT"] = str(root)
        self.expect(FAILED, ["SFTRUN_TORCH_ROOT holds no LibTorch", f"{root}/lib/libtorch_cpu.so does not exist"], *generate)
        self.assertIn("not found: SFTRUN_TORCH_ROOT holds no LibTorch", self.sftrun("--version").stdout)
        self.make_torch(root, "1.0.0")
        self.expect(FAILED, ["SFTRUN_TORCH_ROOT is LibTorch 1.0.0", "this program was built for LibTorch 2."], *generate)
        (root / "version.py").unlink()  # as of a build of one's own
        self.assertEqual(self.sftrun(*generate).returncode, FAKE_TORCH_CODE)

    # ---- Configuration

    def test_config_check(self):
        done = self.expect(DONE, ["run.yaml: valid", "train.seed=7 from command line"], "config", "check", "--config", "run.yaml",
                           "train.seed=7")
        self.assertEqual(done.stderr, "")
        self.expect(USAGE, ["unknown key `train.sed`", "train.sed=7 from the command line", "did you mean `train.seed`?"],
                    "config", "check", "--config", "run.yaml", "train.sed=7")

    def test_config_check_looks_at_the_chat_template(self):
        check = ["config", "check", "--config", "run.yaml"]
        template = lambda name: self.write("run.yaml", f"model:\n  name: model\n  chat_template: {name}\ndata: {{ train: train.jsonl }}\n")
        for name in ("chatml", "'{{ messages }}'", ""):
            template(name)
            self.expect(DONE, ["run.yaml: valid"], *check)
        template("nowhere.jinja")
        missing = ["no such chat template file", "run.yaml:3:3; model.chat_template: nowhere.jinja"]
        for words in check, ["preview", "--config", "run.yaml"], ["train", "--config", "run.yaml", "--dry-run"]:
            self.expect(USAGE, missing, *words)
        self.assertIn("no such chat template file", self.sftrun(*check, "--json").stdout)
        self.assertIn("warning: no such chat template file (run.yaml:3:3", self.sftrun("config", "show", "--config", "run.yaml").stderr)
        self.expect(USAGE, ["the directory has no chat template", "model.chat_template=./adapter from the command line"], *check, "model.chat_template=./adapter")
        self.write("broken.jinja", "{% if %}")
        template("broken.jinja")
        self.expect(DATA, ["cannot be parsed", "run.yaml:3:3; broken.jinja:1"], *check)

    def test_config_check_leaves_an_adapter_on_the_hub_unchecked(self):
        check = ["config", "check", "--config", "run.yaml"]
        self.expect(DONE, ["hf://owner/name: on the hub, not checked"], *check, "tuning.lora.init_from=hf://owner/name")
        self.expect(DATA, ["tuning.lora.init_from: no such file: nowhere"], *check, "tuning.lora.init_from=nowhere")

    def test_config_check_looks_at_data(self):
        check = ["config", "check", "--config", "run.yaml"]
        self.write("train.jsonl", json.dumps({"messages": [{"role": "usr", "content": "a"},
                                                           {"role": "assistant", "content": "b"}]}) + "\n")
        self.assertIn("warning: train.jsonl: the first record has the role `usr` (`user`?)", self.sftrun(*check).stderr)
        self.expect(DONE, ["owner/data: no file or folder of that name; on the hub, not checked"], *check,
                    "data.val=owner/data")
        self.expect(DATA, ["`split: test` has no effect"], *check, "data.train=[{path: train.jsonl, split: test}]")
        (self.folder / "train.jsonl").unlink()
        self.expect(DATA, ["error: data.train: no such file: train.jsonl"], *check)
        done = self.sftrun(*check, "--json")
        self.assertEqual(done.returncode, DATA)
        self.assertEqual(json.loads(done.stdout)["problems"][0]["message"], "data.train: no such file: train.jsonl")
        self.assertIn("warning: data.train: no such file", self.sftrun("config", "show", "--config", "run.yaml").stderr)

    # ---- Files of other tools

    def test_config_import_writes_a_run(self):
        self.write("axolotl.yaml", "base_model: model\ndatasets: [{path: train.jsonl}]\nadapter: lora\n"
                                   "lora_r: 4\nmicro_batch_size: 1\nwandb_watch: all\ntf32: false\n")
        done = self.expect(DONE, ["# From axolotl.yaml (Axolotl)", "r: 4 "], "config", "import", "axolotl.yaml")
        self.assertIn("not translated: wandb_watch: ", done.stderr)
        self.assertIn("(axolotl.yaml:6:1)", done.stderr)
        self.assertIn("not applicable: tf32: ", done.stderr)
        done = self.expect(DONE, [], "config", "import", "axolotl.yaml", "--output", "imported.yaml")
        self.assertEqual(done.stdout, "")
        self.expect(DONE, ["imported.yaml: valid"], "config", "check", "--config", "imported.yaml")
        words = ["config", "import", "axolotl.yaml", "--output", "imported.yaml"]
        self.expect(USAGE, ["imported.yaml exists already", "or replace it with --overwrite"], *words)
        (self.folder / "imported.yaml").write_text("old")
        self.expect(DONE, [], *words, "--overwrite")
        self.expect(DONE, ["imported.yaml: valid"], "config", "check", "--config", "imported.yaml")
        self.expect(USAGE, ["axolotl.yaml is the file that is imported"], *words[:-1], "axolotl.yaml", "--overwrite")
        answer = json.loads(self.sftrun("config", "import", "axolotl.yaml", "--json").stdout)
        self.assertEqual(answer["tool"], "axolotl")
        self.assertIn({"key": "tuning.lora.r", "value": 4, "from": "lora_r", "at": "axolotl.yaml:4:1"}, answer["settings"])
        self.assertEqual([note["key"] for note in answer["not_carried"]], ["wandb_watch"])
        self.assertEqual(answer["missing"], [])

    def test_config_import_of_a_fragment_says_what_is_missing(self):
        self.write("ds.json", '{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}')
        done = self.expect(DONE, ["strategy: zero3"], "config", "import", "ds.json")
        self.assertIn("still needed: model.name, data.train", done.stderr)
        self.assertIn("left to the run: train_batch_size", done.stderr)
        self.expect(USAGE, ["this is a file of DeepSpeed, not of Accelerate", "parallel.deepspeed"], "config", "import", "ds.json", "--from", "accelerate")
        self.expect(USAGE, ["`unsloth` is not one of"], "config", "import", "ds.json", "--from", "unsloth")
        self.expect(USAGE, ["`sftrun config import` requires FILE"], "config", "import")
        self.expect(DATA, ["no such file or directory: none.json"], "config", "import", "none.json")

    def test_files_of_accelerate_and_deepspeed_start_a_run(self):
        self.real_model()
        self.write("accelerate.yaml", "distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 2\nuse_cpu: true\n"
                                      "main_process_port: 29617\n")
        self.write("ds.json", '{"zero_optimization": {"stage": 2}, "gradient_clipping": 0.5}')
        dry_run = ["train", "--config", "run.yaml", "--dry-run"]
        self.expect(DONE, ["# override: parallel.strategy = fsdp (from distributed_type in accelerate.yaml:1)",
                           "# launch: 2 workers on the CPU", "rendezvous 127.0.0.1:29617"], *dry_run, "--accelerate_config", "accelerate.yaml")
        self.expect(DONE, ["# launch: 3 workers on the CPU"], *dry_run, "--accelerate-config", "accelerate.yaml", "--nproc-per-node", "3")
        self.expect(DONE, ["  strategy: zero2", "  max_grad_norm: 0.5"], *dry_run, "--device", "cpu", "--nproc-per-node", "2",
                    "parallel.deepspeed=ds.json")
        self.expect(DONE, ["  strategy: ddp"], *dry_run, "--device", "cpu", "--nproc-per-node", "2", "--deepspeed", "ds.json",
                    "parallel.strategy=ddp")
        self.expect(USAGE, ["`distributed_type` says parallel.strategy fsdp", "`zero_optimization.stage` says zero2"], *dry_run,
                    "--accelerate-config", "accelerate.yaml", "--deepspeed", "ds.json")

    # ---- The memory of a run

    def test_memory_check_plans_without_weights_engine_or_data(self):
        shutil.copy(MODEL / "config.json", self.folder / "model/config.json")
        (self.folder / "train.jsonl").unlink()
        self.environment["SFTRUN_ENGINE"] = str(self.folder / "none.so")
        plan = ["memory-check", "--config", "run.yaml", "train.batch_size=2", "train.grad_accum=4"]
        self.expect(DONE, ["llama: 2 layers", "2 x RTX 4090, 23.50 GiB for each process (not on this machine); 2 processes; strategy ddp",
                           "fits", "Largest train.batch_size", "Margin of error"], *plan, "--gpus", "2x RTX4090")
        report = json.loads(self.sftrun(*plan, "--gpus", "2x RTX4090", "--json").stdout)
        parts = report["parts"]
        step = parts["activations"] + max(parts["layer_backward"], parts["head"]) + parts["workspace"]
        held = sum(parts[name] for name in ("base", "trainable", "gradients", "optimizer", "gathered"))
        self.assertEqual(report["tensor_bytes"], held + step)
        self.assertEqual(report["peak_bytes"], held + step + parts["communication"] + parts["context"])
        self.assertEqual(report["needed_bytes"], report["peak_bytes"] + parts["margin"])
        self.assertTrue(report["fits"])
        self.assertIsNone(report["change"])
        self.assertEqual(report["settings"]["tokens"], 2 * 2048)
        self.assertEqual([row["strategy"] for row in report["strategies"]], ["ddp", "fsdp", "pipeline", "tensor", "device_map"])
        by_name = {row["strategy"]: row for row in report["strategies"]}
        self.assertEqual(by_name["ddp"]["parts"], parts)
        for card in ("T4", "Tesla P100-PCIE-16GB", "2x V100", "2080 Ti"):  # `train` refuses them
            self.expect(USAGE, ["is too old: sm_80 (Ampere) or newer is required"], *plan, "--gpus", card)
        larger = json.loads(self.sftrun(*plan, "--gpus", "2x RTX4090", "--json", "train.batch_size=4").stdout)
        self.assertGreater(larger["peak_bytes"], report["peak_bytes"])
        on_cpu = json.loads(self.sftrun(*plan, "--device", "cpu", "--json").stdout)
        self.assertEqual((on_cpu["device"]["kind"], on_cpu["device"]["is_here"], on_cpu["settings"]["strategy"]), ("cpu", True, "single"))

    def test_memory_check_prints_a_change_that_fits(self):
        config = json.loads((MODEL / "config.json").read_text()) | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                                                                   "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000}
        self.write("model/config.json", json.dumps(config))
        plan = ["memory-check", "--config", "run.yaml", "--gpus", "8GB", "train.batch_size=1", "train.grad_accum=8"]
        done = self.expect(DONE, ["does not fit", "The cheapest change that fits", "tuning.quant=nf4"], *plan)
        self.assertIn("none fits", done.stdout)
        change = json.loads(self.sftrun(*plan, "--json").stdout)["change"]
        self.assertTrue(change["fits"])
        changed = json.loads(self.sftrun(*plan, "--json", *change["settings"]).stdout)
        self.assertTrue(changed["fits"])
        self.assertEqual(changed["peak_bytes"], change["peak_bytes"])
        for more in (["parallel.tp=2"], ["parallel.pp=2"]):  # without effect on one card, but refused beside offload.base
            plan = ["memory-check", "--config", "run.yaml", "--gpus", "12GB", "train.batch_size=1", "train.grad_accum=8", "model.dtype=bf16"]
            change = json.loads(self.sftrun(*plan, "--json", *more).stdout)["change"]
            self.assertEqual(change["settings"], ["parallel.offload.base=cpu", *(word.replace("=2", "=null") for word in more)])
            self.assertTrue(json.loads(self.sftrun(*plan, "--json", *more, *change["settings"]).stdout)["fits"])
        self.expect(DONE, ["No change of this run makes it fit"], *plan[:3], "--gpus", "0.5GB", "train.batch_size=1")

    def test_memory_check_without_a_run_shows_what_is_in_use(self):
        self.environment["SFTRUN_NVML_LIBRARY"] = "none.so"
        self.expect(DONE, ["No GPU was found", "Memory of the host:", "To estimate a run before it starts"], "memory-check")
        live = json.loads(self.sftrun("memory-check", "--json").stdout)
        self.assertEqual(live["gpus"], [])
        self.assertGreater(live["host"]["total_bytes"], live["host"]["available_bytes"])

    def test_memory_check_refuses_what_it_cannot_plan(self):
        self.environment["SFTRUN_NVML_LIBRARY"] = "none.so"
        plan = ["memory-check", "--config", "run.yaml"]
        self.expect(DATA, ["model", "config.json"], *plan)
        shutil.copy(MODEL / "config.json", self.folder / "model/config.json")
        self.expect(USAGE, ["unknown GPU `rtx4091`", "--gpus on the command line", "did you mean RTX 4090"], *plan, "--gpus", "RTX4091")
        self.expect(USAGE, ["--gpus names GPUs, and --device is cpu"], *plan, "--gpus", "H100", "--device", "cpu")
        self.expect(USAGE, ["4 processes for 2 GPUs"], *plan, "--gpus", "2x H100", "--nproc-per-node", "4")
        self.expect(USAGE, ["this machine has no usable GPU", "--gpus"], *plan, "--device", "cuda")
        self.expect(USAGE, ["`sftrun memory-check` requires --config"], "memory-check", "--gpus", "H100")
        self.expect(USAGE, ["`sftrun memory-check` requires --config", "--config run.yaml"], "memory-check", "run.yaml")
        self.expect(USAGE, ["unknown key `train.sed`"], *plan, "train.sed=1")
        self.expect(USAGE, ["parallel.strategy"], *plan, "--gpus", "3x H100", "parallel.strategy=tensor")

    # ---- What a run would stumble over

    def dry_run(self, code, parts, *words):
        done = self.sftrun("train", "--config", "run.yaml", "--dry-run", "--device", "cpu", *words)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr if code != DONE else done.stdout)
        return done

    def test_a_dry_run_checks_the_run(self):
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self.write("train.jsonl", (json.dumps({"messages": turns}) + "\n") * 60)
        self.dry_run(DONE, ["# model: llama, ", "of them trainable\n", "# data: train.jsonl: messages records; all 60: 60 examples"])
        for mode in "tuning.mode=full", "tuning.mode=partial":
            self.dry_run(DONE, ["of them trainable\n"], mode, *["tuning.trainable=[norm]"] * mode.endswith("partial"))
        done = self.dry_run(DONE, ["# data: train.jsonl"], "data.val=train.jsonl")
        self.assertIn("data.val reads the same files as data.train (train.jsonl)", done.stderr)
        self.dry_run(USAGE, ["no linear layer is named `qproj`", "did you mean `q_proj`?",
                             "at   tuning.lora.target_modules=[qproj] from the command line"],
                     "tuning.lora.target_modules=[qproj]")
        self.dry_run(USAGE, ["tuning.trainable matches no parameter", "at   tuning.trainable=[nothing] from the command line"],
                     "tuning.mode=partial", "tuning.trainable=[nothing]")
        self.dry_run(USAGE, ["chatmll"], "model.chat_template=chatmll")
        self.dry_run(DATA, ["data.val_split = 70 leaves nothing to train on: there are 60"], "data.val_split=70")
        self.dry_run(DATA, ["every record is longer than model.max_seq_len = 4"], "model.max_seq_len=4")
        for file, text, code, part in (
                ("train.jsonl", "{oops\n", DATA, "malformed JSON"),
                ("train.jsonl", '{"question": "a", "answer": "b"}\n', DATA, "{prompt: question, completion: answer}"),
                ("model/config.json", '{"model_type": "parrot"}', DATA, "parrot"),
                ("model/config.json", "{}", DATA, "model_type"),
                ("model/tokenizer.json", "{", DATA, "tokenizer.json")):
            before = (self.folder / file).read_text()
            self.write(file, text)
            self.dry_run(code, [part])
            self.write(file, before)
        (self.folder / "model/chat_template.jinja").unlink()
        config = json.loads((self.folder / "model/tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        self.write("model/tokenizer_config.json", json.dumps(config))
        self.dry_run(DATA, ["chat template"])

    def real_model(self, records=60):
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        self.write("train.jsonl", (json.dumps({"messages": turns}) + "\n") * records)

    def test_a_dry_run_resolves_what_is_auto(self):
        self.real_model()
        done = self.dry_run(DONE, ["  quant: none\n", "  strategy: single\n", "# resolved: tuning.quant = none\n",
                                   "duration: unknown"])
        self.assertRegex(done.stdout, "(?m)^  dtype: (fp32|bf16)$")
        self.assertIn("  quant: nf4\n", self.dry_run(DONE, [], "tuning.mode=qlora").stdout)
        (self.folder / "model/model.safetensors").rename(self.folder / "elsewhere")
        self.dry_run(DATA, ["no model.safetensors and no model.safetensors.index.json in this directory"], "tuning.mode=qlora")
        show = ["config", "show", "--config", "run.yaml", "tuning.mode=qlora"]
        self.assertIn("model has no weights", self.expect(DONE, ["  quant: nf4\n"], *show).stderr)
        config = json.loads((self.folder / "model/config.json").read_text())
        self.write("model/config.json", json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}}))
        self.expect(DONE, ["  quant: auto\n"], *show)
        self.write("model/config.json", json.dumps(config))
        (self.folder / "elsewhere").rename(self.folder / "model/model.safetensors")
        self.assertIn("  strategy: ddp\n", self.dry_run(DONE, [], "--nproc-per-node", "2").stdout)
        self.dry_run(DONE, ["  quant: gguf\n", "quantised matrices as in the files"], f"model.name={GGUF}")

    def test_a_dry_run_counts_steps(self):
        self.real_model()
        one_each = ["data.packing=false", "train.global_batch_size=8", "train.epochs=2"]
        done = self.dry_run(DONE, ["# steps: 16 optimizer steps, 8 per epoch; 8 examples per step\n"], *one_each)
        self.assertRegex(done.stdout, r"(?m)^# tokens: \d+ per epoch$")
        self.dry_run(DONE, ["# steps: 5 optimizer steps"], *one_each, "train.max_steps=5")
        self.assertNotIn("learn little", done.stderr)
        few = self.dry_run(DONE, ["# steps: 8 optimizer steps"], *one_each, "train.epochs=1").stderr
        self.assertIn("the run has only 8 optimizer steps: the model will learn little", few)
        self.dry_run(DONE, ["# steps: 180 optimizer steps, 60 per epoch; 1 example per step\n", "  global_batch_size: 1\n"], "data.packing=false")
        self.dry_run(DONE, ["# steps: 12 optimizer steps, 6 per epoch"], *one_each, "data.val_split=15")
        self.dry_run(DONE, ["optimizer steps, ", "packed sequences of 256 tokens per step"], "train.global_batch_size=2")
        self.real_model(records=400)
        self.dry_run(DONE, ["# steps: about 100 optimizer steps, about 50 per epoch", "# tokens: about "], *one_each)
        refused = self.dry_run(DATA, ["data.val_split = 900"], *one_each, "data.val_split=900")
        self.assertRegex(refused.stderr, "there are about [34]\\d\\d records")

    def test_a_dry_run_compares_the_settings_of_a_checkpoint(self):
        self.real_model()
        shown = self.dry_run(DONE, []).stdout
        dtype = re.search(r"(?m)^  dtype: (\w+)", shown).group(1)
        for step, rank in ("9", 4), ("10", 8):
            checkpoint = self.folder / f"run/checkpoints/step-{step}"
            checkpoint.mkdir(parents=True)
            state = {"identity": {"config": {"tuning.lora.r": rank, "model.dtype": dtype, "train.global_batch_size": 3, "train.epochs": 9.0}}}
            (checkpoint / "state.json").write_text(json.dumps(state))
        dry_run = ["train", "--config", "run.yaml", "--dry-run", "--device", "cpu", "output.dir=run"]
        shown = re.findall(r"\w[\w.]* was [^;\n]*", self.sftrun(*dry_run, "tuning.lora.r=8").stderr)
        self.assertFalse([one for one in shown if one.startswith(("tuning.lora.r ", "train.global_batch_size", "train.epochs", "model.dtype"))], shown)
        differs = "tuning.lora.r was 8, is now 4"
        self.dry_run(USAGE, ["the run differs from the checkpoint: ", differs, "run/checkpoints/step-10", "fix: to resume, give the settings"],
                     "output.dir=run", "tuning.lora.r=4")
        done = self.sftrun(*dry_run, "tuning.lora.r=4", "--overwrite")
        self.assertNotIn("differs from the checkpoint", done.stderr)

    def test_sizes_of_small_data_are_those_of_the_run(self):
        """Also of more records than a dry run looks at where their number decides nothing."""
        sizes = lambda text: [int(re.search(rf"(?m)^ *\"?{key}\"?: (\d+)", text).group(1)) for key in ("batch_size", "grad_accum", "bin_tokens")]
        evaluated = lambda text: re.search(r"(?m)^ *eval_batch_size: (\w+)", text).group(1)
        for records, split in ((60, "0"), (400, "0"), (400, "0.25")):
            self.real_model(records=records)
            shown = [sizes(self.dry_run(DONE, ["# steps: "], f"data.val_split={split}").stdout),
                     sizes(self.expect(DONE, [], "config", "show", "--config", "run.yaml", f"data.val_split={split}").stdout)]
            self.assertEqual(shown, [[1, 1, 256]] * 2, records)
            for more, expected in (([], "auto" if split == "0" else "1"), (["train.eval_batch_size=3"], "3")):
                shown = self.sftrun("config", "show", "--config", "run.yaml", f"data.val_split={split}", *more).stdout
                self.assertEqual(evaluated(shown), expected, (records, split))
            plan = json.loads(self.sftrun("memory-check", "--config", "run.yaml", "--device", "cpu", "--json", f"data.val_split={split}").stdout)
            self.assertEqual(plan["settings"]["batch_size"], 1, records)
            self.assertTrue(200 < plan["settings"]["tokens"] <= 256, plan["settings"])  # of the fullest packed sequence
        self.write("train.jsonl", "{oops\n")
        done = self.expect(DONE, ["the data were not read"], "memory-check", "--config", "run.yaml", "--device", "cpu")
        self.assertIn("micro-batches of 16384 tokens", done.stdout)

    def test_a_dry_run_counts_the_room_that_packing_leaves(self):
        self.real_model(records=400)
        packed = ["train.global_batch_size=8", "train.epochs=1"]
        whole = self.dry_run(DONE, [], *packed, "data.packing=false").stdout
        longest = int(re.search(r"longest (\d+)", whole)[1])
        found = self.dry_run(DONE, [], *packed, f"data.bin_tokens={longest * 3 // 2}").stdout
        steps = int(re.search(r"# steps: about (\d+) optimizer steps", found)[1])
        self.assertAlmostEqual(steps, 50, delta=5)  # one record a bin: 2/3 of them are full

    def test_a_duration_is_that_of_an_earlier_run(self):
        self.real_model()
        one_each = ["data.packing=false", "train.global_batch_size=8", "train.epochs=2", "output.dir=earlier"]
        tokens = int(re.search(r"# tokens: (\d+) per epoch", self.dry_run(DONE, [], *one_each).stdout).group(1))
        (self.folder / "earlier").mkdir()
        self.write("earlier/metrics.jsonl", json.dumps({"step": 1, "loss": 1.0, "tokens": tokens, "step_seconds": 60.0}) + "\n")
        self.dry_run(DONE, ["# duration: about 2m 00s without evaluation", "earlier run in earlier"], *one_each)

    def test_a_dry_run_refuses_what_the_run_would(self):
        self.real_model()
        self.dry_run(USAGE, ["fp16 is not supported on a CPU", "use bf16 or fp32"], "model.dtype=fp16")
        self.dry_run(USAGE, ["a run cannot write ggml's blocks", "set tuning.quant to nf4 or none"], f"model.name={GGUF}",
                     "tuning.lora.init=pissa")
        self.dry_run(DONE, [], f"model.name={GGUF}", "tuning.lora.init=pissa", "tuning.quant=nf4")
        self.dry_run(USAGE, ["parallel.strategy is single, but the run has 2 processes"], "--nproc-per-node", "2", "parallel.strategy=single")

    def test_a_dry_run_warns_of_what_has_no_effect(self):
        self.real_model()
        done = self.dry_run(DONE, [], "tuning.mode=full", "tuning.lora.r=4")
        self.assertEqual(done.stderr.count("tuning.lora (r) has no effect with tuning.mode full"), 1, done.stderr)
        done = self.dry_run(DONE, [], "parallel.offload.base=cpu", "model.attention=flash", "parallel.timeout=3m", "train.beta=0.2")
        for idle in ("parallel.offload.base has no effect on a CPU", "model.attention has no effect on a CPU", "parallel.timeout has no effect on one process",
                     "train.beta has no effect with train.objective sft"):
            self.assertEqual(done.stderr.count(idle), 1, done.stderr)
        self.dry_run(USAGE, ["`parallel.strategy: ddp` keeps whole copies"], "--nproc-per-node", "4", "parallel.strategy=ddp", "parallel.dp_shard=2")
        self.dry_run(DONE, ["  strategy: fsdp\n", "  pp: 2\n"], "--nproc-per-node", "4", "parallel.pp=2", "parallel.dp_shard=2")
        self.dry_run(DONE, ["  strategy: hybrid\n", "# plan: fsdp 2 x ddp 2 on 4 processes\n"], "--nproc-per-node", "4", "parallel.dp_shard=2")
        self.dry_run(DONE, ["# plan: pipeline 2 x fsdp 2 on 4 processes\n"], "--nproc-per-node", "4", "parallel.pp=2", "parallel.strategy=fsdp")
        self.assertNotIn("# plan:", self.dry_run(DONE, []).stdout)
        done = self.dry_run(DONE, [], "--nproc-per-node", "4", "parallel.strategy=zero1", "parallel.dp_replicate=4")
        self.assertIn("parallel.strategy has no effect: parallel.dp_shard is 1 on 4 processes (ddp 4), so nothing is sharded", done.stderr)
        self.dry_run(USAGE, ["at   train.optimizer=muon from the command line; parallel.dp_shard=2 from the command line"], "--nproc-per-node", "2",
                     "parallel.dp_shard=2", "train.optimizer=muon", "tuning.mode=full")
        self.write("resolved.yaml", self.dry_run(DONE, [], "tuning.mode=full").stdout)
        self.assertNotIn("no effect", self.sftrun("config", "check", "--config", "resolved.yaml").stderr)

    def test_a_single_file_beside_an_index_is_named_once(self):
        self.real_model()
        words = ["--config", "run.yaml", "--device", "cpu"]
        commands = ["train", *words, "--dry-run"], ["memory-check", *words], ["preview", "--config", "run.yaml"]
        for command in commands:
            self.assertNotIn("index.json", self.expect(DONE, [], *command).stderr)
        self.write("model/model.safetensors.index.json", "{}")
        for command in commands:
            self.assertEqual(self.expect(DONE, [], *command).stderr.count("model has model.safetensors and model.safetensors.index.json: the single file is read"), 1)

    def test_preview_checks_validation_data_and_shows_it_with_val(self):
        self.real_model()
        preview = ["preview", "--config", "run.yaml"]
        self.write("val.jsonl", '{"text": "of validation"}\n{"txet": "misspelt"}\n')
        done = self.expect(DATA, ["val.jsonl:2"], *preview, "data.val=val.jsonl", "--json")
        self.assertEqual([data["path"] for data in json.loads(done.stdout)["data_sets"]], ["train.jsonl"])
        done = self.expect(DATA, ["val.jsonl:2"], *preview, "--val", "-n", "1", "data.val=val.jsonl", "--json")
        self.assertEqual([data["path"] for data in json.loads(done.stdout)["data_sets"]], ["val.jsonl"])
        self.write("train.jsonl", '{"txet": "misspelt"}\n')
        self.write("val.jsonl", '{"text": "of validation"}\n')
        self.expect(DATA, ["train.jsonl:1"], *preview, "--val", "data.val=val.jsonl")
        self.write("train.jsonl", '{"text": "a"}\n')
        self.assertIn("reads the same files", self.expect(DONE, [], *preview, "data.val=train.jsonl").stderr)
        self.expect(USAGE, ["--val shows data.val, which is not set", "set data.val, or remove --val"], *preview, "--val")
        self.expect(USAGE, ["data.val_split takes its records from"], *preview, "--val", "data.val_split=1")

    def test_positions_that_the_model_does_not_have(self):
        self.real_model()
        config = json.loads((self.folder / "model/config.json").read_text())
        warning = "is more than the model's 128 positions"
        for scaling, warns in ((None, True), ({"rope_type": "linear", "factor": 16.0}, False), ({"rope_type": "dynamic", "factor": 2.0}, False)):
            self.write("model/config.json", json.dumps(config | {"max_position_embeddings": 128, "rope_scaling": scaling}))
            self.assertEqual(self.dry_run(DONE, [], "model.max_seq_len=2048").stderr.count(warning), int(warns), scaling)
            self.assertNotIn(warning, self.dry_run(DONE, [], "model.max_seq_len=128").stderr)

    def test_config_show_looks_at_a_model_that_is_here(self):
        self.real_model()
        show = ["config", "show", "--config", "run.yaml"]
        done = self.expect(DONE, ["# model: llama, ", "# steps: ", "  quant: none\n", "  strategy: single\n"], *show)
        self.assertEqual(json.loads(self.sftrun(*show, "--json").stdout)["tuning"]["quant"], "none")
        self.write("resolved.yaml", done.stdout)
        again = self.sftrun("config", "show", "--config", "resolved.yaml")
        self.assertEqual([line for line in again.stdout.splitlines() if line.startswith("  ")],
                         [line for line in done.stdout.splitlines() if line.startswith("  ")])
        self.expect(DONE, ["# owner/model is not a local file or directory", "  quant: auto\n"], *show, "model.name=owner/model")
        (self.folder / "train.jsonl").unlink()
        self.expect(DONE, ["# the data are not local: the number of steps is unknown", "  quant: none\n"], *show)

    def test_targets_are_checked_before_a_worker_starts(self):
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        done = self.expect(USAGE, ["no linear layer is named `qproj`"], "train", "--config", "run.yaml", "--device", "cpu",
                           "tuning.lora.target_modules=[qproj]")
        self.assertNotIn("run directory", done.stderr)
        self.assertFalse((self.folder / "runs").exists())
        self.expect(USAGE, ["at   tuning.lora.target_modules=[qproj] from the command line"], "memory-check", "--config", "run.yaml",
                    "--gpus", "8GB", "tuning.lora.target_modules=[qproj]")
        self.write("partial.yaml", RUN_YAML + "tuning:\n  mode: partial\n  trainable: [laers]\n")
        for command in ["train", "--device", "cpu"], ["memory-check", "--gpus", "8GB"]:
            self.expect(USAGE, ["matches no parameter", "at   tuning.trainable: laers, partial.yaml:5:"], *command, "--config", "partial.yaml")

    def test_workers_know_where_settings_are(self):
        """Which they name in errors that depend on the model and the data."""
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        self.write("run.yaml", RUN_YAML + "train:\n  router_aux_loss_coef: 0.01\n")
        self.environment.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29617")
        asked = self.request("train", "--config", "run.yaml", "--device", "cpu", "train.epochs=1", of="worker")
        self.assertEqual(asked["places"]["train.router_aux_loss_coef"], "run.yaml:4:3")
        self.assertEqual(asked["places"]["train.epochs"], "train.epochs=1 from the command line")
        self.assertNotIn("train.learning_rate", asked["places"])

    def test_pipes_in_a_run_directory_are_refused(self):
        """To open one waits for its other end, for ever."""
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        for name, code in (".lock", USAGE), ("logs/rank-0.log", FAILED):
            pipe = self.folder / "runs/run" / name
            pipe.parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(pipe)
            self.expect(code, [": is a named pipe, not a regular file", f"at   runs/run/{name}", "fix: remove or rename it"],
                        "train", "--config", "run.yaml", "--device", "cpu")
            pipe.unlink()
        run = self.folder / "runs/run"
        (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        os.mkfifo(run / "report.html")
        self.expect(FAILED, ["cannot write: is a named pipe, not a regular file", "at   runs/run/report.html"], "report", "runs/run")

    def test_report_of_a_file_names_its_run_directory(self):
        is_file = " is a file, and `sftrun report` takes run directories"
        self.expect(DATA, ["run.yaml" + is_file, "fix: train it first, then: sftrun report runs/run\n"], "report", "run.yaml")
        self.write("other.yaml", RUN_YAML + "output: { dir: results }\n")
        (self.folder / "results").mkdir()
        self.write("results/run.json", "{}")
        for name in "other.yaml", "results/run.json":
            self.expect(DATA, [name + is_file, "fix: name its run directory: sftrun report results\n"], "report", name)
        self.expect(DATA, ["train.jsonl" + is_file, "fix: name the output.dir of a run"], "report", "train.jsonl", "--output", "page.html")
        self.assertFalse((self.folder / "page.html").exists())

    def test_an_output_may_be_a_pipe(self):
        """Where the user names it."""
        pipe = self.folder / "page.html"
        os.mkfifo(pipe)
        self.write("metrics.jsonl", '{"step": 1, "loss": 2.0}\n')
        reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
        self.expect(DONE, [], "report", ".", "--output", "page.html")
        self.assertIn("</html>", reader.communicate(timeout=60)[0])
        self.assertTrue(pipe.is_fifo())

    def test_a_model_file_is_a_regular_file(self):
        """A pipe would be waited for, and what llama.cpp maps cannot be one."""
        shutil.rmtree(self.folder / "model")
        shutil.copytree(MODEL, self.folder / "model")
        os.mkfifo(self.folder / "pipe.gguf")
        (self.folder / "device.gguf").symlink_to("/dev/null")
        for name, kind in ("pipe.gguf", "a named pipe"), ("device.gguf", "a device"):
            for flags in [], ["--overwrite"]:
                self.expect(FAILED, [f"cannot write: is {kind}, not a regular file", f"at   {name}"], "merge", "--model", "model", "--output", name, *flags)

    def test_a_pipe_that_nobody_reads_is_not_waited_for_forever(self):
        os.mkfifo(self.folder / "page.html")
        self.write("metrics.jsonl", '{"step": 1, "loss": 2.0}\n')
        self.expect(FAILED, ["cannot write: nobody reads the named pipe", "at   page.html", "fix: start the program that reads it first"],
                    "report", ".", "--output", "page.html")

    def test_config_check_as_json(self):
        done = self.sftrun("config", "check", "--config", "run.yaml", "--json", "train.epochs=x", "train.sed=7")
        self.assertEqual(done.returncode, USAGE)
        answer = json.loads(done.stdout)
        self.assertFalse(answer["ok"])
        self.assertEqual([problem["at"] for problem in answer["problems"]],
                         ["train.epochs=x from the command line", "train.sed=7 from the command line"])
        answer = json.loads(self.sftrun("config", "check", "--config", "run.yaml", "--json", "train.epochs=1").stdout)
        self.assertEqual(answer["overrides"], [{"key": "train.epochs", "value": "1", "source": "command line"}])

    def test_config_show(self):
        show = ["config", "show", "--config", "run.yaml"]
        done = self.expect(DONE, ["# run.yaml on 2 devices", "# train.epochs=1 from command line", "  batch_size: 4\n",
                                  "  global_batch_size: 32\n", "dir: runs/run"], *show, "--world-size", "2", "train.epochs=1")
        self.write("resolved.yaml", done.stdout)
        again = self.sftrun("config", "show", "--config", "resolved.yaml")
        self.assertEqual([line for line in again.stdout.splitlines() if not line.startswith("#")],
                         [line for line in done.stdout.splitlines() if not line.startswith("#")])
        self.assertEqual(json.loads(self.sftrun(*show, "--json").stdout)["train"]["learning_rate"], 2e-4)

    def test_the_reference_is_the_committed_one(self):
        done = self.expect(DONE, [], "config", "reference")
        self.assertEqual(done.stdout, (ROOT / "docs/configuration.md").read_text(),
                         "sftrun config reference > docs/configuration.md")

    def test_the_schema_is_json(self):
        schema = json.loads(self.expect(DONE, [], "config", "schema").stdout)
        self.assertEqual(schema["properties"]["train"]["properties"]["epochs"]["anyOf"][0]["exclusiveMinimum"], 0)

    # ---- The machine file

    def test_the_machine_file_stands_in_for_launch_flags(self):
        (self.folder / "sftrun").mkdir()
        self.write("sftrun/machine.yaml", "devices: 3\ndtype: bf16\n")
        self.environment["CUDA_VISIBLE_DEVICES"] = ""  # three workers share no GPU
        train = ["train", "--config", "run.yaml", f"model.name={MODEL}", "train.batch_size=1", "train.max_steps=1", "--dry-run", "--device", "cpu"]
        done = self.expect(DONE, ["# override: model.dtype = bf16 (from "], *train[:-2])
        self.assertIn("global_batch_size: 30", done.stdout)  # the multiple of 3 below 32
        self.assertIn("devices: 3 (from", done.stderr)
        self.assertIn("global_batch_size: 32", self.expect(DONE, [], *train, "--nproc-per-node", "2").stdout)
        self.write("sftrun/machine.yaml", "devises: 3\n")
        self.expect(USAGE, ["unknown key `devises` in the machine file", "did you mean `devices`?"], *train)

    # ---- config init

    INIT = ["config", "init", "--model", str(MODEL), "--data", "train.jsonl"]

    def at_terminal(self, answers, *words):
        """Answers the questions of a command at a terminal, each when it is asked.   @return exit code and text"""
        primary, secondary = pty.openpty()
        process = subprocess.Popen([str(arguments.sftrun), *words], cwd=self.folder, env=self.environment, stdin=secondary, stdout=secondary,
                                   stderr=secondary, start_new_session=True)
        os.close(secondary)
        text, seen, rest = "", 0, list(answers)
        while True:
            try:
                text += os.read(primary, 4096).decode()
            except OSError:  # the command has ended
                break
            if text.endswith(": ") and len(text) > seen and rest:  # a question
                seen = len(text)
                os.write(primary, rest.pop(0).encode() + b"\n")
        os.close(primary)
        return process.wait(60), text.replace("\r", "")

    def test_init_writes_a_run_that_passes_a_dry_run(self):
        done = self.expect(DONE, ["This machine: ", "What to train: lora (", "Wrote run-1.yaml", "valid",
                                  "for validation: 0 (0: none, because the data have fewer than 100 records)"], *self.INIT, "-o", "run-1.yaml")
        self.expect(DONE, ["[0.05; for a JSONL file with fewer than 100 records 0]"], "config", "init", "--help")
        text = (self.folder / "run-1.yaml").read_text()
        self.assertIn(f"name: {MODEL}", text)
        self.assertIn("# ", text)
        self.assertNotIn("val_split", text)  # of one record
        self.assertIn("sftrun train --config run-1.yaml", done.stdout)
        self.expect(DONE, ["mode: lora", "r: 16"], "train", "--config", "run-1.yaml", "--dry-run", "--device", "cpu")

    def test_flags_answer_the_questions_of_init(self):
        self.expect(DONE, ["valid"], *self.INIT, "--mode", "full", "--max-seq-len", "64", "--epochs", "1.5", "--val-split", "0.1", "-o", "b.yaml")
        text = (self.folder / "b.yaml").read_text()
        for part in ["mode: full", "max_seq_len: 64 ", "epochs: 1.5", "val_split: 0.1 ", "learning_rate: 2.0e-5", "eval_strategy: epoch"]:
            self.assertIn(part, text)
        self.assertNotIn("lora:", text)

    def test_init_refuses_wrong_answers_and_existing_files(self):
        self.expect(USAGE, ["run.yaml exists already", "--overwrite"], *self.INIT)
        self.assertEqual((self.folder / "run.yaml").read_text(), RUN_YAML)
        self.expect(USAGE, ["`lor` is not one of lora, qlora or full", "did you mean `lora`?", "at   --mode"], *self.INIT, "--mode", "lor", "-o", "c.yaml")
        self.expect(USAGE, ["`no/such/data` is neither a file"], "config", "init", "--data", "no/such/data", "-o", "c.yaml")
        self.expect(USAGE, ["`trian.jsonl` is neither", "did you mean `train.jsonl`?"], "config", "init", "--data", "trian.jsonl", "-o", "c.yaml")
        shutil.copytree(MODEL, self.folder / "llama")
        self.expect(USAGE, ["`lama` is neither", "did you mean `llama`?", "fix: write, for example, --model "],
                    "config", "init", "--model", "lama", "-o", "c.yaml")
        (self.folder / "train.jsonl").unlink()
        self.expect(USAGE, ['has no answer to "Training data"', "give --data"], "config", "init", "--model", str(MODEL), "-o", "c.yaml")
        self.expect(USAGE, ["requires --machine"], "config", "init", "--nodes", "2", "-o", "c.yaml")
        self.expect(USAGE, ["--machine and --mode cannot be used together"], "config", "init", "--machine", "--mode", "lora")
        self.assertFalse((self.folder / "c.yaml").exists())

    def test_names_with_special_characters_are_quoted(self):
        name = "data: #1 \"x\".jsonl"
        self.write(name, '{"text": "hello"}\n')
        self.expect(DONE, ["valid"], "config", "init", "--model", str(MODEL), "--data", name, "-o", "d.yaml")
        shown = json.loads(self.expect(DONE, [], "config", "show", "--config", "d.yaml", "--json").stdout)
        self.assertEqual(shown["data"]["train"], name)

    def test_init_asks_at_a_terminal(self):
        answers = ["no/such/model", str(MODEL), "", "0", "qlora", "", "2"]  # the first is refused, empty ones take the default
        code, text = self.at_terminal(answers, "config", "init", "-o", "e.yaml")
        self.assertEqual(code, DONE, text)
        for part in ["`no/such/model` is neither a file", "Training data (--data)", "[train.jsonl]", "Wrote e.yaml"]:
            self.assertIn(part, text)
        written = (self.folder / "e.yaml").read_text()
        for part in ["mode: qlora", "epochs: 2", "train: train.jsonl"]:
            self.assertIn(part, written)

    def test_init_writes_the_machine_file(self):
        self.environment["CUDA_VISIBLE_DEVICES"] = ""
        self.environment["SFTRUN_NVML_LIBRARY"] = "/no/such/library"
        file = self.folder / "sftrun/machine.yaml"
        self.expect(DONE, ["Devices: auto (", f"Wrote {file}"], "config", "init", "--machine")
        self.assertEqual([line for line in file.read_text().splitlines() if not line.startswith("#")], [])
        alone = self.sftrun("config", "init", "--machine", "--yes", "--output", "one.yaml", "--master", "node-a:29500")
        self.assertIn("--master has no effect with one machine; add their number: --nodes 2", alone.stderr)
        words = ["config", "init", "--machine", "--nodes", "2", "--node-rank", "1", "--master", "node-a:29500"]
        done = self.expect(DONE, [f"The earlier file is now {file}.old"], *words, "--devices", "2", "--dtype", "bf16", "--strategy", "zero2")
        self.assertIn("On machine 0: sftrun config init --machine --nodes 2 --node-rank 0 --master node-a:29500 --dtype bf16 --strategy zero2", done.stdout)
        settings = dict(line.split("#")[0].strip().split(": ") for line in file.read_text().splitlines() if not line.startswith("#"))
        self.assertEqual(settings, {"devices": "2", "dtype": "bf16", "strategy": "zero2", "nodes": "2", "node_rank": "1",
                                    "master": "node-a:29500"})
        shown = self.expect(DONE, ["dtype: bf16", "strategy: zero2"], "train", "--config", "run.yaml", f"model.name={MODEL}", "train.batch_size=1",
                            "train.max_steps=1", "--dry-run")
        self.assertIn("node 1 of 2 (world size 4)", shown.stdout)
        self.expect(DONE, ["Compute dtype: bf16"], "config", "init", "--machine")  # earlier answers are the defaults
        self.assertIn("node_rank: 1", file.read_text())

    def test_the_machine_wizard_refuses_wrong_answers(self):
        self.environment["SFTRUN_NVML_LIBRARY"] = "/no/such/library"
        machine = ["config", "init", "--machine"]
        self.expect(USAGE, ["`two` is not auto, cpu, a number or a list"], *machine, "--devices", "two")
        self.expect(USAGE, ["`zero5` is not one of auto, ddp"], *machine, "--strategy", "zero5")
        self.expect(USAGE, ["`2` is not a number from 0 to 1"], *machine, "--nodes", "2", "--node-rank", "2")
        self.expect(USAGE, ["`node-a` is not host:port"], *machine, "--nodes", "2", "--node-rank", "1", "--master", "node-a")
        self.expect(USAGE, ['has no answer to "Address of machine 0"'], *machine, "--nodes", "2", "--node-rank", "1")
        self.assertFalse((self.folder / "sftrun/machine.yaml").exists())

    # ---- How soon it answers

    def test_answers_within_50_ms(self):
        if arguments.sanitized:
            self.skipTest("built with sanitizers, whose own start takes longer")
        self.write("wrong.yaml", RUN_YAML + "train: { epochs: three, learning_rte: 1 }\n")
        for words in (["--help"], ["train", "--help"], ["--version"], ["config", "check", "--config", "wrong.yaml"],
                      ["train", "--config", "wrong.yaml"]):
            best = float("inf")
            for _ in range(5):  # processor time: what the program takes, not what the machine is busy with
                begin = children_seconds()
                self.sftrun(*words)
                best = min(best, children_seconds() - begin)
            self.assertLess(best, 0.05, " ".join(words))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--sftrun", "--fake-engine", "--engine-without-torch", "--fake-torch"):
        parser.add_argument(name, required=True, type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--sanitized", action="store_true", help="the program was built with sanitizers")
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
