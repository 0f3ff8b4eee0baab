"""The rules of the house as functions from a package's source to the places that break them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from tests.contract.source import DOCUMENTED, Breach, Import, Module, Source

READINGS = {"time", "time_ns", "monotonic", "monotonic_ns"}
RIDDLES = re.compile(r"\s*(What|Whether|Who|As|The same|See)\b")
PLAIN_DATA = {"dataclass", "NamedTuple", "Enum", "IntEnum", "StrEnum", "TypedDict"}


# Layers and circles


def between_doors(source: Source, floors: Sequence[Collection[str]]) -> list[Breach]:
    """Find imports that don't go down.

    Args:
        source: of the package.
        floors: doors from the ground up; those of the first floor may import one another.
    """
    height = {door: number for number, doors in enumerate(floors) for door in doors}
    breaches = [
        module.breach(1, "stands in a door without a floor", "give the door one in FLOORS")
        for module in source
        if door_of(source, module.name, height) not in height
    ]
    for found in source.own_imports:
        ours, theirs = (door_of(source, name, height) for name in (found.module, found.target))
        if ours == theirs or not {ours, theirs} <= set(height):
            continue
        if height[theirs] < height[ours] or height[ours] == height[theirs] == 0:
            continue
        fix = f"move what both need to a floor below {ours or 'the front'!r}, or pass it in as an argument"
        breaches.append(_import_breach(source, found, fix))
    return breaches


def door_of(source: Source, module: str, doors: Collection[str]) -> str:
    """Return the longest name in `doors` that `module` stands in, else its first part below the package."""
    path = source.below(module)
    known = [door for door in doors if door and f"{path}.".startswith(f"{door}.")]
    return max(known, key=len, default=path.partition(".")[0])


def layers(text: str) -> list[tuple[list[str], bool]]:
    """Read "a > b | c > d, e": rooms from the top down, and whether the rooms of a layer may meet."""
    return [(re.split(r"[|,]\s*", part.replace(" ", "")), "|" not in part) for part in text.split(">")]


def within_door(source: Source, door: str, text: str) -> list[Breach]:
    """Find imports within `door` that go up, or between rooms that must not meet."""
    order = layers(text)
    depth = {room: number for number, (rooms, _) in enumerate(order) for room in rooms}
    breaches = []
    for found in source.own_imports:
        ours, theirs = (_room(source, name, door) for name in (found.module, found.target))
        if ours == theirs or not {ours, theirs} <= set(depth):
            continue
        if depth[theirs] > depth[ours] or (depth[theirs] == depth[ours] and order[depth[ours]][1]):
            continue
        fix = f"in {door} imports go down: {text}; pass it in as an argument, or publish an event"
        breaches.append(_import_breach(source, found, fix))
    return breaches


def rooms_without_layer(source: Source, door: str, text: str) -> list[Breach]:
    """Find the rooms of `door` that its layers don't name."""
    known = {room for rooms, _ in layers(text) for room in rooms} | {""}
    found: dict[str, Module] = {}
    for module in source:
        room = _room(source, module.name, door)
        if room is not None and room not in known:
            found.setdefault(room, module)
    return [
        module.breach(
            1, f"room {room!r} of {door} has no layer", f"add it to the layers of {door} in limits.py"
        )
        for room, module in found.items()
    ]


def _room(source: Source, module: str, door: str) -> str | None:
    path = source.below(module)
    if path == door:
        return ""
    return path[len(door) + 1 :].partition(".")[0] if path.startswith(f"{door}.") else None


def _import_breach(source: Source, found: Import, fix: str) -> Breach:
    return source.modules[found.module].breach(found.line, f"imports {found.target}", fix)


def plugin_of(source: Source, module: str) -> str | None:
    """Return the plugin that a module belongs to; None for the core."""
    door, _, rest = source.below(module).partition(".")
    return rest.partition(".")[0] if door == "plugins" and rest else None


def plugins_named(source: Source) -> list[Breach]:
    """Find plugins that modules of the core name, in imports and in texts that are no docstrings."""
    room, fix = f"{source.package}.plugins.", "let the plugin connect itself by its entry_points.txt"
    core = [module for module in source if plugin_of(source, module.name) is None]
    texts = [
        module.breach(node.lineno, f"names a plugin: {node.value!r:.60}", fix)
        for module in core
        for node in module.nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and room in node.value
        and node not in module.described
    ]
    imports = [
        _import_breach(source, found, fix)
        for found in source.imports
        if plugin_of(source, found.module) is None and f"{found.target}.".startswith(room)
    ]
    return [*texts, *imports]


def between_plugins(source: Source, arrows: Mapping[str, Collection[str]]) -> list[Breach]:
    """Find imports of a plugin by another plugin that `arrows` doesn't allow."""
    breaches = []
    for found in source.own_imports:
        ours, theirs = (plugin_of(source, name) for name in (found.module, found.target))
        if ours and theirs and ours != theirs and theirs not in arrows.get(ours, ()):
            fix = f"move it to one of the two, or add {theirs!r} to ARROWS of {ours!r} with its reason"
            breaches.append(_import_breach(source, found, fix))
    return breaches


def circles(source: Source) -> list[Breach]:
    """Find groups of files that import one another, whenever the imports take place."""
    graph: dict[str, dict[str, int]] = {module.name: {} for module in source}
    for found in source.own_imports:
        if found.target != found.module:
            graph[found.module].setdefault(found.target, found.line)
    breaches = []
    for group in _strongly_connected(graph):
        first = min(group)
        line = min(line for target, line in graph[first].items() if target in group)
        names = ", ".join(sorted(group))
        fix = "merge what is one concept, or pass in what the lower one needs"
        breaches.append(source.modules[first].breach(line, f"a circle of {len(group)} files: {names}", fix))
    return breaches


def _strongly_connected(graph: Mapping[str, Collection[str]]) -> Iterator[set[str]]:
    """Yield each strongly connected group of more than one node, by Tarjan's method without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = set()
                    while node not in group:
                        group.add(stack.pop())
                    on_stack -= group
                    if len(group) > 1:
                        yield group


# Boundaries within a file


def chains(source: Source, reasons: Collection[str] = ()) -> list[Breach]:
    """Find calls that reach through another part: `self.part.of_it.method()`, `_part.of_it.method()`.

    Args:
        source: of the package.
        reasons: calls that stand for a reason, as "file chain".
    """
    breaches = []
    for module in source:
        for node in module.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                parts = _dotted(node.func)
                begins_at = 1 if parts[0] in ("self", "cls") else 0 if parts[0].startswith("_") else None
                if begins_at is None or len(parts) - begins_at < 3:
                    continue
                if parts[-1] == "remote":  # of an actor's handle: that is how its method is called
                    continue
                chain = ".".join(parts)
                if f"{module.file} {chain}" not in reasons:
                    fix = f"ask {'.'.join(parts[: begins_at + 1])} to do it, or be given the part itself"
                    breaches.append(module.breach(node.lineno, f"reaches through a part: {chain}()", fix))
    return breaches


def _dotted(node: ast.expr) -> list[str]:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [*([node.id] if isinstance(node, ast.Name) else ["?"]), *reversed(parts)]


def collaborators(source: Source, most: int) -> list[Breach]:
    """Find constructors with more than `most` parameters that are parts of ours, not plain data."""
    parts = {node.name for module in source for node in module.classes if not _is_data(node)}
    breaches = []
    for module in source:
        for node in module.nodes:
            if not isinstance(node, ast.ClassDef) or _is_data(node):
                continue
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == "__init__":
                    arguments = [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]
                    held = [arg.arg for arg in arguments if _names(arg.annotation) & parts]
                    if len(held) > most:
                        problem = f"{node.name} takes {len(held)} collaborators: {', '.join(held)}"
                        breaches.append(
                            module.breach(method.lineno, problem, f"{most} are the most: split the class")
                        )
    return breaches


def _is_data(node: ast.ClassDef) -> bool:
    """Return whether a class is a value rather than a part: a dataclass, a tuple, an enum, an exception."""
    marks = {name for part in [*node.bases, *node.decorator_list] for name in _names(part)}
    return bool(marks & PLAIN_DATA) or any(name.endswith(("Error", "Exception")) for name in marks)


def _names(node: ast.expr | None) -> set[str]:
    """Return the names in an annotation, a base class or a decorator, quoted ones among them."""
    names: set[str] = set()
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            names.add(part.id)
        elif isinstance(part, ast.Attribute):
            names.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            names.update(re.findall(r"\w+", part.value))
    return names


# Folders, files and names


def crowded_folders(source: Source, most: int) -> list[Breach]:
    """Find folders with more than `most` files."""
    files = defaultdict(list)
    for module in source:
        files[module.path.parent].append(module)
    fix = f"{most} are the most: make a folder of those that are one concept, or merge crumbs"
    return [
        modules[0].breach(1, f"{len(modules)} files in {folder.relative_to(source.root)}", fix)
        for folder, modules in files.items()
        if len(modules) > most
    ]


def long_files(source: Source, most: int) -> list[Breach]:
    """Find files of more than `most` lines."""
    fix = f"{most} are the most: cut it where a concept ends"
    return [
        module.breach(most + 1, f"{len(module.lines)} lines", fix)
        for module in source
        if len(module.lines) > most
    ]


def small_files(source: Source, least: int, reasons: Collection[str] = ()) -> list[Breach]:
    """Find files of less than `least` lines that a single other file imports.

    Args:
        source: of the package.
        least: lines that need no reason.
        reasons: files that stand by themselves for a reason.
    """
    importers: dict[str, set[str]] = defaultdict(set)
    for found in source.own_imports:
        importers[found.target].add(found.module)
    return [
        module.breach(
            1,
            f"{len(module.lines)} lines that only {next(iter(importers[module.name]))} imports",
            "merge the two, or say in limits.py why it stands by itself",
        )
        for module in source
        if not module.is_front
        and len(module.lines) < least
        and len(importers[module.name]) == 1
        and module.file not in reasons
    ]


def halves(source: Source, least: int, reasons: Collection[str] = ()) -> list[Breach]:
    """Find files with two or more parts that do not use each other.

    A part is a set of the file's classes, functions and constants that are connected by names.

    Args:
        source: of the package.
        least: lines that a part must have to count.
        reasons: the files that may hold several parts.
    """
    breaches = []
    for module in source:
        parts = [part for part in _parts(module) if sum(map(_height, part)) >= least]
        if len(parts) < 2 or module.file in reasons:
            continue
        names = [max(part, key=_height) for part in parts]
        listed = " and ".join(f"{getattr(node, 'name', 'constants')} (line {node.lineno})" for node in names)
        fix = "give each part a file, or say in limits.py why they stand together"
        breaches.append(module.breach(1, f"{listed} do not use each other", fix))
    return breaches


def _parts(module: Module) -> Iterator[list[ast.stmt]]:
    """Yield the connected parts of a module's statements."""
    members = [node for node in module.tree.body if _defined(node)]
    owner = {name: number for number, node in enumerate(members) for name in _defined(node)}
    near: dict[int, set[int]] = {number: {number} for number in range(len(members))}
    for number, node in enumerate(members):
        for name in (found.id for found in ast.walk(node) if isinstance(found, ast.Name)):
            near[number].add(owner.get(name, number))
            near[owner.get(name, number)].add(number)
    while near:
        part: set[int] = set()
        new = {next(iter(near))}
        while new:
            part |= new
            new = set().union(*(near.pop(number) for number in new)) - part
        yield [members[number] for number in sorted(part)]


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a file defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    walked = (found for target in targets if isinstance(target, ast.expr) for found in ast.walk(target))
    return {found.id for found in walked if isinstance(found, ast.Name)}


def _height(node: ast.stmt) -> int:
    """Return the number of lines of a statement without its docstring."""
    first = node.body[0] if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) else None
    described = (first.end_lineno or 0) - first.lineno + 1 if first else 0
    return (node.end_lineno or 0) - node.lineno + 1 - described


def double_classes(source: Source, doors: Collection[str]) -> list[Breach]:
    """Find class names that stand for two classes within one door; the second and further ones are named."""
    first: dict[tuple[str, str], str] = {}
    breaches = []
    for module in source:
        door = door_of(source, module.name, doors)
        for name, line in {node.name: node.lineno for node in module.classes}.items():
            known = first.setdefault((door, name), module.file)
            if known != module.file:
                problem = f"class {name} stands in {known} too"
                breaches.append(module.breach(line, problem, "give each its own name, or make them one"))
    return breaches


def aliases(source: Source, except_below: str) -> list[Breach]:
    """Find files outside `except_below` that hold nothing but other modules' names."""
    return [
        module.breach(
            1, "holds nothing but names of other modules", f"make it a row of {except_below}'s table"
        )
        for module in source
        if not module.is_front
        and not f"{source.below(module.name)}.".startswith(f"{except_below}.")
        and module.tree.body
        and all(_is_forwarding(node) for node in module.tree.body)
    ]


def _is_forwarding(node: ast.stmt) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Raise():  # a module that only says what to use instead
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.FunctionDef(name=name):
            return name in ("__getattr__", "__dir__")
        case ast.Assign(targets=[target], value=value):
            named = {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
            return bool(named & {"__all__", "__getattr__"}) or isinstance(value, (ast.Name, ast.Attribute))
    return False


def riddles(source: Source) -> list[Breach]:
    """Find docstrings that define by a relative clause or a reference instead of saying it."""
    return [
        module.breach(
            text.lineno,
            f"docstring begins with {str(text.value).lstrip().split()[0]!r}",
            "begin with a noun for a class or module, with an imperative for a function",
        )
        for module in source
        for text in module.described
        if RIDDLES.match(str(text.value))
    ]


# What a module may use


def hidden_imports(source: Source) -> list[Breach]:
    """Find imports of own modules in functions; only a package's front may wait until a name is asked for."""
    return [
        _import_breach(source, found, "import it at the head; if that makes a circle, mend the circle")
        for found in source.own_imports
        if found.when == "function" and not source.modules[found.module].is_front
    ]


def heavy_imports(source: Source, heavy: Collection[str], may: Mapping[str, Collection[str]]) -> list[Breach]:
    """Find heavy packages that are imported with a module, not when first needed.

    Args:
        source: of the package.
        heavy: names of packages.
        may: what the modules below a dotted name may import at their head.
    """
    breaches = []
    for found in source.imports:
        package = found.target.split(".")[0]
        path = f"{source.below(found.module)}."
        allowed = any(path.startswith(f"{room}.") and package in names for room, names in may.items())
        if found.when == "head" and package in heavy and not allowed:
            breaches.append(_import_breach(source, found, "import it in the function that needs it"))
    return breaches


def foreign_imports(source: Source, room: str, allowed: Collection[str]) -> list[Breach]:
    """Find imports below `room` of packages that are neither `allowed` nor our own."""
    return [
        _import_breach(source, found, f"{room} may need only {', '.join(sorted(allowed)[:3])} ...")
        for found in source.imports
        if f"{source.below(found.module)}.".startswith(f"{room}.")
        and found.target.split(".")[0] not in {*allowed, source.package}
    ]


def imports_of(source: Source, room: str, package: str) -> list[Breach]:
    """Find imports of `package` below `room`, wherever they stand."""
    return [
        _import_breach(source, found, f"{room} works without {package}: take what it needs as an argument")
        for found in source.imports
        if f"{source.below(found.module)}.".startswith(f"{room}.") and found.target.split(".")[0] == package
    ]


def clock_readings(source: Source, clock: str) -> list[Breach]:
    """Find readings of the time outside the module `clock`."""
    breaches = []
    for module in source:
        if module.name == clock:
            continue
        for node in module.nodes:
            match node:
                case ast.Attribute(value=ast.Name(id="time"), attr=name) if name in READINGS:
                    pass
                case ast.ImportFrom(module="time", names=names) if READINGS & {a.name for a in names}:
                    pass
                case _:
                    continue
            breaches.append(module.breach(node.lineno, "reads the time", f"take it from {clock}"))
    return breaches


def settings_named(source: Source, settings: str, pattern: str) -> list[Breach]:
    """Find names of our own environment variables outside the module `settings`."""
    return [
        module.breach(node.lineno, f"names {node.value}", f"import its constant from {settings}")
        for module in source
        if module.name != settings
        for node in module.nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(pattern, node.value)
    ]


def asserts(source: Source) -> list[Breach]:
    """Find `assert` statements, which are gone under `python -O`; pytest rewrites those of the suites."""
    return [
        module.breach(
            node.lineno, "assert guards something", "raise an error of errors.py that says what to do"
        )
        for module in source
        if not source.below(module.name).startswith("plugins.testing")
        for node in module.nodes
        if isinstance(node, ast.Assert)
    ]
