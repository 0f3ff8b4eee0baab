"""Stages of a pipeline: the model is divided into groups of consecutive modules, one group for each worker.

Blocks are modules that the model calls one after another: the children of an `nn.Sequential`, the list from
the model's method `stages()`, or the list that the user's function returns for the model. Any other model is
divided at modules that the user names. The blocks of such a model are the parts between these modules:

    value ──▶ conv ──▶ layer1 ──▶ layer2 ──│──▶ layer3 ──▶ flatten ──▶ fc        cut at ["layer3"]

The user's module keeps its structure and names. The stages of other workers are moved to the "meta" device,
where they use no memory. Source: Reed et al. 2021, "torch.fx: Practical Program Capture and Transformation
for Deep Learning in Python", arXiv:2112.08429.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import fx, nn
from torch.fx.node import Argument, map_arg

from trainkit.errors import ConfigError
from trainkit.train.strategies.modules import even_starts


def cut_by_forward(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Divide `model` into parts; the second and each later part begins with a module from `names`.

    Args:
        model: the whole model; its `forward` must call each module in `names` once, in this order.
        names: names of the modules, as in `model.named_modules()`.

    Returns:
        Modules that compute the parts, one more than `names` has entries. Each module takes the result of the
        previous module: a tensor or a tuple.

    Raises:
        ConfigError: the model's forward can't be recorded, or calls the modules differently.
    """
    graph = _recorded(model, names, training=True)
    if str(graph) != str(_recorded(model, names, training=False)):
        raise ConfigError(
            f"the forward of {type(model).__name__} differs between training and evaluation, such as by "
            "F.dropout(..., training=self.training): use modules instead, such as nn.Dropout"
        )
    nodes = [node for node in graph.nodes if node.op != "output"]
    starts = [_start(nodes, name, model) for name in names]
    bounds = [0, *starts, len(nodes)]
    if any(end <= start for start, end in itertools.pairwise(bounds)):
        raise ConfigError(f"split={list(names)} must name modules in the order in which forward calls them")
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    parts = []
    for start, end in itertools.pairwise(bounds):
        own = nodes[start:end]
        incoming = _crossing(nodes[:start], nodes[start:], results)
        outgoing = _crossing(nodes[:end], nodes[end:], results) if end < len(nodes) else None
        parts.append(_part(model, own, incoming, outgoing, results))
    return parts


class _Tracer(fx.Tracer):
    """Tracer of module calls.

    The tracer also records calls inside modules that contain a module of `names`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = names

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not any(name.startswith(f"{module_qualified_name}.") for name in self._names)


def _recorded(model: nn.Module, names: Sequence[str], *, training: bool) -> fx.Graph:
    with _mode(model, training):
        try:
            return _Tracer(names).trace(model)
        except (
            Exception
            # Any error may occur, because the tracer runs the user's `forward` with substitutes for tensors.
        ) as error:
            raise ConfigError(
                f"the forward of {type(model).__name__} can't be split at {list(names)} ({error}): pass "
                "Pipeline(split=function), where function(module) returns the modules in the order of calls"
            ) from error


def _start(nodes: Sequence[fx.Node], name: str, model: nn.Module) -> int:
    calls = [
        number
        for number, node in enumerate(nodes)
        if node.op == "call_module" and f"{node.target}.".startswith(f"{name}.")
    ]
    if not calls:
        called = dict.fromkeys(str(node.target) for node in nodes if node.op == "call_module")
        raise ConfigError(
            f"the forward of {type(model).__name__} calls no module {name!r}; it calls {', '.join(called)}"
        )
    return calls[0]


def _crossing(before: Sequence[fx.Node], after: Sequence[fx.Node], results: Argument) -> list[fx.Node]:
    """Return the nodes in `before` whose values `after` or `results` uses, but not the model's tensors."""
    used = {node for later in after for node in later.all_input_nodes}
    map_arg(results, used.add)
    return [node for node in before if node in used and node.op != "get_attr"]


def _part(
    model: nn.Module,
    nodes: Sequence[fx.Node],
    incoming: Sequence[fx.Node],
    outgoing: Sequence[fx.Node] | None,
    results: Argument,
) -> nn.Module:
    """Return a module that computes `nodes` from `incoming`.

    The module returns `outgoing`, or `results` if `outgoing` is None.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in incoming}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            # Each part reads the tensors of the model itself, even if `forward` reads them in an earlier
            # part.
            copies[node] = graph.node_copy(node, copied)
        return copies[node]

    for node in nodes:
        if node.op != "get_attr":
            copied(node)
    if outgoing is None:
        graph.output(map_arg(results, copied))
    else:
        values = tuple(copied(node) for node in outgoing)
        graph.output(values[0] if len(values) == 1 else values)
    return fx.GraphModule(model, graph)


@contextmanager
def _mode(model: nn.Module, training: bool) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


Split = Sequence[str] | Callable[[nn.Module], Sequence[nn.Module]] | None
"""Names of modules at which later stages begin; a function from the model to its blocks; None: by size."""

_ADVICE = (
    "pass Pipeline(split=[name, ...]), the modules at which a stage begins, or split=function, where "
    "function(module) returns the list of modules that run one after the other, or give the model a method "
    "stages() that returns this list"
)


@dataclass(frozen=True)
class Block:
    """A block: one of the modules that the model calls one after another.

    Attributes:
        name: name of the block in the model.
        module: the block itself.
    """

    name: str
    module: nn.Module

    @property
    def size_bytes(self) -> int:
        """Size of the block's parameters in bytes."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self.module.parameters())


@dataclass(frozen=True)
class Cut:
    """A model that is divided into stages.

    Attributes:
        stages: the blocks of each stage.
        packed: True if several values between two blocks are passed as one tuple, as in `nn.Sequential`;
            False if they are passed as separate arguments.
    """

    stages: tuple[tuple[Block, ...], ...]
    packed: bool


def cut(model: nn.Module, split: Split, degree: int) -> Cut:
    """Divide `model` into `degree` stages.

    Args:
        model: the whole model.
        split: places to divide at; None: stages of about equal size in bytes.
        degree: number of stages.

    Raises:
        ConfigError: `split` does not fit the model, or a tensor would belong to several stages or to no
            stage.
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
                f"pass Pipeline(degree={len(blocks)}) or less, or use smaller blocks"
            )
        stages = _cut_before(blocks, even_starts([block.size_bytes for block in blocks], degree))
    _check_ownership(model, stages)
    return Cut(stages, packed)


def _is_chain(model: nn.Module) -> bool:
    return isinstance(model, nn.Sequential) or getattr(model, "stages", None) is not None


def _blocks(model: nn.Module, split: Split) -> tuple[list[Block], bool]:
    if callable(split):
        return _named(model, split(model), "the split function"), False
    own = getattr(model, "stages", None)
    if own is not None:
        given = own() if callable(own) and not isinstance(own, nn.Module) else own
        return _named(model, given, "stages"), False
    if isinstance(model, nn.Sequential):
        return list(_flat(model, "")), True
    raise ConfigError(
        f"{type(model).__name__} can't be cut, as only its forward knows the order of modules: {_ADVICE}"
    )


def _flat(model: nn.Sequential, prefix: str) -> Iterator[Block]:
    for name, child in model.named_children():
        # Only a plain nn.Sequential is divided further, because the forward of a subclass may do more than
        # call its children.
        if type(child) is nn.Sequential and len(child):
            yield from _flat(child, f"{prefix}{name}.")
        else:
            yield Block(prefix + name, child)


def _named(model: nn.Module, given: Any, origin: str) -> list[Block]:
    if not isinstance(given, Iterable):
        raise ConfigError(f"{origin} gave a {type(given).__name__}, not a list: {_ADVICE}")
    names = {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    blocks: list[Block] = []
    for number, item in enumerate(given):
        # A plain list has no name in the model, so its modules become the blocks.
        for module in item if isinstance(item, (list, tuple)) else [item]:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"{origin} gave a {type(module).__name__}, not a module: {_ADVICE}")
            blocks.append(Block(names.get(id(module), str(number)), module))
    return blocks


def _at_names(blocks: Sequence[Block], names: list[str], degree: int) -> tuple[tuple[Block, ...], ...]:
    known = [block.name for block in blocks]
    # The name of a nested nn.Sequential means the first block inside it.
    starts = []
    for name in names:
        inside = [i for i, other in enumerate(known) if other == name or other.startswith(f"{name}.")]
        if not inside:
            raise ConfigError(
                f"split={names}: no block is called {name!r}; the blocks are {', '.join(known)}"
            )
        starts.append(inside[0])
    if len(names) + 1 != degree:
        raise ConfigError(
            f"split={names} makes {len(names) + 1} stages, not {degree}: name {degree - 1} blocks"
        )
    if any(end <= start for start, end in itertools.pairwise([0, *starts, len(blocks)])):
        raise ConfigError(
            f"split={names} must name blocks in their order, each once, without the first block, where a "
            f"stage begins anyway; the blocks are {', '.join(known)}"
        )
    return _cut_before(blocks, starts)


def _cut_before(blocks: Sequence[Block], starts: Sequence[int]) -> tuple[tuple[Block, ...], ...]:
    bounds = itertools.pairwise([0, *starts, len(blocks)])
    return tuple(tuple(blocks[start:end]) for start, end in bounds)


def _check_ownership(model: nn.Module, stages: Sequence[Sequence[Block]]) -> None:
    """Raise ConfigError if a tensor belongs to several stages, or a parameter belongs to no stage."""
    stage_of: dict[int, tuple[int, str]] = {}
    for number, stage in enumerate(stages):
        for block in stage:
            named = itertools.chain(block.module.named_parameters(), block.module.named_buffers())
            for name, tensor in named:
                before, full = stage_of.setdefault(id(tensor), (number, f"{block.name}.{name}".lstrip(".")))
                if before != number:
                    raise ConfigError(
                        f"{full} of stage {before} is also used as {name} by stage {number}, so each stage "
                        "would train a copy: don't tie them, or choose split= so that one stage has both"
                    )
    outside = [name for name, parameter in model.named_parameters() if id(parameter) not in stage_of]
    if outside:
        raise ConfigError(
            f"{', '.join(outside[:3])} of {type(model).__name__} belong to no stage: move them into a block"
        )


NOT_ALONE = (
    "with strategy=Pipeline() a worker holds one stage of the model, and can't compute its output or its "
    "gradients alone: in train_batch call self.forward_backward(features, target) in place of the model, the "
    "loss and self.backward(loss), then self.optimizer_step(); in validate_batch call "
    "self.forward(features, target)"
)


class StageModel(nn.Module):
    """Model of which this worker holds one stage, and other workers hold the other stages.

    Args:
        whole: the user's model; its tensors that belong to other stages are replaced by empty ones.
        cut: the model's stages.
        index: index of this worker's stage.
        device: device of the stage.
        split: function that splits a module's parameters over the workers of a stage; None if each stage has
            only one worker.

    Raises:
        ConfigError: `split` adds hooks to a module that a pipeline does not call as a whole.
    """

    def __init__(
        self,
        whole: nn.Module,
        cut: Cut,
        index: int,
        device: torch.device,
        split: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        blocks = [block.module for block in cut.stages[index]]
        self.stage = _Chain(blocks, packed=cut.packed, first=index == 0)
        _replace(whole, _emptied([block.module for stage in cut.stages for block in stage], keep=self.stage))
        if split is not None:
            # Only this worker's stage has values at this point, so splitting needs no communication and no
            # memory for other stages.
            before = dict(whole.named_parameters(remove_duplicate=False))
            split(whole)
            after = dict(whole.named_parameters(remove_duplicate=False))
            _replace(self.stage, {id(before[name]): after[name] for name in before})
            _refuse_lost_hooks(whole, cut)
        _replace(whole, _moved(self.stage, device))
        # The tuple hides the model from torch, which would otherwise register it as a submodule, with all its
        # parameters.
        self._whole = (whole,)

    @property
    def whole(self) -> nn.Module:
        """The user's model; parameters and buffers of other stages are on the "meta" device."""
        return self._whole[0]

    def train(self, mode: bool = True) -> StageModel:
        self.whole.train(mode)
        return super().train(mode)

    def forward(self, *features: Any) -> NoReturn:
        raise ConfigError(NOT_ALONE)


class _Chain(nn.Module):
    """Sequence of blocks; each block receives the result of the previous block."""

    def __init__(self, blocks: Sequence[nn.Module], *, packed: bool, first: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self._packed = packed
        self._first = first

    def forward(self, value: Any) -> Any:
        """Return the output for `value`; several arguments of the first block are passed as a tuple."""
        for number, block in enumerate(self.blocks):
            apart = not self._packed or (self._first and number == 0)
            value = block(*value) if apart and isinstance(value, tuple) else block(value)
        return value


def _emptied(blocks: Sequence[nn.Module], *, keep: nn.Module) -> dict[int, torch.Tensor]:
    """Return a "meta" tensor for each tensor of `blocks` that is not in `keep`, by id of the original."""
    held = {id(tensor) for tensor in (*keep.parameters(), *keep.buffers())}
    empty: dict[int, torch.Tensor] = {}
    for block in blocks:
        for tensor in (*block.parameters(), *block.buffers()):
            if id(tensor) not in held and id(tensor) not in empty:
                meta = torch.empty_like(tensor, device="meta")
                is_parameter = isinstance(tensor, nn.Parameter)
                empty[id(tensor)] = nn.Parameter(meta, tensor.requires_grad) if is_parameter else meta
    return empty


def _refuse_lost_hooks(whole: nn.Module, cut: Cut) -> None:
    called = {id(part) for stage in cut.stages for block in stage for part in block.module.modules()}
    for name, module in whole.named_modules():
        if id(module) not in called and (module._forward_hooks or module._forward_pre_hooks):
            raise ConfigError(
                f"plan: {name or type(whole).__name__} is split by hooks on its calls, but a pipeline calls "
                "only parts of this module: name only modules that one stage contains as a whole"
            )


def _moved(stage: nn.Module, device: torch.device) -> dict[int, torch.Tensor]:
    """Move `stage` to `device`; return the tensors that became new objects, by id of the original."""
    before = [*stage.parameters(), *stage.buffers()]
    stage.to(device)
    after = [*stage.parameters(), *stage.buffers()]
    return {id(old): new for old, new in zip(before, after, strict=True) if new is not old}


def _replace(whole: nn.Module, replaced: Mapping[int, torch.Tensor]) -> None:
    """Replace tensors in all modules of `whole`; `replaced` maps ids of original tensors to new tensors."""
    for module in whole.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if id(tensor) in replaced:
                    tensors[name] = replaced[id(tensor)]  # type: ignore[assignment]
