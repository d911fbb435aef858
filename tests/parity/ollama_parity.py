#!/usr/bin/env python3
"""The TEMPLATE of Modelfiles that `sftrun merge --format gguf` writes, executed by Go, beside transformers over the chat template itself.

    ollama_parity.py PATH/TO/write_modelfile --go GO                    # Go's standard library alone: in `make test`
    ollama_parity.py PATH/TO/write_modelfile --go GO --ollama CHECKOUT  # Ollama's own parser and template packages, by hand

CHECKOUT is one of github.com/ollama/ollama; its modules come as Go fetches them, or, without a network, from where
GOFLAGS=-modfile=FILE says with `replace`.

For every chat template of the installed trl and transformers, of the SmolLM2 GGUF (the demo's), of Xinference's catalogue and of this program's
own, with BOS put in front by the runner and without: either there is a TEMPLATE, and after each of many random conversations its text is that
of transformers
(add_generation_prompt behind a user's message, continue_final_message behind an assistant's), or there is none and a reason. Conversations
that the chat template refuses are counted and not compared; there Ollama renders something all the same. `make test` takes half as many
conversations (--a-shape 2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import chat_templates
from chat_rendering import TOKENS, reference
from random_chats import RandomChats

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache/go-build"
REGULAR = ["u", "su", "ua", "sua", "uau", "suau", "uaua", "suaua", "uauau", "suauau", "uauauaua", "suauauauau"]
IRREGULAR = ["au", "sau", "usu", "uasu", "usua", "suasu", "auau", "sausua"]
ROLES = {"s": "system", "u": "user", "a": "assistant"}
# Of the templates of trl, transformers and SmolLM2: those users fine-tune most must not slip to those without a TEMPLATE.
BUILTIN = ["chatml", "llama3", "phi3", "zephyr", "vicuna", "alpaca"]
EXACT = ["gemma", "gemma3", "llama3", "llama3_1", "phi3", "phi3_5", "qwen2_5", "qwen3_instruct_2507", "smollm2 (GGUF)"]

# Literals that Go's templates and Modelfiles would read as something else, or lose.
ODD = {
    "odd braces": r"{% for m in messages %}{{ '{' + m.role + '}{' + m.content + '{{ .X }}{%{' }}{% endfor %}{{ '{{{' }}",
    "odd quotes": r"""{% for m in messages %}{{ '"' + m.role + '"\"\"\n' + m.content + '"\"\"\"\"\"\n"' }}{% endfor %}{{ '"' }}""",
    "odd characters": r"{{ bos_token }}{% for m in messages %}{{ '\u00a0\u200b\ufeff\t\r\n\x01\U000e0001\ue000\\' + m.role + '🙂｜▁é中\u2028' + m.content"
    r" + ' \x7f\n\n' }}{% endfor %}{{ '  ' }}",
    "odd ends": r"""{{ '\n "-}}' }}{% for m in messages %}{{ ' -}}\n  ' + m.role + '{{- ' + m.content + ' {{' }}{% endfor %}{{ '/*}}\n' }}""",
}


def gather(write_modelfile: str) -> dict[str, str]:
    builtin = json.loads(subprocess.run([write_modelfile, "--builtin"], check=True, capture_output=True).stdout)
    found = {f"built-in {name}": source for name, source in builtin.items()}
    found |= ODD | chat_templates.of_trl() | chat_templates.of_gguf() | chat_templates.of_transformers() | chat_templates.of_xinference()
    return {name: source for name, source in found.items() if not name.endswith("_training") and "messages" in chat_templates.variables(source)}


def ask(command: list, requests: list[dict]) -> list[dict]:
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True, encoding="utf-8")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests), done.stderr
    return answers


def conversations(seed: int, a_shape: int) -> list[list[dict]]:
    """Nothing in them is empty or white space alone; an assistant's last words end in a letter: where white space follows them in the
    template, transformers cuts in another place behind words that end in white space."""
    chats = RandomChats(seed)
    made = []
    for shape in REGULAR + IRREGULAR:
        for _ in range(a_shape):
            texts = [text if (text := chats.text()).strip() else "x" + text for _ in shape]
            if shape.endswith("a"):
                texts[-1] = texts[-1].rstrip() + " x"
            made.append([{"role": ROLES[role], "content": text} for role, text in zip(shape, texts)])
    return made


def expected(source: str, messages: list[dict]) -> str | None:
    """None: the chat template refuses."""
    continues = messages[-1]["role"] == "assistant"
    try:
        rendered, _ = reference.render_jinja_template(
            [messages], chat_template=source, add_generation_prompt=not continues, continue_final_message=continues, **TOKENS
        )
    except Exception:
        return None
    return rendered[0]


def build(go: str, checkout: Path | None, folder: Path) -> Path:
    program = folder / "go_template"
    source = HERE / "go_template/main.go"
    command, where = [go, "build", "-o", str(program), str(source)], folder
    if checkout:
        # As a package of the checkout, in which nothing is written.
        overlay = folder / "overlay.json"
        inside = checkout.resolve() / "cmd/sftrun-check/main.go"
        overlay.write_text(json.dumps({"Replace": {str(inside): str(HERE / "go_template/ollama/main.go")}}))
        command, where = [go, "build", "-overlay", str(overlay), "-o", str(program), "./cmd/sftrun-check"], checkout
    environment = os.environ | {"GOTOOLCHAIN": "local"}
    if not checkout:
        environment |= {"GO111MODULE": "off", "GOFLAGS": ""}
    environment.setdefault("GOCACHE", str(CACHE))  # Go compiles its standard library once
    subprocess.run(command, check=True, cwd=where, env=environment)
    return program


def check(program: Path, made: dict[tuple[str, str], dict], templates: dict[str, str], a_shape: int, failures: list[str]) -> Counter:
    counts = Counter()
    with_template = {key: answer for key, answer in made.items() if answer["template"] is not None}
    # With BOS and without: the same conversations, which transformers renders once.
    chats = {name: conversations(seed, a_shape) for seed, name in enumerate(dict.fromkeys(name for name, _ in with_template))}
    wanted_texts = {name: [expected(templates[name], messages) for messages in some] for name, some in chats.items()}
    requests = [
        {"template": answer["template"], "modelfile": answer["modelfile"], "conversations": chats[name]} for (name, _), answer in with_template.items()
    ]
    for ((name, added_bos), answer), got in zip(with_template.items(), ask([str(program)], requests)):
        if "error" in got or got["template"] != answer["template"] or got.get("stop", [TOKENS["eos_token"]]) != [TOKENS["eos_token"]]:
            failures.append(f"{name}: {got.get('error') or 'the Modelfile is read as something else'}")
            continue
        for messages, text, wanted in zip(chats[name], got["texts"], wanted_texts[name]):
            shape = "".join(message["role"][0] for message in messages)
            kind = "in turns" if shape in REGULAR else "out of turn"
            if wanted is None:
                counts[f"{kind}, refused by the chat template"] += 1
            elif added_bos + text == wanted or (not wanted.startswith(added_bos) and text == wanted):
                counts[f"{kind}, equal"] += 1
            else:
                counts[f"{kind}, other"] += 1
                failures.append(f"{name}, {shape}: {messages}\n  {text!r}\n  {wanted!r}")
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("write_modelfile")
    parser.add_argument("--go", required=True)
    parser.add_argument("--ollama", type=Path)
    parser.add_argument("--a-shape", type=int, default=4, metavar="N", help="conversations of each order of roles, for each template [4]")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    templates = gather(arguments.write_modelfile)
    keys = [(name, added_bos) for name in templates for added_bos in ("", TOKENS["bos_token"])]
    answers = ask([arguments.write_modelfile], [{"source": templates[name], "tokens": TOKENS, "added_bos": bos} for name, bos in keys])
    made = dict(zip(keys, answers))
    reasons, failures = defaultdict(list), []
    for name in templates:
        answer = made[name, ""]
        reasons["" if answer.get("template") is not None else answer.get("reason") or answer["error"]].append(name)
    for name in [*ODD, *EXACT, *(f"built-in {name}" for name in BUILTIN)]:
        if name not in reasons[""]:
            failures.append(f"{name} has no TEMPLATE: {made[name, '']}")
    print(f"{len(templates)} chat templates, {len(reasons[''])} with a TEMPLATE: {', '.join(sorted(reasons.pop('')))}")
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        print(f"  {len(names)} without, since {reason}: {', '.join(sorted(names))}")
    with tempfile.TemporaryDirectory() as folder:
        counts = check(build(arguments.go, arguments.ollama, Path(folder)), made, templates, arguments.a_shape, failures)
    print(f"{'Ollama' if arguments.ollama else 'text/template'} beside transformers, conversations: {dict(sorted(counts.items()))}")
    for failure in failures[: None if arguments.verbose else 10]:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures or counts["in turns, equal"] < 1000 else 0)


main()
