#!/usr/bin/env python3
"""Writes tests/golden/tables.bin with Python and NumPy: numbers as text with the bits of the double
that Python reads, a table with its means and deviations, .npy and .npz files with their elements.

    python3 tools/golden_tables.py              write tables.bin
    python3 tools/golden_tables.py --verify     compute it again and compare

The format is that of tools/golden.py; texts and files are u8 tensors.
"""
import io
import os
import random
import struct
import sys

import numpy as np
import torch

from golden import CONSTANT, FOLDER, OUTPUT, Case, Tensor, pack_file, verify


def raw(data):
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def exact(bits):
    """All digits of a double, or of what lies between two."""
    from decimal import Decimal, getcontext
    getcontext().prec = 2000
    return Decimal(struct.unpack("<d", struct.pack("<Q", bits))[0])


def numbers():
    out = ["0", "-0", "+1", "1.", ".28", "-.5e-3", "0.1", "1e23", "8.5e22", "9007199254740993",
           "9007199254740992.99999999999999999999", "179769313486231570000e289",
           "1.7976931348623158e308", "1.7976931348623159e308", "1e309", "-1e400", "1e-400",
           "2.4703282292062327208e-324", "2.4703282292062328e-324", "5e-324", "7.4e-324",
           "2.2250738585072011e-308", "2.2250738585072014e-308", "0.000000000000000000000000001",
           "100000000000000000000000000000000", "123456789012345678901234567890e-10",
           "00000000000000000000000000001.50", "1e0000000000000000001", "4.35", "0.3e+1",
           "6929495644600919.5", "3.518437208883201171875e13", "9.5e-21", "0e999999999",
           "1" + "0" * 400 + "e-400", "0." + "0" * 400 + "1e401"]
    draw = random.Random(7)
    for bits in [0, 1, 2, (1 << 52) - 1, 1 << 52, (0x7FE << 52) + ((1 << 52) - 2)] + [
            draw.getrandbits(63) % (0x7FE << 52) for _ in range(60)]:
        middle = (exact(bits) + exact(bits + 1)) / 2
        out += [f"{middle:E}", f"{middle:E}".replace("E", "00001E"), f"{middle:f}"[:900]]
        digits, power = f"{middle:E}".split("E")
        if len(digits) > 3:
            out.append(digits[:-1] + "E" + power)
    for _ in range(200):
        value = struct.unpack("<d", struct.pack("<Q", draw.getrandbits(63) % (0x7FF << 52)))[0]
        out += [repr(value), f"{value:.16e}", f"{-value:.18e}", f"{value:.6g}"]
        out.append(repr(draw.uniform(-100, 100)))
    return out


TABLE = """ width ,kind,"height, m",code,price,note
1.5,red,10,b,1,x
NA,blue,20.25,a,2.5,x
-3,red,?,b,-4,y
0.1,"gr""een",40,10,8,z
7e2,,1e-3,9,16,z
"""


def table():
    rows = [[1.5, 10], [None, 20.25], [-3, None], [0.1, 40], [7e2, 1e-3]]
    x = np.array([[np.nan if v is None else v for v in r] for r in rows])
    out = []
    for part in ([0, 1, 2, 3, 4], [1, 2, 3]):
        mean = np.nanmean(x[part], axis=0)
        deviation = np.nanstd(x[part], axis=0)
        filled = np.where(np.isnan(x), mean, x)
        out += [filled.astype(np.float32), ((filled - mean) / deviation).astype(np.float32)]
    kinds = ["", "blue", 'gr"een', "red"]
    hot = np.array([[float(k == c) for k in kinds] for c in ["red", "blue", "red", 'gr"een', ""]])
    # The inputs in order: width, kind (4), height.
    return [np.concatenate([m[:, :1], hot, m[:, 1:]], axis=1).astype(np.float32) for m in out]


def arrays():
    base = np.arange(24).reshape(2, 3, 4)
    for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"):
        for order in "<>":
            for fortran in (False, True):
                x = (base % 3 == 1) if kind == "b1" else (base * 5 - 60 if kind[0] in "if" else
                                                          base * 10)
                x = x.astype(order + kind)
                yield f"{order}{kind} {'rows first' if fortran else 'rows last'}", (
                    np.asfortranarray(x) if fortran else x)
    yield "scalar", np.float32(2.5)
    yield "vector", np.arange(5, dtype="<i8") - (1 << 40)


def cases():
    texts = numbers()
    bits = [struct.unpack("<q", struct.pack("<d", float(t)))[0] for t in texts]
    yield Case("numbers", "", tensors=[Tensor("text", raw("\n".join(texts).encode() + b"\n")),
                                       Tensor("bits", torch.tensor(bits), OUTPUT)])
    yield Case("table", "", tensors=[Tensor("text", raw(TABLE.encode()))] + [
        Tensor(f"x{i}", torch.from_numpy(x), OUTPUT) for i, x in enumerate(table())])
    for label, x in arrays():
        file = io.BytesIO()
        np.save(file, x)
        y = np.asarray(x).astype(np.float64)
        yield Case("npy", label, tensors=[Tensor("file", raw(file.getvalue())),
                                          Tensor("x", torch.from_numpy(np.ascontiguousarray(y).reshape(
                                              np.shape(x))), OUTPUT)])
    x, y = np.random.RandomState(3).rand(6, 2, 3).astype(np.float32), np.arange(6) * 7 % 4
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, x_train=x, y_train=y, target=np.arange(6) * 0.5)
        yield Case("npz", save.__name__, tensors=[Tensor("file", raw(file.getvalue())),
                                                  Tensor("x", torch.from_numpy(x), OUTPUT),
                                                  Tensor("y", torch.from_numpy(y), OUTPUT)])


def main():
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if verify("tables.bin", made) else 1
    data = pack_file(made)
    with open(os.path.join(FOLDER, "tables.bin"), "wb") as out:
        out.write(data)
    print(f"tables.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
