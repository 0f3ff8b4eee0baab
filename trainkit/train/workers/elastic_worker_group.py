"""Workers of a trainer. After a failure, a new worker group replaces the failed worker group.

    call ──▶ group ──ok──▶ result
              │ lost a worker
              ▼
            places that still fit ──▶ new group ──▶ setup, restore the snapshot ──▶ repeat the call

Ctrl-C ends the group in the middle of a call and frees its resources; the next call starts a new group.

A snapshot is the workers' state between two calls, or in a pause of a training epoch (pausing.py). A snapshot
is stored in shared memory, so it outlives the workers. A snapshot is taken at the end of each training epoch,
and within an epoch as often as it costs little. Later calls may change a small part of the state. In this
case, either the changed part is added to the snapshot, or the call is recorded, to repeat it after a failure.
Before the first call no snapshot is needed, because a setup with the same seed gives the same state.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from trainkit.clock import SYSTEM
from trainkit.errors import GangError, NodeDiedError, NotInitializedError, ObjectStoreFullError
from trainkit.resources import Bundle
from trainkit.runtime import api as runtime
from trainkit.runtime import signals
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.restart_policy import MOST_LOSSES, lost_text
from trainkit.runtime.session import SessionWatch
from trainkit.train.checkpoint.state import UnequalPlacesError, WorkerState, check_places
from trainkit.train.distributed.tensors import joined, whole
from trainkit.train.options import TrainerOptions
from trainkit.train.strategies.modules import filled
from trainkit.train.workers import recovery
from trainkit.train.workers.automatic_checkpoints import AutomaticCheckpoints, Progress
from trainkit.train.workers.background_saves import BackgroundSaves, write_states
from trainkit.train.workers.formation import GroupFormation
from trainkit.train.workers.pausing import LEAST_S, Paused, PausePlan, interval_s
from trainkit.train.workers.placement import WorkerPlacement, larger_size
from trainkit.train.workers.recovery import Call, Effect, Snapshot
from trainkit.train.workers.worker import Worker
from trainkit.train.workers.worker_group import WorkerGroup, remote_ranks

log = logging.getLogger(__name__)

R = TypeVar("R")

_PROGRESS = Call("progress", first=True)


class ElasticWorkerGroup:
    """Workers of one trainer, which are replaced when some are lost.

    Args:
        options: arguments of the trainer, with "auto" resolved.
        saves: checkpoints that other processes write; the next call raises the failure of such a write.
        checkpoints: checkpoints that are written without a call of `save`; None if they are turned off.

    Raises:
        InfeasibleError: the machine does not have enough resources for the workers, even when idle.
        GangError: workers died at every attempt to start them.
    """

    _group: WorkerGroup[Worker]

    def __init__(
        self, options: TrainerOptions, saves: BackgroundSaves, checkpoints: AutomaticCheckpoints | None = None
    ) -> None:
        self._saves = saves
        self._checkpoints = checkpoints
        self._options = options
        self._placement = WorkerPlacement(options.bundle)
        self._forming = GroupFormation(options, self._placement, Worker)
        # A trainer that is deleted without a shutdown must free its CPUs for the next trainer.
        weakref.finalize(self, self._placement.give_back).atexit = False
        # The workers' seed is a random number of this process, so that workers of a seeded script or trial
        # are reproducible. A single worker in this process uses this process's generator directly.
        self._seed = int(torch.randint(2**62, ())) if remote_ranks(options) else None
        self._snapshot: Snapshot | None = Snapshot()
        self._interval_s = LEAST_S
        self._taken = 0
        self._session = SessionWatch() if remote_ranks(options) else None
        try:
            self._through_losses(self._begin, "start")
        except BaseException:
            self.close(force=True)
            raise

    def reserved(self) -> Bundle:
        """Return the resources that the workers reserve; {} if their session has ended."""
        if self._session is None or not self._session.is_current():
            return {}
        return self._placement.reserved()

    @property
    def ended(self) -> str | None:
        """Reason why further calls are impossible; None if they are possible, perhaps with new workers."""
        return self._group.ended if self._snapshot is None else None

    @property
    def local_worker(self) -> Worker | None:
        """Worker 0 if it runs in this process, else None."""
        return self._group.local_worker

    def has_data(self, what: str) -> bool:
        """Return True if the operator has registered data of the kind `what`: "train" or "validation"."""
        if what not in self._group.data and self.ended is None:
            name = "train" if what == "train" else "validate"
            found = self.run(Call("data", first=True, name=name))[0]
            self._group.data = found
        return what in self._group.data

    def run(self, call: Call, max_retries: int = recovery.RETRIES) -> list[Any]:
        """Run `call`; if workers are lost, start new workers with the previous state and repeat the call.

        Args:
            call: call of a method on all workers.
            max_retries: how often the call may be repeated; without a snapshot it is never repeated.

        Raises:
            GangError: workers were lost, and the call can't be repeated: no retry is left, no snapshot
                exists, or new workers lack resources.
            Exception: a worker's exception, with its traceback.
        """

        def once() -> list[Any]:
            results = self._call(call)
            self._note(call)
            return results

        return self._recovering(once, call.name, max_retries, call.effect)

    def epoch(self, call: Call, max_retries: int) -> list[Any]:
        """Run an epoch; with `max_retries` above 0, make sure that a snapshot exists first.

        A training epoch ends with a snapshot, so nothing is lost if a worker dies between two epochs.
        `max_retries` limits the failures in a row without a new snapshot.
        """
        training = call.effect is Effect.UNKNOWN
        if training:
            if self._checkpoints is not None:
                self._checkpoints.begin_epoch()
            try:
                self._through_losses(self._grow, "train")
            except Exception:
                self.close(force=True)
                raise
            except BaseException:
                self._interrupt("train")
                raise
        keeps = max_retries > 0 and not self._keeps_nothing()
        if keeps and self._snapshot is None:
            self._recovering(self._take_snapshot, call.name, 0, Effect.NOTHING)
        if not training:
            return self.run(call, max_retries if keeps else 0)
        return self._recovering(
            lambda: self._train(call, keeps=keeps), call.name, max_retries if keeps else 0, call.effect
        )

    def _train(self, call: Call, *, keeps: bool) -> list[Any]:
        """Run a training epoch; with `keeps`, take snapshots in its pauses and at its end."""
        call = replace(call, args=(*call.args, self._pause_plan(keeps=keeps)), pausable=True)
        at_rest, known = False, -1
        try:
            results = self._call(call)
            while any(isinstance(result, Paused) for result in results):
                at_rest, known = True, self._taken
                self._rest()
                at_rest, plan = False, self._pause_plan(keeps=keeps)
                results = self._call(replace(call, method="go_on", args=(plan,), name=call.name))
            at_rest, known = True, self._taken
            self._undisturbed(self._take_snapshot if keeps else partial(self._note, call))
        except (SystemExit, KeyboardInterrupt):
            if at_rest and self._taken > known:  # the snapshot of these steps is complete
                self._interrupt(call.name)
            elif at_rest or (self._group.ended is None and not self._keeps_nothing()):
                self._end_paused(call.name)
            raise
        return results

    def _end_paused(self, what: str) -> None:
        """Keep the state of workers that have paused at a signal, and end them."""
        try:
            self._take_snapshot(in_pause=True)
        except Exception as error:  # The program ends by the signal, whatever happens to a worker.
            log.warning("the state after the last step is lost, an earlier snapshot is kept: %s", error)
        finally:
            self._interrupt(what)

    def _pause_plan(self, *, keeps: bool) -> PausePlan:
        limits = [self._interval_s] if keeps else []
        if self._checkpoints is None:
            return PausePlan(min(limits, default=None))
        due_in_s = self._checkpoints.due_in_s()
        limits += [] if due_in_s is None else [due_in_s]
        return PausePlan(min(limits, default=None), self._checkpoints.every_steps)

    def _rest(self) -> None:
        """Take a snapshot in a pause, and write it as a checkpoint if a checkpoint is due."""
        before, began = self._taken, SYSTEM.monotonic()
        if not self._keeps_nothing():
            self._undisturbed(partial(self._take_snapshot, in_pause=True))
        self._interval_s = interval_s(SYSTEM.monotonic() - began)
        if (checkpoints := self._checkpoints) is not None:
            progress = self._call(_PROGRESS)[0]
            if checkpoints.is_due(progress[1]):
                copied = self._keeps_nothing() or self._taken > before
                self._save_automatically(checkpoints, progress, copies=copied)

    @staticmethod
    def _undisturbed(take: Callable[[], None]) -> None:
        """Take a snapshot. A signal acts after it, as otherwise the steps before it would be lost."""
        handler = signals.InterruptHandler()
        try:
            with handler:
                take()
        finally:
            handler.act()  # this also runs if a worker has died during the snapshot

    def end_epoch(self, results: Sequence[Mapping[str, Any]]) -> None:
        """Write the automatic checkpoint of the end of a training epoch with these results."""
        if (checkpoints := self._checkpoints) is not None:
            progress = self.progress()
            checkpoints.end_epoch(progress[1])
            save = partial(self._save_automatically, checkpoints, progress, results)
            self._recovered(save, "train", recovery.RETRIES, Effect.NOTHING)

    def save_last(self) -> None:
        """Write the last snapshot as an automatic checkpoint before the program ends by a signal."""
        if self._checkpoints is not None and self._snapshot is not None:
            self._checkpoints.save_last(self._snapshot, sharded=self._options.spec.spreads)

    def _save_automatically(
        self,
        checkpoints: AutomaticCheckpoints,
        progress: Progress,
        results: Sequence[Mapping[str, Any]] | None = None,
        *,
        copies: bool = True,
    ) -> None:
        copies = copies and "background" in runtime.promises()
        copy = partial(self._begin_save, paused=results is None) if copies else None
        checkpoints.save(progress, results, copy=copy, write=self._save_together)

    def progress(self) -> Progress:
        """Return the numbers of finished epochs and of training steps."""
        held = self._snapshot
        if self.local_worker is None and held is not None and (known := held.progress()) is not None:
            return known
        found: Progress = self.run(_PROGRESS)[0]
        return found

    @contextmanager
    def as_before(self, what: str) -> Iterator[Callable[[Mapping[str, Any] | None], WorkerGroup[Worker]]]:
        """Let a block change the workers; afterwards, new workers continue with the state from before it.

        Args:
            what: name of the trainer's method, for messages.

        Yields:
            A function that returns the current workers for the argument None. For a configuration, it returns
            new workers with the same resources, which have only been set up.

        Raises:
            ObjectStoreFullError: a snapshot of the state does not fit into the object store.
        """
        # If Ctrl-C has ended the workers, the next line starts new workers.
        self._recovering(lambda: None, what, 0, Effect.NOTHING)
        if self._snapshot is None or self._keeps_nothing():
            states = self._recovering(
                lambda: self._group.call("snapshot", in_step=False), what, 0, Effect.NOTHING
            )
            self._snapshot = Snapshot(states)
        held = self._snapshot

        def workers(config: Mapping[str, Any] | None) -> WorkerGroup[Worker]:
            if config is not None:
                self._group.close()
                self._group = self._forming.group_of(self._group.world_size, config)
            self._group.asked = what
            if not self._group.started:
                self._group.start(self._seed)
            return self._group

        try:
            yield workers
        except Exception:
            self._go_back(held, what)
            raise
        except BaseException:
            self._snapshot = held
            self._interrupt(what)
            raise
        self._go_back(held, what)

    def _go_back(self, held: Snapshot, what: str) -> None:
        self._group.close()
        self._snapshot = held
        with self._closed_if_ended(what):
            self._group = self._forming.placed(again=True)
            self._start_again()

    def close(self, *, force: bool = False) -> None:
        """End all workers and free their resources; `force=True` ends them even in the middle of a call."""
        try:
            if hasattr(self, "_group"):
                self._group.close(force=force)
        finally:
            self._snapshot = None
            self._placement.give_back()
            if self._checkpoints is not None:
                self._checkpoints.close()

    @property
    def reporters(self) -> range:
        """Ranks of the workers whose metrics are used: one worker for each copy of the model."""
        spec = self._options.spec
        return range(spec.reporter, self._group.world_size, spec.model_ways)

    def snapshot(self) -> list[WorkerState]:
        """Return the parts of the state of all workers, by rank."""
        return self.run(Call("snapshot", name="state_dict"))

    def save(self, folder: Path) -> None:
        """Write a checkpoint; if no single worker has the whole state, all workers write it together.

        After an interruption, this process writes the snapshot, without new workers.
        """
        held = self._snapshot
        if self._group.ended is not None and held is not None and held.is_whole:
            write_states(folder, held.states or [], sharded=self._options.spec.spreads)
            return
        self._recovering(partial(self._save_together, folder), "save", recovery.RETRIES, Effect.NOTHING)

    def save_copy(self, folder: Path) -> None:
        """Copy the state and start a process that writes it; if memory is short, write the state at once."""
        if self._group.ended is not None or "background" not in runtime.promises():
            self.save(folder)
            return
        try:
            self._recovering(partial(self._begin_save, folder), *("save", recovery.RETRIES, Effect.NOTHING))
        except ObjectStoreFullError as error:
            log.warning("%s", recovery.waiting_save_text(folder, str(error)))
            self.save(folder)

    def _save_together(self, folder: Path) -> None:
        workers = self._call(Call("own_state"))
        check_places(workers, "the checkpoint")
        self._call(Call("save", (folder, workers), first=not self._options.spec.spreads))

    def _begin_save(self, folder: Path, outdated: Sequence[Path] = (), *, paused: bool = False) -> None:
        start = SYSTEM.monotonic()
        states = self._stored_states(paused=paused)
        copy_s = SYSTEM.monotonic() - start
        sharded = self._options.spec.spreads
        self._saves.begin(folder, states, sharded=sharded, copy_s=copy_s, outdated=outdated)

    def models(self, *, to_cpu: bool, averaged: bool) -> list[nn.Module]:
        """Return the user's own modules: copies on the CPU, or the originals if worker 0 is in this process.

        Args:
            to_cpu: True always returns copies.
            averaged: True returns copies with the averaged weights.
        """
        spreads = self._options.spec.spreads
        if not spreads and not averaged:
            live = self.local_worker is not None and not to_cpu
            return list(self.run(Call("models", (not live,), first=True, name="get_model"))[0])
        states = whole(
            joined(self.run(Call("model_states", (averaged,), first=not spreads, name="get_model")))
        )
        skeletons = self.run(Call("skeletons", first=True, name="get_model"))[0]
        return [filled(*pair) for pair in zip(skeletons, states, strict=True)]

    def _recovering(self, once: Callable[[], R], what: str, max_retries: int, effect: Effect) -> R:
        self._saves.check()
        return self._recovered(once, what, max_retries, effect)

    def _recovered(self, once: Callable[[], R], what: str, max_retries: int, effect: Effect) -> R:
        self._through_losses(lambda: self._form_after_interruption(what), what)
        with self._closed_if_ended(what):
            return self._through_losses(
                lambda: self._retrying(once, what, max_retries, effect), what, again=max_retries > 0
            )

    def _retrying(self, once: Callable[[], R], what: str, max_retries: int, effect: Effect) -> R:
        failures: list[GangError] = []
        known = self._taken
        while True:
            try:
                self._group.asked = what
                if not self._group.started:
                    self._start_again()
                return once()
            except GangError as error:
                if not self._group.lost:
                    raise
                if self._taken != known:  # the call has made progress since the last failure
                    known = self._taken
                    failures.clear()
                failures.append(error)
            except BaseException as error:
                # Workers that stay alive may have run a part of the call, so their state may differ from the
                # snapshot.
                lives_on = self._group.ended is None
                if lives_on and effect is not Effect.NOTHING and self._loss(error) is None:
                    self._snapshot = None
                raise
            # For a single worker in this process, no snapshots are taken, so no valid snapshot exists after
            # the first call.
            has_snapshot = self._snapshot is not None and not self._keeps_nothing()
            if not recovery.may_retry(len(failures), max_retries, has_snapshot=has_snapshot):
                break
            self._form_again(failures[-1], what)
        if self._snapshot is None:
            failures[-1].args = (recovery.no_snapshot_text(str(failures[-1])),)
        if len(failures) == 1:
            raise failures[0]
        raise GangError(recovery.give_up_text(what, [str(error) for error in failures])) from failures[-1]

    def _through_losses(self, act: Callable[[], R], what: str, *, again: bool = True) -> R:
        """Return the result of `act`; if the session is lost with all workers, form new workers.

        Repeating `act` does not count as a retry, because no worker has failed.

        Args:
            act: function that runs the call.
            what: name of the call, for messages.
            again: True runs `act` again with new workers; False raises an error.

        Raises:
            GangError: the session was lost, and no snapshot exists, the session was lost too often, or
                `again` is False.
        """
        if hasattr(self, "_group") and self.ended is not None:
            return act()  # `act` raises an error that says why the workers ended.
        losses = 0
        loss: NodeDiedError | None = None
        while True:
            try:
                if loss is not None:
                    self._form_elsewhere()
                    if not again:
                        raise GangError(recovery.not_again_text(lost_text(loss.how), what)) from loss
                return act()
            except BaseException as error:
                loss = self._loss(error)
                if loss is None or isinstance(error, NotInitializedError):
                    raise
                losses += 1
                if loss.ended_by or self._snapshot is None or losses > MOST_LOSSES:
                    text = recovery.lost_session_text(
                        lost_text(loss.how),
                        what,
                        ended_by=loss.ended_by,
                        in_a_row=losses,
                        has_snapshot=self._snapshot is not None,
                    )
                    self.close(force=True)
                    raise GangError(text) from loss
            if again:
                log.warning("%s", recovery.reform_text(lost_text(loss.how), what))

    def _loss(self, error: BaseException) -> NodeDiedError | None:
        """Return the error for the loss of the session if this loss has caused `error`; otherwise None."""
        return self._session.loss() if self._session is not None and isinstance(error, Exception) else None

    @contextmanager
    def _closed_if_ended(self, what: str) -> Iterator[None]:
        """If the block fails and the group has ended, free its resources for other programs."""
        try:
            yield
        except Exception:
            if self._group.ended is not None:
                self.close(force=True)
            raise
        except BaseException:
            if self._group.ended is not None:
                self._interrupt(what)
            raise

    def _interrupt(self, what: str) -> None:
        """End the workers in the middle of a call; keep the snapshot for the workers of the next call."""
        self._group.close(force=True, why=f"{what}() was interrupted")
        if self._snapshot is None:
            self._group.ended = f"{self._group.ended}, {recovery.NO_SNAPSHOT}"
        self._placement.give_back()

    def _call(self, call: Call) -> list[Any]:
        how = {"first": call.first, "in_step": call.in_step, "alike": call.alike, "pausable": call.pausable}
        return self._group.call(call.method, *call.args, **how)

    def _keeps_nothing(self) -> bool:
        """Return True if no snapshots are taken, because the only worker is in this process."""
        return not remote_ranks(self._options)

    def _take_snapshot(self, *, in_pause: bool = False) -> None:
        """Take a snapshot.

        If the object store is full, the last snapshot, which is out of date except in a pause, is dropped.
        """
        with self._as_far_as_there_is_room(keep=in_pause):
            self._snapshot = self._new_snapshot()
            self._taken += 1

    def _new_snapshot(self) -> Snapshot:
        # A snapshot is not stored in the object store in two cases. With several machines, a stored value is
        # lost with the worker that stored it. Without other processes, no process would read a stored value.
        stored: list[Any] = []
        if {"near", "background"} <= runtime.promises():
            stored = self._group.call("stored_snapshot", in_step=False)
        states = runtime.get(stored) if stored else self._group.call("snapshot", in_step=False)
        try:
            check_places([state.own for state in states], "a snapshot")
        except UnequalPlacesError as error:  # New workers continue after the last snapshot.
            self._group.close(force=True, why="they stopped at different steps")
            self._group.lost = True
            raise GangError(str(error)) from error
        return Snapshot(states, stored)

    def _stored_states(self, *, paused: bool) -> list[ObjectRef[WorkerState]]:
        """Return references to copies of the current state, by rank.

        Take a new snapshot if the last snapshot is older than this state.
        """
        held = self._snapshot
        # Between calls, code of this process may have changed the model of a worker in this process.
        outdated = self._keeps_nothing() or (self.local_worker is not None and not paused)
        if held is None or not held.is_whole or outdated:
            held = self._new_snapshot()
            if not self._keeps_nothing():
                self._snapshot = held
        held.stored = held.stored or [runtime.put(state) for state in held.states or []]
        return held.stored

    @contextmanager
    def _as_far_as_there_is_room(self, *, keep: bool = False) -> Iterator[None]:
        """Warn if the state does not fit into the object store; unless `keep`, drop the last snapshot."""
        try:
            yield
        except ObjectStoreFullError as error:
            if not keep:
                self._snapshot = None
            log.warning(
                "no snapshot could be taken, so the run ends if a worker dies before the next snapshot: "
                "raise object_store_memory in trainkit.init(), or pass max_retries=0 (%s)",
                error,
            )

    def _note(self, call: Call) -> None:
        """Update the snapshot after `call`, or drop it if it is no longer valid."""
        held = self._snapshot
        if held is None or call.effect is Effect.NOTHING:
            return
        if self._keeps_nothing():
            self._snapshot = None
            return
        match call.effect:
            case Effect.SMALL:
                with self._as_far_as_there_is_room():
                    held.small = self._group.call("small_state", in_step=False)
            case Effect.REPEATABLE:
                held.repeated.append(call)
            case Effect.UNKNOWN:
                self._snapshot = None

    def _start_again(self) -> None:
        """Let new workers set up and load the snapshot; if this fails, end them."""
        held = self._snapshot
        try:
            self._group.start(self._seed)
            if held is None:
                return
            if held.states is not None or held.small is not None:
                # The states are stored once, for all workers to read. Small states are sent with the call.
                states = held.states if self._keeps_nothing() else runtime.put(held.states)
                self._group.call("restore", states, held.small, in_step=False)
            for call in held.repeated:
                self._call(call)
        except BaseException:
            # The workers are ended, because the next call would silently continue with untrained models.
            self._group.close(force=True, why="they could not load the state")
            raise

    def _begin(self) -> None:
        self._group = self._forming.placed(again=False)
        self._retrying(lambda: None, self._group.asked, recovery.RETRIES, Effect.NOTHING)

    def _form_elsewhere(self) -> None:
        """Form a worker group in a new session after the previous session was lost; do not set it up."""
        if hasattr(self, "_group"):
            self._group.close(force=True)
        self._placement.give_back()
        if self._session is not None:
            self._session.renew()
        if self._snapshot is not None:
            self._snapshot.stored = []
        self._group = self._forming.placed(again=True)

    def _form_after_interruption(self, what: str) -> None:
        if self._snapshot is None or self._group.ended is None:
            return
        why = self._group.ended
        self._group = self._forming.placed(again=False)
        log.warning("%s; restarting all workers for %s(), with the state of the last snapshot", why, what)

    def _form_again(self, error: GangError, what: str) -> None:
        before = self._group.world_size
        why = str(error).partition("\n")[0]
        log.warning("%s", recovery.reform_text(why, what))
        self._group = self._forming.placed(again=True)
        if (now := self._group.world_size) != before:
            log.warning("%s", recovery.size_text(before, now, self._options.num_workers))

    def _grow(self) -> None:
        """Form a larger group if fewer workers than requested are running and resources have become free."""
        group, full = self._group, self._options.num_workers
        if group.ended is not None or group.world_size == full:
            return
        size = larger_size(self._forming.sizes, group.world_size, self._placement.more())
        if size is None:
            return
        if self._snapshot is None:
            self._recovering(self._take_snapshot, "train", 0, Effect.NOTHING)
        # The resources for the new workers are reserved before the old workers end, because other programs
        # could take released resources.
        if self._snapshot is None or not self._placement.add(size - group.world_size):
            return
        log.warning("%s", recovery.size_text(group.world_size, size, full))
        group.close()
        self._group = self._forming.group_of(size)
