"""Metrics on their way into the store and back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from trainkit.errors import MetricError
from trainkit.tune.core.metrics import decode, encode, flatten, lookup, plain_metrics
from trainkit.tune.space.serialization import decode_config

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


def test_nan_and_infinities_are_stored_as_text():
    text = encode({"a": math.nan, "b": [math.inf, {"c": -math.inf}]})
    assert json.loads(text) == {"a": "NaN", "b": ["Infinity", {"c": "-Infinity"}]}
    back = decode(text)
    assert math.isnan(back["a"])
    assert back["b"] == [math.inf, {"c": -math.inf}]


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
