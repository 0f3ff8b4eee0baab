"""Recorder of a training's steps, which runs in the processes of the checked script.

The recorder changes nothing that the training computes: it reads tensors and generators, and draws no random
numbers. It uses hooks that torch calls for every optimizer, and it wraps two functions of torch through which
every framework goes: `Module.__call__` and `autograd.backward`. It writes two lines of JSON for each
optimizer step, and hands them to the kernel at once, so that a kill loses no line. This file uses only the
standard library and torch, see `inject/sitecustomize.py`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = "CHECK_RESUME_FOLDER"
"""Environment variable with the folder of the attempt: `plan.json`, and a file of records for each process.

Its value also marks the processes of an attempt."""

_DIGEST_BYTES = 8


def install() -> None:
    """Install the recorder's hooks in torch, which has just been imported."""
    import torch
    from torch.optim import optimizer

    torch_: Any = torch  # torch does not declare that its functions can be replaced.
    recorder = Recorder(Path(os.environ[FOLDER]))
    optimizer.register_optimizer_step_pre_hook(recorder.before_step)
    optimizer.register_optimizer_step_post_hook(recorder.after_step)
    backward, forward = torch_.autograd.backward, torch_.nn.Module.__call__

    @functools.wraps(forward)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if torch_.compiler.is_compiling() or torch_.jit.is_tracing():
            return forward(module, *args, **kwargs)
        with recorder.forward(module, (args, kwargs)):
            return forward(module, *args, **kwargs)

    @functools.wraps(backward)
    def differentiate(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        with recorder.backward(tensors):
            return backward(tensors, *args, **kwargs)

    torch_.nn.Module.__call__, torch_.autograd.backward = call, differentiate


class Recorder:
    """Records of this process, or of a process that is forked from it.

    Args:
        folder: folder of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._step = 0
        self._stopping = False
        self._depth = 0
        self._in_backward = False
        self._open: Any = None
        self._used: dict[str, list[Any]] = {"batches": [], "modules": [], "losses": []}

    @contextlib.contextmanager
    def forward(self, module: Any, inputs: object) -> Iterator[None]:
        """Record the samples that an outermost module receives while it trains."""
        import torch

        # Modules that run within backward compute activations again, from samples that are recorded already.
        is_first = self._depth == 0 and not self._in_backward
        if is_first and module.training and torch.is_grad_enabled() and (rows := rows_of(inputs)):
            self._used["batches"].append(rows)
            self._used["modules"].append(type(module).__name__)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextlib.contextmanager
    def backward(self, tensors: Any) -> Iterator[None]:
        """Record the losses of a backward pass that is not part of another one."""
        is_outer, self._in_backward = not self._in_backward, True
        if is_outer:
            losses = [tensors] if hasattr(tensors, "detach") else tensors
            self._used["losses"] += [float(_local(loss).double().sum()) for loss in losses]
        try:
            yield
        finally:
            self._in_backward = not is_outer

    def before_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Record the state with which a step begins, and end the attempt here if this is planned."""
        if self._pid != os.getpid():
            self._begin_process()
        if self._open not in (None, optimizer):
            return  # The open optimizer wraps this one.
        self._open = optimizer
        if all(optimizer is not known for known in self._optimizers):
            self._optimizers.append(optimizer)
        number = next(n for n, known in enumerate(self._optimizers) if known is optimizer)
        self._live.update(self._optimizers)
        names = self._live.parameter_names()
        weights = weights_of(optimizer)
        steps = self._plan["weights"].get("".join(weights), [1])
        self._step = self._step + 1 if self._step else max(steps)
        self._write(
            optimizer=number,
            optimizer_class=type(optimizer).__name__,
            names=[names.get(id(p), str(place)) for place, p in enumerate(_parameters(optimizer))],
            weights=weights,
            sizes=[float(_local(parameter).double().norm()) for parameter in _parameters(optimizer)],
            state=state_of(optimizer),
            options=[_settings(group) for group in optimizer.param_groups],
            beside=self._live.beside(self._optimizers),
        )
        if self._step > self._plan["stop"] and not self._stopping:
            self._stopping = True
            self._stop()

    def after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Record what a step has used: samples, losses, and the generators' states after it."""
        if optimizer is self._open:
            self._open = None
            self._write(result=weights_of(optimizer), generators=generators(), **self._used)
            self._used = {name: [] for name in self._used}

    def _begin_process(self) -> None:
        """Begin the records of this process, which may be a fork of one with records of its own."""
        import torch.distributed as dist

        self._pid, self._open = os.getpid(), None
        self._step, self._stopping = 0, False
        self._optimizers: list[Any] = []
        self._live = LiveState()
        self._plan: dict[str, Any] = json.loads((self._folder / "plan.json").read_text())
        self._rank, self._world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if dist.is_available() and dist.is_initialized():
            self._rank, self._world_size = dist.get_rank(), dist.get_world_size()

    def _write(self, **values: object) -> None:
        values |= {"step": self._step, "rank": self._rank, "world_size": self._world_size}
        with open(self._folder / f"records-{self._pid}.jsonl", "ab", buffering=0) as file:
            file.write((json.dumps(values) + "\n").encode())

    def _stop(self) -> None:
        """Send the planned signal: SIGKILL to all processes of the attempt, others to its first process."""
        (self._folder / "stopped").touch()
        number = signal.Signals[self._plan["signal"]]
        if number == signal.SIGKILL:
            others = [pid for pid in marked(str(self._folder)) if pid != self._pid]
            targets = [*others, self._pid]
        else:
            targets = [int((self._folder / "pid").read_text())] if self._rank == 0 else []
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def marked(folder: str) -> list[int]:
    """Return the pids of all processes of the attempt in `folder`."""
    wanted = f"{FOLDER}={folder}".encode()
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        # A process may have ended, or belong to a different user.
        with contextlib.suppress(OSError):
            if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


# -- fingerprints -----------------------------------------------------------------------------


def _local(tensor: Any) -> Any:
    """Return a tensor's values, without its gradient; for a sharded tensor, this rank's shard."""
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _bytes(tensor: Any) -> Any:
    """Return the bytes of a tensor as an array with one row for each index of its first dimension."""
    import torch

    tensor = _local(tensor).cpu().contiguous()
    rows = tensor.shape[0] if tensor.ndim else 1
    flat = tensor.reshape(rows, -1) if tensor.numel() else torch.empty(rows, 0)
    return flat.view(torch.uint8).numpy()


def fingerprint(*values: Any) -> str:
    """Return a short hash of tensors, bytes, arrays of bytes, or other values by their `repr`."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for value in values:
        if hasattr(value, "detach"):
            value = _bytes(value)
        digest.update(value if hasattr(value, "nbytes") else repr(value).encode())
    return digest.hexdigest()


def _tensors(value: Any) -> Iterator[Any]:
    """Yield the tensors in nested containers that hold data, and no results of the model."""
    if hasattr(value, "detach"):
        if value.ndim and not (value.requires_grad or value.is_meta or value.is_sparse or value.is_nested):
            yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def rows_of(inputs: object) -> list[str]:
    """Return a hash for each sample: the rows of all tensors that are as long as the first one."""
    tensors = list(_tensors(inputs))
    arrays = [_bytes(tensor) for tensor in tensors if len(tensor) == len(tensors[0])]
    return [fingerprint(*rows) for rows in zip(*arrays, strict=True)]


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def weights_of(optimizer: Any) -> list[str]:
    """Return a hash of each parameter."""
    return [fingerprint(parameter) for parameter in _parameters(optimizer)]


def state_of(optimizer: Any) -> dict[str, str]:
    """Return a hash of each kind of an optimizer's state, such as `exp_avg`, over all parameters."""
    kinds: dict[str, list[Any]] = {}
    for number, parameter in enumerate(_parameters(optimizer)):
        for name, value in optimizer.state.get(parameter, {}).items():
            # The number of steps may be a tensor or a plain number. LBFGS has lists of tensors.
            parts = value if isinstance(value, list) else [value]
            plain = [float(part) if getattr(part, "numel", int)() == 1 else part for part in parts]
            kinds.setdefault(str(name), []).extend([number, *plain])
    return {name: fingerprint(*parts) for name, parts in kinds.items()}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers in a parameter group, such as `lr` and `betas`."""
    tensors = {name: float(v) for name, v in group.items() if getattr(v, "numel", int)() == 1}
    return tensors | {name: v for name, v in group.items() if isinstance(v, (int, float, tuple))}


def generators() -> dict[str, str]:
    """Return a hash of the state of each global random number generator of this process."""
    import torch

    states: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = [repr(part) for part in sys.modules["numpy"].random.get_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states |= {f"cuda:{n}": torch.cuda.get_rng_state(n) for n in range(torch.cuda.device_count())}
    return {name: fingerprint(state) for name, state in states.items()}


class LiveState:
    """Modules of this process, and dictionaries and lists that may hold copies of a model's weights.

    Python's garbage collector knows all of them. At the first step, they are frozen, so that a later step
    has to look through newer objects only.
    """

    def __init__(self) -> None:
        self._modules: list[Any] = []
        self._copies: list[Any] = []

    def update(self, optimizers: list[Any]) -> None:
        """Look for new objects, and forget those to which only this object still refers."""
        import torch

        live = gc.get_objects()
        if not self._modules:
            gc.freeze()
        own_references = 3
        kept = [each for each in self._modules if sys.getrefcount(each) > own_references]
        copies = [each for each in self._copies if sys.getrefcount(each) > own_references]
        new = [each for each in live if issubclass(type(each), torch.nn.Module) and "_modules" in vars(each)]
        self._modules = list({id(module): module for module in [*kept, *new]}.values())
        names = {name.removeprefix("module.") for name in self.parameter_names().values()}
        shapes = [[p.shape for p in _parameters(optimizer)] for optimizer in optimizers]
        lengths = {len(each) for each in shapes}
        for each in live:
            if type(each) is list and len(each) in lengths:
                if [getattr(item, "shape", None) for item in each] in shapes:
                    copies.append(each)
            elif issubclass(type(each), dict) and each and all(_is_in(names, key) for key in each):
                copies.append(each)
        self._copies = list({id(each): each for each in copies}.values())

    def _roots(self) -> list[Any]:
        """Return the modules that belong to no other module."""
        inner = {id(child) for module in self._modules for child in module._modules.values()}
        return [module for module in self._modules if id(module) not in inner]

    def parameter_names(self) -> dict[int, str]:
        """Return the name of each parameter of a module, by its id."""
        return {id(p): name for module in self._roots() for name, p in module.named_parameters()}

    def beside(self, optimizers: list[Any]) -> list[tuple[str, str]]:
        """Return names and hashes of the state that is in no optimizer: buffers, and copies of the weights.

        A copy of the weights, such as their moving average (EMA), is a module, a dictionary with the names
        of parameters, or a list with their shapes.
        """
        known = {_local(p).data_ptr() for optimizer in optimizers for p in _parameters(optimizer)}
        found: list[tuple[str, Any]] = []
        for module in self._roots():
            tensors = dict(module.named_parameters())
            tensors |= {name: buffer for name, buffer in module.named_buffers() if _is_saved(module, name)}
            found += [(f"{type(module).__name__}.{name}", tensor) for name, tensor in tensors.items()]
        for each in self._copies:
            named = each.items() if isinstance(each, dict) else enumerate(each)
            found += [(f"{type(each).__name__}[{name!r}]", tensor) for name, tensor in named]
        return [(name, fingerprint(tensor)) for name, tensor in found if _is_state(tensor, known)]


def _is_in(names: set[str], key: object) -> bool:
    return type(key) is str and key.removeprefix("module.") in names


def _is_state(tensor: Any, known: set[int]) -> bool:
    """Return True for a tensor with values of its own, which is no parameter of an optimizer."""
    is_own = hasattr(tensor, "detach") and not tensor.is_meta and tensor.grad_fn is None
    return is_own and _local(tensor).data_ptr() not in known


def _is_saved(module: Any, name: str) -> bool:
    """Return False for a buffer that `state_dict` leaves out."""
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set
