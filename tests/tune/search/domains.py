"""A space with a parameter of each kind, for the searchers that take them all."""

from __future__ import annotations

import math

from trainkit import tune

ALL_DOMAINS = {
    "uniform": tune.uniform(-1, 1),
    "quniform": tune.quniform(0, 1, 0.1),
    "loguniform": tune.loguniform(1e-5, 1),
    "qloguniform": tune.qloguniform(0.5, 100, 0.5),
    "randn": tune.randn(10, 2),
    "qrandn": tune.qrandn(10, 2, 0.5),
    "randint": tune.randint(-3, 100),
    "qrandint": tune.qrandint(0, 100, 5),
    "lograndint": tune.lograndint(1, 1000),
    "qlograndint": tune.qlograndint(10, 1000, 10),
    "choice": tune.choice(["a", None, 1, 1.5, True]),
    "objects": tune.choice([math.sin, (1, 2), [1, {"deep": tune.uniform(0, 1)}], {"a": 1}]),
    "list": [tune.uniform(0, 1), {"x": tune.randint(0, 3)}],
    "computed": tune.sample_from(lambda spec: spec.config.randint * 2),
}
