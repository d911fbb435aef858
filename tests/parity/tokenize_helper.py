"""Our tokenizer, through tests/tokenizer/tokenize_lines.cpp."""
import json
import struct
import subprocess


def run_helper(helper, source, records, *mode):
    data = b"".join(struct.pack("<I", len(r)) + r for r in records)
    done = subprocess.run([helper, *source, *mode], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode("utf-8")


def lines_of(answer):
    """Not splitlines, which also breaks at U+2028 and others."""
    return answer.split("\n")[:-1]


def ask(helper, source, texts=(), spans_of=(), ids=(), document=False):
    """One start for all that is asked of a tokenizer: the answers' lines for texts, for texts with spans and for lists of ids, and the
    tokenizer.json."""
    records = [b"t" + text.encode() for text in texts] + [b"s" + text.encode() for text in spans_of]
    records += [struct.pack(f"<c{len(some)}i", b"d", *some) for some in ids] + [b"j"] * document
    lines = lines_of(run_helper(helper, source, records, "--mixed"))
    assert len(lines) == len(records), f"{len(lines)} answers to {len(records)} records"
    split = [len(texts), len(texts) + len(spans_of), len(texts) + len(spans_of) + len(ids)]
    return lines[:split[0]], lines[split[0]:split[1]], lines[split[1]:split[2]], json.loads(lines[-1]) if document else None
