"""RaySGD's trainer as what is tuned, as in 2021: `as_trainable` and `tune.run`."""

import ray
import torch
from ray import tune
from ray.util.sgd import TorchTrainer
from ray.util.sgd.torch import TrainingOperator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Example(TrainingOperator):
    def setup(self, config):
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        loader = DataLoader(TensorDataset(x, 2 * x + 1), batch_size=16)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
        self.model, self.optimizer, self.criterion = self.register(
            models=model, optimizers=optimizer, criterion=nn.MSELoss()
        )
        self.register_data(train_loader=loader, validation_loader=loader)


def training_func(config):
    tune.report(mean_loss=config["a"] ** 2 - 0.5)


if __name__ == "__main__":
    ray.init(num_cpus=2)
    assert tune.run(training_func, config={"a": 3}, verbose=0).trials[0].last_result["mean_loss"] == 8.5
    analysis = tune.run(
        TorchTrainer.as_trainable(training_operator_cls=Example, num_workers=2, config={"lr": 0.1}),
        config={"lr": tune.grid_search([0.001, 0.3])},
        stop={"training_iteration": 2},
        metric="val_loss",
        mode="min",
        verbose=0,
    )
    assert analysis.best_config == {"lr": 0.3}
    print("best:", analysis.best_config)
