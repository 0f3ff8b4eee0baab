"""Values on their way into the store and back: an odd one costs its own trial at most."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune import programs
from trainkit import tune
from trainkit.errors import ConfigError, MetricError, SpaceError
from trainkit.tune.core.metrics import decode, encode, flatten, lookup, plain_metrics
from trainkit.tune.space.serialization import decode_config, encode_config, is_opaque
from trainkit.tune.store.reader import ExperimentReader

pytestmark = pytest.mark.usefixtures("inline")


@pytest.mark.parametrize(
    "odd",
    [
        {"timestamp": "2024-01-01"},
        {"timestamp": 1.7e12},
        {"date": 5},
        {"word": "cannot read \udc80file"},
        {"word": "nul \0"},
    ],
)
def test_an_odd_metric_is_kept_as_it_is(fit, odd):
    grid = fit(lambda config: {"loss": 1.0, **odd}, metric="loss", num_samples=2)
    assert grid.num_errors == 0
    assert {name: grid[0].metrics[name] for name in odd} == odd
    assert grid[0].history[0]["loss"] == 1.0
    with open(Path(grid[0].path, "progress.csv"), newline="") as file:
        assert len(list(csv.reader(file))) == 2


@pytest.mark.parametrize(
    ("number", "scheduler"),
    [(-(10**400), None), (10**5000, tune.schedulers.ASHAScheduler(max_t=4))],
    ids=["negative", "unprintable"],
)
def test_a_number_beyond_all_floats_fails_its_trial_alone(fit, number, scheduler):
    def trainable(config):
        return {"loss": 1.0, "nested": {"x": [number if config["odd"] else 2**1000]}}

    grid = fit(
        trainable,
        {"odd": tune.grid_search([True, False])},
        metric="loss",
        scheduler=scheduler,
    )
    assert [result.status for result in grid] == ["ERROR", "TERMINATED"]
    assert "nested/x/0" in str(grid.errors[0])


def test_a_message_that_utf8_cannot_hold_is_spelled_out(fit):
    def raises(config):
        raise RuntimeError("cannot read \udc80file")

    grid = fit(raises, num_samples=2)
    assert grid.num_errors == 2
    assert "cannot read \\udc80file" in Path(grid[0].path, "error.txt").read_text(encoding="utf-8")
    with ExperimentReader(Path(grid.experiment_path)) as reader:
        assert reader.trials()[0].failure.message == "cannot read \\udc80file"


def test_an_odd_text_in_a_configuration_reaches_the_trial(fit, tmp_path):
    grid = fit(lambda config: {"size": len(config["x"])}, {"x": tune.grid_search(["\udc80", "NaN"])})
    assert [result.metrics["size"] for result in grid] == [1, 3]
    again = tune.Tuner.restore(tmp_path / "e", lambda config: 1).get_results()
    assert [result.config["x"] for result in again] == ["\udc80", "NaN"]


@pytest.mark.parametrize("where", [lambda n: n, lambda n: [n], lambda n: tune.choice([1, n])])
def test_a_whole_number_that_no_file_can_hold_is_refused_in_a_space(fit, where):
    with pytest.raises(SpaceError, match=r"x.*1023 bits"):
        fit(lambda config: 1.0, {"x": where(10**5000)})
    with pytest.raises(ConfigError, match="max_t"):
        tune.schedulers.ASHAScheduler(max_t=10**400)


def test_keys_that_are_no_texts_come_back(fit, tmp_path):
    weights = {0: 1.0, 1: tune.uniform(1, 10), (2, 3): {None: True}, "4": 2.5}
    (before,) = fit(lambda config: 1.0, {"weights": weights, "other": {"4": {4: 1}}})
    run = tune.RunConfig(verbose=0)
    two = tune.TuneConfig(num_samples=2)
    restored = tune.Tuner.restore(tmp_path / "e", lambda config: 1.0, tune_config=two, run_config=run)
    assert [result.config for result in restored.get_results()] == [before.config]
    assert restored.fit()[1].config["weights"].keys() == weights.keys()


def test_a_configuration_tells_texts_from_floats():
    config = {"a": "NaN", "b": math.inf, "c": [-math.inf, "-Infinity"], "d": ("Infinity",), "e": {math.inf}}
    assert decode_config(encode_config(config)) == config
    assert math.isnan(decode_config(encode_config({"a": math.nan}))["a"])
    json.loads(encode_config(config), parse_constant=pytest.fail)


@pytest.mark.external
def test_a_set_is_spelled_the_same_in_every_process():
    program = (
        "from trainkit.tune.space.serialization import encode_config\n"
        "class Own: pass\n"
        "sets = {'a': {'b', 'c', 'd', 'e'}, 'f': frozenset({1, 2.5, 'x'}), 'o': {Own, int, 'z'}}\n"
        "print(encode_config(sets))"
    )
    texts = {programs.run("-c", program, env={"PYTHONHASHSEED": str(seed)}).stdout for seed in range(4)}
    assert len(texts) == 1
    back = decode_config(texts.pop())
    assert back["a"] == {"b", "c", "d", "e"}
    assert back["f"] == frozenset({1, 2.5, "x"})
    assert is_opaque(back["o"])


texts = st.text().filter(lambda text: text not in ("NaN", "Infinity", "-Infinity"))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
metrics = st.dictionaries(
    st.text(),
    st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10),
)


@given(metrics)
@settings(max_examples=examples(60))
def test_metrics_survive_the_store_exactly(values):
    text = encode(plain_metrics(values))
    json.loads(text, parse_constant=pytest.fail)  # every JSON reader takes it
    assert decode(text) == values


@pytest.mark.parametrize("read", [decode, decode_config])
@pytest.mark.parametrize("text", ['{"a":1}garbage', '{"a":1}{"a":2}', '{"a":1', ""])
def test_a_damaged_text_is_not_read(read, text):
    with pytest.raises(json.JSONDecodeError):
        read(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"eval": {"confusion": np.eye(200)}}, ["'eval/confusion'", "(200, 200)", "10000"]),
        ({"model": object()}, ["'model'", "object"]),
        ({"one": np.array([object()])}, ["'one/0'", "object"]),
        ([1], ["dictionary", "[1]"]),
    ],
)
def test_what_cannot_be_stored_is_named(value, words):
    with pytest.raises(MetricError) as caught:
        plain_metrics(value)
    for word in words:
        assert word in str(caught.value)


def test_nested_metrics_are_found_by_path():
    nested = {"eval": {"accuracy": 0.5, "empty": {}}, "a/b": 1}
    assert flatten(nested) == {"eval/accuracy": 0.5, "eval/empty": {}, "a/b": 1}
    assert lookup(nested, "eval/accuracy") == 0.5
    assert lookup(nested, "a/b") == 1
    assert lookup(nested, "eval/loss") is None
    assert lookup(nested, "a/c") is None
