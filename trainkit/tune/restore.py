"""Goes on with an experiment: trials from its file, searcher and scheduler by replaying its log."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune import events as ev
from trainkit.tune.checks import is_number
from trainkit.tune.history import Ended, ExperimentReader, LogEntry, Report, Suggested
from trainkit.tune.proposals import Proposals
from trainkit.tune.schedulers.base import TrialScheduler, stop_words
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import complete, encode_config, holds_opaque, lookup
from trainkit.tune.variants import Space

_OURS = re.compile(r"checkpoint_\d{6,}|\.checkpoint_\d{6,}\.partial")
"""Folders that `checkpoint_dirname` names; what else lies in a trial's folder is the user's."""


@dataclass(frozen=True)
class ResumeRule:
    """What is done with trials that had not ended well; as in `Tuner.restore`."""

    resume_unfinished: bool = True
    resume_errored: bool = False
    restart_errored: bool = False

    def __post_init__(self) -> None:
        if self.resume_errored and self.restart_errored:
            raise ConfigError("resume_errored and restart_errored contradict each other: choose one")


@dataclass
class Restored:
    """What an interrupted experiment comes to.

    Attributes:
        trials: as the controller takes them.
        with_metric: ids of those that have reported the metric.
        records: what restoring has changed, to commit before anything runs.
    """

    trials: list[Trial]
    with_metric: set[str] = field(default_factory=set)
    records: list[ev.Record] = field(default_factory=list)


def restored_space(facts: Mapping[str, Any], given: Mapping[str, Any] | None) -> Space:
    """Return the search space.

    Raises:
        ConfigError: the file can't hold the space and none was given, or another one was given.
    """
    if given is not None:
        space = Space.of(given)
        if encode_config(space.tree) != encode_config(facts["space"]):
            raise ConfigError(
                "param_space differs from the one the experiment was started with: give the same, or start "
                f"a new experiment. Stored is {encode_config(facts['space'])}, "
                f"given is {encode_config(space.tree)}"
            )
        return space
    if holds_opaque(facts["space"]):
        raise ConfigError(
            "the search space holds functions or objects, which the experiment's file cannot: give it again, "
            "as Tuner.restore(path, trainable, param_space=...)"
        )
    return Space.of(facts["space"])


def restore_trials(
    reader: ExperimentReader,
    proposals: Proposals,
    scheduler: TrialScheduler,
    rule: ResumeRule,
    metric: str | None,
    time: float,
) -> Restored:
    """Replay the file's log into `proposals` and `scheduler`, and settle what each trial now is.

    Raises:
        ConfigError: the searcher suggests other configurations than it did.
    """
    trials = reader.trials()
    restored = Restored(trials, replay(reader.log(), trials, proposals, scheduler, metric))
    started, stops = reader.started(), reader.stops()
    for trial in trials:
        trial.last_result["config"] = trial.config
        unsettled = not trial.status.is_finished
        _settle(restored, trial, rule, stops.get(trial.trial_id), scheduler, time)
        if unsettled and trial.status.is_finished:
            scheduler.on_trial_complete(trial.trial_id)
            proposals.on_trial_complete(trial.trial_id, trial.last_result)
        if trial.status is TrialStatus.PENDING and (trial.trial_id, trial.attempt) in started:
            trial.attempt += 1
        _tidy(restored, trial, reader.folder / trial.dirname, time)
    return restored


def replay(
    log: Iterable[LogEntry],
    trials: Sequence[Trial],
    proposals: Proposals,
    scheduler: TrialScheduler,
    metric: str | None = None,
) -> set[str]:
    """Tell `proposals` and `scheduler` what they were told, and complete the configurations of `trials`.

    Returns:
        The ids of trials that have reported `metric`.

    Raises:
        ConfigError: the searcher suggests other configurations than it did.
    """
    by_id = {trial.trial_id: trial for trial in trials}
    with_metric = set()
    for entry in log:
        trial = by_id[entry.trial_id]
        match entry:
            case Suggested():
                _ask_again(proposals, trial)
                scheduler.on_trial_add(trial.trial_id)
            case Report(result=result):
                if metric is not None and is_number(lookup(result, metric)):
                    with_metric.add(trial.trial_id)
                proposals.on_trial_result(trial.trial_id, result)
                scheduler.on_result(trial.trial_id, result)
            case Ended(error=error):
                proposals.on_trial_complete(trial.trial_id, trial.last_result or None, error=error)
                tell = scheduler.on_trial_error if error else scheduler.on_trial_complete
                tell(trial.trial_id)
    return with_metric


def _ask_again(proposals: Proposals, trial: Trial) -> None:
    """The same suggestion again: it rebuilds the searcher, and values that text can't hold."""
    config = proposals.replay(trial.trial_id, trial.config)
    if config is None:
        raise ConfigError(f"{proposals.name} gives no suggestion for trial {trial.trial_id} any more")
    trial.config = complete(trial.config, config)
    if holds_opaque(trial.config):
        raise ConfigError(
            f"the configuration of trial {trial.trial_id} cannot be rebuilt: stored is "
            f"{encode_config(trial.config)}, suggested now is {encode_config(config)}; restore with the same "
            "param_space as at the start"
        )


def _settle(
    restored: Restored,
    trial: Trial,
    rule: ResumeRule,
    stop: dict[str, Any] | None,
    scheduler: TrialScheduler,
    time: float,
) -> None:
    """Set the status that the trial goes on with, and record it where it is another."""
    if trial.status is TrialStatus.ERROR:
        if not (rule.resume_errored or rule.restart_errored):
            return
        if rule.restart_errored:
            restored.records += [ev.CheckpointDropped(trial, checkpoint) for checkpoint in trial.checkpoints]
            trial.checkpoints.clear()
        trial.attempt, trial.failures, trial.failure = trial.attempt + 1, 0, None
        status, reason = TrialStatus.PENDING, "run again after an error"
    elif trial.status is TrialStatus.TERMINATED:
        return
    elif trial.status is TrialStatus.RUNNING and stop is not None:
        # Decided and committed, but killed before the trial had ended.
        status, reason = TrialStatus.TERMINATED, stop_words(stop, scheduler.label)
    elif rule.resume_unfinished:
        status, reason = TrialStatus.PENDING, trial.reason or "resumed"
    else:
        status, reason = TrialStatus.TERMINATED, "not resumed"
    if (status, reason) != (trial.status, trial.reason):
        trial.status, trial.reason = status, reason
        restored.records.append(ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures))


def _tidy(restored: Restored, trial: Trial, folder: Path, time: float) -> None:
    """Remove checkpoint folders that nothing refers to; forget checkpoints whose folder is gone."""
    for checkpoint in [kept for kept in trial.checkpoints if not (folder / kept.dirname).is_dir()]:
        trial.checkpoints.remove(checkpoint)
        restored.records.append(ev.CheckpointDropped(trial, checkpoint))
        restored.records.append(
            ev.Noted(time, "checkpoint lost", f"{checkpoint.dirname} is not in {folder}", trial.trial_id)
        )
    known = {checkpoint.dirname for checkpoint in trial.checkpoints}
    if folder.is_dir():
        for name in os.listdir(folder):
            if _OURS.fullmatch(name) and name not in known:
                shutil.rmtree(folder / name, ignore_errors=True)
