"""Commands of other packages: the one of the page, and packages that are broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from tests.packages import install_from_page
from trainkit import tune
from trainkit.cli import ALIASES, COMMANDS, HELP, Command
from trainkit.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Path]:
    def trainable(config: dict[str, float]) -> None:
        tune.report({"loss": config["x"]})

    trainkit.init(engine="inline", num_cpus=1)
    tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([3.0, 1.0, 2.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
    ).fit()
    yield tmp_path / "e"
    trainkit.shutdown()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The module of the package that the page writes, which is installed."""
    install_from_page("docs/extending/add-a-command.md", tmp_path, monkeypatch)
    return tmp_path / "lab_tools.py"


def test_the_command_of_the_page_runs_and_is_listed(experiment: Path, module: Path, capsys: Capture) -> None:
    assert main(["best", str(experiment)]) == 0
    assert json.loads(capsys.readouterr().out) == {"x": 1.0}
    assert main([]) == 0
    assert "the best configuration of an experiment" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["best", "--help"])
    assert "usage: trainkit best [-h] EXPERIMENT" in capsys.readouterr().out


def test_an_error_of_an_added_command_is_one_line(module: Path, capsys: Capture) -> None:
    assert main(["best", str(module.parent)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainkit: ") and str(module.parent) in line


def test_a_broken_package_breaks_its_own_command_alone(
    experiment: Path, module: Path, capsys: Capture
) -> None:
    module.write_text("import there_is_no_such_module\n")
    assert main(["show", str(experiment)]) == 0
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert "show (list-trials)" in listed and "there_is_no_such_module" in listed
    assert main(["best", str(experiment)]) == 1
    assert "the command 'best' of the package lab-tools" in capsys.readouterr().err


def test_what_is_no_command_is_told_in_the_list(module: Path, capsys: Capture) -> None:
    module.write_text(module.read_text().replace("(Command)", ""))
    assert main([]) == 0
    assert "is not a class that extends Command" in " ".join(capsys.readouterr().out.split())


def test_names_that_others_take_twice_break_no_list(module: Path, capsys: Capture) -> None:
    with module.open("a") as file:
        file.write(
            "\n\nclass First(Command):\n    help = 'one of two: 50% of them'\n"
            "    aliases = ('ls', 'top', 'top', 'best', 'gone')\n"
            "\n\nclass Second(First):\n    help = 'the other'\n"
        )
    (entries,) = module.parent.glob("*.dist-info/entry_points.txt")
    with entries.open("a") as rows:
        rows.writelines(f"{name} = lab_tools:First\n" for name in ("foremost", "top", "further"))
        rows.writelines(f"{name} = lab_tools:Second\n" for name in ("second", "ls"))
        rows.write("gone = lab_tools:Missing\n")
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert "foremost (further, top)" in listed and "second " in listed and "ls (list-experiments" in listed
    with pytest.raises(SystemExit, match="2"):
        main(["mistyped"])
    assert "invalid choice: 'mistyped'" in capsys.readouterr().err


def test_every_row_is_a_command_and_says_its_further_names() -> None:
    aliases = set()
    for name in COMMANDS.own_names():
        command = COMMANDS.get(name)
        assert issubclass(command, Command) and command.help
        aliases.update((alias, command) for alias in command.aliases)
    assert all(COMMANDS.get(alias) is command for alias, command in aliases)
    assert sorted([*HELP, *(alias for each in ALIASES.values() for alias in each)]) == COMMANDS.own_names()


def test_a_command_that_is_nearly_right_is_asked_for(capsys: Capture) -> None:
    assert main(["dashbord"]) == 1
    assert capsys.readouterr().err == "trainkit: 'dashbord' is not a command. Did you mean 'dashboard'?\n"
