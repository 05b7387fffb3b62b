#!/usr/bin/env python3
"""Writes tests/inflate_vectors.h: gzip streams made by zlib, for tests/test_inflate.c.

    python3 tools/inflate_vectors.py > tests/inflate_vectors.h

The plain data is not stored: the test makes it from the same three rules as plain() below.
"""
import sys
import zlib


def plain(kind, size):
    """t: words; z: mostly zeros; r: bytes that do not compress."""
    state, out = 1, bytearray()
    words = b"mixed precision trains small nets fast "
    while len(out) < size:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        value = state >> 16
        if kind == "t":
            start = value % 30
            out += words[start:start + 4 + value // 30 % 6]
        elif kind == "z":
            out += bytes([value & 255]) if value % 50 == 0 else b"\0\0\0"
        else:
            out.append(value & 255)
    return bytes(out[:size])


def gzip(data, level, strategy=zlib.Z_DEFAULT_STRATEGY, memory=9, flags=0, flush=0):
    header = bytes([0x1F, 0x8B, 8, flags, 0, 0, 0, 0, 0, 3])
    if flags & 4:
        header += b"\5\0extra"
    if flags & 8:
        header += b"name\0"
    if flags & 16:
        header += b"a comment\0"
    if flags & 2:
        header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    deflate = zlib.compressobj(level, zlib.DEFLATED, -15, memory, strategy)
    body = b""
    for start in range(0, len(data), flush or len(data) or 1):
        body += deflate.compress(data[start:start + (flush or len(data))])
        if flush:
            body += deflate.flush(zlib.Z_FULL_FLUSH)
    body += deflate.flush()
    tail = zlib.crc32(data).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    return header + body + tail


def main():
    t300, z3000, r200 = plain("t", 300), plain("z", 3000), plain("r", 200)
    vectors = [("empty", "t", 0, gzip(b"", 6)), ("empty stored", "t", 0, gzip(b"", 0)),
               ("one byte", "t", 1, gzip(plain("t", 1), 9))]
    for level in range(10):
        vectors.append(("text, level %d" % level, "t", 300, gzip(t300, level)))
    vectors += [
        ("zeros, level 1", "z", 3000, gzip(z3000, 1)),
        ("zeros, level 9", "z", 3000, gzip(z3000, 9)),
        ("noise", "r", 200, gzip(r200, 9)),
        ("filtered", "t", 300, gzip(t300, 9, zlib.Z_FILTERED)),
        ("Huffman only", "t", 300, gzip(t300, 9, zlib.Z_HUFFMAN_ONLY)),
        ("run lengths", "z", 3000, gzip(z3000, 9, zlib.Z_RLE)),
        ("fixed codes", "t", 300, gzip(t300, 9, zlib.Z_FIXED)),
        ("blocks and flushes", "t", 300, gzip(t300, 9, flush=70)),
        ("stored and flushes", "r", 200, gzip(r200, 0, flush=70)),
        ("all header fields", "t", 40, gzip(plain("t", 40), 9, flags=31)),
        ("header checksum", "t", 40, gzip(plain("t", 40), 9, flags=2)),
        ("three members", "t", 300,
         gzip(t300[:100], 9) + gzip(b"", 9) + gzip(t300[100:], 1, flags=8)),
        ("long text", "t", 60000, gzip(plain("t", 60000)[:600] * 100, 9)),
    ]
    # The long text repeats its first 600 bytes.
    out = sys.stdout
    out.write("/* Written by tools/inflate_vectors.py; do not edit. */\n\n")
    table = []
    for number, (name, kind, size, stream) in enumerate(vectors):
        out.write("static const unsigned char gzip_%d[] = {" % number)
        for i, byte in enumerate(stream):
            out.write(("\n    " if i % 19 == 0 else " ") + "%d," % byte)
        out.write("\n};\n")
        table.append('    {"%s", \'%s\', %d, %d, gzip_%d, sizeof gzip_%d},\n'
                     % (name, kind, size, 600 if name == "long text" else size, number, number))
    out.write("\nstatic const gzip_vector gzip_vectors[] = {\n" + "".join(table) + "};\n")


main()
