from trainkit.plugins.compat.resource_changing import (
    ResourceChangingScheduler as ResourceChangingScheduler,
)
from trainkit.plugins.learned_stopping.scheduler import LearnedStopping as LearnedStopping
from trainkit.plugins.median.scheduler import MedianStoppingRule as MedianStoppingRule
from trainkit.plugins.pareto.scheduler import ParetoScheduler as ParetoScheduler
from trainkit.plugins.pb2.scheduler import PB2 as PB2
from trainkit.tune.schedulers.async_hyperband import ASHAScheduler as ASHAScheduler
from trainkit.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as AsyncHyperBandScheduler
from trainkit.tune.schedulers.base import Decision as Decision
from trainkit.tune.schedulers.base import Donor as Donor
from trainkit.tune.schedulers.base import FIFOScheduler as FIFOScheduler
from trainkit.tune.schedulers.base import TrialScheduler as TrialScheduler
from trainkit.tune.schedulers.base import Verdict as Verdict
from trainkit.tune.schedulers.base import words_of as words_of
from trainkit.tune.schedulers.hyperband import HyperBandForBOHB as HyperBandForBOHB
from trainkit.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
from trainkit.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
from trainkit.tune.schedulers.pbt import PopulationBasedTrainingReplay as PopulationBasedTrainingReplay
from trainkit.tune.schedulers.registry import SCHEDULERS as SCHEDULERS
from trainkit.tune.schedulers.registry import create_scheduler as create_scheduler
from trainkit.tune.schedulers.registry import described_scheduler as described_scheduler
from trainkit.tune.schedulers.registry import load_words as load_words
