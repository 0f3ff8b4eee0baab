"""Paths in a search space, and functions that check a space and list its leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from trainkit.errors import SpaceError
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.metrics import MAX_BITS, PLAIN_TYPES
from trainkit.tune.core.setting_names import setting
from trainkit.tune.space.domains import Categorical, Forbid, GridSearch, SampleFrom, Spelled, When

_INSTEAD = {
    "uniform": "tune.uniform(lower, upper)",
    "randint": "tune.randint(lower, upper)",
    "randrange": "tune.randint(lower, upper)",
    "integers": "tune.randint(lower, upper)",
    "choice": "tune.choice([...])",
    "normal": "tune.randn(mean, sd)",
    "gauss": "tune.randn(mean, sd)",
    "randn": "tune.randn(mean, sd)",
    "normalvariate": "tune.randn(mean, sd)",
    "loguniform": "tune.loguniform(lower, upper)",
    "reciprocal": "tune.loguniform(lower, upper)",
    "norm": "tune.randn(mean, sd)",
}
_OPTUNA = {
    "FloatDistribution": "tune.uniform(low, high), or tune.loguniform(low, high) for log=True",
    "IntDistribution": "tune.randint(low, high + 1), or tune.lograndint(low, high + 1) for log=True",
    "CategoricalDistribution": "tune.choice([...])",
}
_OWN = "trainkit.tune.space"
_COMMON_TYPES = frozenset((dict, list, *PLAIN_TYPES))


def meant_as_domain(value: Any) -> str | None:
    """Return a message if `value` was probably meant as a domain, but is not a domain; None otherwise."""
    module = getattr(value, "__module__", None) or ""
    if module == _OWN and callable(value):
        name = value.__name__
        return f"the function tune.{name} was not called; write tune.{name}(...)"
    owner = getattr(value, "__self__", None)
    if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
        name = value.__name__
        instead = _INSTEAD.get(name, "a domain such as tune.uniform(lower, upper)")
        return (
            f"the function {name} of a random generator would be passed to the trials without a call; "
            f"write {instead}, or tune.sample_from(lambda spec: ...) for a call in each trial"
        )
    kind = type(value)
    if kind.__module__.startswith("scipy.stats") and hasattr(value, "rvs"):
        name = getattr(getattr(value, "dist", value), "name", "")
        instead = _INSTEAD.get(name, "tune.sample_from(lambda spec: distribution.rvs())")
        return f"a distribution of scipy.stats would be passed to the trials unsampled; write {instead}"
    if kind.__module__.startswith("hyperopt.pyll"):
        return (
            "a hyperopt expression would not be sampled: give search_alg=HyperOptSearch(space) without a "
            "param_space, or write domains of trainkit.tune, such as tune.uniform(lower, upper)"
        )
    foreign = f"{kind.__module__}.{kind.__qualname__} is a domain of another library"
    if kind.__module__.startswith("optuna.distributions"):
        instead = _OPTUNA.get(kind.__name__, "a domain of trainkit.tune")
        return f"{foreign}; write {instead}, or pass the space as search_alg=OptunaSearch(space)"
    if kind.__module__.startswith("ray.tune"):
        return f"{foreign}; use the domain of the same name in trainkit.tune"
    return None


def constant_words(value: Any, *, alone: bool) -> str | None:
    """Return a message if a constant of a space was probably meant as a domain; None otherwise.

    Args:
        value: a constant of a space.
        alone: True if nothing in the space varies.
    """
    if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
        return "a lambda, which isn't called: write tune.sample_from(lambda spec: ...) to call it per trial"
    is_range = (
        isinstance(value, tuple) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]
    )
    if alone and is_range:
        low, high = value
        return (
            f"the tuple {value!r}, which is passed to the trials as a constant; for a range, write "
            f"tune.uniform({low!r}, {high!r}), tune.randint({low!r}, {high!r}) or tune.loguniform"
        )
    return None


Path = tuple[Any, ...]
"""Keys, list indexes and branches from the root: ("net", "layers", 0) or ("optimizer", Branch(1), "lr")."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Step of a path into category number `place` of a choice.

    Paths in a configuration do not have steps of this kind.
    """

    place: int


def in_config(path: Path) -> Path:
    """Return the path of the value in a configuration, which is `path` without branches."""
    return tuple(part for part in path if type(part) is not Branch)


def choices_around(path: Path) -> list[tuple[Path, int]]:
    """Return the path of each choice around a leaf, with the index of the category that contains the leaf."""
    return [(path[:place], part.place) for place, part in enumerate(path) if isinstance(part, Branch)]


def spell(path: Path) -> str:
    """Return the path in the notation of users and searchers: 'net/layers/0'."""
    return "/".join(map(str, in_config(path))) or setting("param_space")


def spell_branches(path: Path) -> str:
    """Return the path with its branches as text: 'optimizer[1]/lr'."""
    text = ""
    for part in path:
        text += f"[{part.place}]" if type(part) is Branch else f"/{part}"
    return text.lstrip("/")


@dataclass(frozen=True, slots=True)
class Site:
    """A leaf of a space and its location.

    Attributes:
        path: path of the leaf with branches, which is unique in the space.
        leaf: a domain, an axis, a `sample_from`, a rule or a constant.
        whens: paths of the enclosing `when`s, outermost first.
    """

    path: Path
    leaf: Any
    whens: tuple[Path, ...] = ()


def canonical(node: Any, path: Path = (), *, inside: str | None = None) -> Any:
    """Return a checked copy of a space in which Ray's {"grid_search": [...]} is replaced.

    A container of a class other than dict and list is not copied, unless it contains a domain.

    Args:
        node: the space, or a subtree of it.
        path: path of `node`.
        inside: "choice" if `node` is inside a category of a choice; otherwise None.

    Raises:
        SpaceError: a leaf is not allowed at its path; the message names the path.
    """
    if isinstance(node, Mapping):
        if set(node) == {"grid_search"}:
            try:
                node = GridSearch(node["grid_search"])
            except SpaceError as error:
                raise SpaceError(f"{spell(path)}: {error}") from None
        else:
            _refuse_evaluated_text(node, path)
            copy = {key: canonical(value, (*path, key), inside=inside) for key, value in node.items()}
            # Mappings of other classes, such as DictConfig, stay unchanged, because trials may use their
            # attributes.
            return copy if type(node) is dict or not path or holds_leaf(copy) else node
    if isinstance(node, list):
        for place, value in enumerate(node):
            if isinstance(value, (When, Forbid)):
                raise SpaceError(
                    f"{spell((*path, place))}: {value} in a list would shift later items: use a dictionary"
                )
        items = [canonical(value, (*path, place), inside=inside) for place, value in enumerate(node)]
        return items if type(node) is list or holds_leaf(items) else node
    if isinstance(node, (tuple, set, frozenset)) and any(holds_leaf(value) for value in node):
        raise SpaceError(
            f"{spell(path)}: a {type(node).__name__} can't contain domains: use a list or dictionary"
        )
    if type(node) in (str, float, bool, type(None)):
        return node
    if type(node) is int and node.bit_length() <= MAX_BITS:
        return node
    if hint := meant_as_domain(node):
        raise SpaceError(f"{spell(path)}: {hint}")
    if any(type(leaf) is int and leaf.bit_length() > MAX_BITS for leaf in everything(node)):
        raise SpaceError(f"{spell(path)} contains an integer of more than {MAX_BITS} bits: use a string")
    if isinstance(node, GridSearch) and inside is not None:
        raise SpaceError(f"{spell(path)}: {node} is not supported inside {inside}: use a separate key")
    if isinstance(node, Categorical):
        return Categorical(_options(node.categories, path, "choice"))
    if isinstance(node, GridSearch):
        return GridSearch(_options(node.values, path, inside))
    if isinstance(node, When):
        content = canonical(node.content, path, inside=inside)
        if isinstance(content, When):
            repeated = {name for name, _ in node.conditions} & {name for name, _ in content.conditions}
            if repeated:
                raise SpaceError(
                    f"{spell(path)}: two `when`s set conditions on {', '.join(sorted(repeated))}: use one"
                )
            return When(node.conditions + content.conditions, content.content)
        if isinstance(content, Forbid):
            raise SpaceError(f"{spell(path)}: `when` can't contain {content}: add the conditions to forbid()")
        return When(node.conditions, content)
    return node


def _options(values: tuple[Any, ...], path: Path, inside: str | None) -> tuple[Any, ...]:
    for value in values:
        if isinstance(value, (When, Forbid)):
            raise SpaceError(f"{spell(path)}: {value} cannot be an option: put the value in a dictionary")
    return tuple(
        canonical(value, (*path, Branch(place)), inside=inside) for place, value in enumerate(values)
    )


def _refuse_evaluated_text(node: Mapping[Any, Any], path: Path) -> None:
    text = node.get("eval")
    if len(node) == 1 and isinstance(text, str) and "spec." in text:
        raise SpaceError(
            f"{spell(path)}: a string is not evaluated: use tune.sample_from(lambda spec: {text})"
        )


def everything(node: Any) -> Iterator[Any]:
    """Yield `node` and everything inside it."""
    yield node
    children: Any = options_of(node)
    if isinstance(node, Mapping):
        children = node.values()
    elif isinstance(node, (list, tuple, set, frozenset)):
        children = node
    elif isinstance(node, When):
        children = (node.content,)
    for child in children:
        yield from everything(child)


def is_own_container(value: Any) -> bool:
    """Return True for a mapping or list of a user's class, which trials receive unchanged."""
    return type(value) not in _COMMON_TYPES and isinstance(value, (Mapping, list))


def holds_leaf(node: Any) -> bool:
    """Return True if `node` contains a value that must still be chosen or computed."""
    return any(isinstance(leaf, (Spelled, SampleFrom)) for leaf in everything(node))


def options_of(leaf: Any) -> tuple[Any, ...]:
    """Return the options of a choice or an axis; () for any other leaf."""
    if isinstance(leaf, Categorical):
        return leaf.categories
    return leaf.values if isinstance(leaf, GridSearch) else ()


def sites(node: Any) -> list[Site]:
    """Return all leaves, including constants, in the order of the space; a choice precedes its branches."""
    return [site for site in _walk(node) if not isinstance(site.leaf, When)]


def whens(node: Any) -> list[Site]:
    """Return all `when`s of a space."""
    return [site for site in _walk(node) if isinstance(site.leaf, When)]


def _walk(node: Any, path: Path = (), outer: tuple[Path, ...] = ()) -> Iterator[Site]:
    if type(node) is dict:
        for key, value in node.items():
            yield from _walk(value, (*path, key), outer)
    elif type(node) is list:
        for place, value in enumerate(node):
            yield from _walk(value, (*path, place), outer)
    else:
        yield Site(path, node, outer)
        if isinstance(node, When):
            yield from _walk(node.content, path, (*outer, path))
        for place, option in enumerate(options_of(node)):
            if isinstance(option, (dict, list, Spelled, SampleFrom)):
                yield from _walk(option, (*path, Branch(place)), outer)
