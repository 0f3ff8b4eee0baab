"""Base of callbacks that follow trials in a tracking service."""

from __future__ import annotations

import logging
import queue
import secrets
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainkit.errors import TuneError
from trainkit.tune.callbacks.loggers import FileLoggerCallback
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.display import Say, wait_saying
from trainkit.tune.trial.context import get_context

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


HASTE_S = 5.0
"""How long a service is waited for where the user has pressed Ctrl-C twice."""
_STATUS = {TrialStatus.TERMINATED: "FINISHED", TrialStatus.ERROR: "FAILED"}
Past = Callable[[], Iterable[tuple[Trial, Sequence[Mapping[str, Any]]]]]


@dataclass(frozen=True)
class TrackedTrial:
    """A trial as the service's thread hears of it: what does not change while the experiment goes on.

    Attributes:
        trial_id: unique in the experiment.
        key: unique among all experiments, and the same when this one goes on.
        name: for people.
        config: the hyperparameters.
        folder: of the trial.
        group: name of the experiment's folder.
    """

    trial_id: str
    key: str
    name: str
    config: Mapping[str, Any]
    folder: Path
    group: str


class TrackerCallback(FileLoggerCallback, ABC):
    """Implement the methods of the service below; all are called in one thread, which is not the driver's.

    How many results the service has of each trial is kept in the experiment's file, so that after a kill
    the rest is sent. A trial that goes back to a checkpoint sends the iterations since then once more.

    Args:
        service: its name, for messages.
        timeout_s: how long the end of the experiment waits for the service.
    """

    def __init__(self, service: str, timeout_s: float) -> None:
        super().__init__()
        self._service = service
        self._timeout_s = timeout_s
        self._begin()

    def _begin(self) -> None:
        self._token = secrets.token_hex(4)
        self._outbox = Outbox(self._service)
        self._connected = False
        self._open: set[str] = set()
        self._broken: set[str] = set()
        self._sent: dict[str, int] = {}
        """By trial that has not ended, how many of its results the service has."""
        self._trials: Sequence[Trial] = ()
        self._past: Past = tuple

    # --- the service, in its thread ---------------------------------------------------------------

    @abstractmethod
    def connect(self) -> None:
        """Make ready; called before anything else."""

    @abstractmethod
    def open_run(self, told: TrackedTrial) -> bool:
        """Begin the trial's run, or go on with it; whether it is new."""

    def describe_run(self, told: TrackedTrial) -> None:
        """Say what is known of the trial from the start; its run is open, and new."""

    @abstractmethod
    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        """Add these results to the trial's run, which is open."""

    @abstractmethod
    def close_run(self, told: TrackedTrial, status: str) -> None:
        """End the trial's run, which is open; `status` is FINISHED, FAILED or KILLED: interrupted."""

    def save(self, told: TrackedTrial, checkpoint: Path) -> None:
        """The trial, whose run is open, has a new checkpoint in this folder."""

    def disconnect(self) -> None:
        """Leave nothing behind."""

    # --- what the experiment tells ----------------------------------------------------------------

    def setup(self, *given: Any, **info: Any) -> None:
        self._begin()
        self.folder = Path(info["experiment_path"])
        self._trials = info["trials"]
        self._past = info["past"]

    def get_state(self) -> dict[str, Any]:
        return {"token": self._token, "sent": dict(self._sent), "trials": len(self._trials)}

    def set_state(self, state: dict[str, Any]) -> None:
        self._token = state["token"]
        for trial, results in self._past():
            # One that is not named had ended, and was sent whole; or it began after this was kept.
            before = len(results) if trial.index < state["trials"] else 0
            sent = state["sent"].get(trial.trial_id, before)
            if not trial.status.is_finished:
                self._sent[trial.trial_id] = sent
            elif sent < len(results) or trial.trial_id in state["sent"]:
                self._sent[trial.trial_id] = sent
                self._put("opening a run", trial, self._do_open)
                self._rewrite_log(trial, results)

    def log_trial_start(self, trial: Trial) -> None:
        self._put("opening a run", trial, self._do_open)

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        self._put("adding results", trial, partial(self._do_write, results=results))

    def log_trial_save(self, trial: Trial) -> None:
        if trial.checkpoint is not None:
            self._flush_kept(trial)  # what was reported before it, stands before it
            path = self.trial_dir(trial) / trial.checkpoint.dirname
            self._put("saving a checkpoint", trial, partial(self._do_save, checkpoint=path))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        status = _STATUS.get(trial.status, "KILLED")
        self._put("ending a run", trial, partial(self._do_close, status=status))

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Send what the service lacks of these."""
        status = _STATUS.get(trial.status, "")
        # As a list: what the past gives is read from the file when looked at, which only this thread may.
        self._put("adding results", trial, partial(self._do_complete, results=list(results), status=status))

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        try:
            super().on_experiment_end(trials, **info)
        finally:
            self._outbox.put("ending", self._do_disconnect)
            in_order = info.get("in_order", True)
            timeout_s = self._timeout_s if in_order else min(self._timeout_s, HASTE_S)
            self._outbox.close(timeout_s, info.get("say", lambda line: None))

    def _put(self, what: str, trial: Trial, action: Callable[[TrackedTrial], None]) -> None:
        told = TrackedTrial(
            trial.trial_id,
            f"{trial.trial_id}_{self._token}",
            trial.name,
            trial.config,
            self.trial_dir(trial),
            self.folder.name,
        )
        self._outbox.put(what, partial(action, told))

    # --- in the thread ----------------------------------------------------------------------------

    def _do_open(self, told: TrackedTrial) -> None:
        """Open the run, unless it is."""
        if told.trial_id in self._open:
            return
        self._sent.setdefault(told.trial_id, 0)
        self._broken.add(told.trial_id)  # until it is open: one that can't be opened is not tried again
        if not self._connected:
            self.connect()
            self._connected = True
        is_new = self.open_run(told)
        self._broken.discard(told.trial_id)
        self._open.add(told.trial_id)
        if is_new:
            self.describe_run(told)

    def _do_write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        if told.trial_id in self._broken or not results:
            return
        self._do_open(told)
        self.write(told, results)
        self._sent[told.trial_id] += len(results)

    def _do_save(self, told: TrackedTrial, checkpoint: Path) -> None:
        if told.trial_id in self._open:
            self.save(told, checkpoint)

    def _do_complete(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]], status: str) -> None:
        """Send what is lacking; with a status, that is all there will be."""
        sent = self._sent.get(told.trial_id, len(results) if status else 0)
        self._sent[told.trial_id] = min(sent, len(results))
        self._do_write(told, results[sent:])
        if status:
            self._do_close(told, status)

    def _do_close(self, told: TrackedTrial, status: str) -> None:
        if told.trial_id in self._open:
            self._open.discard(told.trial_id)
            self.close_run(told, status)
        if status != "KILLED" and told.trial_id not in self._broken:
            self._sent.pop(told.trial_id, None)

    def _do_disconnect(self) -> None:
        if self._connected:
            self.disconnect()


def running_trial() -> Any:
    """The context of the trial that this process runs; None where it runs none."""
    try:
        return get_context()
    except TuneError:
        return None


def process_rank() -> int:
    """This process's rank in torch's process group; 0 where there is none."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())
