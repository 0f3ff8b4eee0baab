"""The examples of scikit-learn that search, which its source distribution brings along."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.compat.peers.archives import Archive
from tests.plugins.compat.peers.base import Example, System, write_alone

SKLEARN = Archive(
    "scikit-learn",
    "1.9.1",
    "629cada3e33e2b9bf376cdc7614a47a4140b8aedc1d836579e359736fbd82977",
    backend="mesonpy",
)


def files() -> Path:
    """Return the folder of the examples."""
    (unpacked,) = SKLEARN.folder().iterdir()
    return unpacked / "examples"


def download(name: str, data: str) -> Example:
    return Example(name, needs=f"downloads {data}")


SYSTEM = System(
    title="scikit-learn's searches",
    version=SKLEARN.version,
    words=(
        "The programs in `examples` that import a search of `sklearn.model_selection`; each search is the one"
        " of [this table](migrating-gridsearchcv.md), by its name in scikit-learn."
    ),
    files=files,
    write=write_alone,
    examples=(
        download("applications/plot_face_recognition.py", "faces"),
        Example("callbacks/plot_scoring_monitor.py"),
        Example("cluster/plot_feature_agglomeration_vs_univariate_selection.py"),
        download("compose/plot_column_transformer_mixed_types.py", "the passengers of the Titanic"),
        Example("compose/plot_compare_reduction.py"),
        Example("compose/plot_digits_pipe.py"),
        Example("compose/plot_feature_union.py"),
        Example("covariance/plot_covariance_estimation.py"),
        Example("decomposition/plot_pca_vs_fa_model_selection.py"),
        download("ensemble/plot_forest_hist_grad_boosting_comparison.py", "prices of houses"),
        Example("ensemble/plot_gradient_boosting_quantile.py"),
        Example("gaussian_process/plot_compare_gpr_krr.py"),
        Example("miscellaneous/plot_kernel_ridge_regression.py"),
        Example("miscellaneous/plot_pipeline_display.py"),
        Example("mixture/plot_gmm_selection.py"),
        download("model_selection/plot_cost_sensitive_learning.py", "credits and card payments"),
        Example("model_selection/plot_grid_search_digits.py"),
        Example("model_selection/plot_grid_search_refit_callable.py"),
        Example("model_selection/plot_grid_search_stats.py"),
        download("model_selection/plot_grid_search_text_feature_extraction.py", "20 newsgroups"),
        Example("model_selection/plot_multi_metric_evaluation.py"),
        Example(
            "model_selection/plot_nested_cross_validation_iris.py",
            changes={"NUM_TRIALS = 30": "NUM_TRIALS = 3"},
            note="3 trials in place of 30",
        ),
        Example(
            "model_selection/plot_randomized_search.py",
            changes={"num=10": "num=3", "n_iter_search = 30": "n_iter_search = 6"},
            note="a grid of 9 in place of 30, and 6 draws in place of 30",
        ),
        Example("model_selection/plot_successive_halving_heatmap.py"),
        Example("model_selection/plot_successive_halving_iterations.py"),
        download("multiclass/plot_multiclass_overview.py", "yeasts"),
        Example("neighbors/plot_caching_nearest_neighbors.py"),
        Example("neighbors/plot_digits_kde_sampling.py"),
        Example("preprocessing/plot_discretization_classification.py"),
        download("release_highlights/plot_release_highlights_0_24_0.py", "types of forests"),
        download("release_highlights/plot_release_highlights_1_4_0.py", "wages"),
        Example("svm/plot_rbf_parameters.py"),
    ),
)
