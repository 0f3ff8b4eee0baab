"""Callbacks: who is told of what happens in an experiment."""

from __future__ import annotations

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.callbacks.csv_logger import CSVLoggerCallback
from trainkit.tune.callbacks.json_logger import JsonLoggerCallback
from trainkit.tune.callbacks.logger import LoggerCallback
from trainkit.tune.callbacks.progress import ProgressReporter
from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

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
