"""Seeds and random generators that follow from the one seed of an experiment."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator, SeedSequence


_MOST = 0xFFFFFFFF
_OF_SIMULATIONS = {"stragglers": 3, "failures": 4, "measurements": 5}


def fresh_seed() -> int:
    """Return 32 bits for an experiment that was given no seed; the same where the program has seeded alike.

    They are drawn from NumPy's global generator if the program has seeded that, else from Python's, which the
    program has seeded or the system's entropy.
    """
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None and numpy_random.get_bit_generator().seed_seq is None:  # as seed(n) leaves it
        return int(numpy_random.randint(0, 2**32, dtype="uint32"))
    return random.getrandbits(32)


def suggestion_generator(seed: int, index: int, redraw: int = 0) -> Generator:
    """Return the generator of all that is drawn for suggestion `index`, or for its `redraw` once rejected."""
    import numpy

    return numpy.random.Generator(numpy.random.PCG64(_of_suggestion(seed, index, redraw)))


def addition_generator(seed: int, number: int) -> Generator:
    """Return the generator of what the `number`-th configuration that a user adds leaves open."""
    return _generator(seed, 7, number)


def suggestion_words(seed: int, index: int, redraw: int, number: int) -> list[int]:
    """Return `number` seeds of 32 bits for a suggestion, for generators that are not NumPy's."""
    return [int(word) for word in _of_suggestion(seed, index, redraw).generate_state(number)]


def _of_suggestion(seed: int, index: int, redraw: int) -> SeedSequence:
    import numpy

    entropy: Any = (seed, index, redraw) if redraw else (seed, index)
    if seed <= _MOST and index <= _MOST:
        entropy = numpy.array(entropy, numpy.uint32)  # NumPy makes this of it too, and takes longer
    return numpy.random.SeedSequence(entropy)


def _generator(seed: int, *key: int) -> Generator:
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=key))


def scheduler_generator(seed: int) -> Generator:
    """Return the generator of what a scheduler draws, in the order of its calls."""
    return _generator(seed, 1)


def trial_seed(seed: int, index: int) -> int:
    """Return the seed of trial `index`, of 32 bits as NumPy's global generator takes."""
    from numpy.random import SeedSequence

    return int(SeedSequence(seed, spawn_key=(2, index)).generate_state(1)[0])


def simulation_generator(seed: int, purpose: str) -> Generator:
    """Return the generator of what chance does in a simulated experiment: "stragglers", "failures"."""
    return _generator(seed, _OF_SIMULATIONS[purpose])


def trial_draws(seed: int) -> tuple[Generator, Callable[[int, int], None]]:
    """Return the generator of what simulated trials draw, and a function that sets it to a trial's iteration.

    Philox has a counter in place of a state (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2,
    3"). To set the counter takes a tenth of the time of a new generator.
    """
    import numpy
    from numpy.random import Generator, Philox, SeedSequence

    words = SeedSequence(seed, spawn_key=(_OF_SIMULATIONS["measurements"],)).generate_state(2, numpy.uint64)
    bits = Philox(key=words)
    # Lists of Python's, of which NumPy reads the numbers in a third of the time.
    counter = [0, 0, 0, 0]
    state: Any = {**bits.state, "buffer": [0, 0, 0, 0]}
    state["state"] = {"counter": counter, "key": words.tolist()}

    def at(trial: int, iteration: int) -> None:
        counter[2], counter[3] = iteration, trial
        bits.state = state

    return Generator(bits), at


def model_generator(seed: int, observations: int) -> Generator:
    """Return the generator of what a searcher's model of so many observations draws."""
    return _generator(seed, 6, observations)
