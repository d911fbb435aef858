"""Writes bench/lengths.json: lengths of real conversations as quantiles, from which bench/packed_work.py makes data for bench/compare.py.

    python bench/lengths.py --azure AzureLLMInferenceTrace_conv.csv --demo train.jsonl --model MODEL.gguf --sftrun build/bin/sftrun

azure: https://github.com/Azure/AzurePublicDataset at b469a113, data/AzureLLMInferenceTrace_conv.csv (CC-BY-4.0): requests to a chat service in Azure on
       2023-11-16, tokens of the conversation so far and of the answer, by the service's tokenizer. Patel et al., "Splitwise", ISCA 2024.
demo:  the conversations of scripts/demo/prepare.py, by the tokenizer and template of its model; short ones of nearly one length.

A table has pairs (tokens before the answer, tokens of the answer). Conversations are sorted by their total; of N the pair at (i + 1/2) N / 512 is taken. Standard library only.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PAIRS = 512
SOURCES = {
    "azure-conversations": "Azure/AzurePublicDataset at b469a113, data/AzureLLMInferenceTrace_conv.csv (CC-BY-4.0; Patel et al., Splitwise, ISCA 2024): "
    "19,366 requests to a chat service, 2023-11-16",
    "demo": "scripts/demo/prepare.py: conversations on places of ISO 3166, by the tokenizer of SmolLM2-135M-Instruct",
}


def quantiles(pairs, number=PAIRS):
    """@param pairs (tokens before the answer, tokens of the answer) of all conversations"""
    ordered = sorted(pairs, key=lambda pair: (sum(pair), pair))
    return [list(ordered[(2 * i + 1) * len(ordered) // (2 * number)]) for i in range(min(number, len(ordered)))]


def azure_pairs(path):
    with path.open(newline="") as file:
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]


def demo_pairs(path, model, sftrun):
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "tokens.jsonl"
        subprocess.run([sftrun, "tokenize", "--model", model, "--chat", "--input", path, "--output", output], check=True)
        masks = [json.loads(line)["assistant_mask"] for line in output.read_text().splitlines()]
    return [(len(mask) - sum(mask), sum(mask)) for mask in masks]


def text_of(tables):
    """One table a block, sixteen pairs a line."""
    blocks = []
    for name, table in tables.items():
        pairs = [json.dumps(pair, separators=(",", ":")) for pair in table["pairs"]]
        lines = [", ".join(pairs[i : i + 16]) for i in range(0, len(pairs), 16)]
        blocks.append(f'  "{name}": {{\n    "source": {json.dumps(table["source"])},\n    "pairs": [\n      ' + ",\n      ".join(lines) + "\n    ]\n  }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure", type=pathlib.Path, required=True)
    parser.add_argument("--demo", type=pathlib.Path, required=True)
    parser.add_argument("--model", required=True, help="the demo's, whose tokenizer and template are used")
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--output", type=pathlib.Path, default=HERE / "lengths.json")
    args = parser.parse_args()
    pairs = {"azure-conversations": azure_pairs(args.azure), "demo": demo_pairs(args.demo, args.model, args.sftrun)}
    args.output.write_text(text_of({name: {"source": SOURCES[name], "pairs": quantiles(of)} for name, of in pairs.items()}))


if __name__ == "__main__":
    main()
