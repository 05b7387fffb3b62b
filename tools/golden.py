#!/usr/bin/env python3
"""Writes the reference data in tests/golden/ with PyTorch.

    python3 tools/golden.py                      write ops.bin, train.bin and losses.bin
    python3 tools/golden.py --verify             compute them again and compare with the files
    python3 tools/golden.py --experiments        print how PyTorch behaves in corner cases; more of
                                                 them: golden_claims.py
    python3 tools/golden.py --mnist DIR          write mnist_reference.txt from the idx files in DIR
                                                 (thirty trainings, a few minutes)

Needs Python 3.9 or newer with torch and numpy (CPU builds do). The test suite itself needs neither:
it reads the committed files. Each file names the torch version that made it.

Half precision follows mptrain's policy, written out with casts: a kernel loads its inputs, computes
in fp32 and rounds once when it stores; inside an autocast region matmul-like ops round inputs,
weight and bias to the region's dtype, while softmax, log_softmax, losses, exp, log and sums take
and give fp32; the rest runs in its input's dtype, and mixed inputs promote to fp32. Gradients of
fp32 tensors are fp32 and are not rounded on the way through such a cast.

File: "MPTGOLD1", text torch version, u32 number of cases; a case is text op, text label, u8 region,
u8 n + n i64, u8 n + n f64, u8 n + n tensors; a tensor is text name, u8 role, u8 input number,
u8 dtype, u8 layout, f64 rtol, f64 atol, u8 rank, u32 dims, elements. A text is u8 length + bytes;
all numbers are little-endian; elements are row-major. Codes are those of the tables below.
"""
import argparse
import gzip
import math
import os
import struct
import sys
import zlib

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "golden")
F32, F16, BF16, F64, I64, U8, BOOL = (torch.float32, torch.float16, torch.bfloat16, torch.float64,
                                      torch.int64, torch.uint8, torch.bool)
DTYPE_CODE = {None: 0, F32: 1, F16: 2, BF16: 3, F64: 4, I64: 5, U8: 6, BOOL: 7}
DTYPE_NAME = {F32: "f32", F16: "f16", BF16: "bf16", F64: "f64", I64: "i64", BOOL: "bool"}
RTOL = {F32: 1.3e-6, F16: 1e-3, BF16: 1.6e-2, F64: 1.3e-6}
ATOL = 1e-5
CONSTANT, LEAF, UPSTREAM, OUTPUT, GRADIENT = range(5)  # roles of a tensor in a case
# How the test lays an input out in memory. The file holds its values in logical order.
DENSE, TRANSPOSED, SLICED = range(3)  # as is; last two dims swapped; every second of a longer row
MEAN, SUM, NONE = range(3)
ALL = -2 ** 31
ACTIVATIONS = ["none", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid"]


# ---- numbers that C makes too (tests/golden.h) ----

def uniform(stream, count, first=0):
    """Floats in [-1, 1), exact in fp32, from 32-bit hashes of (stream, index)."""
    x = np.arange(first, first + count, dtype=np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    x = (x * np.uint64(0x9E3779B9) + np.uint64(stream * 0x85EBCA6B & 0xFFFFFFFF)) & mask
    x ^= x >> np.uint64(16)
    x = x * np.uint64(0x7FEB352D) & mask
    x ^= x >> np.uint64(15)
    x = x * np.uint64(0x846CA68B) & mask
    x ^= x >> np.uint64(16)
    return ((x >> np.uint64(8)).astype(np.float64) * 2.0 ** -23 - 1.0).astype(np.float32)


def noise(label, shape, scale=1.0):
    """A tensor of its own for each label."""
    values = uniform(zlib.crc32(label.encode()), int(np.prod(shape)))
    return torch.from_numpy(values * np.float32(scale)).reshape(shape)


# ---- the file ----

def text(s):
    data = s.encode()
    assert len(data) < 256
    return bytes([len(data)]) + data


def elements(t):
    t = t.detach().contiguous()
    if t.dtype in (F16, BF16):
        return t.view(torch.int16).numpy().astype("<i2").tobytes()
    kind = {F32: "<f4", F64: "<f8", I64: "<i8", U8: "u1", BOOL: "u1"}[t.dtype]
    return t.numpy().astype(kind).tobytes()


class Tensor:
    def __init__(self, name, value, role=CONSTANT, index=0, layout=DENSE, atol=ATOL, rtol=None):
        self.name, self.value, self.role, self.index = name, value, role, index
        self.layout, self.atol = layout, atol
        self.rtol = RTOL.get(value.dtype, 0.0) if rtol is None else rtol

    def pack(self):
        v = self.value
        head = bytes([self.role, self.index, DTYPE_CODE[v.dtype], self.layout])
        dims = b"".join(struct.pack("<I", n) for n in v.shape)
        return (text(self.name) + head + struct.pack("<2d", self.rtol,
                                                     self.atol) + bytes([v.dim()]) + dims +
                elements(v))


class Case:
    def __init__(self, op, label, ints=(), reals=(), tensors=(), region=None):
        self.op, self.label, self.region = op, label, region
        self.ints, self.reals, self.tensors = list(ints), list(reals), list(tensors)

    def pack(self):
        return (text(self.op) + text(self.label) + bytes([DTYPE_CODE[self.region],
                                                          len(self.ints)]) +
                b"".join(struct.pack("<q", int(i)) for i in self.ints) + bytes([len(self.reals)]) +
                b"".join(struct.pack("<d", r) for r in self.reals) + bytes([len(self.tensors)]) +
                b"".join(t.pack() for t in self.tensors))


def pack_file(cases):
    return (b"MPTGOLD1" + text(torch.__version__) + struct.pack("<I", len(cases)) +
            b"".join(c.pack() for c in cases))


class Reader:
    """Parses a file again, for --verify."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        values = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return values[0] if len(values) == 1 else values

    def text(self):
        n = self.take("<B")
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def case(self):
        dtypes = {code: dtype for dtype, code in DTYPE_CODE.items()}
        c = Case(self.text(), self.text())
        c.region = dtypes[self.take("<B")]
        c.ints = [self.take("<q") for _ in range(self.take("<B"))]
        c.reals = [self.take("<d") for _ in range(self.take("<B"))]
        for _ in range(self.take("<B")):
            name = self.text()
            role, index, code, layout = self.take("<4B")
            rtol, atol = self.take("<2d")
            shape = [self.take("<I") for _ in range(self.take("<B"))]
            size = torch.empty(0, dtype=dtypes[code]).element_size() * int(np.prod(shape))
            raw = bytearray(self.data[self.at:self.at + size])
            self.at += size
            value = torch.frombuffer(raw, dtype=dtypes[code]) if raw else torch.empty(
                0, dtype=dtypes[code])
            c.tensors.append(Tensor(name, value.reshape(shape), role, index, layout, atol, rtol))
        return c

    def file(self):
        assert self.take("<8s") == b"MPTGOLD1"
        version = self.text()
        return version, [self.case() for _ in range(self.take("<I"))]


# ---- ops ----

def reduce_dim(function):
    def run(x, i, r):
        return function(x[0]) if i[0] == ALL else function(x[0], dim=i[0], keepdim=bool(i[1]))
    return run


def max_value(x, dim=None, keepdim=False):
    return x.max() if dim is None else x.max(dim, keepdim).values


def min_value(x, dim=None, keepdim=False):
    return x.min() if dim is None else x.min(dim, keepdim).values


def log_sum_exp(x, dim=None, keepdim=False):
    return torch.logsumexp(x, tuple(range(x.dim())) if dim is None else dim, keepdim)


def dims(i):
    return {} if i[0] == ALL else {"dim": i[0], "keepdim": bool(i[1])}


def activate(y, kind):
    return [lambda v: v, F.relu, F.gelu, lambda v: F.gelu(v, approximate="tanh"), torch.tanh,
            torch.sigmoid][kind](y)


def matmul(x, i, r):
    """With an int, the first operand is expanded to it along K, where its stride is then 0."""
    return torch.matmul(x[0].expand(*x[0].shape[:-1], i[0]) if i else x[0], x[1])


def linear(x, i, r):
    return activate(F.linear(x[0], x[1], x[2] if len(x) > 2 else None), i[0])


def class_loss(function):
    def run(x, i, r):
        more = {"label_smoothing": r[0]} if function is F.cross_entropy else {}
        return function(x[0], x[1], weight=x[2] if len(x) > 2 else None, ignore_index=i[1],
                        reduction=["mean", "sum", "none"][i[0]], **more)
    return run


# name: (autocast class, function of tensors, ints and reals)
OPS = {
    "add": ("input", lambda x, i, r: x[0] + x[1]),
    "sub": ("input", lambda x, i, r: x[0] - x[1]),
    "mul": ("input", lambda x, i, r: x[0] * x[1]),
    "div": ("input", lambda x, i, r: x[0] / x[1]),
    "add_scalar": ("input", lambda x, i, r: x[0] + r[0]),
    "mul_scalar": ("input", lambda x, i, r: x[0] * r[0]),
    "neg": ("input", lambda x, i, r: -x[0]),
    "exp": ("fp32", lambda x, i, r: torch.exp(x[0])),
    "log": ("fp32", lambda x, i, r: torch.log(x[0])),
    "sqrt": ("input", lambda x, i, r: torch.sqrt(x[0])),
    "relu": ("input", lambda x, i, r: F.relu(x[0])),
    "gelu": ("input", lambda x, i, r: F.gelu(x[0])),
    "gelu_tanh": ("input", lambda x, i, r: F.gelu(x[0], approximate="tanh")),
    "tanh": ("input", lambda x, i, r: torch.tanh(x[0])),
    "sigmoid": ("input", lambda x, i, r: torch.sigmoid(x[0])),
    "log1p": ("fp32", lambda x, i, r: torch.log1p(x[0])),
    "rsqrt": ("fp32", lambda x, i, r: torch.rsqrt(x[0])),
    "pow": ("fp32", lambda x, i, r: torch.pow(x[0], x[1])),
    "pow_scalar": ("fp32", lambda x, i, r: torch.pow(x[0], r[0])),
    "abs": ("input", lambda x, i, r: torch.abs(x[0])),
    "sign": ("input", lambda x, i, r: torch.sign(x[0])),
    "sin": ("input", lambda x, i, r: torch.sin(x[0])),
    "cos": ("input", lambda x, i, r: torch.cos(x[0])),
    "clamp": ("input", lambda x, i, r: torch.clamp(x[0], r[0], r[1])),
    "minimum": ("input", lambda x, i, r: torch.minimum(x[0], x[1])),
    "maximum": ("input", lambda x, i, r: torch.maximum(x[0], x[1])),
    "where": ("input", lambda x, i, r: torch.where(x[0], x[1], x[2])),
    "leaky_relu": ("input", lambda x, i, r: F.leaky_relu(x[0], r[0])),
    "elu": ("input", lambda x, i, r: F.elu(x[0], r[0])),
    "silu": ("input", lambda x, i, r: F.silu(x[0])),
    "softplus": ("fp32", lambda x, i, r: F.softplus(x[0], r[0], r[1])),
    "hardtanh": ("input", lambda x, i, r: F.hardtanh(x[0], r[0], r[1])),
    "lt": ("input", lambda x, i, r: x[0] < x[1]),
    "le": ("input", lambda x, i, r: x[0] <= x[1]),
    "gt": ("input", lambda x, i, r: x[0] > x[1]),
    "ge": ("input", lambda x, i, r: x[0] >= x[1]),
    "ne": ("input", lambda x, i, r: x[0] != x[1]),
    "logical_and": ("input", lambda x, i, r: torch.logical_and(x[0], x[1])),
    "logical_or": ("input", lambda x, i, r: torch.logical_or(x[0], x[1])),
    "logical_not": ("input", lambda x, i, r: torch.logical_not(x[0])),
    "isnan": ("input", lambda x, i, r: torch.isnan(x[0])),
    "isinf": ("input", lambda x, i, r: torch.isinf(x[0])),
    "equal": ("input", lambda x, i, r: x[0] == x[1]),
    "matmul": ("low", matmul),
    "linear": ("low", linear),
    "sum": ("fp32", reduce_dim(torch.sum)),
    "mean": ("fp32", reduce_dim(torch.mean)),
    "max": ("input", reduce_dim(max_value)),
    "argmax": ("input", reduce_dim(torch.argmax)),
    "min": ("input", reduce_dim(min_value)),
    "argmin": ("input", reduce_dim(torch.argmin)),
    "prod": ("fp32", reduce_dim(torch.prod)),
    "logsumexp": ("fp32", reduce_dim(log_sum_exp)),
    "var": ("input", lambda x, i, r: torch.var(x[0], **dims(i), correction=r[0])),
    "std": ("input", lambda x, i, r: torch.std(x[0], **dims(i), correction=r[0])),
    "norm": ("fp32", lambda x, i, r: torch.linalg.vector_norm(x[0], r[0], **dims(i))),
    "cumsum": ("fp32", lambda x, i, r: torch.cumsum(x[0], i[0])),
    "softmax": ("fp32", lambda x, i, r: F.softmax(x[0], i[0])),
    "log_softmax": ("fp32", lambda x, i, r: F.log_softmax(x[0], i[0])),
    "cat": ("input", lambda x, i, r: torch.cat(x, i[0])),
    "slice": ("input", lambda x, i, r: x[0].movedim(i[0], 0)[i[1]:i[2]:i[3]].movedim(0, i[0])),
    "permute": ("input", lambda x, i, r: x[0].permute(i)),
    "transpose": ("input", lambda x, i, r: x[0].transpose(i[0], i[1])),
    "expand": ("input", lambda x, i, r: x[0].expand(i)),
    "reshape": ("input", lambda x, i, r: x[0].reshape(i)),
    "flatten": ("input", lambda x, i, r: x[0].flatten(i[0], i[1])),
    "contiguous": ("input", lambda x, i, r: x[0].contiguous()),
    "clone": ("input", lambda x, i, r: x[0].clone()),
    "cast": ("input", lambda x, i, r: x[0]),
    "gather": ("input", lambda x, i, r: torch.gather(x[0], i[0], x[1])),
    "index_select": ("input", lambda x, i, r: torch.index_select(x[0], i[0], x[1])),
    "scatter_add": ("input", lambda x, i, r: torch.scatter_add(x[0], i[0], x[1], x[2])),
    "one_hot": ("input", lambda x, i, r: F.one_hot(x[0], i[0])),
    "stack": ("input", lambda x, i, r: torch.stack(x, i[0])),
    "split": ("input", lambda x, i, r: torch.split(x[0], i[0], i[1])[i[2]]),
    "chunk": ("input", lambda x, i, r: torch.chunk(x[0], i[0], i[1])[i[2]]),
    "flip": ("input", lambda x, i, r: torch.flip(x[0], i)),
    "roll": ("input", lambda x, i, r: torch.roll(x[0], i[0], i[1])),
    "repeat": ("input", lambda x, i, r: x[0].repeat(i)),
    "pad": ("input", lambda x, i, r: F.pad(x[0], i, value=r[0])),
    "tril": ("input", lambda x, i, r: torch.tril(x[0], i[0])),
    "triu": ("input", lambda x, i, r: torch.triu(x[0], i[0])),
    "nll_loss": ("loss", class_loss(F.nll_loss)),
    "cross_entropy": ("loss", class_loss(F.cross_entropy)),
    "mse_loss": ("loss", lambda x, i,
                 r: F.mse_loss(x[0], x[1], reduction=["mean", "sum", "none"][i[0]])),
}
CHOOSES = {"max", "argmax", "min", "argmin"}  # what is exact in any dtype runs in its own
# Their backward reads a saved output or pre-activation, or an intermediate gradient. Whether that
# was rounded to half first is a choice of the implementation (PyTorch's own half kernels do round),
# and results move with it. Where the two choices differ by more than the tolerance, atol is 1.5
# times that; where such values are summed, atol is at least one rounding of every term.
ROUNDS_BETWEEN = {"exp", "sqrt", "rsqrt", "tanh", "sigmoid", "softmax", "log_softmax", "linear",
                  "div", "matmul"}
SUMS = {"matmul", "linear", "sum", "mean", "add", "sub", "mul", "div", "expand", "softmax",
        "log_softmax", "cross_entropy", "nll_loss", "mse_loss", "pow", "minimum",
        "maximum", "where", "prod", "var", "std", "norm", "logsumexp", "cumsum",
        "scatter_add", "repeat", "gather", "index_select"}


def round_through(x, dtype):
    """x rounded to dtype, kept in fp32, with the gradient passing unrounded."""
    return x + (x.to(dtype).float() - x).detach()


def floating(x):
    return x.dtype in (F32, F16, BF16)


def run_policy(op, inputs, ints, reals, region):
    """Output of an op under mptrain's policy; differentiable in `inputs`."""
    kind, function = OPS[op]
    dtypes = [x.dtype for x in inputs if floating(x)]
    result = dtypes[0] if dtypes and all(d == dtypes[0] for d in dtypes) else F32
    wide = [x.float() if floating(x) else x for x in inputs]
    if op == "cast":
        code = {v: k for k, v in DTYPE_CODE.items()}[ints[0]]
        return inputs[0].to(code)
    if kind == "low" and region:
        wide = [round_through(x, region) if floating(x) else x for x in wide]
        result = region
    elif kind == "loss" or (kind == "fp32" and region):
        result = F32
    if op in CHOOSES or not dtypes:
        return function(inputs if op in CHOOSES else wide, ints, reals)
    out = function(wide, ints, reals)
    return out.to(result) if out.is_floating_point() else out


def gradients(out, upstream, leaves):
    found = torch.autograd.grad(out, leaves, upstream, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves)]


def excess(a, b, rtol):
    """By how much a and b differ beyond the relative tolerance."""
    a, b = a.double(), b.double()
    over = (a - b).abs() - rtol * b.abs()
    over = over[torch.isfinite(over)]
    return max(0.0, over.max().item()) if over.numel() else 0.0


def widen(op, inputs, ints, reals, upstream, want, gradient_wants, leaf_index):
    """atol of output and gradients. Summation order is free: two orders of a sum of terms t differ
    by about 2^-24 sum |t| each, so 2^-22 of the sum of absolute values is allowed."""
    if (op not in SUMS and OPS[op][0] != "low") or not want.is_floating_point():
        return ATOL, [ATOL] * len(leaf_index)
    sizes = [x.detach().double().abs().requires_grad_() if floating(x) else x for x in inputs]
    if OPS[op][0] == "low" or op in ("sum", "mean"):
        out = (F.linear(sizes[0], sizes[1], sizes[2] if len(sizes) > 2 else None)
               if op == "linear" else OPS[op][1](sizes, ints, reals))
        out_atol = max(ATOL, 2.0 ** -22 * (out.max().item() if out.numel() else 0.0))
        totals = gradients(out, upstream.detach().double().abs(), [sizes[k] for k in leaf_index])
    else:
        out_atol = max(ATOL, 2.0 ** -22 * want.float().nan_to_num(0, 0, 0).abs().sum().item() / 8)
        totals = [g.double().abs().sum().reshape(1) / 8 for g in gradient_wants]
    return out_atol, [max(ATOL, 2.0 ** -22 * (t.nan_to_num(0, 0, 0).max().item() if t.numel()
                                              else 0)) for t in totals]


loosened = {}  # op and dtype: the widened atols, for the log


def op_case(op, label, inputs, ints=(), reals=(), region=None, layouts=None, no_grad=False,
            constant=()):
    """A case from tensors in their storage dtypes."""
    layouts = layouts or [DENSE] * len(inputs)
    ints, reals = list(ints), list(reals)
    leaf_index = [k for k, x in enumerate(inputs)
                  if floating(x) and k not in constant and not no_grad]
    inputs = [x.detach().clone() for x in inputs]
    for k in leaf_index:
        inputs[k].requires_grad_()
    out = run_policy(op, inputs, ints, reals, region)
    tensors = [Tensor(f"in{k}", x.detach(), LEAF if k in leaf_index else CONSTANT, k, layouts[k])
               for k, x in enumerate(inputs)]
    if out.requires_grad and leaf_index:
        upstream = noise(label + "/upstream", out.shape).to(out.dtype)
        wants = gradients(out, upstream, [inputs[k] for k in leaf_index])
        out_atol, atols = widen(op, inputs, ints, reals, upstream, out, wants, leaf_index)
        # A gradient is as exact as the coarsest dtype it passes.
        rtol = max(RTOL[x.dtype] for x in [out, *inputs] if floating(x))
        exact = (op == "div" and out.dtype == F32) or (op == "matmul" and not ints)
        if op in ROUNDS_BETWEEN and rtol > RTOL[F32] and not exact:
            natives = native_results(op, inputs, ints, reals, upstream, leaf_index, region)
            sums = [ATOL, *sums_of_roundings(op, inputs, ints, reals, upstream, leaf_index, rtol)]
            fair = [max(1.5 * excess(native, want, rtol), s)
                    for native, want, s in zip(natives, [out, *wants], sums)]
            fair[0] = fair[0] if op == "linear" else ATOL
            out_atol, *atols = [max(a, f) for a, f in zip([out_atol, *atols], fair)]
            widened = loosened.setdefault(f"{op} {DTYPE_NAME[out.dtype]}", [])
            widened += [a for a in (out_atol, *atols) if a > ATOL]
        tensors.append(Tensor("out", out, OUTPUT, atol=out_atol))
        tensors.append(Tensor("upstream", upstream, UPSTREAM))
        tensors += [Tensor(f"g{k}", g, GRADIENT, k, layouts[k], a, rtol)
                    for k, g, a in zip(leaf_index, wants, atols)]
    else:
        tensors.append(Tensor("out", out, OUTPUT))
    return Case(op, label, ints, reals, tensors, region)


def native_results(op, inputs, ints, reals, upstream, leaf_index, region):
    """Output and gradients as PyTorch's half kernels give them, each storing its result in half."""
    target = {"low": region, "fp32": F32}.get(OPS[op][0]) if region else None
    cast = [x.detach().to(target) if target and floating(x) else x.detach() for x in inputs]
    for k in leaf_index:
        cast[k].requires_grad_()
    out = OPS[op][1](cast, ints, reals)
    return [out, *gradients(out, upstream.to(out.dtype), [cast[k] for k in leaf_index])]


def sums_of_roundings(op, inputs, ints, reals, upstream, leaf_index, rtol):
    """For gradients that are sums of terms with a rounded factor: half an ulp of all terms."""
    if op not in ("div", "matmul") and not (op == "linear" and ints[0]):
        return [ATOL] * len(leaf_index)
    half_ulp = 2.0 ** -11 if rtol == RTOL[F16] else 2.0 ** -8
    sizes = [x.detach().double().abs().requires_grad_() for x in inputs]
    out = linear(sizes, [0], reals) if op == "linear" else OPS[op][1](sizes, ints, reals)
    totals = gradients(out, upstream.detach().double().abs(), [sizes[k] for k in leaf_index])
    affected = {"div": (1,), "matmul": (0,), "linear": (0, 1, 2)}[op]  # the other operand is exact
    return [half_ulp * t.abs().max().item() if k in affected else ATOL
            for k, t in zip(leaf_index, totals)]


def binary_cases(dtype):
    d = DTYPE_NAME[dtype]
    shapes = [((3, 4), (3, 4), None), ((2, 3, 4), (4,), None), ((3, 1), (1, 5), None),
              ((1,), (1,), None), ((), (2, 3), None), ((4, 1, 3), (2, 1), None),
              ((70,), (70,), None),
              ((5, 3), (5, 3), [TRANSPOSED, SLICED]), ((2, 4, 3), (4, 3), [SLICED, TRANSPOSED])]
    for op in ("add", "sub", "mul", "div"):
        for a, b, layouts in shapes:
            label = f"{op} {d} {list(a)} {list(b)}{' strided' if layouts else ''}"
            x, y = noise(label + "/a", a, 2), noise(label + "/b", b, 2)
            if op == "div":
                y = torch.where(y < 0, y - 0.5, y + 0.5)
            yield op_case(op, label, [x.to(dtype), y.to(dtype)], layouts=layouts)
    x = torch.tensor([0, -0.0, 1, math.nan, math.inf, 2, -math.inf]).to(dtype)
    y = torch.tensor([-0.0, 0, 1, math.nan, math.inf, 3, math.inf]).to(dtype)
    yield op_case("equal", f"equal {d}", [x, y], no_grad=True)
    yield op_case("isnan", f"isnan {d}", [x], no_grad=True)
    yield op_case("isinf", f"isinf {d}", [x], no_grad=True)


def unary_cases(dtype):
    d = DTYPE_NAME[dtype]
    special = torch.tensor([0, -0.0, 1, -1, 1e-4, -1e-4, 30, -30, math.inf, -math.inf, math.nan])
    scalars = {"add_scalar": [0.75], "mul_scalar": [-1.5]}
    for op in ("neg", "exp", "log", "sqrt", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid",
               "add_scalar", "mul_scalar"):
        reals = scalars.get(op, [])
        for shape, layout in (((7,), 0), ((1,), 0), ((), 0), ((2, 3, 4), 0), ((67,), 0),
                              ((5, 3), TRANSPOSED), ((3, 5), SLICED)):
            label = f"{op} {d} {list(shape)}{' strided' if layout else ''}"
            x = noise(label, shape, 4)
            x = x.abs() + 0.05 if op in ("log", "sqrt") else x
            yield op_case(op, label, [x.to(dtype)], reals=reals, layouts=[layout])
        values = special
        if op.startswith("gelu"):  # the ends, where x^3 leaves half, and the published values
            values = torch.tensor([0, -0.0, 1, -1, 3, -3, 41, -41, 100, -100, 1e-3, math.nan])
        yield op_case(op, f"{op} {d} special", [values.to(dtype)], reals=reals, no_grad=True)
    x = torch.tensor([0, -0.0, -1, 1, 6e-8, -6e-8]).to(dtype)
    yield op_case("relu", f"relu {d} at zero", [x])


POSITIVE = ("log1p", "rsqrt", "pow_scalar")
# Ops of one input, and the numbers that they are given.
NUMBERS = {"log1p": [[]], "rsqrt": [[]], "abs": [[]], "sign": [[]], "sin": [[]], "cos": [[]],
           "silu": [[]], "pow_scalar": [[2.0], [3.0], [-1.5], [0.0]], "leaky_relu": [[0.01]],
           "elu": [[1.0], [0.5]], "softplus": [[1.0, 20.0], [2.0, 3.0]],
           "hardtanh": [[-1.0, 1.0]],
           "clamp": [[-1.0, 1.5], [-math.inf, 0.5], [0.25, math.inf], [2.0, 2.0]]}
SPECIAL = [0, -0.0, 1, -1, 1e-4, -1e-4, 30, -30, math.inf, -math.inf, math.nan]


def function_cases(dtype):
    d = DTYPE_NAME[dtype]
    for op, settings in NUMBERS.items():
        for reals in settings:
            for shape, layout in (((7,), 0), ((5, 3), TRANSPOSED), ((3, 5), SLICED)):
                if layout and reals != settings[0]:
                    continue
                label = f"{op} {d} {list(shape)} {reals}"
                x = noise(label, shape, 4)
                x = x.abs() + 0.05 if op in POSITIVE else x
                yield op_case(op, label, [x.to(dtype)], reals=reals, layouts=[layout])
            yield op_case(op, f"{op} {d} special {reals}", [torch.tensor(SPECIAL).to(dtype)],
                          reals=reals, no_grad=True)
    # Gradients at the bounds and at zero.
    edges = torch.tensor([-1, 1, 0, -0.0, 0.5, 2, -2, math.nan]).to(dtype)
    for op in ("clamp", "hardtanh"):
        yield op_case(op, f"{op} {d} at the bounds", [edges], reals=[-1.0, 1.0])
    for op, reals in (("abs", []), ("sign", []), ("leaky_relu", [0.1]), ("elu", [1.0])):
        yield op_case(op, f"{op} {d} at zero", [edges[:-1]], reals=reals)
    far = torch.tensor([3e4, -6e4, 1e4, 355, -710, 22, 0.7, 1e-7])
    wide = torch.tensor([1e6, -3e7, 1.5e10, 3.4e38, -7e22, 16367173, 2.6e15, 1e30])
    for op in ("sin", "cos"):
        yield op_case(op, f"{op} {d} far", [(far if dtype == F16 else wide).to(dtype)])
    shapes = [((3, 4), (3, 4), None), ((2, 1, 4), (3, 1), None),
              ((5, 3), (5, 3), [TRANSPOSED, SLICED])]
    for op in ("pow", "minimum", "maximum"):
        for a, b, layouts in shapes:
            label = f"{op} {d} {list(a)} {list(b)}{' strided' if layouts else ''}"
            x, y = noise(label + "/a", a, 2), noise(label + "/b", b, 2)
            x = x.abs() + 0.1 if op == "pow" else x
            yield op_case(op, label, [x.to(dtype), y.to(dtype)], layouts=layouts)
    a = torch.tensor([0, -0.0, 1, 2, math.nan, 1, math.inf, -3, math.nan, -math.inf]).to(dtype)
    b = torch.tensor([0, 0, 1, 3, 1, math.nan, math.inf, 2, math.nan, 2]).to(dtype)
    for op in ("minimum", "maximum"):
        yield op_case(op, f"{op} {d} ties", [a, b])
    base = torch.tensor([0, 0, 0, -2, -2, -2, 1, -1, math.inf, -math.inf, -0.0, 2, math.nan, 1])
    power = torch.tensor([0, 2, -1, 3, 2, 0.5, math.nan, math.inf, -1, 3, -3, -math.inf, 0, 5])
    yield op_case("pow", f"pow {d} special", [base.to(dtype), power.to(dtype)], no_grad=True)
    yield op_case("pow", f"pow {d} at zero",
                  [torch.tensor([0, 0, 0, 2.0]).to(dtype), torch.tensor([1, 2, 3, 0.0]).to(dtype)])
    for op in ("lt", "le", "gt", "ge", "ne", "logical_and", "logical_or"):
        yield op_case(op, f"{op} {d}", [a, b], no_grad=True)
        if dtype == F32:
            whole = [torch.tensor([2 ** 53, 0, -3, 7]), torch.tensor([2 ** 53 + 1, 0, 2, -7])]
            yield op_case(op, f"{op} i64", whole)
    yield op_case("logical_not", f"logical_not {d}", [a], no_grad=True)
    truth = torch.tensor([[True, False, True, False], [False, False, True, True],
                          [True, True, True, False]])
    for label, condition, x, y, layouts in (
            ("plain", truth, (3, 4), (3, 4), None), ("row", truth[0], (3, 1), (3, 4), None),
            ("one", truth[:, :1], (4,), (), None),
            ("strided", truth, (3, 4), (3, 4), [TRANSPOSED, SLICED, TRANSPOSED])):
        label = f"where {d} {label}"
        yield op_case("where", label, [condition, noise(label + "/a", x).to(dtype),
                                       noise(label + "/b", y).to(dtype)], layouts=layouts)
    yield op_case("where", f"where {d} special", [truth[0].repeat(3)[:10], a, b])


def matmul_cases(dtype):
    d = DTYPE_NAME[dtype]
    shapes = [((2, 3), (3, 4)), ((5,), (5,)), ((3, 4), (4,)), ((4,), (4, 3)),
              ((2, 3, 4), (2, 4, 5)),
              ((2, 1, 3, 4), (3, 4, 2)), ((1, 1), (1, 1)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)),
              ((2, 3, 4), (4, 2)), ((17, 33), (33, 19)), ((1, 40), (40, 1)), ((3, 520), (520, 2))]
    for a, b in shapes:
        label = f"matmul {d} {list(a)} {list(b)}"
        yield op_case("matmul", label,
                      [noise(label + "/a", a).to(dtype), noise(label + "/b", b).to(dtype)])
    for la, lb in ((TRANSPOSED, DENSE), (DENSE, TRANSPOSED), (TRANSPOSED, SLICED)):
        label = f"matmul {d} strided {la} {lb}"
        yield op_case("matmul", label, [noise(label + "/a", (2, 5, 6)).to(dtype),
                                        noise(label + "/b", (2, 6, 3)).to(dtype)], layouts=[la, lb])
    for a, b in (((3, 1), (6, 4)), ((2, 20, 1), (5, 30))):
        label = f"matmul {d} expanded {list(a)} {list(b)}"
        yield op_case("matmul", label, [noise(label + "/a", a).to(dtype),
                                        noise(label + "/b", b).to(dtype)], [b[0]])
    for kind, name in enumerate(ACTIVATIONS):
        for x, n, bias, layout in (((4, 6), 3, True, 0), ((2, 3, 6), 5, False, 0),
                                   ((1, 1), 1, True, 0),
                                   ((5,), 2, True, 0), ((6, 7), 4, True, TRANSPOSED),
                                   ((9, 35), 18, True, 0)):
            if kind > 1 and layout:
                continue
            label = (f"linear {d} {name} {list(x)} to {n}{'' if bias else ' no bias'}"
                     f"{' strided' if layout else ''}")
            parts = [noise(label + "/x", x), noise(label + "/w", (n, x[-1]))]
            parts += [noise(label + "/b", (n,))] if bias else []
            yield op_case("linear", label, [p.to(dtype) for p in parts], [kind],
                          layouts=[layout, layout] + [0] * (len(parts) - 2))


def distinct(label, shape):
    """Values that stay distinct in bf16, in an order of their own."""
    n = int(np.prod(shape))
    order = np.argsort(uniform(zlib.crc32(label.encode()), n), kind="stable")
    return (torch.from_numpy(order.astype(np.float32)) - n // 2).reshape(shape) / 4


def reduction_cases(dtype):
    d = DTYPE_NAME[dtype]
    for op in ("sum", "mean", "max", "argmax"):
        for shape, dim, keep, layout in (
                ((3, 4, 5), 0, 0, 0), ((3, 4, 5), 1, 1, 0), ((3, 4, 5), -1, 0, 0),
            ((3, 4, 5), ALL, 0, 0),
                ((7,), 0, 1, 0), ((1,), 0, 0, 0), ((), ALL, 0, 0), ((2, 1, 3), 1, 0, 0),
                ((5, 3), 0, 0, TRANSPOSED), ((5, 3), 1, 1, SLICED), ((4, 3), ALL, 0, SLICED),
                ((2, 77), 1, 0, 0), ((77, 2), 0, 0, 0), ((200,), ALL, 0, 0)):
            label = (f"{op} {d} {list(shape)} {'all' if dim == ALL else dim}"
                     f"{' keep' if keep else ''}{' strided' if layout else ''}")
            x = distinct(label, shape) if op in ("max", "argmax") else noise(label, shape)
            yield op_case(op, label, [x.to(dtype)], [dim, keep], layouts=[layout])
    for op in ("softmax", "log_softmax"):
        for shape, dim, layout in (((4, 5), 1, 0), ((4, 5), 0, 0), ((2, 3, 4), 1, 0),
                                   ((1, 1), -1, 0),
                                   ((6,), 0, 0), ((5, 3), 1, TRANSPOSED), ((3, 5), -1, SLICED),
                                   ((3, 70), 1, 0)):
            label = f"{op} {d} {list(shape)} {dim}{' strided' if layout else ''}"
            yield op_case(op, label, [noise(label, shape, 3).to(dtype)], [dim], layouts=[layout])
        big = torch.tensor([[500.0, 499, -500], [0, 0, 0], [-60, 30, 30]]).to(dtype)
        yield op_case(op, f"{op} {d} large", [big], [1])
        masked = torch.tensor([[-math.inf, 1, 2], [-math.inf] * 3, [1, math.nan, 0]]).to(dtype)
        yield op_case(op, f"{op} {d} masked", [masked], [1], no_grad=True)
    for dim in (0, 1):  # NaN wins, and the first of ties
        ties = torch.tensor([[1, 3, 3, 2], [1, math.nan, 3, math.nan], [1, 0, 3, 2.0]]).to(dtype)
        yield op_case("max", f"max {d} ties {dim}", [ties], [dim, 0], no_grad=True)
        yield op_case("argmax", f"argmax {d} ties {dim}", [ties], [dim, 0])
    yield op_case("max", f"max {d} ties gradient",
                  [torch.tensor([[1, 3, 3], [2, 2, 2.0]]).to(dtype)], [1, 0])


def statistic_cases(dtype):
    d = DTYPE_NAME[dtype]
    shapes = (((3, 4, 5), 1, 1, 0), ((3, 4), ALL, 0, 0), ((5, 3), 0, 0, TRANSPOSED),
              ((2, 77), -1, 0, 0), ((), 0, 0, 0))
    settings = {"min": [], "argmin": [], "prod": [], "logsumexp": [], "var": [1.0], "std": [0.0],
                "norm": [2.0]}
    for op, reals in settings.items():
        for shape, dim, keep, layout in shapes:
            if op == "prod" and 77 in shape or op in ("var", "std") and not shape:
                continue
            label = f"{op} {d} {list(shape)} {dim} {keep}"
            x = distinct(label, shape) if op in ("min", "argmin") else noise(label, shape, 2)
            yield op_case(op, label, [x.to(dtype)], [dim, keep], reals, layouts=[layout])
    x = noise(f"norm {d}", (4, 5), 2).to(dtype)
    for p in (1.0, math.inf):
        yield op_case("norm", f"norm {d} {p}", [x], [1, 0], [p])
        yield op_case("norm", f"norm {d} {p} all", [x], [ALL, 0], [p])
    ties = torch.tensor([[3, -3, 1], [0, 0, 0.0]]).to(dtype)
    for p in (1.0, 2.0, math.inf):
        yield op_case("norm", f"norm {d} {p} ties", [ties], [1, 0], [p])
    zeros = torch.tensor([[2, 0, 3], [0, 0, 4], [2, 1.5, -1]]).to(dtype)
    yield op_case("prod", f"prod {d} zeros", [zeros], [1, 0])
    yield op_case("std", f"std {d} constant", [torch.ones(2, 3).to(dtype)], [1, 0], [1.0])
    yield op_case("var", f"var {d} one", [torch.ones(2, 1).to(dtype)], [1, 0], [1.0], no_grad=True)
    far = torch.tensor([[-math.inf, -math.inf, -math.inf], [math.inf, 1, 2], [-math.inf, 1, 500],
                        [math.nan, 0, 1]]).to(dtype)
    yield op_case("logsumexp", f"logsumexp {d} far", [far], [1, 0], no_grad=True)
    nans = torch.tensor([[1, math.nan, 0], [2, 1, 1], [math.inf, -math.inf, 0]]).to(dtype)
    for op in ("min", "argmin"):
        yield op_case(op, f"{op} {d} ties", [nans], [1, 0], no_grad=True)
    for shape, dim, layout in (((3, 4, 5), 1, 0), ((300,), 0, 0), ((5, 3), -1, TRANSPOSED),
                               ((), 0, 0)):
        label = f"cumsum {d} {list(shape)} {dim}"
        yield op_case("cumsum", label, [noise(label, shape).to(dtype)], [dim], layouts=[layout])


def view_cases(dtype):
    d = DTYPE_NAME[dtype]

    def case(op, shape, ints, layout=0):
        label = f"{op} {d} {list(shape)} {ints}{' strided' if layout else ''}"
        return op_case(op, label, [noise(label, shape).to(dtype)], ints, layouts=[layout])
    for shape, ints in (((5, 4), [0, 1, 4, 1]), ((5, 4), [1, 0, 4, 2]), ((2, 7), [-1, -5, -1, 3]),
                        ((3,), [0, 2, 3, 1]), ((3, 4), [0, 0, 3, 1])):
        yield case("slice", shape, ints)
    yield case("slice", (5, 4), [0, 1, 4, 2], TRANSPOSED)
    for shape, ints in (((2, 3, 4), [2, 0, 1]), ((3, 4), [1, 0]), ((5,), [0]),
                        ((2, 1, 3, 2), [3, 1, 0, 2])):
        yield case("permute", shape, ints)
    yield case("transpose", (2, 3, 4), [0, -1])
    for shape, ints in (((3, 1), [3, 4]), ((1,), [2, 5]), ((2, 1, 3), [4, 2, 5, 3])):
        yield case("expand", shape, ints)
    for shape, ints in (((3, 4), [2, 6]), ((3, 4), [-1]), ((2, 3, 2), [2, -1]), ((1,), [1, 1, 1])):
        yield case("reshape", shape, ints)
    yield case("reshape", (3, 4), [2, 6], TRANSPOSED)
    yield case("flatten", (2, 3, 2, 2), [1, -1])
    yield case("flatten", (2, 3, 2), [0, 1], SLICED)
    for op in ("contiguous", "clone"):
        yield case(op, (3, 4), [], TRANSPOSED)
        yield case(op, (3, 4), [])
    for shapes, dim, layouts in ((((2, 3), (4, 3)), 0, None), (((2, 3), (2, 1), (2, 2)), -1, None),
                                 (((3,), (1,)), 0, None),
                                 (((2, 3, 2), (2, 2, 2)), 1, [SLICED, TRANSPOSED])):
        label = f"cat {d} {[list(s) for s in shapes]} {dim}"
        yield op_case("cat", label,
                      [noise(f"{label}/{k}", s).to(dtype) for k, s in enumerate(shapes)],
                      [dim], layouts=layouts)
    for to in (F32, F16, BF16):
        label = f"cast {d} {DTYPE_NAME[to]}"
        yield op_case("cast", label, [noise(label, (3, 5), 70).to(dtype)], [DTYPE_CODE[to]],
                      layouts=[TRANSPOSED])
    x = torch.tensor([0, -0.0, 1.5, -2.75, 100, -0.5]).to(dtype)
    for to in (F64, I64, BOOL):
        yield op_case("cast", f"cast {d} {DTYPE_NAME[to]}", [x], [DTYPE_CODE[to]], no_grad=True)


def index_cases(dtype):
    d = DTYPE_NAME[dtype]
    for op, shape, ints, layout in (
            ("flip", (3, 4), [0], 0), ("flip", (2, 3, 4), [-1], 0), ("flip", (5, 3), [1], TRANSPOSED),
            ("roll", (5, 3), [2, 0], 0), ("roll", (2, 7), [-3, -1], SLICED), ("roll", (4,), [9, 0], 0),
            ("repeat", (2, 3), [2, 3], 0), ("repeat", (3,), [2, 1, 2], 0),
            ("repeat", (3, 1), [1, 4], TRANSPOSED),
            ("tril", (4, 5), [0], 0), ("tril", (2, 5, 3), [-1], 0), ("tril", (5, 3), [1], TRANSPOSED),
            ("triu", (4, 5), [0], 0), ("triu", (2, 3, 5), [2], 0), ("triu", (5, 3), [-2], TRANSPOSED),
            ("split", (5, 3), [2, 0, 2], 0), ("split", (2, 7), [3, -1, 1], 0),
            ("chunk", (7, 2), [3, 0, 2], 0), ("chunk", (2, 4), [2, 1, 0], TRANSPOSED)):
        label = f"{op} {d} {list(shape)} {ints}"
        yield op_case(op, label, [noise(label, shape).to(dtype)], ints, layouts=[layout])
    for shape, ints, layout in (((3, 4), [1, 2], 0), ((2, 3), [0, 1, 2, 0], 0),
                                ((5, 3), [1, 0, 0, 1], TRANSPOSED)):
        label = f"pad {d} {list(shape)} {ints}"
        yield op_case("pad", label, [noise(label, shape).to(dtype)], ints, [0.5], layouts=[layout])
    for shape, dim, count in (((2, 3), 0, 3), ((2, 3), -1, 2), ((3,), 1, 2), ((2,), 0, 9)):
        label = f"stack {d} {list(shape)} {dim}"
        if count > 8 and dtype != F32:
            continue
        yield op_case("stack", label,
                      [noise(f"{label}/{k}", shape).to(dtype) for k in range(min(count, 8))], [dim])
    picks = torch.tensor([[0, 2, 1], [2, 2, 0]])
    for op, shape, dim, index, layouts in (
            ("gather", (2, 3), 1, picks, None), ("gather", (3, 3), 0, picks, None),
            ("gather", (5, 3), 0, picks, [TRANSPOSED, TRANSPOSED]),
            ("index_select", (4, 3), 0, torch.tensor([3, 0, 3, 1, 3]), None),
            ("index_select", (2, 3, 4), 1, torch.tensor([2, 2]), None),
            ("index_select", (5, 3), -1, torch.tensor([1, 0, 2, 1]), [TRANSPOSED, SLICED])):
        label = f"{op} {d} {list(shape)} {dim}{' strided' if layouts else ''}"
        yield op_case(op, label, [noise(label, shape).to(dtype), index], [dim], layouts=layouts)
    for shape, dim, layouts in (((2, 3), 1, None), ((4, 3), 0, None),
                                ((3, 3), 0, [TRANSPOSED, DENSE, SLICED])):
        label = f"scatter_add {d} {list(shape)} {dim}{' strided' if layouts else ''}"
        yield op_case("scatter_add", label, [noise(label + "/a", shape).to(dtype), picks,
                                             noise(label + "/b", (2, 3)).to(dtype)], [dim],
                      layouts=layouts)
    if dtype == F32:
        yield op_case("one_hot", "one_hot", [picks], [4], layouts=[TRANSPOSED])


def loss_cases(dtype, region=None):
    d = DTYPE_NAME[dtype] + (f" in {DTYPE_NAME[region]}" if region else "")
    targets = torch.tensor([2, 0, 3, 3, 1, 0])
    ignoring = torch.tensor([2, -100, 3, -100, 1, 0])
    custom = torch.tensor([2, 1, 3, 3, 1, 0])  # 1 is ignored
    weight = torch.tensor([0.5, 2, 1, 0.25])
    for op in ("nll_loss", "cross_entropy"):
        smoothings = [0.0] if op == "nll_loss" else [0.0, 0.1]
        for smoothing in smoothings:
            for kind in (MEAN, SUM, NONE):
                for name, t, index in (("plain", targets, -100), ("ignore", ignoring, -100),
                                       ("ignore 1", custom, 1)):
                    for w in (None, weight):
                        if region and (name != "ignore" or kind != MEAN):
                            continue
                        label = (f"{op} {d} {name} {kind}{'' if w is None else ' weight'} "
                                 f"smoothing {smoothing}")
                        x = noise(label, (6, 4), 2)
                        x = F.log_softmax(x, 1) if op == "nll_loss" else x
                        yield op_case(op, label, [x.to(dtype), t] + ([] if w is None else [w]),
                                      [kind, index],
                                      [smoothing], region=region, constant=(2,))
            if region:
                continue
            x = noise(f"{op} one", (4,), 2)
            yield op_case(op, f"{op} {d} 1-d smoothing {smoothing}", [x.to(dtype), torch.tensor(2)],
                          [MEAN, -100], [smoothing])
            yield op_case(op, f"{op} {d} batch 1 smoothing {smoothing}",
                          [x.reshape(1, 4).to(dtype), torch.tensor([1])], [MEAN, -100], [smoothing])
            x = noise(f"{op} strided", (6, 4), 2)
            yield op_case(op, f"{op} {d} strided smoothing {smoothing}", [x.to(dtype), targets],
                          [MEAN, -100], [smoothing], layouts=[TRANSPOSED, SLICED])
            # Nothing kept: mean is 0/0, sum is 0, and no gradient flows.
            none_kept = torch.full((6,), -100)
            for kind in (MEAN, SUM):
                yield op_case(op, f"{op} {d} all ignored {kind} smoothing {smoothing}",
                              [x.to(dtype), none_kept], [kind, -100], [smoothing])
    for kind in (MEAN, SUM, NONE):
        for shape, layouts in (((3, 4), None), ((1,), None), ((5, 3), [SLICED, TRANSPOSED]),
                               ((71,), None)):
            if region and (layouts or len(shape) < 2):
                continue
            label = f"mse_loss {d} {list(shape)} {kind}"
            yield op_case("mse_loss", label, [noise(label + "/a", shape, 2).to(dtype),
                                              noise(label + "/b", shape, 2).to(dtype)], [kind],
                          region=region, layouts=layouts)


def empty_cases():
    """Batches of no samples: mean NaN, sum 0."""
    for op in ("nll_loss", "cross_entropy"):
        for kind in (MEAN, SUM):
            yield op_case(op, f"{op} f32 empty {kind}",
                          [torch.empty(0, 4), torch.empty(0, dtype=I64)],
                          [kind, -100], [0.0], no_grad=True)
    for kind in (MEAN, SUM):
        yield op_case("mse_loss", f"mse_loss f32 empty {kind}",
                      [torch.empty(0, 4), torch.empty(0, 4)], [kind],
                      no_grad=True)


def region_cases(region):
    r = DTYPE_NAME[region]
    other = BF16 if region == F16 else F16

    def case(op, dtypes, shapes, ints=(), reals=(), positive=False):
        label = f"{op} in {r} of {' '.join(DTYPE_NAME[t] for t in dtypes)} {list(ints)}"
        xs = [noise(f"{label}/{k}", s, 1.5) for k, s in enumerate(shapes)]
        xs = [(x.abs() + 0.1 if positive else x).to(t) for x, t in zip(xs, dtypes)]
        return op_case(op, label, xs, ints, reals, region)
    for a, b in ((F32, F32), (region, F32), (region, region), (other, F32)):
        yield case("matmul", [a, b], [(5, 9), (9, 4)])
        for kind in range(len(ACTIVATIONS)):
            yield case("linear", [a, b, b], [(5, 9), (4, 9), (4,)], [kind])
        for op in ("add", "mul", "div", "sub"):
            yield case(op, [a, b], [(3, 4), (4,)], positive=op == "div")
        yield case("cat", [a, b], [(3, 4), (2, 4)], [0])
        yield case("maximum", [a, b], [(3, 4), (4,)])
        yield case("pow", [a, b], [(3, 4), (4,)], positive=True)
        label = f"where in {r} of {DTYPE_NAME[a]} {DTYPE_NAME[b]}"
        yield op_case("where", label, [torch.tensor([True, False, True]),
                                       noise(label + "/a", (2, 3)).to(a),
                                       noise(label + "/b", (2, 1)).to(b)], region=region)
    for d in (F32, region):
        for op in ("exp", "log", "sqrt", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid", "neg"):
            yield case(op, [d], [(4, 5)], positive=op in ("log", "sqrt"))
        for op in ("log1p", "rsqrt", "abs", "silu"):
            yield case(op, [d], [(4, 5)], positive=True)
        for op, reals in (("prod", []), ("logsumexp", []), ("var", [1.0]), ("norm", [2.0])):
            yield case(op, [d], [(4, 5)], [1, 0], reals)
        yield case("cumsum", [d], [(4, 5)], [1])
        yield case("pow_scalar", [d], [(4, 5)], reals=[1.5], positive=True)
        yield case("softplus", [d], [(4, 5)], reals=[1.0, 20.0])
        for op in ("sum", "mean"):
            yield case(op, [d], [(4, 5)], [1, 0])
            yield case(op, [d], [(4, 5)], [ALL, 0])
        for op in ("softmax", "log_softmax"):
            yield case(op, [d], [(4, 5)], [-1])
        yield from loss_cases(d, region)


def op_cases():
    cases = []
    for dtype in (F32, F16, BF16):
        for make in (binary_cases, unary_cases, function_cases, matmul_cases, reduction_cases,
                     statistic_cases, view_cases, index_cases, loss_cases):
            cases += make(dtype)
    cases += empty_cases()
    for region in (F16, BF16):
        cases += region_cases(region)
    missing = set(OPS) - set(LOSSES) - {c.op for c in cases}
    assert not missing, missing
    return cases


# ---- optimizers, schedules, scaler: a net of four parameters whose gradients are given ----

SHAPES = [(5, 7), (5,), (3, 5), (3,)]  # linear(7, 5) and linear(5, 3)
COUNTS = [int(np.prod(s)) for s in SHAPES]
P_STREAM, G_STREAM = 1000, 2000


def parameters(dtype=F32):
    whole = torch.from_numpy(uniform(P_STREAM, sum(COUNTS))).to(dtype)
    parts = [p.reshape(s).clone() for p, s in zip(whole.split(COUNTS), SHAPES)]
    return [torch.nn.Parameter(p) for p in parts]


def gradient_values(step, dtype=F32):
    whole = torch.from_numpy(uniform(G_STREAM + step, sum(COUNTS))).to(dtype)
    return [g.reshape(s) for g, s in zip(whole.split(COUNTS), SHAPES)]


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def make_optimizer(kind, params, c, fused=None, foreach=False, split=2):
    first, second = params[:split], params[split:]
    groups = ([{"params": first}, {"params": second, "lr": c["lr2"], "weight_decay": c["decay2"]}]
              if c["groups"] == 2 else [{"params": params}])
    how = {"fused": True} if fused else {"foreach": foreach}
    how.update(lr=c["lr"], weight_decay=c["decay"], maximize=bool(c["maximize"]))
    if kind == "sgd":
        return torch.optim.SGD(groups, momentum=c["momentum"], dampening=c["dampening"],
                               nesterov=bool(c["nesterov"]), **how)
    if kind == "rmsprop":
        return torch.optim.RMSprop(groups, alpha=c["alpha"], eps=c["eps"], momentum=c["momentum"],
                                   centered=bool(c["centered"]), **how)
    if kind == "adagrad":
        return torch.optim.Adagrad(groups, lr_decay=c["lr_decay"], eps=c["eps"],
                                   initial_accumulator_value=c["initial"], **how)
    if kind == "adadelta":
        return torch.optim.Adadelta(groups, rho=c["rho"], eps=c["eps"], **how)
    if kind == "lion":
        return Lion(groups, c)
    cls = torch.optim.Adam if kind == "adam" else torch.optim.AdamW
    return cls(groups, betas=(c["beta1"], c["beta2"]), eps=c["eps"], amsgrad=bool(c["amsgrad"]),
               **how)


class Lion(torch.optim.Optimizer):
    """arXiv 2302.06675, algorithm 2, decay before the step; torch.optim has none."""

    def __init__(self, groups, c):
        self.c = c
        super().__init__(groups, dict(lr=c["lr"], weight_decay=c["decay"]))

    @torch.no_grad()
    def step(self):
        c = self.c
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = -p.grad if c["maximize"] else p.grad
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * (c["beta1"] * m + (1 - c["beta1"]) * g).sign())
                m.mul_(c["beta2"]).add_(g, alpha=1 - c["beta2"])


REALS = ["lr", "decay", "momentum", "dampening", "beta1", "beta2", "eps", "lr2", "decay2", "alpha",
         "rho", "lr_decay", "initial"]
# missing: the last parameter has a gradient every third step; half: parameters and gradients are
# fp16, the optimizer works on fp32 copies of the parameters
INTS = ["nesterov", "groups", "missing", "steps", "amsgrad", "maximize", "centered", "half"]
DEFAULTS = dict(lr=1e-2, decay=0.0, momentum=0.0, dampening=0.0, beta1=0.9, beta2=0.999, eps=1e-8,
                lr2=0.0,
                decay2=0.0, alpha=0.99, rho=0.9, lr_decay=0.0, initial=0.0, nesterov=0, groups=1,
                missing=0, steps=50, amsgrad=0, maximize=0, centered=0, half=0)
OPTIMIZERS = [
    ("sgd", "plain", dict(lr=0.05)),
    ("sgd", "decay", dict(lr=0.05, decay=0.01)),
    ("sgd", "momentum", dict(momentum=0.9)),
    ("sgd", "dampening", dict(momentum=0.9, dampening=0.5)),
    ("sgd", "nesterov", dict(momentum=0.9, nesterov=1)),
    ("sgd", "nesterov decay", dict(momentum=0.9, nesterov=1, decay=0.05)),
    ("sgd", "groups", dict(momentum=0.9, decay=0.01, groups=2, lr2=0.002, decay2=0.1)),
    ("sgd", "missing", dict(momentum=0.9, decay=0.01, missing=1)),
    ("adam", "plain", dict()),
    ("adam", "decay", dict(decay=0.01)),
    ("adam", "betas", dict(beta1=0.8, beta2=0.95, eps=1e-4)),
    ("adam", "beta1 below half", dict(beta1=0.3, beta2=0.4)),
    ("adam", "missing", dict(decay=0.01, missing=1)),
    ("adamw", "plain", dict(decay=0.01)),
    ("adamw", "strong decay", dict(lr=1e-3, decay=0.5)),
    ("adamw", "groups", dict(decay=0.01, groups=2, lr2=1e-3)),
]
LONG = [
    ("sgd", "maximize", dict(momentum=0.9, decay=0.01, maximize=1)),
    ("sgd", "half", dict(momentum=0.9, decay=0.01, half=1)),
    ("adam", "maximize", dict(decay=0.01, maximize=1)),
    ("adam", "amsgrad", dict(amsgrad=1)),
    ("adam", "amsgrad decay", dict(amsgrad=1, decay=0.01, beta2=0.9, missing=1)),
    ("adamw", "amsgrad", dict(amsgrad=1, decay=0.1, maximize=1, groups=2, lr2=1e-3)),
    ("adamw", "amsgrad half", dict(amsgrad=1, decay=0.01, half=1)),
    ("rmsprop", "plain", dict()),
    ("rmsprop", "decay", dict(decay=0.01, alpha=0.9, eps=1e-4)),
    ("rmsprop", "momentum", dict(lr=1e-3, momentum=0.9)),
    ("rmsprop", "centered", dict(lr=1e-3, centered=1)),
    ("rmsprop", "centered momentum", dict(lr=1e-3, centered=1, momentum=0.8, decay=0.01, missing=1,
                                          maximize=1)),
    ("rmsprop", "groups", dict(groups=2, lr2=1e-3, decay2=0.1)),
    ("rmsprop", "half", dict(lr=1e-3, centered=1, momentum=0.8, half=1)),
    ("adagrad", "plain", dict(eps=1e-10)),
    ("adagrad", "decays", dict(lr=0.1, eps=1e-10, lr_decay=0.05, decay=0.01, initial=0.1)),
    ("adagrad", "missing", dict(lr=0.1, eps=1e-10, lr_decay=0.05, missing=1, maximize=1)),
    ("adagrad", "groups", dict(eps=1e-10, initial=0.5, groups=2, lr2=0.1, decay2=0.1)),
    ("adagrad", "half", dict(lr=0.1, eps=1e-10, half=1)),
    ("adadelta", "plain", dict(lr=1.0, eps=1e-6)),
    ("adadelta", "decay", dict(lr=0.5, eps=1e-4, rho=0.7, decay=0.01, maximize=1, missing=1)),
    ("adadelta", "groups", dict(lr=1.0, eps=1e-6, groups=2, lr2=0.1, decay2=0.1)),
    ("adadelta", "half", dict(lr=1.0, eps=1e-6, half=1)),
    ("lion", "plain", dict(lr=1e-3, beta2=0.99)),
    ("lion", "decay", dict(lr=1e-3, beta1=0.95, beta2=0.98, decay=0.1, maximize=1, missing=1)),
    ("lion", "groups", dict(lr=1e-3, beta2=0.99, groups=2, lr2=1e-2, decay2=0.1)),
    ("lion", "half", dict(lr=1e-3, beta2=0.99, half=1)),
]


def run_optimizer(kind, options, fused=None, foreach=False, dtype=F32):
    c = dict(DEFAULTS, **options)
    params = parameters(dtype)
    if c["half"]:
        for p in params:
            p.data = round_through(p.data, F16)
    optimizer = make_optimizer(kind, params, c, fused, foreach)
    trace = []
    for step in range(1, c["steps"] + 1):
        for p, g in zip(params, gradient_values(step, dtype)):
            p.grad = round_through(g, F16) if c["half"] else g.clone()
        if c["missing"] and step % 3:
            params[3].grad = None
        optimizer.step()
        if step % (c["steps"] // 5) == 0:
            trace.append(flat(params))
    return torch.stack(trace)


def optimizer_cases():
    long = [(kind, label, dict(options, steps=200)) for kind, label, options in LONG]
    for kind, label, options in OPTIMIZERS + long:
        c = dict(DEFAULTS, **options)
        plain = run_optimizer(kind, options)
        # PyTorch's fused SGD fails when a parameter gets its first gradient later than others.
        fused = kind in ("sgd", "adam", "adamw") and not c["missing"]
        trace = run_optimizer(kind, options, fused=True) if fused else plain
        exact = run_optimizer(kind, options, dtype=F64)
        # Additions to a parameter round; PyTorch's two forms and its own fp64 run show the size of
        # that, and twice the larger of them is allowed.
        atol = max(1e-6, 2 * (trace - plain).abs().max().item(),
                   2 * (trace - exact).abs().max().item())
        rtol = 2.0 ** -11 if c["half"] else None
        yield Case(kind, f"{kind} {label}", [c[k] for k in INTS], [c[k] for k in REALS],
                   [Tensor("parameters", trace, OUTPUT, atol=atol, rtol=rtol)])


def orthogonalised(g, coefficients, steps, eps):
    """Newton-Schulz iterations in the dtype of g, where torch.optim.Muon rounds to bf16."""
    a, b, c = coefficients
    x = g if g.size(0) <= g.size(1) else g.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x if g.size(0) <= g.size(1) else x.T


def run_muon(c, dtype, bf16):
    """torch.optim.Muon for the matrices, its products in bf16 or in `dtype`; AdamW for the rest."""
    inside = torch.optim._muon
    theirs = inside._zeropower_via_newtonschulz
    params = parameters(dtype)
    if c["half"]:
        for p in params:
            p.data = round_through(p.data, F16)
    muon = torch.optim.Muon(params[0::2], lr=c["lr"], weight_decay=c["decay"],
                            momentum=c["momentum"], nesterov=bool(c["nesterov"]),
                            ns_steps=c["ns_steps"],
                            adjust_lr_fn="match_rms_adamw" if c["match"] else "original")
    adamw = torch.optim.AdamW(params[1::2], lr=c["lr2"], weight_decay=c["decay2"])
    trace = []
    inside._zeropower_via_newtonschulz = theirs if bf16 else orthogonalised
    for step in range(1, c["steps"] + 1):
        for p, g in zip(params, gradient_values(step, dtype)):
            p.grad = round_through(g, F16) if c["half"] else g.clone()
            p.grad = -p.grad if c["maximize"] else p.grad
        if c["missing"] and step % 3:
            params[3].grad = None
        muon.step()
        adamw.step()
        if step % (c["steps"] // 5) == 0:
            trace.append(flat(params))
    inside._zeropower_via_newtonschulz = theirs
    return torch.stack(trace)


MUON_INTS = ["nesterov", "match", "bf16", "missing", "maximize", "half", "ns_steps", "steps"]
MUON_REALS = ["lr", "decay", "momentum", "lr2", "decay2"]
MUON = [
    ("plain", dict()),
    ("no nesterov", dict(nesterov=0, momentum=0.8)),
    ("match_rms_adamw", dict(match=1, lr=1e-3, decay=0.5)),
    ("missing", dict(missing=1, maximize=1, ns_steps=4)),
    ("half", dict(half=1, momentum=0)),
    ("bf16", dict(bf16=1)),
    ("bf16 match_rms_adamw", dict(bf16=1, match=1, nesterov=0)),
]


def muon_cases():
    for label, options in MUON:
        c = dict(dict(lr=0.02, decay=0.1, momentum=0.95, lr2=1e-3, decay2=0.01, nesterov=1, match=0,
                      bf16=0, missing=0, maximize=0, half=0, ns_steps=5, steps=50), **options)
        trace, exact = run_muon(c, F32, c["bf16"]), run_muon(c, F64, False)
        atol = max(2e-6, 2 * (trace - exact).abs().max().item())
        yield Case("muon", f"muon {label}", [c[k] for k in MUON_INTS], [c[k] for k in MUON_REALS],
                   [Tensor("parameters", trace, OUTPUT, atol=atol,
                           rtol=2.0 ** -11 if c["half"] else None)])


# One parameter that starts at 1, with these gradients, in fp64.
SMALL_GRADIENTS = [0.1, -0.2, 0.3, 0.0]
SMALL = [("adam", "trace adam", dict(lr=1e-3)),
         ("adam", "trace adam decay", dict(lr=1e-3, decay=0.01)),
         ("adamw", "trace adamw", dict(lr=1e-3, decay=0.01)),
         ("sgd", "trace momentum", dict(lr=0.1, momentum=0.9)),
         ("sgd", "trace nesterov", dict(lr=0.1, momentum=0.9, nesterov=1)),
         ("sgd", "trace dampening", dict(lr=0.1, momentum=0.9, dampening=0.5)),
         ("adam", "trace amsgrad", dict(lr=1e-3, amsgrad=1)),
         ("rmsprop", "trace rmsprop", dict(lr=0.01)),
         ("rmsprop", "trace centered", dict(lr=0.01, centered=1)),
         ("adagrad", "trace adagrad", dict(lr=0.01, eps=1e-10)),
         ("adadelta", "trace adadelta", dict(lr=1.0, eps=1e-6)),
         ("lion", "trace lion", dict(lr=1e-3, beta2=0.99, decay=0.1))]
KINDS = ["sgd", "adam", "adamw", "rmsprop", "adagrad", "adadelta", "lion"]


def small_cases():
    for kind, label, options in SMALL:
        c = dict(DEFAULTS, **options)
        p = torch.nn.Parameter(torch.ones(1, 1, dtype=F64))
        optimizer = make_optimizer(kind, [p], c)
        values = []
        for g in SMALL_GRADIENTS:
            p.grad = torch.full((1, 1), g, dtype=F64)
            optimizer.step()
            values.append(p.item())
        yield Case("small", label, [KINDS.index(kind)] + [c[k] for k in INTS],
                   [c[k] for k in REALS],
                   [Tensor("gradients", torch.tensor(SMALL_GRADIENTS, dtype=F64)),
                                           Tensor("parameters", torch.tensor(values, dtype=F64),
                                                  OUTPUT, atol=2e-7)])


def average_cases():
    """The averages over 40 steps of SGD after every 8th."""
    U = torch.optim.swa_utils
    for label, form, decay, make in (
            ("ema", 0, 0.9, lambda: dict(multi_avg_fn=U.get_ema_multi_avg_fn(0.9))),
            ("ema, short", 0, 0.25, lambda: dict(multi_avg_fn=U.get_ema_multi_avg_fn(0.25))),
            ("ema with warm-up", 1, 0.7, lambda: dict(
                avg_fn=lambda average, p, n: average.lerp(p, 1 - min(0.7, (1 + int(n)) /
                                                                     (10 + int(n)))))),
            ("swa", 2, 0.9, dict)):
        net = torch.nn.ParameterList(parameters())
        optimizer = torch.optim.SGD(net, lr=0.05, momentum=0.9)
        averages, trace = U.AveragedModel(net, **make()), []
        for step in range(1, 41):
            for p, g in zip(net, gradient_values(step)):
                p.grad = g.clone()
            optimizer.step()
            averages.update_parameters(net)
            if step % 8 == 0:
                trace.append(flat(averages.module))
        yield Case("average", f"average {label}", [form], [decay],
                   [Tensor("averages", torch.stack(trace), OUTPUT, atol=2e-6)])


def clip_cases():
    for label, scale, limit in (("above", 1.0, 0.5), ("below", 0.001, 0.5), ("zero", 0.0, 1.0),
                                ("limit 0", 1.0, 0.0),
                                ("just", 1.0, 4.0)):
        for op, p in (("clip_grad_norm", 2.0), ("clip_grad_norm", 1.0),
                      ("clip_grad_norm", math.inf), ("clip_grad_value", 0.0)):
            params = parameters()
            for parameter, g in zip(params, gradient_values(1)):
                parameter.grad = g * np.float32(scale)
            if op == "clip_grad_norm":
                norm = torch.nn.utils.clip_grad_norm_(params, limit, norm_type=p)
            else:
                norm = torch.tensor(0.0)
                torch.nn.utils.clip_grad_value_(params, limit)
            yield Case(op, f"{op} {label}, p = {p}", [], [scale, limit, p],
                       [Tensor("norm", norm, OUTPUT, atol=1e-7),
                        Tensor("gradients", flat([p.grad for p in params]), OUTPUT, atol=1e-9)])


def schedule_cases():
    S = torch.optim.lr_scheduler
    base, steps = 0.05, 60
    for label, kind, t_max, eta, warm, start in (
            ("cosine to the end", 0, 60, 0.0, 0, 0.0), ("cosine with floor", 0, 40, 0.001, 0, 0.0),
            ("cosine past its end", 0, 4, 0.0, 0, 0.0), ("warmup", 1, 0, 0.0, 10, 0.25),
            ("warmup of one step", 1, 0, 0.0, 1, 0.5),
        ("warmup then cosine", 1, 60, 0.0005, 15, 0.1)):
        p = torch.nn.Parameter(torch.zeros(3))
        optimizer = torch.optim.SGD([p], lr=base)
        if kind == 0:
            schedule = S.CosineAnnealingLR(optimizer, t_max, eta)
        else:
            schedule = S.LinearLR(optimizer, start, 1.0, warm)
            if t_max > warm:
                cosine = S.CosineAnnealingLR(optimizer, t_max - warm, eta)
                schedule = S.SequentialLR(optimizer, [schedule, cosine], [warm])
        rates, values = [], []
        for step in range(steps):
            rates.append(optimizer.param_groups[0]["lr"])
            p.grad = torch.from_numpy(uniform(3000 + step, 3))
            optimizer.step()
            values.append(p.detach().clone())
            schedule.step()
        yield Case("schedule", f"schedule {label}", [kind, t_max, warm, steps], [base, eta, start],
                   [Tensor("lr", torch.tensor(rates, dtype=F64), OUTPUT, atol=1e-9),
                    Tensor("parameters", torch.stack(values), OUTPUT, atol=2e-6)])

# Curves of 200 steps for two groups. A curve is (kind, counts, numbers, milestones); kinds as listed.
RATES = ["constant", "linear", "exponential", "step", "multi_step", "polynomial", "cosine",
         "cosine_restarts"]
CURVES = [
    ("constant", "single", [("constant", [20], [0.3], [])]),
    ("linear", "single", [("linear", [150], [0.25, 0.75], [])]),
    ("exponential", "single", [("exponential", [], [0.98], [])]),
    ("step", "single", [("step", [30], [0.5], [])]),
    ("multi_step", "single", [("multi_step", [3], [0.3], [20, 90, 90])]),
    ("polynomial", "single", [("polynomial", [150], [1.7], [])]),
    ("cosine", "single", [("cosine", [60], [0.004], [])]),
    ("restarts", "single", [("cosine_restarts", [40, 1], [0.002], [])]),
    ("restarts longer", "single", [("cosine_restarts", [13, 2], [0.0], [])]),
    ("sequential", "sequential", [("linear", [25], [0.1, 1.0], []),
                                  ("cosine", [100], [0.001], []),
                                  ("cosine_restarts", [10, 2], [0.0], []),
                                  ("multi_step", [2], [0.5], [5, 15])], [25, 110, 170]),
    ("sequential steps", "sequential", [("constant", [10], [0.2], []), ("step", [9], [0.9], []),
                                        ("exponential", [], [0.95], []),
                                        ("polynomial", [40], [1.0], [])], [12, 60, 140]),
    ("chained", "chained", [("linear", [30], [0.2, 1.0], []), ("exponential", [], [0.99], []),
                            ("step", [50], [0.5], []), ("multi_step", [1], [0.7], [77])]),
]
CYCLES = [  # optimizer, settings, arguments of OneCycleLR
    ("sgd", dict(momentum=0.5), dict(max_lr=0.1)),
    ("sgd", dict(momentum=0.9), dict(max_lr=[0.1, 0.03], pct_start=0.45, three_phase=True,
                                     div_factor=10.0, final_div_factor=50.0, base_momentum=0.6,
                                     max_momentum=0.9)),
    ("sgd", dict(momentum=0.0), dict(max_lr=0.05, anneal_strategy="linear", cycle_momentum=False)),
    ("adamw", dict(), dict(max_lr=0.01, pct_start=0.2, anneal_strategy="linear")),
    ("adam", dict(beta1=0.7), dict(max_lr=0.02)),
]
PLATEAUS = [
    dict(), dict(patience=3, factor=0.5, cooldown=4, threshold=0.05),
    dict(mode="max", patience=5, threshold_mode="abs", threshold=0.02, min_lr=0.004),
    dict(patience=2, factor=0.3, eps=0.003),
]


def make_curve(optimizer, curve):
    S = torch.optim.lr_scheduler
    kind, n, a, milestones = curve
    return {"constant": lambda: S.ConstantLR(optimizer, a[0], n[0]),
            "linear": lambda: S.LinearLR(optimizer, a[0], a[1], n[0]),
            "exponential": lambda: S.ExponentialLR(optimizer, a[0]),
            "step": lambda: S.StepLR(optimizer, n[0], a[0]),
            "multi_step": lambda: S.MultiStepLR(optimizer, milestones, a[0]),
            "polynomial": lambda: S.PolynomialLR(optimizer, n[0], a[0]),
            "cosine": lambda: S.CosineAnnealingLR(optimizer, n[0], a[0]),
            "cosine_restarts": lambda: S.CosineAnnealingWarmRestarts(optimizer, n[0], n[1], a[0]),
            }[kind]()


def trace_rates(kind, settings, make, metric=None, dtype=F32, steps=200):
    """The rates of both groups before each step, and the parameters after every 20th."""
    p = [torch.nn.Parameter(torch.zeros(n, dtype=dtype)) for n in (3, 1)]
    c = dict(DEFAULTS, **settings)
    c.update(lr=0.05, lr2=0.02, groups=2)
    optimizer = make_optimizer(kind, [p[0], p[1]], c, split=1)
    schedule = make(optimizer)
    rates, values = [], []
    for step in range(steps):
        rates.append([g["lr"] for g in optimizer.param_groups])
        g = torch.from_numpy(uniform(3000 + step, 4)).to(dtype)
        p[0].grad, p[1].grad = g[:3].clone(), g[3:].clone()
        optimizer.step()
        if step % 20 == 19:
            values.append(flat(p))
        schedule.step(*([] if metric is None else [metric[step]]))
    return torch.tensor(rates, dtype=F64), torch.stack(values)


def rate_case(label, form, ints, reals, tensors, kind, settings, make, metric=None):
    rates, values = trace_rates(kind, settings, make, metric)
    exact = trace_rates(kind, settings, make, metric, F64)[1]
    atol = max(2e-6, 2 * (values - exact).abs().max().item())
    return Case("rates", f"rates {label}", [form] + ints, reals, tensors + [
        Tensor("lr", rates, OUTPUT, rtol=1e-12, atol=1e-12),
        Tensor("parameters", values, OUTPUT, atol=atol)])


def rate_cases():
    S = torch.optim.lr_scheduler
    for label, form, curves, *at in CURVES:
        numbers, counts, milestones = [], [len(curves)], []
        for kind, n, a, m in curves:
            counts += [RATES.index(kind)] + (n + [0, 0])[:2]
            numbers += (a + [0.0, 0.0])[:2]
            milestones = m or milestones

        def make(optimizer):
            parts = [make_curve(optimizer, curve) for curve in curves]
            return (parts[0] if form == "single" else S.ChainedScheduler(parts) if form == "chained"
                    else S.SequentialLR(optimizer, parts, at[0]))
        yield rate_case(label, ["single", "sequential", "chained"].index(form), counts, numbers,
                        [Tensor("milestones", torch.tensor(milestones or [0])),
                         Tensor("at", torch.tensor(at[0] if at else [0]))], "sgd", {}, make)
    for number, (kind, settings, cycle) in enumerate(CYCLES):
        c = dict(dict(pct_start=0.3, anneal_strategy="cos", cycle_momentum=True, base_momentum=0.85,
                      max_momentum=0.95, div_factor=25.0, final_div_factor=1e4,
                      three_phase=False), **cycle)
        most = c["max_lr"] if isinstance(c["max_lr"], list) else [c["max_lr"]] * 2
        first = settings.get("beta1", 0.9) if kind != "sgd" else settings["momentum"]
        yield rate_case(
            f"one cycle {number}", 3,
            [["sgd", "adam", "adamw"].index(kind), c["anneal_strategy"] == "linear",
             c["three_phase"], c["cycle_momentum"]],
            [first, c["pct_start"], c["div_factor"], c["final_div_factor"], c["base_momentum"],
             c["max_momentum"]] + most, [], kind, settings,
            lambda optimizer: S.OneCycleLR(optimizer, total_steps=201, **cycle))
    for number, plateau in enumerate(PLATEAUS):
        c = dict(dict(mode="min", factor=0.1, patience=10, threshold=1e-4, threshold_mode="rel",
                      cooldown=0, min_lr=0, eps=1e-8), **plateau)
        metric = 1 / (1 + 0.1 * np.arange(200)) + 0.2 * uniform(3900 + number, 200)
        metric = metric if c["mode"] == "min" else 1 - metric
        metric[50] = np.nan
        yield rate_case(f"plateau {number}", 4,
                        [c["patience"], c["cooldown"], c["threshold_mode"] == "abs",
                         c["mode"] == "max"],
                        [c["factor"], c["threshold"], c["min_lr"], c["eps"]],
                        [Tensor("metric", torch.from_numpy(metric))], "sgd", {},
                        lambda optimizer: S.ReduceLROnPlateau(optimizer, **plateau), metric)


# ---- scaler ----

def overflow_pattern(name, updates):
    """0: finite, 1: an inf, 2: a NaN, in one element of that update's gradients."""
    draws = uniform(zlib.crc32(name.encode()), updates)
    return [0 if d < 0.7 else 1 if d < 0.85 else 2 for d in draws]


def poison(grads, kind, step):
    flat_index = step * 7 % sum(COUNTS)
    for g in grads:
        if flat_index < g.numel():
            if kind:
                g.reshape(-1)[flat_index] = math.inf if kind == 1 else math.nan
            return
        flat_index -= g.numel()


# label, init, growth, backoff, interval, pattern, size of gradients, accumulation,
# 1: unscale before the step, 2: and clip the norm to 1
SCALERS = [
    ("interval 4", 65536.0, 2.0, 0.5, 4, "random", 1.0, 1, 0),
    ("interval 1", 1024.0, 1.5, 0.25, 1, "random", 1.0, 1, 0),
    ("odd factors", 10000.0, 3.7, 0.3, 3, "random", 1.0, 1, 1),
    ("never grows", 8.0, 2.0, 0.5, 2000, "random", 1.0, 1, 0),
    ("always clean", 1.0, 2.0, 0.5, 5, "clean", 1.0, 1, 1),
    ("always overflows", 65536.0, 2.0, 0.5, 5, "all", 1.0, 1, 0),
    ("up to the end of fp32", 2.0 ** 110, 8.0, 0.5, 2, "clean", 2.0 ** -30, 1, 0),
    ("overflow by the scale itself", 2.0 ** 124, 4.0, 0.125, 2, "clean", 64.0, 1, 0),
    ("accumulation", 65536.0, 2.0, 0.5, 3, "random", 1.0, 3, 0),
    ("accumulation, unscaled first", 4096.0, 2.0, 0.5, 3, "random", 1.0, 2, 1),
    ("clipping", 65536.0, 2.0, 0.5, 3, "random", 1.0, 2, 2),
]


def scaled_backward(scaler, params, grads):
    scaler.scale(sum((p * g).sum() for p, g in zip(params, grads))).backward()


def found_inf(scaler, optimizer):
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return int(any(f.item() for f in found.values()))


def run_scaler(spec, updates=60):
    label, init, growth, backoff, interval, pattern, size, accumulate, unscale = spec
    kinds = {"random": overflow_pattern(label, updates), "clean": [0] * updates,
             "all": [1] * updates}[pattern]
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth,
                                  backoff_factor=backoff,
                                  growth_interval=interval)
    params = parameters()
    optimizer = torch.optim.SGD(params, lr=0.01, momentum=0.9, foreach=False)
    scales, trackers, skipped = [], [], []
    for update in range(updates):
        optimizer.zero_grad()
        for part in range(accumulate):
            grads = [g * np.float32(size) for g in gradient_values(update * accumulate + part)]
            if part == update % accumulate:
                poison(grads, kinds[update], update)
            scaled_backward(scaler, params, grads)
        if unscale:
            scaler.unscale_(optimizer)
        if unscale == 2:
            torch.nn.utils.clip_grad_norm_(params, 1.0)
        scaler.step(optimizer)
        skipped.append(found_inf(scaler, optimizer))
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(scaler._get_growth_tracker())
    return kinds, scales, trackers, skipped, flat(params)


def scaler_cases():
    for spec in SCALERS:
        kinds, scales, trackers, skipped, params = run_scaler(spec)
        yield Case("scaler", f"scaler {spec[0]}", [spec[4], spec[7], spec[8]],
                   [spec[1], spec[2], spec[3], spec[6], 0.01, 0.9],
                   [Tensor("kinds", torch.tensor(kinds, dtype=U8)),
                    Tensor("scale", torch.tensor(scales, dtype=F32), OUTPUT, atol=0.0, rtol=0.0),
                    Tensor("tracker", torch.tensor(trackers, dtype=I64), OUTPUT),
                    Tensor("skipped", torch.tensor(skipped, dtype=U8), OUTPUT),
                    Tensor("parameters", params, OUTPUT,
                           atol=2e-6 * spec[6] if spec[6] > 1 else 2e-6)])
    yield two_optimizers()


def two_optimizers(updates=40):
    """Parameters 0-1 under SGD, 2-3 under AdamW; each overflows on its own, one scale for both."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    params = parameters()
    optimizers = [torch.optim.SGD(params[:2], lr=0.01, foreach=False),
                  torch.optim.AdamW(params[2:], lr=1e-3, foreach=False)]
    kinds = [overflow_pattern("first", updates), overflow_pattern("second", updates)]
    scales, trackers, skipped = [], [], []
    for update in range(updates):
        for optimizer in optimizers:
            optimizer.zero_grad()
        grads = gradient_values(update)
        poison(grads[:2], kinds[0][update], 0)
        poison(grads[2:], kinds[1][update], 0)
        scaled_backward(scaler, params, grads)
        for optimizer in optimizers:
            scaler.step(optimizer)
            skipped.append(found_inf(scaler, optimizer))
        scaler.update()
        scales.append(scaler.get_scale())
        trackers.append(scaler._get_growth_tracker())
    return Case("scaler_two", "scaler two optimizers", [3], [1024.0, 0.01, 1e-3],
                [Tensor("kinds", torch.tensor(kinds, dtype=U8)),
                 Tensor("scale", torch.tensor(scales, dtype=F32), OUTPUT, atol=0.0, rtol=0.0),
                 Tensor("tracker", torch.tensor(trackers, dtype=I64), OUTPUT),
                 Tensor("skipped", torch.tensor(skipped, dtype=U8).reshape(updates, 2), OUTPUT),
                 Tensor("parameters", flat(params), OUTPUT, atol=2e-6)])


# ---- a classifier of MNIST's shape ----

LAYERS = [784, 32, 16, 10]
BATCH, SAMPLES, STEPS = 32, 320, 100
W_STREAM, PROTOTYPE_STREAM, SAMPLE_STREAM = 4000, 5000, 6000


def samples():
    """Sample k is of class k mod 10: half the class's prototype plus half noise of its own."""
    x = np.stack([np.float32(0.5) * uniform(PROTOTYPE_STREAM + k % 10, 784) +
                  np.float32(0.5) * uniform(SAMPLE_STREAM + k, 784) for k in range(SAMPLES)])
    return torch.from_numpy(x), torch.arange(SAMPLES) % 10


def classifier(dtype=F32):
    params = []
    for k, (n, m) in enumerate(zip(LAYERS, LAYERS[1:])):
        bound = np.float32(1.0 / math.sqrt(n))
        for part, shape in ((0, (m, n)), (1, (m,))):
            w = uniform(W_STREAM + 2 * k + part, int(np.prod(shape))) * bound
            params.append(torch.nn.Parameter(torch.from_numpy(w).reshape(shape).to(dtype)))
    return params


def forward_plain(params, x):
    for k in range(3):
        x = F.linear(x, params[2 * k], params[2 * k + 1])
        x = F.relu(x) if k < 2 else x
    return F.log_softmax(x, -1)


def forward_policy(half):
    """Each layer rounds input, weight and bias to half, computes in fp32 and rounds its output."""
    def run(params, x):
        for k in range(3):
            w, b = round_through(params[2 * k], half), round_through(params[2 * k + 1], half)
            x = F.linear(x.to(half).float(), w, b).to(half)
            x = F.relu(x) if k < 2 else x
        return F.log_softmax(x.float(), -1)
    return run


def forward_autocast(half):
    def run(params, x):
        with torch.autocast("cpu", dtype=half):
            return forward_plain(params, x)
    return run


def train_classifier(kind, forward, dtype=F32, scaled=False):
    params = classifier(dtype)
    x, y = samples()
    x = x.to(dtype)
    optimizer = (torch.optim.SGD(params, lr=0.02, momentum=0.9, foreach=False) if kind == "sgd" else
                 torch.optim.AdamW(params, lr=1e-3, foreach=False))
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    losses = []
    for step in range(STEPS):
        first = step * BATCH % SAMPLES
        loss = F.nll_loss(forward(params, x[first:first + BATCH]).to(dtype), y[first:first + BATCH])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert not scaled or scaler.get_scale() == 65536.0
    norms = torch.tensor([p.detach().double().norm().item() for p in params], dtype=F64)
    heads = torch.stack([p.detach().double().reshape(-1)[:8] for p in params])
    return torch.tensor(losses, dtype=F64), norms, heads


def classifier_cases():
    """Per optimizer: runs in fp64 and fp32, and for each half under our policy and torch.autocast,
    to measure our distance from fp32 against PyTorch's own."""
    for kind in ("sgd", "adamw"):
        tensors = []
        for name, forward, dtype, scaled in (
                ("f64", forward_plain, F64, False), ("f32", forward_plain, F32, False),
                ("f16 policy", forward_policy(F16), F32, True),
            ("f16 torch", forward_autocast(F16), F32, True),
                ("bf16 policy", forward_policy(BF16), F32, False),
            ("bf16 torch", forward_autocast(BF16), F32, False)):
            losses, norms, heads = train_classifier(kind, forward, dtype, scaled)
            tensors += [Tensor(f"{name} loss", losses, OUTPUT),
                        Tensor(f"{name} norm", norms, OUTPUT),
                        Tensor(f"{name} head", heads, OUTPUT)]
        yield Case("classifier", f"classifier {kind}",
                   [["sgd", "adamw"].index(kind), BATCH, SAMPLES, STEPS],
                   [0.02, 0.9, 1e-3, 0.01], tensors)


def train_cases():
    first = Case("hash", "generator",
                 tensors=[Tensor("uniform", torch.from_numpy(uniform(123, 16)), OUTPUT)])
    return [first, *optimizer_cases(), *muon_cases(), *small_cases(), *clip_cases(), *schedule_cases(), *rate_cases(),
            *average_cases(),
            *scaler_cases(),
            *classifier_cases()]


# ---- losses ----

REDUCTIONS = ["mean", "sum", "none", "batchmean"]


def maybe(x, k, present=True):
    return x[k] if present and len(x) > k else None


# ints: reduction (of cosine_similarity: dimension), flags; reals: margin, eps and so on
LOSSES = {
    "l1_loss": lambda x, i, r: F.l1_loss(x[0], x[1], reduction=REDUCTIONS[i[0]]),
    "smooth_l1_loss": lambda x, i, r: F.smooth_l1_loss(x[0], x[1], beta=r[0],
                                                       reduction=REDUCTIONS[i[0]]),
    "huber_loss": lambda x, i, r: F.huber_loss(x[0], x[1], delta=r[0], reduction=REDUCTIONS[i[0]]),
    # i[1]: which of weight (1) and pos_weight (2) there are
    "binary_cross_entropy_with_logits": lambda x, i, r: F.binary_cross_entropy_with_logits(
        x[0], x[1], weight=maybe(x, 2, i[1] & 1), pos_weight=maybe(x, len(x) - 1, i[1] & 2),
        reduction=REDUCTIONS[i[0]]),
    "binary_cross_entropy": lambda x, i, r: F.binary_cross_entropy(
        x[0], x[1], weight=maybe(x, 2), reduction=REDUCTIONS[i[0]]),
    "kl_div": lambda x, i, r: F.kl_div(x[0], x[1], log_target=bool(i[1]),
                                       reduction=REDUCTIONS[i[0]]),
    "gaussian_nll_loss": lambda x, i, r: F.gaussian_nll_loss(
        x[0], x[1], x[2], full=bool(i[1]), eps=r[0], reduction=REDUCTIONS[i[0]]),
    "soft_margin_loss": lambda x, i, r: F.soft_margin_loss(x[0], x[1], reduction=REDUCTIONS[i[0]]),
    "hinge_embedding_loss": lambda x, i, r: F.hinge_embedding_loss(
        x[0], x[1], margin=r[0], reduction=REDUCTIONS[i[0]]),
    "margin_ranking_loss": lambda x, i, r: F.margin_ranking_loss(
        x[0], x[1], x[2], margin=r[0], reduction=REDUCTIONS[i[0]]),
    "triplet_margin_loss": lambda x, i, r: F.triplet_margin_loss(
        x[0], x[1], x[2], margin=r[0], eps=r[1], swap=bool(i[1]), reduction=REDUCTIONS[i[0]]),
    "cosine_similarity": lambda x, i, r: F.cosine_similarity(x[0], x[1], dim=i[0], eps=r[0]),
    "cosine_embedding_loss": lambda x, i, r: F.cosine_embedding_loss(
        x[0], x[1], x[2], margin=r[0], reduction=REDUCTIONS[i[0]]),
    "soft_targets": lambda x, i, r: F.cross_entropy(x[0], x[1], weight=maybe(x, 2),
                                                    label_smoothing=r[0],
                                                    reduction=REDUCTIONS[i[0]]),
}
OPS.update({name: ("loss", function) for name, function in LOSSES.items()})


def signs(label, shape):
    return torch.where(noise(label, shape) < 0, -1.0, 1.0)


def probabilities(label, shape, dim=1):
    return F.softmax(noise(label, shape, 2), dim)


def pair_specs():
    """op, ints behind the reduction, reals, inputs of a label, inputs without a gradient"""
    def two(n, s):
        return [noise(n + "/a", s, 2), noise(n + "/b", s, 2)]

    def signed(n, s):
        return [noise(n + "/a", s, 2), signs(n + "/b", s)]

    def binary(n, s):
        return [noise(n + "/a", s, 4), noise(n + "/b", s).abs()]
    yield "mse_loss", [], [], two, ()
    yield "l1_loss", [], [], two, ()
    for beta in (0.0, 0.5, 1.0):
        yield "smooth_l1_loss", [], [beta], two, ()
    for delta in (0.5, 1.5):
        yield "huber_loss", [], [delta], two, ()
    for which in range(4):
        def weighted(n, s, which=which):
            more = [noise(f"{n}/{k}", s[-1:]).abs() + 0.5 for k in (1, 2) if which & k]
            return binary(n, s) + more
        yield "binary_cross_entropy_with_logits", [which], [], weighted, (2, 3)
    for which in range(2):
        def probable(n, s, which=which):
            x = [noise(n + "/a", s).abs() * 0.9 + 0.05, noise(n + "/b", s).abs()]
            return x + ([noise(n + "/w", s[-1:]).abs() + 0.5] if which else [])
        yield "binary_cross_entropy", [], [], probable, (2,)
    for log_target in (0, 1):
        def divergence(n, s, log_target=log_target):
            target = noise(n + "/b", s).abs() + 0.01
            return [noise(n + "/a", s, 3), target.log() if log_target else target]
        yield "kl_div", [log_target], [], divergence, ()
    for full in (0, 1):
        for cut in range(3):
            def gaussian(n, s, cut=cut):
                shape = [s, (*s[:-1], 1), s[:-1]][cut if s else 0]
                return two(n, s) + [noise(n + "/v", shape).abs() + 0.1]
            yield "gaussian_nll_loss", [full, cut], [1e-6], gaussian, ()
    yield "soft_margin_loss", [], [], signed, (1,)
    for margin in (0.7, -0.5):
        yield "hinge_embedding_loss", [], [margin], signed, (1,)
        yield "margin_ranking_loss", [], [margin], (
            lambda n, s: two(n, s) + [signs(n + "/c", s)]), ()


def pair_cases(dtype, region=None):
    d = DTYPE_NAME[dtype] + (f" in {DTYPE_NAME[region]}" if region else "")
    for op, ints, reals, make, constant in pair_specs():
        if dtype != F32 and op == "gaussian_nll_loss" and ints[1]:
            continue
        for kind in range(1 if region else 4 if op == "kl_div" else 3):
            shapes = [((5, 3), None)]
            if kind == MEAN and not region:
                shapes += [((5, 4), [TRANSPOSED, SLICED])]
            if dtype == F32 and kind == MEAN and not region and ints[1:] in ([], [0]):
                shapes += [((), None), ((67,), None), ((2, 3, 4), None)]
            for shape, layouts in shapes:
                label = f"{op} {d} {list(shape)} {kind} {ints} {reals}"
                label += " strided" if layouts else ""
                inputs = [x.to(dtype) for x in make(label, shape)]
                layouts = (layouts or []) + [DENSE] * len(inputs)
                yield op_case(op, label, inputs, [kind, *ints], reals, region,
                              layouts[:len(inputs)], constant=constant)


def vector_cases(dtype, region=None):
    d = DTYPE_NAME[dtype] + (f" in {DTYPE_NAME[region]}" if region else "")

    def case(op, ints, reals, shape, n, target=None, layouts=None):
        label = f"{op} {d} {list(shape)} {ints} {reals}{' strided' if layouts else ''}"
        x = [noise(f"{label}/{k}", shape, 2).to(dtype) for k in range(n)]
        if target is not None:
            x.append(signs(label + "/target", target).to(dtype))
        layouts = (layouts or []) + [DENSE] * len(x)
        return op_case(op, label, x, ints, reals, region, layouts[:len(x)], constant=(n,))
    for kind in (MEAN,) if region else (MEAN, SUM, NONE):
        for swap in (0, 1):
            yield case("triplet_margin_loss", [kind, swap], [1.0, 1e-6], (4, 6), 3)
        for margin in (0.0, 0.3, -0.4):
            yield case("cosine_embedding_loss", [kind], [margin], (6, 5), 2, (6,))
    if region:
        return
    yield case("triplet_margin_loss", [MEAN, 0], [0.5, 1e-3], (7,), 3)
    yield case("triplet_margin_loss", [NONE, 0], [0.5, 1e-6], (2, 3, 5), 3)
    yield case("triplet_margin_loss", [MEAN, 1], [2.5, 1e-6], (4, 6), 3,
               layouts=[TRANSPOSED, SLICED])
    yield case("cosine_embedding_loss", [MEAN], [0.1], (5,), 2, ())
    for shape, dim in (((4, 5), 1), ((4, 5), 0), ((2, 3, 4), 1), ((6,), 0)):
        yield case("cosine_similarity", [dim], [1e-8], shape, 2)
    yield case("cosine_similarity", [-1], [0.5], (4, 5), 2, layouts=[SLICED, TRANSPOSED])


def class_cases(dtype, region=None):
    """Targets with positions, and probabilities as targets."""
    d = DTYPE_NAME[dtype] + (f" in {DTYPE_NAME[region]}" if region else "")
    weight = torch.tensor([0.5, 2, 1, 0.25])
    for shape in ((3, 4, 5), (2, 4, 3, 2))[:2 if dtype == F32 and not region else 1]:
        n = int(np.prod(shape)) // 4
        t = torch.tensor([(7 * k + k // 5) % 4 if k % 6 else -100 for k in range(n)])
        t = t.reshape(shape[0], *shape[2:])
        for op in ("nll_loss", "cross_entropy"):
            for kind in (MEAN, SUM, NONE):
                for w, smoothing in ((None, 0.0), (weight, 0.0), (weight, 0.1)):
                    if (op == "nll_loss" and smoothing) or (region and kind != MEAN):
                        continue
                    label = (f"{op} {d} {list(shape)} {kind}{'' if w is None else ' weight'} "
                             f"smoothing {smoothing}")
                    x = noise(label, shape, 2)
                    x = F.log_softmax(x, 1) if op == "nll_loss" else x
                    yield op_case(op, label, [x.to(dtype), t] + ([] if w is None else [w]),
                                  [kind, -100], [smoothing], region, constant=(2,))
    for shape in ((5, 4), (4,), (3, 4, 2), (2, 4, 3, 2))[:4 if dtype == F32 else 1]:
        for kind in (MEAN, SUM, NONE):
            for w, smoothing in ((None, 0.0), (weight, 0.0), (None, 0.2), (weight, 0.1)):
                if region and (kind != MEAN or len(shape) != 2):
                    continue
                label = (f"soft_targets {d} {list(shape)} {kind}{'' if w is None else ' weight'} "
                         f"smoothing {smoothing}")
                x = [noise(label + "/x", shape, 2).to(dtype),
                     probabilities(label + "/y", shape, 1 if len(shape) > 1 else 0).to(dtype)]
                yield op_case("soft_targets", label, x + ([] if w is None else [w]), [kind],
                              [smoothing], region, constant=(2,))


def edge_cases():
    def case(op, label, x, ints, reals=(), constant=()):
        x = [v if torch.is_tensor(v) else torch.tensor(v) for v in x]
        return op_case(op, f"{op} edge {label}", x, ints, reals, constant=constant)
    inf, nan = math.inf, math.nan
    same = [[0.0, 1, -2, 0.5, 1.5, nan], [0.0, 2, -1.5, 1, 3, 1]]
    yield case("l1_loss", "equal", same, [NONE])
    for number in (0.0, 0.5, 1.0):
        # PyTorch takes a beta of 0 for l1_loss, where sign(NaN) is 0
        yield case("smooth_l1_loss", f"at beta {number}",
                   [v[:5] for v in same] if number == 0 else same, [NONE], [number])
    for number in (0.5, 1.0):
        yield case("huber_loss", f"at delta {number}", same, [NONE], [number])
    yield case("binary_cross_entropy_with_logits", "large",
               [[0.0, 100, -100, 100, -100, 30, -30, nan], [0.5, 1, 0, 0, 1, 0.5, 0.5, 1]],
               [NONE, 0])
    yield case("binary_cross_entropy", "ends", [[0.0, 1, 1, 0, 1e-6], [1.0, 1, 0, 0, 0]], [NONE],
               constant=(1,))
    yield case("kl_div", "zero target", [[-1.0, -1, -1], [0.0, 1e-30, 1]], [NONE, 0],
               constant=(1,))
    yield case("kl_div", "negative target", [[-1.0, -1], [-0.5, 0.5]], [NONE, 0], constant=(1,))
    yield case("kl_div", "log target", [[-1.0, 2], [-100.0, 0]], [NONE, 1])
    yield case("gaussian_nll_loss", "below eps", [[1.0, 2, 3], [1.5, 2, 1], [0.0, 1e-8, 1e-6]],
               [NONE, 0], [1e-6])
    yield case("soft_margin_loss", "far", [[80.0, -80, -10, 0], [1.0, 1, 1, -1]], [NONE],
               constant=(1,))
    yield case("hinge_embedding_loss", "at the margin",
               [[1.0, 0.5, 2, 3, 0.5, 1], [-1.0, -1, -1, 1, 0.5, 1]], [NONE], [1.0], constant=(1,))
    yield case("margin_ranking_loss", "at the margin",
               [[1.0, 2, 3, nan], [0.0, 0, 2.5, 1], [1.0, 1, -1, 1]], [NONE], [1.0])
    zeros = [[[0.0, 0], [1e-9, 0], [1, 2]], [[1.0, 2], [1, 2], [0, 0]]]
    yield case("cosine_similarity", "zero", zeros, [1], [1e-8])
    yield case("cosine_embedding_loss", "zero", [*zeros, [1.0, -1, 0.5]], [NONE], [0.0],
               constant=(2,))
    yield case("triplet_margin_loss", "equal, eps 0",
               [[[1.0, 2], [0, 0]], [[1.0, 2], [0, 1]], [[1.0, 2], [0, 2]]], [NONE, 0], [1.0, 0.0])
    x = noise("all ignored", (2, 3, 4))
    for op in ("nll_loss", "cross_entropy"):
        for kind in (MEAN, SUM):
            yield case(op, f"all ignored {kind}", [x, torch.full((2, 4), -100)], [kind, -100],
                       [0.0])
            yield op_case(op, f"{op} empty with positions {kind}",
                          [torch.empty(0, 3, 2), torch.empty(0, 2, dtype=I64)], [kind, -100],
                          [0.0], no_grad=True)
    for kind in (MEAN, SUM):
        yield op_case("soft_targets", f"soft_targets empty {kind}",
                      [torch.empty(0, 3), torch.empty(0, 3)], [kind], [0.0], no_grad=True)
        yield op_case("l1_loss", f"l1_loss empty {kind}", [torch.empty(0, 3), torch.empty(0, 3)],
                      [kind], no_grad=True)
        yield op_case("kl_div", f"kl_div empty {kind}", [torch.empty(0, 3), torch.empty(0, 3)],
                      [kind, 0], no_grad=True)


TRACE_STEPS = 200
# How what the loss gets follows from a net's output [32, 12]
AS_IT_IS, LOG_SOFTMAX, SIGMOID, POSITIONS = range(4)


def trace_specs():
    """op, ints, reals, inputs through the net, how, the other inputs"""
    def n(label, shape=(32, 12)):
        return noise("trace " + label, shape)
    classes = torch.tensor([k * k % 11 for k in range(32)])
    positions = torch.tensor([[(k + j * k) % 3 for j in range(4)] for k in range(32)])
    positions[3, 2] = -100
    yield "mse_loss", [MEAN], [], 1, AS_IT_IS, [n("mse")]
    yield "l1_loss", [MEAN], [], 1, AS_IT_IS, [n("l1")]
    yield "smooth_l1_loss", [MEAN], [0.3], 1, AS_IT_IS, [n("smooth")]
    yield "huber_loss", [MEAN], [0.5], 1, AS_IT_IS, [n("huber")]
    yield "binary_cross_entropy_with_logits", [MEAN, 3], [], 1, AS_IT_IS, [
        (n("logits") > 0).float(), n("weight", (12,)).abs() + 0.5, n("pos", (12,)).abs() + 0.5]
    yield "binary_cross_entropy", [MEAN], [], 1, SIGMOID, [n("bce").abs()]
    yield "kl_div", [3, 0], [], 1, LOG_SOFTMAX, [F.softmax(2 * n("kl"), 1)]
    yield "gaussian_nll_loss", [MEAN, 1], [1e-6], 1, AS_IT_IS, [n("gauss"), n("var").abs() + 0.2]
    yield "soft_margin_loss", [MEAN], [], 1, AS_IT_IS, [signs("trace soft", (32, 12))]
    yield "hinge_embedding_loss", [MEAN], [1.0], 1, SIGMOID, [signs("trace hinge", (32, 12))]
    yield "margin_ranking_loss", [MEAN], [0.5], 2, AS_IT_IS, [signs("trace rank", (32, 12))]
    yield "triplet_margin_loss", [MEAN, 0], [1.0, 1e-6], 3, AS_IT_IS, []
    yield "cosine_embedding_loss", [MEAN], [0.2], 2, AS_IT_IS, [signs("trace cosine", (32,))]
    yield "nll_loss", [MEAN, -100], [0.0], 1, LOG_SOFTMAX, [classes]
    yield "cross_entropy", [MEAN, -100], [0.1], 1, POSITIONS, [positions]
    yield "soft_targets", [MEAN], [0.0], 1, AS_IT_IS, [F.softmax(2 * n("soft"), 1)]


def run_trace(spec, dtype):
    op, ints, reals, n, how, others = spec
    params = [noise(f"trace w{k}", s, 0.5).to(dtype).requires_grad_()
              for k, s in enumerate([(16, 8), (16,), (12, 16), (12,)])]
    inputs = [noise(f"trace x{k}", (32, 8)).to(dtype) for k in range(n)]
    others = [x.to(dtype) if floating(x) else x for x in others]
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9, foreach=False)
    losses = []
    for _ in range(TRACE_STEPS):
        out = [F.linear(torch.tanh(F.linear(x, *params[:2])), *params[2:]) for x in inputs]
        out[0] = [lambda v: v, lambda v: F.log_softmax(v, 1), torch.sigmoid,
                  lambda v: v.reshape(32, 3, 4)][how](out[0])
        loss = OPS[op][1](out + others, ints, reals)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def trace_cases():
    for spec in trace_specs():
        op, ints, reals, n, how, others = spec
        losses, exact = run_trace(spec, F32), run_trace(spec, F64)
        # Another order of sums moves every step; PyTorch's own distance from fp64 shows how far.
        atol = max(ATOL, 4 * (losses - exact).abs().max().item())
        yield Case(op, f"trace {op}", [*ints, n, how], reals,
                   [Tensor(f"in{k + n}", x, CONSTANT, k + n) for k, x in enumerate(others)] +
                   [Tensor("loss", losses, OUTPUT, atol=atol)])


def all_losses():
    cases = list(edge_cases())
    for dtype in (F32, F16, BF16):
        for make in (pair_cases, vector_cases, class_cases):
            cases += make(dtype)
    for region in (F16, BF16):
        for make in (pair_cases, vector_cases, class_cases):
            cases += make(region, region)
    cases += trace_cases()
    missing = set(LOSSES) - {c.op for c in cases}
    assert not missing, missing
    return cases


# ---- MNIST ----

def mnist(folder):
    """Training and test pairs of pixels in [0, 1] and labels."""
    def read(name, offset):
        path = os.path.join(folder, name)
        data = gzip.open(path + ".gz").read() if os.path.exists(path + ".gz") else open(path,
                                                                                        "rb").read()
        return np.frombuffer(data, np.uint8, offset=offset)

    def split(name):
        x = read(name + "-images-idx3-ubyte", 16).reshape(-1, 784).astype(np.float32)
        y = read(name + "-labels-idx1-ubyte", 8).astype(np.int64)
        return torch.from_numpy(x) / 255, torch.from_numpy(y)
    return split("train"), split("t10k")


def train_mnist(kind, seed, train, test):
    """One training of 5 epochs, batch 64, fp32; test accuracy in percent and the epochs' losses."""
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64),
                              torch.nn.ReLU(), torch.nn.Linear(64, 10), torch.nn.LogSoftmax(-1))
    optimizer = (torch.optim.AdamW(net.parameters(), lr=1e-3) if kind == "adamw" else
                 torch.optim.SGD(net.parameters(), lr=0.01))
    (x, y), losses = train, []
    for _ in range(5):
        order, total = torch.randperm(len(x)), 0.0
        for first in range(0, len(x), 64):
            pick = order[first:first + 64]
            loss = F.nll_loss(net(x[pick]), y[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / -(-len(x) // 64))
    with torch.no_grad():
        return (net(test[0]).argmax(1) == test[1]).double().mean().item() * 100, losses


NORMALIZATIONS = {"half": (0.5, 0.5), "none": (0.0, 1.0), "statistics": (0.1307, 0.3081)}


def write_mnist(folder):
    data = mnist(folder)
    lines = [f"# torch {torch.__version__}, fp32, MNIST: 784-128-64-10, ReLU, log_softmax, NLL,",
             "# batch 64, 5 epochs; adamw: lr 1e-3, sgd: lr 0.01. Made by tools/golden.py --mnist.",
             "# Inputs are (pixel / 255 - mean) / deviation, with mean and deviation",
             "# half: 0.5 0.5, none: 0 1, statistics: 0.1307 0.3081.",
             "# optimizer, inputs, seed, test accuracy in percent, mean training loss of epochs"]
    for kind in ("adamw", "sgd"):
        for name, (mean, deviation) in NORMALIZATIONS.items():
            train, test = [((x - mean) / deviation, y) for x, y in data]
            found = []
            for seed in range(5):
                accuracy, losses = train_mnist(kind, seed, train, test)
                found.append(accuracy)
                lines.append(f"{kind} {name} {seed} {accuracy:.2f} " + " ".join(f"{v:.6f}"
                                                                                for v in losses))
                print(lines[-1], flush=True)
            lines.append(f"{kind} {name} mean {sum(found) / 5:.3f}")
    with open(os.path.join(FOLDER, "mnist_reference.txt"), "w", newline="\n") as out:
        out.write("\n".join(lines) + "\n")


# ---- experiments: what PyTorch does where its documentation is silent ----

def attempt(what, function):
    try:
        print(f"{what}: {function()}")
    except Exception as error:  # the class and text of the error are the result
        print(f"{what}: {type(error).__name__}: {str(error).splitlines()[0]}")


def scaler_experiments():
    def fresh(**options):
        p = torch.nn.Parameter(torch.ones(2))
        return torch.amp.GradScaler("cpu", **options), p, torch.optim.SGD([p], lr=0.1)

    def update_once(s, p, o, g=1.0):
        o.zero_grad()
        s.scale((p * g).sum()).backward()
        s.step(o)
        s.update()

    def lowered_interval():
        s, p, o = fresh(init_scale=4.0, growth_interval=10)
        for _ in range(5):
            update_once(s, p, o)
        s.set_growth_interval(3)
        for _ in range(30):
            update_once(s, p, o)
        return f"scale {s.get_scale()}, tracker {s._get_growth_tracker()} after 30 clean updates"

    def tiny_scale():
        s, p, o = fresh(init_scale=2.0 ** -130)
        update_once(s, p, o)
        return f"parameters {p.tolist()}, scale {s.get_scale():.3g}"

    def zero_scale():
        s, p, o = fresh(init_scale=1.0)
        for _ in range(200):
            update_once(s, p, o, math.inf)
        reached = s.get_scale()
        update_once(s, p, o)
        return f"scale {reached} after 200 overflows; one clean update then gives {p.tolist()}"

    def growth_end():
        s, p, o = fresh(growth_interval=1)
        for _ in range(150):
            update_once(s, p, o, 2.0 ** -100)
        return f"log2 scale {math.log2(s.get_scale())}, tracker {s._get_growth_tracker()}"

    def update_value():
        s, p, o = fresh(growth_interval=10)
        for _ in range(3):
            update_once(s, p, o)
        s.update(512.0)
        return f"scale {s.get_scale()}, tracker {s._get_growth_tracker()}"

    def half_loss():
        s, _, _ = fresh()
        x = torch.ones(2, requires_grad=True)
        loss = x.half().mean()
        scaled = s.scale(loss)
        scaled.backward()
        return f"scaled loss {scaled.dtype}, gradient {x.grad.tolist()}"

    def calls(*names):
        def run():
            s, p, o = fresh()
            table = {"scale": lambda: s.scale((p * 1).sum()).backward(),
                     "unscale": lambda: s.unscale_(o),
                     "step": lambda: s.step(o), "update": s.update}
            for name in names:
                table[name]()
            return "no error"
        return run
    attempt("interval lowered below the tracker", lowered_interval)
    attempt("scale 2^-130", tiny_scale)
    attempt("scale driven to 0", zero_scale)
    attempt("growth without end", growth_end)
    attempt("update(512)", update_value)
    attempt("half loss, default scale", half_loss)
    for names in (("unscale",), ("step",), ("update",), ("scale", "unscale", "unscale"),
                  ("scale", "step", "unscale"),
                  ("scale", "step", "step"), ("scale", "update"),
                  ("scale", "unscale", "update", "scale", "step")):
        attempt("scaler calls " + ", ".join(names), calls(*names))

    def no_gradients():
        s, p, o = fresh()
        s.scale(torch.ones(1))
        return s.step(o)
    attempt("step without gradients", no_gradients)
    attempt("growth factor of a disabled scaler",
            lambda: torch.amp.GradScaler("cpu", enabled=False).get_growth_factor())
    attempt("backoff 1", lambda: torch.amp.GradScaler("cpu", backoff_factor=1.0))
    attempt("backoff -1, interval 0",
            lambda: torch.amp.GradScaler("cpu", backoff_factor=-1.0, growth_interval=0)
            and "accepted")


def op_experiments():
    nan, inf = math.nan, math.inf
    x = torch.zeros(3, 4, requires_grad=True)
    ignored = torch.full((3,), -100)
    attempt("nll mean, all ignored", lambda: F.nll_loss(x, ignored).item())
    attempt("nll gradient, all ignored",
            lambda: torch.autograd.grad(F.nll_loss(x, ignored), x)[0].abs().sum().item())
    attempt("nll mean, 1-d and ignored",
            lambda: F.nll_loss(torch.zeros(4), torch.tensor(-100)).item())
    attempt("cross_entropy mean, all ignored, smoothing",
            lambda: F.cross_entropy(x, ignored, label_smoothing=0.1).item())
    for kind in ("mean", "sum"):
        attempt(f"nll {kind}, empty batch",
                lambda: F.nll_loss(torch.empty(0, 4), torch.empty(0, dtype=I64),
                                   reduction=kind).item())
        attempt(f"mse {kind}, empty batch",
                lambda: F.mse_loss(torch.empty(0, 4), torch.empty(0, 4), reduction=kind).item())
    attempt("nll target 4 of 4", lambda: F.nll_loss(x, torch.tensor([0, 4, 1])))
    attempt("nll weights all 0",
            lambda: F.nll_loss(x, torch.tensor([0, 1, 2]), weight=torch.zeros(4)).item())
    big = torch.full((70000, 2), -0.5).half()
    attempt("nll in fp16, batch 70000",
            lambda: F.nll_loss(big, torch.zeros(70000, dtype=I64)).item())
    attempt("cross_entropy (1,2,3) target 2, smoothing 0 and .1",
            lambda: [F.cross_entropy(torch.tensor([1.0, 2, 3], dtype=F64), torch.tensor(2),
                                     label_smoothing=e).item() for e in (0, 0.1)])
    ties = torch.tensor([1.0, 3, 3, 3, 2], requires_grad=True)
    attempt("max(dim) gradient at ties",
            lambda: torch.autograd.grad(ties.max(0).values, ties)[0].tolist())
    attempt("max() gradient at ties", lambda: torch.autograd.grad(ties.max(), ties)[0].tolist())
    attempt("argmax at ties", lambda: ties.argmax().item())
    attempt("max and argmax with NaN",
            lambda: (torch.tensor([1.0, nan, 5, nan]).max(0),
                     torch.tensor([1.0, nan, 5, nan]).max().item()))
    attempt("softmax of all -inf", lambda: torch.tensor([-inf, -inf]).softmax(0).tolist())
    attempt("relu(NaN), relu(-0)", lambda: F.relu(torch.tensor([nan, -0.0])).tolist())
    attempt("gelu(-3, 1), tanh form",
            lambda: [F.gelu(torch.tensor([-3.0, 1], dtype=F64), approximate=a).tolist()
                     for a in ("none", "tanh")])
    attempt("gelu(-inf, inf), tanh form",
            lambda: [F.gelu(torch.tensor([-inf, inf]), approximate=a).tolist()
                     for a in ("none", "tanh")])
    attempt("gelu tanh of 41 in fp16",
            lambda: F.gelu(torch.tensor([41.0, -41]).half(), approximate="tanh").tolist())
    attempt("fp32 double rounding: fp64 1+2^-11+2^-40 to fp16",
            lambda: torch.tensor(1 + 2.0 ** -11 + 2.0 ** -40, dtype=F64).half().item())
    m, g = torch.tensor([0.1, 1e8, 3.3]), torch.tensor([0.7, 1.0, -1.1])
    for w in (0.1, 0.7):
        formula = m + w * (g - m) if w < 0.5 else g - (g - m) * (1 - w)
        attempt(f"lerp weight {w} equals its formula",
                lambda: torch.equal(torch.lerp(m, g, w), formula))


def optimizer_experiments():
    attempt("fused SGD, a parameter whose first gradient comes later",
            lambda: run_optimizer("sgd", dict(momentum=0.9, missing=1), fused=True).shape)
    for kind, label, options in OPTIMIZERS:
        if "missing" in options:
            continue
        fused, plain, each = (run_optimizer(kind, options, fused=True),
                              run_optimizer(kind, options),
                              run_optimizer(kind, options, foreach=True))
        exact = run_optimizer(kind, options, dtype=F64)
        print(f"{kind} {label}: largest |fused - plain| {(fused - plain).abs().max().item():.2e}, "
              f"|foreach - plain| {(each - plain).abs().max().item():.2e}, "
              f"|fused - fp64| {(fused - exact).abs().max().item():.2e}")
    p = torch.nn.Parameter(torch.ones(2))
    p.grad = torch.tensor([math.inf, 1.0])
    attempt("clip_grad_norm_ with an inf",
            lambda: (torch.nn.utils.clip_grad_norm_([p], 1.0).item(), p.grad.tolist()))
    attempt("Adam step count dtype", lambda: next(iter(adam_state().values()))["step"].dtype)
    attempt("fp32 2^24 + 1", lambda: (torch.tensor(2.0 ** 24) + 1).item() - 2 ** 24)
    h = torch.nn.Parameter(torch.ones(1).half())
    h.grad = torch.full((1,), 1e-3).half()
    o = torch.optim.Adam([h])
    o.step()
    attempt("Adam in pure half, gradient 1e-3", lambda: h.tolist())


def adam_state():
    p = torch.nn.Parameter(torch.ones(1))
    p.grad = torch.ones(1)
    o = torch.optim.Adam([p])
    o.step()
    return o.state


# ---- commands ----

FILES = {"ops.bin": op_cases, "train.bin": train_cases, "losses.bin": all_losses}


def same(a, b, name, rtol):
    """Why the values differ, or None. Results of fp32 sums may move by a rounding between CPUs."""
    if a.value.shape != b.value.shape or a.value.dtype != b.value.dtype:
        return f"{name}: shape or dtype"
    if a.role in (OUTPUT, GRADIENT) and a.value.is_floating_point():
        close = torch.allclose(a.value.double(), b.value.double(), rtol=rtol, atol=a.atol,
                               equal_nan=True)
    else:
        close = elements(a.value) == elements(b.value)
    return None if close else f"{name}: values"


def verify(name, cases):
    with open(os.path.join(FOLDER, name), "rb") as file:
        data = file.read()
    version, stored = Reader(data).file()
    problems, identical = [], 0
    if len(stored) != len(cases):
        problems.append(f"{len(stored)} cases stored, {len(cases)} made")
    for a, b in zip(stored, cases):
        identical += a.pack() == b.pack()
        if (a.op, a.label, a.ints, a.reals, a.region, len(a.tensors)) != (
                b.op, b.label, b.ints, b.reals, b.region, len(b.tensors)):
            problems.append(f"{a.label} is now {b.label}")
            continue
        for s, t in zip(a.tensors, b.tensors):
            found = same(s, t, f"{a.label}: {s.name}", 1e-2 if a.op == "classifier" else s.rtol)
            problems += [found] if found else []
    print(f"{name}: torch {version} wrote it, {torch.__version__} checks it; {len(stored)} cases, "
          f"{identical} identical to the byte, {len(problems)} problems")
    for line in problems[:20]:
        print("  " + line)
    return not problems


def main():
    parser = argparse.ArgumentParser(description="Reference data for the tests, from PyTorch.")
    parser.add_argument("--verify", action="store_true", help="compare with the committed files")
    parser.add_argument("--experiments", action="store_true", help="print PyTorch's corner cases")
    parser.add_argument("--mnist", metavar="DIR", help="train on the idx files in DIR")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.experiments:
        op_experiments()
        scaler_experiments()
        optimizer_experiments()
        return 0
    if options.mnist:
        write_mnist(options.mnist)
        return 0
    good = True
    for name, make in FILES.items():
        cases = list(make())
        if options.verify:
            good = verify(name, cases) and good
            continue
        data = pack_file(cases)
        with open(os.path.join(FOLDER, name), "wb") as out:
            out.write(data)
        print(f"{name}: {len(cases)} cases, {len(data)} bytes")
    for what, atols in loosened.items():
        if not atols:
            continue
        print(f"  {what}: {len(atols)} tensors have atol up to {max(atols):.1e}, "
              "for values in between that may be rounded to half")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
