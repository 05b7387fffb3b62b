"""pairs.py: another mptrain.h against the one of this folder: is the new one as fast?

    pairs.py --build FOLDER --old REVISION|FILE [--rows mlp,models,gemm,norms,attention,elementwise]
             [--pairs 11] [--core 1]

Both headers are compiled by the same compiler into the same benchmarks. Each pair of a row runs in
two new processes, since where memory lies counts too, on one core, in an order that changes every
time. Printed is the median of old time / new time, above 1 where the new header is faster, with
its 95 % interval by order statistics, which asks for nothing but pairs that do not depend on each
other. The end is an error where the median of a group of rows is below 0.99. Needs Python alone."""
import argparse
import os
import statistics
import subprocess
import sys

PRECISIONS = ('fp32', 'bf16')
DTYPES = ('f32', 'bf16', 'f16')
KERNELS = ('add', 'relu', 'f32_to_f16', 'f32_to_bf16', 'bf16_to_f32', 'sgd', 'adamw')
GROUPS = {  # name: seconds of a sample, (program, subject) of each row
    'mlp': (0.1, [('mlp', f'mlp {size} {p} {optimizer} 1')
                  for size, optimizer in (('784-128-64-10 64', 'sgd'),
                                          ('784-128-64-10 64', 'adamw'), ('8-16-4 1', 'sgd'),
                                          ('8-16-4 1', 'adamw'))
                  for p in PRECISIONS]),
    'models': (0.15, [('models', f'model {model} {p} last 1')
                      for model in ('resnet', 'vit', 'gpt') for p in PRECISIONS]),
    'gemm': (0.03, [('shapes', f'gemm {d} 1 {shape} n n 1') for d in DTYPES
                    for shape in ('64 64 64', '256 256 256', '512 768 3072')]),
    'norms': (0.03, [('shapes', f'norm {kind} {d} {shape} {back} 1')
                     for kind, shape in (('layer', '256 768 1 1'), ('batch', '32 64 32 32'),
                                         ('batch-last', '32 64 32 32'), ('rms', '256 768 1 1'))
                     for d in ('f32', 'bf16') for back in (0, 1)]),
    'attention': (0.03, [('shapes', f'attention {d} 4 8 256 64 1 {back} 1')
                         for d in ('f32', 'bf16') for back in (0, 1)]),
    'elementwise': (0.03, [('shapes', f'kernel {kernel} 262144 1') for kernel in KERNELS]),
}


def build(options, side, header):
    """The benchmarks with a header, in a folder of its own, which is where it includes itself."""
    folder = os.path.join(options.build, side)
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, 'mptrain.h')
    if not os.path.exists(target) or open(target).read() != header:
        with open(target, 'w') as out:
            out.write(header)
    programs = [os.path.join(folder, 'bench', f'bench_{name}')
                for name in {program for row in options.rows for program, _ in GROUPS[row][1]}]
    subprocess.run([*options.make.split(), '-s', f'BUILD={folder}', f'HEADER={target}', 'RELEASE=1', 'WATCH=',
                    f'INCLUDES=-I{folder} -I.', *programs], check=True)


def header_of(old):
    if os.path.exists(old):
        return open(old).read()
    show = subprocess.run(['git', 'show', f'{old}:mptrain.h'], capture_output=True, text=True)
    if show.returncode != 0:
        sys.exit(f'pairs.py: {old} is neither a file nor a revision that has mptrain.h')
    return show.stdout


class Served:
    """A benchmark that makes one subject and runs it when it is asked."""

    def __init__(self, options, side, program, subject):
        path = os.path.join(options.build, side, 'bench', f'bench_{program}')
        self.process = subprocess.Popen(['taskset', '-c', str(options.core), path, '--serve'],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.made = self.ask(f'make {subject}')

    def ask(self, line):
        self.process.stdin.write(line + '\n')
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def seconds(self, length):
        return float(self.ask(f'run 0 {length}').split()[3])

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def ratios_of(options, program, subject, length):
    """old / new of each pair, in order of size; none where a header does not know the subject."""
    ratios = []
    for pair in range(options.pairs):
        sides = [Served(options, side, program, subject) for side in ('old', 'new')]
        made = [side.made for side in sides]
        if all(word.startswith('made') for word in made):
            took = [0.0, 0.0]
            for k in (0, 1) if pair % 2 else (1, 0):
                took[k] = sides[k].seconds(length)
            ratios.append(took[0] / took[1])
        for side in sides:
            side.end()
        if not ratios:
            print(f'| {subject} | not measured: {" / ".join(made)} | |')
            break
    return sorted(ratios)


def interval(ratios):
    """Of the median: the order statistics that hold it with a probability of 95 %."""
    n, half = len(ratios), 0.98 * len(ratios) ** 0.5
    return ratios[max(0, int(n / 2 - half))], ratios[min(n - 1, int(n / 2 + half))]


def measure_group(options, name):
    length, rows = GROUPS[name]
    medians = []
    for program, subject in rows:
        ratios = ratios_of(options, program, subject, length)
        if ratios:
            low, high = interval(ratios)
            medians.append(statistics.median(ratios))
            print(f'| {subject} | {medians[-1]:.3f} | {low:.3f} to {high:.3f} |', flush=True)
    middle = statistics.median(medians) if medians else 0
    least = min(medians, default=0)
    print(f'| **{name}**, {len(medians)} rows | **{middle:.3f}** | least {least:.3f} |', flush=True)
    return middle


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument('--build', required=True)
    parser.add_argument('--old', required=True)
    parser.add_argument('--rows', default='')
    parser.add_argument('--pairs', type=int, default=11)
    parser.add_argument('--core', type=int, default=(os.cpu_count() or 1) - 1)
    parser.add_argument('--make', default='make')
    options = parser.parse_args()
    options.rows = options.rows.replace(',', ' ').split() or list(GROUPS)
    unknown = [row for row in options.rows if row not in GROUPS]
    if unknown or options.pairs < 9:
        sys.exit(f'pairs.py: rows are {", ".join(GROUPS)}, pairs 9 or more; '
                 f'got {unknown or options.pairs}')
    options.build = os.path.abspath(options.build)
    build(options, 'old', header_of(options.old))
    build(options, 'new', open('mptrain.h').read())
    print(f'| row | old / new, {options.pairs} pairs | 95 % |\n|---|---|---|', flush=True)
    slower = [row for row in options.rows if measure_group(options, row) < 0.99]
    sys.exit(f'slower than before: {", ".join(slower)}' if slower else 0)


main()
