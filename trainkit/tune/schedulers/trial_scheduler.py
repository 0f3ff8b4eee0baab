"""`TrialScheduler` and `FIFOScheduler` by the name of `ray.tune.schedulers.trial_scheduler`."""

from __future__ import annotations

from trainkit.tune.elsewhere import names_of

__getattr__, __dir__ = names_of(__name__, "trainkit.tune.schedulers")
