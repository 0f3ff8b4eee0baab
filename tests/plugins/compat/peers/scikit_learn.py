"""The examples of scikit-learn that search, which its source distribution brings along."""

from __future__ import annotations

from pathlib import Path

from tests.plugins.compat.peers.archives import Archive
from tests.plugins.compat.peers.base import Example, System, quietly, write_alone

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


QUIETLY = """
callbacks/plot_scoring_monitor cluster/plot_feature_agglomeration_vs_univariate_selection
compose/plot_compare_reduction compose/plot_digits_pipe compose/plot_feature_union
covariance/plot_covariance_estimation decomposition/plot_pca_vs_fa_model_selection
ensemble/plot_gradient_boosting_quantile gaussian_process/plot_compare_gpr_krr
miscellaneous/plot_kernel_ridge_regression miscellaneous/plot_pipeline_display mixture/plot_gmm_selection
model_selection/plot_grid_search_digits model_selection/plot_grid_search_refit_callable
model_selection/plot_grid_search_stats model_selection/plot_multi_metric_evaluation
model_selection/plot_successive_halving_heatmap model_selection/plot_successive_halving_iterations
neighbors/plot_caching_nearest_neighbors neighbors/plot_digits_kde_sampling
preprocessing/plot_discretization_classification svm/plot_rbf_parameters
"""

SYSTEM = System(
    title="scikit-learn's searches",
    version=SKLEARN.version,
    words=(
        "The table lists the programs in `examples` that import a search of `sklearn.model_selection`. The"
        " search of trainkit with [the corresponding name](migrating-gridsearchcv.md) replaces"
        " scikit-learn's search."
    ),
    files=files,
    write=write_alone,
    examples=(
        *quietly(QUIETLY),
        download("applications/plot_face_recognition.py", "faces"),
        download("compose/plot_column_transformer_mixed_types.py", "the passengers of the Titanic"),
        download("ensemble/plot_forest_hist_grad_boosting_comparison.py", "prices of houses"),
        download("model_selection/plot_cost_sensitive_learning.py", "credits and card payments"),
        download("model_selection/plot_grid_search_text_feature_extraction.py", "20 newsgroups"),
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
        download("multiclass/plot_multiclass_overview.py", "yeasts"),
        download("release_highlights/plot_release_highlights_0_24_0.py", "types of forests"),
        download("release_highlights/plot_release_highlights_1_4_0.py", "wages"),
    ),
)
