"""Metrics of a session: kept by each process, and summed by who asks."""

from __future__ import annotations

import os
import pickle
import resource
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually, printed
from trainkit.errors import ActorDiedError
from trainkit.util.metrics import Counter, Gauge, Histogram, Metric, prometheus_text

pytestmark = pytest.mark.usefixtures("runtime")


def values(name: str) -> dict[str, float]:
    """The samples whose names begin so, as Prometheus reads them."""
    lines = [line for line in prometheus_text().splitlines() if line.startswith(name)]
    return {key: float(value) for key, _, value in (line.rpartition(" ") for line in lines)}


@trainkit.remote
class Teller:
    def __init__(self, *metrics: Metric) -> None:
        self.metrics: Any = metrics

    def inc(self, *args: Any) -> None:
        self.metrics[0].inc(*args)

    def set(self, value: float) -> None:
        self.metrics[0].set(value)


def test_a_counter_is_the_sum_of_all_processes_also_of_those_that_ended() -> None:
    counter = Counter("summed", "What is summed", tag_keys=("who",))
    tellers = [Teller.remote(counter) for _ in range(2)]
    counter.inc(tags={"who": "us"})
    trainkit.get([teller.inc.remote(2.5, {"who": "us"}) for teller in tellers])
    trainkit.get(tellers[0].inc.remote(1, {"who": "them"}))
    trainkit.kill(tellers[0])
    with pytest.raises(ActorDiedError):
        trainkit.get(tellers[0].inc.remote(1, {"who": "them"}))
    assert values("summed_total") == {'summed_total{who="us"}': 6, 'summed_total{who="them"}': 1}
    assert "# HELP summed_total What is summed" in prometheus_text()
    assert "# TYPE summed_total counter" in prometheus_text()


def test_a_gauge_is_what_was_set_last() -> None:
    gauge = Gauge("level")
    first, second = (Teller.remote(gauge) for _ in range(2))
    for teller, value in ((first, 1), (second, 7), (first, 3)):
        trainkit.get(teller.set.remote(value))
        assert values("level") == {"level": value}
    gauge.set(-2)
    gauge.set(None)
    assert values("level") == {"level": -2}


def test_a_histogram_counts_up_to_each_boundary() -> None:
    histogram = Histogram("spread", boundaries=[0.5, 2], tag_keys=("kind",))
    for value in (0.5, 0.6, 2, 100):
        histogram.observe(value, tags={"kind": "a"})
    assert values("spread") == {
        'spread_bucket{kind="a",le="0.5"}': 1,
        'spread_bucket{kind="a",le="2.0"}': 3,
        'spread_bucket{kind="a",le="+Inf"}': 4,
        'spread_count{kind="a"}': 4,
        'spread_sum{kind="a"}': 103.1,
    }


def test_a_forked_process_counts_too() -> None:
    counter = Counter("by_forks")
    counter.inc()

    def fork_and_count() -> None:
        if (pid := os.fork()) == 0:
            counter.inc(2)
            os._exit(0)
        os.waitpid(pid, 0)

    fork_and_count()
    trainkit.get(trainkit.remote(fork_and_count).remote())
    assert values("by_forks") == {"by_forks_total": 5}


@trainkit.remote
def count_on_a_full_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
    counter = Counter("without_room", "d" * 100, tag_keys=("number",))
    for number in range(1000):
        counter.inc(tags={"number": str(number)})


def test_a_full_disk_ends_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    trainkit.get(count_on_a_full_disk.options(max_calls=1).remote())
    assert eventually(lambda: "are no longer recorded: [Errno" in printed(capfd)[1])
    assert 10 < len(values("without_room_total")) < 1000


def test_threads_lose_no_count() -> None:
    counter = Counter("by_threads")

    def count() -> None:
        for _ in range(500):
            counter.inc()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert values("by_threads") == {"by_threads_total": 2000}


def test_more_values_than_a_file_has_room_for_at_first() -> None:
    counter = Counter("many", "d" * 100, tag_keys=("number",))
    for number in range(1000):
        counter.inc(tags={"number": str(number)})
    assert len(values("many_total")) == 1000


def test_a_new_session_begins_anew() -> None:
    counter = Counter("of_session")
    counter.inc()
    trainkit.shutdown()
    counter.inc(2)
    assert prometheus_text() == ""
    assert not trainkit.is_initialized(), "who counts starts none"
    trainkit.init(num_cpus=1)
    assert values("of_session") == {}
    counter.inc(3)
    assert values("of_session") == {"of_session_total": 3}


def test_default_tags_travel_and_are_replaced() -> None:
    counter = Counter("tagged", tag_keys=("a", "b"))
    assert counter.set_default_tags({"a": "1", "b": "2"}) is counter
    pickle.loads(pickle.dumps(counter)).inc(tags={"b": "3"})
    assert values("tagged") == {'tagged_total{a="1",b="3"}': 1}
    assert counter.info == {
        "name": "tagged",
        "description": "",
        "tag_keys": ("a", "b"),
        "default_tags": {"a": "1", "b": "2"},
    }
    assert Histogram("bounds", boundaries=[1.0]).info["boundaries"] == [1.0]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: Counter(""), ValueError, "name"),
        (lambda: Counter("a", tag_keys=["b"]), TypeError, "tuple"),  # type: ignore[arg-type]
        (lambda: Counter("a").inc(0), ValueError, "cannot decrease"),
        (lambda: Counter("a", tag_keys=("b",)).inc(), ValueError, "has no values for the tags b"),
        (lambda: Counter("a").inc(tags={"c": "1"}), ValueError, "no tag 'c'"),
        (lambda: Counter("a", tag_keys=("b",)).inc(tags={"b": 1}), TypeError, "must be a string"),  # type: ignore[dict-item]
        (lambda: Counter("a", tag_keys=("b-c",)), ValueError, "can't have a tag 'b-c'"),
        (
            lambda: Histogram("c", boundaries=[1.0], tag_keys=("le",)),
            ValueError,
            "not le, which Prometheus reserves",
        ),
        (lambda: [Counter("a"), Gauge("a")], ValueError, "of a different type"),
        (lambda: Histogram("d"), ValueError, "boundaries"),
        (lambda: Histogram("d", boundaries=[2.0, 1.0]), ValueError, "increasing numbers above 0"),
    ],
)
def test_what_is_wrong_is_refused(wrong: Callable[[], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wrong()


def test_a_metric_of_a_wrong_name_warns_and_keeps_nothing() -> None:
    with pytest.warns(UserWarning, match="discarded"):
        counter = Counter("1st")
    counter.inc()
    assert "1st" not in prometheus_text()
