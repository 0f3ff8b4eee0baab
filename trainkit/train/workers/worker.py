"""Workers that train an operator, each in its own process, with epochs and state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from trainkit.errors import CheckpointError, ConfigError, TrainingError, message_of
from trainkit.runtime import api as runtime
from trainkit.runtime.refs import ObjectRef
from trainkit.train.checkpoint.files import CheckpointMetadata, read_sharded, write, write_sharded
from trainkit.train.checkpoint.state import (
    MISFITS,
    SmallState,
    WorkerState,
    check_state,
    dealt_progress,
    generator_states,
    joined_state,
    load_generator_states,
    own_of,
    rates,
    seed_generators,
    set_rates,
)
from trainkit.train.data.feed import Feed
from trainkit.train.data.prefetch import pinned
from trainkit.train.distributed.failure_cause import LostOthersError, lost_peer
from trainkit.train.distributed.process_group import join_workers
from trainkit.train.distributed.rendezvous import set_torchrun_variables
from trainkit.train.distributed.tensors import cpu_copy, detached, joined, whole
from trainkit.train.keys import BATCH_SIZE, EPOCH, NUM_STEPS, PROFILE, USE_FP16
from trainkit.train.operator import Predicted, TrainingOperator, operator_of
from trainkit.train.options import TrainerOptions
from trainkit.train.step.context import WorkerContext, taken
from trainkit.train.step.epoch import EpochBatches, ProgressBar, describe
from trainkit.train.step.metrics import EpochMetrics, Meters, to_numbers
from trainkit.train.strategies.base import Place, Strategy
from trainkit.train.strategies.modules import on_cpu
from trainkit.train.strategies.single import SingleStrategy
from trainkit.train.workers.member import GroupMember, WorkerSpec
from trainkit.train.workers.pausing import PausableCall, Paused, PausePage, PausePlan, PauseRule

T = TypeVar("T")

log = logging.getLogger(__name__)


class Worker(GroupMember):
    """Worker that trains an operator."""

    _operator: TrainingOperator

    def __init__(self) -> None:
        super().__init__()
        self._strategy: Strategy = SingleStrategy(Place(devices=(torch.device("cpu"),)))
        self._rank = 0
        self._epoch = self._uncounted_steps = 0
        self._counts: bool | None = None
        self._has_own_loop = self._warned = False
        self._spreads = False
        self._in_driver = False
        self._accumulation = 1
        self._started = False
        self._rule: PauseRule | None = None
        self._running: PausableCall[EpochMetrics] | None = None
        self._meters: Meters | None = None
        self._earlier: Sequence[Mapping[str, Any]] = []
        """Metrics of the part of the epoch that earlier workers have trained."""

    def start(self, spec: WorkerSpec[TrainerOptions]) -> frozenset[str]:
        """Join the other workers and set up the operator; return the result of `data`."""
        options = spec.options
        self._rank = spec.rank
        if spec.seed is not None:
            seed_generators(spec.seed)
        in_trainers_process = options.use_local and spec.rank == 0
        if spec.rendezvous is not None and options.num_workers > 1 and not in_trainers_process:
            set_torchrun_variables(spec.rendezvous.place, spec.rank, options.num_workers, spec.locality)
        if options.initialization_hook is not None:
            options.initialization_hook()
        devices: tuple[torch.device, ...] = (torch.device("cpu"),)
        if options.devices_per_worker:
            devices = tuple(torch.device("cuda", index) for index in range(options.devices_per_worker))
        place = Place(
            devices=devices,
            group=join_workers(
                spec.rendezvous,
                rank=spec.rank,
                world_size=options.num_workers,
                device=devices[0],
                listener=self._listener,
            ),
            step=options.step,
            wrap=options.wrap_ddp,
            split=options.add_dist_sampler,
            batch_size=options.config.get(BATCH_SIZE),
        )
        self._strategy = options.spec.build(place)
        self._spreads = options.spec.spreads
        self._accumulation = options.step.grad_accumulation_steps
        self._in_driver = in_trainers_process or "isolation" not in runtime.promises()
        context = WorkerContext(
            strategy=self._strategy,
            local_rank=spec.locality.rank,
            step=options.step,
            use_tqdm=options.use_tqdm,
            scheduler_step_freq=options.scheduler_step_freq,
        )
        self._operator = operator_of(
            options.training_operator_cls,
            options.worker_config,
            context,
            world_rank=spec.rank,
            local_rank=spec.locality.rank,
            is_distributed=options.num_workers > 1,
            device=devices[0],
            use_gpu=devices[0].type == "cuda",
            use_fp16=options.step.precision == "fp16",
            use_tqdm=options.use_tqdm,
            wrap_ddp=options.wrap_ddp,
            add_dist_sampler=options.add_dist_sampler,
            scheduler_step_freq=options.scheduler_step_freq,
        )
        name = options.training_operator_cls.__name__
        self._metered(spec, name).models.update(self._operator._registered.models)
        if self._strategy.data.rank > 0:
            # If all workers had the same seed, they would drop the same units and use the same augmentations.
            # So only workers that hold one model together have equal seeds. The first worker keeps the seed,
            # so that it has the same random numbers as training without trainkit.
            seed_generators(torch.initial_seed() + self._strategy.data.rank)
        alone = options.num_workers == 1
        if alone or options.wrap_ddp:
            # The code of workers with GPUs runs ahead of the GPUs, and reaches a step at different times, so
            # these workers can't agree on a step.
            agree = alone or devices[0].type == "cpu"
            page = PausePage(spec.page) if spec.page is not None and agree else None
            self._rule = PauseRule(page, spec.rank, options.num_workers)
        self._started = True
        return self.data()

    def progress(self) -> tuple[int, int]:
        """Return the numbers of finished epochs and of training steps."""
        return self._epoch, self._operator.global_step

    def data(self) -> frozenset[str]:
        """Return which kinds of data the operator has registered: "train", "validation" or both."""
        return frozenset(self._feeds())

    def train(
        self,
        num_steps: int | None,
        info: Mapping[str, Any],
        profile: bool = False,
        dataset: Any = None,
        plan: PausePlan | None = None,
    ) -> EpochMetrics | Paused:
        """Train for one epoch, or for `num_steps` batches.

        Return the epoch's metrics, or a `Paused` if it has paused.

        Args:
            num_steps: number of batches; None means one pass over the data.
            info: dictionary that is passed to the operator's `train_epoch`.
            profile: True measures durations.
            dataset: data to train on instead of the registered loader; see `TorchTrainer.train`.
            plan: plan of pauses; None trains without a pause.
        """
        self._abandon()
        if self._rule is not None:
            self._rule.allow(False)
        if dataset is not None or plan is None or self._rule is None or not self._rule.can_pause(plan):
            with nullcontext() if dataset is None else self._instead(dataset):
                return self._train(num_steps, info, profile)
        self._running = PausableCall(partial(self._train, num_steps, info, profile))
        return self.go_on(plan)

    def go_on(self, plan: PausePlan) -> EpochMetrics | Paused:
        """Continue an epoch that has paused."""
        if self._running is None or self._rule is None:
            raise TrainingError("no epoch has paused")
        self._rule.begin(plan, self._operator.global_step)
        result = self._running.advance()
        if result is None:
            return Paused(self._operator.global_step)
        self._running = None
        return result

    def _pause(self, done: int | None) -> None:
        """Pause the epoch if a pause is due.

        Args:
            done: number of finished batches; None if the user's loop has not added the metrics of each batch.
        """
        operator, feed = self._operator, self._operator._train_feed
        if self._running is None or self._rule is None or feed is None or not self._running.is_current():
            return
        # If a user's own loop reads batches in advance, it has not trained on all batches that it has taken.
        counts = done is not None and operator.global_step - self._uncounted_steps == done
        if self._has_own_loop:
            counts = self._own_loop_counts(counts, self._rule, added=done is not None)
        if not counts or done is None:
            return
        # Only steps after which the state and the position are complete are counted. So each worker counts
        # the same steps.
        complete = operator._stepper.is_complete() and feed.is_exact(done)
        if complete and self._rule.after_step(operator.global_step):
            feed.done = done
            self._running.pause()

    def _own_loop_counts(self, counts: bool, rule: PauseRule, *, added: bool) -> bool:
        """Return True if the loop counts its batches on every worker; the loop's first batch decides.

        Args:
            counts: True if this worker's loop has counted all batches, and added their metrics.
            rule: the rule for pauses.
            added: True if the loop has added the metrics of all batches.

        Raises:
            TrainingError: the loop of several workers counted its first batch, and then missed a batch.
        """
        if self._counts is None:
            group = self._strategy.group
            self._counts = all(group.gather_integers(int(counts)))
            if not self._counts and self._rank == 0 and not self._warned and (added or rule.due_step < inf):
                self._warned = True
                log.warning(
                    "train_epoch: no checkpoint is written within the epoch, and a stopped run begins the "
                    "epoch again. After each batch, on every worker, increase self.global_step by 1 and call "
                    "iterator.add(metrics)"
                )
        if self._counts and not counts and self._strategy.group.world_size > 1:
            raise TrainingError(
                "train_epoch missed a batch, so that the workers can't stop at the same step: increase "
                "self.global_step by 1 and call iterator.add(metrics) after each batch, on every worker, or "
                "call iterator.add for no batch"
            )
        return self._counts and counts

    def _abandon(self) -> None:
        """End an epoch that has paused and will not continue."""
        running, self._running = self._running, None
        if running is not None:
            running.abandon()

    def _train(self, num_steps: int | None, info: Mapping[str, Any], profile: bool) -> EpochMetrics:
        operator = self._operator
        details = {**info, "epoch_idx": self._epoch, NUM_STEPS: num_steps, USE_FP16: operator.use_fp16}
        feed = operator._train_feed
        self._uncounted_steps = operator.global_step - (0 if feed is None else feed.begun)
        named = {"num_steps": num_steps, "epoch_idx": self._epoch}
        own = getattr(operator.train_epoch, "__func__", None) is not TrainingOperator.train_epoch
        self._has_own_loop, self._counts = own, None
        with self._epoch_batches(feed, "train", num_steps, info, profile) as batches:
            more = taken(operator.train_epoch, named) if own else named
            result = operator.train_epoch(batches, details, **more)
        if own:
            operator._stepper.check()
        if operator.scheduler_step_freq == "epoch":
            self.step_schedulers()
        operator._trainkit_epochs = self._epoch = self._epoch + 1
        return self._reported(result, "train_epoch", {EPOCH: self._epoch})

    def validate(
        self, num_steps: int | None, info: Mapping[str, Any], profile: bool = False
    ) -> Mapping[str, Any]:
        """Evaluate on the validation data, or on its first `num_steps` batches."""
        operator = self._operator
        average = operator._stepper.average
        with (
            self._epoch_batches(operator._validation_feed, "validation", num_steps, info, profile) as batches,
            nullcontext() if average is None else average.in_use(),
            self._strategy.evaluation(),
        ):
            result = operator.validate(batches, {**info, "epoch_idx": self._epoch})
        return self._reported(result, "validate", {})

    def predict(self, dataset: Any, num_steps: int | None) -> list[Predicted]:
        """Return `Predicted` for each loader, with this worker's predictions copied to the CPU."""
        operator: Any = self._operator  # `TorchTrainer.predict` has checked the operator's class.
        with self._strategy.evaluation():
            predicted: list[Predicted] = cpu_copy(operator.predict(dataset, num_steps))
        return predicted

    def step_schedulers(self, *metric: float) -> None:
        """Step all schedulers, with `metric` as argument if it is given."""
        for scheduler in self._operator._registered.schedulers:
            scheduler.step(*metric)

    def apply_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call `function` with this worker and `arguments`."""
        return function(self, *arguments)

    def apply_operator(self, function: Callable[[TrainingOperator], T]) -> T:
        """Call `function` with this worker's operator."""
        return function(self._operator)

    @property
    def operator(self) -> TrainingOperator:
        """The worker's operator; only available if the worker is in the trainer's own process."""
        return self._operator

    def models(self, to_cpu: bool) -> list[nn.Module]:
        """Return the user's own modules, or copies of them on the CPU if `to_cpu` is True."""
        live = [self._strategy.unwrap(model) for model in self._operator._registered.models]
        return [on_cpu(model) for model in live] if to_cpu else live

    def skeletons(self) -> list[nn.Module]:
        """Return copies of the user's own modules whose parameters have no values."""
        return [self._strategy.skeleton(model) for model in self._operator._registered.models]

    def model_states(self, averaged: bool) -> list[dict[str, Any]]:
        """Return this worker's part of the models' states; with averaged weights if `averaged` is True."""
        registered, average = self._operator._registered, self._operator._stepper.average
        states: list[dict[str, Any]] = detached(self._strategy.state(registered.models, ())["models"])
        if averaged:
            if average is None:
                raise ConfigError("get_model(ema=True) needs averages: pass ema_decay=0.999 to TorchTrainer")
            for state, averages in zip(states, average.models(), strict=True):
                state.update(detached(averages))
        return states

    def snapshot(self) -> WorkerState:
        """Return this worker's part of a snapshot."""
        # A copy is only needed if the worker is in the trainer's process. A snapshot from another process is
        # copied when it is sent.
        return self._snapshot(copy=self._in_driver)

    def stored_snapshot(self) -> ObjectRef[WorkerState]:
        """Copy this worker's part of a snapshot into the object store; return a reference to the copy."""
        return runtime.put(self._snapshot(copy=False))

    def _snapshot(self, *, copy: bool) -> WorkerState:
        holds = self._spreads or self._rank == 0
        return WorkerState(detached(self._shared_state(), copy=copy) if holds else None, self.own_state())

    def own_state(self) -> dict[str, Any]:
        """Return this worker's own state: generators, position in the data, and order of gradient sums."""
        return {
            "data_rank": self._strategy.data.rank,
            "rng": generator_states(),
            "data": {name: feed.state() for name, feed in self._feeds().items()},
            "order": self._strategy.order(),
            **self._progress(),
        }

    def _progress(self) -> dict[str, Any]:
        """Return the metrics of the finished part of an epoch; {} between two epochs."""
        if self._meters is None and not self._earlier:
            return {}
        return {"progress": (self._meters or Meters.of(self._earlier)).state()}

    def small_state(self) -> SmallState:
        """Return the part of the state that a validation may change."""
        operator, registered = self._operator, self._operator._registered
        schedulers = [scheduler.state_dict() for scheduler in registered.schedulers]
        held = detached([operator.state_dict() or {}, schedulers, rates(registered.optimizers)])
        return SmallState(held[0], self.own_state(), *held[1:])

    def restore(self, states: Sequence[WorkerState] | None, small: Sequence[SmallState] | None) -> None:
        """Load a snapshot that this worker group or an earlier worker group has taken.

        Args:
            states: parts of the snapshot of all workers, by rank; None keeps the state after setup.
            small: part of the state that may have changed after the snapshot, of all workers, by rank; None
                if nothing has changed.
        """
        since: dict[str, Any] = {}
        if small is not None:
            since["operator"] = joined([state.operator for state in small])
            since["workers"] = [state.own for state in small]
            since["schedulers"] = small[0].schedulers
        # The state is copied, because in the trainer's own process the loaded tensors would share memory with
        # the snapshot.
        since = detached(since)
        if states is not None:
            self._take_over({**detached(joined_state(states)), **since}, "the snapshot")
        elif since:
            for scheduler, held in zip(
                self._operator._registered.schedulers, since["schedulers"], strict=True
            ):
                scheduler.load_state_dict(held)
            self._operator.load_state_dict(whole(since["operator"]))
            self._take_over_own(since["workers"])
        if small is not None:
            set_rates(self._operator._registered.optimizers, detached(small[0].rates))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the whole state of a trainer."""
        # The state is copied, because optimizers keep the given tensors, which belong to the caller.
        self._take_over(cpu_copy(state), "the state")

    def save(self, path: Path, workers: Sequence[Mapping[str, Any]]) -> None:
        """Write a checkpoint.

        This method is called on all workers if the strategy shards the state, else only on the first worker.

        Args:
            path: folder of the checkpoint.
            workers: results of `own_state` on all workers, by rank.
        """
        world_size = self._strategy.group.world_size
        metadata = CheckpointMetadata(self._epoch, self._operator.global_step, world_size)
        state = {**self._shared_state(), "workers": list(workers)}
        if self._spreads:
            write_sharded(path, state, metadata, self._strategy.group)
        else:
            write(path, state, metadata)

    def load(self, path: Path) -> None:
        """Load a checkpoint."""
        state = read_sharded(path, self._strategy.group)
        self._take_over(state, f"the checkpoint {path}")

    def stop(self) -> None:
        """Close the operator if it is not closed yet, and leave the other workers."""
        started, self._started = self._started, False
        try:
            self._abandon()
            if started:
                type(self._operator).close(self._operator)
        finally:
            self.leave()

    def leave(self) -> None:
        """Leave the other workers, without closing the operator."""
        self._strategy.leave()
        super().leave()

    @contextmanager
    def _epoch_batches(
        self, feed: Feed | None, what: str, num_steps: int | None, info: Mapping[str, Any], profile: bool
    ) -> Iterator[EpochBatches]:
        """Yield the batches of an epoch and measure times.

        Errors about lost workers get the number of the step.
        """
        timers, group = self._operator.timers, self._strategy.group
        timers.switch(profile)
        if feed is None:
            raise ConfigError(f"there is no {what} data: call register_data({what}_loader=...) in setup")
        bar = None
        if self._operator.use_tqdm and self._rank == 0:
            text = describe(what, self._epoch + (what == "train"), info)
            bar = ProgressBar(total=num_steps or feed.steps(), description=text, initial=feed.begun)
        try:
            with timers.record("train_epoch" if what == "train" else what):
                timed = None if self._meter is None else self._meter.timed
                first, batches = feed.begun, feed.batches(self._epoch, num_steps, timed)
                if what == "train":
                    self._meters, self._earlier = Meters.of(self._earlier), []
                    more: dict[str, Any] = {"first": first, "meters": self._meters, "pause": self._pause}
                    yield EpochBatches(self._waited(batches), bar, total=lambda: feed.total, **more)
                else:
                    yield EpochBatches(batches, bar)
            group.end_sending()
        except Exception as error:
            if not lost_peer(error):
                raise
            raise LostOthersError(feed.taken, message_of(error)) from error
        finally:
            feed.end_epoch()
            if what == "train":
                self._meters = None
            if bar is not None:
                bar.close()

    def _waited(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an epoch; from the first batch on, let a signal wait for the end of a step."""
        for batch in batches:
            if self._running is not None and self._rule is not None and not self._has_own_loop:
                self._rule.allow(True)
            yield batch

    @contextmanager
    def _instead(self, dataset: Any) -> Iterator[None]:
        """Let the operator train on `dataset` inside the block."""
        operator = self._operator
        registered = operator._train_feed
        if self._earlier or (registered is not None and registered.begun):
            log.warning(
                "train(dataset=...) begins a new epoch: the rest of the interrupted epoch is left out"
            )
            self._earlier = []
            if registered is not None:
                registered.start_again()
        loader = dataset(operator.config) if callable(dataset) else dataset
        more: dict[str, Any] = {}
        if registered is not None:
            more = {"uneven": registered.uneven, "sharded": registered.sharded}
        operator._train_feed = self._strategy.split_data(
            pinned(loader, operator.device), training=True, **more
        )
        try:
            yield
        finally:
            operator._train_feed = registered

    def _reported(self, result: Any, method: str, more: Mapping[str, Any]) -> EpochMetrics:
        """Return an operator's metrics with the entries of `more` and, if profiling, measured durations."""
        if not isinstance(result, Mapping):
            raise ConfigError(f"{method} must return a dictionary of metrics, not {result!r}")
        metrics, timers = to_numbers(result), self._operator.timers
        profile = {PROFILE: timers.stats()} if timers.enabled else {}
        origins = metrics.origins if isinstance(metrics, EpochMetrics) else {}
        return EpochMetrics({**more, **metrics, **profile}, origins)

    def _shared_state(self) -> dict[str, Any]:
        operator, average = self._operator, self._operator._stepper.average
        return {
            "epoch": self._epoch,
            "global_step": operator.global_step,
            **self._strategy.state(operator._registered.models, operator._registered.optimizers),
            "schedulers": [scheduler.state_dict() for scheduler in operator._registered.schedulers],
            "scaler": operator._stepper.state(),
            **({} if average is None else {"ema": average.state()}),
            "operator": operator.state_dict() or {},
        }

    def _feeds(self) -> dict[str, Feed]:
        feeds = {"train": self._operator._train_feed, "validation": self._operator._validation_feed}
        return {name: feed for name, feed in feeds.items() if feed is not None}

    def _load_registered(self, state: Mapping[str, Any]) -> None:
        registered = self._operator._registered
        self._strategy.load_state(registered.models, registered.optimizers, state)
        for scheduler, saved in zip(registered.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        stepper = self._operator._stepper
        stepper.load_state(state.get("scaler") or {})
        if (average := stepper.average) is not None:
            average.load_state(state.get("ema"))

    def _take_over(self, state: Mapping[str, Any], what: str) -> None:
        self._abandon()
        operator, registered = self._operator, self._operator._registered
        counts = {field.name: len(getattr(registered, field.name)) for field in fields(registered)}
        check_state(state, counts, what)
        before = joined_state([WorkerState(detached(self._shared_state()), self.own_state())])
        try:
            try:
                self._load_registered(state)
            except MISFITS as error:
                raise CheckpointError(f"{what} does not fit the registered objects: {error}") from error
            operator.load_state_dict(whole(state["operator"]))
        except BaseException:
            self._load_registered(before)
            raise
        operator.global_step = state["global_step"]
        operator._trainkit_epochs = self._epoch = state["epoch"]
        self._take_over_own(state.get("workers") or [])

    def _take_over_own(self, workers: Sequence[Mapping[str, Any]]) -> None:
        """Load the own state of the earlier worker that this worker continues, if such a worker existed."""
        if len(workers) == self._strategy.group.world_size:
            self._strategy.take_order(workers[self._rank].get("order", []))
        self._earlier = dealt_progress(workers, self._strategy.data.rank, self._strategy.data.world_size)
        own = own_of(workers, rank=self._rank, data_rank=self._strategy.data.rank)
        if own is not None:
            load_generator_states(own["rng"])
        for name, feed in self._feeds().items():
            if own is not None and name in own["data"]:
                feed.load_state(own["data"][name])
            elif workers and "position" in (first := workers[0]["data"].get(name, {})):
                # A worker that continues no earlier worker takes its share of the samples from the same
                # position.
                feed.load_state({"position": {**first["position"], "generators": {}}})
