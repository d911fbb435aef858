"""Cases of hostile_input.py: names, numbers and texts of 16 KiB in whatever the program reads, of which no message shows more than 200 characters."""

import json
import re

LENGTH, MAX_SHOWN = 16 << 10, 200
WORD, WORDS, NUMBER = "Zq" * (LENGTH // 2), "Zq " * (LENGTH // 3), "7" * LENGTH
TEXTS = {"word": WORD, "words": WORDS}
LONG_QUOTE = re.compile(rf"(?:Zq ?){{{MAX_SHOWN // 2 + 1}}}|7{{{MAX_SHOWN + 1}}}")

# Records whose texts are spoilt: T is a text, N a number.
RECORDS = {
    "an unknown key": '{"T": 1}',
    "an unread key": '{"messages": [{"role": "user", "content": "a", "T": 1}, {"role": "assistant", "content": "b"}], "T": 1}',
    "a role": '{"messages": [{"role": "T", "content": "a"}]}',
    "a speaker": '{"conversations": [{"from": "T", "value": "a"}]}',
    "a part": '{"messages": [{"role": "user", "content": [{"type": "T", "T": 1}]}]}',
    "a flag": '{"messages": [{"role": "user", "content": "a", "train": "T"}, {"role": "assistant", "content": "b", "weight": "T"}]}',
    "a value": '{"messages": "T"}',
    "a tool's arguments": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": '
                          '[{"function": {"name": "T", "arguments": "T"}}]}], "tools": "T"}',
    "a number": '{"prompt": N, "completion": "a"}',
    "a fraction": '{"prompt": "a", "completion": "a", "weight": 1.N}',
    "an exponent": '{"prompt": "a", "completion": "a", "weight": 1eN}',
    "no JSON": '{"text": "T',
    "a literal": '{"text": T}',
    "no quote": "T",
    "only the user": '{"messages": [{"role": "user", "content": "T"}]}',
    "template values": '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], '
                       '"chat_template_kwargs": {"T": "T", "enable_thinking": "T"}}',
}
CSV = {"names": "T,T\n1,2\n", "a row": "text\nT,T,T\n", "a quote": 'text\n"T', "a role": "messages\n\"[{\"\"role\"\": \"\"T\"\"}]\"\n",
       "a number": "prompt,completion\nN,a\n"}
YAML_LINES = {
    "a section": "T: { a: 1 }", "a key": "model: { T: 1 }", "a number": "train: { batch_size: N }", "a choice": "train: { optimizer: T }",
    "a map": "data: { fields: { T: T } }", "a role": "data: { roles: { T: T } }", "a subset": "data: { train: [{ path: train.jsonl, T: 1 }] }",
    "a format": "data: { format: T }", "a name": "model: { name: T }", "an adapter": "tuning: { lora: { init_from: T } }",
    "a module": "tuning: { lora: { target_modules: [T] } }", "a pattern": "tuning: { lora: { rank_pattern: { T: 4, '(T': 4 } } }",
    "a template": "model: { chat_template: T }", "a file": "data: { train: T }", "a folder": "output: { dir: T }",
    "a quote": "model: 'T", "an anchor": "model: *T", "a tag": "model: !T a", "a metric": "train: { metric_for_best_model: T }",
    "a stop": "eval: { stop: [T, N] }", "an event": "callbacks: { events: [T] }",
}
CONFIG_JSON = {"model_type": "T", "architectures": ["T"], "hidden_act": "T", "torch_dtype": "T", "hidden_size": "N", "vocab_size": "T",
               "rope_scaling": {"rope_type": "T", "T": "N"}, "layer_types": ["T"], "quantization_config": {"quant_method": "T"}, "eos_token_id": "T"}
TOKENIZER_JSON = {"model": {"type": "T", "vocab": {"T": "N"}, "merges": ["T"]}, "normalizer": {"type": "T"}, "pre_tokenizer": {"type": "T"},
                  "decoder": {"type": "T"}, "post_processor": {"type": "T"}, "added_tokens": [{"id": "T", "content": "T"}],
                  "normalizer ": {"type": "Replace", "pattern": {"Regex": "(T"}, "content": "T"}}
TOKENIZER_CONFIG = {"tokenizer_class": "T", "chat_template": "{{ raise_exception('T') }}", "eos_token": "T", "bos_token": {"T": "T"},
                    "extra_special_tokens": [{"T": "T"}], "added_tokens_decoder": {"T": {"content": "T"}}, "chat_template ": "{{ 'T"}
TEMPLATES = {"an error": "{{ raise_exception('T') }}", "a tag": "{% T %}", "a filter": "{{ 'a' | T }}", "a variable": "{{ 'a' + T }}",
             "a test": "{{ 'a' is T }}", "a key": "{{ {}['T'].a }}", "an attribute": "{{ 'a'.T() }}", "a number": "{{ N }}", "a quote": "{{ 'T",
             "a function": "{{ T(1) }}", "a format": "{{ '%(T)s' % {} }}", "a message": "{{ raise_exception(messages[0].content) }}"}
ADAPTER_CONFIG = {"peft_type": "T", "target_modules": ["T"], "r": "T", "rank_pattern": {"T": 1}, "bias": "T", "task_type": "T", "init_lora_weights": "T",
                  "modules_to_save": ["T"], "base_model_name_or_path": "T", "layers_to_transform": "T", "use_dora": "T", "T": {"T": "N"}}
COMMANDS = {
    "a flag": ["train", "--T"], "a command": ["T"], "a model": ["generate", "--model", "T", "--prompt", "a"],
    "an adapter": ["generate", "--model", "model", "--adapter", "T", "--prompt", "a"], "a size": ["quantize", "--model", "T", "--output", "out", "--method", "T"],
    "an override": ["train", "--config", "run.yaml", "--dry-run", "T=1", "model.T=1", "train.lr=T", "train.seed=N"],
    "a number": ["generate", "--model", "model", "--prompt", "a", "--max-new-tokens", "N"],
    "an input": ["score", "--model", "model", "--input", "T", "--output", "T"], "a card": ["memory-check", "--config", "run.yaml", "--gpus", "T"],
    "a configuration": ["train", "--config", "T"], "a hub name": ["download", "hf://T/T"], "a run": ["report", "T"],
    "an answer": ["config", "init", "--model", "T", "--data", "T"], "an imported file": ["config", "import", "T"],
    "a step": ["merge", "--checkpoint", "T", "--output", "merged"],
}


def with_text(value, text):
    """The value with its every T replaced, and N by the long number."""
    if isinstance(value, dict):
        return {with_text(k, text): with_text(v, text) for k, v in value.items()}
    if isinstance(value, list):
        return [with_text(one, text) for one in value]
    if not isinstance(value, str):
        return value
    return re.sub(r"(?<![A-Z])[TN](?![A-Za-z_])", lambda m: text if m[0] == "T" else NUMBER, value)


def entry(name, dtype, num_bytes):
    return {name: {"dtype": dtype, "shape": [num_bytes], "data_offsets": [0, num_bytes]}}


def safetensors(header):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"\0" * 64


def gguf_text(text):
    return len(text).to_bytes(8, "little") + text.encode()


def gguf(key, value, more=b""):
    """A file of one text of metadata and, as `more`, the description of a tensor."""
    return (b"GGUF" + (3).to_bytes(4, "little") + bool(more).to_bytes(8, "little") + (1).to_bytes(8, "little") + gguf_text(key) +
            (8).to_bytes(4, "little") + gguf_text(value) + more)


def add_cases(tools):
    """@param tools the module hostile_input"""
    any_code = (0, tools.USAGE, tools.DATA, tools.WORKER_FAILED)

    def add(title, make, *commands):
        for form, text in TEXTS.items():
            def make_files(folder, text=text):
                make(folder, text)
            make_files.__name__ = f"16 KiB, {title} ({form})"
            expanded = [[with_text(one, text) for one in command] for command in commands]
            tools.case(any_code, "", *expanded)(make_files)

    score = ["score", "--model", "model", "--input", "train.jsonl", "--output", "scored.jsonl", "--device", "cpu"]
    generate = ["generate", "--model", "model", "--input", "train.jsonl", "--output", "out.jsonl", "--device", "cpu", "--max-new-tokens", "2"]
    for title, record in RECORDS.items():
        add(f"record: {title}", lambda f, t, record=record: (f / "train.jsonl").write_text(with_text(record, t) + "\n"),
            tools.PREVIEW, tools.TRAIN, score, generate)
    for title, content in CSV.items():
        def make_csv(folder, text, content=content):
            (folder / "train.csv").write_text(with_text(content, text))
            tools.write_yaml(folder, "train.csv")
        add(f"CSV: {title}", make_csv, tools.PREVIEW)
    for title, line in YAML_LINES.items():
        def make_yaml(folder, text, line=line):
            old = (folder / "run.yaml").read_text()
            section = line.split(":")[0]
            kept = [one for one in old.splitlines() if not one.startswith(section + ":")]
            (folder / "run.yaml").write_text("\n".join([*kept, with_text(line, text)]) + "\n")
        add(f"YAML: {title}", make_yaml, tools.CHECK, tools.TRAIN)
    for name, values in {"config.json": CONFIG_JSON, "tokenizer.json": TOKENIZER_JSON, "tokenizer_config.json": TOKENIZER_CONFIG}.items():
        for key, value in values.items():
            def make_json(folder, text, name=name, key=key.strip(), value=value):
                tools.edit_json(folder / "model" / name, lambda j: j.update({key: with_text(value, text)}))
            add(f"{name}: {key}", make_json, tools.PREVIEW, tools.DRY_RUN, tools.CHAT)
        add(f"{name}: no JSON", lambda f, t, name=name: (f / "model" / name).write_text(with_text('{"T": T', t)), tools.PREVIEW, tools.DRY_RUN)
        add(f"{name}: a number", lambda f, t, name=name: (f / "model" / name).write_text(with_text('{"T": 1eN}', t)), tools.PREVIEW, tools.DRY_RUN)
    for title, template in TEMPLATES.items():
        def make_template(folder, text, template=template):
            tools.chat_template(folder, with_text(template, text))
            record = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]}
            for name in ("in.jsonl", "train.jsonl"):
                (folder / name).write_text(json.dumps(record) + "\n")
        add(f"template: {title}", make_template, tools.CHAT, tools.PREVIEW)
    for key, value in ADAPTER_CONFIG.items():
        add(f"adapter: {key}", lambda f, t, key=key, value=value: tools.adapter(f, **{with_text(key, t): with_text(value, t)}), tools.TRAIN)
    for title, header in {"a name": lambda t: entry(t, "F32", 16), "a type": lambda t: entry("model.norm.weight", t, 16),
                          "an unknown key": lambda t: {**entry("a", "F32", 4), t: t}}.items():
        def make_weights(folder, text, header=header):
            (folder / "model/model.safetensors").write_bytes(safetensors(header(text)))
        add(f"safetensors: {title}", make_weights, tools.TRAIN)
        def make_adapter(folder, text, header=header):
            tools.adapter(folder)
            (folder / "start/adapter_model.safetensors").write_bytes(safetensors(header(text)))
        add(f"adapter's tensors: {title}", make_adapter, tools.TRAIN)

    def index(folder, text):
        (folder / "model/model.safetensors").unlink()
        (folder / "model/model.safetensors.index.json").write_text(json.dumps({"weight_map": {text: text}}))
    add("index: a name", index, tools.TRAIN)

    tensor = (1).to_bytes(4, "little") + (1 << 40).to_bytes(8, "little") + (99).to_bytes(4, "little") + (0).to_bytes(8, "little")
    for title, content in {"a key": lambda t: gguf(t, "llama"), "an architecture": lambda t: gguf("general.architecture", t),
                           "a tensor": lambda t: gguf("general.architecture", "llama", gguf_text(t) + tensor)}.items():
        def make_gguf(folder, text, content=content):
            tools.gguf(folder, 0, 0)
            (folder / "model.gguf").write_bytes(content(text))
        add(f"GGUF: {title}", make_gguf, tools.TRAIN)
    for title, command in COMMANDS.items():
        add(f"command line: {title}", lambda f, t: None, command)


def long_quotes(folder, text):
    """What the program says, and what it writes into its log and error files, with more than 200 characters of the input."""
    written = [path.read_text(errors="replace") for pattern in ("*.log", "error*.json") for path in folder.rglob(pattern) if path.is_file()]
    return next((found[0] for one in (text, *written) if (found := LONG_QUOTE.search(one))), None)
