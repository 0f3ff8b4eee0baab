"""What a scheduler gets that is wrapped in one that changes resources: the same as without."""

from __future__ import annotations

import pytest

from tests.tune.schedulers.pbt.test_pbt_runs import Toy, pbt
from trainkit.tune.schedulers import ASHAScheduler, HyperBandScheduler, ResourceChangingScheduler


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("interval", "written"), [(2, True), (9, False)])
def test_population_based_training_has_its_files_and_its_warning(fit, tmp_path, caplog, interval, written):
    fit(
        Toy,
        metric="q",
        mode="max",
        num_samples=4,
        scheduler=ResourceChangingScheduler(pbt(perturbation_interval=interval)),
        seed=0,
        run={"stop": {"training_iteration": 6}},
    )
    assert (tmp_path / "e" / "pbt_global.txt").exists() == written
    assert ("no trial will be changed" in caplog.text) == (not written)


def test_what_the_other_scheduler_must_hear_after_a_restore_it_hears():
    assert ResourceChangingScheduler(HyperBandScheduler()).hears_again
    assert not ResourceChangingScheduler(ASHAScheduler()).hears_again
