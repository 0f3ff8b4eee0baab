"""Which parts of a model are gathered at a time: the blocks of its stacks, or those that the user names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from torch import nn

from trainkit.errors import ConfigError

Blocks: TypeAlias = Iterable[type[nn.Module]] | Callable[[str, nn.Module], bool] | None
"""Classes of blocks, a function of a module's name and the module, or None: find them."""


def chosen_blocks(model: nn.Module, chosen: Blocks) -> list[nn.Module]:
    """The blocks of `model`, inner ones first; without the model itself.

    Args:
        model: not yet sharded.
        chosen: classes, or a function of (name, module); None takes the repeated blocks of its stacks.

    Raises:
        ConfigError: none is found, or one shares a parameter with what is outside of it.
    """
    if chosen is None:
        return [block for block in stacked_blocks(model) if not _shared_outside(model, block)]
    named = [(name, module) for name, module in model.named_modules() if module is not model]
    if not isinstance(chosen, Iterable) and not isinstance(chosen, type):
        found = [(name, module) for name, module in named if chosen(name, module)]
    else:
        classes = (chosen,) if isinstance(chosen, type) else tuple(chosen)
        if not all(isinstance(item, type) and issubclass(item, nn.Module) for item in classes):
            raise ConfigError(
                f"shard_blocks={chosen!r}: give module classes, or a function of (name, module)"
            )
        found = [(name, module) for name, module in named if isinstance(module, classes)]
    if not found:
        raise ConfigError(
            f"shard_blocks={chosen!r} picks no module of {type(model).__name__}: name a class of its blocks, "
            f"or leave it out"
        )
    for name, block in found:
        if isinstance(block, (nn.ModuleList, nn.ModuleDict)):
            raise ConfigError(f"shard_blocks picks {name}, which is a list of modules: pick what is in it")
        if shared := _shared_outside(model, block):
            raise ConfigError(
                f"shard_blocks picks {name}, which shares the parameter {shared} with other parts of the "
                f"model: leave {name} out, so that the two are gathered together"
            )
    return [block for _, block in reversed(found)]


def stacked_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """The repeated blocks of lists and sequences: of one class, several times, and made of other modules.

    Layers such as nn.Linear are too small to be gathered one by one, and blocks in blocks are gathered with
    the outer one.
    """
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            counts = Counter(type(item) for item in child)
            for item in child:
                if counts[type(item)] > 1 and _is_block(item):
                    yield item
                else:
                    yield from stacked_blocks(item)
        else:
            yield from stacked_blocks(child)


def _is_block(module: nn.Module) -> bool:
    listed = isinstance(module, (nn.ModuleList, nn.ModuleDict))
    return not listed and any(True for _ in module.children()) and any(True for _ in module.parameters())


def _shared_outside(model: nn.Module, block: nn.Module) -> str | None:
    """The name of a parameter of `block` that another part of `model` has too."""
    inside = {id(module) for module in block.modules()}
    own = {id(parameter): name for name, parameter in block.named_parameters()}
    for module in model.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                if id(parameter) in own:
                    return own[id(parameter)]
    return None
