#!/usr/bin/env python3
"""Writes the toy set, data/toy: 200 short questions about chemical elements with their answers, in every form that people have data in.

    scripts/smoke/data.py             # writes the files; train.parquet only where Python has pyarrow (.venv-ref/bin/python has)
    scripts/smoke/data.py --check     # exit code 1: a file differs from what this script writes

The facts below are written by hand: atomic number, name, symbol, group and period of the periodic table, state at 25 °C, and a sentence about the element.
The same facts give the same bytes on every machine. Standard library only, but for Parquet.
"""

import argparse
import csv
import io
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOY = ROOT / "data/toy"
HELD_OUT = 10  # one row of every ten is kept for validation
DISTANCE = 21  # in the list, to the element whose values a wrong answer has: at this one no sentence is true of both
ELEMENTS = (
    (1, "hydrogen", "H", 1, 1, "gas", "It is the lightest element, and stars burn it to helium."),
    (2, "helium", "He", 18, 1, "gas", "It fills balloons, because it is lighter than air and does not burn."),
    (3, "lithium", "Li", 1, 2, "solid", "It stores charge in the batteries of phones and cars."),
    (4, "beryllium", "Be", 2, 2, "solid", "It is light and stiff, and lets X-rays through."),
    (5, "boron", "B", 13, 2, "solid", "It makes glass withstand sudden heat."),
    (6, "carbon", "C", 14, 2, "solid", "Diamond and graphite are made of it."),
    (7, "nitrogen", "N", 15, 2, "gas", "It is about 78 percent of the air."),
    (8, "oxygen", "O", 16, 2, "gas", "Animals breathe it, and fires need it."),
    (9, "fluorine", "F", 17, 2, "gas", "Its salts in toothpaste protect teeth."),
    (10, "neon", "Ne", 18, 2, "gas", "It glows red in the tubes of signs."),
    (11, "sodium", "Na", 1, 3, "solid", "With chlorine it forms table salt."),
    (12, "magnesium", "Mg", 2, 3, "solid", "It burns with a bright white light."),
    (13, "aluminium", "Al", 13, 3, "solid", "Cans, foil and aircraft are made of it."),
    (14, "silicon", "Si", 14, 3, "solid", "Computer chips are made of it."),
    (15, "phosphorus", "P", 15, 3, "solid", "Plants need it, so it is a part of fertilisers."),
    (16, "sulfur", "S", 16, 3, "solid", "It is yellow and is found near volcanoes."),
    (17, "chlorine", "Cl", 17, 3, "gas", "It kills germs in drinking water."),
    (18, "argon", "Ar", 18, 3, "gas", "It shields hot metal from the air in welding."),
    (19, "potassium", "K", 1, 4, "solid", "Nerves need it, and bananas contain it."),
    (20, "calcium", "Ca", 2, 4, "solid", "Bones and teeth contain it."),
    (21, "scandium", "Sc", 3, 4, "solid", "A little of it makes aluminium alloys stronger."),
    (22, "titanium", "Ti", 4, 4, "solid", "It is strong and light, and the body accepts it as an implant."),
    (23, "vanadium", "V", 5, 4, "solid", "It makes the steel of tools harder."),
    (24, "chromium", "Cr", 6, 4, "solid", "It makes steel stainless."),
    (25, "manganese", "Mn", 7, 4, "solid", "Nearly all steel contains some of it."),
    (26, "iron", "Fe", 8, 4, "solid", "Steel is made of it, and blood needs it to carry oxygen."),
    (27, "cobalt", "Co", 9, 4, "solid", "It colours glass blue."),
    (28, "nickel", "Ni", 10, 4, "solid", "Coins and stainless steel contain it."),
    (29, "copper", "Cu", 11, 4, "solid", "Most electric wires are made of it."),
    (30, "zinc", "Zn", 12, 4, "solid", "A layer of it keeps steel from rusting."),
    (31, "gallium", "Ga", 13, 4, "solid", "It melts in a warm hand."),
    (32, "germanium", "Ge", 14, 4, "solid", "Early transistors were made of it."),
    (33, "arsenic", "As", 15, 4, "solid", "Many of its compounds are poisonous."),
    (34, "selenium", "Se", 16, 4, "solid", "It conducts electricity better in light."),
    (35, "bromine", "Br", 17, 4, "liquid", "It is a red-brown liquid with a strong smell."),
    (36, "krypton", "Kr", 18, 4, "gas", "It is used in some bright lamps."),
    (47, "silver", "Ag", 11, 5, "solid", "It conducts electricity better than any other metal."),
    (50, "tin", "Sn", 14, 5, "solid", "With copper it forms bronze."),
    (79, "gold", "Au", 11, 6, "solid", "It does not rust, and jewellery is made of it."),
    (80, "mercury", "Hg", 12, 6, "liquid", "It is the only metal that is liquid at room temperature."),
)
# Of each kind of question: ways to ask it and the answer. The way follows from the element's place in the list.
KINDS = (
    (("What is the chemical symbol of {name}?", "Give me the symbol of {name}.", "How is {name} written in formulas?", "Symbol for {name}?"),
     "The symbol of {name} is {symbol}."),
    (("Which element has the atomic number {number}?", "What is element {number}?", "Name the element with {number} protons.", "Atomic number {number}?"),
     "Element {number} is {name}."),
    (("Where is {name} in the periodic table?", "In which group and period is {name}?", "Find {name} in the periodic table.", "Group and period of {name}?"),
     "{Name} is in group {group}, period {period}."),
    (("Is {name} a solid, a liquid or a gas at 25 degrees?", "What is the state of {name} at room temperature?", "Solid, liquid or gas: {name}?", "State of {name}?"),
     "{Name} is a {state} at room temperature."),
    (("Tell me something about {name}.", "What should I know about {name}?", "Say one thing about {name}.", "One fact about {name}, please."),
     "{fact}"),
)


def filled(text, element):
    number, name, symbol, group, period, state, fact = element
    return text.format(number=number, name=name, Name=name.capitalize(), symbol=symbol, group=group, period=period, state=state, fact=fact)


def wrong(place, kind):
    """An element for which the answer to the question about that at `place` would be another one."""
    element = ELEMENTS[place]
    for other in ELEMENTS[place + DISTANCE:] + ELEMENTS[:place + DISTANCE]:
        if kind == 1:  # the right number with another name
            other = (element[0], *other[1:])
        elif kind != 4:  # the right name with another element's values
            other = (other[0], element[1], *other[2:])
        if filled(KINDS[kind][1], other) != filled(KINDS[kind][1], element):
            return other
    raise AssertionError(f"all elements have the same answer: {KINDS[kind]}")


def rows():
    """(question, answer, a wrong answer of the same form), in an order that mixes elements and kinds."""
    number = len(ELEMENTS) * len(KINDS)
    for i in range(number):
        place, kind = divmod(i * 73 % number, len(KINDS))  # 73 and 200 have no common divisor: each pair once
        ways, answer = KINDS[kind]
        yield filled(ways[(place + kind) % len(ways)], ELEMENTS[place]), filled(answer, ELEMENTS[place]), filled(answer, wrong(place, kind))


def messages(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def alpaca(part):
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("instruction", "output"))
    table.writerows((question, answer) for question, answer, _ in part)
    return text.getvalue().encode()


def parquet(part):
    """@return None where Python has no pyarrow"""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"messages": [messages(question, answer) for question, answer, _ in part]}), file)
    return file.getvalue()


def preference(part):
    return lines({"prompt": messages(question, "")[:1], "chosen": [{"role": "assistant", "content": answer}],
                  "rejected": [{"role": "assistant", "content": worse}]} for question, answer, worse in part)


def files():
    """Content of each file of data/toy by name; of a file that cannot be written here, None."""
    all_rows = list(rows())
    # Another place in each ten: kinds of questions repeat after five rows, so that one place would always have the same. Steps of 7 mix the elements, too.
    held_out = [all_rows[HELD_OUT * ten + 7 * ten % HELD_OUT] for ten in range(len(all_rows) // HELD_OUT)]
    train = [row for row in all_rows if row not in held_out]
    return {"train.jsonl": lines({"messages": messages(question, answer)} for question, answer, _ in train),
            "val.jsonl": lines({"messages": messages(question, answer)} for question, answer, _ in held_out),
            "sharegpt.jsonl": lines({"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]} for question, answer, _ in train),
            "alpaca.csv": alpaca(train), "train.parquet": parquet(train),
            "preference.jsonl": preference(train), "preference-val.jsonl": preference(held_out)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--output", type=pathlib.Path, default=TOY)
    options = parser.parse_args()
    different = []
    for name, content in files().items():
        path = options.output / name
        if content is None:
            print(f"{name}: left as it is; this Python has no pyarrow", file=sys.stderr)
        elif not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif name != "train.parquet" and (not path.is_file() or path.read_bytes() != content):  # other versions of pyarrow write other bytes
            different.append(name)
    for name in different:
        print(f"{options.output / name} is not what scripts/smoke/data.py writes", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
