"""Ray Tune's scheduler classes, without the packages that the rest of Ray Tune needs.

`import ray.tune` needs pyarrow and other packages. Its schedulers don't use them. If they are missing, the
scheduler's own file is loaded, with empty modules in place of the packages around it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


class Trial:
    """Attributes of a trial that Ray's schedulers read."""

    PENDING, RUNNING, PAUSED, TERMINATED, ERROR = "PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"

    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
        self.status = self.RUNNING


class Controller:
    """Methods of a controller that Ray's schedulers call."""

    def get_live_trials(self) -> list[Trial]:
        return []


def load(module: str) -> ModuleType:
    """Return `ray.tune.schedulers.<module>`; raise ImportError if Ray is not installed."""
    name = f"ray.tune.schedulers.{module}"
    try:
        return importlib.import_module(name)
    except ImportError:
        if importlib.util.find_spec("ray") is None:
            raise
    for each in [each for each in sys.modules if each.startswith(("ray.air", "ray.tune"))]:
        del sys.modules[each]  # it was only partly loaded
    spec = importlib.util.find_spec("ray")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    for package in ("air", "tune", "tune/schedulers"):
        _empty(package.replace("/", ".")).__path__ = [str(root / package)]
    _empty("tune.experiment").Trial = Trial  # type: ignore[attr-defined]
    base = importlib.import_module("ray.tune.schedulers.trial_scheduler")
    sys.modules["ray.tune.schedulers"].TrialScheduler = base.TrialScheduler  # type: ignore[attr-defined]
    return importlib.import_module(name)


def _empty(name: str) -> ModuleType:
    return sys.modules.setdefault(f"ray.{name}", ModuleType(f"ray.{name}"))
