#!/usr/bin/env python3
"""Writes tests/golden/recurrent.bin with PyTorch: recurrent layers and their cells.

    python3 tools/golden_recurrent.py              write it
    python3 tools/golden_recurrent.py --verify     compute it again and compare with the file

The format is that of tools/golden.py. ints: layers, bidirectional, bias, batch_first, relu,
projection, states that are given, hidden, cell. Leaves are x, h and c where they are given, and the
parameters; a constant "lengths" may stand before them; outputs are "out" (not of cells), "h", "c".
In half, pure or in a region, the values are those of fp32 on rounded inputs, and allowed is twice
what PyTorch's own half is off.
"""
import os
import sys

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import golden
from golden import (BF16, CONSTANT, DTYPE_NAME, F16, F32, GRADIENT, LEAF, OUTPUT, UPSTREAM, Case,
                    Tensor, noise)

LAYERS = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
CELLS = {"rnn": torch.nn.RNNCell, "lstm": torch.nn.LSTMCell, "gru": torch.nn.GRUCell}


def made(op, how):
    more = {"nonlinearity": "relu" if how["relu"] else "tanh"} if op == "rnn" else {}
    if how["cell"]:
        return CELLS[op](how["width"], how["hidden"], bias=bool(how["bias"]), **more)
    if how["projection"]:
        more["proj_size"] = how["projection"]
    return LAYERS[op](how["width"], how["hidden"], how["layers"], bias=bool(how["bias"]),
                      batch_first=bool(how["batch_first"]),
                      bidirectional=bool(how["bidirectional"]), **more)


def run(op, how, layer, x, states, lengths):
    state = (tuple(states) if op == "lstm" else states[0]) if states else None
    if how["cell"]:
        found = layer(x, state) if states else layer(x)
        return list(found) if op == "lstm" else [found]
    given = x
    if lengths is not None:
        given = pack_padded_sequence(x, lengths, bool(how["batch_first"]), enforce_sorted=False)
    out, last = layer(given, state) if states else layer(given)
    if lengths is not None:
        out = pad_packed_sequence(out, bool(how["batch_first"]), total_length=x.shape[
            1 if how["batch_first"] else 0])[0]
    return [out] + (list(last) if op == "lstm" else [last])


def whole(op, how, layer, leaves, lengths, upstreams):
    """Outputs and gradients on these values, in their dtype."""
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    n = 1 + how["states"]
    names = [name for name, _ in layer.named_parameters()]
    given = dict(zip(names, leaves[n:]))

    class Call(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x, states):
            return run(op, how, self.layer, x, states, lengths)

    call = Call()
    out = torch.func.functional_call(call, {f"layer.{k}": v for k, v in given.items()},
                                     (leaves[0], leaves[1:n]))
    slopes = torch.autograd.grad(out, leaves, [u.to(o.dtype) for u, o in zip(upstreams, out)])
    return [t.detach() for t in out], list(slopes)


def case(op, label, shape, dtype=F32, region=None, lengths=None, **changes):
    how = {"layers": 1, "bidirectional": 0, "bias": 1, "batch_first": 0, "relu": 0,
           "projection": 0, "states": 0, "hidden": 5, "cell": 0} | changes
    how["width"] = shape[-1]
    low = region or (dtype if dtype != F32 else None)
    label = f"{op} {label} {DTYPE_NAME[dtype]}" + (f" in {DTYPE_NAME[region]}" if region else "")
    layer = made(op, how)
    batched = len(shape) == (2 if how["cell"] else 3)
    count = how["layers"] * (2 if how["bidirectional"] else 1)
    batch = [shape[0] if how["cell"] or how["batch_first"] else shape[1]] if batched else []
    head = batch if how["cell"] else [count] + batch
    leaves = [noise(label + "/x", shape)]
    for i in range(how["states"]):
        width = how["projection"] if i == 0 and how["projection"] else how["hidden"]
        leaves.append(noise(f"{label}/state {i}", head + [width]))
    names = [n for n, _ in layer.named_parameters()]
    leaves += [noise(f"{label}/{n}", p.shape) for n, p in layer.named_parameters()]
    leaves = [t.to(dtype) for t in leaves]
    wide = [t.float() for t in leaves]
    probe, _ = whole(op, how, layer, wide, lengths, [torch.zeros(())] * 0 or [
        torch.zeros_like(o) for o in run(op, how, layer, wide[0], wide[1:1 + how["states"]],
                                         lengths)])
    upstreams = [noise(f"{label}/upstream {i}", o.shape).to(low or F32)
                 for i, o in enumerate(probe)]
    read = [t.to(low).float() for t in wide] if low else wide
    values, slopes = whole(op, how, layer, read, lengths, [u.float() for u in upstreams])
    far = [0.0] * (len(values) + len(slopes))
    if low:
        native = whole(op, how, layer.to(low), [t.to(low) for t in wide], lengths, upstreams)
        far = [2 * (n.float() - v).abs().max().item() + 2 ** -10 * v.abs().max().item()
               for n, v in zip(native[0] + native[1], values + slopes)]
        if low == BF16:
            far = [f + 2 ** -8 * v.abs().max().item() for f, v in zip(far, values + slopes)]
    tensors = []
    if lengths is not None:
        tensors.append(Tensor("lengths", lengths, CONSTANT))
    titles = ["x", "h0", "c0"][:1 + how["states"]] + names
    tensors += [Tensor(n, t, LEAF, i) for i, (n, t) in enumerate(zip(titles, leaves))]
    outputs = (["h", "c"] if how["cell"] else ["out", "h", "c"])[:len(values)]
    for i, (n, v) in enumerate(zip(outputs, values)):
        more = {"atol": far[i], "rtol": 0.0} if low else {"atol": 2e-6}
        tensors.append(Tensor(n, v.to(low or F32), OUTPUT, i, **more))
        tensors.append(Tensor(f"upstream {n}", upstreams[i], UPSTREAM, i))
    for i, g in enumerate(slopes):
        more = {"atol": far[len(values) + i], "rtol": 0.0} if low else {"atol": 2e-5}
        tensors.append(Tensor(f"g{i}", g, GRADIENT, i, **more))
    ints = [how[k] for k in ("layers", "bidirectional", "bias", "batch_first", "relu",
                             "projection", "states", "hidden", "cell")]
    return Case(op, label, ints, [], tensors, region)


def cases():
    ragged = torch.tensor([3, 1, 4])
    for op in LAYERS:
        full = 2 if op == "lstm" else 1
        for dtype, region in ((F32, None), (F16, None), (BF16, None), (F32, F16), (F32, BF16)):
            what = {"dtype": dtype, "region": region}
            yield case(op, "plain", (4, 3, 3), **what)
            yield case(op, "with a state", (3, 2, 4), states=full, **what)
            yield case(op, "batch first", (2, 4, 3), batch_first=1, states=full, **what)
            yield case(op, "both ways", (4, 3, 3), bidirectional=1, **what)
            yield case(op, "ragged", (4, 3, 3), lengths=ragged, states=full, **what)
            yield case(op, "cell", (3, 4), cell=1, states=full, **what)
        yield case(op, "without a bias", (3, 2, 4), bias=0)
        yield case(op, "two layers", (3, 2, 4), layers=2, states=full)
        yield case(op, "two layers both ways, ragged", (4, 3, 3), layers=2, bidirectional=1,
                   lengths=ragged, states=full, hidden=3)
        yield case(op, "ragged, both ways, batch first", (3, 4, 2), bidirectional=1,
                   batch_first=1, lengths=ragged, states=full)
        yield case(op, "without a batch", (4, 3), states=full)
        yield case(op, "cell without a batch", (3,), cell=1, states=full)
        yield case(op, "cell without a state", (2, 3), cell=1, bias=0)
        yield case(op, "wide", (2, 2, 17), hidden=19, states=full)
        yield case(op, "one step", (1, 2, 3))
    for region in (None, BF16):
        yield case("lstm", "projected", (4, 3, 3), projection=2, states=2, region=region)
        yield case("lstm", "projected both ways, ragged", (4, 3, 3), projection=2, states=2,
                   bidirectional=1, layers=2, lengths=ragged, region=region)
    for label, shape in (("relu", (4, 3, 3)), ("relu with a state", (3, 2, 4))):
        yield case("rnn", label, shape, relu=1, states=len(label) > 4)
    yield case("rnn", "relu cell", (2, 3), relu=1, cell=1, states=1)


def main():
    torch.set_num_threads(1)
    found = list(cases())
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("recurrent.bin", found) else 1
    data = golden.pack_file(found)
    with open(os.path.join(golden.FOLDER, "recurrent.bin"), "wb") as out:
        out.write(data)
    print(f"recurrent.bin: {len(found)} cases, {len(data)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
