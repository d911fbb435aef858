#!/usr/bin/env python3
"""What documents name is there: commands and their flags, keys of the configuration, files, links with their sections, targets of make.
Tables have as many cells in each row as in the first, the words, also of help texts, are those of CONTRIBUTING.md ("Words"), and files of other
tools in docs/coming-from are imported with the answers that stand there.

    tests/scripts/documents_test.py --sftrun build/bin/sftrun

docs/errors.md shows wrong commands and keys on purpose (tests/smoke/bad_input.py); only its links are checked. Standard library only.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/coming-from/*.md", "docs/decisions/*.md", "src/README.md", "configs/**/README.md", "data/**/README.md", "scripts/launch/README.md",
         "tests/cuda/**/README.md")
WRONG_ON_PURPOSE = ("docs/errors.md",)
SECTIONS = ("model", "tuning", "data", "train", "parallel", "output", "callbacks")
# Names of tensors and files that begin as a section does.
NO_KEYS = re.compile(r"model\.(layers|norm|embed_tokens|safetensors|_component_|generate|save_pretrained)\b|train\.py|output\.weight")
PAGES_OF_TENSORS = ("docs/vision-models.md",)  # which have names of tensors for those of settings
FOLDERS = "src|tests|scripts|include|docs|bench|configs|cmake"
OF_OTHERS = ("src/models/",)  # a folder of llama.cpp
TABLES = {"train.optimizer": "docs/optimizers.md", "data.format": "docs/data.md"}  # pages that name all values of a key
WORDS_OF_OTHERS = ("docs/decisions/", "docs/vision-models.md", "tests/")  # records of their time, words of another program
LEAST = {"links": 300, "flags": 150, "keys": 300, "files": 150, "targets": 60, "values": 15, "rows": 1000, "words": 5000, "imports": 4}  # if fewer are found, this script reads the pages wrongly


class Program:
    """The commands and keys that the program has."""

    def __init__(self, path):
        self.path = path
        commands = [(name,) for name in self.subcommands()] + [("config", name) for name in self.subcommands("config")]
        self.help = {" ".join(words): self.run(*words, "--help") for words in commands}
        self.flags = {name: set(re.findall(r"--[a-z][a-z-]*", text)) for name, text in self.help.items()}
        self.schema = json.loads(self.run("config", "schema"))
        self.keys = set(self.paths(self.schema))

    def run(self, *words):
        return subprocess.run([self.path, *words], capture_output=True, text=True, check=True, timeout=60).stdout

    def subcommands(self, *words):
        return re.findall(r"^  ([a-z][a-z-]+)  +[A-Z]", self.run(*words, "--help"), re.MULTILINE)

    def paths(self, schema, before=""):
        for name, value in schema.get("properties", {}).items():
            yield before + name
            yield from self.paths(value, f"{before}{name}.")


class Checks:
    def __init__(self, program):
        self.program, self.counts, self.problems = program, collections.Counter(), []
        self.makefile = (ROOT / "Makefile").read_text()
        self.headings = {}
        table = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Words\n")[2].splitlines()
        self.other_words = {word.strip(): cells[1].strip() for cells in (line.split("|") for line in table if line.startswith("| "))
                            for word in cells[3].split(",") if word.strip() not in ("", "not")}

    def check(self, kind, page, line, what, holds):
        self.counts[kind] += 1
        if not holds:
            self.problems.append(f"{page}:{line}: {what}")

    def page(self, path):
        name = str(path.relative_to(ROOT))
        is_code, cells = False, 0
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines, 1):
            is_code ^= line.lstrip().startswith("```")
            self.links(path, name, number, line)
            if not is_code:
                cells = self.row(name, number, line, cells, lines[number] if number < len(lines) else "")
            if not is_code or name in WRONG_ON_PURPOSE:  # whose code has the program's messages
                self.words(name, number, line)
            if name in WRONG_ON_PURPOSE:
                continue
            self.flags(name, number, line)
            self.keys(name, number, line)
            for file in re.findall(rf"`((?:{FOLDERS})/[\w./-]+[\w/])`", line):
                wanted = re.sub(r"/[^/]*NAME.*", "", file)  # of an addition that the reader makes
                self.check("files", name, number, f"there is no {wanted}", file in OF_OTHERS or (ROOT / wanted).exists())
            for target in re.findall(r"(?:^|&& )make ([a-z][a-z-]*)" if is_code else r"`make ([a-z][a-z-]*)", line):
                rule = re.search(rf"^{target}( [a-z -]*)?:", self.makefile, re.MULTILINE)
                self.check("targets", name, number, f"make has no target {target}", rule)

    def row(self, name, number, line, before, below):
        """The number of cells if the line is a row of a table, else 0. Below the first row is the line that makes it a table."""
        if not line.startswith("|"):
            return 0
        self.check("rows", name, number, "a table without |---| below its first row", before or re.fullmatch(r"\|[ :|-]+\|", below))
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1  # a bar in code ends a cell, too, unless \ is before it
        self.check("rows", name, number, f"a row of {cells} cells in a table of {before}", before in (0, cells))
        return cells

    def words(self, name, number, line):
        if name.startswith(WORDS_OF_OTHERS) or (name == "CONTRIBUTING.md" and line.startswith("|")):
            return
        text = re.sub(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"|“[^”]*”", " ", line)
        self.counts["words"] += len(text.split())
        for other, word in self.other_words.items():
            if re.search(rf"(?<![\w/.-]){other}(?![\w/-])", text, re.IGNORECASE if other.islower() else 0):
                self.problems.append(f"{name}:{number}: {other}: the word is {word} (CONTRIBUTING.md)")

    def help(self):
        for command, text in self.program.help.items():
            for number, line in enumerate(text.splitlines(), 1):
                self.words(f"sftrun {command} --help", number, line)

    def links(self, path, name, number, line):
        for file, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", line):
            if re.match(r"[a-z]+:", file):
                continue
            target = path.parent / file if file else path
            self.check("links", name, number, f"there is no {file}", target.exists())
            if section and target.exists():
                self.check("links", name, number, f"{target.name} has no section #{section}", section in self.sections(target))

    def sections(self, path):
        if path not in self.headings:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            self.headings[path] = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
        return self.headings[path]

    def flags(self, name, number, line):
        for command, words in re.findall(r"sftrun ((?:config )?[a-z][a-z-]*)((?: [^`|#]*)?)", line):
            known = self.program.flags.get(command)
            if known is None:
                continue
            for flag in re.findall(r"(?<![\w-])(--[a-z][a-z_-]*)", words.split(" sftrun ")[0]):
                self.check("flags", name, number, f"sftrun {command} has no {flag}", flag.replace("_", "-") in known)

    def tables(self):
        for key, page in TABLES.items():
            section, leaf = key.split(".")
            text = (ROOT / page).read_text()
            for kind in self.program.schema["properties"][section]["properties"][leaf]["anyOf"]:
                for value in set(kind.get("enum", [])) - {"auto"}:
                    self.check("values", page, 1, f"{value} of {key} is missing", f"`{value}`" in text)

    def imports(self):
        """Files of other tools on the pages of docs/coming-from, and what `sftrun config import` says of them. "…" stands for lines that are left out."""
        example = re.compile(r"```yaml\n(# (\S+\.yaml)\n.*?)```\n.*?```\n\$ sftrun config import \2 --output run.yaml\n(.*?)```", re.DOTALL)
        for path in sorted(ROOT.glob("docs/coming-from/*.md")):
            for text, file, answer in example.findall(path.read_text()):
                with tempfile.TemporaryDirectory() as folder:
                    (pathlib.Path(folder) / file).write_text(text)
                    done = subprocess.run([self.program.path, "config", "import", file, "--output", "run.yaml"], cwd=folder, capture_output=True, text=True, timeout=60)
                shown = "".join(".*" if line == "…" else re.escape(line + "\n") for line in answer.splitlines())
                self.check("imports", path.relative_to(ROOT), 1, f"sftrun config import {file} says\n{done.stderr}", re.fullmatch(shown, done.stderr, re.DOTALL))

    def keys(self, name, number, line):
        if name in PAGES_OF_TENSORS or line.startswith("error: unknown key"):
            return
        for key in re.findall(rf"`((?:{'|'.join(SECTIONS)})\.[a-z_]+(?:\.[a-z_]+)?)\b", line):
            if not NO_KEYS.match(key):
                self.check("keys", name, number, f"there is no key {key}", key in self.program.keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    checks = Checks(Program(parser.parse_args().sftrun.resolve()))
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            checks.page(path)
    checks.tables()
    checks.help()
    checks.imports()
    for kind, least in LEAST.items():
        if checks.counts[kind] < least:
            checks.problems.append(f"only {checks.counts[kind]} {kind} were found, not {least}")
    print("\n".join(checks.problems))
    print(", ".join(f"{count} {kind}" for kind, count in checks.counts.items()), f"checked, {len(checks.problems)} problems")
    return 1 if checks.problems else 0


if __name__ == "__main__":
    sys.exit(main())
