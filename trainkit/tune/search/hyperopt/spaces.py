"""What hyperopt searches: our domains, or a space of its own, each as parameters by label.

hyperopt's TPE models each label by itself, from the trials that had it. So it is asked for all labels at
once, and the space says which of them a configuration has: any condition works, and costs the model nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.errors import ConfigError
from trainkit.tune.domains import Domain
from trainkit.tune.search.forms import Declared, Form
from trainkit.tune.search.hyperopt.domains import Coder, coder_of
from trainkit.tune.search.hyperopt.expressions import Expression, Values
from trainkit.tune.spaces.variants import Space

if TYPE_CHECKING:
    from numpy.random import Generator

__all__ = ["HyperOptForm", "Values", "form_of"]


class HyperOptForm(Form, Protocol):
    """One of the two.

    Attributes:
        nodes: by label, hyperopt's expression of the parameter.
    """

    nodes: dict[str, Any]

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        """The configuration of these values, and those of them that it has."""


class DeclaredForm(Declared[Coder]):
    """Domains such as `tune.uniform(0, 1)`, with conditions."""

    def __init__(self, space: Space, hp: Any, *, own: bool = False) -> None:
        super().__init__(space, partial(coder_of, hp), searcher="HyperOptSearch", own=own)
        self.nodes = {name: code.node for name, code in self.codes.items()}

    def configuration(self, values: Values, rng: Generator) -> tuple[dict[str, Any], Values]:
        active: Values = {}

        def ask(name: str, domain: Domain) -> Any:
            del domain
            value = self.codes[name].decode(values[name])
            active[name] = self.codes[name].encode(value)  # as a restore will find it
            return value

        return self.declared.walk(ask, rng), active


def form_of(space: Any, hyperopt: Any, *, own: bool) -> HyperOptForm:
    """Return the form of what a user gives as `space`.

    Raises:
        ConfigError: it is neither.
    """
    pyll = hyperopt.pyll
    if isinstance(space, Space):
        return DeclaredForm(space, hyperopt.hp)
    if isinstance(space, pyll.Apply):
        return Expression(space, pyll)
    if isinstance(space, Mapping) and space:
        if _holds_apply(space, pyll):
            return Expression(dict(space), pyll)
        return DeclaredForm(Space.of(space), hyperopt.hp, own=own)
    raise ConfigError(
        f"space={space!r}: give domains, or a space of hyperopt's such as {{'x': hp.uniform(...)}}"
    )


def _holds_apply(value: Any, pyll: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_apply(each, pyll) for each in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_apply(each, pyll) for each in value)
    return isinstance(value, pyll.Apply)
