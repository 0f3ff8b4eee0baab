"""Workers that train together.

All workers of a group start together, are called together, and end at the first failure.

TorchTrainer ──▶ ElasticWorkerGroup ──▶ WorkerGroup ──▶ worker 0      an actor, or in this process (use_local)
                                                    ──▶ worker 1 ...  actors, each in its bundle

The workers in a worker group never change. If a worker is lost, the group ends, and the elastic worker group
forms a new worker group.
"""

from __future__ import annotations

import contextlib
import secrets
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from trainkit import settings
from trainkit.errors import GangError
from trainkit.runtime import api as runtime
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.signals import InterruptGuard
from trainkit.train.distributed.rendezvous import (
    LocalRank,
    Rendezvous,
    by_machine,
    local_ranks,
    make_rendezvous,
    on_one_machine,
)
from trainkit.train.workers.gather import GRACE_PERIOD_S, GatheredResults
from trainkit.train.workers.member import GroupMember, GroupOptions, WorkerSpec
from trainkit.train.workers.pausing import PausePage
from trainkit.train.workers.placement import WorkerPlacement

worker_label: ContextVar[str] = ContextVar("label of a trainer's workers", default="train-worker")
"""Name, without the rank, that workers of a new trainer get."""


@contextlib.contextmanager
def worker_labels(trial: str) -> Iterator[None]:
    """Let the names of workers begin with the trial's name, for trainers that are made inside the block."""
    token = worker_label.set(f"{trial} train-worker")
    try:
        yield
    finally:
        worker_label.reset(token)


M = TypeVar("M", bound=GroupMember)


class WorkerGroup(Generic[M]):
    """Workers of one trainer that start and end together.

    Args:
        options: arguments of the trainer, with "auto" resolved and with the number of workers of this group.
        placement: reserved resource bundles, one for each worker.
        label: name of the workers in logs and errors; on one machine the rank is appended.
        member: class of the workers.

    Attributes:
        ended: reason why the group can no longer be called; None while calls are possible.
        failed_rank: rank of the worker that caused the last failed call; None if no call has failed.
        lost: True if the group ended because workers died or did not answer; a new group may succeed.
        started: True after the workers have been set up.
        data: kinds of data that the operators have registered, "train" or "validation"; empty before the
            start.
        asked: name of the trainer's method that the user has called, for messages.
        can_stop: True if Ctrl-C is passed on to the workers, so that their code can clean up.
        is_end: function that returns True for an error that is the expected end of a worker, such as its exit
            after a script.
    """

    def __init__(
        self, options: GroupOptions, placement: WorkerPlacement, label: str, member: type[M]
    ) -> None:
        self.world_size = options.num_workers
        self.ended: str | None = None
        self.failed_rank: int | None = None
        self.lost = False
        self.started = False
        self.data: frozenset[str] = frozenset()
        self.asked = "TorchTrainer"
        self.can_stop = False
        self.is_end: Callable[[BaseException], bool] = lambda _: False
        self._options = options
        self._local = member() if options.use_local else None
        self._handles: dict[int, Any] = {}
        self._held = contextlib.ExitStack()
        self._page: PausePage | None = None
        weakref.finalize(self, self._held.close).atexit = False
        if self._local is not None:
            # If the trainer is deleted without a shutdown, this process must still leave the process group.
            # Otherwise, it could not join the next trainer's group.
            self._held.callback(self._local.leave)
        actor = runtime.remote(member)
        more = {name: amount for name, amount in options.bundle.items() if name not in ("CPU", "GPU")}
        for rank in remote_ranks(options):
            group, bundle = placement[rank]
            self._handles[rank] = actor.options(
                # The names have no ranks on several machines, because ranks are not known yet.
                label=f"{label}-{rank}" if on_one_machine() else label,
                num_cpus=options.bundle.get("CPU", 0),
                num_gpus=options.bundle.get("GPU", 0),
                resources=more,
                placement_group=group,
                placement_group_bundle_index=bundle,
            ).remote()

    @property
    def local_worker(self) -> M | None:
        """Worker 0 if it runs in this process, else None."""
        return self._local

    def gathered(self, timeout_s: float) -> bool:
        """Return True if all workers' processes start within `timeout_s`; dead processes count as started."""
        refs = [handle.here.remote() for handle in self._handles.values()]
        return not refs or not runtime.wait(refs, num_returns=len(refs), timeout=timeout_s)[1]

    def start(self, seed: int | None) -> None:
        """Let the workers join each other and set up.

        Args:
            seed: seed of the workers' random generators; None leaves them unseeded.

        Raises:
            GangError: a worker died.
            Exception: a worker's exception, with its traceback.
        """
        rendezvous, localities = self._rendezvous() if self._options.meets else (None, [LocalRank()])
        page = self._make_page()
        spec = partial(WorkerSpec, options=self._options, rendezvous=rendezvous, seed=seed, page=page)
        specs = {rank: (spec(rank=rank, locality=locality),) for rank, locality in enumerate(localities)}
        self.data = self._call("start", specs)[0]
        self.started = True

    def _make_page(self) -> Path | None:
        # A worker in the trainer's own process can't pause, because the signal that should make it pause
        # interrupts it.
        if self._local is not None or not {"near", "isolation"} <= runtime.promises():
            return None
        path = runtime.scratch_dir() / f"pauses-{secrets.token_hex(8)}"
        self._held.callback(path.unlink, missing_ok=True)
        self._page = PausePage(path)
        return path

    def call(self, method: str, *args: Any, first: bool = False, **how: bool) -> list[Any]:
        """Call a method on all workers and return their results, by rank.

        Args:
            method: name of a method of the workers' class.
            *args: arguments, equal for all workers.
            first: True calls the method on worker 0 only.
            **how: `in_step` (default True): the workers communicate in the call, and a failure ends all
                workers immediately; if `in_step` is False, the workers stay alive if all have answered.
                `alike` (default False): the call changes state that must be equal on all workers. After a
                failure of such a call, the workers stay alive only if all of them failed. `pausable` (default
                False): the workers can pause in the call. At Ctrl-C and SIGTERM, they finish their step.

        Raises:
            GangError: a worker's process died, or workers did not reach each other.
            Exception: a worker's exception, with its traceback.
        """
        return self._call(method, dict.fromkeys([0] if first else range(self.world_size), args), **how)

    def close(self, *, force: bool = False, why: str = "the trainer was shut down") -> None:
        """End all workers.

        Args:
            force: True ends the workers in the middle of a call.
            why: the reason, for messages to later callers.
        """
        try:
            if self.ended is None and not force:
                self._part()
        finally:
            self._end(why)

    def _rendezvous(self) -> tuple[Rendezvous, list[LocalRank]]:
        """Assign ranks by machine; return the workers' rendezvous and each worker's local rank."""
        place, nodes = make_rendezvous(
            self.world_size, self._held, lambda arguments: self._call("home", arguments, in_step=False)
        )
        order = by_machine(nodes)
        held = self._handles
        self._handles = {rank: held[worker] for rank, worker in enumerate(order) if worker in held}
        rendezvous = Rendezvous(place, self._options.backend, self._options.timeout_s)
        return rendezvous, local_ranks([nodes[worker] for worker in order])

    def _call(
        self,
        method: str,
        args: dict[int, Any],
        *,
        in_step: bool = True,
        alike: bool = False,
        pausable: bool = False,
    ) -> list[Any]:
        if self.ended is not None:
            raise GangError(
                f"these workers have ended ({self.ended}): make a new TorchTrainer, and load() a checkpoint"
            )
        calls: dict[Any, int] = {}
        unsent = True
        at_once = in_step and self.world_size > 1
        outcome = GatheredResults(
            calls,
            what=self.asked,
            world_size=self.world_size,
            at_once=at_once,
            timeout_s=self._options.timeout_s,
            end_workers=self._kill,
            is_end=self.is_end,
        )
        try:
            # A signal takes effect when all workers have received the call, because if only some workers
            # received the call, they would wait for the other workers in a collective. On an engine without
            # other processes, the call runs when it is sent.
            waits = bool(self._handles) and "isolation" in runtime.promises()
            with InterruptGuard() if waits else contextlib.nullcontext():
                for rank, handle in self._handles.items():
                    if rank in args:
                        calls[getattr(handle, method).remote(*args[rank])] = rank
                        unsent = False
            if self._local is not None and 0 in args:
                own = [runtime.get(arg) if isinstance(arg, ObjectRef) else arg for arg in args[0]]
                outcome.collect_beside(lambda: getattr(self._local, method)(*own))
            else:
                outcome.collect()
        except BaseException as error:
            # If an argument could not be sent, no worker has received the call, so all workers are still
            # usable.
            mistaken = unsent and isinstance(error, Exception)
            is_signal = isinstance(error, (SystemExit, KeyboardInterrupt))
            if pausable and is_signal and outcome.ranks() == args.keys() and self._has_paused(outcome):
                raise
            if self._handles and not mistaken:
                if self.can_stop and not isinstance(error, Exception):
                    self._stop_calls(calls)
                # The workers are ended, because they would otherwise continue the interrupted call and delay
                # the next call.
                self._end(f"{self.asked}() was interrupted by {type(error).__name__}")
            raise
        if outcome.failed:
            apart = alike and len(outcome.failures) < len(args)
            if outcome.late or at_once or apart or outcome.deaths():
                self._end(f"worker {outcome.cause()} failed")
                self.lost = bool(outcome.lost())
            self.failed_rank = outcome.cause()
            verdict = outcome.verdict(ended=self.ended is not None)
            try:
                raise verdict
            finally:
                # The error refers to stack frames that contain the batch. If these frames also referred to
                # the error, the reference cycle would keep the batch in memory.
                outcome.failures.clear()
                del verdict
        return [outcome.results[rank] for rank in sorted(args)]

    def _has_paused(self, outcome: GatheredResults) -> bool:
        """Let the workers finish their step; return False if they failed or needed too long."""
        if self._page is None or not self._page.ready:
            return False
        try:
            self._page.asked = True
            outcome.collect(settings.stop_grace_s(training=True))
        except BaseException:  # a second signal arrived
            self._end(f"{self.asked}() was interrupted twice")
            raise
        return not outcome.failed

    def _stop_calls(self, calls: dict[Any, int]) -> None:
        """Interrupt calls; wait until all workers' code has cleaned up and their processes have ended.

        Code of a worker that has already answered is ended at the report where it waits. Code that waits in a
        collective for a different worker gets an error when that worker's process ends.
        """
        for ref in calls:
            runtime.cancel(ref)
        answered = self._handles.keys() - calls.values()
        ends = [self._handles[rank].exit.remote() for rank in answered]
        while calls:
            done, _ = runtime.wait(list(calls), num_returns=1)
            ends += [self._handles[calls.pop(ref)].exit.remote() for ref in done]
        runtime.wait(ends, num_returns=len(ends))

    def _part(self) -> None:
        if self._local is not None:
            self._local.stop()
        if not self._handles or not runtime.is_initialized():
            return
        # Workers are asked to end cleanly, so that other workers log no errors and the user's code can
        # finish. `_end` kills workers that take too long.
        for handle in self._handles.values():
            handle.stop.remote()
        ends = [handle.exit.remote() for handle in self._handles.values()]
        runtime.wait(ends, num_returns=len(ends), timeout=GRACE_PERIOD_S)

    def _end(self, why: str) -> None:
        if self.ended is None:
            self.ended = why
        self._kill()
        self._handles = {}
        # The resources are released at once, because the caller may keep this object while it makes a new
        # trainer.
        self._held.close()

    def _kill(self) -> None:
        if runtime.is_initialized():
            for handle in self._handles.values():
                runtime.kill(handle)


def remote_ranks(options: GroupOptions) -> range:
    """Return the ranks of workers that run in separate processes."""
    return range(1 if options.use_local else 0, options.num_workers)
