"""One seed for an experiment, and what follows: generators per suggestion and model, one more, seeds for trials.

Made from the seed and a number each, never drawn one after the other: so suggestion n is the same
however many trials ran at once, and replaying needs nothing but n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


def suggestion_generator(seed: int, index: int, redraw: int = 0) -> Generator:
    """For all that is drawn for suggestion `index`; once it was rejected, for what is drawn instead."""
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence([seed, index, redraw] if redraw else [seed, index]))


def suggestion_words(seed: int, index: int, redraw: int, number: int) -> list[int]:
    """The same as `number` seeds of 32 bits, for generators that are not NumPy's own."""
    from numpy.random import SeedSequence

    entropy = SeedSequence([seed, index, redraw] if redraw else [seed, index])
    return [int(word) for word in entropy.generate_state(number)]


def scheduler_generator(seed: int) -> Generator:
    """For what a scheduler draws, in the order of its calls."""
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=(1,)))


def trial_seed(seed: int, index: int) -> int:
    """For the generators in the process of trial `index`; 32 bits, as NumPy's global one takes."""
    from numpy.random import SeedSequence

    return int(SeedSequence(seed, spawn_key=(2, index)).generate_state(1)[0])


def model_generator(seed: int, observations: int) -> Generator:
    """For what a searcher's model of so many observations draws, whichever suggestion asks for it first."""
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=(3, observations)))
