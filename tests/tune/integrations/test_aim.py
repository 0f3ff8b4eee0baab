"""Aim's own repository: a run per trial, which goes on with the trial."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.errors import MissingDependencyError
from trainkit.tune.logger.aim import AimLoggerCallback

pytestmark = pytest.mark.usefixtures("inline")


def test_a_run_per_trial_which_goes_on_with_the_trial(fit, fails_once, tmp_path):
    aim = pytest.importorskip("aim", reason="aim, which takes 190 MB, is not pinned: pip install aim")
    fit(fails_once, {"lr": tune.grid_search([1.0, 2.0])}, run={"callbacks": [AimLoggerCallback()]})
    again = tune.RunConfig(callbacks=[AimLoggerCallback()], verbose=0)
    tune.Tuner.restore(str(tmp_path / "e"), fails_once, resume_errored=True, run_config=again).fit()
    repo, found = aim.Repo(str(tmp_path / "e")), []
    for name in repo.list_all_runs():
        run = aim.Run(name, repo=repo, system_tracking_interval=None, capture_terminal_logs=False)
        values = {each.name: sorted(each.values.sparse_numpy()[1].tolist()) for each in run.metrics()}
        assert "nan" not in values
        found.append((run["hparams", "lr"], run["status"], run.experiment, values["loss"]))
        run.close()
    assert sorted(found) == [
        (1.0, "FINISHED", "e", [1.0, 2.0, 3.0]),
        (2.0, "FINISHED", "e", [2.0, 4.0, 6.0]),
    ]


def test_who_lacks_it_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("trainkit.tune.integrations.aim.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'trainkit-ml\[aim\]'"):
        AimLoggerCallback()
