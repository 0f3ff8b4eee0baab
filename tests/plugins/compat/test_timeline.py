"""The calls of a session that have ended, as events of a Chrome trace."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually, printed
from trainkit.errors import ActorDiedError
from trainkit.runtime.observability import call_recorder


@pytest.fixture(params=["local", "inline"])
def recording(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A session of each engine that records its calls."""
    monkeypatch.setenv("TRAINKIT_TIMELINE", "1")
    trainkit.init(num_cpus=3, engine=request.param)
    yield request.param
    trainkit.shutdown()


def spans(name: str) -> list[dict[str, Any]]:
    """The events of calls of that name, in the order in which they began."""
    return [event for event in trainkit.timeline() if event["ph"] == "X" and event["name"] == name]


def ends(name: str, count: int = 1) -> list[dict[str, Any]]:
    """The events of so many calls, which have their results."""
    assert eventually(lambda: len(spans(name)) == count), spans(name)
    return spans(name)


@trainkit.remote
def sleep(seconds: float) -> None:
    time.sleep(seconds)


@trainkit.remote
class Sleeper:
    def sleep(self, seconds: float) -> str | None:
        time.sleep(seconds)
        return trainkit.get_runtime_context().get_task_id()

    def fail(self) -> None:
        raise ValueError("no")

    def leave(self) -> None:
        trainkit.exit_actor()


def test_a_call_lasts_as_long_as_it_ran_and_has_its_ids(recording: str) -> None:
    actor = Sleeper.options(name="timed").remote()
    task_id = trainkit.get(actor.sleep.remote(0.05))
    (event,) = ends("Sleeper.sleep")
    assert 0.05e6 <= event["dur"] < 60e6
    assert abs(event["ts"] / 1e6 - time.time()) < 3600
    assert (event["args"]["task_id"], event["args"]["actor_id"]) == (task_id, actor._actor_id.hex())
    (made,) = ends("Sleeper.__init__")
    assert (made["args"]["task_id"], made["args"]["actor_id"]) == (None, actor._actor_id.hex())
    assert made["ts"] <= event["ts"]
    assert {"name": "process_name", "ph": "M", "pid": event["pid"]}.items() <= trainkit.timeline()[-1].items()


def test_tasks_small_calls_and_failures_are_there(recording: str) -> None:
    trainkit.get([sleep.remote(0) for _ in range(5)])
    trainkit.get(sleep.options(name="by another name").remote(0))
    actor = Sleeper.remote()
    trainkit.get([actor.sleep.remote(0) for _ in range(20)])
    with pytest.raises(ValueError, match="no"):
        trainkit.get(actor.fail.remote())
    assert {event["args"]["actor_id"] for event in ends("sleep", 5)} == {None}
    assert len({event["args"]["task_id"] for event in ends("Sleeper.sleep", 20)}) == 20
    ends("by another name")
    ends("Sleeper.fail")


def test_calls_at_once_have_rows_of_their_own(recording: str) -> None:
    @trainkit.remote
    class Both:
        async def __init__(self) -> None:
            await asyncio.sleep(0.2)

        async def nap(self) -> None:
            await asyncio.sleep(0.2)

    threaded, both = Sleeper.options(max_concurrency=3).remote(), Both.remote()
    trainkit.get([*(threaded.sleep.remote(0.2) for _ in range(3)), *(both.nap.remote() for _ in range(3))])
    ends("Sleeper.sleep", 3)
    naps = ends("Both.nap", 3)
    (made,) = ends("Both.__init__")
    assert made["dur"] >= 0.2e6
    if recording == "local":
        assert sorted(event["tid"] for event in naps) == [0, 1, 2]
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trainkit.timeline():
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    for row in rows.values():  # to a microsecond, as seconds since 1970 are floats
        assert all(one["ts"] + one["dur"] <= other["ts"] + 1 for one, other in pairwise(row))


def test_it_is_written_to_a_file(recording: str, tmp_path: Path) -> None:
    trainkit.get(sleep.remote(0))
    ends("sleep")
    trainkit.timeline(tmp_path / "timeline.json")
    assert json.loads((tmp_path / "timeline.json").read_text()) == trainkit.timeline()


@pytest.mark.parametrize("recording", ["local"], indirect=True)
def test_calls_outlive_their_process(recording: str) -> None:
    actor = Sleeper.remote()
    trainkit.get(actor.sleep.options(name="before the end").remote(0))
    ends("before the end")
    with pytest.raises(ActorDiedError):
        trainkit.get(actor.leave.remote())
    ends("Sleeper.leave")
    ends("before the end")


def test_a_process_records_no_more_calls_than_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(call_recorder, "MAX_CALLS", 2)
    recorder = call_recorder.CallRecorder(tmp_path, "1")
    for name in ("first", "second", "third"):
        with recorder.recorded(name, None, None):
            pass
    lines = (tmp_path / "timeline" / "1.jsonl").read_text().splitlines()
    assert [json.loads(line)[0] for line in lines] == ["first", "second"]


class Limited:
    """Actor that may write no file of more than a page."""

    def __init__(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("recording", ["local"], indirect=True)
def test_a_full_disk_ends_the_record_and_not_the_call(
    recording: str, capfd: pytest.CaptureFixture[str]
) -> None:
    actor = trainkit.remote(Limited).remote()
    assert len(set(trainkit.get([actor.pid.remote() for _ in range(100)]))) == 1
    assert eventually(lambda: "omits all further calls of this process: [Errno" in printed(capfd)[1])
    assert 0 < len(spans("Limited.pid")) < 100
