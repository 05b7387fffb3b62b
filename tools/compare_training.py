"""compare_training.py: random optimizers and schedules against PyTorch's; steps that are captured,
cut into slices, averaged, saved or run by other numbers of threads against plain ones; image
transforms against plain arithmetic."""
import copy
import ctypes
import math
import os
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

from compare_library import DTYPES, Refused
from compare_models import Net, check, far, no_worse

S = torch.optim.lr_scheduler


def pick(draw, **rows):
    return {key: draw.choice(*values) for key, values in rows.items()}


class Lion(torch.optim.Optimizer):
    """arXiv 2302.06675."""

    def __init__(self, parameters, lr, betas, weight_decay, maximize):
        super().__init__(parameters, {'lr': lr, 'betas': betas, 'weight_decay': weight_decay,
                                      'maximize': maximize})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            first, second = group['betas']
            for p in group['params']:
                if p.grad is None:
                    continue
                grad = -p.grad if group['maximize'] else p.grad
                moment = self.state[p].setdefault('moment', torch.zeros_like(p))
                p.mul_(1 - group['lr'] * group['weight_decay'])
                p.sub_((moment * first + grad * (1 - first)).sign() * group['lr'])
                moment.mul_(second).add_(grad, alpha=1 - second)


def renamed(options, **names):
    return {names.get(key, key): value for key, value in options.items()}


def with_betas(kind):
    def make(parameters, options):
        options = dict(options)
        options['betas'] = options.pop('beta1'), options.pop('beta2')
        return kind(parameters, **options)
    return make


MAXIMIZE = (False, False, True)
DECAY = (0, 0, 0.01, 0.1)
# name: our options, PyTorch's optimizer of parameters and those
OPTIMIZERS = {
    'sgd': (lambda d: {**pick(d, lr=(0.05, 0.01), weight_decay=DECAY, maximize=(False,)),
                       **d.choice(
        {}, {'maximize': True, 'lr': 0.003}, {'momentum': 0.9}, {'momentum': 0.5, 'dampening': 0.1},
        {'momentum': 0.9, 'nesterov': True})}, lambda p, o: torch.optim.SGD(p, **o)),
    'adam': (lambda d: pick(d, lr=(0.01, 0.001), beta1=(0.9, 0.5, 0.0), beta2=(0.999, 0.9),
                            eps=(1e-8, 1e-3), weight_decay=DECAY, amsgrad=(False, True),
                            maximize=MAXIMIZE), with_betas(torch.optim.Adam)),
    'adamw': (lambda d: pick(d, lr=(0.01, 0.001), beta1=(0.9, 0.5), beta2=(0.999, 0.9),
                             eps=(1e-8, 1e-3), weight_decay=DECAY, amsgrad=(False, True),
                             maximize=MAXIMIZE), with_betas(torch.optim.AdamW)),
    'rmsprop': (lambda d: pick(d, lr=(0.01, 0.001), alpha=(0.99, 0.9), eps=(1e-8, 1e-3),
                               weight_decay=DECAY, momentum=(0, 0.9), centered=(False, True),
                               maximize=MAXIMIZE), lambda p, o: torch.optim.RMSprop(p, **o)),
    'adagrad': (lambda d: pick(d, lr=(0.01, 0.1), lr_decay=(0, 0.1), weight_decay=DECAY,
                               initial_accumulator=(0, 0.5), eps=(1e-10, 1e-3), maximize=MAXIMIZE),
                lambda p, o: torch.optim.Adagrad(p, **renamed(
                    o, initial_accumulator='initial_accumulator_value'))),
    'adadelta': (lambda d: pick(d, lr=(1, 0.1), rho=(0.9, 0.5), eps=(1e-6, 1e-3),
                                weight_decay=DECAY, maximize=MAXIMIZE),
                 lambda p, o: torch.optim.Adadelta(p, **o)),
    'lion': (lambda d: pick(d, lr=(1e-3, 1e-2), beta1=(0.9, 0.5), beta2=(0.99, 0.9),
                            weight_decay=DECAY, maximize=MAXIMIZE), with_betas(Lion)),
}
def milestones(draw):
    return sorted(draw.random.sample(range(1, 20), draw.random.randint(1, 4)))


# name: draws our rate's numbers, PyTorch's schedule of the optimizer and those
RATES = {
    'constant_lr': (lambda d: (d.choice(0.5, 0.1, 1), d.random.randint(1, 9)),
                    lambda o, n: S.ConstantLR(o, *n)),
    'linear_lr': (lambda d: (d.choice(0.1, 0.5, 1), d.choice(1, 0.2), d.random.randint(1, 9)),
                  lambda o, n: S.LinearLR(o, *n)),
    'exponential_lr': (lambda d: (d.choice(0.9, 0.5, 1.1),), lambda o, n: S.ExponentialLR(o, *n)),
    'step_lr': (lambda d: (d.random.randint(1, 7), d.choice(0.5, 0.1)),
                lambda o, n: S.StepLR(o, *n)),
    'multi_step_lr': (lambda d: (milestones(d), d.choice(0.5, 0.1)),
                      lambda o, n: S.MultiStepLR(o, *n)),
    'polynomial_lr': (lambda d: (d.random.randint(1, 15), d.choice(1, 2, 0.5)),
                      lambda o, n: S.PolynomialLR(o, *n)),
    'cosine_lr': (lambda d: (d.random.randint(1, 30), d.choice(0, 1e-3)),
                  lambda o, n: S.CosineAnnealingLR(o, *n)),
    'cosine_restarts_lr': (lambda d: (d.random.randint(1, 9), d.random.randint(1, 2),
                                      d.choice(0, 1e-3)),
                           lambda o, n: S.CosineAnnealingWarmRestarts(o, *n)),
}


def our_rate(m, name, numbers):
    if name == 'multi_step_lr':
        return m.multi_step_lr((ctypes.c_int64 * len(numbers[0]))(*numbers[0]), len(numbers[0]),
                               numbers[1])
    return getattr(m, name)(*numbers)


class Schedule:
    """A schedule of any kind on both sides."""

    def __init__(self, draw):
        self.form = draw.choice('one', 'one', 'one', 'sequential', 'chained', 'one_cycle')
        count = 1 if self.form == 'one' else draw.random.randint(2, 3)
        names = [name for name in RATES if self.form != 'chained' or 'cosine' not in name]
        self.parts = [(name, RATES[name][0](draw)) for name in draw.random.choices(names, k=count)]
        self.at = sorted(draw.random.sample(range(1, 20), count - 1))
        self.cycle = {'max_lr': draw.choice(0.02, 0.005), 'total': draw.random.randint(25, 40),
                      'pct_start': draw.choice(0.3, 0.5), 'div_factor': draw.choice(25, 10),
                      'linear': draw.chance(0.5), 'three_phase': draw.chance(0.5),
                      'cycle_momentum': False}

    def ours(self, m, optimizer, unit):
        if self.form == 'one_cycle':
            return m.one_cycle(optimizer, m.one_cycle_config(**self.cycle), unit)
        rates = [our_rate(m, *part) for part in self.parts]
        if self.form == 'one':
            return m.schedule_create(optimizer, rates[0], unit)
        listed = self.listed(m, rates)
        if self.form == 'chained':
            return m.chained_lr(optimizer, listed, len(rates), unit)
        at = (ctypes.c_int64 * len(self.at))(*self.at)
        return m.sequential_lr(optimizer, listed, len(rates), at, unit)

    @staticmethod
    def listed(m, rates):
        return (m.header.types['mpt_rate'] * len(rates))(*rates)

    def theirs(self, optimizer):
        if self.form == 'one_cycle':
            c = dict(self.cycle, total_steps=self.cycle['total'],
                     anneal_strategy='linear' if self.cycle['linear'] else 'cos')
            del c['total'], c['linear']
            return S.OneCycleLR(optimizer, **c)
        made = [RATES[name][1](optimizer, numbers) for name, numbers in self.parts]
        if self.form == 'one':
            return made[0]
        if self.form == 'chained':
            return S.ChainedScheduler(made, optimizer=optimizer)
        return S.SequentialLR(optimizer, made, self.at)

    def __str__(self):
        return f'{self.form} {self.cycle if self.form == "one_cycle" else self.parts} at {self.at}'


class Problem:
    """Two layers whose gradients stay away from 0."""

    def __init__(self, draw):
        self.sizes = draw.random.randint(1, 9), draw.random.randint(1, 40)
        generator = draw.torch
        self.theirs = nn.Sequential(nn.Linear(self.sizes[0], self.sizes[1]), nn.Tanh(),
                                    nn.Linear(self.sizes[1], 2))
        for parameter in self.theirs.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        self.start = {k: v.clone() for k, v in self.theirs.state_dict().items()}
        self.x = torch.randn(8, self.sizes[0], generator=generator)
        self.y = torch.randn(8, 2, generator=generator)
        self.theirs.double()

    def build(self, m, values=None):
        made = [m.nn_linear(*self.sizes), m.nn_tanh(), m.nn_linear(self.sizes[1], 2)]
        net = m.sequential_array(m.array(made, 'module'), 3)
        for name, value in (values or self.start).items():
            m.write_tensor(m.parameter(net, name), value)
        return net


class Theirs:
    """PyTorch's side of an optimizer's run, in double or in fp32."""

    def __init__(self, net, name, options, group, clip, limit):
        self.net, self.clip, self.limit = net, clip, limit
        groups = [{'params': list(net.parameters())}]
        if group:
            path, own = group
            parameter = dict(net.named_parameters())[path]
            groups = [{'params': [p for p in net.parameters() if p is not parameter]},
                      {'params': [parameter], **own}]
        self.optimizer = OPTIMIZERS[name][1](groups, options)
        self.scaler = torch.amp.GradScaler('cpu', 1024, growth_interval=3)
        self.schedule = None

    def step(self, x, y, broken, settles):
        """settles: whether the schedule moves with this step."""
        dtype = next(self.net.parameters()).dtype
        self.optimizer.zero_grad()
        self.scaler.scale(F.mse_loss(self.net(x.to(dtype)), y.to(dtype))).backward()
        self.scaler.unscale_(self.optimizer)
        if self.clip == 'value':
            nn.utils.clip_grad_value_(self.net.parameters(), self.limit)
        elif self.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.limit,
                                     math.inf if self.clip == 'norm p' else 2)
        if broken:
            self.scaler._found_inf_per_device = None
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.schedule and settles:
            self.schedule.step()


@check('optimizer')
def _(m, draw):
    given, name = Problem(draw), draw.choice(*OPTIMIZERS)
    options = OPTIMIZERS[name][0](draw)
    net = given.build(m)
    optimizer = getattr(m, name)(net, getattr(m, name + '_config')(**options))
    group = None
    if draw.chance(0.5):
        own = {'lr': draw.choice(0.01, 0.003), 'weight_decay': draw.choice(0, 0.05)}
        group = draw.choice('2.weight', '0.bias'), own
        m.optimizer_add(optimizer, net, group[0], m.make('group_config', **own))
    # Up the gradient at a high rate nothing would stay finite.
    schedule = Schedule(draw) if draw.chance(0.5) and not options['maximize'] else None
    unit = draw.choice(0, 1)
    scheduled = schedule.ours(m, optimizer, unit) if schedule else None
    scaled = draw.chance(0.4)
    scaler = m.grad_scaler(m.scaler_config(init_scale=1024, growth_interval=3)) if scaled else None
    clip, limit = draw.choice(None, 'norm', 'value', 'norm p'), draw.choice(0.05, 1)
    exact, single = [Theirs(their, name, options, group, clip, limit) for their in
                     (given.theirs, copy.deepcopy(given.theirs).float())]
    for their in (exact, single):
        their.schedule = schedule.theirs(their.optimizer) if schedule else None
    text = (f'{name} {options} groups {1 + bool(group)} {schedule} unit {unit} scaled {scaled} '
            f'{clip} {limit}')
    for step in range(20):
        broken = scaled and draw.chance(0.1)
        x = given.x * math.inf if broken else given.x
        m.step_begin()
        loss = m.mse_loss(m.forward(net, m.tensor(x)), m.tensor(given.y), 0)
        m.zero_grad(optimizer)
        m.backward(m.scale_loss(scaler, loss) if scaled else loss)
        if scaled:
            m.unscale(scaler, optimizer)
        if clip:
            {'norm': lambda: m.clip_grad_norm(optimizer, limit),
             'norm p': lambda: m.clip_grad_norm_p(optimizer, limit, math.inf),
             'value': lambda: m.clip_grad_value(optimizer, limit)}[clip]()
        if scaled:
            m.scaler_step(scaler, optimizer)
            m.scaler_update(scaler)
        else:
            m.step(optimizer)
        m.step_end()
        for their in (exact, single):
            their.step(x, given.y, broken, not (broken and unit == 0))
        if schedule and unit == 1:
            m.schedule_step(scheduled)
        for i, of_group in enumerate(exact.optimizer.param_groups):
            rate = m.get_lr(optimizer, i)
            if not abs(rate - of_group['lr']) <= 1e-6 * abs(of_group['lr']) + 1e-12:
                yield f'{text}: step {step}: rate {rate}, not {of_group["lr"]}'
                return
        for path, value in exact.net.state_dict().items():
            got, peer = m.torch(m.parameter(net, path)), single.net.state_dict()[path]
            if name == 'lion':  # up or down by the rate: where a sum is almost 0, roundings say
                settled = (got - value).abs() < 0.5 * exact.optimizer.param_groups[-1]['lr']
                if settled.float().mean() > 0.9:
                    got = torch.where(settled, got.double(), value)
            if far(got, value, 1e-3) and not no_worse(got, peer, value):
                yield f'{text}: step {step}: {path} {got.flatten()[:3].tolist()}, not ' \
                      f'{value.flatten()[:3].tolist()}'
                return
    if scaled and m.get_scale(scaler) != exact.scaler.get_scale():
        yield f'{text}: scale {m.get_scale(scaler)}, not {exact.scaler.get_scale()}'
    if scheduled:
        m.schedule_destroy(scheduled)
    if scaler:
        m.scaler_destroy(scaler)
    m.optimizer_destroy(optimizer)
    m.module_destroy(net)


# ==== The same bits another way ==================================================================

class Training:
    """A net, an optimizer, maybe a scaler and a schedule, and a step of them."""

    def __init__(self, m, draw_values, given, schedule=None):
        self.m, self.given, self.low = m, given, draw_values['low']
        self.values = draw_values
        self.net = given.build(m, fp8=draw_values['fp8'])
        if draw_values['half']:
            m.half(self.net, draw_values['half'])
        name = draw_values['optimizer']
        self.optimizer = getattr(m, name)(self.net, getattr(m, name + '_config')(
            **draw_values['options']))
        m.error_if_nonfinite(self.optimizer, False)  # some draws diverge, and are to do so alike
        self.scaler = m.grad_scaler(m.scaler_config(
            init_scale=draw_values['scale'], growth_interval=2)) if draw_values['scaled'] else None
        self.schedule = schedule.ours(m, self.optimizer, 0) if schedule else None
        self.function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
                                         *[m.header.types['mpt_tensor']] * 2)(self.captured)

    def captured(self, context, user, x, y):
        try:
            self.step(x, y)
        except Exception:
            return 1
        return 0

    def step(self, x, y, fails=0):
        """fails: after how many of its parts it is refused something."""
        m, parts = self.m, iter(range(99))

        def part():
            if fails and next(parts) == fails:
                m.reshape(x, (7919,))
        m.step_begin()
        m.zero_grad(self.optimizer)
        part()
        for _ in range(self.values['times']):
            if self.low:
                m.autocast_begin(self.low)
            if self.values['recompute']:
                m.recompute_begin()
            given = m.cast(x, self.values['half']) if self.values['half'] else x
            out = m.forward(self.net, m.to_channels_last(given) if self.values['last'] else given)
            if self.values['recompute']:
                m.recompute_end()
            part()
            loss = m.cross_entropy(out, y, None)
            if self.low:
                m.autocast_end()
            part()
            m.backward(m.scale_loss(self.scaler, loss) if self.scaler else loss)
            part()
        if self.scaler:
            m.unscale(self.scaler, self.optimizer)
            part()
        if self.values['clip']:
            m.clip_grad_norm(self.optimizer, 0.5)
        part()
        if self.scaler:
            m.scaler_step(self.scaler, self.optimizer)
            m.scaler_update(self.scaler)
        else:
            m.step(self.optimizer)
        m.step_end()

    def hashes(self):
        return (self.m.module_hash(self.net), self.m.optimizer_hash(self.optimizer),
                self.m.get_scale(self.scaler) if self.scaler else 1,
                self.m.get_lr(self.optimizer, 0))


def training_values(draw, given):
    name = draw.choice(*OPTIMIZERS)
    half = draw.choice(None, None, 'f16', 'bf16')
    options = OPTIMIZERS[name][0](draw)
    if half == 'bf16' and draw.chance(0.5):
        options['stochastic_rounding'] = True
    return {'low': draw.choice(None, 'f16', 'bf16'), 'optimizer': name, 'half': half,
            'fp8': not half and draw.chance(0.2), 'options': options, 'scaled': draw.chance(0.5),
            'scale': draw.choice(1024.0, 2.0 ** 24), 'times': draw.choice(1, 1, 2),
            'recompute': draw.chance(0.3), 'clip': draw.chance(0.4),
            'last': given.rank == 4 and draw.chance(0.5)}


@check('steps')
def _(m, draw):
    """By hand, captured, cut into slices, by one thread, and looked at on the way."""
    given, seed = Net(draw, dropout=draw.choice(0, 0.3)), draw.random.getrandbits(30)
    values = training_values(draw, given)
    schedule = Schedule(draw) if draw.chance(0.5) else None
    ways = {'by hand': {}, 'captured': {'debug': draw.chance(0.2)}, 'in slices': {},
            'by one thread': {'threads': 1},
            draw.choice('in anomaly mode', 'in debug', 'traced'): {}}
    runs = {}
    for key, way in ways.items():
        own = m.sibling(**{'seed': seed, 'threads': 2, 'debug': key == 'in debug', **way})
        if key == 'in anomaly mode':
            own.anomaly_mode(True)
        if key == 'traced':
            own.trace_nan(True)
        runs[key] = Training(own, values, given, schedule)
    captures = {key: runs[key].m.capture(runs[key].function, None)
                for key in ('captured', 'in slices')}
    for step in range(6):
        batch = torch.randn(given.shape, generator=draw.torch)
        if values['scaled'] and draw.chance(0.15):
            batch = batch * math.inf
        for key, run in runs.items():
            x, y = run.m.tensor(batch), run.m.tensor(given.y)
            if key == 'captured':
                run.m.captured_step(captures[key], x, y)
            elif key == 'in slices':
                done = ctypes.c_bool(False)
                while not done.value:
                    run.m.step_slice(captures[key], x, y, draw.choice(0, 1e-5), ctypes.byref(done))
            else:
                run.step(x, y)
        wanted = runs['by hand'].hashes()
        wrong = [key for key, run in runs.items() if run.hashes() != wanted]
        if wrong:
            yield f'{given} {values} {schedule}: step {step} {wrong}'
            break
    for run in runs.values():
        run.m.close()


@check('errors')
def _(m, draw):
    """A step that fails and is done again leaves the bits that it would have left at once."""
    given = Net(draw, dropout=draw.choice(0, 0.3))
    values = training_values(draw, given)
    schedule, seed = Schedule(draw) if draw.chance(0.5) else None, draw.random.getrandbits(30)
    contexts = [m.sibling(threads=1, seed=seed) for _ in range(2)]
    runs = [Training(context, values, given, schedule) for context in contexts]
    failures = []
    for step in range(6):
        batch = torch.randn(given.shape, generator=draw.torch)
        runs[0].step(contexts[0].tensor(batch), contexts[0].tensor(given.y))
        if draw.chance(0.5):
            failures.append((step, draw.random.randint(1, 6)))
            try:
                runs[1].step(contexts[1].tensor(batch), contexts[1].tensor(given.y),
                             failures[-1][1])
            except Refused:
                runs[1].step(contexts[1].tensor(batch), contexts[1].tensor(given.y))
        else:
            runs[1].step(contexts[1].tensor(batch), contexts[1].tensor(given.y))
        if runs[0].hashes() != runs[1].hashes():
            yield (f'{given} {values} {schedule}: step {step} with failures {failures}: '
                   f'{runs[1].hashes()}, not {runs[0].hashes()}')
            break
    for context in contexts:
        context.close()


@check('files')
def _(m, draw):
    """What a file gives back has the bits of what was saved; so has what goes on from there."""
    given = Net(draw)
    net, other = given.build(m), given.build(m)
    low = draw.choice(None, None, 'f16', 'bf16')
    if low:
        m.half(net, low), m.half(other, low)
    if draw.chance(0.5):
        m.set_init(other, None, m.init_make(m.constant('INIT_NORMAL'), 0, 1))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'net.safetensors')
        m.step_begin()
        m.forward(net, m.tensor(given.x.to(DTYPES[low or 'f32'])))  # running statistics
        m.step_end()
        m.save(net, path)
        m.load(other, path, None, None)
        if m.module_hash(net) != m.module_hash(other):
            yield f'{given}: {low}: other bits after mpt_load'
        first = m.parameter_at(other, 0, None, 0)
        m.write_tensor(first, torch.zeros_like(m.torch(first)))
        with open(path, 'rb') as file:
            data = file.read()
        m.load_memory(other, data, len(data), None, None)
        if m.module_hash(net) != m.module_hash(other):
            yield f'{given}: other bits after mpt_load_memory'
    m.copy_module(other, net)
    if m.module_hash(net) != m.module_hash(other):
        yield f'{given}: other bits after mpt_copy_module'
    m.module_destroy(net)
    m.module_destroy(other)


@check('schedule')
def _(m, draw):
    """Over its whole life, with a new schedule that goes on in the middle."""
    given, schedule, base = Problem(draw), Schedule(draw), draw.choice(0.1, 0.003)
    net, unit = given.build(m), draw.choice(0, 1)
    optimizer = m.sgd(net, m.sgd_config(lr=base))
    their = torch.optim.SGD(given.theirs.parameters(), lr=base)
    ours, theirs = schedule.ours(m, optimizer, unit), schedule.theirs(their)
    resume = draw.random.randint(1, 20)
    cycle = schedule.cycle['total'] - 1 if schedule.form == 'one_cycle' else 45
    for step in range(cycle):
        if not abs(m.get_lr(optimizer, 0) - their.param_groups[0]['lr']) <= 2e-6 * base:
            yield (f'{schedule} base {base} unit {unit} resume {resume}: t {step}: '
                   f'{m.get_lr(optimizer, 0)}, not {their.param_groups[0]["lr"]}')
            break
        m.step_begin()
        m.zero_grad(optimizer)
        m.backward(m.mse_loss(m.forward(net, m.tensor(given.x)), m.tensor(given.y), 0))
        m.step(optimizer)
        m.step_end()
        if unit == 1:
            m.schedule_step(ours)
        their.step()
        theirs.step()
        if step == resume:
            state = m.schedule_get_state(ours)
            m.schedule_destroy(ours)
            m.set_lr(optimizer, 0, base)
            ours = schedule.ours(m, optimizer, unit)
            m.schedule_set_state(ours, state)
    m.schedule_destroy(ours)
    m.optimizer_destroy(optimizer)
    m.module_destroy(net)


@check('plateau')
def _(m, draw):
    given, base = Problem(draw), 0.1
    net = given.build(m)
    options = pick(draw, factor=(0.5, 0.1), patience=(0, 1, 3), threshold=(1e-4, 0.1),
                   cooldown=(0, 2), min_lr=(0, 0.01), eps=(1e-8, 1e-2))
    absolute, maximize = draw.chance(0.5), draw.chance(0.5)
    optimizer = m.sgd(net, m.sgd_config(lr=base))
    their = torch.optim.SGD(given.theirs.parameters(), lr=base)
    ours = m.reduce_on_plateau(optimizer, m.make('plateau_config', absolute=absolute,
                                                 maximize=maximize, **options))
    theirs = S.ReduceLROnPlateau(their, 'max' if maximize else 'min', threshold_mode='abs'
                                 if absolute else 'rel', **options)
    value, values = 1.0, []
    for step in range(30):
        value += draw.choice(0.3, -0.3, 1e-5, -1e-5, 0, 0, 0)
        values.append(math.nan if draw.chance(0.03) else value)
        m.schedule_metric(ours, values[-1])
        theirs.step(values[-1])
        got, want = m.get_lr(optimizer, 0), their.param_groups[0]['lr']
        if not abs(got - want) <= 1e-6 * want + 1e-12:
            yield f'{options} absolute {absolute} maximize {maximize} {values}: {got}, not {want}'
            break
    m.schedule_destroy(ours)
    m.optimizer_destroy(optimizer)
    m.module_destroy(net)


@check('average')
def _(m, draw):
    """mpt_ema against AveragedModel."""
    given, decay = Problem(draw), draw.choice(0.5, 0.9, 0.999)
    equal = draw.chance(0.4)
    net = given.build(m)
    optimizer = m.sgd(net, m.sgd_config(lr=0.05))
    ema = m.ema_create(net, optimizer, m.ema_config(decay=decay, equal=equal))
    swa = torch.optim.swa_utils
    theirs = swa.AveragedModel(given.theirs, **({} if equal else {
        'multi_avg_fn': swa.get_ema_multi_avg_fn(decay)}))
    their = torch.optim.SGD(given.theirs.parameters(), lr=0.05)
    for _ in range(draw.random.randint(1, 8)):
        m.step_begin()
        m.zero_grad(optimizer)
        m.backward(m.mse_loss(m.forward(net, m.tensor(given.x)), m.tensor(given.y), 0))
        m.step(optimizer)
        m.ema_update(ema)
        m.step_end()
        their.zero_grad()
        F.mse_loss(given.theirs(given.x.double()), given.y.double()).backward()
        their.step()
        theirs.update_parameters(given.theirs)
    before = m.module_hash(net)
    m.ema_apply(ema)
    for name, value in theirs.module.state_dict().items():
        if far(m.torch(m.parameter(net, name)), value, 1e-4):
            yield f'decay {decay} equal {equal}: {name}'
    m.ema_restore(ema)
    if m.module_hash(net) != before:
        yield 'other bits after mpt_ema_restore'
    m.ema_destroy(ema)
    m.optimizer_destroy(optimizer)
    m.module_destroy(net)
