"""Where code runs, by the names of `ray.runtime_context`."""

from __future__ import annotations

from trainkit.runtime.api import get_runtime_context
from trainkit.runtime.context import RuntimeContext

__all__ = ["RuntimeContext", "get_runtime_context"]
