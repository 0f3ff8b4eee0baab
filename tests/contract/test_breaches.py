"""A small package that breaks each rule once: the rule names the file, the line and the fix."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract import limits, rules
from tests.contract.source import Breach, Source
from tests.contract.test_contract import hold

Write = Callable[[dict[str, str]], Source]

FLOORS = [{"errors"}, {"runtime"}, {"tune"}, {""}, {"plugins"}]
LAYERS = "main > worker > client | node > memory > wire, system"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Make a package `house` of the files given, with every folder's `__init__.py`."""

    def make(files: dict[str, str]) -> Source:
        for name, text in files.items():
            path = tmp_path / "house" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text).lstrip("\n"))
            for folder in path.parents[: len(Path(name).parts)]:
                (folder / "__init__.py").touch()
        return Source(tmp_path, "house")

    return make


def only(breaches: list[Breach], place: str, problem: str, fix: str) -> None:
    """Require one breach, at `place`, that says `problem` and `fix`."""
    assert len(breaches) == 1, breaches
    assert str(breaches[0]).startswith(f"house/{place}: ")
    assert problem in breaches[0].problem
    assert fix in breaches[0].fix


@pytest.mark.parametrize(
    "importing",
    [
        "from house.tune import trial",
        "import house.tune.trial",
        "def later():\n    from house.tune.trial import Trial",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.tune.trial import Trial",
    ],
    ids=["head", "import", "function", "type checker"],
)
def test_an_import_up_a_floor_however_it_is_written(write: Write, importing: str) -> None:
    line = 1 + importing.count("\n")
    source = write({"runtime/api.py": importing, "tune/trial.py": "class Trial: ..."})
    found = rules.between_doors(source, FLOORS)
    only(found, f"runtime/api.py:{line}", "imports house.tune.trial", "floor below 'runtime'")


def test_an_import_down_a_floor_is_fine(write: Write) -> None:
    source = write(
        {"tune/trial.py": "from house.runtime import api", "runtime/api.py": "import house.errors"}
    )
    assert rules.between_doors(source, FLOORS) == []


def test_a_plugin_that_the_core_names(write: Write) -> None:
    source = write(
        {"tune/trial.py": "import house.plugins.names.old", "plugins/names/old.py": "import house.errors"}
    )
    only(rules.plugins_named(source), "tune/trial.py:1", "imports house.plugins.names", "entry_points.txt")
    source = write({"tune/trial.py": 'HOME = "house.plugins.names.old:Old"', "plugins/names/old.py": ""})
    only(rules.plugins_named(source), "tune/trial.py:1", "names a plugin", "entry_points.txt")


def test_a_plugin_that_another_plugin_imports(write: Write) -> None:
    source = write({"plugins/names/old.py": "import house.plugins.page.view", "plugins/page/view.py": ""})
    only(rules.between_plugins(source, {}), "plugins/names/old.py:1", "imports house.plugins.page", "ARROWS")
    assert not rules.between_plugins(source, {"names": {"page"}})


def test_a_door_without_a_floor(write: Write) -> None:
    found = rules.between_doors(write({"garage/car.py": "wheels = 4"}), FLOORS)
    assert {breach.file for breach in found} == {"house/garage/__init__.py", "house/garage/car.py"}


@pytest.mark.parametrize(
    ("file", "importing", "breaks"),
    [
        ("node/workers.py", "from house.local.worker import calls", True),
        ("node/workers.py", "def later():\n    import house.local.client.engine", True),
        ("client/engine.py", "from house.local.node.workers import start", True),
        ("wire/channel.py", "import house.local.memory.segments", True),
        ("worker/calls.py", "import house.local.client.engine", False),
        ("client/engine.py", "from house.local.memory import segments", False),
        ("wire/channel.py", "import house.local.system.process", False),
        ("main.py", "import house.local.node.workers", False),
    ],
)
def test_an_import_up_a_layer(write: Write, file: str, importing: str, breaks: bool) -> None:
    rooms = [
        "worker/calls",
        "client/engine",
        "node/workers",
        "memory/segments",
        "wire/channel",
        "system/process",
    ]
    source = write({**{f"local/{room}.py": "start = 1" for room in rooms}, f"local/{file}": importing})
    found = rules.within_door(source, "local", LAYERS)
    if breaks:
        line = 1 + importing.count("\n")
        only(found, f"local/{file}:{line}", "imports house.local.", "publish an event")
    else:
        assert found == []


def test_a_room_without_a_layer(write: Write) -> None:
    source = write({"local/cellar/wine.py": "", "local/node/workers.py": ""})
    found = rules.rooms_without_layer(source, "local", LAYERS)
    only(found, "local/cellar/__init__.py:1", "'cellar' of local has no layer", "layers of local")


def test_a_circle_of_files_by_imports_at_any_time(write: Write) -> None:
    source = write(
        {
            "a.py": "import os\nfrom house import b",
            "b.py": "def later():\n    from house.c import done",
            "c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.a import Thing\n",
            "d.py": "import house.a",
        }
    )
    only(
        rules.circles(source), "a.py:2", "a circle of 3 files: house.a, house.b, house.c", "merge what is one"
    )


def test_a_chain_through_a_part(write: Write) -> None:
    text = """
        class Loop:
            def turn(self):
                self._node.census.dead.add(1)
                self.parts.append(2)
                self.name.upper()
                self._actor.method.remote()
                return self._node.census.dead
    """
    found = rules.chains(write({"node.py": text}))
    only(found, "node.py:3", "self._node.census.dead.add()", "ask self._node to do it")
    reason = {"house/node.py self._node.census.dead.add"}
    assert rules.chains(write({"node.py": text}), reason) == []


def test_a_chain_through_a_part_of_a_module(write: Write) -> None:
    found = rules.chains(write({"session.py": "_current = None\n\ndef stop():\n    _current.pump.stop()"}))
    only(found, "session.py:4", "_current.pump.stop()", "ask _current to do it")


def test_a_constructor_of_many_parts(write: Write) -> None:
    text = """
        from dataclasses import dataclass

        class Clock: ...
        class Wire: ...

        @dataclass
        class Options: ...

        class Node:
            def __init__(self, clock: Clock, wire: "Wire | None", options: Options, name: str) -> None: ...
    """
    source = write({"node.py": text})
    only(
        rules.collaborators(source, 1),
        "node.py:10",
        "Node takes 2 collaborators: clock, wire",
        "split the class",
    )
    assert rules.collaborators(source, 2) == []


def test_a_crowded_folder(write: Write) -> None:
    source = write({f"store/{letter}.py": "" for letter in "abc"})
    only(rules.crowded_folders(source, 3), "store/__init__.py:1", "4 files in house/store", "merge crumbs")


def test_a_long_file(write: Write) -> None:
    found = rules.long_files(write({"long.py": "x = 1\n" * 11}), 10)
    only(found, "long.py:11", "11 lines", "cut it where a concept ends")


def test_a_small_file_with_one_importer(write: Write) -> None:
    source = write({"crumb.py": "x = 1", "loaf.py": "import house.crumb\n" * 9})
    only(rules.small_files(source, 5), "crumb.py:1", "1 lines that only house.loaf imports", "merge the two")
    assert rules.small_files(source, 5, {"house/crumb.py"}) == []


def test_a_file_of_two_parts(write: Write) -> None:
    text = """
        LIMIT = 3

        def knead():
            return LIMIT

        def bake():
            return knead()

        def sell():
            return 1

        class Shop:
            open = sell()
    """
    source = write({"loaf.py": text, "shop.py": "class Shop: ...\n\n\n\ndef sell(): return Shop()"})
    only(rules.halves(source, 4), "loaf.py:1", "do not use each other", "give each part a file")
    assert rules.halves(source, 4, {"house/loaf.py"}) == []
    assert rules.halves(source, 5) == []


def test_a_class_name_that_occurs_twice(write: Write) -> None:
    text = "if True:\n    class Lease: ..."
    source = write(
        {"runtime/a.py": "class Lease: ...", "runtime/b.py": text, "tune/c.py": "class Lease: ..."}
    )
    found = rules.double_classes(source, {"runtime", "tune"})
    only(found, "runtime/b.py:2", "class Lease stands in house/runtime/a.py too", "make them one")


@pytest.mark.parametrize(
    "text",
    [
        '"""Other names."""\nfrom house.real import Thing\n__all__ = ["Thing"]',
        "from house.names import names_of\n__getattr__, __dir__ = names_of(__name__)",
        "import house.real\n\ndef __getattr__(name):\n    return getattr(house.real, name)",
        "from house.real import Thing\nOldName = Thing",
    ],
)
def test_an_alias_module_outside_compat(write: Write, text: str) -> None:
    source = write({"alias.py": text, "compat/alias.py": text, "real.py": "class Thing: ..."})
    only(rules.aliases(source, "compat"), "alias.py:1", "nothing but names", "row of compat's table")


def test_docstrings_that_are_riddles(write: Write) -> None:
    text = '''
        """Resource scheduler of the node."""

        def rank():
            """What is left of that."""

        LIMIT = 3
        """As above."""

        def value():
            """Return the value as bytes; whatever it is."""
    '''
    found = rules.riddles(write({"node.py": text}))
    assert [breach.line for breach in found] == [4, 7]
    assert "'What'" in found[0].problem
    assert "imperative" in found[0].fix


def test_what_a_module_may_not_use(write: Write) -> None:
    text = """
        import torch
        from time import monotonic
        import time

        def run():
            from house import errors
            assert time.time() > 0, "HOUSE_DEBUG"
            return "HOUSE_DEBUG"
    """
    source = write({"tune/run.py": text, "errors.py": "import numpy"})
    only(
        rules.heavy_imports(source, {"torch"}, {}), "tune/run.py:1", "imports torch", "function that needs it"
    )
    assert rules.heavy_imports(source, {"torch"}, {"tune": {"torch"}}) == []
    only(rules.imports_of(source, "tune", "torch"), "tune/run.py:1", "imports torch", "as an argument")
    only(rules.hidden_imports(source), "tune/run.py:6", "imports house.errors", "import it at the head")
    only(rules.asserts(source), "tune/run.py:7", "assert", "raise an error")
    only(rules.foreign_imports(source, "errors", {"os"}), "errors.py:1", "imports numpy", "may need only os")
    assert [found.line for found in rules.clock_readings(source, "house.clock")] == [2, 7]
    named = rules.settings_named(source, "house.settings", "HOUSE_[A-Z]+")
    assert [breach.line for breach in named] == [7, 8]


def test_lines_of_code_are_those_that_do_something(write: Write) -> None:
    text = '''
        """Docstring
        of two lines."""

        # a comment
        TEXT = """a text

        # of three lines"""  # counts


        def run():
            """Return one."""
            return 1
    '''
    assert write({"code.py": text}).modules["house.code"].code_lines == 5


def test_a_figure_may_only_fall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COUNTS", {"files": limits.Limit(today=10, target=5, slack=1)})
    for count in (10, 9):
        hold("files", count)
    with pytest.raises(pytest.fail.Exception, match="files: 11, and 10 are the most"):
        hold("files", 11)
    with pytest.raises(pytest.fail.Exception, match="write 8 in place of 10"):
        hold("files", 8)
    with pytest.raises(pytest.fail.Exception, match="write 5 in place of 10"):
        hold("files", 2)


def test_a_figure_that_has_reached_its_target_may_stay_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "COUNTS", {"files": limits.Limit(today=5, target=5)})
    hold("files", 2)
    with pytest.raises(pytest.fail.Exception, match="6, and 5 are the most"):
        hold("files", 6)
