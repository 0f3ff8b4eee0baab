"""The names by which Hydra finds the plugins, in the wheel and in an editable installation."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper

from trainkit.plugins.hydra import names

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_the_wheel_has_the_names(version: str, tmp_path: Path):
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=[version])
    with zipfile.ZipFile(built) as wheel:
        assert wheel.read("hydra_plugins/trainkit_plugins.py") == Path(names.__file__).read_bytes()
        assert "hydra_plugins/__init__.py" not in wheel.namelist()  # other plugins share the namespace


def test_hydra_finds_both():
    plugins = Plugins.instance()
    assert "TrainkitLauncher" in [each.__name__ for each in plugins.discover(Launcher)]
    assert "TrainkitSweeper" in [each.__name__ for each in plugins.discover(Sweeper)]
