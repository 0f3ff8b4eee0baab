"""Experiments as a storage of Optuna's: the reading half of its own suite, its plots, and what it refuses."""

from __future__ import annotations

import math
import pickle
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers import ASHAScheduler
from trainkit.tune.store.writer import ExperimentStore

optuna = pytest.importorskip("optuna")
from optuna.distributions import FloatDistribution  # noqa: E402
from optuna.study import StudyDirection  # noqa: E402
from optuna.testing.pytest_storages import StorageTestCase  # noqa: E402
from optuna.trial import FrozenTrial, TrialState  # noqa: E402

from trainkit.plugins.integrations.optuna_storage import ExperimentStorage  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("inline"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
]

SPACE = {
    "paramA": tune.uniform(0, 1),
    "paramB": tune.loguniform(1, 2),
    "paramC": tune.choice(["CatA", "CatB", "CatC"]),
    "paramD": tune.uniform(-3, 0),
    "paramE": tune.choice([0.1, 0.2]),
}
"""The parameters of the trials that Optuna's suite makes up."""


class WrittenExperiments(ExperimentStorage):
    """Storage for Optuna's suite, whose studies and trials are written as a tuner writes them.

    An experiment has no attributes that a user sets, and its own dates and reports: what the suite expects
    of a trial there is made equal to what was written.
    """

    def __init__(self, root: Path) -> None:
        self.stores: dict[int, ExperimentStore] = {}
        self.numbers: dict[int, int] = {}
        self.written: set[str] = set()
        super().__init__(root)

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        name = study_name or f"no-name-{uuid.uuid4()}"
        if study_name in self.written:
            super().create_new_study(directions, study_name)
        modes = ["min" if each is StudyDirection.MINIMIZE else "max" for each in directions]
        store = written(self._root / name, [f"m{place}" for place in range(len(modes))], modes)
        self.written.add(name)
        study_id = self.get_study_id_from_name(name)
        self.stores[study_id], self.numbers[study_id] = store, 0
        return study_id

    def set_study_user_attr(self, study_id: int, key: str, value: object) -> None:
        """Leave it out."""

    set_study_system_attr = set_study_user_attr

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        number = self.numbers[study_id]
        self.numbers[study_id] += 1
        template = template_trial or optuna.trial.create_trial(state=TrialState.RUNNING)
        write_trial(self.stores[study_id], number, template)
        trial_id = self.get_trial_id_from_study_id_trial_number(study_id, number)
        made = self.get_trial(trial_id)
        template.datetime_start, template.datetime_complete = made.datetime_start, made.datetime_complete
        template.user_attrs, template.system_attrs = made.user_attrs, made.system_attrs
        if template.state is TrialState.PRUNED:  # its value is its last report
            template.values = list(template.intermediate_values.values())[-1:] or None
        if template.state is TrialState.COMPLETE and len(self.get_study_directions(study_id)) == 1:
            last = max(template.intermediate_values, default=-1) + 1
            template.intermediate_values = {**template.intermediate_values, last: template.value}
        elif len(self.get_study_directions(study_id)) > 1:
            template.intermediate_values = {}
        return trial_id


def written(folder: Path, metrics: list[str], modes: list[str]) -> ExperimentStore:
    """Begin an experiment, which this process runs until the store is closed."""
    several = len(metrics) > 1
    facts = {
        "seed": 1,
        "created": 1.0,
        "space": SPACE,
        "tune_config": {
            "metric": metrics if several else metrics[0],
            "mode": modes if several else modes[0],
            "scheduler": None,
        },
        "objectives": list(zip(metrics, modes, strict=True)) if several else [],
    }
    return ExperimentStore.create(folder, facts)


def write_trial(store: ExperimentStore, number: int, template: FrozenTrial) -> None:
    trial = Trial(f"t_{number}", number, dict(template.params), f"t_{number}", f"t_{number}")
    events: list[object] = [ev.TrialAdded(trial)]
    reports = [{"training_iteration": s, "m0": v} for s, v in sorted(template.intermediate_values.items())]
    if template.state is TrialState.COMPLETE:
        last = max(template.intermediate_values, default=-1) + 1
        reports.append(
            {"training_iteration": last, **{f"m{n}": value for n, value in enumerate(template.values)}}
        )
    if template.state is not TrialState.WAITING or reports:
        events.append(ev.AttemptStarted(trial, 0, 10.0, 1, "host", "ip", 0))
    events += [ev.ResultAdded(trial, 0, each["training_iteration"], 11.0, each, each) for each in reports]
    status, reason, failure = {
        TrialState.COMPLETE: (TrialStatus.TERMINATED, "finished", None),
        TrialState.PRUNED: (TrialStatus.TERMINATED, "stopped by ASHAScheduler: rung 1", None),
        TrialState.FAIL: (TrialStatus.ERROR, "ValueError", Failure("ValueError", "no", "")),
        TrialState.WAITING: (TrialStatus.PENDING, "", None),
        TrialState.RUNNING: (None, "", None),
    }[template.state]
    if status is not None and (status is not TrialStatus.PENDING or reports):
        events.append(ev.StatusChanged(trial, 12.0, status, reason, 0, 0, failure))
    store.commit(events)


class TestReadingHalfOfOptunasSuite:
    """Tests of Optuna's suite that read, as they are in the installed package.

    Left out are those that are about writing, and about attributes that a user sets.
    """

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[WrittenExperiments]:
        storage = WrittenExperiments(tmp_path)
        yield storage
        for store in storage.stores.values():
            store.close()


for name in """
    get_study_id_from_name_and_get_study_name_from_id get_trial_number_from_id get_trial get_all_trials
    get_all_trials_deepcopy_option get_all_trials_state_option get_n_trials get_n_trials_state_option
    get_best_trial get_best_trial_for_multi_objective_optimization get_trial_id_from_study_id_trial_number
    check_trial_is_updatable create_new_study_with_name
""".split():
    setattr(TestReadingHalfOfOptunasSuite, f"test_{name}", getattr(StorageTestCase, f"test_{name}"))


def test_studies_are_the_experiments_of_a_folder(tmp_path: Path):
    stores = [
        written(tmp_path / "one", ["m0"], ["min"]),
        written(tmp_path / "two", ["m0", "m1"], ["max", "min"]),
        written(tmp_path / "none", [None], [None]),  # type: ignore[list-item]
    ]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "experiment.sqlite").write_text("no database")
    storage = ExperimentStorage(tmp_path)
    one, two = storage.get_all_studies()
    assert [study.study_name for study in (one, two)] == ["one", "two"]
    assert one.direction is StudyDirection.MINIMIZE
    assert two.directions == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    assert two.system_attrs == {"study:metric_names": ["m0", "m1"]}
    assert optuna.load_study(study_name="two", storage=storage).metric_names == ["m0", "m1"]
    assert one.user_attrs["folder"] == str(tmp_path / "one")
    assert set(storage.left_out) == {"broken", "none"}
    assert "has no metric" in storage.left_out["none"]
    with pytest.raises(KeyError, match="has no metric"):
        storage.get_study_id_from_name("none")
    with pytest.raises(ConfigError, match="give metric= and mode="):
        ExperimentStorage(tmp_path / "none")
    with pytest.raises(ConfigError, match="give both, or neither"):
        ExperimentStorage(tmp_path / "none", metric="m0")
    with pytest.raises(StoreError, match="no such folder"):
        ExperimentStorage(tmp_path / "nowhere")
    given = ExperimentStorage(tmp_path / "none", metric="other", mode="max")
    assert given.get_all_studies()[0].system_attrs == {"study:metric_names": ["other"]}
    # One that begins later is there, and ids stay.
    stores.append(written(tmp_path / "a-later-one", ["m0"], ["max"]))
    ids = {study.study_name: study._study_id for study in storage.get_all_studies()}
    assert (ids["one"], ids["two"]) == (one._study_id, two._study_id)
    assert storage.get_study_name_from_id(ids["a-later-one"]) == "a-later-one"
    again = pickle.loads(pickle.dumps(storage))
    assert {study.study_name: study._study_id for study in again.get_all_studies()} == ids
    for store in stores:
        store.close()


def test_each_commit_of_a_running_experiment_is_seen_by_the_next_look(tmp_path: Path):
    store = written(tmp_path / "e", ["m0"], ["min"])
    study = optuna.load_study(study_name="e", storage=ExperimentStorage(tmp_path / "e"))
    trial = Trial("t_0", 0, {"paramA": 0.5}, "t_0", "t_0")
    store.commit([ev.TrialAdded(trial)])
    assert [each.state for each in study.trials] == [TrialState.WAITING]
    store.commit([ev.AttemptStarted(trial, 0, 10.0, 1, "host", "ip", 0)])
    assert [each.state for each in study.trials] == [TrialState.RUNNING]
    before = study.trials
    for step in range(1, 201):
        report = {"training_iteration": step, "m0": 1 / step}
        store.commit([ev.ResultAdded(trial, 0, step, 11.0, report, report)])
        assert study.trials[0].last_step == step
    assert before[0].intermediate_values == {}, "what was read before stays as it was"
    store.commit([ev.StatusChanged(trial, 12.0, TrialStatus.PAUSED, "paused", 1, 0)])
    assert study.trials[0].state is TrialState.RUNNING
    assert study.trials[0].user_attrs["status"] == "PAUSED"
    store.commit([ev.AttemptStarted(trial, 1, 13.0, 1, "host", "ip", 200)])
    store.close()  # as a kill leaves it: nobody runs it, and no end is noted
    assert study.trials[0].state is TrialState.WAITING
    assert study.trials[0].user_attrs["reason"].startswith("interrupted")
    assert study.user_attrs["state"] == "not running"


def test_nothing_can_be_written(tmp_path: Path):
    written(tmp_path / "e", ["m0"], ["min"]).close()
    before = (tmp_path / "e" / "experiment.sqlite").read_bytes()
    storage = ExperimentStorage(tmp_path / "e")
    study = optuna.create_study(study_name="e", storage=storage, load_if_exists=True)
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        optuna.create_study(study_name="e", storage=storage)
    for write in (
        lambda: optuna.create_study(study_name="other", storage=storage),
        lambda: optuna.delete_study(study_name="e", storage=storage),
        lambda: study.optimize(lambda trial: 1.0, n_trials=1),
        lambda: study.ask(),
        lambda: study.enqueue_trial({"paramA": 0.5}),
        lambda: study.set_user_attr("a", 1),
        lambda: study.set_metric_names(["loss"]),
        lambda: storage.set_trial_param(0, "a", 0.5, FloatDistribution(0, 1)),
        lambda: storage.set_trial_state_values(0, TrialState.COMPLETE, [1.0]),
        lambda: storage.set_trial_intermediate_value(0, 1, 1.0),
        lambda: storage.set_trial_user_attr(0, "a", 1),
        lambda: storage.set_trial_system_attr(0, "a", 1),
    ):
        with pytest.raises(StoreError, match=r"cannot be written: this storage only reads .*/e, which"):
            write()
    assert (tmp_path / "e" / "experiment.sqlite").read_bytes() == before


def objective(config):
    if config["x"] > 9:
        raise ValueError("too far")
    for step in range(1, 10):
        loss = (config["x"] - 2) ** 2 * config["net"]["lr"] * 100 + 1 / step
        tune.report({"loss": loss, "size": config["net"].get("width", 0), "odd": math.nan})


CONDITIONAL = {
    "x": tune.uniform(-10, 10),
    "kind": tune.choice(["a", "b"]),
    "net": {
        "lr": tune.loguniform(1e-4, 1e-1),
        "width": tune.when({"kind": "a"}, tune.qrandint(8, 64, 8)),
    },
}


@pytest.fixture(scope="module")
def experiments(inline, tmp_path_factory) -> Path:
    """Two finished experiments, of one objective and of two."""
    root = tmp_path_factory.mktemp("experiments")
    for name, settings in {
        "one": {
            "metric": "loss",
            "mode": "min",
            "scheduler": ASHAScheduler(max_t=9, grace_period=3, reduction_factor=2),
        },
        "two": {"metric": ["loss", "size"], "mode": ["min", "max"]},
    }.items():
        tune.Tuner(
            objective,
            param_space=CONDITIONAL,
            tune_config=tune.TuneConfig(num_samples=30, seed=1, **settings),
            run_config=tune.RunConfig(storage_path=root, name=name, verbose=0),
        ).fit()
    return root


def test_an_experiment_is_what_its_results_have_as_a_study(experiments: Path):
    ours = optuna.load_study(study_name="one", storage=ExperimentStorage(experiments))
    theirs = tune.ResultGrid.from_path(experiments / "one").to_optuna()
    assert ours.best_value == theirs.best_value
    for one, other in zip(ours.trials, theirs.trials, strict=True):
        assert (one.number, one.state, one.values) == (other.number, other.state, other.values)
        assert (one.params, one.distributions) == (other.params, other.distributions)
        assert one.intermediate_values == other.intermediate_values
        one._validate()
    assert {trial.state.name for trial in ours.trials} == {"COMPLETE", "PRUNED", "FAIL"}
    complete = next(trial for trial in ours.trials if trial.state is TrialState.COMPLETE)
    assert "size" in complete.user_attrs and "odd" not in complete.user_attrs
    assert any("net/width" not in trial.params for trial in ours.trials)
