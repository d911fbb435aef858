#!/usr/bin/env python3
"""Damages checkpoints and kept tokens, and compares what the same command then trains with an undamaged run.

    tests/smoke/damaged_files.py --sftrun build/bin/sftrun [--cases 500] [--seed 1]
    tests/smoke/damaged_files.py --sftrun build/bin/sftrun --only optimizer.safetensors

Standard library only. A run of six steps has checkpoints of steps 2 and 4; in each case one file of the newest, of the
tokens that are kept, of the remembered hashes, or of the run directory is damaged: a bit, a zeroed block, a cut or a
gap in each of its regions, or the file as a whole (missing, empty, longer, swapped with another). The command must
then end with the result of the undamaged run, bit for bit (from the checkpoint before, or with the tokens made anew),
and say so; where no checkpoint is whole it must end with an error. It may never crash, hang, or train on damage.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time

import bad_input
import broken_runs
import random_kills
import two_processes

YAML = """\
model: { name: model, max_seq_len: 128 }
tuning: { mode: lora, lora: { r: 4, alpha: 8, dropout: 0.1 } }
data: { train: train.jsonl, cache_dir: cache }
train:
  { max_steps: 6, epochs: 50, global_batch_size: 4, learning_rate: 2.0e-3, warmup_steps: 2, save_steps: 2 }
output: { dir: run, tensorboard: true }
"""
NEWEST, OLDER, LAST = "run/checkpoints/step-000004", "run/checkpoints/step-000002", "run/checkpoints/step-000006"
LORA, FULL = "adapter/adapter_model.safetensors", "model/model.safetensors"
# What the runs train, and what each leaves.
KINDS = {
    "lora": ([], LORA),
    "full": (["tuning.mode=full", "train.learning_rate=1e-4"], FULL),
    "pissa": (["tuning.lora.init=pissa", "tuning.lora.dropout=0"], LORA),
    "adamw_8bit": (["train.optimizer=adamw_8bit"], LORA),
    "streamed": (["data.streaming=true", "data.shuffle_buffer=16"], LORA),
    "tokens": ([], LORA),
    "remembered": ([], LORA),
}
IN_PLACE = ("tokens", "remembered")  # kinds of which only what is kept for files in their places is damaged
FILES_THAT_DIFFER = {"adamw_8bit": {"optimizer.safetensors"}, "streamed": {"state.json"}}  # from those of the first kind
UNSETTLED_S = 3.5  # the hash of a file that changed so recently is not remembered
KEPT = ("run", "cache", "user")  # what a run writes
TIMEOUT = 120  # s, of one command
MAX_REGIONS = 16  # of a part of a file
ONE_AT_A_TIME = threading.Lock()

Case = collections.namedtuple("Case", "kind name place damage")
Template = collections.namedtuple("Template", "folder overrides result wanted metrics")


# Runs

def train(folder, overrides):
    command = [folder / "sftrun", *bad_input.TRAIN, *overrides]
    environment = bad_input.environment(folder) | {"XDG_CACHE_HOME": str(folder / "user")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT)
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def prepare(folder, program, kind):
    """A run that has been stopped after its fourth step."""
    overrides, result = KINDS[kind]
    folder.mkdir()
    bad_input.good_folder(folder, program)
    (folder / "run.yaml").write_text(YAML)
    two_processes.write_lines(folder / "train.jsonl", [two_processes.record(n) for n in range(2, 66)])
    two_processes.write_lines(folder / "other.jsonl", [two_processes.record(n) for n in range(102, 166)])
    for path in [*(folder / "model").iterdir(), folder / "train.jsonl", folder / "other.jsonl"]:
        os.utime(path, (1.7e9, 1.7e9))
    if kind in IN_PLACE:  # the hashes are among what is kept
        time.sleep(UNSETTLED_S)
    if kind == "tokens":  # another data set's, beside
        code, text = train(folder, [*overrides, "data.train=other.jsonl", "output.dir=other"])
        broken_runs.expect(code == 0, f"exit code {code}", text)
        shutil.rmtree(folder / "other")
        [other] = (folder / "cache").glob("*/examples")
        other.rename(folder / "other_examples")
        other.parent.joinpath("lock").unlink()
        other.parent.rmdir()
    code, text = train(folder, overrides)
    broken_runs.expect(code == 0, f"the undamaged run of {kind} ends with {code}", text)
    template = Template(folder, overrides, result, (folder / "run" / result).read_bytes(), random_kills.computed(folder))
    shutil.rmtree((folder / "run" / result).parent)
    shutil.rmtree(folder / LAST)
    code, text = train(folder, overrides)
    broken_runs.expect(code == 0 and "resuming from " + NEWEST in text, f"exit code {code}", text)
    expect_result(folder, template)
    shutil.rmtree((folder / "run" / result).parent)
    shutil.rmtree(folder / LAST)
    if kind in IN_PLACE:
        for name in KEPT:
            shutil.copytree(folder / name, folder / "pristine" / name)
    return template


# Damages. Each is given the bytes of a file and a region of it, and returns other bytes.

def flip_bit(content, begin, end, choice):
    content[choice.randrange(begin, end)] ^= 1 << choice.randrange(8)


def overwrite(content, begin, end, choice):
    """With zeros; where there are zeros, with ones."""
    at = choice.randrange(begin, end)
    until = min(end, at + choice.choice([1, 4, 64, 512]))
    content[at:until] = (b"\0" if any(content[at:until]) else b"\xff") * (until - at)


def cut(content, begin, end, choice):
    del content[choice.randrange(begin, end):]


def lose_bytes(content, begin, end, choice):
    at = choice.randrange(begin, end)
    del content[at:at + choice.choice([1, 8, 64])]


def insert_bytes(content, begin, end, choice):
    at = choice.randrange(begin, end)
    content[at:at] = choice.randbytes(choice.choice([1, 8, 64]))


def swap_blocks(content, begin, end, choice):
    """Two blocks of equal length, as a file system may that loses track."""
    size = max(1, min(64, (end - begin) // 2))
    first, second = bytes(content[begin:begin + size]), bytes(content[end - size:end])
    content[begin:begin + size], content[end - size:end] = second, first


IN_REGIONS = [flip_bit, overwrite, cut, lose_bytes, insert_bytes, swap_blocks]


def missing(path, twin):
    path.unlink()


def empty(path, twin):
    path.write_bytes(b"")


def longer(path, twin):
    path.write_bytes(path.read_bytes() + b"\n")


def doubled(path, twin):
    path.write_bytes(path.read_bytes() * 2)


def directory(path, twin):
    """A folder of that name, which is not removed: where a file must be written there, an error says so."""
    path.unlink()
    path.mkdir()


def named_pipe(path, twin):
    """To open one waits for its other end, for ever."""
    path.unlink()
    os.mkfifo(path)


def dangling_link(path, twin):
    path.unlink()
    path.symlink_to("nowhere")


def of_another(path, twin):
    """The file of the same name from another checkpoint, or another data set's."""
    shutil.copyfile(twin, path)


def sibling(path, twin):
    """The content of another file of the same folder."""
    other = next((p for p in sorted(path.parent.iterdir()) if p != path and p.is_file()), twin)
    shutil.copyfile(other, path)


WHOLE_FILE = [missing, empty, longer, doubled, directory, named_pipe, dangling_link, of_another, sibling]
NO_FILE = {directory: "Is a directory", named_pipe: "is a named pipe, not a regular file"}


def pieces(begin, end):
    count = max(1, min(MAX_REGIONS, (end - begin) // 8))
    edges = [begin + (end - begin) * i // count for i in range(count + 1)]
    return [(a, b) for a, b in zip(edges, edges[1:]) if b > a]


def parts(path):
    """Ends of the parts that a file's format has."""
    content = path.read_bytes()
    if path.suffix == ".safetensors":
        return [8, 8 + struct.unpack_from("<Q", content)[0], len(content)]
    if path.name == "examples":  # include/sftrun/data/example_store.h
        footer = len(content) - 56
        index, num_examples, num_images, header, _, _ = struct.unpack_from("<6Q", content, footer)
        images = index + 40 * num_examples
        return [8, index, images, images + 64 * num_images, header, footer, *range(footer + 8, len(content) + 1, 8)]
    return [len(content)]


def regions(path):
    begin, found = 0, []
    for end in parts(path):
        found += pieces(begin, end)
        begin = end
    return found


# Whole checkpoints

def all_damaged(folder, choice):
    """Of every checkpoint one file: there is nothing to resume from."""
    for checkpoint in (NEWEST, OLDER):
        path = choice.choice(sorted(p for p in (folder / checkpoint).iterdir() if p.name != "README.md"))
        content = bytearray(path.read_bytes())
        flip_bit(content, 0, len(content), choice)
        path.write_bytes(content)


def newest_gone(folder, choice):
    shutil.rmtree(folder / NEWEST)


def newest_is_empty(folder, choice):
    shutil.rmtree(folder / NEWEST)
    (folder / NEWEST).mkdir()


def newest_is_a_file(folder, choice):
    shutil.rmtree(folder / NEWEST)
    (folder / NEWEST).write_text("?")


def swapped(folder, choice):
    (folder / NEWEST).rename(folder / "aside")
    (folder / OLDER).rename(folder / NEWEST)
    (folder / "aside").rename(folder / OLDER)


def older_under_another_name(folder, choice):
    shutil.copytree(folder / OLDER, folder / LAST)


def file_too_many(folder, choice):
    (folder / NEWEST / "more.safetensors").write_bytes(b"?" * 100)


WHOLE_CHECKPOINT = [all_damaged, newest_gone, newest_is_empty, newest_is_a_file, swapped, older_under_another_name, file_too_many]


# Cases

def files_of(template, kind):
    """Relative paths: of the newest checkpoint in each kind, and once of all else that a run reads."""
    folder = template.folder
    if kind == "remembered":
        found = sorted(path for name in KEPT for path in (folder / name).rglob("hashes/*"))
        broken_runs.expect(len(found) >= 2, f"hashes of the model and of the data: {found}")
        return [path.relative_to(folder) for path in found]
    if kind == "tokens":
        return [path.relative_to(folder) for path in (folder / "cache").glob("*/examples")]
    found = sorted((folder / NEWEST).iterdir())
    if kind == "lora":
        found += [folder / "run" / name for name in ("metrics.jsonl", "run.json", "config.resolved.yaml")]
        found += sorted((folder / "run/tensorboard").iterdir())
    return [path.relative_to(folder) for path in found if path.is_file()]


def all_cases(templates):
    """In this order: a damage of every region of every kind of file, files and checkpoints as a whole, the other damages."""
    first, whole, others, seen = [], [], [], set()
    for kind, template in templates.items():
        for name in files_of(template, kind):
            role = "hashes" if kind == "remembered" else "tensorboard" if "tensorboard" in name.parts else name.name
            is_new = role not in seen or name.name in FILES_THAT_DIFFER.get(kind, ())
            seen.add(role)
            for number, region in enumerate(regions(template.folder / name)):
                damages = IN_REGIONS[number % len(IN_REGIONS):] + IN_REGIONS[:number % len(IN_REGIONS)]
                cases = [Case(kind, name, region, damage) for damage in damages]
                first += cases[:1] if is_new else []
                others += cases[1:] if is_new else cases
            whole += [Case(kind, name, None, damage) for damage in WHOLE_FILE]
        if kind not in IN_PLACE:
            whole += [Case(kind, "checkpoints", None, damage) for damage in WHOLE_CHECKPOINT]
    return first, whole, others


def choose(cases, count, seed):
    """Of each list as many as it has, before the next; of one that is too long, some by chance."""
    chosen = []
    choice = random.Random(f"{seed} cases")
    for some in cases:
        wanted = min(len(some), count - len(chosen))
        chosen += some if wanted == len(some) else choice.sample(some, wanted)
    return chosen


def make_damage(case, folder, choice):
    if case.damage in WHOLE_CHECKPOINT:
        return case.damage(folder, choice)
    path = folder / case.name
    if case.damage in WHOLE_FILE:
        if path.name == "examples":
            twin = folder / "other_examples"
        else:
            twin = folder / OLDER / path.name if path.parent == folder / NEWEST else folder / "other.jsonl"
        return case.damage(path, twin)
    content = bytearray(path.read_bytes())
    state = os.stat(path)
    case.damage(content, *case.place, choice)
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # damage does not tell itself by a time
    return None


def is_same(folder, template, case):
    """Whether the damage has changed nothing (two equal blocks swapped, say)."""
    path = folder / case.name
    return path.is_file() and not path.is_symlink() and path.read_bytes() == original(template, case)


def expect_result(folder, template):
    broken_runs.expect((folder / "run" / template.result).read_bytes() == template.wanted, "another result")
    names = [str(path.relative_to(folder)) for path in (folder / "run").rglob("*")]
    unfinished = [name for name in names if ".unfinished" in name or ".tmp-" in name]
    broken_runs.expect(not unfinished, f"left unfinished: {unfinished}")


def is_covered(folder, case):
    """Whether the file belongs to the checkpoint, as its state says."""
    files = json.loads((folder / NEWEST / "state.json").read_text())["files"]
    return case.name.parent == pathlib.Path(NEWEST) and (case.name.name == "state.json" or case.name.name in files)


def expect_answer(case, code, text, folder, template):
    name = str(case.name)
    broken_runs.expect(0 <= code < 128, f"a crash: exit code {code}", text)
    for words in ("terminate called", "what():", "frame #", "Assertion"):
        broken_runs.expect(words not in text, f"says {words}", text)
    if case.damage is all_damaged:
        broken_runs.expect_error((code, text, 0), 3, "no checkpoint of the run is complete", r"\n  fix: ")
        return
    if case.damage is newest_is_a_file or name.startswith(("run/metrics", "run/tensorboard", "run/run.json", "run/config")):
        if code in (2, 3):
            broken_runs.expect(text.count("error: ") == 1, "not one error", text)
            return
    if case.damage in NO_FILE and code == 5:
        broken_runs.expect_error((code, text, 0), 5, f"cannot write: {NO_FILE[case.damage]}", f"\n  at   {name}")
        return
    broken_runs.expect(code == 0, f"exit code {code}", text)
    expect_result(folder, template)
    if isinstance(case.name, pathlib.Path) and is_covered(template.folder, case):
        broken_runs.expect(f"skipping {NEWEST}" in text and f"resuming from {OLDER}" in text, "damage is not named", text)
    if name.endswith("examples"):
        broken_runs.expect(case.damage is missing or case.damage is dangling_link or "tokenizing again" in text, "damage is not named", text)
        broken_runs.expect(is_same(folder, template, case), "the tokens are not those that were kept before")
    if case.kind == "remembered" and case.damage not in NO_FILE:
        broken_runs.expect(is_same(folder, template, case), "the hash is not that which was remembered before")
    if case.damage in WHOLE_CHECKPOINT or name.startswith((NEWEST, "cache")):
        lines = random_kills.computed(folder)
        broken_runs.expect(lines == template.metrics, f"other metrics: {lines}", text)


@contextlib.contextmanager
def folder_of(number, template, directory):
    """A copy; for what is kept for files in their places the folder itself, which one case has at a time."""
    pristine = template.folder / "pristine"
    if not pristine.exists():
        folder = directory / f"case-{number}"
        shutil.copytree(template.folder, folder, symlinks=True)
        yield folder
        shutil.rmtree(folder)
        return
    with ONE_AT_A_TIME:
        yield template.folder
        for name in KEPT:
            shutil.rmtree(template.folder / name)
            shutil.copytree(pristine / name, template.folder / name)


def check(number, case, template, directory, seed):
    """What is wrong; None: nothing. Empty: the damage has changed nothing."""
    choice = random.Random(f"{seed} {number}")
    with folder_of(number, template, directory) as folder:
        return check_in(folder, number, case, template, choice)


def original(template, case):
    folder = template.folder / "pristine" if case.kind in IN_PLACE else template.folder
    return (folder / case.name).read_bytes()


def check_in(folder, number, case, template, choice):
    title = f"case {number}: {case.kind}, {case.name}, {case.place or ''} {case.damage.__name__}"
    try:
        make_damage(case, folder, choice)
        if case.damage not in WHOLE_CHECKPOINT and is_same(folder, template, case):
            return ""
        code, text = train(folder, template.overrides)
        expect_answer(case, code, text, folder, template)
    except subprocess.TimeoutExpired:
        return f"{title}: still running after {TIMEOUT} s"
    except Exception as failure:  # whatever it is, the case must be named
        return f"{title}: {type(failure).__name__}: {failure}"
    return None


def shown_name(case):
    path = pathlib.Path(case.name)
    return path.parent.name if path.parent.name in ("hashes", "tensorboard") else path.name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=500, help="at most (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="of the choices (default 1)")
    parser.add_argument("--only", default="", help="cases whose file or damage has this in its name")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        directory = pathlib.Path(name).resolve()
        program = arguments.sftrun.resolve()
        prepared = pool.map(lambda kind: prepare(directory / kind, program, kind), KINDS)
        templates = dict(zip(KINDS, prepared))
        groups = [[case for case in some if arguments.only in f"{case.name} {case.damage.__name__}"] for some in all_cases(templates)]
        cases = choose(groups, arguments.cases, arguments.seed)
        found = list(pool.map(lambda numbered: check(*numbered, templates[numbered[1].kind], directory, arguments.seed), enumerate(cases)))
    problems = [problem for problem in found if problem]
    for problem in problems:
        print("FAIL", problem)
    by_file = collections.Counter(shown_name(case) for case in cases)
    print(f"seed {arguments.seed}: " + ", ".join(f"{name} {count}" for name, count in sorted(by_file.items())))
    print(f"{sum(map(len, groups))} cases known, {len(cases)} run in {time.monotonic() - begin:.0f} s ({found.count('')} of them changed no "
          f"byte), {len(problems)} problems")
    return 1 if problems or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
