"""What the tests of commands against the hub of fake_hub.py share."""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import fake_hub

TOKEN = "hf_ThisIsTheSecretToken1234567890abcd"


def parse(document):
    """@return the arguments, with the program's absolute path as `sftrun`; the words that are for unittest.main"""
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    arguments.sftrun = arguments.sftrun.resolve()
    return arguments, [sys.argv[0], *rest]


class HubCase(unittest.TestCase):
    """A hub, a folder and an environment of one's own. Afterwards no output and no file may hold the token, and the storage host must not have seen it."""

    program = None  # set by the main part of a test's file

    @classmethod
    def setUpClass(cls):
        cls.hub = fake_hub.FakeHub()

    @classmethod
    def tearDownClass(cls):
        cls.hub.close()

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name).resolve()
        self.home = self.folder / "home"
        self.hub.reset()
        self.outputs = []
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS_", "SFTRUN_"))
                and not k.lower().endswith("_proxy")}
        self.environment = kept | {
            "HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(self.home), "HF_TOKEN": TOKEN, "SFTRUN_HUB_RETRY_DELAY": "0.01",
            "HF_HUB_DOWNLOAD_TIMEOUT": "5", "XDG_CONFIG_HOME": str(self.folder)}

    def tearDown(self):
        self.hub.released.set()
        for output in self.outputs:
            self.assertNotIn(TOKEN, output)
        for path in self.folder.rglob("*"):
            if path.is_file():
                self.assertNotIn(TOKEN.encode(), path.read_bytes(), path)
            self.assertNotIn(TOKEN, str(path))
        for _, _, path, headers in self.hub.seen("storage"):
            self.assertNotIn("Authorization", headers, path)

    def start(self, *words, environment=None, **options):
        return subprocess.Popen([str(self.program), *map(str, words)], cwd=self.folder, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.environment | (environment or {}), **options)

    def finish(self, process):
        out, err = process.communicate(timeout=60)
        self.outputs += [out, err]
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
