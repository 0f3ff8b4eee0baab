"""Base class of callbacks that record trials in a tracking service."""

from __future__ import annotations

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
from trainkit.tune.core.log import logger
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.display import Say, wait_saying
from trainkit.tune.trial.context import get_context

Job = Callable[[], None]


class Outbox:
    """Queue of jobs that a separate thread runs one after another; the first job starts the thread.

    An exception in a job is logged once for each kind of job, and has no other effect.

    Args:
        name: name of the tracking service, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[tuple[str, Job] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()

    def put(self, what: str, job: Job) -> None:
        """Add `job` to the queue; `what` is its kind, for the warning if it fails."""
        if self._thread is None:
            # The thread is a daemon, so that a service that never answers can't keep the program alive.
            self._thread = threading.Thread(target=self._work, name=f"{self._name} outbox", daemon=True)
            self._thread.start()
        self._jobs.put((what, job))

    def close(self, timeout_s: float, say: Say) -> None:
        """Wait until all jobs are done; after `timeout_s`, log a warning instead.

        Args:
            timeout_s: longest wait in seconds.
            say: function that receives lines of text about the wait.
        """
        thread = self._thread
        if thread is None:
            return
        self._jobs.put(None)

        def wait(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        wait_saying(f"{self._name} to receive the remaining data", wait, timeout_s, say)
        if thread.is_alive():
            logger.warning(
                "%s has not received all data within %g s: the rest may be missing there; the "
                "experiment's own file has all data",
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
                        "%s: %s failed; the experiment continues, and further failures are not logged",
                        self._name,
                        what,
                        exc_info=True,
                    )


HASTE_S = 5.0
"""Timeout in seconds for a service, after the user has pressed Ctrl-C twice."""
_STATUS = {TrialStatus.TERMINATED: "FINISHED", TrialStatus.ERROR: "FAILED"}
Past = Callable[[], Iterable[tuple[Trial, Sequence[Mapping[str, Any]]]]]


@dataclass(frozen=True)
class TrackedTrial:
    """Data of a trial that does not change, for the thread that sends to the service.

    Attributes:
        trial_id: id of the trial, unique in its experiment.
        key: key of the trial that is unique among all experiments, and that does not change when the
            experiment resumes.
        name: name for display.
        config: hyperparameters.
        folder: folder of the trial.
        group: name of the experiment's folder.
    """

    trial_id: str
    key: str
    name: str
    config: Mapping[str, Any]
    folder: Path
    group: str


class TrackerCallback(FileLoggerCallback, ABC):
    """Base of callbacks for a tracking service. A subclass implements the methods that use the service.

    The methods that use the service run in a separate thread. The experiment's file records how many reports
    of each trial the service has received, so that the missing reports can be sent after a kill. If a trial
    goes back to a checkpoint, its reports after the checkpoint are sent again.

    Args:
        service: name of the tracking service, for messages.
        timeout_s: seconds to wait for the service at the end of the experiment.
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
        """Maps each trial that has not ended to the number of its reports that the service has received."""
        self._trials: Sequence[Trial] = ()
        self._past: Past = tuple

    # --- the service, in its thread ---------------------------------------------------------------

    @abstractmethod
    def connect(self) -> None:
        """Connect to the service; this is called before all other methods."""

    @abstractmethod
    def open_run(self, told: TrackedTrial) -> bool:
        """Start the trial's run, or continue an existing one; return True if the run is new."""

    def describe_run(self, told: TrackedTrial) -> None:
        """Store the trial's initial data in its run, which is new and open."""

    @abstractmethod
    def write(self, told: TrackedTrial, results: Sequence[Mapping[str, Any]]) -> None:
        """Store these reports in the trial's run, which is open."""

    @abstractmethod
    def close_run(self, told: TrackedTrial, status: str) -> None:
        """Close the trial's open run with `status`: FINISHED, FAILED, or KILLED (trial interrupted)."""

    def save(self, told: TrackedTrial, checkpoint: Path) -> None:
        """Store a new checkpoint of a trial whose run is open; `checkpoint` is the checkpoint's folder."""

    def disconnect(self) -> None:
        """Release all resources."""

    # --- notifications of the experiment ----------------------------------------------------------

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
            # A trial without an entry in `sent` either ended and was sent completely, or began after the
            # state was saved.
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
            self._flush_kept(trial)  # The service must receive earlier reports before the checkpoint.
            path = self.trial_dir(trial) / trial.checkpoint.dirname
            self._put("saving a checkpoint", trial, partial(self._do_save, checkpoint=path))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        status = _STATUS.get(trial.status, "KILLED")
        self._put("ending a run", trial, partial(self._do_close, status=status))

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        status = _STATUS.get(trial.status, "")
        # `past` reads a file on first access, which only this thread may do, so the list is made before the
        # job is queued.
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
        if told.trial_id in self._open:
            return
        self._sent.setdefault(told.trial_id, 0)
        # The trial is marked as broken until its run is open, so that the trial's other jobs are skipped
        # after a failure.
        self._broken.add(told.trial_id)
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
        """Send the missing reports; if `status` is given, no more reports follow, so close the run."""
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
    """Return the context of the trial that runs in this process; None if no trial runs in this process."""
    try:
        return get_context()
    except TuneError:
        return None


def process_rank() -> int:
    """Return this process's rank in torch's process group; 0 if torch has no group."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_rank())
