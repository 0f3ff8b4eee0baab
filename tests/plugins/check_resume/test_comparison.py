"""Differences between records of two runs, each named by its cause."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trainkit.plugins.check_resume.comparison import (
    align,
    compare,
    compare_on_others,
    epochs_of,
    remove_unseeded_generators,
    silent_generators,
)
from trainkit.plugins.check_resume.records import Step

EPOCH = 4
LABELS = ["Loss", ["label0"]]
ORDERS = [["01", "23", "45", "67"], ["20", "64", "17", "53"], ["75", "31", "04", "62"]]


def step(number: int, **values: Any) -> Step:
    """The step with this index of a training that has epochs of four steps with two samples each."""
    epoch, place = divmod(number, EPOCH)
    usual: dict[str, Any] = {
        "rank": 0,
        "world_size": 1,
        "optimizer": 0,
        "optimizer_class": "Adam",
        "names": ["weight", "bias"],
        "weights": [f"w{number}", f"b{number}"],
        "sizes": [1.0 + number, 2.0],
        "state": {"exp_avg": f"m{number}"} if number else {},
        "options": [{"lr": 0.1 / (1 + number)}],
        "beside": [("Net.mean", f"mean{number}")],
        "result": [f"w{number + 1}", f"b{number + 1}"],
        "batches": [["Net", [f"sample{digit}" for digit in ORDERS[epoch][place]]], LABELS],
        "losses": [1.0 / (1 + number)],
        "generators": {"torch": f"g{number}", "numpy": "n"},
    }
    return Step(**usual | values)


STEPS = [step(number) for number in range(12)]


def found(first: int, **values: Any) -> list[Any]:
    """What differs if a run that resumes at `first` has a first step with these values."""
    resumed = [dataclasses.replace(STEPS[first], **values), *STEPS[first + 1 :]]
    return compare([STEPS], [resumed], first)


@pytest.mark.parametrize("first", [0, 1, 7, 11])
def test_equal_steps_have_no_difference(first: int) -> None:
    assert compare([STEPS], [STEPS[first:]], first) == []
    assert align(STEPS, STEPS[first]) == first


@pytest.mark.parametrize(
    ("values", "kind", "what"),
    [
        ({"weights": ["w6", "x"]}, "weights", "1 of 2 parameters are equal, but not bias"),
        ({"state": {}}, "optimizer", "Adam begins without its state (exp_avg) at step 7"),
        ({"state": {"exp_avg": "x"}}, "optimizer", "Adam has a different state (exp_avg) at step 7"),
        ({"options": [{"lr": 0.1}]}, "settings", "the learning rate at step 7 is 0.1, but 0.01428"),
        ({"beside": []}, "state", "Net.mean, which no optimizer trains, differs at step 7"),
        ({"losses": []}, "loss", "the loss of step 7 is 0, but 0.14"),
        ({"losses": [9.0], "generators": {"torch": "x"}}, "generator", "generator's state (torch) differs"),
        ({"result": ["x", "x"]}, "loss", "the update of step 7 gives different weights"),
        ({"batches": STEPS[5].batches}, "batch repeated", "step 7 trains on the batch of step 6 again"),
        ({"batches": STEPS[7].batches}, "batch left out", "step 7 trains on the batch of step 8"),
        ({"batches": STEPS[4].batches}, "epoch begun again", "the first batch of an epoch (step 5's)"),
        ({"batches": [["Net", ["sample7", "sample1"]], LABELS]}, "shuffled", "samples in a different order"),
        ({"batches": [["Net", ["sample9"]]]}, "samples", "samples that the undisturbed run never uses"),
        ({"batches": [], "losses": []}, "accumulation", "step 7 accumulates is 0, but 1"),
    ],
)  # fmt: skip
def test_a_difference_has_a_kind_and_words(values: dict[str, Any], kind: str, what: str) -> None:
    first = found(6, **values)[0]
    assert (first.kind, first.step) == (kind, 7)
    assert what in first.what
    assert str(first).startswith(f"{first.what}: ")


def test_causes_come_before_effects() -> None:
    values = {"losses": [9.0], "beside": [], "state": {}, "batches": STEPS[5].batches}
    assert [each.kind for each in found(6, **values)] == ["optimizer", "batch repeated", "state", "loss"]


def test_a_later_epoch_in_a_different_order() -> None:
    resumed = [*STEPS[6:8], step(8, batches=STEPS[4].batches), *STEPS[9:]]
    (first,) = compare([STEPS], [resumed], 6)
    assert (first.kind, first.step) == ("order of an epoch", 9)
    assert first.what == "the order of epoch 3 is that of epoch 2, first at step 9"
    resumed[2] = step(8, batches=[["Net", ["sample2", "sample5"]], LABELS])
    (first,) = compare([STEPS], [resumed], 6)
    assert first.what == "the order of epoch 3 differs, first at step 9"


def on_rank(rank: int, steps: list[Step], world_size: int = 2, **values: Any) -> list[Step]:
    return [dataclasses.replace(each, rank=rank, world_size=world_size, **values) for each in steps]


def test_the_rank_that_differs_is_named() -> None:
    undisturbed = [on_rank(0, STEPS), on_rank(1, STEPS)]
    ours = on_rank(1, STEPS[6:], losses=[5.0], generators={"torch": "x"})
    (first,) = compare(undisturbed, [on_rank(0, STEPS[6:]), ours], 6)
    assert first.rank == 1
    assert "step 7 on rank 1" in first.what
    assert "rank 1's generator (torch) differs" in first.what


def test_a_second_optimizer_is_named() -> None:
    steps = [step(n, optimizer=n % 2, optimizer_class="SGD") for n in range(4)]
    (first,) = compare([steps], [[dataclasses.replace(steps[3], state={})]], 3)
    assert first.what == "optimizer 2 (SGD) begins without its state (exp_avg) at step 4"


def test_a_copy_of_earlier_weights_is_no_state() -> None:
    steps = [step(n, beside=[("dict['weight']", "w2")] if n > 2 else []) for n in range(6)]
    assert compare([steps], [[dataclasses.replace(each, beside=[]) for each in steps[3:]]], 3) == []


def test_a_rank_may_lack_the_last_step_before_a_kill() -> None:
    undisturbed = [on_rank(0, STEPS), on_rank(1, STEPS)]
    assert compare(undisturbed, [on_rank(0, STEPS[6:9]), on_rank(1, STEPS[6:8])], 6) == []
    ours = on_rank(1, STEPS[6:8], losses=[5.0])
    assert compare(undisturbed, [on_rank(0, STEPS[6:9]), ours], 6)[0].rank == 1


def test_equal_weights_are_told_apart_by_the_rest() -> None:
    steps = [step(n, weights=["w", "b"]) for n in range(6)]
    assert align(steps, steps[4]) == 4


def test_generators_that_the_script_does_not_seed_do_not_count() -> None:
    steps = [dataclasses.replace(each, generators=dict(each.generators)) for each in STEPS]
    again = [dataclasses.replace(each, generators={**each.generators, "numpy": "x"}) for each in STEPS[:3]]
    assert silent_generators([steps], [again[2:]], 2) == ["numpy"]
    remove_unseeded_generators([steps], [again])
    assert all(each.generators.keys() == {"torch"} for each in steps)
    assert silent_generators([steps], [again[2:]], 2) == []


def test_epochs_begin_where_a_sample_comes_again() -> None:
    assert epochs_of(STEPS) == [(1 + number // EPOCH, number % EPOCH) for number in range(12)]


def shared(steps: list[Step], ranks: int) -> list[list[Step]]:
    """These steps with four samples each, dealt out over this many ranks."""
    samples = [f"s{n}" for n in range(4)]
    return [on_rank(rank, steps, ranks, batches=[["Net", samples[rank::ranks]]]) for rank in range(ranks)]


def test_other_ranks_must_use_the_same_samples_together() -> None:
    two, three = shared(STEPS, 2), shared(STEPS[6:], 3)
    assert compare_on_others(two, three, 6, 1e-3) == []
    three[1][2] = dataclasses.replace(three[1][2], batches=[["Net", ["s0"]]])
    (first,) = compare_on_others(two, three, 6, 1e-3)
    assert (first.kind, first.step) == ("shares", 9)
    assert "on 3 ranks, step 9 trains on 1 samples that it must not use, and leaves out 1" in first.what


def test_weights_on_other_ranks_may_differ_by_rounding_only() -> None:
    two, three = shared(STEPS, 2), shared(STEPS[6:], 3)
    three[0][1] = dataclasses.replace(three[0][1], sizes=[8.0, 2.001], weights=["x", "x"])
    assert compare_on_others(two, three, 6, 1e-3) == []
    (first,) = compare_on_others(two, three, 6, 1e-4)
    assert first.kind == "scale"
    assert "the norm of bias before step 8" in first.what
