"""Callbacks for PyTorch Lightning's Trainer in a function trial: metrics, and checkpoints, go to the tuner.

Lightning comes as two packages, `lightning` and `pytorch_lightning`, which don't know of each other's
classes: these extend the callback of each that is in use.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import Any

from trainkit.runtime import session
from trainkit.tune.core.checks import require
from trainkit.tune.integrations.reporting import Metrics, Reporter, missing

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
# Lightning asks these for something, rather than telling them.
_NO_EVENTS = frozenset({"on_save_checkpoint", "on_load_checkpoint"})


def _lightning_callbacks() -> tuple[type, ...]:
    """`Callback` of each package that was imported before; of the first that can be, where none was."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in loaded or _PACKAGES:
        if not loaded:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name not in (name, name.partition(".")[0]):
                    raise
                continue
            loaded = [name]
    if not loaded:
        raise missing("tuning a Lightning module", "lightning")
    return tuple(dict.fromkeys(sys.modules[name].Callback for name in loaded))


_BASES = _lightning_callbacks()
for _package in _PACKAGES:
    session.register(_package)  # Else each trial would import it by itself, which takes seconds.
HOOKS = frozenset(
    name
    for base in _BASES
    for name, _ in inspect.getmembers(base, inspect.isfunction)
    if name.startswith("on_") and name not in _NO_EVENTS
)
"""The events that `on` may name."""
_Base: Any = _BASES[0] if len(_BASES) == 1 else type("_Base", _BASES, {})


class LightningCheckpointCallback(_Base):  # type: ignore[misc]
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
