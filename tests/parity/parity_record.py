"""What tokenizers_parity.py found, as a table in docs/tokenizers.md: a run with --write leaves a record of the strings it compared."""
import dataclasses
import datetime
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/tokenizers.md"
BEGIN, END = "<!-- parity: begin, written by tests/parity/tokenizers_parity.py --write -->", "<!-- parity: end -->"
RECORDED_COUNT = 100_000  # a smaller run is no record

ALONE = {"normalizer": "Normalizers, each on its own", "pre_tokenizer": "Pre-tokenizers, each on its own",
         "post_processor": "Post-processors, each on its own", "decoder": "Decoders, each on its own (lists of ids)",
         "directory": "Directories with tokens beside the tokenizer.json, against AutoTokenizer",
         "GGUF pre": "Pre-tokenizers of GGUF files, against their families' own"}


@dataclasses.dataclass
class Found:
    name: str
    strings: int = 0
    spans: int = 0  # that the library has, too
    own: int = 0  # strings compared with the family's own library
    equal: bool = True


def by_row(found):
    """Kinds that are many, "normalizer: NFC" and so on, share a row."""
    rows = {}
    for one in found:
        kind, _, rest = one.name.partition(": ")
        rows.setdefault(ALONE[kind] if rest and kind in ALONE else one.name, []).append(one)
    return rows


def table(found, versions):
    total = sum(one.strings for one in found)
    lines = [f"{datetime.date.today()}, with {versions}: {total:,} strings of {len(found)} kinds.", "",
             "| kind | strings | spans compared | by its own library | result |", "|---|---|---|---|---|"]
    for name, ones in by_row(found).items():
        differing = sum(not one.equal for one in ones)
        result = "equal" if not differing else "differs" if len(ones) == 1 else f"{differing} of {len(ones)} differ"
        number = lambda key: f"{sum(getattr(one, key) for one in ones):,}"  # noqa: E731
        many = f" ({len(ones)})" if len(ones) > 1 else ""
        lines.append(f"| {name}{many} | {number('strings')} | {number('spans')} | {number('own')} | {result} |")
    return lines


def write(found, versions):
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text("\n".join([before + BEGIN, *table(found, versions), END + after]), encoding="utf-8")
