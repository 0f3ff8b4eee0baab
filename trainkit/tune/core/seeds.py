"""Seeds and random generators that follow from the one seed of an experiment."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray


BLOCK = 256
_POOL = 4
_MASK = 0xFFFFFFFF
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = 0xCA01F9DD, 0x4973F715


def generator_of(seed: int, index: int) -> Generator:
    """The same as `default_rng(SeedSequence([seed, index]))`."""
    block, place = divmod(index, BLOCK)
    return _of_words(_block(seed, block)[place])


@functools.cache
def _maker() -> Any:
    from numpy.random import PCG64, Generator
    from numpy.random.bit_generator import ISeedSequence

    class Words(ISeedSequence):
        """Words that are known already."""

        def __init__(self, words: NDArray[Any]) -> None:
            self._words = words

        def generate_state(self, n_words: int, dtype: Any = None) -> NDArray[Any]:
            return self._words

    seeded: Any = PCG64
    return lambda words: Generator(seeded(Words(words)))


def _of_words(words: NDArray[Any]) -> Generator:
    generator: Generator = _maker()(words)
    return generator


@functools.lru_cache(maxsize=8)
def _block(seed: int, block: int) -> NDArray[Any]:
    """For each index of a block, the four words of 64 bits that PCG64 is seeded with."""
    import numpy

    first = block * BLOCK
    indices = numpy.arange(first, first + BLOCK, dtype=numpy.uint64)
    entropy: list[Any] = [(seed >> shift) & _MASK for shift in range(0, max(seed.bit_length(), 1), 32)]
    entropy.append((indices & _MASK).astype(numpy.uint32))
    if first > _MASK:
        entropy.append((indices >> 32).astype(numpy.uint32))
    entropy = [numpy.broadcast_to(numpy.uint32(each), (BLOCK,)) for each in entropy]
    pool = _mixed(entropy)
    words = numpy.empty((BLOCK, 8), numpy.uint32)
    constant = _INIT_B
    for place in range(8):
        value = pool[place % _POOL] ^ numpy.uint32(constant)
        constant = constant * _MULT_B & _MASK
        value = value * numpy.uint32(constant)
        words[:, place] = value ^ (value >> numpy.uint32(16))
    return words.view("<u8").astype(numpy.uint64)


def _mixed(entropy: list[NDArray[Any]]) -> list[NDArray[Any]]:
    import numpy

    constant = _INIT_A

    def hashed(value: Any) -> Any:
        nonlocal constant
        value = value ^ numpy.uint32(constant)
        constant = constant * _MULT_A & _MASK
        value = value * numpy.uint32(constant)
        return value ^ (value >> numpy.uint32(16))

    def mixed(x: Any, y: Any) -> Any:
        value = x * numpy.uint32(_MIX_L) - y * numpy.uint32(_MIX_R)
        return value ^ (value >> numpy.uint32(16))

    zero = numpy.zeros(BLOCK, numpy.uint32)
    pool: list[Any] = [hashed(entropy[place] if place < len(entropy) else zero) for place in range(_POOL)]
    for source in range(_POOL):
        for target in range(_POOL):
            if source != target:
                pool[target] = mixed(pool[target], hashed(pool[source]))
    for extra in entropy[_POOL:]:
        for target in range(_POOL):
            pool[target] = mixed(pool[target], hashed(extra))
    return pool


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
