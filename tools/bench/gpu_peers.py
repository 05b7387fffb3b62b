"""gpu_peers.py: PyTorch and ours in turn, on one GPU, in one run: ratios and memory.

    gpu_peers.py FOLDER ROWS.. [--device cuda|cpu] [--tiny] [--seconds 450]

FOLDER holds device_speed and device_models. ROWS: kernels (named as device_speed names them), or
mlp, gpt2, vit-b16, resnet18: whole steps of device_models, in every precision. --device cpu and
--tiny try the script. After --seconds no other setting is begun: the line says so.

Peers get their best: fused optimizers, TF32 off for fp32, channels_last, the fastest backend of
scaled_dot_product_attention, torch.compile, CUDA graphs of forward and backward
(make_graphed_callables) and of whole steps. Their recipe is that of models.h: autocast around the
loss, gradients clipped for transformers, GradScaler for fp16. Medians of five samples in turn; a
ratio above 1 means that ours is faster. Memory is in MB: of ours by its own account and by what the
driver has less, of PyTorch max_memory_allocated and max_memory_reserved of a step.
A line per row; behind a tab what a program reads: words and numbers."""
import argparse
import collections
import contextlib
import gc
import logging
import math
import os
import re
import statistics
import subprocess
import sys
import time
import warnings

os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', str(os.cpu_count()))  # else peers.py says 1
try:
    import torch
    import torch.nn.functional as F
    from torch import nn

    import models_peer
    from peers import Server
except ImportError as error:
    sys.exit(f'{error}: the peers need PyTorch 2 and numpy')

HERE = os.path.dirname(os.path.abspath(__file__))
LOW = {'bf16': torch.bfloat16, 'fp16': torch.float16, 'tf32': None, 'fp32': None}
ROUNDS = 5
options = None
start = time.monotonic()


def cuda():
    return options.device == 'cuda'


def wait():
    if cuda():
        torch.cuda.synchronize()


def late():
    return time.monotonic() - start > options.seconds


def precise(tf32):
    torch.set_float32_matmul_precision('high' if tf32 else 'highest')
    torch.backends.cudnn.allow_tf32 = tf32


def seconds(run, least=0.01):
    """Of one run, waited for, in a sample that takes `least` seconds or longer."""
    repeat = 1
    while True:
        wait()
        begin = time.perf_counter()
        for _ in range(repeat):
            run()
        wait()
        took = time.perf_counter() - begin
        if took >= least:
            return took / repeat
        repeat *= max(2, min(10, int(least / max(took, 1e-9))))


def median_seconds(run):
    run()
    return statistics.median(seconds(run) for _ in range(ROUNDS))


# ==== Kernels ====

def arrays(megabytes):
    """The kernels of device_speed that PyTorch has as one call."""
    x = torch.randn(int(megabytes * 1e6 / 4 / 4096), 4096, device=options.device)
    y, half = torch.randn_like(x), x.to(torch.bfloat16)
    picks = torch.arange(len(x), device=options.device)
    picks = picks * picks % len(x)
    return {
        'copy (ceiling)': x.clone,
        'relu': lambda: F.relu(x),
        'gelu': lambda: F.gelu(x),
        'add': lambda: x + y,
        'times a number': lambda: x * 0.5,
        'fp32 to bf16': lambda: x.to(torch.bfloat16),
        'bf16 to fp32': lambda: half.to(torch.float32),
        'dropout': lambda: F.dropout(x, 0.1),
        'transposed copy': lambda: x.t().contiguous(),
        'softmax of rows': lambda: torch.softmax(x, -1),
        'log_softmax of rows': lambda: torch.log_softmax(x, -1),
        'sum over rows': lambda: x.sum(0),
        'sum over columns': lambda: x.sum(1),
        'sum of all': lambda: x.sum(),
        'rows by index': lambda: x.index_select(0, picks),
        'rows added by index': lambda: y.index_add(0, picks, x),
    }


def adamw(side, half):
    """A fused step of side x side weights, and, as ours, a copy of them in bf16."""
    weight = nn.Parameter(torch.randn(side, side, device=options.device))
    weight.grad = torch.randn_like(weight)
    copy = weight.detach().to(torch.bfloat16)
    optimizer = torch.optim.AdamW([weight], 1e-6, weight_decay=0.1, fused=True)

    def run():
        optimizer.step()
        if half:
            copy.copy_(weight.detach())
    return run


def product(side, dtype, tf32):
    precise(tf32)
    a = torch.randn(side, side, device=options.device, dtype=dtype)
    return lambda: a @ a


def report(name, own, peer, note=''):
    print(f'{name:44} ours {own * 1e6:10.1f} us  PyTorch {peer * 1e6:10.1f} us  '
          f'{peer / own:6.2f} {note}\tkernel {peer / own:.4g} {own:.9g} {peer:.9g} {name}',
          flush=True)


def kernels():
    megabytes = 8 if options.tiny else 1000
    program = os.path.join(options.folder, 'device_speed')
    lines = subprocess.run([program, str(megabytes), options.device], capture_output=True,
                           text=True, check=True).stdout.splitlines()
    own = {words[1]: float(words[2]) for words in (line.split('\t') for line in lines)
           if len(words) == 4}
    with torch.no_grad():
        for name, run in arrays(megabytes).items():
            report(name, own[name], median_seconds(run))
        side = int(1000 * math.sqrt(megabytes / 4))
        for name, side, half in (('adamw', side, False),
                                 ('adamw 124M, bf16 and fp32 masters',
                                  side if megabytes < 64 else 11154, True)):
            report(name, own[name], median_seconds(adamw(side, half)),
                   'fused' + ', then a copy to bf16' * half)
        side = 512 if options.tiny else 4096
        for name, dtype, tf32 in (('bfloat16', torch.bfloat16, False),
                                  ('float16', torch.float16, False),
                                  ('tf32', torch.float32, True),
                                  ('float32', torch.float32, False)):
            row = f'product {name}, {side} cubed'
            report(row, own[row], median_seconds(product(side, dtype, tf32)))


# ==== Whole steps ====

Kind = collections.namedtuple('Kind', 'name batch size width layers heads patch classes make')


def find_kind(name):
    """The sizes that models.h has."""
    with open(os.path.join(HERE, 'models.h'), encoding='utf-8') as file:
        rows = re.findall(r'\{"([-a-z0-9]+)",' + r' (\d+),' * 7 + r' MODEL_([A-Z]+)\}',
                          file.read())
    rows = {row[0]: row for row in rows}
    row = rows[name + '-tiny' * options.tiny]
    return Kind(row[0], *map(int, row[1:8]), row[8])


class WithLoss(nn.Module):
    """The net of a kind and its loss."""

    def __init__(self, k):
        super().__init__()
        self.text, self.loss = k.make == 'GPT', F.cross_entropy
        if k.make == 'MLP':
            self.loss = F.nll_loss
            self.net = nn.Sequential(
                nn.Linear(k.size, k.width), nn.ReLU(), nn.Linear(k.width, k.width // 2), nn.ReLU(),
                nn.Linear(k.width // 2, k.classes), nn.LogSoftmax(-1))
        elif k.make == 'RESNET':
            self.net = models_peer.resnet18(3, k.classes, k.width, k.patch > 0)
        elif k.make == 'VIT':
            self.net = models_peer.ViT(k.layers, k.heads, k.width, k.patch, k.size, k.classes)
        else:
            self.net = models_peer.GPT(k.layers, k.heads, k.width, k.size, k.classes)

    def forward(self, x, y):
        return self.net(x, y) if self.text else self.loss(self.net(x), y)


def batch_of(k, low, b):
    count = k.batch * (k.size if k.make == 'GPT' else 1)
    i = torch.arange(count, device=options.device)
    y = (i * 7 + i // 5 + b) % k.classes
    if k.make == 'GPT':
        y = y.view(k.batch, k.size)
        return y, y
    shape = (k.batch, k.size) if k.make == 'MLP' else (k.batch, 3, k.size, k.size)
    return torch.randn(shape, device=options.device).to(low or torch.float32), y


class Training:
    """A step of a kind in one of the settings; `run` does one."""

    def __init__(self, k, precision, mode):
        torch.manual_seed(0)
        torch._dynamo.reset()
        precise(precision == 'tf32')
        self.low, self.clipped = LOW[precision], k.make in ('VIT', 'GPT')
        self.graphed, whole = 'callables' in mode, 'step' in mode
        self.net = net = WithLoss(k).to(options.device)
        self.parameters = list(net.parameters())
        self.batches, self.at = [batch_of(k, self.low, b) for b in range(2)], 0
        if k.make in ('VIT', 'RESNET') and 'contiguous' not in mode:
            net.to(memory_format=torch.channels_last)
            self.batches = [(x.contiguous(memory_format=torch.channels_last), y)
                            for x, y in self.batches]
        if k.make == 'RESNET':
            self.optimizer = torch.optim.SGD(self.parameters, lr=1e-4, momentum=0.9, nesterov=True,
                                             weight_decay=5e-4, fused=True)
        else:
            self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-6, weight_decay=0.1,
                                               fused=True, capturable=whole)
        self.scaler = torch.amp.GradScaler(options.device, init_scale=1024,
                                           enabled=self.low is torch.float16)
        self.loss = torch.compile(net) if 'compiled' in mode else net
        if self.graphed:
            with self.autocast():
                inputs = tuple(t.clone() for t in self.batches[0])  # they become the graph's
                self.loss = torch.cuda.make_graphed_callables(net, inputs)
        self.run = self.eager
        if whole:
            self.capture()

    def autocast(self):
        return torch.autocast(options.device, self.low or torch.float32,
                              enabled=self.low is not None, cache_enabled=not self.graphed)

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            loss = self.loss(x, y)
        self.scaler.scale(loss).backward()
        if self.clipped:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def next_batch(self):
        self.at += 1
        return self.batches[self.at % 2]

    def eager(self):
        self.step(*self.next_batch())

    def capture(self):
        """The whole step as one graph, on copies of the batches, as our captured steps."""
        inputs = [t.clone() for t in self.batches[0]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.step(*inputs)

        def replay():
            for to, value in zip(inputs, self.next_batch()):
                to.copy_(value)
            graph.replay()
        self.run = replay

    def memory(self):
        """Peaks of a step in MB: allocated, reserved."""
        if not cuda():
            return None, None
        torch.cuda.reset_peak_memory_stats()
        self.run()
        wait()
        return torch.cuda.max_memory_allocated() / 1e6, torch.cuda.max_memory_reserved() / 1e6


class Ours:
    """The same step of device_models, captured."""

    def __init__(self, server, k, precision):
        self.server = server
        before = free_bytes()
        self.number, work, _ = server.ask(f'make model {k.name} {precision} last 0 captured '
                                          f'batch={k.batch} ' + 'cuda' * cuda())
        self.parameters, self.driver = float(work), None
        server.ask(f'memory {self.number}')
        self.seconds()
        self.peak = float(server.ask(f'memory {self.number}')[0]) / 1e6
        if before is not None:
            self.driver = (before - free_bytes()) / 1e6

    def seconds(self, least=0.0):
        return float(self.server.ask(f'run {self.number} {least}')[1])

    def close(self):
        self.server.ask(f'end {self.number}')


def free_bytes():
    return torch.cuda.mem_get_info()[0] if cuda() else None


def clean():
    gc.collect()
    if cuda():
        torch.cuda.empty_cache()


def brief(error):
    text = str(error).strip() or '?'
    return f'{type(error).__name__}: {text.splitlines()[0][:120]}'


def lacks_memory(error):
    return 'memory' in str(error).lower()


def best_attention(k, low):
    """The backend that is fastest for the attention of a kind, forward and backward: what
    chooses it, and its name."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    tokens = k.size if k.make == 'GPT' else (k.size // k.patch) ** 2 + 1
    shape = (min(k.batch, 8), k.heads, tokens, k.width // k.heads)
    q = torch.randn(shape, device=options.device, dtype=low or torch.float32, requires_grad=True)
    took = {}

    def run():
        F.scaled_dot_product_attention(q, q, q, is_causal=k.make == 'GPT').sum().backward()
    for name in ('FLASH_ATTENTION', 'CUDNN_ATTENTION', 'EFFICIENT_ATTENTION', 'MATH'):
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                took[name] = median_seconds(run)
        except (RuntimeError, AttributeError):  # not for this dtype, or not in this build
            pass
    if not took:
        return contextlib.nullcontext, 'as PyTorch chooses'
    name = min(took, key=took.get)
    return lambda: sdpa_kernel(getattr(SDPBackend, name)), name


# 'callables': forward and backward by make_graphed_callables; 'step': all of it in one graph.
MODES = ['eager', 'compiled', 'graphed callables', 'graphed step', 'compiled, graphed step']


def modes_of(k, precision):
    modes = MODES if LOW[precision] else MODES[:2]
    if k.make == 'RESNET' and LOW[precision]:
        modes = modes + ['eager, contiguous']
    return [mode for mode in modes if cuda() or 'graphed' not in mode]


def compare(k, precision, mode, own):
    """One line; the ratio. The peer is gone afterwards."""
    peer = Training(k, precision, mode)
    count = sum(p.numel() for p in peer.parameters)
    if count != own.parameters:
        raise ValueError(f'{count} parameters, ours has {own.parameters:.0f}')
    for _ in range(3):
        peer.run()
    allocated, reserved = peer.memory()
    least = 0.02 if options.tiny else 0.5
    pairs = [(own.seconds(least), seconds(peer.run, least)) for _ in range(ROUNDS)]
    mine, theirs = (statistics.median(pair[i] for pair in pairs) for i in (0, 1))
    ratio = statistics.median(b / a for a, b in pairs)
    numbers = [own.peak, own.driver, allocated, reserved]
    shown = ['-' if n is None else f'{n:.0f}' for n in numbers]
    print(f'{k.name:14} {precision} batch {k.batch} {mode:22} ours {mine * 1e3:9.3f} ms  PyTorch '
          f'{theirs * 1e3:9.3f} ms {ratio:6.2f}; MB: ours {shown[0]}, by the driver {shown[1]}, '
          f'PyTorch {shown[2]}, reserved {shown[3]}'
          f'\tpeer {k.name} {precision} {mode.replace(",", "").replace(" ", "-")} {ratio:.4g} '
          f'{k.batch} {mine:.9g} {theirs:.9g} '
          + ' '.join('-' if n is None else f'{n:.6g}' for n in numbers), flush=True)
    return ratio


def compare_all(server, k, precision):
    """In every setting; false where this batch is too large for eager PyTorch or for ours."""
    own, ratios = None, {}
    attention = contextlib.nullcontext
    try:
        own = Ours(server, k, precision)
        if k.make in ('VIT', 'GPT'):
            attention, name = best_attention(k, LOW[precision])
            print(f'{k.name:14} {precision} attention: {name}', flush=True)
        for mode in modes_of(k, precision):
            if late():
                print(f'{k.name:14} {precision} {mode}: not measured, for want of time', flush=True)
                continue
            try:
                with attention():
                    ratios[mode] = compare(k, precision, mode, own)
            except Exception as error:  # a setting that this build of the peer lacks
                if mode == 'eager' and lacks_memory(error):
                    raise
                print(f'{k.name:14} {precision} {mode}: {brief(error)}', flush=True)
            clean()
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        return False
    finally:
        if own:
            own.close()
        clean()
    if ratios:
        best = min(ratios, key=ratios.get)
        print(f'{k.name:14} {precision} times the best of PyTorch, {best}: {ratios[best]:.2f}'
              f'\tbest {k.name} {precision} {ratios[best]:.4g}', flush=True)
    return True


def model(name):
    server = Server(os.path.join(options.folder, 'device_models'), '--serve')
    server.ask('make model mlp-tiny fp32 last 0 ' + 'cuda' * cuda())  # the driver's own memory
    order = list(LOW)
    if name in ('resnet18', 'mlp'):  # what the targets speak of comes first
        order[:2] = ['fp16', 'bf16']
    for precision in order:
        k = find_kind(name)
        if late():
            print(f'{k.name:14} {precision}: not measured, for want of time', flush=True)
        while not late() and k.batch and not compare_all(server, k, precision):
            print(f'{k.name:14} {precision} batch {k.batch}: no memory for both', flush=True)
            k = k._replace(batch=k.batch // 2)


def main():
    global options
    parser = argparse.ArgumentParser()
    parser.add_argument('folder')
    parser.add_argument('rows', nargs='+',
                        choices=['kernels', 'mlp', 'gpt2', 'vit-b16', 'resnet18'])
    parser.add_argument('--device', choices=['cuda', 'cpu'], default='cuda')
    parser.add_argument('--tiny', action='store_true')
    parser.add_argument('--seconds', type=float, default=450)
    options = parser.parse_args()
    device = torch.cuda.get_device_name() if cuda() else 'CPU'
    print('device:', device, 'PyTorch', torch.__version__, flush=True)
    torch.backends.cudnn.benchmark = True
    torch._logging.set_logs(all=logging.ERROR)
    warnings.filterwarnings('ignore')
    if not cuda():
        torch.set_num_threads(1)
    for row in options.rows:
        if row == 'kernels':
            kernels()
        else:
            model(row)


main()
