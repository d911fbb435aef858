#!/usr/bin/env python3
"""sftrun download against a hub on this machine that misbehaves on purpose (fake_hub.py). Standard library only.

    tests/hub/download_test.py --sftrun build/bin/sftrun

Every command runs with a token in its environment (unless a case says otherwise), and after every case no output, no
file and no argument list may hold it, and the storage host must not have seen it.
"""

import hashlib
import json
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import threading
import time
import unittest

import fake_hub
import hub_case
from fake_hub import announce, body, chunked, corrupt, cut_at, hang_up, ignore_range, no_http, redirect, stall_at, status
from fake_hub import wrong_range
from hub_case import TOKEN

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
MODEL_FILES = ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
               "tokenizer_config.json"]
DONE, USAGE, DATA, FAILED, STOPPED, INTERRUPTED = 0, 2, 3, 5, 75, 130
NAME = "owner/model"
WEIGHTS = "/bucket/"

arguments = None


def content_of(*names, folder=MODEL):
    return {name: (folder / name).read_bytes() for name in names}


def model_files(**more):
    return content_of(*MODEL_FILES) | more


class DownloadTest(hub_case.HubCase):
    def setUp(self):
        super().setUp()
        self.cache = self.home / "hub"

    # ---- Running it

    def sftrun(self, *words, **options):
        return self.finish(self.start(*words, **options))

    def download(self, name=NAME, *flags, code=DONE, **options):
        done = self.sftrun("download", name, *flags, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def refused(self, code, parts, name=NAME, *flags, **options):
        """The command fails so, and leaves nothing half done behind."""
        done = self.download(name, *flags, code=code, **options)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"(?m)^error: ")
        self.assertRegex(done.stderr, r"(?m)^  fix: ")
        self.assert_snapshots_whole()
        return done

    # ---- What must hold of a cache

    def repo_folder(self, name=NAME, kind="models"):
        return self.cache / f"{kind}--{name.replace('/', '--')}"

    def assert_snapshots_whole(self):
        """Every file of every snapshot is a relative link to a blob whose content hashes to its name."""
        for path in self.cache.glob("*/snapshots/*/**/*"):
            if path.is_dir():
                continue
            self.assertTrue(path.is_symlink(), path)
            self.assertFalse(os.path.isabs(os.readlink(path)))
            content = path.read_bytes()
            self.assertIn(path.resolve().name, (hashlib.sha256(content).hexdigest(), fake_hub.git_blob(content)))
            self.assertEqual(path.resolve().parent.name, "blobs")

    def assert_snapshot(self, files, name=NAME, kind="models", revision="main"):
        folder = self.repo_folder(name, kind)
        commit = self.hub.repos[kind, name].commit_of(revision)
        snapshot = folder / "snapshots" / commit
        found = {str(p.relative_to(snapshot)): p.read_bytes() for p in snapshot.rglob("*") if not p.is_dir()}
        self.assertEqual(sorted(found), sorted(files))
        self.assertEqual(found, {p: self.hub.repos[kind, name].commits[commit][p] for p in files})
        self.assert_snapshots_whole()
        self.assertEqual(list(folder.glob("blobs/*.incomplete")), [])
        self.assertEqual(list(self.cache.rglob(".tmp-*")), [])
        if revision != commit:
            self.assertEqual((folder / "refs" / revision).read_text(), commit)
        return snapshot

    def incomplete(self, name=NAME):
        return list(self.repo_folder(name).glob("blobs/*.incomplete"))

    def wait_for(self, condition):
        for _ in range(600):
            if result := condition():
                return result
            time.sleep(0.05)
        self.fail("waited in vain")

    # ---- What is downloaded, and where to

    def test_what_a_model_needs_into_the_cache(self):
        more = {"pytorch_model.bin": b"p" * 100, "onnx/model.onnx": b"o", "original/consolidated.safetensors": b"c",
                "consolidated.safetensors": b"c", "README.md": b"# hello", "model.fp16.safetensors": b"half"}
        self.hub.add(NAME, model_files(**more))
        done = self.download()
        snapshot = self.assert_snapshot(MODEL_FILES)
        self.assertEqual(done.stdout, f"{snapshot}\n")
        self.assertEqual(os.readlink(snapshot / "config.json"),
                         "../../blobs/" + fake_hub.git_blob(content_of("config.json")["config.json"]))
        self.assertTrue((self.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55"))
        self.assertEqual(len(list(self.cache.glob(".locks/models--owner--model/*.lock"))), len(MODEL_FILES))

    def test_a_second_time_asks_only_what_is_new(self):
        self.hub.add(NAME, model_files())
        self.assertGreater(json.loads(self.download(NAME, "--json").stdout)["downloaded_bytes"], 60000)
        self.hub.requests.clear()
        again = json.loads(self.download(NAME, "--json", "--quiet").stdout)
        self.assertEqual((again["downloaded_bytes"], again["repo"], again["revision"]), (0, NAME, "main"))
        self.assertEqual(again["files"], MODEL_FILES)
        self.assertEqual([r for r in self.hub.requests if "/api/" not in r[2]], [])

    def test_a_new_commit_shares_what_did_not_change(self):
        repo = self.hub.add(NAME, model_files())
        self.download()
        repo.commit(model_files(**{"config.json": b"{}"}), "main")
        self.hub.requests.clear()
        self.download()
        self.assert_snapshot(MODEL_FILES)
        self.assertEqual(len(self.hub.seen(None, "GET", "resolve|bucket")), 1)  # config.json
        self.assertEqual(len(list(self.repo_folder().glob("snapshots/*"))), 2)

    def test_revisions(self):
        repo = self.hub.add(NAME, model_files())
        commit = repo.commit(model_files(**{"config.json": b"{ }"}), "v1.0", "refs/pr/7")
        self.download(NAME + "@v1.0")
        self.assert_snapshot(MODEL_FILES, revision="v1.0")
        self.download(NAME, "--revision", "refs/pr/7")
        self.assert_snapshot(MODEL_FILES, revision="refs/pr/7")
        self.download(f"hf://{NAME}@{commit}")
        self.assertEqual(sorted(str(p.relative_to(self.repo_folder() / "refs")) for p in self.repo_folder().rglob("refs/**/*")
                                if p.is_file()), ["refs/pr/7", "v1.0"])
        self.refused(DATA, ["no revision `v2`"], NAME + "@v2")
        self.refused(USAGE, ["are different"], NAME + "@v1.0", "--revision", "main")
        self.refused(USAGE, ["is not a valid revision"], NAME, "--revision", "../../x")

    def test_shards_with_their_index(self):
        sharded = MODEL.parent / "linear-bias-sharded"
        names = sorted(p.name for p in sharded.iterdir() if not p.name.startswith("reference"))
        self.hub.add(NAME, content_of(*names, folder=sharded) | {"consolidated.safetensors": b"the same again"})
        self.download()
        self.assert_snapshot(names)

    def test_listings_of_several_pages(self):
        self.hub.add(NAME, model_files())
        self.hub.page_size = 2
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_adapters(self):
        self.hub.add(NAME, {"adapter_config.json": b"{}", "adapter_model.safetensors": b"A" * 50, "sftrun_base.json": b"{}", "README.md": b"x"})
        self.download()
        self.assert_snapshot(["adapter_config.json", "adapter_model.safetensors", "sftrun_base.json"])

    def test_gguf(self):
        self.hub.add(NAME, {"a-q8_0.gguf": b"G" * 100, "b-q4_0.gguf": b"g" * 100, "mmproj-f16.gguf": b"i"})
        self.refused(DATA, ["has 2 .gguf files: a-q8_0.gguf, b-q4_0.gguf", f"hf://{NAME}/a-q8_0.gguf"])
        done = self.download(f"hf://{NAME}/b-q4_0.gguf")
        snapshot = self.assert_snapshot(["b-q4_0.gguf"])
        self.assertEqual(done.stdout, f"{snapshot / 'b-q4_0.gguf'}\n")
        self.refused(DATA, ["has no file or folder b-q4_0.ggu", f"did you mean hf://{NAME}/b-q4_0.gguf?"],
                     f"hf://{NAME}/b-q4_0.ggu")

    def test_one_gguf_needs_no_name(self):
        self.hub.add(NAME, {"a-q8_0.gguf": b"G" * 100, "mmproj-f16.gguf": b"i", "README.md": b"x"})
        self.assertEqual(pathlib.Path(self.download().stdout.strip()).name, "a-q8_0.gguf")

    def test_weights_that_are_not_read(self):
        self.hub.add(NAME, {"config.json": b"{}", "pytorch_model.bin": b"pickle"})
        self.refused(DATA, ["has only pickled weights", "pytorch_model.bin", "refs/pr/N"])
        self.hub.add(NAME, {"config.json": b"{}", "README.md": b"x"})
        self.refused(DATA, ["has no weights"])

    def test_data_sets(self):
        files = {"data/train-00000-of-00002.jsonl": b"{}\n", "data/train-00001-of-00002.jsonl": b"{ }\n",
                 "data/test-00000-of-00001.jsonl": b"[]\n", "README.md": b"x", "data/big.parquet": b"PAR1" * 9}
        self.hub.add("owner/data", files, kind="datasets")
        self.download("hf://datasets/owner/data")
        self.assert_snapshot(files, "owner/data", "datasets")
        self.assertEqual(self.cache / "datasets--owner--data", self.repo_folder("owner/data", "datasets"))
        done = self.download("hf://datasets/owner/data/data/test-00000-of-00001.jsonl", "--json")
        self.assertEqual(json.loads(done.stdout)["files"], ["data/test-00000-of-00001.jsonl"])

    def test_addresses_of_pages(self):
        self.hub.add(NAME, model_files())
        self.download(f"https://huggingface.co/{NAME}/tree/main")
        self.assert_snapshot(MODEL_FILES)

    def test_names(self):
        self.refused(USAGE, ["is not a name on the hub"], "model")
        self.refused(USAGE, ["the name of a repository is owner/name"], "hf://model")
        self.refused(USAGE, ["not a path in a repository"], f"hf://{NAME}/../../etc/passwd")
        (self.folder / NAME).mkdir(parents=True)
        self.refused(USAGE, ["is a local file or directory", f"hf://{NAME}"])
        self.assertEqual(self.hub.requests, [])

    # ---- A network that fails

    def test_cut_connections_are_gone_on_with(self):
        self.hub.add(NAME, model_files())
        for end in (10000, 10000, 30000, 60000):  # the second brings nothing new
            self.hub.fault("GET", WEIGHTS, cut_at(end))
        self.download()
        self.assert_snapshot(MODEL_FILES)
        ranges = [headers.get("Range") for _, _, _, headers in self.hub.seen("storage", "GET")]
        self.assertEqual(ranges, [None, "bytes=10000-", "bytes=10000-", "bytes=30000-", "bytes=60000-"])

    def test_small_files_are_gone_on_with_too(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "tokenizer.json", cut_at(1000))
        self.download()
        self.assert_snapshot(MODEL_FILES)
        self.assertEqual([h.get("Range") for *_, h in self.hub.seen("hub", "GET", "tokenizer.json")], [None, "bytes=1000-"])

    def test_many_cuts_with_progress_are_no_reason_to_give_up(self):
        self.hub.add(NAME, model_files())
        for end in range(4000, 64000, 4000):
            self.hub.fault("GET", WEIGHTS, cut_at(end))
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_without_progress_it_gives_up(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, cut_at(5000), times=100)
        self.refused(FAILED, ["model.safetensors", "the last of 6 attempts", "rerun the same command to resume"])
        self.assertEqual(self.hub.counts("storage", "GET").total(), 6)
        self.assertEqual([p.stat().st_size for p in self.incomplete()], [5000])
        self.hub.faults.clear()
        self.hub.requests.clear()
        self.download()
        self.assert_snapshot(MODEL_FILES)
        self.assertEqual([h.get("Range") for *_, h in self.hub.seen("storage", "GET")], ["bytes=5000-"])

    def test_servers_without_ranges(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, cut_at(20000))
        self.hub.fault("GET", WEIGHTS, ignore_range, times=100)
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_ranges_that_are_not_those_asked_for(self):
        for wrong in (wrong_range, status(416)):
            shutil.rmtree(self.home, ignore_errors=True)
            self.hub.add(NAME, model_files())
            self.hub.fault("GET", WEIGHTS, cut_at(20000))
            self.hub.fault("GET", WEIGHTS, wrong)
            self.download()
            self.assert_snapshot(MODEL_FILES)
            self.assertEqual([h.get("Range") for *_, h in self.hub.seen("storage", "GET")][:3], [None, "bytes=20000-", None])
            self.hub.requests.clear()

    def test_wrong_lengths(self):
        size = len(content_of("model.safetensors")["model.safetensors"])
        wrong = [announce(+10), announce(-10), chunked((0, 500)), chunked((0, size), b"and more")]
        for number, fault in enumerate(wrong):
            with self.subTest(number):
                shutil.rmtree(self.home, ignore_errors=True)
                self.hub.add(NAME, model_files())
                self.hub.fault("GET", WEIGHTS, fault)
                self.download()
                self.assert_snapshot(MODEL_FILES)
                shutil.rmtree(self.home)
                self.hub.fault("GET", WEIGHTS, fault, times=100)
                self.refused(FAILED, ["model.safetensors", "attempts"])
                self.hub.faults.clear()

    def test_a_chunked_body_of_the_right_length(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, chunked((0, 7), (7, 10**6)))
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_damaged_content(self):
        for path in (WEIGHTS, "/tokenizer.json"):
            with self.subTest(path):
                shutil.rmtree(self.home, ignore_errors=True)
                self.hub.add(NAME, model_files())
                self.hub.fault("GET", path, corrupt)
                self.download()
                self.assert_snapshot(MODEL_FILES)
                shutil.rmtree(self.home)
                self.hub.fault("GET", path, corrupt, times=100)
                self.refused(FAILED, ["a wrong checksum"])
                # Nothing of the damaged file stays; another one may have been cut in the middle when the download ended.
                content = model_files()["model.safetensors" if path == WEIGHTS else path.lstrip("/")]
                names = (hashlib.sha256(content).hexdigest(), fake_hub.git_blob(content))
                self.assertEqual([p for p in self.incomplete() if p.name.startswith(names)], [])
                self.hub.faults.clear()

    def test_what_was_there_before_is_checked_too(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, cut_at(5000), times=100)
        self.download(code=FAILED)
        self.hub.faults.clear()
        self.incomplete()[0].write_bytes(b"?" * 5000)
        self.download()
        self.assert_snapshot(MODEL_FILES)
        longer = self.repo_folder() / "blobs" / "x"
        weights = next(self.repo_folder().glob("snapshots/*/model.safetensors")).resolve()
        weights.rename(longer)
        longer.unlink()
        weights.with_name(weights.name + ".incomplete").write_bytes(b"?" * 10**5)
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_a_blob_that_was_cut_is_fetched_again(self):
        self.hub.add(NAME, model_files())
        self.download()
        weights = next(self.repo_folder().glob("snapshots/*/model.safetensors")).resolve()
        weights.write_bytes(weights.read_bytes()[:100])
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_stalls(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, stall_at(9000))
        done = self.download(environment={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
        self.assertIn("no data was received for 1 s", done.stderr)
        self.assert_snapshot(MODEL_FILES)

    def test_busy_and_broken_servers(self):
        self.hub.add(NAME, model_files())
        for fault in (status(429, Retry_After="0.05"), status(503), hang_up):
            self.hub.fault("GET", "/revision/", fault)
        for fault in (status(502), status(429, RateLimit='"api";r=0;t=0'), body(b"<html>a proxy's login page</html>")):
            self.hub.fault("GET", "/tree/", fault)
        for fault in (status(500), no_http, hang_up, status(504)):
            self.hub.fault("HEAD", "/model.safetensors", fault)
        for fault in (status(500), hang_up, status(429, Retry_After="0"), no_http, status(503)):
            self.hub.fault("GET", WEIGHTS, fault)
        for fault in (hang_up, status(500)):
            self.hub.fault("GET", "/config.json", fault)
        self.download()
        self.assert_snapshot(MODEL_FILES)
        self.assertEqual([f.path.pattern for f in self.hub.faults if f.times], [])

    def test_servers_that_stay_broken(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/revision/", status(500, "the database is down"), times=100)
        self.refused(FAILED, ["the server has an error (status 500): the database is down (the last of 4 attempts)"])
        self.assertEqual(self.hub.counts("hub", "GET").total(), 4)

    def test_a_server_that_asks_for_too_much_patience(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/revision/", status(429, Retry_After="3600"), times=100)
        self.refused(FAILED, ["too many requests", "asks to wait 3600 s", "HF_TOKEN"])
        self.assertEqual(len(self.hub.requests), 1)

    def test_redirects(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/api/models/old/name/revision", redirect(f"/api/models/{NAME}/revision/main"))
        self.hub.fault("GET", "/api/models/old/name/tree",
                       redirect(f"/api/models/{NAME}/tree/{self.hub.repos['models', NAME].commit_of('main')}"))
        for name in MODEL_FILES:
            for method in ("GET", "HEAD"):
                self.hub.fault(method, f"^/old/name/resolve/[^/]*/{name}$",
                               redirect(f"/{NAME}/resolve/main/{name}"), times=1)
        self.download("old/name")  # a repository that was renamed
        found = list(self.repo_folder("old/name").glob("snapshots/*/*"))
        self.assertEqual(sorted(p.name for p in found), MODEL_FILES)

    def test_the_token_goes_to_the_hub_alone(self):
        self.hub.add(NAME, model_files(), token=TOKEN)
        self.hub.fault("GET", WEIGHTS, redirect(f"{self.hub.storage_url}{WEIGHTS}elsewhere?signature=1"))
        self.hub.blobs["elsewhere"] = content_of("model.safetensors")["model.safetensors"]
        self.download()
        self.assert_snapshot(MODEL_FILES)
        for _, _, path, headers in self.hub.seen("hub"):
            self.assertEqual(headers.get("Authorization"), f"Bearer {TOKEN}", path)
        self.assertGreater(len(self.hub.seen("storage")), 0)  # tearDown looks at what they carry

    def test_endless_bodies(self):
        trickle = {"chunk": b"x", "pause": 0.2}
        for what, path, fault, expected in (
                ("an error", "/revision/", fake_hub.endless(404), DATA), ("a slow error", "/revision/", fake_hub.endless(404, **trickle), DATA),
                ("a redirect", "/resolve/", fake_hub.endless(302, Location="http://127.0.0.1:1/x"), FAILED),
                ("a slow redirect", "/tree/", fake_hub.endless(302, Location="http://127.0.0.1:1/x", **trickle), FAILED),
                ("a busy server", "/tree/", fake_hub.endless(503), FAILED), ("no JSON", "/revision/", fake_hub.endless(200), FAILED),
                ("a list of lists", "/tree/", fake_hub.endless(200, chunk=b"[" * 65536), FAILED),
                ("headers", "/revision/", fake_hub.endless_headers, FAILED)):
            with self.subTest(what):
                self.hub.reset()
                self.hub.add(NAME, model_files())
                for method in ("GET", "HEAD") if "redirect" not in what else ("GET",):
                    self.hub.fault(method, path, fault, times=100)
                began = time.monotonic()
                done = self.download(code=expected)
                self.assertLess(time.monotonic() - began, 30, done.stderr)
                self.hub.released.set()

    def test_an_endless_redirect_is_followed(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/api/models/old/name/revision", fake_hub.endless(307, Location=f"/api/models/{NAME}/revision/main"))
        self.hub.fault("GET", "/api/models/old/name/tree", fake_hub.endless(
            307, Location=f"{self.hub.endpoint}/api/models/{NAME}/tree/{self.hub.repos['models', NAME].commit_of('main')}"))
        for name in MODEL_FILES:
            for method in ("GET", "HEAD"):
                self.hub.fault(method, f"^/old/name/resolve/[^/]*/{name}$", redirect(f"/{NAME}/resolve/main/{name}"))
        self.download("old/name")

    def test_endless_redirects(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/round/", redirect(f"{self.hub.endpoint}/round/"), times=1000)
        self.hub.fault("GET", "/revision/", redirect("/round/"))
        self.refused(FAILED, ["redirected more than 10 times"])
        self.hub.fault("GET", "/revision/", redirect("file:///etc/passwd"))
        self.refused(FAILED, ["is not followed"])

    def test_an_unreachable_hub_is_told_soon(self):
        nobody = {"HF_ENDPOINT": "http://127.0.0.1:9", "SFTRUN_HUB_RETRY_DELAY": "1"}
        (self.folder / "in.jsonl").write_text('{"text": "hello"}\n')
        began = time.monotonic()
        done = self.sftrun("tokenize", "--model", NAME, "--input", "in.jsonl", "--output", "-", environment=nobody)
        self.assertLess(time.monotonic() - began, 3)
        self.assertEqual(done.returncode, FAILED)
        self.assertIn(f"error: no file or directory {NAME}; ", done.stderr)
        self.assertIn("if it is a name on the hub: check the network", done.stderr)

    def test_without_a_network(self):
        self.refused(FAILED, [f"{NAME}", "HF_ENDPOINT", "attempts"], environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
        self.hub.add(NAME, model_files())
        self.download()
        done = self.download(environment={"HF_ENDPOINT": "http://127.0.0.1:9"})
        self.assertIn("the hub cannot be reached", done.stderr)
        self.assert_snapshot(MODEL_FILES)

    # ---- Answers that no hub gives

    def test_names_that_leave_their_folder(self):
        for path in ("../../evil.safetensors", "/tmp/evil.safetensors", "a/../../evil.json", "..", "", "a//b", "a\\..\\b",
                     "new\nline.json", "x" * 300 + ".json"):
            with self.subTest(path):
                self.hub.add(NAME, model_files())
                self.hub.extra_entries = [{"type": "file", "path": path, "oid": "0" * 40, "size": 3}]
                self.refused(FAILED, ["malformed", "outside its folder"])
                self.assertEqual([p for p in self.folder.rglob("*") if "evil" in p.name], [])

    def test_sizes_that_are_none(self):
        for size in (-1, 2**63, 2**64, 1e30, "12", None, 2**60):
            with self.subTest(size):
                self.hub.add(NAME, model_files())
                self.hub.entry_changes = {"config.json": {"size": size}}
                self.refused(FAILED, ["malformed", "config.json"])

    def test_commits_and_etags_that_are_none(self):
        self.hub.add(NAME, model_files())
        for answer in (b'{"sha": "../../../evil"}', b'{"sha": 7}', b"[]", b'{"sha": ""}'):
            self.hub.fault("GET", "/revision/", body(answer))
            self.refused(FAILED, ["malformed", "no commit"])
        self.hub.fault("HEAD", "/config.json", body(b"", ETag='"../../evil"'), times=100)
        self.refused(FAILED, ["an ETag that is not a valid file name"])
        self.hub.faults.clear()
        self.hub.fault("HEAD", "/config.json", body(b""), times=100)
        self.refused(FAILED, ["sent no ETag"])
        self.hub.faults.clear()
        self.hub.fault("HEAD", "/model.safetensors", body(b"", X_Repo_Commit="0", X_Linked_Etag='"' + "0" * 64 + '"'), times=100)
        self.refused(FAILED, ["different checksums for the file"])
        self.hub.faults.clear()
        self.hub.fault("HEAD", "/model.safetensors",
                       body(b"", X_Repo_Commit="0", X_Linked_Etag='"x"', X_Linked_Size="7"), times=100)
        self.refused(FAILED, ["but sends 7"])
        self.assertEqual([p for p in self.folder.rglob("*evil*")], [])

    def test_listings_that_go_on_elsewhere(self):
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", "/tree/", body(b"[]", Link=f'<{self.hub.storage_url}/x>; rel="next"'))
        self.refused(FAILED, ["is on another host"])
        self.hub.fault("GET", "/tree/", body(b'{"error": "x"}'))
        self.refused(FAILED, ["not a list of files"])
        self.assertEqual(self.hub.seen("storage"), [])

    def test_words_of_the_server_are_made_fit_to_show(self):
        self.hub.fault("GET", "/revision/", status(418, f"\x1b[2Jyou sent Bearer {TOKEN}\nerror: not ours"))
        done = self.refused(FAILED, ["status 418", "you sent Bearer ***"])
        self.assertNotIn("\x1b", done.stderr)
        self.assertNotIn("\nerror: not ours", done.stderr)

    # ---- Access

    def test_gated(self):
        self.hub.add(NAME, model_files(), token="hf_another", gated=True)
        self.refused(DATA, [f"{NAME} is gated, and the account of your token", f"{self.hub.endpoint}/{NAME}", "from HF_TOKEN",
                            "accept the conditions"])
        self.refused(DATA, [f"{NAME} is gated\n", "hf auth login", "HF_TOKEN"], environment={"HF_TOKEN": ""})

    def test_missing_and_private(self):
        self.hub.add(NAME, model_files(), token="hf_another")
        for name in ("owner/nothing", NAME):
            self.refused(DATA, [f"no model {name} on the hub", "if it is private", "from HF_TOKEN"], name)
            self.refused(DATA, [f"no model {name} on the hub", "hf auth login"], name, environment={"HF_TOKEN": ""})
        self.refused(DATA, ["no data set owner/nothing"], "hf://datasets/owner/nothing")
        self.refused(DATA, ["does not accept your token", "HF_TOKEN", f"{self.hub.endpoint}/settings/tokens"],
                     environment={"HF_TOKEN": "expired"})
        self.refused(DATA, ["no model owner/data", "for a data set write hf://datasets/owner/data"], "owner/data")

    def test_tokens(self):
        self.hub.add(NAME, model_files(), token="hf_of_the_file")
        (self.folder / "secret").write_text("hf_of_the_file\n")
        self.download(environment={"HF_TOKEN": "", "HF_TOKEN_PATH": str(self.folder / "secret")})
        shutil.rmtree(self.home)
        self.home.mkdir()
        (self.home / "token").write_text("hf_of_the_file")
        self.download(environment={"HF_TOKEN": ""})
        shutil.rmtree(self.home)
        self.download(environment={"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": "hf_of_the_file"})
        self.refused(DATA, ["no model"], "owner/x", environment={"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
        self.assertNotIn("Authorization", self.hub.requests[-1][3])
        done = self.refused(USAGE, ["has invalid characters"], environment={"HF_TOKEN": "hf_a\x01b c"})
        self.assertNotIn("b c", done.stderr)

    # ---- Without a network, on purpose

    def test_offline(self):
        offline = {"HF_HUB_OFFLINE": "1"}
        self.refused(DATA, [f"{NAME} is not in the cache", "HF_HUB_OFFLINE forbids", f"sftrun download {NAME}"],
                     environment=offline)
        self.hub.add(NAME, model_files())
        path = self.download().stdout
        self.hub.requests.clear()
        self.assertEqual(self.download(environment=offline).stdout, path)
        self.assertEqual(self.download(environment={"TRANSFORMERS_OFFLINE": "yes"}).stdout, path)
        self.refused(DATA, ["revision v1 is missing"], NAME + "@v1", environment=offline)
        (pathlib.Path(path.strip()) / "tokenizer.json").unlink()
        self.refused(DATA, ["tokenizer.json is missing"], environment=offline)
        self.assertEqual(self.hub.requests, [])

    def test_other_commands_look_in_the_cache_first(self):
        self.hub.add(NAME, model_files())
        (self.folder / "in.jsonl").write_text('{"text": "hello"}\n')
        words = ["--input", "in.jsonl", "--output", "-"]
        ids = json.loads(self.sftrun("tokenize", "--model", str(MODEL), *words).stdout)["input_ids"]
        done = self.sftrun("tokenize", "--model", NAME, *words)
        self.assertEqual(json.loads(done.stdout)["input_ids"], ids)
        self.assert_snapshot([f for f in MODEL_FILES if f != "model.safetensors"])  # no weights for that
        self.hub.requests.clear()
        for offline in ({}, {"HF_HUB_OFFLINE": "1"}):
            done = self.sftrun("tokenize", "--model", f"hf://{NAME}", *words, environment=offline)
            self.assertEqual(json.loads(done.stdout)["input_ids"], ids)
        self.assertEqual(self.hub.requests, [])
        self.download()
        self.assert_snapshot(MODEL_FILES)
        done = self.sftrun("tokenize", "--model", "owner/nothing", *words)
        self.assertEqual(done.returncode, DATA)
        for part in ("no file or directory owner/nothing; no model owner/nothing on the hub", "--model on the command line",
                     "fix: check the path; or, if it is a name on the hub: check the name"):
            self.assertIn(part, done.stderr)

    def test_mistyped_paths_are_no_matter_of_the_network(self):
        (self.folder / "models/small").mkdir(parents=True)
        (self.folder / "models/small/config.json").write_text("{}")  # no other folder is suggested as a model
        (self.folder / "train.jsonl").write_text('{"text": "hello"}\n')
        nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        for words, path in (("--model", "models/smal"), "models/smal"), (("--model", "models/x"), "models/x"):
            done = self.sftrun("tokenize", *words, "--input", "train.jsonl", "--output", "-", environment=nobody)
            self.assertEqual(done.returncode, DATA)
            self.assertIn(f"error: no such model: {path}\n", done.stderr)
            self.assertIn("did you mean models/small? for a" if path == "models/smal" else "check the path; for a", done.stderr)
            self.assertIn(f"for a model on the hub write hf://{path}\n", done.stderr)
            self.assertNotIn("trying again", done.stderr)  # nobody was asked
        (self.folder / "run.yaml").write_text(json.dumps({"model": {"name": str(MODEL)}, "data": {"train": "data/nosuch"}}))
        done = self.sftrun("preview", "--config", "run.yaml", environment=nobody)
        self.assertIn("error: no file or directory data/nosuch; ", done.stderr)
        self.assertIn("check the path; or, if it is a name on the hub", done.stderr)
        (self.folder / "data").mkdir()
        done = self.sftrun("preview", "--config", "run.yaml", environment=nobody)
        self.assertEqual(done.returncode, DATA)
        self.assertIn("error: no file or directory data/nosuch\n", done.stderr)
        self.assertIn("for a data set on the hub write hf://datasets/data/nosuch\n", done.stderr)

    def test_a_directory_of_the_owners_name(self):
        """Its name is a path's beginning then, unless the cache knows the model, or hf:// stands before it."""
        self.hub.add(NAME, model_files())
        (self.folder / "owner").mkdir()
        (self.folder / "in.jsonl").write_text('{"text": "hello"}\n')
        words = ["--input", "in.jsonl", "--output", "-"]
        self.assertEqual(self.sftrun("tokenize", "--model", NAME, *words).returncode, DATA)
        self.assertEqual(self.hub.requests, [])
        self.assertEqual(self.sftrun("tokenize", "--model", f"hf://{NAME}", *words).returncode, DONE)
        self.assertEqual(self.sftrun("tokenize", "--model", NAME, *words).returncode, DONE)

    def test_names_that_are_paths_alone(self):
        nobody = {"HF_ENDPOINT": "http://127.0.0.1:9"}
        (self.folder / "in.jsonl").write_text('{"text": "hello"}\n')
        for name in ("./owner/model", "../no/such", "/nowhere/x", "a/b/c", "x.gguf", "a/x.gguf", "model"):
            done = self.sftrun("tokenize", "--model", name, "--input", "in.jsonl", "--output", "-", environment=nobody)
            self.assertEqual(done.returncode, DATA, name)
            self.assertIn(f"error: no such model: {name}\n", done.stderr)
            self.assertNotIn("trying again", done.stderr)

    def test_a_dry_run_fetches_no_weights(self):
        self.hub.add(NAME, model_files())
        (self.folder / "train.jsonl").write_text('{"text": "hello"}\n')
        (self.folder / "run.yaml").write_text(json.dumps({"model": {"name": NAME}, "data": {"train": "train.jsonl"}}))
        done = self.sftrun("train", "--config", "run.yaml", "--dry-run", "--device", "cpu")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assert_snapshot([f for f in MODEL_FILES if f != "model.safetensors"])
        self.assertIn("# model: llama, ", done.stdout)
        self.assertIn("# data: train.jsonl: text records; all 1: 1 example", done.stdout)

    def test_splits_of_data_sets(self):
        """A snapshot's files are links to blobs named by checksums; their own names tell the split."""
        record = b'{"text": "hello"}\n'
        self.hub.add("owner/data", {"train.jsonl": record, "test.jsonl": record * 2}, kind="datasets")

        def dry_run(train, *words, **options):
            (self.folder / "run.yaml").write_text(json.dumps({"model": {"name": str(MODEL)}, "data": {"train": train}}))
            return self.sftrun("train", "--config", "run.yaml", "--dry-run", "--device", "cpu", *words, **options)

        def records(*words, **options):
            done = dry_run(*words, **options)
            self.assertEqual(done.returncode, DONE, done.stderr)
            return [int(number) for number in re.findall(r"# data: owner/data \(commit .{7}\).*: text records; all (\d+):", done.stdout)]

        self.download("hf://datasets/owner/data")
        for environment in {}, {"HF_HUB_OFFLINE": "1"}:
            self.assertEqual(records("owner/data", environment=environment), [1])
            self.assertEqual(records({"path": "owner/data", "split": "test"}, environment=environment), [2])
            self.assertEqual(records("hf://datasets/owner/data/te*.jsonl", environment=environment), [2])
            self.assertEqual(records("owner/data", "data.val=owner/data", environment=environment), [1, 2])
            missing = dry_run("owner/data", "data.val=[{path: owner/data, split: dev}]", environment=environment)
            self.assertEqual(missing.returncode, DATA)
            self.assertRegex(missing.stderr, "error: .*owner/data has no split `dev`\n")
            self.assertIn("it has test, train", missing.stderr)
        slice_of = dry_run({"path": "owner/data", "split": "train[:10]"})
        self.assertEqual(slice_of.returncode, DATA)
        self.assertIn("for the first 10 records write max_samples: 10", slice_of.stderr)

    def test_subsets_of_data_sets(self):
        """Only the files of the subset that is meant come, README.md first; offline the same is read."""
        head = """---
configs:
- config_name: en
  data_files: [{split: train, path: en/*.jsonl}, {split: test, path: held_out/en.jsonl}]
- config_name: fr
  data_files: fr/**
- config_name: all
  data_dir: all
  default: true
---
"""
        sizes = {"en/a.jsonl": 1, "en/b.jsonl": 2, "fr/a.jsonl": 4, "fr/more/b.jsonl": 8, "held_out/en.jsonl": 16,
                 "all/train.jsonl": 32, "all/test.jsonl": 64}
        files = {name: b'{"text": "hello"}\n' * size for name, size in sizes.items()}

        def dry_run(*sources, **options):
            (self.folder / "run.yaml").write_text(json.dumps({"model": {"name": str(MODEL)}, "data": {"train": sources}}))
            return self.sftrun("train", "--config", "run.yaml", "--dry-run", "--device", "cpu", **options)

        offline = {"HF_HUB_OFFLINE": "1"}
        for source, come, number in [({}, ["all/train.jsonl"], 32), ({"name": "en"}, ["en/a.jsonl", "en/b.jsonl"], 3),
                                     ({"name": "en", "split": "test"}, ["held_out/en.jsonl"], 16),
                                     ({"name": "fr"}, ["fr/a.jsonl", "fr/more/b.jsonl"], 12)]:
            with self.subTest(source):
                shutil.rmtree(self.home, ignore_errors=True)
                self.hub.add("owner/data", files | {"README.md": head.encode()}, kind="datasets")
                self.hub.requests.clear()
                for environment in {}, offline:
                    done = dry_run({"path": "owner/data", **source}, environment=environment)
                    self.assertEqual(done.returncode, DONE, done.stderr)
                    name = source.get("name", "all")
                    several = rf" \({len(come)} files\)" if len(come) > 1 else ""
                    self.assertRegex(done.stdout, rf"# data: owner/data \(commit .{{7}}\), subset `{name}` of 3{several}: "
                                                  rf"text records; (all|the first) {min(number, 100)}")
                self.assert_snapshot(["README.md", *come], "owner/data", "datasets")
                fetched = [r[2] for r in self.hub.seen("hub", "GET", "/resolve/")]
                self.assertTrue(fetched[0].endswith("README.md"), fetched)
                self.assertEqual(len(fetched), 1 + len(come))
        missing = dry_run({"path": "owner/data", "name": "en"}, environment=offline)  # only fr is in the cache
        self.assertEqual(missing.returncode, DATA)
        self.assertIn("is missing), and HF_HUB_OFFLINE forbids", missing.stderr)
        two = dry_run({"path": "owner/data", "name": "en"}, {"path": "owner/data", "name": "fr"})
        self.assertEqual(re.findall(r"subset `(\w+)` of 3", two.stdout), ["en", "fr"])
        self.download("hf://datasets/owner/data")
        self.assert_snapshot(["README.md", *files], "owner/data", "datasets")

    def test_subsets_that_nobody_can_choose(self):
        head = b"---\nconfigs:\n- {config_name: en, data_files: en/*}\n- {config_name: fr, data_files: fr/*}\n---\n"
        record = {"en/a.jsonl": b'{"text": "hello"}\n', "fr/a.jsonl": b'{"text": "salut"}\n'}
        cases = [({}, head, ["owner/data has several subsets, none of which is the default: en, fr", "{path: …, name: en}"]),
                 ({"name": "enn"}, head, ["owner/data has no subset `enn`", "did you mean `en`?"]),
                 ({"name": "en"}, b"# Text\n", ["its README.md declares none", "write path: hf://datasets/owner/data/en"]),
                 ({"name": "en"}, b"---\nconfigs: [\n---\n", ["subsets cannot be read: not valid YAML", "owner/data: README.md:"])]
        for source, readme, parts in cases:
            with self.subTest(parts[0]):
                shutil.rmtree(self.home, ignore_errors=True)
                self.hub.add("owner/data", record | {"README.md": readme}, kind="datasets")
                train = [{"path": "hf://datasets/owner/data", **source}]
                (self.folder / "run.yaml").write_text(json.dumps({"model": {"name": str(MODEL)}, "data": {"train": train}}))
                done = self.sftrun("train", "--config", "run.yaml", "--dry-run", "--device", "cpu")
                self.assertEqual(done.returncode, DATA, done.stderr)
                for part in parts:
                    self.assertIn(part, done.stderr)
                self.assertEqual(list(self.cache.rglob("*.jsonl")), [], "no data come for nothing")

    def test_a_path_that_exists_wins(self):
        shutil.copytree(MODEL, self.folder / NAME)
        (self.folder / "in.jsonl").write_text('{"text": "hello"}\n')
        done = self.sftrun("tokenize", "--model", NAME, "--input", "in.jsonl", "--output", "-")
        self.assertEqual(done.returncode, DONE, done.stderr)
        self.assertEqual(self.hub.requests, [])

    # ---- Ends before the end, and several at once

    def stalled(self, **options):
        """A download that has 9000 bytes of the weights and waits for more."""
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, stall_at(9000))
        process = self.start("download", NAME, environment={"HF_HUB_DOWNLOAD_TIMEOUT": "60"}, **options)
        digest = hashlib.sha256(content_of("model.safetensors")["model.safetensors"]).hexdigest()
        weights = self.repo_folder() / "blobs" / f"{digest}.incomplete"  # the small files come and go before
        self.wait_for(lambda: weights.exists() and weights.stat().st_size == 9000)
        return process

    def test_ends_by_signals(self):
        for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, STOPPED), (signal.SIGKILL, -signal.SIGKILL)):
            with self.subTest(number):
                shutil.rmtree(self.home, ignore_errors=True)
                process = self.stalled()
                process.send_signal(number)
                done = self.finish(process)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assert_snapshots_whole()
                self.assertEqual(list(self.repo_folder().glob("snapshots/*/model.safetensors")), [])
                self.assertEqual([p.stat().st_size for p in self.incomplete()], [9000])
                if number != signal.SIGKILL:
                    self.assertIn("error: the download was interrupted", done.stderr)
                self.hub.requests.clear()
                self.download()
                self.assert_snapshot(MODEL_FILES)
                self.assertEqual([h.get("Range") for *_, h in self.hub.seen("storage", "GET")], ["bytes=9000-"])

    def test_two_at_once_download_once(self):
        first = self.stalled()
        second = self.start("download", NAME)
        self.wait_for(lambda: len(self.hub.seen("hub", "HEAD", "model.safetensors")) == 2)
        self.hub.released.set()
        for process in (first, second):
            done = self.finish(process)
            self.assertEqual(done.returncode, DONE, done.stderr)
        self.assert_snapshot(MODEL_FILES)
        gets = self.hub.counts("hub", "GET") + self.hub.counts("storage", "GET")
        self.assertEqual({p: n for p, n in gets.items() if n > 1 and "/api/" not in p}, {})

    def test_many_at_once_from_the_start(self):
        self.hub.add(NAME, model_files())
        processes = [self.start("download", NAME) for _ in range(4)]
        for process in processes:
            done = self.finish(process)
            self.assertEqual(done.returncode, DONE, done.stderr)
        self.assert_snapshot(MODEL_FILES)
        gets = self.hub.counts("hub", "GET") + self.hub.counts("storage", "GET")
        self.assertEqual({p: n for p, n in gets.items() if n > 1 and "/api/" not in p}, {})

    def test_files_come_side_by_side(self):
        """No file goes on before all three have begun."""
        names = [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
        self.hub.add(NAME, {name: os.urandom(30000) for name in names})
        together = threading.Barrier(len(names), action=self.hub.released.set)
        self.hub.fault("GET", WEIGHTS, stall_at(9000, before=lambda: together.wait(30)), times=len(names))
        self.download()
        self.assertFalse(together.broken)
        self.assert_snapshot(names)
        self.assertEqual(len(self.hub.seen("storage", "GET")), len(names))

    def test_progress_on_a_terminal(self):
        """One line, written anew, with what is there, how fast it comes and how long it will take."""
        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, stall_at(9000, before=lambda: (time.sleep(1), self.hub.released.set())))
        terminal, side = pty.openpty()
        process = subprocess.Popen([str(arguments.sftrun), "download", NAME], cwd=self.folder, stdout=subprocess.PIPE, stderr=side,
                                   text=True, env=self.environment | {"TERM": "xterm"})
        os.close(side)
        shown = b""
        while select.select([terminal], [], [], 30)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
        os.close(terminal)
        process.communicate(timeout=30)
        self.outputs.append(shown.decode())
        self.assertEqual(process.returncode, DONE, shown)
        self.assertRegex(shown.decode(), r"\rowner/model[^\r]*: [0-9.]+ KiB of [0-9.]+ KiB, [0-9.]+ [KM]?i?B/s, [^\r]* left\x1b\[K")
        self.assert_snapshot(MODEL_FILES)

    def test_the_token_is_in_no_argument_list(self):
        process = self.stalled()
        lists = [p.read_bytes() for p in pathlib.Path("/proc").glob(f"{process.pid}/**/cmdline")]
        self.assertGreater(len(lists), 0)
        for words in lists:
            self.assertNotIn(TOKEN.encode(), words)
        self.hub.released.set()
        self.assertEqual(self.finish(process).returncode, DONE)

    # ---- Disks

    def test_too_little_space_is_found_before(self):
        self.hub.add(NAME, model_files())
        self.hub.entry_changes = {"model.safetensors": {"lfs": {"oid": "a" * 64, "size": 2**52}}}
        self.refused(FAILED, ["needs 4.00 PiB more", "free", "HF_HOME"])
        self.assertEqual(self.hub.seen(None, None, "resolve|bucket"), [])

    def test_files_that_may_not_grow(self):
        self.hub.add(NAME, model_files())

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

        self.refused(FAILED, ["cannot write model.safetensors: File too large", "ulimit -f"], preexec_fn=limit)
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_a_disk_that_fills_up(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", disk], capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no disk can be mounted: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", disk], check=True)
        self.home, self.cache = disk, disk / "hub"
        self.environment["HF_HOME"] = str(disk)

        def fill():
            with open(disk / "other", "wb", buffering=0) as other:
                try:
                    while other.write(bytes(4096)):
                        pass
                except OSError:
                    pass
            self.hub.released.set()

        self.hub.add(NAME, model_files())
        self.hub.fault("GET", WEIGHTS, stall_at(9000, before=lambda: (time.sleep(0.3), fill())))
        self.refused(FAILED, ["cannot write model.safetensors: No space left on device", "free disk space"])
        (disk / "other").unlink()
        self.download()
        self.assert_snapshot(MODEL_FILES)

    def test_a_cache_that_may_not_be_written(self):
        (self.folder / "file").write_text("")
        self.hub.add(NAME, model_files())
        done = self.download(code=FAILED, environment={"HF_HUB_CACHE": str(self.folder / "file")})
        self.assertIn("set HF_HOME or HF_HUB_CACHE", done.stderr)


if __name__ == "__main__":
    arguments, words = hub_case.parse(__doc__)
    hub_case.HubCase.program = arguments.sftrun
    unittest.main(argv=words)
