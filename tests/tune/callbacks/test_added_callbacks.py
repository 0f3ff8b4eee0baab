"""Callbacks by name: ours, and those that other packages add."""

from __future__ import annotations

import json

import pytest

from tests.packages import install_from_page
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.tune.callbacks import CALLBACKS, Callback, create_callback

pytestmark = pytest.mark.usefixtures("inline")

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


def test_an_unknown_name_lists_those_that_there_are(notes):
    with pytest.raises(ConfigError, match=r"callbacks='note' is none of csv, .*notes.*Did you mean 'notes'"):
        tune.RunConfig(callbacks=["note"])


def test_a_callback_that_needs_arguments_is_told(notes, tmp_path):
    code = (tmp_path / "lab_notes.py").read_text()
    (tmp_path / "lab_notes.py").write_text(code.replace('filename="notes.jsonl"', "filename"))
    with pytest.raises(ConfigError, match=r"NotesCallback needs arguments .*'filename'.*give an object"):
        tune.RunConfig(callbacks=["notes"])


def test_ours_are_given_by_name_and_written_once(fit, tmp_path):
    fit(trainable, {"x": 1}, run={"callbacks": ["csv"], "default_loggers": ["csv", "json"]})
    (progress,) = (tmp_path / "e").rglob("progress.csv")
    assert len(progress.read_text().splitlines()) == 2
    assert len(list((tmp_path / "e").rglob("result.json"))) == 1


def test_every_row_is_a_callback():
    for name in CALLBACKS.own_names():
        assert issubclass(CALLBACKS.get(name), Callback)
    assert type(create_callback("tensorboard")).__name__ == "TBXLoggerCallback"


def test_one_given_by_its_name_is_made_again_by_a_restore(notes, fit, tmp_path):
    fit(trainable, {"x": 1}, run={"callbacks": ["notes"]})
    more = tune.TuneConfig(num_samples=2)
    tune.Tuner.restore(tmp_path / "e", trainable, tune_config=more).fit()
    assert len((tmp_path / "e" / "notes.jsonl").read_text().splitlines()) == 2
    tune.Tuner.restore(  # it stays, as all that is not given anew
        tmp_path / "e",
        trainable,
        tune_config=tune.TuneConfig(num_samples=3),
        run_config=tune.RunConfig(verbose=0),
    ).fit()
    assert len((tmp_path / "e" / "notes.jsonl").read_text().splitlines()) == 3


def test_an_object_beside_a_name_is_asked_for(notes, fit, tmp_path):
    fit(trainable, {"x": 1}, run={"callbacks": ["notes", tune.Callback()]})
    with pytest.raises(ConfigError, match=r"started with callbacks='notes', Callback, which its file"):
        tune.Tuner.restore(tmp_path / "e", trainable)


def test_a_row_that_names_no_callback_is_told(notes, tmp_path):
    code = (tmp_path / "lab_notes.py").read_text()
    (tmp_path / "lab_notes.py").write_text(code.replace("(tune.Callback)", ""))
    with pytest.raises(
        ConfigError, match=r"'notes' of the package lab-notes, lab_notes:Notes.* is no class that extends Cal"
    ):
        tune.RunConfig(callbacks=["notes"])
