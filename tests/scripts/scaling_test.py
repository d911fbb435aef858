#!/usr/bin/env python3
"""scripts/scaling.py: terms by hand, the base of a model as the program counts it, and the document's tables.

    tests/scripts/scaling_test.py        # no build; a second
"""

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
            dense, nf4, with_ends = (float(columns[i].removesuffix(" GiB ")) for i in (0, 3, 5))
            self.assertAlmostEqual(scaling.gpu.base_bytes(model, "bf16") / scaling.GIB, dense, delta=0.01 * dense)
            whole = scaling.gpu.base_bytes(model, "nf4")
            self.assertAlmostEqual(whole / scaling.GIB, nf4, delta=0.01 * nf4)
            self.assertAlmostEqual((whole - scaling.nf4_ends(model)) / scaling.GIB, with_ends, delta=0.01 * with_ends)

    def test_adapters_of_tensor_parallelism_by_hand(self):
        model = scaling.gpu.Model("", 4, 8, 1, 2, 1, 2, 10, False)  # q 4 x 4, k and v 2 x 4, o 4 x 4, gate and up 8 x 4, down 4 x 8
        column = (4 + 4 // 2) + 2 * (4 + 2 // 2) + 2 * (4 + 8 // 2)
        row = (4 // 2 + 4) + (8 // 2 + 4)
        self.assertEqual(scaling.tp_adapter_values(model, 2, rank=3), 3 * (column + row))
        self.assertEqual(scaling.tp_adapter_values(model, 1, rank=3), model.adapter_values(rank=3))

    def test_fsdp_divides_and_ddp_does_not(self):
        whole, half = (scaling.memory(scaling.QWEN_14B, "nf4", strategy, 2, 1024) for strategy in ("ddp", "fsdp"))
        self.assertAlmostEqual(half.base / whole.base, 0.5)
        self.assertAlmostEqual(half.trained / whole.trained, 0.5)
        self.assertEqual(whole.gathered, 0)
        self.assertEqual(half.activations, whole.activations)


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
        self.assertEqual(inside, scaling.render(), "fix: scripts/scaling.py --write")


if __name__ == "__main__":
    unittest.main()
