#!/usr/bin/env python3
"""Shows what `make demo-vision` learned: pictures, answers of the model before and after training, and the share of right answers to all
held-out questions, by kind. Writes the same as a page with the pictures in it. Standard library only.

Exits 1 if not more than 90% of the answers are right after training.
"""

import argparse
import base64
import collections
import html
import json
import os
import pathlib
import struct
import subprocess
import sys
import zlib

from pictures import KINDS, SIZE

NEEDED = 0.90
COLUMN = 40         # characters of a picture with its gap, or of a question
ON_PAGE = 60        # pictures on the page, besides those that were answered wrongly
PLURALS = {"colour": "colours", "shape": "shapes", "count": "counts", "digit": "digits"}
Answer = collections.namedtuple("Answer", "image kind question wanted before after")
STYLE = """body{font:15px/1.4 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.2rem .9rem;text-align:right}td:first-child,th:first-child{text-align:left}
tr:last-child{font-weight:600;border-top:1px solid #999}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(10.5rem,1fr));gap:1rem}
figure{margin:0}img{width:100%;image-rendering:pixelated;border-radius:4px}figcaption{font-size:13px}.right{color:#17692a}.wrong{color:#b3261e}"""


# ---- Answers


def generate(sftrun, model, questions, output):
    """@return the answers of a model to the records of a file"""
    subprocess.run([sftrun, "generate", "--model", str(model), "--input", str(questions), "--output", str(output), "--overwrite", "--quiet",
                    "--max-new-tokens", "6", "--batch-size", "32"], check=True)
    return [json.loads(line)["generated"].strip() for line in output.read_text().splitlines()]


def answer_all(arguments):
    questions = arguments.pictures / "heldout.jsonl"
    folder = arguments.run / "answers"
    folder.mkdir(exist_ok=True)
    before = generate(arguments.sftrun, arguments.model, questions, folder / "before.jsonl")
    after = generate(arguments.sftrun, arguments.run / "model", questions, folder / "after.jsonl")
    for line, first, last in zip(questions.read_text().splitlines(), before, after):
        record = json.loads(line)
        asked, answer = record["messages"]
        image, question = asked["content"]
        yield Answer(arguments.pictures / image["path"], record["kind"], question["text"], answer["content"], first, last)


def shares(answers):
    """Rows of (kind, questions, share of right answers before, after); the last one is of all."""
    for kind in (*KINDS, "all"):
        chosen = [a for a in answers if kind in (a.kind, "all")]
        yield PLURALS.get(kind, kind), len(chosen), *(sum(x == a.wanted for a, x in zip(chosen, given)) / len(chosen)
                                                      for given in ([a.before for a in chosen], [a.after for a in chosen]))


def one_line(text, width=24):
    """What a model with random weights writes has bytes that would confuse a terminal."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    return (text if len(text) <= width else text[:width - 1] + "…") or "(nothing)"


# ---- Terminal


def read_png(path):
    """@return rows of pixels (red, green, blue); reads only what pictures.py writes."""
    data, idat, place = path.read_bytes(), b"", 8
    while place < len(data):
        length, name = struct.unpack(">I4s", data[place:place + 8])
        idat += data[place + 8:place + 8 + length] if name == b"IDAT" else b""
        place += 12 + length
    raw, line = zlib.decompress(idat), 1 + 3 * SIZE
    return [[tuple(raw[y * line + 1 + 3 * x:y * line + 4 + 3 * x]) for x in range(SIZE)] for y in range(SIZE)]


def colour_code(pixel):
    """24 bits where the terminal says that it has them, else the nearest of the cube of 6 x 6 x 6 colours."""
    if os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        return "2;{};{};{}".format(*pixel)
    red, green, blue = (round(value / 255 * 5) for value in pixel)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def half_blocks(path):
    """Lines of a picture: the upper half of a character is one pixel, the lower half another."""
    rows = read_png(path)
    return ["".join(f"\x1b[38;{colour_code(a)};48;{colour_code(b)}m▀" for a, b in zip(upper, lower)) + "\x1b[0m"
            for upper, lower in zip(rows[::2], rows[1::2])]


def caption(answer):
    tail = "" if answer.after == answer.wanted else f"  (wanted: {answer.wanted})"
    return [answer.question, f"before  {one_line(answer.before, 12)}", f"after   {one_line(answer.after, 12)}{tail}"]


def has_colours():
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"


def print_samples(answers):
    if not has_colours():
        for answer in answers:
            print("\n  ".join(["", f"picture {answer.image}", *caption(answer)]))
        return
    for left, right in zip(answers[::2], answers[1::2]):
        print()
        for pair in zip(half_blocks(left.image), half_blocks(right.image)):
            print("  " + (" " * (COLUMN - SIZE)).join(pair))
        for first, second in zip(caption(left), caption(right)):
            print(f"  {first:<{COLUMN}}{second}")


def print_shares(rows):
    print("\n  held-out questions      right before   right after")
    for kind, number, before, after in rows:
        print(f"  {kind:<12}{number:>6}      {before:>12.1%}{after:>14.1%}")


# ---- Page


def card(answer):
    picture = base64.b64encode(answer.image.read_bytes()).decode()
    state = "right" if answer.after == answer.wanted else "wrong"
    wanted = "" if state == "right" else f"<br>wanted: {html.escape(answer.wanted)}"
    return (f'<figure><img alt="" src="data:image/png;base64,{picture}"><figcaption>{html.escape(answer.question)}<br>'
            f'before: {html.escape(one_line(answer.before))}<br>'
            f'after: <b class="{state}">{html.escape(one_line(answer.after))}</b>{wanted}</figcaption></figure>')


def page(answers, rows):
    table = "".join(f"<tr><td>{kind}</td><td>{number}</td><td>{before:.1%}</td><td>{after:.1%}</td></tr>" for kind, number, before, after in rows)
    wrong = [a for a in answers if a.after != a.wanted]
    sections = [("Pictures the model was not trained on", answers[:ON_PAGE]), ("Wrong after training", wrong)]
    cards = "".join(f"<h2>{title}</h2><div class=cards>{''.join(map(card, chosen))}</div>" for title, chosen in sections if chosen)
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>sftrun: pictures before and after</title><style>{STYLE}</style>"
            f"<h1>Pictures, before and after training</h1><table><tr><th>held-out questions</th><th>number</th><th>right before</th>"
            f"<th>right after</th></tr>{table}</table>{cards}</html>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", default="build/bin/sftrun")
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(".cache/demo-vision/model"), help="before training")
    parser.add_argument("--pictures", type=pathlib.Path, default=pathlib.Path(".cache/demo-vision/pictures"))
    parser.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/demo-vision"))
    parser.add_argument("--show", type=int, default=6, help="pictures to show in the terminal")
    arguments = parser.parse_args()

    answers = list(answer_all(arguments))
    rows = list(shares(answers))
    print("\nPictures the model was not trained on, before and after:")
    print_samples(answers[:arguments.show])
    print_shares(rows)
    path = arguments.run / "pictures.html"
    path.write_text(page(answers, rows))
    sample = answers[0]
    print(f"""
The trained model is in {arguments.run}/model. What to do next:
  {arguments.sftrun} generate --model {arguments.run}/model --image {sample.image} --prompt "{sample.question}"
  {arguments.sftrun} preview --config scripts/demo_vision/run.yaml     # what the model saw, and which tokens carry a label
  open {path}: more pictures with their answers, and those answered wrongly""")
    share = rows[-1][-1]
    if share <= NEEDED:
        print(f"error: {share:.1%} of the answers are right; more than {NEEDED:.0%} were expected", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
