"""Callbacks for PyTorch Lightning's Trainer in a function trial: metrics, and checkpoints, go to the tuner.

Lightning comes as two packages, `lightning` and `pytorch_lightning`, which don't know of each other's
classes. These extend those of a package that this process has imported before. An instance is one of each
package that is imported when it is made.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Self

from trainkit.runtime import session
from trainkit.tune.core.checks import load, require
from trainkit.tune.integrations.reporting import Metrics, Reporter

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_FOUND = [name for name in PACKAGES if name in sys.modules] or [
    name for name in PACKAGES if find_spec(name.partition(".")[0])
]
FIRST: Any = load(next(iter(_FOUND), PACKAGES[0]), "Lightning trainers", "lightning")
"""The package whose classes are extended by name."""
for _package in PACKAGES:
    session.register(_package)  # Else each trial would import it by itself, which takes seconds.
# Lightning asks these for something, rather than telling them.
_NO_EVENTS = frozenset({"on_save_checkpoint", "on_load_checkpoint"})
HOOKS = frozenset(
    name
    for name, _ in inspect.getmembers(FIRST.Callback, inspect.isfunction)
    if name.startswith("on_") and name not in _NO_EVENTS
)
"""The events that `on` may name."""


class OfEitherPackage:
    """Class of Lightning's whose instances a trainer of either package takes, once both are imported."""

    NAME: str
    """Of the class in Lightning's package."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        kind: Any = cls
        for package in filter(None, map(sys.modules.get, PACKAGES)):
            theirs = class_in(package, cls.NAME)
            if theirs not in cls.__mro__:  # `issubclass` remembers bases that a class had before
                own = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_named": cls}
                kind = type(cls.__name__, (cls, theirs), own)
        made: Self = super().__new__(kind)
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Name the class that a module has, of which there may be an instance of other packages there."""
        reduced: Any = super().__reduce_ex__(2)
        return (OfEitherPackage.__new__, (getattr(self, "_named", type(self)),), *reduced[2:])


def class_in(package: Any, name: str) -> type:
    """Return the class of this name, such as "callbacks.Callback", in a package of Lightning's."""
    module, _, attribute = name.rpartition(".")
    found: type = getattr(importlib.import_module(f"{package.__name__}.{module}"), attribute)
    return found


class LightningCheckpointCallback(OfEitherPackage, FIRST.Callback):  # type: ignore[misc]
    """Reports what the Trainer has logged, with a checkpoint: give it in `Trainer(callbacks=[...])`.

    To go on from one: `trainer.fit(model, ckpt_path=path)`, where `path` is `filename` in the folder
    `tune.get_checkpoint().path`. What is validated before training begins is not reported. A trial that
    is stopped ends inside `trainer.fit`.

    Args:
        metrics: a name, a list of names, or a dictionary from the name to report to Lightning's; None: all
            of `trainer.callback_metrics`.
        filename: of the file in the checkpoint.
        save_checkpoints: False: metrics alone.
        on: the event, or events, of Lightning's callbacks to report at, with or without its `on_`.

    Raises:
        ConfigError: Lightning has no such event.
        MissingDependencyError: Lightning is not installed; raised where this is imported.
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
            require(hook in HOOKS, f"on={name!r} is none of Lightning's events: {', '.join(sorted(HOOKS))}")
            setattr(self, hook, self._handle)

    def _handle(self, trainer: Any, *_: Any) -> None:
        if not trainer.sanity_checking:
            save = trainer.save_checkpoint if self._save_checkpoints else None
            self._reporter.report(trainer.callback_metrics, save, self._filename)


class LightningReportCallback(LightningCheckpointCallback):
    """Reports what the Trainer has logged, without checkpoints.

    Args:
        metrics: as in TuneReportCheckpointCallback.
        on: as there.
    """

    def __init__(self, metrics: Metrics = None, on: str | Sequence[str] = "validation_end") -> None:
        super().__init__(metrics, save_checkpoints=False, on=on)


TuneReportCheckpointCallback = LightningCheckpointCallback
TuneReportCallback = LightningReportCallback
