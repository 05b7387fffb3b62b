#!/usr/bin/env python3
"""Prints how PyTorch behaves in corner cases of autocast, layers, formats and its loader, a line
each; golden.py --experiments has those of operations, the scaler and optimizers.

    python3 tools/golden_claims.py
"""
import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from golden import attempt

NAN, INF = math.nan, math.inf


def bits(tensor):
    view = {1: torch.uint8, 2: torch.int16}[tensor.element_size()]
    return [f"{v & (256 ** tensor.element_size() - 1):x}" for v in tensor.view(view).tolist()]


def autocast_claims():
    weight = torch.ones(2, 2)
    region = torch.autocast("cpu", torch.bfloat16)

    @region
    def nested(depth):
        inner = nested(depth - 1) if depth else []
        return inner + [torch.is_autocast_enabled("cpu")]

    def linear(dtype):
        with region:
            return F.linear(torch.ones(2, 2, dtype=dtype), weight).dtype

    attempt("autocast as a decorator, entered again", lambda: (nested(2),
            torch.is_autocast_enabled("cpu")))
    attempt("autocast, fp64 input of linear", lambda: linear(torch.float64))
    attempt("autocast, fp16 input of linear in a bf16 region", lambda: linear(torch.float16))

    def closure():
        scaler, p = torch.amp.GradScaler("cpu"), torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([p], 0.1)
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer, lambda: p.sum())
        return "accepted"
    attempt("scaler.step with a positional closure", closure)


def optimizer_claims():
    def maximize(fused):
        p = torch.ones(1, requires_grad=True)
        p.grad = torch.full((1,), 0.5)
        torch.optim.SGD([p], 1.0, weight_decay=0.25, maximize=True, fused=fused).step()
        return p.item()
    attempt("SGD, maximize and decay, plain", lambda: maximize(False))
    attempt("SGD, maximize and decay, fused", lambda: maximize(True))

    def two_devices(found):  # what the sum over two devices gives the fused kernel
        p, steps = torch.ones(1), torch.ones(1)
        torch._fused_adam_([p], [torch.full((1,), INF)], [torch.zeros(1)], [torch.zeros(1)], [],
                           [steps], amsgrad=False, lr=0.1, beta1=0.9, beta2=0.99,
                           weight_decay=0.0, eps=1e-8, maximize=False, grad_scale=None,
                           found_inf=torch.tensor(found))
        return p.tolist()
    attempt("fused Adam, infinite gradient, found_inf 1", lambda: two_devices(1.0))
    attempt("fused Adam, infinite gradient, found_inf 2", lambda: two_devices(2.0))


def layer_claims():
    x = torch.ones(1, 1, 4, 4)
    attempt("conv 'same' with stride 2", lambda: F.conv2d(x, x, stride=2, padding="same"))
    attempt("batch norm of one value per channel", lambda: nn.BatchNorm1d(2)(torch.ones(1, 2)))
    table = nn.Embedding(20000, 4, padding_idx=3)
    attempt("embedding: mean, deviation, padding row", lambda: (
        f"{table.weight.mean().item():.3f} {table.weight.std().item():.3f}",
        table.weight[3].tolist()))
    table(torch.tensor([3, 4])).sum().backward()
    attempt("embedding: gradients of padding and of a row",
            lambda: table.weight.grad[3:5, 0].tolist())

    def renormalised():
        small = nn.Embedding.from_pretrained(torch.tensor([[3.0, 4.0]]), max_norm=1.0)
        small(torch.tensor([0]))
        return small.weight.tolist()
    attempt("embedding with max_norm, the table after forward", renormalised)
    attempt("embedding index 5 of 5", lambda: F.embedding(torch.tensor([5]), torch.ones(5, 2)))

    attention = nn.MultiheadAttention(4, 2)
    attempt("attention: bound of in_proj, xavier's", lambda: (
        f"{attention.in_proj_weight.abs().max().item():.3f} {math.sqrt(6 / (4 + 12)):.3f}",
        attention.in_proj_bias.abs().max().item()))
    attempt("attention: shape of the weights returned",
            lambda: tuple(attention(*[torch.ones(3, 1, 4)] * 3)[1].shape))
    masked = torch.zeros(1, 2, dtype=torch.bool)
    q = torch.ones(1, 1, 2, 4)
    attempt("attention with all keys masked", lambda: F.scaled_dot_product_attention(
        q, q, q, attn_mask=masked.expand(2, 2)).flatten().tolist())
    attempt("causal, 2 queries and 3 keys", lambda: F.scaled_dot_product_attention(
        torch.zeros(1, 2, 1), torch.zeros(1, 3, 1), torch.tensor([[[1.0], [2], [4]]]),
        is_causal=True).flatten().tolist())

    def pool(values):
        return F.max_pool1d(torch.tensor([values]), 3, return_indices=True)
    attempt("max pooling of ties", lambda: pool([1.0, 2, 2])[1].tolist())
    attempt("max pooling of NaN", lambda: pool([1.0, NAN, 2])[0].tolist())
    attempt("max pooling of -inf and padding",
            lambda: F.max_pool1d(torch.full((1, 2), -INF), 2, padding=1).tolist())
    ones = torch.ones(1, 1, 3, 3)
    attempt("average pooling with padding, counted and not", lambda: [
        F.avg_pool2d(ones, 3, padding=1, count_include_pad=c).flatten().tolist()
        for c in (True, False)])
    attempt("average pooling, divisor 2",
            lambda: F.avg_pool2d(ones, 3, divisor_override=2).item())
    attempt("kl_div of target 0, and of a negative one", lambda: F.kl_div(
        torch.tensor([0.5, 0.5]), torch.tensor([0.0, -1.0]), reduction="none").tolist())
    for reduction in "mean", "batchmean":
        attempt(f"kl_div {reduction} of shape [2, 3]", lambda: F.kl_div(
            torch.full((2, 3), -1.0), torch.ones(2, 3), reduction=reduction).item())


def format_claims():
    odd = torch.tensor([0x7f800001, -0x7fffff], dtype=torch.int32).view(torch.float32)
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        attempt(f"NaN with a payload, and a negative one, in {dtype}", lambda: bits(odd.to(dtype)))
    for value in (464.0, 465.0, 1e6, INF):
        attempt(f"{value} in e4m3fn and e5m2", lambda: [
            torch.tensor(value).to(t).float().item()
            for t in (torch.float8_e4m3fn, torch.float8_e5m2)])
    attempt("fp64 1+2^-11+2^-40 to fp16, PyTorch and numpy", lambda: (
        torch.tensor(1 + 2**-11 + 2**-40, dtype=torch.float64).half().item(),
        float(np.float16(np.float64(1 + 2**-11 + 2**-40)))))


class Seeds(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return torch.initial_seed()


class Uneven(Seeds):
    def __getitem__(self, i):
        return torch.ones(i + 1)


def loader_claims():
    for persistent in False, True:
        loader = DataLoader(Seeds(), num_workers=1, persistent_workers=persistent)
        epochs = [[batch.item() for batch in loader] for _ in range(2)]
        attempt(f"same seed in the second epoch, persistent workers {persistent}",
                lambda: epochs[0] == epochs[1])
    attempt("samples of unequal sizes", lambda: next(iter(DataLoader(Uneven(), batch_size=2))))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("torch", torch.__version__)
    autocast_claims()
    optimizer_claims()
    layer_claims()
    format_claims()
    loader_claims()
