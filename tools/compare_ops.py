"""compare_ops.py: single operations as tables: name, our call, PyTorch's call, what goes in."""
import math

import torch
import torch.nn.functional as F

from compare_library import Case, DTYPES, FLOATS, Input, VIEWS

OPS = {}


def op(name):
    """Enters a function that draws a case."""
    def enter(function):
        OPS[name] = function
        return function
    return enter


def autocast(draw):
    return draw.choice(None, None, 'f16', 'bf16')


# ==== Elementwise ==============================================================================

# name: PyTorch's function, dtype of the result, domain
UNARY = {
    'neg': (torch.neg, 'same', 'any'), 'exp': (torch.exp, 'fp32', 'any'),
    'log': (torch.log, 'fp32', 'positive'), 'sqrt': (torch.sqrt, 'same', 'positive'),
    'relu': (torch.relu, 'same', 'any'), 'gelu': (F.gelu, 'same', 'any'),
    'gelu_tanh': (lambda x: F.gelu(x, approximate='tanh'), 'same', 'any'),
    'tanh': (torch.tanh, 'same', 'any'), 'sigmoid': (torch.sigmoid, 'same', 'any'),
    'log1p': (torch.log1p, 'fp32', 'positive'), 'rsqrt': (torch.rsqrt, 'fp32', 'positive'),
    'abs': (torch.abs, 'same', 'any'), 'sign': (torch.sign, 'same', 'any'),
    'sin': (torch.sin, 'same', 'any'), 'cos': (torch.cos, 'same', 'any'),
    'silu': (F.silu, 'same', 'any'), 'isnan': (torch.isnan, 'bool', 'any'),
    'isinf': (torch.isinf, 'bool', 'any'), 'clone': (torch.clone, 'same', 'any'),
    'contiguous': (torch.Tensor.contiguous, 'same', 'any'),
    'logical_not': (torch.logical_not, 'bool', 'ties'),
}
# name: PyTorch's function, dtype, domain, the numbers that follow the tensor
SCALAR = {
    'add_scalar': (torch.add, 'same', 'any', [(0.5,), (-2,), (0,)]),
    'mul_scalar': (torch.mul, 'same', 'any', [(0.5,), (-2,), (0,), (3,)]),
    'pow_scalar': (torch.pow, 'fp32', 'positive', [(2,), (0.5,), (-1,), (3,), (0,), (1,), (2.5,),
                                                   (-0.5,)]),
    'clamp': (torch.clamp, 'same', 'any', [(-1, 1), (0, math.inf), (-math.inf, 0.5), (0.5, 0.5)]),
    'hardtanh': (F.hardtanh, 'same', 'any', [(-1, 1), (0, 6), (-0.5, 2)]),
    'leaky_relu': (F.leaky_relu, 'same', 'any', [(0.01,), (0.5,), (0,), (1.5,)]),
    'elu': (F.elu, 'same', 'any', [(1,), (0.5,), (2,)]),
    'softplus': (F.softplus, 'fp32', 'any', [(1, 20), (2, 5), (0.5, 1)]),
    'lt_scalar': (torch.lt, 'bool', 'ties', [(0,), (0.5,), (1,)]),
    'le_scalar': (torch.le, 'bool', 'ties', [(0,), (0.5,), (1,)]),
    'gt_scalar': (torch.gt, 'bool', 'ties', [(0,), (0.5,), (1,)]),
    'ge_scalar': (torch.ge, 'bool', 'ties', [(0,), (0.5,), (1,)]),
    'eq_scalar': (torch.eq, 'bool', 'ties', [(0,), (0.5,), (1,)]),
    'ne_scalar': (torch.ne, 'bool', 'ties', [(0,), (0.5,), (1,)]),
}
BINARY = {
    'add': (torch.add, 'same', 'any'), 'sub': (torch.sub, 'same', 'any'),
    'mul': (torch.mul, 'same', 'any'), 'div': (torch.div, 'same', 'positive'),
    'pow': (torch.pow, 'fp32', 'positive'), 'minimum': (torch.minimum, 'same', 'ties'),
    'maximum': (torch.maximum, 'same', 'ties'), 'lt': (torch.lt, 'bool', 'ties'),
    'le': (torch.le, 'bool', 'ties'), 'gt': (torch.gt, 'bool', 'ties'),
    'ge': (torch.ge, 'bool', 'ties'), 'ne': (torch.ne, 'bool', 'ties'),
    'equal': (torch.eq, 'bool', 'ties'), 'logical_and': (torch.logical_and, 'bool', 'ties'),
    'logical_or': (torch.logical_or, 'bool', 'ties'),
}


def unary(name, theirs, result, domain, given=((),)):
    def draw_case(draw):
        numbers = draw.choice(*given)
        return Case(lambda m, x: getattr(m, name)(x, *numbers), lambda x: theirs(x, *numbers),
                    [draw.input(draw.shape(0, 4), domain=domain, grad=result != 'bool')], result,
                    autocast=autocast(draw), note=str(numbers),
                    whole='elu' in name or name == 'tanh')
    OPS[name] = draw_case


def broadcast_shapes(draw, count):
    whole = draw.shape(0, 4)
    return [tuple(1 if draw.chance(0.25) else size for size in whole)[draw.random.randint(
        0, len(whole)) if draw.chance(0.3) else 0:] for _ in range(count)]


def binary(name, theirs, result, domain):
    def draw_case(draw):
        cast = autocast(draw)
        mixed = cast or draw.chance(0.05)
        first = draw.dtype()
        a, b = broadcast_shapes(draw, 2)
        second = draw.dtype() if mixed else first
        return Case(lambda m, a, b: getattr(m, name)(a, b), theirs,
                    [draw.input(a, first, domain, result != 'bool'),
                     draw.input(b, second, domain, result != 'bool')],
                    result, autocast=cast, whole=False,
                    # The gradient of an exponent adds up results, which are large.
                    flow=1000 if name == 'pow' else 4,
                    refused=first != second and not cast and not name.startswith('logical'))
    OPS[name] = draw_case


for key, row in UNARY.items():
    unary(key, *row)
for key, row in SCALAR.items():
    unary(key, *row)
for key, row in BINARY.items():
    binary(key, *row)


@op('where')
def _(draw):
    condition, a, b = broadcast_shapes(draw, 3)
    dtype = draw.dtype()
    mask = draw.indices(condition, 2).bool()
    return Case(lambda m, c, a, b: m.where(c, a, b), torch.where,
                [Input('bool', False, *draw.lay(mask)), draw.input(a, dtype), draw.input(b, dtype)],
                autocast=autocast(draw), whole=False)


@op('cast')
def _(draw):
    to = draw.choice('f32', 'f16', 'bf16', 'f64', 'i64', 'i32', 'bool')
    whole, grad = to in ('i64', 'i32'), to in FLOATS
    x = draw.input(draw.shape(), domain='ties' if whole else 'normal', grad=grad)
    return Case(lambda m, x: m.cast(x, to), lambda x: x.to(DTYPES[to]) if whole or to == 'bool'
                else x, [x], to, whole=False, note=to, grads=grad)


# ==== Reductions ===============================================================================

def over_all(function):
    """A function of one dimension, which takes None for all of them."""
    def call(x, dim, keep):
        if dim is not None:
            return function(x, dim, keep)
        value = function(x.flatten(), 0, False)
        return value.reshape((1,) * x.dim()) if keep else value
    return call


def norm(p):
    return lambda x, dim, keep: torch.linalg.vector_norm(x, p, dim, keep)


# name: PyTorch's function of one dimension, dtype, domain, our numbers before dim and after keep
REDUCTIONS = {
    'sum': (torch.sum, 'fp32', 'normal', (), ()), 'mean': (torch.mean, 'fp32', 'normal', (), ()),
    'max': (lambda *a: torch.max(*a)[0], 'same', 'ties', (), ()),
    'min': (lambda *a: torch.min(*a)[0], 'same', 'ties', (), ()),
    'argmax': (torch.argmax, 'i64', 'ties', (), ()),
    'argmin': (torch.argmin, 'i64', 'ties', (), ()),
    'prod': (torch.prod, 'fp32', 'ones', (), ()),
    'var': (lambda x, d, k: torch.var(x, d, correction=1, keepdim=k), 'same', 'normal', (), (1,)),
    'var 0': (lambda x, d, k: torch.var(x, d, correction=0, keepdim=k), 'same', 'normal', (), (0,)),
    'std': (lambda x, d, k: torch.std(x, d, correction=1, keepdim=k), 'same', 'normal', (), (1,)),
    'norm 1': (norm(1), 'fp32', 'normal', (1,), ()),
    'norm 2': (norm(2), 'fp32', 'normal', (2,), ()),
    'norm inf': (norm(math.inf), 'fp32', 'normal', (math.inf,), ()),
    'logsumexp': (torch.logsumexp, 'fp32', 'normal', (), ()),
}


def reduction(name, theirs, result, domain, before, after):
    def draw_case(draw):
        shape = draw.shape(0, 4)
        dim = None if draw.chance(0.25) else draw.dim(len(shape))
        keep = draw.chance(0.5)
        many = math.prod(shape) if dim is None else shape[dim] if shape else 1
        return Case(lambda m, x: getattr(m, name.split()[0])(
                        x, *before, m.header_all_dims if dim is None else dim, keep, *after),
                    lambda x: over_all(theirs)(x, dim, keep),
                    [draw.input(shape, domain=domain, grad=result != 'i64')], result,
                    autocast=autocast(draw), flow=64 if name[:3] in ('var', 'std') else 4,
                    k=max(4, math.sqrt(many) / 2),  # a rounding for each, of either sign
                    note=f'dim {dim} keep {keep}')
    OPS[name] = draw_case


for key, row in REDUCTIONS.items():
    reduction(key, *row)

# Along one dimension, of the same shape: name, PyTorch's function, dtype.
for key, along, kind in (('softmax', torch.softmax, 'fp32'), ('cumsum', torch.cumsum, 'fp32'),
                         ('log_softmax', torch.log_softmax, 'fp32')):
    @op(key)
    def _(draw, key=key, along=along, kind=kind):
        shape = draw.shape(0 if key == 'cumsum' else 1, 4)
        dim = draw.dim(len(shape))
        return Case(lambda m, x: getattr(m, key)(x, dim), lambda x: along(x, dim),
                    [draw.input(shape)], kind, autocast=autocast(draw), note=f'dim {dim}')


# ==== Shapes, views, indices ===================================================================

@op('views')
def _(draw):
    """Chains of views, longer than those of every input."""
    x = draw.input(draw.shape(1, 4))
    value = Input(x.dtype, False, x.base, x.views).theirs(torch.float64)[1].detach()
    for _ in range(draw.random.randint(1, 5)):
        given = draw_view(draw, value)
        if given:
            x.views.append(given)
            value = Input(x.dtype, False, x.base, x.views).theirs(torch.float64)[1].detach()
    return Case(lambda m, x: m.mul_scalar(x, 2), lambda x: x * 2, [x], whole=False)


def draw_view(draw, x):
    kind, rank = draw.choice('transpose', 'permute', 'slice', 'expand', 'reshape'), x.dim()
    if kind == 'reshape':
        return 'reshape', draw.choice((x.numel(),), (1, x.numel()), (x.numel(), 1),
                                      tuple(reversed(x.shape)))
    if kind == 'expand' and rank < 6:
        return 'expand', (draw.size(1, 3), *(draw.size(1, 3) if size == 1 else size
                                            for size in x.shape))
    if rank == 0:
        return None
    if kind == 'transpose':
        return kind, draw.dim(rank), draw.dim(rank)
    if kind == 'permute':
        order = draw.random.sample(range(rank), rank)
        return kind, tuple(i - rank if draw.chance(0.3) else i for i in order)
    if kind == 'slice':
        dim = draw.dim(rank)
        size = x.shape[dim]
        return kind, dim, draw.random.randint(-size - 2, size + 1), draw.random.randint(
            -size - 2, size + 2), draw.random.randint(1, 3)
    return None


def shaping(name, theirs, numbers, low=1, high=4, result='same'):
    """`numbers` draws what follows the tensor from its shape."""
    @op(name)
    def _(draw):
        shape = draw.shape(low, high)
        given = numbers(draw, shape)
        return Case(lambda m, x: getattr(m, name)(x, *given), lambda x: theirs(x, *given),
                    [draw.input(shape)], result, autocast=autocast(draw), whole=False,
                    note=str(given))


def their_pad(x, padding, value):
    return F.pad(x, padding, value=value)


shaping('flip', lambda x, dim: x.flip(dim), lambda d, s: (d.dim(len(s)),))
shaping('roll', lambda x, n, dim: x.roll(n, dim), lambda d, s: (d.random.randint(-9, 9),
                                                               d.dim(len(s))))
shaping('repeat', lambda x, times: x.repeat(times), lambda d, s: (tuple(
    d.random.randint(0 if d.chance(0.05) else 1, 3)
    for _ in range(len(s) + d.choice(0, *range(min(2, 8 - 2 * len(s)) + 1)))),))
shaping('pad', their_pad, lambda d, s: (tuple(
    d.random.randint(0, 3) for _ in range(2 * d.random.randint(1, len(s)))), d.choice(0, 1.5)))
shaping('tril', torch.tril, lambda d, s: (d.random.randint(-4, 4),), 2)
shaping('triu', torch.triu, lambda d, s: (d.random.randint(-4, 4),), 2)
shaping('flatten', torch.flatten, lambda d, s: tuple(sorted(d.random.choices(range(len(s)), k=2))))
shaping('transpose', torch.transpose, lambda d, s: (d.dim(len(s)), d.dim(len(s))), 0)


@op('detach')
def _(draw):
    return Case(lambda m, x: m.add(x, m.detach(x)), lambda x: x + x.detach(),
                [draw.input(draw.shape())])


def joined_inputs(draw, dim, vary):
    shape, count, dtype = list(draw.shape(1, 4)), draw.random.randint(1, 5), draw.dtype()
    cast = autocast(draw)
    for _ in range(count):
        if vary:
            shape[dim % len(shape)] = draw.size(0 if draw.chance(0.1) else 1, 5)
        yield draw.input(shape, draw.dtype() if cast and draw.chance(0.3) else dtype), cast


def joining(name, theirs):
    @op(name)
    def _(draw):
        dim = draw.choice(0, -1)
        rows = list(joined_inputs(draw, dim, name == 'cat'))
        return Case(lambda m, *x: getattr(m, name)(m.array(x), len(x), dim),
                    lambda *x: theirs(x, dim), [row[0] for row in rows], autocast=rows[0][1],
                    whole=False, note=f'dim {dim}')


joining('cat', torch.cat)
joining('stack', torch.stack)


def parting(name, theirs):
    @op(name)
    def _(draw):
        shape, number = draw.shape(1, 4), draw.random.randint(1, 4)
        dim = draw.dim(len(shape))

        def ours(m, x):
            parts = m.array([m.null()] * 2000)
            return list(parts[:getattr(m, name)(x, number, dim, parts, 2000)])
        return Case(ours, lambda x: list(theirs(x, number, dim)), [draw.input(shape)], whole=False,
                    note=f'{number} dim {dim}')


parting('split_tensor', torch.split)
parting('chunk', torch.chunk)


@op('gather')
def _(draw):
    shape = list(draw.shape(1, 3))
    dim = draw.random.randrange(len(shape))
    count = shape[dim]
    sizes = [*shape[:dim], draw.size(1, 7) if count else 0, *shape[dim + 1:]]
    index = Input('i64', False, *draw.lay(draw.indices(sizes, count)))
    return Case(lambda m, x, i: m.gather(x, dim, i), lambda x, i: x.gather(dim, i),
                [draw.input(shape), index], autocast=autocast(draw), note=f'dim {dim}')


@op('index_select')
def _(draw):
    shape = draw.shape(1, 3)
    dim = draw.dim(len(shape))
    index = draw.indices((draw.size(1, 9) if shape[dim] else 0,), shape[dim])
    return Case(lambda m, x, i: m.index_select(x, dim, i), lambda x, i: x.index_select(dim, i),
                [draw.input(shape), Input('i64', False, *draw.lay(index))], autocast=autocast(draw),
                note=f'dim {dim}')


@op('scatter_add')
def _(draw):
    shape, dtype = list(draw.shape(1, 3)), draw.dtype()
    dim = draw.random.randrange(len(shape))
    sizes = [*shape[:dim], draw.size(1, 7) if shape[dim] else 0, *shape[dim + 1:]]
    index = Input('i64', False, *draw.lay(draw.indices(sizes, shape[dim])))
    source = draw.input(sizes, dtype)
    return Case(lambda m, x, i, s: m.scatter_add(x, dim, i, s),
                lambda x, i, s: x.scatter_add(dim, i, s), [draw.input(shape, dtype), index, source],
                note=f'dim {dim}')


@op('sort')
def _(draw):
    shape, down = draw.shape(0, 3), draw.chance(0.5)
    dim = draw.dim(len(shape))

    def ours(m, x):
        indices = m.null()
        return m.sort(x, dim, down, indices), indices
    return Case(ours, lambda x: torch.sort(x, dim=dim, descending=down, stable=True),
                [draw.input(shape, domain='ties')], note=f'dim {dim} down {down}')


@op('argsort')
def _(draw):
    shape, down = draw.shape(0, 3), draw.chance(0.5)
    dim = draw.dim(len(shape))
    return Case(lambda m, x: m.argsort(x, dim, down),
                lambda x: torch.argsort(x, dim=dim, descending=down, stable=True),
                [draw.input(shape, domain='ties', grad=False)], 'i64',
                note=f'dim {dim} down {down}')


@op('topk')
def _(draw):
    shape, largest = draw.shape(0, 3), draw.chance(0.5)
    dim = draw.dim(len(shape))
    k = draw.random.randint(0, shape[dim] if shape else 1)
    return Case(lambda m, x: m.topk(x, k, dim, largest, None),
                lambda x: torch.sort(x, dim=dim, descending=largest, stable=True)[0].narrow(
                    dim, 0, k) if x.dim() else torch.topk(x, k, dim, largest)[0],
                [draw.input(shape)], note=f'k {k} dim {dim} largest {largest}')


@op('one_hot')
def _(draw):
    index = draw.indices(draw.shape(0, 3), 5)
    return Case(lambda m, i: m.one_hot(i, 5), lambda i: F.one_hot(i, 5),
                [Input('i64', False, *draw.lay(index))], 'i64')


@op('embedding')
def _(draw):
    count, pad = draw.random.randint(1, 9), draw.choice(-1, -1, 0)
    ids = Input('i64', False, *draw.lay(draw.indices(draw.shape(0, 3), count)))
    return Case(lambda m, i, w: m.embedding(i, w, pad),
                lambda i, w: F.embedding(i, w, None if pad < 0 else pad),
                [ids, draw.input((count, draw.size(1, 9)))], autocast=autocast(draw))


# ==== In place =================================================================================

def in_place(name, change, theirs, second=False):
    """On a result that nothing else needs, or, without gradients, on a view of it."""
    @op(name)
    def _(draw):
        shape = draw.shape(1, 4)
        grad = draw.chance(0.6)
        x = draw.input(shape, grad=grad, plain=True)
        value = x.theirs(torch.float64)[1]
        view = None if grad else draw_view(draw, value)
        if view and view[0] in ('expand', 'reshape'):
            view = None
        part = Input(x.dtype, False, x.base, [view] if view else []).theirs(torch.float64)[1]
        sizes = tuple(1 if draw.chance(0.2) else size for size in part.shape)
        inputs = [x, draw.input(sizes, x.dtype, grad=grad)] if second else [x]
        after = draw.choice(True, False)

        def ours(m, x, *b):
            y = m.mul_scalar(x, 1)
            changed = change(m, getattr(m, view[0])(y, *view[1:]) if view else y, *b)
            return m.add_scalar(y, 1) if after or view else changed

        def their(x, *b):
            y = x * 1
            theirs(Input('f32', False, y, [view]).theirs_view(y) if view else y, *b)
            return y + 1 if after or view else y
        return Case(ours, their, inputs, grads=grad and name != 'fill_',
                    note=f'view {view} after {after}')


def theirs_view(self, value):
    for name, *given in self.views:
        value = VIEWS[name](value, *given)
    return value


Input.theirs_view = theirs_view
in_place('relu_', lambda m, x: m.relu_(x), lambda x: x.relu_())
in_place('add_', lambda m, x, b: m.add_(x, b), lambda x, b: x.add_(b), True)
in_place('mul_', lambda m, x, b: m.mul_(x, b), lambda x, b: x.mul_(b), True)
in_place('add_scalar_', lambda m, x: m.add_scalar_(x, 0.5), lambda x: x.add_(0.5))
in_place('mul_scalar_', lambda m, x: m.mul_scalar_(x, -2), lambda x: x.mul_(-2))
in_place('copy_', lambda m, x, b: m.copy_(x, b), lambda x, b: x.copy_(b), True)
in_place('fill_', lambda m, x: m.fill_(x, 0.25), lambda x: x.fill_(0.25))


# ==== Products =================================================================================

@op('matmul')
def _(draw):
    rows, inner, columns = (draw.size(1, 9) for _ in range(3))
    a, b = broadcast_shapes(draw, 2)
    if draw.large:
        a, b = a[-1:], b[-1:]
        a, b = (tuple(min(size, 3) for size in x) for x in (a, b))
        rows, inner, columns = (min(draw.edge(), 300) for _ in range(3))
    a, b = (*a[-3:], rows, inner), (*b[-3:], inner, columns)
    if draw.chance(0.1):
        a = (inner,)
    if draw.chance(0.1):
        b = (inner,)
    dtype, cast = draw.dtype(), autocast(draw)
    return Case(lambda m, a, b: m.matmul(a, b), torch.matmul,
                [draw.input(a, dtype), draw.input(b, draw.dtype() if cast else dtype)], 'low',
                autocast=cast, k=4 + inner / 16)


ACTIVATIONS = [lambda x: x, F.relu, F.gelu, lambda x: F.gelu(x, approximate='tanh'), torch.tanh,
               torch.sigmoid]


@op('linear')
def _(draw):
    inner, out = draw.size(1, 20), draw.size(1, 20)
    if draw.large:
        inner, out = min(draw.edge(), 300), min(draw.edge(), 300)
    dtype, cast, kind = draw.dtype(), autocast(draw), draw.random.randrange(len(ACTIVATIONS))
    lead = tuple(min(size, 40) for size in draw.shape(0, 3))
    inputs = [draw.input((*lead, inner), dtype), draw.input((out, inner), dtype)]
    if draw.chance(0.6):
        inputs.append(draw.input((out,), dtype))
    return Case(lambda m, x, w, b=None: m.linear(x, w, b, kind),
                lambda x, w, b=None: ACTIVATIONS[kind](F.linear(x, w, b)), inputs, 'low',
                autocast=cast, k=4 + inner / 16, note=f'activation {kind}')


def convolution(name, theirs, dims, transposed=False):
    @op(name)
    def _(draw):
        groups = draw.choice(1, 1, 2, 3)
        channels, out = groups * draw.random.randint(1, 4), groups * draw.random.randint(1, 4)
        if draw.chance(0.15):
            channels = groups = draw.choice(4, 8, 16)
            out = groups * draw.choice(1, 2)
        if draw.large:
            channels, out = (groups * draw.choice(1, 7, 16, 17, 32, 48) for _ in range(2))
        kernel = tuple(draw.random.randint(1, 4) for _ in range(dims))
        stride, padding, dilation = (tuple(draw.random.randint(low, high) for _ in range(dims))
                                     for low, high in ((1, 3), (0, 3), (1, 2)))
        same = not transposed and draw.chance(0.15)
        fields = {'stride': stride, 'padding': padding, 'dilation': dilation, 'groups': groups}
        if same:
            fields.update(stride=(1,) * dims, padding='same')
        if transposed:
            fields['output_padding'] = tuple(draw.random.randint(0, max(max(s, d) - 1, 0))
                                             for s, d in zip(stride, dilation))
        cast, dtype = autocast(draw), draw.dtype()
        shape = (draw.size(1, 3), channels, *(draw.size(1, 9) + 3 for _ in range(dims)))
        weight = (channels, out // groups, *kernel) if transposed else (
            out, channels // groups, *kernel)
        inputs = [draw.input(shape, dtype), draw.input(weight, dtype)]
        if draw.chance(0.6):
            inputs.append(draw.input((out,), dtype))

        def ours(m, x, w, b=None):
            # One number for one dimension: the second of the pair.
            pairs = {key: (value if dims == 2 else (1, *value)) for key, value in fields.items()
                     if isinstance(value, tuple)}
            if dims == 1 and 'padding' in pairs:
                pairs['padding'] = (0, *fields['padding'])
            return getattr(m, name)(x, w, b, m.conv_config(groups=groups, same=same, **pairs))
        summed = math.prod(kernel) * max(channels, out) // groups
        return Case(ours, lambda x, w, b=None: theirs(x, w, b, **fields), inputs, 'low',
                    autocast=cast, k=4 + summed / 16, note=str(fields))


convolution('conv1d', F.conv1d, 1)
convolution('conv2d', F.conv2d, 2)
convolution('conv_transpose2d', F.conv_transpose2d, 2, True)


@op('scaled_dot_product_attention')
def _(draw):
    groups, dtype, cast = draw.choice(1, 2, 3), draw.dtype(), autocast(draw)
    draw.special = False
    heads, batch = groups * draw.choice(1, 1, 2), draw.size(1, 3)
    queries, keys, width, values = (max(draw.size(1, 9), i // 2) for i in range(4))
    if draw.large:
        queries, keys, width, values = (min(draw.edge(), 260) for _ in range(4))
    causal, scale = draw.chance(0.3), draw.choice(0, 0, 0.3)
    lead = draw.choice((batch, heads), (batch, heads), (heads,), ())
    served = (*lead[:-1], groups) if lead else ()
    inputs = [draw.input((*lead, queries, width), dtype), draw.input((*served, keys, width), dtype),
              draw.input((*served, keys, values), dtype)]
    mask = draw.choice(None, None, 'bool', 'f32')
    shape = tuple(1 if draw.chance(0.3) else size for size in (*lead, queries, keys))
    shape = shape[draw.random.randint(0, len(lead)):]
    if mask == 'bool':
        inputs.append(Input('bool', False, *draw.lay(draw.indices(shape, 4) > 0)))
    elif mask:
        inputs.append(draw.input(shape, 'f32' if cast else dtype, grad=False))

    def theirs(q, k, v, given=None):
        if lead and heads != groups:
            k, v = (x.repeat_interleave(heads // groups, -3) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(width or 1))
        seen = torch.ones(queries, keys, dtype=torch.bool)
        seen = seen.tril() if causal else seen
        if given is not None:
            seen = seen & given if given.dtype == torch.bool else seen
            scores = scores if given.dtype == torch.bool else scores + given
        scores = scores.masked_fill(~seen, -math.inf)
        return torch.nan_to_num(scores.softmax(-1), 0.0) @ v
    return Case(lambda m, q, k, v, given=None: m.scaled_dot_product_attention(
                    q, k, v, m.attention_config(mask=given, causal=causal, scale=scale)),
                theirs, inputs, 'low', autocast=cast, k=16,
                note=f'causal {causal} mask {mask} scale {scale}')
