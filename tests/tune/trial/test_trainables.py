"""Every form of trainable, end to end on the inline engine: quick, and in this process."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from pathlib import Path

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, TuneError
from trainkit.tune.core.trial import MAX_OWN_DIRNAME

pytestmark = pytest.mark.usefixtures("inline")


def reporting(config):
    for step in range(3):
        tune.report({"loss": config["x"] / (step + 1), "step": step})


def old_spelling(config):
    for step in range(3):
        tune.report(loss=config["x"] / (step + 1), step=step)


def yielding(config):
    for step in range(3):
        yield {"loss": config["x"] / (step + 1), "step": step}


def reporting_and_returning(config):
    for step in range(2):
        tune.report({"loss": config["x"] / (step + 1), "step": step})
    return {"loss": config["x"] / 3, "step": 2}


def with_scale(scale, config):
    for step in range(3):
        tune.report({"loss": scale * config["x"] / (step + 1), "step": step})


class Callable:
    def __call__(self, config):
        reporting(config)


class Stepping(tune.Trainable):
    def setup(self, config):
        self.x = config["x"]

    def step(self):
        return {"loss": self.x / (self.iteration + 1), "step": self.iteration, "done": self.iteration == 2}


@pytest.mark.parametrize(
    "trainable",
    [
        reporting,
        old_spelling,
        yielding,
        reporting_and_returning,
        functools.partial(with_scale, 1),
        Callable(),
        lambda config: reporting(config),
        Stepping,
    ],
    ids=lambda trainable: getattr(trainable, "__name__", type(trainable).__name__),
)
def test_every_form_gives_the_same_reports(fit, trainable):
    grid = fit(trainable, {"x": 6.0}, metric="loss")
    (result,) = grid
    assert [(row["step"], row["loss"]) for row in result.history] == [(0, 6.0), (1, 3.0), (2, 2.0)]
    assert [row["training_iteration"] for row in result.history] == [1, 2, 3]
    assert result.metrics["loss"] == 2.0
    assert result.metrics["done"] is True
    assert result.status == "TERMINATED"
    assert result.reason == "finished"


def test_the_automatic_keys_are_all_there(fit):
    (result,) = fit(reporting, {"x": tune.uniform(1, 2)})
    names = (
        "training_iteration time_this_iter_s time_total_s trial_id experiment_tag date timestamp pid "
        "hostname node_ip config done iterations_since_restore time_since_restore"
    ).split()
    assert not set(names) - set(result.metrics)
    assert result.metrics["config"] == result.config
    assert result.metrics["time_total_s"] >= result.metrics["time_this_iter_s"] >= 0


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        (lambda config: "text", "returned or yielded a str"),
        (lambda config: tune.report({"confusion": object()}), "'confusion'"),
        (lambda config: tune.report({"a": 1}, checkpoint="/tmp"), "Checkpoint.from_directory"),
        (lambda config: tune.Checkpoint("/nowhere/at/all"), "no such directory"),
    ],
)
def test_a_mistake_in_a_trial_is_its_error(fit, trainable, words):
    (error,) = fit(trainable).errors
    assert words in str(error)


# --- stopping takes effect at the report ----------------------------------------------------------


def test_a_stop_ends_the_function_at_that_very_report(fit, tmp_path):
    def trainable(config):
        try:
            for step in range(100):
                (tmp_path / "last_step").write_text(str(step))
                try:
                    tune.report({"loss": 1.0})
                except Exception:
                    pytest.fail("a stop is no Exception")
        finally:
            (tmp_path / "cleaned").touch()

    (result,) = fit(trainable, run={"stop": {"training_iteration": 3}})
    assert (tmp_path / "last_step").read_text() == "2"
    assert (tmp_path / "cleaned").exists()
    assert result.metrics["training_iteration"] == 3
    assert result.reason == "training_iteration=3 reached 3"


def test_a_stop_closes_a_generator(fit, tmp_path):
    def trainable(config):
        try:
            while True:
                yield {"loss": 1.0}
        finally:
            (tmp_path / "cleaned").touch()

    fit(trainable, run={"stop": {"training_iteration": 2}})
    assert (tmp_path / "cleaned").exists()


def test_a_stop_cleans_a_class_up_once(fit, tmp_path):
    class Endless(tune.Trainable):
        def step(self):
            return {"loss": 1.0}

        def cleanup(self):
            with open(tmp_path / "cleaned", "a") as file:
                file.write("x")

    fit(Endless, run={"stop": lambda trial_id, result: result["training_iteration"] == 2})
    assert (tmp_path / "cleaned").read_text() == "x"


@pytest.mark.parametrize("error", [ValueError("in the cleanup"), SystemExit(3)])
def test_a_class_that_ends_with_a_failing_cleanup_keeps_its_result(fit, error):
    class Messy(Stepping):
        def cleanup(self):
            raise error

    (result,) = fit(Messy, {"x": 3.0})
    assert (result.status, result.metrics["loss"], result.error) == ("TERMINATED", 1.0, None)


# --- who am I -------------------------------------------------------------------------------------


def test_outside_a_trial_the_calls_say_so(fit):
    fit(reporting, {"x": 1})
    for call in (lambda: tune.report({"a": 1}), tune.get_checkpoint, tune.get_context):
        with pytest.raises(TuneError, match="outside a trial"):
            call()


def test_a_report_from_another_thread_is_refused(fit):
    def trainable(config):
        caught = []

        def work():
            try:
                tune.report({"a": 1})
            except TuneError as error:
                caught.append(str(error))

        thread = threading.Thread(target=work, name="helper")
        thread.start()
        thread.join()
        return {"said": caught[0]}

    assert "thread 'helper'" in fit(trainable)[0].metrics["said"]


@pytest.mark.process
def test_report_from_a_process_that_the_trial_has_forked_is_refused(fit):
    """It would wait for ever: the driver hears the trial's own process alone."""

    def trainable(config):
        context = multiprocessing.get_context("fork")
        answers = context.SimpleQueue()

        def work():
            try:
                tune.report({"loss": 2.0})
            except TuneError as error:
                answers.put(str(error))

        child = context.Process(target=work)
        child.start()
        told = answers.get()
        child.join()
        return {"told": told}

    (result,) = fit(trainable)
    assert "a child of the trial's" in result.metrics["told"]
    assert len(result.history) == 1


def test_folder_names_are_short_and_safe(fit):
    def trainable(config):
        return 1.0

    trainable.__name__ = "../" + "ü/ " * 100
    (result,) = fit(trainable, {f"hyperparameter_{n}": n for n in range(30)})
    name = Path(result.path).name
    assert len(name) <= MAX_OWN_DIRNAME
    assert all(char.isascii() and (char.isalnum() or char in "-_.=,") for char in name)
    assert Path(result.path).is_dir()


def test_a_folder_is_named_after_what_varies(fit):
    def train(config):
        return 1.0

    results = fit(
        train, {"net": {"lr": tune.grid_search([0.1, 1e-5])}, "act": tune.choice(["../a b"]), "c": 3}
    )
    found = {Path(each.path).name for each in results}
    assert found == {
        f"train_{each.trial_id}_lr={lr},act=.._a_b"
        for each, lr in zip(results, ("0.1", "1e-05"), strict=True)
    }


# --- parameters, requests, forms that can't work --------------------------------------------------


@pytest.mark.parametrize(
    ("trainable", "words"),
    [
        (None, "trainable=None"),
        (3, "trainable=3"),
        (dict, "does not extend tune.Trainable"),
        (lambda: None, "cannot be called"),
        (lambda config, more: None, "missing a required argument: 'more'"),
    ],
)
def test_what_is_no_trainable_is_refused_at_once(trainable, words):
    with pytest.raises(ConfigError, match=words):
        tune.Tuner(trainable)
