"""compare_data.py: fp8 layers against their definition, image transforms against plain arithmetic,
and trainings that ask the allocator for nothing."""
import ctypes
import math
import os
import tempfile

import numpy
import torch
import torch.nn.functional as F

from compare_library import DTYPES
from compare_models import Net, check, far
from compare_training import OPTIMIZERS, Schedule, Training, training_values

# ==== fp8 ========================================================================================

def quantised(x, scale, kind):
    """What is finite saturates."""
    limit = torch.finfo(DTYPES[kind]).max
    y = (x * scale).clamp(-limit, limit)
    y = torch.where(x.isfinite(), y, x * scale)
    return y.float().to(DTYPES[kind]).double() / scale


class Fp8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, layer):
        layer.most[0] = max(layer.most[0], float(x.abs().max()))
        layer.most[1] = max(layer.most[1], float(weight.abs().max()))
        x, weight = (quantised(v, s, 'f8e4m3') for v, s in zip((x, weight), layer.scale))
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        layer = ctx.layer
        layer.most[2] = max(layer.most[2], float(grad.abs().max()))
        slope = quantised(grad, layer.scale[2], 'f8e5m2')
        return slope @ weight, slope.T @ x, grad.sum(0), None


class Fp8Layer:
    """Delayed scaling of one layer."""

    def __init__(self, history, margin):
        self.history, self.margin = [[0.0] * history for _ in range(3)], margin
        self.scale, self.most = [1.0] * 3, [0.0] * 3

    def settle(self):
        for row, limit in enumerate((448, 448, 57344)):
            self.history[row] = [self.most[row], *self.history[row][:-1]]
            self.most[row] = 0.0
            most = max(self.history[row])
            if most > 0:
                self.scale[row] = 2.0 ** (math.floor(math.log2(limit / most)) - self.margin)

    def state(self):
        return torch.tensor([[s, m, *h] for s, m, h in zip(self.scale, self.most, self.history)])


@check('fp8')
def _(m, draw):
    history, margin = draw.choice(1, 2, 4), draw.choice(0, 0, 2)
    rows, inner, out = (draw.edge() % 70 + 1 if draw.large else draw.random.randint(1, 9)
                        for _ in range(3))
    net = m.nn_linear(inner, out)
    m.fp8(net, m.make('fp8_config', history=history, margin=margin))
    layer, text = Fp8Layer(history, margin), f'[{rows}, {inner}] -> {out} {history} {margin}'
    weight, bias = (torch.randn(shape, generator=draw.torch) * draw.choice(0.01, 1, 300)
                    for shape in ((out, inner), (out,)))
    m.write_tensor(m.parameter(net, 'weight'), weight)
    m.write_tensor(m.parameter(net, 'bias'), bias)
    for step in range(5):
        x = torch.randn(rows, inner, generator=draw.torch) * draw.choice(1e-6, 1, 1e3)
        grad = torch.randn(rows, out, generator=draw.torch) * draw.choice(1e-9, 1, 1e6)
        m.step_begin()
        leaf = m.tensor(x)
        m.requires_grad(leaf, True)
        y = m.forward(net, leaf)
        m.backward_from(y, m.tensor(grad), False)
        got = [m.torch(v) for v in (y, m.grad(leaf), m.grad(m.parameter(net, 'weight')),
                                    m.grad(m.parameter(net, 'bias')))]
        for name in ('weight', 'bias'):
            m.clear_grad(m.parameter(net, name))
        m.step_end()
        leaves = [v.double().requires_grad_() for v in (x, weight, bias)]
        want = Fp8Linear.apply(*leaves, layer)
        want.backward(grad.double())
        layer.settle()
        for name, a, b in zip(('output', 'gradient of x', 'of weight', 'of bias'), got,
                              (want.detach(), *(leaf.grad for leaf in leaves))):
            # Gradients of a bias may cancel: they have the roundings of what was added.
            least = float(grad.abs().max()) if name == 'of bias' else 1e-20
            if far(a, b, 1e-5, least):
                yield f'{text}: step {step}: {name}: {a.flatten()[:3]}, not {b.flatten()[:3]}'
        state = m.torch(m.buffer(net, 'fp8_state'))
        if not torch.equal(state, layer.state()):
            yield f'{text}: step {step}: state {state.tolist()}, not {layer.state().tolist()}'
            break
    m.module_destroy(net)


@check('cast_fp8')
def _(m, draw):
    kind, dtype, saturate = draw.choice('f8e4m3', 'f8e5m2'), draw.dtype(), draw.chance(0.5)
    x = draw.values(draw.shape(0, 3), dtype, 'any') * draw.choice(1e-3, 1, 100, 1e4)
    limit = torch.finfo(DTYPES[kind]).max
    wide = x.float()
    if saturate:
        wide = torch.where(wide.isnan(), wide, wide.clamp(-limit, limit))
        if not x.isinf().any():  # what becomes of infinity, mpt_cast_fp8 says
            pass
    got = m.torch(m.cast_fp8(m.tensor(x), kind, saturate)).float()
    want = wide.to(DTYPES[kind]).float()
    if not saturate and kind == 'f8e4m3':  # PyTorch's cast saturates, ours has NaN beyond 464
        want = torch.where(wide.abs() > 464, math.nan, want)
    wrong = ~((got == want) | (got.isnan() & want.isnan()))
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        yield f'{kind} {dtype} saturate {saturate}: {float(x[at])} as {float(got[at])}, not ' \
              f'{float(want[at])}'


# ==== Image transforms ===========================================================================

def weights(size, to, antialias):
    """[to, size]: triangles around the centers, as wide as an output where that is wider."""
    ratio = size / to
    centers = ratio * (torch.arange(to, dtype=torch.float64) + 0.5)
    distance = (torch.arange(size) + 0.5 - centers[:, None]).abs()
    w = (1 - distance / (ratio if antialias and ratio > 1 else 1)).clamp(min=0)
    return w / w.sum(1, keepdim=True)


def resized(x, height, width, antialias):
    return weights(x.shape[1], height, antialias) @ x @ weights(x.shape[2], width, antialias).T


def center_cropped(x, height, width):
    """As torchvision: zeros where the picture is smaller, halves to even."""
    h, w = x.shape[1:]
    x = F.pad(x, (max(width - w, 0) // 2, (max(width - w, 0) + 1) // 2,
                  max(height - h, 0) // 2, (max(height - h, 0) + 1) // 2))
    h, w = x.shape[1:]
    top, left = round((h - height) / 2.0), round((w - width) / 2.0)
    return x[:, top:top + height, left:left + width]


def draw_step(draw, m, x):
    """A step of the library, that of PyTorch, and what it is."""
    kind = draw.choice('RESIZE', 'RESIZE', 'SHORTER', 'CENTER_CROP', 'RANDOM_FLIP', 'RANDOM_CROP',
                       'NORMALIZE')
    height, width = draw.random.randint(1, 24), draw.random.randint(1, 24)
    make = m.library.mpt_transform_default
    if kind in ('RESIZE', 'SHORTER'):
        antialias = draw.chance(0.5)
        h, w = x.shape[1:]
        if kind == 'SHORTER':
            side = height
            height, width = (side, side * w // h) if h <= w else (side * h // w, side)
        step = make(m.constant('RESIZE'), side if kind == 'SHORTER' else height,
                    0 if kind == 'SHORTER' else width)
        step.antialias = antialias
        return step, resized(x, height, width, antialias), f'{kind} {height} {width} {antialias}'
    if kind == 'CENTER_CROP':
        return (make(m.constant(kind), height, width), center_cropped(x, height, width),
                f'{kind} {height} {width}')
    if kind == 'RANDOM_FLIP':
        step, p = make(m.constant(kind), 0, 0), draw.choice(0, 1)
        step.p = p
        return step, x.flip(2) if p else x, f'{kind} {p}'
    if kind == 'RANDOM_CROP':  # the only place that there is
        padding = draw.random.randint(0, 3)
        step = make(m.constant(kind), x.shape[1] + 2 * padding, x.shape[2] + 2 * padding)
        step.padding = padding
        return step, F.pad(x, (padding,) * 4), f'{kind} {padding}'
    step = make(m.constant(kind), 0, 0)
    mean, deviation = [0.1, 0.2, 0.3, 0.4], [0.5, 2, 1, 0.25]
    step.mean, step.deviation = (ctypes.c_double * 4)(*mean), (ctypes.c_double * 4)(*deviation)
    shape = (-1, 1, 1)
    count = x.shape[0]
    return step, (x - torch.tensor(mean[:count]).double().view(shape)) / torch.tensor(
        deviation[:count]).double().view(shape), kind


@check('transforms')
def _(m, draw):
    channels, height, width = draw.choice(1, 3, 4), draw.random.randint(1, 40), draw.random.randint(
        1, 40)
    if draw.large:
        width += draw.choice(250, 500)
    u8 = draw.chance(0.5)
    picture = torch.rand(channels, height, width, generator=draw.torch)
    picture = (picture * 255).to(torch.uint8) if u8 else picture
    x, steps, text = picture.double() / (255 if u8 else 1), [], []
    for _ in range(draw.random.randint(1, 5)):
        step, x, what = draw_step(draw, m, x)
        steps.append(step), text.append(what)
        if min(x.shape) < 1 or max(x.shape) > 2000:
            return
    target = torch.zeros(1, dtype=torch.int64)
    data = m.memory_dataset(m.memory_dataset_config(
        count=1, dtype=m.kinds['u8' if u8 else 'f32'], shape=tuple(picture.shape),
        inputs=picture.data_ptr(), targets=target.data_ptr()))
    made = m.transformed(data, (m.header.types['mpt_transform'] * len(steps))(*steps), len(steps))
    shape = m.dataset_shape(made)
    text = f'{list(picture.shape)} u8 {u8} {text}'
    if tuple(shape.dim[:3]) != tuple(x.shape):
        yield f'{text}: {list(shape.dim[:3])}, not {list(x.shape)}'
    else:
        got = torch.empty(x.shape)
        m.sample(made, 0, got.data_ptr(), None)
        if not (got - x).abs().max() <= 2e-5:
            yield f'{text}: off by {float((got - x).abs().max())}'
    m.dataset_destroy(made)
    m.dataset_destroy(data)


# ==== Arrays =====================================================================================

NUMPY = {'f2': 'f16', 'f4': 'f32', 'f8': 'f64', 'u1': 'u8', 'b1': 'bool', 'i1': 'i32', 'i2': 'i32',
         'u2': 'i32', 'i4': 'i32', 'u4': 'i64', 'i8': 'i64', 'u8': 'i64'}


@check('numpy')
def _(m, draw):
    """What numpy.save and savez write."""
    kind, order, fortran = draw.choice(*NUMPY), draw.choice('<', '>'), draw.chance(0.4)
    array = draw.values(draw.shape(0, 4), 'f64', 'ties').clamp(0, 100).numpy().astype(order + kind)
    array = numpy.asfortranarray(array) if fortran else array
    packed = draw.choice(None, numpy.savez, numpy.savez_compressed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'a.npz' if packed else 'a.npy')
        if packed:
            packed(path, x=array, y=numpy.zeros(3))
        else:
            numpy.save(path, array)
        got = m.torch(m.numpy_tensor(path, 'x' if packed else None))
    want = torch.from_numpy(array.astype(array.dtype.newbyteorder('=')).astype(
        {'i32': 'i4', 'i64': 'i8'}.get(NUMPY[kind], kind)))
    if got.dtype != DTYPES[NUMPY[kind]] or not torch.equal(got, want):
        yield f'{order}{kind} {array.shape} fortran {fortran} {packed}: {got}, not {want}'


# ==== Tables =====================================================================================

def written(draw, value):
    """A number as text that means it."""
    text = draw.choice(repr(value), f'{value:.17e}', f'{value:+.3f}', f'{value:.0f}', f'{value:g}')
    blank = draw.choice('', '', ' ', '\t')
    return f'"{text}"' if draw.chance(0.2) else blank + text + blank, float(text)


def quoted(draw, text):
    if draw.chance(0.3) or any(c in text for c in ',"\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


@check('table')
def _(m, draw):
    """Columns of numbers and of texts; the last is a number."""
    rows, columns = draw.random.randint(1, 12), draw.random.randint(1, 4)
    words = draw.random.sample(['a', 'B', 'b c', 'x,y', 'say "no"', 'two\nlines', 'é', '10', '9',
                                '2.5'], 4)
    kinds = [draw.choice('number', 'number', 'text') for _ in range(columns)]
    end, lines, wanted, targets = draw.choice('\n', '\r\n'), [], [], []
    texts = {i: [draw.choice('a', *words) if j else 'a' for j in range(rows)]
             for i, kind in enumerate(kinds) if kind == 'text'}

    def order(word):
        try:
            return 0, float(word), b''
        except ValueError:
            return 1, 0.0, word.encode()
    for j in range(rows):
        fields, values = [], []
        for i, kind in enumerate(kinds):
            if kind == 'number':
                text, value = written(draw, draw.random.uniform(-1, 1) * 10 ** draw.random.randint(
                    -20, 20))
                values.append(value)
            else:
                text = quoted(draw, texts[i][j])
                values += [float(word == texts[i][j]) for word in sorted(set(texts[i]), key=order)]
            fields.append(text)
        text, value = written(draw, draw.random.uniform(-9, 9))
        lines.append(','.join([*fields, text]))
        wanted.append(values), targets.append(value)
    header = ','.join([f'c{i}' for i in range(columns)] + ['target'])
    text = end.join([header, *lines]) + draw.choice('', end)
    data = text.encode()
    table = m.csv_memory(data, len(data), None)
    names = [m.column_name(table, i) for i in range(len(wanted[0]))]
    loader = m.loader_create(table, m.loader_config(batch=rows))
    batch = m.make('batch')
    m.loader_next(loader, batch)
    got, target = m.torch(batch.x).double(), m.torch(batch.y).double().flatten()
    want, aim = torch.tensor(wanted).float().double(), torch.tensor(targets).float().double()
    if got.shape != want.shape or not torch.equal(got, want):
        yield f'{text!r}: {got.tolist()}, not {want.tolist()}'
    elif not torch.equal(target, aim):
        yield f'{text!r}: targets {target.tolist()}, not {aim.tolist()}'
    elif names != [f'c{i}'.encode() for i, kind in enumerate(kinds) for _ in range(
            1 if kind == 'number' else len(set(texts[i])))]:
        yield f'{text!r}: names {names}'
    m.loader_destroy(loader)
    m.dataset_destroy(table)


# ==== Fit ========================================================================================

@check('fit')
def _(m, draw):
    """mpt_fit against the loop that the manual says it is."""
    given, seed, epochs = Net(draw, dropout=draw.choice(0, 0.3)), draw.random.getrandbits(30), 3
    name, low = draw.choice(*OPTIMIZERS), draw.choice('f32', 'f16', 'bf16')
    options, clip = OPTIMIZERS[name][0](draw), draw.choice(0, 0.5)
    schedule, unit = Schedule(draw) if draw.chance(0.5) else None, draw.choice(0, 1)
    count, batch = draw.random.randint(3, 20), given.shape[0]
    x = torch.randn(count, *given.shape[1:], generator=draw.torch)
    y = torch.randint(3, (count,), generator=draw.torch)
    draws = {'batch': batch, 'shuffle': draw.chance(0.5), 'drop_last': True,
             'workers': draw.choice(0, 2), 'seed': draw.random.getrandbits(30)}
    if count < batch:
        return
    hashes = []
    for by_hand in (False, True):
        own = m.sibling(threads=2, seed=seed)
        net = given.build(own, log_softmax=True)
        optimizer = getattr(own, name)(net, getattr(own, name + '_config')(**options))
        own.error_if_nonfinite(optimizer, False)  # some draws diverge, and are to do so alike
        data = own.memory_dataset(own.memory_dataset_config(
            count=count, dtype=own.kinds['f32'], shape=tuple(x.shape[1:]), inputs=x.data_ptr(),
            targets=y.data_ptr()))
        loader = own.loader_create(data, own.loader_config(**draws))
        moving = schedule.ours(own, optimizer, unit) if schedule else None
        if by_hand:
            loop(own, net, optimizer, loader, moving, unit, low, clip, epochs)
        else:
            own.fit(net, optimizer, loader, own.fit_config(
                epochs=epochs, precision=own.kinds[low], clip_norm=clip, schedule=moving,
                stop_on_nan=False))
        hashes.append((own.module_hash(net), own.optimizer_hash(optimizer)))
        own.close()
    if hashes[0] != hashes[1]:
        yield f'{given} {name} {options} {low} clip {clip} {schedule} unit {unit} {draws} {count}'


def loop(m, net, optimizer, loader, schedule, unit, low, clip, epochs):
    scaler = m.grad_scaler(None) if low == 'f16' else None
    for _ in range(epochs):
        batch = m.make('batch')
        while m.loader_next(loader, batch):
            m.step_begin()
            m.autocast_begin(low)
            loss = m.nll_loss(m.forward(net, batch.x), batch.y, None)
            m.autocast_end()
            m.zero_grad(optimizer)
            m.backward(m.scale_loss(scaler, loss) if scaler else loss)
            if scaler:
                m.unscale(scaler, optimizer)
            if clip:
                m.clip_grad_norm(optimizer, clip)
            if scaler:
                m.scaler_step(scaler, optimizer)
                m.scaler_update(scaler)
            else:
                m.step(optimizer)
            m.step_end()
        if schedule and unit == 1:
            m.schedule_step(schedule)


# ==== Memory =====================================================================================

@check('allocations')
def _(m, draw):
    """After some steps the pool has what a step needs, and nothing more is allocated."""
    given = Net(draw, dropout=draw.choice(0, 0.3))
    values = training_values(draw, given)
    own = m.sibling(threads=2)
    run = Training(own, values, given)
    x, y = own.tensor(given.x), own.tensor(given.y)
    counts = []
    for _ in range(16):
        run.step(x, y)
        counts.append(own.memory().allocations)
    if counts[-1] != counts[7]:
        yield f'{given} {values}: allocations {counts}'
    own.close()
