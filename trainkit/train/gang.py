"""The workers that train together: started all or none, called all at once, ended by the first failure.

TorchTrainer ──call──▶ Gang ──▶ worker 0        an actor or, with use_local, in this process
                            ──▶ worker 1, ...   actors, one a bundle of a placement group
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainkit.errors import ActorDiedError, GangError, GetTimeoutError, TaskError
from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.runtime import preload
from trainkit.runtime.placement_group import PlacementGroup
from trainkit.train import meeting
from trainkit.train.answers import GRACE_S, Answers
from trainkit.train.meeting import Locality
from trainkit.train.modules import filled
from trainkit.train.options import TrainerOptions
from trainkit.train.process_group import Rendezvous
from trainkit.train.spread import joined, whole
from trainkit.train.state import WorkerState
from trainkit.train.worker import Worker, WorkerSpec

preload.register("trainkit.train.worker")


class Gang:
    """The workers of one trainer.

    Args:
        options: resolved.

    Raises:
        InfeasibleError: the machine could never hold them.
        GangError: a worker died while it started.
    """

    def __init__(self, options: TrainerOptions) -> None:
        self.world_size = options.num_workers
        self._spec = options.spec
        self.ended: str | None = None
        self._data: frozenset[str] = frozenset()
        self._local = Worker() if options.use_local else None
        self._handles: dict[int, Any] = {}
        self._held = contextlib.ExitStack()
        # A trainer that is dropped without a shutdown must not keep its CPUs from the next one.
        weakref.finalize(self, self._held.close).atexit = False
        try:
            self._start(options)
        except BaseException:
            self.close(force=True)
            raise

    @property
    def local_worker(self) -> Worker | None:
        """Worker 0, if it is in this process."""
        return self._local

    def has_data(self, what: str) -> bool:
        """Whether the operator registered "train" or "validation" data, in `setup` or since."""
        if what not in self._data and self.ended is None:
            self._data = self.call_first("data")
        return what in self._data

    def call(self, method: str, *args: Any, in_step: bool = True, alike: bool = False) -> list[Any]:
        """Call a method on all workers and return their results, by rank.

        Args:
            method: of `Worker`.
            *args: the same for all.
            in_step: the workers meet in it, so one that fails ends the others at once. Otherwise they
                go on if all of them have answered.
            alike: it changes what must be the same on all workers: those that failed may go on only if
                all did.

        Raises:
            GangError: a worker's process died, or the workers lost each other.
            Exception: what a worker raised, with its traceback.
        """
        every = dict.fromkeys(range(self.world_size), args)
        return self._call(method, every, in_step=in_step, alike=alike)

    def call_first(self, method: str, *args: Any) -> Any:
        """The same on worker 0 alone."""
        return self._call(method, {0: args}, in_step=False)[0]

    @property
    def reporters(self) -> range:
        """Ranks whose metrics count: one for each copy of the model."""
        return range(self._spec.reporter, self.world_size, self._spec.model_ways)

    def snapshot(self) -> list[WorkerState]:
        """All workers' shares of the state, by rank."""
        return self.call("snapshot", in_step=False)

    def save(self, folder: Path) -> None:
        """Write a checkpoint; by all workers if no single one holds the state."""
        workers = self.call("own_state", in_step=False)
        if self._spec.spreads:
            self.call("save", folder, workers, in_step=False)
        else:
            self.call_first("save", folder, workers)

    def models(self, *, to_cpu: bool) -> list[nn.Module]:
        """The user's own modules: copies on the CPU, or worker 0's if it is in this process."""
        if not self._spec.spreads:
            whole_models: list[nn.Module] = self.call_first("models", to_cpu or self._local is None)
            return whole_models
        states = whole(joined(self.call("model_states", in_step=False)))
        return [filled(*pair) for pair in zip(self.call_first("skeletons"), states, strict=True)]

    def close(self, *, force: bool = False) -> None:
        """End all workers and give back what they held; `force` without a word to them."""
        if self.ended is None and not force:
            try:
                self._part()
            finally:
                self._end("it was shut down")
        else:
            self._end("it was shut down")

    # -- starting ------------------------------------------------------------------------------

    def _start(self, options: TrainerOptions) -> None:
        remote_ranks = range(1 if self._local else 0, self.world_size)
        if remote_ranks:
            group, bundles = self._reserve(options)
            actor = runtime.remote(Worker)
            for rank in remote_ranks:
                self._handles[rank] = actor.options(
                    label=f"train-worker-{rank}",
                    num_cpus=options.num_cpus_per_worker,
                    num_gpus=options.devices_per_worker,
                    placement_group=group,
                    placement_group_bundle_index=bundles[rank],
                ).remote()
        if self._local is not None:
            # A dropped trainer must not leave this process in its group either: the next one could not join.
            self._held.callback(self._local.stop)
        # Sharding needs a group, even of one.
        meets = self.world_size > 1 or self._spec.spreads
        rendezvous, localities = self._meeting(options) if meets else (None, [Locality()])
        # Drawn from this process's generator: a seeded script, or trial, has workers that repeat themselves.
        # A single worker in this process goes on with the generator as it is.
        seed = int(torch.randint(2**62, ())) if remote_ranks else None
        specs = {
            rank: (
                WorkerSpec(
                    options=options,
                    rank=rank,
                    locality=localities[rank],
                    rendezvous=rendezvous,
                    seed=seed,
                ),
            )
            for rank in range(self.world_size)
        }
        self._data = self._call("start", specs, in_step=True)[0]

    def _reserve(self, options: TrainerOptions) -> tuple[PlacementGroup, Sequence[int]]:
        """The group to start in, and each worker's bundle: within a trial, the trial's own."""
        trial = runtime.get_current_placement_group()
        if trial is not None:
            bundles = bundles_of_trial(trial.bundle_specs, options.bundle, self.world_size)
            if bundles is not None:
                return trial, bundles
        group = runtime.placement_group([options.bundle] * self.world_size)
        self._held.callback(_give_back, group)
        group.wait()
        return group, range(self.world_size)

    def _meeting(self, options: TrainerOptions) -> tuple[Rendezvous, list[Locality]]:
        """Where the workers meet, and each one's number among those of its machine."""
        place, localities = meeting.arrange(
            self.world_size, self._held, lambda arguments: self._call("home", arguments, in_step=False)
        )
        return Rendezvous(place, options.backend, options.timeout_s), localities

    # -- calling -------------------------------------------------------------------------------

    def _call(self, method: str, args: dict[int, Any], *, in_step: bool, alike: bool = False) -> list[Any]:
        if self.ended is not None:
            raise GangError(
                f"these workers have ended ({self.ended}): make a new TorchTrainer, and load() a checkpoint "
                f"into it"
            )
        calls = {
            getattr(handle, method).remote(*args[rank]): rank
            for rank, handle in self._handles.items()
            if rank in args
        }
        at_once = in_step and self.world_size > 1
        answers = Answers(calls, world_size=self.world_size, at_once=at_once, end_workers=self._kill)
        try:
            if self._local is not None and 0 in args:
                answers.collect_beside(lambda: getattr(self._local, method)(*args[0]))
            else:
                answers.collect()
        except BaseException as error:
            if self._handles:
                # They would go on with what nobody waits for any more, and let the next call wait for it.
                self._end(f"{method}() was interrupted by {type(error).__name__}")
            raise
        if answers.failures:
            apart = alike and len(answers.failures) < len(args)
            if answers.late or at_once or apart or answers.deaths():
                self._end(f"worker {answers.cause()[0]} failed")
            raise answers.verdict(ended=self.ended is not None)
        return [answers.results[rank] for rank in sorted(args)]

    # -- ending --------------------------------------------------------------------------------

    def _part(self) -> None:
        if self._local is not None:
            self._local.stop()
        if not self._handles or not runtime.is_initialized():
            return
        refs = [handle.stop.remote() for handle in self._handles.values()]
        try:
            runtime.get(refs, timeout=GRACE_S)
        except (GetTimeoutError, ActorDiedError, TaskError):
            return  # They are ended in any case: parting in order only spares the others' logs a complaint.

    def _end(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
            if self._local is not None and self.world_size > 1:
                self._local.stop()
        self._kill()
        self._handles = {}
        # At once, not with the trainer: whoever makes a new one may still hold this one.
        self._held.close()

    def _kill(self) -> None:
        if runtime.is_initialized():
            for handle in self._handles.values():
                runtime.kill(handle)


def _give_back(group: PlacementGroup) -> None:
    if runtime.is_initialized():
        runtime.remove_placement_group(group)


def bundles_of_trial(specs: Sequence[Bundle], needs: Bundle, workers: int) -> list[int] | None:
    """Indices of the bundles of a trial's group that its gang starts in; None if they don't fit.

    Args:
        specs: the trial's bundles; the last ones are taken, as the first is its head's, if it has one.
        needs: what each worker needs.
        workers: how many there are.
    """
    fitting = [
        index
        for index, spec in enumerate(specs)
        if all(spec.get(name, 0) >= amount for name, amount in needs.items())
    ]
    return fitting[-workers:] if len(fitting) >= workers else None
