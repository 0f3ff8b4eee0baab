"""The pure accounting: nothing is handed out twice, nothing is lost, nobody starves."""

from __future__ import annotations

from trainkit.runtime.local.node.workers import choose
from trainkit.runtime.placement import Ledger


def test_a_tenth_taken_ten_times_is_one() -> None:
    ledger = Ledger.of_machine({"CPU": 1})
    assert all(ledger.take({"CPU": 0.1}) for _ in range(10))
    assert ledger.take({"CPU": 0.1}) is None


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
