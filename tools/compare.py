"""compare.py: random cases in mptrain and in PyTorch: values, dtypes, shapes and every gradient.

    compare.py --library build/mptrain.so [--seed N] [--cases N] [--seconds N] [--only NAME,NAME]
               [--case N] [--threads N]

Each name of the tables gets --cases cases, or as many as --seconds allow, in turn. A line for each
disagreement ends in what repeats it. The last line is `N compared, M differ`."""
import argparse
import collections
import re
import sys
import time
import warnings

try:
    import torch

    import compare_layers  # noqa: F401: these enter their tables in the others'
    import compare_data  # noqa: F401
    from compare_library import Draw, Library, Refused, compare
    from compare_models import CHECKS
    from compare_ops import OPS
except ImportError as error:
    sys.exit(f'{error}: the comparison needs PyTorch 2; PYTHON= names an interpreter that has it')

# What differs for a reason: name of the table, what is said about the case and the difference.
KNOWN = [
    ('.*', r'\b0[,\])].*by PyTorch refused|by PyTorch refused.*\b0[,\]]',
     'tensors without elements are taken everywhere'),
    ('gelu.*|linear', r'special.*, not nan', 'far out GELU is x or 0, its slope 1 or 0'),
    ('.*cross_entropy|nll_loss', r'mean.*gradient.* 0\.0, not nan', 'the mean of nothing passes 0'),
    ('multi_margin_loss', r'mean .*[[(]0[],].* nan, not', 'the mean of nothing is NaN'),
    ('logsumexp', r'special.*gradient.* -?0\.0, not nan', 'the logarithm of nothing passes 0'),
    ('conv.*', r'special.*(nan, not|not nan)', 'zeros of the padding count, or not, as any others'),
    ('conv_transpose.*', r'refused: .*: no output', 'an output of size 0 is taken for a mistake'),
    ('transpose|sort|argsort|topk', r'refused: .*tensor of rank 0',
     'a tensor of rank 0 has no dimension that could be named'),
    ('std|var.*', r'expand.*gradient', 'the mean of equal numbers may be off by a rounding'),
    ('numpy', r'it holds nothing', 'an array without elements is taken for a mistake'),
    ('elu', r'special.*gradient.*nan, not', 'the slope at NaN is NaN'),
    ('hardtanh', r'special.*gradient.*not 0\.0', 'NaN passes, as in clamp'),
    ('group_norm', r'by PyTorch refused', 'groups of one element or none are taken'),
    ('batch_norm of statistics', r'special.*gradient.*nan, not',
     'a NaN reaches the gradients of its whole channel'),
]


def known(name, text):
    return next((reason for names, pattern, reason in KNOWN
                 if re.fullmatch(names, name) and re.search(pattern, text)), None)


def one(m, name, seed, index):
    """Lines about one case, and what it was."""
    draw = Draw(f'{seed} {name} {index}')
    if name in CHECKS:
        try:
            return list(CHECKS[name](m, draw)), ''
        except Refused as error:
            return [f'refused: {error}'], ''
    case = OPS[name](draw)
    text = ' '.join(filter(None, ['special' if draw.special else '', case.autocast or '', case.note,
                                  *map(str, case.inputs)]))
    faults = list(compare(m, case, draw))
    return faults, text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--library', default='build/mptrain.so')
    parser.add_argument('--header', default='src/mptrain.h')
    parser.add_argument('--cc', default='cc')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--cases', type=int, default=100)
    parser.add_argument('--case', type=int)
    parser.add_argument('--only', default='')
    parser.add_argument('--seconds', type=float, default=0)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--lines', type=int, default=5, help='of each name')
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter('ignore')
    m = Library(options.library, [*options.cc.split(), '-Isrc', options.header], options.threads)
    m.header_all_dims = -2 ** 31
    names = [*OPS, *CHECKS]
    if options.only:
        names = [name for name in names if name in options.only.split(',')]
        if not names:
            parser.error(f'no {options.only} among: {", ".join(names)}')
    compared, excused, differing = 0, collections.Counter(), collections.Counter()
    end = time.monotonic() + (options.seconds or 1e9)
    cases = [options.case] if options.case is not None else range(
        10 ** 9 if options.seconds else options.cases)
    for index in cases:
        for name in names:
            if time.monotonic() > end:
                break
            faults, text = one(m, name, options.seed, index)
            compared += 1
            unknown = []
            for fault in faults:
                reason = known(name, f'{text}: {fault}')
                if reason:
                    excused[reason] += 1
                else:
                    unknown.append(fault)
            if unknown:
                differing[name] += 1
                if differing[name] <= options.lines or options.case is not None:
                    print(f'{name}: {text}: {"; ".join(unknown)} '
                          f'[--seed {options.seed} --only "{name}" --case {index}]', flush=True)
        else:
            continue
        break
    for reason, count in excused.items():
        print(f'{count} times: {reason}')
    for name, count in differing.most_common():
        print(f'{name}: {count} differ')
    print(f'{compared} compared, {sum(differing.values())} differ')
    return 1 if differing else 0


if __name__ == '__main__':
    sys.exit(main())
