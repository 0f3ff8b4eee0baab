from trainkit.plugins.compat.creators import CreatorOperator as CreatorOperator
from trainkit.train import TorchTrainer as TorchTrainer
from trainkit.train import TrainingOperator as TrainingOperator
from trainkit.train.tune import TrainerTrainable

BaseTorchTrainable = TrainerTrainable
