"""Hydra's fixtures, and the names by which Hydra finds the plugins of this tree."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.extra.pytest_plugin import hydra_restore_singletons, hydra_sweep_runner

from trainkit.plugins.hydra import names

__all__ = ["hydra_restore_singletons", "hydra_sweep_runner", "installed"]


@pytest.fixture(scope="session", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put the names where an installed package has them, for this process and for programs of tests."""
    folder = tmp_path_factory.mktemp("site")
    package = folder / "hydra_plugins"
    package.mkdir()
    (package / "trainkit_plugins.py").symlink_to(Path(names.__file__))
    before = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [before])]))
        Singleton._instances.pop(Plugins, None)  # has searched for plugins before the folder existed
        yield
    for name in [each for each in sys.modules if each.split(".")[0] == "hydra_plugins"]:
        del sys.modules[name]
