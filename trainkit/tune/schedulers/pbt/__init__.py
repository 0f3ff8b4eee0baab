"""Population Based Training: bad trials take over the state of good trials and vary the hyperparameters."""

from __future__ import annotations

from trainkit.tune.schedulers.pbt.replay import PopulationBasedTrainingReplay
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]
