"""bench/compare.py on a CPU: `sftrun train` and TRL's SFTTrainer on the same packed sequences, in fp32. Tokens and labels of each step are equal, losses too.

    python tests/parity/compare_parity.py --sftrun build/bin/sftrun

A tiny Llama that bench/peer_packed.py makes, with an adapter from which both start: packed conversations, and full sequences with recomputation.
"""

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import compare  # noqa: E402

LOSS = 1e-4  # relative, at any step
CASES = {"packed": ("--lengths", "azure-conversations", "--seq-len", "256"), "uniform, recomputed": ("--lengths", "uniform", "--seq-len", "64", "--recompute")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    sftrun, failures = parser.parse_args().sftrun, 0
    with tempfile.TemporaryDirectory() as folder:  # the second case takes the first one's model
        for name, more in CASES.items():
            args = compare.parse_arguments(["--sftrun", sftrun, "--peer-python", sys.executable, "--arch", str(ROOT / "bench/arch/llama-tiny.json"), "--work", folder, "--sequences", "40",
                                            "--accumulation", "2", "--device", "cpu", "--dtype", "fp32", "--steady", "0.5", "--rounds", "1", "--sides", "sftrun", "trl", *more])
            result = compare.compare(args)
            losses = result.get("losses", {}).get("trl", {"error": result["failed"]})
            labels = [run[0].get("step_labels") for run in result["runs"].values()]
            shared = min(map(len, labels)) if all(labels) else 0
            ok = (Path(folder) / "adapter").exists() and losses.get("steps", 0) > compare.WARM_UP and losses["loss_relative"] <= LOSS and labels[0][:shared] == labels[1][:shared]
            print(f"{'ok' if ok else 'FAILED'}: {name}: {losses}; labels of a step {[of and of[:3] for of in labels]}", flush=True)
            failures += not ok
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
