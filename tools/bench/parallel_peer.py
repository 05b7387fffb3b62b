"""parallel_peer.py: steps of GPT by two processes of one thread each: ours over MPI, and PyTorch's
DistributedDataParallel over gloo, in turn, in one run; medians of the ratios of neighbours.

    parallel_peer.py --bench build/parallel/bench_openmpi [--mpirun mpirun.openmpi] [--ranks 2]
                     [--repetitions 15] [--steps 6] [--batch 16] [--model gpt] [--compiled]

Both train the net of bench_models with a batch of their own on each rank, with AdamW and gradients
clipped. PyTorch gets what is best for it: oneDNN, denormals flushed, the fused optimizer, gradients
that are views of buckets, memory that stays in the process; --compiled adds torch.compile, of which
the faster way counts."""
import argparse
import os
import statistics
import subprocess
import sys
import time

KEEP_MEMORY = {'MALLOC_MMAP_MAX_': '0', 'MALLOC_TRIM_THRESHOLD_': str(1 << 40)}
PRECISIONS = ('fp32', 'bf16')
BARS = {'fp32': 1.3, 'bf16': 1.8}
WAYS = ('mean', 'tree', 'alone')


# ==== A rank of PyTorch ====

def torch_step(precision, batch, compiled):
    """A function that does one step."""
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import models_peer
    torch.manual_seed(0)
    net = models_peer.GPT(4, 4, 128, 128, 65)
    numbers = torch.arange(batch * 128)
    x = ((numbers * 7 + numbers // 5) % 65).view(batch, 128)
    ddp = DistributedDataParallel(net, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-6, weight_decay=0.1, fused=True)
    forward = torch.compile(ddp) if compiled else ddp

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cpu', torch.bfloat16, enabled=precision == 'bf16'):
            loss = forward(x, x)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return step


def torch_rank(rank, options):
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    dist.init_process_group('gloo', init_method=f'file://{options.meet}', rank=rank,
                            world_size=options.ranks)
    steps = []
    for compiled in (False, True)[:1 + options.compiled]:
        steps += [torch_step(precision, options.batch, compiled) for precision in PRECISIONS]
        for step in steps[-2:]:
            step(), step()
    if rank == 0:
        print('made', flush=True)
    while True:
        command = torch.zeros(2, dtype=torch.int64)
        if rank == 0:
            line = sys.stdin.readline().split()
            command = torch.tensor([int(word) for word in line] if line else [-1, 0])
        dist.broadcast(command, 0)
        number, count = command.tolist()
        if number < 0:
            break
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            steps[number]()
        dist.barrier()
        if rank == 0:
            print('took', (time.perf_counter() - start) / count, flush=True)
    dist.destroy_process_group()


# ==== The driver ====

class Served:
    def __init__(self, command, **more):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, **more)

    def answer(self):
        line = self.process.stdout.readline().split()
        if not line or line[0] == 'error':
            sys.exit(f'{self.process.args}: {" ".join(line[1:]) or "ended"}')
        return [float(word) for word in line[1:]]

    def ask(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def ours(options):
    """The program and the number of each subject."""
    flags = []
    if 'openmpi' in options.mpirun:
        flags = ['--oversubscribe', '--bind-to', 'none']
        if os.getuid() == 0:
            flags.append('--allow-run-as-root')
    served = Served([options.mpirun, *flags, '-n', str(options.ranks), options.bench])
    subjects = {}
    for precision in PRECISIONS:
        for way in WAYS:
            made = served.ask(f'make {options.model} {precision} {way} {options.batch}')
            subjects[precision, way] = int(made[0])
            served.ask(f'run {int(made[0])} 3')
    return served, subjects


def torch_ranks(options):
    words = [sys.executable, __file__, '--bench', options.bench, '--meet', options.meet,
             '--ranks', str(options.ranks), '--batch', str(options.batch)]
    words += ['--compiled'] if options.compiled else []
    env = {**os.environ, **KEEP_MEMORY, 'OMP_NUM_THREADS': '1', 'TORCHINDUCTOR_COMPILE_THREADS': '1'}
    others = [subprocess.Popen([*words, '--rank', str(rank)], env=env)
              for rank in range(1, options.ranks)]
    first = Served([*words, '--rank', '0'], env=env)
    first.answer()
    return first, others


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--bench', required=True)
    parser.add_argument('--mpirun', default='mpirun')
    parser.add_argument('--model', default='gpt')
    parser.add_argument('--meet', default=f'/tmp/parallel_peer.{os.getpid()}')
    parser.add_argument('--compiled', action='store_true')
    parser.add_argument('--alone', action='store_true', help='without PyTorch')
    for name, default in (('ranks', 2), ('repetitions', 15), ('steps', 6), ('batch', 16),
                          ('rank', -1)):
        parser.add_argument('--' + name, type=int, default=default)
    options = parser.parse_args()
    if options.rank >= 0:
        return torch_rank(options.rank, options)
    served, subjects = ours(options)
    asks = {key: lambda n=n: served.ask(f'run {n} {options.steps}')
            for key, n in subjects.items()}
    torch_first, torch_others = None, []
    if not options.alone:
        torch_first, torch_others = torch_ranks(options)
        for i, way in enumerate(('eager', 'compiled')[:1 + options.compiled]):
            for j, precision in enumerate(PRECISIONS):
                asks[precision, 'torch ' + way] = (
                    lambda n=2 * i + j: torch_first.ask(f'{n} {options.steps}'))
    took = {key: [] for key in asks}
    waited = {key: [] for key in asks}
    for repetition in range(options.repetitions):
        for key in list(asks)[::-1 if repetition % 2 else 1]:
            answer = asks[key]()
            took[key].append(answer[0])
            waited[key].append(answer[1] if len(answer) > 1 else 0)
    report(options, took, waited)
    served.end()
    if torch_first:
        torch_first.end()
    for other in torch_others:
        other.wait()
    return 0


def report(options, took, waited):
    print(f'{options.model}, batch {options.batch} per rank, {options.ranks} ranks of one thread, '
          f'{options.repetitions} repetitions of {options.steps} steps, load '
          f'{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores')
    for key, values in took.items():
        ratio = statistics.median(a / b for a, b in zip(values, took[key[0], 'alone']))
        print(f'{key[0]} {key[1]:14} {1e3 * statistics.median(values):8.2f} ms, least '
              f'{1e3 * min(values):8.2f}, waited {1e3 * statistics.median(waited[key]):6.2f}; '
              f'{ratio:.3f} times that of steps that reduce nothing')
    for precision in PRECISIONS:
        peers = [key for key in took if key[0] == precision and key[1].startswith('torch')]
        for way in ('mean', 'tree') if peers else ():
            best = min(statistics.median(a / b for a, b in zip(took[peer], took[precision, way]))
                       for peer in peers)
            print(f'| {precision}, {way}, steps/s, times PyTorch DDP gloo | {best:.2f} | '
                  f'>= {BARS[precision]} | {"yes" if best >= BARS[precision] else "**no**"} |')


if __name__ == '__main__':
    sys.exit(main())
