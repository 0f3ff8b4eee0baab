"""Rules for the controller, made from the settings of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from trainkit import settings
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.controller.rules import Plan, StopRules
from trainkit.tune.core.objectives import Objective
from trainkit.tune.core.setting_names import is_training
from trainkit.tune.schedulers import TrialScheduler


def metrics_of(tune: TuneConfig, metric: str | None, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Return the metrics that every trial must report: of the objectives, and of the constraints."""
    if not (tune.strict_metric_checking and settings.metric_is_required()):
        return ()
    best = [each.metric for each in objectives] or ([] if metric is None else [metric])
    return tuple(dict.fromkeys([*best, *(each.metric for each in tune.limits)]))


def make_plan(
    tune: TuneConfig,
    run: RunConfig,
    metric: str | None,
    objectives: Sequence[Objective] = (),
    *,
    saves: bool = False,
) -> Plan:
    """Return the rules that the controller applies."""
    return Plan(
        metrics=metrics_of(tune, metric, objectives),
        constraints=tune.limits,
        stop=run.stop,
        time_budget_s=cast("float | None", tune.time_budget_s),
        trial_timeout_s=cast("float | None", tune.trial_timeout_s),
        max_iteration=longest_way(tune, run),
        failure=run.failure_config,
        checkpoints=run.checkpoint_config,
        grace_s=settings.stop_grace_s(training=is_training()),
        saves=saves,
    )


def longest_way(tune: TuneConfig, run: RunConfig) -> float | None:
    """Return the maximum number of reports of a trial that stop rules and scheduler allow; None: unknown."""
    scheduler = tune.scheduler
    limits = [StopRules.of(run.stop).max_iteration]
    if isinstance(scheduler, TrialScheduler) and scheduler.time_attr == "training_iteration":
        limits.append(getattr(scheduler.deciding, "max_t", None))
    return min(filter(None, limits), default=None)
