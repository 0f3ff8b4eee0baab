"""Goes on with an experiment: trials from its file, searcher and scheduler by replaying its log."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune import events as ev
from trainkit.tune.checks import is_number
from trainkit.tune.history import Ended, ExperimentReader, LogEntry, Report, Suggested
from trainkit.tune.policies import Resume, ResumeConfig
from trainkit.tune.respace import with_objects
from trainkit.tune.schedulers.base import TrialScheduler, stop_words
from trainkit.tune.search.base import Searcher
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import complete, encode_config, holds_opaque, lookup

_OURS = re.compile(r"checkpoint_\d{6,}|\.checkpoint_\d{6,}\.partial")
"""Folders that `checkpoint_dirname` names; what else lies in a trial's folder is the user's."""


@dataclass(frozen=True)
class ResumeRule:
    """Which trials go on.

    Attributes:
        config: what is done with each kind of trial.
        only: ids of the finished trials that `config.finished` is for; None: all of them.
    """

    config: ResumeConfig = field(default_factory=ResumeConfig)
    only: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        resume_unfinished: bool,
        resume_errored: bool,
        restart_errored: bool,
        resume_finished: bool | Iterable[Any],
        config: ResumeConfig | None,
    ) -> ResumeRule:
        """The arguments of `Tuner.restore` as one rule.

        Raises:
            ConfigError: they contradict each other, or `resume_finished` names no trials.
        """
        if config is not None:
            if (resume_unfinished, resume_errored, restart_errored) != (True, False, False):
                raise ConfigError(
                    "resume_config says what resume_unfinished, resume_errored and "
                    "restart_errored say: give one or the others"
                )
        else:
            if resume_errored and restart_errored:
                raise ConfigError("resume_errored and restart_errored contradict each other: choose one")
            errored = Resume.RESUME if resume_errored else Resume.SKIP
            config = ResumeConfig(
                unfinished=Resume.RESUME if resume_unfinished else Resume.SKIP,
                errored=Resume.RESTART if restart_errored else errored,
            )
        if resume_finished is False:
            return cls(config)
        only = None if resume_finished is True else _ids(resume_finished)
        finished = config.finished if config.finished is Resume.RESTART else Resume.RESUME
        return cls(ResumeConfig(finished, config.unfinished, config.errored), only)

    def for_trial(self, trial: Trial) -> Resume:
        """What is done with this trial."""
        if trial.status is TrialStatus.ERROR:
            return self.config.errored
        if trial.status is TrialStatus.TERMINATED:
            chosen = self.only is None or trial.trial_id in self.only
            return self.config.finished if chosen else Resume.SKIP
        return self.config.unfinished


def _ids(chosen: Any) -> tuple[str, ...]:
    """Trial ids of `chosen`: ids themselves, or results."""
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        chosen = [chosen]
    ids = [getattr(each, "trial_id", each) for each in chosen]
    if not ids or not all(isinstance(each, str) for each in ids):
        raise ConfigError(f"resume_finished={chosen!r}: give True, or a list of trial ids or results")
    return tuple(ids)


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


def restore_trials(
    reader: ExperimentReader,
    searcher: Searcher,
    scheduler: TrialScheduler,
    rule: ResumeRule,
    metric: str | None,
    time: float,
    *,
    same_space: bool = True,
) -> Restored:
    """Replay the file's log into `searcher` and `scheduler`, and settle what each trial now is.

    Args:
        reader: of the file.
        searcher: as it was at the start.
        scheduler: the same.
        rule: which trials go on.
        metric: that every trial must report; None: no such rule.
        time: now.
        same_space: False: `searcher` has another space than the one that the trials were drawn from.

    Raises:
        ConfigError: a trial can't go on as asked, or the searcher suggests other configurations than it did.
    """
    restored = Restored(reader.trials())
    trials = restored.trials
    _require_known(rule, trials, reader.folder)
    started, stops = reader.started(), reader.stops()
    for trial in trials:
        _forget_lost(restored, trial, reader.folder / trial.dirname, time)
    _require_checkpoints(rule, trials)
    before = {trial.trial_id: trial.status for trial in trials}
    for trial in trials:
        _settle(restored, trial, rule, stops.get(trial.trial_id), scheduler, time)
    going_on = {trial.trial_id for trial in trials if not trial.status.is_finished}
    with contextlib.closing(reader.log()) as log:
        restored.with_metric = replay(
            log, trials, searcher, scheduler, metric, going_on=going_on, same_space=same_space
        )
    for trial in trials:
        trial.last_result["config"] = trial.config
        if trial.status.is_finished and not before[trial.trial_id].is_finished:
            scheduler.on_trial_complete(trial.trial_id)
            searcher.on_trial_complete(trial.trial_id, trial.last_result)
        if trial.status is TrialStatus.PENDING and (trial.trial_id, trial.attempt) in started:
            trial.attempt += 1
        _tidy(trial, reader.folder / trial.dirname)
    return restored


def replay(
    log: Iterable[LogEntry],
    trials: Sequence[Trial],
    searcher: Searcher,
    scheduler: TrialScheduler,
    metric: str | None = None,
    *,
    going_on: Collection[str] = (),
    same_space: bool = True,
) -> set[str]:
    """Tell `searcher` and `scheduler` what they were told, and complete the configurations of `trials`.

    Args:
        log: what happened.
        trials: as the file has them.
        searcher: as it was at the start.
        scheduler: the same.
        metric: to look for.
        going_on: ids of trials that had ended and are to run again: for both they have not ended.
        same_space: as in `restore_trials`.

    Returns:
        The ids of trials that have reported `metric`.

    Raises:
        ConfigError: the searcher suggests other configurations than it did.
    """
    by_id = {trial.trial_id: trial for trial in trials}
    objects = with_objects(searcher.space)
    with_metric = set()
    for entry in log:
        trial = by_id[entry.trial_id]
        match entry:
            case Suggested():
                trial.config = objects(trial.config)
                if holds_opaque(trial.config) and same_space:
                    _ask_again(searcher, trial)
                else:
                    searcher.replay(trial.trial_id, trial.config)
                if trial.trial_id in going_on and holds_opaque(trial.config):
                    raise _unknown_object(trial)
                scheduler.on_trial_add(trial.trial_id)
            case Report(result=result):
                if metric is not None and is_number(lookup(result, metric)):
                    with_metric.add(trial.trial_id)
                searcher.on_trial_result(trial.trial_id, result)
                scheduler.on_result(trial.trial_id, result)
            case Ended(error=error) if trial.trial_id not in going_on:
                searcher.on_trial_complete(trial.trial_id, trial.last_result or None, error=error)
                tell = scheduler.on_trial_error if error else scheduler.on_trial_complete
                tell(trial.trial_id)
    return with_metric


def _ask_again(searcher: Searcher, trial: Trial) -> None:
    """The same suggestion again: it gives what neither text nor space can, such as a computed object."""
    config = searcher.suggest(trial.trial_id)
    if not isinstance(config, dict):
        raise ConfigError(
            f"{type(searcher).__name__} gives no suggestion for trial {trial.trial_id} any more"
        )
    trial.config = complete(trial.config, config)


def _unknown_object(trial: Trial) -> ConfigError:
    """A trial that runs needs all of its values; one that has ended may keep a mark in place of an object."""
    return ConfigError(
        f"trial {trial.name} is to go on, but its configuration {encode_config(trial.config)} holds an "
        "object that cannot be rebuilt: restore with the param_space of the start, or keep that object in "
        "the new one"
    )


def _require_known(rule: ResumeRule, trials: Sequence[Trial], folder: Path) -> None:
    finished = {trial.trial_id for trial in trials if trial.status is TrialStatus.TERMINATED}
    if unknown := [each for each in rule.only or () if each not in finished]:
        states = {trial.trial_id: str(trial.status) for trial in trials}
        said = ", ".join(f"{each} ({states.get(each, 'no such trial')})" for each in unknown)
        raise ConfigError(
            f"resume_finished names what is no finished trial of {folder}: {said}; errored trials go on by "
            "resume_errored=True, unfinished ones by themselves"
        )


def _require_checkpoints(rule: ResumeRule, trials: Sequence[Trial]) -> None:
    """A finished trial goes on from a checkpoint; to run it again instead must be asked for."""
    lacking = [
        trial.trial_id
        for trial in trials
        if trial.status is TrialStatus.TERMINATED
        and rule.for_trial(trial) is Resume.RESUME
        and trial.last_result
        and not trial.checkpoints
    ]
    if lacking:
        more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
        raise ConfigError(
            f"resume_finished: no checkpoint to go on from has {', '.join(lacking[:5])}{more}. Name the "
            "trials that have one, as resume_finished=[...], or run them again from the beginning by "
            "resume_config=tune.ResumeConfig(finished=tune.ResumeConfig.ResumeType.RESTART)"
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
    what, finished = rule.for_trial(trial), trial.status.is_finished
    if finished and what is Resume.SKIP:
        return
    if not finished and stop is not None and trial.status is TrialStatus.RUNNING:
        # Decided and committed, but killed before the trial had ended.
        status, reason = TrialStatus.TERMINATED, stop_words(stop, scheduler.label)
    elif what is Resume.SKIP:
        status, reason = TrialStatus.TERMINATED, "not resumed"
    else:
        status, reason = TrialStatus.PENDING, trial.reason or "resumed"
    if status is TrialStatus.PENDING and what is Resume.RESTART:
        restored.records += [ev.CheckpointDropped(trial, checkpoint) for checkpoint in trial.checkpoints]
        trial.checkpoints.clear()
    if finished:
        words = "run again after an error" if trial.status is TrialStatus.ERROR else "extended"
        trial.attempt, trial.failures, trial.failure = trial.attempt + 1, 0, None
        reason = words
    if (status, reason) != (trial.status, trial.reason):
        trial.status, trial.reason = status, reason
        restored.records.append(ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures))


def _forget_lost(restored: Restored, trial: Trial, folder: Path, time: float) -> None:
    """Forget checkpoints whose folder is gone."""
    for checkpoint in [kept for kept in trial.checkpoints if not (folder / kept.dirname).is_dir()]:
        trial.checkpoints.remove(checkpoint)
        restored.records.append(ev.CheckpointDropped(trial, checkpoint))
        restored.records.append(
            ev.Noted(time, "checkpoint lost", f"{checkpoint.dirname} is not in {folder}", trial.trial_id)
        )


def _tidy(trial: Trial, folder: Path) -> None:
    """Remove checkpoint folders that nothing refers to."""
    known = {checkpoint.dirname for checkpoint in trial.checkpoints}
    try:
        names = os.listdir(folder)
    except FileNotFoundError:  # it never ran, or somebody removed it
        return
    for name in names:
        if _OURS.fullmatch(name) and name not in known:
            shutil.rmtree(folder / name, ignore_errors=True)
