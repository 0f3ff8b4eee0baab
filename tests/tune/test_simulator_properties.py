"""Properties 27 to 30: what holds of every scheduler in a simulated experiment."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pytest
from numpy.random import Generator

from trainkit import tune
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import (
    PB2,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandForBOHB,
    HyperBandScheduler,
    MedianStoppingRule,
    ParetoScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
    TrialScheduler,
)

SPACE = {"x": tune.uniform(0, 1), "cost": tune.uniform(0.5, 2)}


def more_later(controller: Any, trial: Any, result: Mapping[str, Any], scheduler: Any) -> dict[str, float]:
    """Two workers from the second report on, if there are two."""
    return {"cpu": 1 if result["training_iteration"] == 1 else min(2, controller.get_num_cpus())}


SCHEDULERS: dict[str, Callable[[], TrialScheduler]] = {
    "fifo": FIFOScheduler,
    "stopping": lambda: ASHAScheduler(max_t=9, reduction_factor=3),
    "stopping in brackets": lambda: ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    "promotion": lambda: ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
    "promotion with an end": lambda: ASHAScheduler(
        max_t=9, reduction_factor=99, type="promotion", finish=True
    ),
    "promotion in brackets": lambda: ASHAScheduler(max_t=9, reduction_factor=3, type="promotion", brackets=3),
    "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
    "hyperband for BOHB": lambda: HyperBandForBOHB(max_t=9, reduction_factor=3),
    "PBT": lambda: PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}
    ),
    "synchronous PBT": lambda: PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        synch=True,
    ),
    "PB2": lambda: PB2("training_iteration", perturbation_interval=6, hyperparam_bounds={"x": [0, 1]}),
    "median": lambda: MedianStoppingRule("training_iteration", grace_period=2),
    "median in turns": lambda: MedianStoppingRule(
        "training_iteration", grace_period=2, min_time_slice=2, hard_stop=False
    ),
    "resources": lambda: ResourceChangingScheduler(ASHAScheduler(max_t=9, reduction_factor=3), more_later),
    "resources and promotion": lambda: ResourceChangingScheduler(
        ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"), more_later
    ),
    "several objectives": lambda: ParetoScheduler(
        metric=["loss", "time_this_iter_s"], mode=["min", "min"], max_t=9
    ),
}

every_scheduler = pytest.mark.parametrize("make", SCHEDULERS.values(), ids=SCHEDULERS)


def objective(config, training_iteration, rng):
    loss = config["x"] / training_iteration + 0.05 * rng.normal()
    return {"loss": loss, "time_this_iter_s": config["cost"], "done": training_iteration == 12}


def simulated(scheduler: TrialScheduler, *, samples: int = 14, stop: Any = None, **settings: Any) -> Any:
    return tune.simulate(
        objective,
        SPACE,
        tune.TuneConfig(metric="loss", mode="min", num_samples=samples, scheduler=scheduler),
        **{
            "workers": 4,
            "seed": 5,
            "stragglers": 0.4,
            "failures": 0.02,
            "horizon_s": 60.0,
            "run_config": tune.RunConfig(stop=stop, failure_config=tune.FailureConfig(max_failures=2)),
            **settings,
        },
    )


RULES: dict[str, set[str]] = {
    "fifo": set(),
    "stopping": {"rung", "max_t"},
    "stopping in brackets": {"rung", "max_t"},
    "promotion": {"rung", "max_t", "not chosen"},
    "promotion with an end": {"rung", "finish", "max_t", "not chosen"},
    "promotion in brackets": {"rung", "max_t", "not chosen"},
    "hyperband": {"milestone", "rung", "max_t"},
    "hyperband for BOHB": {"milestone", "rung", "max_t"},
    "PBT": {"population", "exploit", "turn"},
    "synchronous PBT": {"barrier", "exploit", "turn"},
    "PB2": {"population", "exploit", "turn"},
    "median": {"median"},
    "median in turns": {"median", "time slice", "losers last"},
    "resources": {"resources", "rung", "max_t"},
    "resources and promotion": {"resources", "rung", "max_t", "not chosen"},
    "several objectives": {"rung", "max_t"},
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_does_here_what_it_is_for(name):  # so that what follows holds of something
    assert {decision["rule"] for decision in simulated(SCHEDULERS[name]()).decisions()} == RULES[name]


@every_scheduler
def test_the_same_seed_gives_the_same_log(make):  # property 27
    first, again, other = simulated(make()), simulated(make()), simulated(make(), seed=6)
    assert list(first.log()) == list(again.log())
    assert first.log_hash == again.log_hash != other.log_hash


class Ticking(tune.Stopper):
    """Ends nothing, and wants to be asked all the time."""

    def __init__(self) -> None:
        self._next = 0.37

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def on_time(self, elapsed_s: float) -> None:
        self._next = elapsed_s + 0.37

    @property
    def deadline_s(self) -> float:
        return self._next


@every_scheduler
def test_that_nothing_but_time_passes_changes_nothing(make):  # property 27
    assert list(simulated(make(), stop=Ticking()).log()) == list(simulated(make()).log())


class Rebuilt(TrialScheduler):
    """At the k-th call, in place of the scheduler, one that was made anew and told the same."""

    needs_metric = False

    def __init__(self, inner: TrialScheduler, at: int) -> None:
        super().__init__(inner.time_attr)
        self.inner, self.at = inner, at
        self.label = inner.label  # type: ignore[misc]
        self.settings: tuple[Any, ...] = ()
        self.space: Any = None
        self.view: Any = None
        self.told: list[tuple[str, tuple[Any, ...]]] = []

    @property
    def arguments(self) -> dict[str, Any]:
        return {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        super().set_search_properties(metric, mode, rng)
        self.settings = (metric, mode, total_samples)
        self.inner.set_search_properties(metric, mode, rng, total_samples)

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.inner.completed_space(space)

    def take_space(self, space: Any) -> None:
        self.space = space
        self.inner.take_space(space)

    def see(self, view: Any) -> None:
        self.view = view
        self.inner.see(view)

    def _tell(self, name: str, *args: Any) -> Any:
        if len(self.told) == self.at:
            self._rebuild()
        self.told.append((name, copy.deepcopy(args)))
        return getattr(self.inner, name)(*args)

    def _rebuild(self) -> None:
        metric, mode, total = self.settings
        inner = type(self.inner)(**self.inner.arguments)
        inner.set_search_properties(metric, mode, scheduler_generator(5), total)
        inner.take_space(self.space)
        for name, args in self.told:
            getattr(inner, name)(*args)
            inner.verdicts()
        inner.see(self.view)
        self.inner = inner

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Any:
        raise NotImplementedError

    def on_begin(self) -> None:
        self._tell("on_begin")

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = {}) -> None:
        self._tell("on_trial_add", trial_id, config)

    def on_result(self, trial_id: str, result: Mapping[str, Any]) -> Any:
        return self._tell("on_result", trial_id, result)

    def on_trial_complete(self, trial_id: str) -> None:
        self._tell("on_trial_complete", trial_id)

    def on_trial_error(self, trial_id: str) -> None:
        self._tell("on_trial_error", trial_id)

    def on_trial_resume(self, trial_id: str) -> Any:
        return self._tell("on_trial_resume", trial_id)

    def on_trial_change(self, trial_id: str, config: Mapping[str, Any], donor: str | None = None) -> None:
        self._tell("on_trial_change", trial_id, config, donor)

    def on_trial_request(self, trial_id: str, request: Any, before: Any) -> None:
        self._tell("on_trial_request", trial_id, request, before)

    def why_not_chosen(self, trial_id: str) -> Mapping[str, Any]:
        return self.inner.why_not_chosen(trial_id)

    def on_no_more_trials(self) -> None:
        self._tell("on_no_more_trials")

    def verdicts(self) -> Any:
        return self.inner.verdicts()

    def choose_trial_to_run(self, pending: Any, paused: Any = (), *, new: bool = False) -> Any:
        return self.inner.choose_trial_to_run(pending, paused, new=new)


@every_scheduler
def test_one_that_is_told_all_again_goes_on_in_the_same_way(make):  # property 28
    whole = list(simulated(make()).log())
    for at in range(0, 160, 19):
        assert list(simulated(Rebuilt(make(), at)).log()) == whole, f"rebuilt at call {at}"


@every_scheduler
@pytest.mark.parametrize("resume", [True, False])
def test_nothing_is_lost(make, resume):  # property 29
    results = simulated(make(), resume=resume)
    free_since: dict[int, float] = defaultdict(float)
    idle = 0.0
    for span in sorted(results.timeline, key=lambda span: (span.started, span.ended)):
        worker = span.place[1]
        assert 0 <= worker < results.workers
        assert span.started >= free_since[worker], "two attempts on one worker"
        idle += span.started - free_since[worker]
        free_since[worker] = span.ended
    idle += sum(results.ended_s - free_since[worker] for worker in range(results.workers))
    assert results.busy_s + idle == pytest.approx(results.workers * results.ended_s)

    # Each attempt's iterations fill it, up to what failed or was cut before it was reported.
    reports = 0
    for result, attempt, span, made in attempts(results):
        reports += len(made)
        spent = sum(report["time_this_iter_s"] for report in made)
        if span.outcome in ("failed", "cut"):
            assert spent <= span.ended - span.started + 1e-9
        else:
            assert spent == pytest.approx(span.ended - span.started)
        iterations = [report["training_iteration"] for report in made]
        assert all(later == earlier + 1 for earlier, later in pairwise(iterations)), result
        assert not made or iterations[0] == attempt.iteration + 1
    assert reports == results.work


def attempts(results: tune.Simulation) -> Iterator[tuple[Any, Any, Any, list[dict[str, Any]]]]:
    """Each attempt with its span, and its own reports."""
    made = defaultdict(list)
    for record in results._store.records:
        if type(record).__name__ == "ResultAdded":
            made[record.trial.trial_id, record.attempt].append(record.metrics)
    spans = {(span.trial_id, span.attempt): span for span in results.timeline}
    for result in results:
        for attempt in result.attempts:
            key = result.trial_id, attempt.number
            yield result, attempt, spans[key], made[key]


def test_one_worker_takes_as_long_as_all_that_it_does():  # property 30
    results = simulated(FIFOScheduler(), workers=1, stragglers=0.0, failures=0.0, horizon_s=None)
    durations = [12 * result.config["cost"] for result in results]
    assert results.ended_s == pytest.approx(math.fsum(durations))
    assert results.utilisation == pytest.approx(1.0)


@every_scheduler
@pytest.mark.parametrize("workers", [1, 3, 32])
def test_every_trial_ends(make, workers):  # property 16, for every scheduler
    results = simulated(make(), workers=workers, horizon_s=None, failures=0.05)
    assert {str(result.status) for result in results} <= {"TERMINATED", "ERROR"}
