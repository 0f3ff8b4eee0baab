"""Futures of references, whose callbacks may use the verbs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    from trainkit.runtime.local.pump import Pump


def ref_future(pump: Pump) -> Future[Any]:
    """Return a future that the thread of `pump` settles.

    A callback runs in a thread of its own then: one that waits for a reference would else keep the pump
    from reading the answer.
    """
    future: Future[Any] = _ref_future_class()(pump)
    return future


@functools.cache
def _ref_future_class() -> Any:
    from concurrent.futures import Future  # for those who need it: it takes a while to import

    class RefFuture(Future[Any]):
        def __init__(self, pump: Pump) -> None:
            super().__init__()
            self._pump = pump

        def add_done_callback(self, callback: Callable[[Future[Any]], object]) -> None:
            def run(future: Future[Any]) -> None:
                if self._pump.is_current_thread:
                    threading.Thread(
                        target=callback, args=(future,), name="trainkit-callback", daemon=True
                    ).start()
                else:
                    callback(future)

            super().add_done_callback(run)

    return RefFuture
