"""memory_peer.py: what training takes at its peak, PyTorch's and ours, in one run: two steps each of
the nets that bench_memory plans, every one in a process of its own; counted is what the system gave
the process at most, beyond what it had when the libraries were loaded.

    memory_peer.py --bench build/release/bench/bench_memory [--models vit-b16,resnet18,gpt6]
                   [--precisions bf16,fp32] [--batch 64]

Plain is without recomputation, as is `narrow` (mpt_autocast_begin_narrow) of ours; `selective` is
mpt_recompute_begin; `full` runs each block again in backward, as torch.utils.checkpoint does. The
batch of GPT is a quarter. Its loss is F.linear_cross_entropy in chunks where PyTorch has that, as
ours is mpt_linear_cross_entropy; an older PyTorch forms all logits."""
import argparse
import re
import resource
import subprocess
import sys

WAYS = ('plain', 'narrow', 'selective', 'full', 'narrow full')
PEER_WAYS = ('plain', 'full')


def peak_now():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def peer(model, precision, way, batch):
    """Two steps of PyTorch in this process; prints the peak in MB."""
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint

    import models_peer
    before = peak_now()
    torch.manual_seed(0)
    net = {'vit-b16': lambda: models_peer.ViT(12, 12, 768, 16, 224, 1000),
           'resnet18': lambda: models_peer.resnet18(3, 1000, 64, True),
           'gpt6': lambda: models_peer.GPT(6, 12, 768, 512, 50304)}[model]()
    if model == 'resnet18':
        net = net.to(memory_format=torch.channels_last)
    if way == 'full':
        for block in list(net.modules()):
            if isinstance(block, (models_peer.Block, models_peer.TransformerBlock)):
                block.forward = wrapped(checkpoint, block.forward)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    if model == 'gpt6':
        x = torch.randint(50304, (batch, 512))
        y = torch.randint(50304, (batch, 512))
    else:
        x, y = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
        if model == 'resnet18':
            x = x.contiguous(memory_format=torch.channels_last)
    for _ in range(2):
        with torch.autocast('cpu', torch.bfloat16, enabled=precision == 'bf16'):
            loss = gpt_loss(net, x, y) if model == 'gpt6' else F.cross_entropy(net(x).float(), y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f'peak {peak_now() - before:.1f}')


def gpt_loss(net, x, y):
    """With the logits in chunks, which takes PyTorch least."""
    import torch
    import torch.nn.functional as F
    if not hasattr(torch.nn, 'LinearCrossEntropyOptions'):
        return net(x, y)
    positions = torch.arange(x.shape[1])
    h = net.ln_f(net.blocks(net.wte(x) + net.wpe(positions))).flatten(0, 1)
    low = torch.bfloat16 if torch.is_autocast_enabled('cpu') else h.dtype
    return F.linear_cross_entropy(h.to(low), net.wte.weight.to(low), y.flatten(),
                                  options=torch.nn.LinearCrossEntropyOptions())


def wrapped(checkpoint, forward):
    return lambda x: checkpoint(forward, x, use_reentrant=False)


def run(command):
    """The peak that a process tells; none if it fails, as for lack of memory."""
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r'(?:process|peak) ([0-9.]+)(?: MB, plan|$)', done.stdout.strip())
    if done.returncode != 0 or not found:
        print(' '.join(command), done.stderr[-300:], file=sys.stderr)
        return None
    return float(found.group(1))


def share(ours, theirs):
    return f'{ours / theirs:.2f}' if ours and theirs else '-'


def row(options, model, precision):
    batch = str(options.batch // (4 if model == 'gpt6' else 1))
    theirs = {way: run([sys.executable, __file__, '--peer', model, precision, way, batch])
              for way in PEER_WAYS}
    ours = {way: run([options.bench, '--run', model, way, precision, batch]) for way in WAYS}
    cells = [f'{model}, batch {batch}, {precision}'] + [
        f'{value:.0f}' if value else '-' for value in (*theirs.values(), *ours.values())]
    cells += [share(ours[way], theirs['plain']) for way in ('plain', 'narrow', 'selective')]
    cells.append(share(ours['full'], theirs['full']))
    return '| ' + ' | '.join(cells) + ' |'


def main():
    if len(sys.argv) == 6 and sys.argv[1] == '--peer':
        peer(*sys.argv[2:5], int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bench', required=True)
    parser.add_argument('--models', default='vit-b16,resnet18,gpt6')
    parser.add_argument('--precisions', default='bf16,fp32')
    parser.add_argument('--batch', type=int, default=64)
    options = parser.parse_args()
    print('| MB | PyTorch plain | PyTorch full | ' + ' | '.join(WAYS) +
          ' | plain / plain | narrow / plain | selective / plain | full / full |')
    print('|---' * (len(WAYS) + 7) + '|')
    for model in options.models.split(','):
        for precision in options.precisions.split(','):
            print(row(options, model, precision), flush=True)


if __name__ == '__main__':
    main()
