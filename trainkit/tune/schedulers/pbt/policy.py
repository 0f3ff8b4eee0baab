"""The policy files of population based training, in Ray's format: a line of JSON for each exchange.

    [tag of the trial, tag of its donor, iteration of the trial, iteration of the donor, old, new]

`old` is the donor's configuration, `new` what the trial went on with. `pbt_global.txt` has a line for each
exchange of the experiment; `pbt_policy_<trial id>.txt` those that led to the trial's weights. The donor's
iteration counts the reports along this line, so that a replay of it changes at the right ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.schedulers.pbt.lineage import Exchange, Stretch, lineage
from trainkit.tune.values import without_objects

GLOBAL_FILE = "pbt_global.txt"


def policy_file(trial_id: str) -> str:
    """The name of a trial's file."""
    return f"pbt_policy_{trial_id}.txt"


@dataclass(frozen=True)
class Schedule:
    """A configuration, and those that take its place one after the other.

    Attributes:
        initial: the configuration at the start.
        changes: after how many iterations which one holds, in order.
    """

    initial: dict[str, Any]
    changes: tuple[tuple[int, dict[str, Any]], ...] = ()

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> Schedule:
        """That of a lineage."""
        first, *others = stretches
        return cls(dict(first.config), tuple((each.before, dict(each.config)) for each in others))


def policy_lines(
    exchanges: Sequence[Exchange],
    suggested: Mapping[str, Mapping[str, Any]],
    tags: Mapping[str, str],
    trial_id: str,
) -> list[str]:
    """Return the lines of a trial's file; [] where it has always gone on from its own state.

    Args:
        exchanges: of all trials, in order.
        suggested: by trial, the configuration that it began with.
        tags: by trial, as Ray calls it in these files.
        trial_id: of the trial.
    """
    last = max((each.iteration for each in exchanges if each.trial_id == trial_id), default=0)
    stretches = lineage(exchanges, suggested, trial_id, last)
    lines = []
    for old, new in pairwise(stretches):
        row = [tags[new.trial_id], tags[old.trial_id], new.first, new.before, old.config, new.config]
        lines.append(_line(row))
    return lines


def _line(row: Sequence[Any]) -> str:
    return json.dumps(without_objects(row)) + "\n"


def read_policy(text: str, where: str) -> Schedule:
    """Return the schedule that a policy file holds: of its lines, those that led to the last one.

    Raises:
        ConfigError: `text` is none, or holds no line.
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            trial, donor, _, step, old, new = row
            if not (isinstance(step, int) and isinstance(old, dict) and isinstance(new, dict)):
                raise ValueError("a value is of another kind")
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{where} is no policy file of population based training: line {number} is no list of two "
                f"tags, two iterations and two configurations ({error}). Give a pbt_policy_<trial id>.txt"
            ) from error
        rows.append((trial, donor, step, old, new))
    if not rows:
        raise ConfigError(f"{where} is empty: there is nothing to replay")
    changes: list[tuple[int, dict[str, Any]]] = []
    initial, came_from = rows[-1][3], rows[-1][0]
    for trial, donor, step, old, new in reversed(rows):
        if trial != came_from:  # of what the trial did before: its donor had no exchange by then
            break
        came_from, initial = donor, old
        changes.append((step, new))
    return Schedule(initial, tuple(reversed(changes)))
