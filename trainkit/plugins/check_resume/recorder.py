"""Recorder of a training's steps, which runs in the processes of the checked script.

The recorder changes nothing that the training computes: it reads tensors and generators, and draws no random
numbers. The recorder uses hooks that torch calls for every optimizer, and wraps two functions of torch that
every framework uses: `Module.__call__` and `autograd.backward`. For each optimizer step, the recorder writes
a line of JSON, and hands the line to the kernel at once, so that a kill loses no line. This file uses only
the standard library and torch, see `inject/sitecustomize.py`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = "CHECK_RESUME_FOLDER"
"""Environment variable with the folder of the attempt, which contains `plan.json` and a file of records for
each process.

Its value also marks the processes of an attempt."""

_DIGEST_BYTES = 8
_FORWARD, _BACKWARD = 1, 2


def install() -> None:
    """Install the recorder's hooks in torch, which has just been imported."""
    import torch
    from torch.optim import optimizer

    recorder = Recorder(Path(os.environ[FOLDER]))
    optimizer.register_optimizer_step_pre_hook(recorder.before_step)
    optimizer.register_optimizer_step_post_hook(recorder.after_step)
    recorder.watch(torch.nn.Module, "__call__", _FORWARD, recorder.record_inputs)
    recorder.watch(torch.autograd, "backward", _BACKWARD, recorder.record_losses)


class Recorder:
    """Records of this process, or of a process that is forked from it.

    Args:
        folder: folder of the attempt.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Begin the records of a process."""
        self._level = 0
        self._step = 0
        self._last = math.inf
        self._open: Any = None
        self._record: dict[str, Any] = {}
        self._used: dict[str, list[Any]] = {"batches": [], "losses": []}
        self._optimizers: list[Any] = []
        self._live = LiveState()

    def watch(self, owner: Any, name: str, level: int, record: Callable[..., None]) -> None:
        """Wrap a function of torch, so that `record` gets the arguments of its outermost calls.

        A call is recorded only if no call of the same or of a higher level is in progress. This condition
        leaves out the calls of a model's parts, and the calls of modules by a backward pass that computes
        activations of recorded samples again.
        """
        import torch

        torch_: Any = torch  # torch does not declare the types of all its functions.
        function = getattr(owner, name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch_.compiler.is_compiling() or torch_.jit.is_tracing() or self._level >= level:
                return function(*args, **kwargs)
            outer, self._level = self._level, level
            try:
                record(*args, **kwargs)
                return function(*args, **kwargs)
            finally:
                self._level = outer

        setattr(owner, name, call)

    def record_inputs(self, module: Any, *args: Any, **kwargs: Any) -> None:
        """Record the samples that a module receives while it trains."""
        import torch

        if module.training and torch.is_grad_enabled() and (rows := rows_of((args, kwargs))):
            self._used["batches"].append((type(module).__name__, rows))

    def record_losses(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        """Record the losses of a backward pass."""
        losses = [tensors] if hasattr(tensors, "detach") else tensors
        self._used["losses"] += [float(_local(loss).double().sum()) for loss in losses]

    def before_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Keep the state with which a step begins, or end the attempt if this step is the planned end."""
        if self._open not in (None, optimizer):
            return  # The optimizer of the open step wraps this optimizer.
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        weights = weights_of(optimizer)
        if not self._step:
            self._step = self._plan["weights"].get("".join(weights), 1) - 1
            self._last = max(self._plan["stop"], self._step + 1)
        self._step += 1
        if self._step > self._last:
            self._last = math.inf
            self._stop()
        names, beside = self._live.look(self._optimizers)
        self._open = optimizer
        self._record = {
            **self._ranks(),
            "optimizer": self._optimizers.index(optimizer),
            "optimizer_class": type(optimizer).__name__,
            "names": [names.get(id(p), str(place)) for place, p in enumerate(_parameters(optimizer))],
            "weights": weights,
            "sizes": [float(_local(parameter).double().norm()) for parameter in _parameters(optimizer)],
            "state": state_of(optimizer),
            "options": [_settings(group) for group in optimizer.param_groups],
            "beside": beside,
        }

    def after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        """Write the record of a step, with the samples and losses that it has used."""
        if optimizer is not self._open:
            return
        self._open = None
        self._record |= {"result": weights_of(optimizer), "generators": generators(), **self._used}
        self._used = {name: [] for name in self._used}
        with open(self._folder / f"records-{os.getpid()}.jsonl", "ab", buffering=0) as file:
            file.write((json.dumps(self._record) + "\n").encode())

    @staticmethod
    def _ranks() -> dict[str, int]:
        """Return the rank of this process, and the number of ranks."""
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
        sizes = {"rank": os.environ.get("RANK", 0), "world_size": os.environ.get("WORLD_SIZE", 1)}
        return {name: int(size) for name, size in sizes.items()}

    def _stop(self) -> None:
        """Send SIGKILL to all processes of the attempt, or another planned signal to its first process."""
        time.sleep(self._plan["hold_s"])
        (self._folder / "stopped").touch()
        number = signal.Signals[self._plan["signal"]]
        if number == signal.SIGKILL:
            others = [pid for pid in marked(str(self._folder)) if pid != os.getpid()]
            targets = [*others, os.getpid()]
        else:
            targets = [int((self._folder / "pid").read_text())] if self._ranks()["rank"] == 0 else []
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
    """Return a tensor's values without the link to its gradient; for a sharded tensor, this rank's shard."""
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
    """Yield the tensors in nested containers, except tensors that are results of the model."""
    if hasattr(value, "detach"):
        if value.ndim and not (value.requires_grad or value.is_meta or value.is_sparse or value.is_nested):
            yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def rows_of(inputs: object) -> list[str]:
    """Return a hash for each sample, which has a row of each tensor that is as long as the first tensor."""
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
            # The number of steps may be a tensor or a plain number. The state of LBFGS has lists of tensors.
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
    """Modules of this process, and dictionaries and lists of tensors, which may be copies of weights.

    Python's garbage collector knows all these objects. At the first step, they are frozen, so that a later
    step has to search only newer objects.
    """

    def __init__(self) -> None:
        self._frozen: list[Any] = []

    def look(self, optimizers: list[Any]) -> tuple[dict[int, str], list[tuple[str, str]]]:
        """Return the names of parameters by their ids, and the state that is in no optimizer.

        The state is returned as names and hashes. The returned state consists of buffers, and of copies of
        the weights, such as their average (EMA): a module, a dictionary with the names of parameters, or a
        list with their shapes.
        """
        found = self._objects()
        modules = [each for each in found if not isinstance(each, (dict, list))]
        inner = {id(child) for module in modules for child in module._modules.values()}
        roots = [module for module in modules if id(module) not in inner]
        names = {id(p): name for module in roots for name, p in module.named_parameters()}
        tensors: list[tuple[str, Any]] = []
        for module in roots:
            buffers = {name: buffer for name, buffer in module.named_buffers() if _is_saved(module, name)}
            state = dict(module.named_parameters()) | buffers
            tensors += [(f"{type(module).__name__}.{name}", tensor) for name, tensor in state.items()]
        own_names = {name.removeprefix("module.") for name in names.values()}
        shapes = [[p.shape for p in _parameters(optimizer)] for optimizer in optimizers]
        for each in found:
            if isinstance(each, dict) and all(str(key).removeprefix("module.") in own_names for key in each):
                tensors += [(f"{type(each).__name__}[{name!r}]", tensor) for name, tensor in each.items()]
            elif isinstance(each, list) and [tensor.shape for tensor in each] in shapes:
                tensors += [(f"list[{place}]", tensor) for place, tensor in enumerate(each)]
        known = {_local(p).data_ptr() for optimizer in optimizers for p in _parameters(optimizer)}
        return names, [(name, fingerprint(tensor)) for name, tensor in tensors if _is_state(tensor, known)]

    def _objects(self) -> list[Any]:
        """Return the objects that may hold state, except objects to which only this recorder still refers."""
        if not self._frozen:
            self._frozen = [each for each in gc.get_objects() if _may_hold_state(each)]
            gc.freeze()
        own_references = 3
        self._frozen = [each for each in self._frozen if sys.getrefcount(each) > own_references]
        return [*self._frozen, *(each for each in gc.get_objects() if _may_hold_state(each))]


def _may_hold_state(value: Any) -> bool:
    """Return True for a module, and for a dictionary or list that contains tensors only."""
    import torch

    kind = type(value)  # `isinstance` would call the code of a proxy.
    if kind is list or issubclass(kind, dict):
        items = dict.values(value) if issubclass(kind, dict) else value
        return bool(value) and all(issubclass(type(item), torch.Tensor) for item in items)
    return issubclass(kind, torch.nn.Module) and "_modules" in vars(value)


def _is_state(tensor: Any, known: set[int]) -> bool:
    """Return True for a tensor with its own values that is not a parameter of an optimizer."""
    return not tensor.is_meta and tensor.grad_fn is None and _local(tensor).data_ptr() not in known


def _is_saved(module: Any, name: str) -> bool:
    """Return False for a buffer that `state_dict` leaves out."""
    path, _, last = name.rpartition(".")
    return last not in module.get_submodule(path)._non_persistent_buffers_set
