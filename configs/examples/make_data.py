#!/usr/bin/env python3
"""Writes the data of configs/examples: small made-up sets, one for each example, always the same bytes. Standard library only.

    configs/examples/make_data.py             # writes configs/examples/*/data/
    configs/examples/make_data.py --check     # exit code 1: a file differs from what this script writes
"""

import argparse
import csv
import io
import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
HELD_OUT = 7  # every so many records one is held out; it has no divisor in common with the kinds of questions, which alternate


def lines(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def said(*turns, system=None):
    """A conversation, of the user's and the assistant's turns in order."""
    roles = ("user", "assistant") * len(turns)
    start = [{"role": "system", "content": system}] if system else []
    return start + [{"role": role, "content": text} for role, text in zip(roles, turns)]


def spread(*choices):
    """All combinations, in an order that mixes them: neighbours differ in every choice."""
    number = 1
    for choice in choices:
        number *= len(choice)
    step = next(step for step in range(number * 5 // 8, 2 * number) if all(step % divisor or number % divisor for divisor in range(2, number + 1)))
    for i in range(number):
        rest, combination = i * step % number, []
        for choice in choices:
            rest, place = divmod(rest, len(choice))
            combination.append(choice[place])
        yield tuple(combination)


def divided(records, name, held_out=HELD_OUT, ending="jsonl", write=lines):
    """{file: text} of a training and a validation part."""
    return {f"{name}.{ending}": write([record for i, record in enumerate(records) if i % held_out != held_out - 1]),
            f"{name}-val.{ending}": write(records[held_out - 1::held_out])}


# ---- chat: conversations of two questions at the desk of a library

DESK = "You answer questions at the desk of a town library, politely and in one or two sentences."
BRANCHES = (("Harbour", "10:00", "18:00", "09:00", "14:00"), ("Mill Street", "09:00", "19:00", "10:00", "16:00"), ("Old Town", "11:00", "20:00", "10:00", "15:00"),
            ("Station", "08:00", "18:00", "09:00", "13:00"), ("Hillside", "12:00", "18:00", "10:00", "14:00"), ("Park", "10:00", "17:00", "11:00", "15:00"))
ITEMS = (("a novel", "four weeks", "twice"), ("a film", "one week", "once"), ("a magazine", "two weeks", "once"), ("a board game", "three weeks", "once"),
         ("a travel guide", "four weeks", "three times"), ("an audio book", "two weeks", "twice"), ("a map", "one week", "twice"), ("a comic", "three weeks", "twice"))


def chat():
    records = []
    for i, ((branch, opens, closes, opens_late, closes_early), (item, period, times)) in enumerate(spread(BRANCHES, ITEMS)):
        hours = ((f"When is the {branch} branch open on weekdays?", f"The {branch} branch is open from {opens} to {closes} on weekdays."),
                 (f"Is the {branch} branch open on Saturdays?", f"Yes, the {branch} branch is open from {opens_late} to {closes_early} on Saturdays."))[i % 2]
        loan = ((f"How long may I keep {item}?", f"You may keep {item} for {period}."),
                (f"Can I renew {item}?", f"Yes, you may renew {item} {times}."),
                (f"What are the rules for {item}?", f"You may keep {item} for {period}, and renew it {times}."))[i % 3]
        records.append({"messages": said(*hours, *loan, system=DESK) if i % 4 < 2 else said(*loan, *hours, system=DESK)})
    return divided(records, "desk")


# ---- completion: a line of a recipe becomes a record

UNITS = (("cup", "cups"), ("spoon", "spoons"), ("gram", "grams"), ("pinch", "pinches"))
INGREDIENTS = ("flour", "sugar", "salt", "milk", "cocoa", "rice", "yeast", "honey")
COUNTS = ((1, "one"), (2, "two"), (3, "three"), (5, "five"))


def completion():
    records = []
    for i, ((one, several), ingredient, (number, word)) in enumerate(spread(UNITS, INGREDIENTS, COUNTS)):
        unit = one if number == 1 else several
        line = (f"{number} {unit} of {ingredient}", f"{word} {unit} {ingredient}", f"{ingredient}, {number} {unit}")[i % 3]
        records.append({"prompt": f"Ingredient: {line}\nRecord:", "completion": f" {number} | {one} | {ingredient}"})
    return divided(records, "ingredients")


# ---- domain-adaptation: plain text, a paragraph in a line

BAKING = """Bread needs four things: flour, water, salt and something that makes it rise, which is yeast or a sourdough starter.
Wheat flour contains two proteins that form gluten when they meet water. Gluten is a net that holds the gas of the yeast, so the loaf rises.
Kneading makes the net stronger. A dough that is kneaded enough can be stretched until light shines through it before it tears.
Bakers write recipes in percent of the flour. With 1000 grams of flour, 65 percent water is 650 grams and 2 percent salt is 20 grams.
Salt makes the gluten firmer and slows the yeast. Without it bread rises fast, browns little and tastes flat.
Yeast eats sugar and gives off carbon dioxide and alcohol. The gas lifts the dough, and the alcohol leaves the loaf in the oven.
Warm dough rises faster than cold dough. At 27 degrees a dough may double in an hour, in a refrigerator it takes a night.
A slow, cold rise gives bread more taste, because there is time for acids and other products of the yeast to form.
A sourdough starter is flour and water in which wild yeast and bacteria live. It is fed with fresh flour and water to keep it alive.
The bacteria of a sourdough make lactic and acetic acid. A warm, soft starter tastes mild like yoghurt, a cold, stiff one tastes sharp like vinegar.
A starter is ready when a spoonful of it floats in water, because it holds enough gas.
Rye flour forms almost no gluten. Rye bread is held together by starch and by long sugars that bind water, so its dough is sticky and is not kneaded much.
Whole-grain flour has sharp pieces of bran that cut the gluten. Such bread rises less and needs more water than white bread.
After the first rise the dough is shaped. Shaping stretches its surface, so that the loaf grows upwards and not sideways.
The second rise is over when a finger leaves a dent that comes back slowly. A dent that jumps back means that the dough needs more time.
A dough that has risen too long has a weak net. In the oven it falls and the loaf stays flat.
A cut on top of the loaf decides where it opens in the oven. Without one it tears where its skin is weakest.
Steam in the first minutes keeps the skin of the loaf soft, so that it can grow. Later the oven should be dry, so that the crust becomes crisp.
In the oven the gas expands, the yeast works faster until it dies at about 60 degrees, and the loaf grows by a third in ten minutes.
Above 140 degrees sugars and proteins on the surface react and turn brown. This gives the crust its colour and its smell.
A loaf is done when it sounds hollow if knocked on its bottom, or when its middle has 95 degrees.
Bread should cool on a rack for an hour. Its crumb still sets in this time, and a loaf that is cut hot is sticky inside.
Bread becomes stale because its starch forms crystals, not only because it dries. Warming it for a few minutes melts them again.
Bread becomes stale fastest in a refrigerator. It keeps for two days in a bag of cloth, and for months in a freezer.
Milk and butter make the crumb soft and the crust thin. Fat covers the flour, so that less gluten forms.
A biga and a poolish are doughs that are made a day before with a little yeast. They give bread of plain yeast some of the taste of sourdough.
Hard water makes dough firmer, and very soft water makes it sticky. Most tap water is good for bread.
Old flour loses strength, but flour that was milled yesterday is weak, too. It becomes stronger in its first weeks, because air changes its proteins."""


def domain_adaptation():
    return divided(BAKING.splitlines(), "baking", ending="txt", write=lambda part: "".join(line + "\n" for line in part))


# ---- tool-calls: OpenAI's records, with two tools of a library

def tool(name, description, **parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {key: {"type": "string", "description": text} for key, text in parameters.items()}, "required": list(parameters)}}}


TOOLS = [tool("find_book", "Looks a book up in the catalogue.", title="Its title"),
         tool("renew_loan", "Renews a loan of a reader.", card="Number of the reader's card", title="Title of the book")]
BOOKS = (("Emma", "B4", 2), ("Dracula", "S1", 0), ("Middlemarch", "E2", 1), ("Walden", "T7", 3), ("Persuasion", "B4", 1), ("Kim", "K3", 2), ("Villette", "B9", 0), ("Utopia", "M2", 4))
CARDS = ("40127", "40388", "41950", "42231", "43006")


def called(name, arguments, result, answer):
    return [{"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)}, {"role": "assistant", "content": answer}]


def tool_calls():
    records = []
    for i, ((title, shelf, copies), card) in enumerate(spread(BOOKS, CARDS)):
        if i % 2:
            turns = said((f"Please renew {title} for card {card}.", f"My card is {card}. Can I keep {title} longer?")[i % 4 // 2])
            turns += called("renew_loan", {"card": card, "title": title}, {"due": f"2026-0{1 + i % 9}-{10 + i % 18}"},
                            f"Done: {title} is now due on 2026-0{1 + i % 9}-{10 + i % 18}.")
        elif i % 8 == 6:  # no tool is needed
            turns = said(("Thank you for your help!", "That was all, thanks.")[i // 8 % 2], "You are welcome. Enjoy your book!")
        else:
            turns = said((f"Do you have {title}?", f"Where can I find {title}?")[i % 4 // 2])
            turns += called("find_book", {"title": title}, {"shelf": shelf, "copies": copies},
                            f"Yes, {title} is on shelf {shelf}." if copies else f"{title} is lent out at the moment; its place is shelf {shelf}.")
        records.append({"messages": turns, "tools": TOOLS})
    questions = [{"messages": record["messages"][:1], "tools": TOOLS} for record in records[HELD_OUT - 1::HELD_OUT]]
    return divided(records, "catalogue") | {"questions.jsonl": lines(questions)}


# ---- reasoning: sums with the way to the result

def reasoning():
    records, questions = [], []
    for i, (boxes, each, away) in enumerate(spread((3, 4, 5, 6, 7), (11, 12, 14, 15), (2, 5, 8))):
        things = ("apples", "books", "bottles", "tiles")[i % 4]
        full, left = boxes * each, boxes * each - away
        question = (f"There are {boxes} boxes with {each} {things} each. {away} {things} are taken away. How many are left?",
                    f"A shop gets {boxes} crates of {each} {things} and sells {away} {things}. How many {things} does it still have?")[i % 2]
        records.append({"messages": [{"role": "user", "content": question},
                                     {"role": "assistant", "content": f"{left} {things}.",
                                      "reasoning_content": f"{boxes} times {each} is {full}. {full} minus {away} is {left}."}]})
        questions.append({"messages": said(question), "answer": left})
    return divided(records, "sums") | {"questions.jsonl": lines(questions[HELD_OUT - 1::HELD_OUT])}


# ---- preferences: the short answer is better than the one that talks around it

def preferences():
    records = []
    for i, ((item, period, times), (branch, opens, closes, *_)) in enumerate(spread(ITEMS, BRANCHES)):
        question, short = ((f"How long may I keep {item}?", f"For {period}."), (f"When does the {branch} branch close on weekdays?", f"At {closes}."),
                           (f"How often can I renew {item}?", f"{times.capitalize()}."), (f"When does the {branch} branch open on weekdays?", f"At {opens}."))[i % 4]
        around = ("That is a very good question. Many readers ask it, and the answer depends on several things.", "Our library has many rules, and all of them have a reason.",
                  "I would love to help you with that! Let me first tell you about our library.")[i % 3]
        records.append({"prompt": said(question), "chosen": [{"role": "assistant", "content": short}],
                        "rejected": [{"role": "assistant", "content": f"{around} {'In the end you should ask at the desk.' if i % 2 else short}"}]})
    return divided(records, "answers")


# ---- long-documents: a question about one point of long minutes

PEOPLE = ("Ada", "Bela", "Chen", "Dora", "Emil", "Fay", "Goran", "Hana")
TASKS = ("paint the fence", "order new chairs", "write to the mayor", "count the tools", "repair the gate", "plan the summer party", "clean the cellar",
         "ask for a second offer", "check the insurance", "plant the hedge", "collect the fees", "print the leaflets", "test the pump", "book the hall")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
POINTS = 36


def long_documents():
    records = []
    for i in range(18):
        points = [(PEOPLE[(3 * n + i) % 8], TASKS[(5 * n + 3 * i) % 14], DAYS[(n * (i + 2) + i) % 7]) for n in range(POINTS)]
        asked = 2 + (7 * i) % (POINTS - 4)  # anywhere but at the ends
        person, task, day = points[asked]
        minutes = "\n".join(f"Point {n + 1}. {who} will {what} by {when}. Nobody was against it." for n, (who, what, when) in enumerate(points))
        question, answer = ((f"Who takes care of point {asked + 1}, and by when?", f"{person}, by {day}."),
                            (f"What was decided in point {asked + 1}?", f"{person} will {task} by {day}."))[i % 2]
        records.append({"messages": said(f"Minutes of meeting {i + 1} of the garden club.\n{minutes}\n\n{question}", answer)})
    return divided(records, "minutes")


# ---- several-gpus: the time in some minutes

def several_gpus():
    records = []
    for i, (hour, minute, later) in enumerate(spread((6, 9, 11, 14, 17, 20), (5, 15, 30, 40, 55), (10, 25, 45, 70))):
        end = hour * 60 + minute + later
        now, then = f"{hour:02}:{minute:02}", f"{end // 60:02}:{end % 60:02}"
        records.append({"messages": said((f"It is {now}. What time is it in {later} minutes?", f"A film of {later} minutes begins at {now}. When does it end?")[i % 2],
                                         f"{then}.")})
    return divided(records, "times", held_out=11)


# ---- qlora-24gb: conversions of units, as a table of Alpaca's columns

CONVERSIONS = (("centimetres", "metres", 100), ("metres", "kilometres", 1000), ("grams", "kilograms", 1000), ("minutes", "hours", 60), ("millilitres", "litres", 1000),
               ("months", "years", 12))


def table(rows):
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("instruction", "input", "output"))
    writer.writerows(rows)
    return text.getvalue()


def qlora_24gb():
    rows = []
    for i, ((small, large, factor), number) in enumerate(spread(CONVERSIONS, (2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 20, 25))):
        if i % 2:
            rows.append((f"Convert to {large}.", f"{number * factor} {small}", f"{number} {large}"))
        else:
            rows.append((f"Convert to {small}.", f"{number} {large}", f"{number * factor} {small}"))
    return divided(rows, "conversions", ending="csv", write=table)


# ---- gguf: opposites, as conversations of ShareGPT

OPPOSITES = ("hot cold", "big small", "early late", "open closed", "full empty", "hard soft", "fast slow", "light dark", "wet dry", "old new", "rich poor", "high low",
             "strong weak", "wide narrow", "thick thin", "loud quiet", "clean dirty", "near far", "deep shallow", "rough smooth", "sharp blunt", "true false")


def gguf():
    records = []
    for i, pair in enumerate(OPPOSITES):
        for way, (one, other) in enumerate((pair.split(), pair.split()[::-1])):
            question = (f"What is the opposite of {one}?", f"Opposite of {one}?", f"Name the opposite of {one}.")[(i + way) % 3]
            records.append({"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": f"The opposite of {one} is {other}."}]})
    return divided(records, "opposites", held_out=11)


# ---- evaluation: messages to a help desk become JSON

TROUBLES = (("printer", "The printer on floor {} prints empty pages"), ("network", "There is no network on floor {}"), ("heating", "It is cold on floor {}"),
            ("light", "A lamp flickers on floor {}"), ("lift", "The lift does not stop at floor {}"))
URGENCY = (("", False), (", please come at once", True), (". It can wait until next week", False), (". Nobody can work here", True))


def evaluation():
    records = []
    for (topic, text), floor, (end, is_urgent) in spread(TROUBLES, (1, 2, 3, 4, 5), URGENCY):
        records.append({"messages": said(f"{text.format(floor)}{end}.", json.dumps({"topic": topic, "floor": floor, "urgent": is_urgent}),
                                         system="File the message as JSON with topic, floor and urgent.")})
    return divided(records, "tickets")


# ---- serving: spoken commands become actions

def serving():
    records = []
    for i, (device, room, state) in enumerate(spread(("lamp", "heater", "fan", "radio"), ("kitchen", "bedroom", "hall", "office", "garage"), ("on", "off"))):
        command = (f"Turn {state} the {device} in the {room}.", f"Switch the {device} in the {room} {state}, please.", f"{room.capitalize()}: {device} {state}!")[i % 3]
        records.append({"messages": said(command, json.dumps({"device": device, "room": room, "state": state}))})
    return divided(records, "commands")


# ---- from Python: a unit in a smaller one

LARGE_UNITS = (("kilograms", "grams", 1000), ("kilometres", "metres", 1000), ("metres", "centimetres", 100), ("hours", "minutes", 60), ("days", "hours", 24), ("weeks", "days", 7))


def from_python():
    records = []
    for i, ((large, small, number), many) in enumerate(spread(LARGE_UNITS, (2, 3, 4, 5, 6, 7, 8, 9))):
        question = (f"How many {small} are {many} {large}?", f"{many} {large} in {small}?")[i % 2]
        records.append({"messages": said(question, f"{many} {large} are {many * number} {small}.")})
    return divided(records, "units")


EXAMPLES = {"chat": chat, "completion": completion, "domain-adaptation": domain_adaptation, "tool-calls": tool_calls, "reasoning": reasoning,
            "preferences": preferences, "long-documents": long_documents, "several-gpus": several_gpus, "qlora-24gb": qlora_24gb, "gguf": gguf,
            "evaluation": evaluation, "serving": serving, "from-python": from_python}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    options = parser.parse_args()
    different = []
    for example, make in EXAMPLES.items():
        for name, text in make().items():
            path = FOLDER / example / "data" / name
            if not options.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif not path.is_file() or path.read_text() != text:
                different.append(path)
    for path in different:
        print(f"{path} is not what configs/examples/make_data.py writes", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
