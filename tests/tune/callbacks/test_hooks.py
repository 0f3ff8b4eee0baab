"""Every hook of a callback, loggers for Ray, callbacks by name, and what an error in one does."""

from __future__ import annotations

import csv
import json
import logging
import math
import re
from pathlib import Path

import pytest

from tests.packages import install_from_page
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.callbacks import JsonLoggerCallback

pytestmark = pytest.mark.usefixtures("inline")

RAYS_HOOKS = (
    "setup on_step_begin on_step_end on_trial_start on_trial_restore on_trial_save on_trial_result "
    "on_trial_complete on_trial_recover on_trial_error on_checkpoint on_experiment_end get_state set_state"
).split()


def saves(config):
    """Reports with a checkpoint, fails, and goes on from it; n=1 fails for good."""
    if config["n"] == 1:
        raise ValueError("no luck")
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint.from_dict({}))
        raise KeyError("once more")
    tune.report({"loss": 2})


BOTH = {"n": tune.grid_search([0, 1])}
RETRIED = {"failure_config": tune.FailureConfig(max_failures=1)}


def test_the_hooks_are_rays():
    hooks = {name for name in vars(tune.Callback) if name in ("setup", "get_state", "set_state")}
    hooks |= {name for name in vars(tune.Callback) if name.startswith("on_")}
    assert hooks == {*RAYS_HOOKS, "on_trial_change"}  # and one of our own, for who keeps a lineage


def test_a_callback_written_for_ray_is_called_as_there(fit):
    """Positional and keyword arguments as a subclass for Ray declares them; trials as keys and texts."""
    heard: list[str] = []
    seen: dict = {}

    class ForRay(tune.Callback):
        def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
            heard.append(f"setup {num_samples} {total_num_samples}")

        def on_step_begin(self, iteration, trials, **info):
            heard.append("begin")

        def on_step_end(self, iteration, trials, **info):
            heard.append("end")

        def on_trial_start(self, iteration, trials, trial, **info):
            seen.setdefault(trial, str(trial))
            heard.append(f"start {trial.index}")

        def on_trial_restore(self, iteration, trials, trial, **info):
            heard.append(f"restore {trial.index} with {len(info['results'])} results")

        def on_trial_save(self, iteration, trials, trial, **info):
            heard.append(f"save {trial.index} {trial.checkpoint.dirname}")

        def on_trial_result(self, iteration, trials, trial, result, **info):
            heard.append(f"result {trial.index} {result['loss']} {result['config']['n']}")

        def on_trial_complete(self, iteration, trials, trial, **info):
            heard.append(f"complete {trial.index} {trial.status}")

        def on_trial_recover(self, iteration, trials, trial, **info):
            heard.append(f"recover {trial.index}")

        def on_trial_error(self, iteration, trials, trial, **info):
            heard.append(f"error {trial.index} {trial.failure.message}")

        def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
            heard.append(f"checkpoint {trial.index} {checkpoint.dirname}")

        def on_experiment_end(self, trials, **info):
            heard.append(f"over {[str(trial.status) for trial in trials]} {info['ending']!r}")

    fit(saves, BOTH, run={"callbacks": [ForRay()], **RETRIED}, max_concurrent_trials=1)
    assert [word for word in heard if word not in ("begin", "end")] == [
        "setup 1 2",
        "start 0",
        "result 0 1 0",
        "save 0 checkpoint_000000",
        "checkpoint 0 checkpoint_000000",
        "recover 0",
        "restore 0 with 1 results",
        "start 0",
        "result 0 2 0",
        "complete 0 TERMINATED",
        "start 1",
        "recover 1",
        "restore 1 with 0 results",
        "start 1",
        "error 1 no luck",
        "over ['TERMINATED', 'ERROR'] ''",
    ]
    steps = [word for word in heard if word in ("begin", "end")]
    assert steps == ["begin", "end"] * (len(steps) // 2)
    assert [name.rpartition("_")[2] for name in seen.values()] == ["00000", "00001"]


@pytest.mark.parametrize("hook", RAYS_HOOKS)
def test_a_callback_that_raises_in_a_hook_is_told_of_once_and_touches_nothing(fit, caplog, hook):  # row 1.30
    called = []

    def raises(self, *args, **kwargs):
        called.append(hook)
        raise RuntimeError("the service is down")

    broken, other = type("Broken", (tune.Callback,), {hook: raises}), Counter("beside it")
    with caplog.at_level(logging.WARNING, "trainkit.tune"):
        grid = fit(saves, BOTH, run={"callbacks": [broken(), other], **RETRIED})
    assert (grid.num_terminated, grid.num_errors) == (1, 1)
    assert (grid[0].metrics["loss"], other.results) == (2, 2)
    told = [record for record in caplog.records if f"Broken.{hook}()" in record.getMessage()]
    assert len(told) == len(called[:1])
    assert called or hook == "set_state"  # which a restore calls


# --- states ---------------------------------------------------------------------------------------


class Counter(tune.Callback):
    def __init__(self, name):
        self.name, self.results, self.given = name, 0, None

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results += 1

    def get_state(self):
        return {"name": self.name, "results": self.results}

    def set_state(self, state):
        self.given = state


def once(config):
    return {"loss": 1}


def test_a_callbacks_state_comes_back_when_the_experiment_goes_on(fit, restore):
    fit(once, run={"callbacks": [Counter("a"), Counter("b")]})
    again = [Counter("x"), Counter("y")]
    restore(once, num_samples=2, run={"callbacks": again})
    assert [each.given for each in again] == [{"name": "a", "results": 1}, {"name": "b", "results": 1}]


def test_a_state_that_cannot_be_kept_is_told_of(fit, caplog):
    class Odd(tune.Callback):
        def get_state(self):
            return {"lock": object()}

    assert fit(saves, {"n": 0}, run={"callbacks": [Odd()], **RETRIED}).num_terminated == 1
    (told,) = [record for record in caplog.records if "Odd.get_state()" in record.getMessage()]
    assert re.search("Odd.get_state.*'lock' is <object.*cannot store", str(told.exc_info[1]))


# --- the loggers that come by themselves ----------------------------------------------------------


def files_of(result) -> set[str]:
    names = {path.name for path in Path(result.path).iterdir()}
    return {"events" if "tfevents" in name else name for name in names}


def test_the_default_loggers_are_rays_and_each_can_be_switched_off(fit):
    assert files_of(fit(once)[0]) == {"params.json", "result.json", "progress.csv", "events"}
    for loggers, files in {
        ("csv",): {"progress.csv"},
        ("json",): {"params.json", "result.json"},
        ("tensorboard",): {"events"},
        (): set(),
    }.items():
        (result,) = fit(once, run={"default_loggers": loggers, "name": "-".join(loggers) or "none"})
        assert files_of(result) == files


def test_a_restore_keeps_to_the_loggers_that_were_chosen(fit, restore):
    fit(once, run={"default_loggers": ["csv"]})
    restored = restore(once, num_samples=2, run={"verbose": 0})
    assert [files_of(result) for result in restored] == [{"progress.csv"}] * 2


def test_a_logger_of_the_users_takes_the_place_of_the_default(fit):
    class Mine(JsonLoggerCallback):
        ended = 0

        def log_trial_end(self, trial, failed=False):
            super().log_trial_end(trial, failed)
            Mine.ended += 1

    fit(once, run={"callbacks": [Mine()]})
    assert Mine.ended == 1


def test_a_method_that_can_not_be_called_is_refused_when_it_is_given():
    class Short(tune.Callback):
        def on_trial_result(self, trial, result):
            pass

    class WithoutInfo(tune.Callback):
        def on_experiment_end(self, trials):
            pass

    with pytest.raises(
        ConfigError,
        match=r"on_trial_result\(trial, result\) has the wrong signature .*: define on_trial_result\(self",
    ):
        tune.RunConfig(callbacks=[Short()])
    with pytest.raises(ConfigError, match=r"WithoutInfo\.on_experiment_end\(trials\) has the wrong"):
        tune.RunConfig(callbacks=[WithoutInfo()])
    with pytest.raises(ConfigError, match=r"callbacks=Short is a class; give an object, Short\(\)"):
        tune.RunConfig(callbacks=[Short])

    class Off(tune.Callback):
        on_trial_start = None

    with pytest.raises(ConfigError, match=r"on_trial_start=None has the wrong signature .*: define on_"):
        tune.RunConfig(callbacks=[Off()])
    Off.on_trial_start = {}.update  # such a one does not say what it takes
    tune.RunConfig(callbacks=[Off()])


def test_a_method_may_name_what_its_info_holds(fit):
    heard = []

    class Named(tune.Callback):
        def on_trial_start(self, iteration, trials, trial):
            heard.append("start")

        def on_trial_recover(self, iteration, trials, trial, failure):
            heard.append(failure.kind)

    fit(saves, {"n": 0}, run={"callbacks": [Named()], **RETRIED})
    assert heard == ["start", "KeyError", "start"]


@pytest.mark.parametrize("hook", ["setup", "on_trial_result", "on_experiment_end"])
def test_a_callback_that_raises_ends_the_experiment_if_asked(fit, restore, tmp_path, hook):
    def raises(*args, **kwargs):
        raise ZeroDivisionError("mine")

    broken = tune.Callback()
    setattr(broken, hook, raises)
    with pytest.raises(ZeroDivisionError, match="mine"):
        run = {"callbacks": [broken], "failure_config": tune.FailureConfig(fail_fast="raise")}
        fit(lambda config: ({"loss": n} for n in range(3)), num_samples=3, max_concurrent_trials=1, run=run)
    found = [result.status for result in tune.ResultGrid.from_path(tmp_path / "e")]
    assert found == (["TERMINATED"] * 3 if hook == "on_experiment_end" else ["PENDING"])
    again = restore(lambda config: ({"loss": n} for n in range(3)), run={})
    assert again.num_terminated == 3


def test_a_logger_written_for_ray_finds_what_it_reads_of_a_trial(fit, tmp_path):
    seen, saved = {}, []

    class Mine(tune.LoggerCallback):
        def __init__(self):  # which Ray's base has no need to be told of
            self.files = {}

        def log_trial_start(self, trial):
            assert str(trial) == trial.name
            assert not trial.is_finished()
            assert trial.status == trial.RUNNING == "RUNNING"
            self.files[trial] = Path(trial.local_path) / "mine.log"
            self.files[trial].write_text("")

        def log_trial_result(self, iteration, trial, result):
            assert self.files[trial] == Path(trial.logdir) / "mine.log"
            with open(self.files[trial], "a") as file:
                file.write(f"{result['training_iteration']}\n")

        def log_trial_save(self, trial):
            saved.append((trial.index, trial.checkpoint.dirname))

        def log_trial_end(self, trial, failed=False):
            seen[trial.trial_id] = trial.evaluated_params, trial.experiment_tag, trial.trainable_name
            assert trial.is_finished()
            assert (trial.error_file is not None) == failed == (trial.status == trial.ERROR)

    def objective(config):
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint.from_dict({}))
        if config["lr"] > 1:
            raise ValueError

    grid = fit(objective, {"lr": tune.grid_search([1, 2]), "fixed": 3}, run={"callbacks": [Mine()]})
    assert seen == {
        result.trial_id: ({"lr": result.config["lr"]}, f"{n}_lr={result.config['lr']}", "objective")
        for n, result in enumerate(grid)
    }
    assert [Path(result.path, "mine.log").read_text() for result in grid] == ["1\n"] * 2
    assert sorted(saved) == [(0, "checkpoint_000000"), (1, "checkpoint_000000")]
    # So does who looks at them afterwards.
    for read in (grid, tune.ExperimentAnalysis(grid.experiment_path).trials):
        found = {
            trial.trial_id: (trial.evaluated_params, trial.experiment_tag, trial.trainable_name)
            for trial in read
        }
        assert found == seen
        assert all(trial.is_finished() for trial in read)
        assert [Path(trial.error_file).exists() if trial.error_file else None for trial in read] == [
            None,
            True,
        ]


def test_the_files_that_other_tools_read(fit):
    def trainable(config):
        yield {"loss": math.nan, "eval": {"acc": 0.5}, "text": 'a,"b"\nc'}
        yield {"loss": 2.0, "eval": {"acc": 0.75}, "late": 1}
        yield {"loss": math.inf}

    (result,) = fit(trainable, {"lr": 0.1, "cls": tune.choice([dict])})
    folder = Path(result.path)
    params = json.loads((folder / "params.json").read_text())
    assert params == {"lr": 0.1, "cls": {"$opaque": "builtins.dict"}}
    rows = [json.loads(line) for line in (folder / "result.json").read_text().splitlines()]
    assert [row["loss"] for row in rows] == ["NaN", 2.0, "Infinity"]
    assert [row["training_iteration"] for row in rows] == [1, 2, 3]
    assert rows[0]["config"]["lr"] == 0.1
    with open(folder / "progress.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["loss"] for row in table] == ["nan", "2.0", "inf"]
    assert [row["eval/acc"] for row in table] == ["0.5", "0.75", ""]
    assert [row["late"] for row in table] == ["", "1", ""]
    assert table[0]["text"] == 'a,"b"\nc'
    assert table[0]["config/lr"] == "0.1"


PAGE = "docs/extending/add-a-callback.md"


def trainable(config):
    tune.report({"loss": config["x"]})


@pytest.fixture
def notes(tmp_path, monkeypatch):
    install_from_page(PAGE, tmp_path, monkeypatch)


def test_the_callback_of_the_page_is_given_by_its_name(notes, fit, tmp_path):
    fit(trainable, {"x": tune.grid_search([1, 2])}, run={"callbacks": ["notes"]})
    lines = [json.loads(line) for line in (tmp_path / "e" / "notes.jsonl").read_text().splitlines()]
    assert sorted(line["config"]["x"] for line in lines) == [1, 2]


def test_a_callback_that_needs_arguments_is_told(notes, tmp_path):
    code = (tmp_path / "lab_notes.py").read_text()
    (tmp_path / "lab_notes.py").write_text(code.replace('filename="notes.jsonl"', "filename"))
    with pytest.raises(ConfigError, match=r"'notes' needs arguments .*'filename'.*give an object"):
        tune.RunConfig(callbacks=["notes"])


def test_ours_are_given_by_name_and_written_once(fit, tmp_path):
    fit(trainable, {"x": 1}, run={"callbacks": ["csv"], "default_loggers": ["csv", "json"]})
    (progress,) = (tmp_path / "e").rglob("progress.csv")
    assert len(progress.read_text().splitlines()) == 2
    assert len(list((tmp_path / "e").rglob("result.json"))) == 1


def test_one_given_by_its_name_is_made_again_by_a_restore(notes, fit, restore, tmp_path):
    fit(trainable, {"x": 1}, run={"callbacks": ["notes"]})
    restore(trainable, num_samples=2)
    assert len((tmp_path / "e" / "notes.jsonl").read_text().splitlines()) == 2
    restore(trainable, num_samples=3, run={"verbose": 0})  # it stays, as all that is not given anew
    assert len((tmp_path / "e" / "notes.jsonl").read_text().splitlines()) == 3
