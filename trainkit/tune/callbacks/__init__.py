"""Callbacks: who is told of what happens in an experiment. Names are loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainkit.tune.callbacks.base import Callback
    from trainkit.tune.callbacks.csv_logger import CSVLoggerCallback
    from trainkit.tune.callbacks.json_logger import JsonLoggerCallback
    from trainkit.tune.callbacks.logger import LoggerCallback
    from trainkit.tune.callbacks.progress import ProgressReporter
    from trainkit.tune.callbacks.reporters import CLIReporter, JupyterNotebookReporter
    from trainkit.tune.callbacks.tensorboard import TBXLoggerCallback

_HOME_OF = {
    "CLIReporter": "reporters",
    "CSVLoggerCallback": "csv_logger",
    "Callback": "base",
    "JsonLoggerCallback": "json_logger",
    "JupyterNotebookReporter": "reporters",
    "LoggerCallback": "logger",
    "ProgressReporter": "progress",
    "TBXLoggerCallback": "tensorboard",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
