#!/usr/bin/env python3
"""Plans of models on a hub: sftrun memory-check reads configuration and headers by HTTP ranges. Standard library only.

    tests/hub/plan_test.py --sftrun build/bin/sftrun

The hub is on this machine (fake_hub.py). The plan must be that of the same files in a directory, and nothing may be left in the cache.
"""

import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import fake_hub

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/smoke"))
import memory_plan  # noqa: E402

NAME, DONE, DATA, FAILED = "owner/model", 0, 3, 5
WEIGHTS = "/bucket/"
FIRST_BYTES = 256 << 10  # of a weight file
RUN = "model: {{ name: {name} }}\ntuning: {{ mode: {mode} }}\ndata: {{ train: train.jsonl }}\ntrain: {{ batch_size: 1, grad_accum: 1 }}\n"

arguments = None


def with_long_header(weights: bytes, more: int) -> bytes:
    """A safetensors file with `more` bytes of metadata."""
    length = struct.unpack("<Q", weights[:8])[0]
    header = json.loads(weights[8:8 + length]) | {"__metadata__": {"note": "n" * more}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + weights[8 + length:]


class PlanTest(unittest.TestCase):
    def setUp(self):
        self.hub = fake_hub.FakeHub()
        self.addCleanup(self.hub.close)
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        (self.folder / "tmp").mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "SFTRUN_"))
                and not k.lower().endswith("_proxy")}
        self.environment = kept | {
            "HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.folder / "home"), "SFTRUN_HUB_RETRY_DELAY": "0.01",
            "XDG_CONFIG_HOME": str(self.folder), "TMPDIR": str(self.folder / "tmp")}

    def check(self, name, mode="lora", code=DONE, **environment):
        (self.folder / "run.yaml").write_text(RUN.format(name=name, mode=mode))
        done = subprocess.run([str(arguments.sftrun), "memory-check", "--config", "run.yaml", "--gpus", "24GB", "--json"], cwd=self.folder,
                              env=self.environment | environment, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertEqual(list((self.folder / "tmp").iterdir()), [], "temporary files are left")
        return done

    def assert_same_plan(self, files, mode="lora", name=NAME):
        """As for the files in a directory; returns the ranges that were asked of the storage host."""
        local = self.folder / "local"
        local.mkdir(exist_ok=True)
        for path, content in files.items():
            (local / path).write_bytes(content)
        self.hub.add(NAME, files)
        expected = json.loads(self.check(local if not name.endswith(".gguf") else local / name.split("/")[-1], mode).stdout)
        plan = json.loads(self.check(name, mode).stdout)
        self.assertEqual(plan, expected)
        self.assertFalse((self.folder / "home/hub").exists(), "the plan is no download")
        return [headers.get("Range") for _, _, _, headers in self.hub.seen("storage", "GET")]

    def wide_model(self):
        memory_plan.write_model(self.folder / "wide", {"num_hidden_layers": 2})
        return {name: (self.folder / "wide" / name).read_bytes() for name in ("config.json", "model.safetensors")}

    def test_headers_of_dense_weights(self):
        files = self.wide_model()
        self.assertGreater(len(files["model.safetensors"]), 4 * FIRST_BYTES)
        self.assertEqual(self.assert_same_plan(files), [f"bytes=0-{FIRST_BYTES - 1}"])

    def test_a_header_that_goes_on(self):
        files = self.wide_model()
        files["model.safetensors"] = with_long_header(files["model.safetensors"], 2 * FIRST_BYTES)
        self.assertEqual(self.assert_same_plan(files), [f"bytes=0-{FIRST_BYTES - 1}", f"bytes=0-{8 * FIRST_BYTES - 1}"])

    def test_quantised_weights(self):
        model = ROOT / "tests/data/models/bnb-nf4"
        self.assert_same_plan({path.name: path.read_bytes() for path in model.iterdir() if path.is_file()}, mode="qlora")

    def test_gguf(self):
        model = ROOT / "tests/data/converted/gemma3-Q8_0.gguf"
        self.assert_same_plan({model.name: model.read_bytes()}, name=f"hf://{NAME}/{model.name}")

    def test_a_host_without_ranges(self):
        self.hub.fault("GET", WEIGHTS, fake_hub.ignore_range)
        self.assert_same_plan(self.wide_model())

    def test_a_connection_that_breaks(self):
        self.hub.fault("GET", WEIGHTS, fake_hub.cut_at(1000), times=2)
        self.assert_same_plan(self.wide_model())

    def test_without_a_network(self):
        self.hub.add(NAME, self.wide_model())
        done = self.check(NAME, code=DATA, HF_HUB_OFFLINE="1")
        self.assertIn("is not in the cache", done.stderr)
        self.assertIn("HF_HUB_OFFLINE forbids downloading it", done.stderr)
        self.hub.close()
        self.assertIn("check the network (HF_ENDPOINT", self.check(NAME, code=FAILED).stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, required=True)
    global arguments
    arguments, rest = parser.parse_known_args()
    arguments.sftrun = arguments.sftrun.resolve()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
