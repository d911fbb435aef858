"""GGUF files of llama.cpp's own convert_hf_to_gguf.py (tests/data/converted/): sftrun takes each, and scores as transformers scored the
model that was converted.

    python tests/parity/converted_parity.py --sftrun build/bin/sftrun [--only llama gemma3 …] [--quick]

score      `sftrun score` of every file, F32 and Q8_0, against the log-probabilities and numbers of tokens of transformers
train      `sftrun train --dry-run` of every file
merge      of files that hold several matrices in one tensor: a directory that scores as the file with its adapter
--quick leaves out the F32 file of a case that has a Q8_0 file, too, and merges one of the files with several matrices in one tensor.
The files are made by scripts/fixtures/make_converted.py; this needs no package.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts

FILES = REPOSITORY / "tests" / "data" / "converted"
SCORE = 1e-5  # as families_parity.py
MERGED_IN_QUICK = "qwen3_5_moe_fused"  # its experts are fused, too


def worst_difference(ours: list[dict], expected: list[dict]) -> float:
    return max(abs(a["logprob"] - b["logprob"]) / max(abs(b["logprob"]), 1.0) for a, b in zip(ours, expected, strict=True))


def scores(sftrun: Sftrun, expected: list[dict], scratch: Path, *model: str) -> list[dict]:
    texts = [{"text": record["text"]} for record in expected]
    return sftrun.jsonl("score", texts, scratch, *model, "--device", "cpu", "--dtype", "fp32", "--threads", "1")


def check_score(sftrun: Sftrun, file: Path, expected: list[dict], scratch: Path, verdicts: Verdicts) -> None:
    ours = scores(sftrun, expected, scratch, "--model", str(file))
    counts = [record["tokens"] for record in ours]
    verdicts.expect(f"{file.stem}: tokens", counts == [record["tokens"] for record in expected], str(counts))
    verdicts.below(f"{file.stem}: log-probability", worst_difference(ours, expected), SCORE)


def write_run(file: Path, expected: list[dict], scratch: Path) -> Path:
    records, config = scratch / "train.jsonl", scratch / "run.yaml"
    records.write_text("".join(json.dumps({"text": record["text"]}) + "\n" for record in expected))
    config.write_text(f"model: {{ name: {file}, max_seq_len: 128, dtype: fp32 }}\n"
                      "tuning: { mode: lora, lora: { r: 2, target_modules: [all-linear] } }\n"
                      f"data: {{ train: {records}, format: text }}\ntrain: {{ max_steps: 1, learning_rate: 0.1, warmup_steps: 0 }}\n"
                      f"output: {{ dir: {scratch / 'run'} }}\n")
    return config


def check_dry_run(sftrun: Sftrun, file: Path, expected: list[dict], scratch: Path, verdicts: Verdicts) -> None:
    sftrun.run("train", "--config", str(write_run(file, expected, scratch)), "--dry-run", "--device", "cpu")
    verdicts.expect(f"{file.stem}: train --dry-run", True)


def check_merge(sftrun: Sftrun, file: Path, expected: list[dict], scratch: Path, verdicts: Verdicts) -> None:
    sftrun.run("train", "--config", str(write_run(file, expected, scratch)), "--device", "cpu", "--nproc-per-node", "1")
    adapter, merged = scratch / "run" / "adapter", scratch / "merged"
    sftrun.run("merge", "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    adapted = scores(sftrun, expected, scratch, "--adapter", str(adapter))
    verdicts.below(f"{file.stem}: merged", worst_difference(scores(sftrun, expected, scratch, "--model", str(merged)), adapted), SCORE)
    verdicts.expect(f"{file.stem}: the adapter changes the model", worst_difference(adapted, expected) > 10 * SCORE)


def check_file(sftrun: Sftrun, file: Path, quick: bool) -> Verdicts:
    verdicts = Verdicts()
    name, kind = file.stem.rsplit("-", 1)
    expected = json.loads((FILES / f"{name}.json").read_text())[kind]
    is_merged = name == MERGED_IN_QUICK if quick else name.endswith("_fused")
    for check in (check_score, check_dry_run, *([check_merge] if is_merged else [])):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(sftrun, file, expected, Path(scratch), verdicts)
            except RuntimeError as error:
                verdicts.expect(f"{file.stem}: {check.__name__}", False, str(error))
    return verdicts


def is_left_out(file: Path) -> bool:
    """With --quick."""
    return file.stem.endswith("-F32") and file.with_name(f"{file.stem.removesuffix('-F32')}-Q8_0.gguf").exists()


def check_files(files: list[Path], verdicts: Verdicts) -> None:
    """There is a file for each key of each <case>.json, and no other file."""
    described = {f"{path.stem}-{kind}.gguf" for path in FILES.glob("*.json") for kind in json.loads(path.read_text())}
    apart = sorted(described ^ {file.name for file in files})
    what = f"files: the {len(described)} that the JSON files describe"
    verdicts.expect(what, bool(described) and not apart, f"run scripts/fixtures/make_converted.py for {', '.join(apart)}" if apart else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", metavar="CASE")
    parser.add_argument("--quick", action="store_true", help="fewer files, as in `make test`: see above")
    args = parser.parse_args()
    files = sorted(FILES.glob("*.gguf"))
    verdicts = Verdicts()
    check_files(files, verdicts)
    chosen = [file for file in files if not args.only or file.stem.rsplit("-", 1)[0] in args.only]
    if args.quick:
        chosen = [file for file in chosen if not is_left_out(file)]
        is_there = any(file.stem.startswith(f"{MERGED_IN_QUICK}-") for file in chosen)
        verdicts.expect(f"{MERGED_IN_QUICK} is among the cases", is_there or bool(args.only))
    with ThreadPoolExecutor(2) as pool:
        for of_file in pool.map(lambda file: check_file(Sftrun(args.sftrun), file, args.quick), chosen):
            verdicts.count += of_file.count
            verdicts.failures += of_file.failures
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
