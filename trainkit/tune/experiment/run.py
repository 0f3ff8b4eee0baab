"""One run of an experiment, new or restored."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import functools
import itertools
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from trainkit import settings
from trainkit.clock import SYSTEM, Clock
from trainkit.errors import ConfigError, StoreError, TuneArgumentError, TuneError
from trainkit.tune import experiment as running
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.controller.events import SETTABLE
from trainkit.tune.controller.rules import FAIL_FAST, FAILED_TRIALS, Ending, StopRules
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.configs import SyncConfig
from trainkit.tune.core.log import logger
from trainkit.tune.core.resources import Bound
from trainkit.tune.core.seeds import trial_seed
from trainkit.tune.core.setting_names import how_to_resume, went_beside
from trainkit.tune.core.trial import TrialStatus, safe_name, trial_id_of
from trainkit.tune.experiment import setup
from trainkit.tune.experiment.plan import make_plan, metrics_of
from trainkit.tune.experiment.stored_settings import (
    describe_metric,
    describe_settings,
    new_facts,
    restored_run_config,
    restored_tune_config,
)
from trainkit.tune.experiment.trainable import can_save
from trainkit.tune.search.trial_source import evaluated_of
from trainkit.tune.space.search_space import Space
from trainkit.tune.space.serialization import holds_opaque
from trainkit.tune.sync.storage import Address, describe_address, new_place, stored_address


class ExperimentRun:
    """Experiment with checked settings, for one or more calls of `fit`.

    Args:
        bound: the trainable with its resource requests and parameters.
        space: the search space.
        tune, run: the settings.
        folder: folder of the experiment.
        resume: rule for resuming the experiment in `folder`; None: a new experiment, so `folder` must not
            contain an experiment.
        facts: stored properties of the resumed experiment, such as its seed and settings.
        changes: differences between `space` and the earlier space, as strings.
        address: storage address that the folder is copied to; None: no copy.
        in_memory: True: `folder` contains only files that trials write, and trials create their own folders.
            If steps run in this process, no folder is created.
        clock: clock to read the time from.
        not_before: latest date in the earlier run. Dates of the new run are never before this date, even if
            the clock was set back or belongs to another machine.

    Raises:
        ConfigError: settings contradict each other.
    """

    def __init__(
        self,
        bound: Bound,
        space: Space,
        tune: TuneConfig,
        run: RunConfig,
        folder: Path,
        *,
        resume: running.ResumeRule | None = None,
        facts: Mapping[str, Any] | None = None,
        changes: Sequence[str] = (),
        address: Address | None = None,
        in_memory: bool = False,
        clock: Clock = SYSTEM,
        not_before: float = 0.0,
    ) -> None:
        if resume is not None:
            running.require_kept(resume, in_memory=in_memory)
        self._bound = bound
        self._space = space
        # The settings are copied, because the user may change the originals later.
        self._tune = copy.copy(tune)
        searcher = setup.default_searcher(tune) if tune.search_alg is None else tune.search_alg
        vars(self._tune)["search_alg"] = searcher
        if tune.scheduler is None:
            vars(self._tune)["scheduler"] = setup.default_scheduler(tune, searcher, space)
        self._run = copy.copy(run)  # copy.copy avoids the constructor, which a subclass may have changed
        for part in ("failure_config", "checkpoint_config", "sync_config"):
            vars(self._run)[part] = copy.copy(getattr(run, part))
        if self._run.checkpoint_config.checkpoint_at_end is None:
            self._run.checkpoint_config.checkpoint_at_end = can_save(bound)
        self.folder = folder
        self._resume = resume
        self._changes = tuple(changes)
        self._address = address
        self._named = folder, address
        self._in_memory, self.restorable = in_memory, not in_memory
        self.ended_by: Ending | None = None
        """Reason for an early end, set once `fit` has returned or raised; None without an early end."""
        self._facts = dict(facts or new_facts(bound.name, space, self._tune, self._run, address, clock.now()))
        start, zero = max(clock.now(), not_before), clock.monotonic()
        # Dates are the wall-clock time at the start plus monotonic time, because the controller and deadlines
        # need times that never decrease.
        self._now: Callable[[], float] = lambda: start + (clock.monotonic() - zero)
        self._take_parts()
        self.metric, self.mode, self.objectives = setup.goal_of(tune, self._searcher, self._scheduler)
        self._goal: dict[str, Any] = {"metric": self.metric, "mode": self.mode, "objectives": self.objectives}
        self._take_plan()

    @classmethod
    def new(cls, bound: Bound, space: Space, tune: TuneConfig, run: RunConfig) -> ExperimentRun:
        """Return a new experiment in the folder that `run` names."""
        trainable_name = safe_name(bound.name)[:100]
        dated = f"_{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}_{secrets.token_hex(2)}"
        name = run.name or trainable_name + dated * settings.experiments_are_dated()
        folder, address = new_place(run.storage_path, run.storage_filesystem, name)
        return cls(bound, space, tune, run, folder, address=address)

    @classmethod
    def restored(
        cls,
        folder: Path,
        bound: Bound,
        rule: running.ResumeRule,
        param_space: Mapping[str, Any] | None,
        tune: TuneConfig | None,
        run: RunConfig | None,
        address: Address | None = None,
    ) -> ExperimentRun:
        """Return the experiment in `folder`, ready to resume; `address` is the source of a copied folder.

        Raises:
            StoreError: the experiment is missing, or its file is damaged or not from trainkit.
            ConfigError: an object that the file can't store, such as a custom scheduler, was not given again.
            MetricError: `tune` names a metric that no report has, and the name is misspelt or no further
                reports will be made.
        """
        with running.ExperimentReader(folder) as reader:
            facts, until = reader.facts(), reader.last_date()
            if tune is not None and describe_metric(tune) not in (None, facts["tune_config"]["metric"]):
                metrics = metrics_of(tune, tune.one_metric, tune.objectives)
                finished = all(trial.status is TrialStatus.TERMINATED for trial in reader.trials())
                running.require_reported(metrics, (each for _, each in reader.histories()), finished=finished)
        if tune is not None and tune.seed not in (None, facts["seed"]):
            raise TuneArgumentError(
                f"TuneConfig(seed={tune.seed}) differs from the experiment's {facts['seed']}: leave it out"
            )
        tune = restored_tune_config(facts["tune_config"], tune)
        if param_space is not None:
            param_space = setup.make_space(param_space, tune).tree
        space, changes = running.restored_space(facts["space"], param_space)
        return cls(
            bound,
            space,
            tune,
            restored_run_config(facts["run_config"], run),
            folder,
            resume=rule,
            facts=facts,
            changes=changes,
            address=address or stored_address(facts, folder.name, run),
            not_before=until,
        )

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to store in the file of a new experiment."""
        self._facts |= facts

    def fit(self) -> running.ResultGrid:
        """Run the experiment to its end and return its results.

        Raises:
            InfeasibleError: a trial needs resources that do not exist.
            SerializationError: the trainable or a value can't be sent to a worker.
            StoreError: the folder can't be written, or another process uses it.
            StorageError: the copy at the address can't be written, or is incomplete at the end.
            TrialError: the first error of a trial with fail_fast="raise"; a callback's error is raised
                unchanged.
            TuneError: the number of failed trials has reached max_failed_trials.
            NodeDiedError: the runtime's node died repeatedly without progress of any trial.
            SystemExit: SIGTERM was received. The experiment first ends as after Ctrl-C. If another error has
                occurred, it becomes the context of this error.
        """
        try:
            return self._fit()
        finally:
            self._parts_unused = False
            running.end_if_asked()

    def _fit(self) -> running.ResultGrid:
        with contextlib.ExitStack() as opened:
            controller, executor, store = self._run_once(opened)
        self.ended_by = controller.ended_by
        if controller.ended_by is FAILED_TRIALS:
            limit = self._run.failure_config.max_failed_trials
            raise TuneError(running.too_many_failed(controller.trials, str(self.folder), limit))
        if controller.ended_by is not None and controller.ended_by.resumable and self.restorable:
            # The warning includes the reason only if the experiment has no display, because a display has
            # already shown the reason.
            why = "" if self._run.verbose else f"Ended early: {controller.ending}. "
            logger.warning("%sAll reported results are kept; %s", why, how_to_resume(self.folder))
        controller.raise_error()
        if isinstance(store, running.MemoryStore):
            grid: running.ResultGrid = running.MemoryGrid(store, self.metric, self.mode, executor.errors)
        else:
            configs = {trial.trial_id: trial.config for trial in controller.trials}
            # The results are read again from the file. The objects of the run are freed first, so that memory
            # does not contain thousands of trials twice.
            del controller, self._searcher, self._source, self._scheduler
            grid = running.ResultGrid.load(self.folder, **self._goal, errors=executor.errors, configs=configs)
        if self.ended_by is FAIL_FAST and self._run.failure_config.fail_fast == "raise":
            raise grid.errors[0]
        return grid

    def _run_once(
        self, opened: contextlib.ExitStack
    ) -> tuple[running.Controller, running.Executor, running.ExperimentStore | running.MemoryStore]:
        """Run the experiment; `opened` closes the store that this call opens."""
        store = None
        since = self._now()
        if self._resume is None:
            running.parts.warn_of_constants(self._space)
            if not self._in_memory:
                self._go_beside()
        else:
            store = opened.enter_context(contextlib.closing(self._open_store()))
            self._take_settings(store)
        if not self._parts_unused:
            self._take_parts()
        running.parts.warn_if_never_perturbed(self._tune, self._run, self._source.total)
        at_once = self._tune.max_concurrent_trials or None
        # Steps in this process use no session and run one at a time.
        existing = {"CPU": 1.0} if self._bound.here else running.engine().cluster_resources()
        ledger = ResourceLedger(existing, at_once, ahead=self._bound.ahead or 1)
        running.parts.require_sendable(self._space)
        start_from, durable = self._bound.start_from, not self._in_memory
        specs = running.SpecFactory(self.folder, self._run, self._seed_of_trial, start_from, durable=durable)
        executor = running.parts.make_executor(
            self._bound, specs, self._plan, reuse=self._tune.reuse_actors, now=self._now
        )
        mirror = None
        if self._address is not None:
            sync = self._run.sync_config or SyncConfig()
            mirror = running.Mirror(self.folder, self._address, sync, self._say)
            mirror.check(new=self._resume is None)
        if store is None:
            self._require_first(ledger)
            since = self._now()
            try:
                store = opened.enter_context(contextlib.closing(self._open_store()))
            except (ConfigError, StoreError):
                if self._in_memory or not running.is_taken(self.folder, None):
                    raise
                # another program has taken the folder's name, so a different name is tried
                return self._run_once(opened)
        with store.reader() as reader, running.InterruptHandler() as interrupts:
            controller = self._run_loop(ledger, executor, store, reader, interrupts, mirror, since)
        return controller, executor, store

    def _require_first(self, ledger: ResourceLedger) -> None:
        """Check that the first trial, whose resource request may depend on its configuration, could run."""
        trial_id = trial_id_of(self._facts["prefix"], 0)
        config = self._source.ahead(trial_id)
        if isinstance(config, dict):
            try:
                running.parts.require_startable(self._bound, config, ledger)
            except BaseException:
                # The searcher is notified that the trial has ended, so that the searcher can clean up.
                self._source.on_trial_complete(trial_id, error=True)
                raise

    def _take_settings(self, store: running.ExperimentStore | running.MemoryStore) -> None:
        """Apply the settings that users' commands have changed in the file since this object read the
        file.
        """
        with store.reader() as reader:
            facts = reader.facts()
        known, now = self._facts["tune_config"], facts["tune_config"]
        changed = {name: now[name] for name in SETTABLE if now[name] != known.get(name)}
        total = self._facts.get("first_total_samples")
        self._facts |= facts
        self._tune = dataclasses.replace(self._tune, **changed)
        self._take_plan()
        if changed or total != self._facts.get("first_total_samples"):
            self._parts_unused = False

    def _go_beside(self) -> None:
        """Choose the next free name, such as "name_2", if an experiment of the requested name exists.

        A folder with a numbered name must not exist at all, because an existing folder would belong to the
        user.
        """
        folder, address = self.folder, self._address = self._named
        numbers = itertools.count(2)
        while (self.folder != folder and os.path.lexists(self.folder)) or running.is_taken(
            self.folder, self._address
        ):
            number = next(numbers)
            self.folder = folder.with_name(f"{folder.name}_{number}")
            if address is not None:
                self._address = dataclasses.replace(address, root=f"{address.root}_{number}")
        self._facts |= describe_address(self._address)
        if self.folder != folder:
            logger.warning("%s", went_beside(folder if address is None else address, self.folder))

    def _open_store(self) -> running.ExperimentStore | running.MemoryStore:
        if self._in_memory:
            return running.MemoryStore(self._facts, None if self._bound.here else self.folder)
        if self._resume is None:
            return running.ExperimentStore.create(self.folder, self._facts)
        return running.ExperimentStore.open(self.folder)

    def results(self) -> running.ResultGrid:
        """Return the results in the experiment's file; the experiment may be finished, running or
        interrupted.

        Raises:
            StoreError: the file is missing, damaged or not from trainkit.
        """
        grid = running.ResultGrid.load(self.folder, **self._goal)
        # The file can't store the objects in these configurations, so a replay of the searcher recreates the
        # objects.
        if any(holds_opaque(result.config) for result in grid):
            with running.ExperimentReader(self.folder) as reader:
                log = list(reader.log())
                # The trials are read after the log, so that they include every trial of the log.
                trials = reader.trials()
            self._take_parts(rehearsal=True)
            running.replay(log, trials, self._source, self._scheduler, space_since=self._space_since)
            configs = {trial.trial_id: trial.config for trial in trials}
            grid = running.ResultGrid.load(self.folder, **self._goal, configs=configs)
        return grid

    def _run_loop(
        self,
        ledger: ResourceLedger,
        executor: running.Executor,
        store: running.ExperimentStore | running.MemoryStore,
        reader: running.ExperimentReader | running.MemoryReader,
        interrupts: running.InterruptHandler,
        mirror: running.Mirror | None,
        since: float,
    ) -> running.Controller:
        restored, before = running.Restored([]), {"num_samples": self._facts["tune_config"]["num_samples"]}
        if self._resume is not None and isinstance(reader, running.ExperimentReader):
            restored = self._restore(self._resume, reader, store, ledger)
            if by := restored.steering.paused_by:
                logger.warning(
                    "%s was paused by %s, so no trial starts: run `trainkit resume %s`",
                    *(self.folder, by, self.folder),
                )
        self._source.experiment_path = str(self.folder)
        controller = running.Controller(
            self._plan,
            self._source,
            self._scheduler,
            ledger,
            restored.trials,
            restored.with_metric,
            stop=self._stop,
            spent_s=reader.spent_s() if self._run.stop is not None else 0.0,
            owed=restored.owed,
            steering=restored.steering,
        )
        callbacks = [
            *running.parts.make_callbacks(self._run, self._scheduler, in_memory=self._in_memory),
            running.parts.make_watch(self._plan.metrics, self._scheduler, self._tune, self._run),
            *([mirror] if mirror is not None else []),
        ]
        display = running.parts.make_display(self._run, executor.waits, in_memory=self._in_memory)
        strict = self._run.failure_config.fail_fast == "raise"
        hub = running.CallbackDispatcher(
            callbacks,
            controller.trials,
            reader.history,
            keep=lambda states: store.set_fact("callback_states", states),
            amend=store.amend,
            strict=cast("Sequence[Callback]", self._run.callbacks) if strict else (),
            display=display,
        )
        told = [*callbacks, *([] if display is None else [display])]
        by_id = {trial.trial_id: trial for trial in restored.trials}
        hub.setup(
            self._facts.get("callback_states", {}),
            stop=self._run.stop,
            num_samples=self._tune.num_samples,
            total_num_samples=controller.total_samples,
            experiment_path=str(self.folder),
            **self._goal,
            time=self._now(),
            resources=ledger.existing,
            past=functools.cache(lambda: [(by_id[name], each) for name, each in reader.past().items()]),
        )
        # The numbers of trials are stored for readers of the file, because a searcher or scheduler may have
        # changed the total number.
        store.set_fact("total_samples", controller.total_samples)
        first = self._facts.setdefault("first_total_samples", controller.total_samples)
        store.set_fact("first_total_samples", first)
        store.set_fact("objective", [self.metric, self.mode])
        store.set_fact("objectives", [[each.metric, each.mode] for each in self.objectives])
        loop = running.ExperimentLoop(
            controller,
            executor,
            store,
            hub,
            running.Inbox(self.folder, since, restored.commands),
            now=self._now,
            refresh_s=lambda: min(filter(None, (each._refresh_s for each in told)), default=None),
        )
        end = {"ending": "cut short", "in_order": False, "say": self._say, **loop.info()}
        try:
            with mirror.running() if mirror is not None else contextlib.nullcontext():
                try:
                    loop.run(interrupts)
                finally:
                    ending = controller.ending or ("" if controller.done else "cut short")
                    end |= {"ending": ending, "in_order": controller.done, **loop.info()}
                    end["why_fewer"] = controller.why_fewer
                    if controller.refused_total:  # the next restore must use the earlier number of trials
                        store.set_fact("tune_config", {**self._facts["tune_config"], **before})
                    hub.experiment_end(self._now, **end)
                    interrupts.give_back()  # from now on, Ctrl-C only ends the wait for the copy
        finally:
            hub.display_end(time=self._now(), **end)
        if hub.raised is not None:
            controller.fail_by(hub.raised[0])
        return controller

    def _say(self, line: str) -> None:
        if self._run.verbose:
            running.say(line)

    def _restore(
        self,
        rule: running.ResumeRule,
        reader: running.ExperimentReader,
        store: running.ExperimentStore | running.MemoryStore,
        ledger: ResourceLedger,
    ) -> running.Restored:
        if self._facts["trainable"] != self._bound.name:
            logger.warning(
                "%s was started with the trainable %s but continues with %s: is this change intended?",
                self.folder,
                self._facts["trainable"],
                self._bound.name,
            )
        now = self._now()
        if self._changes:
            logger.warning("%s continues with a changed space: %s", self.folder, "; ".join(self._changes))
        restored = running.restore_trials(
            reader,
            self._source,
            self._scheduler,
            rule,
            self._plan.metrics,
            now,
            self._stop,
            space_since=self._space_since,
            checkpoints=self._run.checkpoint_config,
        )
        if self._source.corrected:
            logger.warning(
                "%s suggests other configurations than before for %d of %d trials, because the searcher has "
                "changed or has no seed. It learns from their results as far as possible",
                self._source.name,
                self._source.corrected,
                len(restored.trials),
            )
        lost = sorted({*self._facts.get("containers", [])} - {*self._space.containers})
        runs_on = len(restored.trials) < self._facts.get("total_samples", 0)
        runs_on = runs_on or not all(trial.status.is_finished for trial in restored.trials)
        if lost and runs_on and not self._changes:
            words = "trials of %s get plain dicts and lists in place of %s: give a param_space that has them"
            logger.warning(words, self.folder, ", ".join(lost))
        if self._changes:
            self._facts |= {"space_since": len(restored.trials), "containers": self._space.containers}
            restored.records.append(running.Noted(now, "space changed", "; ".join(self._changes)))
            self._changes = ()  # the changes are cleared, so that a second `fit` does not record them again
        for trial in restored.trials:
            trial.trainable_name, trial.experiment_path = self._bound.name, str(self.folder)
            trial.evaluated_params = evaluated_of(trial.config, self._space.varied)
            if not trial.status.is_finished:
                trial.request = trial.granted or self._bound.request(trial.config)
                ledger.require_feasible(trial.request, what=f"trial {trial.name}")
        if restored.trials:
            running.parts.require_startable(self._bound, restored.trials[-1].config, ledger)
        else:
            self._require_first(ledger)
        store.commit(restored.records)
        running.tidy(restored.trials, self.folder)
        facts = {"space": self._space.tree, "space_since": self._facts.get("space_since", 0)}
        facts["containers"] = self._facts.get("containers", [])
        facts |= describe_address(self._address) | describe_settings(self._tune, self._run)
        self._facts["tune_config"] = facts["tune_config"]
        for key, value in facts.items():
            store.set_fact(key, value)  # the next restore uses the settings that this restore received
        return restored

    # --- parts ------------------------------------------------------------------------------------

    def _take_plan(self) -> None:
        saves = can_save(self._bound)
        self._plan = make_plan(self._tune, self._run, self.metric, self.objectives, saves=saves)

    def _take_parts(self, *, rehearsal: bool = False) -> None:
        """Create searcher, scheduler and stop rules for a single run or replay."""
        self._parts_unused = not rehearsal
        self._searcher, self._source, self._scheduler = setup.make_parts(
            self._tune,
            self._space,
            self._facts,
            trainable_name=self._bound.name,
            request_of=self._bound.request,
            rehearsal=rehearsal,
        )
        self._stop = StopRules.of(self._run.stop)
        metric, mode, _ = setup.goal_of(self._tune, self._searcher, self._scheduler)
        self._stop.begin(self._space, metric, mode, self._tune.limits, self._facts["seed"])

    @property
    def _space_since(self) -> int:
        """Index of the first trial that is drawn from the current space.

        If a restore has changed the space, the trials of earlier runs have smaller indexes.
        """
        return sys.maxsize if self._changes else self._facts.get("space_since", 0)

    def _seed_of_trial(self, index: int) -> int | None:
        return trial_seed(self._facts["seed"], index) if self._facts["seed_given"] else None
