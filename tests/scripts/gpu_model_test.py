#!/usr/bin/env python3
"""scripts/gpu/model.py: FLOPs, bytes and launches by hand, what faster cards must give, and the document's tables.

    tests/scripts/gpu_model_test.py        # no CUDA, no build; a second
"""

import contextlib
import dataclasses
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("gpu_model", ROOT / "scripts/gpu/model.py")
gpu = importlib.util.module_from_spec(spec)
sys.modules["gpu_model"] = gpu  # dataclasses look their module up
spec.loader.exec_module(gpu)

T, R = 2048, 8
QKV, ONE, TWO = 32, 16, 16  # columns of three adapters, of one and of two: R each, up to a multiple of 16
SMALL = gpu.Model("small", hidden=64, ffn=128, layers=3, heads=4, kv_heads=2, head_dim=16, vocab=100, tied=False)
OURS, ATEN, FLASH = "launch sftrun::kernels::cuda::", "launch at::native::", "launch pytorch_flash::"
# Of the tests' counts of a Llama layer, LoRA on all linear layers, dense base; then those of a base in FP8.
AROUND_PRODUCTS = {FLASH + "flash_fwd_kernel": 1, OURS + "gated_forward": 1, OURS + "heads_forward": 1, OURS + "rms_norm_forward": 2}
COUNTED_FORWARD = {**AROUND_PRODUCTS, "product cublasGemmEx TN": 6, "product cublasGemmEx TN +=": 2, OURS + "low_rank_sum": 1}
AROUND_GRADIENTS = {ATEN + "reduce_kernel [sum_functor]": 2, FLASH + "flash_bwd_convert_dq_kernel": 1, FLASH + "flash_bwd_dot_do_o_kernel": 1,
                    FLASH + "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": 1, OURS + "adapter_grads": 4, OURS + "gated_backward": 1,
                    OURS + "heads_backward": 1, OURS + "rms_norm_backward": 2}
LOW_KEPT = {ATEN + "elementwise_kernel [direct_copy_kernel_cuda]": 3}
COUNTED_BACKWARD = {**AROUND_GRADIENTS, **LOW_KEPT, "product cublasGemmEx NN": 8}
FP8_FORWARD = {**AROUND_PRODUCTS, OURS + "round_to_e4m3": 4, OURS + "low_rank_sum": 4, "product cublasGemmEx TN": 4, "product cublasLtMatmul TN": 4}
FP8_BACKWARD = {**AROUND_GRADIENTS, OURS + "round_to_e4m3": 4, OURS + "transpose_codes": 4,
                "product cublasGemmEx NN": 4, OURS + "low_rank_sum": 4, "product cublasLtMatmul TN": 4}


def launches(ops):
    return sum(op.launches for op in ops)


def flops(ops, *parts):
    return sum(op.count * op.flops for op in ops if op.part in parts)


def named(ops, name):
    return next(op for op in ops if op.name == name)


def ran(*arguments):
    """Exit code or message, and what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            code = gpu.main(list(arguments))
        except SystemExit as end:
            code = end.code
    return code, out.getvalue()


def speed(card="h100", case="qwen3-8b/bf16", step="planned", settings=gpu.Settings(), **changes):
    return gpu.predict(dataclasses.replace(gpu.CARDS[card], **changes), case, step, settings)["predicted_tokens_per_s"]


class Operations(unittest.TestCase):
    def test_flops_by_hand(self):
        weights = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128  # q, k and v, o, gate and up and down
        self.assertEqual(SMALL.linear_values(), weights)
        adapters = R * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 128))
        self.assertEqual(SMALL.adapter_values(R), 3 * adapters)
        # B of q, k, v and of gate, up stands block by block in one matrix, whose zeros are multiplied, too
        a_side, b_side = QKV * 64 + ONE * 64 + TWO * 64 + ONE * 128, QKV * 128 + ONE * 64 + TWO * 256 + ONE * 64
        by_hand = (128 + QKV) * 64 + (64 + ONE) * 64 + (256 + TWO) * 64 + (64 + ONE) * 128  # depth with the adapters' columns, times results
        beside = QKV * 128 + TWO * 256 + ONE * 64  # columns of low that are depth of forward products; not of o's
        for base in ("bf16", "nf4", "fp8"):
            forward, backward = gpu.layer(SMALL, base, "today", T, R)
            self.assertEqual(flops(forward, "linears"), 2 * T * (weights + (0 if base == "fp8" else beside)))
            self.assertEqual(flops(forward, "adapters"), 2 * T * (a_side + b_side - (0 if base == "fp8" else beside)))
            # dX alone: no gradient of the base; gradients of A and B have no zeros
            self.assertEqual(flops(backward, "linears"), 2 * T * (weights if base == "fp8" else by_hand))
            self.assertEqual(flops(backward, "adapters"), 2 * T * (b_side + (a_side if base == "fp8" else 0) + adapters))
        self.assertEqual(flops(forward, "attention"), 4 * T * T / 2 * 64)
        self.assertEqual(flops(backward, "attention"), 10 * T * T / 2 * 64)
        head = gpu.around(SMALL, T)
        self.assertEqual(flops(head, "head and loss"), 2 * 2 * T * 64 * 100)

    def test_flops_of_the_planned_step(self):
        by_hand = (64 + QKV) * 128 + (64 + ONE) * 64 + (64 + TWO) * 256 + (128 + ONE) * 64
        for base in ("bf16", "nf4"):
            forward, backward = gpu.layer(SMALL, base, "planned", T, R)
            self.assertEqual(flops(forward, "linears"), 2 * T * by_hand)
            self.assertEqual(flops(backward, "linears", "adapters"), flops(gpu.layer(SMALL, base, "today", T, R)[1], "linears", "adapters"))

    def test_bytes_by_hand(self):
        forward, backward = gpu.layer(SMALL, "nf4", "today", T, R)
        norm = named(forward, "norm before MLP")
        self.assertEqual((norm.read, norm.write), (2 * T * 64, 4 * T * 64))  # a copy for the sum, too
        qkv = named(forward, "qkv: [x | low] [W | sB]^T")
        self.assertEqual((qkv.read, qkv.write), (2 * (T * (64 + QKV) + (64 + QKV) * 128), 2 * T * 128))
        o = named(forward, "o: x W^T")  # to the copy
        self.assertEqual((o.read, o.write), (2 * (T * 64 + 64 * 64) + 2 * T * 64, 2 * T * 64))
        added = named(forward, "o: += low (sB)^T")
        self.assertEqual((added.read, added.write), (2 * (T * ONE + ONE * 64) + 2 * T * 64, 2 * T * 64))
        kept = named(backward, "qkv: low kept")
        self.assertEqual((kept.read, kept.write), (2 * T * QKV, 2 * T * QKV))
        of_group = named(backward, "qkv: gradients of A and B")  # x once
        self.assertEqual((of_group.read, of_group.write), (2 * T * (64 + 128), 4 * 2 * R * (128 + 3 * 64)))
        placed = named(forward, "down: sB beside W")
        self.assertEqual((placed.read, placed.write), (2 * 64 * ONE, 2 * 64 * ONE))
        dx = named(backward, "gate_up: dx = [dy | d_low] [W ; A]")
        self.assertEqual((dx.read, dx.write), (2 * (T * (256 + TWO) + (256 + TWO) * 64), 2 * T * 64))
        heads = named(backward, "heads backward")  # SMALL has no norms of heads, which would read q and k
        self.assertEqual((heads.read, heads.write), (2 * T * 128, 2 * T * 128))
        packed = named(forward, "down: unpack W")
        self.assertAlmostEqual(packed.read, 128 * 64 * 4.127 / 8)
        self.assertEqual(packed.write, 2 * 128 * 64)
        gated = named(backward, "gated activation backward, and again")
        self.assertEqual((gated.read, gated.write), (T * 128 * 6, T * 128 * 6))
        loss = named(gpu.around(SMALL, T), "cross-entropy and its gradient")
        self.assertEqual(loss.bytes, T * 100 * 6)

    def test_bytes_of_fp8(self):
        for step, more in (("today", 0), ("planned", 1)):  # codes beside what a kernel writes in bf16
            forward, backward = gpu.layer(SMALL, "fp8", step, T, R)
            self.assertEqual(named(forward, "norm before MLP").write, (4 + more) * T * 64)
            self.assertEqual(named(forward, "gated activation").write, (2 + more) * T * 128)
            self.assertEqual(named(backward, "norm before MLP, backward").write, (2 + more) * T * 64)
            self.assertEqual(named(backward, "gated activation backward, and again").write, (6 + 2 * more) * T * 128)
        for name, k, n, tensors in (("o", ONE, 64, 2), ("qkv", QKV, 128, 1)):  # y, and of o the product that is added to it, too
            added = named(forward, f"{name}: += low (sB)^T")
            self.assertEqual((added.read, added.write), (2 * (T * k + k * n + tensors * T * n), 2 * T * n))
        rounded = [op.name for op in forward + backward if op.part == "rounding to FP8"]
        self.assertEqual(rounded, ["o: x to FP8", "qkv: dy to FP8"])
        turned = named(backward, "down: turn the codes")
        self.assertEqual((turned.read, turned.write), (128 * 64, 128 * 64))

    def test_windows_leave_pairs_out(self):
        local = dataclasses.replace(SMALL, window=512, local=1.0)
        self.assertEqual(local.attention_pairs(), T * 512 - 512 * 512 / 2)
        self.assertEqual(SMALL.attention_pairs(), T * T / 2)

    def test_launches_of_a_layer(self):
        for step, base, expected in (("today", "bf16", (14, 38)), ("today", "nf4", (24, 55)), ("today", "fp8", (21, 54)),
                                     ("planned", "bf16", (13, 37)), ("planned", "nf4", (24, 55)), ("planned", "fp8", (18, 48))):
            forward, backward = gpu.layer(SMALL, base, step, T, R)
            self.assertEqual((launches(forward), launches(forward) + launches(backward)), expected, (step, base))
        for base, counted in (("bf16", (COUNTED_FORWARD, COUNTED_BACKWARD)), ("fp8", (FP8_FORWARD, FP8_BACKWARD))):
            self.assertEqual(tuple(gpu.events_of(ops) for ops in gpu.layer(SMALL, base, "today", T, R)), counted)

    def test_copies_are_no_launches_but_take_their_start(self):
        copy = named(gpu.layer(SMALL, "nf4", "today", T, R)[1], "qkv: A below W")
        self.assertEqual((copy.launches, copy.starts), (0, 1))

    def test_a_norm_behind_a_product_leaves_the_sum_to_an_addition(self):
        forward, _ = gpu.layer(dataclasses.replace(SMALL, sandwich=True), "bf16", "today", T, R)
        self.assertEqual([op.name for op in forward if op.name.endswith("residual")], ["o: residual", "down: residual"])
        self.assertEqual(named(forward, "o: x W^T").read, 2 * (T * 64 + 64 * 64))
        self.assertEqual(named(forward, "norm before MLP").write, 2 * T * 64)

    def test_experts_need_their_normed_input_again(self):
        mixture = dataclasses.replace(SMALL, experts=4, top_k=2)
        _, backward = gpu.layer(mixture, "nf4", "planned", T, R)
        self.assertEqual([op.name for op in backward if "again" in op.name and op.name.startswith("norm")], ["norm before MLP, again"])

    def test_adapters_that_joint_products_read_are_placed_once_a_step(self):
        self.assertEqual(named(gpu.update(SMALL), "A and sB to their places").read, 2 * SMALL.adapter_values(gpu.RANK))


class SecondStream(unittest.TestCase):
    CARD = gpu.CARDS["h100"]

    def side(self, seconds):
        """An operation that takes so long beside others."""
        return gpu.Op("side", "unpacking", {}, 0, seconds * self.CARD.bandwidth * self.CARD.shares["stream"], aside="ahead")

    def shown(self, *ops):
        return gpu.shown(ops, self.CARD, self.CARD.shares)

    def test_what_is_hidden(self):
        product = gpu.Op("product", "linears", {}, 1e-3 * self.CARD.peaks["bf16"] * self.CARD.shares["bf16"])  # 1 ms, no bytes
        copy = dataclasses.replace(self.side(1e-3), aside="")
        self.assertEqual(self.shown(product, copy), 0)  # nothing is beside
        self.assertEqual(self.shown(product, self.side(0.5e-3)), gpu.SHOWN)  # there is time enough
        self.assertAlmostEqual(self.shown(product, self.side(4e-3)), 0.75)  # 3 ms of 4 have nothing beside
        self.assertAlmostEqual(self.shown(copy, self.side(1e-3)), 1)  # both want all of the bandwidth

    def test_first_of_a_pass_is_not_hidden(self):
        card, settings = self.CARD, gpu.Settings(shown=0.0)
        for base, names in (("nf4", ["qkv[0]: unpack W", "qkv[1]: unpack W", "qkv[2]: unpack W", "qkv: sB beside W"]), ("fp8", ["down: turn the codes"])):
            rows = gpu.passed(SMALL, base, "today", T, False, settings, card, card.shares)
            self.assertEqual({op.name: taken for op, _, taken in rows if op.aside and taken}, {name: gpu.seconds(self.op(base, name), card, card.shares) for name in names})

    def op(self, base, name):
        forward, backward = gpu.layer(SMALL, base, "today", T)
        return named(forward + backward, name)

    def test_times_of_a_micro_batch(self):
        def times(checkpointing):
            return {op.name: number for op, number, _ in gpu.passes(*gpu.layer(SMALL, "nf4", "today", T), SMALL.layers, checkpointing)}

        once, again = times(False), times(True)  # three layers
        self.assertEqual((once["qkv[0]: unpack W"], again["qkv[0]: unpack W"]), (3, 6))
        self.assertEqual((once["o: unpack W again"], once["qkv[0]: unpack W again"]), (3, 2))  # the first layer's input needs no gradient
        self.assertEqual((once["down: unpack W again"], again["down: unpack W again"]), (2, 0))  # the last layer's, or each one's, are still there

    def test_experts_are_not_unpacked_ahead(self):
        forward, _ = gpu.layer(gpu.MODELS["qwen3-30b-a3b"], "nf4", "today", T)
        self.assertFalse(any(op.aside for op in forward if op.name.startswith("experts'")))

    def test_less_hidden_is_slower(self):
        self.assertLess(speed(case="qwen3-8b/nf4", settings=gpu.Settings(shown=1.0)), speed(case="qwen3-8b/nf4"))


class Counts(unittest.TestCase):
    def tables(self):
        """As the tests would write them if the model were right."""
        return {title: {part: {"events": gpu.events_of(ops)} for part, ops in gpu.counted_parts(base, "today", checkpointing).items()}
                for title, (base, checkpointing) in gpu.COUNTED_CASES.items()}

    def check(self, tables):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "counts.json"
            path.write_text(json.dumps(tables))
            return ran("--counts", str(path))

    def test_equal_counts_pass(self):
        tables = self.tables()
        tables["LoRA, 1 device"]["micro-batch"]["events"]["copy H2D pinned asynchronous"] = 1  # copies are no launches
        self.assertEqual(sum(tables["LoRA, 1 device"]["layer, forward and backward"]["events"].values()), 38)
        self.assertEqual(sum(tables["gradient checkpointing, 1 device"]["layer, forward and backward"]["events"].values()), 52)
        micro_batch = tables["nf4, 1 device"]["micro-batch"]["events"]
        self.assertEqual((micro_batch[OURS + "dequantize_4bit"], micro_batch["copy D2D none asynchronous"]), (22, 7))
        code, out = self.check(tables)
        self.assertEqual((code, out), (0, "launches per layer: the model's are those counted\n"))

    def test_a_launch_more_fails(self):
        tables = self.tables()
        tables["LoRA, 1 device"]["layer, forward"]["events"]["launch new_kernel"] = 1
        code, out = self.check(tables)
        self.assertEqual(code, 1)
        self.assertIn("LoRA, 1 device, layer, forward: 1 counted, 0 modelled: launch new_kernel", out)

    def test_a_missing_table_fails(self):
        tables = self.tables()
        del tables["fp8, 1 device"]  # counted by `--all` alone
        self.assertEqual(self.check(tables)[0], 0)
        del tables["nf4, 1 device"]
        self.assertEqual(self.check(tables), (1, "FAILED: nf4, 1 device: not in the counts\n"))


class Predictions(unittest.TestCase):
    def test_faster_cards_are_faster(self):
        for case in gpu.CASES:
            for step in gpu.STEPS:
                card = gpu.CARDS["h100"]
                now = speed(case=case, step=step)
                self.assertGreater(speed(case=case, step=step, bandwidth=1.3 * card.bandwidth), now, case)
                self.assertGreater(speed(case=case, step=step, peaks={key: 1.3 * peak for key, peak in card.peaks.items()}), now, case)
                self.assertLess(speed(case=case, step=step, bandwidth=1.3 * card.bandwidth), 1.3 * now, case)
        self.assertGreater(speed("h200"), speed("h100"))
        self.assertGreater(speed("rtx5090", "qwen3-8b/nf4"), speed("rtx4090", "qwen3-8b/nf4"))

    def test_the_planned_step_is_faster(self):
        for case in gpu.CASES:
            self.assertGreater(speed(case=case, step="planned"), speed(case=case, step="today"), case)

    def test_the_host_bounds_and_graphs_free(self):
        slow = gpu.predict(gpu.CARDS["h100"], "qwen3-0.6b/bf16", "today", gpu.Settings(host_us=100))
        self.assertEqual(slow["bound_by"], "host")
        self.assertLess(slow["predicted_tokens_per_s"], speed(case="qwen3-0.6b/bf16", step="today"))
        free = gpu.predict(gpu.CARDS["h100"], "qwen3-0.6b/bf16", "today", gpu.Settings(host_us=100, graphs=True))
        self.assertEqual(free["predicted_tokens_per_s"], speed(case="qwen3-0.6b/bf16", step="today"))
        routed = gpu.predict(gpu.CARDS["h100"], "qwen3-30b-a3b/nf4", "today", gpu.Settings(host_us=100, graphs=True))
        self.assertEqual(routed["predicted_host_s"], 0)  # nothing waits for routes
        self.assertEqual(routed["waits"], 1)

    def test_parts_and_rows_add_up(self):
        result = gpu.predict(gpu.CARDS["h100"], "qwen3-8b/fp8", "today")
        self.assertAlmostEqual(sum(result["predicted_parts_s"].values()), result["predicted_device_s"])
        self.assertAlmostEqual(sum(row["predicted_s"] for row in result["rows"]), result["predicted_device_s"])
        self.assertAlmostEqual(result["predicted_tokens_per_s"] * result["predicted_step_s"], gpu.ACCUM * gpu.MICRO_BATCH * gpu.SEQUENCE)

    def test_memory(self):
        model = gpu.MODELS["qwen3-8b"]
        values = 36 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 12288) + 2 * 151936 * 4096
        self.assertEqual(gpu.base_bytes(model, "bf16"), 2 * values)
        self.assertLess(gpu.peak_gib(model, "bf16", 4096, True), gpu.peak_gib(model, "bf16", 4096, False))
        small = dataclasses.replace(gpu.CARDS["rtx4090"], memory_gib=8.0)
        result = gpu.predict(small, "qwen3-8b/bf16", "today")
        self.assertFalse(result["fits"])
        self.assertGreater(result["needs_gib"], 16)
        rows = list(gpu.prediction_rows([small], ["qwen3-8b/bf16"], gpu.Settings()))
        self.assertEqual(rows[0][2], "does not fit")
        checkpointed = gpu.predict(gpu.CARDS["rtx4090"], "qwen3-8b/bf16", "today")
        self.assertTrue(checkpointed["checkpointing"])


class PublishedFigures(unittest.TestCase):
    def test_each_names_a_source_with_its_work(self):
        for row in gpu.PUBLISHED:
            self.assertTrue(row.tokens_per_s and set(row.tokens_per_s) <= set(gpu.SOURCES), row)
        self.assertEqual({source for row in gpu.PUBLISHED for source in row.tokens_per_s}, set(gpu.SOURCES))
        for where, work, known in gpu.SOURCES.values():
            self.assertRegex(where, r"[0-9a-f]{8} \(20\d\d-\d\d-\d\d")  # a commit and its date
            self.assertRegex(work, r"^2 x (2048|4096) tokens, accumulation \d+.*LoRA r 16")
            self.assertTrue(known)

    def test_predictions_are_of_the_published_shape(self):
        for row in gpu.PUBLISHED:
            length = 4096 if row.who == "NeMo AutoModel" else 2048
            self.assertEqual(gpu.MODELS[row.case.split("/")[0]].sequence, length)

    def test_recomputation_costs_a_forward_pass_of_the_layers_and_saves_memory(self):
        kept, again = (gpu.predict(gpu.CARDS["h100"], "llama-3-8b/bf16", "today", gpu.Settings(recompute=recompute)) for recompute in (False, True))
        self.assertTrue(again["checkpointing"] and not kept["checkpointing"])
        self.assertTrue(1.2 < kept["predicted_tokens_per_s"] / again["predicted_tokens_per_s"] < 1.5)
        self.assertLess(again["predicted_peak_gib"], kept["predicted_peak_gib"])

    def test_a_shape_that_does_not_fit_without_recomputation_says_so(self):
        card = dataclasses.replace(gpu.CARDS["h100"], memory_gib=22)
        self.assertFalse(gpu.predict(card, "qwen3-8b/bf16", "today", gpu.Settings(recompute=False))["fits"])
        self.assertTrue(gpu.predict(card, "qwen3-8b/bf16", "today", gpu.Settings(recompute=True))["fits"])

    def test_ratios_are_to_the_prediction_that_recomputes_alike(self):
        rows = {(row[0], row[1], row[2]): row for row in gpu.published_rows(gpu.Settings())}
        ours = rows["H100 SXM", "Qwen3-8B, bf16", "Surogate"]
        again = speed(case="qwen3-8b/bf16", step="today", settings=gpu.Settings(recompute=True))
        self.assertEqual(ours[7], f"{again / 11_600:.2f}")
        self.assertEqual(rows["H100 SXM", "Llama-3-8B, bf16", "NeMo AutoModel"][4], "no")


class CommandLine(unittest.TestCase):
    def test_an_unknown_card_is_refused(self):
        message, _ = ran("--card", "h300")
        self.assertEqual(message, "error: unknown card `h300`\n  fix: choose of h100, h200, rtx4090, rtx5090")
        message, _ = ran("--model", "qwen3-8b/int3")
        self.assertIn("error: unknown model `qwen3-8b/int3`\n  fix: choose of qwen3-0.6b/bf16, ", message)

    def test_json_says_that_it_is_a_prediction(self):
        code, out = ran("--json", "--card", "h200", "--model", "qwen3-0.6b/bf16")
        self.assertEqual(code, 0)
        for result in json.loads(out):
            self.assertIs(result["prediction"], True)
            self.assertTrue(all(key.startswith("predicted_") for key in result if key.endswith(("_per_s", "_s", "_gib"))), list(result))

    def test_rows_say_so(self):
        _, out = ran("--rows", "--card", "h100", "--model", "qwen3-0.6b/bf16")
        self.assertEqual(out.count("PREDICTION"), 2)
        self.assertIn("FlashAttention backward", out)


class Document(unittest.TestCase):
    def test_the_tables_are_current(self):
        text = gpu.DOCUMENT.read_text()
        inside = text.partition(gpu.BEGIN)[2].partition(gpu.END)[0]
        self.assertEqual(inside.strip("\n"), gpu.render(list(gpu.CARDS.values()), gpu.CASES, gpu.Settings()), "fix: scripts/gpu/model.py --write")
        self.assertLessEqual(len(text.splitlines()), 190)

    def test_what_is_written_stays_as_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "page.md"
            copy.write_text(f"before\n{gpu.BEGIN}\nold\n{gpu.END}\nafter\n")
            self.assertEqual(ran("--write", "--document", str(copy))[0], 0)
            once = copy.read_text()
            self.assertTrue(once.startswith(f"before\n{gpu.BEGIN}\n**Every figure here that is not called measured") and once.endswith(f"{gpu.END}\nafter\n"))
            self.assertNotIn("old", once.partition("None was measured")[0])
            ran("--write", "--document", str(copy))
            self.assertEqual(copy.read_text(), once)
        message, _ = ran("--write", "--card", "h100")
        self.assertIn("error: --write writes the tables of all cards", message)


if __name__ == "__main__":
    unittest.main()
