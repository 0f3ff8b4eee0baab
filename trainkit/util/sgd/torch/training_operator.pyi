from trainkit.util.sgd.torch import CreatorOperator as CreatorOperator
from trainkit.util.sgd.torch import TrainingOperator as TrainingOperator
