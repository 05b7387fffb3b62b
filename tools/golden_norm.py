#!/usr/bin/env python3
"""Writes tests/golden/norm.bin with PyTorch: norms and pooling, with every gradient.

    python3 tools/golden_norm.py                 write norm.bin
    python3 tools/golden_norm.py --verify        compute it again and compare

The format and the tables are those of tools/golden.py. Inputs stand in the order of the call's
arguments; ints and reals are its other ones; a second output is "sum", its upstream "upstream1". All
is computed in fp32 and rounded once, outputs to the dtype of the first input.
"""
import sys

import torch
import torch.nn.functional as F

import golden
from golden import (BF16, CONSTANT, Case, DTYPE_NAME, F16, F32, GRADIENT, LEAF, OUTPUT, RTOL,
                    Tensor, UPSTREAM, noise)

CHANNELS_LAST = 3  # a layout of this file: rank 4, channels innermost


def get(x, i):
    return x[i] if i < len(x) else None


def batch_norm(x, i, r):
    return [F.batch_norm(x[0], get(x, 3), get(x, 4), get(x, 1), get(x, 2), not i[0], 0.0, r[0])]


def batch_norm_relu(x, i, r):
    """x, weight, bias, residual?, mean?, variance?"""
    y = F.batch_norm(x[0], get(x, 4), get(x, 5), x[1], x[2], not i[0], 0.0, r[0])
    return [F.relu(y + x[3] if len(x) > 3 else y)]


def add_norm(norm):
    def run(x, i, r, dtype):
        wide = golden.round_through(x[0] + x[1], dtype)
        shape = wide.shape[-i[0]:]
        if norm == "layer":
            y = F.layer_norm(wide, shape, get(x, 2), get(x, 3), r[0])
        else:
            y = F.rms_norm(wide, shape, get(x, 2), r[0])
        return [y, wide]
    return run


def shape_of(x, i):
    return x[0].shape[-i[0]:]


def pool(kind):
    """ints: windows, steps, padding of H and W, ceil_mode, count_padding."""
    def run(x, i, r):
        if kind == "max":
            return [F.max_pool2d(x[0], i[0:2], i[2:4], i[4:6], ceil_mode=bool(i[6]))]
        return [F.avg_pool2d(x[0], i[0:2], i[2:4], i[4:6], bool(i[6]), bool(i[7]))]
    return run


NORMS = {
    "max_pool2d": pool("max"),
    "avg_pool2d": pool("avg"),
    "adaptive_max_pool2d": lambda x, i, r: [F.adaptive_max_pool2d(x[0], i)],
    "adaptive_avg_pool2d": lambda x, i, r: [F.adaptive_avg_pool2d(x[0], i)],
    "max_pool1d": lambda x, i, r: [F.max_pool1d(x[0], i[0], i[2], i[4], ceil_mode=bool(i[6]))],
    "avg_pool1d": lambda x, i, r: [F.avg_pool1d(x[0], i[0], i[2], i[4], bool(i[6]), bool(i[7]))],
    "layer_norm": lambda x, i, r: [F.layer_norm(x[0], shape_of(x, i), get(x, 1), get(x, 2), r[0])],
    "rms_norm": lambda x, i, r: [F.rms_norm(x[0], shape_of(x, i), get(x, 1), r[0])],
    "group_norm": lambda x, i, r: [F.group_norm(x[0], i[0], get(x, 1), get(x, 2), r[0])],
    "batch_norm": batch_norm,
    "batch_norm_relu": batch_norm_relu,
}
SUMS = {"add_layer_norm": add_norm("layer"), "add_rms_norm": add_norm("rms")}


def case(op, label, inputs, ints=(), reals=(), layouts=None, constant=()):
    """Weights stay fp32: only the inputs that are activations come in half."""
    label = f"{op} {DTYPE_NAME[inputs[0].dtype]} {label}"
    layouts = layouts or [0] * len(inputs)
    inputs = [x.detach().clone().requires_grad_(k not in constant) for k, x in enumerate(inputs)]
    dtype = inputs[0].dtype
    wide = [x.float() for x in inputs]
    outs = SUMS[op](wide, ints, reals, dtype) if op in SUMS else NORMS[op](wide, ints, reals)
    outs = [o.to(dtype) for o in outs]
    ups = [noise(f"{label}/upstream{k}", o.shape).to(dtype) for k, o in enumerate(outs)]
    leaves = [k for k in range(len(inputs)) if k not in constant]
    wants = torch.autograd.grad(outs, [inputs[k] for k in leaves], ups)
    tensors = [Tensor(f"in{k}", x.detach(), LEAF if k in leaves else CONSTANT, k, layouts[k])
               for k, x in enumerate(inputs)]
    for name, out in zip(("out", "sum"), outs):
        tensors.append(Tensor(name, out, OUTPUT))
    tensors += [Tensor(name, u, UPSTREAM) for name, u in zip(("upstream", "upstream1"), ups)]
    for k, g in zip(leaves, wants):
        size = 2.0 ** -20 * max(1.0, g.float().abs().max().item()) if g.numel() else 0.0
        # What a norm gives back is the rest of a difference of numbers of the size of dy rstd.
        tensors.append(Tensor(f"g{k}", g, GRADIENT, k, layouts[k], max(golden.ATOL, 8 * size),
                              RTOL[g.dtype]))
    return Case(op, label, ints, reals, tensors)


def some(rows, dtype):
    """Halves take every third one."""
    return rows if dtype == F32 else rows[1::3]


def weights(label, shape):
    return 1 + noise(label + "/weight", shape, 0.5), noise(label + "/bias", shape)


def row_cases(dtype):
    shapes = [((3, 16), 1, 1e-5), ((2, 37), 1, 1e-5), ((2, 3, 5), 1, 1e-5),
              ((2, 2, 3, 4), 2, 1e-5), ((3, 1), 1, 1.0), ((20, 3), 1, 1e-5), ((5,), 1, 1e-5)]
    for shape, dims, eps in some(shapes, dtype):
        label = f"{shape} {dims}"
        x = (noise(label, shape, 2.0) + 0.5).to(dtype)
        w, b = weights(label, shape[len(shape) - dims:])
        yield case("layer_norm", label, [x, w, b], [dims], [eps])
        yield case("rms_norm", label, [x, w], [dims], [eps])
    x = (noise("plain", (3, 9), 2.0)).to(dtype)
    yield case("layer_norm", "plain", [x], [1], [0.25])
    yield case("rms_norm", "plain", [x], [1], [0.25])
    w, b = weights("strided", (4,))
    x = noise("strided", (5, 4), 2.0).to(dtype)
    yield case("layer_norm", "strided", [x, w, b], [1], [1e-5], [1, 2, 2])
    yield case("layer_norm", "weights too", [x, w.to(dtype), b.to(dtype)], [1], [1e-5])
    for shape in ((3, 16), (2, 1, 33)):
        label = f"sum {shape}"
        x, r = (noise(label + k, shape, 2.0).to(dtype) for k in "xr")
        w, b = weights(label, shape[-1:])
        yield case("add_layer_norm", label, [x, r, w, b], [1], [1e-5])
        yield case("add_rms_norm", label, [x, r, w], [1], [1e-5])
    yield case("add_layer_norm", "sum plain", [x, r], [1], [1e-5])


def channel_cases(dtype):
    shapes = [((6, 3), 0), ((2, 3, 5), 0), ((2, 4, 2, 3), 0), ((2, 4, 2, 3), CHANNELS_LAST),
              ((2, 2, 5, 7), 0), ((1, 6, 2, 2), CHANNELS_LAST)]
    for shape, layout in some(shapes, dtype):
        label = f"{shape}" + (" channels last" if layout else "")
        x = (noise(label, shape, 2.0) + 0.5).to(dtype)
        w, b = weights(label, shape[1:2])
        lay = [layout, 0, 0, 0, 0]
        yield case("batch_norm", label, [x, w, b], [0], [1e-5], lay)
        mean, var = noise(label + "/mean", shape[1:2]), 1 + noise(label + "/var", shape[1:2], 0.5)
        yield case("batch_norm", label + " given", [x, w, b, mean, var], [1], [1e-3], lay, (3, 4))
        residual = noise(label + "/residual", shape).to(dtype)
        lay = [layout, 0, 0, layout, 0, 0]
        yield case("batch_norm_relu", label, [x, w, b], [0], [1e-5], lay)
        yield case("batch_norm_relu", label + " sum", [x, w, b, residual], [0], [1e-5], lay)
        yield case("batch_norm_relu", label + " given", [x, w, b, residual, mean, var], [1], [1e-3],
                   lay, (4, 5))
        for groups in (1, shape[1], 2):
            if shape[1] % groups == 0 and len(shape) > 2:
                yield case("group_norm", f"{label} {groups}", [x, w, b], [groups], [1e-5], lay)
    x = noise("plain", (3, 4, 6), 2.0).to(dtype)
    yield case("batch_norm", "plain", [x], [0], [0.25])
    yield case("group_norm", "plain", [x], [2], [0.25])


def pool_cases(dtype):
    specs = [((1, 2, 4, 6), [2, 2, 2, 2, 0, 0, 0, 1]), ((2, 3, 5, 7), [3, 3, 2, 2, 1, 1, 0, 1]),
             ((1, 2, 5, 5), [3, 2, 2, 1, 1, 0, 1, 0]), ((1, 2, 6, 5), [2, 3, 3, 2, 1, 1, 1, 1]),
             ((1, 1, 7, 4), [2, 2, 3, 3, 0, 1, 1, 1])]
    for shape, ints in some(specs, dtype):
        for layout in (0, CHANNELS_LAST) if shape[1] > 1 else (0,):
            label = f"{shape} {ints}" + (" channels last" if layout else "")
            x = noise(label, shape, 2.0).to(dtype)
            yield case("max_pool2d", label, [x], ints, [], [layout])
            yield case("avg_pool2d", label, [x], ints, [], [layout])
    x = noise("ties", (1, 1, 4, 4), 2.0).round().to(dtype)
    yield case("max_pool2d", "ties", [x], [3, 3, 1, 1, 1, 1, 0, 1])
    x[0, 0, 1, 2], x[0, 0, 3, 3] = float("nan"), float("inf")
    yield case("max_pool2d", "not finite", [x], [2, 2, 2, 2, 0, 0, 0, 1])
    for size in some([[1, 1], [3, 2], [7, 6]], dtype):
        for layout in (0, CHANNELS_LAST):
            label = f"{size}" + (" channels last" if layout else "")
            x = noise(label, (1, 3, 5, 4), 2.0).to(dtype)
            yield case("adaptive_avg_pool2d", label, [x], size, [], [layout])
            if dtype == F32:
                yield case("adaptive_max_pool2d", label, [x], size, [], [layout])
    x = noise("1d", (2, 2, 9), 2.0).to(dtype)
    yield case("max_pool1d", "1d", [x], [3, 0, 2, 0, 1, 0, 0, 1])
    yield case("avg_pool1d", "1d", [x], [3, 0, 2, 0, 1, 0, 1, 0])


def cases():
    for dtype in (F32, F16, BF16):
        yield from row_cases(dtype)
        yield from channel_cases(dtype)
        yield from pool_cases(dtype)


def main():
    torch.set_num_threads(1)
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("norm.bin", made) else 1
    data = golden.pack_file(made)
    with open(golden.os.path.join(golden.FOLDER, "norm.bin"), "wb") as out:
        out.write(data)
    print(f"norm.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
