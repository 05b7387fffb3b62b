#!/usr/bin/env python3
"""Writes tests/golden/more.bin with PyTorch: order, in-place ops, comparisons with numbers, losses
of classes and counts, interpolation, dropout, scaled losses, a user's op. Commands, policy and file format are those of golden.py.

    python3 tools/golden_more.py             write it
    python3 tools/golden_more.py --verify    compute it again and compare with the file
"""
import math
import sys

import torch
import torch.nn.functional as F

import golden
from golden import BF16, DENSE, DTYPE_NAME, F16, F32, SLICED, TRANSPOSED, noise, op_case

KINDS = ["mean", "sum", "none"]


def number(x, value):
    """A whole number stays one beside integers, which PyTorch would else compare in fp32."""
    return value if x.is_floating_point() or value % 1 != 0 else int(value)


def interpolate(x, i, r):
    """Ints: height and width, or 0 where the real, the scale, counts; mode; align_corners."""
    size = {"size": i[:2]} if i[0] else {"scale_factor": r[0]}
    more = {"align_corners": bool(i[3])} if i[2] else {}
    return F.interpolate(x[0], **size, mode=["nearest", "bilinear"][i[2]], **more)


def multi_margin(x, i, r):
    return F.multi_margin_loss(x[0], x[1], p=i[1], margin=r[0], reduction=KINDS[i[0]],
                               weight=x[2] if len(x) > 2 else None)


def dropout(x, i, r):
    """What it makes of elements that it keeps: draws until each was kept once."""
    out = F.dropout(x[0], r[0], True)
    while r[0] < 1 and not out.all():
        out = torch.where(out == 0, F.dropout(x[0], r[0], True), out)
    return out


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return dy * b, dy * a


golden.OPS.update({
    "dropout": ("input", dropout),
    "scale_loss": ("loss", lambda x, i, r: torch.amp.GradScaler(
        "cpu", init_scale=r[0]).scale(x[0])),
    "user": ("input", lambda x, i, r: Product.apply(x[0], x[1])),
    "sort": ("input", lambda x, i, r: torch.sort(x[0], dim=i[0], descending=bool(i[1]),
                                                 stable=True).values),
    "argsort": ("input", lambda x, i, r: torch.argsort(x[0], dim=i[0], descending=bool(i[1]),
                                                       stable=True)),
    "topk": ("input", lambda x, i, r: torch.topk(x[0], i[0], i[1], bool(i[2])).values),
    "topk_indices": ("input", lambda x, i, r: torch.topk(x[0], i[0], i[1], bool(i[2])).indices),
    "lt_scalar": ("input", lambda x, i, r: x[0] < number(x[0], r[0])),
    "le_scalar": ("input", lambda x, i, r: x[0] <= number(x[0], r[0])),
    "gt_scalar": ("input", lambda x, i, r: x[0] > number(x[0], r[0])),
    "ge_scalar": ("input", lambda x, i, r: x[0] >= number(x[0], r[0])),
    "eq_scalar": ("input", lambda x, i, r: x[0] == number(x[0], r[0])),
    "ne_scalar": ("input", lambda x, i, r: x[0] != number(x[0], r[0])),
    "relu_": ("input", lambda x, i, r: F.relu(x[0].clone(), inplace=True)),
    "add_": ("input", lambda x, i, r: x[0].clone().add_(x[1])),
    "mul_": ("input", lambda x, i, r: x[0].clone().mul_(x[1])),
    "add_scalar_": ("input", lambda x, i, r: x[0].clone().add_(r[0])),
    "mul_scalar_": ("input", lambda x, i, r: x[0].clone().mul_(r[0])),
    "copy_": ("input", lambda x, i, r: x[0].clone().copy_(x[1])),
    "poisson_nll_loss": ("loss", lambda x, i, r: F.poisson_nll_loss(
        x[0], x[1], log_input=bool(i[1]), full=bool(i[2]), eps=r[0], reduction=KINDS[i[0]])),
    "multi_margin_loss": ("loss", multi_margin),
    "multilabel_soft_margin_loss": ("loss", lambda x, i, r: F.multilabel_soft_margin_loss(
        x[0], x[1], weight=x[2] if len(x) > 2 else None, reduction=KINDS[i[0]])),
    "interpolate": ("input", interpolate),
})
golden.CHOOSES.update(name + "_scalar" for name in ("lt", "le", "gt", "ge", "eq", "ne"))
golden.SUMS.update({"poisson_nll_loss", "multi_margin_loss", "multilabel_soft_margin_loss",
                    "interpolate", "add_", "mul_", "copy_"})


def distinct(shape, stream):
    """Numbers that halves hold, no two alike."""
    count = math.prod(shape)
    order = torch.argsort(noise(f"order {stream}", (count,)))
    return (torch.arange(count)[order].float() - count // 3).reshape(shape) / 8


def order_cases(dtype):
    d = DTYPE_NAME[dtype]
    nan, inf = math.nan, math.inf
    odd = torch.tensor([3, nan, -0.0, 0, -inf, 3, inf, nan, -1, 0, -0.0, 3, inf])
    for down in (0, 1):
        for shape, dim, layout in (((7,), 0, DENSE), ((1,), 0, DENSE), ((5, 3), 0, DENSE),
                                   ((2, 9, 3), 1, DENSE), ((4, 5), -1, TRANSPOSED),
                                   ((3, 6), 1, SLICED), ((3, 0), 1, DENSE)):
            x = distinct(shape, len(shape)).to(dtype)
            for op in ("sort", "argsort"):
                yield op_case(op, f"{op} {d} {list(shape)} {dim} {down} {layout}", [x],
                              ints=[dim, down], layouts=[layout])
        for op in ("sort", "argsort"):
            yield op_case(op, f"{op} {d} odd {down}", [odd.to(dtype)], ints=[0, down])
    for k, shape, dim, largest, layout in ((3, (7,), 0, 1, DENSE), (0, (4,), 0, 1, DENSE),
                                           (4, (4, 2), 0, 0, DENSE), (2, (3, 5, 2), 1, 1, DENSE),
                                           (2, (5, 4), -1, 0, TRANSPOSED),
                                           (1, (3, 6), 1, 1, SLICED)):
        x = distinct(shape, 9).to(dtype)
        for op in ("topk", "topk_indices"):
            yield op_case(op, f"{op} {d} {k} of {list(shape)} {dim} {largest}", [x],
                          ints=[k, dim, largest], layouts=[layout])


def comparison_cases(dtype):
    d = DTYPE_NAME[dtype]
    x = torch.tensor([0, -0.0, 1, 0.1, math.nan, math.inf, -math.inf, -3]).to(dtype)
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        for value in (0.0, 0.1, math.inf):
            yield op_case(op + "_scalar", f"{op}_scalar {d} {value}", [x], reals=[value],
                          no_grad=True)
        if dtype == F32:
            whole = torch.tensor([2 ** 53 - 1, 0, 1, -3, 2 ** 53 - 2])
            for value in (0.5, 1.0, -3.0, 2.0 ** 53 - 1, math.inf):
                yield op_case(op + "_scalar", f"{op}_scalar i64 {value}", [whole], reals=[value])


def inplace_cases(dtype):
    d = DTYPE_NAME[dtype]
    for op, reals in (("relu_", []), ("add_scalar_", [0.75]), ("mul_scalar_", [-1.5])):
        for shape, layout in (((7,), DENSE), ((5, 3), TRANSPOSED), ((3, 5), SLICED)):
            label = f"{op} {d} {list(shape)}"
            yield op_case(op, label, [noise(label, shape, 4).to(dtype)], reals=reals,
                          layouts=[layout])
    for op in ("add_", "mul_", "copy_"):
        for a, b, layouts in (((3, 4), (3, 4), None), ((2, 3, 4), (4,), None),
                              ((2, 3), (), None), ((3, 2, 3), (2, 1), None),
                              ((5, 3), (5, 3), [TRANSPOSED, SLICED])):
            label = f"{op} {d} {list(a)} {list(b)}"
            yield op_case(op, label, [noise(label + "/a", a, 2).to(dtype),
                                      noise(label + "/b", b, 2).to(dtype)], layouts=layouts,
                          constant=(0,) if op == "copy_" else ())  # gets none: what it was is gone


def loss_cases(dtype):
    d = DTYPE_NAME[dtype]
    counts = torch.tensor([[0, 1, 2, 5], [3, 0, 1, 40], [1, 1, 7, 2]]).to(dtype)
    labels = torch.tensor([1, 0, 3])
    truth = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1.0]]).to(dtype)
    weight = torch.tensor([0.5, 2, 1, 0.25])
    for kind in range(3):
        for full in (0, 1):
            x = noise("poisson", (3, 4), 2)
            yield op_case("poisson_nll_loss", f"poisson_nll_loss {d} log {kind} {full}",
                          [x.to(dtype), counts], ints=[kind, 1, full], reals=[1e-8],
                          constant=(1,))
            yield op_case("poisson_nll_loss", f"poisson_nll_loss {d} {kind} {full}",
                          [(x.abs() + 0.1).to(dtype), counts], ints=[kind, 0, full],
                          reals=[1e-3],
                          constant=(1,) if full else ())  # PyTorch's gradient of a count of 0: NaN
        for p in (1, 2):
            for more in ([], [weight]):
                x = noise(f"multi margin {p}", (3, 4), 2).to(dtype)
                if more and dtype != F32:
                    continue  # PyTorch wants the weights in the input's dtype
                yield op_case("multi_margin_loss",
                              f"multi_margin_loss {d} {kind} {p} {len(more)}",
                              [x, labels] + more, ints=[kind, p], reals=[0.75], constant=(2,))
        for more in ([], [weight]):
            x = noise("multilabel", (3, 4), 3).to(dtype)
            yield op_case("multilabel_soft_margin_loss",
                          f"multilabel_soft_margin_loss {d} {kind} {len(more)}",
                          [x, truth] + more, ints=[kind], constant=(2,))


def image_cases(dtype):
    d = DTYPE_NAME[dtype]
    sizes = [((2, 2, 3, 4), (6, 8), DENSE), ((1, 2, 5, 3), (3, 7), DENSE),
             ((1, 1, 1, 1), (3, 2), DENSE), ((1, 2, 4, 3), (1, 1), DENSE),
             ((1, 1, 4, 5), (4, 5), DENSE), ((2, 1, 3, 4), (5, 5), TRANSPOSED),
             ((1, 1, 3, 2), (7, 3), SLICED)]
    for mode, align in ((0, 0), (1, 0), (1, 1)):
        for shape, size, layout in sizes if dtype == F32 else sizes[1:6:2]:
            label = f"interpolate {d} {mode}{align} {list(shape)} {list(size)}"
            yield op_case("interpolate", label, [noise(label, shape, 2).to(dtype)],
                          ints=[*size, mode, align], reals=[0.0], layouts=[layout])
        for scale in (2.0, 0.5, 1.7, 3.3) if dtype == F32 else (1.7,):
            label = f"interpolate {d} {mode}{align} by {scale}"
            yield op_case("interpolate", label, [noise(label, (1, 1, 4, 5), 2).to(dtype)],
                          ints=[0, 0, mode, align], reals=[scale])


def own_cases(dtype):
    """Ops with random numbers, with state, and those that users define."""
    d = DTYPE_NAME[dtype]
    for shape, p, layout in (((90,), 0.3, DENSE), ((9, 11), 0.5, TRANSPOSED), ((4, 17), 0.1, SLICED),
                             ((2, 3), 0.0, DENSE), ((3, 2), 1.0, DENSE)):
        torch.manual_seed(1)
        x = noise(f"dropout {d} {p}", shape, 3)
        yield op_case("dropout", f"dropout {d} {list(shape)} {p}", [
            (x.sign() * (x.abs() + 0.125)).to(dtype)],
                      reals=[p], layouts=[layout])
        yield op_case("user", f"user {d} {list(shape)}", [
            x.to(dtype), noise(f"user {d} {p}", shape).to(dtype)], layouts=[layout, DENSE])
    for scale in (1.0, 1024.0, 65536.0):
        yield op_case("scale_loss", f"scale_loss {d} {scale}",
                      [noise(f"scale_loss {d} {scale}", ()).to(dtype)], reals=[scale])


def cases():
    for dtype in (F32, F16, BF16):
        yield from own_cases(dtype)
        yield from order_cases(dtype)
        yield from comparison_cases(dtype)
        yield from inplace_cases(dtype)
        yield from loss_cases(dtype)
        yield from image_cases(dtype)


if __name__ == "__main__":
    golden.FILES = {"more.bin": cases}
    sys.exit(golden.main())
