"""The systems whose programs move here by their imports: each a module with the list of its examples."""

from __future__ import annotations

from tests.plugins.compat.peers import ray_docs, ray_tune, raysgd, scikit_learn, tune_sklearn

SYSTEMS = (
    ray_tune.SYSTEM,
    ray_docs.TUNE,
    ray_docs.CORE,
    raysgd.SYSTEM,
    tune_sklearn.SYSTEM,
    scikit_learn.SYSTEM,
)
"""In the order of docs/compatibility.md."""
