"""Bad input under every scheduler: a clear error or a documented rule, and always an end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.tune import schedulers as sch
from trainkit.tune.search import TuneBOHB


def more_later(controller: Any, trial: Any, result: Mapping[str, Any], scheduler: Any) -> dict[str, float]:
    """Two workers from the second report on, if there are two."""
    return {"cpu": 1 if result["training_iteration"] == 1 else min(2, controller.get_num_cpus())}


ALL: dict[str, Callable[[], sch.TrialScheduler]] = {
    "fifo": sch.FIFOScheduler,
    "stopping": lambda: sch.ASHAScheduler(max_t=9, reduction_factor=3),
    "stopping in brackets": lambda: sch.ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
    "promotion": lambda: sch.ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"),
    "promotion with an end": lambda: sch.ASHAScheduler(
        max_t=9, reduction_factor=99, type="promotion", finish=True
    ),
    "promotion in brackets": lambda: sch.ASHAScheduler(
        max_t=9, reduction_factor=3, type="promotion", brackets=3
    ),
    "hyperband": lambda: sch.HyperBandScheduler(max_t=9, reduction_factor=3),
    "hyperband for BOHB": lambda: sch.HyperBandForBOHB(max_t=9, reduction_factor=3),
    "PBT": lambda: sch.PopulationBasedTraining(
        "training_iteration", perturbation_interval=2, hyperparam_mutations={"x": tune.uniform(0, 1)}
    ),
    "synchronous PBT": lambda: sch.PopulationBasedTraining(
        "training_iteration",
        perturbation_interval=3,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        synch=True,
    ),
    "PB2": lambda: sch.PB2("training_iteration", perturbation_interval=6, hyperparam_bounds={"x": [0, 1]}),
    "learned": lambda: sch.LearnedStopping(max_t=9),
    "learned grace": lambda: sch.ASHAScheduler(max_t=9, grace_period="learned"),
    "median": lambda: sch.MedianStoppingRule("training_iteration", grace_period=2),
    "median in turns": lambda: sch.MedianStoppingRule(
        "training_iteration", grace_period=2, min_time_slice=2, hard_stop=False
    ),
    "resources": lambda: sch.ResourceChangingScheduler(
        sch.ASHAScheduler(max_t=9, reduction_factor=3), more_later
    ),
    "resources and promotion": lambda: sch.ResourceChangingScheduler(
        sch.ASHAScheduler(max_t=9, reduction_factor=3, type="promotion"), more_later
    ),
    "several objectives": lambda: sch.ParetoScheduler(
        metric=["loss", "time_this_iter_s"], mode=["min", "min"], max_t=9
    ),
}

RULES: dict[str, set[str]] = {
    "fifo": set(),
    "stopping": {"rung", "max_t"},
    "stopping in brackets": {"rung", "max_t"},
    "promotion": {"rung", "max_t", "not chosen"},
    "promotion with an end": {"rung", "finish", "max_t", "not chosen"},
    "promotion in brackets": {"rung", "max_t", "not chosen"},
    "hyperband": {"milestone", "rung", "max_t"},
    "hyperband for BOHB": {"milestone", "rung", "max_t"},
    "PBT": {"population", "exploit", "turn"},
    "synchronous PBT": {"barrier", "exploit", "turn"},
    "PB2": {"population", "exploit", "turn"},
    "learned": {"learned", "max_t"},
    "learned grace": {"learned", "max_t"},
    "median": {"median"},
    "median in turns": {"median", "time slice", "losers last"},
    "resources": {"resources", "rung", "max_t"},
    "resources and promotion": {"resources", "rung", "max_t", "not chosen"},
    "several objectives": {"rung", "max_t"},
}

SPACE = {"x": tune.uniform(0, 1), "n": tune.randint(1, 9)}
SCHEDULERS = {name: make for name, make in ALL.items() if name != "several objectives"}
POPULATIONS = ("PBT", "synchronous PBT", "PB2")
LAST = 9


def pbt(**given: Any) -> sch.PopulationBasedTraining:
    given = {"perturbation_interval": 2, "hyperparam_mutations": {"x": SPACE["x"]}, **given}
    return sch.PopulationBasedTraining("training_iteration", **given)


def simulate(objective: Any, scheduler: str | sch.TrialScheduler, space: Any = None, **settings: Any) -> Any:
    searcher = {"search_alg": TuneBOHB()} if scheduler == "hyperband for BOHB" else {}
    if isinstance(scheduler, str):
        scheduler = SCHEDULERS[scheduler]()
    config = {"metric": "loss", "mode": "min", "num_samples": 12, **searcher, **settings}
    return tune.simulate(
        objective,
        param_space=SPACE if space is None else space,
        tune_config=tune.TuneConfig(scheduler=scheduler, **config),
        workers=3,
        seed=0,
    )


def statuses(results: Any) -> set[str]:
    return {str(result.status) for result in results}


# --- what is reported -----------------------------------------------------------------------------


def fails(config, t, rng):
    raise OSError("no disk")


ENDS = {
    "NaN everywhere": (lambda config, t, rng: {"loss": math.nan, "done": t == LAST}, "TERMINATED"),
    "fewer reports than are waited for": (
        lambda config, t, rng: {"loss": config["x"], "done": t == config["n"] % 3 + 1},
        "TERMINATED",
    ),
    "failures": (fails, "ERROR"),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_trial_ends(scheduler, how):
    """Nobody waits for ever."""
    objective, status = ENDS[how]
    results = simulate(objective, scheduler)
    assert len(results) == 12
    assert statuses(results) == {status}
    if how == "NaN everywhere" and "rung" in RULES[scheduler]:  # no rung lets NaN pass
        assert sum(len(result.history) for result in results) < 12 * LAST


@pytest.mark.parametrize(
    ("report", "words", "of_a_population"),
    [({"cost": 1.0}, "'loss'", "'loss'"), ({"loss": "low"}, "'low'", "without a number for metric='loss'")],
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_metric_that_never_comes_or_is_no_number_is_an_error(scheduler, report, words, of_a_population):
    def objective(config, t, rng):
        return {**report, "done": t == LAST}

    if scheduler in POPULATIONS:  # they can't go on without, and say so
        with pytest.raises((ConfigError, MetricError), match=of_a_population):
            simulate(objective, scheduler)
        return
    results = simulate(objective, scheduler)
    assert statuses(results) == {"ERROR"}
    assert all(isinstance(error, MetricError) and words in str(error) for error in results.errors)


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "fifo"])
def test_without_a_metric_nothing_starts(scheduler):
    with pytest.raises(ConfigError, match="metric"):
        simulate(lambda config, t, rng: {"loss": 1.0}, scheduler, metric=None, mode=None)


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "arguments", "words"),
    [
        (sch.ASHAScheduler, {"max_t": 0}, "max_t=0"),
        (sch.ASHAScheduler, {"grace_period": 0}, "grace_period=0"),
        (sch.ASHAScheduler, {"grace_period": 101}, "grace_period=101.*max_t=100"),
        (sch.ASHAScheduler, {"reduction_factor": 1}, "reduction_factor=1"),
        (sch.ASHAScheduler, {"brackets": 5}, "brackets must.*1 to 4, not 5"),
        (sch.ASHAScheduler, {"grace_period": 100, "brackets": 2}, "1 to 1.*1 rung"),
        (sch.ASHAScheduler, {"grace_period": 1e-6, "reduction_factor": 1.000001}, "1000 rungs"),
        (sch.ASHAScheduler, {"mode": "maximum"}, "'maximum'"),
        (sch.ASHAScheduler, {"time_attr": ""}, "time_attr=''"),
        (sch.ASHAScheduler, {"type": "halving"}, "'stopping' or 'promotion', not 'halving'"),
        (sch.ASHAScheduler, {"finish": True}, "finish must"),
        (sch.ASHAScheduler, {"finish": 2, "type": "promotion"}, "finish must"),
        (sch.HyperBandScheduler, {"max_t": 0}, "max_t=0"),
        (sch.HyperBandScheduler, {"reduction_factor": 1}, "reduction_factor=1: give a number of at least 2"),
        (sch.ParetoScheduler, {"metric": "loss", "mode": "min"}, "metric"),
        (sch.ParetoScheduler, {"metric": ["a", "b"]}, "metric"),
        (sch.MedianStoppingRule, {"grace_period": -1}, "grace_period=-1: give a number of at least 0"),
        (sch.MedianStoppingRule, {"min_time_slice": "1"}, "min_time_slice='1'"),
        (sch.MedianStoppingRule, {"min_samples_required": 0}, "min_samples_required=0: give a whole number"),
        (sch.MedianStoppingRule, {"pool": "running"}, "pool='running' is not one of 'all', 'completed'"),
        (sch.MedianStoppingRule, {"compare": "mean"}, "compare='mean' is not one of 'average', 'value'"),
        (pbt, {"hyperparam_mutations": None}, "nothing to explore"),
        (pbt, {"hyperparam_mutations": {"lr": 0.1}}, "lr.*0.1"),
        (pbt, {"quantile_fraction": 0.6}, "quantile_fraction=0.6"),
        (pbt, {"perturbation_interval": 0}, "perturbation_interval"),
        (pbt, {"burn_in_period": -1}, "burn_in_period"),
        (pbt, {"resample_probability": 1.5}, "resample_probability"),
        (pbt, {"perturbation_factors": (1.2, -0.8)}, "perturbation_factors"),
        (pbt, {"custom_explore_fn": 3}, "custom_explore_fn"),
        (pbt, {"tie": "loudest"}, "tie"),
        (sch.PB2, {"hyperparam_bounds": None}, "hyperparam_bounds must be bounds such as .*None"),
        (sch.PB2, {"hyperparam_bounds": {"lr": [1]}}, r"\['lr'\] must be \[smallest, largest\].*\[1\]"),
        (sch.PB2, {"hyperparam_bounds": {"lr": [1, 1]}}, "with different values, not"),
        (sch.PB2, {"hyperparam_bounds": {"net": {"lr": "fast"}}}, r"\['net'\]\['lr'\] must .*'fast'"),
        (sch.PB2, {"hyperparam_bounds": {"lr": tune.randn()}}, "or a domain such as"),
    ],
)
def test_arguments_are_checked_where_they_are_given(cls, arguments, words):
    with pytest.raises(ConfigError, match=words):
        cls(**arguments)


# --- mutations ------------------------------------------------------------------------------------
