"""Callbacks: objects that follow an experiment. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.lazy import lazily
from trainkit.tune.callbacks.base import CALLBACKS, Callback, ProgressReporter, create_callback

if TYPE_CHECKING:
    from trainkit.tune.callbacks.loggers import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
    from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
    from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

_HOME_OF = {
    **CALLBACKS.homes,
    "CLIReporter": "trainkit.tune.callbacks.reporters",
    "JupyterNotebookReporter": "trainkit.tune.callbacks.reporters",
    "LoggerCallback": "trainkit.tune.callbacks.loggers",
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
