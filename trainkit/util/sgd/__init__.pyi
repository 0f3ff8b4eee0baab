from trainkit.train import TorchTrainer as TorchTrainer
from trainkit.util.sgd import torch as torch
