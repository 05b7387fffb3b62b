"""torch_state.py: whole trainings between mptrain and PyTorch: weights, moments and step counts.

    from torch_state import from_mptrain, to_mptrain
    from_mptrain('run/step-000000001200.safetensors', net, optimizer)
    to_mptrain('template.safetensors', 'new.safetensors', net, optimizer)

The net has the names and shapes of the file's oldest net, the optimizer is that of the file. The
template is a checkpoint of the same training that mptrain has written, as after its first step: it
says all that PyTorch does not know of, such as places of loaders. Needs torch and safetensors."""
from safetensors.torch import load_file, save_file


def moments(file, net):
    """The names of each parameter's state in a file, by PyTorch's number of it."""
    for number, (name, _) in enumerate(net.named_parameters()):
        head = f'mptrain.optimizer.0.net.0.{name}.'
        yield number, {key[len(head):]: key for key in file if key.startswith(head)}


def from_mptrain(path, net, optimizer):
    file, state = load_file(path), optimizer.state_dict()
    net.load_state_dict({key: file[key] for key in net.state_dict()})
    for number, keys in moments(file, net):
        state['state'][number] = {name: file[key].float() for name, key in keys.items()}
    optimizer.load_state_dict(state)


def to_mptrain(template, path, net, optimizer):
    file, state = load_file(template), optimizer.state_dict()['state']
    values = dict(net.state_dict())
    for number, keys in moments(file, net):
        values.update({key: state[number][name] for name, key in keys.items()})
    file.update({key: value.to(file[key].dtype) for key, value in values.items()})
    del file['mptrain.hash']  # of what the template held; a file without it is not checked
    save_file(file, path, metadata={'format': 'pt'})
