"""Every hook of a callback: when it is called, with what, and that what it raises goes nowhere."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

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
        scratch = Path(tune.get_context().get_trial_dir(), "scratch")
        scratch.mkdir(exist_ok=True)
        tune.report({"loss": 1}, checkpoint=tune.Checkpoint(scratch))
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
