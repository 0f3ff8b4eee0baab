"""`ray.tune.suggest.skopt` has no counterpart here: importing this says what to use instead."""

from __future__ import annotations

from trainkit.tune.elsewhere import nowhere

raise nowhere(__name__, "SkOptSearch")
