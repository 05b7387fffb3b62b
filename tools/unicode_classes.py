#!/usr/bin/env python3
"""Prints mpt__unicode_classes of src/data/text.c, and the hash of all classes that tests/test_idx.c
knows: which characters of Unicode 17 are letters (1, \\p{L}), numbers (2, \\p{N}), white space (3) or
none of these (0: marks, controls, private use, what is not assigned), as one number
4 * length of the run before + class per run, in base 46 with the low digit first; digit d is written as
the character 35 + d, or 35 + 46 + d if more follow. Needs the package unicodedata2 of version 17, or a
Python whose own unicodedata is of that."""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

BASE = 46
SPACES = {0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000}  # White_Space


def kind(code):
    return 3 if code in SPACES else {"L": 1, "N": 2}.get(unicodedata.category(chr(code))[0], 0)


def main():
    if not unicodedata.unidata_version.startswith("17."):
        sys.exit(f"Unicode 17 is needed; this Python knows {unicodedata.unidata_version}")
    text, current, start, runs, known = "", 0, 0, 1, 14695981039346656037
    for code in range(0x110000):
        found = kind(code)
        known = (known ^ found) * 1099511628211 % 2**64
        if found == current:
            continue
        value = 4 * (code - start) + found
        while value >= BASE:
            text += chr(35 + BASE + value % BASE)
            value //= BASE
        text += chr(35 + value)
        current, start, runs = found, code, runs + 1
    escaped = [{"\\": "\\\\", "?": "\\?"}.get(c, c) for c in text]
    line = "    \""
    for c in escaped:
        if len(line) + len(c) > 98:
            print(line + "\"")
            line = "    \""
        line += c
    print(line + "\";")
    print(f"{len(text)} characters, {runs} runs, FNV-1a of all classes {known:#x}", file=sys.stderr)


if __name__ == "__main__":
    main()
