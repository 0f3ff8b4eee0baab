"""Arguments of RaySGD's trainer that have become others: taken as what they mean now, or refused with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError

_CREATORS = (
    "make an operator of it, OperatorCls = TrainingOperator.from_creators(model_creator, optimizer_creator, "
    "...), or write a subclass with a setup(); then pass training_operator_cls=OperatorCls"
)
_REMOVED: Mapping[str, str] = {
    "model_creator": _CREATORS,
    "data_creator": _CREATORS,
    "optimizer_creator": _CREATORS,
    "loss_creator": _CREATORS,
    "scheduler_creator": _CREATORS,
    "serialize_data_creation": "it is an argument of TrainingOperator.from_creators now",
    "num_replicas": "pass num_workers",
    "batch_size": 'put it into config: "batch_size" is for each worker, the key BATCH_SIZE for all together',
    "data_loader_args": "give them to the DataLoader that you register",
    "apex_args": "Apex is not used: pass precision='fp16' or 'bf16'",
}
_CREATOR_ORDER = ("model_creator", "data_creator", "optimizer_creator", "loss_creator")
_RAY_TRAIN = frozenset(
    "train_loop_per_worker train_loop_config torch_config scaling_config run_config datasets dataset_config "
    "metadata resume_from_checkpoint".split()
)


def by_name(positional: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that were given by position, by the names they have or had.

    Args:
        positional: one function: the training loop of today's Ray Train; several: the creators of RaySGD.
        named: the arguments given by name.

    Raises:
        ConfigError: the operator was given by position.
    """
    if len(positional) == 1 and isinstance(positional[0], type):
        raise ConfigError(
            f"TorchTrainer takes its arguments by name: pass training_operator_cls={positional[0].__name__}"
        )
    if len(positional) == 1 and not _REMOVED.keys() & named.keys():
        return {"train_loop_per_worker": positional[0]}
    return dict(zip(_CREATOR_ORDER, positional, strict=False))


def renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` of a trainer with `use_fp16` as the `precision` that it means.

    Raises:
        ConfigError: some were arguments of RaySGD's trainer once, and the message says what to do for each;
            or they are those of Ray Train's trainer.
    """
    if foreign := [name for name in arguments if name in _RAY_TRAIN]:
        raise ConfigError(
            f"TorchTrainer takes no {', '.join(foreign)}: Ray Train's trainers of a function are not there "
            f"yet; write a TrainingOperator, and pass training_operator_cls=, num_workers= and use_gpu="
        )
    fixes = {
        fix: [name for name in arguments if _REMOVED.get(name) == fix]
        for fix in dict.fromkeys(_REMOVED[name] for name in arguments if name in _REMOVED)
    }
    if fixes:
        told = "; ".join(f"{', '.join(names)}: {fix}" for fix, names in fixes.items())
        raise ConfigError(f"TorchTrainer no longer takes {told}")
    kept = dict(arguments)
    use_fp16 = kept.pop("use_fp16", False)
    if not isinstance(use_fp16, bool):
        raise ConfigError(f"TorchTrainer: use_fp16={use_fp16!r}: give True or False; Apex is not used")
    if use_fp16:
        if kept.get("precision", "32") not in ("32", "fp16"):
            raise ConfigError(
                f"TorchTrainer: use_fp16=True is precision='fp16', but precision={kept['precision']!r} was "
                f"given too: leave one of them out"
            )
        kept["precision"] = "fp16"
    return kept
