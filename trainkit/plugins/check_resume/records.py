"""Records of an attempt as plain data: each step of each rank."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError


class CheckError(TrainkitError):
    """The check can't be made, so it says nothing about the script's resume."""


@dataclass(frozen=True)
class Step:
    """A rank's optimizer step: the state before it, and what it used.

    Attributes:
        optimizer: index of the optimizer, in the order of their first steps.
        optimizer_class: name of the optimizer's class.
        names: names of the optimizer's parameters.
        weights: hash of each parameter before the step.
        sizes: Euclidean norm of each parameter before the step.
        state: hash of each kind of the optimizer's state, such as `exp_avg`, before the step.
        options: numeric settings of each parameter group, such as `lr`.
        beside: names and hashes of buffers and copies of the weights.
        result: hash of each parameter after the step. If a kill prevented the step, this and the following
            attributes are empty.
        batches: hashes of the samples of each call of a model since the last step.
        modules: class of the model for each of `batches`.
        losses: values on which `backward` was called since the last step.
        generators: hash of each random number generator's state after the step.
    """

    optimizer: int
    optimizer_class: str
    names: Sequence[str]
    weights: Sequence[str]
    sizes: Sequence[float]
    state: Mapping[str, str]
    options: Sequence[Mapping[str, Any]]
    beside: Sequence[tuple[str, str]]
    result: Sequence[str] = ()
    batches: Sequence[Sequence[str]] = ()
    modules: Sequence[str] = ()
    losses: Sequence[float] = ()
    generators: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> list[str]:
        """The hashes of all samples of the step."""
        return [sample for batch in self.batches for sample in batch]


Ranks = Sequence[Sequence[Step]]
"""The steps of each rank, in order."""


def read(folder: Path) -> Ranks:
    """Return the steps that the processes of an attempt have recorded in `folder`.

    Raises:
        CheckError: two processes have trained as the same rank, or a rank has recorded no step.
    """
    ranks: dict[int, list[Step]] = {}
    world_size = 0
    for path in sorted(folder.glob("records-*.jsonl")):
        # A kill can cut the last line, which then has no end.
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        if not lines:
            continue
        rank, world_size = lines[0]["rank"], lines[0]["world_size"]
        if rank in ranks:
            raise CheckError(
                f"two processes have made optimizer steps as rank {rank}: check one training at a time, "
                "without restarts of workers"
            )
        ranks[rank] = _steps(lines)
    if ranks.keys() != set(range(world_size)):
        raise CheckError(f"of {world_size} ranks, only {sorted(ranks)} have recorded optimizer steps")
    return [ranks[rank] for rank in sorted(ranks)]


def _steps(lines: Sequence[dict[str, Any]]) -> list[Step]:
    steps: dict[int, dict[str, Any]] = defaultdict(dict)
    for line in lines:
        steps[line["step"]] |= line
    names = Step.__dataclass_fields__.keys()
    return [Step(**{name: step[name] for name in names & step.keys()}) for step in steps.values()]


def steps_by_weights(ranks: Ranks) -> dict[str, list[int]]:
    """Return the numbers of the steps that begin with each set of weights, for the recorder."""
    found: dict[str, list[int]] = defaultdict(list)
    for steps in ranks:
        for number, step in enumerate(steps, start=1):
            found["".join(step.weights)].append(number)
    return dict(found)
