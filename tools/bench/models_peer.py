"""models_peer.py: the trainings of examples/resnet.c and gpt.c in PyTorch: the same models (and that
of vit.c, which peers.py measures), first values by the same rules, recipes, augmentation and
figures, from options of the same names. What is drawn at random (weights, order, crops, windows) has
the same distribution, not the same bits.

    models_peer.py resnet --data FOLDER [--width 16] [--epochs 3] [--subset 4096] [--lr 0.1]
    models_peer.py gpt --text FILE [--layers 4] [--width 128] [--context 128] [--steps 300] [--lr 2e-3]
        both: [--batch N] [--precision fp32|fp16|bf16] [--seed 0] [--threads 0] [--json FILE]"""
import argparse
import json
import math
import sys
import time

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(f'{error}: the peers need PyTorch 2 and numpy; PYTHON= names an interpreter with both')

LOW = {'fp32': None, 'fp16': torch.float16, 'bf16': torch.bfloat16}
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


class Run:
    """What both trainings share: precision, scaler, time; one optimizer step."""

    def __init__(self, options, optimizer, schedule, clip=None):
        self.low = LOW[options.precision]
        self.scaler = torch.amp.GradScaler('cpu', enabled=self.low is torch.float16)
        self.optimizer, self.schedule, self.clip = optimizer, schedule, clip
        self.steps = self.skipped = 0
        self.fastest = math.inf
        self.start = self.last = time.perf_counter()

    def step(self, loss_of):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = loss_of()
        self.scaler.scale(loss).backward()
        scale = self.scaler.get_scale()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(
                [p for group in self.optimizer.param_groups for p in group['params']], self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = self.scaler.get_scale() < scale
        self.skipped += skipped
        if not skipped:  # schedules count steps that were applied
            self.schedule.step()
        now = time.perf_counter()
        self.steps += 1
        if self.steps > 1:
            self.fastest = min(self.fastest, now - self.last)
        self.last = now

    def autocast(self):
        return torch.autocast('cpu', self.low, enabled=self.low is not None)

    def results(self, figure, value):
        return {figure: value, 'steps': self.steps, 'skipped_steps': self.skipped,
                'seconds': self.last - self.start,
                'fastest_step_seconds': self.fastest if self.steps > 1 else 0}


# ==== ResNet-18 ====

class Block(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or width != out:
            self.downsample = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False),
                                            nn.BatchNorm2d(out))

    def forward(self, x):
        shortcut = self.downsample(x) if self.downsample else x
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


def resnet18(channels, classes, width, large=False):
    """`large`: with the stem of large pictures."""
    kernel, stride = (7, 2) if large else (3, 1)
    layers, last = [nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
                    nn.BatchNorm2d(width), nn.ReLU()], width
    if large:
        layers.append(nn.MaxPool2d(3, 2, 1))
    for i in range(4):
        out = width << i
        layers += [Block(last, out, 2 if i else 1), Block(out, out, 1)]
        last = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, classes))


def cifar10(folder, names):
    data = np.concatenate([np.fromfile(f'{folder}/{name}.bin', np.uint8) for name in names])
    data = torch.from_numpy(data.reshape(-1, 3073))
    return data[:, 1:].reshape(-1, 3, 32, 32), data[:, 0].long()


def augmented(x):
    """Crops of pictures with two zeros on each side, half of them mirrored; x is uint8."""
    count = len(x)
    padded = F.pad(x, (2, 2, 2, 2))
    top, left = torch.randint(5, (2, count, 1))
    rows, columns = top + torch.arange(32), left + torch.arange(32)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    index = torch.arange(count)
    return padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def prepared(x):
    x = x.float().div_(255)
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
    return x.to(memory_format=torch.channels_last)


def train_resnet(options):
    x, y = cifar10(options.data, [f'data_batch_{i}' for i in range(1, 6)])
    x, y = x[:options.subset], y[:options.subset]
    net = resnet18(3, 10, options.width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), options.lr, momentum=0.9, nesterov=True,
                                weight_decay=5e-4)
    batches = len(x) // options.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr,
                                                   total_steps=options.epochs * batches + 1)
    run = Run(options, optimizer, schedule)
    for _ in range(options.epochs):
        for index in torch.randperm(len(x))[:batches * options.batch].split(options.batch):
            inputs, targets = prepared(augmented(x[index])), y[index]
            run.step(lambda: F.cross_entropy(net(inputs), targets))
    net.eval()
    x, y = cifar10(options.data, ['test_batch'])
    right = 0
    with torch.inference_mode(), run.autocast():
        for part in torch.arange(len(x)).split(256):
            right += (net(prepared(x[part])).argmax(1) == y[part]).sum().item()
    return run.results('test_accuracy', right / len(x))


# ==== Transformers ====

class TransformerBlock(nn.Module):
    """Attention and a GELU layer; that of GPT: causal, with the GELU by tanh."""

    def __init__(self, width, heads, gpt, eps=1e-5):
        super().__init__()
        self.heads, self.causal = heads, gpt
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        for bias in (self.attn.bias, self.out.bias):  # as nn.MultiheadAttention
            nn.init.zeros_(bias)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU('tanh' if gpt else 'none'),
                                 nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for part in self.attn(self.ln_1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    def __init__(self, layers, heads, width, patch, size, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, False, 1e-6)
                                      for _ in range(layers)))
        self.ln = nn.LayerNorm(width, 1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.ln(self.blocks(x))[:, 0])


class GPT(nn.Module):
    def __init__(self, layers, heads, width, context, tokens=256):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, True) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    def forward(self, x, y):
        positions = torch.arange(x.shape[1], device=x.device)
        h = self.ln_f(self.blocks(self.wte(x) + self.wpe(positions)))
        return F.cross_entropy((h @ self.wte.weight.t()).flatten(0, 1).float(), y.flatten())


def rate(options):
    """mpt_warmup: up from a hundredth over a twentieth of the steps, then half a cosine to a tenth."""
    warm, total = options.steps // 20 + 1, options.steps + 1

    def factor(step):
        if step < warm:
            return 0.01 + 0.99 * step / warm
        part = min((step - warm) / max(total - warm, 1), 1)
        return 0.1 + 0.9 * (1 + math.cos(math.pi * part)) / 2
    return factor


def train_gpt(options):
    data = torch.from_numpy(np.fromfile(options.text, np.uint8)).long()
    length = options.context
    kept = len(data) // 10 if len(data) > 40 * length else 0
    tests, data = (data[len(data) - kept:], data[:len(data) - kept]) if kept else (data, data)
    net = GPT(options.layers, options.heads, options.width, length)
    optimizer = torch.optim.AdamW(net.parameters(), options.lr, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate(options))
    run = Run(options, optimizer, schedule, clip=1.0)
    for _ in range(options.steps):
        at = torch.randint(len(data) - length, (options.batch, 1)) + torch.arange(length + 1)
        window = data[at]
        run.step(lambda: net(window[:, :-1], window[:, 1:]))
    count = (len(tests) - 1) // length
    x, y = (tests[i:i + count * length].view(count, length) for i in (0, 1))
    with torch.inference_mode():  # in fp32, the mean over batches, as gpt.c
        losses = [net(x[part], y[part]).item() for part in torch.arange(count).split(options.batch)]
    return run.results('loss', sum(losses) / len(losses))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('model', choices=['resnet', 'gpt'])
    model = sys.argv[1] if len(sys.argv) > 1 else ''
    for name, default in (('data', None), ('text', None), ('json', None)):
        parser.add_argument('--' + name, default=default)
    for name, default in (('width', 16 if model == 'resnet' else 128), ('layers', 4), ('heads', 4),
                          ('context', 128), ('batch', 64 if model == 'resnet' else 16),
                          ('epochs', 3), ('subset', 4096), ('steps', 300), ('write', 0),
                          ('workers', 0), ('seed', 0), ('threads', 0)):
        parser.add_argument('--' + name, type=int, default=default)
    parser.add_argument('--lr', type=float, default=0.1 if model == 'resnet' else 2e-3)
    parser.add_argument('--precision', choices=list(LOW), default='bf16')
    options = parser.parse_args()
    if not (options.data if model == 'resnet' else options.text):
        parser.error('resnet needs --data, gpt needs --text')
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)
    if options.threads:
        torch.set_num_threads(options.threads)
    results = (train_resnet if model == 'resnet' else train_gpt)(options)
    print(json.dumps(results))
    if options.json:
        with open(options.json, 'w') as file:
            json.dump({'program': 'models_peer ' + model, **results}, file)


if __name__ == '__main__':
    main()
