"""ASHA's published form in whole experiments: simulated ones, and trials that save and go on from files."""

from __future__ import annotations

import pytest

from tests.tune.pausing import Counted, steps
from trainkit import tune
from trainkit.plugins.simulation.simulate import Simulation
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("inline")

LOSSES = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4, 0.6]
JOBS = [
    (0, 1),
    (1, 1),
    (2, 1),
    (1, 3),
    (3, 1),
    (4, 1),
    (5, 1),
    (5, 3),
    (6, 1),
    (7, 1),
    (8, 1),
    (3, 3),
    (1, 9),
]
"""The worked trace: with one worker, which trial ran next, and up to which iteration."""


def promotion(**arguments) -> ASHAScheduler:
    return ASHAScheduler(**{"max_t": 9, "reduction_factor": 3, **arguments}, type="promotion")


def fixed(config, training_iteration, rng):
    return {"loss": config["loss"]}


def simulated(losses, scheduler=None, mode="min", **settings) -> Simulation:
    return tune.simulate(
        fixed,
        {"loss": tune.grid_search(list(losses))},
        tune.TuneConfig(metric="loss", mode=mode, scheduler=scheduler or promotion(), allow_duplicates=True),
        seed=0,
        **settings,
    )


def jobs(results: ResultGrid) -> list[tuple[int, int]]:
    """The jobs that have ended, each by a pause or at max_t: number of the trial, and its iteration."""
    ids = [result.trial_id for result in results]
    ends = [each for each in results.decisions() if each["verdict"] in ("PAUSE", "STOP")]
    return [(ids.index(each["trial_id"]), each["iteration"]) for each in ends if each["rule"] != "not chosen"]


# --- the simulated controller ---------------------------------------------------------------------


@pytest.mark.parametrize(("resume", "work"), [(True, 21), (False, 27)])
def test_4_the_worked_trace_on_the_controller(resume, work):
    results = simulated(LOSSES, resume=resume)
    assert jobs(results) == JOBS
    reached = {result.metrics["loss"]: result.metrics["training_iteration"] for result in results}
    assert reached == {loss: {0.1: 9, 0.2: 3, 0.3: 3}.get(loss, 1) for loss in LOSSES}
    assert results.work == work
    assert {(result.metrics["loss"], result.reason) for result in results} == {
        (0.1, "reached max_t=9"),
        *((loss / 10, f"not promoted: rung 3, rank {loss} of 3, 1 place") for loss in (2, 3)),
        *((loss / 10, f"not promoted: rung 1, rank {loss} of 9, 3 places") for loss in range(4, 10)),
    }
    assert results.num_terminated == 9


# row 1.14
@pytest.mark.parametrize("falling", [True, False])
def test_in_both_orders_the_same_top_quarter_runs_to_the_end(falling):
    """One at a time, best first or worst first: where the stopping form stops 15 or none."""
    scores = sorted(range(16), reverse=falling)
    scheduler = promotion(max_t=4, reduction_factor=4)
    results = simulated(scores, scheduler, mode="max")
    full = {result.metrics["loss"] for result in results if result.metrics["training_iteration"] == 4}
    assert {12, 13, 14, 15} <= full
    assert results.work == 16 + 3 * len(full)
    stopping = ASHAScheduler(max_t=4, reduction_factor=4)
    stopped = ["rung" in result.reason for result in simulated(scores, stopping, mode="max") if result.reason]
    assert sum(stopped) == (15 if falling else 0)


def test_promotions_are_drawn_as_such():
    pytest.importorskip("matplotlib")
    from matplotlib.collections import PathCollection

    results = simulated(LOSSES)
    (axes,) = results.plot("rungs").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "1\n9 arrived\n3 continued",
        "3\n3 arrived\n1 continued",
    ]
    assert [text.get_text() for text in axes.get_legend().get_texts()][:2] == ["not promoted", "promoted"]
    points = [each for each in axes.collections if isinstance(each, PathCollection)]
    assert [len(each.get_offsets()) for each in points] == [8, 4], "with those of both rungs"


# --- trials with files ----------------------------------------------------------------------------


class Counting(Counted):
    """Says how many iterations have led to its state, so that none is run twice unnoticed."""

    def reports(self, number):
        return {"loss": self.config["loss"], "ran": number}


def counting(config):
    for step, saved in steps(20):
        tune.report({"loss": config["loss"], "ran": step}, checkpoint=saved)


@pytest.mark.parametrize("trainable", [Counting, counting])
def test_trials_go_on_from_their_checkpoints(trainable, fit):
    space = {"loss": tune.grid_search(LOSSES)}
    grid = fit(trainable, space, metric="loss", scheduler=promotion(), max_concurrent_trials=1)
    assert [str(result.status) for result in grid] == ["TERMINATED"] * 9
    for result, loss in zip(grid, LOSSES, strict=True):
        reached = {0.1: 9, 0.2: 3, 0.3: 3}.get(loss, 1)
        assert result.metrics["training_iteration"] == reached
        assert result.metrics["ran"] == reached
    assert jobs(grid) == JOBS
    best = grid.get_best_result()
    assert [(each["verdict"], each.get("rung"), each.get("rank")) for each in best.decisions] == [
        ("PAUSE", 1, 1),
        ("RESUME", 1, 1),
        ("PAUSE", 3, 1),
        ("RESUME", 3, 1),
        ("STOP", None, None),
    ]
    assert best.reason == "reached max_t=9"
