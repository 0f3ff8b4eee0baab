"""The names under which the package is installed, and those of what it needs."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trainkit
from tests.conftest import run_python
from trainkit.errors import DISTRIBUTION, MissingDependencyError

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STRANGER = re.compile(r"pip3? (install|download)[^\n`]*?\btrainkit(?!-ml)\b|\btrainkit\\?\[")
"""Text that tells a user to install the other project that is called trainkit."""


def test_the_distribution_has_one_name():
    assert PROJECT["name"] == DISTRIBUTION
    assert importlib.metadata.version(DISTRIBUTION) == PROJECT["version"] == trainkit.__version__


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("pip install 'trainkit[tune]'", True),
        ("pip install -U trainkit", True),
        ('dev = ["trainkit[tune]"]', True),
        ("pip install 'trainkit-ml[tune]'", False),
        ("pip install '.[tune]'", False),
        ("trainkit ls", False),
    ],
)
def test_the_pattern_finds_the_other_name(text: str, wrong: bool):
    assert bool(STRANGER.search(text)) == wrong


def test_no_text_tells_a_user_to_install_the_project_of_somebody_else():
    named = [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")
    ]
    found = [
        path
        for folder in ("trainkit", "docs", "recipes", "benchmarks", ".ci")
        for path in (ROOT / folder).rglob("*")
    ]
    texts = [*named, *(path for path in found if path.suffix in (".py", ".md", ".toml", ".yml", ""))]
    told = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in texts
        if path.is_file()
        for match in STRANGER.finditer(path.read_text())
    ]
    assert not told


@pytest.mark.parametrize("extra", ["lightning", "dev"])
def test_no_lightning_with_holes_is_accepted(extra: str):
    needed = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    specifiers = [each.specifier for each in needed if each.name in ("lightning", "pytorch-lightning")]
    assert len(specifiers) == 1
    for stolen_or_open in ("2.5.3", "2.6.1", "2.6.2", "2.6.3", "2.6.5"):
        assert stolen_or_open not in specifiers[0]
    assert "2.6.6" in specifiers[0]


def test_the_command_in_an_error_names_an_extra_that_there_is():
    texts = "".join(path.read_text() for path in (ROOT / "trainkit").rglob("*.py"))
    named = set(re.findall(r'MissingDependencyError\.of\(\s*f?".*?",\s*"(\w+)"', texts))
    assert named and named <= set(PROJECT["optional-dependencies"])
    assert str(MissingDependencyError.of("x needs y", "tune")) == "x needs y: pip install 'trainkit-ml[tune]'"


@pytest.mark.external
@pytest.mark.parametrize(
    "line", ["from trainkit.train import TorchTrainer", "from trainkit.util.sgd import TorchTrainer"]
)
def test_without_torch_the_trainer_names_its_extra(line: str):
    done = run_python("-c", f"import sys; sys.modules['torch'] = None; {line}", code=1)
    last = done.stderr.splitlines()[-1]
    assert last.endswith(
        "MissingDependencyError: TorchTrainer needs PyTorch: pip install 'trainkit-ml[train]'"
    )


@pytest.mark.external
def test_a_tuner_that_is_made_loads_nothing_that_only_a_run_needs():
    script = (
        "import sys; from trainkit import tune;"
        "tune.Tuner(lambda config: None, param_space={'x': tune.uniform(0, 1)});"
        "print(*(name for name in sys.modules if name.startswith('trainkit.')))"
    )
    loaded = set(run_python("-c", script).stdout.split())
    assert "trainkit.tune.experiment.run" in loaded
    for_runs = ("runtime.session", "tune.controller.controller", "tune.executor.base", "tune.store.reader")
    assert not loaded & {f"trainkit.{name}" for name in for_runs}
