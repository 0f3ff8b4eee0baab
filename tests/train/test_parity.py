"""RaySGD's trainer and operator, as they were in Ray 1.8.0: names, arguments and defaults."""

from __future__ import annotations

import importlib
import inspect
import typing
from typing import Any

import pytest
import torch

import trainkit
from tests.conftest import run_python
from tests.train.operators import Digits
from trainkit.errors import ConfigError
from trainkit.train import TorchTrainer, TrainingOperator

# What could be given, in its order, and what was taken without it.
TRAINER = {
    "__init__": "*, training_operator_cls, initialization_hook=None, config=None, num_workers=1, "
    "num_cpus_per_worker=1, use_gpu='auto', backend='auto', wrap_ddp=True, timeout_s=1800, use_fp16=False, "
    "use_tqdm=False, add_dist_sampler=True, scheduler_step_freq=None, use_local=False",
    "train": "num_steps=None, profile=False, reduce_results=True, max_retries=3, info=None, dataset=None",
    "validate": "num_steps=None, profile=False, reduce_results=True, info=None",
    "update_scheduler": "metric",
    "apply_all_workers": "fn",
    "apply_all_operators": "fn",
    "get_model": "to_cpu=False",
    "get_local_operator": "",
    "state_dict": "",
    "load_state_dict": "state_dict, blocking=False",
    "save": "path",
    "load": "path",
    "shutdown": "force=False",
    "as_trainable": "*, override_tune_step=None",
}
OPERATOR = {
    "setup": "config",
    "register": "*, models, optimizers, criterion=None, schedulers=None, ddp_args=None, apex_args=None",
    "register_data": "*, train_loader=None, validation_loader=None",
    "train_epoch": "iterator, info, num_steps=None, epoch_idx=0",
    "train_batch": "batch, batch_info",
    "validate": "val_iterator, info",
    "validate_batch": "batch, batch_info",
    "state_dict": "",
    "load_state_dict": "state_dict",
    "from_ptl": "lightning_module_cls, train_dataloader=None, val_dataloader=None",
    "from_creators": "model_creator, optimizer_creator, data_creator=None, loss_creator=None, "
    "scheduler_creator=None, serialize_data_creation=True",
}
PROPERTIES = (
    *("config", "device", "device_ids", "local_rank", "scheduler_step_freq", "use_fp16", "use_gpu"),
    *("use_tqdm", "world_rank"),
)
ROWS = [(TorchTrainer, *row) for row in TRAINER.items()]
ROWS += [(TrainingOperator, *row) for row in OPERATOR.items()]


@pytest.mark.parametrize(("cls", "method", "known"), ROWS, ids=lambda value: getattr(value, "__name__", None))
def test_arguments_and_defaults(cls: type, method: str, known: str) -> None:
    # Of several forms, the operator's.
    form = next(iter(reversed(typing.get_overloads(getattr(cls, method)))), getattr(cls, method))
    ours = dict(inspect.signature(form).parameters)
    ours.pop("self", None)
    theirs = inspect.signature(eval(f"lambda {known}: None")).parameters  # noqa: S307 - a text of this file
    by_position = [name for name, given in theirs.items() if given.kind == given.POSITIONAL_OR_KEYWORD]
    assert list(ours)[: len(by_position)] == by_position
    assert {name: ours.pop(name).default for name in theirs} == {
        name: given.default for name, given in theirs.items()
    }
    # What we added is optional.
    assert all(
        given.default is not given.empty or given.kind in (given.VAR_KEYWORD, given.VAR_POSITIONAL)
        for given in ours.values()
    )


def test_an_operators_properties() -> None:
    operator = Digits({"samples": 10})
    assert {name: getattr(operator, name) for name in PROPERTIES} == {
        "config": {"samples": 10},
        "device": torch.device("cpu"),
        "device_ids": None,
        "local_rank": 0,
        "scheduler_step_freq": None,
        "use_fp16": False,
        "use_gpu": False,
        "use_tqdm": False,
        "world_rank": 0,
    }


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("trainkit.util.sgd", "TorchTrainer"),
        ("trainkit.util.sgd.torch", "TorchTrainer TrainingOperator BaseTorchTrainable CreatorOperator"),
        (
            "trainkit.util.sgd.utils",
            "BATCH_SIZE NUM_SAMPLES BATCH_COUNT TimerStat TimerCollection AverageMeter "
            "AverageMeterCollection override",
        ),
        (
            "trainkit.util.sgd.torch.constants",
            "NUM_STEPS USE_FP16 SCHEDULER_STEP SCHEDULER_STEP_BATCH SCHEDULER_STEP_EPOCH "
            "SCHEDULER_STEP_MANUAL VALID_SCHEDULER_STEP",
        ),
    ],
)
def test_row_1_40_imports_are_where_scripts_look(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert all(hasattr(found, name) for name in names.split())
    assert found.__dict__.get("TorchTrainer", TorchTrainer) is TorchTrainer
    assert trainkit.util.sgd is importlib.import_module("trainkit.util.sgd")


def test_row_1_40_the_package_alone_has_its_torch() -> None:
    program = "import trainkit.util.sgd as sgd; print(sgd.torch.TrainingOperator.__name__)"
    found = run_python("-c", program)
    assert found.stdout == "TrainingOperator\n", found.stderr


def test_row_1_40_meters_need_no_torch_and_take_any_name() -> None:
    program = """
import sys
from trainkit.util.sgd.utils import AverageMeterCollection
meters = AverageMeterCollection()
meters.update({1: 2.0}, n=1)
meters.update({1: 5.0}, n=2)
assert "torch" not in sys.modules
print(meters.summary())
try:
    meters.update({"loss": "much"})
except TypeError:
    print("refused")
"""
    found = run_python("-c", program)
    means = {"batch_count": 2, "num_samples": 3, "1": 4.0, "last_1": 5.0}
    assert found.stdout.splitlines() == [str(means), "refused"], found.stderr


# -- arguments that have become others ---------------------------------------------------------


@pytest.mark.parametrize(
    ("positional", "named", "text"),
    [
        (
            (),
            dict.fromkeys(("model_creator", "data_creator", "optimizer_creator", "loss_creator"), print),
            "no argument model_creator, data_creator, optimizer_creator, loss_creator: .*make an operator",
        ),
        (
            (print,),
            {"data_creator": print},
            "must be a training function: .*make an operator from the functions",
        ),
        (
            (),
            {"training_operator_cls": Digits, "scaling_config": None},
            "no argument scaling_config: this needs a training function as in Ray Train",
        ),
        ((print,), {"training_operator_cls": Digits}, "both a training function and training_operator_cls="),
        ((Digits,), {}, "pass an operator as training_operator_cls="),
        ((), {}, "needs training_operator_cls=, a subclass of TrainingOperator"),
        ((), {"train_loop_per_worker": None}, "train_loop_per_worker must be a function, not None"),
    ],
)
def test_calls_of_other_trainers_say_what_to_write(
    positional: tuple[Any, ...], named: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        TorchTrainer(*positional, **named)


def test_use_fp16_is_a_precision() -> None:
    config = {"samples": 40, "dtype": torch.float32}
    with TorchTrainer(
        training_operator_cls=Digits, config=config, use_gpu=False, use_local=True, use_fp16=True
    ) as trainer:
        assert trainer.get_local_operator().use_fp16
        assert torch.isfinite(torch.tensor(trainer.train()["train_loss"]))
