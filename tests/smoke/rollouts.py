"""Training on the model's own answers in one run (`train.rollouts`): what it learns, and what happens when it is stopped, killed, or judged badly.

    python tests/smoke/rollouts.py --sftrun build/bin/sftrun [--quick]

learns    a tiny model with random weights is to say whether a number is odd or even, from rewards alone; held-out numbers are evaluated before and after
stops     a run of two processes that is stopped while it generates, killed at random and started again has the answers and losses of one that was not
rewards   programs that end, hang, or say no number: restarted, or named, with the exit code of their fault; a stop does not wait for a program that hangs
tools     a program that answers each turn: its tokens are not trained on, and the answers are the same on one process and on two
served    answers of a server (served_rollouts.py): it is killed and started again; servers that hang or answer something else
memory    nothing that the rewards started is left behind

--quick: one kill, and fewer programs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
os.environ["HF_HUB_OFFLINE"] = "1"

from grpo_learnt import JUDGE, SHORT, question, write_jsonl
from preferences_learnt import HELD_OUT, NUMBERS, write_model
from served_rollouts import another_model, bad_servers, distilled_student, killed_server, nothing_is_left

COMPARED = ("loss", "grad_norm", "reward", "reward_std", "entropy", "completions/mean_length", "tokens")
SLOW = "while IFS= read -r line; do sleep 0.02; echo ${#line}; done"


class Case:
    def __init__(self, program: Path, folder: Path):
        self.program, self.folder, self.failures = program, folder, []
        write_model(folder / "model")
        numbers = list(NUMBERS)
        random.Random(1).shuffle(numbers)
        write_jsonl(folder / "held-out.jsonl", [question(number) for number in numbers[:HELD_OUT]])
        write_jsonl(folder / "prompts.jsonl", [question(number) for number in numbers[HELD_OUT:]])
        (folder / "judge.py").write_text(JUDGE)

    def expect(self, what: str, holds: bool, detail: str = "") -> None:
        print(f"  {'ok' if holds else 'FAILED':6} {what}{'' if holds else ': ' + detail}", flush=True)
        if not holds:
            self.failures.append(what)

    def config(self, name: str, rewards: list[dict], **train) -> Path:
        rollouts = {"n": 8, "max_new_tokens": 3, "reward": rewards} | train.pop("rollouts", {})
        settings = {"objective": "grpo", "global_batch_size": 16, "learning_rate": 3e-3, "scheduler": "constant", "warmup_steps": 0, "save_every": "0", "rollouts": rollouts} | train
        run = {
            "model": {"name": str(self.folder / "model"), "max_seq_len": 64, "dtype": "fp32"},
            "tuning": {"mode": "full"},
            "data": {"train": str(self.folder / "prompts.jsonl"), "cache_dir": "none"},
            "train": settings,
            "output": {"dir": str(self.folder / name), "tensorboard": False},
        }
        if "eval_strategy" in settings:
            run["data"]["val"] = str(self.folder / "held-out.jsonl")
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(run))
        return path

    def start(self, config: Path, processes: int = 1) -> subprocess.Popen:
        command = [self.program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", str(processes)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def train(self, config: Path, processes: int = 1, code: int = 0) -> str:
        run = self.start(config, processes)
        output, _ = run.communicate(timeout=600)
        if run.returncode != code:
            sys.exit(f"{config.name} ended with {run.returncode}, not {code}:\n{output[-4000:]}")
        return output

    def lines(self, name: str, kind: str = "loss") -> list[dict]:
        path = self.folder / name / "metrics.jsonl"
        if not path.exists():
            return []
        return [line for line in map(json.loads, path.read_text().splitlines()) if kind in line]


def learns(case: Case) -> None:
    rewards = [{"name": "program", "label": "judge", "command": f"{sys.executable} {case.folder / 'judge.py'}"}, {"name": "program", "label": "short", "command": SHORT, "weight": 0.01}]
    output = case.train(case.config("learnt", rewards, max_steps=220, global_batch_size=32, learning_rate=2e-3, eval_strategy="steps", eval_steps=110, eval_on_start=True, logging_steps=20,
                                    load_best_model_at_end=True), processes=2)
    evaluations = [line["eval_rewards/judge/mean"] for line in case.lines("learnt", "eval_reward")]
    first, last = case.lines("learnt")[0], case.lines("learnt")[-1]
    print(f"  held-out reward {evaluations[0]:.2f} -> {evaluations[-1]:.2f}; reward {first['reward']:.2f} -> {last['reward']:.2f}; entropy {first['entropy']:.2f} -> {last['entropy']:.2f}")
    case.expect("held-out numbers are answered right", evaluations[-1] > 0.9 > 0.6 > evaluations[0], str(evaluations))
    case.expect("the log shows rewards", "reward" in output and "eval_reward" in output, output[-500:])
    kept = (case.folder / "learnt" / "rollouts" / "step-000020.jsonl").read_text().splitlines()
    case.expect("answers of logged steps are kept", len(kept) == 16 and {"prompt", "generated", "reward", "rewards", "completion_ids", "logprobs"} <= set(json.loads(kept[0])), kept[0])


def same_after_stops(case: Case, quick: bool) -> None:
    """Checkpoints of every second step are between steps on the same answers, where three have them."""
    for iterations in (3,) if quick else (1, 3):
        stop_and_resume(case, iterations, runs=1 if quick else 4)


def stop_and_resume(case: Case, iterations: int, runs: int) -> None:
    rewards = [{"name": "program", "label": "slow", "command": SLOW}, {"name": "exact_match", "label": "right"}]
    settings = {"max_steps": 12, "save_steps": 2, "beta": 0.05, "logging_steps": 1, "rollouts": {"num_samples": 2, "batch_size": 4, "num_iterations": iterations}}
    all_of_it = f"whole-{iterations}"
    case.train(case.config(all_of_it, rewards, **settings), processes=2)
    whole = case.lines(all_of_it)
    last = f"step-{12 - iterations + 1:06}.jsonl"  # of the last answers
    rng = random.Random(3)
    for number in range(runs):
        name = f"stopped-{iterations}-{number}"
        config, signals = case.config(name, rewards, **settings), [signal.SIGTERM, signal.SIGKILL]
        while True:
            run = case.start(config, processes=2)
            done = len(case.lines(name))
            waited = time.monotonic()
            while run.poll() is None and signals and time.monotonic() - waited < 120:
                if len(case.lines(name)) >= done + 3:
                    time.sleep(rng.random() * 0.4)
                    run.send_signal(signals.pop(0))
                    break
                time.sleep(0.02)
            output, _ = run.communicate(timeout=300)
            if run.returncode == 0:
                break
            if run.returncode not in (-signal.SIGKILL, 143, 75):
                case.expect(f"{name}: the exit code of a stop", False, f"{run.returncode}: {output[-1500:]}")
                return
        again = case.lines(name)
        case.expect(f"{name}: the same lines", [[line[key] for key in COMPARED] for line in again] == [[line[key] for key in COMPARED] for line in whole])
        kept = [(case.folder / folder / "rollouts" / last).read_text() for folder in (all_of_it, name)]
        case.expect(f"{name}: the same answers", kept[0] == kept[1])


def bad_rewards(case: Case, quick: bool) -> None:
    marker = case.folder / "died"
    dies_once = f"if [ -e {marker} ]; then while IFS= read -r line; do echo 1; done; else touch {marker}; exit 3; fi"
    output = case.train(case.config("dies", [{"name": "program", "command": dies_once}], max_steps=2))
    case.expect("a program that ended is started again", "again" in output or "restart" in output, output[-800:])
    faults = [("lies", "while IFS= read -r line; do echo good; done", 4, "no number"), ("hangs", "sleep 1000", 5, "timeout")]
    if not quick:
        faults.append(("ends", "exit 3", 5, "ended"))
    for name, command, code, word in faults:
        run = case.start(case.config(name, [{"name": "program", "label": name, "command": command, "timeout": 1, "restarts": 0}], max_steps=2), processes=2)
        output, _ = run.communicate(timeout=120)
        case.expect(f"a program that {name} is named", run.returncode != 0 and name in output and "train.rollouts" in output or command in output, f"{run.returncode}: {output[-1200:]}")
        print(f"    exit code {run.returncode}: {[line for line in output.splitlines() if 'error:' in line][:1]}")
    late = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do IFS= read -r line && echo ${#line}; done; exit 7"
    config = case.config("late", [{"name": "program", "label": "late", "command": late, "restarts": 0}], max_steps=5)
    for number in range(2):
        run = case.start(config, processes=2)
        output, _ = run.communicate(timeout=120)
        steps = sorted(path.name for path in (case.folder / "late" / "checkpoints").glob("step-*"))
        wanted = [["step-000002"], ["step-000002", "step-000004"]][number]
        case.expect(f"a program that fails late leaves the complete steps, start {number + 1}", run.returncode == 5 and steps == wanted and "late ended with exit code 7" in output,
                    f"{run.returncode}, {steps}: {output[-1200:]}")
    config = case.config("stopped", [{"name": "program", "label": "hangs", "command": "sleep 1013", "timeout": 500}], max_steps=2)
    run = case.start(config, processes=2)
    time.sleep(4)
    began = time.monotonic()
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=120)
    case.expect("a stop does not wait for a program that hangs", time.monotonic() - began < 20 and run.returncode in (143, 75), f"{run.returncode}: {output[-800:]}")
    left = subprocess.run(["pgrep", "-f", "sleep 1013"], capture_output=True, text=True).stdout
    case.expect("nothing is left of it", not left, left)
    lacking = write_jsonl(case.folder / "lacking.jsonl", [{"prompt": "12"}])
    config = case.config("lacking", ["exact_match"], max_steps=2)
    config.write_text(config.read_text().replace(str(case.folder / "prompts.jsonl"), str(lacking)))
    run = case.start(config)
    output, _ = run.communicate(timeout=120)
    case.expect("a record without its reference is named before training", run.returncode == 3 and "lacking.jsonl" in output and "answer" in output, f"{run.returncode}: {output[-800:]}")


# "odd" and "even" are answered with a digit, once; other turns end the conversation.
TOOL = """
import json, sys
for line in sys.stdin:
    said = json.loads(line)
    goes_on = said["completion"].split()[:1] in (["odd"], ["even"]) and len(said["turns"]) < 3
    print(json.dumps(str(len(said["completion"]) % 10) if goes_on else None), flush=True)
"""


def tools(case: Case) -> None:
    (case.folder / "tool.py").write_text(TOOL)
    runs = []
    for processes in (1, 2):
        rollouts = {"environment": f"{sys.executable} {case.folder / 'tool.py'}", "max_new_tokens": 9, "num_samples": 2}
        output = case.train(case.config(f"tools-{processes}", [{"name": "exact_match", "label": "right"}, {"name": "length", "target": 4}], max_steps=6, logging_steps=1, rollouts=rollouts), processes)
        samples = [json.loads(line) for path in sorted((case.folder / f"tools-{processes}" / "rollouts").glob("*.jsonl")) for line in path.read_text().splitlines()]
        runs.append(([[line[key] for key in COMPARED] for line in case.lines(f"tools-{processes}")], [sample["completion_ids"] for sample in samples]))
    talked = [sample for sample in samples if len(sample["turns"]) > 1]
    case.expect("conversations go on with the program's turns", bool(talked) and "completions/mean_turns" in case.lines("tools-2")[0], output[-500:])
    masks = all(sample["completion_mask"].count(0) >= 1 and [value is None for value in sample["logprobs"]] == [own == 0 for own in sample["completion_mask"]] for sample in talked)
    case.expect("its tokens have no label", masks)
    case.expect("one process and two write the same conversations", runs[0][1] == runs[1][1])
    close = max(abs(a - b) / max(1, abs(a)) for one, two in zip(runs[0][0], runs[1][0]) for a, b in zip(one, two))
    case.expect("and train the same", close < 1e-5, str(close))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        case = Case(args.sftrun.resolve(), Path(directory))
        learns(case)
        same_after_stops(case, args.quick)
        tools(case)
        bad_rewards(case, args.quick)
        killed_server(case)
        nothing_is_left(case)
        another_model(case)
        distilled_student(case)
        bad_servers(case, args.quick)
    print(f"{len(case.failures)} failed" if case.failures else "all held")
    sys.exit(1 if case.failures else 0)


if __name__ == "__main__":
    main()
