"""Population Based Training: bad trials take over the state and the changed hyperparameters of good
trials.
"""

from __future__ import annotations

from trainkit.tune.schedulers.pbt.replay import PopulationBasedTrainingReplay
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]
