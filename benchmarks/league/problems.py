"""Problems of the league: a space, a loss for each configuration, and the smallest possible loss."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.league.lines import Asked
from benchmarks.problems import curves


@dataclass(frozen=True)
class Parameter:
    """A parameter of a space: a list of values, or an interval.

    Attributes:
        values: list of values; empty for an interval.
        low, high: ends of the interval, both included.
        log: True: the logarithm is uniform.
        integer: True: whole numbers.
        parent, branches: it exists only if the parameter `parent` has one of the values `branches`.
    """

    name: str
    values: Sequence[Any] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    integer: bool = False
    parent: str = ""
    branches: Sequence[Any] = ()

    @property
    def plain(self) -> dict[str, Any]:
        """The parameter as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Problem:
    """A problem.

    Attributes:
        family: group of problems in the page.
        losses: function (config, seed) -> observed losses, one for each report, and the true last loss.
        optimum: smallest true last loss.
        reports: number of reports of a complete trial.
    """

    name: str
    family: str
    space: Sequence[Parameter]
    losses: Callable[[Mapping[str, Any], int], tuple[Sequence[float], float]]
    optimum: float
    reports: int = 1

    @property
    def conditional(self) -> bool:
        """True if a parameter depends on another."""
        return any(each.parent for each in self.space)

    def seconds(self, config: Mapping[str, Any], seed: int) -> float:
        """Return the virtual seconds of a report, between 0.5 and 1.5, the same for each method."""
        # Libraries may return a number of a list as another type.
        key = [(name, v if isinstance(v, str) else float(v)) for name, v in sorted(config.items())]
        word = hashlib.blake2b(repr((seed, key)).encode(), digest_size=4).digest()
        return 0.5 + int.from_bytes(word, "big") / 2**32


INSTALLED: dict[str, tuple[str, list[Any]]] = {
    **{
        f"hpobench {name}": ("HPOBench networks", ["hpo", "HPOBench", name])
        for name in "australian blood_transfusion car credit_g kc1 phoneme segment vehicle".split()
    },
    **{
        f"hpolib {name.partition('_')[0]}": ("HPOLib networks", ["hpo", "HPOLib", name])
        for name in (
            "naval_propulsion parkinsons_telemonitoring protein_structure slice_localization".split()
        )
    },
    **{
        f"nasbench201 {name}": ("NAS-Bench-201", ["hpo", "NASBench201", name])
        for name in "cifar10 cifar100 imagenet".split()
    },
    **{
        f"bbob f{number}": ("COCO bbob, 3 parameters", ["coco", "bbob", number, 3])
        for number in (6, 8, 15, 21)
    },
    **{
        f"mixint f{number}": ("COCO bbob-mixint, 5 parameters", ["coco", "bbob-mixint", number, 5])
        for number in (6, 8, 15, 21)
    },
}
"""Family, and name in `installed`, of each problem that needs installed packages."""


def _installed(name: str, source: Asked) -> Problem:
    family, words = INSTALLED[name]
    facts = source.ask(do="facts", name=words)

    def losses(config: Mapping[str, Any], seed: int) -> tuple[Sequence[float], float]:
        observed, true = source.ask(do="evaluate", name=words, config=dict(config), seed=seed)
        return [observed], true

    return Problem(name, family, [Parameter(**each) for each in facts["space"]], losses, facts["optimum"])


LEARNERS: Mapping[str, tuple[float, Mapping[str, tuple[float, float, float]]]] = {
    "linear": (0.20, {"alpha": (1e-6, 1e2, 1e-3)}),
    "svm": (0.12, {"C": (1e-3, 1e3, 30.0), "gamma": (1e-4, 1e1, 0.02)}),
    "forest": (0.14, {"features": (0.05, 1.0, 0.3), "leaf": (1e-4, 0.3, 2e-3)}),
    "boosting": (
        0.10,
        {"rate": (1e-3, 1.0, 0.06), "subsample": (0.1, 1.0, 0.6), "leaves": (2.0, 256.0, 24.0)},
    ),
    "network": (0.11, {"lr": (1e-5, 1.0, 3e-3), "decay": (1e-7, 1e-1, 1e-4), "width": (8.0, 512.0, 128.0)}),
}
"""For each learner its smallest loss, and for each of its parameters the ends and the best value."""


def _learners() -> Problem:
    """Return a choice of five learners, each with parameters of its own; the losses are formulas."""
    space = [Parameter("learner", list(LEARNERS))]
    for learner, (_, ranges) in LEARNERS.items():
        for key, (low, high, _) in ranges.items():
            space.append(Parameter(key, (), low, high, log=True, parent="learner", branches=[learner]))

    def losses(config: Mapping[str, Any], seed: int) -> tuple[Sequence[float], float]:
        del seed
        floor, ranges = LEARNERS[config["learner"]]
        off = [
            math.log(config[key] / best) / math.log(high / low) for key, (low, high, best) in ranges.items()
        ]
        loss = floor + 0.8 * (1 - math.exp(-3 * sum(each**2 for each in off)))
        return [loss], loss

    return Problem(
        "learners", "conditional space", space, losses, min(floor for floor, _ in LEARNERS.values())
    )


def _from_curves(table: str, *, whole: bool) -> Problem:
    """Return a table of learning curves; if `whole` is false, a trial reports only its last loss."""
    grid, rows = curves.GRIDS[table], curves.table(table)
    number = {tuple(each.values()): row for row, each in enumerate(curves.configurations(table))}

    def losses(config: Mapping[str, Any], seed: int) -> tuple[Sequence[float], float]:
        del seed
        row = [float(value) for value in rows[number[tuple(config[key] for key in grid)]]]
        return (row if whole else row[-1:]), row[-1]

    return Problem(
        f"{'curves' if whole else 'sklearn'} {table}",
        "learning curves of scikit-learn" if whole else "tables of scikit-learn",
        [Parameter(key, values) for key, values in grid.items()],
        losses,
        float(rows[:, -1].min()),
        curves.REPORTS if whole else 1,
    )


OWN: dict[str, Callable[[], Problem]] = {
    "learners": _learners,
    **{
        f"{'curves' if whole else 'sklearn'} {table}": partial(_from_curves, table, whole=whole)
        for whole in (False, True)
        for table in curves.GRIDS
    },
}


def load(name: str, source: Asked | None) -> Problem:
    """Return a problem by its name; `source` is the process of `installed`."""
    if name in OWN:
        return OWN[name]()
    if source is None:
        raise ValueError(f"the problem {name!r} needs the peers' environment: run --install FOLDER first")
    return _installed(name, source)
