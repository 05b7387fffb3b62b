#!/usr/bin/env python3
"""Writes tests/golden/fold.bin with PyTorch: logits of ResNet-18 in evaluation.

    python3 tools/golden_fold.py              write it
    python3 tools/golden_fold.py --verify     compute it again and compare with the file

Needs Python 3.9 or newer with torch, numpy and safetensors. The net, its weights and statistics and
the precisions are those of tools/golden_models.py; the pictures are others.
"""
import os
import sys

import torch

import golden
from golden import F32, Case, Tensor, noise
from golden_models import RUNS, SAMPLES, Resnet18, taken


class Evaluated(Resnet18):
    training, batch = False, 40

    def data(self):
        shape = (self.batch, 3, self.size, self.size)
        return noise("fold/x", shape), torch.zeros(self.batch, dtype=torch.int64)


def case():
    model, tensors = Evaluated(), []
    x, y = model.data()
    for name, (dtype, ops) in RUNS.items():
        p = {n: t.to(dtype).clone() for n, t in model.start().items()}
        with torch.no_grad(), torch.autocast("cpu", dtype=ops.region or torch.bfloat16,
                                             enabled=ops.native):
            logits = taken(model.forward(ops, p, x, y)[1], SAMPLES)
        tensors.append(Tensor(f"{name} logits", logits if name == "f64" else logits.to(F32)))
    return Case("evaluation", model.name, model.ints(), [], tensors)


def main():
    torch.set_num_threads(1)
    made = [case()]
    if "--verify" in sys.argv[1:]:
        return 0 if golden.verify("fold.bin", made) else 1
    data = golden.pack_file(made)
    with open(os.path.join(golden.FOLDER, "fold.bin"), "wb") as f:
        f.write(data)
    print(f"fold.bin: {len(data)} bytes")
    named = {t.name: t.value.double() for t in made[0].tensors}
    size = named["f32 logits"].square().mean().sqrt()
    for r in RUNS:
        off = (named[f"{r} logits"] - named["f32 logits"]).square().mean().sqrt() / size
        print(f"  {r}: {off:.2e} off")
    return 0


if __name__ == "__main__":
    sys.exit(main())
