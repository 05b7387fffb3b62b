#!/usr/bin/env python3
"""Writes tests/golden/data.bin with PyTorch: pictures resized as F.interpolate does it.

    python3 tools/golden_data.py              write data.bin
    python3 tools/golden_data.py --verify     compute it again and compare

The format is that of tools/golden.py.
"""
import os
import sys

import torch
import torch.nn.functional as F

from golden import CONSTANT, FOLDER, OUTPUT, Case, Tensor, noise, pack_file, verify

SIZES = [((3, 20, 30), (10, 15)), ((3, 20, 30), (7, 11)), ((1, 9, 13), (23, 17)),
         ((3, 16, 5), (16, 9)), ((1, 40, 33), (3, 40)), ((4, 3, 290), (5, 31)), ((1, 1, 1), (4, 3)),
         ((1, 12, 600), (12, 13)), ((1, 30, 30), (1, 1))]


def cases():
    for shape, size in SIZES:
        for antialias in (False, True):
            x = noise(f"picture {shape}", shape)
            y = F.interpolate(x[None].double(), size=size, mode="bilinear", align_corners=False,
                              antialias=antialias)[0].float()
            yield Case("resize", f"{shape} to {size}, antialias {antialias}", [int(antialias)],
                       tensors=[Tensor("x", x, CONSTANT), Tensor("y", y, OUTPUT)])


def main():
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if verify("data.bin", made) else 1
    data = pack_file(made)
    with open(os.path.join(FOLDER, "data.bin"), "wb") as out:
        out.write(data)
    print(f"data.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
