"""Labels of nodes, and conditions on labels."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError, InfeasibleError

Condition = tuple[str, str, tuple[str, ...]]
"""Label name, operator ("in", "not in", "exists" or "not exists"), and values for the first two operators."""

_SELECTOR = re.compile(r"(?P<negated>!?)in\((?P<values>[^()]*)\)")


class _Operator:
    """Operator of a condition on a label."""

    name = ""

    def __init__(self, *values: str) -> None:
        if not values or not all(isinstance(value, str) for value in values):
            raise ConfigError(f"{type(self).__name__}() needs one or more strings, not {values!r}")
        self.values = list(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.values))})"


class In(_Operator):
    """Condition that the label exists and has one of these values."""

    name = "in"


class NotIn(_Operator):
    """Condition that the label does not exist, or has none of these values."""

    name = "not in"


class Exists(_Operator):
    """Condition that the label exists."""

    name = "exists"

    def __init__(self) -> None:
        self.values = []


class DoesNotExist(_Operator):
    """Condition that the label does not exist."""

    name = "not exists"

    def __init__(self) -> None:
        self.values = []


class NodeLabelSchedulingStrategy:
    """Strategy to use a node whose labels meet conditions, such as {"region": In("eu"), "spot": Exists()}.

    Args:
        hard: conditions that the node must meet, by the label's name.
        soft: conditions that the node should meet if possible; no effect on one machine.

    Raises:
        ConfigError: no condition is given, or a condition is not In, NotIn, Exists or DoesNotExist.
    """

    def __init__(
        self, hard: Mapping[str, _Operator] | None, *, soft: Mapping[str, _Operator] | None = None
    ) -> None:
        self.hard = self._conditions("hard", hard)
        self.soft = self._conditions("soft", soft)
        if not (self.hard or self.soft):
            raise ConfigError("NodeLabelSchedulingStrategy needs conditions in 'hard' or in 'soft'")

    @staticmethod
    def _conditions(name: str, given: Mapping[str, _Operator] | None) -> tuple[Condition, ...]:
        entries = given or {}
        if not isinstance(entries, Mapping) or not all(
            isinstance(key, str) and isinstance(operator, _Operator) for key, operator in entries.items()
        ):
            raise ConfigError(f"{name} must map labels to In, NotIn, Exists or DoesNotExist, not {given!r}")
        return tuple((key, operator.name, tuple(operator.values)) for key, operator in entries.items())


def checked_labels(labels: Mapping[str, str] | None, what: str) -> dict[str, str]:
    """Return `labels` as a dictionary.

    Raises:
        ConfigError: a name or a value is not a string.
    """
    found = dict(labels or {})
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in found.items()):
        raise ConfigError(f"{what}: names and values of labels must be strings, not {labels!r}")
    return found


def selected_by(selector: Mapping[str, str] | None) -> tuple[Condition, ...]:
    """Return the conditions of a `label_selector`, whose values are like "x", "!x", "in(x,y)" or "!in(x,y)".

    Raises:
        ConfigError: the selector is not a dictionary of strings.
    """
    if selector is None:
        return ()
    if not isinstance(selector, Mapping):
        raise ConfigError(f"label_selector must be a dictionary such as {{'region': 'eu'}}, not {selector!r}")
    conditions: list[Condition] = []
    for key, value in checked_labels(selector, "label_selector").items():
        listed = _SELECTOR.fullmatch(value)
        if listed:
            values = tuple(part.strip() for part in listed["values"].split(","))
            negated = bool(listed["negated"])
        else:
            negated = value.startswith("!")
            values = (value.removeprefix("!"),)
        conditions.append((key, "not in" if negated else "in", values))
    return tuple(conditions)


def require_labels(conditions: Sequence[Condition], node: Mapping[str, Any], what: str) -> None:
    """Raise InfeasibleError if this machine, which is the only node, does not meet `conditions`.

    Args:
        conditions: conditions of the request.
        node: row of the node in the state listing.
        what: name of the requester, for the error message.
    """
    labels: Mapping[str, str] = node["labels"]
    unmet = [condition for condition in conditions if not _meets(labels, *condition)]
    if unmet:
        told = ", ".join(f"{key} {operator} {list(values) or ''}".rstrip() for key, operator, values in unmet)
        raise InfeasibleError(
            f"{what} asks for a node with the labels {told}, but this machine has {dict(labels)}. Set its "
            "labels with trainkit.init(labels={...}), or request other labels"
        )


def _meets(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    match operator:
        case "in":
            return labels.get(key) in values
        case "not in":
            return labels.get(key) not in values
        case "exists":
            return key in labels
    return key not in labels
