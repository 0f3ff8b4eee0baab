"""Which trials of an experiment go on, and what they need for it; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.control.missing import missing_metric, misspelt
from trainkit.tune.policies import Resume, ResumeConfig
from trainkit.tune.trial import Trial, TrialStatus
from trainkit.tune.values import lookup


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


def require_known(rule: ResumeRule, trials: Sequence[Trial], folder: Path) -> None:
    """Refuse a rule that names what is no finished trial.

    Raises:
        ConfigError: it does.
    """
    finished = {trial.trial_id for trial in trials if trial.status is TrialStatus.TERMINATED}
    if unknown := [each for each in rule.only or () if each not in finished]:
        states = {trial.trial_id: str(trial.status) for trial in trials}
        said = ", ".join(f"{each} ({states.get(each, 'no such trial')})" for each in unknown)
        raise ConfigError(
            f"resume_finished names what is no finished trial of {folder}: {said}; errored trials go on by "
            "resume_errored=True, unfinished ones by themselves"
        )


def require_checkpoints(rule: ResumeRule, trials: Sequence[Trial]) -> None:
    """A finished trial goes on from a checkpoint; to run it again instead must be asked for.

    Raises:
        ConfigError: a trial is to go on and has none.
    """
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


def require_reported(
    metrics: Sequence[str], histories: Iterable[Sequence[Mapping[str, Any]]], *, finished: bool
) -> None:
    """Refuse metrics to go on with that no report of before has, if none can be expected to have them.

    Args:
        metrics: given to the restore.
        histories: the reports of each trial.
        finished: all trials have come to their end, so that no report is still to come.

    Raises:
        MetricError: a metric is not there, and is a misspelling or comes too late; the nearest name is told.
    """
    last: list[Mapping[str, Any]] = []
    lacking = set(metrics)
    for reports in histories:
        last += reports[-1:]
        lacking -= {name for name in lacking if any(lookup(each, name) is not None for each in reports)}
        if not lacking:
            return
    for name in metrics:
        if name in lacking and last and (finished or any(misspelt(name, result) for result in last)):
            raise MetricError(
                f"TuneConfig(metric=...) is {missing_metric(name, last)} "
                "(TuneConfig(strict_metric_checking=False) lets it come with a later report)"
            )


def require_kept(rule: ResumeRule | None, *, in_memory: bool) -> None:
    """Raise ConfigError if an experiment is to go on of which nothing is kept."""
    if in_memory and rule is not None:
        raise ConfigError(
            "an experiment in memory has nothing to go on with: leave `resume` out, or keep the experiment "
            "in its folder"
        )
