"""A trial in its process: runners of the user's code, driven by an actor or by a task per step."""

from __future__ import annotations

import inspect
import os
import random
import socket
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from greenlet import greenlet  # type: ignore[import-untyped]

from trainkit.errors import MetricError
from trainkit.runtime import api, session
from trainkit.runtime.api import get
from trainkit.runtime.specs import ObjectRef
from trainkit.tune.core.checkpoint import Checkpoint, checkpoint_dirname
from trainkit.tune.core.metrics import is_scalar
from trainkit.tune.core.trainables import older_arguments
from trainkit.tune.trial.context import TrialContext, TrialStopped, TuneContext
from trainkit.tune.trial.messages import Reply, TrialSpec, WorkerProcess, reply
from trainkit.tune.trial.trainable import Trainable


class Runner(ABC):
    """One attempt of a trial."""

    @abstractmethod
    def advance(self) -> Reply:
        """Run to the next report, or to the end."""

    @abstractmethod
    def save(self) -> Reply:
        """Save a checkpoint where the trial waits; nothing if it can't, or has saved this state."""

    @abstractmethod
    def stop(self, save: bool) -> Reply:
        """End where the trial waits; the user's clean-up runs. A class saves first if asked and able."""

    def interrupt(self) -> NoReturn:
        """End what `advance` runs, where that is; its clean-up runs. Called in the midst of it."""
        raise TrialStopped

    def take_over(self, spec: TrialSpec) -> bool:
        """Go on as the runner of another trial, after the end of this one; False: that needs a new one."""
        return False

    def close(self) -> str:
        """Clean up what was kept for another trial; return the traceback of what that raises."""
        return ""


class FunctionRunner(Runner):
    """Runs `function(config, **parameters)`, which reports by `tune.report`, by yielding or by returning.

    Args:
        spec: the trial.
        function: the user's.
        parameters: bound to it.
        context: what `get_context` returns in it; None: the trial's identity.
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
        """Have `get_checkpoint` return `checkpoint` from now on."""
        self._session.checkpoint = checkpoint

    def save(self) -> Reply:
        return reply(self._session.meter.iteration)  # a function saves by itself, with its reports

    def stop(self, save: bool) -> Reply:
        del save  # a function saves by itself, with its reports
        self._session.stopping = True
        if not self._greenlet:  # it has not begun, and need not
            return reply(self._session.meter.iteration, done=True)
        try:
            return self.advance()
        except (Exception, SystemExit):  # of the user's clean-up: told, though it changes nothing any more
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
    """Steps a `Trainable`."""

    def __init__(
        self, spec: TrialSpec, cls: type[Trainable], parameters: Mapping[str, Any], *, keep: bool = False
    ) -> None:
        # Where another trial may take the object over, it is cleaned up once none does.
        self._keeps = keep and cls.reset_config is not Trainable.reset_config
        self._kept = False
        self._trainable = cls._of_trial(spec, parameters)
        self._begin(spec)

    def _begin(self, spec: TrialSpec) -> None:
        self._spec = spec
        self._next_checkpoint = spec.next_checkpoint
        # Iteration of the checkpoint that holds the present state; -1: none does.
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
            # The trial that it belonged to has long ended: nothing else could tell what this raises.
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
        except TrialStopped:  # cleaned up
            return reply(self._trainable.iteration, done=True)

    def _advance(self) -> Reply:
        with self._cleaned_up_after():
            metrics = self._trainable.train()
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
        except (Exception, SystemExit):  # the trial's outcome is settled: told, and no more
            problem = traceback.format_exc()
        return reply(self._trainable.iteration, None, dirname, True, problem + self._end())

    def _end(self) -> str:
        if self._keeps:
            self._kept = True
            return ""
        return self._clean_up()

    @contextmanager
    def _cleaned_up_after(self) -> Iterator[None]:
        """Let the user's clean-up run if the block raises."""
        try:
            yield
        except BaseException as error:
            if problem := self._clean_up():
                error.add_note(f"then cleanup() raised too:\n{problem}")
            raise

    def _clean_up(self) -> str:
        """Let the user's clean-up run; return the traceback of what it raises, as all else is settled."""
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
    """Return what a function returned or yielded as metrics; a number alone is the metric `_metric`.

    Raises:
        MetricError: it is neither a dictionary nor a number.
    """
    if isinstance(output, Mapping):
        return dict(output)
    if is_scalar(output):
        return {"_metric": output}
    raise MetricError(
        f"the trainable returned or yielded a {type(output).__name__}; "
        "give a dictionary of metrics, a number or None"
    )


class EnvironmentRunner(Runner):
    """Runs another one at home: in the trial's folder, with its files for what is printed.

    Args:
        spec: the trial.
        make: makes the runner, which runs code of the user's too.
    """

    def __init__(self, spec: TrialSpec, make: Callable[[], Runner]) -> None:
        self._spec = spec
        with _in_environment(spec):
            self._inner = make()

    def advance(self) -> Reply:
        with _in_environment(self._spec):
            return self._inner.advance()

    def save(self) -> Reply:
        with _in_environment(self._spec):
            return self._inner.save()

    def stop(self, save: bool) -> Reply:
        with _in_environment(self._spec):
            return self._inner.stop(save)

    def interrupt(self) -> NoReturn:
        self._inner.interrupt()

    def take_over(self, spec: TrialSpec) -> bool:
        with _in_environment(spec):
            taken = self._inner.take_over(spec)
        self._spec = spec if taken else self._spec
        return taken

    def close(self) -> str:
        with _in_environment(self._spec):
            return self._inner.close()


def _in_environment(spec: TrialSpec) -> AbstractContextManager[None]:
    return spec.environment.entered(spec.trial_dir, own_process=os.getpid() != spec.driver_pid)


def make_runner(
    spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any], *, keep: bool = False
) -> Runner:
    """Return the runner for this form of trainable.

    Args:
        spec: the trial.
        trainable: the user's function or class.
        parameters: what `with_parameters` bound.
        keep: an object that knows how to take over another trial is not cleaned up at the end of this one.
    """

    def make() -> Runner:
        if isinstance(trainable, type) and issubclass(trainable, Trainable):
            return ClassRunner(spec, trainable, parameters, keep=keep)
        return FunctionRunner(spec, trainable, parameters)

    return EnvironmentRunner(spec, make)


class TrialActor:
    """Actor of a trial. `setup` comes first, then `advance` until it is done, or `stop`.

    Then `leave`; or, where it serves several trials, `begin` with the next one, and so on.

    Args:
        serves_many: what a class of the user's holds may be taken over by the next trial.
    """

    _runner: Runner | None = None

    def __init__(self, serves_many: bool = False) -> None:
        self._serves_many = serves_many

    def wait_here(self) -> None:
        """Return as soon as there is a process: what came before was waiting for resources."""

    def setup(self, spec: TrialSpec, trainable: Any, parameters: Mapping[str, Any]) -> WorkerProcess:
        """Take the first trial in; a class is constructed and restored here.

        Args:
            spec: the trial.
            trainable: the user's function or class.
            parameters: references to what `with_parameters` bound, by name.
        """
        self._trainable = trainable
        self._values = (
            dict(zip(parameters, get(list(parameters.values())), strict=True)) if parameters else {}
        )
        return self.begin(spec)

    def begin(self, spec: TrialSpec) -> WorkerProcess:
        """Take a trial in, with the trainable that is here; its folder may be made here too.

        Raises:
            OSError: there can be no such folder.
        """
        if spec.makes_dir:
            os.makedirs(spec.trial_dir, exist_ok=True)
        if spec.seed is not None and os.getpid() != spec.driver_pid:
            seed_generators(spec.seed)
        before, self._runner = self._runner, None
        if before is not None and before.take_over(spec):
            self._runner = before
        else:
            del before  # what the user's object holds is free before the next one is made
            self._runner = make_runner(spec, self._trainable, self._values, keep=self._serves_many)
        # No name is looked up: a resolver that hangs would hang every trial.
        return WorkerProcess(pid=os.getpid(), hostname=socket.gethostname(), node_ip="127.0.0.1")

    def advance(self) -> Reply:
        """Run to the next report."""
        return self._present().advance()

    def save(self) -> Reply:
        """Save a checkpoint where the trial waits, if it can."""
        return self._present().save()

    def stop(self, save: bool) -> Reply:
        """End the trial where it waits."""
        return self._present().stop(save)

    def __cancelled__(self) -> NoReturn:
        self._present().interrupt()

    def leave(self, driver_pid: int) -> None:
        """End the process as a program ends, exit handlers included; nothing where trials have none."""
        runner, self._runner = self._runner, None
        if runner is not None and (problem := runner.close()):
            sys.stderr.write(problem)  # its trial has long ended: nothing else could tell it
        if os.getpid() != driver_pid:
            raise SystemExit(0)

    def _present(self) -> Runner:
        if self._runner is None:
            raise RuntimeError("this process has no trial")
        return self._runner


def seed_generators(seed: int) -> None:
    """Seed the global generators of `random`, and of NumPy and torch where the trainable has loaded them."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


session.register("trainkit.tune.trial.actor")


class SerializedTrainable(Trainable):
    """Extend this where a step needs of the one before only a value, which is pickled.

    Each step has an object of its own, in whichever process: `setup` is called before each, then `state` is
    set, unless it is the trial's first. Where steps are done in parts, the class method `joined` makes their
    reports one: it returns the metrics, and the state after the step or None if the trial is done.
    """

    @property
    def state(self) -> Any:
        """All that the next step needs; not None."""
        raise NotImplementedError(f"{type(self).__name__} must define state, which its next step begins with")

    @state.setter
    def state(self, state: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define how its state is set")


@dataclass(frozen=True)
class SharedArguments:
    """Arguments that all steps of an experiment share.

    Attributes:
        trainable: a `SerializedTrainable`.
        parameters: what `with_parameters` bound, by name.
    """

    trainable: ObjectRef[type[SerializedTrainable]]
    parameters: Mapping[str, ObjectRef[Any]]

    def values(self) -> tuple[type[SerializedTrainable], dict[str, Any]]:
        """Return the shared arguments, fetched at the first call in a process."""
        if not _fetched:
            trainable, *values = api.get([self.trainable, *self.parameters.values()])
            _fetched.append((trainable, dict(zip(self.parameters, values, strict=True))))
        return _fetched[0]


_fetched: list[tuple[type[SerializedTrainable], dict[str, Any]]] = []
"""Arguments that this process was given."""


def run_step(shared: SharedArguments, spec: TrialSpec, state: Any) -> tuple[Reply, Any]:
    """Run the next step of a trial here; `shared` is what `step_of` takes, as references."""
    return step_of(*shared.values(), spec, state)


def step_of(
    trainable: type[SerializedTrainable], parameters: Mapping[str, Any], spec: TrialSpec, state: Any
) -> tuple[Reply, Any]:
    """Run the next step of a trial.

    Args:
        trainable: shared with the other steps.
        parameters: shared with them, too.
        spec: the trial; its iteration and times are those up to this step.
        state: after the step before; None: this is the first.

    Returns:
        What it reports, and its state.
    """
    with spec.environment.entered(spec.trial_dir, own_process=os.getpid() != spec.driver_pid):
        trial = trainable._of_trial(spec, parameters)
        if state is not None:
            trial.state = state
        metrics = trial.train()
    done = bool(metrics.pop("done", False))
    where = {"pid": os.getpid(), "hostname": socket.gethostname()}
    return reply(trial.iteration, metrics | where, None, done), None if done else trial.state
