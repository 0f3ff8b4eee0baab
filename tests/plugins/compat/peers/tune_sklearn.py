"""The examples of tune-sklearn's repository."""

from __future__ import annotations

from tests.plugins.compat.peers.base import Example, System, quietly, write_alone

QUIETLY = """
bayesian_sgd bohb_example discrete_bayesian discrete_hyperopt hpbandster_sgd hyperopt_sgd lgbm lgbmclassifier
multimetric random_forest sgd sklearn_pipeline sklearn_pipeline_early_stopping warm_start warm_start_ensemble
xgbclassifier
"""


SYSTEM = System(
    title="tune-sklearn",
    words="The table lists the scripts in `examples` of tune-sklearn's repository, at 0.5.0.",
    write=write_alone,
    folder="examples",
    examples=(
        *quietly(QUIETLY),
        Example("catboostclassifier.py", needs="needs CatBoost"),
        Example("custom_searcher_example.py", needs="needs HEBO, which needs a NumPy older than 1.25"),
        Example("keras_example.py", needs="needs TensorFlow, and downloads MNIST"),
        Example("torch_nn.py", needs="needs skorch"),
    ),
)
