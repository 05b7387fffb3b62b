#!/usr/bin/env python3
"""Writes tests/golden/conv.bin, the reference data of convolutions, with PyTorch.

    python3 tools/golden_conv.py             write it
    python3 tools/golden_conv.py --verify    compute it again and compare

Format and policy are those of golden.py. ints: stride, padding, dilation, output padding (two each),
groups, same. Layout 3: channels last.
"""
import argparse
import os
import sys

import torch
import torch.nn.functional as F

import golden
from golden import BF16, DENSE, DTYPE_NAME, F16, F32, FOLDER, SLICED, TRANSPOSED, noise, op_case

CHANNELS_LAST = 3


def conv(x, i):
    """Of one or two dimensions."""
    dims = slice(0, 2) if x[0].dim() == 4 else slice(1, 2)
    settings = dict(stride=i[0:2][dims], padding="same" if i[9] else i[2:4][dims],
                    dilation=i[4:6][dims], groups=i[8])
    call = F.conv2d if x[0].dim() == 4 else F.conv1d
    return call(x[0], x[1], x[2] if len(x) > 2 else None, **settings)


def conv_transpose(x, i):
    return F.conv_transpose2d(x[0], x[1], x[2] if len(x) > 2 else None, stride=i[0:2],
                              padding=i[2:4], output_padding=i[6:8], groups=i[8],
                              dilation=i[4:6])


golden.OPS["conv2d"] = golden.OPS["conv1d"] = ("low", lambda x, i, r: conv(x, i))
golden.OPS["conv_transpose2d"] = ("low", lambda x, i, r: conv_transpose(x, i))


# what, x, weight, bias, settings; layouts of x and weight
SPECS = [
    ("plain", (2, 3, 5, 4), (4, 3, 3, 3), True, {}),
    ("padded", (2, 3, 4, 5), (4, 3, 3, 3), True, dict(padding=(1, 1))),
    ("no bias", (1, 2, 4, 4), (3, 2, 2, 3), False, dict(padding=(0, 1))),
    ("stride", (2, 3, 5, 6), (3, 3, 3, 3), True, dict(stride=(2, 2), padding=(1, 1))),
    ("strides", (1, 3, 7, 6), (4, 3, 3, 2), True, dict(stride=(3, 2), padding=(2, 0))),
    ("beyond", (1, 2, 7, 7), (3, 2, 2, 2), True, dict(stride=(4, 3))),
    ("dilation", (1, 2, 8, 7), (2, 2, 3, 3), True, dict(dilation=(2, 3), padding=(2, 3))),
    ("stride and dilation", (1, 2, 9, 10), (3, 2, 3, 3), True,
     dict(stride=(2, 4), dilation=(3, 2), padding=(3, 1))),
    ("same", (1, 2, 4, 5), (3, 2, 3, 5), True, dict(same=1)),
    ("same, even", (1, 2, 5, 4), (2, 2, 4, 2), True, dict(same=1)),
    ("same, even, dilated", (1, 2, 7, 6), (2, 2, 2, 4), True, dict(same=1, dilation=(3, 2))),
    ("1x1", (2, 4, 4, 3), (5, 4, 1, 1), True, {}),
    ("1x1 stride", (2, 3, 5, 4), (4, 3, 1, 1), True, dict(stride=(2, 2))),
    ("groups", (2, 4, 4, 4), (4, 2, 3, 3), True, dict(groups=2, padding=(1, 1))),
    ("groups 1x1", (2, 6, 3, 2), (9, 2, 1, 1), True, dict(groups=3)),
    ("multiplier", (1, 2, 5, 5), (4, 1, 3, 3), True, dict(groups=2, padding=(1, 1))),
    ("depthwise", (2, 3, 4, 5), (3, 1, 3, 3), True, dict(groups=3, padding=(1, 1))),
    ("depthwise stride", (2, 3, 5, 6), (3, 1, 3, 2), True,
     dict(groups=3, stride=(2, 3), padding=(1, 0))),
    ("depthwise dilation", (1, 2, 7, 8), (2, 1, 3, 3), False,
     dict(groups=2, stride=(2, 1), dilation=(2, 2), padding=(2, 2))),
    ("one channel", (2, 1, 5, 4), (1, 1, 3, 3), True, dict(padding=(1, 1))),
    ("whole image", (2, 3, 3, 4), (3, 3, 3, 4), True, {}),
    ("batch of none", (0, 3, 4, 4), (2, 3, 3, 3), True, {}),
]
LAYOUTS = [
    ("padded", [CHANNELS_LAST, DENSE]),
    ("stride", [CHANNELS_LAST, CHANNELS_LAST]),
    ("dilation", [DENSE, CHANNELS_LAST]),
    ("1x1", [CHANNELS_LAST, DENSE]),
    ("groups", [CHANNELS_LAST, TRANSPOSED]),
    ("depthwise", [CHANNELS_LAST, DENSE]),
    ("one channel", [CHANNELS_LAST, DENSE]),
    ("plain", [SLICED, DENSE]),
    ("stride", [TRANSPOSED, SLICED]),
]
LINES = [
    ("1d", (2, 3, 9), (4, 3, 3), True, dict(padding=(0, 1))),
    ("1d stride", (2, 4, 11), (2, 4, 4), True, dict(stride=(1, 3), dilation=(1, 2))),
    ("1d groups", (2, 4, 7), (6, 2, 3), False, dict(groups=2)),
    ("1d depthwise", (2, 3, 8), (3, 1, 3), True, dict(groups=3, padding=(0, 1))),
    ("1d same", (1, 2, 6), (3, 2, 4), True, dict(same=1)),
]
TRANSPOSES = [
    ("plain", (2, 3, 3, 4), (3, 2, 3, 3), True, {}),
    ("stride", (2, 3, 3, 3), (3, 2, 3, 3), True,
     dict(stride=(2, 2), padding=(1, 1), output_padding=(1, 1))),
    ("strides", (1, 2, 3, 4), (2, 3, 2, 4), False, dict(stride=(3, 2), output_padding=(2, 0))),
    ("dilation", (1, 3, 4, 4), (3, 2, 3, 2), True,
     dict(dilation=(2, 3), padding=(1, 2), output_padding=(1, 2))),
    ("groups", (1, 4, 3, 4), (4, 2, 3, 3), True, dict(groups=2, stride=(2, 1), padding=(1, 0))),
    ("depthwise", (1, 3, 3, 4), (3, 1, 3, 3), True, dict(groups=3, stride=(2, 2))),
    ("1x1", (2, 4, 3, 3), (4, 5, 1, 1), True, {}),
]
TRANSPOSE_LAYOUTS = [("stride", [CHANNELS_LAST, DENSE]), ("plain", [SLICED, CHANNELS_LAST])]
HALVES = {"conv2d": ("stride", "depthwise", "1x1", "groups"), "conv1d": ("1d stride",),
          "conv_transpose2d": ("stride",)}


def case(op, spec, dtype, layouts=None, region=None):
    what, x_shape, w_shape, biased, s = spec
    ints = [*s.get("stride", (1, 1)), *s.get("padding", (0, 0)), *s.get("dilation", (1, 1)),
            *s.get("output_padding", (0, 0)), s.get("groups", 1), s.get("same", 0)]
    place = f" in {DTYPE_NAME[region]}" if region else ""
    label = f"{op} {DTYPE_NAME[dtype]}{place} {what}{f' layouts {layouts}' if layouts else ''}"
    outputs = w_shape[1] * ints[8] if op == "conv_transpose2d" else w_shape[0]
    inputs = [noise(label + "/x", x_shape, 2), noise(label + "/w", w_shape)]
    inputs += [noise(label + "/b", (outputs,))] if biased else []
    layouts = layouts and layouts + [DENSE] * (len(inputs) - 2)
    return op_case(op, label, [x.to(dtype) for x in inputs], ints, region=region, layouts=layouts)


def cases():
    forms = [("conv2d", SPECS, LAYOUTS), ("conv1d", LINES, []),
             ("conv_transpose2d", TRANSPOSES, TRANSPOSE_LAYOUTS)]
    for op, specs, layouts in forms:
        named = {spec[0]: spec for spec in specs}
        for spec in specs:
            yield case(op, spec, F32)
        for what, layout in layouts:
            yield case(op, named[what], F32, layout)
        for dtype in (F16, BF16):
            for k, what in enumerate(HALVES[op]):
                yield case(op, named[what], dtype)
                if k < 2:
                    yield case(op, named[what], F32, region=dtype)
            for what, layout in layouts[:1]:
                yield case(op, named[what], dtype, layout)
                yield case(op, named[what], F32, layout, dtype)


def main():
    parser = argparse.ArgumentParser(description="Reference data of convolutions, from PyTorch.")
    parser.add_argument("--verify", action="store_true", help="compare with the committed file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    made = list(cases())
    if options.verify:
        return 0 if golden.verify("conv.bin", made) else 1
    data = golden.pack_file(made)
    with open(os.path.join(FOLDER, "conv.bin"), "wb") as out:
        out.write(data)
    print(f"conv.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
