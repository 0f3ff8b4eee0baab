from trainkit.train import TorchTrainer as TorchTrainer
from trainkit.train import TrainingOperator as TrainingOperator
from trainkit.train.creators import CreatorOperator as CreatorOperator
