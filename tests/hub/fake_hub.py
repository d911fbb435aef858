"""A hub on this machine's loopback that misbehaves when it is told to. Standard library only.

It takes uploads, too, by the protocol that huggingface_hub speaks: questions before an upload, git LFS in one piece or in parts, commits.

One server is the hub: listings, and small files. Another, on a port of its own, stands for the storage host that the hub
redirects large files to; like the real one it has other ETags than the hub and must never see a token.
"""

import base64
import collections
import hashlib
import http.server
import json
import re
import socket
import threading
import urllib.parse

LARGE = (".safetensors", ".gguf", ".bin", ".parquet")  # kept in git LFS
CUT, STALL_SECONDS = "cut", 20


def git_blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Repo:
    def __init__(self, files, kind="models", token=None, gated=False, private=False):
        self.kind, self.token, self.gated, self.private = kind, token, gated, private
        self.commits, self.revisions, self.titles = {}, {}, []
        self.commit(files, "main")

    def commit(self, files, *revisions):
        content = json.dumps({p: hashlib.sha256(c).hexdigest() for p, c in files.items()}, sort_keys=True)
        commit = hashlib.sha1(content.encode()).hexdigest()
        self.commits[commit] = dict(files)
        for revision in revisions:
            self.revisions[revision] = commit
        return commit

    def add(self, files, revision):
        """Files in place of, and beside, those of a branch."""
        return self.commit(self.commits[self.revisions[revision]] | files, revision)

    def files(self, revision="main"):
        return self.commits[self.revisions[revision]]

    def commit_of(self, revision):
        return revision if revision in self.commits else self.revisions.get(revision)


class Fault:
    """`action(handler, content)` answers the next `times` requests whose method and path match; None: as usual."""

    def __init__(self, method, path, action, times):
        self.method, self.path, self.action, self.times = method, re.compile(path), action, times

    def takes(self, handler):
        return self.times > 0 and handler.command == self.method and self.path.search(handler.path)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # One write a header line and no Nagle would be slow; buffered, an answer leaves at once.
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def do_PUT(self):
        self.answer()

    def read_body(self):
        """None: the connection is cut, at the byte where a fault says, or by the client."""
        end = getattr(self.fault, "cut_body_at", None)
        if end is not None:
            self.rfile.read(end)
            self.hang_up()
            return None
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        size = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(size)
        return body if len(body) == size else None

    def answer(self):
        hub = self.server.hub
        with hub.lock:
            hub.requests.append((self.server.role, self.command, self.path, dict(self.headers)))
            fault = next((f for f in hub.faults if f.takes(self)), None)
            if fault:
                fault.times -= 1
        self.fault = fault.action if fault else None
        try:
            if self.command in ("POST", "PUT"):
                self.body = self.read_body()
                if self.body is None:
                    self.close_connection = True
                    return None
                if self.fault and getattr(self.fault, "instead", False):
                    return self.fault(self, b"")
                return self.take(hub)
            if self.server.role == "storage":
                return self.send_content(hub.blobs[self.path.split("?")[0].rsplit("/", 1)[1]], {"ETag": '"storage-etag"'})
            return self.hub_answer(hub)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    # ---- The hub

    def hub_answer(self, hub):
        if self.fault and getattr(self.fault, "instead", False):
            return self.fault(self, b"")
        path = urllib.parse.unquote(self.path.split("?")[0])
        if path == "/api/whoami-v2":
            return self.send_user(hub)
        if info := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            repo = hub.repos.get(("models", info[1]))
            if refusal := self.refusal(repo, None):
                return self.send_text(*refusal)
            return self.send_json({"id": info[1], "sha": repo.commit_of("main"), "private": repo.private, "siblings": []})
        listing = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/(revision|tree)/(.+)", path)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not listing and not file:
            return self.send_text(404, "no such page")
        kind = listing[1] if listing else "datasets" if file[1] else "models"
        name = listing[2] if listing else file[2]
        repo = hub.repos.get((kind, name))
        if refusal := self.refusal(repo, file):
            return self.send_text(*refusal)
        commit = repo.commit_of(listing[4] if listing else file[3])
        if commit is None:
            return self.send_text(404, "Invalid rev id", {"X-Error-Code": "RevisionNotFound"})
        if not listing:
            return self.send_file(hub, repo, commit, file[4])
        if listing[3] == "revision":
            siblings = [{"rfilename": p} for p in repo.commits[commit]]
            return self.send_json({"id": name, "sha": commit, "private": False, "siblings": siblings, "gated": repo.gated})
        return self.send_listing(hub, repo, commit)

    def refusal(self, repo, file):
        authorization = self.headers.get("Authorization", "")
        token = authorization.removeprefix("Bearer ")
        if token == "expired":
            return 401, "Invalid credentials in Authorization header"
        if repo is None:
            return 401 if not token else 404, "Repository not found", {"X-Error-Code": "RepoNotFound"}
        if repo.token and token != repo.token:
            if repo.gated and not file:
                return None  # what a gated repository holds may be known
            code = "GatedRepo" if repo.gated else "RepoNotFound"
            words = "Access to this model is restricted" if repo.gated else "Repository not found"
            return (403 if token else 401) if repo.gated else 404, words, {"X-Error-Code": code}
        return None

    def send_listing(self, hub, repo, commit):
        entries = [{"type": "directory", "path": "folder", "oid": "0" * 40, "size": 0}]
        for path, content in repo.commits[commit].items():
            entry = {"type": "file", "path": path, "oid": git_blob(content), "size": len(content)}
            if hub.is_large(path, content):
                digest = hashlib.sha256(content).hexdigest()
                entry |= {"oid": "1" * 40, "lfs": {"oid": digest, "size": len(content), "pointerSize": 134}}
            entries.append(entry | hub.entry_changes.get(path, {}))
        entries += hub.extra_entries
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        begin = int(query.get("cursor", ["0"])[0])
        headers = {}
        if begin + hub.page_size < len(entries):
            url = f"{hub.endpoint}{self.path.split('?')[0]}?recursive=true&cursor={begin + hub.page_size}"
            headers["Link"] = f'<{url}>; rel="next"'
        self.send_json(entries[begin:begin + hub.page_size], headers)

    def send_file(self, hub, repo, commit, path):
        content = repo.commits[commit].get(path)
        headers = {"X-Repo-Commit": commit}
        if content is None:
            return self.send_text(404, "Entry not found", headers | {"X-Error-Code": "EntryNotFound"})
        if not hub.is_large(path, content):
            return self.send_content(content, headers | {"ETag": f'"{git_blob(content)}"'})
        digest = hashlib.sha256(content).hexdigest()
        hub.blobs[digest] = content
        headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(content)), "Content-Length": "0",
                    "Location": f"{hub.storage_url}/bucket/{digest}?signature=for-a-while"}
        self.send_headers(302, headers)

    # ---- Uploads

    def account(self, hub):
        return hub.accounts.get(self.headers.get("Authorization", "").removeprefix("Bearer "))

    def send_user(self, hub):
        account = self.account(hub)
        if not account:
            return self.send_text(401, "Invalid credentials in Authorization header")
        return self.send_json({"type": "user", "name": account["name"], "orgs": [{"name": n} for n in account["orgs"]],
                               "auth": {"type": "access_token", "accessToken": {"role": account["role"]}}})

    def take(self, hub):
        """A POST or PUT whose body has arrived."""
        path = urllib.parse.unquote(self.path.split("?")[0])
        if self.server.role == "storage":
            return self.take_part(hub)
        if path.startswith("/api/complete_multipart"):
            return self.complete(hub)
        account = self.account(hub)
        if not account:
            return self.send_text(401, "Invalid credentials in Authorization header")
        if path == "/api/validate-yaml":
            return self.send_json({"warnings": [], "errors": []})
        if path == "/api/repos/create":
            return self.create(hub, account)
        of_repo = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/(.+)", path)
        of_lfs = re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/(objects/batch|verify)", path)
        if not of_repo and not of_lfs:
            return self.send_text(404, "no such page")
        name = (of_repo or of_lfs)[1]
        repo = hub.repos.get(("models", name))
        if not repo or (repo.private and not hub.may_write(account, name)):
            return self.send_text(404, "Repository not found", {"X-Error-Code": "RepoNotFound"})
        if not hub.may_write(account, name):
            return self.send_text(403, "You don't have the rights to write to this repository")
        if of_lfs:
            return self.batch(hub, name) if of_lfs[2] == "objects/batch" else self.verify(hub)
        kind, revision = of_repo[2], of_repo[3]
        if kind == "branch":
            if revision in repo.revisions:
                return self.send_text(409, "Reference already exists")
            repo.revisions[revision] = repo.revisions["main"]
            return self.send_json({})
        if revision not in repo.revisions:
            return self.send_text(404, "Invalid rev id", {"X-Error-Code": "RevisionNotFound"})
        return self.preupload(hub, repo, revision) if kind == "preupload" else self.commit(hub, name, repo, revision)

    def create(self, hub, account):
        asked = json.loads(self.body)
        name = f"{asked.get('organization') or account['name']}/{asked['name']}"
        if not re.fullmatch(r"[\w.-]{1,96}/\w[\w.-]{0,95}", name) or "--" in name or ".." in name or asked["name"] == "forbidden":
            return self.send_text(400, f"Invalid repo name: {name}")
        if not hub.may_write(account, name):
            return self.send_text(403, f"You don't have the rights to create a model under the namespace {name.split('/')[0]}")
        if ("models", name) in hub.repos:
            return self.send_json({"error": "You already created this model repo", "url": f"{hub.endpoint}/{name}"}, status=409)
        private = asked.get("visibility") == "private" or asked.get("private") is True
        private = private and not hub.ignores_private
        token = self.headers["Authorization"].removeprefix("Bearer ")
        hub.add(name, {".gitattributes": b"*.safetensors filter=lfs\n"}, private=private, token=token if private else None)
        return self.send_json({"url": f"{hub.endpoint}/{name}", "name": name, "id": "1"})

    def preupload(self, hub, repo, revision):
        answers = []
        for file in json.loads(self.body)["files"]:
            path, size = file["path"], file["size"]
            sample = base64.b64decode(file["sample"])
            assert len(sample) == min(size, 512), "a sample is the first 512 bytes"
            answer = {"path": path, "uploadMode": "lfs" if hub.is_large(path, None, size) else "regular",
                      "shouldIgnore": path in hub.ignored, "oid": None}
            if (content := repo.files(revision).get(path)) is not None:
                answer["oid"] = hashlib.sha256(content).hexdigest() if hub.is_large(path, content) else git_blob(content)
            answers.append(answer)
        return self.send_json({"files": answers})

    def batch(self, hub, name):
        asked = json.loads(self.body)
        assert self.headers["Content-Type"] == "application/vnd.git-lfs+json", self.headers["Content-Type"]
        assert asked["operation"] == "upload" and asked["hash_algo"] == "sha256"
        if hub.only_xet:
            return self.send_json({"transfer": "xet", "objects": [{"oid": o["oid"], "size": o["size"]} for o in asked["objects"]]})
        objects = [self.place(hub, name, o["oid"], o["size"]) for o in asked["objects"]]
        return self.send_json({"transfer": "basic", "objects": objects})

    def place(self, hub, name, oid, size):
        entry = {"oid": oid, "size": size, "authenticated": True}
        if hub.object_error:
            return entry | {"error": {"code": 422, "message": hub.object_error}}
        if oid in hub.objects:
            return entry
        verify = {"href": f"{hub.endpoint}/{name}.git/info/lfs/verify", "header": {}}
        if size <= hub.part_bytes:
            upload = {"href": hub.sign(oid, 0, size), "header": {}}
        else:
            count = -(-size // hub.part_bytes)
            parts = {str(i + 1).zfill(5 if count > 9999 else 1):
                     hub.sign(oid, i + 1, min(hub.part_bytes, size - i * hub.part_bytes)) for i in range(count)}
            hub.multiparts[oid] = {}
            upload = {"href": f"{hub.endpoint}/api/complete_multipart?uploadId={oid}",
                      "header": {"chunk_size": str(hub.part_bytes)} | parts}
        return entry | {"actions": {"upload": upload, "verify": verify}}

    def take_part(self, hub):
        with hub.lock:
            signed = hub.signed.get(self.path)
        if not signed or signed in hub.expired:
            return self.send_text(403, "Request has expired")
        oid, part, size = signed[:3]
        if len(self.body) != size:
            return self.send_text(400, "IncompleteBody")
        etag = hashlib.md5(self.body).hexdigest()
        if part == 0:
            if hashlib.sha256(self.body).hexdigest() != oid:
                return self.send_text(400, "BadDigest")
            hub.objects[oid] = self.body
        else:
            hub.multiparts[oid][part] = (etag, self.body)
        return self.send_headers(200, {"ETag": f'"{etag}"', "Content-Length": "0"})

    def complete(self, hub):
        asked = json.loads(self.body)
        parts = hub.multiparts[asked["oid"]]
        named = [(p["partNumber"], p["etag"].strip('"')) for p in asked["parts"]]
        if named != [(number, parts[number][0]) for number in sorted(parts)]:
            return self.send_text(400, "InvalidPart")
        whole = b"".join(parts[number][1] for number in sorted(parts))
        if hashlib.sha256(whole).hexdigest() != asked["oid"]:
            return self.send_text(400, "BadDigest")
        hub.objects[asked["oid"]] = whole
        return self.send_json({})

    def verify(self, hub):
        asked = json.loads(self.body)
        content = hub.objects.get(asked["oid"])
        if content is None or len(content) != asked["size"]:
            return self.send_text(404, "the object is not there")
        return self.send_json({})

    def commit(self, hub, name, repo, revision):
        assert self.headers["Content-Type"] == "application/x-ndjson"
        header, *lines = [json.loads(line) for line in self.body.splitlines()]
        assert header["key"] == "header" and header["value"]["summary"]
        files = {}
        for line in lines:
            value = line["value"]
            path = value["path"]
            if line["key"] == "file":
                files[path] = base64.b64decode(value["content"], validate=True)
                if hub.is_large(path, files[path]):
                    return self.send_text(400, f"{path} must be uploaded by LFS")
            elif line["key"] == "lfsFile":
                content = hub.objects.get(value["oid"])
                if content is None or len(content) != value["size"] or value["algo"] != "sha256":
                    return self.send_text(400, f"the LFS object of {path} is not there")
                files[path] = content
            else:
                return self.send_text(400, f"unknown key {line['key']}")
        commit = repo.add(files, revision)
        repo.titles.append(header["value"]["summary"])
        if hub.loses_answer_of_commit:
            hub.loses_answer_of_commit = False
            return self.hang_up()
        return self.send_json({"success": True, "commitOid": commit, "commitUrl": f"{hub.endpoint}/{name}/commit/{commit}",
                               "hookOutput": "", "pullRequestUrl": None})

    # ---- Answers

    def send_headers(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def send_text(self, status, text, headers=None):
        body = json.dumps({"error": text}).encode()
        self.send_headers(status, {"Content-Length": str(len(body))} | (headers or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value, headers=None, status=200):
        body = json.dumps(value).encode()
        self.send_headers(status, {"Content-Length": str(len(body)), "Content-Type": "application/json"} | (headers or {}))
        self.wfile.write(body)

    def send_content(self, content, headers):
        if self.command == "HEAD":
            return self.send_headers(200, headers | {"Content-Length": str(len(content))})
        if self.fault:
            return self.fault(self, content)
        begin, end = self.range_begin(), self.range_end(len(content))
        if begin > len(content):
            return self.send_text(416, "range")
        part = content[begin:end]
        is_part = len(part) < len(content)
        if is_part:
            headers |= {"Content-Range": f"bytes {begin}-{end - 1}/{len(content)}"}
        self.send_headers(206 if is_part else 200, headers | {"Content-Length": str(len(part))})
        self.wfile.write(part)
        self.wfile.flush()

    def range_begin(self):
        match = re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", ""))
        return int(match[1]) if match else 0

    def range_end(self, size):
        match = re.fullmatch(r"bytes=\d+-(\d+)", self.headers.get("Range", ""))
        return min(int(match[1]) + 1, size) if match else size

    def hang_up(self):
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub, role):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.role = hub, role
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        pass


class FakeHub:
    def __init__(self):
        self.lock = threading.Lock()
        self.repos, self.blobs = {}, {}
        self.released = threading.Event()  # what stalls goes on
        self.reset()
        self.storage = Server(self, "storage")
        self.server = Server(self, "hub")
        self.storage_url, self.endpoint = self.storage.url, self.server.url

    def reset(self):
        with self.lock:
            self.requests, self.faults = [], []
        self.entry_changes, self.extra_entries, self.page_size = {}, [], 1000
        self.accounts = {}  # token: {"name": …, "orgs": […], "role": "write"}
        self.objects, self.multiparts, self.signed, self.expired = {}, {}, {}, set()  # of LFS
        self.part_bytes, self.large_above, self.ignored = 1 << 40, 10 << 20, ()
        self.only_xet = self.ignores_private = self.loses_answer_of_commit = False
        self.object_error = ""
        self.repos.clear()
        self.released.clear()

    def add(self, name, files, kind="models", **options):
        self.repos[kind, name] = Repo(files, kind, **options)
        return self.repos[kind, name]

    def add_account(self, token, name="owner", orgs=("org",), role="write"):
        self.accounts[token] = {"name": name, "orgs": list(orgs), "role": role}

    @staticmethod
    def may_write(account, repo):
        return account["role"] == "write" and repo.split("/")[0] in [account["name"], *account["orgs"]]

    def is_large(self, path, content, size=None):
        """Whether the hub keeps it in LFS: by its name or its size. Empty files are not."""
        size = len(content) if size is None else size
        return size > 0 and (path.endswith(LARGE) or size > self.large_above)

    def sign(self, oid, part, size):
        """An address of storage for one PUT of an object, or of a part from 1."""
        with self.lock:
            path = f"/bucket/{oid}?part={part}&signature={len(self.signed)}"
            self.signed[path] = (oid, part, size, len(self.signed))
        return self.storage_url + path

    def expire_addresses(self):
        self.expired.update(self.signed.values())

    def fault(self, method, path, action, times=1):
        self.faults.append(Fault(method, path, action, times))

    def seen(self, role=None, method=None, path=""):
        with self.lock:
            return [r for r in self.requests if role in (None, r[0]) and method in (None, r[1]) and re.search(path, r[2])]

    def counts(self, role, method):
        return collections.Counter(r[2].split("?")[0] for r in self.seen(role, method))

    def close(self):
        self.released.set()
        for server in (self.server, self.storage):
            server.shutdown()
            server.server_close()


# ---- Misbehaviour. Each is an answer in place of a file's content.

def instead(action):
    """Answers any request, not only those for a file's content."""
    action.instead = True
    return action


def status(code, text="trouble", **headers):
    return instead(lambda handler, _: handler.send_text(code, text, {k.replace("_", "-"): v for k, v in headers.items()}))


def redirect(url):
    return instead(lambda handler, _: handler.send_headers(302, {"Location": url, "Content-Length": "0"}))


def body(text, **headers):
    def action(handler, _):
        handler.send_headers(200, {"Content-Length": str(len(text))} | {k.replace("_", "-"): v for k, v in headers.items()})
        if handler.command != "HEAD":
            handler.wfile.write(text)
    return instead(action)


@instead
def hang_up(handler, _):
    handler.hang_up()


def cut_body_at(end):
    """Reads so much of a request's body and hangs up."""
    def action(handler, _):
        raise AssertionError("the body was to be cut")
    action.cut_body_at = end
    return action


def before(call):
    """The request is answered as usual, after `call`."""
    def action(handler, _):
        call()
        handler.fault = None
        return handler.take(handler.server.hub)
    return instead(action)


def send_part(handler, content, end, announced=None):
    begin = handler.range_begin()
    announced = len(content) - begin if announced is None else announced
    handler.send_headers(206 if begin else 200, {"Content-Length": str(announced)} | (
        {"Content-Range": f"bytes {begin}-{len(content) - 1}/{len(content)}"} if begin else {}))
    handler.wfile.write(content[begin:end])
    handler.wfile.flush()


def cut_at(end):
    def action(handler, content):
        send_part(handler, content, end)
        handler.hang_up()
    return action


def endless(status, chunk=b"x" * 65536, pause=0, **headers):
    """A body without an end, at any request; with `pause` slowly."""
    def action(handler, _):
        handler.send_headers(status, {"Transfer-Encoding": "chunked"} | {k.replace("_", "-"): v for k, v in headers.items()})
        try:
            while not handler.server.hub.released.wait(pause):
                handler.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                handler.wfile.flush()
        except OSError:
            handler.close_connection = True
    return instead(action)


def endless_headers(handler, _):
    try:
        while not handler.server.hub.released.is_set():
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\n" * 100)
    except OSError:
        handler.close_connection = True


endless_headers.instead = True


def stall_at(end, before=None):
    """Sends the beginning and then nothing until the hub is told to go on; `before` is called first."""
    def action(handler, content):
        send_part(handler, content, end)
        if before:
            before()
        if handler.server.hub.released.wait(STALL_SECONDS):
            handler.wfile.write(content[end:])
            handler.wfile.flush()
        else:
            handler.hang_up()
    return action


def announce(difference):
    """Another length than the file has."""
    def action(handler, content):
        send_part(handler, content, len(content), announced=len(content) + difference)
        handler.hang_up()
    return action


def chunked(*pieces):
    """Without a length: pieces of the content ([begin, end) or bytes)."""
    def action(handler, content):
        handler.send_headers(200, {"Transfer-Encoding": "chunked"})
        for piece in pieces:
            data = piece if isinstance(piece, bytes) else content[piece[0]:piece[1]]
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        handler.wfile.write(b"0\r\n\r\n")
        handler.wfile.flush()
    return action


def ignore_range(handler, content):
    handler.send_headers(200, {"Content-Length": str(len(content))})
    handler.wfile.write(content)


def wrong_range(handler, content):
    handler.send_headers(206, {"Content-Range": f"bytes 0-9/{len(content)}", "Content-Length": "10"})
    handler.wfile.write(content[:10])


def corrupt(handler, content):
    middle = len(content) // 2
    damaged = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]
    begin = handler.range_begin()
    send_part(handler, damaged, len(damaged))
    assert begin <= len(content)


@instead
def no_http(handler, _):
    handler.wfile.write(b"\0\1\2 this is no HTTP\r\n\r\n" * 20)
    handler.hang_up()
