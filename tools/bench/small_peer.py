"""small_peer.py: the nets of small.h in PyTorch, and the programs that train them with other libraries
in C. Those are fetched by hand into one folder, each under its own name:

    kann     as it is, with its own loops; and with OpenBLAS where cblas.h is found
    genann   as it is
    ggml     built in its folder build/, as static libraries, without OpenMP"""
import glob
import os
import re
import subprocess

import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))
ROW = r'\{"([\w-]+)", \{([\d, ]+)\}, \d, (\d+), (\d), (\d), (\d)\}'


def nets():
    """name: (sizes, batch, tanh, squared, rmsprop), from the table in small.h."""
    with open(os.path.join(HERE, 'small.h')) as file:
        found = re.findall(ROW, file.read())
    return {name: ([int(size) for size in sizes.split(',')], int(batch),
                   *(flag == '1' for flag in flags)) for name, sizes, batch, *flags in found}


def torch_step(name):
    """A function that does one step in fp32, eagerly."""
    sizes, batch, tanh, squared, rmsprop = nets()[name]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.Tanh() if tanh else nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    optimizer = (torch.optim.RMSprop(net.parameters(), lr=1e-6, alpha=0.9, foreach=True)
                 if rmsprop else torch.optim.SGD(net.parameters(), lr=1e-4, foreach=True))
    x = torch.rand(batch, sizes[0]) * 2 - 1
    y = (torch.rand(batch, sizes[-1]) * 2 - 1 if squared else
         torch.arange(batch) % sizes[-1])

    loss = F.mse_loss if squared else F.cross_entropy

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss(net(x), y).backward()
        optimizer.step()
    return step


def blas_flags():
    """How to find OpenBLAS: None where it is not."""
    for folder in '/usr/include', *glob.glob('/usr/include/*/openblas*'):
        if os.path.exists(os.path.join(folder, 'cblas.h')):
            return ['-DHAVE_CBLAS', '-I' + folder], ['-lopenblas']
    return None


def programs(folder):
    """name: (flags, sources, libraries) of each library that is there."""
    def at(*path):
        return os.path.join(folder, *path)
    result = {}
    if os.path.exists(at('kann', 'kann.h')):
        kann = ['-O3', '-march=native', '-DOTHER_KANN', '-I' + at('kann')]
        sources = [at('kann', 'kann.c'), at('kann', 'kautodiff.c')]
        result['KANN'] = kann, sources, []
        if blas_flags():
            flags, libraries = blas_flags()
            result['KANN with OpenBLAS'] = kann + flags, sources, libraries
    if os.path.exists(at('genann', 'genann.h')):
        result['genann'] = (['-O3', '-march=native', '-DOTHER_GENANN', '-I' + at('genann')],
                            [at('genann', 'genann.c')], [])
    libraries = sorted(glob.glob(at('ggml', 'build', '**', 'libggml*.a'), recursive=True))
    if libraries:
        result['ggml'] = (['-O2', '-DOTHER_GGML', '-I' + at('ggml', 'include')], [],
                          ['-Wl,--start-group', *libraries, '-Wl,--end-group', '-lstdc++', '-ldl'])
    return result


def build(folder, compiler, into):
    """name: program, compiled in `into`."""
    made = {}
    top = os.path.dirname(os.path.dirname(HERE))
    for name, (flags, sources, libraries) in programs(folder).items():
        made[name] = os.path.join(into, 'other_' + re.sub(r'\W', '_', name))
        subprocess.run([*compiler.split(), '-w', *flags, '-DMPTRAIN_HEADER_FILE="mptrain.h"',
                        '-DMPTRAIN_IMPLEMENTATION', '-DMPTRAIN_STATIC', '-DMPTRAIN_NO_SIMD',
                        '-I' + top, os.path.join(HERE, 'others.c'), *sources, '-o', made[name],
                        *libraries, '-lm', '-lpthread'], check=True)
    return made
