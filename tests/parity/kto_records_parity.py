"""Records of judged answers beside TRL's KTOTrainer: prompt and completion ids, labels and judgements.

    python tests/parity/kto_records_parity.py --sftrun build/bin/sftrun [--quick]

Texts, conversations under every chat template of TRL, tools, and pairs that are taken apart (also with implicit prompts), each from `sftrun preview`;
texts and conversations also from `sftrun tokenize`. Conversations with a label, whose last turn is judged (LLaMA-Factory's layout), are compared with
the prompt and completion that they are cut into. Tables: the same records as CSV and as Parquet, with labels as booleans, numbers and texts.

--quick leaves out TRL's templates for training.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import subprocess
import sys
import tempfile
import types
from pathlib import Path

from harness import Sftrun, Verdicts  # noqa: I001  (sets sys.path)

import datasets
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from chat_templates import of_trl
from dpo_parity import CHATML, MIN_RENDERED, as_the_template_reads_them, chat_records, implicit, make_model, text_records, words, write_jsonl, write_run
from transformers import AutoTokenizer
from trl import KTOTrainer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}]


# ---- Records


def judged(rng: random.Random, pairs: list[dict]) -> list[dict]:
    """One of the answers of each, with a label; the first two have different ones."""
    records = []
    for number, pair in enumerate(pairs):
        label = bool(number) if number < 2 else rng.random() < 0.5
        records.append({"prompt": pair["prompt"], "completion": pair["chosen" if label else "rejected"], "label": label})
    return records


def random_texts(rng: random.Random, count: int) -> list[dict]:
    """Also with an EOS at the end, and with answers that merge with the prompt's last token."""
    records = judged(rng, text_records(rng, count))
    for record in records[::5]:
        record["completion"] += "</s>"
    for record in records[1::5]:
        cut = rng.randrange(0, len(record["prompt"]) + 1)
        record["prompt"], record["completion"] = record["prompt"][:cut], record["prompt"][cut:] + record["completion"]
    return records


def random_chats(rng: random.Random, count: int) -> list[dict]:
    """Also with a system turn, and with several turns in the completion."""
    records = judged(rng, chat_records(rng, count))
    for record in records[::3]:
        record["prompt"] = [{"role": "system", "content": words(rng, 4)}, *record["prompt"]]
    for record in records[1::3]:
        record["completion"] = record["completion"] + [{"role": "user", "content": words(rng, 3)}, {"role": "assistant", "content": words(rng, 5)}]
    return records


def as_conversation(record: dict) -> dict:
    """{"messages", "label"}, whose last turn is judged."""
    return {"messages": record["prompt"] + record["completion"], "label": record["label"]}


def cut_before_last(record: dict) -> dict:
    turns = record["prompt"] + record["completion"]
    return {"prompt": turns[:-1], "completion": turns[-1:], "label": record["label"]}


def as_sharegpt(record: dict) -> dict:
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns = [{"from": names[turn["role"]], "value": turn["content"]} for turn in record["prompt"] + record["completion"]]
    return {"conversations": turns, "kto_tag": record["label"]}


# ---- Tokens and labels


def tokens_of_trl(records: list[dict], tokenizer) -> list[tuple]:
    """(prompt_ids, completion_ids, label) as KTOTrainer prepares them."""
    trainer = types.SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False, desirable_weight=1.0, undesirable_weight=1.0)
    arguments = types.SimpleNamespace(dataset_num_proc=None, max_length=None)
    prepared = KTOTrainer._prepare_dataset(trainer, datasets.Dataset.from_list(records), tokenizer, arguments, "train")
    return [(row["prompt_ids"], row["completion_ids"], row["label"]) for row in prepared]


def in_order_of_pairs(rows: list[tuple]) -> list[tuple]:
    """TRL puts the rejected answers of a batch behind all chosen ones."""
    half = len(rows) // 2
    return [row for pair in zip(rows[:half], rows[half:]) for row in pair]


def labelled(rows: list[tuple]) -> list[tuple]:
    """(input_ids, labels, judgement); nothing predicts the first token."""
    return [(prompt + answer, [-100] + ([-100] * len(prompt) + answer)[1:], label) for prompt, answer, label in rows]


def rendered_by_trl(records: list[dict], tokenizer) -> list[tuple]:
    """Empty if the tokenizer's template refuses them: templates for images, for other roles, …"""
    texts = [{key: value for key, value in record.items() if key in ("prompt", "completion")} for record in records]
    rest = [{key: value for key, value in record.items() if key not in ("prompt", "completion")} for record in records]
    try:
        return tokens_of_trl([{**a, **b} for a, b in zip(as_the_template_reads_them(texts, tokenizer), rest)], tokenizer)
    except Exception:  # noqa: BLE001
        return []


def previewed(sftrun: Sftrun, config: Path, count: int, **overrides) -> list[tuple]:
    settings = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    command = [sftrun.path, "preview", "--config", str(config), "-n", str(count), "--json", "train.objective=kto", *settings]
    # It shows the sequences, and then refuses templates whose end-of-turn tokens the tokenizer does not have.
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr[-3000:]}")
    (data_set,) = json.loads(done.stdout)["data_sets"]
    return [(sequence["input_ids"], sequence["labels"], sequence["is_desirable"]) for sequence in data_set["sequences"]]


def tokenized(sftrun: Sftrun, model: Path, data: Path, *flags: str) -> list[tuple]:
    output = data.with_suffix(".tokens.jsonl")
    command = [sftrun.path, "tokenize", "--model", str(model), "--input", str(data), "--output", str(output), "--overwrite", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr[-3000:]}")
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return [(row["prompt_ids"], row["completion_ids"], row["label"]) for row in rows]


# ---- Parts


def check_records(sftrun: Sftrun, scratch: Path, verdicts: Verdicts) -> None:
    rng = random.Random(21)
    pairs, chat_pairs = text_records(rng, 40), chat_records(rng, 12)
    texts, chats = random_texts(rng, 60), random_chats(rng, 24)
    for adds_bos in (False, True):
        model = make_model(scratch / f"records-{adds_bos}", adds_bos)
        tokenizer = AutoTokenizer.from_pretrained(model)

        def compare(name: str, records: list[dict], theirs: list[tuple], **overrides) -> None:
            data = write_jsonl(scratch / "records.jsonl", records)
            ours = previewed(sftrun, write_run(scratch / "records.yaml", model, data), len(records), **overrides)
            verdicts.expect(f"{name}{', BOS' if adds_bos else ''}", ours == labelled(theirs), f"{len(ours)} sequences")

        compare("texts", texts, tokens_of_trl(texts, tokenizer))
        compare("conversations", chats, tokens_of_trl(chats, tokenizer))
        for name, records in {"pairs of texts": pairs, "pairs of conversations": chat_pairs}.items():
            theirs = in_order_of_pairs(tokens_of_trl(records, tokenizer))
            compare(name, records, theirs)
            compare(f"{name}, implicit prompts", [implicit(record) for record in records],
                    in_order_of_pairs(tokens_of_trl([implicit(record) for record in records], tokenizer)))
        last = tokens_of_trl([cut_before_last(record) for record in chats], tokenizer)
        compare("messages", [as_conversation(record) for record in chats], last)
        compare("ShareGPT with kto_tag", [as_sharegpt(record) for record in chats], last)
        renamed = [{"messages": row["messages"], "good": row["label"]} for row in map(as_conversation, chats)]
        compare("renamed label", renamed, last, data__fields="{label: good}")
        for name, records, flags in (("texts", texts, []), ("conversations", chats, ["--chat"])):
            data = write_jsonl(scratch / "records.jsonl", records)
            verdicts.expect(f"tokenize, {name}{', BOS' if adds_bos else ''}",
                            tokenized(sftrun, model, data, *flags) == tokens_of_trl(records, tokenizer))


def check_tables(sftrun: Sftrun, scratch: Path, verdicts: Verdicts) -> None:
    records = random_texts(random.Random(22), 30)
    model = make_model(scratch / "tables", adds_bos=False)
    theirs = labelled(tokens_of_trl(records, AutoTokenizer.from_pretrained(model)))
    spellings = {"booleans": bool, "numbers": int, "fractions": float, "texts": lambda label: "true" if label else "false", "pandas' texts": str}
    for name, spell in spellings.items():
        table = pyarrow.Table.from_pylist([{**record, "label": spell(record["label"])} for record in records])
        pyarrow.parquet.write_table(table, scratch / "table.parquet")
        pyarrow.csv.write_csv(table, scratch / "table.csv")
        for file in ("table.parquet", "table.csv"):
            ours = previewed(sftrun, write_run(scratch / "tables.yaml", model, scratch / file), len(records))
            verdicts.expect(f"{file}, labels as {name}", ours == theirs)


def check_templates(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    chats = judged(random.Random(23), chat_records(random.Random(24), 6))
    with_tools = [{**record, "tools": json.dumps(TOOLS)} for record in chats[:2]]
    # X_training is X with marks around answers and few other changes; random_chats_parity.py renders them, too.
    templates = {"chatml": CHATML, **{name: text for name, text in of_trl().items() if not (quick and name.endswith("_training"))}}
    model = make_model(scratch / "templates", adds_bos=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    compared = 0
    for name, template in templates.items():
        (scratch / "template.jinja").write_text(template)
        tokenizer.chat_template = template
        # Tools first: from_list takes the keys of the first record. Each alone if TRL does not render the tools or the records without.
        for sets in ([with_tools + chats], [with_tools, chats]):
            rendered = [(records, theirs) for records in sets if (theirs := rendered_by_trl(records, tokenizer))]
            if rendered:
                break
        for records, theirs in rendered:
            config = write_run(scratch / "templates.yaml", model, write_jsonl(scratch / "templates.jsonl", records))
            ours = previewed(sftrun, config, len(records), model__chat_template=scratch / "template.jinja")
            compared += len(records)
            if ours != labelled(theirs):
                verdicts.expect(f"template {name}", False)
    verdicts.expect("every template of TRL that renders the records", compared >= MIN_RENDERED * len(templates) * len(chats + with_tools),
                    f"{compared} records compared")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true", help="a part, as in `make test`: see above")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    datasets.disable_caching()
    for name in ("trl", "trl.trainer.kto_trainer"):
        logging.getLogger(name).setLevel(logging.ERROR)
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            check_records(Sftrun(args.sftrun), Path(temporary), verdicts)
            check_tables(Sftrun(args.sftrun), Path(temporary), verdicts)
            check_templates(Sftrun(args.sftrun), Path(temporary), verdicts, args.quick)
        except RuntimeError as error:
            verdicts.expect("records", False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
