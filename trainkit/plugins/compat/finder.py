"""Import of modules under their old paths. A table maps each old path to a current module or name.

The table has the rows of `ray.txt` and `moved.txt`, with module paths relative to `trainkit.`:

    old.module new.module                   every name of the new module
    old.module:Name new.module:NewName      one name
    old.package:name new.module             one module
    old.module:Name - reason                a name that no longer exists
    old.module - reason                     a module that does not exist here: its import gives the reason
    old.module !Class                       a searcher that is not here: its import says what to use instead
    old.module =module                      a module outside trainkit

If an old module has several new modules, they are searched in the order of their rows.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from trainkit.errors import did_you_mean

FILES = ("ray.txt", "moved.txt")
_NO_SEARCHER = (
    "is not in trainkit: take OptunaSearch of trainkit.tune.search.optuna, whose sampler= takes any of "
    "Optuna's, such as GPSampler or CmaEsSampler; or extend trainkit.tune.search.Searcher"
)


class Row:
    """Entry of the table for one old module.

    Attributes:
        homes: paths of the current modules in which the old module's names are searched, in this order.
        names: maps each old name to its current module and current name; the name "" means the module itself.
        gone: maps each old name that no longer exists to the reason for its removal.
        children: names of the old module's submodules.
        refused: text of the ImportError, if the old module can't be imported; otherwise None.
    """

    def __init__(self) -> None:
        self.homes: list[str] = []
        self.names: dict[str, tuple[str, str]] = {}
        self.gone: dict[str, str] = {}
        self.children: set[str] = set()
        self.refused: str | None = None


@functools.cache
def table() -> dict[str, Row]:
    """Return the table, as a mapping from the full path of each old module to its `Row`."""
    return parsed(_lines())


def parsed(lines: Iterable[str]) -> dict[str, Row]:
    """Parse `lines`; return a `Row` for each old module and for each package that contains one."""
    rows: dict[str, Row] = {}
    for line in lines:
        words = line.partition("#")[0].split()
        if not words:
            continue
        module, _, name = _full(words[0]).partition(":")
        row = rows.setdefault(module, Row())
        if name and words[1] == "-":
            row.gone[name] = " ".join(words[2:])
        elif name:
            home, _, new = _full(words[1]).partition(":")
            row.names[name] = (home, new)
        elif words[1] == "-":
            row.refused = f"{module} is not here: {' '.join(words[2:])}"
        elif words[1].startswith("!"):
            row.refused = f"{' '.join(words[1:])[1:]} {_NO_SEARCHER}"
        else:
            row.homes.append(_full(words[1]))
    for module in list(rows):
        while (parts := module.rpartition("."))[0]:
            module = parts[0]
            rows.setdefault(module, Row()).children.add(parts[2])
    return rows


def _lines() -> Iterator[str]:
    for name in FILES:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            yield from file


def _full(path: str) -> str:
    return path[1:] if path.startswith("=") else f"trainkit.{path.removeprefix('trainkit.')}"


if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    # The base class is `object`, because a loader need not extend `Loader`, whose import would double this
    # module's import time.
    Loader = object


def find(path: str, others: Iterable[Any], search: Sequence[str] | None) -> ModuleSpec | None:
    """Return the import spec of an old module; None if the table has no row for the module.

    Args:
        path: full path of the module.
        others: other finders in `sys.meta_path`.
        search: folders of the module's package.
    """
    row = table().get(path)
    if row is None:
        return None
    specs = (finder.find_spec(path, search) for finder in others)
    real: ModuleSpec | None = next((spec for spec in specs if spec is not None), None)
    if real is not None and real.has_location:
        real.loader = Extended(real.loader, row)
        return real
    return ModuleSpec(path, Served(row), origin="trainkit.plugins.compat", is_package=bool(row.children))


class ServedModule(ModuleType):
    """Module without a file. The import of a submodule does not replace an object of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        _, object_there = table()[self.__name__].names.get(name, ("", ""))
        if not (isinstance(value, ModuleType) and object_there):
            super().__setattr__(name, value)

    # The module must be picklable, because a function that refers to the module may be sent to a worker.
    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)


class Served(Loader):
    """Loader of an old module that has no file. The loader takes the names from the current modules."""

    def __init__(self, row: Row) -> None:
        self._row = row

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module."""
        return ServedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Add the old names to the module.

        Raises:
            ImportError: the old module has no replacement.
        """
        row = self._row
        if row.refused is not None:
            raise ImportError(row.refused, name=module.__name__)
        homes = " ".join(dict.fromkeys([*row.homes, *(home for home, _ in row.names.values())]))
        module.__doc__ = f"Names of {homes}, where older programs look for them."
        add_names(module, row)

    def get_code(self, path: str) -> CodeType | None:
        """Return the code that `python -m path` runs: the code of the first current module."""
        for home in self._row.homes[:1]:
            loader: Any = getattr(find_spec(home), "loader", None)
            code: CodeType | None = loader.get_code(home)
            return code
        return None


class Extended(Loader):
    """Loader of an old module that still has a file. The loader adds the old names to the module."""

    def __init__(self, loader: Any, row: Row) -> None:
        self._loader = loader
        self._row = row

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Make the module with its original loader."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's own code, then add the old names."""
        self._loader.exec_module(module)
        if self._row.children and not hasattr(module, "__path__"):
            # The old path was a package, and Python looks for submodules only in packages.
            module.__path__ = []
        add_names(module, self._row)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def add_names(module: ModuleType, row: Row) -> None:
    """Add the old names of `row` to `module`."""
    path = module.__name__
    own: Callable[[str], Any] | None = module.__dict__.get("__getattr__")
    own_dir: Callable[[], list[str]] | None = module.__dict__.get("__dir__")
    is_real = module.__spec__ is not None and module.__spec__.has_location

    def __getattr__(name: str) -> Any:
        if own is not None and name in module.__dict__.get("__all__", ()):
            return own(name)
        if name == "__all__" and not is_real:
            return public_names(row)
        if not name.startswith("__"):
            if name in row.names:
                return named(row, name)
            if name in row.gone:
                raise AttributeError(f"{path}.{name} is not here: {row.gone[name]}")
            if name in row.children:
                return importlib.import_module(f"{path}.{name}")
            # In a package with a file, a submodule takes precedence over an old name with the same spelling.
            # Raising AttributeError makes Python import the submodule.
            if is_real and hasattr(module, "__path__") and find_spec(f"{path}.{name}"):
                raise AttributeError(f"module {path!r} has no attribute {name!r}: it is not imported yet")
            for home in row.homes:
                found = importlib.import_module(home)
                if hasattr(found, name):
                    return getattr(found, name)
        if own is not None:
            return own(name)
        hint = "" if name.startswith("__") else did_you_mean(name, public_names(row))
        raise AttributeError(f"module {path!r} has no attribute {name!r}{'.' * bool(hint)}{hint}")

    def __dir__() -> list[str]:
        own_names = [] if not is_real else own_dir() if own_dir is not None else module.__dict__
        return sorted({*own_names, *public_names(row), *row.children})

    module.__dict__.update(__getattr__=__getattr__, __dir__=__dir__)


def named(row: Row, name: str) -> Any:
    """Return the current object or module for an old name."""
    home, new = row.names[name]
    module = importlib.import_module(home)
    return getattr(module, new) if new else module


def public_names(row: Row) -> list[str]:
    """Return the names that `from old_module import *` imports."""
    found = set(row.names)
    for home in row.homes:
        there = importlib.import_module(home)
        found |= set(getattr(there, "__all__", dir(there)))
    return sorted(name for name in found if not name.startswith("_"))
