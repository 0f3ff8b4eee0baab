"""Base classes of searchers, and results that were evaluated elsewhere.

An experiment's file does not store its searcher. A restore rebuilds the searcher by replaying its suggestions
and the results that it received. Suggestion n draws from its own generator, made from the seed and n. The
number of known results can therefore change what a model proposes, but not the random draws.
"""

from __future__ import annotations

import copy
import math
import numbers
import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, cast

from trainkit.errors import ConfigError
from trainkit.tune.core.checks import (
    call_problem,
    forwarded,
    free,
    is_number,
    meant,
    require,
    require_kind,
    require_mode,
    taken,
)
from trainkit.tune.core.constraints import Constraint
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.objectives import Objective
from trainkit.tune.core.setting_names import setting
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.space.search_space import Space


class FinishedTrial(Protocol):
    """A trial of another experiment, for example a `Result`."""

    @property
    def config(self) -> Mapping[str, Any] | None: ...
    @property
    def metrics(self) -> Mapping[str, Any] | None: ...
    @property
    def error(self) -> Exception | None: ...


@dataclass(frozen=True)
class Evaluated:
    """One evaluated configuration and its result.

    Attributes:
        parameters: the configuration.
        value: final value of the metric. None becomes NaN, and is accepted only if `error` or `pruned` is
            True.
        error: True if the trial failed.
        pruned: True if the trial was stopped early.
        intermediate_values: values of the metric, by iteration from 0.

    Raises:
        ConfigError: the value is not a number.
    """

    parameters: dict[str, Any]
    value: float
    error: bool = False
    pruned: bool = False
    intermediate_values: list[float] | None = None

    def __post_init__(self) -> None:
        is_value = isinstance(self.value, numbers.Real)
        require(
            is_value or self.error or self.pruned,
            f"add_evaluated_point({self.parameters!r}, {self.value!r}) needs a number as the metric's value",
        )
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "value", float(self.value) if is_value else math.nan)


def evaluated_of(trials: Iterable[FinishedTrial], metric: str) -> list[Evaluated]:
    """Return the results of another experiment's trials, without trials that never reported `metric`.

    Raises:
        ConfigError: no trial reported `metric` as a number.
    """
    found = []
    for trial in trials:
        value = lookup(trial.metrics or {}, metric)
        if trial.config is not None and is_number(value):
            found.append(Evaluated(dict(trial.config), float(value), error=trial.error is not None))
    if not found:
        raise ConfigError(f"none of these trials reported {metric!r} as a number: correct the metric")
    return found


class FromExperiment(NamedTuple):
    """The settings that a searcher receives from its experiment."""

    space: Space
    num_samples: int = 1
    seed: int = 0
    objectives: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()


class Searcher(ABC):
    """Base of all searchers; extend it to write your own.

    A subclass need not call this constructor. Attributes of a subclass may have any names, because an
    experiment ignores attributes that hide a method or property of this class.

    A subclass must override `suggest`, and may override `on_trial_result` and `on_trial_complete`.
    `set_search_properties` gives the experiment's search space to a searcher that has no own space. A restore
    repeats all calls of the overridden methods. A searcher therefore resumes unchanged if its suggestions
    depend only on its arguments, `self.seed` and the results that it received.

    Args:
        metric: reported value to optimise; None: the TuneConfig's metric.
        mode: "min" or "max"; None: the TuneConfig's mode.
    """

    FINISHED: ClassVar[str] = "FINISHED"
    several: ClassVar[bool] = False
    """True for searchers that accept several objectives."""
    in_units: ClassVar[bool] = False
    """True for searchers that group trials, and whose groups can't replace one trial by another."""
    _metric: str | None = None
    _mode: str | None = None
    _from_experiment = FromExperiment(Space.of(None))

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        for name, value in (("metric", metric), ("mode", mode)):
            require(
                value is None or isinstance(value, str),
                f"{name} must be a string, not {value!r}: {type(self).__name__} optimises one metric",
            )
        require_mode(mode)
        self._metric = metric
        self._mode = mode

    @free
    def space(self) -> Space:
        """The experiment's search space, available once the experiment has begun."""
        return self._from_experiment.space

    @free
    def num_samples(self) -> int:
        """`num_samples` of the TuneConfig."""
        return self._from_experiment.num_samples

    @free
    def seed(self) -> int:
        """Seed of the experiment."""
        return self._from_experiment.seed

    @free
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives, if there are several; `metric` and `mode` are then None."""
        return self._from_experiment.objectives

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        """Receive several objectives, before `begin`.

        Raises:
            ConfigError: the searcher optimises one objective, or has different objectives of its own.
        """
        if not self.several:
            names = [each.metric for each in objectives]
            raise ConfigError(
                f"{type(self).__name__} optimises one metric, but the objectives are {names}: use "
                "OptunaSearch or random search, or set one metric in TuneConfig"
            )
        require(
            self.metric is None and self._from_experiment.objectives in ((), objectives),
            f"{type(self).__name__} and TuneConfig have different metrics: set them in only one of the two",
        )
        self._keep(objectives=objectives)

    @free
    def constraints(self) -> tuple[Constraint, ...]:
        """Constraints on reported values, from the TuneConfig."""
        return self._from_experiment.constraints

    def set_constraints(self, constraints: tuple[Constraint, ...]) -> None:
        """Receive the constraints, before `begin`."""
        self._keep(constraints=constraints)

    @free
    def heeds_constraints(self) -> bool:
        """True if the searcher reads the values of constraints; others get worse losses for violations."""
        return False

    @property
    def metric(self) -> str | None:
        """The reported value to optimise."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """Direction of the search, "min" or "max"."""
        return self._mode

    @free
    def arguments(self) -> dict[str, Any]:
        """Constructor arguments, by name, with which a restore recreates a registered searcher."""
        return {}

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        """Receive the experiment's settings; called once, before the first suggestion.

        Raises:
            ConfigError: the searcher can't search this space.
        """
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        self._keep(space=space, num_samples=num_samples, seed=seed)
        # Searchers that were written for Ray 1.x do not accept `spec`, so only accepted arguments are passed.
        spec = taken(self.set_search_properties, {"num_samples": num_samples, "seed": seed})
        if self.set_search_properties(self._metric, self._mode, space.tree, **spec) is False and (
            space.axes or space.domains
        ):
            raise ConfigError(
                f"{type(self).__name__} and {setting('param_space')} both have a search space: leave only "
                f"constants in {setting('param_space')}"
            )

    def _keep(self, **decided: Any) -> None:
        self._from_experiment = self._from_experiment._replace(**decided)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Receive the search space; called once, before the first suggestion. Subclasses may override it.

        Args:
            metric: metric to optimise; the searcher's own metric, or else the TuneConfig's.
            mode: "min" or "max"; the searcher's own mode, or else the TuneConfig's.
            config: `param_space`, which contains domains such as `tune.uniform(0, 1)` and must not be
                changed.
            spec: `num_samples` and `seed`; later versions may add more.

        Returns:
            False if the searcher already has its own space; `config` may then contain only constants.
        """
        return True

    @free
    def total_samples(self) -> int | None:
        """Upper limit on the number of suggestions; None: unlimited."""
        number = self._from_experiment.num_samples
        return None if number == -1 else number

    @free
    def whole(self) -> bool:
        """True if suggestions are complete configurations;
        False if the constants of `param_space` must be added to a suggestion.
        """
        return False

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration; None: wait for more results; FINISHED: no further suggestions."""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Handle a report of a trial; the metric may be missing or NaN."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Handle the end of a trial, with its last report, or its final failure."""

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        """Handle the scheduler's decision on a trial's last report; not called for CONTINUE without a
        reason.
        """

    def on_pause(self, trial_id: str) -> None:
        """Handle the pause of a trial by the scheduler; the trial may resume later."""

    def on_unpause(self, trial_id: str) -> None:
        """Handle the resumption of a paused trial."""

    @free
    def hears_again(self) -> bool:
        """True if the searcher must also be notified of the second end of a trial that was run again."""
        return False

    # --- repetitions and replays ------------------------------------------------------------------

    def is_drawn(self, trial_id: str) -> bool:
        """Return True if the last suggestion was drawn at random.

        A random suggestion is replaced if it repeats an earlier configuration.

        Return False for configurations from the user's points or from a grid.
        """
        return True

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        """Handle the rejection of the last suggestion; `suggest` is then called again with the same id.

        Args:
            trial_id: id for which the suggestion was made.
            result: last report of the earlier trial with the same configuration. None if the earlier trial
                has no result, or if the rejected configuration is forbidden.
        """
        called(self).on_trial_complete(trial_id, result, error=result is None)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]] | None:
        """Return configurations to try after repeated rejections of suggestions for `trial_id`.

        The iterator ends when no further configurations exist. If the method returns None, the searcher has
        no alternatives, and `suggest` is called again.
        """
        return None

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        """Use `config`, one of the alternatives, as the suggestion for `trial_id`.

        Returns:
            False if the searcher can't use the configuration.
        """
        return False

    def give_up(self, trial_id: str) -> bool:
        """Skip a suggestion for which no new configuration was found; return True if `suggest` may be called
        again.
        """
        return False

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        """Restore the state that the searcher had after `suggest(trial_id)` returned `config`.

        The replay of a suggestion needs less work than the suggestion.

        Args:
            trial_id: id of the trial.
            config: the trial's configuration.
            same_space: False if the configuration comes from a different space than `self.space`.

        Returns:
            `config`, with the original objects in place of the names that the store keeps. None if `suggest`
            must be called again.
        """
        if same_space:
            return None
        self.suggest(trial_id)  # the call only advances the searcher, so its suggestion is discarded
        return config

    def note(self, trial_id: str, config: dict[str, Any]) -> bool:
        """Accept a trial with a configuration that a user added, as if the searcher had suggested the
        configuration.

        Returns:
            False if the searcher can't accept the trial. In this case, the searcher is not notified of the
            trial's results.
        """
        return False

    def knows(self, config: dict[str, Any]) -> bool:
        """Return True if a configuration that a user added belongs to the searcher's own space."""
        return True

    def resize(self, num_samples: int) -> None:
        """Change the total number of samples, including samples already suggested; -1: unlimited."""
        self._keep(num_samples=num_samples)

    def rehearsal(self) -> Searcher:
        """Return a copy that can make suggestions in advance without changing this searcher."""
        return copy.deepcopy(self)

    # --- results from elsewhere -------------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Add a configuration that was evaluated elsewhere; call this before the searcher is used.

        Args:
            parameters: the configuration.
            value: final value of the metric.
            error: True if the trial failed.
            pruned: True if the trial was stopped early.
            intermediate_values: values of the metric, by iteration from 0.

        Raises:
            NotImplementedError: this searcher does not learn from results.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot learn from points evaluated elsewhere")

    def add_evaluated_trials(self, trials: Iterable[FinishedTrial], metric: str) -> None:
        """Add the trials of another experiment: a `ResultGrid`, or a list of `Result`s.

        Trials that never reported `metric` are left out.

        Raises:
            ConfigError: no trial reported `metric` as a number.
            NotImplementedError: this searcher does not learn from results.
        """
        for each in evaluated_of(trials, metric):
            self.add_evaluated_point(each.parameters, each.value, error=each.error)

    def learn_from(
        self, sources: Any, priors: Mapping[str, Any] | None, metric: str | None, mode: str | None
    ) -> list[dict[str, Any]] | None:
        """Learn from earlier experiments and believed values, as in `TuneConfig(learn_from=..., priors=...)`.

        Returns:
            The experiments as plain data, for the experiment's file; None for None.

        Raises:
            ConfigError: this searcher does not support earlier experiments, or an argument is wrong.
        """
        raise ConfigError(
            f"{type(self).__name__} does not support learn_from and priors: use "
            f"{setting('search_alg')}='auto'"
        )

    # --- files for the user -----------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        """Write this object's state to a file.

        A Tuner searches with a copy of its searcher, so the original searcher does not learn from the
        experiment. To continue a search, use `Tuner.restore`, or pass the results to a new searcher by
        `add_evaluated_trials`.
        """
        Path(checkpoint_path).write_bytes(pickle.dumps(vars(self)))

    def restore(self, checkpoint_path: str) -> None:
        """Read a file written by `save`. The file is a pickle, so read only files that you trust."""
        vars(self).update(pickle.loads(Path(checkpoint_path).read_bytes()))

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Receive the limit of an outer `ConcurrencyLimiter`; return False if the limiter must enforce it."""
        return False


_MEANT = frozenset(
    "metric mode set_search_properties suggest on_trial_result add_evaluated_point add_evaluated_trials save "
    "restore set_max_concurrency on_trial_decision on_pause on_unpause is_drawn".split()
)
"""Names of the methods of Ray's Searcher and of the documented interface.

A subclass that defines such a name overrides the method.
"""


class _Called:
    """A proxy for calls to a searcher that ignores attributes of a subclass that hide a method by chance."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        names = ("trial_id", "result", "error")
        self._by_name = call_problem(searcher.on_trial_complete, 0, names) is None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if self._by_name:
            self._searcher.on_trial_complete(trial_id=trial_id, result=result, error=error)
        else:
            self._searcher.on_trial_complete(trial_id, result, error)

    def __getattr__(self, name: str) -> Any:
        if name in _MEANT:
            return getattr(self._searcher, name)
        if name.startswith("__"):  # `copy` looks up special methods before attributes exist
            raise AttributeError(name)
        own = meant(type(self._searcher), Searcher, name)
        if isinstance(own, bool):
            return own
        return own.fget(self._searcher) if hasattr(own, "fget") else partial(own, self._searcher)


def called(searcher: Searcher) -> Searcher:
    """Return a proxy for calls to a searcher that ignores unrelated attributes of a subclass."""
    return cast("Searcher", _Called(searcher))


@forwarded(
    "_inner",
    Searcher,
    "objectives set_objectives heeds_constraints metric mode total_samples whole "
    "suggest on_trial_result on_trial_complete "
    "on_trial_decision on_pause on_unpause hears_again is_drawn on_rejected alternatives take give_up note "
    "knows replay add_evaluated_point learn_from save restore",
)
class SearcherWrapper(Searcher):
    """Base of searchers that wrap a different searcher.

    Raises:
        ConfigError: `searcher` is not a searcher.
    """

    def __init__(self, searcher: Searcher) -> None:
        require_kind("searcher", searcher, Searcher, "trainkit.tune.search.BasicVariantGenerator()")
        super().__init__(searcher.metric, searcher.mode)
        self.searcher = searcher
        self._inner = called(searcher)

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        self._keep(space=space, num_samples=num_samples, seed=seed)
        self._inner.begin(space, metric=metric, mode=mode, num_samples=num_samples, seed=seed)

    def set_constraints(self, constraints: tuple[Constraint, ...]) -> None:
        self._keep(constraints=constraints)
        self._inner.set_constraints(constraints)

    def resize(self, num_samples: int) -> None:
        self._keep(num_samples=num_samples)
        self._inner.resize(num_samples)

    def rehearsal(self) -> Searcher:
        twin = copy.copy(self)
        twin.searcher = self._inner.rehearsal()
        twin._inner = called(twin.searcher)
        return copy.deepcopy(twin)
