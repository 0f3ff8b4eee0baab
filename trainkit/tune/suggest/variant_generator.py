"""`grid_search` by the name of `ray.tune.suggest.variant_generator`, of Ray 1.x."""

from __future__ import annotations

from trainkit.tune.elsewhere import names_of

__getattr__, __dir__ = names_of(__name__, "trainkit.tune.space")
