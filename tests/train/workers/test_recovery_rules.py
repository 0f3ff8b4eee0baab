"""How many workers a gang may have, when a call is run again, and which deaths are only symptoms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.train.operators import Digits
from trainkit.errors import ActorDiedError, ConfigError
from trainkit.train import TorchTrainer
from trainkit.train.distributed.failure_cause import LostOthersError, ended_by_watchdog
from trainkit.train.workers.gather import GatheredResults
from trainkit.train.workers.placement import AT_ONCE_S, allowed_sizes, fitting, larger_size, time_to_wait_s
from trainkit.train.workers.recovery import give_up_text, lost_session_text, may_retry


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"num_workers": 4}, (4,)),
        ({"num_workers": 4, "min_workers": 4}, (4,)),
        ({"num_workers": 4, "min_workers": 1}, (4, 3, 2, 1)),
        ({"num_workers": 4, "min_workers": 1, "batch_size": 3}, (3, 2, 1)),
        ({"num_workers": 8, "min_workers": 2, "model_ways": 2}, (8, 6, 4, 2)),
        ({"num_workers": 8, "min_workers": 2, "model_ways": 2, "batch_size": 3}, (6, 4, 2)),
        ({"num_workers": 6, "min_workers": 3, "model_ways": 4}, (4,)),
    ],
)
def test_allowed_sizes(arguments: dict[str, int], sizes: tuple[int, ...]) -> None:
    assert allowed_sizes(**arguments) == sizes


@given(
    num_workers=st.integers(1, 64),
    lower=st.integers(0, 63),
    model_ways=st.integers(1, 8),
    batch_size=st.none() | st.integers(1, 512),
)
def test_allowed_sizes_share_everything_evenly(
    num_workers: int, lower: int, model_ways: int, batch_size: int | None
) -> None:
    fewest = max(1, num_workers - lower)
    sizes = allowed_sizes(num_workers, fewest, model_ways=model_ways, batch_size=batch_size)
    assert list(sizes) == sorted(set(sizes), reverse=True)
    for size in range(1, 2 * num_workers):
        right = fewest <= size <= num_workers and size % model_ways == 0
        even = batch_size is None or (right and batch_size >= size // model_ways)
        assert (size in sizes) is (right and even)


@given(
    allowed=st.sets(st.integers(1, 32), min_size=1),
    current=st.integers(1, 32),
    more=st.integers(0, 32),
)
def test_a_gang_grows_as_far_as_there_is_room(allowed: set[int], current: int, more: int) -> None:
    size = larger_size(sorted(allowed, reverse=True), current, more)
    possible = [one for one in allowed if current < one <= current + more]
    assert size == (max(possible) if possible else None)


@given(cpus=st.integers(0, 20), gpus=st.integers(0, 8), workers=st.integers(0, 20))
def test_how_many_bundles_fit(cpus: int, gpus: int, workers: int) -> None:
    bundle, free = {"CPU": 0.5, "GPU": 1.0}, {"CPU": cpus, "GPU": gpus}
    assert (fitting(free, bundle) >= workers) is (workers * 0.5 <= cpus and workers <= gpus)


def test_a_bundle_of_tenths_fits_exactly() -> None:
    assert fitting({"CPU": 1}, {"CPU": 0.1}) == 10
    assert fitting({"CPU": -1}, {"CPU": 1}) == 0
    assert fitting({}, {"CPU": 1}) == 0
    with pytest.raises(ValueError, match="requests no resources"):
        fitting({"CPU": 1}, {"CPU": 0})


def test_who_waits_for_room_and_how_long() -> None:
    allowed = (4, 3, 2)
    assert [time_to_wait_s(size, allowed, full_s=30, last_s=600) for size in allowed] == [30, AT_ONCE_S, 600]
    assert time_to_wait_s(4, (4,), full_s=30, last_s=600) == 600, "nothing smaller is left to try"


@pytest.mark.parametrize(
    ("failures", "max_retries", "has_snapshot", "again"),
    [(1, 0, True, False), (1, 3, True, True), (3, 3, True, True), (4, 3, True, False), (1, 3, False, False)],
)
def test_when_a_call_is_run_again(failures: int, max_retries: int, has_snapshot: bool, again: bool) -> None:
    assert may_retry(failures, max_retries, has_snapshot=has_snapshot) is again


def test_giving_up_names_every_failure() -> None:
    text = give_up_text("train", ["worker 1 of 2 died: a", "worker 0 of 2 died: b"])
    assert text == (
        "train() lost workers in all 2 attempts (max_retries=1):\n"
        "1. worker 1 of 2 died: a\n2. worker 0 of 2 died: b"
    )


WATCHDOG = (
    "[rank0]:[E730 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=5000) ran for 5012 milliseconds before timing out.\n"
    "[rank0]:[E730 ProcessGroupNCCL.cpp:756] [Rank 0] To avoid data inconsistency, we are taking the entire "
    "process down."
)


@pytest.mark.parametrize(
    ("exit_code", "stderr", "symptom"),
    [
        (-6, WATCHDOG, True),
        (-6, "terminate called: Process group watchdog thread terminated with exception: NCCL error", True),
        (-6, "Fatal Python error: Aborted", False),
        (-9, WATCHDOG, False),
        (None, WATCHDOG, False),
        (1, "", False),
    ],
)
def test_ncclss_watchdog_ends_those_that_wait(exit_code: int | None, stderr: str, symptom: bool) -> None:
    assert ended_by_watchdog(exit_code, stderr) is symptom


def died(exit_code: int, stderr: str) -> ActorDiedError:
    error = ActorDiedError(f"train-worker (pid 7) ended with {exit_code}")
    error.exit_code, error.stderr_tail = exit_code, stderr
    return error


LOST = LostOthersError(3, "[gloo/transport/tcp/pair.cc:5] Connection closed by peer")


@pytest.mark.parametrize(
    ("failures", "late", "lost", "text"),
    [
        ({0: died(-6, WATCHDOG)}, [1], [1], "worker 1 of 2 did not enter train() within timeout_s=5"),
        ({0: died(-6, WATCHDOG), 1: died(-9, "")}, [], [1], "worker 1 of 2 died: train-worker (pid 7)"),
        ({0: died(-6, WATCHDOG), 1: died(-6, WATCHDOG)}, [], [0, 1], "for an unknown reason"),
        ({0: died(-6, WATCHDOG), 1: LookupError("cursed")}, [], [], "cursed"),
        ({0: LOST}, [1], [1], "worker 1 of 2 did not enter step 3 within timeout_s=5, where worker 0 waited"),
        ({0: LOST, 1: died(-9, "")}, [], [1], "worker 1 of 2 died"),
        ({}, [1], [1], "worker 1 of 2 did not finish train() within timeout_s=5 after the others"),
    ],
)
def test_the_cause_is_told_from_symptoms(
    failures: dict[int, BaseException], late: list[int], lost: list[int], text: str
) -> None:
    answers = GatheredResults(
        {}, what="train", world_size=2, at_once=True, timeout_s=5, end_workers=lambda: None
    )
    answers.failures, answers.late = failures, late
    assert answers.failed
    assert answers.lost() == lost
    assert text in str(answers.verdict(ended=True))


@pytest.mark.parametrize("fewest", [0, 3, 1.5, True, "one"])
def test_min_workers_is_a_number_up_to_num_workers(fewest: object) -> None:
    with pytest.raises(ConfigError, match=f"min_workers must be .*, not {fewest!r}"):
        TorchTrainer(training_operator_cls=Digits, num_workers=2, min_workers=fewest)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (
            {"ended_by": "kim (pid 7)"},
            "the session was ended with `trainkit stop` by kim (pid 7) in train(): make",
        ),
        (
            {"ended_by": "kim (pid 7)", "has_snapshot": False},
            "by kim (pid 7) in train(): make a new TorchTrainer",
        ),
        (
            {"in_a_row": 1, "has_snapshot": False},
            "the node died in train(); no snapshot of the workers' state exists",
        ),
        ({"in_a_row": 4}, "the node died in train(), for the 4th time in a row: make a new TorchTrainer"),
    ],
)
def test_a_session_that_is_lost_for_good_says_why(lost: dict[str, Any], text: str) -> None:
    told = lost_session_text("the node died", "train", **lost)
    assert text in told
    assert ("in a row" in told) == ("4th" in text)
