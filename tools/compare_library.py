"""compare_library.py: mptrain's functions for Python. What they take and give is read from the
declarations of the header, so that nothing here has to be kept in step with it.

    m = Library('build/mptrain.so', ['cc', '-Isrc', 'src/mptrain.h'])
    y = m.conv2d(m.tensor(x), m.tensor(w), None, m.conv_config(stride=(2, 1)))
    m.torch(y)

Names lose their mpt_. None is a null handle or pointer, a tuple a shape, and whatever the library
refuses raises Refused with its message."""
import ctypes
import dataclasses
import math
import random
import re
import subprocess

import torch

DTYPES = {'f32': torch.float32, 'f16': torch.float16, 'bf16': torch.bfloat16, 'f64': torch.float64,
          'i64': torch.int64, 'i32': torch.int32, 'u8': torch.uint8, 'bool': torch.bool,
          'f8e4m3': torch.float8_e4m3fn, 'f8e5m2': torch.float8_e5m2}
BASE = {'int': ctypes.c_int, 'int32_t': ctypes.c_int32, 'int64_t': ctypes.c_int64,
        'uint32_t': ctypes.c_uint32, 'uint64_t': ctypes.c_uint64, 'size_t': ctypes.c_size_t,
        'double': ctypes.c_double, 'float': ctypes.c_float, '_Bool': ctypes.c_bool,
        'bool': ctypes.c_bool, 'char': ctypes.c_char, 'void': None}


class Refused(Exception):
    """The library reported an error."""


class Header:
    """Types, constants and functions of a header that the C preprocessor has gone over."""

    def __init__(self, command):
        text = subprocess.run([*command[:-1], '-E', '-P', '-x', 'c', command[-1]], check=True,
                              capture_output=True, text=True).stdout
        text = ' '.join(text[text.index('mpt_context') - len('typedef struct '):].split())
        self.types, self.constants, self.functions = dict(BASE), {}, {}
        pattern = (r'typedef enum (?P<enum>\w+) \{(?P<values>[^}]*)\}|enum \{(?P<free>[^}]*)\};|'
                   r'typedef struct (?P<struct>\w+) \{(?P<fields>[^}]*)\}|'
                   r'typedef (?P<old>mpt_\w+) (?P<new>mpt_\w+);|'
                   r'typedef \w+ \(\*(?P<callback>\w+)\)\(|'
                   r'extern (?P<result>[\w ]+?[ *]+)(?P<function>mpt_\w+)\((?P<given>[^;]*)\);')
        for found in re.finditer(pattern, text):
            row = found.groupdict()
            if row['enum'] or row['free']:
                self.enum(row['values'] or row['free'])
                self.types[row['enum']] = ctypes.c_int
            elif row['struct']:
                self.struct(row['struct'], row['fields'])
            elif row['new']:
                self.types[row['new']] = self.types[row['old']]
            elif row['callback']:
                self.types[row['callback']] = ctypes.c_void_p
            elif row['function'] and '...' not in row['given']:
                given = [self.declared(part)[0]
                         for part in re.split(r',(?![^(]*\))', row['given'])]
                self.functions[row['function']] = (
                    self.named(row['result']), [kind for kind in given if kind is not None],
                    row['given'].lstrip().startswith('mpt_context *'))

    def enum(self, text):
        value = -1
        for part in filter(None, (part.strip() for part in text.split(','))):
            name, _, written = (side.strip() for side in part.partition('='))
            value = eval(written, {}, self.constants) if written else value + 1
            self.constants[name] = value

    def named(self, text):
        name = text.replace('*', ' ').replace('const', ' ').split()
        if '*' in text:
            return ctypes.c_char_p if name[0] == 'char' and 'const' in text else ctypes.c_void_p
        return self.types[name[0]]

    def declared(self, text):
        """Type and name of one parameter or field."""
        text = text.strip()
        if '(*' in text:
            return ctypes.c_void_p, re.search(r'\(\*\s*(\w+)', text)[1]
        words = re.fullmatch(r'((?:const )?[\w]+(?: ?\*(?: ?const)?)*)\s*(\w*)((?:\[\w+\])*)', text)
        kind = self.named(words[1])
        for size in reversed(re.findall(r'\[(\w+)\]', words[3])):
            kind = kind * int(self.constants.get(size, size))
        return kind, words[2]

    def struct(self, name, text):
        fields = []
        for line in filter(None, (line.strip() for line in text.split(';'))):
            first, *others = [line] if '(*' in line else line.split(',')
            kind, field = self.declared(first)
            plain = kind._type_ if hasattr(kind, '_length_') else kind
            fields.append((field, kind))
            for other in others:
                size = re.search(r'\[(\w+)\]', other)
                kind = plain * int(self.constants.get(size[1], size[1])) if size else plain
                fields.append((re.match(r'[ *]*(\w+)', other)[1], kind))
        self.types[name] = type(name, (ctypes.Structure,), {'_fields_': fields})


class Library:
    """A context and every function of the library as a method."""

    def __init__(self, path, command, threads=2, seed=1, debug=False, header=None):
        self.made_of = path, command
        self.header = header or Header(command)
        self.library = ctypes.CDLL(path)
        for name, (result, given, _) in self.header.functions.items():
            function = getattr(self.library, name)
            function.restype, function.argtypes = result, given
        self.kinds = {name: self.header.constants['MPT_' + name.upper()] for name in DTYPES}
        self.names = {number: name for name, number in self.kinds.items()}
        self.context = None
        config = self.config(threads=threads, seed=seed, debug=debug)
        self.context = self.create(config)
        if not self.context:
            raise Refused(self.library.mpt_error(None).decode())

    def sibling(self, **options):
        """Another context."""
        return Library(*self.made_of, header=self.header, **options)

    def close(self):
        self.library.mpt_destroy(self.context)
        self.context = None

    def constant(self, name):
        return self.header.constants['MPT_' + name]

    def make(self, name, **fields):
        """A struct, or a config with its defaults."""
        default = self.header.functions.get(f'mpt_{name}_default')
        value = self.header.types['mpt_' + name]()
        if default is not None and not default[1]:
            value = getattr(self.library, f'mpt_{name}_default')()
        for field, given in fields.items():
            kind = dict(value._fields_)[field]
            if isinstance(given, (tuple, list)):
                given = kind(*given) if hasattr(kind, '_length_') else self.argument(kind, given)
            if given is not None:
                setattr(value, field, given)
        return value

    def argument(self, kind, value):
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure):
            if value is None:
                return kind()
            if isinstance(value, (tuple, list, torch.Size)):
                return kind(len(value), (ctypes.c_int64 * 8)(*value))
        elif isinstance(value, ctypes.Structure):
            return ctypes.byref(value)
        elif isinstance(value, str):
            return self.kinds[value] if kind is ctypes.c_int else value.encode()
        return value

    def __getattr__(self, name):
        if name.endswith('_config') or name == 'config':
            return lambda **fields: self.make(name, **fields)
        function = getattr(self.library, 'mpt_' + name)
        _, kinds, takes_context = self.header.functions['mpt_' + name]

        def call(*given):
            if takes_context:
                given = (self.context, *given)
            result = function(*[self.argument(kind, value) for kind, value in zip(kinds, given,
                                                                                  strict=True)])
            if self.context and name != 'clear_error' and self.library.mpt_failed(self.context):
                message = self.library.mpt_error(self.context).decode()
                self.library.mpt_clear_error(self.context)
                raise Refused(message)
            return result
        self.__dict__[name] = call
        return call

    def array(self, handles, kind='tensor'):
        return (self.header.types['mpt_' + kind] * max(len(handles), 1))(*handles)

    def null(self, kind='tensor'):
        return self.header.types['mpt_' + kind]()

    def tensor(self, value):
        """A copy of a PyTorch tensor."""
        value = value.detach().contiguous()
        kind = next(name for name, dtype in DTYPES.items() if dtype == value.dtype)
        return getattr(self, 'from')(kind, tuple(value.shape), value.data_ptr() or NOTHING)

    def torch(self, handle):
        """A copy for PyTorch."""
        shape = self.get_shape(handle)
        value = torch.empty(tuple(shape.dim[:shape.rank]),
                            dtype=DTYPES[self.names[self.get_dtype(handle)]])
        self.read(handle, value.data_ptr() or NOTHING, value.numel() * value.element_size())
        return value

    def write_tensor(self, handle, value):
        value = value.detach().contiguous()
        self.write(handle, value.data_ptr() or NOTHING, value.numel() * value.element_size())


NOTHING = ctypes.addressof(ctypes.create_string_buffer(64))


# ==== Cases: what is drawn, what both sides do with it, how their results are compared ===========

EPSILON = {'f32': 2.0 ** -23, 'f16': 2.0 ** -10, 'bf16': 2.0 ** -7}
FLOATS = ('f32', 'f16', 'bf16')
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0]
# What overflows on the way in some order of a sum, and denormals, which products flush.
EXTREME = [*SPECIAL, 6e-8, 3e38, -3e38, 65504.0, 1e-40, -1e-40]


class Draw:
    """Everything random of one case, from its seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(self.random.getrandbits(60))
        self.special = self.chance(0.12)
        self.empty = self.chance(0.04)
        self.large = not self.empty and self.chance(0.15)

    def chance(self, p):
        return self.random.random() < p

    def choice(self, *values):
        return self.random.choice(values)

    def size(self, low, high):
        if self.empty and self.chance(0.3):
            return 0
        if self.chance(0.08):
            return low + self.random.randint(0, 2 * high) * 8 // 3
        return self.random.randint(low, high)

    def shape(self, low=0, high=4, size=6):
        shape = [self.size(1, size) for _ in range(self.random.randint(low, high))]
        if shape and self.large:
            shape[self.random.randrange(len(shape))] = self.edge()
        return tuple(shape)

    def edge(self):
        """A size near those at which kernels change their ways."""
        return self.choice(8, 16, 32, 64, 128, 256, 512, 1024) + self.choice(-1, 0, 0, 1, 3)

    def dim(self, rank):
        """A dimension, counted from either end."""
        return self.random.randint(-rank, rank - 1) if rank else 0

    def dtype(self):
        return self.choice('f32', 'f32', 'f16', 'bf16')

    def values(self, shape, dtype='f32', domain='normal'):
        value = DOMAINS[domain](torch.randn(shape, generator=self.torch, dtype=torch.float64), self)
        if self.special and domain in ('normal', 'any', 'positive') and value.numel():
            where = torch.rand(shape, generator=self.torch) < 0.15
            picks = torch.tensor(EXTREME if domain == 'any' else SPECIAL, dtype=torch.float64)
            picks = picks[torch.randint(len(picks), shape, generator=self.torch)]
            value = torch.where(where, picks.abs() if domain == 'positive' else picks, value)
        return value.to(DTYPES[dtype])

    def indices(self, shape, count):
        return torch.randint(max(count, 1), shape, generator=self.torch)

    def input(self, shape, dtype=None, domain='normal', grad=True, plain=False):
        """A float tensor, in memory as a view of any kind."""
        dtype = dtype or self.dtype()
        return Input(dtype, grad, *self.lay(self.values(tuple(shape), dtype, domain), plain))

    def lay(self, value, plain=False):
        """The same values as views of a larger or differently ordered tensor."""
        views = []
        if not plain and self.chance(0.12):
            value, view = lay_expanded(self, value)
            views.insert(0, view)
        for _ in range(0 if plain or self.chance(0.45) else self.random.randint(1, 3)):
            value, view = self.choice(*LAYOUTS)(self, value)
            views.insert(0, view)
        return value.contiguous(), [view for view in views if view]


def lay_transposed(draw, value):
    if value.dim() < 2:
        return value, None
    a, b = draw.dim(value.dim()), draw.dim(value.dim())
    return value.transpose(a, b), ('transpose', a, b)


def lay_permuted(draw, value):
    if value.dim() == 4 and draw.chance(0.5):
        return value.permute(0, 2, 3, 1), ('permute', (0, 3, 1, 2))
    order = list(range(value.dim()))
    draw.random.shuffle(order)
    return (value.permute(order), ('permute', tuple(order.index(i) for i in range(value.dim())))) \
        if order else (value, None)


def lay_sliced(draw, value):
    if value.dim() == 0:
        return value, None
    dim, step, start = draw.dim(value.dim()), draw.random.randint(1, 3), draw.random.randint(0, 3)
    size = value.shape[dim]
    shape = list(value.shape)
    shape[dim] = start + size * step + draw.random.randint(0, 2)
    whole = torch.full(shape, math.nan if value.dtype.is_floating_point else 0, dtype=value.dtype)
    stop = start + size * step
    index = [slice(None)] * value.dim()
    index[dim] = slice(start, stop, step)
    whole[tuple(index)] = value
    return whole, ('slice', dim, start, stop, step)


def lay_expanded(draw, value):
    if value.dim() == 0 or 0 in value.shape:
        return value, None
    dim = draw.random.randrange(value.dim())
    return value.narrow(dim, 0, 1), ('expand', tuple(value.shape))


def lay_reshaped(draw, value):
    return value.reshape(-1), ('reshape', tuple(value.shape))


LAYOUTS = (lay_transposed, lay_permuted, lay_sliced, lay_sliced, lay_reshaped)
DOMAINS = {
    'normal': lambda x, draw: x * draw.choice(0.1, 1, 1, 3),
    'any': lambda x, draw: x * draw.choice(0.1, 1, 1, 3, 10),
    'small': lambda x, draw: x.clamp(-3, 3),
    'positive': lambda x, draw: x.abs() * draw.choice(0.1, 1, 3) + 0.02,
    'unit': lambda x, draw: torch.special.ndtr(x) * 0.96 + 0.02,
    'signs': lambda x, draw: torch.where(x > 0, 1.0, -1.0),
    'ties': lambda x, draw: (x * 2).round(),
    'ones': lambda x, draw: 1 + 0.2 * x,
}
VIEWS = {  # in PyTorch
    'transpose': lambda x, a, b: x.transpose(a, b),
    'permute': lambda x, order: x.permute(order),
    'slice': lambda x, dim, start, stop, step:
        x[(slice(None),) * (dim % x.dim()) + (slice(start, stop, step),)],
    'expand': lambda x, shape: x.expand(shape),
    'reshape': lambda x, shape: x.reshape(shape),
}


@dataclasses.dataclass
class Input:
    dtype: str
    grad: bool
    base: torch.Tensor
    views: list

    def theirs(self, precision):
        leaf = self.base.to(precision) if self.base.dtype.is_floating_point else self.base.clone()
        leaf.requires_grad_(self.grad)
        value = leaf
        for name, *given in self.views:
            value = VIEWS[name](value, *given)
        return leaf, value

    def ours(self, m):
        leaf = m.tensor(self.base)
        if self.grad:
            m.requires_grad(leaf, True)
        value = leaf
        for name, *given in self.views:
            value = getattr(m, name)(value, *given)
        return leaf, value

    def __str__(self):
        views = ''.join(f'.{name}{given}' for name, *given in self.views)
        return f'{self.dtype}{list(self.base.shape)}{views}'


@dataclasses.dataclass
class Case:
    ours: object    # of the library and our tensors: a tensor or several
    theirs: object  # of theirs
    inputs: list
    result: str = 'same'     # dtype: same as the inputs', fp32 or low inside autocast, or its name
    whole: bool = True       # errors are measured by the largest number of the result, not by each
    k: float = 4             # epsilons of the worst dtype
    autocast: str = None
    grads: bool = True
    flow: float = 4          # gradients inside are larger than those that enter by no more
    refused: bool = False    # by mptrain, as it says
    note: str = ''


def expected_dtype(case, dtypes):
    joined = dtypes[0] if len(set(dtypes)) == 1 else 'f32'
    return {'same': joined, 'fp32': 'f32' if case.autocast else joined,
            'low': case.autocast or joined}.get(case.result, case.result)


def largest(values):
    if not values.dtype.is_floating_point:
        return 0.0
    finite = values[values.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def differs(ours, theirs, dtype, bound_by, floor):
    """What is wrong with the numbers of one tensor, or None. What cancels to `floor` or less has
    the errors of that."""
    eps, whole, k = bound_by
    if ours.shape != theirs.shape:
        return f'shape {list(ours.shape)}, not {list(theirs.shape)}'
    if not ours.dtype.is_floating_point:
        wrong = ours != theirs.to(ours.dtype)
    else:
        limit = torch.finfo(DTYPES[dtype]).max
        got, want = ours.double(), theirs.double()
        scale = min(max(largest(want), floor), limit)
        tiny = torch.finfo(DTYPES[dtype]).smallest_normal
        bound = k * eps * (want.abs() + (scale if whole else 0)) + k * eps * tiny + tiny
        close = (got - want).abs() <= bound
        over = ~got.isfinite() & (want.abs() >= limit * (1 - 8 * eps)) & (got != -want)
        over |= want.isinf() & (got.abs() >= limit * (1 - 8 * eps)) & (got.sign() == want.sign())
        wrong = ~(close | (got == want) | (got.isnan() & want.isnan()) | over)
    if not wrong.any():
        return None
    at = tuple(wrong.nonzero()[0].tolist())
    return (f'at {list(at)} {ours[at].item()!r}, not {theirs[at].item()!r} '
            f'({int(wrong.sum())} of {wrong.numel()})')


def several(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def run_ours(m, case, draw):
    """Results, gradients and what was put into backward."""
    m.scope_begin()
    pairs = [given.ours(m) for given in case.inputs]
    if case.autocast:
        m.autocast_begin(case.autocast)
    outputs = several(case.ours(m, *[value for _, value in pairs]))
    if case.autocast:
        m.autocast_end()
    results = [m.torch(output) for output in outputs]
    entering = [None] * len(outputs)
    if case.grads:
        floats = [i for i, value in enumerate(results) if value.dtype.is_floating_point]
        for i in floats:
            special, draw.special = draw.special, False
            entering[i] = draw.values(tuple(results[i].shape), m.names[m.get_dtype(outputs[i])])
            draw.special = special
            m.backward_from(outputs[i], m.tensor(entering[i]), i != floats[-1])
    grads = [m.torch(m.grad(leaf)) if case.grads and given.grad and m.has_grad(leaf) else None
             for given, (leaf, _) in zip(case.inputs, pairs)]
    m.scope_end()
    return results, grads, entering


def run_theirs(case, precision, entering):
    low = case.result == 'low' and case.autocast
    pairs = [given.theirs(precision) for given in case.inputs]
    # Some of PyTorch's functions are wrong on, or refuse, other memory than contiguous.
    values = [value.contiguous() for _, value in pairs]
    if low:
        values = [value.to(DTYPES[low]).to(precision) if value.dtype.is_floating_point else value
                  for value in values]
    outputs = several(case.theirs(*values))
    # At once: of several passes one may add to a gradient whose memory another leaf's shares.
    entered = [(output, entry.to(output.dtype)) for output, entry in zip(outputs, entering)
               if entry is not None and output.requires_grad]
    if entered:
        torch.autograd.backward(*zip(*entered))
    return [value.detach() for value in outputs], [leaf.grad for leaf, _ in pairs]


class Single:
    """What PyTorch itself makes of a case in fp32 or half; asked where we are outside a bound."""

    def __init__(self, case, entering):
        self.asked, self.values = (case, entering), {}

    def excuses(self, kind, i, got, want):
        """Long sums that cancel: we are at most eight times as far from the truth. The gradient of
        attention takes what a row gives up from its output, which is rounded, as flash attention
        does, where PyTorch's plain path adds it up anew: seven times was seen."""
        if got.dtype not in self.values:
            self.values[got.dtype] = run_theirs(self.asked[0], got.dtype, self.asked[1])
        theirs = self.values[got.dtype][kind][i]
        if theirs is None or not got.isfinite().all():  # sums of what a half cannot hold
            return theirs is not None and not theirs.isfinite().all()
        return got.dtype == torch.float32 and bool(
            (got.double() - want).abs().max() <= 8 * (theirs.double() - want).abs().max())


def compare(m, case, draw):
    """Yields what both sides disagree about."""
    refusal, results, grads, entering = None, [], [], []
    try:
        results, grads, entering = run_ours(m, case, draw)
    except Refused as error:
        refusal = str(error)
    precision = torch.float32 if draw.special else torch.float64
    try:
        wanted, wanted_grads = run_theirs(case, precision, entering)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        if refusal is None:
            yield f'taken here, but by PyTorch refused: {str(error).splitlines()[0]}'
        return
    if refusal is not None:
        if not case.refused:
            yield f'refused: {refusal}'
        return
    if case.refused:
        yield 'not refused'
    if len(results) != len(wanted):
        yield f'{len(results)} results, not {len(wanted)}'
        return
    dtypes = [given.dtype for given in case.inputs if given.dtype in FLOATS] or ['f32']
    names = {dtype: name for name, dtype in DTYPES.items()}
    expected = expected_dtype(case, dtypes)
    eps = max(EPSILON.get(name, 0) for name in [*dtypes, expected, case.autocast])
    sizes = [largest(given.base) for given in case.inputs]
    floor = sizes[0] * sizes[1] if case.result == 'low' else max(sizes) * max(1, case.flow / 4)
    overflowed, single = False, Single(case, entering)
    for i, (got, want) in enumerate(zip(results, wanted)):
        dtype = names[got.dtype]
        if got.dtype.is_floating_point and dtype != expected and expected in FLOATS:
            yield f'result {i}: {dtype}, not {expected}'
        fault = differs(got, want, dtype, (eps, case.whole, case.k), floor)
        if fault and (draw.special or not single.excuses(0, i, got, want)):
            yield f'result {i}: {fault}'
        overflowed |= bool(got.double().isinf().sum() > want.double().isinf().sum())
    if overflowed:  # gradients are made of such results
        return
    floor = case.flow * max((largest(entry) for entry in entering if entry is not None),
                            default=0.0)
    for i, (got, want) in enumerate(zip(grads, wanted_grads)):
        if got is None and (want is None or not want.any()):
            continue
        if got is None or want is None:
            if got is None or got.any():
                yield f'gradient of input {i}: {"none" if got is None else "one"}'
            continue
        fault = differs(got, want, case.inputs[i].dtype, (eps, True, 4 * case.k), floor)
        if fault and (draw.special or not single.excuses(1, i, got, want)):
            yield f'gradient of input {i}: {fault}'
