"""The pure accounting: nothing is handed out twice, nothing is lost, nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainkit.runtime.local.node.workers import choose
from trainkit.runtime.placement import Demand, Ledger, blocked_by, order

amounts = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 3.0])
requests = st.fixed_dictionaries(
    {}, optional={"CPU": amounts, "GPU": st.sampled_from([0.1, 0.5, 1, 2]), "disk": amounts}
)
TOTALS = {"CPU": 4, "GPU": 3, "disk": 2}


@given(st.lists(st.tuples(requests, st.booleans()), max_size=40))
def test_what_is_free_and_what_is_held_add_up(steps: list[tuple[dict[str, float], bool]]) -> None:
    ledger = Ledger.of_machine(TOTALS)
    full = ledger.amounts()
    held = []
    for request, give_back in steps:
        if give_back and held:
            ledger.give_back(held.pop(0))
        lacking = ledger.lacking(request)
        allocation = ledger.take(request)
        assert (allocation is None) == bool(lacking)
        if allocation is not None:
            held.append(allocation)
        assert all(amount >= 0 for amount in ledger.free.values())
        assert all(0 <= share <= 10_000 for share in ledger.free_gpus.values())
    for allocation in held:
        ledger.give_back(allocation)
    assert ledger.amounts() == full


@given(st.lists(requests, min_size=1, max_size=8))
def test_a_group_is_held_whole_or_not_at_all(bundles: list[dict[str, float]]) -> None:
    ledger = Ledger.of_machine(TOTALS)
    before = ledger.amounts()
    held = ledger.take_all(bundles)
    if held is None:
        assert ledger.amounts() == before
    else:
        assert len(held) == len(bundles)
        for bundle, allocation in zip(bundles, held, strict=True):
            assert Ledger.of_bundle(allocation).take(bundle) is not None


def test_a_tenth_taken_ten_times_is_one() -> None:
    ledger = Ledger.of_machine({"CPU": 1})
    assert all(ledger.take({"CPU": 0.1}) for _ in range(10))
    assert ledger.take({"CPU": 0.1}) is None


def test_whole_gpus_are_distinct_and_fractions_share_the_fullest() -> None:
    ledger = Ledger.of_machine({"GPU": 3})
    half = ledger.take({"GPU": 0.5})
    again = ledger.take({"GPU": 0.5})
    assert half and again
    assert list(half.gpus) == list(again.gpus) == [0]
    whole = ledger.take({"GPU": 2})
    assert whole
    assert sorted(whole.gpus) == [1, 2]
    assert ledger.lacking({"GPU": 0.1}) == ["GPU"]


def test_a_whole_gpu_is_not_made_of_two_halves() -> None:
    ledger = Ledger.of_machine({"GPU": 2})
    held = [ledger.take({"GPU": 0.6}), ledger.take({"GPU": 0.6})]
    assert all(held)
    assert ledger.take({"GPU": 1}) is None


def test_a_worker_is_forked_from_what_spares_it_most_without_a_wait() -> None:
    def imports(*names: str) -> frozenset[str]:
        return frozenset(names)

    plain, torch, both = imports(), imports("torch"), imports("torch", "mine")
    heavy = imports("torch", "sklearn")
    assert choose(both, [plain], [plain]) == torch, "made first, as it has what takes seconds"
    assert choose(both, [plain, torch], [plain]) == torch, "waited for: it takes less than importing torch"
    assert choose(both, [plain, torch, both], [plain, torch]) == torch, "the rest is not waited for"
    assert choose(both, [plain, torch, both], [plain, torch, both]) == both
    assert choose(heavy, [plain, torch], [plain, torch]) == torch, "nobody has begun to import it"
    assert choose(heavy, [plain, torch, heavy], [plain, torch]) == heavy, "its own import would take as long"
    assert choose(imports("numpy"), [plain, torch], [plain, torch]) == imports("numpy")
    assert choose(torch, [plain, both], [plain, both]) == torch, "what was not wanted is not imposed"


def test_what_workers_ask_for_comes_first_and_else_the_order_is_kept() -> None:
    queue = [Demand(1, [{}]), Demand(2, [{}], nested=True), Demand(3, [{}]), Demand(4, [{}], nested=True)]
    assert [waiting.key for waiting in order(queue)] == [2, 4, 1, 3]


def test_a_later_request_passes_only_if_it_takes_nothing_that_is_short() -> None:
    assert blocked_by(["CPU"], [{"CPU": 1}])
    assert not blocked_by(["GPU"], [{"CPU": 1}, {"disk": 1}])
