"""Execution of a trial in its process: runners of the user's code, called by an actor or by tasks."""

from __future__ import annotations

import inspect
import os
import random
import socket
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from greenlet import greenlet  # type: ignore[import-untyped]

from trainkit.errors import MetricError
from trainkit.runtime import session
from trainkit.runtime.api import get
from trainkit.tune.core.checkpoint import Checkpoint, checkpoint_dirname
from trainkit.tune.core.metrics import is_scalar
from trainkit.tune.core.trainables import older_arguments
from trainkit.tune.trial.context import TrialContext, TrialStopped, TuneContext
from trainkit.tune.trial.messages import Reply, TrialSpec, WorkerProcess, reply
from trainkit.tune.trial.trainable import Trainable


class Runner(ABC):
    """Base class of runners; a runner executes one attempt of a trial."""

    @abstractmethod
    def advance(self) -> Reply:
        """Run the trial to its next report or to its end."""

    @abstractmethod
    def save(self) -> Reply:
        """Save a checkpoint at the current report; do nothing if the trial can't save or has already
        saved.
        """

    @abstractmethod
    def stop(self, save: bool) -> Reply:
        """End the trial at its report with the user's clean-up.

        If `save` is True and the trial can save, it saves first.
        """

    def interrupt(self) -> NoReturn:
        """Raise an exception inside a running `advance`, so that the user's clean-up runs."""
        raise TrialStopped

    def take_over(self, spec: TrialSpec) -> bool:
        """Become the runner of another trial after this trial's end; return False if this is impossible."""
        return False

    def close(self) -> str:
        """Clean up a user's object that was kept for another trial; return the traceback of an exception in
        the clean-up.
        """
        return ""


class FunctionRunner(Runner):
    """Runner of `function(config, **parameters)`, which reports by `tune.report`, `yield` or `return`.

    Args:
        spec: specification of the trial.
        function: the user's function.
        parameters: parameters bound to the function.
        context: object that `get_context` returns in the function; None: a `TuneContext`.
    """

    def __init__(
        self,
        spec: TrialSpec,
        function: Any,
        parameters: Mapping[str, Any],
        context: TuneContext | None = None,
    ) -> None:
        self._spec = spec
        self._function = function
        self._parameters = parameters
        self._session = TrialContext(spec, self._hand_over, context)
        self._greenlet = greenlet(self._run)

    def advance(self) -> Reply:
        self._greenlet.parent = greenlet.getcurrent()
        progress: Reply = self._greenlet.switch()
        return progress

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let `get_checkpoint` return `checkpoint` from now on."""
        self._session.checkpoint = checkpoint

    def save(self) -> Reply:
        # a function saves its checkpoints itself, with its reports
        return reply(self._session.meter.iteration)

    def stop(self, save: bool) -> Reply:
        del save  # a function saves its checkpoints itself, with its reports
        self._session.stopping = True
        if not self._greenlet:  # the function has not begun and need not begin
            return reply(self._session.meter.iteration, done=True)
        try:
            return self.advance()
        except (Exception, SystemExit):  # a failed clean-up is reported but does not change the outcome
            return reply(self._session.meter.iteration, done=True, problem=traceback.format_exc())

    def interrupt(self) -> NoReturn:
        self._session.stopping = True
        raise TrialStopped

    def _hand_over(self, progress: Reply) -> None:
        parent = self._greenlet.parent
        parent.switch(progress)

    def _run(self) -> Reply:
        self._session.activate()
        try:
            older = older_arguments(self._function, self._parameters, self._spec.checkpoint)
            output = self._function(self._spec.config, **self._parameters, **older)
            if inspect.isgenerator(output):
                try:
                    for item in output:
                        self._session.report(as_metrics(item), None)
                finally:
                    output.close()
                output = None
            if self._session.stopping or output is None or (isinstance(output, Mapping) and not output):
                return self._session.end()
            return self._session.progress(as_metrics(output), None, done=True)
        except TrialStopped:
            return self._session.end()
        finally:
            self._session.deactivate()


class ClassRunner(Runner):
    """Runner of a `Trainable` class."""

    def __init__(
        self, spec: TrialSpec, cls: type[Trainable], parameters: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        # The user's object is not cleaned up at the end of its trial if another trial may take the object
        # over.
        self._keeps = keep and cls.reset_config is not Trainable.reset_config
        self._kept = False
        self._trainable = cls._of_trial(spec, parameters)
        self._begin(spec)

    def _begin(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._next_checkpoint = spec.next_checkpoint
        # `_saved_at` is the iteration of the last saved checkpoint, or -1 without a checkpoint.
        self._saved_at = spec.iteration if spec.checkpoint is not None else -1
        if spec.checkpoint is not None:
            with self._cleaned_up_after():
                self._trainable.restore(spec.checkpoint)

    def take_over(self, spec: TrialSpec) -> bool:
        if not self._kept:
            return False
        self._kept = False
        with self._cleaned_up_after():
            accepted = self._trainable._take_over(spec)
        if not accepted:
            # The object's former trial has already ended, so stderr is the only place for an error of its
            # clean-up.
            sys.stderr.write(self._clean_up())
            return False
        self._begin(spec)
        return True

    def close(self) -> str:
        kept, self._kept = self._kept, False
        return self._clean_up() if kept else ""

    def advance(self) -> Reply:
        try:
            return self._advance()
        except TrialStopped:  # the clean-up has already run
            return reply(self._trainable.iteration, done=True)

    def _advance(self) -> Reply:
        with self._cleaned_up_after():
            try:
                metrics = self._trainable.train()
            except TrialStopped:
                if self._trainable._part_of_step is None:
                    raise
                self._saved_at = -1  # the last checkpoint lacks this part
                return self.stop(save=True)
            done = bool(metrics.pop("done", False))
            iteration, every = self._trainable.iteration, self._spec.checkpoint_frequency
            due = bool(metrics.get("should_checkpoint", False)) or (every > 0 and iteration % every == 0)
            dirname = self._save() if due or (done and self._spec.checkpoint_at_end) else None
            if dirname is not None:
                metrics["checkpoint_dir_name"] = dirname
        return reply(iteration, metrics, dirname, done, self._end() if done else "")

    def save(self) -> Reply:
        with self._cleaned_up_after():
            return reply(self._trainable.iteration, checkpoint=self._save_if_new())

    def stop(self, save: bool) -> Reply:
        dirname, problem = None, ""
        try:
            dirname = self._save_if_new() if save else None
        except (Exception, SystemExit):  # the error is reported but does not change the trial's outcome
            problem = traceback.format_exc()
        return reply(self._trainable.iteration, None, dirname, True, problem + self._end())

    def _end(self) -> str:
        if self._keeps:
            self._kept = True
            return ""
        return self._clean_up()

    @contextmanager
    def _cleaned_up_after(self) -> Iterator[None]:
        """Run the user's clean-up if the block raises."""
        try:
            yield
        except BaseException as error:
            if problem := self._clean_up():
                error.add_note(f"then cleanup() raised too:\n{problem}")
            raise

    def _clean_up(self) -> str:
        """Run the user's clean-up; return any exception's traceback instead of raising the exception."""
        try:
            self._trainable.stop()
        except (Exception, SystemExit):
            return traceback.format_exc()
        return ""

    def _save_if_new(self) -> str | None:
        saved = self._saved_at == self._trainable.iteration
        return None if saved or not self._trainable._can_save() else self._save()

    def _save(self) -> str:
        dirname = checkpoint_dirname(self._next_checkpoint)
        self._trainable.save(os.path.join(self._spec.trial_dir, dirname))
        self._next_checkpoint += 1
        self._saved_at = self._trainable.iteration
        return dirname


def as_metrics(output: Any) -> dict[str, Any]:
    """Return the value that a function returned or yielded as metrics; a single number becomes `_metric`.

    Raises:
        MetricError: the value is neither a dictionary nor a number.
    """
    if isinstance(output, Mapping):
        return dict(output)
    if is_scalar(output):
        return {"_metric": output}
    raise MetricError(
        f"the trainable returned or yielded a {type(output).__name__}; "
        "give a dictionary of metrics, a number or None"
    )


def _in_environment(spec: TrialSpec) -> AbstractContextManager[None]:
    return spec.environment.entered(spec.trial_dir, own_process=os.getpid() != spec.driver_pid)


def make_runner(
    spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any], *, keep: bool = False
) -> Runner:
    """Return the runner for a trainable.

    Args:
        spec: specification of the trial.
        trainable: the user's function or class.
        parameters: parameters bound by `with_parameters`.
        keep: True: a user's object that another trial can take over is not cleaned up at this trial's end.
    """
    if isinstance(trainable, type) and issubclass(trainable, Trainable):
        return ClassRunner(spec, trainable, parameters, keep=keep)
    return FunctionRunner(spec, trainable, parameters)


class TrialActor:
    """Actor of a trial: `setup` comes first, then `advance` until the trial is done, or `stop`.

    The last call is `leave`. If the actor serves several trials, `begin` starts each further trial. All calls
    of the user's code run in the trial's environment: its folder and its log files.

    Args:
        serves_many: True if the next trial may take over the user's object.
    """

    _runner: Runner | None = None

    def __init__(self, serves_many: bool = False) -> None:
        self._serves_many = serves_many

    def wait_here(self) -> None:
        """Return at once; a result shows that the actor has its resources and is running."""

    def setup(self, spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any]) -> WorkerProcess:
        """Begin the first trial. An object of a `Trainable` class is constructed and restored by this method.

        Args:
            spec: specification of the trial.
            trainable: the user's function or class.
            parameters: references to the values bound by `with_parameters`, by name.
        """
        self._trainable = trainable
        self._values = (
            dict(zip(parameters, get(list(parameters.values())), strict=True)) if parameters else {}
        )
        return self.begin(spec)

    def begin(self, spec: TrialSpec) -> WorkerProcess:
        """Begin a trial with the trainable of `setup`; create the trial's folder if `spec.makes_dir`.

        Raises:
            OSError: the folder can't be created.
        """
        if spec.makes_dir:
            os.makedirs(spec.trial_dir, exist_ok=True)
        if spec.seed is not None and os.getpid() != spec.driver_pid:
            seed_generators(spec.seed)
        before, self._runner, self._spec = self._runner, None, spec
        with _in_environment(spec):
            is_kept = before is not None and before.take_over(spec)
        if is_kept:
            self._runner = before
        else:
            # Deleting `before` frees the resources of the old object before the new object is created.
            # `before` is deleted outside of the new trial's environment, because this may run the user's
            # code.
            del before
            with _in_environment(spec):
                self._runner = make_runner(spec, self._trainable, self._values, keep=self._serves_many)
        # The host name is not resolved, because a hanging resolver would hang every trial.
        return WorkerProcess(pid=os.getpid(), hostname=socket.gethostname(), node_ip="127.0.0.1")

    def advance(self) -> Reply:
        """Run the trial to its next report."""
        with _in_environment(self._spec):
            return self._present().advance()

    def save(self) -> Reply:
        """Save a checkpoint at the current report, if possible."""
        with _in_environment(self._spec):
            return self._present().save()

    def stop(self, save: bool) -> Reply:
        """End the trial at its current report."""
        with _in_environment(self._spec):
            return self._present().stop(save)

    def __cancelled__(self) -> NoReturn:
        self._present().interrupt()

    def leave(self, driver_pid: int) -> None:
        """End the process cleanly with its exit handlers; do nothing if trials run in the driver."""
        runner, self._runner = self._runner, None
        if runner is not None:
            with _in_environment(self._spec):
                problem = runner.close()
            sys.stderr.write(problem)  # the object's trial has ended, so no report can contain the error
        if os.getpid() != driver_pid:
            raise SystemExit(0)

    def _present(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("this process has no trial")
        return self._runner


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, and of NumPy and torch if they are imported."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


session.register("trainkit.tune.trial.actor")
