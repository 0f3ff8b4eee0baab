"""`trainkit.tune.utils`, with what Ray's functions answer."""

from __future__ import annotations

import pytest

from trainkit import tune
from trainkit.tune.utils import (
    deep_update,
    flatten_dict,
    merge_dicts,
    unflattened_lookup,
    validate_save_restore,
)
from trainkit.tune.utils.mock_trainable import MyTrainableClass
from trainkit.tune.utils.util import unflatten_dict

NESTED = {"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]}
FLAT = {"a/b/c": 1, "a/d": {}, "e": [1, {"f": 2}]}


def test_dictionaries_are_flattened_and_back():
    assert flatten_dict(NESTED) == FLAT
    assert unflatten_dict(FLAT) == NESTED
    assert flatten_dict(NESTED, delimiter=".") == {"a.b.c": 1, "a.d": {}, "e": [1, {"f": 2}]}
    with pytest.raises(ValueError, match="contains '/'"):
        flatten_dict({"a/b": 1}, prevent_delimiter=True)


def test_a_value_is_looked_up_by_its_path():
    assert unflattened_lookup("a/b/c", NESTED) == 1
    assert unflattened_lookup("e/1/f", NESTED) == 2
    assert unflattened_lookup("a/b/c", FLAT) == 1
    assert unflattened_lookup("a/x", NESTED, default=None) is None
    with pytest.raises(KeyError, match="a/x"):
        unflattened_lookup("a/x", NESTED)


def test_dictionaries_are_merged():
    assert merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
    original = {"a": {"b": 1}}
    assert deep_update(original, {"a": {"c": 2}}) is original
    assert original == {"a": {"b": 1, "c": 2}}
    with pytest.raises(KeyError, match="new_keys_allowed"):
        deep_update(original, {"z": 1})


def test_a_trainable_that_goes_on_from_its_checkpoint_is_valid():
    assert validate_save_restore(MyTrainableClass, {"width": 2})


def test_one_that_can_not_load_is_not():
    class Broken(tune.Trainable):
        def step(self):
            return {"m": 1}

        def save_checkpoint(self, checkpoint_dir):
            return {"m": 1}

        def load_checkpoint(self, checkpoint):
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        validate_save_restore(Broken)
