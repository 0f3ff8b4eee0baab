"""The tier of every test file: the resource that its tests need. One table, read before a file is imported.

A test that needs more than the rest of its file says so itself: `@pytest.mark.external`.
"""

from __future__ import annotations

from pathlib import Path

TIERS = {
    "unit": "starts no process",
    "process": "starts the local engine: a node and its workers",
    "gang": "starts the workers of a trainer, many processes at once, or ones that load whole libraries",
    "external": "starts Ray, programs, type checkers, docs, recipes, benchmarks; needs Lightning, MLflow",
}
"""Each tier by what it may start; the first two are `make test`."""

FOLDERS = {
    ".": "external",
    "cli": "process",
    "compat": "unit",
    "contract": "unit",
    "dashboard": "process",
    "recipes": "external",
    "runtime": "process",
    "scikit": "process",
    "train": "gang",
    "tune": "unit",
}
"""The tier of the files in a folder, where `OTHERS` says nothing else."""

OTHERS = {
    "unit": """
        test_packaging.py test_registry.py test_tiers.py
        cli/test_added_commands.py cli/test_experiments.py cli/test_why_decisions.py
        runtime/node/test_listing.py runtime/node/test_loop.py runtime/node/test_scheduler.py
        runtime/node/test_supervisor.py runtime/test_inline.py runtime/test_placement.py
        runtime/test_restart_rules.py runtime/test_turns.py
        scikit/test_copy_files.py scikit/test_estimator_checks.py scikit/test_fold_order.py
        scikit/test_from_tune_sklearn.py scikit/test_own_words.py scikit/test_passes.py
        scikit/test_piecewise.py scikit/test_search_candidates.py scikit/test_search_cv.py
        scikit/test_settings.py scikit/test_spaces.py
        train/test_checkpoint.py train/test_cutting.py train/test_data.py train/test_inline.py
        train/test_metrics.py train/test_operator.py train/test_optimizers.py
        train/test_recovery_rules.py train/test_stepping.py train/test_symptoms.py
        train/test_tensor_plan.py train/test_tensors.py
    """,
    "process": """
        train/test_delivery.py train/test_resume.py
        tune/test_by_hand.py tune/test_commands.py tune/test_end_to_end.py
        tune/test_failed_trials.py tune/test_faults.py tune/test_forms.py
        tune/test_hyperband_killed.py tune/test_leaving.py tune/test_log_to_file.py
        tune/test_parameters.py tune/test_registry.py tune/test_reuse.py tune/test_search_order.py
        tune/test_task_executor.py tune/test_timeouts.py tune/test_trial_errors.py
        tune/test_trial_memory.py tune/test_trial_resources.py
    """,
    "gang": """
        test_node_losses.py test_notebook.py
        runtime/test_crowds.py
        scikit/test_boosting_searches.py scikit/test_copies.py scikit/test_early_stopping.py
        scikit/test_faults.py scikit/test_nested_searches.py scikit/test_own_arrays.py
        scikit/test_same_answers.py scikit/test_stopping_faults.py
        scikit/test_stopping_schedulers.py
    """,
    "external": """
        cli/test_stop.py
        contract/test_loading.py
        runtime/test_added_engines.py runtime/test_detached.py runtime/test_neighbours.py
        runtime/test_patterns.py runtime/test_ray.py runtime/test_ray_cluster.py
        runtime/test_types.py
        scikit/test_optional.py scikit/test_ray_searches.py scikit/test_search_kept.py
        scikit/test_searches_benchmark.py
        train/test_benchmarks.py train/test_compiling.py train/test_lightning_operator.py
        train/test_meeting.py train/test_parity.py train/test_ray_trainer.py
        tune/test_kills.py tune/test_lightning_callbacks.py tune/test_mlflow.py
        tune/test_old_scripts.py tune/test_ray_tuner.py tune/test_search_benchmarks.py
        tune/test_speed.py tune/test_wandb.py
    """,
}
"""The files that need something else than their folder does."""

LONGEST = """
    runtime/test_drawn.py train/test_ray_trainer.py test_node_losses.py runtime/test_object_store.py
    tune/test_ray_tuner.py test_docs_tuning.py test_benchmarks.py scikit/test_nested_searches.py
    runtime/test_patterns.py test_docs_strategies.py
""".split()
"""The files that take longest, in that order. They begin first, so that none is left alone at the end."""

_TIER_OF = {file: tier for tier, files in OTHERS.items() for file in files.split()}


def tier_of(file: Path) -> str:
    """Return the tier of a test file, given by its path relative to tests/."""
    return _TIER_OF.get(file.as_posix()) or FOLDERS[file.parent.parts[0] if file.parent.parts else "."]


def may_hold(file: Path, tiers: list[str]) -> bool:
    """Return whether a file, by its text, may have tests of one of these tiers."""
    text = (Path(__file__).parent / file).read_text()
    return tier_of(file) in tiers or any(f"pytest.mark.{tier}" in text for tier in tiers)


def order_of(file: Path) -> int:
    """Return the place of a file in the order of the run."""
    name = file.as_posix()
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)
