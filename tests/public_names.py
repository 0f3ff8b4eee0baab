"""Every path of trainkit that can be imported, and every public name in it: as a list, and as a check of it.

    python -m tests.public_names write     # the list of this tree, if it promises more than before
    python -m tests.public_names check     # prints what of the list can't be imported any more

The list, `public_names.txt`, was written where the rooms of trainkit were drawn anew. What it names goes on
working: where a module was moved, the table in `trainkit/plugins/compat` serves its old path. A line is a
module and its names; `!` marks a module whose import is refused with what to use instead.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import ParamSpec, TypeVar

from trainkit.plugins.compat.finder import table

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".txt")
REFUSED = "!"
FENCE = re.compile(r"^```python[^\n]*\n(.*?)^```", re.M | re.S)


def listed() -> dict[str, list[str]]:
    """Return the names of each module on the list."""
    lines = (line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {module: names.split() for module, _, names in (line.partition(":") for line in lines)}


def broken() -> Iterator[str]:
    """Yield what can't be imported of the list; parents come before their children, as the list is sorted."""
    for path, names in listed().items():
        try:
            module = importlib.import_module(path)
        except Exception as error:
            told = isinstance(error, ImportError) and "take OptunaSearch" in str(error)
            if names != [REFUSED] or not told:
                yield f"{path}: {type(error).__name__}: {error}"
            continue
        if names == [REFUSED]:
            yield f"{path}: its import is no longer refused"
            continue
        gone = table()[path].gone if path in table() else {}
        for name in names:
            if gone.get(name):  # a part of no promise: asking for it says what became of it
                continue
            try:
                getattr(module, name)
            except Exception as error:
                yield f"{path}:{name}: {type(error).__name__}: {error}"


# writing


def modules() -> list[str]:
    """Return the paths of all modules that are files."""
    paths = (path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "trainkit").rglob("*.py"))
    return sorted(".".join(parts).removesuffix(".__init__") for parts in paths)


def own_names(module: ModuleType) -> set[str]:
    """Return `__all__`, or else the names that the module's own code defines."""
    source = Path(str(module.__file__)).read_text()
    found: set[str] = set()

    def defined(body: list[ast.stmt]) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.Assign(targets=targets):
                    for target in targets:
                        found.update(each.id for each in ast.walk(target) if isinstance(each, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
                case ast.If(body=body, orelse=orelse):
                    defined([*body, *orelse])
                case ast.Try(body=body, orelse=orelse):
                    defined([*body, *orelse])

    defined(ast.parse(source).body)
    found |= set(getattr(module, "__all__", ()))
    names = {name for name in found if not name.startswith("_") and hasattr(module, name)}
    return {name for name in names if not isinstance(getattr(module, name), TypeVar | ParamSpec)}


def served_names(module: ModuleType) -> set[str]:
    """Return the names that the module gets from others when it is asked for them."""
    source = Path(str(module.__file__)).read_text()
    found: set[str] = set()
    if "names_of(" in source:
        homes = re.findall(r'"(trainkit\.[\w.]+)"', source)
        for home in homes:
            there = importlib.import_module(home)
            found |= own_names(there) | served_names(there)
    for folder in ("_ALIASES", "_FOLDERS", "_MODULES", "_ROOMS"):
        found |= set(getattr(module, folder, ()))
    return found


def used_names() -> Iterator[tuple[str, str]]:
    """Yield what tests, recipes, benchmarks and docs import from trainkit, as module and name."""
    files = [path for folder in ("tests", "recipes", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    sources = [path.read_text() for path in files]
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        sources += FENCE.findall(page.read_text())
    for source in sources:
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trainkit":
                yield from ((str(node.module), each.name) for each in node.names)


def write() -> None:
    """Write the list of this tree."""
    lines: dict[str, set[str]] = {}
    for path in modules():
        if path.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(path)
        except ImportError as error:
            if "take OptunaSearch" not in str(error):
                raise
            lines[path] = {REFUSED}
            continue
        lines[path] = own_names(module) | served_names(module)
    for path, name in used_names():
        known = path in lines and lines[path] != {REFUSED} and not name.startswith("_") and name != "*"
        if known and f"{path}.{name}" not in lines and hasattr(importlib.import_module(path), name):
            lines[path].add(name)
    head = (
        f"# {sum(map(len, lines.values()))} names in {len(lines)} modules; written by tests/public_names.py\n"
    )
    LIST.write_text(
        head + "".join(f"{path}: {' '.join(sorted(lines[path]))}".rstrip() + "\n" for path in sorted(lines))
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["write"]:
        write()
    elif sys.argv[1:] == ["check"]:
        sys.exit("\n".join(broken()) or 0)
    else:
        sys.exit(__doc__)
