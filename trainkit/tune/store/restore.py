"""Restore of an experiment: trials from the store, searcher and scheduler by a replay of the log."""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError, MetricError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.rules import StopRules
from trainkit.tune.controller.state import Steering
from trainkit.tune.core.checkpoint import remove_unknown
from trainkit.tune.core.checks import is_number
from trainkit.tune.core.configs import CheckpointConfig, Resume, ResumeConfig
from trainkit.tune.core.log import logger
from trainkit.tune.core.metrics import encode, lookup
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.stoppers import missing_metric, misspelt
from trainkit.tune.core.trial import Trial, TrialStatus
from trainkit.tune.schedulers.base import CONTINUE, NO_FACTS, Decision, TrialScheduler, Verdict, words_for
from trainkit.tune.schedulers.checked import CheckedScheduler
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import OPAQUE, complete, encode_config, holds_opaque, is_opaque
from trainkit.tune.space.tree import everything
from trainkit.tune.store.reader import ExperimentReader, LogEntry


def with_objects(space: Space) -> Callable[[Any], Any]:
    """Return a function that replaces names of objects in a stored configuration by the objects of `space`.

    The file stores only the names of objects that are not JSON values. A name that two objects of `space`
    share, such as the name of two lambdas, is not replaced.
    """
    objects: dict[str, Any] = {}
    ambiguous = set()
    for _, value in space.values():
        for each in everything(value):
            mark = json.loads(encode_config(each))
            if is_opaque(mark):
                name = mark[OPAQUE]
                if objects.setdefault(name, each) is not each:
                    ambiguous.add(name)
    known = {name: each for name, each in objects.items() if name not in ambiguous}

    def replaced(node: Any) -> Any:
        if is_opaque(node):
            return known.get(node[OPAQUE], node)
        if isinstance(node, dict):
            return {key: replaced(child) for key, child in node.items()}
        if isinstance(node, (list, tuple)):
            return type(node)(replaced(child) for child in node)
        return node

    return lambda config: space.with_containers(replaced(config) if known else config)


@dataclass(frozen=True)
class ResumeRule:
    """Rule for the trials of a restored experiment.

    Attributes:
        config: setting that says whether unfinished, failed and finished trials are resumed, restarted or
            skipped.
        only: ids of the finished trials to which `config.finished` applies; None: all finished trials.
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
        """Return the rule for the arguments of `Tuner.restore`.

        Raises:
            ConfigError: the arguments contradict each other, or `resume_finished` does not name trials.
        """
        if config is not None:
            if (resume_unfinished, resume_errored, restart_errored) != (True, False, False):
                raise ConfigError(
                    "resume_config cannot be combined with resume_unfinished, resume_errored and "
                    "restart_errored: give only resume_config, or only the others"
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
        """Return whether this trial is resumed, restarted or skipped."""
        if trial.status is TrialStatus.ERROR:
            return self.config.errored
        if trial.status is TrialStatus.TERMINATED:
            chosen = self.only is None or trial.trial_id in self.only
            return self.config.finished if chosen else Resume.SKIP
        return self.config.unfinished


def _ids(chosen: Any) -> tuple[str, ...]:
    """Return the trial ids of `chosen`, which contains ids or results."""
    if isinstance(chosen, str) or not isinstance(chosen, Iterable):
        chosen = [chosen]
    ids = [getattr(each, "trial_id", each) for each in chosen]
    if not ids or not all(isinstance(each, str) for each in ids):
        raise ConfigError(f"resume_finished must be True, or a list of trial ids or results, not {chosen!r}")
    return tuple(ids)


def require_known(rule: ResumeRule, trials: Sequence[Trial], folder: Path) -> None:
    """Check that all trials named by a rule exist and have finished.

    Raises:
        ConfigError: a named trial is unknown or has not finished.
    """
    finished = {trial.trial_id for trial in trials if trial.status is TrialStatus.TERMINATED}
    if unknown := [each for each in rule.only or () if each not in finished]:
        states = {trial.trial_id: str(trial.status) for trial in trials}
        said = ", ".join(f"{each} ({states.get(each, 'no such trial')})" for each in unknown)
        raise ConfigError(
            f"resume_finished names trials of {folder} that have not finished: {said}. resume_errored=True "
            "resumes errored trials; unfinished trials resume without any argument"
        )


def require_checkpoints(rule: ResumeRule, trials: Sequence[Trial]) -> None:
    """Check that finished trials to resume have a checkpoint.

    Trials without a checkpoint are not restarted unless the user requests a restart.

    Raises:
        ConfigError: a finished trial to resume has no checkpoint.
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
            f"resume_finished includes trials without a checkpoint: {', '.join(lacking[:5])}{more}. Name "
            "only trials with a checkpoint, as resume_finished=[...], or restart all finished trials by "
            "resume_config=tune.ResumeConfig(finished=tune.ResumeConfig.ResumeType.RESTART)"
        )


def require_reported(
    metrics: Sequence[str], histories: Iterable[Sequence[Mapping[str, Any]]], *, finished: bool
) -> None:
    """Check that earlier reports contain the metrics, unless later reports may still contain them.

    Args:
        metrics: metrics that the user gave to the restore.
        histories: the reports of each trial.
        finished: True if all trials have finished, so that no further reports will be made.

    Raises:
        MetricError: a metric is missing, and either its name is misspelt or all trials have finished. The
            message gives the closest name.
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
                "(TuneConfig(strict_metric_checking=False) accepts a metric that only later reports have)"
            )


def require_kept(rule: ResumeRule | None, *, in_memory: bool) -> None:
    """Raise ConfigError if an experiment that was kept in memory only must be restored."""
    if in_memory and rule is not None:
        raise ConfigError("an experiment in memory can't be resumed: omit `resume`, or store it in a folder")


@dataclass
class Restored:
    """State of an interrupted experiment, ready to continue.

    Attributes:
        trials: trials with which the experiment continues.
        with_metric: ids of trials that have reported all required metrics.
        records: changes that the restore has made; they must be committed before any trial runs.
        steering: users' commands that still apply.
        commands: ids of all commands that users gave.
        owed: pending decisions on paused trials (exploit or new resources), by trial id.
    """

    trials: list[Trial]
    with_metric: set[str] = field(default_factory=set)
    records: list[ev.Record] = field(default_factory=list)
    owed: dict[str, Decision] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    commands: set[str] = field(default_factory=set)


def restore_trials(
    reader: ExperimentReader,
    source: TrialSource,
    scheduler: TrialScheduler,
    rule: ResumeRule,
    metrics: Sequence[str],
    time: float,
    stop: StopRules,
    *,
    space_since: int = 0,
    checkpoints: CheckpointConfig | None = None,
) -> Restored:
    """Replay the file's log into `source`, `scheduler` and `stop`, and set the status of each trial.

    Args:
        reader: reader of the file.
        source: source of trials as at the start of the experiment.
        scheduler: scheduler as at the start of the experiment.
        rule: rule that says which trials are resumed, restarted or skipped.
        metrics: metrics that every trial must report.
        time: current time.
        stop: rules of RunConfig(stop=...) that have not received any report yet.
        space_since: index of the first trial that was sampled from the search space of `source`.
        checkpoints: policy for checkpoints from now on; None: unchanged.

    Raises:
        ConfigError: a trial can't be resumed as requested, or the searcher suggests fewer trials than before.
        StoreError: the configuration of a trial to resume is damaged.
    """
    consulted = CheckedScheduler(scheduler)
    restored = Restored(reader.trials(checkpoints))
    trials = restored.trials
    require_known(rule, trials, reader.folder)
    started, verdicts = reader.started(), reader.verdicts()
    for trial in trials:
        _forget_lost(restored, trial, f"{reader.folder}/{trial.dirname}", time)
    require_checkpoints(rule, trials)
    before = {trial.trial_id: trial.status for trial in trials}
    for trial in trials:
        _settle(restored, trial, rule, verdicts.get(trial.trial_id), scheduler, time)
    going_on = {trial.trial_id for trial in trials if not trial.status.is_finished}
    reader.require_configurations(going_on)
    with contextlib.closing(reader.log(trials)) as log:
        replayed = replay(
            log,
            trials,
            source,
            scheduler,
            metrics,
            stop=stop,
            going_on=going_on,
            stopped={name: each for name, each in verdicts.items() if each.ends_early},
            space_since=space_since,
        )
    restored.with_metric, restored.commands = replayed.with_metric, replayed.commands
    steering = restored.steering = replayed.steering
    for number, words in replayed.left_out:
        restored.records.append(ev.Noted(time, ev.LEFT_OUT, encode({"number": number, "words": words})))
        logger.warning("%s: %s", reader.folder, words)
    starts = reader.last_starts() if steering.first else {}
    for trial in trials:
        pulled = trial.status is TrialStatus.PAUSED and trial.trial_id in steering.pulled
        if pulled and not steering.who_holds(trial.trial_id):  # the user resumed the trial during the pause
            _set_status(restored, trial, TrialStatus.PENDING, "resumed", time)
        if trial.status is not TrialStatus.PAUSED:
            steering.pulled.discard(trial.trial_id)
        if trial.status.is_finished:
            steering.forget(trial.trial_id)
        if starts.get(trial.trial_id, -math.inf) >= steering.first.get(trial.trial_id, math.inf):
            del steering.first[trial.trial_id]
        if trial.status is TrialStatus.PAUSED and trial.trial_id in replayed.owed and not pulled:
            _owe(restored, trial, replayed.owed[trial.trial_id], scheduler, time)
            offers = replayed.offers[trial.trial_id] if trial.trial_id in restored.owed else {}
            for donor in (each for each in trials if each.trial_id in offers):
                donor.offered[trial.trial_id] = offers[donor.trial_id]
        if trial.status is TrialStatus.PENDING and trial.trial_id in replayed.paused:
            source.on_unpause(trial.trial_id)
        trial.last_result["config"] = trial.config
        if trial.status.is_finished and not before[trial.trial_id].is_finished:
            source.on_trial_complete(trial.trial_id, trial.last_result)
            consulted.on_trial_complete(trial.trial_id)
        if before[trial.trial_id].is_finished and not trial.status.is_finished and consulted.hears_again:
            consulted.on_trial_again(trial.trial_id)
        if trial.status is TrialStatus.PAUSED and before[trial.trial_id] is not TrialStatus.PAUSED:
            source.on_pause(trial.trial_id)
        if trial.status is TrialStatus.PENDING and (trial.trial_id, trial.attempt) in started:
            trial.attempt += 1
    source.go_on_after(trials)
    return restored


@dataclass
class Replayed:
    """Results of a replay.

    Attributes:
        with_metric: ids of trials with a report of all metrics.
        paused: ids of trials that the searcher regards as paused.
        owed: last decision on each trial, if the log shows no consequence of the decision.
        offers: for each receiver, the iteration that each donor had reached at the receiver's last decision.
        steering: users' commands that still apply.
        left_out: configurations that users added and that no longer fit the space: number and reason of each.
        commands: ids of all commands that users gave.
    """

    with_metric: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    owed: dict[str, Decision] = field(default_factory=dict)
    offers: dict[str, dict[str, int]] = field(default_factory=dict)
    steering: Steering = field(default_factory=Steering)
    left_out: list[tuple[int, str]] = field(default_factory=list)
    commands: set[str] = field(default_factory=set)


_NO_NEWS = (
    *(ev.BEGAN, ev.NO_MORE_TRIALS, ev.REARRANGED, ev.COMMAND, ev.TOTAL, ev.LEFT_OUT),
    *(TrialStatus.PENDING, TrialStatus.PAUSED),
)
"""Kinds of log entries that are not a consequence of a decision on a trial."""


def replay(
    log: Iterable[LogEntry],
    trials: Sequence[Trial],
    source: TrialSource,
    scheduler: TrialScheduler,
    metrics: Sequence[str] = (),
    *,
    stop: StopRules | None = None,
    going_on: Collection[str] = (),
    stopped: Mapping[str, Decision] = NO_FACTS,
    space_since: int = 0,
) -> Replayed:
    """Replay the log into `source`, `scheduler` and `stop`, and complete the configurations.

    Args:
        log: entries of the log.
        trials: trials as read from the file.
        source: source of trials as at the start of the experiment.
        scheduler: scheduler as at the start of the experiment.
        metrics: metrics that `Replayed.with_metric` refers to.
        stop: stop rules to update, or None.
        going_on: ids of ended trials that will run again; the replay leaves out their end.
        stopped: decisions of the experiment's schedulers by which trials ended before their time.
        space_since: index of the first trial that was sampled from the search space of `source`.

    Raises:
        ConfigError: the searcher suggests fewer configurations than before.
    """
    consulted = CheckedScheduler(scheduler)
    by_id = {trial.trial_id: trial for trial in trials}
    objects = with_objects(source.space)
    last: dict[str, dict[str, Any]] = {}
    replayed = Replayed()
    with_metric, paused, steering = replayed.with_metric, replayed.paused, replayed.steering
    owed, offers = replayed.owed, replayed.offers
    for kind, trial_id, data in log:
        decision = CONTINUE if kind in _NO_NEWS else owed.pop(trial_id, CONTINUE)
        match kind:
            case "trial":
                trial = by_id[trial_id]
                if added := bool(source.added.waiting):
                    source.added.take()
                suggested = _remember(
                    source, trial, objects, same_space=trial.index >= space_since, added=added
                )
                if trial_id in going_on and holds_opaque(trial.config):
                    raise _unknown_object(trial)
                consulted.on_trial_add(trial_id, suggested)
            case "result":
                last[trial_id] = data
                if metrics and all(is_number(lookup(data, metric)) for metric in metrics):
                    with_metric.add(trial_id)
                source.on_trial_result(trial_id, data)
                decision = consulted.on_result(trial_id, data)
                owed[trial_id], offers[trial_id] = decision, _offers_of(decision, last)
                if decision.reason or decision.verdict is not Verdict.CONTINUE:
                    source.on_trial_decision(trial_id, data, decision)
                if stop is not None:
                    stop.told_again(trial_id, data)
            case TrialStatus.PAUSED:
                paused.add(trial_id)
                source.on_pause(trial_id)
            case TrialStatus.PENDING | Verdict.RESUME:
                if kind == Verdict.RESUME:
                    consulted.on_trial_resume(trial_id)
                else:
                    steering.pulled.discard(trial_id)
                if trial_id in paused:
                    paused.remove(trial_id)
                    source.on_unpause(trial_id)
            case "pulled":
                steering.pulled.add(trial_id)
            case ev.COMMAND:
                replayed.commands.add(data["id"])
                if data["done"]:
                    steering.take(data["verb"], data["arguments"], data["by"], data["time"])
                if data["done"] and data["verb"] == "add":
                    source.added.add(data["arguments"]["config"])
            case ev.LEFT_OUT:
                source.added.leave_out(data["number"])
            case ev.TOTAL:
                consulted.resize(data)
            case ev.REARRANGED:
                if data.get("before") is not None:
                    owed.pop(trial_id, None)
                    requests = (PlacementGroupFactory(*data[key]) for key in ("granted", "before"))
                    consulted.on_trial_request(trial_id, *requests)
                if data["config"] is not None:
                    config = complete(objects(data["config"]), by_id[trial_id].suggested)
                    consulted.on_trial_change(trial_id, config, data["donor"])
                    if trial_id in owed and owed[trial_id].verdict is Verdict.PAUSE:
                        del owed[trial_id]
            case ev.BEGAN:
                consulted.on_begin()
            case ev.NO_MORE_TRIALS:
                consulted.on_no_more_trials()
            case TrialStatus.TERMINATED | TrialStatus.ERROR:
                ended, error = data and trial_id not in going_on, kind == TrialStatus.ERROR
                withdrawn = error or trial_id in steering.withdrawn
                steering.forget(trial_id)
                if ended and trial_id in stopped and decision.verdict is not Verdict.STOP:
                    withdrawn = True  # an earlier scheduler stopped the trial, so the trial is not complete
                    source.on_trial_decision(trial_id, last[trial_id], stopped[trial_id])
                # The searcher is notified of the end even if the trial resumes, because the searcher's later
                # suggestions depended on the end.
                if ended or source.hears_again:
                    source.on_trial_complete(trial_id, last.get(trial_id), error=error)
                if ended or consulted.hears_again:
                    (consulted.on_trial_error if withdrawn else consulted.on_trial_complete)(trial_id)
            case "again":
                if consulted.hears_again:
                    consulted.on_trial_again(trial_id)
        # Decisions in the log were carried out by an earlier run, unless that run was cut off or had a
        # different scheduler. A decision is removed from `owed` if a later entry of the log shows its effect.
        for receiver, decision in consulted.verdicts():
            owed[receiver], offers[receiver] = decision, _offers_of(decision, last)
    replayed.left_out = _complete_added(source)
    return replayed


def _complete_added(source: TrialSource) -> list[tuple[int, str]]:
    """Complete the configurations that users added; return number and reason of each invalid one."""
    left_out, added = [], source.added
    waiting, added.waiting = added.waiting, deque()
    for number, given in waiting:
        try:
            added.waiting.append((number, source.completed(given, number)))
        except ConfigError as error:
            left_out.append((number, f"the added configuration {encode_config(given)} is left out: {error}"))
    added.left_out += len(left_out)
    return left_out


def _remember(
    source: TrialSource,
    trial: Trial,
    objects: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    same_space: bool,
    added: bool,
) -> dict[str, Any]:
    """Let the searcher suggest a configuration again, to get the objects that are missing in the stored
    configuration.

    For example, objects that functions in the space compute are not in the file. If `added` is True, a user
    gave the configuration, and the searcher only records it.
    """
    stored = objects(trial.suggested)
    if added:
        config: dict[str, Any] | None = source.note(trial.trial_id, stored)
    else:
        config = source.replay(trial.trial_id, stored, same_space=same_space)
    if config is None:
        raise ConfigError(f"{source.name} no longer suggests a configuration for trial {trial.trial_id}")
    suggested: dict[str, Any] = complete(stored, config)
    trial.tried = [complete(objects(each), config) for each in trial.tried]
    trial.config = complete(objects(trial.config), config)
    return suggested


def _offers_of(decision: Decision, last: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the iteration that each donor of a decision has reached, by the donor's id."""
    donors = [donor.trial_id for donor in decision.donors]
    return {donor: last[donor]["training_iteration"] for donor in donors if donor in last}


def _unknown_object(trial: Trial) -> ConfigError:
    """Return the error for a trial that must run but whose configuration lacks an object."""
    return ConfigError(
        f"trial {trial.name} cannot continue: {encode_config(trial.config)} has an object that can't be "
        "rebuilt. Restore with the original param_space, or keep this object in the new param_space"
    )


_LEADS_TO = {Verdict.STOP: TrialStatus.TERMINATED, Verdict.PAUSE: TrialStatus.PAUSED}


def _settle(
    restored: Restored,
    trial: Trial,
    rule: ResumeRule,
    decided: Decision | None,
    scheduler: TrialScheduler,
    time: float,
) -> None:
    """Set the status with which a trial continues, and record the status if it has changed."""
    what, finished = rule.for_trial(trial), trial.status.is_finished
    if finished and what is Resume.SKIP:
        return
    status, reason = TrialStatus.PENDING, trial.reason or "resumed"
    if trial.status is TrialStatus.PAUSED:
        status = trial.status
    elif trial.status is TrialStatus.RUNNING and decided is not None and decided.verdict in _LEADS_TO:
        # The decision was committed, but the program was killed before it carried the decision out.
        status, reason = _LEADS_TO[decided.verdict], words_for(decided, scheduler.label)
    if what is Resume.SKIP and status is not TrialStatus.TERMINATED:
        status, reason = TrialStatus.TERMINATED, "not resumed"
    elif what is Resume.RESTART and status is TrialStatus.PAUSED:
        status, reason = TrialStatus.PENDING, "resumed"
    if status is TrialStatus.PENDING and what is Resume.RESTART:
        restored.records += [ev.CheckpointDropped(trial, checkpoint) for checkpoint in trial.checkpoints]
        trial.checkpoints.clear()
        # Without this record, the file would not show that the trial restarts with its current configuration.
        if trial.tried:
            restored.records.append(ev.Rearranged(trial, time, trial.config))
    if finished:
        reason = "run again after an error" if trial.status is TrialStatus.ERROR else "extended"
        trial.attempt, trial.failures, trial.failure = trial.attempt + 1, 0, None
    if (status, reason) != (trial.status, trial.reason):
        _set_status(restored, trial, status, reason, time)


def _owe(restored: Restored, trial: Trial, last: Decision, scheduler: TrialScheduler, time: float) -> None:
    """Carry out the last decision on a paused trial, or store it for the controller in `owed`."""
    if last.donors or last.request is not None:
        restored.owed[trial.trial_id] = last
    elif last.verdict is Verdict.STOP:
        _set_status(restored, trial, TrialStatus.TERMINATED, words_for(last, scheduler.label), time)
    # The current scheduler won't resume a trial that a different scheduler has paused.
    elif last.verdict is Verdict.CONTINUE:
        _set_status(restored, trial, TrialStatus.PENDING, "resumed", time)


def _set_status(restored: Restored, trial: Trial, status: TrialStatus, reason: str, time: float) -> None:
    trial.status, trial.reason = status, reason
    restored.records.append(ev.StatusChanged(trial, time, status, reason, trial.attempt, trial.failures))


def _forget_lost(restored: Restored, trial: Trial, folder: str, time: float) -> None:
    """Remove a trial's checkpoints whose folder is missing."""
    for checkpoint in [kept for kept in trial.checkpoints if not Path(folder, kept.dirname).is_dir()]:
        trial.checkpoints.remove(checkpoint)
        restored.records.append(ev.CheckpointDropped(trial, checkpoint))
        restored.records.append(
            ev.Noted(time, "checkpoint lost", f"{checkpoint.dirname} is not in {folder}", trial.trial_id)
        )


def tidy(trials: Iterable[Trial], folder: Path) -> None:
    """Remove checkpoint folders that no trial refers to.

    Call this function after the commit of `Restored.records`.
    """
    for trial in trials:
        remove_unknown(f"{folder}/{trial.dirname}", {kept.dirname for kept in trial.checkpoints})
