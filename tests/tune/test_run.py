"""`tune.run`, with the arguments that it had from Ray 1.x to 2.x."""

from __future__ import annotations

import datetime
import logging
import random
from pathlib import Path

import numpy
import pytest

from trainkit import tune
from trainkit.errors import ConfigError, TrialError
from trainkit.tune.core import seeds
from trainkit.tune.run_arguments import resuming
from trainkit.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.usefixtures("inline")

FRESH_SEED = seeds.fresh_seed  # which tests have none of


@pytest.fixture
def run(tmp_path):
    """`tune.run` that keeps quiet and writes into the test's folder."""

    def run(trainable, **settings):
        return tune.run(trainable, **{"verbose": 0, "local_dir": str(tmp_path), "name": "e", **settings})

    return run


def objective(config):
    for step in range(3):
        tune.report(loss=config.get("x", 1) / (step + 1), step=step)


class Counting(tune.Trainable):
    def setup(self, config):
        self.count = 0

    def step(self):
        self.count += 1
        return {"count": self.count, "loss": 1 / self.count, "done": self.count == 4}

    def save_checkpoint(self, checkpoint_dir):
        return {"count": self.count}

    def load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]


def test_every_argument_has_its_place(run, tmp_path):
    told = []

    class Tells(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            told.append(result["step"])

    analysis = run(
        objective,
        metric="loss",
        mode="min",
        stop={"step": 1},
        time_budget_s=datetime.timedelta(seconds=60),
        config={"x": tune.uniform(1, 2)},
        resources_per_trial={"cpu": 2, "gpu": 0},
        num_samples=2,
        search_alg="random",
        scheduler=ASHAScheduler(grace_period=2),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        log_to_file=True,
        trial_name_creator=lambda trial: f"mine {trial.trial_id}",
        trial_dirname_creator=lambda trial: f"x={trial.config['x']:.3f}",
        max_failures=2,
        callbacks=[Tells()],
        max_concurrent_trials=1,
        chdir_to_trial_dir=False,
    )
    assert told == [0, 1, 0, 1]
    assert all(Path(trial.path).name == f"x={trial.config['x']:.3f}" for trial in analysis.trials)
    assert all(Path(trial.path, "stdout").exists() for trial in analysis.trials)


def test_a_failed_trial_is_an_error_of_the_call(run):
    def fails(config):
        if config["x"]:
            raise ValueError("of no use")
        return {"loss": 1.0}

    space = {"x": tune.grid_search([0, 1, 1])}
    told = r"2 of 3 trials failed .*: ValueError: of no use.*raise_on_failed_trial=False"
    with pytest.raises(TrialError, match=told) as info:
        run(fails, config=space)
    assert isinstance(info.value.__cause__, ValueError)
    analysis = run(fails, config=space, name="told", raise_on_failed_trial=False)
    assert [trial.error is None for trial in analysis.trials] == [True, False, False]
    with pytest.raises(ValueError, match="of no use"):
        run(fails, config=space, name="raised", fail_fast="raise")


@pytest.mark.parametrize(("attribute", "kept"), [("min-loss", [3, 4]), ("loss", [1, 2]), (None, [3, 4])])
def test_the_older_checkpoint_arguments(run, attribute, kept):
    """A score is the larger the better, unless "min-" stands before its name."""
    (trial,) = run(
        Counting,
        keep_checkpoints_num=2,
        checkpoint_score_attr=attribute,
        checkpoint_freq=1,
        checkpoint_at_end=True,
    ).trials
    assert [report["count"] for _, report in trial.best_checkpoints] == kept


@pytest.mark.parametrize("policy", [None, tune.CheckpointConfig(), {"num_to_keep": 1}])
def test_a_class_is_not_saved_at_its_end_unless_asked(run, policy):
    (trial,) = run(Counting, checkpoint_config=policy, name="unsaved").trials
    assert trial.checkpoint is None
    asked = tune.CheckpointConfig(checkpoint_at_end=True)
    (trial,) = run(Counting, checkpoint_config=asked, name="saved", stop={"count": 2}).trials
    path = trial.checkpoint.path
    (trial,) = run(Counting, name="saved", resume=True, stop={"count": 2}).trials
    assert trial.checkpoint.path == path


def test_trials_begin_with_the_checkpoint_of_another(run, tmp_path):
    (first,) = run(Counting, checkpoint_freq=1, stop={"count": 2}).trials
    (second,) = run(Counting, name="second", restore=first.checkpoint.path).trials
    assert [row["count"] for row in second.history] == [3, 4]
    with pytest.raises(ConfigError, match="does not exist"):
        run(Counting, name="third", restore=tmp_path / "nothing")


# --- going on -------------------------------------------------------------------------------------


def fails_once(config):
    marker = Path(config["folder"], f"{config['x']}")
    tune.report(attempt=int(marker.exists()))
    if not marker.exists():
        marker.touch()
        if config["x"]:
            raise RuntimeError("once")


@pytest.fixture
def half_done(run, tmp_path):
    """An experiment in which one trial of two has failed, and what goes on with it."""
    space = {"x": tune.grid_search([0, 1]), "folder": str(tmp_path)}

    def goes_on(resume, **settings):
        return run(fails_once, config=space, resume=resume, raise_on_failed_trial=False, **settings)

    assert [trial.error is None for trial in goes_on(False).trials] == [True, False]
    return goes_on


@pytest.mark.parametrize(
    ("resume", "mended"),
    [
        (True, False),
        ("AUTO", False),
        ("AUTO+ERRORED", True),
        ("LOCAL+RESTART_ERRORED", True),
        ("ERRORED_ONLY", True),
    ],
)
def test_it_goes_on_as_asked(half_done, resume, mended):
    trials = half_done(resume).trials
    assert len(trials) == 2
    assert (trials[1].error is None) == mended


def test_it_goes_on_in_detail(half_done):
    again = tune.ResumeConfig.ResumeType
    trials = half_done(True, resume_config=tune.ResumeConfig(errored=again.RESTART)).trials
    assert trials[1].error is None
    with pytest.raises(ConfigError, match="contradict"):
        half_done("AUTO+ERRORED", resume_config=tune.ResumeConfig())


def test_auto_begins_where_there_is_nothing_and_true_does_not(run):
    assert len(run(objective, resume="AUTO", name="new").trials) == 1
    assert len(run(objective, resume="AUTO", name="new").trials) == 1
    assert len(run(objective, resume="AUTO", name=None).trials) == 1
    with pytest.raises(tune.error.StoreError):
        run(objective, resume=True, name="never begun")
    with pytest.raises(ConfigError, match="needs the name"):
        run(objective, resume=True, name=None)


@pytest.mark.parametrize("resume", ["PROMPT", "NEVER", "AUTO+", "AUTO+ALL", "LOCAL+ERRORED+ERRORED", 3])
def test_other_words_are_refused(resume):
    if resume == "AUTO+":
        assert resuming(resume).wanted
        return
    with pytest.raises(ConfigError, match="resume="):
        resuming(resume)


# --- what Ray took, and what it did not -----------------------------------------------------------


def test_obsolete_arguments_warn_and_unknown_ones_are_refused(run, caplog):
    with caplog.at_level(logging.WARNING, logger="trainkit"):
        run(objective, queue_trials=True, with_server=False, ray_auto_init=True)
    (warning,) = [record.message for record in caplog.records if "tune.run" in record.message]
    assert all(name in warning for name in ("queue_trials", "with_server", "ray_auto_init"))
    with pytest.raises(ConfigError, match=r"no argument 'num_sample'\. Did you mean 'num_samples'"):
        run(objective, num_sample=3)


def test_rays_variables_are_heeded(run, tmp_path, monkeypatch):
    monkeypatch.delenv("TRAINKIT_RESULTS_DIR", raising=False)
    monkeypatch.setenv("TUNE_RESULT_DIR", str(tmp_path / "results"))
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    analysis = run(objective, local_dir=None, name="b", metric="unheard_of", mode="min")
    (trial,) = analysis.trials
    assert Path(trial.path).parent == tmp_path / "results" / "b"
    assert trial.error is None
    assert not Path(trial.path, "result.json").exists()


# --- experiments as objects -----------------------------------------------------------------------


def test_an_experiment_is_run_as_it_says(run):
    experiment = tune.Experiment("named", objective, config={"x": tune.grid_search([1, 2])}, stop={"step": 1})
    analysis = tune.run(experiment, verbose=0, local_dir=experiment_folder(run))
    assert len(analysis.trials) == 2
    assert Path(analysis.trials[0].path).parent.name == "named"
    assert [trial.metrics["step"] for trial in analysis.trials] == [1, 1]


def experiment_folder(run):
    return run.__closure__[0].cell_contents


def test_several_experiments_give_all_their_trials(tmp_path):
    specs = {
        "first": {"run": objective, "config": {"x": tune.grid_search([1, 2])}},
        "second": {"run": Counting, "stop": {"training_iteration": 2}},
    }
    trials = tune.run_experiments(specs, verbose=0, local_dir=str(tmp_path))
    assert [Path(trial.path).parent.name for trial in trials] == ["first", "first", "second"]
    again = [tune.Experiment("third", objective), {"fourth": {"run": objective, "env": "corridor"}}]
    trials = tune.run_experiments(again, verbose=0, local_dir=str(tmp_path))
    assert trials[1].config == {"env": "corridor"}


def test_experiments_that_are_none_are_refused():
    with pytest.raises(ConfigError, match="no 'run'"):
        tune.run_experiments({"a": {"config": {}}})
    with pytest.raises(ConfigError, match="experiments=3"):
        tune.run_experiments(3)
    with pytest.raises(ConfigError, match="run_experiments"):
        tune.run({"a": {"run": objective}})
    with pytest.raises(ConfigError, match="at least one"):
        tune.run([])


# --- names ----------------------------------------------------------------------------------------


def dirnames(run, creator, **settings):
    analysis = run(
        objective, config={"x": tune.grid_search([1, 1, 2])}, trial_dirname_creator=creator, **settings
    )
    folder = Path(analysis.trials[0].path).parent
    assert all(Path(trial.path).parent == folder and Path(trial.path).is_dir() for trial in analysis.trials)
    return [Path(trial.path).name for trial in analysis.trials]


ODD_NAMES = ["../../etc", "ü" * 300, "", "/", "same", ".hidden", "a\0b"]


@pytest.mark.parametrize("asked", [*ODD_NAMES, "Experiment.sqlite"])
def test_folders_of_any_name_are_safe_and_unique(run, asked):
    if not asked:
        with pytest.raises(ConfigError, match="trial_dirname_creator returned ''"):
            dirnames(run, lambda trial: asked)
        return
    names = dirnames(run, lambda trial: asked)
    assert len(set(names)) == 3
    assert all(len(name.encode()) < 200 and "/" not in name for name in names)
    assert not any(name.lower().startswith((".", "experiment.")) for name in names)  # as the store is called


@pytest.mark.parametrize("which", ["trial_name_creator", "trial_dirname_creator"])
def test_a_creator_that_fails_says_so(run, which):
    with pytest.raises(ConfigError, match=f"{which} raised KeyError for trial"):
        run(objective, **{which: lambda trial: trial.config["missing"]})
    with pytest.raises(ConfigError, match=f"{which} returned 3 for trial"):
        run(objective, name="number", **{which: lambda trial: 3})


def test_creators_have_the_attributes_of_rays_trials(run):
    def name(trial):
        params = ",".join(f"{key}={value}" for key, value in trial.evaluated_params.items())
        return f"{trial.trainable_name}/{trial.trial_id}/{params}/{trial.experiment_tag}"

    def trainable(config):
        return {"name": tune.get_trial_name()}

    config = {"x": tune.grid_search([5]), "fixed": 3}
    (trial,) = run(trainable, config=config, trial_name_creator=name).trials
    assert trial.metrics["name"] == f"trainable/{trial.trial_id}/x=5/0_x=5"
    (trial,) = run(trainable, name="text", trial_name_creator=str).trials
    assert trial.metrics["name"] == f"trainable_{trial.trial_id}"
    (trial,) = run(trainable, name="long", trial_name_creator=lambda trial: "../" + "n" * 300).trials
    assert trial.metrics["name"] == "../" + "n" * 300


def test_a_failed_trial_of_one_experiment_ends_none_of_the_others(run):
    def fails(config):
        raise ValueError("no")

    with pytest.raises(TrialError, match="1 of 2 trials failed") as caught:
        run([tune.Experiment("a", fails), tune.Experiment("b", objective)])
    assert "/a, " in str(caught.value)


@pytest.mark.parametrize("seed", [numpy.random.seed, random.seed])
def test_a_program_that_seeds_its_generators_gets_the_same_configurations(run, seed, monkeypatch):
    """A program that seeds NumPy's has random search from that, as under Ray; else Python's will do."""
    space = {"x": tune.uniform(0, 1), "y": tune.sample_from(lambda spec: numpy.random.rand())}

    def configs():
        return [trial.config for trial in run(objective, config=space, num_samples=2).trials]

    monkeypatch.setattr(seeds, "fresh_seed", FRESH_SEED)
    kept = numpy.random.get_bit_generator()
    try:
        numpy.random.set_bit_generator(numpy.random.MT19937())  # as in a program that has not seeded it
        seed(3)
        first, second = configs(), configs()
        seed(3)
        assert configs() == first != second
    finally:
        numpy.random.set_bit_generator(kept)
