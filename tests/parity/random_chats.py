"""Random conversations for the chat template tests: roles in and out of order, tools, calls, reasoning, odd texts."""

from __future__ import annotations

import random

WORDS = ["ja", "Straße", "中文", "🙂", "naïve", "e\u0301", "x1", "42", "-0.5", "foo_bar", "ﬁ", "\u00a0", "\u2028", "\u3000", "Ǆ", "İ"]
SPACES = ["", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n "]
SYMBOLS = list("<>&'\"\\{}[]()|#%`$/,:;!?") + ["{{ x }}", "{% if a %}", "{# c #}", "\\n", "<b>", "&amp;", "```", "---"]
MARKERS = [
    "<think>", "</think>", "<think>\n", "\n</think>\n\n", "<|im_end|>", "<|im_start|>assistant\n", "</s>", "[/INST]", "[INST]",
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|eot_id|>", "<|end|>", "<|channel|>final<|message|>",
    "<end_of_turn>", "<start_of_turn>model\n", "<turn|>", "<|user|>", "/no_think", "/think", "<<SYS>>", "<|end_of_text|>",
]
KWARGS = {
    "enable_thinking": [True, False],
    "thinking": [True, False],
    "reasoning_effort": ["low", "medium", "high", "none"],
    "preserve_thinking": [True, False],
    "clear_thinking": [True, False],
    "xml_tools": [["<t>"], None],
    "custom_instructions": ["Häflich & <kurz>", ""],
    "system_message": ["S"],
    "date_string": ["26 Jul 2024"],
    "tools_in_user_message": [True, False],
    "builtin_tools": [["python", "browser"], []],
    "model_identity": ["I am \"it\"."],
    "documents": [[{"title": "T <1>", "text": "Body\n2"}, {"doc_id": 3, "title": "ü", "text": ""}], []],
    "controls": [{"length": "short", "originality": "high"}],
    "add_vision_id": [True, False],
    "keep_past_thinking": [True],
}


class RandomChats:
    """One generator gives the same conversations on every machine."""

    def __init__(self, seed: int, count: int = 0):
        self.random = random.Random(seed)
        self.count = count

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def text(self) -> str:
        if self.chance(0.07):
            return self.random.choice(["", " ", "\n", "0", "None", "assistant", "user"])
        pieces = []
        for _ in range(self.random.randint(1, 6)):
            kind = self.random.random()
            pieces.append(self.random.choice(WORDS if kind < 0.5 else SPACES if kind < 0.75 else SYMBOLS if kind < 0.92 else MARKERS))
            pieces.append(self.random.choice(["", " "]))
        return "".join(pieces)

    def number(self):
        return self.random.choice([0, -1, 7, 2**53, 2**62, 0.1, -0.0, 1.0, 1e-7, 1.5e300, 1e16, 123456.789, 3.0e-5])

    def value(self, depth: int = 0):
        kind = self.random.random()
        if kind < 0.4 or depth > 2:
            return self.text()
        if kind < 0.6:
            return self.number()
        if kind < 0.75:
            return self.random.choice([True, False, None])
        if kind < 0.87:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self.key(): self.value(depth + 1) for _ in range(self.random.randint(0, 3))}

    def key(self) -> str:
        return self.random.choice(["city", "n", "größe", "a b", "x-y", "items", "type", "name", "keys", "values", "0", "\"q\""])

    def schema(self, depth: int = 0) -> dict:
        kind = self.random.choice(["string", "integer", "number", "boolean", "array", "object", "enum", "union", "anyOf", "null", "untyped"])
        made: dict = {"type": kind}
        if kind == "enum":
            made = {"type": "string", "enum": [self.text() for _ in range(self.random.randint(1, 3))]}
        elif kind == "union":
            made = {"type": ["string", "null"], "nullable": True}
        elif kind == "anyOf":
            made = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": -1.5}]}
        elif kind == "untyped":
            made = {}
        elif kind == "array" and self.chance(0.8):
            made["items"] = self.schema(depth + 1) if depth < 2 else {"type": "string"}
        elif kind == "object":
            made |= self.properties(depth + 1) if depth < 2 else {}
        if self.chance(0.6):
            made["description"] = self.text()
        if self.chance(0.3):
            made["default"] = self.value(2)
        if self.chance(0.15):
            made["title"] = self.text()
        return made

    def properties(self, depth: int = 0) -> dict:
        properties = {self.key(): self.schema(depth) for _ in range(self.random.randint(0, 3))}
        made: dict = {"type": "object", "properties": properties}
        if self.chance(0.6):
            made["required"] = [name for name in properties if self.chance(0.5)]
        if self.chance(0.2):
            made["additionalProperties"] = False
        return made

    def tool(self, name: str) -> dict:
        function: dict = {"name": name}
        if self.chance(0.9):
            function["description"] = self.text()
        if self.chance(0.95):
            function["parameters"] = self.properties()
        if self.chance(0.2):
            function["return"] = {"type": "string", "description": self.text()}
        if self.chance(0.15):
            function["strict"] = True
        return {"type": "function", "function": function} if self.chance(0.95) else function

    def content(self):
        kind = self.random.random()
        if kind < 0.88:
            return self.text()
        if kind < 0.96:
            return [{"type": "text", "text": self.text()} for _ in range(self.random.randint(1, 3))]
        return self.random.choice([None, [], [{"type": "image"}, {"type": "text", "text": "x"}], {"a": self.text()}, 5])

    def calls(self, names: list[str], first_id: int) -> list[dict]:
        made = []
        for i in range(self.random.choice([1, 1, 1, 2, 3])):
            arguments = {self.key(): self.value(1) for _ in range(self.random.randint(0, 3))}
            call: dict = {"type": "function", "function": {"name": self.random.choice(names), "arguments": arguments}}
            if self.chance(0.1):
                call["function"]["arguments"] = self.random.choice(["{\"city\": \"Oslo\"}", "", "{}", "not JSON"])
            if self.chance(0.9):
                call = {"id": f"call{first_id + i:05d}", **call}
            if self.chance(0.05):
                call = call["function"]
            made.append(call)
        return made

    def assistant(self) -> dict:
        message: dict = {"role": "assistant", "content": self.content()}
        if self.chance(0.1) and isinstance(message["content"], str):
            message["content"] = f"<think>{self.random.choice(SPACES)}{self.text()}</think>{self.random.choice(SPACES)}{message['content']}"
        if self.chance(0.35):
            field = self.random.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning"])
            message[field] = self.text() if self.chance(0.95) else None
        return message

    def tool_rounds(self, messages: list[dict], names: list[str]) -> None:
        while self.chance(0.4):
            message = self.assistant()
            message["tool_calls"] = self.calls(names, len(messages) * 10)
            if self.chance(0.3):
                message["content"] = self.random.choice(["", None])
            if self.chance(0.05):
                del message["content"]
            messages.append(message)
            if self.chance(0.05):
                continue
            for call in message["tool_calls"]:
                answer: dict = {"role": "tool", "content": self.content()}
                if self.chance(0.8):
                    answer["name"] = call.get("function", call)["name"]
                if self.chance(0.8) and "id" in call:
                    answer["tool_call_id"] = call["id"]
                messages.append(answer)

    def messages(self, names: list[str]) -> list[dict]:
        messages: list[dict] = []
        if self.chance(0.4):
            messages.append({"role": self.random.choice(["system"] * 9 + ["developer"]), "content": self.content()})
        for _ in range(self.random.choice([1, 1, 2, 2, 3, 4])):
            messages.append({"role": "user", "content": self.content()})
            if names:
                self.tool_rounds(messages, names)
            messages.append(self.assistant())
        if self.chance(0.2):
            messages.pop()
        if self.chance(0.15) and messages:
            self.disorder(messages)
        return messages

    def disorder(self, messages: list[dict]) -> None:
        at = self.random.randrange(len(messages))
        kind = self.random.randrange(4)
        if kind == 0:
            messages.pop(at)
        elif kind == 1:
            messages.insert(at, dict(messages[self.random.randrange(len(messages))]))
        elif kind == 2:
            messages[at] = messages[at] | {"role": self.random.choice(["system", "tool", "user", "assistant", "critic", "ipython", "developer"])}
        else:
            messages.insert(at, {"role": "system", "content": self.text()})

    def question(self) -> dict:
        """Variables of the templates that ask for a decision instead of an answer."""
        kind = self.random.choice(["noul", "choice", "score"])
        options = ["true", "false"] if kind == "noul" else [self.text() for _ in range(self.random.randint(1, 4))]
        labels = ["Yes", "No"] if kind == "noul" and self.chance(0.5) else [chr(ord("A") + i) for i in range(len(options))]
        state = self.random.choice([self.value(), None, "", [{"type": "text", "text": self.text()}, {"type": "image"}]])
        return {
            "state": state,
            "question": {
                "type": kind,
                "instructions": self.random.choice([self.text(), None, {"a": self.text()}]),
                "options": options,
                "labels": labels,
                "descriptions": [self.random.choice([self.text(), None]) for _ in options],
            },
            "system": self.text(),
            "closing": self.text(),
            "empty_state": self.random.choice([None, "(empty)"]),
        }

    def conversation(self) -> tuple[list[dict], list[dict] | None, dict, bool]:
        """@return messages, tools, kwargs of the template, add_generation_prompt."""
        names = self.random.sample(["get_weather", "ping", "find.it", "größe"], self.random.randint(1, 3)) if self.chance(0.5) else []
        tools = [self.tool(name) for name in names] if names and self.chance(0.8) else None
        if self.chance(0.03):
            tools = []
        kwargs = {}
        for name, choices in KWARGS.items():
            if self.chance(0.3 if name == "enable_thinking" else 0.06):
                kwargs[name] = self.random.choice(choices)
        return self.messages(names), tools, kwargs, self.chance(0.4)


class SignedChats(RandomChats):
    """Orderly conversations in which every message's text says whose it is, at its begin and its end."""

    TOOL = {
        "type": "function",
        "function": {"name": "find", "description": "Finds", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    }
    KWARGS = [{}, {}, {}, {"enable_thinking": False}, {"enable_thinking": True}, {"preserve_thinking": True}, {"reasoning_effort": "high"}]

    def signed(self, message: int, field: str) -> str:
        words = [self.random.choice([*WORDS, "a<b", "{x}", "line\nbreak", '"q"']) for _ in range(self.random.randint(0, 4))]
        return " ".join([f"Zq{message}{field}b", *words, f"Zq{message}{field}e"])

    def answer(self, message: int, thinking: str) -> dict:
        made = {"role": "assistant", "content": self.signed(message, "c")}
        if thinking == "field" and self.chance(0.8):
            made["reasoning_content"] = self.signed(message, "r")
        if thinking == "text":
            made["content"] = f"<think>\n{self.signed(message, 'r')}\n</think>\n\n{made['content']}"
        return made

    def calling(self, message: int, thinking: str) -> dict:
        made = self.answer(message, "field" if thinking == "field" else "")
        arguments = [{"q": self.signed(message, "t")} for _ in range(self.random.choice([1, 1, 2]))]
        made["tool_calls"] = [
            {"type": "function", "id": f"call{message:03d}{i:02d}", "function": {"name": "find", "arguments": given}} for i, given in enumerate(arguments)
        ]
        if self.chance(0.6):
            made["content"] = self.random.choice(["", None])
        return made

    def conversation(self):
        messages: list[dict] = []

        def add(role: str, **more) -> None:
            messages.append({"role": role, "content": self.signed(len(messages), "c"), **more})

        thinking = self.random.choice(["field", "field", "text", "", ""])
        calls = self.chance(0.4)
        if self.chance(0.5):
            add("system")
        for _ in range(self.random.choice([1, 2, 2, 3])):
            add("user")
            while calls and self.chance(0.45):
                messages.append(self.calling(len(messages), thinking))
                for call in messages[-1]["tool_calls"]:
                    add("tool", name="find", tool_call_id=call["id"])
            messages.append(self.answer(len(messages), thinking))
        return messages, [self.TOOL] if calls and self.chance(0.9) else None, self.random.choice(self.KWARGS), False


def in_parts(messages: list[dict]) -> list[dict]:
    """The same for templates that read lists only."""
    return [m | {"content": [{"type": "text", "text": m["content"]}]} if isinstance(m["content"], str) else m for m in messages]
