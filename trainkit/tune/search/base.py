"""Base classes of searchers, and results that were evaluated elsewhere.

A searcher is rebuilt by replaying what it suggested and what it was told, so it keeps no file. Suggestion n
draws from a generator of its own, made from the seed and n: the number of results that were known when it was
asked changes what a model proposes, never what chance gives.
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
    setting,
    taken,
)
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.objectives import Objective
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.space.search_space import Space


class FinishedTrial(Protocol):
    """A trial of another experiment, as a `Result` is one."""

    @property
    def config(self) -> Mapping[str, Any] | None: ...
    @property
    def metrics(self) -> Mapping[str, Any] | None: ...
    @property
    def error(self) -> Exception | None: ...


@dataclass(frozen=True)
class Evaluated:
    """One configuration and what it came to.

    Attributes:
        parameters: the configuration.
        value: of the metric; None will do for one that failed or was stopped, and is then NaN.
        error: it failed.
        pruned: it was stopped early.
        intermediate_values: of the metric, by iteration from 0.

    Raises:
        ConfigError: the value is no number.
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
            f"add_evaluated_point({self.parameters!r}, {self.value!r}): give the value of the metric, a "
            "number",
        )
        object.__setattr__(self, "parameters", dict(self.parameters))
        object.__setattr__(self, "value", float(self.value) if is_value else math.nan)


def evaluated_of(trials: Iterable[FinishedTrial], metric: str) -> list[Evaluated]:
    """Return what trials of another experiment came to; those that never reported `metric` are left out.

    Raises:
        ConfigError: none reported it as a number.
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
    """What an experiment decides for its searcher."""

    space: Space
    num_samples: int = 1
    seed: int = 0
    objectives: tuple[Objective, ...] = ()


class Searcher(ABC):
    """Base of all searchers; extend it to bring your own.

    A subclass need not call our constructor, and may have attributes of any name: an experiment reads the
    properties of the class.

    `suggest` must be overridden, `on_trial_result` and `on_trial_complete` may be; `set_search_properties`
    takes the search space where the searcher has none of its own. A restore calls them as they were called
    before, so a searcher whose suggestions follow from its arguments, `self.seed` and what it is told goes
    on as if nothing had happened.

    Args:
        metric: reported value to optimise; None: the TuneConfig's.
        mode: "min" or "max"; None: the TuneConfig's.
    """

    FINISHED: ClassVar[str] = "FINISHED"
    several: ClassVar[bool] = False
    """True for searchers that take several objectives."""
    in_units: ClassVar[bool] = False
    """True for searchers whose trials belong together, so that none can take the place of another."""
    _metric: str | None = None
    _mode: str | None = None
    _from_experiment = FromExperiment(Space.of(None))

    def __init__(self, metric: str | None = None, mode: str | None = None) -> None:
        for name, value in (("metric", metric), ("mode", mode)):
            require(
                value is None or isinstance(value, str),
                f"{name}={value!r}: {type(self).__name__} optimises one metric",
            )
        require_mode(mode)
        self._metric = metric
        self._mode = mode

    @free
    def space(self) -> Space:
        """The experiment's search space, once it has begun."""
        return self._from_experiment.space

    @free
    def num_samples(self) -> int:
        """The TuneConfig's."""
        return self._from_experiment.num_samples

    @free
    def seed(self) -> int:
        """Of the experiment."""
        return self._from_experiment.seed

    @free
    def objectives(self) -> tuple[Objective, ...]:
        """Return the objectives if there are several; `metric` and `mode` are then None."""
        return self._from_experiment.objectives

    def set_objectives(self, objectives: tuple[Objective, ...]) -> None:
        """Take several objectives, before `begin`.

        Raises:
            ConfigError: it optimises one, or has others of its own.
        """
        if not self.several:
            names = [each.metric for each in objectives]
            raise ConfigError(
                f"{type(self).__name__} optimises one metric, and the objectives are {names}: take "
                "OptunaSearch, or random search, or name one metric in the TuneConfig"
            )
        require(
            self.metric is None and self._from_experiment.objectives in ((), objectives),
            f"{type(self).__name__} and TuneConfig name different metrics: give them in one place",
        )
        self._keep(objectives=objectives)

    @property
    def metric(self) -> str | None:
        """The reported value to optimise."""
        return self._metric

    @property
    def mode(self) -> str | None:
        """Return "min" or "max"."""
        return self._mode

    @free
    def arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments that make this searcher again; for searchers of trainkit."""
        return {}

    def begin(
        self, space: Space, *, metric: str | None, mode: str | None, num_samples: int, seed: int
    ) -> None:
        """Take what the experiment decides; called once, before the first suggestion.

        Raises:
            ConfigError: the searcher can't search this space.
        """
        self._metric = self._metric or metric
        self._mode = self._mode or mode
        self._keep(space=space, num_samples=num_samples, seed=seed)
        # Searchers of Ray 1.x know of no `spec`.
        spec = taken(self.set_search_properties, {"num_samples": num_samples, "seed": seed})
        if self.set_search_properties(self._metric, self._mode, space.tree, **spec) is False and (
            space.axes or space.domains
        ):
            raise ConfigError(
                f"{type(self).__name__} has a search space of its own, and {setting('param_space')} has "
                f"another: leave only constants in {setting('param_space')}"
            )

    def _keep(self, **decided: Any) -> None:
        self._from_experiment = self._from_experiment._replace(**decided)

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Take the search space: called once, before the first suggestion; override it at will.

        Args:
            metric: what to optimise: the searcher's own, or else the TuneConfig's.
            mode: the same.
            config: `param_space`, with domains such as `tune.uniform(0, 1)` in it; don't change it.
            spec: `num_samples` and `seed`; more may come.

        Returns:
            False if the searcher has a space already, so that `config` may hold constants only.
        """
        return True

    @free
    def total_samples(self) -> int | None:
        """How many suggestions there will be at most; None: no end."""
        number = self._from_experiment.num_samples
        return None if number == -1 else number

    @free
    def whole(self) -> bool:
        """True if suggestions are whole configurations; False: constants of `param_space` are added."""
        return False

    @abstractmethod
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next configuration; None: none before more results come; FINISHED: none any more."""

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A trial has reported; the metric may be missing, or NaN."""

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """A trial has ended with this last report, or has failed for good."""

    def on_trial_decision(self, trial_id: str, result: dict[str, Any], decision: Decision) -> None:
        """The scheduler has judged the report that was told last, and had a reason; whatever it decided."""

    def on_pause(self, trial_id: str) -> None:
        """The scheduler has paused a trial, which may go on later."""

    def on_unpause(self, trial_id: str) -> None:
        """A paused trial goes on."""

    @free
    def hears_again(self) -> bool:
        """True if a trial may end once more, as one that a restore goes on with does; False: not told."""
        return False

    # --- repetitions and replays ------------------------------------------------------------------

    def is_drawn(self, trial_id: str) -> bool:
        """True if the suggestion just made was drawn, so that another will do where it was made before.

        False for what the user has asked for as it is: points, a grid.
        """
        return True

    def on_rejected(self, trial_id: str, result: dict[str, Any] | None) -> None:
        """The suggestion just made will not be run; `suggest` is called again, with another id.

        Args:
            trial_id: that it was made for.
            result: last report of the trial that had the same configuration; None: there is none, or the
                configuration is forbidden.
        """
        called(self).on_trial_complete(trial_id, result, error=result is None)

    def alternatives(self, trial_id: str) -> Iterator[dict[str, Any]] | None:
        """Configurations to try in place of suggestions for `trial_id` that were rejected again and again.

        They end where there are no others; None: it knows of none, and is asked for suggestions once more.
        """
        return None

    def take(self, trial_id: str, config: dict[str, Any]) -> bool:
        """Take `config`, of the alternatives, for the suggestion that was made for `trial_id`.

        Returns:
            False if the searcher can't.
        """
        return False

    def give_up(self, trial_id: str) -> bool:
        """No suggestion for `trial_id` will do; return True if it is worth asking for one all the same."""
        return False

    def replay(
        self, trial_id: str, config: dict[str, Any], *, same_space: bool = True
    ) -> dict[str, Any] | None:
        """In a restore: be as after `suggest(trial_id)` had returned `config`, without the work.

        Args:
            trial_id: of the trial.
            config: that it has.
            same_space: False: it was drawn from another space than `self.space`.

        Returns:
            `config`, with the objects of which the store holds only the names; None: ask for it again.
        """
        if same_space:
            return None
        self.suggest(trial_id)  # takes the place of the one that there was
        return config

    def note(self, trial_id: str, config: dict[str, Any]) -> bool:
        """A trial runs with a configuration that a user has added: take it in as if it were a suggestion.

        Returns:
            False if the searcher can't; then it is told nothing of this trial.
        """
        return False

    def knows(self, config: dict[str, Any]) -> bool:
        """Return True if a configuration that a user adds is one of the searcher's own space."""
        return True

    def resize(self, num_samples: int) -> None:
        """Suggest so many from now on, counting those of before; -1: without end."""
        self._keep(num_samples=num_samples)

    def rehearsal(self) -> Searcher:
        """A copy to be asked beforehand, which leaves no trace outside itself."""
        return copy.deepcopy(self)

    # --- what is known from elsewhere -------------------------------------------------------------

    def add_evaluated_point(
        self,
        parameters: dict[str, Any],
        value: float,
        error: bool = False,
        pruned: bool = False,
        intermediate_values: list[float] | None = None,
    ) -> None:
        """Tell of a configuration that was evaluated elsewhere; call it before the searcher is used.

        Args:
            parameters: the configuration.
            value: of the metric.
            error: it failed.
            pruned: it was stopped early.
            intermediate_values: of the metric, by iteration from 0.

        Raises:
            NotImplementedError: this searcher learns nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} learns nothing from points evaluated elsewhere")

    def add_evaluated_trials(self, trials: Iterable[FinishedTrial], metric: str) -> None:
        """Tell of the trials of another experiment: a `ResultGrid`, or a list of `Result`s.

        Those that never reported `metric` are left out.

        Raises:
            ConfigError: none reported `metric` as a number.
            NotImplementedError: this searcher learns nothing.
        """
        for each in evaluated_of(trials, metric):
            self.add_evaluated_point(each.parameters, each.value, error=each.error)

    # --- files of the user's ----------------------------------------------------------------------

    def save(self, checkpoint_path: str) -> None:
        """Write this object's state to a file.

        A Tuner searches with a copy, so what an experiment has taught is not in this object: go on with
        `Tuner.restore`, or hand its results to another searcher by `add_evaluated_trials`.
        """
        Path(checkpoint_path).write_bytes(pickle.dumps(vars(self)))

    def restore(self, checkpoint_path: str) -> None:
        """Read what `save` wrote; a pickle, so only from a file that you trust."""
        vars(self).update(pickle.loads(Path(checkpoint_path).read_bytes()))

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Limit the trials at once, for a `ConcurrencyLimiter` around; False: the limiter does it itself."""
        return False


_MEANT = frozenset(
    "metric mode set_search_properties suggest on_trial_result add_evaluated_point add_evaluated_trials save "
    "restore set_max_concurrency on_trial_decision on_pause on_unpause is_drawn".split()
)
"""Names of Ray's Searcher and of our documentation's, which mean the same in every subclass."""


class _Called:
    """A searcher as an experiment calls it: names that mean something else in its class are left alone."""

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._own: dict[str, Any] = {}
        names = ("trial_id", "result", "error")
        self._by_name = call_problem(searcher.on_trial_complete, 0, names) is None

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        if self._by_name:
            self._searcher.on_trial_complete(trial_id=trial_id, result=result, error=error)
        else:
            self._searcher.on_trial_complete(trial_id, result, error)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_own": {}}  # properties can't be copied

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a copy asks for these
            raise AttributeError(name)
        if name in _MEANT:
            return getattr(self._searcher, name)
        if name not in self._own:
            self._own[name] = meant(type(self._searcher), Searcher, name)
        own = self._own[name]
        if isinstance(own, bool):
            return own
        return own.fget(self._searcher) if hasattr(own, "fget") else partial(own, self._searcher)


def called(searcher: Searcher) -> Searcher:
    """Return a searcher as an experiment calls it, whatever else a subclass has under the same names."""
    return cast("Searcher", _Called(searcher))


@forwarded(
    "_inner",
    Searcher,
    "objectives set_objectives metric mode total_samples whole suggest on_trial_result on_trial_complete "
    "on_trial_decision on_pause on_unpause hears_again is_drawn on_rejected alternatives take give_up note "
    "knows replay add_evaluated_point save restore",
)
class SearcherWrapper(Searcher):
    """Base of searchers that hold another, as `searcher`.

    Raises:
        ConfigError: it is not a searcher.
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

    def resize(self, num_samples: int) -> None:
        self._keep(num_samples=num_samples)
        self._inner.resize(num_samples)

    def rehearsal(self) -> Searcher:
        twin = copy.copy(self)
        twin.searcher = self._inner.rehearsal()
        twin._inner = called(twin.searcher)
        return copy.deepcopy(twin)
