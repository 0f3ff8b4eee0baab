"""A package's source as data: modules, imports, folders and lines, read once for all rules."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Breach(NamedTuple):
    """One place where a rule is broken, and how to mend it."""

    file: str
    line: int
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.problem}; {self.fix}"


class Import(NamedTuple):
    """One module that another one imports, with `from package import submodule` resolved to the submodule."""

    module: str
    line: int
    target: str
    when: str  # "head": at import; "function": when called; "types": never, only for a type checker


class Module:
    """One file of a package.

    Args:
        name: dotted; a package's `__init__.py` has the name of the package.
        path: of the file.
        root: the folder that the package stands in.
    """

    def __init__(self, name: str, path: Path, root: Path) -> None:
        self.name = name
        self.path = path
        self.file = str(path.relative_to(root))
        self.text = path.read_text()
        self.lines = self.text.splitlines()
        self.tree = ast.parse(self.text)
        self.nodes = sorted(ast.walk(self.tree), key=lambda node: getattr(node, "lineno", 0))
        self.is_front = path.name == "__init__.py"

    def breach(self, line: int, problem: str, fix: str) -> Breach:
        return Breach(self.file, line, problem, fix)

    @cached_property
    def docstrings(self) -> list[ast.Constant]:
        """The docstrings of the module, its classes and its functions."""
        return [
            node.body[0].value
            for node in self.nodes
            if isinstance(node, DOCUMENTED)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(node.body[0].value, ast.Constant)
            and isinstance(node.body[0].value.value, str)
        ]

    @cached_property
    def described(self) -> list[ast.Constant]:
        """All texts that describe something: the docstrings, and those behind attributes and constants."""
        return [
            node.value
            for node in self.nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ]

    @cached_property
    def code_lines(self) -> int:
        """The number of lines that are not blank, not a comment alone, and not in a docstring."""
        without = {line for text in self.docstrings for line in _lines_of(text)}
        in_text = {
            line
            for node in self.nodes
            if isinstance(node, (ast.Constant, ast.JoinedStr)) and node.end_lineno != node.lineno
            for line in _lines_of(node)
        }
        return sum(
            number not in without and (number in in_text or (bool(line.strip()) and line.lstrip()[0] != "#"))
            for number, line in enumerate(self.lines, start=1)
        )

    @cached_property
    def classes(self) -> list[ast.ClassDef]:
        """The classes at the top of the file, those under `if` and `try` among them."""
        return list(_classes(self.tree.body))


class Source:
    """All modules of a package.

    Args:
        root: the folder that the package stands in.
        package: its name.
    """

    def __init__(self, root: Path, package: str) -> None:
        self.root = root
        self.package = package
        self.modules: dict[str, Module] = {}
        for path in sorted((root / package).rglob("*.py")):
            name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            self.modules[name] = Module(name, path, root)

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    def below(self, module: str) -> str:
        """Return `module` without the package's name: "tune.trial" of "trainkit.tune.trial"."""
        return module.partition(".")[2]

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of the package's files, function-level and type-checking ones among them."""
        found = (self._imports_of(module.name, module.tree, "head") for module in self)
        return list(dict.fromkeys(itertools.chain.from_iterable(found)))

    @cached_property
    def own_imports(self) -> list[Import]:
        """The imports that name a module of the package itself."""
        return [found for found in self.imports if found.target in self.modules]

    def _imports_of(self, module: str, node: ast.AST, when: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        yield Import(module, child.lineno, alias.name, when)
                case ast.ImportFrom(module=base, names=names):
                    for alias in names:
                        full = f"{base}.{alias.name}"
                        yield Import(module, child.lineno, full if full in self.modules else str(base), when)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from self._imports_of(module, child, "function")
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    yield from self._imports_of(module, child, "types")
                case ast.expr():
                    pass
                case _:
                    yield from self._imports_of(module, child, when)


def _lines_of(node: ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _classes(body: list[ast.stmt]) -> Iterator[ast.ClassDef]:
    for node in body:
        match node:
            case ast.ClassDef():
                yield node
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If():
                yield from _classes([*node.body, *node.orelse])
            case ast.Try():
                yield from _classes(node.body)
