"""Callbacks: objects that follow an experiment. Names are loaded when first used."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from trainkit.errors import ConfigError
from trainkit.lazy import lazily
from trainkit.registry import Registry

if TYPE_CHECKING:
    from trainkit.tune.callbacks.base import Callback, ProgressReporter
    from trainkit.tune.callbacks.loggers import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
    from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
    from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

CALLBACKS = Registry(
    "callback",
    {
        "csv": "trainkit.tune.callbacks.loggers:CSVLoggerCallback",
        "json": "trainkit.tune.callbacks.loggers:JsonLoggerCallback",
        "mlflow": "trainkit.tune.integrations.mlflow:MLflowLoggerCallback",
        "tensorboard": "trainkit.tune.callbacks.tensorboard:TBXLoggerCallback",
        "wandb": "trainkit.tune.integrations.wandb:WandbLoggerCallback",
    },
)
"""One row for each callback that can be made of its name alone; other packages add theirs by entry points."""

_HOME_OF = {
    "CLIReporter": "trainkit.tune.callbacks.reporters",
    "CSVLoggerCallback": "trainkit.tune.callbacks.loggers",
    "Callback": "trainkit.tune.callbacks.base",
    "JsonLoggerCallback": "trainkit.tune.callbacks.loggers",
    "JupyterNotebookReporter": "trainkit.tune.callbacks.reporters",
    "LoggerCallback": "trainkit.tune.callbacks.loggers",
    "ProgressReporter": "trainkit.tune.callbacks.base",
    "TBXLoggerCallback": "trainkit.tune.callbacks.tensorboard",
}

__all__ = [
    "CALLBACKS",
    "CLIReporter",
    "CSVLoggerCallback",
    "Callback",
    "JsonLoggerCallback",
    "JupyterNotebookReporter",
    "LoggerCallback",
    "ProgressReporter",
    "TBXLoggerCallback",
    "create_callback",
]

__getattr__, __dir__ = lazily(__name__, _HOME_OF)


def create_callback(name: str, argument: str = "callbacks") -> Callback:
    """Return a new callback of this name, or of this class name.

    Args:
        name: in CALLBACKS, or of an entry point.
        argument: under which the user gave it, for messages.

    Raises:
        ConfigError: there is no such callback, or it needs arguments.
        MissingDependencyError: its package is not installed.
    """
    cls = CALLBACKS.get(name, argument)
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigError(
            f"{argument}={name!r}: {cls.__name__} needs arguments ({error}); give an object, "
            f"{cls.__name__}(...), in place of the name"
        ) from None
    made: Callback = cls()
    return made
