"""Where a model is cut into the stages of a pipeline: the blocks that it calls one after the other, in runs.

They are the children of an `nn.Sequential`, those of nested ones in their place; or what a model's method
`stages()` returns; or what the user's function makes of the model; or, of any other model, what lies between
the modules at which it is to be cut (tracing.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainkit.errors import ConfigError
from trainkit.train.strategies.tracing import cut_by_forward

Split = Sequence[str] | Callable[[nn.Module], Sequence[nn.Module]] | None
"""Names of the blocks at which a stage begins, but the first; or a function module -> blocks; or by size."""

_ADVICE = (
    "give Pipeline(split=[name, ...]), the modules at which a stage begins, or split=function, where "
    "function(module) returns the list of modules that it calls one after the other, or let the model have a "
    "method stages() that does"
)


@dataclass(frozen=True)
class Block:
    """One of the modules that are called one after the other.

    Attributes:
        name: in the model.
        module: itself.
    """

    name: str
    module: nn.Module

    @property
    def size_bytes(self) -> int:
        """Of its parameters."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.module.parameters())


@dataclass(frozen=True)
class Cut:
    """A model in stages.

    Attributes:
        stages: the blocks of each.
        packed: several values between two blocks are one argument, a tuple, as in `nn.Sequential`; otherwise
            they are an argument each.
    """

    stages: tuple[tuple[Block, ...], ...]
    packed: bool


def cut(model: nn.Module, split: Split, degree: int) -> Cut:
    """Cut `model` into `degree` stages.

    Args:
        model: whole.
        split: where; None cuts into parts of about equal parameter bytes.
        degree: stages.

    Raises:
        ConfigError: it can't be cut so, or what it holds is not of one stage alone.
    """
    if isinstance(split, Sequence) and not _is_chain(model):
        blocks, packed = [Block("", part) for part in cut_by_forward(model, split)], False
        split = None
    else:
        blocks, packed = _blocks(model, split)
    if isinstance(split, Sequence):
        stages = _at_names(blocks, list(split), degree)
    else:
        if len(blocks) < degree:
            raise ConfigError(
                f"{type(model).__name__} has {len(blocks)} blocks in a row, too few for {degree} stages: "
                f"give Pipeline(degree={len(blocks)}) or fewer, or smaller blocks"
            )
        stages = _balanced(blocks, degree)
    _check_ownership(model, stages)
    return Cut(stages, packed)


def _is_chain(model: nn.Module) -> bool:
    """Whether it says by itself what it calls one after the other."""
    return isinstance(model, nn.Sequential) or getattr(model, "stages", None) is not None


def _blocks(model: nn.Module, split: Split) -> tuple[list[Block], bool]:
    """The model's blocks in order, and whether tuples go between them as one argument."""
    if callable(split):
        return _named(model, split(model), "the split function"), False
    own = getattr(model, "stages", None)
    if own is not None:
        given = own() if callable(own) and not isinstance(own, nn.Module) else own
        return _named(model, given, "stages"), False
    if isinstance(model, nn.Sequential):
        return list(_flat(model, "")), True
    raise ConfigError(
        f"{type(model).__name__} can't be cut into stages, as only its forward knows what it calls in which "
        f"order: {_ADVICE}"
    )


def _flat(model: nn.Sequential, prefix: str) -> Iterator[Block]:
    for name, child in model.named_children():
        # A subclass may do more in its forward than to call its children.
        if type(child) is nn.Sequential and len(child):
            yield from _flat(child, f"{prefix}{name}.")
        else:
            yield Block(prefix + name, child)


def _named(model: nn.Module, given: Any, origin: str) -> list[Block]:
    if not isinstance(given, Iterable):
        raise ConfigError(f"{origin} gave a {type(given).__name__}: {_ADVICE}")
    names = {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    blocks: list[Block] = []
    for number, item in enumerate(given):
        # A list that is no module of the model is taken apart: its modules are what has names.
        for module in item if isinstance(item, (list, tuple)) else [item]:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{origin} gave a {type(module).__name__} among the modules: {_ADVICE}")
            blocks.append(Block(names.get(id(module), str(number)), module))
    return blocks


def _at_names(blocks: Sequence[Block], names: list[str], degree: int) -> tuple[tuple[Block, ...], ...]:
    known = [block.name for block in blocks]
    # A name may be that of an nn.Sequential, which stands for the first block in it.
    starts = []
    for name in names:
        inside = [i for i, other in enumerate(known) if other == name or other.startswith(f"{name}.")]
        if not inside:
            raise ConfigError(f"split={names}: no block is called {name!r}; there are {', '.join(known)}")
        starts.append(inside[0])
    if len(names) + 1 != degree:
        raise ConfigError(
            f"split={names} makes {len(names) + 1} stages, not {degree}: name {degree - 1} blocks"
        )
    bounds = [0, *starts, len(blocks)]
    if any(end <= start for start, end in itertools.pairwise(bounds)):
        raise ConfigError(
            f"split={names}: name blocks in their order, each once, and not the first, where a stage begins "
            f"anyway; there are {', '.join(known)}"
        )
    return tuple(tuple(blocks[start:end]) for start, end in itertools.pairwise(bounds))


def _balanced(blocks: Sequence[Block], degree: int) -> tuple[tuple[Block, ...], ...]:
    """The cut whose largest stage has the fewest bytes; of several, the one with the most even rest."""
    ends = [0, *itertools.accumulate(block.size_bytes for block in blocks)]
    # best[end]: (cost, bounds) of the blocks before `end` in as many stages as there were rounds.
    best: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {0: ((0, 0), (0,))}
    for round_ in range(1, degree + 1):
        following: dict[int, tuple[tuple[int, int], tuple[int, ...]]] = {}
        for end in range(round_, len(blocks) - (degree - round_) + 1):
            options = []
            for start, ((largest, squares), bounds) in best.items():
                if start < end:
                    size = ends[end] - ends[start]
                    options.append(((max(largest, size), squares + size * size), (*bounds, end)))
            following[end] = min(options)
        best = following
    return tuple(tuple(blocks[start:end]) for start, end in itertools.pairwise(best[len(blocks)][1]))


def _check_ownership(model: nn.Module, stages: Sequence[Sequence[Block]]) -> None:
    """Raise ConfigError unless each parameter and buffer belongs to one stage, and each parameter to some."""
    stage_of: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        for block in stage:
            named = itertools.chain(block.module.named_parameters(), block.module.named_buffers())
            for name, tensor in named:
                before, full = stage_of.setdefault(id(tensor), (number, f"{block.name}.{name}".lstrip(".")))
                if before != number:
                    raise ConfigError(
                        f"{full} of stage {before} is used as {name} by stage {number} too; each "
                        f"would train a copy: don't tie them, or cut (split=) so that one stage has both"
                    )
    outside = [name for name, parameter in model.named_parameters() if id(parameter) not in stage_of]
    if outside:
        raise ConfigError(
            f"{', '.join(outside[:3])} of {type(model).__name__} belong to no stage: let a block hold them"
        )
