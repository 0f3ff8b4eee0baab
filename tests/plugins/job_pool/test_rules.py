"""The rule that decides which jobs a pool submits, drains and cancels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.plugins.job_pool.rules import Job, Limits, Plan, Stage, Waiting, wanted

EACH = {"CPU": 2.0}
LIMITS = Limits(max_jobs=3, each=EACH, idle_s=60, notice_s=120)
ONE = Waiting([{"CPU": 1.0}])


def joined(job: str, cpus: float, **rest: float) -> Job:
    return Job(job, Stage.JOINED, runs=True, free={"CPU": cpus}, **rest)


@pytest.mark.parametrize(
    ("jobs", "waiting", "submit"),
    [
        ([], [], 0),
        ([], [ONE], 1),
        ([], [ONE] * 2, 1),
        ([], [ONE] * 3, 2),
        ([], [ONE] * 100, 3),
        ([Job("1", Stage.COMING)], [ONE] * 2, 0),
        ([Job("1", Stage.COMING)], [ONE] * 3, 1),
        ([joined("1", 1)], [ONE], 0),
        ([joined("1", 0)], [ONE], 1),
        ([Job("1", Stage.DRAINING, runs=True, free=EACH)], [ONE], 1),
        ([Job(f"{number}", Stage.ENDING) for number in range(3)], [ONE], 0),
        ([], [Waiting([{"CPU": 3.0}])], 0),
        ([], [Waiting([{"CPU": 3.0}]), ONE], 1),
        ([], [Waiting([{"CPU": 1.0}] * 4)], 2),
        ([], [Waiting([{"CPU": 0.5}] * 3, apart=True)], 3),
        ([], [Waiting([{"GPU": 1.0}])], 0),
        ([], [Waiting([{"CPU": 0.1}])] * 20, 1),
        ([], [Waiting([{"CPU": 0.1}])] * 21, 2),
    ],
)
def test_jobs_are_submitted_for_requests_that_find_no_place(
    jobs: list[Job], waiting: list[Waiting], submit: int
) -> None:
    assert wanted(jobs, waiting, LIMITS) == Plan(submit=submit)


def test_idle_jobs_are_released_and_those_that_a_request_needs_are_kept() -> None:
    idle = [joined("1", 2, idle_s=60), joined("2", 2, idle_s=59), joined("3", 2, idle_s=100)]
    assert wanted(idle, [], LIMITS).release == ("1", "3")
    assert wanted(idle, [ONE], LIMITS).release == ("3",)


def test_a_job_that_waits_in_the_queue_for_nothing_is_cancelled() -> None:
    coming = [
        Job("1", Stage.COMING, age_s=60),
        Job("2", Stage.COMING, age_s=10),
        Job("3", Stage.COMING, runs=True, age_s=60),
    ]
    assert wanted(coming, [], LIMITS) == Plan(cancel=("1",))
    assert wanted(coming, [ONE], LIMITS) == Plan()


def test_a_node_near_its_time_limit_takes_nothing_more_and_is_replaced() -> None:
    jobs = [joined("1", 2, left_s=120), joined("2", 0, left_s=121)]
    assert wanted(jobs, [ONE], LIMITS) == Plan(submit=1, drain=("1",))


def test_the_hours_of_all_jobs_are_a_limit() -> None:
    limits = Limits(max_jobs=5, each=EACH, notice_s=120, time_s=3600, total_s=3 * 3600)
    many = [ONE] * 20
    assert wanted([], many, limits).submit == 3
    assert wanted([Job("1", Stage.COMING)], many, limits).submit == 2
    assert wanted([], many, limits, spent_s=1).submit == 2
    assert wanted([], many, limits, spent_s=3 * 3600).submit == 0


amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.sampled_from([0.5, 1.0, 2.0, 5.0]), max_size=2)
jobs_ = st.builds(
    Job,
    st.just(""),
    st.sampled_from(list(Stage)),
    st.booleans(),
    st.floats(0, 1e4),
    st.floats(0, 1e4) | st.just(math.inf),
    amounts,
    st.floats(0, 1e4),
)
requests = st.builds(Waiting, st.lists(amounts, min_size=1, max_size=4), st.booleans())


@given(st.lists(jobs_, max_size=6), st.lists(requests, max_size=8), amounts, st.integers(1, 5))
def test_limits_hold_and_no_job_is_in_two_minds(
    jobs: list[Job], waiting: list[Waiting], each: dict[str, float], most: int
) -> None:
    jobs = [
        Job(f"{number}", job.stage, job.runs, job.age_s, job.left_s, job.free, job.idle_s)
        for number, job in enumerate(jobs)
    ]
    plan = wanted(jobs, waiting, Limits(most, each, idle_s=60, notice_s=120))
    assert plan.submit + len(jobs) <= max(most, len(jobs))
    named = [*plan.drain, *plan.release, *plan.cancel]
    assert len(named) == len(set(named))
    assert not plan.submit or waiting
    later = [*jobs, *(Job(f"new{number}", Stage.COMING) for number in range(plan.submit))]
    stays = [job for job in later if job.id not in named]
    if not named:
        assert wanted(stays, waiting, Limits(most, each, idle_s=60, notice_s=120)).submit == 0
