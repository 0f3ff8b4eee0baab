"""Callbacks: who is told of what happens in an experiment. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.lazy import lazily

if TYPE_CHECKING:
    from trainkit.tune.callbacks.base import Callback, ProgressReporter
    from trainkit.tune.callbacks.loggers import CSVLoggerCallback, JsonLoggerCallback, LoggerCallback
    from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
    from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

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
    "CLIReporter",
    "CSVLoggerCallback",
    "Callback",
    "JsonLoggerCallback",
    "JupyterNotebookReporter",
    "LoggerCallback",
    "ProgressReporter",
    "TBXLoggerCallback",
]

__getattr__, __dir__ = lazily(__name__, _HOME_OF)
