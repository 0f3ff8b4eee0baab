"""Scores in order: the same answers as a sorted list, over many blocks too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.tune.schedulers import rungs
from trainkit.tune.schedulers.rungs import Ranking

scores = st.lists(st.integers(-3, 3) | st.just(float("-inf")), max_size=80)


@given(scores, st.integers(1, 4))
def test_it_answers_as_a_sorted_list_does(scores, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rungs, "BLOCK", block)
        ranked, plain = Ranking(), []
        for arrival, score in enumerate(scores):
            key = (float(score), -arrival)
            plain = sorted([*plain, key])
            assert ranked.add(key) == len(plain) - plain.index(key)
            assert [ranked.at(place + 1) for place in range(len(plain))] == plain[::-1]
            assert [ranked.rank(key) for key in reversed(plain)] == list(range(1, len(plain) + 1))
            assert len(ranked) == len(plain)
        with pytest.raises(IndexError):
            ranked.at(len(plain) + 1)


@given(scores, st.tuples(st.integers(-4, 4), st.integers(-80, 0)))
def test_it_ranks_what_is_not_there(scores, key):
    keys = [(float(score), -arrival) for arrival, score in enumerate(scores)]
    ranked = Ranking()
    for each in keys:
        ranked.add(each)
    assert ranked.rank(key) == sum(each >= key for each in keys)
