"""An experiment as an Optuna study, in memory: for Optuna's plots and importance measures."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.tune.checks import is_number
from trainkit.tune.objectives import Objective
from trainkit.tune.optional import load
from trainkit.tune.outcome.hyperparameters import Hyperparameter, hyperparameters_of
from trainkit.tune.outcome.ranking import trial_score
from trainkit.tune.trial import TrialStatus
from trainkit.tune.values import lookup

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from trainkit.tune.outcome.reading import Reader
    from trainkit.tune.outcome.result import Result

_DATED = ("COMPLETE", "PRUNED", "FAIL")


def optuna_study(
    results: Sequence[Result], reader: Reader, objectives: Sequence[Objective], scope: str, name: str
) -> optuna.Study:
    """Return the study.

    Args:
        results: the trials.
        reader: of their experiment.
        objectives: one, or several.
        scope: which of a trial's reports stands for it.
        name: of the study.

    Raises:
        MissingDependencyError: Optuna is not installed.
    """
    module = load("optuna", "studies", "tune")
    space = reader.facts().get("space")
    parameters = hyperparameters_of([result.config for result in results], space)
    distributions = {each.name: distribution_of(each, module.distributions) for each in parameters}
    histories, stops, times = dict(reader.histories()), reader.stops(), reader.times()
    trials = []
    for place, result in enumerate(results):
        history = histories.get(result.trial_id, [])
        values = [_value(history, objective, scope) for objective in objectives]
        known = [value for value in values if value is not None]
        has_value = len(known) == len(values)
        state = trial_state(result, stops.get(result.trial_id), has_value=has_value)
        started, ended = times.get(result.trial_id, (None, None))
        active = [each for each in parameters if place in each.values]
        trials.append(
            module.trial.FrozenTrial(
                number=place,
                trial_id=place,
                state=module.trial.TrialState[state],
                value=None,
                values=known if has_value and state in ("COMPLETE", "PRUNED") else None,
                datetime_start=_date(started) if state != "WAITING" else None,
                datetime_complete=_date(ended) if state in _DATED else None,
                params={each.name: param_of(each, place) for each in active},
                distributions={each.name: distributions[each.name] for each in active},
                user_attrs={"trial_id": result.trial_id, "reason": result.reason},
                system_attrs={},
                # Optuna has none for several objectives.
                intermediate_values={} if len(values) > 1 else _intermediate(history, objectives[0].metric),
            )
        )
    study: optuna.Study = module.create_study(
        study_name=name,
        directions=["minimize" if each.mode == "min" else "maximize" for each in objectives],
        storage=module.storages.InMemoryStorage(),
    )
    study.add_trials(trials)
    return study


def trial_state(result: Result, stop: Mapping[str, Any] | None, *, has_value: bool) -> str:
    """Return the name of Optuna's state for a trial.

    Args:
        result: the trial.
        stop: the reason of the stop that was decided on its last report, if one was.
        has_value: whether it has a finite value of the metric.
    """
    match result.status:
        case TrialStatus.ERROR:
            return "FAIL"
        case TrialStatus.RUNNING | TrialStatus.PAUSED:
            return "RUNNING"
        case TrialStatus.PENDING:
            return "WAITING"
    if stop is not None:  # the user's own rule and max_t say that a trial is complete
        early = "stop" not in stop and stop.get("rule") != "max_t"
    else:
        early = bool(result.reason) and not result.reason.startswith("finished")
    if early:
        return "PRUNED"
    return "COMPLETE" if has_value else "FAIL"


def distribution_of(parameter: Hyperparameter, kinds: Any) -> BaseDistribution:
    """Return the domain's distribution, wide enough for what was tried; without a domain, the values' own."""
    if parameter.is_numeric:
        low, high = parameter.bounds
        if parameter.is_whole:
            made = kinds.IntDistribution(int(low), int(high), log=parameter.is_log)
        else:
            made = kinds.FloatDistribution(low, high, log=parameter.is_log)
    else:
        choices = parameter.choices  # Optuna can't tell those apart that are equal
        made = kinds.CategoricalDistribution(
            [str(each) for each in choices] if parameter.is_mixed else choices
        )
    distribution: BaseDistribution = made
    return distribution


def param_of(parameter: Hyperparameter, place: int) -> Any:
    """Return the value that a trial had, as its distribution knows it."""
    value = parameter.values[place]
    return str(value) if not parameter.is_numeric and parameter.is_mixed else value


def _value(history: Sequence[Mapping[str, Any]], objective: Objective, scope: str) -> float | None:
    score = trial_score(history, objective.metric, objective.mode, scope, keep_all=False)
    return -score if score is not None and objective.mode == "min" else score


def _date(seconds: float | None) -> datetime.datetime:
    # Optuna wants a date for all that has begun, or ended: a trial that never ran did both at no time.
    return datetime.datetime.fromtimestamp(seconds or 0.0)


def _intermediate(history: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    return {
        int(report.get("training_iteration", place)): float(value)
        for place, report in enumerate(history, 1)
        if is_number(value := lookup(report, metric))
    }
