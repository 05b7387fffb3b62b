"""compare_layers.py: what nets are made of, as tables in the manner of compare_ops.py: norms,
pooling, images of another size, losses."""
import torch
import torch.nn.functional as F

from compare_library import Case, DTYPES, Input
from compare_ops import autocast, op


# ==== Norms, pooling, images ===================================================================

def channels(draw):
    return draw.choice(15, 16, 32, 33) if draw.large else draw.size(1, 5)


def affine(draw, shape, weight, bias):
    return [draw.input(shape, grad=True, domain='ones') for _ in range(weight + bias)]


def norm_case(draw, shape, sizes, ours, theirs, weight=None, bias=None, **more):
    weight = draw.chance(0.7) if weight is None else weight
    bias = draw.chance(0.7) if bias is None else bias
    dtype = draw.dtype()

    def parts(given):
        return (given[0] if weight else None), (given[-1] if bias else None)
    extra = more.pop('inputs', [])

    def draw_extra(x):
        return [draw.input(s, dtype) for s in x]
    inputs = [draw.input(shape, dtype), *draw_extra(extra), *affine(draw, sizes, weight, bias)]
    case = Case(lambda m, x, *a: ours(m, x, *a[:len(extra)], *parts(a[len(extra):])),
                lambda x, *a: theirs(x, *a[:len(extra)], *parts(a[len(extra):])), inputs, dtype,
                autocast=autocast(draw), k=16, flow=400, note=more.pop('note', ''))
    return case


def last_dims(draw):
    shape = draw.shape(1, 4)
    if draw.chance(0.2):
        shape = (*shape[:-1], draw.random.randint(30, 90))
    dims = draw.random.randint(1, len(shape))
    return shape, dims, shape[len(shape) - dims:]


def their_rms(x, sizes, w):
    dims = tuple(range(-len(sizes), 0))
    y = x * torch.rsqrt((x * x).mean(dims, keepdim=True) + 1e-5)
    return y if w is None else y * w


@op('layer_norm')
def _(draw):
    shape, dims, sizes = last_dims(draw)
    return norm_case(draw, shape, sizes, lambda m, x, w, b: m.layer_norm(x, dims, w, b, 1e-5),
                     lambda x, w, b: F.layer_norm(x, sizes, w, b, 1e-5), note=f'dims {dims}')


@op('rms_norm')
def _(draw):
    shape, dims, sizes = last_dims(draw)
    return norm_case(draw, shape, sizes, lambda m, x, w, b: m.rms_norm(x, dims, w, 1e-5),
                     lambda x, w, b: their_rms(x, sizes, w), bias=False, note=f'dims {dims}')


@op('add_layer_norm')
def _(draw):
    shape, dims, sizes = last_dims(draw)

    def ours(m, x, r, w, b):
        total = m.null()
        return m.add_layer_norm(x, r, dims, w, b, 1e-5, total), total
    return norm_case(draw, shape, sizes, ours, lambda x, r, w, b: (
        F.layer_norm(x + r, sizes, w, b, 1e-5), x + r), note=f'dims {dims}', inputs=[shape])


@op('add_rms_norm')
def _(draw):
    shape, dims, sizes = last_dims(draw)

    def ours(m, x, r, w, b):
        total = m.null()
        return m.add_rms_norm(x, r, dims, w, 1e-5, total), total
    return norm_case(draw, shape, sizes, ours, lambda x, r, w, b: (
        their_rms(x + r, sizes, w), x + r), bias=False, note=f'dims {dims}', inputs=[shape])


@op('group_norm')
def _(draw):
    groups = draw.choice(1, 2, 3)
    shape = (draw.size(1, 3), groups * (channels(draw) or 1), *draw.shape(0, 2))
    return norm_case(draw, shape, (shape[1],), lambda m, x, w, b: m.group_norm(
        x, groups, w, b, 1e-5), lambda x, w, b: F.group_norm(x, groups, w, b, 1e-5),
        note=f'groups {groups}')


@op('batch_norm')
def _(draw):
    shape = (draw.random.randint(2, 4), channels(draw), *draw.shape(0, 2))
    return norm_case(draw, shape, (shape[1],), lambda m, x, w, b: m.batch_norm(
        x, None, None, w, b, 1e-5), lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1,
                                                                1e-5))


@op('batch_norm of statistics')
def _(draw):
    shape = (draw.size(1, 4), channels(draw), *draw.shape(0, 2))
    mean, variance = draw.values((shape[1],)), draw.values((shape[1],), 'f32', 'positive')
    return norm_case(draw, shape, (shape[1],), lambda m, x, w, b: m.batch_norm(
        x, m.tensor(mean), m.tensor(variance), w, b, 1e-5),
        lambda x, w, b: F.batch_norm(x, mean.to(x.dtype), variance.to(x.dtype), w, b, False, 0.1,
                                     1e-5))


@op('batch_norm_relu')
def _(draw):
    shape = (draw.random.randint(2, 4), channels(draw), *draw.shape(0, 2))
    residual = draw.chance(0.5)
    return norm_case(draw, shape, (shape[1],), lambda m, x, *a: m.batch_norm_relu(
        x, None, None, a[-2], a[-1], 1e-5, a[0] if residual else None),
        lambda x, *a: F.relu(F.batch_norm(x, None, None, a[-2], a[-1], True, 0.1, 1e-5) + (
            a[0] if residual else 0)), inputs=[shape] if residual else [])


def pooling(name, theirs, dims):
    @op(name)
    def _(draw):
        window = tuple(draw.random.randint(1, 4) for _ in range(dims))
        step = tuple(draw.random.randint(1, 4) for _ in range(dims))
        padding = tuple(draw.random.randint(0, size // 2) for size in window)
        ceil, count = draw.chance(0.4), draw.chance(0.5)
        shape = (draw.size(1, 3), channels(draw), *(draw.size(1, 9) + 3 for _ in range(dims)))
        more = {'count_include_pad': count} if name.startswith('avg') else {}
        return Case(lambda m, x: getattr(m, name)(x, m.make(
                        'pool_config', window=window, step=step, padding=padding, ceil_mode=ceil,
                        count_padding=count)),
                    lambda x: theirs(x, window, step, padding, ceil_mode=ceil, **more),
                    [draw.input(shape, domain='ties' if name.startswith('max') else 'normal')],
                    autocast=autocast(draw),
                    note=f'window {window} step {step} padding {padding} ceil {ceil} count {count}')


pooling('max_pool2d', F.max_pool2d, 2)
pooling('avg_pool2d', F.avg_pool2d, 2)
pooling('max_pool1d', F.max_pool1d, 1)
pooling('avg_pool1d', F.avg_pool1d, 1)


def adaptive(name, theirs):
    @op(name)
    def _(draw):
        size = draw.random.randint(1, 6), draw.random.randint(1, 6)
        shape = draw.size(1, 3), channels(draw), draw.size(1, 9), draw.size(1, 9)
        return Case(lambda m, x: getattr(m, name)(x, *size), lambda x: theirs(x, size),
                    [draw.input(shape)],
                    autocast=autocast(draw), note=str(size))


adaptive('adaptive_avg_pool2d', F.adaptive_avg_pool2d)
adaptive('adaptive_max_pool2d', F.adaptive_max_pool2d)


@op('interpolate')
def _(draw):
    nearest = draw.chance(0.4)
    corners = not nearest and draw.chance(0.5)
    size = (draw.random.randint(1, 12), draw.random.randint(1, 12))
    scale = draw.choice(0, 0, 2, 0.5, 1.5, 3)
    draw.special = False
    return Case(lambda m, x: m.interpolate(x, () if scale else size, scale, 0 if nearest else 1,
                                           corners),
                lambda x: F.interpolate(x, None if scale else size, scale or None,
                                        'nearest' if nearest else 'bilinear',
                                        None if nearest else corners),
                [draw.input((draw.size(1, 3), channels(draw), draw.random.randint(2, 9),
                             draw.random.randint(2, 9)))], autocast=autocast(draw), k=8,
                note=f'size {size} scale {scale} nearest {nearest} corners {corners}')


# ==== Losses ===================================================================================

REDUCED = ('mean', 'sum', 'none', 'batchmean')


def reduced(x, how):
    return x.mean() if how == 'mean' else x.sum() if how == 'sum' else x


def loss(name, theirs, domains, numbers=((),), weights=(), low=0, reductions=3):
    """Losses of tensors of equal shapes: numbers that follow them, and optional weights."""
    @op(name)
    def _(draw):
        shape, dtype, given = draw.shape(low, 3), draw.dtype(), draw.choice(*numbers)
        kind = draw.random.randrange(reductions)
        inputs = [draw.input(shape, dtype, domain) for domain in domains]
        present = [draw.chance(0.5) for _ in weights]
        for there, domain in zip(present, weights):
            if there:
                sizes = tuple(1 if draw.chance(0.3) else size for size in shape)
                inputs.append(draw.input(sizes, dtype, domain, grad=False))

        def spread(rest):
            rest = iter(rest)
            return [next(rest) if there else None for there in present]
        count = len(domains)
        return Case(lambda m, *x: getattr(m, name)(*x[:count], *spread(x[count:]), *given, kind),
                    lambda *x: theirs(x[:count], spread(x[count:]), given, REDUCED[kind]), inputs,
                    'f32', autocast=autocast(draw), k=16,
                    note=f'{given} {REDUCED[kind]}')


loss('mse_loss', lambda x, w, n, r: F.mse_loss(*x, reduction=r), ('normal', 'normal'))
loss('l1_loss', lambda x, w, n, r: F.l1_loss(*x, reduction=r), ('ties', 'ties'))
loss('smooth_l1_loss', lambda x, w, n, r: F.smooth_l1_loss(*x, beta=n[0], reduction=r),
     ('normal', 'normal'), ((1,), (0.5,), (0,)))
loss('huber_loss', lambda x, w, n, r: F.huber_loss(*x, delta=n[0], reduction=r),
     ('normal', 'normal'), ((1,), (0.5,)))
loss('binary_cross_entropy_with_logits',
     lambda x, w, n, r: F.binary_cross_entropy_with_logits(*x, w[0], pos_weight=w[1], reduction=r),
     ('small', 'unit'), weights=('unit', 'unit'))
loss('binary_cross_entropy', lambda x, w, n, r: F.binary_cross_entropy(*x, w[0], reduction=r),
     ('unit', 'unit'), weights=('unit',))
loss('kl_div', lambda x, w, n, r: F.kl_div(*x, log_target=n[0], reduction=r), ('small', 'unit'),
     ((False,), (True,)), low=1, reductions=4)
loss('poisson_nll_loss', lambda x, w, n, r: F.poisson_nll_loss(
    *x, log_input=n[0], full=n[1], eps=n[2], reduction=r), ('unit', 'unit'),
     ((True, False, 1e-8), (True, True, 1e-8), (False, False, 1e-3), (False, True, 1e-3)))
loss('gaussian_nll_loss', lambda x, w, n, r: F.gaussian_nll_loss(
    *x, full=n[0], eps=n[1], reduction=r), ('small', 'small', 'unit'),
     ((False, 1e-6), (True, 1e-6)), low=1)
loss('soft_margin_loss', lambda x, w, n, r: reduced(F.softplus(-x[0] * x[1], threshold=1e9), r),
     ('small', 'signs'))
loss('hinge_embedding_loss', lambda x, w, n, r: F.hinge_embedding_loss(
    *x, margin=n[0], reduction=r), ('small', 'signs'), ((1,), (0.5,)))
loss('margin_ranking_loss', lambda x, w, n, r: F.margin_ranking_loss(
    *x, margin=n[0], reduction=r), ('small', 'small', 'signs'), ((0,), (0.5,)))
loss('triplet_margin_loss', lambda x, w, n, r: F.triplet_margin_loss(
    *x, margin=n[0], eps=n[1], swap=n[2], reduction=r), ('small', 'small', 'small'),
     ((1, 1e-6, False), (0.5, 1e-6, True)), low=1)
loss('multilabel_soft_margin_loss', lambda x, w, n, r: F.multilabel_soft_margin_loss(
    *x, w[0], reduction=r), ('small', 'unit'), weights=('unit',), low=1)


def classes_case(draw, name, theirs, logits, smoothing, soft=False):
    classes, dtype = draw.random.randint(1, 9), draw.dtype()
    draw.special = False
    shape = () if draw.chance(0.1) else (draw.size(1, 6), *(draw.shape(0, 2)))
    full = (shape[0], classes, *shape[1:]) if shape else (classes,)
    ignore, kind = draw.choice(-100, -100, 0, classes - 1), draw.random.randrange(3)
    smooth = draw.choice(0, 0.1, 0.5) if smoothing else 0
    if soft:
        targets, ignore = draw.input(full, dtype, 'unit'), -100
    else:
        targets = Input('i64', False, *draw.lay(draw.indices(shape, classes)))
        if draw.chance(0.3):
            targets.base[targets.base == 0] = ignore
    inputs = [draw.input(full, dtype), targets]
    if draw.chance(0.5):
        inputs.append(draw.input((classes,), 'f32' if not soft else None, 'unit', grad=False))
    options = {'ignore_index': ignore, 'label_smoothing': smooth} if smoothing else {
        'ignore_index': ignore}
    return Case(lambda m, x, t, w=None: getattr(m, name)(x, t, m.nll_config(
                    weight=w, reduction=kind, **options)),
                lambda x, t, w=None: theirs(x, t, w, reduction=REDUCED[kind], **options), inputs,
                'f32', autocast=autocast(draw), k=16, note=f'{options} {REDUCED[kind]}')


@op('nll_loss')
def _(draw):
    return classes_case(draw, 'nll_loss', F.nll_loss, False, False)


@op('cross_entropy')
def _(draw):
    return classes_case(draw, 'cross_entropy', F.cross_entropy, True, True)


@op('cross_entropy of probabilities')
def _(draw):
    return classes_case(draw, 'cross_entropy', F.cross_entropy, True, True, True)


@op('linear_cross_entropy')
def _(draw):
    classes, inner, dtype = draw.random.randint(1, 9), draw.random.randint(1, 9), draw.dtype()
    shape, kind, cast = draw.shape(1, 3), draw.random.randrange(3), autocast(draw)
    ignore, smooth = draw.choice(-100, 0), draw.choice(0, 0.1)
    draw.special = False
    inputs = [draw.input((*shape, inner), dtype), draw.input((classes, inner), dtype),
              Input('i64', False, *draw.lay(draw.indices(shape, classes)))]
    if draw.chance(0.5):
        inputs.append(draw.input((classes,), 'f32', 'unit', grad=False))
    low = DTYPES[cast] if cast else None

    def theirs(x, c, t, w=None):
        if low:
            x, c = (y.to(low).to(x.dtype) for y in (x, c))
        value = F.cross_entropy((x @ c.T).reshape(-1, classes), t.reshape(-1), w,
                                reduction=REDUCED[kind], ignore_index=ignore,
                                label_smoothing=smooth)
        return value.reshape(t.shape) if kind == 2 else value
    return Case(lambda m, x, c, t, w=None: m.linear_cross_entropy(x, c, t, m.nll_config(
                    weight=w, reduction=kind, ignore_index=ignore, label_smoothing=smooth)), theirs,
                inputs, 'f32', autocast=cast, k=16,
                note=f'ignore {ignore} smooth {smooth} {REDUCED[kind]}')


@op('multi_margin_loss')
def _(draw):
    classes, p, margin = draw.random.randint(1, 9), draw.choice(1, 2), draw.choice(1, 0.5)
    rows, kind, dtype = draw.size(1, 6), draw.random.randrange(3), draw.dtype()
    draw.special = False
    inputs = [draw.input((rows, classes), dtype), Input('i64', False, *draw.lay(draw.indices(
        (rows,), classes)))]
    if draw.chance(0.5):
        inputs.append(draw.input((classes,), dtype, 'unit', grad=False))
    return Case(lambda m, x, t, w=None: m.multi_margin_loss(x, t, p, margin, w, kind),
                lambda x, t, w=None: F.multi_margin_loss(x, t, p, margin, w,
                                                         reduction=REDUCED[kind]),
                inputs, 'f32', k=16, note=f'p {p} margin {margin} {REDUCED[kind]}')


@op('cosine_similarity')
def _(draw):
    shape, dtype = draw.shape(1, 3), draw.dtype()
    dim, eps = draw.dim(len(shape)), draw.choice(1e-8, 1e-3)
    draw.special = False
    return Case(lambda m, a, b: m.cosine_similarity(a, b, dim, eps),
                lambda a, b: F.cosine_similarity(a, b, dim, eps),
                [draw.input(shape, dtype), draw.input(shape, dtype)], 'f32', k=32,
                flow=32, note=f'dim {dim}')


@op('cosine_embedding_loss')
def _(draw):
    lead, dtype, kind = draw.choice((), (4,), (1,)), draw.dtype(), draw.random.randrange(3)
    margin, width = draw.choice(0, 0.5), draw.random.randint(1, 9)
    draw.special = False
    return Case(lambda m, a, b, t: m.cosine_embedding_loss(a, b, t, margin, kind),
                lambda a, b, t: F.cosine_embedding_loss(a, b, t, margin, reduction=REDUCED[kind]),
                [draw.input((*lead, width), dtype), draw.input((*lead, width), dtype),
                 draw.input(lead, dtype, 'signs', grad=False)], 'f32', k=32, flow=32,
                note=f'margin {margin} {REDUCED[kind]}')
