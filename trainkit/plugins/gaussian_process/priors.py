"""A user's belief: values near which the best configuration is expected.

A belief is treated like an earlier experiment. The search begins at the believed values, and the belief is
part of the mean function of the search's process, as far as it agrees with the results.

Source: Souza, Nardi, Oliveira, Olukotun, Lindauer, Hutter, "Bayesian optimization with a prior for the
optimum", ECML PKDD 2021; Hvarfner, Stoll, Souza, Lindauer, Hutter, Nardi, "PiBO: Augmenting acquisition
functions with user beliefs for Bayesian optimization", ICLR 2022.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from trainkit.errors import ConfigError, did_you_mean
from trainkit.plugins.gaussian_process.encoding import Encoding, Floats
from trainkit.tune.core.seeds import initial_generator

WIDTH = 0.15
"""Distance from a believed value, as a share of the range, at which the belief has fallen to 0.6."""
DEPTH = 3.0
"""Difference between the scores of the believed values and of values that are far away."""
ROWS = 40
"""Number of configurations with the believed values among the candidates for the first configurations."""


def checked_priors(priors: Any) -> Mapping[str, Any]:
    """Return `priors`, or {} for None.

    Raises:
        ConfigError: `priors` is not a dictionary.
    """
    if not isinstance(priors, Mapping | None):
        raise ConfigError(f"priors={priors!r}: give a dictionary of values, such as {{'lr': 1e-3}}")
    return dict(priors or {})


def _by_name(priors: Mapping[str, Any], names: Collection[str], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield name and value of each prior; a dictionary that is a value of one of `names` is not divided."""
    for key, value in priors.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and name not in names:
            yield from _by_name(value, names, f"{name}/")
        else:
            yield name, value


class Belief:
    """Belief about the best values of some parameters.

    Args:
        encoding: encoding of the space.
        priors: believed best values, by name of the parameter, or in nested dictionaries.
        seed: seed of the other values of `best`.

    Raises:
        ConfigError: the space has no such parameter, or the domain has no such value.
    """

    def __init__(self, encoding: Encoding, priors: Mapping[str, Any], seed: int) -> None:
        domains = {each.name: each.domain for each in encoding.declared.parameters}
        priors = dict(_by_name(priors, domains))
        for name, value in priors.items():
            if name not in domains:
                raise ConfigError(
                    f"priors has {name!r}, but the space has no parameter of this name: give some of "
                    f"{', '.join(domains)}.{did_you_mean(name, domains)}"
                )
            if not domains[name].contains(value):
                raise ConfigError(
                    f"priors: {name}={value!r} is not in {domains[name]}: give one of its values"
                )
        places = {name: place for place, name in enumerate(encoding.codes)}
        self._columns = np.array([places[name] for name in priors])
        self._values = np.array([encoding.position(name, value) for name, value in priors.items()])
        self._listed = encoding.categories[self._columns] > 0
        self._encoding = encoding
        drawn = encoding.from_unit(initial_generator(seed, 5).random((ROWS, len(encoding))))
        centres = np.where(encoding.categories > 0, drawn, 0.5)
        centres[:, self._columns] = drawn[:, self._columns] = self._values
        centres, drawn = encoding.snapped(centres), encoding.snapped(drawn)
        # In some of the centres, conditions turn believed parameters off.
        centre = centres[np.argmin(self.mean(centres))]
        self.best: Floats = np.concatenate([centre[None], drawn])

    def mean(self, rows: Floats) -> Floats:
        found: Floats = DEPTH * (0.2 - self._near(rows).mean(axis=1))
        return found

    def slopes(self, rows: Floats) -> Floats:
        found = np.zeros(rows.shape)
        off = (rows[:, self._columns] - self._values) / WIDTH**2
        falling = np.where(self._listed, 0.0, self._near(rows) * off)
        found[:, self._columns] = DEPTH / len(self._columns) * falling
        return found

    def _near(self, rows: Floats) -> Floats:
        """Return the nearness to each believed value, from 0 to 1; 0 for inactive parameters."""
        off = rows[:, self._columns] - self._values
        near = np.where(self._listed, off == 0, np.exp(-0.5 * (off / WIDTH) ** 2))
        return np.where(self._encoding.activity(rows)[:, self._columns], near, 0.0)
