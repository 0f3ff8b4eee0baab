"""Four agents choose a number each round; the best choice drifts, so that earlier knowledge becomes outdated.

The gain of a round is 1 - 4 (h - h*)**2 and a little noise. An agent that copies another agent also takes
over that agent's total gain.
"""

from __future__ import annotations

import numpy as np

AGENTS, ROUNDS = 4, 30
NOISE = 0.02


def best_choice(round_number: int, *, drift: bool) -> float:
    """Return the best choice in round 0, 1, ...: from 0.2 to 0.8 in equal steps, or always 0.65."""
    return 0.2 + 0.6 * round_number / (ROUNDS - 1) if drift else 0.65


def gain(h: float, round_number: int, rng: np.random.Generator, *, drift: bool) -> float:
    """Return the gain of one agent in one round."""
    return 1 - 4 * (h - best_choice(round_number, drift=drift)) ** 2 + float(rng.normal(0, NOISE))
