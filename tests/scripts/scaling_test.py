#!/usr/bin/env python3
"""scripts/scaling.py: terms by hand, the base of a model as the program counts it, and the document's tables.

    tests/scripts/scaling_test.py --sftrun build/bin/sftrun
"""

import argparse
import importlib.util
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("scaling", ROOT / "scripts/scaling.py")
scaling = importlib.util.module_from_spec(spec)
sys.modules["scaling"] = scaling
spec.loader.exec_module(scaling)


arguments = None


def planner():
    return scaling.planned.Planner(arguments.sftrun)


class Collectives(unittest.TestCase):
    def test_a_ring_by_hand(self):
        link = scaling.Link("", 1e9, 1e-3, "")
        self.assertAlmostEqual(scaling.all_reduce_seconds(4e9, 4, link), 6e-3 + 6)
        self.assertAlmostEqual(scaling.gather_seconds(4e9, 4, link), 3e-3 + 3)

    def test_a_fit_finds_what_made_the_points(self):
        latency, bandwidth = scaling.fit([(size, 2e-4 + size / 3e9) for size in (1e3, 1e5, 1e7)])
        self.assertAlmostEqual(latency, 2e-4)
        self.assertAlmostEqual(bandwidth / 3e9, 1)


class Memory(unittest.TestCase):
    def test_the_base_is_what_the_program_counts(self):
        """docs/quantised-bases.md has what `sftrun train --dry-run` prints."""
        text = (ROOT / "docs/quantised-bases.md").read_text()
        names = {"Llama-3.1-70B-Instruct": scaling.LLAMA_70B, "Qwen2.5-14B-Instruct": scaling.QWEN_14B}
        for name, model in names.items():
            columns = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", text, re.MULTILINE).group(1).split("|")
            dense, nf4 = (float(columns[i].removesuffix(" GiB ")) for i in (0, 3))
            self.assertAlmostEqual(scaling.gpu.base_bytes(model, "bf16") / scaling.GIB, dense, delta=0.01 * dense)
            self.assertAlmostEqual(scaling.gpu.base_bytes(model, "nf4") / scaling.GIB, nf4, delta=0.01 * nf4)

    def test_the_shapes_are_those_of_the_plans(self):
        for model in (scaling.LLAMA_70B, scaling.QWEN_7B, scaling.QWEN_14B, scaling.GEMMA_27B):
            shape = scaling.planned.SHAPES[model.name]
            self.assertEqual((model.hidden, model.ffn, model.layers, model.heads, model.kv_heads),
                             tuple(shape[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")))

    def test_purposes_are_all_that_a_card_needs(self):
        plan = planner().plan("Qwen2.5-14B", "2x RTX4090", 1024, "parallel.strategy=fsdp")
        self.assertEqual(sum(scaling.purposes(plan)), plan["needed_bytes"])


class Speed(unittest.TestCase):
    def test_more_cards_are_never_faster_than_their_number(self):
        work = scaling.Work(scaling.LLAMA_1B, "nf4", "rtx4090", 4096, 2)
        for strategy in ("ddp", "fsdp"):
            low, high = work.speedup(strategy, 4, scaling.PCIE4)
            self.assertTrue(0 < low < high <= 4.000001, (strategy, low, high))

    def test_a_slow_link_costs_fsdp_more_than_ddp(self):
        work = scaling.Work(scaling.QWEN_7B, "nf4", "rtx4090", 4096, 2)
        self.assertLess(work.speedup("fsdp", 2, scaling.PCIE4)[0], 0.9 * work.speedup("ddp", 2, scaling.PCIE4)[0])


class Document(unittest.TestCase):
    def test_the_tables_are_current(self):
        inside = scaling.DOCUMENT.read_text().partition(scaling.BEGIN)[2].partition(scaling.END)[0]
        self.assertEqual(inside, scaling.render(planner()), "fix: scripts/scaling.py --write")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, required=True)
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
