"""One seed for an experiment, and what follows: generators of suggestions and models, a seed per trial.

Made from the seed and a number each, never drawn one after the other: so suggestion n is the same
however many trials ran at once, and replaying needs nothing but n.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from trainkit.tune.seed_words import generator_of

if TYPE_CHECKING:
    from numpy.random import Generator

_OF_SIMULATIONS = {"stragglers": 3, "failures": 4, "measurements": 5}


def fresh_seed() -> int:
    """For an experiment that was given none: 32 bits of the system's entropy."""
    return secrets.randbits(32)


def suggestion_generator(seed: int, index: int, redraw: int = 0) -> Generator:
    """For all that is drawn for suggestion `index`; once it was rejected, for what is drawn instead."""
    if not redraw:
        return generator_of(seed, index)
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence([seed, index, redraw]))


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


def simulation_generator(seed: int, purpose: str) -> Generator:
    """For what chance does in a simulated experiment: "stragglers", "failures"."""
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=(_OF_SIMULATIONS[purpose],)))


def trial_draws(seed: int) -> tuple[Generator, Callable[[int, int], None]]:
    """For what simulated trials draw: one generator, and what sets it to an iteration of a trial.

    A counter in place of a state (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): to
    set it takes a tenth of the time that a new generator does.
    """
    import numpy
    from numpy.random import Generator, Philox, SeedSequence

    words = SeedSequence(seed, spawn_key=(_OF_SIMULATIONS["measurements"],)).generate_state(2, numpy.uint64)
    bits = Philox(key=words)
    state = bits.state
    counter = numpy.zeros(4, numpy.uint64)
    state["state"]["counter"] = counter

    def at(trial: int, iteration: int) -> None:
        counter[2], counter[3] = iteration, trial
        bits.state = state

    return Generator(bits), at


def model_generator(seed: int, observations: int) -> Generator:
    """For what a searcher's model of so many observations draws, whichever suggestion asks for it first."""
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=(6, observations)))
