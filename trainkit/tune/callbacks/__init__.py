"""Callbacks: who is told of what happens in an experiment. Names are loaded when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainkit.lazy import lazily

if TYPE_CHECKING:
    from trainkit.tune.callbacks.base import Callback
    from trainkit.tune.callbacks.csv_logger import CSVLoggerCallback
    from trainkit.tune.callbacks.json_logger import JsonLoggerCallback
    from trainkit.tune.callbacks.logger import LoggerCallback
    from trainkit.tune.callbacks.progress import ProgressReporter
    from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
    from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

_HOME_OF = {
    "CLIReporter": "trainkit.tune.callbacks.reporters",
    "CSVLoggerCallback": "trainkit.tune.callbacks.csv_logger",
    "Callback": "trainkit.tune.callbacks.base",
    "JsonLoggerCallback": "trainkit.tune.callbacks.json_logger",
    "JupyterNotebookReporter": "trainkit.tune.callbacks.reporters",
    "LoggerCallback": "trainkit.tune.callbacks.logger",
    "ProgressReporter": "trainkit.tune.callbacks.progress",
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
