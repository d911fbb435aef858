#!/usr/bin/env python3
"""The parts of the module `layers` include one another in one direction: src/README.md."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# From the bottom up. A part includes itself and parts of the rows above it.
ROWS = (
    {"tensor ranks": ("tensor_ranks",), "sequence share": ("sequence_share", "key_copies"), "distillation": ("distillation",)},
    {"state": ("parameter", "unit", "balance", "batch_context")},
    {"linear": ("linear",), "copy ranks": ("copy_ranks",)},
    {"embedding": ("embedding",)},
    {"dora": ("dora",)},
    {"linears": ("linear/fused_linears", "linear/fused_norms", "linear/plain_linears"),
     "joint linears": ("joint_linears", "dequant_prefetcher")},
    {"inputs": ("per_layer_inputs", "inputs/"), "experts": ("mixture", "experts/")},
    {"members": ("members",), "generation pass": ("generation_pass",)},
    {"tower": ("tower", "tower/", "projector")},
    {"mixer": ("mixer",)},
    {"layer": ("layer",)},
    {"block": ("fused_block",)},
    {"attention": ("attention", "attention/"), "delta net": ("delta_net", "delta_net/")},
    {"backend": ("backend",)},
    {"pooled rows": ("pooled_rows",)},
    {"fused": ("fused/",), "plain": ("plain/",)},
)
# Sources in another folder than their header's part.
PLACES = {"linear/dora": "dora", "linear/joint_linears": "joint linears", "linear/dequant_prefetcher": "joint linears",
          "experts/balance": "state"}


def part_of(name):
    """The row and the part of a file: its path in the module, without the suffix."""
    for row, parts in enumerate(ROWS):
        for part, files in parts.items():
            if PLACES.get(name) == part or name not in PLACES and (name in files or name.split("/")[0] + "/" in files and "/" in name):
                return row, part
    return None


def included(path, text):
    """Files of the module that the text includes, without the suffix."""
    for name in re.findall(r'^#include "([^"]+)\.h"', text, re.M):
        if name.startswith("sftrun/layers/"):
            yield name.removeprefix("sftrun/layers/")
        elif (ROOT / "src/layers" / f"{name}.h").exists():
            yield name
        elif (path.parent / f"{name}.h").exists():
            yield str((path.parent / name).relative_to(ROOT / "src/layers"))


def failures():
    files = 0
    for folder in ("include/sftrun/layers", "src/layers"):
        for path in sorted((ROOT / folder).rglob("*.*")):
            files += 1
            name = str(path.relative_to(ROOT / folder).with_suffix(""))
            place = part_of(name)
            if place is None:
                yield f"{folder}/{name}: no part of layers has it; add it to ROWS"
                continue
            for other in included(path, path.read_text()):
                there = part_of(other)
                if there is None or there != place and there[0] >= place[0]:
                    yield f"{path.relative_to(ROOT)}: includes {other}, which is not in a row above that of '{place[1]}'"
    if files < 30:
        yield f"only {files} files found"


found = list(failures())
print("\n".join(found) or "the parts of layers include one another in one direction")
sys.exit(bool(found))
