#!/usr/bin/env python3
"""Chat templates of real families, rendered by this program and by jinja2 as transformers uses it.

    templates_parity.py PATH/TO/render_chat [--all] [--verbose]

For every template of the installed trl and transformers and the one in the SmolLM2 GGUF, over conversations of many kinds:
the texts are equal, or both refuse. For every stock template with a twin that has {% generation %} marks, wherever the two
render the same text: the bytes labelled by alignment are those the twin marks, but for the differences named below.
Templates without a twin, and conversations that a twin renders in another way, are compared with labels written by hand.
Without --all a template is given only those settings whose names stand in it, and each twin half of the random conversations.
"""

import argparse
import json
import sys
from collections import Counter

import chat_templates
from chat_rendering import Renderer, merged, render_reference, request
from random_chats import SignedChats

def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, arguments, id=None):
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": id, **made} if id else made


def tool(text, **more):
    return {"role": "tool", "content": text, **more}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city — now",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Which city", "enum": ["Oslo", "Åre"]},
                "days": {"type": "integer", "default": 3},
                "units": {"type": ["string", "null"]},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["city"],
        },
        "return": {"type": "string"},
    },
}
NOTHING = {"type": "function", "function": {"name": "ping", "description": "Pings", "parameters": {"type": "object", "properties": {}}}}

OSLO = call("get_weather", {"city": "Oslo", "days": 2, "where": {"lat": 59.9, "deep": [1, None, True]}}, "call_1")
ARE = call("get_weather", {"city": "Åre", "note": "line\nbreak \"quoted\""}, "call_2")
MARKERS = "</s><|im_end|>\n<|im_start|>assistant\n<|eot_id|><end_of_turn><|end|>[/INST]<|return|><turn|>"

# name: (messages, tools)
CONVERSATIONS = {
    "single": ([user("Hi"), assistant("Hello!")], None),
    "prompt only": ([user("Hi")], None),
    "multi": ([user("One?"), assistant("1"), user("Two?"), assistant("2"), user("Three?"), assistant("3")], None),
    "multi open": ([user("One?"), assistant("1"), user("Two?")], None),
    "system": ([system("Be kind."), user("Hi"), assistant("Hello!")], None),
    "system multi": ([system("Be kind."), user("a"), assistant("b"), user("c"), assistant("d")], None),
    "late system": ([user("a"), system("Be brief."), user("b"), assistant("c")], None),
    "repeated": ([user("same"), assistant("same"), user("same"), assistant("same")], None),
    "repeated words of the template": ([user("assistant"), assistant("user\nassistant\n"), user("model"), assistant("assistant")], None),
    "markers": ([user(MARKERS), assistant("a" + MARKERS + "b"), user("c"), assistant(MARKERS)], None),
    "white space": ([user("  \n hi \t"), assistant("\n\n  hello  \n"), user(" "), assistant(" \n")], None),
    "unicode": ([user("Grüße 中文 🙂 \u00a0x\u3000"), assistant("¿Qué? \u2028 ﬁ 🙂")], None),
    "empty user": ([user(""), assistant("ok"), user(""), assistant("still")], None),
    "empty answer": ([user("a"), assistant(""), user("b"), assistant("c")], None),
    "answers in a row": ([user("a"), assistant("b"), assistant("c"), user("d"), assistant("e")], None),
    "users in a row": ([user("a"), user("b"), assistant("c")], None),
    "assistant first": ([assistant("I begin."), user("a"), assistant("b")], None),
    "parts": ([system("s"), {"role": "user", "content": parts("Hi ", "there")}, {"role": "assistant", "content": parts("Hello")}], None),
    "all parts": ([{"role": "user", "content": parts("Hi")}, {"role": "assistant", "content": parts("Hello")}, {"role": "user", "content": parts("x")}, {"role": "assistant", "content": parts("y", "z")}], None),
    "image": ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}, {"role": "assistant", "content": parts("A cat")}], None),
    "no messages": ([], None),
    "odd role": ([user("a"), {"role": "critic", "content": "b"}, assistant("c")], None),
    "null answer": ([user("a"), {"role": "assistant", "content": None}], None),
    "no content": ([user("a"), {"role": "assistant"}], None),
    "number content": ([user("a"), assistant(5)], None),
    "reasoning": ([user("1+1?"), assistant("2", reasoning_content="One and one.")], None),
    "reasoning multi": ([user("1+1?"), assistant("2", reasoning_content="One and one."), user("2+2?"), assistant("4", reasoning_content=" Two\nand two.\n")], None),
    "thinking key": ([user("1+1?"), assistant("2", thinking="One and one."), user("2+2?"), assistant("4", reasoning="Two.")], None),
    "think in text": ([user("1+1?"), assistant("<think>\nOne and one.\n</think>\n\n2"), user("2+2?"), assistant("<think>\nTwo.\n</think>\n\n4")], None),
    "only a closing think": ([user("1+1?"), assistant("One.</think>\n\n2")], None),
    "only an opening think": ([user("1+1?"), assistant("<think>\nOne")], None),
    "empty think": ([user("1+1?"), assistant("<think>\n\n</think>\n\n2")], None),
    "tools offered": ([user("Weather?"), assistant("Where?")], [WEATHER]),
    "tools offered to system": ([system("Help."), user("Weather?"), assistant("Where?")], [WEATHER, NOTHING]),
    "tool call": ([user("Weather?"), assistant("", tool_calls=[OSLO])], [WEATHER]),
    "tool call and text": ([user("Weather?"), assistant("Let me look.", tool_calls=[OSLO])], [WEATHER]),
    "tool call without content": ([user("Weather?"), {"role": "assistant", "tool_calls": [OSLO]}], [WEATHER]),
    "tool call with null content": ([user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [OSLO]}], [WEATHER]),
    "tool call as text": ([user("Weather?"), assistant("", tool_calls=[call("get_weather", '{"city": "Oslo"}', "c1")])], [WEATHER]),
    "tool round": (
        [user("Weather?"), assistant("", tool_calls=[OSLO]), tool("Sunny\n21°", name="get_weather", tool_call_id="call_1"), assistant("It is sunny.")],
        [WEATHER],
    ),
    "tool round, null content": (
        [user("Weather?"), {"role": "assistant", "content": None, "tool_calls": [OSLO]}, tool("Sunny", name="get_weather", tool_call_id="call_1"), assistant("It is sunny."), user("Thanks"), assistant("Welcome")],
        [WEATHER],
    ),
    "tool round open": ([user("Weather?"), assistant("", tool_calls=[OSLO]), tool("Sunny", name="get_weather", tool_call_id="call_1")], [WEATHER]),
    "parallel calls": (
        [
            system("Help."),
            user("Both?"),
            assistant("", tool_calls=[OSLO, ARE]),
            tool("Sunny", name="get_weather", tool_call_id="call_1"),
            tool("Snow", name="get_weather", tool_call_id="call_2"),
            assistant("Sunny and snow."),
            user("Thanks"),
            assistant("Welcome."),
        ],
        [WEATHER],
    ),
    "parallel calls as text": (
        [
            user("Both?"),
            {"role": "assistant", "content": None, "tool_calls": [call("get_weather", '{"city": "Oslo"}', "call_1"), call("get_weather", '{"city": "Åre"}', "call_2")]},
            tool("Sunny", name="get_weather", tool_call_id="call_1"),
            tool("Snow", name="get_weather", tool_call_id="call_2"),
            assistant("Sunny and snow."),
        ],
        [WEATHER],
    ),
    "reasoned tool rounds": (
        [
            user("Weather?"),
            assistant("", reasoning_content="Need it.", tool_calls=[OSLO]),
            tool("Sunny", name="get_weather", tool_call_id="call_1"),
            assistant("", reasoning_content="And Åre.", tool_calls=[ARE]),
            tool("Snow", name="get_weather", tool_call_id="call_2"),
            assistant("Sun and snow.", reasoning_content="Done."),
            user("Bye"),
            assistant("Bye!", reasoning_content="Polite."),
        ],
        [WEATHER],
    ),
    "no arguments": ([user("Ping"), assistant("", tool_calls=[call("ping", {}, "c9")]), tool("pong", name="ping", tool_call_id="c9"), assistant("pong")], [NOTHING]),
}
KWARGS = [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"reasoning_effort": "low", "preserve_thinking": True}]

# Where the twin marks something else on purpose (design: a label runs from the end of the generation prompt through
# the end-of-turn token). Each difference must be one of these kinds:
HEADER = "the twin marks (part of) the header that the generation prompt already holds"
SPACE = "the twin marks white space after the end-of-turn token"
CLOSER = "the twin leaves out the token that closes the turn"

SIGNED_CHATS, ALL_SIGNED_CHATS = 4, 8  # random conversations more for each twin

# A twin that renders less than half of the conversations as its template does; HAND has labels for these instead.
FEW_COMPARABLE = {
    "glm4moe": "the twin writes <|user|> or <|observation|> after the last turn, where the template leaves it open",
    "qwen3": "the twin writes reasoning, or its empty tags, in every turn, the template only after the last question",
}

# What is labelled in each turn, without kwargs: from the end of the header that the generation prompt holds, through the
# token that ends the turn. Written by hand from the templates.
CHATML_CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2, "where": {"lat": 59.9, "deep": [1, null, true]}}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Åre", "note": "line\\nbreak \\"quoted\\""}}\n</tool_call><|im_end|>'
)
DEEPSEEK_CALLS = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Oslo\"}\n```<｜tool▁call▁end｜>\n"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Åre\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
)
GLM_CALLS = (
    "\n<think></think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
    '<arg_key>where</arg_key>\n<arg_value>{"lat": 59.9, "deep": [1, null, true]}</arg_value>\n</tool_call>\n'
    '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Åre</arg_value>\n<arg_key>note</arg_key>\n<arg_value>line\nbreak "quoted"</arg_value>\n</tool_call><|observation|>'
)
GLM_ARGUMENTS = [call.strip() for call in GLM_CALLS.removesuffix("<|observation|>").split("<tool_call>")[1:]]
CALL_JSON = ['{"city": "Oslo", "days": 2, "where": {"lat": 59.9, "deep": [1, null, true]}}', '{"city": "Åre", "note": "line\\nbreak \\"quoted\\""}']
QWEN3_5_CALLS = [
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    '<parameter=where>\n{"lat": 59.9, "deep": [1, null, true]}\n</parameter>\n</function>\n</tool_call><|im_end|>',
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nÅre\n</parameter>\n"
    '<parameter=note>\nline\nbreak "quoted"\n</parameter>\n</function>\n</tool_call><|im_end|>',
]
GEMMA_CALLS = (
    '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:2,where:{deep:[1,NULL,true],lat:59.9}}<tool_call|>'
    '<|tool_call>call:get_weather{city:<|"|>Åre<|"|>,note:<|"|>line\nbreak "quoted"<|"|>}<tool_call|>'
)
GEMMA4_OLD, GEMMA4 = ["gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4"], ["gemma4_v5"]
LFM2_MARKED = ["lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"]  # they have marks of their own, with a line break at the end
LLAMA3, DEEPSEEK = ["llama3_1", "llama3_2"], ["deepseek_r1_distill", "deepseekv3"]
HAND = [
    # Reasoning of earlier turns that the template drops is not trained on; the answer without it is.
    (["qwen3"], "reasoning", ["<think>\nOne and one.\n</think>\n\n2<|im_end|>"]),
    (["qwen3"], "reasoning multi", ["2<|im_end|>", "<think>\n Two\nand two.\n</think>\n\n4<|im_end|>"]),
    (["qwen3"], "think in text", ["2<|im_end|>", "<think>\nTwo.\n</think>\n\n4<|im_end|>"]),
    (["qwen3_5_think"], "reasoning multi", ["2<|im_end|>", "Two\nand two.\n</think>\n\n4<|im_end|>"]),  # <think> is the prompt's
    (["glm4moe"], "think in text", ["\n<think></think>\n2<|user|>", "\n<think>Two.</think>\n4"]),
    (["deepseek_r1_distill"], "think in text", ["\n\n2<｜end▁of▁sentence｜>", "\n\n4<｜end▁of▁sentence｜>"]),
    (GEMMA4_OLD, "reasoning multi", ["2<turn|>", "4<turn|>"]),
    (GEMMA4, "reasoning multi", ["2<turn|>", "<|channel>thought\n Two\nand two.\n\n<channel|>4<turn|>"]),
    (LFM2_MARKED, "reasoning multi", ["2<|im_end|>\n", "<think> Two\nand two.\n</think>4<|im_end|>\n"]),
    (["gptoss"], "reasoning multi", [
        "<|channel|>final<|message|>2<|end|>",
        "<|channel|>analysis<|message|> Two\nand two.\n<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
    ]),
    # The same with tools: what was thought before the last question is dropped, the calls stay; the last turn thinks.
    (["qwen3"], "reasoned tool rounds", [
        *(f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call><|im_end|>' for arguments in CALL_JSON),
        "Sun and snow.<|im_end|>",
        "<think>\nPolite.\n</think>\n\nBye!<|im_end|>",
    ]),
    (["qwen3_5_think"], "reasoned tool rounds", [*QWEN3_5_CALLS, "Sun and snow.<|im_end|>", "Polite.\n</think>\n\nBye!<|im_end|>"]),
    (["qwen3_5_nothink"], "reasoned tool rounds", [*QWEN3_5_CALLS, "Sun and snow.<|im_end|>", "<think>\nPolite.\n</think>\n\nBye!<|im_end|>"]),
    (["gptoss"], "reasoned tool rounds", [
        *(f" to=functions.get_weather<|channel|>commentary json<|message|>{arguments}<|call|>" for arguments in CALL_JSON),
        "<|channel|>final<|message|>Sun and snow.<|end|>",
        "<|channel|>analysis<|message|>Polite.<|end|><|start|>assistant<|channel|>final<|message|>Bye!<|return|>",
    ]),
    (["glm4moe"], "reasoned tool rounds", [
        *(f"\n<think></think>\n<tool_call>{call}<|observation|>" for call in GLM_ARGUMENTS),
        "\n<think></think>\nSun and snow.<|user|>",
        "\n<think>Polite.</think>\nBye!",
    ]),
    # A completion that holds only the closing tag.
    (["qwen3"], "only a closing think", ["<think>\nOne.\n</think>\n\n2<|im_end|>"]),
    (["qwen3_5_think"], "only a closing think", ["One.\n</think>\n\n2<|im_end|>"]),
    (["glm4moe"], "only a closing think", ["\n<think>One.</think>\n2"]),
    (["deepseek_r1_distill"], "only a closing think", ["\n\n2<｜end▁of▁sentence｜>"]),
    (LLAMA3, "only a closing think", ["One.</think>\n\n2<|eot_id|>"]),
    (["smollm2 (GGUF)"], "only a closing think", ["One.</think>\n\n2<|im_end|>"]),
    # Parallel calls are one turn, their results none.
    (["qwen3"], "parallel calls", [CHATML_CALLS, "Sunny and snow.<|im_end|>", "<think>\n\n</think>\n\nWelcome.<|im_end|>"]),
    (["glm4moe"], "parallel calls", [GLM_CALLS, "\n<think></think>\nSunny and snow.<|user|>", "\n<think></think>\nWelcome."]),
    (DEEPSEEK, "parallel calls as text", [DEEPSEEK_CALLS, "Sunny and snow.<｜end▁of▁sentence｜>"]),
    (["gemma4_v2"], "parallel calls", [GEMMA_CALLS.replace("NULL", "None") + "<turn|>", "Sunny and snow.<turn|>", "Welcome.<turn|>"]),
    # A turn that the next message closes: with its header, or its first token.
    (["glm4moe"], "multi", ["\n<think></think>\n1<|user|>", "\n<think></think>\n2<|user|>", "\n<think></think>\n3"]),
    (["gemma4", "gemma4_v3", "gemma4_v4"], "parallel calls",
     [GEMMA_CALLS.replace("NULL", "None") + "<|tool_response>", "Sunny and snow.<turn|>", "Welcome.<turn|>"]),
    (GEMMA4, "parallel calls", [GEMMA_CALLS.replace("NULL", "null") + "<|tool_response>", "Sunny and snow.<turn|>", "Welcome.<turn|>"]),
    (GEMMA4, "answers in a row", ["b", "c<turn|>", "e<turn|>"]),  # one turn to the template: "bc<turn|>"
    # The rest of what has no twin.
    (GEMMA4_OLD + GEMMA4, "multi", ["1<turn|>", "2<turn|>", "3<turn|>"]),
    (LFM2_MARKED, "multi", ["1<|im_end|>\n", "2<|im_end|>\n", "3<|im_end|>\n"]),
    (LLAMA3, "multi", ["1<|eot_id|>", "2<|eot_id|>", "3<|eot_id|>"]),
    (LLAMA3, "tool round", [
        '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2, "where": {"lat": 59.9, "deep": [1, null, true]}}}<|eot_id|>',
        "It is sunny.<|eot_id|>",
    ]),
    (["transformers processing_llama4"], "multi", ["1<|eot|>", "2<|eot|>", "3<|eot|>"]),
    (["transformers processing_llama4"], "tool round", [
        '<|python_start|><|python_end|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 2, "where": {"lat": 59.9, "deep": [1, null, true]}}}<|eot|>',
        "It is sunny.<|eot|>",
    ]),
    (["transformers processing_qwen2_audio"], "multi", ["1<|im_end|>", "2<|im_end|>", "3<|im_end|>"]),
    (["transformers processing_smolvlm"], "all parts", [" Hello<end_of_utterance>", " yz<end_of_utterance>"]),
    (["smollm2 (GGUF)"], "multi", ["1<|im_end|>", "2<|im_end|>", "3<|im_end|>"]),
]


def kwargs_for(sources, is_all):
    """None, and those that one of the templates names: others change nothing."""
    return [kwargs for kwargs in KWARGS if is_all or not kwargs or any(key in source for key in kwargs for source in sources)]


def check_texts(render, all_templates, failures, is_all):
    counts = Counter()
    for name, source in all_templates.items():
        some = kwargs_for([source], is_all)
        cases = [(title, (messages, tools, kwargs, prompt)) for title, (messages, tools) in CONVERSATIONS.items() for kwargs in some for prompt in (False, True)]
        for (title, case), got in zip(cases, render.many([request(source, *case) for _, case in cases])):
            wanted = render_reference(source, *case)
            same = wanted.get("text") == got.get("text") and ("error" in wanted) == ("error" in got)
            counts["refused by both" if same and "error" in wanted else "equal" if same else "different"] += 1
            if not same:
                failures.append(f"{name}, {title}, {case[2]}, prompt={case[3]}:\n  jinja2 {wanted}\n  here   {got}")
            if same and "text" in got:
                check_origins(name, title, case[0], got, failures)
    return counts


def check_origins(name, title, messages, got, failures):
    """Origins cover the text, and content that stands there unchanged comes from its message."""
    at = 0
    text = got["text"].encode()
    for begin, end, *_ in got["origins"]:
        if begin != at or end <= begin:
            failures.append(f"{name}, {title}: origins leave a gap at byte {at}")
        at = end
    if at != len(text):
        failures.append(f"{name}, {title}: origins end at byte {at} of {len(text)}")
    for begin, end, kind, message, field, _ in got["origins"]:
        if kind == 1 and field == "content" and isinstance(messages[message].get("content"), str):
            piece = text[begin:end].decode()
            content = messages[message]["content"]
            if piece not in content and piece not in json.dumps(content, ensure_ascii=False):
                failures.append(f"{name}, {title}: {piece!r} does not come from {content!r}")


def classify(rendered, begin, end, ours, twins, prompts):
    """Which named difference the bytes [begin, end) are, that only one side labels."""
    piece = rendered[begin:end].decode()
    in_twin = any(a <= begin and end <= b for a, b in twins)
    if in_twin and not piece.strip() and any(b == begin for _, b in ours):
        return SPACE
    if in_twin and any(a == end for a, _ in ours) and any(piece in own or text.endswith(piece) for text, own in prompts):
        return HEADER
    if not in_twin and any(b == end for _, b in ours) and any(b == begin for _, b in twins):
        return CLOSER
    return None


def generation_prompts(render, source, messages, tools, kwargs):
    """The prompt after each of the messages, and what add_generation_prompt adds to it."""
    prompts = []
    for i in range(len(messages) + 1):
        bare, prompted = (render(source, messages[:i], tools, kwargs, p).get("text", "") for p in (False, True))
        same = next((k for k, (a, b) in enumerate(zip(bare, prompted)) if a != b), min(len(bare), len(prompted)))
        prompts.append((prompted, prompted[same:]))
    return prompts


def difference(a, b, size):
    """Maximal byte ranges that are in exactly one of the span lists."""
    mask = bytearray(size)
    for begin, end in a:
        for i in range(begin, end):
            mask[i] ^= 1
    for begin, end in b:
        for i in range(begin, end):
            mask[i] ^= 2
    ranges, i = [], 0
    while i < size:
        if mask[i] in (1, 2):
            j = i
            while j < size and mask[j] == mask[i]:
                j += 1
            ranges.append((i, j))
            i = j
        else:
            i += 1
    return ranges


def check_labels_by_hand(render, all_templates, failures):
    """HAND holds, and has something for each template that its twin, if any, says little about."""
    for names, title, wanted in HAND:
        for name in names:
            messages, tools = CONVERSATIONS[title]
            answer = render(all_templates[name], messages, tools, {}, labels=True)
            text = answer.get("text", "").encode()
            got = [text[begin:end].decode() for begin, end, _ in answer.get("runs", [])]
            if got != wanted:
                failures.append(f"{name}, {title}: labels {got or answer}\n  by hand {wanted}")
    by_hand = {name for names, _, _ in HAND for name in names}
    without_twin = {name for name in all_templates if not name.endswith("_training") and f"{name}_training" not in all_templates}
    for name in sorted((without_twin | FEW_COMPARABLE.keys()) - by_hand):
        failures.append(f"{name}: no labels written by hand")
    return sum(len(names) for names, _, _ in HAND)


def check_share_comparable(comparable, other, failures):
    """Each twin says something about its template."""
    for name in sorted(comparable.keys() | other.keys()):
        few = comparable[name] < max(1, other[name])
        if few and name not in FEW_COMPARABLE:
            failures.append(f"{name}: its twin renders {comparable[name]} conversations alike and {other[name]} not; give the reason in FEW_COMPARABLE")
        if not few and name in FEW_COMPARABLE:
            failures.append(f"{name}: its twin renders {comparable[name]} conversations alike and {other[name]} not; take it out of FEW_COMPARABLE")


def labelled_cases(sources, is_all):
    for title, (messages, tools) in CONVERSATIONS.items():
        if any(m["role"] == "assistant" for m in messages):
            yield from ((title, messages, tools, kwargs) for kwargs in kwargs_for(sources, is_all))
    chats = SignedChats(seed=2)
    for i in range(ALL_SIGNED_CHATS if is_all else SIGNED_CHATS):
        messages, tools, kwargs, _ = chats.conversation()
        yield f"signed {i}", messages, tools, kwargs


def check_labels(render, all_templates, failures, is_all):
    counts = Counter()
    comparable, other = Counter(), Counter()  # conversations that a template renders, by whether its twin renders them alike
    kinds = {}
    for name, source in all_templates.items():
        twin = all_templates.get(f"{name}_training")
        if twin is None:
            continue
        for title, messages, tools, kwargs in labelled_cases([source, twin], is_all):
            stock = render(source, messages, tools, kwargs, labels=True)
            marked = render_reference(twin, messages, tools, kwargs, marks=True)
            own = render(twin, messages, tools, kwargs, labels=True)
            if "text" in marked and "text" in own:
                counts["marks read"] += 1
                got = merged((a, b) for a, b, _ in own["runs"])
                if got != marked["marks"]:
                    failures.append(f"{name}_training, {title}: marks {marked['marks']} read as {got}")
            if "text" not in stock or stock.get("text") != marked.get("text"):
                counts["not comparable"] += 1
                other[name] += "text" in stock
                continue
            comparable[name] += 1
            text = stock["text"].encode()
            ours = merged((a, b) for a, b, _ in stock["runs"])
            ranges = difference(ours, marked["marks"], len(text))
            prompts = generation_prompts(render, source, messages, tools, kwargs) if ranges else []
            counts["same labels" if not ranges else "same but for named differences"] += 1
            for begin, end in ranges:
                kind = classify(text, begin, end, ours, marked["marks"], prompts)
                kinds.setdefault((kind or "UNEXPLAINED", name), Counter())[text[begin:end].decode()] += 1
                if kind is None:
                    counts["same but for named differences"] -= 1
                    counts["unexplained"] += 1
                    failures.append(
                        f"{name}, {title}, {kwargs}: {text[begin:end]!r} at {begin} labelled on one side only\n"
                        f"  ours {[text[a:b].decode() for a, b in ours]}\n  twin {[text[a:b].decode() for a, b in marked['marks']]}"
                    )
    for (kind, name), pieces in sorted(kinds.items(), key=str):
        print(f"  {kind}: {name}: {dict(pieces.most_common(4))}")
    check_share_comparable(comparable, other, failures)
    few = ", ".join(f"{name} {count}" for name, count in comparable.most_common()[:-4:-1])
    print(f"fewest comparable conversations: {few}")
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("render_chat")
    parser.add_argument("--all", action="store_true", help="each template with all settings, also those that it does not name")
    parser.add_argument("--verbose", action="store_true", help="print all failures")
    arguments = parser.parse_args()
    render = Renderer(arguments.render_chat)
    all_templates = chat_templates.of_trl() | chat_templates.of_gguf()
    all_templates |= {name: source for name, source in chat_templates.of_transformers().items() if "messages" in chat_templates.variables(source)}
    failures = []
    texts = check_texts(render, all_templates, failures, arguments.all)
    print(f"{len(all_templates)} templates, {len(CONVERSATIONS)} conversations: {dict(texts)}")
    labels = check_labels(render, all_templates, failures, arguments.all)
    print(f"labels against marked twins: {dict(labels)}")
    print(f"labels written by hand: {check_labels_by_hand(render, all_templates, failures)}")
    for failure in failures[: None if arguments.verbose else 20]:
        print(failure)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures or texts["equal"] < 5000 else 0)


main()
