"""Pools of workers: `concurrent.futures.Executor`, `multiprocessing.Pool`, and a joblib backend."""

from __future__ import annotations

from trainkit.lazy import from_stub

__getattr__, __dir__, __all__ = from_stub(__name__)
