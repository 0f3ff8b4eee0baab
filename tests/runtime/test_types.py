"""What type checkers make of a user's script: `good.py` passes, each marked line of `bad.py` fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import pytest

import trainkit
from trainkit.actor import ActorHandle, ActorProxy
from trainkit.errors import ConfigError
from trainkit.runtime.calls import typed
from trainkit.runtime.calls.options import ACTORS_ONLY, TASKS_ONLY, Options, interface_of

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/runtime/typing"
CHECKED = {**os.environ, "MYPYPATH": str(ROOT), "PYTHONPATH": str(ROOT)}


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=150,
        cwd=ROOT,
        env=CHECKED,
        check=False,
    )


def marked_lines(script: Path) -> set[int]:
    lines = script.read_text().splitlines()
    return {number for number, line in enumerate(lines, start=1) if line.endswith("# error")}


def mypy_errors(*scripts: str) -> dict[str, dict[int, str]]:
    done = run("-m", "mypy", "--config-file", SCRIPTS / "mypy.ini", *(SCRIPTS / name for name in scripts))
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, dict[int, str]] = {script: {} for script in scripts}
    for path, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, flags=re.MULTILINE):
        found[Path(path).name][int(line)] = text
    return found


def pyright_errors(folder: Path, *scripts: str) -> dict[str, dict[int, str]]:
    config = folder / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "typeCheckingMode": "strict",
                "extraPaths": [str(ROOT)],
                "include": [str(SCRIPTS / script) for script in scripts],
            }
        )
    )
    done = run("-m", "basedpyright", "--project", config, "--pythonpath", sys.executable, "--outputjson")
    assert done.returncode in (0, 1), done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(scripts)
    found: dict[str, dict[int, str]] = {script: {} for script in scripts}
    for item in report["generalDiagnostics"]:
        if item["severity"] == "error":
            found[Path(item["file"]).name][item["range"]["start"]["line"] + 1] = item["message"]
    return found


def test_mypy():
    found = mypy_errors("good.py", "bad.py")
    assert found["good.py"] == {}
    assert set(found["bad.py"]) == marked_lines(SCRIPTS / "bad.py"), found["bad.py"]


def test_pyright(tmp_path: Path):
    found = pyright_errors(tmp_path, "good.py", "decorated.py", "bad.py")
    assert found["good.py"] == {}
    assert found["decorated.py"] == {}
    assert set(found["bad.py"]) == marked_lines(SCRIPTS / "bad.py"), found["bad.py"]


@pytest.mark.parametrize("script", ["good.py", "decorated.py"])
def test_the_checked_script_runs(script: str):
    done = run(SCRIPTS / script)
    assert done.returncode == 0, done.stderr


def test_the_options_for_checkers_are_those_there_are():
    names = {item.name for item in fields(Options)}
    tasks, actors = typed.TaskOptions.__annotations__, typed.ActorOptions.__annotations__
    assert set(typed.AnyOptions.__annotations__) == names
    assert set(tasks) == names - ACTORS_ONLY - {"label"}
    assert set(actors) == names - TASKS_ONLY
    declared = typing.get_type_hints(Options, vars(typed))
    given = typing.get_type_hints(typed.AnyOptions)
    assert given == declared


class Marked:
    @trainkit.method
    def one(self) -> int:
        return 1

    @trainkit.method(num_returns=2)
    def two(self) -> tuple[int, int]:
        return self.one(), 2

    @trainkit.method(num_returns=3)
    @staticmethod
    def three() -> tuple[int, int, int]:
        return 1, 2, 3


def test_a_marked_method_stays_a_function():
    assert Marked().two() == (1, 2)
    assert Marked.one(Marked()) == 1  # type: ignore[arg-type, call-arg]
    assert Marked.three() == (1, 2, 3)
    assert {name: spec.num_returns for name, spec in interface_of(Marked, "").methods.items()} == {
        "one": 1,
        "two": 2,
        "three": 3,
    }


def test_method_takes_methods():
    with pytest.raises(ConfigError, match=r"method\(\) must decorate a method, not 2"):
        trainkit.method(2)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"num_returns must be .* not -1"):
        trainkit.method(num_returns=-1)


def test_handles_stand_in_annotations():
    def use(handle: ActorHandle[Marked], other: ActorProxy[Marked]) -> None: ...

    assert typing.get_type_hints(use)["handle"].__args__ == (Marked,)
    assert issubclass(ActorHandle, object)
