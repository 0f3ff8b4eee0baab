"""Scores in order: the same answers as a sorted list, over many blocks too."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainkit.tune.schedulers.halving import ranking
from trainkit.tune.schedulers.halving.ranking import Ranking

moves = st.lists(st.tuples(st.integers(-3, 3), st.booleans(), st.integers(0, 100)), max_size=80)


@given(moves, st.integers(1, 4))
def test_it_answers_as_a_sorted_list_does(moves, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "BLOCK", block)
        ranked, plain = Ranking(), []
        for arrival, (score, removes, which) in enumerate(moves):
            if removes and plain:
                ranked.remove(plain.pop(which % len(plain)))
            key = (float(score), -arrival)
            plain = sorted([*plain, key])
            assert ranked.add(key) == len(plain) - plain.index(key)
            assert list(ranked.best_first()) == plain[::-1]
            assert [ranked.at(place + 1) for place in range(len(plain))] == plain[::-1]
            assert [ranked.rank(key) for key in reversed(plain)] == list(range(1, len(plain) + 1))
            assert len(ranked) == len(plain)
        with pytest.raises(IndexError):
            ranked.at(len(plain) + 1)


def test_thousands_of_keys():
    keys = [(score, -arrival) for arrival, score in enumerate(random.Random(0).choices(range(900), k=9000))]
    ranked = Ranking()
    for key in keys:
        ranked.add(key)
    assert list(ranked.best_first()) == sorted(keys, reverse=True)
    assert ranked.rank((-1.0, 0)) == 9000
    assert ranked.rank((900.0, 0)) == 0
    for key in keys[::2]:
        ranked.remove(key)
    assert list(ranked.best_first()) == sorted(keys[1::2], reverse=True)
