"""A model of any class cut at modules that it calls, by what torch.fx records of its forward.

    value ──▶ conv ──▶ layer1 ──▶ layer2 ──│──▶ layer3 ──▶ flatten ──▶ fc        cut at ["layer3"]

The modules that it calls stay as they are; only its own forward is taken apart. What one part computes and a
later one needs is passed on. Source: Reed et al. 2021, "torch.fx: Practical Program Capture and
Transformation for Deep Learning in Python", arXiv:2112.08429.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import fx, nn
from torch.fx.node import Argument, map_arg

from trainkit.errors import ConfigError


def cut_by_forward(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """The parts of `model`, each of which begins with one of the modules called `names`, but the first.

    Args:
        model: whole; its own forward calls the modules once each, in the order of `names`.
        names: of modules in it.

    Returns:
        One more module than there are names. A part takes what the one before returned, a tensor or a tuple.

    Raises:
        ConfigError: its forward can't be recorded, or doesn't call the modules so.
    """
    graph = _recorded(model, names, training=True)
    if str(graph) != str(_recorded(model, names, training=False)):
        raise ConfigError(
            f"the forward of {type(model).__name__} itself does other things in training than in evaluation, "
            f"such as F.dropout(..., training=self.training): use modules for it, such as nn.Dropout"
        )
    nodes = [node for node in graph.nodes if node.op != "output"]
    starts = [_start(nodes, name, model) for name in names]
    bounds = [0, *starts, len(nodes)]
    if any(end <= start for start, end in itertools.pairwise(bounds)):
        raise ConfigError(f"split={list(names)}: name modules in the order in which forward calls them")
    results = next(node for node in graph.nodes if node.op == "output").args[0]
    parts = []
    for start, end in itertools.pairwise(bounds):
        own = nodes[start:end]
        incoming = _crossing(nodes[:start], nodes[start:], results)
        outgoing = _crossing(nodes[:end], nodes[end:], results) if end < len(nodes) else None
        parts.append(_part(model, own, incoming, outgoing, results))
    return parts


class _Tracer(fx.Tracer):
    """Records the calls of modules, looking into those in which the cut lies."""

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
        ) as error:  # The user's own forward, run on stand-ins for tensors: it may raise anything.
            raise ConfigError(
                f"the forward of {type(model).__name__} can't be taken apart at {list(names)} ({error}): "
                f"give Pipeline(split=function), where function(module) returns the modules that it calls in "
                f"turn"
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
    """The values of `before` that are used in `after` or given back; the model's own need no passing."""
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
    """A module of `nodes` that takes `incoming` and returns `outgoing`, or the model's results."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: graph.placeholder(node.name) for node in incoming}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:
            # One of the model's own tensors is read where it is used, wherever forward first named it.
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
