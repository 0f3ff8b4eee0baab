"""The pure accounting: nothing is handed out twice, nothing is lost, nobody starves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainkit.runtime.local.node.workers import choose
from trainkit.runtime.placement import Ledger

amounts = st.sampled_from([0.1, 0.25, 0.5, 1.0, 2.0, 3.0])
requests = st.fixed_dictionaries(
    {}, optional={"CPU": amounts, "GPU": st.sampled_from([0.1, 0.5, 1, 2]), "disk": amounts}
)
TOTALS = {"CPU": 4, "GPU": 3, "disk": 2}


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
