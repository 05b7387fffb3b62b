#!/usr/bin/env python3
"""Writes tests/golden/models.bin and models_*.safetensors with PyTorch: narrow models of four
families, two of the layers that those do not have, a ResNet for small pictures and a BERT with a
padding mask, what they compute, their gradients and three training steps.

    python3 tools/golden_models.py              write them
    python3 tools/golden_models.py --verify     compute them again and compare with the files

Needs Python 3.9 or newer with torch, numpy and safetensors. Weights are saved under the names and in
the layouts that torchvision (ResNet, ViT) and Hugging Face's transformers (GPT-2, BERT) give them.
Each model runs in fp64, in fp32, and for fp16 and bf16 twice: under torch.autocast, and under
mptrain's policy (tools/golden.py) with casts. A run holds

    logits   of the first step, `SAMPLES` of them where there are more
    loss     of the three steps
    grads    of the first step: for each parameter its norm and `HEAD` of its elements
    after    for each parameter and running statistic `HEAD` of its elements after the three steps

in the order of mptrain's names, which "names" lists. Of n values, those taken are i n / count.

ResNet-18 and ViT-B/16 as their papers have them run two steps in fp64 and fp32, from weights that
the test makes too; "model_large" holds some logits, the losses and how many parameters there are.
"""
import math
import os
import sys

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F

import golden
from golden import BF16, F16, F32, F64, I64, U8, Case, Tensor, noise, round_through

HEAD, SAMPLES, STEPS, SCALE = 8, 512, 3, 256.0


class Ops:
    """Functions of a model in one precision: `region` is None, F16 or BF16; `native`: as
    torch.autocast does it, else by mptrain's policy."""

    def __init__(self, region=None, native=False):
        self.region, self.native = region, native

    def low(self, function, *tensors):
        if self.region is None or self.native:
            return function(*tensors)
        rounded = [None if t is None else round_through(t.float(), self.region) for t in tensors]
        return function(*rounded).to(self.region)

    def wide(self, function, x):
        """fp32 inside, its input's dtype outside."""
        if self.region is None or self.native:
            return function(x)
        return function(x.float()).to(x.dtype)

    def linear(self, x, w, b):
        return self.low(F.linear, x, w, b)

    def conv(self, x, w, b=None, **more):
        return self.low(lambda x, w, b: F.conv2d(x, w, b, **more), x, w, b)

    def attention(self, q, k, v, causal, seen):
        return self.low(lambda *x: F.scaled_dot_product_attention(*x, attn_mask=seen,
                                                                  is_causal=causal), q, k, v)

    def layer_norm(self, x, w, b, eps):
        return self.wide(lambda x: F.layer_norm(x, w.shape, w, b, eps), x)

    def gelu(self, x, how="none"):
        return self.wide(lambda x: F.gelu(x, approximate=how), x)

    def classify(self, x, w, y):
        """Cross-entropy of x w^T, whose logits mptrain does not round."""
        if self.region is None or self.native:
            return F.cross_entropy(F.linear(x, w).flatten(0, 1).float()
                                   if self.native else F.linear(x, w).flatten(0, 1), y.flatten())
        x, w = round_through(x.float(), self.region), round_through(w, self.region)
        return F.cross_entropy(F.linear(x, w).flatten(0, 1), y.flatten())

    def cross_entropy(self, logits, y):
        logits = logits.flatten(0, -2)
        return F.cross_entropy(logits.float() if self.region else logits, y.flatten())


def heads_apart(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def attend(o, q, k, v, heads, causal, seen=None):
    out = o.attention(*(heads_apart(t, heads) for t in (q, k, v)), causal, seen)
    return out.transpose(-3, -2).flatten(-2)


class Model:
    """Shapes of the weights by name, a forward that gives (loss, logits), and what mptrain calls and
    how it stores each."""
    optimizer, rate, file_dtype, float_input = "adamw", 1e-2, F16, False

    def weights_of(self):
        """Whose file of weights it takes."""
        return self.name

    def start(self):
        weights = {}
        for name, shape in self.shapes().items():
            u = noise(f"{self.weights_of()}/{name}", shape)
            if name.endswith("running_var"):
                u = 1 + u / 2
            elif "norm" in name.lower() or ".ln" in name or "bn" in name or name.startswith("ln"):
                u = 1 + u / 4 if name.endswith("weight") else u / 8
            elif "downsample.1" in name:
                u = 1 + u / 4 if name.endswith("weight") else u / 8
            elif len(shape) > 1 and "embed" not in name and "wte" not in name and "wpe" not in name:
                u = u * math.sqrt(3 / self.fan_in(name, shape))
            else:
                u = u / 2
            wide = "running" in name
            weights[name] = u.float() if wide else u.to(self.file_dtype).float()
        return weights

    def fan_in(self, name, shape):
        return int(np.prod(shape[1:]))

    def buffers(self):
        return []

    def extras(self):
        """Entries of the file that are no weights."""
        return {}


class Gpt2(Model):
    name, layers, heads, width, context, vocabulary, batch = "gpt2", 4, 2, 24, 16, 61, 3

    def ints(self):
        return [self.layers, self.heads, self.width, self.context, self.vocabulary, self.batch]

    def shapes(self):
        w, found = self.width, {}
        found["wte.weight"], found["wpe.weight"] = (self.vocabulary, w), (self.context, w)
        for i in range(self.layers):
            h = f"h.{i}."
            found.update({h + "ln_1.weight": (w,), h + "ln_1.bias": (w,),
                          h + "attn.c_attn.weight": (w, 3 * w), h + "attn.c_attn.bias": (3 * w,),
                          h + "attn.c_proj.weight": (w, w), h + "attn.c_proj.bias": (w,),
                          h + "ln_2.weight": (w,), h + "ln_2.bias": (w,),
                          h + "mlp.c_fc.weight": (w, 4 * w), h + "mlp.c_fc.bias": (4 * w,),
                          h + "mlp.c_proj.weight": (4 * w, w), h + "mlp.c_proj.bias": (w,)})
        found["ln_f.weight"] = found["ln_f.bias"] = (w,)
        return {"transformer." + k: v for k, v in found.items()}

    def fan_in(self, name, shape):
        return shape[0]

    def extras(self):
        mask = torch.ones(1, 1, self.context, self.context, dtype=torch.bool).tril()
        found = {f"transformer.h.{i}.attn.bias": mask.to(U8) for i in range(self.layers)}
        found.update({f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4)
                      for i in range(self.layers)})
        return found

    def data(self):
        ids = (noise("gpt2/ids", (self.batch, self.context + 1)) + 1) / 2 * self.vocabulary
        return ids.long()[:, :-1].contiguous(), ids.long()[:, 1:].contiguous()

    def forward(self, o, p, x, y):
        p = {k[len("transformer."):]: v for k, v in p.items()}
        t = F.embedding(x, p["wte.weight"]) + F.embedding(torch.arange(x.shape[1]), p["wpe.weight"])
        for i in range(self.layers):
            h = f"h.{i}."
            a = o.layer_norm(t, p[h + "ln_1.weight"], p[h + "ln_1.bias"], 1e-5)
            a = o.linear(a, p[h + "attn.c_attn.weight"].T, p[h + "attn.c_attn.bias"])
            a = attend(o, *a.chunk(3, -1), self.heads, True)
            t = t + o.linear(a, p[h + "attn.c_proj.weight"].T, p[h + "attn.c_proj.bias"])
            a = o.layer_norm(t, p[h + "ln_2.weight"], p[h + "ln_2.bias"], 1e-5)
            a = o.gelu(o.linear(a, p[h + "mlp.c_fc.weight"].T, p[h + "mlp.c_fc.bias"]), "tanh")
            t = t + o.linear(a, p[h + "mlp.c_proj.weight"].T, p[h + "mlp.c_proj.bias"])
        t = o.layer_norm(t, p["ln_f.weight"], p["ln_f.bias"], 1e-5)
        return o.classify(t, p["wte.weight"], y), o.linear(t, p["wte.weight"], None)

    def ours(self, p):
        names = {"attn.c_attn.weight": "attn.in_proj_weight", "attn.c_attn.bias": "attn.in_proj_bias",
                 "attn.c_proj": "attn.out_proj", "mlp.c_fc": "mlp.0", "mlp.c_proj": "mlp.2"}
        found = {}
        for name, value in p.items():
            name = name[len("transformer."):]
            turned = ".c_" in name and name.endswith("weight")
            for a, b in names.items():
                name = name.replace(a, b)
            found[name] = value.T if turned else value
        return found


class Resnet18(Model):
    name, optimizer, rate, float_input = "resnet18", "sgd", 2e-3, True
    width, size, classes, batch = 4, 48, 10, 6
    training, large = True, True

    def ints(self):
        return [self.width, self.size, self.classes, self.batch]

    def blocks(self):
        for layer in range(4):
            out = self.width << layer
            for block in range(2):
                before = out // 2 if layer and not block else out
                yield f"layer{layer + 1}.{block}.", before, out, 2 if layer and not block else 1

    def shapes(self):
        found = {}

        def norm(name, width):
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"{name}.{part}"] = (width,)

        found["conv1.weight"] = (self.width, 3, 7, 7) if self.large else (self.width, 3, 3, 3)
        norm("bn1", self.width)
        for name, before, out, stride in self.blocks():
            found[name + "conv1.weight"] = (out, before, 3, 3)
            norm(name + "bn1", out)
            found[name + "conv2.weight"] = (out, out, 3, 3)
            norm(name + "bn2", out)
            if stride > 1:
                found[name + "downsample.0.weight"] = (out, before, 1, 1)
                norm(name + "downsample.1", out)
        found["fc.weight"], found["fc.bias"] = (self.classes, 8 * self.width), (self.classes,)
        return found

    def buffers(self):
        return [n for n in self.shapes() if "running" in n]

    def extras(self):
        return {n.replace("running_mean", "num_batches_tracked"): torch.tensor(7)
                for n in self.shapes() if n.endswith("running_mean")}

    def data(self):
        y = (noise(f"{self.name}/y", (self.batch,)) + 1) / 2 * self.classes
        return noise(f"{self.name}/x", (self.batch, 3, self.size, self.size)), y.long()

    def forward(self, o, p, x, y):
        def norm(x, name):
            mean, var = p[name + ".running_mean"], p[name + ".running_var"]
            return o.wide(lambda x: F.batch_norm(x, mean, var, p[name + ".weight"],
                                                 p[name + ".bias"], training=self.training), x)

        x = x.to(p["fc.bias"].dtype)
        stride, padding = (2, 3) if self.large else (1, 1)
        x = F.relu(norm(o.conv(x, p["conv1.weight"], stride=stride, padding=padding), "bn1"))
        x = F.max_pool2d(x, 3, 2, 1) if self.large else x
        for name, before, out, stride in self.blocks():
            z = o.conv(x, p[name + "conv1.weight"], stride=stride, padding=1)
            z = o.conv(F.relu(norm(z, name + "bn1")), p[name + "conv2.weight"], padding=1)
            z = norm(z, name + "bn2")
            if stride > 1:
                x = norm(o.conv(x, p[name + "downsample.0.weight"], stride=stride),
                         name + "downsample.1")
            x = F.relu(z + x)
        x = o.wide(lambda x: x.mean((2, 3)), x)
        logits = o.linear(x, p["fc.weight"], p["fc.bias"])
        return o.cross_entropy(logits, y), logits

    def ours(self, p):
        return dict(p)


class ResnetCifar(Resnet18):
    """The stem of small pictures: 3 x 3, without a pooling."""
    name, large = "resnet_cifar", False
    width, size, classes, batch = 3, 24, 10, 6


class Vit(Model):
    name, float_input = "vit", True
    width, layers, heads, hidden, patch, size, classes, batch = 24, 3, 3, 48, 4, 12, 10, 6

    def ints(self):
        return [self.width, self.layers, self.heads, self.hidden, self.patch, self.size,
                self.classes, self.batch]

    def shapes(self):
        w = self.width
        found = {"class_token": (1, 1, w), "conv_proj.weight": (w, 3, self.patch, self.patch),
                 "conv_proj.bias": (w,),
                 "encoder.pos_embedding": (1, (self.size // self.patch) ** 2 + 1, w)}
        for i in range(self.layers):
            h = f"encoder.layers.encoder_layer_{i}."
            found.update({h + "ln_1.weight": (w,), h + "ln_1.bias": (w,),
                          h + "self_attention.in_proj_weight": (3 * w, w),
                          h + "self_attention.in_proj_bias": (3 * w,),
                          h + "self_attention.out_proj.weight": (w, w),
                          h + "self_attention.out_proj.bias": (w,),
                          h + "ln_2.weight": (w,), h + "ln_2.bias": (w,),
                          h + "mlp.0.weight": (self.hidden, w), h + "mlp.0.bias": (self.hidden,),
                          h + "mlp.3.weight": (w, self.hidden), h + "mlp.3.bias": (w,)})
        found.update({"encoder.ln.weight": (w,), "encoder.ln.bias": (w,),
                      "heads.head.weight": (self.classes, w), "heads.head.bias": (self.classes,)})
        return found

    def data(self):
        y = (noise("vit/y", (self.batch,)) + 1) / 2 * self.classes
        return noise("vit/x", (self.batch, 3, self.size, self.size)), y.long()

    def forward(self, o, p, x, y):
        x = o.conv(x.to(p["heads.head.bias"].dtype), p["conv_proj.weight"], p["conv_proj.bias"],
                   stride=self.patch).flatten(2).transpose(1, 2)
        token = p["class_token"].expand(x.shape[0], -1, -1)
        t = torch.cat([token, x.to(token.dtype)], 1) + p["encoder.pos_embedding"]
        for i in range(self.layers):
            h = f"encoder.layers.encoder_layer_{i}."
            a = o.layer_norm(t, p[h + "ln_1.weight"], p[h + "ln_1.bias"], 1e-6)
            a = o.linear(a, p[h + "self_attention.in_proj_weight"],
                         p[h + "self_attention.in_proj_bias"])
            a = attend(o, *a.chunk(3, -1), self.heads, False)
            t = t + o.linear(a, p[h + "self_attention.out_proj.weight"],
                             p[h + "self_attention.out_proj.bias"])
            a = o.layer_norm(t, p[h + "ln_2.weight"], p[h + "ln_2.bias"], 1e-6)
            a = o.gelu(o.linear(a, p[h + "mlp.0.weight"], p[h + "mlp.0.bias"]))
            t = t + o.linear(a, p[h + "mlp.3.weight"], p[h + "mlp.3.bias"])
        t = o.layer_norm(t, p["encoder.ln.weight"], p["encoder.ln.bias"], 1e-6)
        logits = o.linear(t[:, 0], p["heads.head.weight"], p["heads.head.bias"])
        return o.cross_entropy(logits, y), logits

    def ours(self, p):
        return dict(p)


class Bert(Model):
    name, file_dtype = "bert", BF16
    width, layers, heads, hidden, positions, vocabulary, batch = 24, 2, 3, 64, 20, 53, 4
    length = 15  # of the texts

    def ints(self):
        return [self.width, self.layers, self.heads, self.hidden, self.positions, self.vocabulary,
                self.batch, self.length]

    def shapes(self):
        w, e = self.width, "bert.embeddings."
        found = {e + "word_embeddings.weight": (self.vocabulary, w),
                 e + "position_embeddings.weight": (self.positions, w),
                 e + "token_type_embeddings.weight": (2, w),
                 e + "LayerNorm.weight": (w,), e + "LayerNorm.bias": (w,)}
        for i in range(self.layers):
            h = f"bert.encoder.layer.{i}."
            for part in ("query", "key", "value"):
                found[f"{h}attention.self.{part}.weight"] = (w, w)
                found[f"{h}attention.self.{part}.bias"] = (w,)
            for name, out, before in (("attention.output", w, w), ("intermediate", self.hidden, w),
                                      ("output", w, self.hidden)):
                found[f"{h}{name}.dense.weight"] = (out, before)
                found[f"{h}{name}.dense.bias"] = (out,)
                if name != "intermediate":
                    found[f"{h}{name}.LayerNorm.weight"] = (w,)
                    found[f"{h}{name}.LayerNorm.bias"] = (w,)
        t = "cls.predictions."
        found.update({t + "bias": (self.vocabulary,), t + "transform.dense.weight": (w, w),
                      t + "transform.dense.bias": (w,), t + "transform.LayerNorm.weight": (w,),
                      t + "transform.LayerNorm.bias": (w,)})
        return found

    def extras(self):
        return {"bert.embeddings.position_ids": torch.arange(self.positions)[None],
                "bert.pooler.dense.weight": noise("bert/pooler", (self.width, self.width)),
                "bert.pooler.dense.bias": torch.zeros(self.width),
                "cls.predictions.decoder.bias": torch.zeros(self.vocabulary)}

    def data(self):
        shape = (self.batch, self.length)
        x = ((noise("bert/x", shape) + 1) / 2 * self.vocabulary).long()
        y = ((noise("bert/y", shape) + 1) / 2 * self.vocabulary).long()
        return x, torch.where(noise("bert/chosen", shape) < -0.4, y, -100)

    def seen(self, x):
        return None

    def forward(self, o, p, x, y):
        def norm(x, name):
            return o.layer_norm(x, p[name + ".LayerNorm.weight"], p[name + ".LayerNorm.bias"], 1e-12)

        def dense(x, name):
            return o.linear(x, p[name + ".weight"], p[name + ".bias"])

        e, seen = "bert.embeddings.", self.seen(x)
        t = F.embedding(x, p[e + "word_embeddings.weight"])
        t = t + F.embedding(torch.arange(x.shape[1]), p[e + "position_embeddings.weight"])
        t = norm(t + F.embedding(torch.zeros(x.shape[1], dtype=I64),
                                 p[e + "token_type_embeddings.weight"]), "bert.embeddings")
        for i in range(self.layers):
            h = f"bert.encoder.layer.{i}."
            q, k, v = (dense(t, f"{h}attention.self.{part}") for part in ("query", "key", "value"))
            a = dense(attend(o, q, k, v, self.heads, False, seen), h + "attention.output.dense")
            t = norm(a + t, h + "attention.output")
            a = dense(o.gelu(dense(t, h + "intermediate.dense")), h + "output.dense")
            t = norm(a + t, h + "output")
        t = norm(o.gelu(dense(t, "cls.predictions.transform.dense")), "cls.predictions.transform")
        logits = o.linear(t, p[e + "word_embeddings.weight"], p["cls.predictions.bias"])
        return o.cross_entropy(logits, y), logits

    def ours(self, p):
        found = {}
        for name, value in p.items():
            if ".query." in name:
                parts = [p[name.replace("query", part)] for part in ("query", "key", "value")]
                name = name.replace("query.weight", "in_proj_weight")
                found[name.replace("query.bias", "in_proj_bias")] = torch.cat(parts)
            elif ".key." not in name and ".value." not in name:
                found[name.replace("attention.output.dense", "attention.self.out_proj")] = value
        return found


class BertMask(Bert):
    """Texts of several lengths, whose padding no token looks at."""
    name, padding = "bert_mask", 0

    def weights_of(self):
        return "bert"

    def data(self):
        x, y = super().data()
        x = torch.where(x == self.padding, 1, x)
        for i in range(self.batch):
            x[i, self.length - 3 * i:], y[i, self.length - 3 * i:] = self.padding, -100
        return x, y

    def seen(self, x):
        return (x != self.padding)[:, None, None]


class Layers2d(Model):
    """Convolutions, norms, pools and images of another size that the families do not have."""
    name, optimizer, rate, float_input = "layers2d", "sgd", 1e-2, True
    width, size, classes, batch = 8, 12, 10, 6

    def ints(self):
        return [self.width, self.size, self.classes, self.batch]

    def shapes(self):
        w = self.width
        return {"stem.weight": (w, 3, 3, 3), "stem.bias": (w,),
                "depth.weight": (w, 1, 4, 3), "norm1.weight": (w,), "norm1.bias": (w,),
                "mixed.weight": (w + 4, w // 2, 3, 3),
                "instance_norm.weight": (w + 4,), "instance_norm.bias": (w + 4,),
                "wider.weight": (w + 4, w // 2, 3, 3), "wider.bias": (w,),
                "narrow.weight": (w, 2 * w + 4, 1, 1), "narrow.bias": (w,),
                "norm2.weight": (w,), "norm2.bias": (w,),
                "fc.weight": (self.classes, 20 * w), "fc.bias": (self.classes,)}

    def data(self):
        y = (noise("layers2d/y", (self.batch,)) + 1) / 2 * self.classes
        return noise("layers2d/x", (self.batch, 3, self.size, self.size)), y.long()

    def forward(self, o, p, x, y):
        def norm(x, name, groups):
            return o.wide(lambda x: F.group_norm(x, groups, p[name + ".weight"],
                                                 p[name + ".bias"]), x)

        def spread(x, w, b):
            return F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1, groups=2)

        x = o.conv(x.to(p["fc.bias"].dtype), p["stem.weight"], p["stem.bias"], padding=1)
        x = o.conv(x, p["depth.weight"], padding="same", dilation=(1, 2), groups=self.width)
        x = o.wide(F.silu, norm(x, "norm1", 2))
        x = o.wide(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False), x)
        x = o.conv(x, p["mixed.weight"], stride=2, padding=1, groups=2)
        x = o.gelu(norm(x, "instance_norm", self.width + 4), "tanh")
        z = o.low(spread, x, p["wider.weight"], p["wider.bias"])
        z = o.wide(lambda z: F.interpolate(z, scale_factor=1.5, mode="bilinear"), z)
        x = o.wide(lambda x: F.interpolate(x, self.size, mode="nearest"), x)
        x = o.conv(torch.cat([z, x], 1), p["narrow.weight"], p["narrow.bias"])
        x = norm(x, "norm2", 1)
        x = F.adaptive_max_pool2d(x, (5, 4)) + o.wide(lambda x: F.adaptive_avg_pool2d(x, (5, 4)), x)
        logits = o.linear(x.flatten(1), p["fc.weight"], p["fc.bias"])
        return o.cross_entropy(logits, y), logits

    def ours(self, p):
        return dict(p)


class Layers1d(Model):
    """Layers of sequences that the families do not have: a padding index, convolutions and pools of
    one dimension, batch norm of [N, C, L] and of [N, C], RMS norm, attention to another text with a
    mask, and heads of queries that share keys and values."""
    name, optimizer, rate, file_dtype = "layers1d", "sgd", 0.1, BF16
    width, heads, length, source, vocabulary, padding, classes, batch = 16, 4, 14, 11, 29, 3, 13, 4

    def ints(self):
        return [self.width, self.heads, self.length, self.vocabulary, self.padding, self.classes]

    def shapes(self):
        w = self.width
        found = {"embed.weight": (self.vocabulary, w), "conv1.weight": (w, w // 4, 4),
                 "conv2.weight": (w, w, 3), "conv2.bias": (w,), "rms_norm.weight": (w,),
                 "cross.in_proj_weight": (3 * w, w), "cross.in_proj_bias": (3 * w,),
                 "cross.out_proj.weight": (w, w), "cross.out_proj.bias": (w,),
                 "query.weight": (w, w), "key.weight": (w // 2, w), "value.weight": (w // 2, w),
                 "fc.weight": (self.classes, w), "fc.bias": (self.classes,)}
        for name in ("bn1", "bn2"):
            for part in ("weight", "bias", "running_mean", "running_var"):
                found[f"{name}.{part}"] = (w,)
        return found

    def buffers(self):
        return [n for n in self.shapes() if "running" in n]

    def extras(self):
        return {f"{name}.num_batches_tracked": torch.tensor(7) for name in ("bn1", "bn2")}

    def data(self):
        """Texts, and after each the other one, whose end is padding."""
        ids = (noise("layers1d/x", (self.batch, self.length + self.source)) + 1) / 2
        ids = (ids * self.vocabulary).long()
        for i in range(self.batch):
            ids[i, ids.shape[1] - 2 * i:] = self.padding
        y = (noise("layers1d/y", (self.batch, self.length // 2)) + 1) / 2 * self.classes
        return ids, y.long()

    def forward(self, o, p, x, y):
        def norm(x, name):
            mean, var = p[name + ".running_mean"], p[name + ".running_var"]
            return o.wide(lambda x: F.batch_norm(x, mean, var, p[name + ".weight"],
                                                 p[name + ".bias"], training=True), x)

        def conv(x, w, b=None, **more):
            return o.low(lambda x, w, b: F.conv1d(x, w, b, **more), x, w, b)

        seen = (x[:, self.length:] != self.padding)[:, None, None]
        t = F.embedding(x, p["embed.weight"], self.padding)
        t, other = t[:, :self.length], t[:, self.length:]
        t = conv(t.transpose(1, 2), p["conv1.weight"], padding="same", dilation=2, groups=4)
        t = o.gelu(norm(t, "bn1"))
        t = conv(t, p["conv2.weight"], p["conv2.bias"], stride=2, padding=1)
        t = o.wide(lambda t: F.avg_pool1d(t, 3, 1, 1), t) + F.max_pool1d(t, 3, 1, 1)
        t = t.transpose(1, 2)
        a = o.wide(lambda t: F.rms_norm(t, (self.width,), p["rms_norm.weight"], 1e-5), t)
        q, k, v = (o.linear(z, w, b) for z, w, b in zip(
            (a, other, other), p["cross.in_proj_weight"].chunk(3),
            p["cross.in_proj_bias"].chunk(3)))
        a = o.low(lambda *z: F.scaled_dot_product_attention(*z, attn_mask=seen),
                  *(heads_apart(z, self.heads) for z in (q, k, v)))
        t = t + o.linear(a.transpose(1, 2).flatten(2), p["cross.out_proj.weight"],
                         p["cross.out_proj.bias"])
        q, k, v = (heads_apart(o.linear(t, p[name + ".weight"], None), heads) for name, heads in
                   (("query", self.heads), ("key", self.heads // 2), ("value", self.heads // 2)))
        a = o.low(lambda *z: F.scaled_dot_product_attention(*z, is_causal=True, scale=0.8,
                                                            enable_gqa=True), q, k, v)
        t = norm((t + a.transpose(1, 2).flatten(2)).flatten(0, 1), "bn2")
        logits = o.linear(t, p["fc.weight"], p["fc.bias"])
        return o.cross_entropy(logits, y), logits

    def ours(self, p):
        return dict(p)


class LargeResnet(Resnet18):
    width, size, classes, batch = 64, 224, 1000, 2


class LargeVit(Vit):
    name = "vit_b_16"
    width, layers, heads, hidden, patch, size, classes, batch = 768, 12, 12, 3072, 16, 224, 1000, 1

    def data(self):
        return noise("vit/x", (self.batch, 3, self.size, self.size)), torch.tensor([7])


def large_start(model):
    """Numbers of one rule, which tests/api_models_large.c has too."""
    weights = {}
    for name, shape in model.shapes().items():
        u = noise(f"large/{name}", shape)
        if "running" in name:
            u = torch.ones(shape)
        elif len(shape) == 1:
            u = 1 + u / 4 if name.endswith("weight") else u / 8
        else:
            fan_in = int(np.prod(shape[1:]))
            u = u * np.float32(math.sqrt(3 / fan_in) if shape[0] > 1 else 0.5)
        weights[name] = u
    return weights


def in_order(t, name):
    """channels_last in the run of that name, whose sums go in another order."""
    return t.contiguous(memory_format=torch.channels_last) if name == "last" and t.dim() == 4 else t


def large_case(model):
    weights, (x, y), tensors = large_start(model), model.data(), []
    ops = Ops()
    for name, dtype in (("f64", F64), ("f32", F32), ("last", F32)):
        p = {n: in_order(t.to(dtype).clone(), name) for n, t in weights.items()}
        x = in_order(x, name)
        leaves = [t.requires_grad_() for n, t in p.items() if "running" not in n]
        losses = []
        for step in range(2):
            loss, logits = model.forward(ops, p, x, y)
            if step == 0:
                tensors.append(Tensor(f"{name} logits", taken(logits, 100)))
            loss.backward()
            with torch.no_grad():
                for t in leaves:
                    t -= 1e-3 * t.grad
                    t.grad = None
            losses.append(loss.item())
        tensors.append(Tensor(f"{name} loss", torch.tensor(losses, dtype=F64)))
    count = sum(t.numel() for t in leaves)
    return Case("model_large", model.name, model.ints() + [count], [1e-3],
                [Tensor("y", y), *tensors])


def taken(t, count):
    flat = t.detach().flatten()
    n = min(count, flat.numel())
    return flat[[i * flat.numel() // n for i in range(n)]].double()


def run(model, weights, dtype, ops):
    """Results of one precision, in mptrain's order of names."""
    p = {n: t.to(dtype).clone() for n, t in weights.items()}
    buffers = model.buffers()
    leaves = [t.requires_grad_() for n, t in p.items() if n not in buffers]
    optimizer = (torch.optim.SGD(leaves, model.rate, momentum=0.9, weight_decay=1e-3)
                 if model.optimizer == "sgd" else
                 torch.optim.AdamW(leaves, model.rate, eps=1e-4, weight_decay=0.1))
    x, y = model.data()
    scale = SCALE if ops.region == F16 else 1.0
    losses, found = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=ops.region or BF16, enabled=ops.native):
            loss, logits = model.forward(ops, p, x, y)
        (loss * scale).backward()
        for t in leaves:
            t.grad /= scale
            assert torch.isfinite(t.grad).all()
        losses.append(loss.item())
        if step == 0:
            found["logits"] = taken(logits, SAMPLES)
            own = model.ours({n: t.grad if t.grad is not None else torch.zeros_like(t)
                              for n, t in p.items() if n not in buffers})
            found["grads"] = torch.cat([torch.cat([own[n].double().norm().reshape(1),
                                                   taken(own[n], HEAD)]) for n in sorted(own)])
        optimizer.step()
    found["loss"] = torch.tensor(losses, dtype=F64)
    own = model.ours({n: t.detach() for n, t in p.items()})
    found["after"] = torch.cat([taken(own[n], HEAD) for n in sorted(own)])
    return found


RUNS = {"f64": (F64, Ops()), "f32": (F32, Ops()), "f16 torch": (F32, Ops(F16, True)),
        "f16 policy": (F32, Ops(F16)), "bf16 torch": (F32, Ops(BF16, True)),
        "bf16 policy": (F32, Ops(BF16))}


def case(model):
    weights = model.start()
    x, y = model.data()
    own = model.ours(weights)
    names = "\n".join(sorted(own))
    tensors = [Tensor("names", torch.tensor(list(names.encode()), dtype=U8)), Tensor("y", y)]
    if not model.float_input:
        tensors.append(Tensor("x", x))
    for name, (dtype, ops) in RUNS.items():
        for what, value in run(model, weights, dtype, ops).items():
            tensors.append(Tensor(f"{name} {what}", value if name == "f64" else value.to(F32)))
    return Case("model", model.name, model.ints(), [model.rate], tensors)


def weights_file(model):
    saved = {n: t if "running" in n else t.to(model.file_dtype) for n, t in model.start().items()}
    saved.update(model.extras())
    return safetensors.torch.save({n: t.contiguous() for n, t in saved.items()},
                                  {"format": "pt"})


def main():
    torch.set_num_threads(1)
    models = [Gpt2(), Resnet18(), Vit(), Bert(), Layers2d(), Layers1d(), ResnetCifar(), BertMask()]
    made = [case(m) for m in models[:4]] + [large_case(m) for m in (LargeResnet(), LargeVit())]
    made += [case(m) for m in models[4:]]
    if "--verify" in sys.argv[1:]:
        good = golden.verify("models.bin", made)
        for m in (m for m in models if m.weights_of() == m.name):
            with open(os.path.join(golden.FOLDER, f"models_{m.name}.safetensors"), "rb") as f:
                if f.read() != weights_file(m):
                    print(f"models_{m.name}.safetensors differs")
                    good = False
        return 0 if good else 1
    files = {"models.bin": golden.pack_file(made)}
    files.update({f"models_{m.name}.safetensors": weights_file(m) for m in models
                  if m.weights_of() == m.name})
    for name, data in files.items():
        with open(os.path.join(golden.FOLDER, name), "wb") as f:
            f.write(data)
        print(f"{name}: {len(data)} bytes")
    for c in (c for c in made if c.op == "model"):
        named = {t.name: t.value.double() for t in c.tensors}
        for what in ("logits", "loss", "grads", "after"):
            print(f"  {c.label} {what}: " + ", ".join(
                f"{r} {(named[f'{r} {what}'] - named[f'f32 {what}']).square().mean().sqrt():.2e}"
                for r in RUNS if r != "f32"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
