"""A thread that talks to a service: the experiment hands over what is to be told, and never waits for it.

driver: put(job) -> queue -> thread: job()        driver, at the end: close(timeout_s)
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from trainkit.tune.callbacks.outlets import Say, wait_saying

logger = logging.getLogger("trainkit.tune")

Job = Callable[[], None]


class Outbox:
    """Does jobs one after another, in a thread of its own, which starts with the first.

    What a job raises is told once for each kind of job, and goes no further.

    Args:
        name: of the service, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def put(self, what: str, job: Job) -> None:
        """Have `job` done; `what` says in a message what could not be done."""
        if self._thread is None:
            # A daemon: a service that never answers must not keep the program from ending.
            self._thread = threading.Thread(target=self._work, name=f"{self._name} outbox", daemon=True)
            self._thread.start()
        self._jobs.put((what, job))

    def close(self, timeout_s: float, say: Say) -> None:
        """Return when all is done, or after `timeout_s`, which is told.

        Args:
            timeout_s: to wait.
            say: is told that there is something to wait for.
        """
        thread = self._thread
        if thread is None:
            return
        self._jobs.put(None)

        def wait(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        wait_saying(f"{self._name} to take the rest", wait, timeout_s, say)
        if thread.is_alive():
            logger.warning(
                "%s has not taken all that it was told within %g s: the rest may be lost there; the "
                "experiment's own file has it",
                self._name,
                timeout_s,
            )
        self._thread = None

    def _work(self) -> None:
        while (item := self._jobs.get()) is not None:
            what, job = item
            try:
                job()
            except Exception:
                if what not in self._told:
                    self._told.add(what)
                    logger.warning(
                        "%s: %s failed; the experiment goes on, and this is said once",
                        self._name,
                        what,
                        exc_info=True,
                    )
