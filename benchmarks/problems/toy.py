"""Two members that each train half of the value, so that they reach the optimum only by copying.

The value is 1.2 - (a * t0**2 + t1**2), but a member climbs 1.2 - (a * h0 * t0**2 + h1 * t1**2): its
hyperparameters select which of its two weights it trains.

Source: Jaderberg et al. 2017, arXiv:1711.09846, figure 2 (a = 1); Ray Tune's documentation (a = 0.75).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

State = tuple[float, float]
START: State = (0.9, 0.9)
OPTIMUM = 1.2


def value(state: State, a: float) -> float:
    """Return the value of a state, at most 1.2."""
    return OPTIMUM - (a * state[0] ** 2 + state[1] ** 2)


def step(state: State, config: Mapping[str, Any], a: float, lr: float) -> State:
    """Return the state after one step of gradient ascent; `lr` is used if `config` has no learning rate."""
    rate = config.get("lr", lr)
    return (
        state[0] * (1 - 2 * rate * a * config["h0"]),
        state[1] * (1 - 2 * rate * config["h1"]),
    )
