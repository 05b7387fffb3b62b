"""gpu_peers.py: PyTorch and our device_speed in turn, on one GPU, in one run: ratios.

    gpu_peers.py PROGRAM [cuda|cpu]     PROGRAM: build/gpu/bench/device_speed; cpu tries the script

Rows are named as device_speed names them. Peers get their best setting: fused AdamW, TF32 off for
fp32, torch.compile and CUDA graphs where they are faster. Medians of five; a ratio above 1 means
that ours is faster."""
import statistics
import subprocess
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    sys.exit(f'{error}: the peers need PyTorch 2')

PROGRAM = sys.argv[1]
DEVICE = sys.argv[2] if len(sys.argv) > 2 else 'cuda'
MEGABYTES = 1000 if DEVICE == 'cuda' else 8
PRECISIONS = {'fp32': None, 'bf16': torch.bfloat16, 'fp16': torch.float16}


def wait():
    if DEVICE == 'cuda':
        torch.cuda.synchronize()


def seconds(run, runs=20):
    for _ in range(3):
        run()
    samples = []
    for _ in range(5):
        wait()
        start = time.perf_counter()
        for _ in range(runs):
            run()
        wait()
        samples.append((time.perf_counter() - start) / runs)
    return statistics.median(samples)


def arrays():
    """The kernels of device_speed that PyTorch has as one call."""
    x = torch.randn(MEGABYTES * 1000000 // 4 // 4096, 4096, device=DEVICE)
    y, half = torch.randn_like(x), x.to(torch.bfloat16)
    picks = torch.arange(len(x), device=DEVICE)
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


def step(low, capturable=False):
    """A training step of 784-128-64-10 at batch 64, with the scaler for fp16."""
    net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
                        nn.Linear(64, 10), nn.LogSoftmax(-1)).to(DEVICE)
    fused = {'fused': True, 'capturable': capturable} if DEVICE == 'cuda' else {}
    optimizer = torch.optim.AdamW(net.parameters(), 1e-6, **fused)
    scaler = torch.amp.GradScaler(DEVICE, enabled=low == torch.float16)
    x, y = torch.randn(64, 784, device=DEVICE), torch.arange(64, device=DEVICE) % 10

    def run():
        optimizer.zero_grad(set_to_none=not capturable)
        with torch.autocast(DEVICE, low or torch.float32, enabled=low is not None):
            loss = F.nll_loss(net(x), y)
        if capturable:  # a graph cannot ask whether to skip: the step without the scaler's branch
            scaler.scale(loss).backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return run


def graph(low):
    run = step(low, capturable=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        run()
    return captured.replay


def ours():
    lines = subprocess.run([PROGRAM, str(MEGABYTES), DEVICE], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    rows = [line.split('\t')[1:] for line in lines if '\t' in line]
    return {name: float(took) for name, took, _ in rows}


def report(name, own, peer, note=''):
    print(f'{name:44} ours {own * 1e6:10.1f} us  PyTorch {peer * 1e6:10.1f} us  '
          f'{peer / own:6.2f} {note}', flush=True)


def main():
    if DEVICE == 'cuda':
        print(torch.cuda.get_device_name(), 'PyTorch', torch.__version__)
    own = ours()
    with torch.no_grad():
        for name, run in arrays().items():
            if name in own or name.startswith('copy'):
                report(name, own[name], seconds(run))
    for name, low in PRECISIONS.items():
        captured, alone = f'captured step 784-128-64-10 {name}', f'step 784-128-64-10 {name}'
        report(alone, own[alone], seconds(step(low)), 'eager, fused AdamW')
        report(captured, own[captured], seconds(step(low)), 'eager, fused AdamW')
        report(captured, own[captured], seconds(torch.compile(step(low))), 'torch.compile')
        if DEVICE == 'cuda':
            report(captured, own[captured], seconds(graph(low)), 'CUDA graph')
    side = 4096 if DEVICE == 'cuda' else 512
    for name, dtype in (('bfloat16', torch.bfloat16), ('float16', torch.float16),
                        ('float32', torch.float32)):
        a = torch.randn(side, side, device=DEVICE, dtype=dtype)
        row = f'product {name}, {side} cubed'
        report(row, own[row], seconds(lambda a=a: a @ a))


main()
