"""Tuning: run trials of a trainable with different hyperparameters and stop the bad trials early.

    from trainkit import tune

    def objective(config):
        for step in range(100):
            tune.report({"loss": (config["x"] - 1) ** 2 / (step + 1)})

    tuner = tune.Tuner(
        objective,
        param_space={"x": tune.uniform(-10, 10)},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=50, scheduler=tune.schedulers.ASHAScheduler()
        ),
    )
    print(tuner.fit().get_best_result().config)

Names are imported on first use; `__init__.pyi` lists them.
"""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
