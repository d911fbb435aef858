#!/usr/bin/env python3
"""sftrun upload against a hub on this machine (fake_hub.py), faults included. Standard library only.

    tests/hub/upload_test.py --sftrun build/bin/sftrun
    .venv-ref/bin/python tests/hub/upload_test.py --sftrun build/bin/sftrun Reference   # huggingface_hub as the peer

After every case no output may hold the token, and the storage host must not have seen it.
"""

import hashlib
import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import fake_hub
import hub_case
from fake_hub import before, cut_body_at, hang_up, redirect, status
from hub_case import TOKEN

DONE, USAGE, DATA, FAILED, STOPPED, INTERRUPTED = 0, 2, 3, 5, 75, 130
NAME = "owner/model"
CARD = "---\nbase_model: \"org/base\"\nlibrary_name: peft\ntags:\n- sftrun\n---\n\n# An adapter for base\n"
CONFIG = {"peft_type": "LORA", "base_model_name_or_path": "org/base", "revision": None, "r": 8, "target_modules": ["q_proj"]}

arguments = None


def noise(size, seed=1):
    return random.Random(seed).randbytes(size)


class UploadTest(hub_case.HubCase):
    def setUp(self):
        super().setUp()
        self.hub.add_account(TOKEN)
        self.run_dir = self.folder / "runs/first run"
        self.files = {"README.md": CARD.encode(), "adapter_config.json": (json.dumps(CONFIG, indent=2) + "\n").encode(),
                      "adapter_model.safetensors": noise(40000), "tokenizer.json": b'{"model": {}}', "chat_template.jinja": b"{{ x }}"}
        self.write(self.run_dir / "adapter", self.files)
        self.write(self.run_dir, {"run.json": b"{}", "metrics.jsonl": b"{}\n", "config.resolved.yaml": b"a: b\n", "logs/rank-0.log": b"log\n",
                                  "checkpoints/step-000001/optimizer.safetensors": b"o" * 90,
                                  "checkpoints/step-000001/adapter_config.json": b"{}"})

    def write(self, folder, files):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    # ---- Running it

    def upload(self, *words, code=DONE, run=None, environment=None):
        done = self.finish(self.start("upload", run or self.run_dir, *words, environment=environment))
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def refused(self, code, parts, *words, **options):
        done = self.upload(*words, code=code, **options)
        for part in parts:
            self.assertIn(part, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(len(re.findall(r"(?m)^error: ", done.stderr)), 1, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^  fix: ")
        return done

    def published(self, name=NAME, revision="main"):
        files = dict(self.hub.repos["models", name].files(revision))
        files.pop(".gitattributes", None)
        return files

    def puts(self):
        return [r for r in self.hub.seen("storage", "PUT")]

    def writes(self):
        return self.hub.seen(None, "POST") + self.puts()

    def wait_for(self, condition):
        for _ in range(600):
            if condition():
                return
            time.sleep(0.02)
        self.fail("waited in vain")


class Files(UploadTest):
    """What is sent, and what is not."""

    def test_an_adapter_into_a_new_repository(self):
        done = self.upload(NAME)
        self.assertEqual(done.stdout, f"{self.hub.endpoint}/{NAME}\n")
        self.assertEqual(self.published(), self.files)
        self.assertFalse(self.hub.repos["models", NAME].private)
        self.assertEqual(self.hub.repos["models", NAME].titles, ["Upload adapter with sftrun"])
        self.assertIn("verify", str(self.hub.counts("hub", "POST")))
        again = json.loads(self.upload(NAME, "--json").stdout)
        self.assertEqual((again["new_repo"], again["new_commit"], again["sent_bytes"]), (False, False, 0))
        self.assertEqual(len(self.hub.repos["models", NAME].titles), 1)  # no empty commit
        self.assertEqual(len(self.puts()), 1)

    def test_what_changed_alone_is_sent(self):
        self.upload(NAME)
        self.write(self.run_dir / "adapter", {"README.md": CARD.encode() + b"more\n"})
        report = json.loads(self.upload(NAME, "--json", "--message", "New card\n\nBody").stdout)
        self.assertEqual({f["path"]: f["status"] for f in report["files"] if f["status"] != "unchanged"}, {"README.md": "sent"})
        self.assertEqual(self.hub.repos["models", NAME].titles[-1], "New card")
        self.assertEqual(self.published()["README.md"], CARD.encode() + b"more\n")

    def test_the_name_is_that_of_the_user_and_the_run(self):
        self.assertEqual(self.upload().stdout, f"{self.hub.endpoint}/owner/first-run\n")
        self.assertEqual(self.published("owner/first-run"), self.files)
        self.assertEqual(self.upload(run=self.run_dir / "adapter").stdout, f"{self.hub.endpoint}/owner/first-run\n")

    def test_private_repositories_and_branches(self):
        self.upload(NAME, "--private", "--revision", "v2/a")
        repo = self.hub.repos["models", NAME]
        self.assertTrue(repo.private)
        self.assertEqual(self.published(revision="v2/a"), self.files)
        self.assertEqual(self.published(), {})
        self.upload(NAME, "--revision", "v2/a")
        self.assertEqual(len(repo.titles), 1)
        self.hub.add("org/open", {})
        self.refused(DATA, ["org/open is public, and --private was given", "nothing was sent"], "org/open", "--private")
        self.hub.ignores_private = True
        self.refused(DATA, ["is public, and --private was given"], "owner/ignored", "--private")
        self.assertEqual([self.published(n) for n in ("org/open", "owner/ignored")], [{}, {}])

    def test_large_and_small_files_as_the_hub_says(self):
        self.hub.large_above = 1000
        self.write(self.run_dir / "adapter", {"tokenizer.json": b"[" + b" " * 5000 + b"]", "tokenizer_config.json": b""})
        report = json.loads(self.upload(NAME, "--json").stdout)
        self.assertEqual([f["path"] for f in report["files"] if f["lfs"]], ["adapter_model.safetensors", "tokenizer.json"])
        self.assertEqual(self.published()["tokenizer_config.json"], b"")
        self.assertEqual(len(self.published()["tokenizer.json"]), 5002)

    def test_files_that_the_hub_ignores(self):
        self.hub.ignored = ("chat_template.jinja",)
        self.assertIn(".gitignore names it", self.upload(NAME).stderr)
        self.assertNotIn("chat_template.jinja", self.published())

    def test_nothing_else_is_published(self):
        self.write(self.run_dir / "adapter", {"optimizer.safetensors": b"o", "notes.txt": b"n", ".env": b"TOKEN=1", "data.jsonl": b"{}",
                                              "credentials.json": b"{}", "checkpoint-1/model.safetensors": b"m", "1_Pooling/config.json": b"{}"})
        done = self.upload(NAME)
        self.assertEqual(self.published(), self.files | {"1_Pooling/config.json": b"{}"})
        self.assertIn("not uploaded: .env, checkpoint-1/, credentials.json, data.jsonl, notes.txt, optimizer.safetensors", done.stderr)

    def test_dry_runs_send_nothing(self):
        done = self.upload(NAME, "--dry-run", "--private")
        self.assertEqual([line.split()[-1] for line in done.stdout.splitlines()], sorted(self.files))
        self.assertIn("39.06 KiB", done.stdout)
        self.assertEqual(self.hub.requests, [])
        plan = json.loads(self.upload("--dry-run", "--json").stdout)
        self.assertEqual((plan["repo"], plan["bytes"]), ("owner/first-run", sum(map(len, self.files.values()))))
        self.assertEqual(self.writes(), [])

    def test_merged_models_and_gguf(self):
        merged = {"config.json": b'{"model_type": "llama"}', "model-00001-of-00002.safetensors": noise(50), "tokenizer.json": b"{}",
                  "model-00002-of-00002.safetensors": noise(60), "model.safetensors.index.json": b"{}"}
        self.refused(DATA, ["has no merged model", "sftrun merge --adapter", "--from"], NAME, "--what", "merged")
        self.refused(DATA, ["has no .gguf file", "sftrun merge --adapter", "merged.gguf"], NAME, "--what", "gguf")
        self.write(self.run_dir / "merged", merged)
        self.upload(NAME, "--what", "merged")
        card = self.published()["README.md"].decode()
        self.assertEqual(self.published(), merged | {"README.md": card.encode()})
        self.hub.repos["models", NAME].add({"README.md": b"edited"}, "main")
        self.upload(NAME, "--what", "merged")
        self.assertEqual(self.published()["README.md"], b"edited")  # a card of the user's stays
        self.write(self.folder, {"mine-Q4_K_M.gguf": noise(70), "other.txt": b"x"})
        self.upload("owner/file", run=self.folder / "mine-Q4_K_M.gguf")
        self.assertEqual(sorted(self.published("owner/file")), ["README.md", "mine-Q4_K_M.gguf"])
        self.upload("owner/from", "--what", "gguf", "--from", self.folder / "mine-Q4_K_M.gguf")
        self.assertEqual(self.published("owner/from")["mine-Q4_K_M.gguf"], noise(70))
        self.assertEqual(self.upload(run=self.folder / "mine-Q4_K_M.gguf").stdout, f"{self.hub.endpoint}/owner/mine-Q4_K_M\n")

    def test_models_of_full_training(self):
        (self.folder / "runs/full").mkdir()
        self.refused(DATA, ["holds no adapter and no model"], NAME, run=self.folder / "runs/full")
        self.write(self.folder / "runs/full/checkpoints", {"state.json": b"{}"})
        self.refused(DATA, ["has no result yet", "let it finish"], NAME, run=self.folder / "runs/full")
        model = {"config.json": b"{}", "model.safetensors": noise(9), "README.md": b"# x\n"}
        self.write(self.folder / "runs/full/model", model)
        self.upload(NAME, run=self.folder / "runs/full")
        self.assertEqual(self.published(), model)
        self.refused(DATA, ["does not exist"], NAME, run=self.folder / "runs/none")

    # ---- Secrets

    def test_paths_of_this_machine_are_not_published(self):
        base = self.folder / "secret-user/models/base"
        record = {"model": str(base), "fingerprint": "f"}
        card = CARD.replace('base_model: "org/base"\n', "") + f"Write that base with `sftrun quantize --model {base}`\n"
        self.write(self.run_dir / "adapter", {"adapter_config.json": json.dumps(CONFIG | {"base_model_name_or_path": str(base)}).encode(),
                                              "sftrun_base.json": json.dumps(record).encode(), "README.md": card.encode()})
        done = self.upload(NAME)
        self.assertIn("is no name on the hub", done.stderr)
        self.assertIn("in place of the path", done.stderr)
        files = self.published()
        self.assertEqual(json.loads(files["adapter_config.json"])["base_model_name_or_path"], "base")
        self.assertEqual(json.loads(files["sftrun_base.json"]), record | {"model": "base"})
        for name, content in files.items():
            self.assertNotIn(b"secret-user", content, name)
        self.upload("owner/named", "--base", "org/base@v1")
        files = self.published("owner/named")
        config = json.loads(files["adapter_config.json"])
        self.assertEqual((config["base_model_name_or_path"], config["revision"]), ("org/base", "v1"))
        self.assertIn(b'base_model: "org/base"\nbase_model_relation: adapter\n', files["README.md"])
        self.assertIn(b"--model org/base`", files["README.md"])
        self.refused(USAGE, ["--base on the command line"], NAME, "--base", "/x/y")

    def test_bases_in_the_cache_are_named_as_on_the_hub(self):
        commit = "0123456789" * 4
        base = f"{self.folder}/home/hub/models--org--base.1/snapshots/{commit}"
        self.write(self.run_dir / "adapter", {"adapter_config.json": json.dumps(CONFIG | {"base_model_name_or_path": base}).encode()})
        self.upload(NAME)
        config = json.loads(self.published()["adapter_config.json"])
        self.assertEqual((config["base_model_name_or_path"], config["revision"]), ("org/base.1", commit))

    def test_other_paths_are_warned_of(self):
        self.write(self.run_dir / "adapter", {"chat_template.jinja": b"{# from /home/somebody/templates/x.jinja #}"})
        self.assertIn("chat_template.jinja names a path of this machine: `/home/somebody/templates/x.jinja`".replace("`", ""),
                      self.upload(NAME, "--dry-run").stderr.replace("`", ""))

    def test_tokens_are_refused(self):
        for secret, word in (("hf_" + "a" * 34, "a Hugging Face token"), ("sk-" + "b" * 48, "an API key"), ("AKIA" + "C" * 16, "an AWS")):
            self.write(self.run_dir / "adapter", {"tokenizer_config.json": json.dumps({"key": secret}).encode()})
            done = self.refused(DATA, ["tokenizer_config.json holds " + word], NAME)
            self.assertNotIn(secret, done.stderr)
        self.assertEqual(self.hub.requests, [])

    def test_links_that_lead_out_are_refused(self):
        self.write(self.folder, {"outside.json": b"{}", "runs/first run/inside.json": b"{}"})
        link = self.run_dir / "adapter/generation_config.json"
        link.symlink_to("../inside.json")
        self.upload(NAME)
        self.assertEqual(self.published()["generation_config.json"], b"{}")
        link.unlink()
        link.symlink_to(self.folder / "outside.json")
        self.refused(DATA, ["is a link that leads out of"], NAME)
        self.refused(DATA, ["is a link that leads out of"], NAME, run=self.run_dir / "adapter")


class Names(UploadTest):
    """Names, tokens and refusals."""

    def test_flags(self):
        self.refused(USAGE, ["is not the name of a repository"], "model")
        self.refused(USAGE, ["is not the name of a repository", "--revision"], NAME + "@v1")
        self.refused(USAGE, ["is not the name of a branch"], NAME, "--revision", "../x")
        self.refused(USAGE, ["--message is empty"], NAME, "--message", " ")
        self.assertEqual(self.finish(self.start("upload")).returncode, USAGE)
        self.assertEqual(self.hub.requests, [])

    def test_without_network_and_without_token(self):
        self.refused(USAGE, ["HF_HUB_OFFLINE forbids"], NAME, environment={"HF_HUB_OFFLINE": "1"})
        self.refused(USAGE, ["needs a token", "hf auth login"], NAME, environment={"HF_TOKEN": ""})
        self.assertEqual(self.hub.requests, [])

    def test_tokens_that_are_not_accepted(self):
        self.hub.accounts.clear()
        for words in ((NAME,), ()):
            self.refused(DATA, ["does not accept your token", "HF_TOKEN", "/settings/tokens"], *words)
        self.hub.add_account(TOKEN, role="read")
        self.refused(DATA, ["cannot create the repository owner/model: the token may not write there", "write access"], NAME)
        self.hub.add(NAME, {})
        self.refused(DATA, ["the token may not write there"], NAME)
        self.refused(DATA, ["the token may not write there"], "stranger/model")
        self.assertEqual(self.puts(), [])

    def test_names_that_the_hub_refuses(self):
        self.refused(USAGE, ["Invalid repo name", "give another owner/name"], "owner/forbidden")

    def test_statuses(self):
        cases = [("/repos/create", status(402, "Storage limit reached"), DATA, ["Storage limit reached"]),
                 ("/commit/", status(413, "Payload too large"), DATA, ["too large for the server"]),
                 ("/preupload/", status(404, "Repository not found"), DATA, ["no such repository or branch"]),
                 ("/preupload/", status(418, "teapot"), FAILED, ["status 418", "HF_ENDPOINT"]),
                 ("/preupload/", redirect("http://127.0.0.1:9/x"), FAILED, ["redirects to"]),
                 ("/objects/batch", fake_hub.body(b"[]"), FAILED, ["malformed"]),
                 ("/commit/", fake_hub.body(b"{}"), FAILED, ["names no commit"])]
        for path, fault, code, parts in cases:
            with self.subTest(path=path, parts=parts):
                self.hub.reset()
                self.hub.add_account(TOKEN)
                self.hub.fault("POST", path, fault, times=20)
                self.refused(code, parts, NAME)

    def test_objects_that_the_hub_refuses_and_xet(self):
        self.hub.object_error = "this file is forbidden"
        self.refused(DATA, ["adapter_model.safetensors", "this file is forbidden"], NAME)
        self.hub.object_error, self.hub.only_xet = "", True
        self.refused(FAILED, ["only by the transfer `xet`", "hf upload owner/model"], NAME)


class Faults(UploadTest):
    """A network that fails."""

    def assert_uploaded(self, *words):
        self.upload(NAME, *words)
        self.assertEqual(self.published(), self.files)
        self.assertEqual(len(self.hub.repos["models", NAME].titles), 1)

    def test_parts(self):
        self.hub.part_bytes = 15000
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 3)
        self.assertEqual(len(self.hub.seen("hub", "POST", "complete_multipart")), 1)

    def test_a_part_that_fails_is_sent_alone(self):
        self.hub.part_bytes = 15000
        self.hub.fault("PUT", "part=2", status(500))
        self.hub.fault("PUT", "part=3", cut_body_at(5000))
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 5)
        self.assertEqual(len(self.hub.seen("hub", "POST", "objects/batch")), 1)

    def test_transient_failures_of_every_request(self):
        for method, path in (("GET", "/api/models/owner/model$"), ("POST", "/repos/create"), ("POST", "/preupload/"), ("POST", "/objects/batch"),
                             ("PUT", "/bucket/"), ("POST", "/verify"), ("POST", "/commit/")):
            for fault in (status(500), status(503), status(429, Retry_After="0"), hang_up):
                self.hub.fault(method, path, fault)
        self.assert_uploaded()
        self.assertGreaterEqual(len(self.puts()), 5)

    def test_servers_that_ask_to_wait(self):
        self.hub.fault("POST", "/commit/", status(429, Retry_After="1"))
        begin = time.monotonic()
        self.assert_uploaded()
        self.assertGreaterEqual(time.monotonic() - begin, 1)
        self.hub.fault("GET", "/api/models/", status(429, Retry_After="3600"))
        self.refused(FAILED, ["the server asks to wait 3600 s"], NAME)

    def test_without_progress_it_gives_up(self):
        self.hub.fault("PUT", "/bucket/", status(500), times=100)
        self.refused(FAILED, ["adapter_model.safetensors", "the last of 6 attempts", "rerun the same command"], NAME)
        self.assertEqual(len(self.puts()), 6)
        self.assertEqual(self.published(), {})  # nothing is visible before the commit
        self.hub.faults.clear()
        self.assert_uploaded()

    def test_connections_cut_in_the_middle(self):
        for end in (0, 10000, 39999):
            self.hub.fault("PUT", "/bucket/", cut_body_at(end))
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 4)

    def test_addresses_that_expire(self):
        self.hub.fault("PUT", "/bucket/", before(self.hub.expire_addresses))
        self.assert_uploaded()
        self.assertEqual(len(self.hub.seen("hub", "POST", "objects/batch")), 2)
        self.assertEqual(len({r[2] for r in self.puts()}), 2)

    def test_addresses_of_parts_that_expire(self):
        self.hub.part_bytes = 15000
        self.hub.fault("PUT", "part=2", before(self.hub.expire_addresses))
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 5)  # two of the first addresses, three of the new ones

    def test_a_lost_answer_makes_no_second_commit(self):
        self.hub.loses_answer_of_commit = True
        self.assert_uploaded()
        self.assertEqual(len(self.hub.seen("hub", "POST", "/commit/")), 1)

    def test_objects_that_the_hub_has_are_not_sent(self):
        content = self.files["adapter_model.safetensors"]
        self.hub.objects[hashlib.sha256(content).hexdigest()] = content
        report = json.loads(self.upload(NAME, "--json").stdout)
        self.assertEqual({f["path"]: f["status"] for f in report["files"]}["adapter_model.safetensors"], "stored")
        self.assertEqual((self.puts(), self.published()), ([], self.files))

    def test_a_file_that_changes_is_found(self):
        path = self.run_dir / "adapter/adapter_model.safetensors"

        def damage():
            path.write_bytes(noise(40000, seed=2))

        self.hub.fault("POST", "/objects/batch", before(damage))
        self.refused(DATA, ["adapter_model.safetensors was changed while it was uploaded"], NAME)
        self.assertEqual(self.published(), {})

    def test_damage_on_the_way_is_found(self):
        def damage(handler, _):
            handler.body, handler.fault = b"x" + handler.body[1:], None
            return handler.take(handler.server.hub)

        self.hub.fault("PUT", "/bucket/", fake_hub.instead(damage))
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 2)

    def test_storage_that_does_not_answer(self):
        self.hub.fault("PUT", "/bucket/", fake_hub.instead(lambda handler, _: (handler.server.hub.released.wait(20), handler.hang_up())))
        self.environment["HF_HUB_DOWNLOAD_TIMEOUT"] = "0.1"
        self.assert_uploaded()
        self.assertEqual(len(self.puts()), 2)

    def shards(self):
        model = {f"model-{i:05}-of-00008.safetensors": noise(20000, seed=i) for i in range(1, 9)} | {"config.json": b"{}"}
        self.write(self.folder / "sharded", model)
        return model

    def stopped(self, signal_number):
        """An upload of eight files that is stopped when the storage has some of them."""
        taken = fake_hub.instead(lambda handler, _: self.take_unless_late(handler))
        self.hub.fault("PUT", "/bucket/", taken, times=1000)
        process = self.start("upload", self.folder / "sharded", NAME)
        self.wait_for(lambda: len(self.hub.objects) >= 3)
        os.kill(process.pid, signal_number)
        done = self.finish(process)
        self.hub.released.set()
        self.hub.faults.clear()
        return done

    def take_unless_late(self, handler):
        if len(self.hub.objects) >= 3:
            handler.server.hub.released.wait(20)
            return handler.hang_up()
        handler.fault = None
        return handler.take(handler.server.hub)

    def test_an_upload_that_was_killed_goes_on(self):
        model = self.shards()
        self.assertEqual(self.stopped(signal.SIGKILL).returncode, -signal.SIGKILL)
        self.assertEqual(self.published(), {})
        there = len(self.hub.objects)
        self.assertLess(there, 8)
        self.hub.requests.clear()
        self.upload(NAME, run=self.folder / "sharded")
        self.assertEqual(len(self.puts()), 8 - there)
        self.assertEqual({k: v for k, v in self.published().items() if k != "README.md"}, model)

    def test_stops(self):
        self.shards()
        done = self.stopped(signal.SIGINT)
        self.assertEqual(done.returncode, INTERRUPTED, done.stderr)
        self.assertIn("the upload was interrupted", done.stderr)
        self.assertIn("is not sent again", done.stderr)


@unittest.skipUnless(importlib.util.find_spec("huggingface_hub"), "huggingface_hub is not installed here")
class Reference(UploadTest):
    """huggingface_hub, unmodified: it uploads to this server, and downloads what sftrun uploaded."""

    def python(self, code):
        settings = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1",
                    "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", "import huggingface_hub as h; " + code], cwd=self.folder,
                              capture_output=True, text=True, env=self.environment | settings, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def test_it_uploads_to_this_server(self):
        self.hub.part_bytes = 15000
        self.python(f"h.create_repo({NAME!r}, private=True); h.create_repo({NAME!r}, exist_ok=True); assert h.whoami()['name'] == 'owner'; "
                    f"h.upload_folder(repo_id={NAME!r}, folder_path={str(self.run_dir / 'adapter')!r}); "
                    f"h.create_branch({NAME!r}, branch='dev'); "
                    f"h.upload_file(repo_id={NAME!r}, path_or_fileobj=b'x' * 100, path_in_repo='z.bin', revision='dev')")
        self.assertTrue(self.hub.repos["models", NAME].private)
        self.assertEqual(self.published(), self.files)
        self.assertEqual(self.published(revision="dev"), self.files | {"z.bin": b"x" * 100})
        self.hub.requests.clear()
        self.assertFalse(json.loads(self.upload(NAME, "--json").stdout)["new_commit"])  # nothing is left for us
        self.assertEqual(self.puts(), [])

    def test_it_downloads_what_we_upload(self):
        self.hub.part_bytes = 15000
        self.upload(NAME, "--private")
        folder = pathlib.Path(self.python(f"print(h.snapshot_download({NAME!r}))"))
        found = {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".gitattributes"}
        self.assertEqual(found, self.files)
        self.environment["HF_HOME"] = str(self.folder / "other-home")
        ours = self.finish(self.start("download", NAME))
        self.assertEqual(ours.returncode, DONE, ours.stderr)
        path = pathlib.Path(ours.stdout.strip())
        self.assertEqual({p.name: p.read_bytes() for p in path.iterdir()}, {k: v for k, v in self.files.items() if k != "README.md"})
        card = self.python(f"c = h.ModelCard.load({NAME!r}); print(c.data.library_name)")
        self.assertEqual(card, "peft")


if __name__ == "__main__":
    arguments, words = hub_case.parse(__doc__)
    hub_case.HubCase.program = arguments.sftrun
    unittest.main(argv=words)
