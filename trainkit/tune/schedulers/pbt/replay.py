"""Replay of one lineage of population based training, and policy files in Ray's format.

Format of a line in a policy file:

    [tag of the trial, tag of its donor, iteration of the trial, iteration of the donor, old, new]

`old` is the donor's configuration, and `new` is the configuration with which the trial continued. An exchange
is a trial's takeover of a donor's state. `pbt_global.txt` has a line for each exchange of the experiment.
`pbt_policy_<trial id>.txt` has a line for each exchange that led to the trial's weights. The donor's
iteration counts the reports along the trial's lineage, so that a replay changes configurations at the right
reports.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from trainkit.errors import ConfigError
from trainkit.tune.core.lineage import Exchange, Stretch, lineage
from trainkit.tune.core.metrics import without_objects
from trainkit.tune.schedulers.base import (
    CONTINUE,
    NO_CONFIG,
    Decision,
    Donor,
    TrialScheduler,
    Verdict,
    words_of,
)
from trainkit.tune.space.serialization import encode_config

if TYPE_CHECKING:
    from numpy.random import Generator


GLOBAL_FILE = "pbt_global.txt"


def policy_file(trial_id: str) -> str:
    """Return the name of a trial's policy file."""
    return f"pbt_policy_{trial_id}.txt"


@dataclass(frozen=True)
class Schedule:
    """An initial configuration, and the configurations that replace it during training.

    Attributes:
        initial: the configuration at the start.
        changes: pairs of an iteration and the configuration that the trial uses after the iteration, in order
            of iterations.
    """

    initial: dict[str, Any]
    changes: tuple[tuple[int, dict[str, Any]], ...] = ()

    @classmethod
    def of(cls, stretches: Sequence[Stretch]) -> Schedule:
        """Return the schedule of a lineage, given as stretches of training with one configuration each."""
        first, *others = stretches
        return cls(dict(first.config), tuple((each.before, dict(each.config)) for each in others))


def policy_lines(
    exchanges: Sequence[Exchange],
    suggested: Mapping[str, Mapping[str, Any]],
    tags: Mapping[str, str],
    trial_id: str,
) -> list[str]:
    """Return the lines of a trial's policy file; [] if the trial never took over a donor's state.

    Args:
        exchanges: exchanges of all trials, in order.
        suggested: initial configuration of each trial.
        tags: tag of each trial, which is the trial's name in Ray's policy files.
        trial_id: id of the trial.
    """
    last = max((each.iteration for each in exchanges if each.trial_id == trial_id), default=0)
    stretches = lineage(exchanges, suggested, trial_id, last)
    rows = [
        [tags[new.trial_id], tags[old.trial_id], new.first, new.before, old.config, new.config]
        for old, new in pairwise(stretches)
    ]
    return [json.dumps(without_objects(row)) + "\n" for row in rows]


def read_policy(text: str, where: str) -> Schedule:
    """Return the schedule of a policy file: the chain of exchanges that ends with the last line.

    Raises:
        ConfigError: `text` is not the text of a policy file, or is empty.
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
                f"{where} is not a policy file of population based training: line {number} is not a list of "
                f"two tags, two iterations and two configurations ({error}). Give a pbt_policy_<trial id>.txt"
            ) from error
        rows.append((trial, donor, step, old, new))
    if not rows:
        raise ConfigError(f"{where} is empty: there is nothing to replay")
    changes: list[tuple[int, dict[str, Any]]] = []
    initial, came_from = rows[-1][3], rows[-1][0]
    for trial, donor, step, old, new in reversed(rows):
        # The loop ends with a donor that had no earlier exchange, so the schedule begins with this donor's
        # configuration.
        if trial != came_from:
            break
        came_from, initial = donor, old
        changes.append((step, new))
    return Schedule(initial, tuple(reversed(changes)))


class HasLineage(Protocol):
    """An object with a lineage, such as a `Result`."""

    def lineage(self) -> Sequence[Stretch]: ...


class PopulationBasedTrainingReplay(TrialScheduler):
    """Train one trial with the schedule of configurations that population based training has found.

    The trial begins with the first configuration of the lineage, whose values replace the values of
    `param_space` with the same keys. At each iteration where the lineage changed its configuration, the trial
    changes its configuration too, and resumes from its own checkpoint. So the weights of a deterministic
    trainable equal the lineage's weights after the same number of iterations. RunConfig(stop=...) decides
    when the trial ends.

    Args:
        policy_file: a `pbt_policy_<trial id>.txt` of trainkit or Ray, the `Result` of a trial, or an
            experiment's folder together with `trial_id`.
        trial_id: id of the trial in the experiment's folder.

    Attributes:
        schedule: the configuration at the start, and the later configurations with their iterations.

    Raises:
        ConfigError: the file is missing, or is not a policy file of population based training.
    """

    needs_metric: ClassVar[bool] = False
    label: ClassVar[str] = "PBT replay"

    def __init__(
        self,
        policy_file: str | os.PathLike[str] | HasLineage | Mapping[str, Any],
        *,
        trial_id: str | None = None,
    ) -> None:
        super().__init__()
        self.schedule = _schedule_of(policy_file, trial_id)
        self._trial: str | None = None
        self._changed = 0

    @property
    def arguments(self) -> dict[str, Any]:
        # The experiment stores the schedule, because the policy file may be gone when the experiment resumes.
        changes = [[step, config] for step, config in self.schedule.changes]
        return {"policy_file": {"initial": self.schedule.initial, "changes": changes}}

    def completed_space(self, space: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**space, **copy.deepcopy(self.schedule.initial)}

    def set_search_properties(
        self, metric: str | None, mode: str | None, rng: Generator, total_samples: int | None = None
    ) -> None:
        super().set_search_properties(metric, mode, rng, total_samples)
        if total_samples != 1:
            how_many = "unlimited" if total_samples is None else total_samples
            raise ConfigError(
                f"a replay trains one trial, not {how_many}: set num_samples=1 and param_space without a grid"
            )

    def resize(self, total_samples: int | None) -> None:
        if total_samples != 1:
            raise ConfigError("a replay trains only one trial: do not change the number of trials")

    def on_trial_add(self, trial_id: str, config: Mapping[str, Any] = NO_CONFIG) -> None:
        initial = self.schedule.initial
        differing = [key for key in initial if encode_config(config.get(key)) != encode_config(initial[key])]
        if differing:
            raise ConfigError(
                f"a replay must begin with the recorded {', '.join(differing)}, but the searcher suggests "
                "another value: leave search_alg and points_to_evaluate out"
            )
        self._trial = trial_id

    @property
    def pauses(self) -> bool:
        return bool(self.schedule.changes)

    def decide(self, trial_id: str, time: float | None, score: float | None) -> Decision:
        if time is None or trial_id != self._trial:
            return CONTINUE
        due = sum(1 for step, _ in self.schedule.changes if step <= time)
        if due <= self._changed:
            return CONTINUE
        step, config = self.schedule.changes[due - 1]
        self._changed = due
        reason = {"rule": "replay", "at": step, "change": due, "changes": len(self.schedule.changes)}
        return Decision(Verdict.PAUSE, reason, donors=(Donor(trial_id, copy.deepcopy(config)),))


def _schedule_of(source: Any, trial_id: str | None) -> Schedule:
    if isinstance(source, Mapping):
        return Schedule(source["initial"], tuple((step, config) for step, config in source["changes"]))
    if hasattr(source, "lineage"):
        return Schedule.of(source.lineage())
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(f"policy_file must be a pbt_policy_<trial id>.txt or a Result, not {source!r}")
    path = Path(source).expanduser()
    if path.is_dir():
        if trial_id is None:
            raise ConfigError(f"{path} is a folder: choose one of its trials by trial_id='...'")
        path = path / policy_file(trial_id)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}. With log_config=True a trial writes this file when the trial "
            "copies another trial. For any trial, Result.from_path(its folder) can be given instead"
        ) from error
    return read_policy(text, str(path))


# --- wording of decisions ----------------------------------------------------------------------------


words_of("replay")("change {change} of {changes} of the replayed schedule, at {at:g}".format_map)
