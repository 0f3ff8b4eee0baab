"""`Trial` by the name of `ray.tune.experiment.trial`."""

from __future__ import annotations

from trainkit.tune.elsewhere import names_of

__getattr__, __dir__ = names_of(__name__, "trainkit.tune.trial")
