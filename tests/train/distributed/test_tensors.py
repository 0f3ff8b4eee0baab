"""Tensors in containers."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn

from trainkit.errors import CheckpointError
from trainkit.train.distributed.tensors import Box, Spread, cpu_copy, map_tensors

Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "make", [dict, OrderedDict, UserDict, MappingProxyType], ids=lambda make: make.__name__
)
def test_mappings_stay_what_they_are(make: Any) -> None:
    value = make({"a": torch.ones(2), "b": [torch.ones(1), "text"]})
    doubled = map_tensors(lambda tensor: tensor * 2, value)
    assert type(doubled) is type(value)
    assert doubled["a"].tolist() == [2, 2]
    assert doubled["b"][0].tolist() == [2]
    assert value["a"].tolist() == [1, 1]


def test_a_defaultdict_keeps_its_factory() -> None:
    value = defaultdict(list, {"a": torch.ones(1)})
    copied = cpu_copy(value)
    assert copied["a"].tolist() == [1]
    assert copied["new"] == []
    assert "new" not in value


def test_a_named_tuple_keeps_its_names() -> None:
    assert map_tensors(lambda tensor: tensor + 1, Pair(torch.zeros(1), None)).first.tolist() == [1]


def test_a_models_state_keeps_the_versions_of_its_modules() -> None:
    state = nn.BatchNorm1d(3).state_dict()
    copied = cpu_copy(state)
    assert copied._metadata == state._metadata  # type: ignore[attr-defined]
    copied["weight"].zero_()
    assert state["weight"].tolist() == [1, 1, 1]


def test_a_tensor_with_a_piece_missing_is_told_with_its_shape() -> None:
    spread = Spread((4, 3), torch.float32, (Box((2, 0), torch.ones(2, 3)),))
    assert spread.part((2, 1), (2, 2)).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(CheckpointError, match=r"a tensor \(4, 3\) has 6 of 12 values"):
        spread.whole()
