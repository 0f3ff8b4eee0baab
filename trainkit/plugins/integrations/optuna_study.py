"""Optuna studies of the trials of an experiment, and the importance of their hyperparameters."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainkit.errors import MissingDependencyError
from trainkit.plugins.integrations.hyperparameters import Hyperparameter, hyperparameters_of
from trainkit.tune.core.checks import is_finite, is_number, load, require_one_of
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import lookup
from trainkit.tune.core.objectives import Objective, trial_score
from trainkit.tune.core.stoppers import reported_numbers
from trainkit.tune.core.trial import TrialStatus

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from trainkit.tune.results.reading import Reader
    from trainkit.tune.results.result import Result

_DATED = ("COMPLETE", "PRUNED", "FAIL")


def optuna_study(
    results: Sequence[Result], reader: Reader, objectives: Sequence[Objective], scope: str, name: str
) -> optuna.Study:
    """Return an Optuna study of the trials.

    Args:
        results: the trials.
        reader: reader of the trials' experiment.
        objectives: objectives of the study, one or more.
        scope: name of the reports that represent a trial, such as "last".
        name: name of the study.

    Raises:
        MissingDependencyError: Optuna is not installed.
    """
    module = load("optuna", "studies", "tune")
    trials = optuna_trials(results, reader, objectives, scope)
    study: optuna.Study = module.create_study(
        study_name=name,
        directions=["minimize" if each.mode == "min" else "maximize" for each in objectives],
        storage=module.storages.InMemoryStorage(),
    )
    study.add_trials(trials)
    return study


def optuna_trials(
    results: Sequence[Result],
    reader: Reader,
    objectives: Sequence[Objective],
    scope: str = "last",
    first_id: int = 0,
) -> list[FrozenTrial]:
    """Return the trials as Optuna's frozen trials.

    Args:
        results: the trials.
        reader: reader of the trials' experiment.
        objectives: objectives of the study, one or more.
        scope: name of the reports that represent a trial, such as "last".
        first_id: Optuna's id for the first trial; later trials have consecutive ids.

    Raises:
        MissingDependencyError: Optuna is not installed.
    """
    module = load("optuna", "studies", "tune")
    space = reader.facts().get("space")
    parameters = hyperparameters_of([result.config for result in results], space)
    distributions = {each.name: distribution_of(each, module.distributions) for each in parameters}
    histories, stops, times = dict(reader.histories()), reader.stops(), reader.times()
    limited = any(VIOLATION in (result.metrics or {}) for result in results)
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
                trial_id=first_id + place,
                state=module.trial.TrialState[state],
                value=None,
                values=known if has_value and state in ("COMPLETE", "PRUNED") else None,
                datetime_start=_date(started) if state != "WAITING" else None,
                datetime_complete=_date(ended) if state in _DATED else None,
                params={each.name: param_of(each, place) for each in active},
                distributions={each.name: distributions[each.name] for each in active},
                user_attrs={
                    "trial_id": result.trial_id,
                    "status": str(result.status),
                    "reason": result.reason,
                    **_last_values(result, objectives),
                },
                # Optuna's name for a constraint, by which a study finds its best feasible trial.
                system_attrs={f"constraints:{VIOLATION}": min(result.violation, 1e9)} if limited else {},
                # Optuna stores no intermediate values for several objectives.
                intermediate_values={} if len(values) > 1 else _intermediate(history, objectives[0].metric),
            )
        )
    return trials


def trial_state(result: Result, stop: Mapping[str, Any] | None, *, has_value: bool) -> str:
    """Return the name of Optuna's state for a trial.

    Args:
        result: the trial.
        stop: reason for a stop that was decided on the trial's last report, or None.
        has_value: True if the trial has a finite value of the metric.
    """
    match result.status:
        case TrialStatus.ERROR:
            return "FAIL"
        case TrialStatus.RUNNING | TrialStatus.PAUSED:
            return "RUNNING"
        case TrialStatus.PENDING:
            return "WAITING"
    if stop is not None:  # if the user's rule or max_t stopped the trial, it counts as complete
        early = "stop" not in stop and stop.get("rule") != "max_t"
    else:
        early = bool(result.reason) and not result.reason.startswith("finished")
    if early:
        return "PRUNED"
    return "COMPLETE" if has_value else "FAIL"


def distribution_of(parameter: Hyperparameter, kinds: Any) -> BaseDistribution:
    """Return Optuna's distribution for the domain, or for the values if no domain is known.

    The distribution covers all tried values.
    """
    if parameter.is_numeric:
        low, high = parameter.bounds
        if parameter.is_whole:
            made = kinds.IntDistribution(int(low), int(high), log=parameter.is_log)
        else:
            made = kinds.FloatDistribution(low, high, log=parameter.is_log)
    else:
        choices = parameter.choices  # Optuna can't distinguish choices that compare as equal.
        made = kinds.CategoricalDistribution(
            [str(each) for each in choices] if parameter.is_mixed else choices
        )
    distribution: BaseDistribution = made
    return distribution


def param_of(parameter: Hyperparameter, place: int) -> Any:
    """Return a trial's value in the form that the hyperparameter's distribution uses."""
    value = parameter.values[place]
    return str(value) if not parameter.is_numeric and parameter.is_mixed else value


def _value(history: Sequence[Mapping[str, Any]], objective: Objective, scope: str) -> float | None:
    score = trial_score(history, objective.metric, objective.mode, scope, keep_all=False)
    if score is None and scope == "last" and history:
        last = lookup(history[-1], objective.metric)
        # Optuna accepts every float except NaN.
        return float(last) if is_number(last) and math.isinf(last) else None
    return -score if score is not None and objective.mode == "min" else score


def _last_values(result: Result, objectives: Sequence[Objective]) -> dict[str, float]:
    """Return the finite numbers of the last report that are not objectives, by flat name."""
    known = {"trial_id", "status", "reason", *(each.metric for each in objectives)}
    return {
        name: value
        for name, value in reported_numbers(result.metrics).items()
        if name not in known and is_finite(value)
    }


def _date(seconds: float | None) -> datetime.datetime:
    # Optuna requires a date for each started or ended trial, so a trial that never ran gets the date 0.
    return datetime.datetime.fromtimestamp(seconds or 0.0)


def _intermediate(history: Sequence[Mapping[str, Any]], metric: str) -> dict[int, float]:
    return {
        int(report.get("training_iteration", place)): float(value)
        for place, report in enumerate(history, 1)
        if is_number(value := lookup(report, metric))
    }


def importances(
    parameters: Sequence[Hyperparameter], values: Sequence[float], mode: str, method: str = ""
) -> tuple[dict[str, float], str]:
    """Return each hyperparameter's share of the variation in the values, and a description of the method.

    Args:
        parameters: hyperparameters of the trials.
        values: one value per trial.
        mode: "min" or "max".
        method: "forest": importance in scikit-learn's random forest, from its splits by each hyperparameter.
            "ped_anova": Optuna's PED-ANOVA, which measures how the best tenth of the trials differs from all
            trials. '': "forest" if scikit-learn is installed, otherwise "ped_anova".

    Raises:
        ConfigError: the method is unknown.
        MissingDependencyError: the method's package is not installed.
    """
    if method:
        require_one_of("method", method, ("forest", "ped_anova"))
    if method == "ped_anova":
        return _ped_anova(parameters, values, mode), "PED-ANOVA, Optuna"
    try:
        return _forest(parameters, values), "random forest, scikit-learn"
    except MissingDependencyError:
        if method:
            raise
        return _ped_anova(parameters, values, mode), "PED-ANOVA, Optuna"


def _forest(parameters: Sequence[Hyperparameter], values: Sequence[float]) -> dict[str, float]:
    ensemble = load("sklearn.ensemble", "importances", "sklearn")
    columns: list[list[float]] = []
    names: list[str] = []
    for each in parameters:
        found = _columns(each, len(values))
        columns += found
        names += [each.name] * len(found)
    forest = ensemble.RandomForestRegressor(n_estimators=64, min_samples_leaf=2, random_state=0)
    forest.fit(list(zip(*columns, strict=True)), list(values))
    shares = dict.fromkeys(names, 0.0)
    for name, share in zip(names, forest.feature_importances_, strict=True):
        shares[name] += float(share)
    return shares


def _columns(each: Hyperparameter, count: int) -> list[list[float]]:
    """Return a hyperparameter as columns of numbers, with one column per choice; NaN for inactive trials."""
    if each.is_numeric:
        return [[float(each.values.get(place, math.nan)) for place in range(count)]]
    words = [str(each.values[place]) if place in each.values else None for place in range(count)]
    return [
        [math.nan if word is None else float(word == choice) for word in words]
        for choice in dict.fromkeys(map(str, each.choices))
    ]


def _ped_anova(parameters: Sequence[Hyperparameter], values: Sequence[float], mode: str) -> dict[str, float]:
    optuna = load("optuna", "importances", "tune")
    found = load("optuna.importance", "importances", "tune")
    complete = [each for each in parameters if len(each.values) == len(values)]
    study = optuna.create_study(direction="minimize" if mode == "min" else "maximize")
    distributions = {each.name: distribution_of(each, optuna.distributions) for each in complete}
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={each.name: param_of(each, place) for each in complete},
                distributions=distributions,
                value=value,
            )
            for place, value in enumerate(values)
        ]
    )
    evaluator = found.PedAnovaImportanceEvaluator()
    shares = found.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}
