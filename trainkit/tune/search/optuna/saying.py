"""What Optuna says on the console and in warnings while it is asked."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def saying_once(said: set[str]) -> Iterator[None]:
    """No line of Optuna's samplers that was `said` before, but for the trial's number; in this thread."""
    here = threading.get_ident()

    def is_new(record: logging.LogRecord) -> bool:
        if record.thread != here:
            return True
        words = re.sub(r"Trial#\d+", "", record.getMessage())
        new = words not in said
        said.add(words)
        return new

    # A filter sees what is logged to the very logger that has it, and each module of theirs has its own.
    names = [name for name in list(logging.Logger.manager.loggerDict) if name.startswith("optuna.samplers")]
    loggers = [logging.getLogger(name) for name in names]
    for each in loggers:
        each.addFilter(is_new)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_new)


@contextmanager
def quiet() -> Iterator[None]:
    """No line of Optuna's on the console, and no warning that an option is new."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
