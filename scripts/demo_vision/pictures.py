#!/usr/bin/env python3
"""Makes the pictures and questions of `make demo-vision`. Standard library only; a second run with the same settings returns at once.

A picture has 32 x 32 pixels and shows a few shapes (questions about colours and shapes), several small things (counts) or digits, in
random places, sizes and tones, with slight noise. Questions have several wordings. A training record is a picture with all its
questions, or with a description of it from left to right; a held-out record is a picture with one question, whose answer is a word or
number. Held-out pictures come from a random stream of their own, and one with the pixels of a training picture is left out.

Below the folder: train.jsonl, heldout.jsonl (records with `messages`; held-out ones also have `kind`) and images/.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import pathlib
import random
import shutil
import struct
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZE = 32
CELL = 8           # of the grid on which things are placed, as wide as the model's patches
JITTER = 1         # at most, from the grid
KINDS = ("colour", "shape", "count", "digit")  # of questions
COLOURS = {"red": (215, 45, 40), "green": (45, 165, 60), "blue": (50, 85, 220), "yellow": (240, 215, 50), "purple": (145, 60, 185),
           "orange": (245, 135, 35)}
COLOUR_SHIFT = 10  # tones of a colour, per channel
NOISE = 6          # of each pixel
TO_NOISE = bytes(value * (2 * NOISE + 1) // 256 for value in range(256))  # random bytes to 0 … 2 NOISE
PLURALS = {"circle": "circles", "square": "squares", "triangle": "triangles", "cross": "crosses", "ring": "rings"}
SHAPES = tuple(PLURALS)
MAX_COUNT = 5
DIGITS = (  # rows from the top, 5 pixels each
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110", "01110 10001 00001 00110 01000 10000 11111",
    "01110 10001 00001 00110 00001 10001 01110", "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000", "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100")
QUESTIONS = {
    "colour": ("What colour is the {shape}?", "Which colour does the {shape} have?", "Name the colour of the {shape}."),
    "shape": ("What shape is {colour}?", "Which shape is painted {colour}?", "Name the {colour} shape."),
    "count": ("How many {shapes} are there?", "How many {shapes} do you see?", "Count the {shapes}."),
    "count_colour": ("How many {colour} things are there?", "How many things are {colour}?", "Count the {colour} things."),
    "digit": ("Which digit is {colour}?", "What is the {colour} digit?", "Read the {colour} digit."),
    "describe": ("Describe the picture.", "What do you see?", "What is in the picture?"),  # from left to right
}


# ---- Drawing


def spans(shape, radius):
    """Rows of a shape in a box of 2 radius + 1 pixels, as (y, first x, behind the last x)."""
    size = 2 * radius + 1
    for y in range(size):
        row = y - radius
        if shape == "square":
            yield y, 0, size
        elif shape == "cross":
            arm = (radius - 1) // 2
            yield (y, 0, size) if abs(row) <= arm else (y, radius - arm, radius + arm + 1)
        elif shape == "triangle":
            yield y, radius - y // 2, radius + y // 2 + 1
        else:
            half, inner = round((radius * (radius + 1) - row * row) ** 0.5), round(radius * 0.55)
            if shape == "circle" or abs(row) > inner:
                yield y, radius - half, radius + half + 1
            else:
                hole = round((inner * (inner + 1) - row * row) ** 0.5)
                yield y, radius - half, radius - hole
                yield y, radius + hole + 1, radius + half + 1


def digit_spans(digit, scale):
    """Rows of a digit in a box of 5 scale x 7 scale pixels."""
    for row, bits in enumerate(DIGITS[digit].split()):
        for column, bit in enumerate(bits):
            if bit == "1":
                yield from ((row * scale + y, column * scale, (column + 1) * scale) for y in range(scale))


class Canvas:
    def __init__(self, rng, describes):
        """@param describes whether the picture gets one question for all of it, if its kind has one"""
        self.rng, self.describes = rng, describes
        self.noise = rng.randbytes(SIZE * SIZE).translate(TO_NOISE)
        self.pixels = bytearray(SIZE * SIZE * 3)
        tone = rng.randint(10, 50)
        self.fill((tone, tone, tone), ((y, 0, SIZE) for y in range(SIZE)), 0, 0)

    def fill(self, colour, rows, left, top):
        """Noise is the same in all channels of a pixel."""
        tables = [bytes(min(255, max(0, value)) for value in range(c - NOISE, c + NOISE + 1)).ljust(256) for c in colour]
        for y, first, end in rows:
            begin, behind = (top + y) * SIZE + left + first, (top + y) * SIZE + left + end
            for channel, table in enumerate(tables):
                self.pixels[begin * 3 + channel:behind * 3:3] = self.noise[begin:behind].translate(table)

    def tone(self, colour):
        return tuple(c + self.rng.randint(-COLOUR_SHIFT, COLOUR_SHIFT) for c in COLOURS[colour])

    def png(self):
        def chunk(name, data):
            return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

        rows = b"".join(b"\0" + self.pixels[y * SIZE * 3:(y + 1) * SIZE * 3] for y in range(SIZE))
        header = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def places(rng, boxes):
    """The upper left corner (x, y) for each box (width, height) in pixels, so that none overlap; none where there is no room."""
    taken, corners = set(), []
    for box in boxes:
        columns, rows = (-(-(length + JITTER) // CELL) for length in box)
        for _ in range(30):
            column, row = rng.randint(0, SIZE // CELL - columns), rng.randint(0, SIZE // CELL - rows)
            cells = {(column + x, row + y) for x in range(columns) for y in range(rows)}
            if not cells & taken:
                taken |= cells
                corners.append((column * CELL + rng.randint(0, JITTER), row * CELL + rng.randint(0, JITTER)))
                break
        else:
            return None
    return corners


# ---- Pictures with their questions: lists of (question, answer)


def ask(rng, wording, answer, **words):
    return rng.choice(QUESTIONS[wording]).format(**words), answer


def draw_things(canvas, things, smallest, largest):
    """Sizes are radii, those of digits scales.   @return the things from left to right, and from the top in a column of the grid"""
    rng = canvas.rng
    corners = None
    while corners is None:
        sizes = [rng.randint(smallest, largest) for _ in things]
        corners = places(rng, [(5 * size, 7 * size) if isinstance(name, int) else (2 * size + 1,) * 2 for size, (name, _) in zip(sizes, things)])
    placed = sorted(zip(corners, sizes, things), key=lambda entry: (entry[0][0] // CELL, entry[0][1]))
    for (x, y), size, (name, colour) in placed:
        canvas.fill(canvas.tone(colour), digit_spans(name, size) if isinstance(name, int) else spans(name, size), x, y)
    return [thing for _, _, thing in placed]


def describe(rng, things):
    return [ask(rng, "describe", ", ".join(f"{colour} {name}" for name, colour in things))]


def shapes_picture(canvas, kind):
    """Questions of one kind: what is in one does not answer the next."""
    rng = canvas.rng
    number = rng.randint(1, 3)
    things = draw_things(canvas, list(zip(rng.sample(SHAPES, number), rng.sample(list(COLOURS), number))), 3, 6)
    if canvas.describes:
        return describe(rng, things)
    return [ask(rng, kind, colour if kind == "colour" else shape, shape=shape, colour=colour) for shape, colour in things]


def counts_picture(canvas, _):
    """Some of one shape and some of another, where colours do not tell which."""
    rng = canvas.rng
    shapes, colours = rng.sample(SHAPES, 2), rng.sample(list(COLOURS), 2)
    numbers = rng.randint(1, MAX_COUNT), rng.randint(0, 3)
    things = [(shape, rng.choice(colours)) for shape, number in zip(shapes, numbers) for _ in range(number)]
    draw_things(canvas, things, 3, 3)
    questions = []
    for shape, number in zip(shapes, numbers):
        if number:
            questions.append(ask(rng, "count", str(number), shapes=PLURALS[shape]))
    for colour in colours:
        number = sum(c == colour for _, c in things)
        if 1 <= number <= MAX_COUNT:
            questions.append(ask(rng, "count_colour", str(number), colour=colour))
    return questions


def digits_picture(canvas, kind):
    rng = canvas.rng
    number = rng.randint(1, 3)
    things = draw_things(canvas, list(zip(rng.sample(range(10), number), rng.sample(list(COLOURS), number))), 1, 2)
    if canvas.describes:
        return describe(rng, things)
    return [ask(rng, kind, str(digit), colour=colour) for digit, colour in things]


# Descriptions teach what a thing looks like, but not to find the one that a question is about. Finding by shape takes longest to learn.
DESCRIBED = {"colour": 0.0, "shape": 0.7, "count": 0.0, "digit": 0.5}
PICTURES = {"colour": shapes_picture, "shape": shapes_picture, "count": counts_picture, "digit": digits_picture}


# ---- Records


def make(stream, kind, is_heldout):
    """@param stream names the random stream: the same text gives the same picture and questions
    @return canvas and questions; some of the training pictures are described, held-out ones have one question"""
    rng = random.Random(stream)
    canvas = Canvas(rng, not is_heldout and rng.random() < DESCRIBED[kind])
    questions = PICTURES[kind](canvas, kind)
    rng.shuffle(questions)
    return canvas, questions[:1] if is_heldout else questions


def record(image, questions):
    messages = []
    for question, answer in questions:
        parts = [{"type": "text", "text": question}]
        if not messages:
            parts.insert(0, {"type": "image", "path": image})
        messages += [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}]
    return {"messages": messages}


def make_and_write(folder, stream, kind, is_heldout):
    """@return record, digest of the pixels"""
    canvas, questions = make(stream, kind, is_heldout)
    image = f"images/{stream.replace(' ', '-')}.png"
    (folder / image).write_bytes(canvas.png())
    entry = record(image, questions) | ({"kind": kind} if is_heldout else {})
    return entry, hashlib.sha256(canvas.pixels).digest()


def make_set(pool, folder, name, seed, number):
    jobs = [(folder, f"{name} {seed} {i}", kind, name == "heldout") for i, kind in zip(range(number), itertools.cycle(KINDS))]
    return pool.starmap(make_and_write, jobs, chunksize=64)


def write_records(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def prepare(folder, number_train, number_heldout, seed):
    stamp = folder / "made-by"
    recipe = f"{hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()} {number_train} {number_heldout} {seed}"
    if stamp.exists() and stamp.read_text() == recipe:
        print(f"demo: pictures are there: {folder}")
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    with multiprocessing.Pool() as pool:
        train = make_set(pool, folder, "train", seed, number_train)
        heldout = make_set(pool, folder, "heldout", seed, number_heldout)
    seen = {digest for _, digest in train}
    heldout = [entry for entry, digest in heldout if digest not in seen]
    write_records(folder / "train.jsonl", [entry for entry, _ in train])
    write_records(folder / "heldout.jsonl", heldout)
    stamp.write_text(recipe)
    print(f"demo: pictures written: {folder}: {len(train)} to train on, {len(heldout)} held out")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / ".cache/demo-vision/pictures")
    parser.add_argument("--train", type=int, default=20000, help="training pictures")
    parser.add_argument("--heldout", type=int, default=480, help="held-out pictures, with one question each")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    prepare(arguments.output, arguments.train, arguments.heldout, arguments.seed)


if __name__ == "__main__":
    main()
