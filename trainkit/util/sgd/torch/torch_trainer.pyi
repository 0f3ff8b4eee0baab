from trainkit.util.sgd.torch import BaseTorchTrainable as BaseTorchTrainable
from trainkit.util.sgd.torch import TorchTrainer as TorchTrainer
