#!/usr/bin/env python3
"""Content that is null or missing beside tool calls, as OpenAI's records have it: tokens and labels beside transformers'.

    .venv-ref/bin/python tests/parity/null_content_parity.py --sftrun build/bin/sftrun

For every chat template that trl and the SmolLM2 GGUF carry: where transformers' apply_chat_template renders the conversation, `sftrun
tokenize --chat` has the same tokens, and for templates with {% generation %} the same labels (an answer whose call the template leaves out
has none here). Where it fails the tokens are those of the same conversation with the content "", or, where it fails on that, too, with the
arguments as a string.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import chat_templates
import transformers

MODEL = pathlib.Path(__file__).resolve().parents[1] / "data/models/tied-gqa"
CALL = {"id": "call00000", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Which"}}, "required": ["city"]}}}]


def conversation(**content):
    """The call's own content; the rest is the same."""
    return [{"role": "user", "content": "Weather?"}, {"role": "assistant", **content, "tool_calls": [CALL]},
            {"role": "tool", "name": "get_weather", "tool_call_id": "call00000", "content": "Sunny"},
            {"role": "assistant", "content": "It is sunny."}]


def of_strings(messages):
    """For templates that add the arguments to a text: DeepSeek V3's."""
    call = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    return [{**message, "tool_calls": [call]} if "tool_calls" in message else message for message in messages]


def reference(tokenizer, source, messages):
    """Text, tokens and, where the template marks them, labels; None where it fails."""
    marks = "{% generation" in source or "{%- generation" in source
    try:
        text = tokenizer.apply_chat_template(messages, tools=TOOLS, chat_template=source, tokenize=False)
        found = tokenizer.apply_chat_template(messages, tools=TOOLS, chat_template=source, return_dict=True,
                                              return_assistant_tokens_mask=marks)
    except Exception:  # whatever a template may raise
        return None
    return {"text": text, "ids": list(found["input_ids"]), "mask": list(found["assistant_masks"]) if marks else None}


def ours(sftrun, folder, messages):
    (folder / "in.jsonl").write_text(json.dumps({"messages": messages, "tools": TOOLS}) + "\n")
    done = subprocess.run([sftrun, "tokenize", "--chat", "--model", folder, "--input", folder / "in.jsonl", "--output", "-"],
                          capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        return json.loads(done.stdout), ""
    return None, f"exit code {done.returncode}: {done.stderr.strip()}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--sftrun", required=True)
    options = parser.parse_args()
    templates = {**chat_templates.of_trl(), **chat_templates.of_gguf()}
    counts = {"as transformers": 0, "labels as transformers": 0, "as with an empty text": 0, "refused by the template": 0}
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(MODEL / file, folder / file)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        for template, source in templates.items():
            (folder / "chat_template.jinja").write_text(source)
            empty = reference(tokenizer, source, conversation(content=""))
            for kind, messages in (("null", conversation(content=None)), ("missing", conversation())):
                wanted, found = reference(tokenizer, source, messages), ours(options.sftrun, folder, messages)
                is_taken = wanted is not None
                wanted = wanted or empty or reference(tokenizer, source, of_strings(conversation(content="")))
                if wanted is None:
                    counts["refused by the template"] += 1
                    if found[0] is not None or not found[1].startswith("exit code 3: error: "):
                        problems.append(f"{template}, {kind}: {found[1] or 'rendered, and transformers refuses'}")
                    continue
                counts["as transformers" if is_taken else "as with an empty text"] += 1
                if found[0] is None:
                    problems.append(f"{template}, {kind}: {found[1]}")
                elif found[0]["input_ids"] != wanted["ids"]:
                    problems.append(f"{template}, {kind}: other tokens\n  {tokenizer.decode(found[0]['input_ids'])!r}\n  {wanted['text']!r}")
                elif any(wanted["mask"] or []) and "Oslo" in wanted["text"]:
                    counts["labels as transformers"] += 1
                    if found[0]["assistant_mask"] != wanted["mask"]:
                        problems.append(f"{template}, {kind}: other labels")
    print(counts)
    if counts["as transformers"] < 40 or counts["as with an empty text"] < 2 or counts["labels as transformers"] < 10:
        problems.append("fewer templates than there should be")
    print(*problems, sep="\n")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
