"""The house rules that a machine can check: floors, cycles, sizes, clocks, settings and public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "trainkit"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A module may import from its own room and from any floor below it. Rooms of one floor don't meet.
FLOORS = [
    {"errors", "settings", "resources", "clock"},
    {"runtime"},
    {
        "actor",
        "cloudpickle",
        "exceptions",
        "runtime_context",
        "runtime_env",
        "util",
    },  # the runtime by Ray's names
    {"tune"},
    {"air"},  # trials and their settings by Ray AIR's names
    {"train"},
    {"util.sgd"},  # the trainer by RaySGD's names
    {"sklearn"},
    {"dashboard"},
    {"cli"},
    {"", "__main__"},  # trainkit/__init__.py, the front of the house, and `python -m trainkit`
]
GROUND = FLOORS[0]
HEIGHT = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}

# Loaded when first needed, so never at the head of a module; `train` is about torch, and may.
HEAVY = {"matplotlib", "optuna", "pandas", "ray", "rich", "scipy", "sklearn", "torch", "torchvision"}
MAY_HEAD = {"train": {"torch"}, "sklearn": {"sklearn", "scipy"}}
RAYS_OWN = "trainkit.runtime.ray_"  # the Ray engine's modules, which load when it is chosen

READINGS = {"time", "time_ns", "monotonic", "monotonic_ns"}

# fmt: off
PUBLIC = {
    "trainkit": {
        "__version__", "actor", "air", "cloudpickle", "errors", "exceptions", "runtime_context",
        "runtime_env", "sklearn", "train", "tune", "ActorID", "JobID", "NodeID", "ObjectID",
        "PlacementGroupID", "TaskID", "WorkerID",
        "util", "ObjectRef", "ObjectRefGenerator",
        "available_resources", "cancel", "cluster_resources", "exit_actor", "get", "get_actor",
        "get_current_placement_group", "get_gpu_ids", "get_placement_group", "get_runtime_context", "init",
        "is_initialized", "kill", "list_actors", "list_objects", "list_placement_groups", "list_tasks",
        "method", "nodes", "placement_group", "put", "remote", "remove_placement_group", "shutdown", "wait",
    },
}
# fmt: on


class Import(NamedTuple):
    module: str
    line: int
    target: str
    when: str  # "head": at import; "function": when called; "types": never, only for a type checker

    def __str__(self) -> str:
        return f"{MODULES[self.module].relative_to(ROOT)}:{self.line} imports {self.target}"


def parse(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports_of(module: str) -> Iterator[Import]:
    """Every import statement of `module`, with `from package import submodule` resolved to the submodule."""

    def walk(node: ast.AST, when: str) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import(names=names):
                    for alias in names:
                        yield Import(module, child.lineno, alias.name, when)
                case ast.ImportFrom(module=base, names=names):
                    for alias in names:
                        name = f"{base}.{alias.name}"
                        yield Import(module, child.lineno, name if name in MODULES else str(base), when)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from walk(child, "function")
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    yield from walk(child, "types")
                case _:
                    yield from walk(child, when)

    yield from walk(parse(module), "head")


ALL_IMPORTS = [found for module in MODULES for found in imports_of(module)]
OWN_IMPORTS = [found for found in ALL_IMPORTS if found.target.split(".")[0] == "trainkit"]


def room(module: str) -> str:
    """'tune' for trainkit.tune.trial; '' for trainkit itself; an alias of a higher floor is its own room."""
    path = module.partition(".")[2]
    return "util.sgd" if f"{path}.".startswith("util.sgd.") else path.partition(".")[0]


def test_every_room_is_on_a_floor():
    assert {room(module) for module in MODULES} <= set(HEIGHT), "give a new room its floor in FLOORS"


def test_imports_go_down():
    wrong = [
        found
        for found in OWN_IMPORTS
        if not (
            room(found.module) == room(found.target)
            or HEIGHT[room(found.target)] < HEIGHT[room(found.module)]
            or {room(found.module), room(found.target)} <= GROUND
        )
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_no_import_cycles():
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OWN_IMPORTS:
        if found.when == "head":
            graph[found.module].add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_own_modules_are_imported_at_the_head():
    """Only a package's front may wait until a name is asked for."""
    hidden = [
        found
        for found in OWN_IMPORTS
        if found.when == "function" and MODULES[found.module].name != "__init__.py"
    ]
    assert not hidden, "\n".join(map(str, hidden))


def test_train_meets_tune_in_one_file():
    """Its front has Ray's names for trials, too: as a table of homes, whose modules load when asked for."""
    meeting = {
        found.module
        for found in OWN_IMPORTS
        if (room(found.module), room(found.target)) == ("train", "tune")
        and not (found.module == "trainkit.train" and found.when == "types")
    }
    assert meeting <= {"trainkit.train.trainable"}


def test_the_ground_floor_needs_the_standard_library_only():
    wrong = [
        found
        for found in ALL_IMPORTS
        if room(found.module) in GROUND
        and found.target.split(".")[0] not in sys.stdlib_module_names | {"trainkit"}
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_heavy_packages_are_imported_when_first_needed():
    wrong = [
        found
        for found in ALL_IMPORTS
        if found.when == "head"
        and found.target.split(".")[0] in HEAVY - MAY_HEAD.get(room(found.module), set())
        and not (found.module.startswith(RAYS_OWN) and found.target.split(".")[0] == "ray")
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_tune_never_imports_torch():
    wrong = [
        found
        for found in ALL_IMPORTS
        if room(found.module) == "tune" and found.target.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("trainkit", "tests", "recipes", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 600
    }
    assert not long, f"split these by concept: {long}"


def test_only_the_clock_reads_the_time():
    wrong = [
        f"{module}:{node.lineno}"
        for module in MODULES
        if module != "trainkit.clock"
        for node in ast.walk(parse(module))
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "time"
            and node.attr in READINGS
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "time"
            and READINGS & {alias.name for alias in node.names}
        )
    ]
    assert not wrong, wrong


def test_only_settings_names_our_environment_variables():
    wrong = [
        f"{module}:{node.lineno} {node.value}"
        for module in MODULES
        if module != "trainkit.settings"
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"TRAINKIT_[A-Z_]+", node.value)
    ]
    assert not wrong, wrong


def test_no_assert_guards_anything():
    """An assert is gone under `python -O`; an error of `trainkit.errors` says what to do."""
    wrong = [
        f"{module}:{node.lineno}"
        for module in MODULES
        for node in ast.walk(parse(module))
        if isinstance(node, ast.Assert)
    ]
    assert not wrong, wrong


def test_nothing_is_left_for_later_in_the_code():
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|/(home|root|Users)/")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("trainkit", "recipes", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md"}
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if marks.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light():
    heavy = sorted(HEAVY | {"numpy", "cloudpickle", "psutil", "greenlet", "asyncio", "multiprocessing"})
    assert run_python(f"import sys, trainkit; print(sorted(set({heavy}) & set(sys.modules)))") == "[]"


def test_tune_leaves_torch_alone():
    assert run_python("import sys, trainkit.tune; print('torch' in sys.modules)") == "False"


def test_what_is_named_after_scikit_learn_loads_it_when_a_search_is_asked_for() -> None:
    loaded = "print('sklearn' in sys.modules)"
    assert run_python(f"import sys, trainkit; trainkit.sklearn; {loaded}") == "False"
    assert run_python(f"import sys, trainkit; trainkit.sklearn.TuneSearchCV; {loaded}") == "True"


def test_a_worker_loads_what_spreads_models_only_when_it_is_asked_for() -> None:
    """DTensors take half a second to import; one worker, and DDP, have no use for them."""
    loaded = "sorted({'torch.distributed.tensor', 'torch.distributed.checkpoint'} & set(sys.modules))"
    assert (
        run_python(f"import sys, trainkit.train.worker, trainkit.train.strategies.ddp; print({loaded})")
        == "[]"
    )


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str):
    """A name enters or leaves the public surface by a change of this test, never by accident."""
    names = run_python(f"import {module} as m; [getattr(m, name) for name in m.__all__]; print(*m.__all__)")
    assert set(names.split()) == PUBLIC[module]
