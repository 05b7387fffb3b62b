#!/usr/bin/env python3
"""Writes tests/golden/attention.bin with PyTorch: embedding, attention, multi-head attention and the
classifier fused with its loss.

    python3 tools/golden_attention.py              write it
    python3 tools/golden_attention.py --verify     compute it again and compare with the file

The format and the policy of half precision are those of tools/golden.py. Attention in half is that of
fp32 on rounded inputs; how far PyTorch's own half kernels are from it widens the tolerance, and in
bf16 what the rounding of weights costs.
"""
import math
import os
import sys

import torch
import torch.nn.functional as F

import golden
from golden import BF16, CONSTANT, F16, F32, GRADIENT, LEAF, OUTPUT, UPSTREAM, Case, Tensor, noise

DTYPES = (F32, F16, BF16)
REGIONS = {0: None, 2: F16, 3: BF16}


def attention(x, i, r):
    """ints: causal; reals: scale, 0 for the default."""
    q, k, v = x[:3]
    mask = x[3] if len(x) > 3 else None
    if mask is not None and i[0]:  # both, which PyTorch does not take
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        mask = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -math.inf)
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(i[0]) and mask is None,
                                          scale=r[0] or None, enable_gqa=q.dim() > 2)


def classifier(x, i, r):
    """ints: reduction, ignored target, region."""
    region = REGIONS[i[2]]
    logits = F.linear(*(golden.round_through(t, region) if region else t for t in x[:2]))
    return F.cross_entropy(logits.flatten(0, -2), x[2].flatten(), x[3] if len(x) > 3 else None,
                           ignore_index=i[1], reduction=["mean", "sum", "none"][i[0]],
                           label_smoothing=r[0]).reshape(x[2].shape if i[0] == 2 else ())


golden.OPS["embedding"] = ("input", lambda x, i, r: F.embedding(
    x[0], x[1], None if i[0] < 0 else i[0]))
golden.OPS["scaled_dot_product_attention"] = ("low", attention)
golden.OPS["linear_cross_entropy"] = ("loss", classifier)
golden.SUMS |= {"embedding", "scaled_dot_product_attention", "linear_cross_entropy"}
golden.ROUNDS_BETWEEN |= {"scaled_dot_product_attention"}


def embedding_cases(dtype):
    d = golden.DTYPE_NAME[dtype]
    for shape, rows, width, padding in (((7,), 5, 3, -1), ((2, 3), 6, 19, 2), ((), 4, 5, -1),
                                        ((0,), 3, 2, -1), ((3, 2, 2), 9, 1, 8)):
        label = f"embedding {d} {list(shape)} {rows} x {width} padding {padding}"
        ids = (noise(label + "/ids", shape).abs() * rows).long()
        yield golden.op_case("embedding", label, [ids, noise(label, (rows, width)).to(dtype)],
                             [padding])


def from_rounded(inputs, ints, reals, out, upstream, region):
    """Gradients where the sums of upstream and output come from the output as it was stored."""
    wide = [golden.round_through(t, region) if region and golden.floating(t) else
            t.float() if golden.floating(t) else t for t in inputs]
    wide = [t.detach() if t.dtype == torch.bool else t.detach().requires_grad_() for t in wide]
    exact = attention(wide, ints, reals)
    q, k, v = wide[:3]
    gap = upstream.float() * (out.float() - exact.detach())  # what it makes delta larger by
    g = torch.autograd.grad(exact, (q, k, v), upstream.float(), retain_graph=True)
    eye = torch.eye(k.shape[-2]).expand(*k.shape[:-1], k.shape[-2])
    scores = attention([q, k, eye, *wide[3:]], ints, reals)  # p, of which d sum_s p_s x = p (x - ..)
    shift = gap.sum(-1, keepdim=True)
    scale = reals[0] or q.shape[-1] ** -0.5
    if q.dim() > 2:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    dq = scores @ k * scale * shift
    dk = (scores * shift).transpose(-1, -2) @ q * scale
    if q.dim() > 2:
        dk = dk.unflatten(-3, (g[1].shape[-3], -1)).sum(-3)
    return g[0] - dq, g[1] - dk, g[2]


def widened(case, inputs, ints, reals, region):
    """As much as that choice moves a gradient, and half as much more, is allowed. Weights may be
    rounded to bf16 before they are multiplied, as PyTorch's kernel does: half an ulp of each term
    of the output and of the gradient of v (where they are not, tests/api_attention.c sees it)."""
    named = {t.name: t for t in case.tensors}
    out, upstream = named["out"].value.detach(), named["upstream"].value
    if out.dtype == F32:
        return case
    if out.dtype == BF16:
        q, k, v = (golden.round_through(t.detach(), BF16).float() for t in inputs[:3])
        v = v.abs().requires_grad_()
        masks = [t if t.dtype == torch.bool else t.float() for t in inputs[3:]]
        sizes = attention([q, k, v, *masks], ints, reals)
        (of_v,) = torch.autograd.grad(sizes, v, upstream.float().abs())
        for name, terms in (("out", sizes), ("g2", of_v)):
            named[name].atol = max(named[name].atol, 2.0 ** -8 * terms.max().item())
    for i, g in enumerate(from_rounded(inputs, ints, reals, out, upstream, region)):
        t = named[f"g{i}"]
        t.atol = max(t.atol, 1.5 * golden.excess(g, t.value, 0))
    return case


def attention_cases(dtype, region=None):
    where = f" in {golden.DTYPE_NAME[region]}" if region else ""
    d = golden.DTYPE_NAME[dtype] + where
    shapes = [((5, 4), (6, 4), (6, 3)), ((2, 3, 4), (2, 7, 4), (2, 7, 4)),
              ((2, 2, 5, 4), (2, 1, 5, 4), (2, 1, 5, 4)), ((1, 3, 4, 8), (1, 1, 5, 8), (1, 1, 5, 2))]
    kinds = [("", 0, 0.0), ("causal", 1, 0.0), ("bool", 0, 0.5), ("float", 0, 0.0),
             ("causal bool", 1, 0.0)]
    for s, (q, k, v) in enumerate(shapes):
        for kind, causal, scale in kinds:
            if (dtype != F32 or region) and s % 2 == (causal or "float" in kind):
                continue
            label = f"attention {d} {list(q)} {list(k)} {kind}"
            inputs = [noise(f"{label}/{i}", x, 2).to(dtype) for i, x in enumerate((q, k, v))]
            if "bool" in kind:
                mask = noise(label + "/mask", (q[-2], k[-2])) > -0.4
                mask[:, 0] = True
                mask[-1] = "causal" in kind  # the last query sees nothing
                inputs.append(mask)
            elif kind == "float":
                inputs.append((noise(label + "/mask", (1, k[-2])) * 8).round().to(dtype) / 4)
            case = golden.op_case("scaled_dot_product_attention", label, inputs, [causal], [scale],
                                  region, constant=(3,))
            yield widened(case, inputs, [causal], [scale], region)
    if dtype == F32 and not region:  # more than one block of queries and of keys
        label = "attention f32 blocks"
        q, k = noise(label + "/q", (1, 1, 67, 3), 2), noise(label + "/k", (1, 1, 130, 3), 2)
        yield golden.op_case("scaled_dot_product_attention", label,
                             [q, k, noise(label + "/v", (1, 1, 130, 2))], [1], [0.0], region)


def classifier_cases(dtype=F32, region=None):
    code = golden.DTYPE_CODE[region]
    d = golden.DTYPE_NAME[dtype] + (f" in {golden.DTYPE_NAME[region]}" if region else "")
    for n, (shape, classes, reduction, smoothing, weighted) in enumerate((
            ((5, 4), 7, 0, 0.0, False), ((2, 4, 6), 17, 1, 0.1, True), ((6, 3), 5, 2, 0.2, False))):
        label = f"linear_cross_entropy {d} {list(shape)} {classes}"
        targets = (noise(label + "/t", shape[:-1]).abs() * classes).long()
        targets.flatten()[0] = -100
        inputs = [noise(label + "/x", shape, 2), noise(label + "/w", (classes, shape[-1])), targets]
        inputs[:2] = [x.to(dtype) for x in inputs[:2]]
        if weighted:
            inputs.append(noise(label + "/c", (classes,)).abs() + 0.1)
        case = golden.op_case("linear_cross_entropy", label, inputs, [reduction, -100, code],
                              [smoothing], region, constant=(3,))
        for t in case.tensors:  # their products take slopes that are rounded to half
            half = region or (dtype if dtype != F32 else None)
            if half and t.role == GRADIENT:
                t.rtol = golden.RTOL[half]
                t.atol = t.rtol * t.value.abs().max().item()
        yield case


def multi_head_runs(layer, inputs, upstream, heads, causal, region):
    """What a layer gives with linear layers and attention in half, under torch.autocast and by our
    policy: output and gradients."""
    def low(native, function, *tensors):
        if native:
            return function(*tensors)
        rounded = [None if t is None else golden.round_through(t.float(), region) for t in tensors]
        return function(*rounded).to(region)

    p = dict(layer.named_parameters())
    bias = p.get("in_proj_bias")
    for native in (True, False):
        with torch.autocast("cpu", dtype=region, enabled=native):
            parts = [low(native, F.linear, x, w, b).unflatten(-1, (heads, -1)).transpose(1, 2)
                     for x, w, b in zip(inputs if len(inputs) > 1 else inputs * 3,
                                        p["in_proj_weight"].chunk(3),
                                        [None] * 3 if bias is None else bias.chunk(3))]
            out = low(native, lambda *x: F.scaled_dot_product_attention(*x, is_causal=bool(causal)),
                      *parts).transpose(1, 2).flatten(2)
            out = low(native, F.linear, out, p["out_proj.weight"], p.get("out_proj.bias"))
        yield [out, *torch.autograd.grad(out, inputs + list(p.values()), upstream.to(out.dtype))]


def in_half(case, runs, region):
    """The case in a region of autocast: at most twice as far from fp32 as PyTorch's half is."""
    runs = list(runs)
    tensors = [t for t in case.tensors if t.role == LEAF]
    for n, t in enumerate(t for t in case.tensors if t.role in (OUTPUT, GRADIENT)):
        far = max((r[n].detach().float() - t.value).abs().max().item() for r in runs)
        value = t.value.detach().to(region) if t.role == OUTPUT else t.value
        tensors.append(Tensor(t.name, value, t.role, t.index, atol=2 * far, rtol=0.0))
    named = {t.name: t for t in case.tensors}
    tensors.append(Tensor("upstream", named["upstream"].value.to(region), UPSTREAM))
    return Case(case.op, f"{case.label} {golden.DTYPE_NAME[region]}", case.ints, [], tensors, region)


def multi_head_cases(region=None):
    for label, heads, causal, shape, keys, bias in (
            ("self", 2, 0, (2, 5, 6), 0, 1), ("causal", 3, 1, (1, 4, 6), 0, 1),
            ("cross", 2, 0, (2, 4, 8), 7, 1), ("cross without bias", 4, 0, (1, 3, 8), 5, 0)):
        width = shape[2]
        layer = torch.nn.MultiheadAttention(width, heads, bias=bool(bias), batch_first=True)
        names = [n for n, _ in layer.named_parameters()]
        with torch.no_grad():
            for name, p in layer.named_parameters():
                p.copy_(noise(f"multi-head {label}/{name}", p.shape))
        x = [noise(f"multi-head {label}/x", shape).requires_grad_()]
        for part in ("key", "value"):
            if keys:
                x.append(noise(f"multi-head {label}/{part}", (shape[0], keys, width)))
                x[-1].requires_grad_()
        q, k, v = x if keys else x * 3
        mask = ~torch.ones(shape[1], shape[1], dtype=torch.bool).tril() if causal else None
        out = layer(q, k, v, need_weights=False, attn_mask=mask, is_causal=bool(causal))[0]
        upstream = noise(f"multi-head {label}/upstream", out.shape)
        leaves = x + [p for _, p in layer.named_parameters()]
        found = torch.autograd.grad(out, leaves, upstream)
        tensors = [Tensor(n, t.detach(), LEAF, i) for i, (n, t) in enumerate(
            zip(["x", "key", "value"][:len(x)] + names, leaves))]
        tensors += [Tensor("out", out, OUTPUT), Tensor("upstream", upstream, UPSTREAM)]
        tensors += [Tensor(f"g{i}", g, GRADIENT, i, atol=2e-5) for i, g in enumerate(found)]
        made = Case("multi_head_attention", f"multi-head {label}", [heads, causal, bias, len(x)], [],
                    tensors)
        yield from [made] if region is None else [
            in_half(made, multi_head_runs(layer, x, upstream, heads, causal, region), region)]


def cases():
    for dtype in DTYPES:
        yield from embedding_cases(dtype)
        yield from attention_cases(dtype)
    for region in (F16, BF16):
        yield from attention_cases(F32, region)
        yield from classifier_cases(region=region)
    for dtype in DTYPES:
        yield from classifier_cases(dtype)
    for region in (None, F16, BF16):
        yield from multi_head_cases(region)


def main():
    torch.set_num_threads(1)
    made = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("attention.bin", made) else 1
    data = golden.pack_file(made)
    with open(os.path.join(golden.FOLDER, "attention.bin"), "wb") as out:
        out.write(data)
    print(f"attention.bin: {len(made)} cases, {len(data)} bytes")
    for what, atols in golden.loosened.items():
        if atols:
            print(f"  {what}: {len(atols)} tensors have atol up to {max(atols):.1e}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
