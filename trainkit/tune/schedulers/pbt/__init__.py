"""Population Based Training: the weak take over what the strong have learned, hyperparameters changed."""

from __future__ import annotations

from trainkit.tune.schedulers.pbt.replay import PopulationBasedTrainingReplay
from trainkit.tune.schedulers.pbt.scheduler import PopulationBasedTraining

__all__ = ["PopulationBasedTraining", "PopulationBasedTrainingReplay"]
