"""An experiment that is gone on with: more samples, another space, another rule, longer trials."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

import pytest

from tests.tune import pausing
from trainkit import tune
from trainkit.cli.why import experiment_lines
from trainkit.errors import ConfigError
from trainkit.tune.controller.events import COMMAND, Noted
from trainkit.tune.core.configs import Resume
from trainkit.tune.core.metrics import encode
from trainkit.tune.search import BasicVariantGenerator
from trainkit.tune.search.base import Searcher
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.restore import ResumeRule
from trainkit.tune.store.spaces import differences
from trainkit.tune.store.writer import ExperimentStore

pytestmark = pytest.mark.usefixtures("inline")


def counting(config):
    """Counts on from its checkpoint; its report says in which step."""
    for step, saved in pausing.steps():
        report = {"step": step, "loss": config.get("x", 1) / step}
        tune.report(report, checkpoint=saved if step % 2 == 0 else None)


class Told(Searcher):
    """Suggests a count, and keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list = []
        self.elsewhere = 0
        self.ended: list = []

    def __deepcopy__(self, memo: dict) -> Told:
        return self

    @property
    def arguments(self) -> dict:
        return {}

    def suggest(self, trial_id):
        return {"x": 0.5, "asked": len(self.known)}

    def is_drawn(self, trial_id):
        return False

    def replay(self, trial_id, config, *, same_space=True):
        self.known.append(config["asked"])
        self.elsewhere += not same_space
        return config

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.ended.append((trial_id, result and result["loss"], error))


def steps(grid) -> list[list[int]]:
    return [[row["step"] for row in result.history] for result in grid]


# --- row 2.4 --------------------------------------------------------------------------------------


def test_a_finished_experiment_takes_more_samples(fit, restore):
    """Row 2.4: ten samples after four are six new trials, and the searcher knows the first four."""

    def trainable(config):
        return {"loss": config["x"]}

    grid = fit(trainable, {"x": tune.uniform(0, 1)}, metric="loss", num_samples=4, seed=3)
    whole = fit(
        trainable, {"x": tune.uniform(0, 1)}, metric="loss", num_samples=10, seed=3, run={"name": "whole"}
    )
    more = restore(trainable, num_samples=10)
    assert [result.config for result in more] == [result.config for result in whole]
    assert [result.history for result in more][:4] == [result.history for result in grid]


def test_the_searcher_knows_the_trials_of_before(fit, restore):
    fit(lambda config: {"loss": config["x"]}, metric="loss", num_samples=4, search_alg=Told())
    searcher = Told()
    restore(lambda config: {"loss": config["x"]}, num_samples=6, search_alg=searcher)
    assert searcher.known == [0, 0, 0, 0]
    assert [(loss, error) for _, loss, error in searcher.ended] == [(0.5, False)] * 6


def test_finished_trials_go_on_under_another_rule(fit, restore):
    grid = fit(counting, num_samples=2, run={"stop": {"training_iteration": 3}})
    assert steps(grid) == [[1, 2, 3]] * 2
    longer = tune.RunConfig(stop={"training_iteration": 5})
    untouched = restore(counting, run_config=longer)
    assert steps(untouched) == [[1, 2, 3]] * 2
    again = restore(counting, resume_finished=True, run_config=longer)
    assert steps(again) == [[1, 2, 3, 4, 5]] * 2  # step 3 is run again, from the checkpoint of step 2
    assert [row["training_iteration"] for row in again[0].history] == [1, 2, 3, 4, 5]
    assert [result.reason for result in again] == ["training_iteration=5 reached 5"] * 2


def test_one_chosen_trial_is_extended(fit, restore):
    """Row 2.4: extend(trial, stop=...) goes on from its checkpoint."""
    grid = fit(counting, num_samples=3, run={"stop": {"training_iteration": 4}})
    for chosen in ([grid[1]], grid[1].trial_id):
        again = restore(counting, resume_finished=chosen, run={"stop": {"training_iteration": 7}})
        assert [len(each) for each in steps(again)] == [4, 7, 4]
    assert steps(again)[1] == [1, 2, 3, 4, 5, 6, 7]


def test_a_scheduler_that_had_ended_an_extended_trial_says_so(fit, tmp_path):
    asha = tune.schedulers.ASHAScheduler(max_t=2)
    fit(counting, metric="loss", scheduler=asha)
    longer = tune.RunConfig(stop={"training_iteration": 9}, verbose=0)
    restored = tune.Tuner.restore(tmp_path / "e", counting, resume_finished=True, run_config=longer)
    assert restored.fit()[0].reason == "stopped by ASHA: report came after the decision to stop"
    config = tune.TuneConfig(scheduler="fifo")
    restored = tune.Tuner.restore(
        tmp_path / "e", counting, resume_finished=True, run_config=longer, tune_config=config
    )
    assert restored.fit()[0].reason == "training_iteration=9 reached 9"


def test_an_extended_trial_that_was_killed_at_once_is_still_extended(fit, restore, tmp_path):
    """The stop that ended it before doesn't end it again."""

    class Dies(tune.Callback):
        def on_trial_start(self, iteration, trials, trial, **info):
            raise KeyboardInterrupt

    fit(counting, run={"stop": {"training_iteration": 2}})
    longer = {"stop": {"training_iteration": 4}}
    with pytest.raises(KeyboardInterrupt):
        restore(counting, resume_finished=True, run={**longer, "callbacks": [Dies()]})
    with ExperimentReader(tmp_path / "e") as reader:
        assert str(reader.trials()[0].status) == "RUNNING"
    grid = restore(counting, run=longer)
    assert steps(grid) == [[1, 2, 3, 4]]


def test_a_searcher_is_told_the_last_end_of_an_extended_trial(fit, restore):
    fit(counting, metric="loss", search_alg=Told(), run={"stop": {"training_iteration": 2}})
    searcher = Told()
    config = tune.TuneConfig(search_alg=searcher)
    restore(counting, resume_finished=True, tune_config=config, run={"stop": {"training_iteration": 4}})
    assert [loss for _, loss, _ in searcher.ended] == [0.125]
    searcher.ended.clear()
    restore(counting, tune_config=config)
    assert [loss for _, loss, _ in searcher.ended] == [0.125]


def test_who_cannot_go_on_is_named(fit, tmp_path):
    def trainable(config):
        tune.report({"step": 1})
        if config["x"] == 1:
            raise RuntimeError("no luck")

    grid = fit(trainable, {"x": tune.grid_search([0, 1])})
    restore = tune.Tuner.restore
    with pytest.raises(ConfigError, match=f"trials without a checkpoint: {grid[0].trial_id}"):
        restore(tmp_path / "e", trainable, resume_finished=True).fit()
    with pytest.raises(ConfigError, match=rf"{grid[1].trial_id} \(ERROR\)"):
        restore(tmp_path / "e", trainable, resume_finished=[grid[1]]).fit()
    with pytest.raises(ConfigError, match=r"nobody \(no such trial\)"):
        restore(tmp_path / "e", trainable, resume_finished="nobody").fit()
    with pytest.raises(ConfigError, match="must be True, or a list"):
        restore(tmp_path / "e", trainable, resume_finished=[3])
    assert [result.status for result in restore(tmp_path / "e", trainable).fit()] == ["TERMINATED", "ERROR"]


def test_finished_trials_are_started_again_if_so_asked(fit, restore, tmp_path):
    grid = fit(counting, run={"stop": {"training_iteration": 4}})
    config = tune.ResumeConfig(finished=tune.ResumeConfig.ResumeType.RESTART)
    again = restore(counting, resume_config=config, run={"stop": {"step": 3}})
    assert [row["iterations_since_restore"] for row in again[0].history] == [1, 2, 3]
    with ExperimentReader(tmp_path / "e") as reader:
        (trial,) = reader.trials()
    assert (trial.attempt, trial.iteration) == (1, 3)
    assert [kept.iteration for kept in trial.checkpoints] == [2]
    assert len(list(Path(grid[0].path).glob("checkpoint_*"))) == 1


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ((True, False, False, False, None), ("skip", "resume", "skip")),
        ((False, True, False, True, None), ("resume", "skip", "resume")),
        ((True, False, True, False, None), ("skip", "resume", "restart")),
        (
            (True, False, False, False, tune.ResumeConfig(errored=Resume.RESTART)),
            ("skip", "resume", "restart"),
        ),
    ],
)
def test_the_arguments_are_one_rule(arguments, kinds):
    config = ResumeRule.of(*arguments).config
    assert (config.finished, config.unfinished, config.errored) == kinds


# --- row 2.7 --------------------------------------------------------------------------------------


def test_a_category_added_after_ten_trials_is_proposed(fit, restore, caplog):
    """Row 2.7: the old trials count, and the new value is proposed."""

    def trainable(config):
        return {"loss": config["x"] + len(config["kind"])}

    grid = fit(
        trainable,
        {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])},
        metric="loss",
        num_samples=10,
        seed=1,
    )
    wider = {"x": tune.uniform(0, 9), "kind": tune.choice(["a", "b", "new"])}
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        again = restore(trainable, param_space=wider, num_samples=30)
    assert "a changed space: x: uniform(0.0, 1.0) -> uniform(0.0, 9.0)" in caplog.text
    assert len(again) == 30
    assert [result.config for result in again][:10] == [result.config for result in grid]
    assert any(result.config["kind"] == "new" for result in again[10:])
    assert any(result.config["x"] > 1 for result in again[10:])
    # From then on the file has the new space.
    last = restore(trainable, num_samples=40)
    assert [result.config for result in last][:30] == [result.config for result in again]
    assert any(result.config["kind"] == "new" for result in last[30:])


def test_what_was_added_and_is_not_of_another_space_is_left_out_with_a_word(fit, restore, tmp_path, caplog):
    """The others are tried, with what they leave open drawn as before."""

    def trainable(config):
        return {"loss": 1.0}

    space = {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
    fit(trainable, space, metric="loss", num_samples=1, seed=1)
    added = [{"x": 0.25}, {"x": 0.5, "kind": "a"}, {"x": 0.75, "kind": "b"}]
    with contextlib.closing(ExperimentStore.open(tmp_path / "e")) as store:
        for number, config in enumerate(added):
            answer = {"id": str(number), "verb": "add", "arguments": {"config": config}, "by": "ann"}
            store.commit([Noted(1e9, COMMAND, encode({**answer, "outcome": "", "done": True}))])
    other = {"x": tune.uniform(0, 1), "kind": tune.choice(["b", "c"])}
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        grid = restore(trainable, param_space=other)
    words = 'the added configuration {"x":0.5,"kind":"a"} is left out: kind=\'a\''
    assert words in caplog.text
    assert [result.config["x"] for result in grid][1:] == [0.25, 0.75]
    assert [result.status for result in grid] == ["TERMINATED"] * 3
    lines = experiment_lines(tmp_path / "e", None)
    assert sum("addition left out: " in line and words in line for line in lines) == 1
    caplog.clear()
    # It stays left out, also where the space would have it again, and another that is drawn has its place.
    last = restore(trainable, param_space=space, num_samples=4)
    assert [result.config for result in last][:3] == [result.config for result in grid]
    assert len(last) == 4 and last[3].config["x"] not in (0.5, 0.75)
    assert "added configuration" not in caplog.text


def test_a_searcher_is_told_which_trials_are_of_another_space(fit, restore):
    def trainable(config):
        return {"loss": config["x"]}

    fit(trainable, {"z": 1}, num_samples=2, metric="loss", search_alg=Told())
    for total, elsewhere in ((3, 2), (5, 2)):  # also where the space is the same as in the last restore
        config = tune.TuneConfig(num_samples=total, search_alg=(searcher := Told()))
        space = {"z": 2}
        restore(trainable, param_space=space, tune_config=config)
        assert searcher.elsewhere == elsewhere


def test_objects_of_old_trials_are_found_in_the_new_space(fit, restore, tmp_path):
    def trainable(config):
        if not Path(tmp_path, "lucky").exists() and config["n"] == 2:
            raise RuntimeError("not yet")
        return {"kind": config["kind"].__name__}

    grid = fit(trainable, {"n": tune.grid_search([1, 2]), "kind": dict})
    assert grid.num_errors == 1
    (tmp_path / "lucky").touch()
    space = {"n": tune.grid_search([1, 2, 3]), "kind": tune.choice([list])}
    with pytest.raises(ConfigError, match="that can't be rebuilt"):
        restore(trainable, param_space=space, resume_errored=True)
    space["kind"] = tune.choice([dict, list])
    again = restore(trainable, param_space=space, resume_errored=True)
    assert [result.metrics["kind"] for result in again][:2] == ["dict", "dict"]
    assert [result.config["n"] for result in again] == [1, 2, 3]


def test_a_space_of_another_search_is_refused(fit, tmp_path):
    fit(lambda config: 1.0, {"x": tune.uniform(0, 1)})
    with pytest.raises(ConfigError, match="none of the experiment's hyperparameters"):
        tune.Tuner.restore(tmp_path / "e", lambda config: 1.0, param_space={"y": tune.uniform(0, 1)})


def test_what_has_changed_is_said():
    old = {"lr": tune.uniform(0, 1), "net": {"width": 8, "depth": 2}, "same": tune.choice([1, 2])}
    new = {"lr": tune.uniform(0, 2), "net": {"width": 8}, "same": tune.choice([1, 2]), "act": "relu"}
    assert differences(old, new) == [
        "lr: uniform(0.0, 1.0) -> uniform(0.0, 2.0)",
        "net/depth: gone",
        "act: new, relu",
    ]
    assert differences(old, dict(old)) == []


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_a_grid_that_grows_is_tried_where_it_was_not(fit, restore, order):
    """Row 2.7: no combination is left out, and none is tried twice."""
    grown = {"a": [1, 2], "b": [1, 2, 3]}

    def trainable(config):
        return {"pair": f"{config['a']}{config['b']}"}

    fit(trainable, {name: tune.grid_search([1, 2]) for name in order})
    space = {name: tune.grid_search(grown[name]) for name in order}
    for _ in range(2):  # the second time, nothing is left to do
        again = restore(trainable, param_space=space)
        pairs = [result.metrics["pair"] for result in again]
        assert sorted(pairs) == ["11", "12", "13", "21", "22", "23"]


def test_a_replayed_searcher_goes_on_as_if_it_had_been_asked():
    def searcher() -> TrialSource:
        made = BasicVariantGenerator(points_to_evaluate=[{"x": 1.0}])
        space = Space.of({"x": tune.uniform(0, 1), "n": tune.grid_search([1, 2])})
        made.begin(space, metric=None, mode=None, num_samples=4, seed=3)
        return TrialSource(made, space)

    asked, replayed = searcher(), searcher()
    for _ in range(5):
        replayed.replay("t", asked.propose("t"))
    assert [asked.propose("t") for _ in range(4)] == [replayed.propose("t") for _ in range(4)]


# --- settings -------------------------------------------------------------------------------------


def test_all_settings_that_a_file_can_hold_are_kept(fit, tmp_path):
    fit(
        lambda config: 1.0,
        reuse_actors=False,
        trial_timeout_s=77.0,
        allow_duplicates=True,
        run={
            "log_to_file": ("out", "err"),
            "failure_config": tune.FailureConfig(max_failed_trials=3),
            "sync_config": tune.SyncConfig(sync_period=2),
        },
    )
    tuner = tune.Tuner.restore(tmp_path / "e", lambda config: 1.0)
    experiment = tuner._experiment
    assert (experiment._tune.trial_timeout_s, experiment._tune.allow_duplicates) == (77.0, True)
    assert experiment._run.log_to_file == ("out", "err")
    assert experiment._run.failure_config.max_failed_trials == 3
    assert experiment._run.sync_config == tune.SyncConfig(sync_period=2)
