"""Names, order and defaults of arguments are Ray Tune's; more are allowed, never fewer."""

from __future__ import annotations

import inspect
from functools import reduce
from typing import Any

import pytest

from trainkit import tune

ANY: Any = object()
"""A default that is not Ray's business: unset, by whatever value says so."""

SIGNATURES = """
Tuner(trainable=None, *, param_space=None, tune_config=None, run_config=None)
Tuner.restore(path, trainable, resume_unfinished=True, resume_errored=False, restart_errored=False,
    param_space=None, storage_filesystem=None)
Tuner.can_restore(path, storage_filesystem=None)
TuneConfig(mode=None, metric=None, search_alg=None, scheduler=None, num_samples=1,
    max_concurrent_trials=None, time_budget_s=None, reuse_actors=False, trial_name_creator=None,
    trial_dirname_creator=None)
RunConfig(name=None, storage_path=None, storage_filesystem=None, failure_config=ANY,
    checkpoint_config=ANY, sync_config=None, verbose=ANY, stop=None, callbacks=ANY, progress_reporter=None,
    log_to_file=False)
FailureConfig(max_failures=0, fail_fast=False)
CheckpointConfig(num_to_keep=None, checkpoint_score_attribute=None, checkpoint_score_order="max",
    checkpoint_frequency=0, checkpoint_at_end=None)
report(metrics=ANY, *, checkpoint=None)
ResultGrid.get_best_result(self, metric=None, mode=None, scope="last", filter_nan_and_inf=True)
ResultGrid.get_dataframe(self, filter_metric=None, filter_mode=None)
Result.get_best_checkpoint(self, metric, mode)
Result.from_path(path, storage_filesystem=None)
ExperimentAnalysis(experiment_checkpoint_path, *, storage_filesystem=None, trials=None,
    default_metric=None, default_mode=None)
ExperimentAnalysis.get_best_trial(self, metric=None, mode=None, scope="last", filter_nan_and_inf=True)
ExperimentAnalysis.get_best_config(self, metric=None, mode=None, scope="last")
ExperimentAnalysis.get_best_checkpoint(self, trial, metric=None, mode=None)
ExperimentAnalysis.dataframe(self, metric=None, mode=None)
run(run_or_experiment, *, name=None, metric=None, mode=None, stop=None, time_budget_s=None, config=None,
    resources_per_trial=None, num_samples=1, storage_path=None, search_alg=None, scheduler=None,
    checkpoint_config=None, verbose=ANY, progress_reporter=None, log_to_file=False, trial_name_creator=None,
    trial_dirname_creator=None, max_failures=0, fail_fast=False, restore=None, resume=None,
    reuse_actors=False, raise_on_failed_trial=True, callbacks=None, max_concurrent_trials=None,
    local_dir=None, keep_checkpoints_num=None, checkpoint_score_attr=None, checkpoint_freq=0,
    checkpoint_at_end=False)
uniform(lower, upper)
quniform(lower, upper, q)
loguniform(lower, upper, base=ANY)
qloguniform(lower, upper, q, base=ANY)
randn(mean=0.0, sd=1.0)
qrandn(mean, sd, q)
randint(lower, upper)
qrandint(lower, upper, q=1)
lograndint(lower, upper, base=ANY)
qlograndint(lower, upper, q, base=ANY)
choice(categories)
sample_from(func)
grid_search(values)
with_parameters(trainable)
with_resources(trainable, resources)
PlacementGroupFactory(bundles, strategy="PACK")
register_trainable(name, trainable, warn=True)
run_experiments(experiments, scheduler=None)
create_scheduler(scheduler)
create_searcher(search_alg)
Trainable.setup(self, config)
Trainable.save_checkpoint(self, checkpoint_dir)
Trainable.load_checkpoint(self, checkpoint)
Trainable.reset_config(self, new_config)
Trainable.default_resource_request(config)
schedulers.ASHAScheduler(time_attr="training_iteration", metric=None, mode=None, max_t=100,
    grace_period=1, reduction_factor=4, brackets=1, stop_last_trials=True)
schedulers.HyperBandForBOHB(time_attr="training_iteration", metric=None, mode=None, max_t=81,
    reduction_factor=3, stop_last_trials=True)
schedulers.HyperBandScheduler(time_attr="training_iteration", metric=None, mode=None, max_t=81,
    reduction_factor=3, stop_last_trials=True)
search.Searcher(metric=None, mode=None)
search.BasicVariantGenerator(points_to_evaluate=None, max_concurrent=0, constant_grid_search=False,
    random_state=None)
search.ConcurrencyLimiter(searcher, max_concurrent, batch=False)
search.Repeater(searcher, repeat=1, set_index=True)
search.OptunaSearch(space=None, metric=None, mode=None, points_to_evaluate=None, sampler=None,
    study_name=None, storage=None, seed=None, evaluated_rewards=None)
search.TuneBOHB(space=None, bohb_config=None, metric=None, mode=None, points_to_evaluate=None, seed=None,
    max_concurrent=0)
stopper.MaximumIterationStopper(max_iter)
stopper.TrialPlateauStopper(metric, std=0.01, num_results=4, grace_period=4, metric_threshold=None,
    mode=None)
stopper.ExperimentPlateauStopper(metric, std=0.001, top=10, mode="min", patience=0)
stopper.TimeoutStopper(timeout)
CLIReporter(*, metric_columns=None, parameter_columns=None, max_progress_rows=20, max_error_rows=20,
    max_column_length=20, max_report_frequency=5, sort_by_metric=False)
"""


# user-needs 3.1
@pytest.mark.parametrize("signature", SIGNATURES.replace("\n    ", " ").strip().splitlines())
def test_arguments_are_rays(signature):
    name, _, arguments = signature.partition("(")
    ours = inspect.signature(reduce(getattr, name.split("."), tune)).parameters
    rays = inspect.signature(eval(f"lambda {arguments[:-1]}: 0", {"ANY": ANY})).parameters  # noqa: S307 - the table above
    by_place = [each for each in rays if rays[each].kind is rays[each].POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(by_place)] == by_place
    for each, parameter in rays.items():
        assert each in ours
        assert parameter.default is ANY or ours[each].default == parameter.default, each


def test_names_of_errors_and_types_are_where_rays_are():
    assert issubclass(tune.TuneError, Exception)
    assert callable(tune.TuneContext.get_trial_id)
