"""Callbacks by name: ours, and those that other packages add."""

from __future__ import annotations

import json

import pytest

from tests.packages import install_from_page
from trainkit import tune
from trainkit.errors import ConfigError

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
