"""Search for the blocks of a model, such as a transformer's layers.

Each block is sharded and compiled separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from torch import nn

from trainkit.errors import ConfigError

Blocks: TypeAlias = Iterable[type[nn.Module]] | Callable[[str, nn.Module], bool] | None
"""Classes of blocks, a function of (name, module), or None to find the blocks automatically."""


def chosen_blocks(model: nn.Module, chosen: Blocks) -> list[nn.Module]:
    """Return the blocks of `model`, inner blocks first, without the model itself.

    Args:
        model: a model that is not sharded yet.
        chosen: classes of the blocks, or a function of (name, module) that returns True for blocks; None
            selects the result of `stacked_blocks`.

    Raises:
        ConfigError: no block is found, or a block shares a parameter with modules outside of it.
    """
    if chosen is None:
        return [block for block in stacked_blocks(model) if not _shared_outside(model, block)]
    named = [(name, module) for name, module in model.named_modules() if module is not model]
    if not isinstance(chosen, Iterable) and not isinstance(chosen, type):
        found = [(name, module) for name, module in named if chosen(name, module)]
    else:
        classes = (chosen,) if isinstance(chosen, type) else tuple(chosen)
        if not all(isinstance(item, type) and issubclass(item, nn.Module) for item in classes):
            raise ConfigError(f"shard_blocks takes module classes or function(name, module), not {chosen!r}")
        found = [(name, module) for name, module in named if isinstance(module, classes)]
    if not found:
        raise ConfigError(
            f"shard_blocks={chosen!r} matches no module of {type(model).__name__}: pass its blocks' class"
        )
    for name, block in found:
        if isinstance(block, (nn.ModuleList, nn.ModuleDict)):
            raise ConfigError(f"shard_blocks matches {name}, which is a list of modules: select its items")
        if shared := _shared_outside(model, block):
            raise ConfigError(
                f"shard_blocks matches {name}, which shares the parameter {shared} with other parts of the "
                f"model: leave {name} out, so that all these parts are gathered together"
            )
    return [block for _, block in reversed(found)]


def stacked_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield modules with submodules, if a list or sequence contains several modules of their class.

    Modules without submodules, such as nn.Linear, are too small to be gathered one by one. Blocks inside of a
    block are not yielded, because they are gathered with the outer block.
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
    """Return the name of a parameter of `block` that also belongs to modules outside of `block`, or None."""
    inside = {id(module) for module in block.modules()}
    own = {id(parameter): name for name, parameter in block.named_parameters()}
    for module in model.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                if id(parameter) in own:
                    return own[id(parameter)]
    return None
