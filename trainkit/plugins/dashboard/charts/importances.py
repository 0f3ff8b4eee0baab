"""Importance of hyperparameters, for the chart of this name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trainkit.errors import MissingDependencyError
from trainkit.plugins.integrations.optuna_study import distribution_of, param_of
from trainkit.tune.core.checks import load, require_one_of
from trainkit.tune.results.hyperparameters import Hyperparameter


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
