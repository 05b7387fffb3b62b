"""peer_mnist.py: the training of examples/mnist.c in PyTorch, written for speed: the whole set as
one normalised tensor in memory, batches by index, fused optimizer, no DataLoader.

    peer_mnist.py --data FOLDER [--precision fp32|bf16|fp16] [--optimizer sgd|adamw] [--epochs 5]
                  [--batch 64] [--threads 0]

Prints one line: seconds of the whole work without imports, and the test accuracy."""
import argparse
import gzip
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

MEAN, DEVIATION = 0.1307, 0.3081


def read_idx(folder, name):
    path = os.path.join(folder, name)
    plain = os.path.exists(path)
    with (open(path, 'rb') if plain else gzip.open(path + '.gz', 'rb')) as file:
        data = file.read()
    rank = data[3]
    shape = np.frombuffer(data, '>u4', rank, 4).astype(int)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def load(folder, split):
    images = torch.from_numpy(read_idx(folder, f'{split}-images-idx3-ubyte').copy())
    labels = torch.from_numpy(read_idx(folder, f'{split}-labels-idx1-ubyte').copy()).long()
    x = images.reshape(len(images), -1).float()
    return x.mul_(1 / (255 * DEVIATION)).sub_(MEAN / DEVIATION), labels


def train(options):
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    if options.threads:
        torch.set_num_threads(options.threads)
    low = {'fp32': None, 'bf16': torch.bfloat16, 'fp16': torch.float16}[options.precision]
    x, y = load(options.data, 'train')
    net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(),
                        nn.Linear(64, 10))
    if options.optimizer == 'adamw':
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, fused=True)
    scaler = torch.amp.GradScaler('cpu', enabled=low is torch.float16)
    for _ in range(options.epochs):
        for index in torch.randperm(len(x)).split(options.batch):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast('cpu', low, enabled=low is not None):
                loss = F.cross_entropy(net(x[index]), y[index])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    x, y = load(options.data, 't10k')
    with torch.inference_mode(), torch.autocast('cpu', low, enabled=low is not None):
        return (net(x).argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--data', required=True)
    parser.add_argument('--precision', default='fp16', choices=['fp32', 'bf16', 'fp16'])
    parser.add_argument('--optimizer', default='adamw', choices=['sgd', 'adamw'])
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--threads', type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    accuracy = train(options)
    print(f'seconds {time.perf_counter() - start:.3f} accuracy {100 * accuracy:.2f}')


main()
