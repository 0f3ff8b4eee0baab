"""How a model's matrices are split if its user doesn't say: pairs of `nn.Linear`, and attention by heads.

    x ──▶ first (split by columns) ──▶ what lies between, on a part of the units ──▶ last (by rows) ──▶ sum

That gives the numbers of the whole only if what lies between treats each unit (each head) by itself. Names
and order suggest where to split; a trial with small random inputs then shows whether it is so, and what can't
be shown is left whole.

Source: Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", arXiv:1909.08053, section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

ATTENTION: tuple[tuple[str, ...], ...] = (
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("wq", "wk", "wv", "wo"),
    ("query", "key", "value", "out"),
    ("to_q", "to_k", "to_v", "to_out"),
    ("q", "k", "v", "o"),
)
"""Names of the projections to queries, keys and values, and of the one after attention."""

GATED: tuple[tuple[str, ...], ...] = (
    ("gate_proj", "up_proj", "down_proj"),
    ("gate", "up", "down"),
    ("w1", "w3", "w2"),
)
"""Names of the two that are multiplied, and of the one after them (Shazeer 2020, arXiv:2002.05202)."""

HEADS = (
    "n_heads num_heads n_head nhead heads num_attention_heads n_local_heads "
    "n_kv_heads num_kv_heads n_kv_head num_key_value_heads n_local_kv_heads"
).split()
"""Attributes of an attention module that count its heads; each worker has its share of them."""


@dataclass(frozen=True)
class Candidate:
    """Linear layers of one module that may be split together.

    Attributes:
        module: name of the module whose children they are; "" is the model.
        first: names of the children to split by columns.
        last: name of the child to split by rows.
        heads: attributes of the module to divide.
    """

    module: str
    first: tuple[str, ...]
    last: str
    heads: Mapping[str, int] = field(default_factory=dict)

    def styles(self) -> dict[str, ParallelStyle]:
        """For torch's `parallelize_module`, by full name."""
        prefix = f"{self.module}." if self.module else ""
        columns: dict[str, ParallelStyle] = {prefix + name: ColwiseParallel() for name in self.first}
        return {**columns, prefix + self.last: RowwiseParallel()}


def default_candidates(model: nn.Module, ways: int) -> list[Candidate]:
    """What may be split over `ways` workers, to be tried by tensor_trial.py; alike on every worker."""
    shared = _shared(model)
    found = []
    for name, module in model.named_modules():
        layers = {
            child: layer
            for child, layer in module.named_children()
            if type(layer) is nn.Linear and layer not in shared
        }
        found += list(_candidates(name, module, layers, ways))
    return found


def heads_of(module: nn.Module) -> dict[str, int]:
    """The attributes of `module` that count heads."""
    values = {name: getattr(module, name, None) for name in HEADS}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
    }


def _shared(model: nn.Module) -> set[nn.Module]:
    """Modules that occur twice, or hold a parameter that another one holds too: splitting would part them."""
    modules = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    owners = Counter(
        parameter for module in modules for parameter in module._parameters.values() if parameter is not None
    )
    twice = {module for module, count in modules.items() if count > 1}
    return twice | {
        module
        for module in modules
        if any(owners[parameter] > 1 for parameter in module._parameters.values() if parameter is not None)
    }


def _candidates(name: str, module: nn.Module, layers: dict[str, nn.Linear], ways: int) -> Iterator[Candidate]:
    left = dict(layers)
    for names in ATTENTION:
        if all(child in left for child in names):
            *first, last = names
            heads = heads_of(module)
            if not any(count % ways for count in heads.values()) and _fits(left, first, ways):
                yield Candidate(
                    name, tuple(first), last, {key: count // ways for key, count in heads.items()}
                )
            for child in names:
                del left[child]
    for names in GATED:
        if all(child in left for child in names):
            *first, last = names
            if _fits(left, first, ways) and left[first[0]].out_features == left[last].in_features:
                yield Candidate(name, tuple(first), last)
            for child in names:
                del left[child]
    # The rest in the order of their definition, which a Sequential runs them in.
    order = list(left)
    while len(order) > 1:
        first_name, last = order[0], order[1]
        if _fits(left, [first_name], ways) and left[first_name].out_features == left[last].in_features:
            yield Candidate(name, (first_name,), last)
            del order[:2]
        else:
            del order[0]


def _fits(layers: dict[str, nn.Linear], first: Sequence[str], ways: int) -> bool:
    return not any(layers[child].out_features % ways for child in first)
