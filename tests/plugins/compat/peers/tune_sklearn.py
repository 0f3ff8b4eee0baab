"""The examples of tune-sklearn's repository."""

from __future__ import annotations

from tests.plugins.compat.peers.base import Example, System, write_alone

QUIETLY = """
bayesian_sgd bohb_example discrete_bayesian discrete_hyperopt hpbandster_sgd hyperopt_sgd lgbm lgbmclassifier
multimetric random_forest sgd sklearn_pipeline sklearn_pipeline_early_stopping warm_start warm_start_ensemble
xgbclassifier
""".split()
"""Those that run, without a word about them."""


def missing(name: str, package: str, module: str) -> Example:
    return Example(name, needs=f"needs {package}")


SYSTEM = System(
    title="tune-sklearn",
    words="The programs in `examples` of its repository, at 0.5.0.",
    write=write_alone,
    folder="examples",
    examples=tuple(
        sorted(
            (
                *(Example(f"{name}.py") for name in QUIETLY),
                missing("catboostclassifier.py", "CatBoost", "catboost"),
                Example(
                    "custom_searcher_example.py",
                    needs="needs HEBO, which needs a NumPy older than 1.25",
                ),
                missing("keras_example.py", "TensorFlow, and downloads MNIST", "tensorflow"),
                missing("torch_nn.py", "skorch", "skorch"),
            ),
            key=lambda example: example.name,
        )
    ),
)
