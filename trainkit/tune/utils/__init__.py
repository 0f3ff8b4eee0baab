"""What has its home elsewhere, by the names of `ray.tune.utils`."""

from __future__ import annotations

from trainkit.tune.utils.util import merge_dicts

__all__ = ["merge_dicts"]
