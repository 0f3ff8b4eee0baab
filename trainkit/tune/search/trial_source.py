"""New trials from suggestions: id, folder name and requested resources."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from trainkit.errors import ConfigError, message_of
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Trial, experiment_tag, trial_dirname, trial_id_of
from trainkit.tune.core.values import flatten
from trainkit.tune.search.proposals import Proposals

MAX_OWN_DIRNAME = 120
"""Bytes of a folder's name that a user's function makes; longer ones are cut."""

_OURS = "experiment."
"""Beginning of the names of the experiment's own files."""


class Namer:
    """Names trials as TuneConfig asks for.

    Args:
        name_of: `trial_name_creator`; None: names stay as they are.
        dirname_of: `trial_dirname_creator`; None: folders stay as they are.
        taken: names of the experiment's folders.
    """

    def __init__(
        self,
        name_of: Callable[[Trial], str] | None = None,
        dirname_of: Callable[[Trial], str] | None = None,
        taken: Iterable[str] = (),
    ) -> None:
        self._name_of = name_of
        self._dirname_of = dirname_of
        # Compared as a file system would that doesn't tell upper case from lower.
        self._taken = {name.casefold() for name in taken} if dirname_of is not None else set()

    def name(self, trial: Trial) -> None:
        """Give `trial` its own name and folder.

        Raises:
            ConfigError: a function raised, or returned something else than a text.
        """
        if self._name_of is not None:
            trial.name = _called("trial_name_creator", self._name_of, trial)
        if self._dirname_of is not None:
            asked = _called("trial_dirname_creator", self._dirname_of, trial)
            trial.dirname = own_dirname(asked, trial.trial_id, self._taken)
            self._taken.add(trial.dirname.casefold())


def own_dirname(asked: str, trial_id: str, taken: Iterable[str]) -> str:
    """Return `asked` as the name of a folder: inside the experiment's, of fair length, and nobody else's.

    What is neither a letter, a digit, nor one of `-_.=,+@` becomes `_`; where that leaves nothing, or the
    name is taken already, the trial's id is put to it. A name that begins as the experiment's own files do
    gets `trial_` before it.
    """
    plain = re.sub(r"[^\w.=,+@-]+", "_", asked).strip(".")
    cut = plain.encode()[:MAX_OWN_DIRNAME].decode(errors="ignore")
    if not cut.strip("_"):
        return f"trial_{trial_id}"
    if cut.casefold().startswith(_OURS):
        cut = f"trial_{cut}"
    return cut if cut.casefold() not in taken else f"{cut}_{trial_id}"


def _called(setting: str, function: Callable[[Trial], Any], trial: Trial) -> str:
    try:
        name = function(trial)
    except Exception as error:
        raise ConfigError(
            f"{setting} raised {type(error).__name__} for trial {trial.trial_id}: {message_of(error)}"
        ) from error
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{setting} returned {name!r} for trial {trial.trial_id}: return a text")
    return " ".join(name.split()) or trial.trial_id


class TrialSource:
    """Makes trials in the order suggested.

    Args:
        proposals: of configurations.
        varied: names of the hyperparameters that are not constant.
        prefix: what all trial ids of the experiment begin with.
        trainable_name: for names and folders.
        experiment_path: of the experiment's folder; '' where it has none.
        request_of: what a trial with this configuration reserves; may be the user's function.
        created: how many trials there are already.
        namer: gives trials names of the user's own.
    """

    def __init__(
        self,
        proposals: Proposals,
        *,
        varied: set[str],
        prefix: str,
        trainable_name: str,
        experiment_path: str = "",
        request_of: Callable[[dict[str, Any]], PlacementGroupFactory],
        created: int = 0,
        namer: Namer | None = None,
    ) -> None:
        self._proposals = proposals
        self._prefix = prefix
        self._trainable_name = trainable_name
        self._experiment_path = experiment_path
        self._request_of = request_of
        self._varied = varied
        self._finished = False
        self._namer = namer or Namer()
        self.created = created

    @property
    def exhausted(self) -> bool:
        """True once there will be no further trial."""
        total = self._proposals.total_samples
        return self._finished or (total is not None and self.created >= total)

    @property
    def to_come(self) -> int | None:
        """How many trials there will be yet at most; None: without end."""
        total = self._proposals.total_samples
        if self._finished:
            return 0
        return None if total is None else max(0, total - self.created)

    @property
    def searcher_name(self) -> str:
        """The class that suggests, for messages."""
        return self._proposals.name

    @property
    def reason(self) -> str:
        """Why there were fewer trials than asked for; empty: there were not."""
        return self._proposals.reason

    def next_trial(self) -> Trial | None:
        """Return the next trial; None if there is none, or none yet.

        Raises:
            ConfigError: the searcher raised, or returned something else than a configuration.
        """
        if self.exhausted:
            return None
        trial_id = trial_id_of(self._prefix, self.created)
        config = self._proposals.propose(trial_id)
        if config is None:
            return None
        if isinstance(config, str):
            self._finished = True
            return None
        trial = make_trial(trial_id, self.created, config, self._trainable_name, self._varied)
        trial.experiment_path = self._experiment_path
        self._namer.name(trial)
        self.created += 1
        return trial

    def request(self, trial: Trial) -> PlacementGroupFactory:
        """Return the request of `trial`; raise what the user's function of the configuration raises."""
        return self._request_of(trial.config)


def make_trial(
    trial_id: str, index: int, config: dict[str, Any], trainable_name: str, varied: set[str]
) -> Trial:
    """Return a trial that has not run."""
    evaluated = evaluated_of(config, varied)
    return Trial(
        trial_id=trial_id,
        index=index,
        config=config,
        name=f"{trainable_name}_{trial_id}",
        dirname=trial_dirname(trainable_name, trial_id),
        tag=experiment_tag(index, evaluated),
        trainable_name=trainable_name,
        evaluated_params=evaluated,
    )


def evaluated_of(config: Mapping[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return the hyperparameters of `config` that are `varied`, by flat name."""
    return {name: value for name, value in flatten(config).items() if name in varied}
