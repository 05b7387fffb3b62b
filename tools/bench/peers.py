"""peers.py: our programs and PyTorch in turn, in one run: medians of ratios, and which targets of
the project they meet.

    peers.py --build FOLDER [--rows ROW,ROW] [--write] [--data FOLDER] [--prototype FOLDER]
             [--others FOLDER]

Each repetition measures everyone once, between two looks at the speed of the machine's matrix
tiles; it counts only if that was the same all along. One thread is measured in CPU time, more in
wall clock, of the least disturbed piece of each sample, and only while two threads of plain
arithmetic run nearly twice as fast as one. On a busy machine that takes a real-time priority:
chrt -r 1 make bench-peers ROWS=... as root.
Peers get what is best for them: oneDNN, denormals flushed, memory that stays in the process,
whichever optimizer and compiler setting is fastest here; against two threads of ours the better of
their one and two.
--write puts each row, once measured, into tools/bench/results/cpu-KIND.md, where the others stay as
they were: rows can be measured one by one."""
import argparse
import collections
import contextlib
import datetime
import glob
import logging
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from functools import partial

# PyTorch returns each big result to the C library, which returns it to the system, so the next one
# costs page faults; ours keeps such memory. These settings let a process of the peers keep it, too,
# and have to be there when it starts. OURS is what our programs get: none of them.
KEEP_MEMORY = {'MALLOC_MMAP_MAX_': '0', 'MALLOC_TRIM_THRESHOLD_': str(1 << 40)}
OURS = {k: v for k, v in os.environ.items() if k not in KEEP_MEMORY}
if __name__ == '__main__' and any(os.environ.get(k) != v for k, v in KEEP_MEMORY.items()):
    os.execve(sys.executable, [sys.executable, *sys.argv], {**OURS, **KEEP_MEMORY})

os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', '1')

try:
    import numpy
    import torch
    import torch._functorch.config as functorch_config
    import torch.nn.functional as F
    from torch import nn

    import models_peer
    import small_peer
except ImportError as error:
    sys.exit(f'{error}: the peers need PyTorch 2 and numpy; PYTHON= names an interpreter with both')

HERE = os.path.dirname(os.path.abspath(__file__))
PIECE = 0.002  # seconds, as in measure.h
DTYPES = {'f32': torch.float32, 'bf16': torch.bfloat16, 'f16': torch.float16}
LOW = {'fp32': None, 'bf16': torch.bfloat16, 'fp16': torch.float16}
options = None


# ==== Who is measured ====

class Server:
    """One of our programs, started with --serve: see measure.h for what it understands."""

    def __init__(self, program, *arguments, more=None):
        self.process = subprocess.Popen([program, *arguments], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True,
                                        env={**OURS, **(more or {})})

    def ask(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if not answer or answer[0] == 'error':
            raise RuntimeError(f'{line}: {" ".join(answer[1:]) or "the program ended"}')
        return answer[1:]


class Ours:
    """A subject of one of our programs; `wall` measures in wall clock whatever the threads."""

    slow = False  # a run takes more than a second: three repetitions are enough

    def __init__(self, server, words, threads, wall=False):
        self.server, self.threads, self.wall = server, threads, wall
        self.number, work, self.level = server.ask(f'make {words}')
        self.work = float(work)

    def sample(self, seconds):
        cpu, _, best, _ = self.server.ask(f'run {self.number} {seconds}')
        return float(best if self.wall or self.threads > 1 else cpu)

    def close(self):
        self.server.ask(f'end {self.number}')


class Peer:
    """A Python function, mostly PyTorch's."""

    def __init__(self, function, threads, wall=False):
        self.function, self.threads, self.repeat = function, threads, 1
        self.wall = wall or threads > 1
        torch.set_num_threads(threads)
        function()
        start = time.perf_counter()
        function()
        self.slow = time.perf_counter() - start > 1

    def sample(self, seconds):
        torch.set_num_threads(self.threads)
        runs, best, function = 0, math.inf, self.function
        cpu, start = time.process_time(), time.perf_counter()
        now = start
        while now - start < seconds:
            piece, repeat = now, self.repeat
            for _ in range(repeat):
                function()
            now = time.perf_counter()
            runs += repeat
            if now - piece < PIECE:
                self.repeat *= 2
            else:
                best = min(best, (now - piece) / repeat)
        if not self.wall:
            return (time.process_time() - cpu) / runs
        time.sleep(0.01)  # its threads spin for a while
        return min(best, (now - start) / runs)

    def close(self):
        self.function = None


def fastest(peers):
    """The peer that is fastest in a short trial, and its name."""
    trial = {name: min(peer.sample(0.05) for _ in range(3)) for name, peer in peers.items()}
    name = min(trial, key=trial.get)
    return peers[name], name


class Times:
    """Seconds of one run by name and repetition."""

    def __init__(self, seconds, modes, mixed):
        self.seconds, self.modes, self.mixed = seconds, modes, mixed

    def median(self, name):
        return statistics.median(self.seconds[name])

    def faster(self, name, *others):
        """How many times faster `name` is than the fastest of the others, median."""
        return statistics.median(
            min(self.seconds[o][i] for o in others) / self.seconds[name][i]
            for i in range(len(self.modes)))

    def only(self, mode):
        kept = [i for i, m in enumerate(self.modes) if m == mode]
        return Times({n: [s[i] for i in kept] for n, s in self.seconds.items()},
                     [mode] * len(kept), self.mixed)

    def note(self):
        slow = self.modes.count('slow')
        return f'{len(self.modes)} repetitions, {slow} slow, {self.mixed} mixed'


def two_threads_scale():
    """How many times faster two threads are at arithmetic without memory than one."""
    limit = 'avx512' if 'avx512f' in cpu_flags() else 'avx2'
    one, two = (Ours(shapes, f'ceiling {limit} {t}', t, True) for t in (1, 2))
    scale = 2 * one.sample(0.01) / two.sample(0.01)
    one.close()
    two.close()
    return scale


def alternate(subjects, seconds=0.03, repetitions=7):
    kept, modes, mixed, busy = collections.defaultdict(list), [], 0, 0
    wide = any(subject.threads > 1 for subject in subjects.values())
    if any(subject.slow for subject in subjects.values()):
        repetitions = min(repetitions, 3)
    while len(modes) < repetitions and mixed + busy < 3 * repetitions:
        if wide and two_threads_scale() < 1.7:
            busy += 1
            continue
        mode = shapes.ask('mode')[0]
        round_ = {}
        for name, subject in subjects.items():
            round_[name] = subject.sample(seconds)
            if shapes.ask('mode')[0] != mode:
                mixed += 1
                break
        else:
            modes.append(mode)
            for name, value in round_.items():
                kept[name].append(value)
    for subject in subjects.values():
        subject.close()
    if not modes:
        raise RuntimeError(f'no clean repetition: {mixed} with tiles of two speeds, {busy} without '
                           'two free cores')
    return Times(kept, modes, mixed)


def geometric_mean(values):
    return math.exp(statistics.fmean(math.log(v) for v in values))


# ==== Rows ====

Row = collections.namedtuple('Row', 'title function')
rows = {}
current = {'lines': [], 'details': []}


def row(key, title):
    def register(function):
        rows[key] = Row(title, function)
        return function
    return register


def verdict(what, measured, target=None, note='', most=False):
    """One line of the result: a ratio that must be at least `target` (at most, if `most`)."""
    met = None if target is None else measured <= target if most else measured >= target
    current['lines'].append([what, measured, target, met, most, note])
    word = {None: '', True: 'met', False: 'MISSED'}[met]
    print(f'  {what:<58} {measured:8.3g} {"" if target is None else target!s:>6} {word:<7} {note}',
          flush=True)


def detail(text):
    current['details'].append(text)
    print('    ' + text, flush=True)


SHAPES = ['1 256 256 256 n n', '1 512 512 512 n n', '1 1024 1024 1024 n n',
          '1 2048 2048 2048 n n', '1 64 128 784 n t', '1 64 784 128 n n', '1 128 784 64 t n',
          '1 64 64 128 n t', '1 64 128 64 n n', '1 64 128 64 t n', '1 512 3072 768 n t',
          '1 512 768 3072 n n', '1 3072 768 512 t n', '1 1024 768 3072 n t',
          '1 1024 3072 768 n n', '1 768 3072 1024 t n']
MORE_SHAPES = ['48 128 128 64 n t', '48 128 64 128 n n', '12 512 512 64 n t', '12 512 64 512 n n',
               '1 3136 64 576 n t', '1 784 128 1152 n t', '1 196 256 2304 n t']
SMALL_SHAPES = ['1 64 10 64 n t', '1 64 64 10 n n', '1 10 64 64 t n', '1 1 784 128 n t',
                '1 1 1024 1024 n t', '1 1 1024 1024 n n', '1 8 1024 1024 n t',
                '1 16 1024 1024 n n', '1 1024 1024 8 t n', '1 256 16 256 n t', '1 128 128 16 n t',
                '1 16 16 16 n n', '1 8 8 8 n n']


def torch_product(shape, dtype, threads, wall=False):
    batch, m, n, k = map(int, shape.split()[:4])
    ta, tb = (word == 't' for word in shape.split()[4:])

    def matrix(r, c, transposed):
        size = (batch,) * (batch > 1) + ((c, r) if transposed else (r, c))
        x = torch.randn(size).to(dtype)
        return x.transpose(-1, -2) if transposed else x
    a, b = matrix(m, k, ta), matrix(k, n, tb)
    out = torch.matmul(a, b)
    return Peer(torch.inference_mode()(lambda: torch.matmul(a, b, out=out)), threads, wall)


def our_product(shape, name, threads, wall=False):
    return Ours(shapes, f'gemm {name} {shape} {threads}', threads, wall)


def rate(shape, seconds):
    return 2e-9 * math.prod(map(int, shape.split()[:4])) / seconds


def products(name, threads, list_, peers=None, more=None):
    """Ratios to the best peer by shape; prints what each came to. Calls more(shape, times)."""
    ratios = {}
    for shape in list_:
        subjects = {'ours': our_product(shape, name, threads),
                    'torch': torch_product(shape, DTYPES[name], threads)}
        if threads > 1:
            subjects['torch 1T'] = torch_product(shape, DTYPES[name], 1, True)
        subjects.update(peers(shape, threads) if peers else {})
        others = [key for key in subjects if key not in ('ours', 'own f32')]
        try:
            times = alternate(subjects)
        except RuntimeError as error:
            detail(f'{name} {threads}T {shape:<22} not measured: {error}')
            ratios[shape] = None
            continue
        ratios[shape] = times.faster('ours', *others)
        detail(f'{name} {threads}T {shape:<22} {ratios[shape]:5.2f}  GFLOP/s ' + ', '.join(
            f'{key} {rate(shape, times.median(key)):.1f}' for key in subjects) +
            f'; {times.note()}')
        if more:
            more(shape, times)
    return ratios


def judge_products(name, ratios, threads, mean, worst):
    missing = sum(v is None for v in ratios.values())
    ratios = {shape: v for shape, v in ratios.items() if v is not None}
    values = list(ratios.values())
    verdict(f'{name}, {threads}T, geometric mean', geometric_mean(values), mean,
            f'{missing} shapes not measured' if missing else '')
    bound = worst or 1.0
    verdict(f'{name}, {threads}T, worst shape', min(values), worst,
            f'{min(ratios, key=ratios.get)}; {sum(v >= bound for v in values)} of {len(values)} '
            f'shapes reach {bound}')


@row('gemm-bf16', 'bf16 products, times PyTorch')
def gemm_bf16():
    for threads in thread_counts():
        judge_products('bf16', products('bf16', threads, SHAPES), threads, 1.15, 0.9)


@row('gemm-fp32', 'fp32 products, times PyTorch')
def gemm_fp32():
    for threads in thread_counts():
        judge_products('fp32', products('f32', threads, SHAPES), threads, 1.0, 0.9)


@row('gemm-fp16', 'fp16 products, times PyTorch, and times own fp32 in the fast mode')
def gemm_fp16():
    for threads in thread_counts():
        own = []

        def against_own(_, times):
            fast = times.only('fast')
            if fast.modes:
                own.append(fast.faster('ours', 'own f32'))
        ratios = products('f16', threads, SHAPES,
                          lambda s, t: {'own f32': our_product(s, 'f32', t)}, against_own)
        judge_products('fp16', ratios, threads, 1.5, None)
        if own:
            verdict(f'fp16 against own fp32, {threads}T, geometric mean', geometric_mean(own), 2.0)


@row('gemm-more', 'shapes of attention and convolutions, times PyTorch')
def gemm_more():
    for name in DTYPES:
        judge_products(name, products(name, 1, MORE_SHAPES), 1, None, None)


@row('gemm-small', 'shapes with a dimension <= 16, times the best of PyTorch and OpenBLAS')
def gemm_small():
    library = glob.glob(os.path.join(os.path.dirname(numpy.__file__), '..', 'numpy.libs',
                                     'libscipy_openblas64_*.so'))

    def blas(shape, threads):
        if not library:
            return {}
        words = shape.split(' ', 1)[1]
        return {'OpenBLAS': Ours(shapes, f'blas {library[0]} {words} {threads}', threads)}
    for name in DTYPES:
        ratios = products(name, 1, SMALL_SHAPES, blas if name == 'f32' else None)
        judge_products(name, ratios, 1, None, 1.0)


@row('ceiling', 'bf16 products as a share of tiles that load from the first level cache')
def ceiling():
    worst = math.inf
    for n in 512, 1024, 2048:
        shape = f'1 {n} {n} {n} n n'
        try:
            limit = Ours(shapes, 'ceiling tiles 1', 1)
        except RuntimeError:
            verdict('this machine has no tiles', 0)
            return
        times = alternate({'ours': our_product(shape, 'bf16', 1), 'limit': limit})
        flop = 2 * n ** 3
        share = times.faster('ours', 'limit') * flop / limit.work
        worst = min(worst, share)
        detail(f'{n}: {share:.3f}; {times.note()}')
    verdict('bf16, share of the ceiling in the same mode, worst', worst, 0.4)


# ---- Convolutions ----

CONVOLUTIONS = ['32 3 32 32 64 3 1 1', '32 64 32 32 64 3 1 1', '32 64 32 32 128 3 2 1',
                '32 128 16 16 128 3 1 1', '32 256 8 8 256 3 1 1', '32 512 4 4 512 3 1 1',
                '32 64 32 32 128 1 2 1', '32 256 16 16 64 1 1 1']


def torch_convolution(shape, dtype, last):
    n, c, h, w, o, k, stride, groups = map(int, shape.split())
    form = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(n, c, h, w).to(memory_format=form, dtype=DTYPES[dtype]).requires_grad_()
    weight = torch.randn(o, c // groups, k, k).to(memory_format=form).requires_grad_()
    bias = torch.randn(o, requires_grad=True)

    def forward():
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=dtype != 'f32'):
            return F.conv2d(x, weight, bias, stride=stride, padding=k // 2, groups=groups)
    y = forward()
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(forward(), (x, weight, bias), dy)


@row('conv', 'convolutions of residual nets, forward and backward, times PyTorch')
def conv():
    server = Server(os.path.join(options.build, 'bench', 'bench_conv'), '--serve')
    for dtype, own in ('f32', 'fp32'), ('bf16', 'bf16'):
        ratios = {'contiguous': [], 'last': []}
        for shape in CONVOLUTIONS:
            for layout, list_ in ratios.items():
                ours = Ours(server, f'conv {shape} {own} {layout} both 1', 1)
                times = alternate({'ours': ours, 'torch': Peer(
                    torch_convolution(shape, dtype, layout == 'last'), 1)})
                list_.append(times.faster('ours', 'torch'))
                detail(f'{dtype} {layout} {shape}: {list_[-1]:.2f}; '
                       f'{1e-9 * ours.work / times.median("ours"):.1f} GFLOP/s; {times.note()}')
        for layout, list_ in ratios.items():
            verdict(f'{dtype}, {layout}, geometric mean', geometric_mean(list_), 1.0)


# ---- Whole training steps ----

def make_net(sizes):
    dims = [int(d) for d in sizes.split('-')]
    layers = []
    for a, b in zip(dims, dims[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), dims[0], dims[-1]


def torch_training(sizes, batch, precision, optimizer, kind, compile_mode=None):
    """A function that does one step. `kind`: how the optimizer runs."""
    torch.manual_seed(0)
    net, inputs, classes = make_net(sizes)
    keywords = {'foreach': {'foreach': True}, 'fused': {'fused': True}, 'plain': {},
                'compiled': {'foreach': True}}[kind]
    if optimizer == 'adamw':
        opt = torch.optim.AdamW(net.parameters(), lr=1e-6, **keywords)
    else:
        opt = torch.optim.SGD(net.parameters(), lr=1e-4, **keywords)
    low = LOW[precision]
    scaler = torch.amp.GradScaler('cpu', enabled=precision == 'fp16')
    data = [(torch.randn(batch, inputs).to(low or torch.float32),
             torch.randint(0, classes, (batch,))) for _ in range(4)]
    count = 0

    def loss_of(x, y):
        return F.cross_entropy(net(x), y)

    def update():
        opt.step()
    if compile_mode:
        loss_of = torch.compile(loss_of, mode=compile_mode)
        if kind == 'compiled':
            update = torch.compile(update)

    def step():
        nonlocal count
        x, y = data[count % 4]
        count += 1
        opt.zero_grad(set_to_none=True)
        with torch.autocast('cpu', low) if low else contextlib.nullcontext():
            loss = loss_of(x, y)
        if precision == 'fp16':
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        else:
            loss.backward()
            update()
    return step


def best_training(sizes, batch, precision, optimizer, threads, compiled=False):
    peers = {}
    settings = [(kind, None) for kind in ('fused', 'foreach', 'plain')]
    if compiled:
        settings = [('fused', 'default'), ('fused', 'max-autotune-no-cudagraphs'),
                    ('compiled', 'default')]
    for kind, mode in settings:
        torch._dynamo.reset()
        try:
            step = torch_training(sizes, batch, precision, optimizer, kind, mode)
            for t in range(1, threads + 1):
                peers[f'{kind} {mode or "eager"} {t}T'] = Peer(step, t, threads > 1)
        except Exception as error:  # a setting that this build of the peer lacks
            detail(f'torch {precision} {kind} {mode}: {type(error).__name__}: '
                   f'{str(error).strip().splitlines()[0][:120]}')
    if not peers:
        raise RuntimeError('PyTorch could not run this in any setting')
    peer, name = fastest(peers)
    detail(f'torch {precision} {optimizer} {threads}T: fastest setting: {name}')
    return peer


def our_training(sizes, batch, precision, optimizer, threads, level='', wall=False):
    words = f'mlp {sizes} {batch} {precision} {optimizer} {threads} {level}'
    return Ours(mlp, words, threads, wall)


SMALL, WIDE, TINY = ('784-128-64-10', 64), ('1024-4096-4096-1024', 256), ('8-16-4', 1)
PRECISIONS = 'fp32', 'bf16', 'fp16', 'half'


def steps_note(times, *names):
    return ', '.join(f'{n} {1 / times.median(n):.0f}' for n in names) + ' steps/s'


def training_row(compiled, targets):
    for optimizer in 'sgd', 'adamw':
        for threads in thread_counts():
            subjects = {}
            for precision in targets:
                subjects['ours ' + precision] = our_training(*SMALL, precision, optimizer, threads)
                subjects['torch ' + precision] = best_training(*SMALL, precision, optimizer,
                                                               threads, compiled)
            times = alternate(subjects, 0.05)
            for precision, target in targets.items():
                name = 'torch ' + precision
                if precision == 'fp16':
                    name = min(('torch fp16', 'torch bf16'), key=times.median)
                note = steps_note(times, 'ours ' + precision, name)
                verdict(f'{precision}, {optimizer}, {threads}T, against {name}',
                        times.faster('ours ' + precision, name), target, note)
            detail(times.note())


@row('mlp-eager', 'step of 784-128-64-10, batch 64, times PyTorch eager')
def mlp_eager():
    training_row(False, {'fp32': 2.5, 'bf16': 13, 'fp16': 8})


@row('mlp-compile', 'the same, times torch.compile')
def mlp_compile():
    training_row(True, {'fp32': 1.3, 'bf16': 5})


@row('wide-eager', 'step of 1024-4096-4096-1024, batch 256, AdamW, times PyTorch eager')
def wide_eager():
    for threads in thread_counts():
        subjects = {}
        for precision in 'fp32', 'bf16':
            subjects['ours ' + precision] = our_training(*WIDE, precision, 'adamw', threads)
            step = torch_training(*WIDE, precision, 'adamw', 'fused')
            subjects['torch ' + precision] = Peer(step, threads)
        times = alternate(subjects, 0.01, 3)
        for precision in 'fp32', 'bf16':
            verdict(f'{precision}, {threads}T',
                    times.faster('ours ' + precision, 'torch ' + precision), None,
                    f'{1e3 * times.median("ours " + precision):.0f} ms')


# What bench_models.c trains: the net and a batch, in PyTorch.
def resnet_peer():
    net = models_peer.resnet18(3, 10, 16)
    return net, torch.randn(64, 3, 32, 32), torch.arange(64) % 10


def lenet_peer():
    net = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84),
        nn.ReLU(), nn.Linear(84, 10))
    return net, torch.randn(128, 1, 28, 28), torch.arange(128) % 10


def vit_peer():
    net = models_peer.ViT(12, 3, 192, 4, 32, 10)
    return net, torch.randn(16, 3, 32, 32), torch.arange(16) % 10


def gpt_peer():
    tokens = torch.arange(32 * 128) * 7 % 65
    return models_peer.GPT(4, 4, 128, 128, 65), tokens.view(32, 128), tokens.view(32, 128)


# Those with convolutions, which layouts differ for.
IMAGES = 'resnet', 'lenet5'
MODELS = {'resnet': resnet_peer, 'vit': vit_peer, 'gpt': gpt_peer, 'lenet5': lenet_peer}


def torch_model(model, precision, mode):
    """A function that does one step of it: mode is eager or compiled, with words for pictures."""
    torch.manual_seed(0)
    net, x, y = MODELS[model]()
    low, clipped = LOW[precision], model not in IMAGES
    if x.is_floating_point():
        x = x.to(low or torch.float32)
    if 'last' in mode:
        net = net.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    if clipped:
        opt = torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0.1, fused=True)
    else:
        opt = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, nesterov=True,
                              weight_decay=5e-4, fused=True)

    def loss_of(x, y):
        return net(x, y) if model == 'gpt' else F.cross_entropy(net(x), y)
    if 'compiled' in mode:
        loss_of = torch.compile(loss_of)

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast('cpu', low) if low else contextlib.nullcontext():
            loss = loss_of(x, y)
        loss.backward()
        if clipped:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    return step


def best_model(model, precision, threads):
    modes = ['eager', 'compiled']
    if model in IMAGES:
        modes = ['eager', 'eager channels_last', 'compiled channels_last']
    peers = {}
    for mode in modes:
        torch._dynamo.reset()
        try:
            peers[mode] = Peer(torch_model(model, precision, mode), threads)
        except Exception as error:  # a setting that this build of the peer lacks
            detail(f'torch {model} {precision} {mode}: {type(error).__name__}: '
                   f'{str(error).strip().splitlines()[0][:120]}')
    if not peers:
        raise RuntimeError('PyTorch could not run this in any setting')
    return fastest(peers)


def model_row(model, threads, targets):
    """`targets`: times PyTorch by precision, of own bf16 to own fp32, of layouts."""
    server = Server(os.path.join(options.build, 'bench', 'bench_models'), '--serve')
    subjects, settings = {}, {}
    layout, rest = ('contiguous', 'last') if model == 'lenet5' else ('last', 'contiguous')
    for precision in LOW:
        subjects[precision] = Ours(server, f'model {model} {precision} {layout} {threads}', threads)
        if precision != 'fp16':  # in PyTorch many times slower than bf16
            peer, settings[precision] = best_model(model, precision, threads)
            subjects['torch ' + precision] = peer
        if model in IMAGES and precision != 'fp16':
            words = f'model {model} {precision} {rest} {threads}'
            subjects[f'{precision} {rest}'] = Ours(server, words, threads)
    times = alternate(subjects, 0.25, 5)
    what = f'{model}, {threads}T, '
    for precision in LOW:
        other = 'bf16' if precision == 'fp16' else precision
        verdict(what + precision, times.faster(precision, 'torch ' + other), targets.get(precision),
                f'{1e3 * times.median(precision):.1f} ms, torch {other} {settings[other]} '
                f'{1e3 * times.median("torch " + other):.1f} ms')
    for precision in 'bf16', 'fp16':
        verdict(f'{what}own {precision}, times own fp32', times.faster(precision, 'fp32'),
                targets.get('own ' + precision))
    for precision in ('fp32', 'bf16') if model in IMAGES else ():
        verdict(f'{what}{precision}, {layout}, times {rest}',
                times.faster(precision, f'{precision} {rest}'), targets.get('last'))
    detail(f'{what}{times.note()}')


def most_of_halves(threads):
    """How much faster this CPU multiplies bf16 than fp32 when nothing is loaded or stored."""
    rates = {}
    for name in 'tiles', 'pairs', 'avx512', 'avx2':
        with contextlib.suppress(RuntimeError):
            rates[name] = Ours(shapes, f'ceiling {name} {threads}', threads)
    low, wide = (next((n for n in names if n in rates), None)
                 for names in (('tiles', 'pairs'), ('avx512', 'avx2')))
    if low and wide:
        times = alternate({low: rates[low], wide: rates[wide]})
        ratio = times.faster(low, wide) * rates[low].work / rates[wide].work
        verdict(f'{threads}T, multiply-add alone, {low} of bf16 times {wide} of fp32', ratio, None)


@row('models', 'steps of narrow ResNet-18, ViT-Tiny, GPT with 4 layers and LeNet-5, times PyTorch')
def models():
    targets = {'fp32': 1.0, 'bf16': 1.3, 'own bf16': 2.0, 'last': 1.2}
    for model in MODELS:
        model_row(model, thread_counts()[-1], targets)
    most_of_halves(thread_counts()[-1])


@row('models-1t', 'the same on one thread')
def models_one():
    for model in MODELS:
        model_row(model, 1, {})


# The prototype's step as a subject; its file gives mk_ and step.
PROTOTYPE = r'''
#define main prototype_main
#include "mlp.c"
#undef main
int main(void) {
    static const long sizes[] = {784, 128, 64, 10};
    amx_perm();
    gFTZ = 1;
    _mm_setcsr(_mm_getcsr() | 0x8040);
    eng = GM_AMX, np = 1, NT = 1;
    net n = mk_(3, 64, sizes);
    int opt, t = 1, number;
    double seconds;
    char line[256], word[16];
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "run %d %lf", &opt, &seconds) == 2) {
            long runs = 0;
            double cpu = tcpu(), wall = twall();
            for (; twall() - wall < seconds; runs++) step(&n, opt, t < 1000 ? t++ : t);
            printf("took %.9g %.9g 0 %ld\n", (tcpu() - cpu) / runs, (twall() - wall) / runs, runs);
        } else if (sscanf(line, "make %d", &number) == 1) printf("made %d 0 amx\n", number);
        else printf("ended\n");
        fflush(stdout);
    }
    return 0;
}
'''


@row('prototype', 'bf16 step of that MLP, one thread, times the prototype')
def prototype():
    if not options.prototype:
        raise RuntimeError('--prototype names no folder with mlp.c')
    if 'amx_bf16' not in cpu_flags():
        raise RuntimeError('the prototype needs AMX')
    program = os.path.join(options.build, 'bench', 'prototype')
    subprocess.run([options.cc, '-O2', '-w', '-I', options.prototype, '-x', 'c', '-', '-o',
                    program, '-lm', '-lpthread'], input=PROTOTYPE, text=True, check=True)
    server = Server(program)
    for number, optimizer in enumerate(('sgd', 'adamw')):
        times = alternate({'ours': our_training(*SMALL, 'bf16', optimizer, 1),
                           'prototype': Ours(server, str(number), 1)}, 0.05, 9)
        verdict(optimizer, times.faster('ours', 'prototype'), 1.1,
                steps_note(times, 'ours', 'prototype') + '; ' + times.note())


@row('own-mixed', 'own mixed steps, times own fp32')
def own_mixed():
    for (size, target) in (SMALL, 2.0), (WIDE, 2.5):
        for threads in thread_counts():
            times = alternate({p: our_training(*size, p, 'adamw', threads) for p in PRECISIONS},
                              0.05 if size is SMALL else 0.01, 7 if size is SMALL else 5)
            for precision in PRECISIONS[1:]:
                verdict(f'{precision}, {size[0]}, {threads}T', times.faster(precision, 'fp32'),
                        target if precision != 'half' else None,
                        steps_note(times, precision, 'fp32') if size is SMALL else times.note())


@row('bandwidth', 'kernels on fp32 arrays of 128 MB, share of a plain copy by bytes moved')
def bandwidth():
    elements = 1 << 25
    for name in ('adamw', 'f32_to_bf16', 'f32_to_f16', 'bf16_to_f32', 'relu', 'add', 'sgd'):
        copy = Ours(shapes, f'copy {4 * elements}', 1)
        kernel = Ours(shapes, f'kernel {name} {elements} 1', 1)
        times = alternate({'kernel': kernel, 'copy': copy}, 0.03, 9)
        share = times.faster('kernel', 'copy') * kernel.work / copy.work
        verdict(name, share, 0.8, f'{1e-9 * kernel.work / times.median("kernel"):.1f} GB/s')


def torch_attention(name, sizes, causal, back, threads):
    q, k, v, g = (torch.randn(sizes).to(DTYPES[name]).requires_grad_(back) for _ in range(4))

    def run():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if back:
            torch.autograd.grad(out, (q, k, v), g.detach())
    return Peer(run if back else torch.inference_mode()(run), threads)


@row('attention', 'scaled dot-product attention, times PyTorch')
def attention():
    shapes_ = [(4, 4, 128, 32), (4, 12, 128, 64), (4, 4, 512, 64), (4, 12, 1024, 64)]
    for name in ('f32', 'bf16'):
        for threads in thread_counts():
            for back in (False, True):
                ratios = {}
                for sizes in shapes_:
                    for causal in (False, True):
                        words = ' '.join(map(str, sizes))
                        key = words + ' causal' * causal
                        own = Ours(shapes, f'attention {name} {words} {int(causal)} {int(back)} '
                                   f'{threads}', threads)
                        times = alternate({'ours': own, 'torch': torch_attention(
                            name, sizes, causal, back, threads)}, 0.03, 5)
                        ratios[key] = times.faster('ours', 'torch')
                        detail(f'{name} {threads}T {"both" if back else "forward"} {key:<24} '
                               f'{ratios[key]:5.2f}  GFLOP/s '
                               f'{1e-9 * own.work / times.median("ours"):.0f}; {times.note()}')
                judge_products(f'{name} {"with backward" if back else "forward"}', ratios, threads,
                               None, None)


@row('embedding', 'rows of a table, share of a plain copy by bytes moved, and times PyTorch')
def embedding():
    for v, d, n in ((50257, 768, 4096), (50257, 64, 16384)):
        for back in (False, True):
            table, grad = torch.randn(v, d), torch.randn(n, d)
            ids = torch.arange(n) * 2654435761 % v
            if back:  # into an existing gradient, as ours: not a fresh one of the whole table
                runs = {'index_add_': partial(table.index_add_, 0, ids, grad)}
            else:
                runs = {'embedding': partial(F.embedding, ids, table),
                        'index_select': partial(torch.index_select, table, 0, ids, out=grad)}
            peer, name = fastest({k: Peer(f, 1) for k, f in runs.items()})
            own = Ours(shapes, f'embedding {v} {d} {n} {int(back)} 1', 1)
            copy = Ours(shapes, f'copy {4 * n * d}', 1)
            times = alternate({'ours': own, 'copy': copy, 'torch': peer}, 0.03, 5)
            what = f'{"backward" if back else "forward"}, {v} x {d}, {n} ids'
            verdict(what, times.faster('ours', 'copy') * own.work / copy.work, 0.7)
            verdict(what + ', times PyTorch', times.faster('ours', 'torch'), 1.0, name)


def torch_norm(kind, x, back, compiled):
    """A function that runs that norm of x with weights of its own or, if `back`, its gradients."""
    channels = x.shape[1] if kind.startswith(('batch', 'group')) else x.shape[-1]
    low = torch.float32 if kind.startswith('batch') else x.dtype
    w, b = (torch.randn(channels).to(low).requires_grad_(back) for _ in range(2))
    function, parameters = {
        'layer': (lambda x, w, b: F.layer_norm(x, (channels,), w, b), (w, b)),
        'rms': (lambda x, w: F.rms_norm(x, (channels,), w), (w,)),
        'group': (lambda x, w, b: F.group_norm(x, 32, w, b), (w, b)),
        'batch': (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (w, b)),
    }[kind.split('-')[0]]
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function)
    x = x.detach().requires_grad_(back)
    if not back:
        return torch.inference_mode()(lambda: function(x, *parameters))
    y = function(x, *parameters)
    dy = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, *parameters), dy, retain_graph=True)


def best_norm(kind, x, back):
    peers = {}
    for name in 'eager', 'compiled':
        try:
            peers[name] = Peer(torch_norm(kind, x, back, name == 'compiled'), 1)
        except Exception as error:  # without a compiler, say
            detail(f'torch {kind} {name}: {type(error).__name__}: '
                   f'{str(error).strip().splitlines()[0][:120]}')
    return fastest(peers)


@row('norms', 'norms beyond cache, share of a plain copy by bytes moved, and times PyTorch')
def norms():
    functorch_config.donated_buffer = False  # a compiled backward has to run again
    for kind, sizes in (('layer', (21845, 768)), ('rms', (4096, 4096)), ('group', (1337, 64, 196, 1)),
                        ('batch', (1337, 64, 14, 14)), ('batch-last', (1337, 64, 14, 14))):
        for name in ('f32', 'bf16'):
            for back in (False, True):
                x = torch.randn(sizes).to(DTYPES[name])
                if kind == 'batch-last':
                    x = x.contiguous(memory_format=torch.channels_last)
                words = ' '.join(map(str, list(sizes) + [1] * (4 - len(sizes))))
                own = Ours(shapes, f'norm {kind} {name} {words} {int(back)} 1', 1)
                copy = Ours(shapes, f'copy {x.numel() * x.element_size()}', 1)
                peer, setting = best_norm(kind, x, back)
                times = alternate({'ours': own, 'copy': copy, 'torch': peer}, 0.03, 5)
                what = f'{kind}, {name}, {"backward" if back else "forward"}'
                verdict(what, times.faster('ours', 'copy') * own.work / copy.work, 0.7)
                verdict(what + ', times PyTorch', times.faster('ours', 'torch'), 1.0, setting)


@row('threads', 'two threads against one')
def threads_row():
    limit = 'avx512' if 'avx512f' in cpu_flags() else 'avx2'
    kinds = [('f32', limit)] + [('bf16', 'tiles')] * ('amx_bf16' in cpu_flags())
    shape = '1 2048 2048 2048 n n'
    for name, kernel in kinds:
        subjects = {}
        for threads in 1, 2:
            subjects[f'ours {threads}'] = our_product(shape, name, threads, True)
            subjects[f'limit {threads}'] = Ours(shapes, f'ceiling {kernel} {threads}', threads,
                                                True)
        times = alternate(subjects, 0.05)
        own, other = times.faster('ours 2', 'ours 1'), 2 * times.faster('limit 2', 'limit 1')
        verdict(f'{name} product, share of the ceiling\'s own scaling', own / other, 0.92,
                f'{own:.2f} of {other:.2f}')
    for (size, targets) in (WIDE, 1.6), (SMALL, 0.98):
        for precision in 'fp32', 'bf16':
            times = alternate({f'{t}T': our_training(*size, precision, 'adamw', t, '', True)
                               for t in (1, 2)}, 0.05, 7)
            verdict(f'step of {size[0]}, {precision}', times.faster('2T', '1T'), targets,
                    times.note())


@row('avx2', 'half steps, times own fp32, with MPTRAIN_ISA=avx2')
def avx2():
    for size in SMALL, WIDE:
        times = alternate({p: our_training(*size, p, 'adamw', 1, 'avx2') for p in PRECISIONS},
                          0.05 if size is SMALL else 0.01, 7 if size is SMALL else 3)
        for precision in 'bf16', 'fp16':
            verdict(f'{precision}, {size[0]}', times.faster(precision, 'fp32'), 0.95,
                    'half saves memory, not time, here')


@row('tiny', 'step of 8-16-4, batch 1, fp32')
def tiny():
    for optimizer in 'sgd', 'adamw':
        times = alternate({'ours': our_training(*TINY, 'fp32', optimizer, 1),
                           'torch': best_training(*TINY, 'fp32', optimizer, 1)}, 0.05)
        verdict(f'microseconds, {optimizer}', 1e6 * times.median('ours'), 3, times.note(), True)
        verdict(f'times PyTorch eager, {optimizer}', times.faster('ours', 'torch'), 10,
                f'{1e6 * times.median("torch"):.0f} us')


# Times others that a net is to be trained at, at least: name of the net, of the other one.
SMALL_TARGETS = {('mnist', 'KANN with OpenBLAS'): 1.3}


@row('small', 'steps of small nets in fp32, one thread, times PyTorch eager and libraries in C')
def small():
    folder = os.path.join(options.build, 'bench')
    ours = Server(os.path.join(folder, 'bench_small'), '--serve')
    # OpenBLAS takes this CPU's widest vectors only for cores that it knows by name.
    wide = {'OPENBLAS_CORETYPE': 'SkylakeX'} if 'avx512f' in cpu_flags() else {}
    others = {name: Server(program, '--serve', more=wide) for name, program in
              small_peer.build(options.others, options.cc, folder).items()}
    for net in small_peer.nets():
        subjects = {'ours': Ours(ours, f'net {net} fp32 1', 1)}
        torch.set_num_threads(1)
        subjects['PyTorch eager'] = Peer(small_peer.torch_step(net), 1)
        for name, server in others.items():
            try:
                subjects[name] = Ours(server, f'net {net}', 1)
            except RuntimeError as error:
                detail(str(error))
        names = list(subjects)
        times = alternate(subjects, 0.05)
        for name in names[1:]:
            verdict(f'{net}, times {name}', times.faster('ours', name),
                    SMALL_TARGETS.get((net, name)),
                    f'{1e6 * times.median("ours"):.1f} and {1e6 * times.median(name):.1f} us')


def torch_recurrent(cell, precision):
    """A function that does one step of bench_recurrent.c."""
    layer = {'lstm': nn.LSTM, 'gru': nn.GRU}[cell](128, 128)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3, foreach=True)
    x, y, low = torch.randn(64, 32, 128), torch.randn(64, 32, 128), LOW[precision]

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cpu', low) if low else contextlib.nullcontext():
            out = layer(x)[0]
        F.mse_loss(out.float(), y).backward()
        optimizer.step()
    return step


@row('recurrent', 'steps of an LSTM and a GRU, 128 hidden, 64 steps of 32, times PyTorch eager')
def recurrent():
    server = Server(os.path.join(options.build, 'bench', 'bench_recurrent'), '--serve')
    for cell in 'lstm', 'gru':
        for precision, target in ('fp32', 1.5), ('bf16', 2.0):
            for threads in thread_counts():
                step = torch_recurrent(cell, precision)
                subjects = {f'{t}T': Peer(step, t, threads > 1) for t in range(1, threads + 1)}
                peers = list(subjects)
                subjects['ours'] = Ours(server, f'layer {cell} {precision} {threads}', threads)
                try:
                    times = alternate(subjects, 0.2)
                except RuntimeError as error:
                    detail(f'{cell}, {precision}, {threads}T not measured: {error}')
                    continue
                verdict(f'{cell}, {precision}, {threads}T', times.faster('ours', *peers), target,
                        f'{1e3 * times.median("ours"):.2f} and '
                        f'{1e3 * min(times.median(p) for p in peers):.2f} ms; {times.note()}')


def run_once(words):
    """Seconds of a program: what it prints after that word, else wall clock."""
    start = time.perf_counter()
    text = subprocess.run(words, check=True, capture_output=True, text=True,
                          env=None if words[0] == sys.executable else OURS,
                          cwd=os.path.join(options.build, 'bench')).stdout.strip()
    seconds = time.perf_counter() - start
    inner = re.search(r'seconds ([0-9.]+)', text)
    return float(inner.group(1)) if inner else seconds, text


@row('mnist', 'make mnist, 5 epochs, times the same recipe in PyTorch without its imports')
def mnist():
    if not options.data:
        raise RuntimeError('--data names no folder with MNIST')
    ours = [os.path.abspath(os.path.join(options.build, 'mnist')), '--quiet', '--data',
            options.data]
    peer = [sys.executable, os.path.join(HERE, 'peer_mnist.py'), '--data', options.data]
    settings = {f'{p} {t}T': ['--precision', p, '--threads', str(t)]
                for p in ('fp16', 'bf16', 'fp32') for t in thread_counts()}
    trial = {name: run_once(peer + words + ['--epochs', '1'])[0]
             for name, words in settings.items()}
    detail('torch, one epoch: ' + ', '.join(f'{n} {s:.2f} s' for n, s in trial.items()))
    one = run_once(ours + ['--epochs', '1'])[0]
    same = min(s for n, s in trial.items() if n.startswith('fp16'))
    verdict('fp16, one epoch, against fp16', same / one, None, f'{one:.2f} s, torch {same:.2f} s')
    best = min((n for n in trial if not n.startswith('fp32')), key=trial.get)
    times = {'fp16': [], 'bf16': []}
    for _ in range(3):
        other, other_text = run_once(peer + settings[best])
        detail(f'torch {best}: {other_text}')
        for precision, ratios in times.items():
            own, own_text = run_once(ours + ['--precision', precision])
            ratios.append(other / own)
            detail(f'ours {precision} {own:.2f} s, {own_text}')
    for precision, ratios in times.items():
        verdict(f'{precision}, 5 epochs, against the fastest low precision, {best}',
                statistics.median(ratios), 8)


# ==== The machine, the table ====

def thread_counts():
    return (1, 2) if os.cpu_count() > 1 else (1,)


def cpu_flags():
    with contextlib.suppress(OSError), open('/proc/cpuinfo') as file:
        for line in file:
            if line.startswith(('flags', 'Features')):
                return line.split()
    return []


def cpu_model():
    with contextlib.suppress(OSError), open('/proc/cpuinfo') as file:
        for line in file:
            if line.startswith('model name'):
                return line.split(':', 1)[1].strip()
    return platform.processor() or platform.machine()


def machine_kind():
    flags, levels = cpu_flags(), ('amx_bf16', 'avx512f', 'avx2', 'asimd')
    level = next((l for l in levels if l in flags), 'plain')
    return f'{platform.machine()}-{level}-{os.cpu_count()}-cores'.replace('_', '-')


def machine_lines():
    wanted = ('avx2', 'fma', 'f16c', 'avx512f', 'avx512_bf16', 'avx512_fp16', 'amx_tile',
              'amx_bf16', 'amx_fp16', 'asimd', 'asimdhp', 'bf16')
    flags = cpu_flags()
    compiler = subprocess.run([options.cc, '--version'], capture_output=True, text=True).stdout
    return [f'CPU: {cpu_model()}, {os.cpu_count()} cores; '
            + ' '.join(f for f in wanted if f in flags),
            f'compiler: {compiler.splitlines()[0] if compiler else "unknown"}, -O2',
            f'peers: PyTorch {torch.__version__} '
            f'({torch.backends.cpu.get_cpu_capability()}), numpy {numpy.__version__}']


def row_lines(key, result):
    lines = [f'| **{rows[key].title}** ({key}; {result["date"]}) | | | | |']
    for what, measured, target, met, most, note in result['lines']:
        bound = '' if target is None else f'{"<=" if most else ">="} {target}'
        word = {None: '', True: 'yes', False: '**no**'}[met]
        lines.append(f'| {what} | {measured:.3g} | {bound} | {word} | {note} |')
    return lines


def text_table(lines_of):
    head = ['| row | measured | target | met | |', '|---|---|---|---|---|']
    return head + [line for key in rows for line in lines_of.get(key, [])]


def read_results(path):
    """What a table says already: its lines and its details by row."""
    lines_of, details_of, key = {}, {}, None
    with contextlib.suppress(OSError), open(path) as file:
        for line in file.read().splitlines():
            title = re.match(r'\| \*\*.*\*\* \(([a-z0-9-]+); [-0-9: ]+\) \|', line)
            key = title.group(1) if title else key if line.startswith('| ') else None
            if key:
                lines_of.setdefault(key, []).append(line)
            elif line.split(': ')[0] in rows:
                details_of.setdefault(line.split(': ')[0], []).append(line)
    return lines_of, details_of


def write_results(results):
    """Rows that were not measured stay as they were."""
    path = os.path.join(HERE, 'results', f'cpu-{machine_kind()}.md')
    os.makedirs(os.path.dirname(path), exist_ok=True)
    lines_of, details_of = read_results(path)
    for key, result in results.items():
        lines_of[key] = row_lines(key, result)
        details_of[key] = [f'{key}: {line}' for line in result['details']]
    head = ['# Measured on this kind of machine: ' + machine_kind(), '',
            'Written by `make bench-peers WRITE=1`. Ratios are medians of alternating repetitions '
            'in one run;', 'above 1 we are faster. Machines differ and are shared: no absolute '
            'figure is a claim.', ''] + ['- ' + line for line in machine_lines()] + ['']
    details = [line for key in rows for line in details_of.get(key, [])]
    with open(path, 'w') as file:
        file.write('\n'.join(head + text_table(lines_of) +
                             ['', '## By shape and setting', '', '```'] + details + ['```', '']))
    print('written:', os.path.relpath(path))


def main():
    global options, shapes, mlp, current
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', required=True)
    parser.add_argument('--rows', default='', help='all of: ' + ' '.join(rows))
    parser.add_argument('--write', action='store_true')
    parser.add_argument('--data', default='')
    parser.add_argument('--prototype', default='')
    parser.add_argument('--others', default='', help='where small_peer.py finds other libraries')
    parser.add_argument('--cc', default='cc')
    options = parser.parse_args()
    wanted = re.split(r'[, ]+', options.rows.strip()) if options.rows.strip() else list(rows)
    unknown = [key for key in wanted if key not in rows]
    if unknown:
        parser.error(f'no row {", ".join(unknown)}; there are: {" ".join(rows)}')
    options.data = options.data and os.path.abspath(options.data)
    logging.disable(logging.WARNING)
    torch.set_flush_denormal(True)
    shapes = Server(os.path.join(options.build, 'bench', 'bench_shapes'), '--serve')
    mlp = Server(os.path.join(options.build, 'bench', 'bench_mlp'), '--serve')
    results = {}
    print('\n'.join(machine_lines()))
    for key in wanted:
        print(f'== {key}: {rows[key].title}', flush=True)
        current = {'lines': [], 'details': [],
                   'date': datetime.datetime.now().strftime('%Y-%m-%d %H:%M')}
        try:
            rows[key].function()
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            print(f'  skipped: {error}')
            continue
        results[key] = current
        if options.write:
            write_results({key: current})
    print('\n' + '\n'.join(text_table({key: row_lines(key, results[key]) for key in results})))


if __name__ == '__main__':
    main()
