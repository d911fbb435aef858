#!/usr/bin/env python3
"""Evaluations of a run: answers, the best one, early stopping, and the commands that they start. Standard library only.

    tests/smoke/best_evaluation.py --sftrun build/bin/sftrun [--only NAME]

best      the run stops early where transformers' rules say, the result is the checkpoint of the best evaluation, and rotation keeps it
killed    a run that is killed before and after its best evaluation, and resumed, has the same evaluations, decisions and result, bit for bit
answers   the scores of answers in training are those of `sftrun eval` for the same checkpoint: one process, ddp, fsdp, full training
stopped   SIGTERM while the loss is computed or answers are generated: exit code 75, and the resumed run repeats the evaluation
sums      the evaluation loss, of each set and of all, does not depend on batch size, packing and number of processes
callbacks a command sees every event; one that fails or hangs changes nothing

With --quick fewer moments of a kill, strategies, `sftrun eval`s and batch sizes.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
TIMEOUT = 120  # s, of one command
TRIALS = 5  # of a kill that must come before the end
STEPS, EVAL_STEPS, PATIENCE = 80, 2, 3
# What a clock says.
MEASURED = {"tokens_per_second", "step_seconds", "peak_memory_bytes", "eval_seconds", "eval_answer_seconds", "gpu_utilization", "memory_used_bytes",
            "cpu_utilization", *(f"{part}_seconds" for part in ("data", "forward", "backward", "communication", "optimizer", "other"))}
RELATIVE = 1e-5  # sums in another order, in fp32


class Program:
    def __init__(self, path, folder, quick):
        self.path, self.folder, self.quick, self.failures, self.count = path, folder, quick, [], 0

    def command(self, *words):
        return [str(word) for word in (self.path, *words)]

    def run(self, *words, code=0, only_output=False, prefix=()):
        done = subprocess.run([*prefix, *self.command(*words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode} instead of {code}\n{done.stdout}{done.stderr}")
        return done.stdout if only_output else done.stdout + done.stderr

    def train(self, name, *words, code=0, prefix=(), **settings):
        return self.run("train", *self.arguments(name, *words, **settings), code=code, prefix=prefix)

    def arguments(self, name, *words, **settings):
        overrides = [f"train.{key}={json.dumps(value)}" for key, value in settings.items()]
        return ["--config", "run.yaml", "--device", "cpu", f"output.dir={name}", *overrides, *words]

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
        if not holds:
            self.failures.append(what)


def prepare(folder):
    """Training data with wrong answers to the validation's questions: the validation loss falls, then rises."""
    def record(number, shift):
        return {"messages": [{"role": "user", "content": f"What comes after {number}?"},
                             {"role": "assistant", "content": f"The answer is {number + shift}."}]}
    rng = random.Random(3)
    for name, count, shift in (("train", 12, 7), ("val", 9, 1), ("other", 5, 2)):
        lines = [json.dumps(record(rng.randint(1, 99), shift)) for _ in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "run.yaml").write_text(json.dumps({
        "model": {"name": str(MODEL), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": {"r": 4, "alpha": 8, "target_modules": "all-linear"}},
        "data": {"train": "train.jsonl", "val": "val.jsonl", "packing": False},
        "train": {"max_steps": STEPS, "epochs": 50, "global_batch_size": 4, "learning_rate": 3e-2, "warmup_steps": 0, "scheduler": "constant",
                  "eval_strategy": "steps", "eval_steps": EVAL_STEPS}}))


def lines_of(run):
    path = run / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def evaluations(run):
    return [line for line in lines_of(run) if "eval_loss" in line]


def computed(run):
    return [{key: value for key, value in line.items() if key not in MEASURED} for line in lines_of(run)]


def result_bytes(run):
    return (run / "adapter/adapter_model.safetensors").read_bytes()


def steps_kept(run):
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))


def decide(losses):
    """What transformers does: the best evaluation and the last one, by their places."""
    best = worse = 0
    for place, loss in enumerate(losses):
        is_better = place == 0 or loss < losses[best]
        worse = 0 if is_better else worse + 1
        best = place if is_better else best
        if worse == PATIENCE:
            return best, place
    return best, len(losses) - 1


BEST = {"early_stopping_patience": PATIENCE, "load_best_model_at_end": True, "save_steps": 3, "save_total_limit": 1}


def check_best(program):
    text = program.train("best", **BEST)
    run = program.folder / "best"
    losses = [line["eval_loss"] for line in evaluations(run)]
    best, last = decide(losses)
    best_step, last_step = EVAL_STEPS * (best + 1), EVAL_STEPS * (last + 1)
    program.expect("best: the data make it stop early, after a best that is not the first",
                   0 < best < last == len(losses) - 1 and last_step < STEPS, losses)
    program.expect("best: the log says so", f"early stopping after step {last_step}: eval_loss did not improve in {PATIENCE} evaluations" in text
                   and f"the result is the model after step {best_step}" in text, text)
    program.expect("best: rotation keeps the best and the newest", steps_kept(run) == [best_step, last_step], steps_kept(run))
    kept = run / f"checkpoints/step-{best_step:06}/adapter_model.safetensors"
    program.expect("best: the result is the best checkpoint", kept.read_bytes() == result_bytes(run))
    report = json.loads((run / "run.json").read_text())
    program.expect("best: run.json names it", report["best_evaluation"] == {"metric": "eval_loss", "value": losses[best], "step": best_step}
                   and report["last_step"] == last_step and report["status"] == "done", report)
    if not program.quick:
        again = program.train("best", **BEST)
        program.expect("best: the same command has nothing to do", "already complete" in again and len(evaluations(run)) == len(losses), again)
        names = ("config.resolved.yaml", "run.json", "adapter/README.md")
        said = {name: (run / name).read_bytes() for name in names}
        again = program.train("best", "--allow-changed-data", "data.train=other.jsonl", **BEST)
        program.expect("best: other data are not trained on", "nothing was trained" in again, again)
        changed = [name for name in names if (run / name).read_bytes() != said[name]]
        program.expect("best: the statements of a complete run stay", not changed, changed)
        program.expect("best: and it still has its evaluation", json.loads((run / "run.json").read_text()) == report)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    shutil.move(run / "adapter", run / "adapter-before")
    text = program.train("best", **BEST, code=3)
    program.expect("best: a damaged best checkpoint is named, with what to do", "the best model cannot be loaded" in text and str(kept.parent.name) in text
                   and "train.load_best_model_at_end=false" in text and not (run / "adapter").exists(), text)
    if not program.quick:
        shutil.copytree(run, program.folder / "followed")
        program.train("followed", **(BEST | {"load_best_model_at_end": False}))
        program.expect("best: that gives the model of the last step", len(lines_of(program.folder / "followed")) == len(lines_of(run))
                       and (program.folder / "followed/adapter").exists())
    before = len(lines_of(run))
    text = program.train("best", **(BEST | {"early_stopping_patience": PATIENCE + 2}), code=3)
    program.expect("best: it is found before a step is computed", "the best model cannot be loaded" in text and len(lines_of(run)) == before, text)
    kept.write_bytes(whole)
    program.train("best", **BEST)
    program.expect("best: mended, the same command writes the result", result_bytes(run) == whole)
    more = program.train("best", **(BEST | {"early_stopping_patience": PATIENCE + 2}))
    program.expect("best: with more patience it goes on", f"resuming from best/checkpoints/step-{last_step:06}" in more
                   and len(evaluations(run)) > len(losses), more)
    if program.quick:
        return
    program.train("last", early_stopping_patience=PATIENCE)
    program.expect("best: without load_best_model_at_end the result is the last model",
                   (program.folder / "last/checkpoints" / f"step-{last_step:06}" / "adapter_model.safetensors").read_bytes()
                   == result_bytes(program.folder / "last"))


def kill_after(program, run, wanted, *arguments):
    """SIGKILL to the launcher, whose workers end with it, once a new run has `wanted` evaluations.   @return whether it came before the end"""
    shutil.rmtree(run, ignore_errors=True)
    process = subprocess.Popen(program.command("train", *arguments), cwd=program.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun = time.monotonic()
    while len(evaluations(run)) < wanted and process.poll() is None and time.monotonic() - begun < TIMEOUT:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=TIMEOUT)
    return process.returncode == -signal.SIGKILL


def check_killed(program):
    settings = {**BEST, "save_in_background": "off"}
    for processes in (1, 2):
        launch = ["--nproc-per-node", str(processes)]
        whole = program.folder / f"whole-{processes}"
        program.train(whole.name, *launch, **settings)
        losses = [line["eval_loss"] for line in evaluations(whole)]
        best, last = decide(losses)
        moments = {"before": best, "at": best + 1, "after": best + 2}
        for when in {1: ("before", "after"), 2: ("at",)}[processes] if program.quick else moments:
            run = program.folder / f"killed-{processes}-{when}"
            arguments = program.arguments(run.name, *launch, **settings)
            was_killed = any(kill_after(program, run, moments[when], *arguments) for _ in range(TRIALS))
            time.sleep(0.5)  # workers end with their launcher
            text = program.run("train", *arguments)
            what = f"killed: {processes} processes, {when} the best evaluation"
            program.expect(f"{what}: it was killed", was_killed, text)
            program.expect(f"{what}: the same evaluations and steps", computed(run) == computed(whole), text)
            program.expect(f"{what}: the same result", result_bytes(run) == result_bytes(whole))
            program.expect(f"{what}: the same checkpoints", steps_kept(run) == steps_kept(whole), steps_kept(run))
            state = [json.loads((of / f"checkpoints/step-{EVAL_STEPS * (last + 1):06}/state.json").read_text())["best"] for of in (run, whole)]
            program.expect(f"{what}: the same state", state[0] == state[1], state)


def check_answers(program):
    answers = {"predict_with_generate": True, "generation_max_new_tokens": 12, "generation_batch_size": 3, "eval_steps": 4, "max_steps": 8,
               "save_steps": 4, "eval_token_accuracy": True}
    kinds = [("one", 1, []), ("ddp", 2, []), ("fsdp", 2, ["parallel.strategy=fsdp"]), ("zero2", 2, ["parallel.strategy=zero2"]),
             ("tensor", 2, ["parallel.strategy=tensor"]), ("pipeline", 2, ["parallel.strategy=pipeline"]),
             ("pipeline x fsdp", 4, ["parallel.pp=2", "parallel.dp_shard=2"]), ("device_map", 1, ["parallel.device_map=balanced", "parallel.pp=2"]),
             ("qlora", 1, ["tuning.mode=qlora"]), ("full", 2, ["tuning.mode=full", "train.learning_rate=1e-3", "parallel.strategy=zero3"])]
    if program.quick:
        kinds = [kind for kind in kinds if kind[0] not in ("zero2", "tensor", "pipeline", "device_map")]
    keys = ("rouge1", "rouge2", "rouge_l", "exact_match", "token_accuracy")
    # Nine of the longest answers that the key allows take several GB; a process gets 4 GB of address space.
    too_many, little = answers | {"generation_max_new_tokens": 2**24, "generation_batch_size": 9}, ("prlimit", f"--as={4 << 30}")
    text = program.train("no-room", **too_many, metric_for_best_model="rouge_l", load_best_model_at_end=True, code=4, prefix=little)
    program.expect("answers: a lack of memory for them ends a run that they judge before its first step", "not enough memory to write answers" in text
                   and "train.generation_batch_size" in text and not lines_of(program.folder / "no-room"), text)
    text = program.train("little-room", **too_many, prefix=little)
    program.expect("answers: without memory for them a run has losses only, with one warning", text.count("evaluations give the loss only") == 1
                   and [line["eval_rouge_l"] for line in evaluations(program.folder / "little-room")] == [None, None], text)
    seen = {}
    for name, processes, more in kinds:
        run = program.folder / f"answers-{name}"
        text = program.train(run.name, "--nproc-per-node", processes, *more, **answers)
        seen[name] = evaluations(run)
        program.expect(f"answers: {name}: two evaluations with scores", len(seen[name]) == 2 and all(line["eval_answers"] == 9 for line in seen[name]),
                       seen[name])
        program.expect(f"answers: {name}: the console line has eval_rouge_l", f"eval_rouge_l {seen[name][-1]['eval_rouge_l']:.4f}" in text, text)
        report = json.loads((run / "run.json").read_text())
        program.expect(f"answers: {name}: run.json has them", report["evaluation"] == seen[name][-1], report["evaluation"])
        events = b"".join(path.read_bytes() for path in (run / "tensorboard").iterdir())
        program.expect(f"answers: {name}: TensorBoard has scores and texts",
                       all(tag in events for tag in (b"eval/rouge_l", b"eval/answers", b"**reference**", b"What comes after")))
        program.expect(f"answers: {name}: the scores are not trivial", seen[name][-1]["eval_token_accuracy"] > 0
                       and (name == "full" or seen[name][-1]["eval_rouge_l"] > 0), seen[name])
        # The others are compared with one process.
        if name == "full" or program.quick and name not in ("one", "qlora"):
            continue
        measured = json.loads(program.run("eval", "--config", run / "config.resolved.yaml", "--adapter", run / "adapter", "--device", "cpu",
                                          "--max-new-tokens", 12, "--nproc-per-node", 1, "--json", only_output=True))["adapter"]
        program.expect(f"answers: {name}: equal to sftrun eval", all(abs(measured[key] - seen[name][-1][f"eval_{key}"]) < 1e-9 for key in keys)
                       and abs(measured["loss"] - seen[name][-1]["eval_loss"]) <= RELATIVE * measured["loss"], (measured, seen[name][-1]))
    for name in [name for name in seen if name not in ("one", "qlora", "full")]:
        same = all(abs(a[f"eval_{key}"] - b[f"eval_{key}"]) < 1e-9 for a, b in zip(seen[name], seen["one"]) for key in keys)
        program.expect(f"answers: {name}: the same as one process", same, seen[name])


def stop_in_evaluation(program, name, words, settings):
    """SIGTERM in the evaluation after step 3; then the same command again, which must end as a run that was not stopped."""
    whole, run = program.folder / f"{name}-whole", program.folder / name
    program.train(whole.name, *words, **settings)
    process = subprocess.Popen(program.command("train", *program.arguments(run.name, *words, **settings)), cwd=program.folder, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    begun = time.monotonic()
    while (not lines_of(run) or lines_of(run)[-1]["step"] < 3) and process.poll() is None and time.monotonic() - begun < TIMEOUT:
        time.sleep(0.002)
    time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=TIMEOUT)
    program.expect(f"{name}: exit code 75, in the evaluation after step 3",
                   process.returncode == 75 and lines_of(run)[-1]["step"] == 3 and "eval_loss" not in lines_of(run)[-1], (process.returncode, text))
    state = json.loads((run / "checkpoints/step-000003/state.json").read_text())
    program.expect(f"{name}: the checkpoint says that the evaluation is due", state.get("evaluation_due") is True, state)
    text = program.train(run.name, *words, **settings)
    program.expect(f"{name}: the resumed run repeats it", computed(run) == computed(whole), text)
    program.expect(f"{name}: the same result", result_bytes(run) == result_bytes(whole))


def check_stopped(program):
    settings = {"predict_with_generate": True, "generation_max_new_tokens": 200, "generation_batch_size": 1, "eval_steps": 3, "max_steps": 6, "learning_rate": 1e-6,
                "metric_for_best_model": "rouge_l", "load_best_model_at_end": True, "eval_on_start": not program.quick}
    stop_in_evaluation(program, "stopped", [], settings)
    many = program.folder / "many.jsonl"  # the loss takes seconds, in micro-batches of one
    many.write_text((program.folder / "val.jsonl").read_text() * 150)
    settings = {"eval_steps": 3, "max_steps": 6, "eval_batch_size": 1, "load_best_model_at_end": True}
    for strategy, processes in [("ddp", 1), ("zero3", 2)]:
        words = [f"data.val={many.name}", "--nproc-per-node", processes, *[f"parallel.strategy={strategy}"] * (processes > 1)]
        stop_in_evaluation(program, f"stopped-{strategy}", words, settings)


def check_sums(program):
    """Two sets of unequal size."""
    def losses(name, processes, batch, packing):
        program.train(name, "--nproc-per-node", processes, "data.val=[val.jsonl, other.jsonl]", f"data.packing={str(packing).lower()}",
                      eval_on_start=True, max_steps=1, eval_steps=1, eval_batch_size=batch, learning_rate=0.0, global_batch_size=12)
        line = evaluations(program.folder / name)[0]
        return [line["eval_loss"], *line["eval_losses"].values()]
    first = losses("sums-first", 1, 1, False)
    program.expect("sums: the sets differ, and all is no mean of their losses", len(set(first)) == 3
                   and abs(first[0] - (first[1] + first[2]) / 2) > 1e-4, first)
    ways = [(1, 64, False), (3, 2, False), (2, 2, True)]
    if not program.quick:
        ways += [(1, 4, False), (2, 1, False), (2, 3, False), (1, 1, True)]
    for processes, batch, packing in ways:
        other = losses(f"sums-{processes}-{batch}-{packing}", processes, batch, packing)
        same = all(abs(a - b) <= RELATIVE * abs(a) for a, b in zip(first, other))
        program.expect(f"sums: {processes} processes, batches of {batch}{', packed' if packing else ''}", same, (first, other))
    text = program.train("unknown-set", "data.val=[val.jsonl, other.jsonl]", metric_for_best_model="eval_vall_loss", code=2)
    program.expect("sums: the loss of an unknown set is refused with the known ones", "eval_loss or eval_val_loss or eval_other_loss" in text, text)
    program.train("of-a-set", "data.val=[val.jsonl, other.jsonl]", metric_for_best_model="other_loss", load_best_model_at_end=True, max_steps=12)
    run = program.folder / "of-a-set"
    by_step = {line["step"]: line["eval_losses"]["other.jsonl"] for line in evaluations(run)}
    best = json.loads((run / "run.json").read_text())["best_evaluation"]
    program.expect("sums: the best of one set", best == {"metric": "eval_other_loss", "value": min(by_step.values()),
                                                         "step": min(by_step, key=by_step.get)}, (best, by_step))


def check_callbacks(program):
    seen = program.folder / "seen.jsonl"
    command = f"callbacks.command=cat >> {seen}; echo $SFTRUN_EVENT"
    settings = {"max_steps": 4, "save_steps": 2, "save_in_background": "off"}
    program.train("called", command, "--nproc-per-node", 2, **settings)
    events = [json.loads(line) for line in seen.read_text().splitlines()]
    run = program.folder / "called"
    expected = [("evaluation", 2), ("checkpoint", 2), ("evaluation", 4), ("checkpoint", 4), ("end", 4)]
    program.expect("callbacks: every event once, in order", [(event["event"], event["step"]) for event in events] == expected, events)
    program.expect("callbacks: with its details", events[0]["eval_loss"] == evaluations(run)[0]["eval_loss"] and events[-1]["status"] == "done"
                   and events[-1]["exit_code"] == 0 and all(event["run_dir"] == str(run) for event in events)
                   and events[1]["checkpoint"] == str(run / "checkpoints/step-000002"), events)
    log = (run / "logs/callbacks.log").read_text()
    program.expect("callbacks: what it prints is in the log", log == "".join(f"{name}\n" for name, _ in expected), log)
    seen.unlink()
    text = program.train("fails", command, "callbacks.events=[failure, end]", "data.train=run.yaml", code=3)
    events = [json.loads(line) for line in seen.read_text().splitlines()]
    program.expect("callbacks: a failure, with its error", [event["event"] for event in events] == ["failure"] and events[0]["exit_code"] == 3
                   and "run.yaml" in events[0]["error"], (events, text))
    program.train("quiet", **settings)
    for name, words in (("exits", "callbacks.command=exit 3"), ("hangs", "callbacks.command=sleep 1000 & sleep 1000")):
        text = program.train(name, words, "callbacks.timeout=1s", **settings)
        program.expect(f"callbacks: {name}: the log says it", ("ended with exit code 3" if name == "exits" else "callbacks.timeout 1 s") in text, text)
        program.expect(f"callbacks: {name}: the run is the same", result_bytes(program.folder / name) == result_bytes(program.folder / "quiet"))
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.count("sleep 1000\n")
    program.expect("callbacks: no command is left", left == 0, left)


CHECKS = {"best": check_best, "killed": check_killed, "answers": check_answers, "stopped": check_stopped, "sums": check_sums,
          "callbacks": check_callbacks}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=lambda path: pathlib.Path(path).resolve())
    parser.add_argument("--only", choices=CHECKS, help="one check")
    parser.add_argument("--quick", action="store_true", help="a part of what each check compares, as in `make test`")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="sftrun-best-") as folder:
        program = Program(options.sftrun, pathlib.Path(folder).resolve(), options.quick)
        prepare(program.folder)
        for name, check in CHECKS.items():
            if options.only in (None, name):
                check(program)
    print(f"{program.count} checks, {len(program.failures)} failed")
    return 1 if program.failures else 0


if __name__ == "__main__":
    sys.exit(main())
