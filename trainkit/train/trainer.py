"""`TorchTrainer`: train an operator on one worker or many, and keep what came of it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Never, TypeVar

from torch import nn

from trainkit.errors import ConfigError
from trainkit.runtime import scheduling
from trainkit.runtime.failures import without_frames
from trainkit.train.checkpoint.state import whole_state
from trainkit.train.operator import TrainingOperator
from trainkit.train.options import TrainerOptions, by_name, is_count
from trainkit.train.step.epoch import require_tqdm
from trainkit.train.step.metrics import not_finite, reduce_metrics
from trainkit.train.strategies.base import Precision, StrategySpec
from trainkit.train.tune import TrainerTrainable, TrialPlan, TuneStep, make_trainable
from trainkit.train.workers.elastic_worker_group import ElasticWorkerGroup
from trainkit.train.workers.recovery import RETRIES, Call, Effect

T = TypeVar("T")

log = logging.getLogger(__name__)

_NOT_OPTIONS = ("self", "positional", "former")
"""Parameters of the constructor that are no options."""


class TorchTrainer:
    """Trains a `TrainingOperator` on `num_workers` processes; the workers start with it.

    Args:
        training_operator_cls: what to train: a subclass, the class itself.
        initialization_hook: called without arguments in each worker, before anything else.
        config: given to the operator's `setup`. "batch_size" in it is for each worker; the key
            `BATCH_SIZE` is the size over all workers, and is split among them.
        num_workers: processes that train together, data-parallel; all of them start, or none.
        num_cpus_per_worker: CPUs for each; its threads follow it.
        use_gpu: a GPU for each worker; "auto" if this process sees any.
        backend: "gloo", "nccl", or "auto": NCCL for GPUs.
        wrap_ddp: wrap models in `DistributedDataParallel`; False leaves it to the operator.
        timeout_s: seconds that one collective operation may take.
        use_fp16: the same as `precision="fp16"`.
        use_tqdm: show a progress bar, worker 0's.
        add_dist_sampler: share each loader's samples among workers; False leaves it to the operator.
        scheduler_step_freq: when learning rate schedulers step: after each "batch" or "epoch", or
            "manual"; needed if any are registered.
        use_local: run worker 0 in this process.
        strategy: how the model is spread: "auto" (one worker: on its device; several: data-parallel), a
            name such as "ddp" or "fsdp", or a value such as `FSDP(...)` from `trainkit.train.strategies`.
        precision: "32", "bf16" or "fp16" (with loss scaling), by `torch.autocast`.
        gpus_per_worker: GPUs for each worker; default, one where GPUs are used.
        grad_accumulation_steps: batches whose gradients make one optimizer's step.
        max_grad_norm: clip the norm of all gradients to it; None: don't.
        compile: compile models with `torch.compile`.
        channels_last: keep images and convolutions in the memory format that tensor cores like.
        detect_nan: stop with `NonFiniteLossError` at the first loss that is no finite number; this waits for
            the device at each step. Otherwise it is told at the epoch's end.
        min_workers: fewest workers to go on with if some are lost; default, `num_workers`.
        *positional: refused, as arguments are given by name.
        **former: arguments that RaySGD's trainer once had; refused with what to do instead.

    Raises:
        ConfigError: an argument is wrong; all mistakes are named at once.
        InfeasibleError: the machine could never hold the workers.
        GangError: a worker died while it started.
    """

    @without_frames
    def __init__(
        self,
        *positional: Never,
        training_operator_cls: type[TrainingOperator] | None = None,
        initialization_hook: Callable[[], Any] | None = None,
        config: Mapping[str, Any] | None = None,
        num_workers: int = 1,
        num_cpus_per_worker: float = 1,
        use_gpu: bool | Literal["auto"] = "auto",
        backend: str = "auto",
        wrap_ddp: bool = True,
        timeout_s: float = 1800,
        use_fp16: bool = False,
        use_tqdm: bool = False,
        add_dist_sampler: bool = True,
        scheduler_step_freq: str | None = None,
        use_local: bool = False,
        strategy: str | StrategySpec = "auto",
        precision: Precision = "32",
        gpus_per_worker: int | None = None,
        grad_accumulation_steps: int = 1,
        max_grad_norm: float | None = None,
        compile: bool = False,
        channels_last: bool = False,
        detect_nan: bool = False,
        min_workers: int | None = None,
        **former: Never,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS}
        if use_tqdm:
            require_tqdm()
        self._options = TrainerOptions.of(**arguments, **{**by_name(positional, former), **former}).resolved()
        self._workers = ElasticWorkerGroup(self._options)
        workers = weakref.ref(self._workers)
        scheduling.register(
            self,
            amounts=lambda: {} if (held := workers()) is None else held.reserved(),
            close=lambda: None if (held := workers()) is None else held.close(),
        )

    @without_frames
    def train(
        self,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        max_retries: int = RETRIES,
        info: Mapping[str, Any] | None = None,
        dataset: Any = None,
    ) -> Any:
        """Train for one epoch.

        Args:
            num_steps: batches for each worker; more than there are start the data again. None takes one
                pass.
            profile: add `profile`, worker 0's mean seconds of "fwd", "grad" and "apply" in a batch, of
                whatever else `self.timers` measured, and of the epoch.
            reduce_results: one result for all workers; False gives a list of theirs.
            max_retries: how often the epoch is run again, from its start, if workers die or hang; they are
                formed again, and go on from a snapshot of the state. 0 takes none.
            info: passed on to `train_epoch` and, with more, to `train_batch`. `num_epochs` in it is shown by
                the progress bar.
            dataset: a loader, or a function of the configuration that makes one in each worker, to train on
                in this call instead of the registered one.

        Returns:
            A dictionary: `epoch` (1 after the first), `batch_count`, `num_samples`, and for each metric
            its mean weighted by samples and `last_<metric>`.

        Raises:
            GangError: workers died or hung, and there is no retry left; the trainer has ended.
            KeyboardInterrupt: Ctrl-C; workers in other processes are ended in the middle of the epoch, and
                the trainer with them: make a new one, and load a checkpoint.
            Exception: what the operator raised in a worker, with that worker's traceback.
        """
        arguments = (num_steps, dict(info or {}), profile, dataset)
        call = Call("train", arguments, Effect.UNKNOWN, in_step=True)
        return self._epoch(call, max_retries, reduce_results, None if dataset is not None else "train")

    @without_frames
    def validate(
        self,
        num_steps: int | None = None,
        profile: bool = False,
        reduce_results: bool = True,
        info: Mapping[str, Any] | None = None,
        *,
        max_retries: int = RETRIES,
    ) -> Any:
        """Evaluate on the validation data, each sample once, whatever the number of workers.

        Args, result and errors are as of `train`; `num_steps` takes the first batches only. In `profile`
        are "eval_fwd" and "validation". With `max_retries` a snapshot is taken first, unless that of the last
        epoch still holds.
        """
        call = Call("validate", (num_steps, dict(info or {}), profile), Effect.SMALL, in_step=True)
        return self._epoch(call, max_retries, reduce_results, "validation")

    @without_frames
    def update_scheduler(self, metric: float) -> None:
        """Step all schedulers by `metric`, as `ReduceLROnPlateau` wants it."""
        self._workers.run(
            Call("step_schedulers", (metric,), Effect.REPEATABLE, alike=True, name="update_scheduler")
        )

    @without_frames
    def apply_all_workers(self, fn: Callable[[], T]) -> list[T]:
        """Call `fn()` in each worker; returns the results by rank."""
        return self._workers.run(
            Call("apply", (fn,), Effect.UNKNOWN, name="apply_all_workers"), max_retries=0
        )

    @without_frames
    def apply_all_operators(self, fn: Callable[[TrainingOperator], T]) -> list[T]:
        """Call `fn(operator)` in each worker; returns the results by rank."""
        return self._workers.run(
            Call("apply_operator", (fn,), Effect.UNKNOWN, name="apply_all_operators"), max_retries=0
        )

    @without_frames
    def get_model(self, to_cpu: bool = False) -> nn.Module | list[nn.Module]:
        """Return the registered model, or the list of models, unwrapped.

        From workers in other processes it is a copy on the CPU. With `use_local` it is the live one,
        unless `to_cpu` asks for a copy.
        """
        models = self._workers.models(to_cpu=to_cpu)
        return models[0] if len(models) == 1 else models

    def get_local_operator(self) -> TrainingOperator:
        """Return worker 0's operator, if it runs in this process.

        Raises:
            ConfigError: it runs in another one.
        """
        worker = self._workers.local_worker
        if worker is None:
            raise ConfigError(
                "get_local_operator() needs use_local=True; use apply_all_operators() to reach workers in "
                "other processes"
            )
        return worker.operator

    @without_frames
    def state_dict(self) -> dict[str, Any]:
        """Return models, optimizers, schedulers, operator state, the epoch and all workers' generators.

        Tensors are whole and on the CPU, however the strategy spreads them.
        """
        return whole_state(self._workers.snapshot())

    @without_frames
    def load_state_dict(self, state_dict: Mapping[str, Any], blocking: bool = False) -> None:
        """Take over what `state_dict` returned, here or from a trainer with other workers.

        Args:
            state_dict: whole; it is copied.
            blocking: without effect, as all workers have taken it over when this returns.

        Raises:
            CheckpointError: it does not fit what is registered.
        """
        self._workers.run(Call("load_state_dict", (state_dict,), Effect.UNKNOWN, alike=True))

    @without_frames
    def save(self, path: str | Path) -> Path:
        """Write a checkpoint, a folder; one that is there is replaced once the new one is on disk.

        Returns:
            The folder's absolute path.

        Raises:
            CheckpointError: it could not be written; what was there is as it was.
        """
        folder = Path(path).expanduser().absolute()
        self._workers.save(folder)
        return folder

    @without_frames
    def load(self, path: str | Path) -> None:
        """Take over a checkpoint, written on any number of workers.

        Raises:
            CheckpointError: there is none at `path`, it is damaged, or does not fit what is registered.
        """
        folder = Path(path).expanduser().absolute()
        self._workers.run(Call("load", (folder,), Effect.UNKNOWN, alike=True))

    def shutdown(self, force: bool = False) -> None:
        """End the workers; `force` ends them in the middle of what they do."""
        self._workers.close(force=force)

    @property
    def has_validation(self) -> bool:
        """True if the operator registered validation data."""
        return self._workers.has_data("validation")

    @classmethod
    def as_trainable(
        cls,
        *,
        override_tune_step: TuneStep | None = None,
        **kwargs: Any,
    ) -> type[TrainerTrainable]:
        """Return a class for `tune.Tuner`: each trial is a trainer, with resources for all its workers.

        A trial's configuration is merged over `config`. Its step is an epoch of training and, if there is
        validation data, a validation; the result holds the metrics of both. Under a name that both have
        it is validation's; `num_samples`, `batch_count` and `epoch` are training's.

        Args:
            override_tune_step: (trainer, {"iteration": n}) to a result, instead of that step.
            **kwargs: of `TorchTrainer`.

        Raises:
            ConfigError: one of them is wrong.
        """
        options = TrainerOptions.of(**kwargs).resolved()
        return make_trainable(TrialPlan(cls, options, override_tune_step))

    def __trainable__(self) -> type[TrainerTrainable]:
        """Return the trainable for `tune.Tuner(trainer)`; this trainer's workers make room for its trials."""
        made = make_trainable(TrialPlan(type(self), self._options, None))
        self.shutdown()
        return made

    def __enter__(self) -> TorchTrainer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shutdown(force=error is not None)

    def _epoch(self, call: Call, max_retries: int, reduce_results: bool, needs: str | None) -> Any:
        """Run an epoch, for which the data `needs` must have been registered."""
        num_steps = call.args[0]
        if num_steps is not None and not is_count(num_steps):
            raise ConfigError(
                f"{call.method}(num_steps={num_steps!r}): give a whole number, 1 or more, or None for all "
                f"batches"
            )
        if max_retries is False or (max_retries != 0 and not is_count(max_retries)):
            raise ConfigError(f"{call.method}(max_retries={max_retries!r}): give a whole number, 0 or more")
        if needs is not None and self._workers.ended is None and not self._workers.has_data(needs):
            raise ConfigError(f"there is no {needs} data: call register_data({needs}_loader=...) in setup")
        results = self._workers.epoch(call, max_retries)
        reported = {rank: results[rank] for rank in self._workers.reporters}
        if (warning := not_finite(reported)) is not None:
            log.warning("%s: %s; detect_nan=True stops training at the first such loss", call.method, warning)
        results = list(reported.values())
        return reduce_metrics(results) if reduce_results else [dict(result) for result in results]
