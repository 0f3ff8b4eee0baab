"""Functions for code of a running trial: report, get_checkpoint, get_context."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from trainkit.errors import ConfigError, TuneError
from trainkit.tune.core.checkpoint import Checkpoint, checkpoint_dirname, commit_directory, persist
from trainkit.tune.core.metrics import is_scalar, plain_metrics
from trainkit.tune.core.resources import TrialResources
from trainkit.tune.trial.messages import Reply, ReportMeter, TrialSpec, reply

log = logging.getLogger(__name__)


class TrialStopped(BaseException):
    """Exception raised in `report()` to end a stopped trial.

    The class does not extend Exception, so that a user's `except Exception` around a step does not catch it.
    """


class TuneContext:
    """Identity of the running trial."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    @property
    def spec(self) -> TrialSpec:
        """The trial's full specification."""
        return self._spec

    def get_trial_id(self) -> str:
        """Return the trial's id, unique in the experiment, such as '5f3a_00007'."""
        return self._spec.trial_id

    def get_trial_name(self) -> str:
        """Return the trainable's name and the trial's id."""
        return self._spec.trial_name

    def get_trial_dir(self) -> str:
        """Return the path of the trial's own folder, which may be missing if the experiment is in memory."""
        return self._spec.trial_dir

    def get_trial_resources(self) -> TrialResources:
        """Return the resources of the trial by name."""
        return self._spec.resources

    def get_experiment_name(self) -> str:
        """Return the name of the experiment's folder."""
        return self._spec.experiment_name

    def get_world_size(self) -> int:
        """Return the number of processes that report in this trial: 1."""
        return 1

    def get_world_rank(self) -> int:
        """Return the rank of this process in the trial: 0."""
        return 0

    def get_local_rank(self) -> int:
        """Return the rank of this process among the trial's processes on this machine: 0."""
        return 0

    def get_local_world_size(self) -> int:
        """Return the number of the trial's reporting processes on this machine: 1."""
        return 1

    def get_node_rank(self) -> int:
        """Return the rank of this machine among the trial's machines: 0."""
        return 0

    def get_metadata(self) -> dict[str, Any]:
        """Return {}, because only trainers have metadata for their checkpoints."""
        return {}


class TrialContext:
    """State of one attempt of a function trial inside its process.

    Args:
        spec: specification of the trial.
        hand_over: function that passes a reply to the driver and returns when the trial may continue.
        context: object that `get_context` returns in a trainer's worker, whose reports get no automatic keys
            (such as `training_iteration`) here; None: a `TuneContext`.
    """

    def __init__(
        self, spec: TrialSpec, hand_over: Callable[[Reply], None], context: TuneContext | None = None
    ) -> None:
        self.context = context or TuneContext(spec)
        self._of_worker = context is not None
        self.stopping = False
        self.checkpoint = Checkpoint(spec.checkpoint) if spec.checkpoint is not None else None
        self.meter = ReportMeter(spec)
        self._trial_dir = spec.trial_dir
        self._next_checkpoint = spec.next_checkpoint
        self._hand_over = hand_over
        self._start = self.meter.iteration
        self._refused = ""  # a thread may have ignored the error of its report, so the error is kept
        self._process = os.getpid()
        self._thread = threading.get_ident()
        # folder that `checkpoint_dir` yielded, whose files the next report saves
        self._written: str | None = None

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None) -> None:
        """Pass a report to the driver; return once the report is committed and the trial may continue."""
        if os.getpid() != self._process:
            raise TuneError(
                f"tune.report() was called in process {os.getpid()}, a child of the trial's process: "
                f"call it in process {self._process}, and pass values there, as by a multiprocessing.Queue"
            )
        if threading.get_ident() != self._thread or _active.get() is not self:
            self._refused = (
                f"report() was called from thread {threading.current_thread().name!r}; call it from the "
                "thread that runs the trainable, and pass values there, such as through a queue.Queue"
            )
            raise TuneError(self._refused)
        if self.stopping:
            raise TrialStopped
        self._hand_over(self.progress(metrics, checkpoint))
        if self.stopping:
            raise TrialStopped

    def progress(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, *, done: bool = False
    ) -> Reply:
        """Count a report, save its checkpoint, and return the reply for the driver.

        Raises:
            MetricError: a metric can't be stored.
            CheckpointError: the checkpoint can't be copied.
        """
        plain = plain_metrics(metrics)
        dirname = self._save(checkpoint)
        if dirname is not None and not self._of_worker:
            plain["checkpoint_dir_name"] = dirname
        filled = self.meter.fill(plain)
        if self._of_worker:
            filled = plain
        if done:
            self._tell_of_lost()
        return reply(self.meter.iteration, filled, dirname, done)

    def end(self) -> Reply:
        """Return the reply for an end without a report; save a checkpoint made since the last report.

        Raises:
            TuneError: the function has reported only from other threads.
        """
        self._tell_of_lost()
        return reply(self.meter.iteration, None, self._save(None), done=True)

    def _tell_of_lost(self) -> None:
        if self._refused and not self.stopping:
            if self.meter.iteration == self._start:
                raise TuneError(f"the function ended and nothing was reported: {self._refused}")
            log.warning("a report was not recorded: %s", self._refused)

    @contextmanager
    def saving(self) -> Iterator[str]:
        """Yield a folder whose files are saved with the next report."""
        folder = os.path.join(self._trial_dir, ".checkpoint_dir")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        self._written = None
        yield folder
        self._written = folder

    def _save(self, checkpoint: Checkpoint | None) -> str | None:
        if checkpoint is None and self._written is None:
            return None
        dirname = checkpoint_dirname(self._next_checkpoint)
        if checkpoint is None:
            commit_directory(str(self._written), os.path.join(self._trial_dir, dirname))
            self._written = None
        elif isinstance(checkpoint, Checkpoint):
            dirname = persist(checkpoint, self._trial_dir, self._next_checkpoint)
        else:
            raise ConfigError(f"checkpoint={checkpoint!r}: give a tune.Checkpoint.from_directory(path)")
        self._next_checkpoint += 1
        self.checkpoint = Checkpoint(os.path.join(self._trial_dir, dirname))
        return dirname

    def activate(self) -> None:
        """Make this object the session of the code in the current greenlet."""
        global _of_process
        _active.set(self)
        _of_process = self

    def deactivate(self) -> None:
        """End this session after the trial's code has ended."""
        global _of_process
        if _of_process is self:
            _of_process = None


_active: ContextVar[TrialContext | None] = ContextVar("trainkit_trial", default=None)
# Threads that the user starts don't inherit the context variable. Such threads read the trial's identity from
# the module's variable.
_of_process: TrialContext | None = None


def current_session(verb: str) -> TrialContext:
    """Return the session of the running trial.

    Raises:
        TuneError: this code does not run in a trial of a function.
    """
    session = _active.get() or _of_process
    if session is None:
        raise TuneError(
            f"{verb}() was called outside a trial: call it in the process and thread of a function that a "
            "Tuner or TorchTrainer runs. A Trainable class returns its metrics from step() instead"
        )
    return session


def report(metrics: Any = None, *, checkpoint: Checkpoint | None = None, **more: Any) -> None:
    """Report metrics of a running trial; return once the report is committed and the trial may continue.

    If the scheduler or a stop rule ends the trial, the call does not return: it raises an exception that runs
    `finally` blocks and ends the trial.

    Args:
        metrics: dictionary with numbers, strings, small arrays, dates, paths, and lists and dictionaries of
            them; or a single number, which becomes the metric `_metric`.
        checkpoint: checkpoint to keep with this report; its directory is copied before the call returns.
        more: further metrics: `report(loss=0.1)`.

    Raises:
        MetricError: a value can't be stored; the message names the key.
        CheckpointError: the checkpoint can't be copied.
        TuneError: called outside a trial, or from a thread other than the trainable's thread.
    """
    session = current_session("report")
    if metrics is not None and not isinstance(metrics, (dict, Mapping)) and is_scalar(metrics):
        metrics = {"_metric": metrics}
    session.report({**({} if metrics is None else plain_metrics(metrics)), **more}, checkpoint)


def get_checkpoint() -> Checkpoint | None:
    """Return the trial's latest checkpoint, even from an earlier attempt; None without a checkpoint."""
    return current_session("get_checkpoint").checkpoint


def get_context() -> TuneContext:
    """Return the identity of this trial: its id, name, folder and resources."""
    return current_session("get_context").context


# --- functions of Ray 1.x -------------------------------------------------------------------------


@contextmanager
def checkpoint_dir(step: int) -> Iterator[str]:
    """Yield a folder for a checkpoint that the next report saves; for functions written for Ray 1.x.

    A function for Ray 1.x also has an argument `checkpoint_dir`, which receives the folder to resume from;
    None without a checkpoint.

    Args:
        step: ignored, because checkpoints are numbered automatically; exists for Ray's signature only.
    """
    with current_session("checkpoint_dir").saving() as folder:
        yield folder


def get_trial_id() -> str:
    """Return `get_context().get_trial_id()`."""
    return current_session("get_trial_id").context.get_trial_id()


def get_trial_name() -> str:
    """Return `get_context().get_trial_name()`."""
    return current_session("get_trial_name").context.get_trial_name()


def get_trial_dir() -> str:
    """Return `get_context().get_trial_dir()`."""
    return current_session("get_trial_dir").context.get_trial_dir()


def get_trial_resources() -> TrialResources:
    """Return `get_context().get_trial_resources()`."""
    return current_session("get_trial_resources").context.get_trial_resources()


def is_session_enabled() -> bool:
    """Return True if this code runs in a trial."""
    return (_active.get() or _of_process) is not None
