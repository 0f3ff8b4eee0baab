"""Ways to share out what is free among the trials that run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.errors import ConfigError
from trainkit.plugins.compat.resource_changing import (
    DistributeResources,
    DistributeResourcesToTopJob,
)
from trainkit.tune.core.capacity import ExperimentView, ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Trial, TrialStatus

REPORT = {"training_iteration": 1, "m": 1.0}


class Asking:
    """A scheduler as an allocation function sees it."""

    def __init__(self, base: list[Mapping[str, float]] | None = None) -> None:
        self.base_trial_resources = PlacementGroupFactory(base or [{"CPU": 1}])
        self.metric, self.mode = "m", "max"

    def request_of(self, trial: Trial) -> PlacementGroupFactory:
        return trial.request


def seen(existing: Mapping[str, float], *requests: list[Mapping[str, float]]) -> ExperimentView:
    trials = [
        Trial(str(index), index, {}, str(index), str(index), request=PlacementGroupFactory(request))
        for index, request in enumerate(requests)
    ]
    for trial in trials:
        trial.status, trial.last_result = TrialStatus.RUNNING, {"m": float(trial.index)}
    return ExperimentView(trials, {trial.trial_id: trial for trial in trials}, ResourceLedger(existing))


def cpus(allocate: Any, view: ExperimentView, index: int, **base: Any) -> float | None:
    given = allocate(view, view.get_trials()[index], REPORT, Asking(**base))
    return None if given is None else given.required_resources.get("CPU", 0)


def test_what_does_not_divide_goes_to_who_asks_first_and_no_further():
    view = seen({"CPU": 7}, [{"CPU": 1}], [{"CPU": 1}])
    assert cpus(DistributeResources(), view, 0) == 4
    assert cpus(DistributeResources(), seen({"CPU": 7}, [{"CPU": 4}], [{"CPU": 1}]), 1) == 3


def test_who_has_more_than_a_share_gives_back_but_keeps_what_it_began_with():
    view = seen({"CPU": 8}, [{"CPU": 7}], [{"CPU": 1}], [{"CPU": 1}], [{"CPU": 1}])
    assert cpus(DistributeResources(), view, 0) == 2
    crowded = seen({"CPU": 2}, *[[{"CPU": 1}]] * 5)
    assert cpus(DistributeResources(), crowded, 0) == 1


def test_trials_that_have_ended_leave_theirs():
    view = seen({"CPU": 8}, [{"CPU": 4}], [{"CPU": 4}])
    view.get_trials()[1].status = TrialStatus.TERMINATED
    assert cpus(DistributeResources(), view, 0) == 8


def test_reserve_units_and_limits():
    two = seen({"CPU": 16}, [{"CPU": 1}])
    assert cpus(DistributeResources(reserve_resources={"CPU": 4}), two, 0) == 12
    assert cpus(DistributeResources(increase_by={"cpu": 4}), two, 0) == 13
    assert cpus(DistributeResources(increase_by={"CPU": 4}, increase_by_times=2), two, 0) == 9
    assert cpus(DistributeResources(increase_by_times=2), two, 0) == 16  # goes with increase_by


def test_gpus_and_bundles():
    view = seen({"CPU": 8, "GPU": 4}, [{"CPU": 1, "GPU": 1}], [{"CPU": 1, "GPU": 1}])
    given = DistributeResources()(view, view.get_trials()[0], REPORT, Asking([{"CPU": 1, "GPU": 1}]))
    assert given == PlacementGroupFactory([{"CPU": 1, "GPU": 2}])
    base = [{}, {"CPU": 2}]
    view = seen({"CPU": 8}, base)
    given = DistributeResources(add_bundles=True)(view, view.get_trials()[0], REPORT, Asking(base))
    assert given == PlacementGroupFactory([{}, {"CPU": 2}, {"CPU": 2}, {"CPU": 2}, {"CPU": 2}])
    both = DistributeResources(increase_by={"CPU": 2, "GPU": 1})
    view = seen({"CPU": 9, "GPU": 2}, [{"CPU": 1}])
    given = both(view, view.get_trials()[0], REPORT, Asking())
    assert given == PlacementGroupFactory([{"CPU": 5, "GPU": 2}])


def test_the_best_gets_all_that_is_free_and_others_keep_theirs():
    allocate = DistributeResourcesToTopJob()
    view = seen({"CPU": 8}, [{"CPU": 3}], [{"CPU": 1}], [{"CPU": 1}])
    assert [cpus(allocate, view, index) for index in range(3)] == [3, 1, 4]
    view.get_trials()[0].last_result = {"m": 99}
    assert [cpus(allocate, view, index) for index in range(3)] == [6, 1, 1]
    view.get_trials()[0].last_result = {"m": float("nan")}
    assert cpus(allocate, view, 0) == 3
    other = DistributeResourcesToTopJob(metric="m", mode="min")
    assert [cpus(other, view, index) for index in range(3)] == [3, 4, 1]
    limited = DistributeResourcesToTopJob(increase_by={"CPU": 1}, increase_by_times=2)
    full = seen({"CPU": 8}, [{"CPU": 1}], [{"CPU": 1}], [{"CPU": 3}])
    assert [cpus(limited, full, index) for index in range(3)] == [1, 3, 3]
    too_much = seen({"CPU": 4}, [{"CPU": 3}], [{"CPU": 2}])
    assert [cpus(allocate, too_much, index) for index in range(2)] == [2, 1]


@given(st.integers(1, 20), st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans())
def test_nobody_falls_below_the_beginning_and_never_more_than_all_is_given(total, has, top):
    allocate = DistributeResourcesToTopJob() if top else DistributeResources()
    view = seen({"CPU": total}, *[[{"CPU": each}] for each in has])
    for index in range(len(has)):
        given = cpus(allocate, view, index)
        assert given is not None
        others = sum(has) - has[index]
        assert given >= 1
        assert given == 1 or given <= max(has[index], total - others)


def test_several_bundles_need_add_bundles():
    view = seen({"CPU": 8}, [{"CPU": 1}, {"CPU": 1}])
    with pytest.raises(ConfigError, match="trials begin with 2 bundles"):
        cpus(DistributeResources(), view, 0, base=[{"CPU": 1}, {"CPU": 1}])
