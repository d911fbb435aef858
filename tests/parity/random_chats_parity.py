#!/usr/bin/env python3
"""Chat templates of the reference packages on random conversations.

    random_chats_parity.py PATH/TO/render_chat [--chats N] [--seed N] [--templates FOLDER]... [--sources FOLDER]...

Texts: this program renders what jinja2 renders as transformers uses it, or both refuse. Labels, on conversations in which
each text is signed: every byte of the assistant's that the template keeps is labelled, in its own message's turn; nothing
of another role is; a turn begins where jinja2 says that the generation prompt ends, and ends with the token behind it.
--templates and --sources take further templates: *.jinja files, and string literals of Python sources.
"""

import argparse
import re
import sys
from collections import Counter
from pathlib import Path

import chat_templates
from chat_rendering import TOKENS, Renderer, render_reference, request
from random_chats import RandomChats, SignedChats, in_parts

SIGNATURE = re.compile(r"Zq(\d+)[a-z][be]")
MARKER = re.compile(r"<[|｜][^<>\s]*>|<[^<>\s]*\|>|</?s>|<(?:start|end)_of_\w+>")  # as in render_chat
THINKING = ("<think", "</think", "<|channel>", "<|channel|>", "<|START_THINKING|>", "[THINK]", "<seed:think")

# Spread over lines by whoever put them in the catalogue, and so with white space in the texts that no generation prompt has.
RESPACED = {f"xinference {name}" for name in ("DeepSeek-V3.2", "DeepSeek-V3.2-Exp", "Deepseek-V3.1", "KAT-V1", "deepseek-v3")}


def texts(render, name, source, chats, failures):
    counts = Counter()
    cases = [chats.conversation() for _ in range(chats.count)]
    if "messages" not in chat_templates.variables(source):
        cases = [([], None, chats.question(), False) for _ in cases]
    for case, got in zip(cases, render.many([request(source, *case) for case in cases])):
        wanted = render_reference(source, *case)
        same = wanted.get("text") == got.get("text") and ("error" in wanted) == ("error" in got)
        counts["refused by both" if same and "error" in wanted else "equal" if same else "different"] += 1
        if not same:
            failures.append(f"{name}: {case}:\n  jinja2 {wanted}\n  here   {got}")
    if not counts["equal"]:
        failures.append(f"{name}: refuses every conversation")
    return counts


def behind_signatures(text):
    return text[max((s.end() for s in SIGNATURE.finditer(text)), default=0) :]


class Chat:
    """A rendered conversation: what jinja2 makes of its parts, and what is labelled here."""

    def __init__(self, source, messages, tools, kwargs, answer):
        self.source, self.messages, self.tools, self.kwargs = source, messages, tools, kwargs
        raw = answer["text"].encode()
        self.text = answer["text"]
        self.runs = [(len(raw[:begin].decode()), len(raw[:end].decode()), message) for begin, end, message in answer["runs"]]
        self.signatures = [(s.start(), s.end(), int(s[1])) for s in SIGNATURE.finditer(self.text)]

    def rendered(self, count, add_generation_prompt=False):
        return render_reference(self.source, self.messages[:count], self.tools, self.kwargs, add_generation_prompt).get("text")

    def whose(self):
        for begin, end, message in self.signatures:
            owners = [m for a, b, m in self.runs if a < end and begin < b]
            whole = any(a <= begin and end <= b for a, b, _ in self.runs)
            if self.messages[message]["role"] != "assistant" and owners:
                yield f"{self.text[begin:end]} ({self.messages[message]['role']}) is labelled"
            if self.messages[message]["role"] == "assistant" and (owners != [message] or not whole):
                yield f"{self.text[begin:end]} is labelled in {owners}"

    def begins(self, message, begin):
        """Behind the generation prompt, or the part of it before its thinking.

        A template that prompts for nothing, after a tool's answer, may still write the header that it prompts a user's with.
        """
        prompted = self.rendered(message, True)
        if prompted is None or any(end == begin and m < message for _, end, m in self.runs):  # at once behind another turn
            return
        prompt = behind_signatures(prompted)
        opener = min([at for word in THINKING if (at := prompt.find(word)) >= 0], default=len(prompt))
        allowed = [prompt, prompt[:opener]]
        if prompted == self.rendered(message):
            asked = max((i + 1 for i in range(message) if self.messages[i]["role"] == "user"), default=0)
            allowed.append(behind_signatures(self.rendered(asked, True) or "").removeprefix(behind_signatures(self.rendered(asked) or "")))
        at_once = any(end == begin for _, end, _ in self.signatures)
        if not any(self.text[:begin].endswith(end) if end else at_once for end in allowed):
            yield f"turn {message} begins behind {self.text[max(0, begin - 40):begin]!r}, the prompt ends in {prompt!r}"

    def ends(self, message, end):
        """With the last token that closes the turn when nothing follows, else with the next one there is."""
        own = [b for _, b, m in self.signatures if m == message and b <= end]
        closed = self.rendered(message + 1)
        if not own or closed is None or not self.text.startswith(closed):
            return
        closer = closed[own[-1] :].rstrip()
        if not MARKER.search(closer):
            following = MARKER.search(self.text, len(closed))
            closer = self.text[own[-1] : following.end()] if following and message + 1 < len(self.messages) else closer
        if self.text[own[-1] : end] != closer:
            yield f"turn {message} ends in {self.text[own[-1]:end]!r}, the template closes it with {closer!r}"

    def ends_before_another(self, message, end):
        """Of a turn whose content stands behind the next message: no further than what stands there when nothing follows."""
        last, signature = max((b, self.text[a:b]) for a, b, m in self.signatures if m == message and b <= end)
        closed = self.rendered(message + 1) or ""
        if not closed[closed.rfind(signature) + len(signature) :].startswith(self.text[last:end]):
            yield f"turn {message} ends in {self.text[last:end]!r}, which is not all its own"

    def faults(self):
        yield from self.whose()
        if re.search(r"\{%-?\s*generation\b", self.source):
            return
        for message, one in enumerate(self.messages):
            mine = [(begin, end) for begin, end, m in self.runs if m == message]
            apart = [run for run in mine[1:] if any(mine[0][1] <= b and e <= run[0] and m > message for b, e, m in self.signatures)]
            if one["role"] == "assistant" and len(mine) - len(apart) != 1:
                yield f"turn {message} has {len(mine)} runs"
            for begin, end in mine[:1]:
                yield from self.begins(message, begin)
                yield from self.ends_before_another(message, end) if apart else self.ends(message, end)


def labels(render, name, source, chats, failures):
    counts = Counter()
    cases = [chats.conversation()[:3] for _ in range(chats.count)]
    if all("error" in render_reference(source, *case) for case in cases):
        cases = [(in_parts(messages), tools, kwargs) for messages, tools, kwargs in cases]
    for case, answer in zip(cases, render.many([request(source, *case, labels=True) for case in cases])):
        if "error" in answer:
            refused = "error" in render_reference(source, *case)
            counts["refused by both" if refused else "refused here"] += 1
            if not refused and "the chat template omits messages" not in answer["error"]:
                failures.append(f"{name}: {case[0]}: labels refused: {answer['error']}")
            continue
        faults = list(Chat(source, *case, answer).faults())
        counts["wrong" if faults else "right"] += 1
        if faults:
            shown = [answer["text"].encode()[a:b].decode() for a, b, _ in answer["runs"]]
            failures.append(f"{name}, {case[2]}: {'; '.join(faults)}\n  {answer['text']!r}\n  labels {shown}")
    if not counts["right"]:
        failures.append(f"{name}: no conversation with labels: {dict(counts)}")
    return counts


# Built-in templates and what the formats' owners have, in conversations that both take.
SAME_FORMATS = {"built-in chatml": "xinference Yi-chat", "built-in llama3": "llama3", "built-in gemma": "gemma", "built-in phi3": "phi3"}
CHATS = [[("user", " a question "), ("assistant", "an answer\n")], [("user", "1"), ("assistant", "2"), ("user", "3\n\n4"), ("assistant", "\t5")]]


def same_formats(render, builtin, templates):
    assert builtin.keys() >= SAME_FORMATS.keys(), builtin.keys()
    for name, source in builtin.items():  # null beside tool calls, as OpenAI's clients write it
        nulls, empty = ([{"role": "user", "content": "1"}, {"role": "assistant", "content": content}] for content in (None, ""))
        if render(source, nulls, None, {}) != render(source, empty, None, {}) or "error" in render(source, nulls, None, {}):
            yield name, "null content is not empty content"
    for ours, theirs in SAME_FORMATS.items():
        if theirs not in templates:  # its package could not be downloaded
            continue
        for chat in CHATS:
            for count in range(1, len(chat) + 1):
                messages = [{"role": role, "content": content} for role, content in chat[:count]]
                prompts = count % 2 == 1
                got = render(builtin[ours], messages, None, {}, prompts).get("text")
                wanted = render_reference(templates[theirs], messages, None, {}, prompts)["text"]
                if theirs == "phi3" and not prompts:
                    wanted = wanted.removesuffix(TOKENS["eos_token"])  # of a text, not of its last turn
                if got != wanted:
                    yield (ours, theirs), f"{got!r} is not {wanted!r}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("render_chat")
    parser.add_argument("--chats", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates", action="append", default=[], type=Path)
    parser.add_argument("--sources", action="append", default=[], type=Path)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    templates = chat_templates.of_trl() | chat_templates.of_gguf() | chat_templates.of_transformers() | chat_templates.of_xinference()
    for folder in arguments.templates:
        templates |= {f"{folder.name}/{name}": text for name, text in chat_templates.of_folder(folder).items()}
    for folder in arguments.sources:
        templates |= chat_templates.of_python_files(folder, folder.name)
    render = Renderer(arguments.render_chat)
    failures: list[str] = []
    rendered, labelled = Counter(), Counter()
    builtin = {f"built-in {name}": text for name, text in render.builtin().items()}
    failures += [f"{pair}: {fault}" for pair, fault in same_formats(render, builtin, templates)]
    templates |= builtin
    for name, source in templates.items():
        rendered += texts(render, name, source, RandomChats(arguments.seed, arguments.chats), failures)
        if "messages" in chat_templates.variables(source) and name not in RESPACED:
            labelled += labels(render, name, source, SignedChats(arguments.seed, arguments.chats), failures)
    print(f"{len(templates)} templates, {arguments.chats} conversations each")
    print(f"texts: {dict(rendered)}")
    print(f"labels: {dict(labelled)}")
    for failure in failures[: None if arguments.verbose else 20]:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


main()
