#!/usr/bin/env python3
"""A model by its name on the hub, through training and back: two workers, one download. Standard library only.

    tests/hub/training_test.py --sftrun build/bin/sftrun

The run is stamped with the hub's name, not with a path of this machine, so that its adapter loads elsewhere.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import fake_hub
import hub_case

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
NAME, TOKEN = "owner/model", "hf_ThisIsTheSecretToken1234567890"
RUN = """\
model: {{ name: {name}, max_seq_len: 128{more} }}
tuning: {{ lora: {{ r: 4, alpha: 8 }} }}
data: {{ train: toy.jsonl }}
train: {{ max_steps: 2, global_batch_size: 4{batch} }}
output: {{ dir: run }}
"""

arguments = None


class TrainingTest(unittest.TestCase):
    def setUp(self):
        self.hub = fake_hub.FakeHub()
        self.addCleanup(self.hub.close)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        records = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"{i + 1}."}]}
                   for i in range(8)]
        (self.folder / "toy.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "SFTRUN_"))
                and not k.lower().endswith("_proxy")}
        self.environment = kept | {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.folder / "home"), "HF_TOKEN": TOKEN,
                                   "SFTRUN_HUB_RETRY_DELAY": "0.01", "XDG_CONFIG_HOME": str(self.folder)}

    def write(self, name, more="", batch=", batch_size: 1"):
        (self.folder / "run.yaml").write_text(RUN.format(name=name, more=more, batch=batch))

    def sftrun(self, *words, **environment):
        done = subprocess.run([str(arguments.sftrun), *words], cwd=self.folder, env=self.environment | environment,
                              capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(TOKEN, done.stdout + done.stderr)
        return done

    def train(self, **environment):
        return self.sftrun("train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "2", **environment)

    def json(self, name):
        return json.loads((self.folder / name).read_text())

    def tearDown(self):
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(TOKEN.encode(), path.read_bytes(), path)

    def test_a_revision_of_a_model(self):
        files = {p.name: p.read_bytes() for p in (MODELS / "tied-gqa").iterdir() if not p.name.startswith("reference")}
        repo = self.hub.add(NAME, {"config.json": b"{}"})
        repo.commit(files, "v1")
        self.write(f"{NAME}@v1")
        done = self.train()
        self.assertEqual(len(self.hub.seen("hub", "GET", "/revision/")), 1, "one process asks, once")
        self.assertEqual(max(self.hub.counts("storage", "GET").values()), 1)
        self.assertIn("downloading owner/model@v1: 6 files", done.stderr)
        self.assertEqual(self.json("run/run.json")["base_model"], NAME)
        adapter = self.json("run/adapter/adapter_config.json")
        self.assertEqual((adapter["base_model_name_or_path"], adapter["revision"]), (NAME, "v1"))
        resolved = (self.folder / "run/config.resolved.yaml").read_text()
        self.assertRegex(resolved, r"name: owner/model\n")
        self.assertRegex(resolved, r"revision: v1\n")
        self.assertEqual((self.folder / "run/adapter/tokenizer.json").read_bytes(), files["tokenizer.json"])

        self.hub.requests.clear()
        said = self.sftrun("generate", "--adapter", "run/adapter", "--prompt", "hi", "--max-new-tokens", "2", "--device", "cpu",
                           HF_HUB_OFFLINE="1")
        self.assertIn("owner/model@v1: commit", said.stderr)
        adapter = {p.name: p.read_bytes() for p in (self.folder / "run/adapter").iterdir()}
        self.hub.add("owner/adapter", adapter)
        again = self.sftrun("generate", "--adapter", "owner/adapter", "--prompt", "hi", "--max-new-tokens", "2", "--device", "cpu")
        self.assertEqual(again.stdout, said.stdout)
        self.hub.requests.clear()
        self.sftrun("merge", "--adapter", "owner/adapter", "--output", "merged")
        self.assertTrue((self.folder / "merged/config.json").exists())
        self.sftrun("preview", "--config", "run.yaml")
        self.write(NAME, more=", revision: v1")
        (self.folder / "run").rename(self.folder / "first")
        self.train(HF_HUB_OFFLINE="1")
        self.assertEqual(self.json("run/run.json")["base_model"], NAME)
        self.assertEqual(self.hub.requests, [])

    def test_batch_size_auto_and_one_gguf_file(self):
        self.hub.add("owner/gguf", {p.name: p.read_bytes() for p in (MODELS / "llama3-gguf").glob("*.gguf")})
        name = "hf://owner/gguf/model-F16.gguf"
        self.write(name, batch="")
        self.train()
        self.assertEqual(self.json("run/run.json")["base_model"], name)
        self.assertEqual(self.json("run/adapter/adapter_config.json")["base_model_name_or_path"], name)
        self.assertEqual(len(self.hub.seen("storage", "GET")), 1)
        self.sftrun("generate", "--adapter", "run/adapter", "--prompt", "hi", "--max-new-tokens", "2", "--device", "cpu",
                    HF_HUB_OFFLINE="1")

    def test_a_subset_of_a_data_set(self):
        """Trained on is what the file of that subset holds, and nothing else."""
        model = MODELS / "tied-gqa"
        toy = (self.folder / "toy.jsonl").read_bytes()
        head = b"---\nconfigs:\n- {config_name: chosen, data_files: chosen/*}\n- {config_name: raw, data_files: raw/*}\n---\n"
        self.hub.add("owner/data", {"README.md": head, "chosen/a.jsonl": toy, "raw/a.jsonl": toy.replace(b"?", b"??") * 3}, kind="datasets")

        def losses(name, train):
            (self.folder / "run.yaml").write_text(RUN.format(name=model, more="", batch=", batch_size: 1").replace("toy.jsonl", train))
            self.sftrun("train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1", f"output.dir={name}")
            metrics = map(json.loads, (self.folder / name / "metrics.jsonl").read_text().splitlines())
            return [line["loss"] for line in metrics if "loss" in line]

        expected = losses("files", "toy.jsonl")
        self.assertEqual(len(expected), 2)
        self.assertEqual(losses("chosen", "{path: owner/data, name: chosen}"), expected)
        self.assertNotEqual(losses("raw", "{path: owner/data, name: raw}"), expected)
        self.assertRegex((self.folder / "raw/config.resolved.yaml").read_text(), '"?name"?: raw')

    def test_data_is_looked_at_before_a_model_is_downloaded(self):
        self.write(NAME)
        (self.folder / "toy.jsonl").unlink()
        done = subprocess.run([str(arguments.sftrun), "train", "--config", "run.yaml"], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 3)
        self.assertIn("data.train: no such file", done.stderr)
        self.assertEqual(self.hub.requests, [])


if __name__ == "__main__":
    arguments, words = hub_case.parse(__doc__)
    unittest.main(argv=words)
