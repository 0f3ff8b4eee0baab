"""Conformance suite of schedulers: tests that every scheduler must pass, in simulated experiments."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partialmethod
from itertools import pairwise
from typing import Any

import pytest
from numpy.random import Generator

from trainkit import tune
from trainkit.tune.controller.events import ResultAdded
from trainkit.tune.core.checks import NOT_KEPT
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import TrialScheduler

SPACE = {"x": tune.uniform(0, 1), "cost": tune.uniform(0.5, 2)}

Make = Callable[[], TrialScheduler]


def objective(config: Mapping[str, Any], training_iteration: int, rng: Generator) -> dict[str, Any]:
    """Return a report with a noisy, falling loss; the trial is done at its twelfth report."""
    loss = config["x"] / training_iteration + 0.05 * rng.normal()
    return {"loss": loss, "time_this_iter_s": config["cost"], "done": training_iteration == 12}


def simulated(scheduler: TrialScheduler, *, samples: int = 14, stop: Any = None, **settings: Any) -> Any:
    """Return a simulated experiment on several workers, with stragglers and failures."""
    return tune.simulate(
        objective,
        SPACE,
        tune.TuneConfig(
            metric="loss", mode="min", num_samples=samples, scheduler=scheduler, search_alg="random"
        ),
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


class Ticking(tune.Stopper):
    """Stopper that never stops a trial, but often requests to be called again after a time."""

    def __init__(self) -> None:
        self._next = 0.37

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def on_time(self, elapsed_s: float) -> None:
        self._next = elapsed_s + 0.37

    @property
    def deadline_s(self) -> float:
        return self._next


def remade(scheduler: TrialScheduler) -> TrialScheduler:
    """Return a new scheduler with the same arguments, as a restored experiment would make it."""
    arguments: dict[str, Any] = {
        name: remade(value) if isinstance(value, TrialScheduler) else value
        for name, value in scheduler.arguments.items()
    }
    return type(scheduler)(**arguments)


class Rebuilt(TrialScheduler):
    """Scheduler that is replaced before call number `at` by a new scheduler, which receives all earlier
    calls.
    """

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
        super().set_search_properties(metric, mode, rng, total_samples)
        self.settings = (metric, mode, total_samples)
        self.inner.set_search_properties(metric, mode, rng, total_samples)

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
        return self._ask(name, *args)

    def _ask(self, name: str, *args: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*args, **named)

    def _rebuild(self) -> None:
        metric, mode, total = self.settings
        inner = remade(self.inner)
        inner.set_search_properties(metric, mode, scheduler_generator(5), total)
        inner.take_space(self.space)
        for name, args in self.told:
            getattr(inner, name)(*args)
            inner.verdicts()
        inner.see(self.view)
        self.inner = inner

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Any:
        raise AssertionError(f"{self.label} decides by `on_result`, which is passed on: call that")


_TOLD = (
    "on_begin on_trial_add on_result on_trial_complete on_trial_error on_trial_resume on_trial_change "
    "on_trial_request on_no_more_trials resize"
)
for _name in _TOLD.split():
    setattr(Rebuilt, _name, partialmethod(Rebuilt._tell, _name))
for _name in ("completed_space", "why_not_chosen", "verdicts", "choose_trial_to_run"):
    setattr(Rebuilt, _name, partialmethod(Rebuilt._ask, _name))


def attempts(results: tune.Simulation) -> Iterator[tuple[Any, Any, Any, list[Mapping[str, Any]]]]:
    """Yield for each attempt its result, its record, its time span, and the reports made in it."""
    made: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for record in results._store.records:
        if isinstance(record, ResultAdded):
            made[record.trial.trial_id, record.attempt].append(record.metrics)
    spans = {(span.trial_id, span.attempt): span for span in results.timeline}
    for result in results:
        for attempt in result.attempts:
            key = result.trial_id, attempt.number
            yield result, attempt, spans[key], made[key]


class SchedulerSuite:
    """Tests that every scheduler must pass. A subclass defines a method that creates the scheduler."""

    def make_scheduler(self) -> TrialScheduler:
        """Return a new scheduler that minimizes `loss` over 12 reports, counted by `training_iteration`."""
        raise NotImplementedError(f"{type(self).__name__} must define `make_scheduler`")

    @pytest.fixture
    def make(self) -> Make:
        """Return the function that creates the scheduler; override this to test several schedulers."""
        return self.make_scheduler

    def test_it_is_made_again_from_its_arguments(self, make: Make) -> None:
        scheduler = make()
        lacking = [name for name, value in scheduler.arguments.items() if value is NOT_KEPT]
        assert not lacking, (
            f"{type(scheduler).__name__} has no attributes for its arguments {lacking}, so a restore "
            "can't recreate the scheduler: store each argument in an attribute of its name, or "
            "define the property `arguments`"
        )
        remade(scheduler)

    def test_the_same_seed_gives_the_same_log(self, make: Make) -> None:
        first, again, other = simulated(make()), simulated(make()), simulated(make(), seed=6)
        assert list(first.log()) == list(again.log())
        assert first.log_hash == again.log_hash != other.log_hash

    def test_that_nothing_but_time_passes_changes_nothing(self, make: Make) -> None:
        assert list(simulated(make(), stop=Ticking()).log()) == list(simulated(make()).log())

    def test_one_that_is_told_all_again_goes_on_in_the_same_way(self, make: Make) -> None:
        whole = list(simulated(make()).log())
        for at in range(0, 160, 19):
            assert list(simulated(Rebuilt(make(), at)).log()) == whole, f"rebuilt at call {at}"

    @pytest.mark.parametrize("resume", [True, False])
    def test_nothing_is_lost(self, make: Make, resume: bool) -> None:
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

        # The iterations of an attempt take up its whole time. Only an attempt that failed or was interrupted
        # may end with an iteration that was not reported.
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

    @pytest.mark.parametrize("workers", [1, 3, 32])
    def test_every_trial_ends(self, make: Make, workers: int) -> None:
        results = simulated(make(), workers=workers, horizon_s=None, failures=0.05)
        assert {str(result.status) for result in results} <= {"TERMINATED", "ERROR"}
