"""Which part of a value can't be pickled: the path a user can find in their own code."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

_DEPTH = 8
_MOST_TRIES = 500


def find_unpicklable(value: Any, name: str, dump: Callable[[Any], object]) -> tuple[str | None, Any]:
    """Path and object of the deepest part of `value` that `dump` refuses.

    Args:
        value: what failed.
        name: how the user knows it; the path starts with it.
        dump: raises for what can't be pickled.

    Returns:
        Such as ("config['lock']", <lock>); (None, value) if each part alone can be pickled.
    """
    tries = 0

    def refused(part: Any) -> bool:
        nonlocal tries
        tries += 1
        try:
            dump(part)
        except Exception:
            return True
        return False

    path, culprit, seen = name, value, {id(value)}
    for _ in range(_DEPTH):
        for label, part in _parts(culprit, path):
            if id(part) in seen or tries >= _MOST_TRIES:
                continue
            seen.add(id(part))
            if refused(part):
                path, culprit = label, part
                break
        else:
            break
    return (path, culprit) if path != name else (None, value)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}[{key!r}]", item
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif isinstance(value, types.FunctionType):
        code = value.__code__
        for variable, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}: variable {variable!r} of the enclosing scope", cell.cell_contents
            except ValueError:  # the cell is still empty, so nothing of it is pickled
                continue
        for variable in code.co_names:
            if variable in value.__globals__:
                yield f"{path}: global variable {variable!r}", value.__globals__[variable]
    elif isinstance(value, types.MethodType):
        yield f"{path}: the object it is bound to", value.__self__
    elif isinstance(value, type):
        for attribute, item in vars(value).items():
            if not attribute.startswith("__") or attribute == "__init__":
                yield f"{path}.{attribute}", item
    elif hasattr(value, "func") and hasattr(value, "keywords"):  # functools.partial
        yield f"{path}: the function of the partial", value.func
        yield f"{path}: the arguments of the partial", (value.args, value.keywords)
    elif hasattr(value, "__dict__"):
        for attribute, item in vars(value).items():
            yield f"{path}.{attribute}", item
