"""Generators seeded many at a time are those that NumPy would make one by one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from numpy.random import SeedSequence, default_rng

from trainkit.tune.core.seeds import suggestion_generator


@given(st.integers(0, 2**200), st.integers(0, 2**40))
@example(0, 0)
@example(2**32, 255)
@example(7, 2**32)
@example(2**128 - 1, 256)
def test_the_words_are_numpy_s(seed, index):
    ours, theirs = suggestion_generator(seed, index), default_rng(SeedSequence([seed, index]))
    assert ours.bit_generator.state == theirs.bit_generator.state
