"""One conversation rendered twice: by this program's render_chat, and by jinja2 as transformers uses it."""

from __future__ import annotations

import datetime
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import transformers.utils.chat_template_utils as reference

NOW = 1_750_000_000
TOKENS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, tz)


reference.datetime = FixedDatetime


def request(source, messages, tools, kwargs, add_generation_prompt=False, labels=False):
    return {
        "source": source,
        "messages": messages,
        "tools": tools,
        "kwargs": kwargs,
        "tokens": TOKENS,
        "add_generation_prompt": add_generation_prompt,
        "now": NOW,
        "labels": labels,
    }


class Renderer:
    """The program reads each template once, from a file."""

    def __init__(self, binary):
        self.binary = binary
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.folder = tempfile.TemporaryDirectory()
        self.paths: dict[str, str] = {}  # of the templates' sources

    def line(self, request: dict) -> bytes:
        source = request["source"]
        if source not in self.paths:
            path = Path(self.folder.name) / str(len(self.paths))
            path.write_bytes(source.encode())
            self.paths[source] = str(path)
        sent = {key: value for key, value in request.items() if key != "source"} | {"template": self.paths[source]}
        return json.dumps(sent).encode() + b"\n"

    def builtin(self) -> dict[str, str]:
        return json.loads(subprocess.run([self.binary, "--builtin"], check=True, capture_output=True).stdout)

    def __call__(self, *arguments, **options):
        self.process.stdin.write(self.line(request(*arguments, **options)))
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def many(self, requests: Iterable[dict]) -> Iterator[dict]:
        """Answers in the order of the requests."""
        lines = [self.line(one) for one in requests]

        def write():
            self.process.stdin.writelines(lines)
            self.process.stdin.flush()

        writer = threading.Thread(target=write)
        writer.start()
        for _ in lines:
            yield json.loads(self.process.stdout.readline())
        writer.join()


def render_reference(source, messages, tools, kwargs, add_generation_prompt=False, marks=False):
    try:
        rendered, indices = reference.render_jinja_template(
            [messages],
            tools=tools,
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            return_assistant_tokens_mask=marks,
            **TOKENS,
            **kwargs,
        )
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    answer = {"text": rendered[0]}
    if marks:
        to_byte = [0]
        for character in rendered[0]:
            to_byte.append(to_byte[-1] + len(character.encode()))
        answer["marks"] = merged((to_byte[a], to_byte[min(b, len(to_byte) - 1)]) for a, b in indices[0])
    return answer


def merged(spans):
    result = []
    for begin, end in sorted(spans):
        if begin == end:
            continue
        if result and result[-1][1] >= begin:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result
