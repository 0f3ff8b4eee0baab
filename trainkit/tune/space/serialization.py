"""Conversion of configurations, search spaces and classes to text for the store, and back."""

from __future__ import annotations

import difflib
import importlib
import json
import math
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from trainkit.errors import ConfigError, SpaceError
from trainkit.registry import Registry
from trainkit.tune.core.checks import NOT_KEPT
from trainkit.tune.core.metrics import FLOAT_OF, PLAIN_TYPES, TEXT_OF, as_scalar, parsed, shortened_repr
from trainkit.tune.space import SPELLINGS
from trainkit.tune.space.domains import Spelled
from trainkit.tune.space.tree import is_own_container


def import_class(name: str) -> Any:
    """Return the class, or other callable, with a name such as "torch.optim.Adam".

    Values of a space are best plain text, which is readable in tables and which every searcher accepts.

        param_space={"optimizer": tune.choice(["torch.optim.Adam", "torch.optim.SGD"]), "lr": 0.1}
        ...
        optimizer = tune.import_class(config["optimizer"])(model.parameters(), lr=config["lr"])

    Args:
        name: names of the module and the class; for a nested class, with the outer classes between them. A
            name without a dot is looked up in `__main__`. In a trial's process `__main__` contains only what
            the trainable mentions.

    Raises:
        ConfigError: the name does not exist; the message lists the most similar names.
        ImportError: the module itself fails to import something.
    """
    parts = name.split(".") if isinstance(name, str) else []
    if not parts or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"import_class({name!r}): give a name such as 'torch.optim.Adam'")
    found = _from_main(name, sys._getframe(1).f_globals) if len(parts) == 1 else _from_module(name, parts)
    if isinstance(found, ModuleType) or not callable(found):
        kind = "a module" if isinstance(found, ModuleType) else f"of type {type(found).__name__}"
        raise ConfigError(f"import_class({name!r}): this is {kind}, not a class")
    return found


def _from_main(name: str, caller: Mapping[str, Any]) -> Any:
    # In a worker, `__main__` is a different program, and a script's functions have their own globals, so both
    # are searched.
    scopes = [vars(sys.modules["__main__"])]
    if caller.get("__name__") == "__main__":
        scopes.append(dict(caller))
    for scope in scopes:
        if name in scope:
            return scope[name]
    near = _nearest(name, (each for scope in scopes for each in scope))
    raise ConfigError(
        f"import_class({name!r}): __main__ has no {name!r} in this process{near}. Give the module too, as in "
        "'package.module.Class'; a trial has of a script only what its trainable mentions by name"
    )


def _from_module(name: str, parts: list[str]) -> Any:
    found: Any = _module(parts[0])
    if found is None:
        near = _nearest(parts[0], {each.partition(".")[0] for each in sys.modules})
        raise ConfigError(f"import_class({name!r}): there is no module {parts[0]!r}{near}; is it installed?")
    for place, part in enumerate(parts[1:], 1):
        inside = ".".join(parts[:place])
        outer = found
        found = getattr(outer, part, None)
        if found is None and isinstance(outer, ModuleType):
            found = _module(f"{inside}.{part}")
        if found is None:
            raise ConfigError(
                f"import_class({name!r}): {inside} has no {part!r}{_nearest(part, _names(outer))}"
            )
    return found


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only a missing module or package is expected here. A missing dependency of the module must be
        # reported.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None


def _names(found: Any) -> Iterable[str]:
    yield from dir(found)
    if isinstance(found, ModuleType) and hasattr(found, "__path__"):
        yield from (each.name for each in pkgutil.iter_modules(found.__path__))


def _nearest(name: str, names: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in names if not each.startswith("_")}
    near = difflib.get_close_matches(name.lower(), by_lower, n=3)
    return f"; there is {', '.join(by_lower[each] for each in near)}" if near else ""


# The encoder is shared, because creating an encoder is slow.
_to_text = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

OPAQUE = "$opaque"
"""Mark of a value without a text form, with the value's repr; replaying the suggestion restores the value."""
_TUPLE = "$tuple"
_ITEMS = "$items"
"""Mark of a dictionary with keys that are not strings, such as {0: 1.0, 1: 2.5}."""
_SETS = {"$set": set, "$frozenset": frozenset}
_FLOAT = "$float"
_DOMAIN = "$domain"


def encode_config(config: Any) -> str:
    """Return a configuration or a search space as text; values without a text form are marked opaque."""
    return _to_text(_to_data(config))


def decode_config(text: str) -> Any:
    """Return the configuration for a text of `encode_config`; an opaque value stays its mark.

    Raises:
        SpaceError: the text names a domain that this version doesn't know.
    """
    data = parsed(text)
    # Every mark begins with these characters, so other texts need no conversion.
    return _from_data(data) if '{"$' in text else data


def is_opaque(value: Any) -> bool:
    """Return True for the mark of a value without a text form."""
    return isinstance(value, dict) and len(value) == 1 and OPAQUE in value


def is_mark_of(stored: Any, value: Any) -> bool:
    """Return True if `stored` is the mark of `value` in a stored configuration."""
    return holds_opaque(stored) and encode_config(stored) == encode_config(value)


def holds_opaque(value: Any) -> bool:
    """Return True if any part of a decoded configuration or space is opaque."""
    if is_opaque(value):
        return True
    if isinstance(value, Spelled):
        value = value.spelling[1]
    children = (
        value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    )
    return any(type(child) not in PLAIN_TYPES and holds_opaque(child) for child in children)


def made_again(registry: Registry, description: Mapping[str, Any], *, inner: str) -> Any | None:
    """Recreate a scheduler or searcher from its description; None if the user defined a class or argument.

    Args:
        registry: registry with the class that the description names.
        description: dictionary with `class`, `arguments` and, for a searcher, its evaluated points as
            `evaluated`.
        inner: name of the argument that may itself be a description.
    """
    cls = registry.find(description["class"])
    evaluated = description.get("evaluated", ())
    if cls is None or holds_opaque(description["arguments"]) or holds_opaque(evaluated):
        return None
    arguments = dict(description["arguments"])
    if isinstance(arguments.get(inner), Mapping):
        arguments[inner] = made_again(registry, arguments[inner], inner=inner)
        if arguments[inner] is None:
            return None
    made = cls(**arguments)
    for each in evaluated:
        made.add_evaluated_point(**each)
    return made


def why_not_made_again(registry: Registry, description: Mapping[str, Any], *, inner: str) -> str:
    """Return the reason why `made_again` returns None for a description."""
    name, arguments = description["class"], description["arguments"]
    if registry.find(name) is None:
        return f"no installed package has a {registry.kind} named {name}: a row in its metadata names one"
    within = arguments.get(inner)
    if (
        isinstance(within, Mapping)
        and "class" in within
        and made_again(registry, within, inner=inner) is None
    ):
        return why_not_made_again(registry, within, inner=inner)
    for argument, value in arguments.items():
        if value == {OPAQUE: repr(NOT_KEPT)}:
            return f"{name} keeps no attribute {argument!r}, of its argument's name"
        if holds_opaque(value):
            return f"the argument {argument!r} of {name} is, or holds, a function or an object"
    return f"{name} was told of points that hold a function or an object"


def complete(stored: Any, replayed: Any) -> Any:
    """Return `stored` with its opaque values taken from the same places of `replayed`, if they agree.

    A value that disagrees stays a mark, and the caller must refuse it.
    """
    if stored is replayed or type(stored) in PLAIN_TYPES:  # this is the usual case, without opaque values
        return stored
    if is_opaque(stored) or is_own_container(replayed):
        return replayed if encode_config(replayed) == encode_config(stored) else stored
    if isinstance(stored, dict) and isinstance(replayed, dict):
        return {key: complete(value, replayed.get(key)) for key, value in stored.items()}
    if (
        isinstance(stored, (list, tuple))
        and isinstance(replayed, (list, tuple))
        and len(stored) == len(replayed)
    ):
        return type(stored)(complete(a, b) for a, b in zip(stored, replayed, strict=True))
    return stored


def _to_data(value: Any) -> Any:
    if is_own_container(value):  # an opaque mark would hide the container's items, so they are copied
        value = dict(value.items()) if isinstance(value, Mapping) else list(value)
    elif type(value) not in PLAIN_TYPES:
        value = as_scalar(value)
    if type(value) in PLAIN_TYPES:
        if type(value) is float and not math.isfinite(value):
            # The number is marked, because a configuration may also contain the text "NaN".
            return {_FLOAT: TEXT_OF[str(value)]}
        return value
    if isinstance(value, Spelled):
        name, arguments = value.spelling
        return {_DOMAIN: [name, *map(_to_data, arguments)]}
    if type(value) is tuple:
        return {_TUPLE: [_to_data(child) for child in value]}
    if type(value) is list:
        return [_to_data(child) for child in value]
    if type(value) is dict:
        if all(type(key) is str for key in value):
            return {key: _to_data(child) for key, child in value.items()}
        keys = list(map(_to_data, value))
        if not any(map(holds_opaque, keys)):
            return {_ITEMS: [[key, _to_data(child)] for key, child in zip(keys, value.values(), strict=True)]}
    if type(value) in (set, frozenset):
        # The children are sorted, because the order of a set differs between processes.
        children = sorted(map(_to_data, value), key=json.dumps)
        if any(map(holds_opaque, children)):
            return {OPAQUE: f"{type(value).__name__} of {json.dumps(children)}"}
        return {f"${type(value).__name__}": children}
    return {OPAQUE: _name_of(value)}


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return [_from_data(child) for child in data]
    if not isinstance(data, dict):
        return data
    if len(data) == 1:  # every mark is a dictionary with one key
        ((mark, held),) = data.items()
        if mark == OPAQUE:
            return data
        if mark == _TUPLE:
            return tuple(_from_data(child) for child in held)
        if mark == _ITEMS:
            return {_from_data(key): _from_data(child) for key, child in held}
        if mark == _FLOAT:
            return FLOAT_OF[held]
        if mark in _SETS:
            return _SETS[mark](map(_from_data, held))
        if mark == _DOMAIN:
            return _domain_of(*held)
    return {
        key: child if type(child) in PLAIN_TYPES else _from_data(child)  # plain values need no call
        for key, child in data.items()
    }


def _domain_of(name: str, *arguments: Any) -> Any:
    if name not in SPELLINGS:
        raise SpaceError(f"the stored space uses {name!r}, which this version of trainkit does not know")
    return SPELLINGS[name](*map(_from_data, arguments))


def _name_of(value: Any) -> str:
    """Return a name that is equal in every process, unlike a default repr, which contains an address."""
    named = getattr(value, "__qualname__", None)
    if named is not None:
        return f"{getattr(value, '__module__', '')}.{named}"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", shortened_repr(value))
