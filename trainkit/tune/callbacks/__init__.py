"""Callbacks: who is told of what happens in an experiment."""

from __future__ import annotations

from trainkit.tune.callbacks.base import Callback
from trainkit.tune.callbacks.csv_logger import CSVLoggerCallback
from trainkit.tune.callbacks.json_logger import JsonLoggerCallback
from trainkit.tune.callbacks.logger import LoggerCallback

__all__ = ["CSVLoggerCallback", "Callback", "JsonLoggerCallback", "LoggerCallback"]
