#!/usr/bin/env python3
"""Writes tests/golden/fp8.bin with PyTorch: casts to fp8, and a net in fp8 by delayed scaling.

    python3 tools/golden_fp8.py                 write fp8.bin
    python3 tools/golden_fp8.py --verify        compute it again and compare

The format is that of tools/golden.py. PyTorch has the two dtypes and their casts, but no scaled
linear layer on a CPU: FP8Linear below is one, of fp32 products of the values that the codes stand
for. ints of a trace: history, margin.
"""
import math
import sys

import torch
import torch.nn.functional as F

import golden
from golden import BF16, Case, F16, F32, OUTPUT, Tensor, noise, uniform

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
LIMIT = {E4M3: 448.0, E5M2: 57344.0}
STEPS, SIZES, BATCH = 20, (12, 24, 5), 8


# ---- casts ----

def cast_values():
    """Every 257th fp16 number, infinities, NaN, what lies between, and beyond its range."""
    halves = torch.arange(0, 65536, 257, dtype=torch.int32).to(torch.int16).view(F16).float()
    powers = torch.tensor([2.0 ** e * m for e in range(-30, 20) for m in (1, 1.0625, 1.125, 1.5)])
    edges = torch.tensor([448.0, 463.9, 464.0, 464.1, 480.0, 57344.0, 61439.0, 61440.0, 61441.0,
                          65536.0, 3e38, 2.0 ** -10, 2.0 ** -9, 1.5 * 2.0 ** -10, 2.0 ** -17,
                          2.0 ** -16, 1e-40, 0.0, math.inf, math.nan])
    random = torch.from_numpy(uniform(7, 150)) * torch.exp2(torch.arange(150) % 40 - 24.0)
    all_of = torch.cat([halves, powers, edges, random])
    return torch.cat([all_of, -all_of])


def cast_cases():
    for dtype in (F32, F16, BF16):
        x = cast_values().to(dtype)
        for fp8, name in ((E4M3, "e4m3"), (E5M2, "e5m2")):
            codes = x.to(fp8).view(torch.uint8)
            back = x.to(fp8).float()
            yield Case("cast", f"{name} {golden.DTYPE_NAME[dtype]}", [],
                       tensors=[Tensor("x", x), Tensor("codes", codes, OUTPUT),
                                Tensor("back", back, OUTPUT, atol=0.0, rtol=0.0)])


# ---- a net ----

class State:
    """Scale and magnitudes of x, weight and gradient of a layer."""

    def __init__(self, history, margin):
        self.scale, self.amax, self.margin = [1.0] * 3, [0.0] * 3, margin
        self.history = [[0.0] * history for _ in range(3)]

    def quantise(self, x, k):
        dtype = E5M2 if k == 2 else E4M3
        self.amax[k] = max(self.amax[k], float(x.abs().max()))
        scaled = (x * self.scale[k]).clamp(-LIMIT[dtype], LIMIT[dtype])
        return scaled.to(dtype).float() / self.scale[k]

    def update(self):
        for k in range(3):
            self.history[k] = [self.amax[k]] + self.history[k][:-1]
            self.amax[k] = 0.0
            most = max(self.history[k])
            if most > 0:
                ratio = LIMIT[E5M2 if k == 2 else E4M3] / most
                self.scale[k] = 2.0 ** (math.frexp(ratio)[1] - 1 - self.margin)

    def rows(self):
        return torch.tensor([[s, a] + h for s, a, h in zip(self.scale, self.amax, self.history)],
                            dtype=F32)


class FP8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, state):
        xq, wq = state.quantise(x, 0), state.quantise(weight, 1)
        ctx.save_for_backward(xq, wq)
        ctx.state = state
        return F.linear(xq, wq, bias)

    @staticmethod
    def backward(ctx, dy):
        xq, wq = ctx.saved_tensors
        dyq = ctx.state.quantise(dy, 2)
        return dyq @ wq, dyq.t() @ xq, dy.sum(0), None


def trace_case(history, margin, growth):
    """`growth`: what the data are multiplied by in each step, so that scales move."""
    weights = [noise(f"fp8 w{i}", (SIZES[i + 1], SIZES[i]), 0.4) for i in range(2)]
    biases = [noise(f"fp8 b{i}", (SIZES[i + 1],), 0.1) for i in range(2)]
    params = [p.clone().requires_grad_() for pair in zip(weights, biases) for p in pair]
    states = [State(history, margin) for _ in range(2)]
    x = torch.stack([noise(f"fp8 x{s}", (BATCH, SIZES[0]), growth ** s) for s in range(STEPS)])
    y = torch.stack([noise(f"fp8 y{s}", (BATCH, SIZES[2])) for s in range(STEPS)])
    losses, rows = [], []
    for s in range(STEPS):
        hidden = F.relu(FP8Linear.apply(x[s], params[0], params[1], states[0]))
        loss = F.mse_loss(FP8Linear.apply(hidden, params[2], params[3], states[1]), y[s])
        loss.backward()
        with torch.no_grad():
            for p in params:
                p -= 0.05 * p.grad
                p.grad = None
        for state in states:
            state.update()
        losses.append(loss.item())
        rows.append(torch.stack([state.rows() for state in states]))
    tensors = [Tensor("x", x), Tensor("y", y)]
    for i in range(2):
        tensors += [Tensor(f"w{i}", weights[i]), Tensor(f"b{i}", biases[i])]
        tensors += [Tensor(f"w{i} after", params[2 * i], OUTPUT, rtol=2e-5),
                    Tensor(f"b{i} after", params[2 * i + 1], OUTPUT, rtol=2e-5)]
    tensors += [Tensor("losses", torch.tensor(losses), OUTPUT, rtol=2e-5),
                Tensor("states", torch.stack(rows), OUTPUT, rtol=2e-5)]
    return Case("trace", f"history {history}, margin {margin}, growth {growth}",
                [history, margin], tensors=tensors)


def cases():
    yield from cast_cases()
    yield trace_case(16, 0, 1.0)
    yield trace_case(4, 1, 0.7)
    yield trace_case(1, 0, 1.15)


def main():
    torch.set_num_threads(1)
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("fp8.bin", made) else 1
    data = golden.pack_file(made)
    with open(golden.os.path.join(golden.FOLDER, "fp8.bin"), "wb") as out:
        out.write(data)
    print(f"fp8.bin: {len(made)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
