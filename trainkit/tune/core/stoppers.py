"""Stoppers: objects that end trials or the experiment, depending on reports."""

from __future__ import annotations

import difflib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import MetricError, TuneArgumentError, did_you_mean
from trainkit.registry import Registry
from trainkit.tune.core.checks import (
    arguments_of,
    free,
    is_number,
    meant,
    require,
    require_number,
    require_whole,
)
from trainkit.tune.core.metrics import flatten, lookup

AUTOMATIC = frozenset(
    "training_iteration time_this_iter_s time_total_s timesteps_total trial_id experiment_tag date timestamp "
    "pid hostname node_ip config done checkpoint_dir_name iterations_since_restore time_since_restore "
    "trainkit_constraint_violation".split()
)
"""Keys that are filled in automatically in every result."""


BARE = "_metric"
"""Metric name of a number that was reported or returned without a name."""


def missing_metric(name: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Return a text about a missing metric: its name, the reported names and the closest spelling."""
    reported = {key for result in results for key in reported_names(result)} - AUTOMATIC
    if not reported:
        how = f"call tune.report({{{name!r}: value}}) or return a dictionary"
        return f"{name!r}, but nothing was reported; {how}"
    if reported == {BARE}:
        return f"{name!r}, but only a number was reported: give its name, as tune.report({{{name!r}: value}})"
    if name in reported:
        return f"{name!r}, which is None: report a number"
    hint = did_you_mean(name, reported | AUTOMATIC, cutoff=0.6)
    text = f"{name!r}, which was not reported; reported names are {', '.join(sorted(reported))}"
    return f"{text}.{hint}" if hint else text


def reported_names(result: Mapping[str, Any]) -> list[str]:
    """Return the flat names of all values of a result, without its configuration."""
    return list(flatten({key: value for key, value in result.items() if key != "config"}))


def reported_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that a trial reported, and its total seconds, by flat name."""
    flat = flatten({key: value for key, value in result.items() if key != "config"})
    known = AUTOMATIC - {"time_total_s"}
    return {name: value for name, value in flat.items() if name not in known and is_number(value)}


ALIKE = 0.8
"""Minimum similarity (by difflib) of a name that a warning suggests instead of a missing name."""

LONG, LONGER = 5, 7
"""Minimum word length at which a missing or swapped letter (LONG) or wrong letter (LONGER) is a typing error.

With shorter words, different metrics would be confused, such as 'rmse' and 'rmsle', or 'f1_macro' and
'f1_micro'.
"""


def misspelt(name: str, result: Mapping[str, Any]) -> str | None:
    """Return the reported name that `name` probably misspells; None if no name is close enough.

    For example, 'los' misspells 'loss', but 'val_loss' is not a misspelling of 'loss', and 'mape' is not a
    misspelling of 'mae'. Each word of `name` must equal the word at the same position of the reported name,
    or differ from this word by one typing error. Names that differ only in digits are different names.
    """
    alike = [other for other in reported_names(result) if other != name and _is_slip(name, other)]
    return next(iter(difflib.get_close_matches(name, alike, n=1, cutoff=0.0)), None)


def _is_slip(name: str, other: str) -> bool:
    if re.sub(r"\d", "", name) == re.sub(r"\d", "", other):
        return False
    words, others = _words(name), _words(other)
    if "".join(words) == "".join(others):
        return True
    return len(words) == len(others) and all(map(_is_slip_of_word, words, others))


def _is_slip_of_word(word: str, other: str) -> bool:
    """Return True if two words are equal, or if one letter is missing, doubled, wrong or swapped with the
    next letter.
    """
    short, long = sorted((word, other), key=len)
    if short == long:
        return True
    if short[0] != long[0] or len(short) < 3:
        return False
    if len(short) + 1 == len(long):
        if long[:-1] == short:
            # A missing letter of a doubled pair is a misspelling, as in 'los' for 'loss', but 'map' and
            # 'mape' are different names.
            return len(long) >= LONG or long[-1] == short[-1]
        return len(short) >= LONG and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))
    wrong = [at for at in range(len(long)) if len(short) == len(long) and short[at] != long[at]]
    match wrong:
        case [at]:
            return len(long) >= LONGER and short[at].isalpha() and long[at].isalpha()
        case [first, second]:
            swapped = short[first] == long[second] and short[second] == long[first]
            return len(long) >= LONG and second == first + 1 and swapped
    return False


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^0-9a-zA-Z]+", name.lower()) if word]


DONE = "done"
"""Key with which a report ends its trial: {"done": True}."""
OneStopRule = Mapping[str, float] | Callable[[str, dict[str, Any]], bool]
"""Bounds such as {"accuracy": 0.99, "training_iteration": 50}: a trial ends when it reaches one of the
bounds. A rule may also be a function (trial_id, result) -> bool, or a `Stopper`.
"""
StopRule = OneStopRule | str | Sequence[OneStopRule | str]
"""One stop rule or the name of a stopper, or several of them; the first rule that applies ends the trial."""


class Stopper(ABC):
    """Base class of all stoppers.

    A stopper receives every report once, in the order of commits. A stopper keeps its state in plain
    attributes; a restore rebuilds this state by replaying the earlier reports. Each `fit` works on a copy of
    the stopper.
    """

    def begin(
        self, space: Any, metric: str | None, mode: str | None, limits: Sequence[Any], seed: int
    ) -> None:
        """Receive the experiment's space, metric, mode, constraints and seed, before the first report."""

    @abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return True to end the trial that reported `result`."""

    def stop_all(self) -> bool:
        """Return True to end the experiment; called after every report."""
        return False

    def reason(self) -> Mapping[str, Any]:
        """Return values, by name, that explain why the stopper returned True.

        These values are stored with the stop.
        """
        return {}

    def on_time(self, elapsed_s: float) -> None:
        """Receive the experiment's running time in seconds; the time between a run and its restore does not
        count.
        """

    @free
    def deadline_s(self) -> float:
        """Running time of the experiment, in seconds, at which `stop_all` is called even without a report."""
        return math.inf


def facts_of(stopper: Stopper) -> Mapping[str, Any]:
    """Return the values by which a stopper explains its last stop; {} if they are not a mapping."""
    facts = meant(type(stopper), Stopper, "reason")(stopper)
    return facts if isinstance(facts, Mapping) else {}


def begin_all(stoppers: Iterable[Stopper], *experiment: Any) -> None:
    """Pass the experiment's search space, metric, mode, constraints and seed to stoppers."""
    for stopper in stoppers:
        meant(type(stopper), Stopper, "begin")(stopper, *experiment)


def tell_time(stopper: Stopper, elapsed_s: float) -> None:
    """Pass the running time of the experiment, in seconds, to a stopper."""
    meant(type(stopper), Stopper, "on_time")(stopper, elapsed_s)


def deadline_of(stopper: Stopper) -> float:
    """Return the running time in seconds at which `stop_all` is called even without a report."""
    found: float = meant(type(stopper), Stopper, "deadline_s").fget(stopper)
    return found


class NoopStopper(Stopper):
    """Stopper that never stops anything."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False


class MaximumIterationStopper(Stopper):
    """Stopper that ends a trial after `max_iter` iterations; iterations before a retry or restore also count.

    Args:
        max_iter: last iteration that a trial reports.
    """

    def __init__(self, max_iter: int) -> None:
        require_whole("max_iter", max_iter, 1)
        self.max_iter = int(max_iter)
        self._last = 0.0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._last = reported(self, "training_iteration", result)
        return self._last >= self.max_iter

    def reason(self) -> Mapping[str, Any]:
        return {"training_iteration": self._last, "max_iter": self.max_iter}


class TimeoutStopper(Stopper):
    """Stopper that ends the experiment after a total running time; the time between a run and its restore
    does not count.

    Args:
        timeout: maximum running time, in seconds or as a timedelta.
    """

    def __init__(self, timeout: float | timedelta) -> None:
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        require_number("timeout", seconds, "seconds above 0", above=0)
        self.timeout = seconds
        self._elapsed_s: float | None = None
        self._since: float | None = None
        """Monotonic time of the first call; used only if the stopper runs outside an experiment."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def on_time(self, elapsed_s: float) -> None:
        self._elapsed_s = elapsed_s

    def stop_all(self) -> bool:
        if self._elapsed_s is not None:
            return self._elapsed_s >= self.timeout
        # Outside an experiment, the stopper's time starts at the first call.
        now = SYSTEM.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self.timeout

    @property
    def deadline_s(self) -> float:
        return self.timeout

    def reason(self) -> Mapping[str, Any]:
        return {"timeout": self.timeout}


class FunctionStopper(Stopper):
    """Stopper that ends a trial when a function returns True.

    Args:
        function: function (trial_id, result) -> bool that returns True to end the trial.
    """

    def __init__(self, function: Callable[[str, dict[str, Any]], bool]) -> None:
        require(
            callable(function) and not isinstance(function, (Stopper, type)),
            f"function={function!r}: give a function (trial_id, result) -> bool",
        )
        self.function = function

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return bool(self.function(trial_id, result))

    def reason(self) -> Mapping[str, Any]:
        return {"function": getattr(self.function, "__qualname__", type(self.function).__qualname__)}


class CombinedStopper(Stopper):
    """Stopper that combines several stoppers, each of which can end the trial or the experiment.

    Args:
        stoppers: stoppers to combine. All stoppers receive every report; the reason names the first stopper
            that returns True.
    """

    def __init__(self, *stoppers: Stopper) -> None:
        for stopper in stoppers:
            if not isinstance(stopper, Stopper):
                raise TuneArgumentError(
                    f"CombinedStopper({stopper!r}) is not a Stopper: wrap a function in a FunctionStopper, "
                    "or give RunConfig(stop=[...]) a list, which takes all forms"
                )
        self.stoppers = stoppers
        self._said_so: Stopper | None = None

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self._any([stopper(trial_id, result) for stopper in self.stoppers])

    def stop_all(self) -> bool:
        return self._any([stopper.stop_all() for stopper in self.stoppers])

    def _any(self, answers: Sequence[bool]) -> bool:
        for stopper, answer in zip(self.stoppers, answers, strict=True):
            if answer:
                self._said_so = stopper
                return True
        return False

    def reason(self) -> Mapping[str, Any]:
        if self._said_so is None:
            return {}
        return {"stopper": type(self._said_so).__name__, **facts_of(self._said_so)}

    def begin(self, *experiment: Any) -> None:
        begin_all(self.stoppers, *experiment)

    def on_time(self, elapsed_s: float) -> None:
        for stopper in self.stoppers:
            tell_time(stopper, elapsed_s)

    @property
    def deadline_s(self) -> float:
        return min(map(deadline_of, self.stoppers), default=math.inf)


def reported(stopper: Stopper, metric: str, result: Mapping[str, Any]) -> float:
    """Return the number that `result` reports as `metric`; raise MetricError if there is no such number."""
    value = lookup(result, metric)
    if value is None:
        raise MetricError(f"{type(stopper).__name__} waits for {missing_metric(metric, [result])}")
    if not is_number(value):
        raise MetricError(f"{type(stopper).__name__} waits for a number as {metric!r}, which is {value!r}")
    return float(value)


_OWN = "MaximumIterationStopper TimeoutStopper FunctionStopper"
STOPPERS = Registry("stopper", {name: f"{__name__}:{name}" for name in _OWN.split()})
"""Registry with the stoppers of trainkit; other packages add their stoppers by entry points."""

_STOPPER, _SEVERAL = "$stopper", "$several"


def describe_stop(rule: StopRule | None) -> Any:
    """Return `rule` as dictionaries and lists; the user's functions and stopper classes stay objects."""
    if isinstance(rule, (list, tuple)):
        return {_SEVERAL: [describe_stop(each) for each in rule]}
    if isinstance(rule, Mapping):
        return dict(rule)
    if type(rule) is CombinedStopper:
        return {_STOPPER: ["CombinedStopper", [describe_stop(each) for each in rule.stoppers]]}
    if isinstance(rule, Stopper) and STOPPERS.find(type(rule).__name__) is type(rule):
        return {_STOPPER: [type(rule).__name__, arguments_of(rule)]}
    return rule


def stop_of(described: Any) -> Any:
    """Return the stop rule of a description by `describe_stop`, which must not contain the user's objects."""
    match described:
        case {"$several": [*rules]}:
            return [stop_of(each) for each in rules]
        case {"$stopper": ["CombinedStopper", [*inner]]}:
            return CombinedStopper(*map(stop_of, inner))
        case {"$stopper": [str(name), dict(arguments)]}:
            return STOPPERS.get(name)(**arguments)
    return described
