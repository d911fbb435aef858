#!/usr/bin/env python3
"""Writes src/templates/jinja/unicode_tables.inc: what Python's str methods know of Unicode, as ranges.

    python scripts/generate/unicode_tables.py > src/templates/jinja/unicode_tables.inc
"""

import sys
import unicodedata

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges_of(predicate):
    ranges = []
    for code in CODE_POINTS:
        if not predicate(chr(code)):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def print_ranges(name, predicate):
    ranges = ranges_of(predicate)
    print(f"constexpr Range {name}[] = {{")
    line = "   "
    for first, last in ranges:
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def print_mapping(name, convert):
    """Runs of equal distance, every code point (stride 1) or every other one (stride 2)."""
    single, multiple = [], []
    for code in CODE_POINTS:
        mapped = convert(chr(code))
        if mapped == chr(code):
            continue
        if len(mapped) > 1:
            multiple.append((code, mapped))
            continue
        delta = ord(mapped) - code
        if single and single[-1][3] == delta:
            first, last, stride, _ = single[-1]
            step = code - last
            if step in (1, 2) and (first == last or step == stride):
                single[-1] = (first, code, step, delta)
                continue
        single.append((code, code, 1, delta))
    print(f"constexpr Mapping {name}[] = {{")
    line = "   "
    for first, last, stride, delta in single:
        item = f" {{0x{first:X}, 0x{last:X}, {stride}, {delta}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")
    print(f"constexpr Expansion {name}Expansions[] = {{")
    for code, mapped in multiple:
        points = ", ".join(f"0x{ord(c):X}" for c in mapped)
        print(f"    {{0x{code:X}, {{{points}}}}},")
    if not multiple:
        print("    {0, {0}},")
    print("};")


print(f"// Unicode {unicodedata.unidata_version}, written by scripts/generate/unicode_tables.py; do not edit.")
print_ranges("kPrintable", str.isprintable)
print_ranges("kAlpha", str.isalpha)
print_ranges("kDecimal", str.isdecimal)
print_ranges("kDigit", str.isdigit)
print_ranges("kNumeric", str.isnumeric)
print_ranges("kLower", str.islower)
print_ranges("kUpper", str.isupper)
print_ranges("kTitle", lambda c: c.istitle() and not c.isupper())
print_mapping("kToLower", str.lower)
print_mapping("kToUpper", str.upper)
print_mapping("kToTitle", str.title)
sys.stdout.flush()
