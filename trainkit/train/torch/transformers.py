"""Transformers' own `Trainer` in a training function; served at `trainkit.train.huggingface.transformers`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset

from trainkit.errors import ConfigError
from trainkit.train.torch.context import report
from trainkit.train.torch.shards import DatasetShard
from trainkit.tune.core.checkpoint import Checkpoint
from trainkit.tune.core.checks import load
from trainkit.tune.trial.context import get_context

_Callback: Any = load(
    "transformers.trainer_callback", "Transformers trainers", "transformers"
).TrainerCallback


class TransformersReportCallback(_Callback):  # type: ignore[misc]
    """Reports what the Trainer has logged, with a checkpoint, each time that the Trainer saves one.

    The metrics are the latest of each name. The checkpoint has Transformers' own in its folder `checkpoint`;
    go on from it by `trainer.train(resume_from_checkpoint=...)`. What is to be reported has to be logged
    before the save: let `eval_strategy` and `save_strategy` be the same.
    """

    CHECKPOINT_NAME = "checkpoint"

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Report; called by Transformers on all workers."""
        metrics: dict[str, Any] = {}
        for entry in state.log_history:
            metrics.update(entry)
        if dist.is_initialized():
            dist.barrier()  # Each worker has written files of its own by then.
        source = os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
        if get_context().get_local_rank() != 0 or not os.path.isdir(source):
            report(metrics)
            return
        with tempfile.TemporaryDirectory(prefix="trainkit_checkpoint_") as folder:
            os.symlink(source, os.path.join(folder, self.CHECKPOINT_NAME))  # report() copies what it leads to
            report(metrics, checkpoint=Checkpoint.from_directory(folder))


class _Ready(IterableDataset[Any]):
    """Batches that are this worker's already."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def prepare_trainer(trainer: Any) -> Any:
    """Let a Transformers `Trainer` take batches of `get_dataset_shard(...).iter_torch_batches(...)`.

    They are its `train_dataset`, its `eval_dataset`, or one of several of these. Data sets of other kinds are
    shared among the workers by Transformers, as ever. As the number of batches is not known, training on them
    needs `TrainingArguments(max_steps=...)`.

    Args:
        trainer: changed in place, and returned.

    Raises:
        ConfigError: a data set is a shard itself, or can be passed over only once.
    """
    evaluated = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    for data in (trainer.train_dataset, *evaluated.values()):
        if isinstance(data, DatasetShard | Iterator):
            raise ConfigError(
                f"prepare_trainer: a data set is a {type(data).__name__}: give "
                "get_dataset_shard(...).iter_torch_batches(batch_size=...)"
            )
    plain: Any = type(trainer)

    class Prepared(plain):  # type: ignore[misc]
        """The trainer's class, with loaders of ready batches."""

        def get_train_dataloader(self) -> Any:
            ready = _loader(self.train_dataset)
            return super().get_train_dataloader() if ready is None else ready

        def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
            data = self.eval_dataset if eval_dataset is None else eval_dataset
            chosen = self.eval_dataset[data] if isinstance(data, str) else data
            ready = _loader(chosen)
            return super().get_eval_dataloader(eval_dataset) if ready is None else ready

    trainer.__class__ = Prepared
    return trainer


def _loader(data: Any) -> DataLoader[Any] | None:
    """Return a loader of ready batches; None: they are not ready."""
    if not isinstance(data, Iterable) or isinstance(data, Dataset) or hasattr(data, "__getitem__"):
        return None
    return DataLoader(_Ready(data), batch_size=1, collate_fn=lambda batches: batches[0])
