"""compare_models.py: random nets against PyTorch's, and ways that lead to the same bits against one
another."""
import copy
import math
import re

import torch
import torch.nn.functional as F
from torch import nn

from compare_library import Refused

CHECKS = {}


def check(name):
    """Enters a generator of what is wrong with a case."""
    def enter(function):
        CHECKS[name] = function
        return function
    return enter


# ==== Nets =====================================================================================

class SelfAttention(nn.MultiheadAttention):
    causal = False

    def forward(self, x):
        length = x.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        return super().forward(x, x, x, need_weights=False, attn_mask=mask)[0]


ACTIVATIONS = [('relu', (), nn.ReLU), ('gelu', (), nn.GELU), ('tanh', (), nn.Tanh),
               ('sigmoid', (), nn.Sigmoid), ('silu', (), nn.SiLU),
               ('softplus', (1, 20), nn.Softplus), ('gelu_tanh', (), lambda: nn.GELU('tanh')),
               ('elu', (1,), nn.ELU), ('leaky_relu', (0.01,), nn.LeakyReLU),
               ('hardtanh', (-1, 1), nn.Hardtanh)]


def activation(draw, shape):
    name, given, theirs = draw.choice(*ACTIVATIONS)
    return lambda m: getattr(m, 'nn_' + name)(*given), theirs(), shape


def linear(draw, shape):
    out = min(draw.edge(), 260) if draw.large else draw.random.randint(2, 20)
    bias = draw.chance(0.7)
    name = 'nn_linear' if bias else 'nn_linear_no_bias'
    return lambda m: getattr(m, name)(shape[-1], out), nn.Linear(shape[-1], out, bias), (
        *shape[:-1], out)


def layer_norm(draw, shape):
    sizes = shape[-draw.random.randint(1, len(shape) - 1):]
    if math.prod(sizes) < 4:
        return activation(draw, shape)
    weight, bias = draw.chance(0.8), draw.chance(0.8)
    if draw.chance(0.4):
        return (lambda m: m.nn_rms_norm(sizes, m.norm_config(weight=weight)),
                nn.RMSNorm(sizes, 1e-5, weight), shape)
    bias &= weight
    return (lambda m: m.nn_layer_norm(sizes, m.norm_config(weight=weight, bias=bias)),
            nn.LayerNorm(sizes, 1e-5, weight, bias), shape)


def batch_norm(draw, shape):
    name = 'nn_batch_norm2d' if len(shape) == 4 else 'nn_batch_norm1d'
    momentum, track = draw.choice(0.1, 0.5, None), draw.chance(0.8)
    kind = nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d
    return (lambda m: getattr(m, name)(shape[1], m.norm_config(
                momentum=-1 if momentum is None else momentum, track=track)),
            kind(shape[1], 1e-5, momentum, track_running_stats=track), shape)


def group_norm(draw, shape):
    groups = draw.choice(*[g for g in (1, 2, 3, 4) if shape[1] % g == 0])
    return (lambda m: m.nn_group_norm(groups, shape[1], None),
            nn.GroupNorm(groups, shape[1], 1e-5), shape)


def convolution(draw, shape):
    groups = draw.choice(*[g for g in (1, 1, 2, shape[1]) if shape[1] % g == 0])
    out = groups * draw.random.randint(1, max(1, (60 if draw.large else 12) // groups))
    kernel = tuple(draw.random.randint(1, min(3, size)) for size in shape[2:])
    stride, padding = draw.choice((1, 1), (1, 1), (2, 1), (2, 2)), tuple(k // 2 for k in kernel)
    bias = draw.chance(0.6)
    theirs = nn.Conv2d(shape[1], out, kernel, stride, padding, groups=groups, bias=bias)
    return (lambda m: m.nn_conv2d(shape[1], out, *kernel, m.conv_config(
        stride=stride, padding=padding, groups=groups, bias=bias)), theirs, sized(theirs, shape))


def transposed_convolution(draw, shape):
    if shape[2] * shape[3] > (600 if draw.large else 100):
        return convolution(draw, shape)
    out, kernel = draw.random.randint(1, 8), (draw.random.randint(1, 3), draw.random.randint(1, 3))
    theirs = nn.ConvTranspose2d(shape[1], out, kernel, 2)
    return (lambda m: m.nn_conv_transpose2d(shape[1], out, *kernel, m.conv_config(stride=(2, 2))),
            theirs, sized(theirs, shape))


def pooling(draw, shape):
    if min(shape[2:]) < 3:
        return convolution(draw, shape)
    window, step = draw.random.randint(2, 3), draw.random.randint(1, 2)
    name = draw.choice('max', 'avg')
    theirs = {'max': nn.MaxPool2d, 'avg': nn.AvgPool2d}[name](window, step, 1)
    return (lambda m: getattr(m, f'nn_{name}_pool2d')(
        m.pool_config_make(window, step, 1)), theirs, sized(theirs, shape))


def upsample(draw, shape):
    if shape[2] * shape[3] > (600 if draw.large else 100):
        return pooling(draw, shape)
    nearest = draw.chance(0.5)
    theirs = nn.Upsample(scale_factor=2, mode='nearest' if nearest else 'bilinear')
    return (lambda m: m.nn_upsample((), 2, 0 if nearest else 1, False), theirs,
            sized(theirs, shape))


def attention(draw, shape):
    heads = draw.choice(*[h for h in (1, 2, 4) if shape[-1] % h == 0])
    causal, bias = draw.chance(0.5), draw.chance(0.8)
    theirs = SelfAttention(shape[-1], heads, bias=bias, batch_first=True)
    theirs.causal = causal
    return (lambda m: m.nn_multi_head_attention(shape[-1], heads, m.multi_head_config(
        causal=causal, bias=bias)), theirs, shape)


def sized(module, shape):
    with torch.no_grad():
        return tuple(module(torch.zeros(shape)).shape)


LAYERS = {2: [linear, linear, activation, layer_norm, batch_norm],
          3: [linear, activation, layer_norm, attention, attention],
          4: [convolution, convolution, activation, batch_norm, group_norm, transposed_convolution,
              pooling, upsample]}


# The least and the largest input of a net by its rank; the large ones are worth several threads.
SMALL = {2: ((4, 2), (12, 16)), 3: ((2, 2, 4), (4, 9, 15)), 4: ((3, 1, 4, 4), (5, 6, 10, 10))}
LARGE = {2: ((30, 60), (200, 300)), 3: ((3, 30, 32), (8, 90, 100)),
         4: ((8, 8, 16, 16), (16, 40, 33, 33))}


class Net:
    """The same layers on both sides with the same values of parameters."""

    def __init__(self, draw, rank=None, tied=True, dropout=0):
        rank = rank or draw.choice(2, 3, 4)
        low, high = LARGE[rank] if draw.large else SMALL[rank]
        self.shape = shape = tuple(map(draw.random.randint, low, high))
        if rank == 3:
            shape = self.shape = (*shape[:2], shape[2] // 4 * 4)
        ours, theirs = [], []
        for _ in range(draw.random.randint(1, 6)):
            if rank == 3 and shape[-1] % 2:
                layer = linear(draw, shape)
            else:
                layer = draw.choice(*LAYERS[rank])(draw, shape)
            times = 2 if tied and layer[2] == shape and draw.chance(0.1) else 1
            ours += [(layer[0], len(ours))] + [(None, len(ours))] * (times - 1)
            theirs += [layer[1]] * times
            shape = layer[2]
            if dropout and draw.chance(0.5):
                ours.append((lambda m: m.nn_dropout(dropout), len(ours)))
                theirs.append(nn.Dropout(dropout))
        if rank > 2:
            ours.append((lambda m: m.nn_flatten(), len(ours)))
            theirs.append(nn.Flatten())
            shape = (shape[0], math.prod(shape[1:]))
        ours.append((lambda m: m.nn_linear(shape[1], 3), len(ours)))
        theirs.append(nn.Linear(shape[1], 3))
        self.builders, self.theirs = ours, nn.Sequential(*theirs).double()
        generator = draw.torch
        for parameter in self.theirs.parameters():
            parameter.data = (parameter.data.float() + 0.1 * torch.randn(
                parameter.shape, generator=generator)).double()
        self.x = torch.randn(self.shape, generator=generator)
        self.y = torch.randint(3, (self.shape[0],), generator=generator)
        self.rank = rank

    def build(self, m, fp8=False, log_softmax=False):
        made = []
        for builder, index in self.builders:
            made.append(builder(m) if builder else made[index])
        if log_softmax:
            made.append(m.nn_log_softmax(-1))
        net = m.sequential_array(m.array(made, 'module'), len(made))
        if fp8:
            m.fp8(net, None)
        for name, parameter in self.theirs.named_parameters():
            m.write_tensor(m.parameter(net, name), parameter.float())
        return net

    def __str__(self):
        return f'{list(self.shape)} {self.theirs}'.replace('\n', '')


def gradients(m, net, theirs):
    """Of each of their parameters ours, or None."""
    handles = {name: m.parameter(net, name) for name, _ in theirs.named_parameters()}
    return {name: m.torch(m.grad(handle)).double() if m.has_grad(handle) else None
            for name, handle in handles.items()}


def far(got, want, bound, least=1e-4):
    """Whether two tensors are further apart than so much of their size."""
    if got.shape != want.shape:
        return True
    return not float((got.double() - want).norm()) <= bound * float(want.norm()) + least * bound * (
        want.numel() ** 0.5)


def first(values):
    return values.flatten()[:4].tolist()


def forward_backward(m, net, given, autocast=None, channels_last=False, times=1, recompute=False,
                     nested=None):
    """Output and gradients of the parameters and of the input, in a step of its own."""
    m.step_begin()
    x = m.tensor(given.x)
    m.requires_grad(x, True)
    for _ in range(times):
        value = m.to_channels_last(x) if channels_last else x
        if autocast:
            m.autocast_begin(autocast)
        if nested:
            m.autocast_begin(nested)
        if recompute:
            m.recompute_begin()
        out = m.forward(net, value)
        if recompute:
            m.recompute_end()
        if nested:
            m.autocast_end()
        loss = m.cross_entropy(out, m.tensor(given.y), None)
        if autocast:
            m.autocast_end()
        m.backward(loss)
    result = m.torch(out), m.torch(m.grad(x)), gradients(m, net, given.theirs)
    for name in result[2]:
        m.clear_grad(m.parameter(net, name))
    m.step_end()
    return result


def their_gradients(given, times=1, dtype=torch.float64):
    given.theirs.zero_grad()
    x = given.x.to(dtype).requires_grad_()
    for _ in range(times):
        out = given.theirs(x)
        F.cross_entropy(out, given.y).backward()
    return out.detach(), x.grad, {name: p.grad for name, p in given.theirs.named_parameters()}


def scale_of(grads):
    return max((float(g.abs().max()) for g in grads.values() if g is not None and g.numel()),
               default=0.0)


def no_worse(got, theirs, want):
    """Whether we are at most twice as far from the truth as PyTorch is in the same precision: there
    are nets, as several attentions in a row whose scores are large, that none can follow."""
    error = (got.double() - want).norm()
    return bool(error <= 2 * (theirs.double() - want).norm()) or not theirs.isfinite().all()


def against(given, ours, theirs, bound, times=1):
    """What is further from the truth than the bound, and than PyTorch in fp32 leaves it."""
    size = max(scale_of(theirs[2]), 1e-3)
    rows = [('output', ours[0], theirs[0], 1e-4),
            ('gradient of the input', ours[1], theirs[1], size)]
    rows += [(f'gradient of {name}', ours[2][name], want, size) for name, want in theirs[2].items()]
    outside = [row for row in rows if row[1] is None or far(row[1], row[2], bound, row[3])]
    if not outside:
        return
    single = copy.copy(given)
    single.theirs = copy.deepcopy(given.theirs).float()
    out, x_grad, grads = their_gradients(single, times, torch.float32)
    peers = {'output': out, 'gradient of the input': x_grad,
             **{f'gradient of {name}': value for name, value in grads.items()}}
    for what, got, want, _ in outside:
        if got is None or not no_worse(got, peers[what], want):
            yield f'{given}: {what}: {first(got) if got is not None else None}, not {first(want)}'


def same_bits(given, what, a, b):
    """Both outputs and all gradients."""
    rows = [('output', a[0], b[0]), ('gradient of the input', a[1], b[1])]
    rows += [(f'gradient of {name}', a[2][name], b[2][name]) for name in a[2]]
    for name, one, other in rows:
        if (one is None) != (other is None) or (one is not None and not torch.equal(
                one.nan_to_num(), other.nan_to_num())):
            yield f'{given}: {what}: {name}'
            return


@check('net')
def _(m, draw):
    given = Net(draw)
    net = given.build(m)
    times = draw.choice(1, 1, 2, 3)
    ours = forward_backward(m, net, given, channels_last=given.rank == 4 and draw.chance(0.5),
                            times=times)
    yield from against(given, ours, their_gradients(given, times), 2e-3, times)
    for name, buffer in given.theirs.named_buffers():
        got = m.torch(m.buffer(net, name))
        if far(got, buffer.double(), 2e-3):
            yield f'{given}: buffer {name}: {got.tolist()}, not {buffer.tolist()}'
    m.eval(net), given.theirs.eval()
    with torch.no_grad():
        want = given.theirs(given.x.double())
    m.inference_begin()
    got = m.torch(m.forward(net, m.tensor(given.x)))
    m.inference_end()
    if far(got, want, 2e-3):
        yield f'{given}: in evaluation {first(got)}, not {first(want)}'
    m.module_destroy(net)


def their_autocast(given, low):
    """What PyTorch's own autocast makes of the net, from weights and inputs of fp32."""
    theirs = copy.deepcopy(given.theirs).float()
    theirs.zero_grad()
    with torch.autocast('cpu', {'f16': torch.float16, 'bf16': torch.bfloat16}[low]):
        out = theirs(given.x.float())
        loss = F.cross_entropy(out.float(), given.y)
    loss.backward()
    return out.detach(), {name: p.grad for name, p in theirs.named_parameters()}


@check('net in autocast')
def _(m, draw):
    """Loose: roundings of a deep net add up. Nested regions that switch casting off are exact."""
    given, low = Net(draw), draw.choice('f16', 'bf16')
    net = given.build(m)
    ours = forward_backward(m, net, given, low, given.rank == 4 and draw.chance(0.5))
    want = their_gradients(given)
    outside = [name for name, value in want[2].items() if ours[2][name] is None or far(
        ours[2][name], value, 1, scale_of(want[2]))]
    if outside or far(ours[0], want[0], 0.3):
        out, grads = their_autocast(given, low)
        if not no_worse(ours[0], out, want[0]):
            yield f'{low} {given}: output {first(ours[0])}, not {first(want[0])}, where PyTorch ' \
                  f'in {low} has {first(out)}'
        for name in outside:
            if ours[2][name] is None or not no_worse(ours[2][name], grads[name], want[2][name]):
                yield f'{low} {given}: gradient of {name}'
    ours = forward_backward(m, net, given, low, nested='f32')
    given.theirs.train()
    yield from against(given, ours, their_gradients(given), 2e-3)
    m.module_destroy(net)


@check('bits')
def _(m, draw):
    """Ways that lead to the same bits: computing activations again, capturing, inference."""
    given, low = Net(draw), draw.choice(None, 'f16', 'bf16')
    net, last = given.build(m), given.rank == 4 and draw.chance(0.5)
    plain = forward_backward(m, net, given, low, last)
    yield from same_bits(given, f'{low} again', plain, forward_backward(m, net, given, low, last))
    yield from same_bits(given, f'{low} recomputed', plain,
                         forward_backward(m, net, given, low, last, recompute=True))
    m.eval(net)
    m.step_begin()
    values = []
    for begin, end in (('no_grad_begin', 'no_grad_end'), ('inference_begin', 'inference_end'),
                       (None, None)):
        if begin:
            getattr(m, begin)()
        if low:
            m.autocast_begin(low)
        x = m.tensor(given.x)
        values.append(m.torch(m.forward(net, m.to_channels_last(x) if last else x)))
        if low:
            m.autocast_end()
        if end:
            getattr(m, end)()
    m.step_end()
    # Where backward will need it, GELU's input is stored, and so rounded, before GELU.
    rounded = low and 'GELU' in str(given)
    if not torch.equal(values[0].nan_to_num(), values[1].nan_to_num()) or not rounded and (
            not torch.equal(values[0].nan_to_num(), values[2].nan_to_num())):
        yield f'{given}: {low}: evaluation differs between modes'
    if given.rank == 4:
        m.fuse(net, m.tensor(given.x), None, 0)
        m.inference_begin()
        fused = m.torch(m.forward(net, m.tensor(given.x)))
        m.inference_end()
        m.eval(net), given.theirs.eval()
        copy_buffers(m, net, given.theirs)
        with torch.no_grad():
            want = given.theirs(given.x.double())
        if far(fused, want, 2e-3):
            yield f'{given}: fused: {first(fused)}, not {first(want)}'
        m.unfuse(net)
    m.module_destroy(net)


def copy_buffers(m, net, theirs):
    for name, buffer in theirs.named_buffers():
        buffer.copy_(m.torch(m.buffer(net, name)))


# ==== Programs =================================================================================

# What makes a new value of two others, here and there.
MAKES = {
    'add': (lambda m, a, b: m.add(a, b), lambda a, b: a + b),
    'sub': (lambda m, a, b: m.sub(a, b), lambda a, b: a - b),
    'mul': (lambda m, a, b: m.mul(a, b), lambda a, b: a * b),
    'matmul': (lambda m, a, b: m.matmul(a, b), lambda a, b: a @ b),
    'tanh': (lambda m, a, b: m.tanh(a), lambda a, b: a.tanh()),
    'relu': (lambda m, a, b: m.relu(a), lambda a, b: a.relu()),
    'sigmoid': (lambda m, a, b: m.sigmoid(a), lambda a, b: a.sigmoid()),
    'gelu': (lambda m, a, b: m.gelu(a), lambda a, b: F.gelu(a)),
    'softmax': (lambda m, a, b: m.softmax(a, -1), lambda a, b: a.softmax(-1)),
    'maximum': (lambda m, a, b: m.maximum(a, b), torch.maximum),
    'half': (lambda m, a, b: m.mul_scalar(a, 0.5), lambda a, b: a * 0.5),
    'rows': (lambda m, a, b: m.expand(m.mean(a, 0, True), (3, 3)),
             lambda a, b: a.mean(0, True).expand(3, 3)),
    'cat': (lambda m, a, b: m.slice(m.cat(m.array([a, b]), 2, 0), 0, 0, 6, 2),
            lambda a, b: torch.cat([a, b])[::2]),
    'norm': (lambda m, a, b: m.layer_norm(a, 1, None, None, 1e-5),
             lambda a, b: F.layer_norm(a, (3,))),
    'clone': (lambda m, a, b: m.clone(a), lambda a, b: a.clone()),
    'detach': (lambda m, a, b: m.detach(a), lambda a, b: a.detach()),
    'transpose': (lambda m, a, b: m.transpose(a, 0, 1), lambda a, b: a.transpose(0, 1)),
}
CHANGES = {
    'relu_': (lambda m, a, b: m.relu_(a), lambda a, b: a.relu_()),
    'add_': (lambda m, a, b: m.add_(a, b), lambda a, b: a.add_(b)),
    'mul_': (lambda m, a, b: m.mul_(a, b), lambda a, b: a.mul_(b)),
    'add_scalar_': (lambda m, a, b: m.add_scalar_(a, 0.3), lambda a, b: a.add_(0.3)),
    'mul_scalar_': (lambda m, a, b: m.mul_scalar_(a, -0.7), lambda a, b: a.mul_(-0.7)),
    'copy_': (lambda m, a, b: m.copy_(a, b), lambda a, b: a.copy_(b)),
}


def random_program(draw):
    lines, count = [], 2
    for _ in range(draw.random.randint(3, 14)):
        a, b = draw.random.randrange(count), draw.random.randrange(count)
        if draw.chance(0.3) and a > 1:
            lines.append((draw.choice(*CHANGES), a, b))
        else:
            lines.append((draw.choice(*MAKES), a, b))
            count += 1
    return lines


def their_program(lines, starts, grad, refusal, new=False):
    """new: what changes in place becomes a new value. None: no reference for the program."""
    values = [value.double().requires_grad_(grad) for value in starts]
    try:
        for name, a, b in lines:
            if name not in CHANGES:
                values.append(MAKES[name][1](values[a], values[b]))
            elif not new:
                CHANGES[name][1](values[a], values[b])
            elif name == 'copy_':
                values[a] = values[b] * 1
            else:
                values[a] = CHANGES[name][1](values[a].clone(), values[b])
        leaves = values[:2]
        if grad:
            sum(value.sum() for value in values).backward()
        return leaves + values[2:]
    except RuntimeError:
        # PyTorch refuses x *= x, for example, and histories that copy_ has ended.
        views = any(name in ('transpose', 'detach') for name, _, _ in lines)
        return None if refusal or new or views else their_program(lines, starts, grad, None, True)


@check('program')
def _(m, draw):
    """Values that are used often, changed in place, seen through views, with or without history.
    Here more is refused than by PyTorch; but what is not refused is right."""
    lines, grad = random_program(draw), draw.chance(0.7)
    starts = [torch.randn(3, 3, generator=draw.torch) for _ in range(2)]
    text = f'{lines} grad {grad}'
    mine = [m.tensor(value) for value in starts]
    if grad:
        [m.requires_grad(value, True) for value in mine]
    refusal = None
    m.step_begin()
    try:
        for name, a, b in lines:
            if name in CHANGES:
                CHANGES[name][0](m, mine[a], mine[b])
            else:
                mine.append(MAKES[name][0](m, mine[a], mine[b]))
        values, total = [m.torch(value) for value in mine], m.sum(mine[-1], -2 ** 31, False)
        for value in mine[:-1]:
            total = m.add(total, m.sum(value, -2 ** 31, False))
        if grad:
            m.backward(total)
            grads = [m.torch(m.grad(mine[i])) if m.has_grad(mine[i]) else torch.zeros(3, 3)
                     for i in range(2)]
        m.step_end()
    except Refused as error:
        refusal = str(error)
    his = their_program(lines, starts, grad, refusal)
    if his is None:
        return
    if refusal:
        if not re.search('in place|expanded|memory|history', refusal):
            yield f'{text}: refused: {refusal}'
        return
    for i, (got, want) in enumerate(zip(values, his)):
        if far(got, want.detach(), 1e-4, 1):
            yield f'{text}: value {i}: {first(got)}, not {first(want)}'
            return
    for i in range(2 if grad else 0):
        if far(grads[i], his[i].grad, 1e-3, 1):
            yield f'{text}: gradient {i}: {first(grads[i])}, not {first(his[i].grad)}'


# ==== A language model ===========================================================================

@check('language')
def _(m, draw):
    """An embedding that is the head's weight, too, and attention to itself or to something else."""
    batch, length, seen = draw.random.randint(1, 3), draw.random.randint(1, 9), draw.random.randint(
        1, 9)
    width, heads, count = draw.choice(4, 8, 12), draw.choice(1, 2, 4), draw.random.randint(2, 30)
    if draw.large:
        length, seen, width, count = 60 + length, 60 + seen, 16 * width, 40 * count
    pad, cross, causal = draw.choice(-1, 0), draw.chance(0.5), draw.chance(0.5)
    masked, fused = draw.chance(0.5), draw.chance(0.5)
    parts = {'emb': nn.Embedding(count, width, None if pad < 0 else pad),
             'norm': nn.LayerNorm(width),
             'attn': nn.MultiheadAttention(width, heads, batch_first=True)}
    theirs = nn.ModuleDict(parts).double()
    for parameter in theirs.parameters():
        parameter.data = (0.3 * torch.randn(parameter.shape, generator=draw.torch)).double()
    net = m.nn_list_array(m.array([m.nn_embedding(count, width, pad),
                                   m.nn_layer_norm((width,), None),
                                   m.nn_multi_head_attention(width, heads, m.multi_head_config(
                                       causal=causal))], 'module'), 3)
    names = {'emb': '0', 'norm': '1', 'attn': '2'}
    paths = {name: names[name.split('.')[0]] + name[name.index('.'):]
             for name, _ in theirs.named_parameters()}
    for name, parameter in theirs.named_parameters():
        m.write_tensor(m.parameter(net, paths[name]), parameter.float())
    ids = torch.randint(count, (batch, length), generator=draw.torch)
    aims = torch.randint(count, (batch, length), generator=draw.torch)
    other = torch.randn(batch, seen, width, generator=draw.torch)
    keys = seen if cross else length
    mask = (torch.rand(batch, 1, 1, keys, generator=draw.torch) < 0.7) if masked else None
    if masked:
        mask[..., 0] = True  # PyTorch gives NaN to what sees nothing
    m.step_begin()
    emb, norm, attn = (m.child(net, names[name]) for name in parts)
    table = m.parameter(net, '0.weight')
    h = m.forward(emb, m.tensor(ids))
    leaf = m.tensor(other)
    m.requires_grad(leaf, True)
    n = m.forward(norm, h)
    k = leaf if cross else n
    given = [n, k, k] + ([m.tensor(mask)] if masked else [])
    out = m.array([m.null()])
    m.forward_n(attn, m.array(given), len(given), out, 1)
    h = m.add(h, out[0])
    aim = m.tensor(aims)
    if fused:
        loss = m.linear_cross_entropy(h, table, aim, None)
    else:
        loss = m.cross_entropy(m.reshape(m.linear(h, table, None, 0), (-1, count)),
                               m.reshape(aim, (-1,)), None)
    m.backward(loss)
    got = m.item(loss)
    grads = {name: m.torch(m.grad(m.parameter(net, path))) for name, path in paths.items()}
    leaf_grad = m.torch(m.grad(leaf)) if cross else None
    m.step_end()
    his = other.double().requires_grad_()
    h = parts['emb'](ids)
    n = parts['norm'](h)
    k = his if cross else n
    hidden = torch.ones(length, keys, dtype=torch.bool).triu(1) if causal else None
    h = h + parts['attn'](n, k, k, need_weights=False, attn_mask=hidden,
                          key_padding_mask=~mask[:, 0, 0] if masked else None)[0]
    want = F.cross_entropy((h @ parts['emb'].weight.T).reshape(-1, count), aims.reshape(-1))
    want.backward()
    text = (f'{batch} {length} {seen} {width} {heads} {count} pad {pad} cross {cross} '
            f'causal {causal} masked {masked} fused {fused}')
    if not abs(got - float(want)) <= 1e-4 * abs(float(want)):
        yield f'{text}: loss {got}, not {float(want)}'
    size = scale_of({name: p.grad for name, p in theirs.named_parameters()})
    for name, parameter in theirs.named_parameters():
        if far(grads[name], parameter.grad, 1e-3, size):
            yield f'{text}: gradient of {name}'
    if cross and far(leaf_grad, his.grad, 1e-3, size):
        yield f'{text}: gradient of what is seen'
    m.module_destroy(net)
