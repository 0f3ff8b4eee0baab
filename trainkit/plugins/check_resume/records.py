"""Records of an attempt as plain data: each step of each rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.errors import TrainkitError


class CheckError(TrainkitError):
    """Failure of the check itself, after which the result for the script is unknown."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Optimizer step of a rank: the state before the step, the samples and losses that the step used, and the
    weights after it.

    Attributes:
        rank: the rank.
        world_size: number of ranks.
        optimizer: index of the optimizer, in the order of their first steps.
        optimizer_class: name of the optimizer's class.
        names: names of the optimizer's parameters.
        weights: hash of each parameter before the step.
        sizes: Euclidean norm of each parameter before the step.
        state: hash of each kind of the optimizer's state, such as `exp_avg`, before the step.
        options: numeric settings of each parameter group, such as `lr`.
        beside: names and hashes of buffers and copies of the weights.
        batches: class of the model and hashes of the samples, for each call of a model since the last step.
        losses: values on which `backward` was called since the last step.
        generators: hash of each random number generator's state after the step.
        result: hash of each parameter after the step.
    """

    rank: int
    world_size: int
    optimizer: int
    optimizer_class: str
    names: Sequence[str]
    weights: Sequence[str]
    sizes: Sequence[float]
    state: Mapping[str, str]
    options: Sequence[Mapping[str, Any]]
    beside: Sequence[tuple[str, str]]
    batches: Sequence[tuple[str, Sequence[str]]]
    losses: Sequence[float]
    generators: dict[str, str]
    result: Sequence[str]

    @property
    def samples(self) -> list[str]:
        """The hashes of all samples of the step."""
        return [sample for _, batch in self.batches for sample in batch]


Ranks = Sequence[Sequence[Step]]
"""The steps of each rank, in order."""


def read(folder: Path) -> Ranks:
    """Return the steps that the processes of an attempt have recorded in `folder`.

    Raises:
        CheckError: two processes have trained as the same rank, or a rank has recorded no step.
    """
    ranks: dict[int, list[Step]] = {}
    for path in sorted(folder.glob("records-*.jsonl")):
        # If a kill has cut the last line, this line has no line end.
        steps = [Step(**json.loads(line)) for line in path.read_text().split("\n")[:-1]]
        for rank in {step.rank for step in steps}:
            if rank in ranks:
                raise CheckError(
                    f"two processes have made optimizer steps as rank {rank}: check one training at a time, "
                    "without restarts of workers"
                )
            ranks[rank] = steps
    world_size = max((steps[0].world_size for steps in ranks.values()), default=0)
    if ranks.keys() != set(range(world_size)):
        raise CheckError(f"of {world_size} ranks, only {sorted(ranks)} have recorded optimizer steps")
    return [ranks[rank] for rank in range(world_size)]
