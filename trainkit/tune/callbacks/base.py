"""Callback and ProgressReporter: base classes of observers of an experiment."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from trainkit.errors import ConfigError
from trainkit.registry import Registry
from trainkit.resources import describe_use
from trainkit.tune.core.checks import call_problem, shown_signature
from trainkit.tune.core.trial import SavedCheckpoint, Trial

CALLBACKS = Registry(
    "callback",
    {
        "csv": "trainkit.tune.callbacks.loggers:CSVLoggerCallback",
        "json": "trainkit.tune.callbacks.loggers:JsonLoggerCallback",
    },
    base="trainkit.tune.callbacks.base:Callback",
)
"""Callbacks that can be created by name. Other packages can add callbacks through entry points."""


class Callback:
    """Base class of callbacks for RunConfig(callbacks=[...]).

    Each method is called after its event is committed to the experiment file. An exception of a callback is
    reported once and never affects a trial. The arguments `trials` and `trial` are read-only. Values that
    `on_trial_result` adds to its argument `result` are stored with the report.

    Attributes:
        _refresh_s: maximum seconds between two calls of `on_step_end` while no event occurs; None:
            `on_step_end` is called only after events.
        _given_as: name from which a restore creates the callback again; None: the callback was passed as an
            object.
    """

    _refresh_s: float | None = None
    _given_as: str | None = None

    def setup(
        self,
        stop: Any = None,
        num_samples: int | None = None,
        total_num_samples: int | None = None,
        **info: Any,
    ) -> None:
        """Called when the experiment begins or is resumed.

        `num_samples` is the setting of TuneConfig; `total_num_samples` is the total number of trials
        including grids, or None without a limit. `info` contains `experiment_path`, `metric`, `mode`,
        `objectives`, `time`, `resources`, `trials`, and `past`. The function `past` returns the trials of a
        resumed experiment that have reported, each with a sequence of its results. The results are read from
        the file on first access, except that `len` reads nothing.
        """

    def on_step_begin(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Called before new events are processed."""

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Called after new events were processed.

        `info` contains `time`, `resources`, `resources_used`, `total_samples` and `remaining_s` (estimated
        seconds to the end, or None).
        """

    def on_trial_start(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when the process of a trial has been set up."""

    def on_trial_restore(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial runs again; `info["results"]` has the trial's earlier results, oldest first."""

    def on_trial_save(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has a new checkpoint."""

    def on_trial_result(
        self, iteration: int, trials: Sequence[Trial], trial: Trial, result: Mapping[str, Any], **info: Any
    ) -> None:
        """Called when a trial has reported."""

    def on_trial_complete(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has ended without failing, by itself or by a stop."""

    def on_trial_recover(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has failed and will run again; `info["failure"]` is the reason."""

    def on_trial_error(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial has failed for good; `trial.failure` is the reason."""

    def on_trial_change(self, iteration: int, trials: Sequence[Trial], trial: Trial, **info: Any) -> None:
        """Called when a trial continues with a different configuration.

        `info` contains `donor` (the trial whose state was copied, or None) and `donor_iteration` (the donor's
        last report before its state was copied).
        """

    def on_checkpoint(
        self,
        iteration: int,
        trials: Sequence[Trial],
        trial: Trial,
        checkpoint: SavedCheckpoint,
        **info: Any,
    ) -> None:
        """Called when a trial's checkpoint was committed to the experiment's file."""

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        """Called when the experiment has ended or was interrupted.

        `info` contains the keys that `on_step_end` receives, and three more keys. `ending` is the reason for
        an early end, or '' if all trials have ended. `in_order` is False if trials were cut off, for example
        by a second Ctrl-C. A callback should return quickly if `in_order` is False. `say` is a function that
        prints a line if the callback has to wait; with verbose=0, `say` prints nothing.
        """

    def get_state(self) -> dict[str, Any] | None:
        """Return the state that a restored experiment passes to `set_state`, as JSON data; None: no state.

        This method is called every few seconds and at the end of the experiment, and the returned state is
        stored in the experiment's file.
        """
        return None

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned in an earlier run; called after `setup`."""


ASK_S = 1.0
"""Seconds after which a reporter is called even if no event has occurred."""


class ProgressReporter:
    """Base class of reporters for RunConfig(progress_reporter=...)."""

    def setup(
        self,
        start_time: float | None = None,
        total_samples: int | None = None,
        metric: str | None = None,
        mode: str | None = None,
        **info: Any,
    ) -> None:
        """Called when the experiment begins or is resumed.

        Args:
            start_time: start time in seconds since 1970.
            total_samples: total number of trials; None: no limit.
            metric: metric of TuneConfig.
            mode: mode of TuneConfig.
            info: `experiment_path`, which is '' for a temporary folder, and `verbose` of RunConfig.
        """

    def should_report(self, trials: Sequence[Trial], done: bool = False) -> bool:
        """Return True if `report` must be called now.

        This method is called after each step, and at the end with done=True.
        """
        raise NotImplementedError(f"{type(self).__name__} must define should_report()")

    def report(self, trials: Sequence[Trial], done: bool, *sys_info: str) -> None:
        """Show the trials; `sys_info` are lines about the whole experiment."""
        raise NotImplementedError(f"{type(self).__name__} must define report()")


class ReporterCallback(Callback):
    """Callback that calls a reporter.

    Args:
        reporter: reporter to call.
        verbose: `verbose` setting of RunConfig.
        kept: False if the experiment's folder is removed at the end; the reporter then receives no path.
    """

    _refresh_s = ASK_S

    def __init__(self, reporter: ProgressReporter, verbose: int, *, kept: bool = True) -> None:
        self._reporter = reporter
        self._verbose = verbose
        self._kept = kept

    def setup(self, *given: Any, **info: Any) -> None:
        self._reporter.setup(
            start_time=info["time"],
            total_samples=info["total_num_samples"],
            metric=info["metric"],
            mode=info["mode"],
            experiment_path=info["experiment_path"] if self._kept else "",
            verbose=self._verbose,
        )

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if self._reporter.should_report(trials, done=False):
            self._reporter.report(trials, False, _in_use(info))

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        if self._reporter.should_report(trials, done=True):
            ending = info.get("ending")
            self._reporter.report(
                trials, True, _in_use(info), *([f"Ended early: {ending}"] if ending else [])
            )


def _in_use(info: dict[str, Any]) -> str:
    return f"In use: {describe_use(info['resources_used'], info['resources'])}"


def create_callback(name: str, argument: str = "callbacks") -> Callback:
    """Return a new callback by its name or class name.

    Args:
        name: name in CALLBACKS, or name of an entry point.
        argument: user's argument that contains `name`, for error messages.

    Raises:
        ConfigError: the callback is unknown, or needs arguments.
        MissingDependencyError: a package that the callback needs is not installed.
    """
    cls = CALLBACKS.get(name, argument)
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ConfigError(
            f"{argument}={name!r} needs arguments ({error}): give an object, such as {cls.__name__}(...)"
        ) from None
    made: Callback = cls()
    made._given_as = name
    return made


def check_callback(callback: Callback) -> None:
    """Check that the methods of a callback accept the arguments of their calls.

    Raises:
        ConfigError: a method does not accept its arguments.
    """
    for hook in HOOKS:
        hook_of(callback, hook)


def hook_of(callback: Callback, hook: str) -> Callable[..., None] | None:
    """Return the callback's method `hook`, for calls with keywords as in Ray; None if the callback does not
    override the method.

    Raises:
        ConfigError: the method does not accept the arguments.
    """
    own, ours = getattr(callback, hook), vars(Callback)[hook]
    if getattr(own, "__func__", own) is ours:
        return None
    expected = inspect.signature(ours).parameters.values()
    named = [each.name for each in expected if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
    names = [*named, *_INFO.get(hook, ())]
    if (problem := call_problem(own, 0, names)) is None:
        return cast("Callable[..., None]", own)
    first = [each for each in named if each in _BY_POSITION]
    if call_problem(own, len(first), [each for each in names if each not in first]) is None:
        return lambda **info: own(*[info.pop(each) for each in first], **info)
    if hook == "setup" and call_problem(own, 0) is None:
        return lambda **info: own()
    raise ConfigError(
        f"{type(callback).__name__}.{hook}{shown_signature(own)} has the wrong signature "
        f"({problem}): define {hook}{shown_signature(ours)}"
    )


HOOKS = [name for name in vars(Callback) if name.startswith("on_") or name == "setup"]
_BY_POSITION = ("iteration", "trials", "trial")
"""Arguments that are passed by position if a callback's method names its parameters differently."""
_STEP_INFO = ("time", "total_samples", "resources", "resources_used", "remaining_s")
_INFO = {
    "setup": ("experiment_path", "metric", "mode", "objectives", "time", "resources", "trials", "past"),
    "on_step_begin": _STEP_INFO,
    "on_step_end": _STEP_INFO,
    "on_trial_restore": ("results",),
    "on_trial_complete": ("results",),
    "on_trial_error": ("results",),
    "on_trial_recover": ("failure",),
    "on_trial_change": ("donor", "donor_iteration"),
    "on_experiment_end": (*_STEP_INFO, "ending", "in_order", "say"),
}
"""Keys that `info` may contain, by method of a callback."""
