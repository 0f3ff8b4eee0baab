"""Callbacks for PyTorch Lightning's Trainer in a training function: they report metrics and checkpoints.

Lightning exists as two packages, `lightning` and `pytorch_lightning`, each with its own classes. The
callbacks extend the classes of the package that this process imported before this module, if any. When a
callback is created, it also becomes an instance of the classes of every other package that is imported by
then.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Self

from trainkit.plugins.integrations.reporting import Metrics, Reporter
from trainkit.tune.core.checks import load, require

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_FOUND = [name for name in PACKAGES if name in sys.modules] or [
    name for name in PACKAGES if find_spec(name.partition(".")[0])
]
FIRST: Any = load(next(iter(_FOUND), PACKAGES[0]), "Lightning trainers", "lightning")
"""The Lightning package whose classes the callbacks extend."""
# No report can be made in the following hooks, because Lightning uses the values that they return.
_NO_EVENTS = frozenset({"on_save_checkpoint", "on_load_checkpoint"})
HOOKS = frozenset(
    name
    for name, _ in inspect.getmembers(FIRST.Callback, inspect.isfunction)
    if name.startswith("on_") and name not in _NO_EVENTS
)
"""Names of the events at which a callback can report."""


class OfEitherPackage:
    """Base of classes whose instances work with trainers of both Lightning packages, if both are imported."""

    NAME: str
    """Name of the class in Lightning's package."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        kind: Any = cls
        for package in filter(None, map(sys.modules.get, PACKAGES)):
            theirs = class_in(package, cls.NAME)
            # `issubclass` is not used, because its cache would become wrong when the bases of a class change.
            if theirs not in cls.__mro__:
                own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_named": cls}
                kind = type(cls.__name__, (cls, theirs), own)
        made: Self = super().__new__(kind)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the original class, because the receiving process may have imported other packages."""
        reduced: Any = super().__reduce_ex__(2)
        return (OfEitherPackage.__new__, (getattr(self, "_named", type(self)),), *reduced[2:])


def class_in(package: Any, name: str) -> type:
    """Return the class called `name` of a Lightning package, such as "callbacks.Callback"."""
    module, _, attribute = name.rpartition(".")
    found: type = getattr(importlib.import_module(f"{package.__name__}.{module}"), attribute)
    return found


class LightningCheckpointCallback(OfEitherPackage, FIRST.Callback):  # type: ignore[misc]
    """A callback that reports the Trainer's logged metrics, with a checkpoint.

    Use it as `Trainer(callbacks=[...])`. To resume from a checkpoint, call `trainer.fit(model,
    ckpt_path=path)`; `path` is the file `filename` in the folder `tune.get_checkpoint().path`. Lightning's
    sanity check, a validation before training, is not reported. If a trial is stopped, the trial ends inside
    the call of `trainer.fit`.

    Args:
        metrics: a metric's name, a list of names, or a dictionary that maps names in reports to Lightning's
            names; None: all metrics in `trainer.callback_metrics`.
        filename: name of the file in the checkpoint that Lightning writes.
        save_checkpoints: False: report only metrics.
        on: name or names of Lightning's events at which to report, with or without the prefix `on_`.

    Raises:
        ConfigError: Lightning does not have such an event.
        MissingDependencyError: Lightning is not installed; raised when this module is imported.
    """

    NAME = "callbacks.Callback"

    def __init__(
        self,
        metrics: Metrics = None,
        filename: str = "checkpoint",
        save_checkpoints: bool = True,
        on: str | Sequence[str] = "validation_end",
    ) -> None:
        super().__init__()
        self._reporter = Reporter(metrics)
        self._filename = filename
        self._save_checkpoints = save_checkpoints
        for name in [on] if isinstance(on, str) else on:
            hook = name if name.startswith("on_") else f"on_{name}"
            require(
                hook in HOOKS, f"on={name!r} is not one of Lightning's events: {', '.join(sorted(HOOKS))}"
            )
            setattr(self, hook, self._handle)

    def _handle(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            save = trainer.save_checkpoint if self._save_checkpoints else None
            self._reporter.report(trainer.callback_metrics, save, self._filename)


class LightningReportCallback(LightningCheckpointCallback):
    """A callback that reports the Trainer's logged metrics, without checkpoints.

    Args:
        metrics: see `LightningCheckpointCallback`.
        on: see `LightningCheckpointCallback`.
    """

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)


TuneReportCheckpointCallback = LightningCheckpointCallback
TuneReportCallback = LightningReportCallback
