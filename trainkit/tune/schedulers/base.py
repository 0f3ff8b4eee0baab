"""Base class of schedulers, their decisions and the words for them, and the scheduler that stops no trial.

The words of a rule stand beside the rule. A rule without words shows its facts as they are.

A scheduler reads no clock and no file, and draws from the generator that it is given. So the same reports
give the same decisions, and an experiment is resumed by replaying what its scheduler was told:

    on_trial_add     on_result     on_trial_complete, on_trial_error     each by trial, in this order
    on_trial_resume  on_trial_change  on_trial_request  on_trial_again  on_no_more_trials  on_begin  resize

`verdicts` is asked after each of them; `choose_trial_to_run` may be asked at any time and changes nothing.
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
    """Return a decorator for the function that puts the facts of a rule's decisions into words."""

    def decorated(words: Words) -> Words:
        _WORDS[rule] = words
        return words

    return decorated


def in_words(reason: Facts) -> str:
    """Return such as 'rung 4, rank 3 of 8, 2 may go on, cutoff 0.25'; '' where nothing was judged."""
    words = _WORDS.get(str(reason.get("rule")), _listed)
    try:
        return words(reason)
    except (KeyError, TypeError, ValueError):  # a scheduler of the user's may have a rule of the same name
        return _listed(reason)


def number_words(value: Any) -> str:
    """Return a number with six digits, or 'no score' for None."""
    return f"{value:.6g}" if isinstance(value, float) else "no score" if value is None else str(value)


def _listed(reason: Facts) -> str:
    return ", ".join(f"{name} {number_words(value)}" for name, value in reason.items())


words_of("late report")("too late to count, it was judged before".format_map)


_RAYS_ARGUMENTS = ("controller", "tune_controller", "trial_runner", "runner")
"""By which names, over the years, methods of Ray's schedulers take what runs the trials."""

_RAYS_METHODS = {"on_trial_result": "decide", "on_trial_remove": "on_trial_complete"}
"""Methods of Ray's schedulers that are never called here, with what is called in their place."""

_WHY = "a scheduler is told of trials by their ids, and sees nothing of what runs them"


def check_methods(cls: type, base: type) -> None:
    """Check that the methods which `cls` redefines of `base` can be called as they will be.

    Raises:
        ConfigError: one has other arguments, such as those of Ray's, or a name that is never called.
    """
    # What its other bases redefine was checked when they were defined; a mixin's was not.
    fresh = [each for each in cls.__mro__ if each is cls or not issubclass(each, base)]
    defined = {name: value for each in reversed(fresh) for name, value in vars(each).items()}
    for old, new in _RAYS_METHODS.items():
        # With the new one defined too, the old name is a method of the user's own.
        if old in defined and not {new, "on_result"} & defined.keys():
            raise ConfigError(
                f"{cls.__name__}.{old}() is a method of Ray's schedulers that is never called here: define "
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
    wrong = f"can't be called as it will be ({problem})" if problem else f"is never given a {rays}"
    raise ConfigError(
        f"{cls.__name__}.{name}{shown_signature(given)} {wrong}: define {name}{shown_signature(ours)}"
        + (f"; {_WHY}, unlike Ray's" if rays is not None else "")
    )


def check_made(scheduler: object) -> None:
    """Check that the constructor of a scheduler has called that of its base.

    Raises:
        ConfigError: it has not.
    """
    if not hasattr(scheduler, "time_attr"):
        name = type(scheduler).__name__
        raise ConfigError(
            f"the scheduler {name} was made without its base: let {name}.__init__() begin with "
            "super().__init__(), which takes time_attr, metric and mode"
        )


class Verdict(StrEnum):
    """Decision on a trial that has reported, or is paused.

    RESUME is no scheduler's answer to a report: it is how the log calls the end of a pause.
    """

    CONTINUE = "CONTINUE"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    STOP = "STOP"


@dataclass(frozen=True)
class Donor:
    """A trial whose latest checkpoint another one may go on from, and with which configuration."""

    trial_id: str
    config: Mapping[str, Any]


NO_FACTS: Mapping[str, Any] = MappingProxyType({})


class Decision(NamedTuple):
    """A verdict and what led to it.

    Attributes:
        verdict: go on; pause, until the scheduler chooses the trial to run again; or stop for good.
        reason: facts by name, such as {"rung": 4, "rank": 3, "places": 2}; empty where nothing was judged.
        save: with CONTINUE: a trial that can saves a checkpoint before it goes on.
        donors: with PAUSE: the trial takes over the first of these that has a checkpoint, or stays as it is
            where none has. It is told of by `on_trial_change`.
        request: with PAUSE: what the trial reserves from now on.
    """

    verdict: Verdict
    reason: Mapping[str, Any] = NO_FACTS
    save: bool = False
    donors: tuple[Donor, ...] = ()
    request: PlacementGroupFactory | None = None


CONTINUE = Decision(Verdict.CONTINUE)

NO_CONFIG: Mapping[str, Any] = MappingProxyType({})


class TrialScheduler(ABC):
    """Base of all schedulers.

    A subclass implements `decide`, and keeps its arguments as attributes of their names. Scores are "larger
    is better" by then: negated for mode "min", and minus infinity for NaN and infinities.

    Args:
        time_attr: reported value that counts the resource spent.
        metric: reported value to judge by; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
    """

    CONTINUE: ClassVar[Verdict] = Verdict.CONTINUE
    PAUSE: ClassVar[Verdict] = Verdict.PAUSE
    STOP: ClassVar[Verdict] = Verdict.STOP
    NOOP: ClassVar[Verdict] = Verdict.CONTINUE

    needs_metric: ClassVar[bool] = True
    label: ClassVar[str] = "the scheduler"
    """How messages call it."""
    hears_again: ClassVar[bool] = False
    """True if a restore tells it of the end of a trial that is run again, since others were judged by it."""

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
        """How many trials there will be at most; None: that is not known."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_methods(cls, TrialScheduler)
        own = vars(cls).get("total_samples")
        if isinstance(own, property) and own.fset is None:
            raise TypeError(
                f"{cls.__name__}.total_samples is a property that can't be set, and the experiment sets it: "
                "it is how many trials there will be; give the property another name"
            )

    @property
    def deciding(self) -> TrialScheduler:
        """The one that judges trials: itself, or the scheduler that it wraps."""
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments that make this scheduler again; numbers and strings.

        By default the attributes of their names. A scheduler that does not keep one can't be made again by a
        restore, and is given to it anew.
        """
        return arguments_of(self)

    @property
    def first_judgement(self) -> float | None:
        """The value of `time_attr` at which a trial is judged at the earliest; None: nobody need know."""
        return None

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the search space with what the scheduler adds to it; called once, when that is made."""
        return space

    def take_space(self, space: Space) -> None:
        """Take the search space, completed; called once, before the first trial."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Several, where it judges by them."""
        return ()

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        """Take several objectives of the experiment's, before `set_search_properties`; none: it has one.

        Raises:
            ConfigError: it judges by one metric.
        """
        if objectives and self.needs_metric and (self.metric is None or self.mode is None):
            names = [each.metric for each in objectives]
            raise ConfigError(
                f"{type(self).__name__} judges trials by one metric, and the objectives are {names}: take "
                f"ParetoScheduler, or say by which one, {type(self).__name__}(metric={names[0]!r}, mode=...)"
            )

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        """Take what the experiment decides: the metric, unless one was given, and the generator.

        Args:
            metric: the TuneConfig's.
            mode: the TuneConfig's.
            rng: to draw from.
            total_samples: how many trials there will be at most; None: that is not known.

        Raises:
            ConfigError: two different metrics were given, or none and the scheduler needs one.
        """
        for name, own, given in (("metric", self.metric, metric), ("mode", self.mode, mode)):
            if own is not None and given is not None and own != given:
                raise ConfigError(
                    f"{type(self).__name__}({name}={own!r}) and TuneConfig({name}={given!r}) differ; "
                    "give it in one place"
                )
        self.metric = self.metric or metric
        self.mode = self.mode or mode
        self.rng = rng
        self.total_samples = total_samples
        if self.needs_metric and (self.metric is None or self.mode is None):
            raise ConfigError(
                f"{type(self).__name__} judges trials by a metric: "
                "set TuneConfig(metric='loss', mode='min') to what your trainable reports"
            )

    def resize(self, total_samples: int | None) -> None:
        """A command, or a restore, changes how many trials there will be: more, or fewer.

        Args:
            total_samples: how many there will be at most, with those of before; None: that is not known.

        Raises:
            ConfigError: it needs the number that it was told first; then the command is refused, with
                nothing changed.
        """
        self.total_samples = total_samples

    def on_begin(self) -> None:
        """The experiment runs from here on, the first time or after a restore: no trial has a process yet."""

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        """A trial was suggested, with this configuration; called once each, in the order suggested."""

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Decision:
        """Judge one report; called in the order in which reports are committed."""
        time = number_of(result, self.time_attr)
        value = None if self.metric is None else number_of(result, self.metric)
        score = None if value is None else score_of(value, self.mode)
        return self.decide(trial_id, None if time is None else float(time), score)

    @abstractmethod
    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        """The rule; `time` or `score` is None where the report lacks it."""

    def on_trial_complete(self, trial_id: str) -> None:
        """A trial has ended by itself, or was stopped."""

    def on_trial_error(self, trial_id: str) -> None:
        """A trial has failed for good."""

    def on_trial_again(self, trial_id: str) -> None:
        """A trial that had ended runs again, after a restore; told where `hears_again`."""

    # --- pauses -----------------------------------------------------------------------------------

    @property
    def pauses(self) -> bool:
        """True if its way is to pause trials, so that each must be able to save."""
        return False

    def verdicts(self) -> Sequence[tuple[str, Decision]]:
        """Return the decisions on paused trials, each once: to STOP, or to PAUSE with donors."""
        return ()

    def choose_trial_to_run(
        self, pending: Sequence[str], paused: Sequence[str] = (), *, new: bool = False
    ) -> str | None:
        """Which of the waiting trials starts or goes on next; None: none of them now.

        A question, that changes nothing: a trial that then goes on is told of by `on_trial_resume`.

        Args:
            pending: that wait to run, such as after a failure, in the order suggested.
            paused: that are paused and can go on, in the order suggested; `in` costs the same for any number.
            new: for None a trial not yet suggested would start.
        """
        return pending[0] if pending else paused[0] if paused else None

    def on_trial_resume(self, trial_id: str) -> Mapping[str, Any]:
        """A paused trial goes on; return why, as facts for the log."""
        return {}

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        """Why a trial that is paused to the end did not go on, as facts; a question, that changes nothing."""
        return NO_FACTS

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        """A trial has another configuration from now on, and the state of `donor` if there is one."""

    def on_trial_request(
        self, trial_id: str, request: PlacementGroupFactory, before: PlacementGroupFactory
    ) -> None:
        """A trial that was paused with a `request` reserves that from now on; `before` is what it had."""

    def see(self, view: ExperimentView) -> None:
        """The experiment is about to run, and may be looked at from now on; not called for a replay.

        What is seen is in no log. So a decision that depends on it must change nothing that the scheduler
        remembers; what comes of the decision it is told.
        """

    def on_no_more_trials(self) -> None:
        """No further trial comes, or none before a paused one goes on; may be told again."""


def score_of(value: Any, mode: str | None) -> float:
    """Return `value` so that larger is better; NaN and infinities of either sign are worst of all."""
    number = float(value)
    if not math.isfinite(number):
        return -math.inf
    return -number if mode == "min" else number


BY_COMMAND = "command"
"""The fact that has the words where a user has decided."""


def words_for(decision: Decision, scheduler: str) -> str:
    """Why a trial was stopped, paused or gone on with, as text.

    Such as 'stopped by ASHA: rung 4, rank 3 of 8, 2 may go on, cutoff 0.25'.
    """
    verdict, reason = decision.verdict, decision.reason
    if verdict is Verdict.STOP and "stop" in reason:
        return str(reason["stop"])
    if BY_COMMAND in reason:
        return str(reason[BY_COMMAND])
    verb, words = _VERBS.get(verdict, "judged"), in_words(reason)
    if reason.get("rule") == "max_t":
        return words  # the trial has all that it was to have
    return f"{verb} by {scheduler}: {words}" if words else f"{verb} by {scheduler}"


_VERBS = {Verdict.STOP: "stopped", Verdict.PAUSE: "paused", Verdict.RESUME: "resumed"}


class FIFOScheduler(TrialScheduler):
    """Let every trial run to its end."""

    needs_metric: ClassVar[bool] = False
    # A subclass need not call our constructor, as in Ray.
    time_attr = "training_iteration"
    metric = mode = rng = total_samples = None

    def __init__(self) -> None:
        super().__init__()

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        return CONTINUE
