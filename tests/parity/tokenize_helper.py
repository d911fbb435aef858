"""Our tokenizer, through tests/text/tokenize_lines.cpp."""
import struct
import subprocess


def run_helper(helper, source, records, *mode):
    data = b"".join(struct.pack("<I", len(r)) + r for r in records)
    done = subprocess.run([helper, *source, *mode], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode("utf-8")


def lines_of(answer):
    """Not splitlines, which also breaks at U+2028 and others."""
    return answer.split("\n")[:-1]
