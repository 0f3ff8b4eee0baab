"""The first configurations: the centre of the space, then points of a scrambled Sobol sequence.

Source: Joe, Kuo, "Constructing Sobol sequences with better two-dimensional projections", SIAM Journal on
Scientific Computing 30(5), 2008; Matousek, "On the L2-discrepancy for anchored boxes", Journal of Complexity
14(4), 1998, for the scrambling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from trainkit.plugins.gaussian_process.encoding import Encoding, Floats
from trainkit.tune.core.seeds import initial_generator

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

BITS = 16
"""Number of binary digits of a point; the sequence has 2**BITS points."""

LEAST = 3
"""Minimum number of results with a loss from which a model is built."""

MOST = 16
"""Maximum number of configurations before the model's first suggestion, unless too few results exist."""

# For each dimension from the second on, the table has a primitive polynomial, encoded as a number, and the
# first direction numbers.
_JOE_KUO = """
0 1|1 1 3|1 1 3 1|2 1 1 1|1 1 1 3 3|4 1 3 5 13|2 1 1 5 5 17|4 1 1 5 5 5|7 1 1 7 11 19|11 1 1 5 1 1|
13 1 1 1 3 11|14 1 3 5 5 31|1 1 3 3 9 7 49|13 1 1 1 15 21 21|16 1 3 1 13 27 49|19 1 1 1 15 7 5|
22 1 3 1 15 13 25|25 1 1 5 5 19 61|1 1 3 7 11 23 15 103|4 1 3 7 13 13 15 69
"""


@cache
def directions() -> NDArray[np.uint8]:
    """Return the binary digits of the direction numbers; shape (dimensions, BITS numbers, BITS digits)."""
    numbers = [[1] * BITS]
    for row in _JOE_KUO.replace("\n", "").split("|"):
        polynomial, *odd = map(int, row.split())
        degree = len(odd)
        while len(odd) < BITS:
            new = odd[-degree] ^ odd[-degree] << degree
            for power in range(1, degree):
                new ^= (polynomial >> degree - 1 - power & 1) * odd[-power] << power
            odd.append(new)
        numbers.append(odd[:BITS])
    aligned = np.array(numbers) << np.arange(BITS - 1, -1, -1)
    return (aligned[:, :, None] >> np.arange(BITS - 1, -1, -1) & 1).astype(np.uint8)


def sobol(number: int, dimensions: int, seed: int) -> Floats:
    """Return point `number` of a scrambled Sobol sequence in the unit cube; shape (dimensions,).

    Dimensions without known direction numbers use permuted numbers. The points cover each of the further
    dimensions evenly, but not each pair of further dimensions.
    """
    known = directions()
    rng = initial_generator(seed, 0)
    triangles = np.tril(rng.integers(2, size=(dimensions, BITS, BITS)), -1) + np.eye(BITS, dtype=int)
    shifts, jitter = rng.integers(2, size=(dimensions, BITS)), rng.random(dimensions)
    digits = np.zeros((dimensions, BITS), dtype=int)
    for place in range(dimensions):
        index = number
        # each dimension orders the blocks of points differently, so that no two dimensions are equal
        if place >= len(known):
            block, within = divmod(number, MOST)
            order = initial_generator(seed, 1, place, block).permutation(MOST)
            index = block * MOST + int(order[within])
        chosen = index >> np.arange(BITS) & 1
        plain = chosen @ known[place % len(known)] % 2
        digits[place] = (triangles[place] @ plain + shifts[place]) % 2
    point: Floats = (digits @ 0.5 ** np.arange(1, BITS + 1)) + jitter * 0.5**BITS
    return point


def initial_size(encoding: Encoding) -> int:
    """Return the number of initial configurations, before the model's first suggestion.

    The number grows with the number of parameters, and is sufficient to try each branch of a condition.
    """
    branches = [int(size) + 1 for size in encoding.categories[encoding.parents]]
    return min(MOST, max([4, min(10, int(encoding.active) // 2 + 2), *branches]))


def is_initial(encoding: Encoding, number: int, losses: Sequence[float]) -> bool:
    """Return True if suggestion `number` is an initial configuration, and False if the model suggests it.

    Results of a user's points and of other experiments also count. The model begins as soon as twice as many
    results exist as initial configurations. The model always waits for a few results that are not failures.

    Args:
        encoding: encoding of the space.
        number: number of the suggestion, from 0, without the user's points.
        losses: all results; NaN for a trial without a result.
    """
    size = initial_size(encoding)
    finite = sum(map(math.isfinite, losses))
    return finite < LEAST or (number < size and len(losses) < 2 * size)


def initial_row(encoding: Encoding, number: int, seed: int) -> Floats:
    """Return the row of initial configuration `number`.

    Configuration 0 has all numbers in the middle of their ranges. A list that decides about other parameters
    takes its values in turn, so that each branch is tried early. After each cycle, the values of every list
    but the first are shifted, so that two lists, or a list and a nested list, are tried in all combinations.
    The missing values of a user's points have negative numbers, which count from the end of the sequence.
    """
    number %= 2**BITS
    row = encoding.from_unit(sobol(number, len(encoding), seed)[None])
    if number == 0:
        row = np.where(encoding.categories > 0, row, 0.5)
    places = np.flatnonzero(encoding.parents & (encoding.categories > 0)).tolist()
    for place in places:
        size, turn = int(encoding.categories[place]), number
        if place != places[0]:
            # The shifts are in random order, because two lists with equal shifts would depend on each other.
            # With one shift, two lists go through lcm(size, first) combinations. There are gcd(size, first)
            # shifts that give different combinations.
            first = int(encoding.categories[places[0]])
            shifts = math.gcd(size, first)
            block, cycle = divmod(number // math.lcm(size, first), shifts)
            turn += int(initial_generator(seed, 2, place, block).permutation(shifts)[cycle])
        row[0, place] = initial_generator(seed, 3, place).permutation(size)[turn % size]
    snapped: Floats = encoding.snapped(row)[0]
    return snapped


def random_rows(encoding: Encoding, rng: Generator) -> Iterator[Floats]:
    """Yield random rows, without end."""
    while True:
        yield encoding.snapped(encoding.from_unit(rng.random((1, len(encoding)))))[0]
