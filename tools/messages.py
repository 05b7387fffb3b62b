"""messages.py: every message of the library, to be read in one go: room, line, kind, text.

    messages.py [WORD]      those whose room or text has the word

A message is what a call of mpt__error, mpt__reject, mpt__log and their kin is given as literals;
where there is a choice of several, each is shown. Needs Python alone."""
import pathlib
import re
import sys

CALL = re.compile(r'\bmpt__(error|error_of|reject|refuse|fail|misused|log|write_reject|npy_fault|'
                  r'json_refuse|set_create_error|archive_unequal|note|tell)\s*\(')
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def arguments(text, start):
    """What stands between the parenthesis at `start` and the one that closes it."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == '(') - (text[i] == ')')
        if depth == 0:
            return text[start + 1:i]
    return text[start + 1:]


def messages(path):
    text = path.read_text()
    hidden = re.sub(STRING, lambda m: '"' + '_' * (len(m.group(0)) - 2) + '"', text)
    hidden = re.sub(r'/\*.*?\*/', lambda m: re.sub(r'[^\n]', ' ', m.group(0)), hidden, flags=re.S)
    for call in CALL.finditer(hidden):
        inside = text[call.end():call.end() + len(arguments(hidden, call.end() - 1))]
        pieces = re.sub(r'"\s*\n?\s*"', '', inside)
        words = [m.group(1) for m in STRING.finditer(pieces)]
        kind = re.match(r'[^,]*,\s*([A-Z_]+)', inside)
        line = text.count('\n', 0, call.start()) + 1
        long = [w for w in words if len(w) > 3]
        if long:
            yield line, kind.group(1) if kind else call.group(1), ' | '.join(long)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / 'src'
    word = sys.argv[1] if len(sys.argv) > 1 else ''
    for path in sorted(root.rglob('*.[ch]')):
        room = str(path.relative_to(root))
        for line, kind, text in messages(path):
            if word in room or word in text:
                print(f'{room}:{line} {kind}: {text}')


if __name__ == '__main__':
    main()
