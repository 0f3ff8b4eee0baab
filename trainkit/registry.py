"""Registries of named components of trainkit, its plugins and other packages."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from glob import escape, iglob
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, NamedTuple

from trainkit.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Added(NamedTuple):
    """Component that a plugin adds.

    Attributes:
        target: location of the component, as "module:attribute".
        help: one line of help for the component; may be empty.
    """

    target: str
    help: str


def added(group: str) -> dict[str, Added]:
    """Return the components that the plugins in `trainkit/plugins` add to a group of entry points, by name.

    Each plugin has a file `entry_points.txt`, in the format of Python packages. A comment after an entry is
    the component's help line.
    """
    return _added().get(group, {})


@functools.cache
def _added() -> dict[str, dict[str, Added]]:
    found: dict[str, dict[str, Added]] = {}
    for path in sorted(iglob(f"{escape(os.path.dirname(__file__))}/plugins/*/entry_points.txt")):
        section = ""
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, is_entry, rest = line.partition("=")
                section = section if is_entry else line.strip()[1:-1] or section
                if is_entry:
                    target, _, text = rest.partition("#")
                    found.setdefault(section, {})[name.strip()] = Added(target.strip(), text.strip())
    return found


def each(group: str) -> list[Any]:
    """Load and return all objects that plugins add to a group of entry points."""
    return [_imported(entry.target) for entry in added(group).values()]


def loaded(group: str, name: str) -> Any:
    """Load and return the object that a plugin adds to a group of entry points under this name.

    Raises:
        ConfigError: no plugin adds an object of this name.
    """
    entry = added(group).get(name)
    if entry is None:
        raise ConfigError(f"no plugin in trainkit/plugins adds {name!r} to {group}: reinstall trainkit")
    return _imported(entry.target)


class Registry:
    """Registry of the components of one kind, such as schedulers. Each component is loaded on first use.

    Plugins and other packages add components as entry points. For example, schedulers belong to this group:

        [project.entry-points."trainkit.schedulers"]
        mine = "my_package.my_module:MyScheduler"

    A component is found by its case-insensitive name, or by the name of its class. trainkit's own names take
    precedence. Entry points are searched only for names that trainkit itself does not have, because the
    search reads all installed packages.

    Args:
        kind: singular noun for the component, used in messages and in the group's name.
        rows: locations of trainkit's own components, as "module:attribute", by name. A component may have
            several names.
        base: base class of all components, as "module:class"; None turns this check off.
    """

    def __init__(self, kind: str, rows: Mapping[str, str], base: str | None = None) -> None:
        self.kind = kind
        self._base = base
        self.group = f"trainkit.{kind[:-1]}ies" if kind.endswith("y") else f"trainkit.{kind}s"
        self._rows = {name: entry.target for name, entry in added(self.group).items()} | dict(rows)
        self._own = {_attribute_of(target): target for target in self._rows.values()} | self._rows

    @property
    def homes(self) -> dict[str, str]:
        """Modules of the classes that trainkit ships, by class name."""
        return {_attribute_of(target): target.partition(":")[0] for target in self._rows.values()}

    def own_names(self) -> list[str]:
        """Return the names of the components that trainkit ships, sorted."""
        return sorted(self._rows)

    def names(self) -> list[str]:
        """Return the names of all components, sorted."""
        return sorted({*self._rows, *(each.name for each in self._entries())})

    def find(self, name: str) -> Any:
        """Load and return the component of this name; None if no component has it.

        Raises:
            ConfigError: a component that another package adds can't be loaded.
        """
        target = self._own.get(name) or self._own.get(name.lower())
        if target is not None:
            return _imported(target)
        for entry in self._entries():
            if name.lower() == entry.name.lower() or name == _attribute_of(entry.value):
                return self._loaded(entry)
        return None

    def get(self, name: object, argument: str | None = None) -> Any:
        """Load and return the component of this name.

        Args:
            name: name to look up.
            argument: name of the user's argument, for the error message; None: the message names the kind.

        Raises:
            ConfigError: no component has this name, or the component can't be loaded.
        """
        found = self.find(name) if isinstance(name, str) else None
        if found is None:
            names = self.names()
            hint = did_you_mean(str(name), {*names, *self.homes})
            raise ConfigError(f"{argument or self.kind}={name!r} is not one of {', '.join(names)}.{hint}")
        return found

    def name_of(self, cls: type) -> str:
        """Return the name of `cls`, or "module.name" if `find` returns a different class for this name."""
        name = cls.__qualname__
        is_of_nobody = name not in self._own and cls.__module__.startswith(f"{__package__}.")
        return name if not is_of_nobody and self.find(name) in (None, cls) else f"{cls.__module__}.{name}"

    def _entries(self) -> Iterator[EntryPoint]:
        if _may_be_declared(self.group.encode()):
            # imported here, as the import is slow and seldom needed
            from importlib.metadata import entry_points

            yield from entry_points(group=self.group)

    def _loaded(self, entry: EntryPoint) -> Any:
        package = f" of the package {entry.dist.name}" if entry.dist is not None else ""
        row = f"the {self.kind} {entry.name!r}{package}, {entry.value},"
        try:
            found = entry.load()
        except Exception as error:
            raise ConfigError(f"{row} can't be loaded: {type(error).__name__}: {error}") from error
        if not self.fits(found):
            raise ConfigError(f"{row} is not a class that extends {_attribute_of(self._base or '')}")
        return found

    def fits(self, found: Any) -> bool:
        """Return True if `found` extends the registry's base class, or if the registry has no base class."""
        return self._base is None or (isinstance(found, type) and issubclass(found, _imported(self._base)))


def _may_be_declared(group: bytes) -> bool:
    """Return False if no installed package names the group; a full search would take ten times as long."""
    finders = [finder for finder in sys.meta_path if hasattr(finder, "find_distributions")]
    if finders != [PathFinder] or any(map(os.path.isfile, sys.path)):
        return True  # packages may also be outside folders, for example in an archive
    for folder in sys.path:
        for name in iglob(f"{escape(folder or '.')}/*-[Ii]*/entry_points.txt"):
            with contextlib.suppress(OSError), open(name, "rb") as file:
                if group in file.read():
                    return True
    return False


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _attribute_of(target: str) -> str:
    return target.partition(":")[2].strip()
