"""Base class of schedulers, their decisions with reasons, and a FIFO scheduler, which stops no trial.

The reason of a decision is a dictionary of facts, such as {"rule": "rung", "rank": 3}. A function beside each
rule turns the facts into text. If a rule has no function for its text, the text lists the facts.

A scheduler reads no clock and no file, and takes random numbers only from the generator that it receives. So
the same reports give the same decisions. To resume an experiment, a restore repeats these calls of the
scheduler's methods:

    on_trial_add     on_result     on_trial_complete, on_trial_error     each by trial, in this order
    on_trial_resume  on_trial_change  on_trial_request  on_trial_again  on_no_more_trials  on_begin  resize

`verdicts` is called after each call in this list. The method `choose_trial_to_run` may be called at any time
and does not change the scheduler.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import (
    arguments_of,
    call_problem,
    require_mode,
    require_name,
    shown_signature,
)
from trainkit.tune.core.metrics import number_of

if TYPE_CHECKING:
    from numpy.random import Generator

    from trainkit.tune.core.capacity import ExperimentView
    from trainkit.tune.core.objectives import Objective
    from trainkit.tune.core.resources import PlacementGroupFactory
    from trainkit.tune.space.search_space import Space


Facts = Mapping[str, Any]
Words = Callable[[Facts], str]

_WORDS: dict[str, Words] = {}


def words_of(rule: str) -> Callable[[Words], Words]:
    """Return a decorator that registers a function: the function turns the facts of `rule` into text."""

    def decorated(words: Words) -> Words:
        _WORDS[rule] = words
        return words

    return decorated


def in_words(reason: Facts) -> str:
    """Return the reason of a decision as text, such as 'rung 4, rank 3 of 8, 2 continue'; '' if it has no
    facts.
    """
    words = _WORDS.get(str(reason.get("rule")), _listed)
    try:
        return words(reason)
    # A user's scheduler may use a built-in rule's name with other facts, on which the rule's function fails.
    except (KeyError, TypeError, ValueError):
        return _listed(reason)


FAR = 1e200
"""Loss of an infeasible report for schedulers, per unit of 1 + violation; no usual loss is as large."""


def number_words(value: Any) -> str:
    """Return a number with six significant digits, or 'no score' for None."""
    return f"{value:.6g}" if isinstance(value, float) else "no score" if value is None else str(value)


def _listed(reason: Facts) -> str:
    return ", ".join(f"{name} {number_words(value)}" for name, value in reason.items())


words_of("late report")("report came after the decision to stop".format_map)


_RAYS_ARGUMENTS = ("controller", "tune_controller", "trial_runner", "runner")
"""Parameter names, old and new, in Ray's scheduler methods for the object that runs the trials."""

_RAYS_METHODS = {"on_trial_result": "decide", "on_trial_remove": "on_trial_complete"}
"""Methods of Ray's schedulers that trainkit never calls, each with its replacement in trainkit."""

_WHY = "a scheduler receives only the ids of trials, not the objects that run them"


def check_methods(cls: type, base: type) -> None:
    """Check that the methods of `cls` that override methods of `base` accept trainkit's calls.


    Raises:
        ConfigError: a method has different arguments than trainkit's, or is a method of Ray that trainkit
            never calls.
    """
    # A base class that is a scheduler was checked when it was defined. A mixin was not checked, so this loop
    # checks its methods.
    fresh = [each for each in cls.__mro__ if each is cls or not issubclass(each, base)]
    defined = {name: value for each in reversed(fresh) for name, value in vars(each).items()}
    for old, new in _RAYS_METHODS.items():
        # If the class also defines the replacement, the method with Ray's name has a different purpose.
        if old in defined and not {new, "on_result"} & defined.keys():
            raise ConfigError(
                f"{cls.__name__}.{old}() is a method of Ray's schedulers that trainkit never calls: define "
                f"{new}{shown_signature(vars(base)[new])}; {_WHY}"
            )
    for name, value in vars(base).items():
        if inspect.isfunction(value) and not name.startswith("_") and inspect.isfunction(defined.get(name)):
            _check_method(cls, name, defined[name], value)


def _check_method(cls: type, name: str, given: Callable[..., Any], ours: Callable[..., Any]) -> None:
    expected = inspect.signature(ours).parameters.values()
    rays = next((each for each in inspect.signature(given).parameters if each in _RAYS_ARGUMENTS), None)
    by_name = [each.name for each in expected if each.kind is each.KEYWORD_ONLY]
    problem = call_problem(given, len(expected) - len(by_name), by_name)
    if problem is None and rays is None:
        return
    wrong = f"does not accept trainkit's calls ({problem})" if problem else f"never receives a {rays}"
    raise ConfigError(
        f"{cls.__name__}.{name}{shown_signature(given)} {wrong}: define {name}{shown_signature(ours)}"
        + (f"; {_WHY}, unlike Ray's" if rays is not None else "")
    )


def check_made(scheduler: object) -> None:
    """Check that the constructor of a scheduler has called its base constructor.

    Raises:
        ConfigError: the base constructor was not called.
    """
    if not hasattr(scheduler, "time_attr"):
        name = type(scheduler).__name__
        raise ConfigError(
            f"{name}.__init__() must begin with super().__init__(), which takes time_attr, metric and mode"
        )


class Verdict(StrEnum):
    """Decision on a trial that has reported, or is paused.

    A scheduler never returns RESUME. The experiment's log uses RESUME for the end of a pause.
    """

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    STOP = "STOP"


@dataclass(frozen=True)
class Donor:
    """Trial whose state a paused trial may take over, and the configuration to resume with.

    The paused trial takes over the donor's latest checkpoint at the time of the decision, even if the donor
    saves newer checkpoints before the takeover.
    """

    trial_id: str
    config: Mapping[str, Any]


NO_FACTS: Mapping[str, Any] = MappingProxyType({})


class Decision(NamedTuple):
    """A verdict and its reason.

    Attributes:
        verdict: CONTINUE, PAUSE (until the scheduler chooses the trial to run again) or STOP (for good).
        reason: facts behind the verdict, such as {"rung": 4, "rank": 3, "places": 2}; empty if nothing was
            judged.
        save: True lets the trial save a checkpoint before it continues, if the trial can save.
        donors: for PAUSE only: the trial takes over the state of the first donor that has a checkpoint. If no
            donor has a checkpoint, the trial stays unchanged. The scheduler's method `on_trial_change`
            reports the takeover.
        request: for PAUSE only: resources that the trial reserves from now on.
    """

    verdict: Verdict
    reason: Mapping[str, Any] = NO_FACTS
    save: bool = False
    donors: tuple[Donor, ...] = ()
    request: PlacementGroupFactory | None = None

    @property
    def ends_early(self) -> bool:
        """True if the scheduler ends the trial before `max_t`; False for stop rules and users' commands."""
        others = "stop" in self.reason or BY_COMMAND in self.reason or self.reason.get("rule") == "max_t"
        return self.verdict is Verdict.STOP and not others


CONTINUE = Decision(Verdict.CONTINUE)

NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


class TrialScheduler(ABC):
    """Base of all schedulers.

    A subclass implements `decide`, and keeps its constructor's arguments as attributes of the same names.
    `decide` receives scores, for which larger is better: a score is the negated value for mode "min", and
    minus infinity for a value that is NaN or infinite.

    Args:
        time_attr: name of the reported value that counts the resource spent.
        metric: name of the reported value to judge trials by; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
    """

    CONTINUE: ClassVar[Verdict] = Verdict.CONTINUE
    PAUSE: ClassVar[Verdict] = Verdict.PAUSE
    STOP: ClassVar[Verdict] = Verdict.STOP
    NOOP: ClassVar[Verdict] = Verdict.CONTINUE

    needs_metric: ClassVar[bool] = True
    several: ClassVar[bool] = False
    """True for schedulers that judge by several objectives."""
    label: ClassVar[str] = "the scheduler"
    """Name of the scheduler in messages."""
    hears_again: ClassVar[bool] = False
    """True if the scheduler must be notified when a restore runs an ended trial again."""

    def __init__(
        self, time_attr: str = "training_iteration", metric: str | None = None, mode: str | None = None
    ) -> None:
        require_mode(mode)
        require_name("time_attr", time_attr)
        self.time_attr = time_attr
        self.metric = metric
        self.mode = mode
        self.rng: Generator | None = None
        self.total_samples: int | None = None
        """Upper limit on the number of trials; None: unknown."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_methods(cls, TrialScheduler)
        own = vars(cls).get("total_samples")
        if isinstance(own, property) and own.fset is None:
            raise TypeError(
                f"{cls.__name__}.total_samples is read-only, but an experiment sets it: rename the property"
            )

    @property
    def deciding(self) -> TrialScheduler:
        """The scheduler that judges trials: this scheduler, or the scheduler that this scheduler wraps."""
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """Constructor arguments that recreate this scheduler, as values that an experiment's file can store.

        By default, the arguments are read from the attributes of the same names. If an attribute is missing,
        `Tuner.restore` can't recreate the scheduler, so the user must pass the scheduler again.
        """
        return arguments_of(self)

    @property
    def first_judgement(self) -> float | None:
        """The lowest value of `time_attr` at which a trial is judged; None: unknown."""
        return None

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the search space with the scheduler's additions; called once, when the space is made."""
        return space

    def take_space(self, space: Space) -> None:
        """Receive the completed search space; called once, before the first trial."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, if the scheduler judges by several objectives; otherwise empty."""
        return ()

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        """Receive the experiment's objectives, before `set_search_properties` is called; empty for a single
        metric.

        Raises:
            ConfigError: the scheduler judges by one metric, but has no metric itself.
        """
        if objectives and self.needs_metric and (self.metric is None or self.mode is None):
            names = [each.metric for each in objectives]
            raise ConfigError(
                f"{type(self).__name__} supports one metric, but the objectives are {names}: use "
                f"ParetoScheduler, or choose one by {type(self).__name__}(metric={names[0]!r}, mode=...)"
            )

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        """Receive the experiment's settings. The TuneConfig's metric and mode apply if the scheduler itself
        has no metric and mode.

        Args:
            metric: the TuneConfig's metric.
            mode: the TuneConfig's mode.
            rng: random generator for all of the scheduler's draws.
            total_samples: upper limit on the number of trials; None: unknown.

        Raises:
            ConfigError: the scheduler and the TuneConfig have different metrics or modes, or a required
                metric or mode is missing.
        """
        for name, own, given in (("metric", self.metric, metric), ("mode", self.mode, mode)):
            if own is not None and given is not None and own != given:
                raise ConfigError(
                    f"{type(self).__name__}({name}={own!r}) and TuneConfig({name}={given!r}) differ: give one"
                )
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        self.rng = rng
        self.total_samples = total_samples
        if self.needs_metric and (self.metric is None or self.mode is None):
            raise ConfigError(
                f"{type(self).__name__} needs a reported metric, as in TuneConfig(metric='loss', mode='min')"
            )

    def resize(self, total_samples: int | None) -> None:
        """Change the number of trials, after a command or in a restore.

        Args:
            total_samples: upper limit on the number of trials, including earlier trials; None: unknown.

        Raises:
            ConfigError: the scheduler can't work with a changed number of trials. The experiment then refuses
                the user's command.
        """
        self.total_samples = total_samples

    def on_begin(self) -> None:
        """Prepare for the start or the restore of the experiment; called before any trial has a process."""

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        """Add a suggested trial with its configuration; called once per trial, in the order of suggestion."""

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        """Judge one report; called in the order in which reports are committed."""
        time = number_of(result, self.time_attr)
        value = None if self.metric is None else number_of(result, self.metric)
        score = None if value is None else score_of(value, self.mode)
        return self.decide(trial_id, None if time is None else float(time), score)

    @abstractmethod
    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        """Judge one report by its time and score. The time or the score is None if the report lacks it."""

    def on_trial_complete(self, trial_id: str) -> None:
        """Handle the end of a trial that ended by itself or was stopped by a rule, without a failure."""

    def on_trial_error(self, trial_id: str) -> None:
        """Handle the final failure of a trial, or its end by a user's command."""

    def on_trial_again(self, trial_id: str) -> None:
        """Handle an ended trial that a restore runs again; called only if `hears_again` is True."""

    # --- pauses -----------------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        """True if the scheduler regularly pauses trials, so that each trial must support checkpoints."""
        return False

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        """Return new decisions on paused trials: STOP, or PAUSE with donors. Return each decision once."""
        return ()

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        """Return the waiting trial that starts or resumes next; None if all waiting trials continue to wait.

        This method does not change the scheduler. When a paused trial resumes, `on_trial_resume` is called.

        Args:
            pending: trials that wait for resources, for example after a failure, in the order of suggestion.
            paused: paused trials that can resume, in the order of suggestion; the `in` operator takes
                constant time.
            new: True if the experiment suggests a new trial when this method returns None.
        """
        return pending[0] if pending else paused[0] if paused else None

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        """Handle the resumption of a paused trial; return facts for the log on why the trial resumes."""
        return {}

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        """Return facts that say why a trial was never resumed; must not change the scheduler's state."""
        return NO_FACTS

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        """Handle a trial's new configuration; if `donor` is given, the trial also took over the donor's
        state.
        """

    def on_trial_request(
        self, trial_id: str, request: PlacementGroupFactory, before: PlacementGroupFactory
    ) -> None:
        """Handle a paused trial's new resource request, which replaces the request `before`."""

    def see(self, view: ExperimentView) -> None:
        """Receive a view of the experiment before the experiment runs; not called in a replay.

        The log does not record what the scheduler reads from the view. So a decision that depends on the view
        must not change the scheduler's state. The scheduler may change its state later, when it is notified
        of the decision's effects.
        """

    def on_no_more_trials(self) -> None:
        """Handle the end of new trials, for good or until a paused trial resumes; may be called several
        times.
        """


def score_of(value: Any, mode: str | None) -> float:
    """Return `value` as a score (larger is better); NaN and both infinities become minus infinity."""
    number = float(value)
    if not math.isfinite(number):
        return -math.inf
    return -number if mode == "min" else number


BY_COMMAND = "command"
"""Name of the fact that holds the text of a user's command."""


def words_for(decision: Decision, scheduler: str) -> str:
    """Return the text that says why a trial was stopped, paused or resumed.

    For example: 'stopped by ASHA: rung 4, rank 3 of 8, 2 continue, cutoff 0.25'.
    """
    verdict, reason = decision.verdict, decision.reason
    if verdict is Verdict.STOP and "stop" in reason:
        return str(reason["stop"])
    if BY_COMMAND in reason:
        return str(reason[BY_COMMAND])
    verb, words = _VERBS.get(verdict, "judged"), in_words(reason)
    if reason.get("rule") == "max_t":
        return words  # the trial has spent its whole budget, so the text must not say "stopped"
    return f"{verb} by {scheduler}: {words}" if words else f"{verb} by {scheduler}"


_VERBS = {Verdict.STOP: "stopped", Verdict.PAUSE: "paused", Verdict.RESUME: "resumed"}


class FIFOScheduler(TrialScheduler):
    """Let every trial run to its end."""

    needs_metric: ClassVar[bool] = False
    # As in Ray, a subclass need not call this constructor. So the class itself has the attributes, with
    # default values.
    time_attr = "training_iteration"
    metric = mode = rng = total_samples = None

    def __init__(self) -> None:
        super().__init__()

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        return CONTINUE
