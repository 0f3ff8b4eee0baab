"""Our domains as Optuna's distributions: what it is asked for, and which value that stands for."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from trainkit.errors import SpaceError
from trainkit.tune.domains import Categorical, Domain, Float, Integer, Normal
from trainkit.tune.domains.listed import place_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

QUANTILES = 2**20
"""Steps in which the quantiles of a normal distribution are searched; counted, so a value gives its step."""

_PLAIN = (str, int, float, bool, type(None))


class Coder(ABC):
    """Asks a trial for one parameter.

    Attributes:
        name: of the parameter.
        distribution: Optuna's.
        exact: True if `encode` gives what `ask` was answered.
    """

    exact = True

    def __init__(self, name: str, distribution: BaseDistribution) -> None:
        self.name = name
        self.distribution = distribution

    @abstractmethod
    def ask(self, trial: Trial) -> Any:
        """The value that `trial` suggests."""

    @abstractmethod
    def encode(self, value: Any) -> Any:
        """What Optuna knows `value` by."""


class _Real(Coder):
    def __init__(self, name: str, domain: Float) -> None:
        from optuna.distributions import FloatDistribution

        super().__init__(name, FloatDistribution(domain.lower, domain.upper, log=domain.log))
        self._domain = domain
        self._last = math.nextafter(domain.upper, domain.lower)

    def ask(self, trial: Trial) -> float:
        domain = self._domain
        return min(trial.suggest_float(self.name, domain.lower, domain.upper, log=domain.log), self._last)

    def encode(self, value: Any) -> float:
        return float(value)


class _Steps(Coder):
    """Multiples of q, as Optuna's whole numbers: exact, and with a logarithm too."""

    def __init__(self, name: str, domain: Float | Integer) -> None:
        from optuna.distributions import IntDistribution

        self._q = Fraction(repr(domain.q))
        self._whole = isinstance(domain, Integer)
        self._first, self._last = (round(Fraction(bound) / self._q) for bound in domain.bounds)
        self._log = domain.log
        super().__init__(name, IntDistribution(self._first, self._last, log=self._log))

    def ask(self, trial: Trial) -> float:
        k = trial.suggest_int(self.name, self._first, self._last, log=self._log)
        if self._whole:
            return k * self._q.numerator
        return k * self._q.numerator / self._q.denominator

    def encode(self, value: Any) -> int:
        return round(Fraction(value) / self._q)


class _Quantile(Coder):
    """A normal distribution by its quantiles, so that Optuna's even start has the user's prior."""

    def __init__(self, name: str, domain: Normal) -> None:
        from optuna.distributions import IntDistribution

        super().__init__(name, IntDistribution(1, QUANTILES - 1))
        self._domain = domain
        self._normal = NormalDist(domain.mean, domain.sd)
        self.exact = domain.q is None  # values that were rounded have many quantiles

    def ask(self, trial: Trial) -> float:
        value = self._normal.inv_cdf(trial.suggest_int(self.name, 1, QUANTILES - 1) / QUANTILES)
        if self._domain.q is None:
            return value
        q = Fraction(repr(self._domain.q))
        k = round(Fraction(value) / q)
        return k * q.numerator / q.denominator

    def encode(self, value: Any) -> int:
        return min(max(round(self._normal.cdf(value) * QUANTILES), 1), QUANTILES - 1)


class _Choice(Coder):
    """One of a list; what is no plain value goes by its place and a few words."""

    def __init__(self, name: str, domain: Categorical) -> None:
        from optuna.distributions import CategoricalDistribution

        self._categories = domain.categories
        self._params: Sequence[Any] = domain.categories
        plain = all(type(value) in _PLAIN and value == value for value in domain.categories)
        if not plain or len(set(domain.categories)) < len(domain.categories):
            self._params = [f"{place}: {_words(value)}" for place, value in enumerate(domain.categories)]
        self._place = {param: place for place, param in enumerate(self._params)}
        super().__init__(name, CategoricalDistribution(self._params))

    def ask(self, trial: Trial) -> Any:
        return self._categories[self._place[trial.suggest_categorical(self.name, self._params)]]

    def encode(self, value: Any) -> Any:
        place = place_of(value, self._categories)
        if place is None:
            raise SpaceError(f"{self.name}={value!r} is not in {self.name}'s list")
        return self._params[place]


def _words(value: Any) -> str:
    """The same in every process, as a study's database asks for: a default repr holds an address."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))[:40]


def coder_of(name: str, domain: Domain) -> Coder:
    """Return what asks Optuna for a value of `domain`.

    Raises:
        SpaceError: it is no domain of ours.
    """
    match domain:
        case Float(q=None):
            return _Real(name, domain)
        case Float() | Integer():
            return _Steps(name, domain)
        case Normal():
            return _Quantile(name, domain)
        case Categorical():
            return _Choice(name, domain)
    raise SpaceError(f"{name}: OptunaSearch does not know {domain}; give one of tune's domains")
