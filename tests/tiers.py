"""The tier of every test file: the resource that its tests need. One table, read before a file is imported.

A test that needs more than the rest of its file says so itself: `@pytest.mark.external`, `@pytest.mark.slow`.
"""

from __future__ import annotations

from pathlib import Path

TIERS = {
    "unit": "starts no process",
    "front": "uses the product as its users do, on the local engine: about a hundred tests",
    "model": "fits the models of searchers, often for a second; starts no process",
    "process": "starts the local engine: a node and its workers",
    "gang": "starts the workers of a trainer, many processes at once, or ones that load whole libraries",
    "external": "starts Ray, programs, type checkers, docs, recipes, benchmarks; needs Lightning, MLflow",
    "slow": "takes about ten seconds, or two of processor time; a mark of single tests, whatever they start",
}
"""Each tier by what it needs; the first two are `make test`."""

LONGEST_TIERS = ("external", "slow")
"""The tiers that take most of the time of the whole suite."""

PARTS = 8
"""Number of parts into which `--part` divides the longest tiers."""

OUTSIDE = frozenset(
    """
    plugins/ray/test_ray.py plugins/dashboard/test_pages.py plugins/lightning/test_lightning_operator.py
    plugins/integrations/test_mlflow.py plugins/searchers/test_external_searchers.py
    test_docs.py test_docs_site.py recipes/test_scikit_digits.py test_benchmarks.py
    """.split()
)
"""Files whose first test every part runs, so that each thing from outside is met at each change."""

FOLDERS = {
    ".": "external",
    "cli": "process",
    "contract": "unit",
    "plugins/check_resume": "external",
    "plugins/cluster": "external",
    "plugins/compat": "unit",
    "plugins/dashboard": "process",
    "plugins/gaussian_process": "model",
    "plugins/hydra": "external",
    "plugins/integrations": "unit",
    "plugins/job_pool": "external",
    "plugins/launch": "external",
    "plugins/learned_stopping": "unit",
    "plugins/lightning": "external",
    "plugins/median": "unit",
    "plugins/pareto": "unit",
    "plugins/pb2": "unit",
    "plugins/pipeline": "gang",
    "plugins/plateau": "unit",
    "plugins/plots": "process",
    "plugins/pools": "process",
    "plugins/profile": "process",
    "plugins/ray": "external",
    "plugins/repeater": "unit",
    "plugins/searchers": "model",
    "plugins/simulation": "unit",
    "plugins/slurm": "external",
    "plugins/sweep": "external",
    "plugins/testing": "external",
    "plugins/transformers": "external",
    "recipes": "external",
    "runtime": "process",
    "sklearn": "process",
    "train": "gang",
    "tune": "unit",
}
"""The tier of the files in a folder, where `OTHERS` says nothing else."""

OTHERS = {
    "unit": """
        test_kills_rules.py test_league.py test_packaging.py test_registry.py test_tiers.py
        cli/test_added_commands.py
        plugins/check_resume/test_comparison.py plugins/job_pool/test_rules.py plugins/searchers/test_bohb.py
        plugins/gaussian_process/test_encoding.py plugins/gaussian_process/test_initial.py
        plugins/gaussian_process/test_losses.py plugins/gaussian_process/test_minimize.py
        plugins/gaussian_process/test_model.py plugins/gaussian_process/test_acquisition.py
        plugins/searchers/test_bohb_kde.py plugins/searchers/test_bohb_model.py
        cli/test_experiments.py cli/test_why_decisions.py runtime/local/node/test_listing.py
        runtime/local/node/test_loop.py runtime/local/node/test_scheduler.py
        runtime/local/node/test_supervisor.py runtime/inline/test_inline.py
        runtime/test_placement.py runtime/test_preempt_settings.py runtime/test_restart_rules.py
        runtime/test_turns.py
        sklearn/test_copy_files.py sklearn/test_estimator_checks.py sklearn/test_fold_order.py
        sklearn/test_own_words.py
        sklearn/test_piecewise.py sklearn/test_search_cv.py
        sklearn/test_settings.py sklearn/test_spaces.py train/checkpoint/test_checkpoint.py
        train/strategies/test_cutting.py train/data/test_data.py train/test_inline.py
        train/step/test_metrics.py train/step/test_operator.py train/step/test_optimizers.py
        train/workers/test_recovery_rules.py train/step/test_stepping.py
        train/workers/test_symptoms.py train/strategies/test_tensor_plan.py
        train/distributed/test_tensors.py train/torch/test_prepare.py train/torch/test_shards.py
    """,
    "front": """
        cli/test_cli.py runtime/test_engines.py runtime/test_promises.py
        sklearn/test_search_estimators.py
        tune/experiment/test_commands.py tune/experiment/test_end_to_end.py tune/trial/test_forms.py
        tune/trial/test_trial_errors.py
    """,
    "model": """
        sklearn/test_from_tune_sklearn.py tune/search/test_duplicates.py tune/search/test_optuna.py
        tune/search/test_paused_searches.py tune/search/test_samplers.py
        tune/search/test_searcher_laws.py
    """,
    "process": """
        plugins/compat/test_collective.py plugins/compat/test_graphs.py plugins/compat/test_metrics.py
        plugins/compat/test_queue.py plugins/compat/test_timeline.py plugins/compat/test_util.py
        plugins/compat/test_util_state.py
        train/data/test_delivery.py tune/experiment/test_by_hand.py
        tune/controller/test_failed_trials.py
        tune/experiment/test_faults.py
        tune/schedulers/test_hyperband_killed.py tune/trial/test_leaving.py
        tune/callbacks/test_log_to_file.py tune/trial/test_parameters.py tune/test_registry.py
        tune/executor/test_reuse.py tune/search/test_search_order.py
        tune/executor/test_task_executor.py tune/executor/test_timeouts.py
        tune/trial/test_trial_memory.py
        tune/trial/test_trial_resources.py
    """,
    "gang": """
        test_node_losses.py test_notebook.py plugins/profile/test_finders.py
        sklearn/test_boosting_searches.py sklearn/test_copies.py sklearn/test_early_stopping.py
        sklearn/test_faults.py sklearn/test_halving.py sklearn/test_nested_searches.py
        sklearn/test_own_arrays.py
        sklearn/test_same_answers.py sklearn/test_stopping.py
    """,
    "external": """
        plugins/dashboard/test_mcp.py cli/test_stop.py plugins/compat/test_peers.py contract/test_loading.py
        plugins/dashboard/test_machines.py plugins/dashboard/test_page_steering.py
        plugins/dashboard/test_pages.py runtime/test_added_engines.py
        plugins/pools/test_originals.py
        runtime/local/test_debugger.py runtime/local/test_detached.py
        runtime/local/test_neighbours.py
        runtime/test_types.py
        sklearn/test_optional.py sklearn/test_ray_searches.py sklearn/test_search_kept.py
        sklearn/test_sklearn_suite.py
        sklearn/test_searches_benchmark.py train/test_benchmarks.py train/step/test_compiling.py
        train/distributed/test_meeting.py train/data/test_hooks.py train/test_promises.py
        train/workers/test_preemption.py train/workers/test_signals.py
        train/test_parity.py train/test_ray_trainer.py train/torch/test_accelerate.py
        train/torch/test_function_trainer_ray.py
        train/torch/test_ray_scripts.py
        tune/experiment/test_kills.py
        plugins/integrations/test_mlflow.py
        tune/test_ray_tuner.py plugins/searchers/test_external_searchers.py
        tune/search/test_search_benchmarks.py tune/test_speed.py plugins/integrations/test_wandb.py
        plugins/integrations/test_keras.py
    """,
}
"""The files that need something else than their folder does."""

LONGEST = """
    train/torch/test_function_trainer_ray.py train/torch/test_ray_scripts.py
    plugins/launch/test_run_scripts.py plugins/compat/test_peers.py
    test_node_losses.py train/test_ray_trainer.py plugins/ray/test_ray.py test_docs.py test_benchmarks.py
    test_docs_tuning.py test_docs_strategies.py tune/test_ray_tuner.py train/strategies/test_strategies.py
    recipes/test_cifar10.py recipes/test_mnist.py test_docs_sklearn.py train/test_promises.py
    sklearn/test_searches_benchmark.py train/strategies/test_fsdp.py train/workers/test_faults.py
    train/test_benchmarks.py runtime/test_gpus.py recipes/test_scikit_digits.py
    recipes/test_resnet50_layers.py sklearn/test_nested_searches.py
    runtime/test_drawn.py runtime/test_engines.py runtime/local/test_object_store.py
    plugins/searchers/test_bayesopt.py sklearn/test_search_estimators.py
    tune/search/test_duplicates.py sklearn/test_estimator_checks.py
    tune/search/test_paused_searches.py tune/search/test_samplers.py tune/search/test_optuna.py
""".split()
"""The files that take longest, in that order. They begin first, so that none is left alone at the end."""

_TIER_OF = {file: tier for tier, files in OTHERS.items() for file in files.split()}


def tier_of(file: Path) -> str:
    """Return the tier of a test file, given by its path relative to tests/."""
    folder = folder_of(file)
    if file.as_posix() not in _TIER_OF and folder not in FOLDERS:
        raise LookupError(
            f"tests/{folder} has no tier: add a row for {folder!r} to FOLDERS in tests/tiers.py"
        )
    return _TIER_OF.get(file.as_posix()) or FOLDERS[folder]


def folder_of(file: Path) -> str:
    """Return the folder of a test file that FOLDERS names; that of a plugin is below `plugins`."""
    parts = file.parent.parts or (".",)
    return "/".join(parts[: 2 if parts[0] == "plugins" else 1])


def may_hold(file: Path, tiers: list[str]) -> bool:
    """Return whether a file, by its text, may have tests of one of these tiers."""
    text = (Path(__file__).parent / file).read_text()
    return tier_of(file) in tiers or any(f"pytest.mark.{tier}" in text for tier in tiers)


def order_of(file: Path) -> int:
    """Return the place of a file in the order of the run."""
    name = file.as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
