"""Why something waits, in words: the pure part, and what the users of a session see of it."""

from __future__ import annotations

import io
import math
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trainkit
from tests.conftest import eventually
from tests.runtime.local.victims import Victim
from trainkit.runtime.placement import Demand, Holder, Ledger, Room, explain_wait

amounts = st.sampled_from([0.1, 0.5, 1.0, 2.0, 3.0])
requests = st.fixed_dictionaries(
    {}, optional={"CPU": amounts, "GPU": st.sampled_from([0.1, 0.5, 1, 2]), "disk": amounts}
)
TOTALS = {"CPU": 4, "GPU": 3, "disk": 2}


def waiting(what: str, bundles: list[dict[str, float]]) -> Demand:
    """Return a request that waits."""
    return Demand(0, bundles, what=what)


def machine(*held: tuple[str, dict[str, float]], existing: dict[str, float] = TOTALS) -> Room:
    ledger = Ledger.of_machine(existing)
    assert all(ledger.take(bundle) is not None for _, bundle in held)
    holders = [Holder(who=who, amounts=bundle) for who, bundle in held]
    return Room(existing=existing, ledger=ledger, holders=holders)


def test_what_is_missing_and_who_has_it() -> None:
    room = machine(("trainer-3 (pid 12)", {"GPU": 2}), ("loader (pid 13)", {"CPU": 1}))
    told = explain_wait(waiting(what="trainer-4", bundles=[{"GPU": 3, "CPU": 1}]), [room])
    assert told.lacking == ["GPU"]
    assert told.holders == ["trainer-3 (pid 12): 2 GPU"]
    assert told.reasons == ["2 GPU missing: 1 GPU of 3 GPU free; held by trainer-3 (pid 12): 2 GPU"]


def test_who_is_served_before() -> None:
    gang = waiting(what="a group of 3 bundles", bundles=[{"CPU": 2}, {"CPU": 2}, {"CPU": 4}])
    other = waiting(what="a reader", bundles=[{"disk": 1}])
    told = explain_wait(waiting(what="late", bundles=[{"CPU": 1}]), [machine()], [gang, other])
    assert told.reasons == ["waits behind a group of 3 bundles, which asks for 8 CPU"]
    many = explain_wait(waiting(what="late", bundles=[{"CPU": 1}]), [machine()], [gang] * 7)
    assert many.reasons[5:] == ["waits behind 2 more requests"]


def test_parts_of_two_gpus_do_not_make_one() -> None:
    room = machine(("a", {"GPU": 0.6}), ("b", {"GPU": 0.6}), existing={"GPU": 2})
    (told,) = explain_wait(waiting(what="c", bundles=[{"GPU": 0.5}]), [room]).reasons
    assert told.startswith(
        "0.8 GPU of 2 GPU free, but in fractions that do not fit the request: 0.4 + 0.4; held by a"
    )


def test_many_holders_are_counted() -> None:
    room = machine(*((f"w{index}", {"CPU": 0.5}) for index in range(8)), existing={"CPU": 4})
    (told,) = explain_wait(waiting(what="late", bundles=[{"CPU": 1}]), [room]).reasons
    assert told.endswith("w4: 0.5 CPU, and 3 more")


@settings(deadline=None)
@given(st.lists(requests, max_size=8), st.lists(requests, min_size=1, max_size=4))
def test_there_is_always_a_reason_and_it_is_true(
    held: list[dict[str, float]], bundles: list[dict[str, float]]
) -> None:
    ledger = Ledger.of_machine(TOTALS)
    holders = [
        Holder(who=f"w{index}", amounts=bundle)
        for index, bundle in enumerate(held)
        if ledger.take(bundle) is not None
    ]
    before = ledger.amounts()
    told = explain_wait(
        waiting(what="it", bundles=bundles), [Room(existing=TOTALS, ledger=ledger, holders=holders)]
    )
    assert ledger.amounts() == before, "looking takes nothing"
    assert told.reasons
    fits = ledger.take_all(bundles) is not None
    assert fits == (not told.lacking)
    assert fits == ("about to start" in told.reasons[0])
    if not fits:
        asked = {name: math.fsum(bundle.get(name, 0) for bundle in bundles) for name in told.lacking}
        assert all(amount > 0 for amount in asked.values())
        existing_suffices = all(amount <= TOTALS[name] for name, amount in asked.items())
        if existing_suffices and "GPU" not in told.lacking:
            assert told.holders, "somebody has what is missing"


@pytest.mark.parametrize("name", ["CPU", "disk"])
def test_what_others_ask_for_of_another_kind_does_not_matter(name: str) -> None:
    told = explain_wait(
        waiting(what="it", bundles=[{name: 1}]), [machine()], [waiting(what="x", bundles=[{"GPU": 3}])]
    )
    assert told.reasons == ["the requested resources are free: it is about to start"]


@pytest.mark.slow
def test_after_ten_seconds_the_wait_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not pytest's capture: what another thread writes while that is read may be lost.
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    trainkit.init(num_cpus=2)
    try:
        holder = trainkit.remote(Victim).options(num_cpus=2, label="holder").remote()
        pid = trainkit.get(holder.pid.remote())
        group = trainkit.placement_group([{"CPU": 1}] * 2, name="gang")
        crowd = [trainkit.remote(Victim).options(num_cpus=1, label="late").remote() for _ in range(20)]

        def explained() -> tuple[int, int]:
            """Return of how many the wait is explained, and how many others are counted."""
            said = err.getvalue()
            further = re.findall("further waiting requests: ([0-9]+)", said)
            return said.count("has been waiting"), sum(map(int, further))

        assert eventually(lambda: sum(explained()) == 21)
        assert explained()[0] < 12, "a crowd is not explained one by one, though it may come in parts"
        said = err.getvalue()
        held = re.escape(f"2 CPU missing: 0 CPU of 2 CPU free; held by holder (pid {pid}): 2 CPU")
        assert re.search(
            rf"trainkit: a group 'gang' of 2 bundles has been waiting \d+ s for 2 CPU: {held}\n", said
        )
        assert re.search(r"trainkit: late has been waiting \d+ s for 1 CPU: 1 CPU missing", said)
        assert "waits behind" not in said, "nobody knows when an actor ends"
        trainkit.remove_placement_group(group)
        del holder, crowd
    finally:
        trainkit.shutdown()
