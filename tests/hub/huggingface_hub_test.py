#!/usr/bin/env python3
"""The cache beside huggingface_hub's own code: each finds, and goes on with, what the other downloaded.

    .venv-ref/bin/python tests/hub/huggingface_hub_test.py --sftrun build/bin/sftrun

Both are pointed at the same hub on this machine (fake_hub.py). huggingface_hub reads its settings when it is imported, so
each of its calls is a process of its own.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import fake_hub
import hub_case

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
MODEL_FILES = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
               "tokenizer_config.json"]
NAME, TOKEN = "owner/model", "hf_ThisIsTheSecretToken1234567890"

arguments = None


class HuggingfaceHubTest(unittest.TestCase):
    def setUp(self):
        self.hub = fake_hub.FakeHub()
        self.addCleanup(self.hub.close)
        self.repo = self.hub.add(NAME, {n: (MODEL / n).read_bytes() for n in MODEL_FILES} | {"README.md": b"# hello\n"})
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.cache = self.folder / "home/hub"
        (self.folder / "in.jsonl").write_text('{"text": "hello there"}\n')
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "SFTRUN_"))
                and not k.lower().endswith("_proxy")}
        self.environment = kept | {"HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.folder / "home"), "HF_TOKEN": TOKEN,
                                   "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                                   "HF_HUB_DISABLE_UPDATE_CHECK": "1", "SFTRUN_HUB_RETRY_DELAY": "0.01"}

    def start(self, command, **environment):
        return subprocess.Popen([str(c) for c in command], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=self.environment | environment)

    def finish(self, process):
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, err)
        return out

    def sftrun(self, *words, **environment):
        return self.finish(self.start([arguments.sftrun, *words], **environment))

    def start_python(self, code, **environment):
        return self.start([sys.executable, "-W", "ignore", "-c", code], **environment)

    def python(self, code, **environment):
        return self.finish(self.start_python(code, **environment)).strip()

    def snapshot(self, revision="main"):
        return self.cache / "models--owner--model/snapshots" / self.repo.commit_of(revision)

    def tree(self):
        """Every file and link below the cache but locks and notes, with what it holds or where it leads."""
        ours = ("sftrun-trees", "trees", ".locks", "CACHEDIR.TAG", ".no_exist")
        return {str(p.relative_to(self.cache)): os.readlink(p) if p.is_symlink() else p.read_bytes()
                for p in self.cache.rglob("*") if not p.is_dir() and not any(part in ours for part in p.parts)}

    def test_the_layout_is_the_same_to_the_byte(self):
        self.python(f"import huggingface_hub as h; h.snapshot_download({NAME!r}, ignore_patterns=['README.md'])")
        theirs = self.tree()
        self.assertIn("models--owner--model/refs/main", theirs)
        locks = sorted(p.name for p in self.cache.glob(".locks/*/*"))
        subprocess.run(["rm", "-r", self.folder / "home"], check=True)
        self.sftrun("download", NAME)
        self.assertEqual(self.tree(), theirs)
        self.assertEqual(sorted(p.name for p in self.cache.glob(".locks/*/*")), locks)

    def test_they_find_what_we_downloaded(self):
        path = self.sftrun("download", NAME).strip()
        self.hub.requests.clear()
        code = f"import huggingface_hub as h; print(h.snapshot_download({NAME!r}, local_files_only=True))"
        self.assertEqual(self.python(code), path)
        self.assertEqual(self.python(code.replace(", local_files_only=True", ""), HF_HUB_OFFLINE="1"), path)
        code = f"import huggingface_hub as h; print(h.try_to_load_from_cache({NAME!r}, 'config.json'))"
        self.assertEqual(self.python(code), f"{path}/config.json")
        code = ("import huggingface_hub as h, json; i = h.scan_cache_dir(); r, = i.repos; print(json.dumps([r.repo_id, "
                "sorted(f.file_name for v in r.revisions for f in v.files), [str(w) for w in i.warnings], list(r.refs)]))")
        self.assertEqual(json.loads(self.python(code)), [NAME, MODEL_FILES, [], ["main"]])
        self.assertEqual(self.hub.requests, [])

    def test_transformers_loads_what_we_downloaded(self):
        self.sftrun("download", NAME)
        self.hub.requests.clear()
        ids = json.loads(self.sftrun("tokenize", "--model", str(MODEL), "--input", "in.jsonl", "--output", "-"))["input_ids"]
        code = (f"import transformers as t, json; c = t.AutoConfig.from_pretrained({NAME!r}); "
                f"k = t.AutoTokenizer.from_pretrained({NAME!r}); m = t.AutoModelForCausalLM.from_pretrained({NAME!r}); "
                "print(json.dumps([c.model_type, k('hello there')['input_ids'], m.num_parameters() > 0]))")
        self.assertEqual(json.loads(self.python(code, HF_HUB_OFFLINE="1").splitlines()[-1]), ["llama", ids, True])
        self.assertEqual(self.hub.requests, [])

    def test_we_find_what_they_downloaded(self):
        self.python(f"import huggingface_hub as h; h.snapshot_download({NAME!r})")
        self.hub.requests.clear()
        self.assertEqual(self.sftrun("download", NAME, HF_HUB_OFFLINE="1").strip(), str(self.snapshot()))
        self.sftrun("tokenize", "--model", NAME, "--input", "in.jsonl", "--output", "-")
        self.assertEqual(self.hub.requests, [])
        asked = json.loads(self.sftrun("download", NAME, "--json"))
        self.assertEqual(asked["downloaded_bytes"], 0)

    def test_we_find_what_they_downloaded_file_by_file(self):
        code = f"import huggingface_hub as h; [h.hf_hub_download({NAME!r}, n) for n in {MODEL_FILES!r}]"
        self.python(code)
        self.assertEqual(self.sftrun("download", NAME, HF_HUB_OFFLINE="1").strip(), str(self.snapshot()))

    def test_parts_of_a_download_of_theirs_are_completed(self):
        self.python(f"import huggingface_hub as h; h.snapshot_download({NAME!r}, allow_patterns=['*.json'])")
        self.hub.requests.clear()
        self.sftrun("download", NAME)
        self.assertEqual(sorted(p.name for p in self.snapshot().iterdir()), MODEL_FILES)
        self.assertEqual(len(self.hub.seen(None, "GET", "resolve|bucket")), 3)  # the template, and the weights' redirect

    def test_other_revisions(self):
        self.repo.commit({"config.json": b"{}", "model.safetensors": b"v2" * 40}, "refs/pr/3")
        self.sftrun("download", NAME + "@refs/pr/3")
        code = f"import huggingface_hub as h; print(h.snapshot_download({NAME!r}, revision='refs/pr/3', local_files_only=True))"
        self.assertEqual(self.python(code), str(self.snapshot("refs/pr/3")))

    def test_both_at_once_download_once(self):
        self.hub.fault("GET", "/bucket/", fake_hub.stall_at(9000))
        ours = self.start([arguments.sftrun, "download", NAME], HF_HUB_DOWNLOAD_TIMEOUT="60")
        for _ in range(600):
            if self.hub.seen("storage", "GET"):
                break
            time.sleep(0.05)
        theirs = self.start_python(f"import huggingface_hub as h; print(h.snapshot_download({NAME!r}))")
        for _ in range(600):
            if len(self.hub.seen("hub", "HEAD", "model.safetensors")) >= 2:
                break
            time.sleep(0.05)
        self.hub.released.set()
        self.assertEqual(self.finish(ours), self.finish(theirs))
        self.assertEqual(self.hub.counts("storage", "GET").total(), 1)  # they waited for our lock

    def test_data_sets(self):
        self.hub.add("owner/data", {"train.jsonl": b'{"text": "a"}\n', "test.jsonl": b'{"text": "b"}\n'}, kind="datasets")
        path = self.sftrun("download", "hf://datasets/owner/data").strip()
        code = "import huggingface_hub as h; print(h.snapshot_download('owner/data', repo_type='dataset', local_files_only=True))"
        self.assertEqual(self.python(code), path)


if __name__ == "__main__":
    arguments, words = hub_case.parse(__doc__)
    unittest.main(argv=words)
