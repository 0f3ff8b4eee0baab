"""Support for packages that import each of their names on first use."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from trainkit.errors import did_you_mean


def no_such_name(module: str, name: str, names: Iterable[str]) -> Exception:
    """Return the error for a missing name of a package. The message suggests the most similar name.

    Args:
        module: name of the package whose `__getattr__` was called.
        name: the missing name.
        names: names that the package has.
    """
    # For `from package import name`, Python calls `__getattr__` before it tries the submodule of that name,
    # and discards the text of the AttributeError. A wrapper that supports former names may add a frame
    # between the import and this function, so two frames are checked.
    callers = [sys._getframe(2), sys._getframe(2).f_back]
    imported = any(frame is not None and frame.f_code.co_name == "_handle_fromlist" for frame in callers)
    if imported and importlib.util.find_spec(f"{module}.{name}") is not None:
        return AttributeError(name)
    hint = did_you_mean(name, names)
    if hint and imported:
        return ImportError(f"cannot import name {name!r} from {module!r}.{hint}", name=module)
    return AttributeError(f"module {module!r} has no attribute {name!r}{'.' * bool(hint)}{hint}")


IMPORT = re.compile(r"^from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)
ALIAS = re.compile(r"^(\w+) = (\w+)\b", re.MULTILINE)


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Turn the garbage collector off while many long-lived objects are made, such as modules or trials.

    The garbage collector would traverse long-lived objects repeatedly without finding garbage. If several
    threads use this function at once, only the thread that turned the collector off turns it on again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def from_stub(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, made from its `__init__.pyi`.

    So the stub, which type checkers read, is the only list of a package's names.
    """
    folder = os.path.dirname(str(sys.modules[module].__file__))
    with open(os.path.join(folder, "__init__.pyi"), encoding="utf-8") as file:
        stub = file.read()
    home_of = {name: (home, name) for home, name in IMPORT.findall(stub)}
    home_of |= {alias: home_of[name] for alias, name in ALIAS.findall(stub)}

    def __getattr__(name: str) -> Any:
        if name not in home_of:
            raise no_such_name(module, name, home_of)
        home, there = home_of[name]
        with without_collection():
            found = importlib.import_module(f"{module}.{there}" if home == module else home)
        if home != module:
            if not hasattr(found, there):  # the name is a module that is not imported yet
                importlib.import_module(f"{home}.{there}")
            found = getattr(found, there)
            setattr(sys.modules[module], name, found)
        return found

    public = sorted(name for name in home_of if not name.startswith("_"))
    return __getattr__, lambda: public, public
