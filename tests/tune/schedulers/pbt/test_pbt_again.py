"""Members of a population that had ended and run again after a restore: the others go on as they did."""

from __future__ import annotations

import os

import pytest

from tests.tune.schedulers.pbt.test_pbt_runs import Toy, exploits, moved, trained
from trainkit import tune

__all__ = ["trained"]

pytestmark = pytest.mark.usefixtures("inline")


class Fragile(Toy):
    """Fails at report 6 of the second trial while it may, and interrupts at a report of the third once."""

    fails, interrupts = True, 0

    def step(self):
        report = super().step()
        if type(self).fails and self.iteration == 5 and self.trial_name.endswith("1"):
            raise RuntimeError("no more")
        if self.iteration == type(self).interrupts - 1 and self.trial_name.endswith("2"):
            type(self).interrupts = 0
            os.kill(os.getpid(), 2)
        return report


@pytest.fixture(autouse=True)
def _anew():
    Fragile.fails, Fragile.interrupts = True, 0


def at_intervals(results) -> bool:
    """Whether each member exploited at multiples of the interval only, and once at each."""
    places = [(each["trial_id"], each["iteration"]) for each in exploits(results)]
    return len(set(places)) == len(places) and all(iteration % 4 == 0 for _, iteration in places)


def retrained(stretches):
    """The weights that the stretches of a lineage lead to."""
    theta = [0.9, 0.9]
    for stretch in stretches:
        for _ in range(len(stretch)):
            theta = moved(theta, stretch.config)
    return theta


@pytest.mark.parametrize(("how", "at"), [("resume_errored", 10), ("restart_errored", 0)])
def test_a_member_that_failed_runs_again(trained, restore, tmp_path, at, how):
    Fragile.interrupts = at
    first = trained(Fragile, synch=True)
    before = first.exchanges()
    assert before and first.num_errors == 1
    Fragile.fails = False
    for _ in range(2):
        results = restore(Fragile, **{how: True})
        assert [str(result.status) for result in results] == ["TERMINATED"] * 4
        assert results.exchanges()[: len(before)] == before and at_intervals(results)
        for result in results:
            assert result.metrics["theta"] == retrained(result.lineage())
            policy = tmp_path / "e" / f"pbt_policy_{result.trial_id}.txt"
            assert policy.exists() == (len(result.lineage()) > 1)


def test_a_population_that_is_extended_keeps_its_intervals(trained, restore, tmp_path):
    Fragile.fails = False
    trained(Fragile, synch=True, until=8)
    config = tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0, stop={"training_iteration": 20})
    extended = {"resume_finished": True, "run_config": config}
    Fragile.interrupts = 14
    restore(Fragile, **extended)
    assert Fragile.interrupts == 0
    results = restore(Fragile)
    assert [result.metrics["training_iteration"] for result in results] == [20] * 4
    assert at_intervals(results)
    assert {each["iteration"] for each in results.decisions() if each.get("rule") == "barrier"} == {
        4,
        8,
        12,
        16,
        20,
    }
