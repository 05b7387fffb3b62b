#!/usr/bin/env python3
"""Prints mpt__unicode_classes of src/data/text.c: which characters are letters (1), numbers (2), white
space (3) or none of these (0), as one number 4 * length of the run before + class per run, in base 32
with the low digit first; digit d is written as the character 35 + d, or 35 + 32 + d if more follow.
Characters that Unicode has not assigned go with those before them."""
import sys
import unicodedata

SPACES = {0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029,
          0x202F, 0x205F, 0x3000}  # White_Space


def kind(code):
    category = unicodedata.category(chr(code))
    if code in SPACES:
        return 3
    if category in ("Cn", "Cs", "Co"):
        return None
    return {"L": 1, "N": 2}.get(category[0], 0)


def main():
    text, current, start = "", 0, 0
    for code in range(0x110000):
        found = kind(code)
        if found is None or found == current:
            continue
        value = 4 * (code - start) + found
        while value >= 32:
            text += chr(35 + 32 + value % 32)
            value //= 32
        text += chr(35 + value)
        current, start = found, code
    escaped = [{"\\": "\\\\", "?": "\\?"}.get(c, c) for c in text]
    line = "    \""
    for c in escaped:
        if len(line) + len(c) > 98:
            print(line + "\"")
            line = "    \""
        line += c
    print(line + "\";")
    print(f"{len(text)} characters, Unicode {unicodedata.unidata_version}", file=sys.stderr)


if __name__ == "__main__":
    main()
