"""Seeds and random generators, all derived from the seed of an experiment."""

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
    """Return a seed of 32 bits for an experiment without a seed.

    The seed comes from NumPy's global generator if the program has seeded that generator, otherwise from
    Python's. The seed is therefore reproducible if the program seeds NumPy's or Python's global generator.
    """
    numpy_random = sys.modules.get("numpy.random")
    # NumPy's generator has no seed sequence only if the program has called `numpy.random.seed(n)`.
    if numpy_random is not None and numpy_random.get_bit_generator().seed_seq is None:
        return int(numpy_random.randint(0, 2**32, dtype="uint32"))
    return random.getrandbits(32)


def suggestion_generator(seed: int, index: int, redraw: int = 0) -> Generator:
    """Return the generator for suggestion number `index` after `redraw` rejected attempts."""
    import numpy

    return numpy.random.Generator(numpy.random.PCG64(_of_suggestion(seed, index, redraw)))


def addition_generator(seed: int, number: int) -> Generator:
    """Return the generator for the missing values of a configuration that a user added after `number`
    others.
    """
    return _generator(seed, 7, number)


def suggestion_words(seed: int, index: int, redraw: int, number: int) -> list[int]:
    """Return a list of `number` 32-bit seeds for a suggestion, for other packages' generators."""
    return [int(word) for word in _of_suggestion(seed, index, redraw).generate_state(number)]


def _of_suggestion(seed: int, index: int, redraw: int) -> SeedSequence:
    import numpy

    entropy: Any = (seed, index, redraw) if redraw else (seed, index)
    if seed <= _MOST and index <= _MOST:
        # The argument is an array, because NumPy takes longer to convert a tuple.
        entropy = numpy.array(entropy, numpy.uint32)
    return numpy.random.SeedSequence(entropy)


def _generator(seed: int, *key: int) -> Generator:
    from numpy.random import SeedSequence, default_rng

    return default_rng(SeedSequence(seed, spawn_key=key))


def scheduler_generator(seed: int) -> Generator:
    """Return the generator for a scheduler."""
    return _generator(seed, 1)


def trial_seed(seed: int, index: int) -> int:
    """Return the seed of trial number `index`; it has 32 bits, as NumPy's global generator requires."""
    from numpy.random import SeedSequence

    return int(SeedSequence(seed, spawn_key=(2, index)).generate_state(1)[0])


def simulation_generator(seed: int, purpose: str) -> Generator:
    """Return the generator for a random effect of a simulated experiment: "stragglers" or "failures"."""
    return _generator(seed, _OF_SIMULATIONS[purpose])


def trial_draws(seed: int) -> tuple[Generator, Callable[[int, int], None]]:
    """Return a generator for simulated trials, and a function that sets the generator's counter for a trial
    and an iteration.

    The generator Philox computes each number from a counter (Salmon et al. 2011, "Parallel random numbers: as
    easy as 1, 2, 3"). Setting the counter takes a tenth of the time of creating a generator.
    """
    import numpy
    from numpy.random import Generator, Philox, SeedSequence

    words = SeedSequence(seed, spawn_key=(_OF_SIMULATIONS["measurements"],)).generate_state(2, numpy.uint64)
    bits = Philox(key=words)
    # The counter is a Python list, because NumPy reads a list in a third of the time of an array.
    counter = [0, 0, 0, 0]
    state: Any = {**bits.state, "buffer": [0, 0, 0, 0]}
    state["state"] = {"counter": counter, "key": words.tolist()}

    def at(trial: int, iteration: int) -> None:
        counter[2], counter[3] = iteration, trial
        bits.state = state

    return Generator(bits), at


def initial_generator(seed: int, *key: int) -> Generator:
    """Return the generator for a searcher's first configurations; `key` distinguishes its uses."""
    return _generator(seed, 8, *key)


def model_generator(seed: int, observations: int) -> Generator:
    """Return the generator for a searcher's model that was fitted to `observations` observations."""
    return _generator(seed, 6, observations)
