#!/usr/bin/env python3
"""Writes tests/golden/transformer.bin with PyTorch: rotary positions, gated units, hash grids,
attention by windows, and attention layers.

    python3 tools/golden_transformer.py              write it
    python3 tools/golden_transformer.py --verify     compute it again and compare with the file

The format and the policy of half precision are those of tools/golden.py.
"""
import math
import os
import sys

import torch
import torch.nn.functional as F

import golden
from golden import BF16, F16, F32, GRADIENT, LEAF, OUTPUT, UPSTREAM, Case, Tensor, noise


def turned(x, base, offset, interleaved):
    """x [.., T, D]: each pair as a complex number times exp(i angle)."""
    rows, half = x.shape[-2], x.shape[-1] // 2
    place = torch.arange(offset, offset + rows, dtype=torch.float64)[:, None]
    angle = place * base ** (-torch.arange(half, dtype=torch.float64) / half)
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.split(half, -1)
    pair = a * cosine - b * sine, a * sine + b * cosine
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def rope(x, i, r):
    """ints: offset, interleaved, heads; reals: base."""
    x, heads = x[0], i[2]
    wide = x.float()
    if heads:
        wide = wide.unflatten(-1, (heads, -1)).transpose(1, 2)
    wide = turned(wide, r[0], i[0], i[1])
    if heads:
        wide = wide.transpose(1, 2).flatten(2)
    return wide.to(x.dtype)


def glu(x, i, r):
    """ints: dimension, gate."""
    a, b = x[0].chunk(2, i[0])
    return a * torch.sigmoid(b) if i[1] == 0 else (F.silu(a) if i[1] == 1 else F.gelu(a)) * b


golden.OPS["rope"] = ("input", rope)
golden.OPS["glu"] = ("input", glu)
golden.ROUNDS_BETWEEN |= {"glu"}


def hash_grid(x, i, r):
    """ints: cells of the first level and of the last; x: table, places."""
    table, at = x[0].float(), x[1].double().clamp(0, 1)
    (levels, entries, _), dims, out = table.shape, at.shape[-1], []
    for level in range(levels):
        cells = math.floor(i[0] * (i[1] / i[0])**(level / max(levels - 1, 1)) + 1e-6)
        low = (at * cells).floor().clamp(max=cells - 1)
        part, y = at * cells - low, 0
        for c in range(2**dims):
            bits = torch.tensor([c >> d & 1 for d in range(dims)])
            weight = torch.where(bits > 0, part, 1 - part).prod(-1, keepdim=True).float()
            corner, row = low.long() + bits, torch.zeros((), dtype=torch.long)
            for d, prime in enumerate((1, 2654435761, 805459861)[:dims]):
                if (cells + 1)**dims <= entries:
                    row = row + corner[..., d] * (cells + 1)**d
                else:
                    row = row ^ (corner[..., d] * prime & 0xffffffff)
            y = y + weight * table[level][row % entries]
        out.append(y)
    return torch.cat(out, -1).to(x[0].dtype)


golden.OPS["hash_grid"] = ("input", hash_grid)
golden.SUMS |= {"hash_grid"}


def grid_cases(dtype):
    """Dense levels, hashed ones, and both; the edge, and beyond it."""
    d = golden.DTYPE_NAME[dtype]
    for table, shape, cells in (((3, 40, 2), (5, 7, 2), (2, 9)), ((1, 11, 3), (40, 3), (1, 1)),
                                ((4, 64, 1), (2, 20, 3), (2, 30)), ((2, 7, 8), (30, 2), (100, 512))):
        label = f"hash grid {d} {list(table)} at {list(shape)}"
        places = noise(f"{label}/x", shape) * 0.6 + 0.5
        places.view(-1)[:4] = torch.tensor([0.0, 1.0, 1.0, 0.5])
        yield golden.op_case("hash_grid", label, [noise(label, table, 2).to(dtype), places.to(dtype)],
                             cells, constant=(1,))


def windowed(x, i, r):
    """ints: window, offset."""
    q, k, v = x
    rows = torch.arange(q.shape[-2])[:, None] + i[1]
    keys = torch.arange(k.shape[-2])
    seen = (keys <= rows) & (keys > rows - i[0])
    out = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)
    return torch.where(seen.any(-1, keepdim=True), out, torch.zeros((), dtype=out.dtype))


golden.OPS["windowed_attention"] = ("low", windowed)
golden.SUMS |= {"windowed_attention"}
golden.ROUNDS_BETWEEN |= {"windowed_attention"}


def window_cases():
    for (q, k), window, offset in (
            (((1, 2, 150, 3), (1, 1, 150, 3)), 20, 0), (((1, 1, 230, 2), (1, 1, 230, 2)), 100, 0),
            (((1, 2, 70, 4), (1, 1, 200, 4)), 64, 130), (((1, 1, 5, 4), (1, 1, 9, 4)), 1, 2),
            (((2, 2, 3, 2), (2, 2, 170, 2)), 1000, 167), (((1, 1, 90, 2), (1, 1, 40, 2)), 7, 0)):
        label = f"window of {window} {list(q)} at {offset} of {k[2]}"
        inputs = [noise(f"{label}/{i}", x, 2) for i, x in enumerate((q, k, k))]
        yield golden.op_case("windowed_attention", label, inputs, [window, offset])


def op_cases(dtype):
    d = golden.DTYPE_NAME[dtype]
    for shape, offset, interleaved, heads, base in (
            ((5, 4), 0, 0, 0, 10000.0), ((2, 3, 6), 7, 1, 0, 500000.0), ((2, 3, 9, 8), 100, 0, 0, 1e4),
            ((2, 3, 12), 3, 1, 2, 10000.0), ((1, 3, 260), 4000, 0, 1, 10000.0), ((0, 2), 0, 1, 0, 9.0)):
        label = f"rope {d} {list(shape)} at {offset} {'interleaved' if interleaved else 'halves'}"
        yield golden.op_case("rope", label, [noise(label, shape, 2).to(dtype)],
                             [offset, interleaved, heads], [base])
    for shape, dim in (((3, 8), -1), ((4, 3, 2), 0), ((2, 6, 5), 1)):
        for gate in range(3):
            label = f"glu {d} {list(shape)} {dim} gate {gate}"
            yield golden.op_case("glu", label, [noise(label, shape, 3).to(dtype)], [dim, gate])


def layer_cases():
    """ints: heads, norms of queries and keys, rotary (1: halves, 2: interleaved), offset."""
    for label, heads, norms, rotary, offset, shape in (
            ("norms", 2, 1, 0, 0, (2, 5, 8)), ("halves", 3, 0, 1, 2, (1, 4, 12)),
            ("all interleaved", 2, 1, 2, 5, (2, 6, 8))):
        width = shape[2]
        shapes = {"in_proj_weight": (3 * width, width), "in_proj_bias": (3 * width,),
                  "out_proj.weight": (width, width), "out_proj.bias": (width,)}
        if norms:
            shapes |= {f"{n}_norm.weight": (width // heads,) for n in "qk"}
        p = {n: noise(f"layer {label}/{n}", s).requires_grad_() for n, s in shapes.items()}
        x = noise(f"layer {label}/x", shape).requires_grad_()
        parts = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
        parts = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in parts]
        for i, n in enumerate("qk"):
            if norms:
                parts[i] = F.rms_norm(parts[i], (width // heads,), p[f"{n}_norm.weight"], 1e-5)
            if rotary:
                parts[i] = turned(parts[i], 10000.0, offset, rotary == 2)
        out = F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        out = F.linear(out, p["out_proj.weight"], p["out_proj.bias"])
        upstream = noise(f"layer {label}/upstream", out.shape)
        found = torch.autograd.grad(out, [x, *p.values()], upstream)
        tensors = [Tensor(n, t.detach(), LEAF, i)
                   for i, (n, t) in enumerate([("x", x), *p.items()])]
        tensors += [Tensor("out", out, OUTPUT), Tensor("upstream", upstream, UPSTREAM)]
        tensors += [Tensor(f"g{i}", g, GRADIENT, i, atol=2e-5) for i, g in enumerate(found)]
        yield Case("multi_head_attention", f"layer with {label}", [heads, norms, rotary, offset], [],
                   tensors)


def cases():
    for dtype in (F32, F16, BF16):
        yield from op_cases(dtype)
        yield from grid_cases(dtype)
    yield from layer_cases()
    yield from window_cases()


def main():
    torch.set_num_threads(1)
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("transformer.bin", made) else 1
    data = golden.pack_file(made)
    with open(os.path.join(golden.FOLDER, "transformer.bin"), "wb") as out:
        out.write(data)
    print(f"transformer.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
