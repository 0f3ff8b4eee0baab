"""An operator by itself, in this process."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from tests.conftest import examples
from tests.train.operators import Digits, plain_losses
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.options import wrong_signature
from trainkit.train.step.context import WorkerContext
from trainkit.train.step.epoch import EpochBatches


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2))


class Bare(TrainingOperator):
    def setup(self, config: dict[str, Any]) -> None:
        pass


def sgd(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.5)


def epoch(operator: TrainingOperator, num_steps: int | None = None) -> Any:
    assert operator._train_feed is not None
    return operator.train_epoch(
        EpochBatches(operator._train_feed.batches(0, num_steps)), {}, num_steps=num_steps
    )


def test_register_returns_what_it_was_given_in_the_same_shape() -> None:
    model, loss = net(), nn.MSELoss()
    optimizer = sgd(model)
    assert Bare().register(models=model, optimizers=optimizer) == (model, optimizer)
    assert Bare().register(models=[model], optimizers=[optimizer], criterion=loss) == (
        [model],
        [optimizer],
        loss,
    )

    one = Bare({}, WorkerContext(scheduler_step_freq="epoch"))
    scheduler = StepLR(optimizer, 1)
    returned = one.register(models=model, optimizers=optimizer, criterion=loss, schedulers=scheduler)
    assert returned == (model, optimizer, loss, scheduler)
    assert (one.model, one.optimizer, one.criterion, one.scheduler) == returned


def test_a_model_that_is_a_sequence_is_one_model() -> None:
    operator = Bare()
    model = net()
    operator.register(models=model, optimizers=sgd(model))
    assert operator.models == [model]


def plateau(optimizer: Any) -> dict[str, Any]:
    return {"schedulers": ReduceLROnPlateau(optimizer)}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"models": "net"}, "models must be one Module or a list of them, not 'net'"),
        ({"optimizers": []}, "optimizers must be one Optimizer or a list"),
        ({"schedulers": object()}, "has no step"),
        (plateau, r"ReduceLROnPlateau.*update_scheduler"),
        ({"apex_args": {"opt_level": "O1"}}, r"apex_args=.*: Apex is not supported; .*precision='fp16'"),
        ({"ddp_args": [{}]}, r"ddp_args must be a dictionary, not \[\{\}\]"),
    ],
)
def test_register_names_what_is_wrong(arguments: Any, text: str) -> None:
    model, operator = net(), Bare({}, WorkerContext(scheduler_step_freq="epoch"))
    optimizer = sgd(model)
    given = arguments(optimizer) if callable(arguments) else arguments
    with pytest.raises(ConfigError, match=text):
        operator.register(**{"models": model, "optimizers": optimizer, **given})
    with pytest.raises(TypeError, match="horovod_args"):
        operator.register(models=model, optimizers=optimizer, horovod_args={})  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="scheduler_step_freq='batch', 'epoch' or 'manual'"):
        Bare().register(models=model, optimizers=optimizer, schedulers=StepLR(optimizer, 1))
    operator.register(models=model, optimizers=optimizer)
    with pytest.raises(ConfigError, match="called twice"):
        operator.register(models=model, optimizers=optimizer)


def test_setup_must_be_defined() -> None:
    with pytest.raises(NotImplementedError, match="TrainingOperator must define setup"):
        TrainingOperator()


@pytest.mark.parametrize("samples", [1, 50, 100])
def test_the_default_loop_is_the_plain_loop_bit_by_bit(samples: int) -> None:
    config = {"samples": samples, "batch_size": 16}
    operator = Digits(config)
    epoch(operator, num_steps=30)
    assert [loss for loss, _ in operator.steps] == plain_losses(config, 30)
    assert operator.global_step == 30


def test_validation_leaves_no_gradients_and_counts_every_sample() -> None:
    operator = Digits({"samples": 70, "batch_size": 32})
    assert operator._validation_feed is not None
    result = operator.validate(EpochBatches(operator._validation_feed.batches()), {})
    assert result["num_samples"] == 70
    assert result["batch_count"] == 3
    assert 0 <= result["val_accuracy"] <= 1
    assert all(parameter.grad is None for parameter in operator.model.parameters())
    assert not operator.model.training


def test_a_regression_has_no_accuracy() -> None:
    class Regression(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            model = nn.Linear(4, 1)
            self.register(models=model, optimizers=sgd(model), criterion=nn.MSELoss())
            self.register_data(
                validation_loader=DataLoader(TensorDataset(torch.randn(6, 4), torch.randn(6, 1)), 4)
            )

    operator = Regression()
    assert operator._validation_feed is not None
    result = operator.validate(EpochBatches(operator._validation_feed.batches()), {})
    assert set(result) == {"batch_count", "num_samples", "val_loss", "last_val_loss"}


def test_what_the_default_step_lacks_is_named() -> None:
    class TwoModels(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            models = [net(), net()]
            self.register(models=models, optimizers=sgd(*models), criterion=nn.MSELoss())

    class NoLoss(TrainingOperator):
        def setup(self, config: dict[str, Any]) -> None:
            model = net()
            self.register(models=model, optimizers=sgd(model))

    with pytest.raises(ConfigError, match=r"no model is registered: call register\(models=.*in setup"):
        Bare().train_batch((torch.ones(1, 4), torch.ones(1, 2)), {})
    with pytest.raises(ConfigError, match="one model and one optimizer, not 2 and 1"):
        TwoModels().train_batch((torch.ones(1, 4), torch.ones(1, 2)), {})
    with pytest.raises(ConfigError, match=r"needs a loss: call register\(criterion=...\)"):
        NoLoss().train_batch((torch.ones(1, 4), torch.ones(1, 2)), {})
    with pytest.raises(ConfigError, match=r"\(\*features, target\), but the loader returned a dict"):
        Digits({"samples": 4}).train_batch({"x": 1}, {})


class Distilled(Digits):
    """A frozen teacher beside the model that learns."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self.teacher = nn.Sequential(nn.Dropout(), nn.Linear(4, 2)).requires_grad_(False)
        self._registered.models.append(self.teacher)

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {"taught": float(self.teacher[0].training), "learning": float(self.models[0].training)}

    def validate_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        return {"taught": float(self.teacher[0].training), "learning": float(self.models[0].training)}


@pytest.mark.parametrize("training", [False, True])
def test_a_frozen_model_stays_in_the_mode_it_was_left_in(training: bool) -> None:
    operator = Distilled({"samples": 4})
    operator.teacher[0].train(training)
    operator.teacher[1].train(not training)
    assert operator._validation_feed is not None
    for _ in range(2):
        result = epoch(operator)
        assert (result["taught"], result["learning"]) == (training, 1)
        result = operator.validate(EpochBatches(operator._validation_feed.batches()), {})
        assert (result["taught"], result["learning"]) == (0, 0)
        assert [module.training for module in operator.teacher] == [training, not training]


class ShortEpoch(Digits):
    def train_epoch(self, iterator: Any) -> Any:  # type: ignore[override]
        return super().train_epoch(iterator, {})


class ShortStep(Digits):
    def train_batch(self, batch: Any) -> Any:  # type: ignore[override]
        return {}


class OwnNames(Digits):
    def setup(self, options: dict[str, Any]) -> None:
        super().setup(options)

    def train_epoch(self, *args: Any, **kwargs: Any) -> Any:
        return super().train_epoch(*args, **kwargs)

    @staticmethod
    def validate_batch(batch: Any, info: Any) -> Any:
        return {}


def test_methods_that_cannot_be_called_are_told_when_the_class_is_given() -> None:
    shown = r"can't be called .*: define train_epoch\(self, iterator, info, num_steps=None, epoch_idx=0\)"
    with pytest.raises(ConfigError, match=shown):
        TorchTrainer(training_operator_cls=ShortEpoch)
    with pytest.raises(ConfigError, match=r"define train_batch\(self, batch, batch_info\)"):
        TorchTrainer(training_operator_cls=ShortStep)
    assert wrong_signature(OwnNames) is None


class OnlyConfig(TrainingOperator):
    def __init__(self, config: Any) -> None:
        super().__init__(config)


class Keywords(TrainingOperator):
    def __init__(self, config: Any, **kwargs: Any) -> None:
        assert kwargs["world_rank"] == kwargs["local_rank"] == 0 and not kwargs["use_gpu"]
        super().__init__(config, **kwargs)


class Ranks(TrainingOperator):
    def __init__(
        self, config: Any, world_rank: int, local_rank: int, is_distributed: bool = True, **kwargs: Any
    ):
        assert not world_rank and not local_rank and not is_distributed
        super().__init__(config, world_rank, local_rank, is_distributed, **kwargs)


class Anything(TrainingOperator):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class Context(TrainingOperator):
    def __init__(self, config: Any, context: WorkerContext | None = None) -> None:
        super().__init__(config, context)


OF_RAYSGD = {
    *("setup", "register", "register_data", "train_epoch", "train_batch", "validate", "validate_batch"),
    *("state_dict", "load_state_dict", "from_ptl", "from_creators", "config", "device", "device_ids"),
    *("world_rank", "local_rank", "use_gpu", "use_fp16", "use_tqdm", "scheduler_step_freq", "timers"),
    *("global_step", "criterion"),
}
"""Names of RaySGD's operators, and the loss, which the default steps of both take from the operator."""
FREE = sorted(
    {name for name in {*dir(TrainingOperator), *vars(Bare())} if not name.startswith("_")} - OF_RAYSGD
    | {"registered", "stepper", "train_feed", "validation_feed", "plan", "creators", "my_own"}
)


def set_names(operator: Any, names: set[str]) -> None:
    for name in names:
        setattr(operator, name, f"own {name}")


@settings(max_examples=examples(30), deadline=None)
@given(
    st.sampled_from([TrainingOperator, OnlyConfig, Keywords, Ranks, Anything, Context]),
    *[st.sets(st.sampled_from(FREE), max_size=4)] * 4,
)
def test_names_that_raysgds_operators_leave_free_are_the_users(
    base: Any, before: set[str], in_setup: set[str], after: set[str], in_class: set[str]
) -> None:
    class Own(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            set_names(self, before)
            super().__init__(*args, **kwargs)
            set_names(self, after)

        def setup(self, config: dict[str, Any]) -> None:
            model = nn.Linear(64, 10)
            set_names(self, in_setup)
            self.register(models=model, optimizers=sgd(model), criterion=nn.CrossEntropyLoss())
            loader = DataLoader(TensorDataset(torch.zeros(8, 64), torch.zeros(8).long()), 4)
            self.register_data(train_loader=loader, validation_loader=loader, uneven_inputs="join")

    # A property can't be set, and a method that is shadowed is not called: both are the user's affair.
    held = before | in_setup | after
    for name in in_class - held - {"close"}:
        setattr(Own, name, property(lambda self, name=name: f"own {name}"))
    Own.__init__.__signature__ = inspect.signature(base.__init__)  # type: ignore[attr-defined]
    with TorchTrainer(training_operator_cls=Own, use_gpu=False, use_local=True) as trainer:
        assert trainer.train()["num_samples"] == trainer.validate()["num_samples"] == 8
        trainer.load_state_dict(trainer.state_dict())
        operator = trainer.get_local_operator()
        for name in held | (in_class - {"close"}):
            assert getattr(operator, name) == f"own {name}"
        assert operator.world_rank == 0 and operator.global_step == 2
