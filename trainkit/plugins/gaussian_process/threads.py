"""The number of threads of a model's matrix operations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import cache

from threadpoolctl import ThreadpoolController

# The number of BLAS threads applies to the whole process. So two searches in different threads would
# overwrite each other's number.
_LOCK = threading.Lock()


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for matrix operations.

    The matrices of a model are small, so more threads would be slower, and would take CPUs from the trials.
    """
    with _LOCK, _controller().limit(limits=1, user_api="blas"):
        yield
