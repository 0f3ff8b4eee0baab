"""Simulation of a search on a virtual clock."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from trainkit.plugins.simulation.executor import (
    Agenda,
    Failures,
    Script,
    SimulatedExecutor,
    slowdowns,
)
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.config import RunConfig, TuneConfig
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.controller.rules import StopRules
from trainkit.tune.core import seeds
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.checks import (
    require,
    require_kind,
    require_number,
    require_one_of,
    require_whole,
)
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.stoppers import Stopper
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial, safe_name
from trainkit.tune.experiment import parts, setup
from trainkit.tune.experiment.plan import make_plan
from trainkit.tune.experiment.stored_settings import new_facts
from trainkit.tune.results.result_grid import MemoryGrid
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.space.serialization import encode_config
from trainkit.tune.store.memory import MemoryStore

_FILLED_IN = frozenset("trial_id experiment_tag date pid hostname node_ip config done".split())
"""Fields that the controller adds to a report.

The log omits these fields, because other records contain them.
"""


def line_of(record: ev.Record) -> str:
    """Return `record` as a line of JSON: its kind, then its fields by name."""
    fields: dict[str, Any] = {
        name: getattr(record, name) for name in type(record).__match_args__ if name != "result"
    }
    if isinstance(record, ev.ResultAdded):
        fields["metrics"] = {name: value for name, value in record.metrics.items() if name not in _FILLED_IN}
    if isinstance(record, ev.TrialAdded):
        fields["config"] = encode_config(record.trial.suggested)
    return json.dumps([type(record).__name__, fields], default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case Trial():
            return value.trial_id
        case Decision():
            return [value.verdict, dict(value.reason), [donor.trial_id for donor in value.donors]]
        case Failure():
            return [value.kind, value.message]
        case SavedCheckpoint():
            return [value.number, value.iteration]
    return repr(value)


class Simulation(MemoryGrid):
    """Results of a simulated experiment.

    Args:
        store: the store with the records.
        metric, mode: default criterion for the best trial.
        workers: number of workers.
        ended_s: end of the experiment, in virtual seconds from the start.
        errors: exceptions of the objective, by trial and attempt.

    Attributes:
        workers, ended_s: values of the arguments with these names.
    """

    def __init__(
        self,
        store: MemoryStore,
        metric: str | None,
        mode: str | None,
        *,
        workers: int,
        ended_s: float,
        errors: Mapping[tuple[str, int], BaseException],
    ) -> None:
        super().__init__(store, metric, mode, errors)
        self.workers = workers
        self.ended_s = ended_s

    @property
    def work(self) -> int:
        """Total number of iterations that all trials reported; repeated iterations count again."""
        return sum(isinstance(record, ev.ResultAdded) for record in self._store.records)

    @property
    def busy_s(self) -> float:
        """Total busy time of all workers, in seconds."""
        return sum(
            (self.ended_s if span.ended is None else span.ended) - span.started for span in self.timeline
        )

    @property
    def utilisation(self) -> float:
        """Fraction of all workers' time during which the workers were busy."""
        return self.busy_s / (self.workers * self.ended_s) if self.ended_s else 0.0

    def log(self) -> Iterator[str]:
        """Return all events in order as lines of JSON; equal seeds give equal lines."""
        return map(line_of, self._store.records)

    @cached_property
    def log_hash(self) -> str:
        """Hash of the log, equal for simulations with equal events."""
        digest = hashlib.sha256()
        for line in self.log():
            digest.update(line.encode())
            digest.update(b"\n")
        return digest.hexdigest()


class WorkLimit(Stopper):
    """Stopper that ends the experiment after a total number of iterations of all trials.

    Args:
        max_work: number of iterations; repeated iterations count again.
    """

    def __init__(self, max_work: float) -> None:
        self.max_work = max_work
        self._work = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self._work += 1
        return False

    def stop_all(self) -> bool:
        return self._work >= self.max_work

    def reason(self) -> Mapping[str, Any]:
        return {"stopper": "max_work", "iterations": self._work}


@contextlib.contextmanager
def _seldom_collected() -> Iterator[None]:
    """Collect garbage a hundred times less often, because nearly all new objects are records that are kept.

    Full collections, which visit all records, become even rarer.
    """
    before = gc.get_threshold()
    gc.set_threshold(before[0] * 100, before[1] * 100, before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@_seldom_collected()
def _run_to_end(
    controller: Controller, executor: SimulatedExecutor, store: MemoryStore, agenda: Agenda[ev.Event]
) -> None:
    """Run a simulated experiment until the controller is done."""

    def apply(step: ev.Step) -> None:
        store.commit(step.records)
        for action in step.actions:
            ev.carry_out(executor, action)

    apply(controller.begin(agenda.now))
    ended = False
    while not controller.done:
        if not ended and controller.ended_by is not None:
            ended = True
            executor.cut()
        apply(controller.handle(_next_events(agenda, controller.deadline)))
    apply(controller.close(agenda.now))


def _next_events(agenda: Agenda[ev.Event], deadline: float) -> list[ev.Event]:
    """Return the next events, or a tick if the controller's deadline is earlier."""
    time = agenda.next_time
    if time is not None and time <= deadline:
        return agenda.take()
    if math.isinf(deadline):
        raise RuntimeError("no trial runs or can start, but the experiment has not ended")
    agenda.wait_until(deadline)
    return [ev.Tick(agenda.now)]


_TAKEN = ("stop", "failure_config")
"""Settings of RunConfig that a simulation uses; the other settings concern processes and files."""


def simulate(
    objective: Callable[..., Mapping[str, Any]],
    param_space: Mapping[str, Any] | None = None,
    tune_config: TuneConfig | None = None,
    *,
    workers: int = 1,
    horizon_s: float | None = None,
    max_work: float | None = None,
    seed: int | None = None,
    stragglers: float = 0.0,
    failures: float | Script = 0.0,
    resume: bool = True,
    run_config: RunConfig | None = None,
) -> Simulation:
    """Run a search on a virtual clock, without processes, with a Tuner's controller, searcher and scheduler.

    The result does not depend on real time, so equal arguments and seeds give equal events.

    Args:
        objective: function that takes `(config, training_iteration, rng)` and returns the trial's report for
            that iteration. The report's `time_this_iter_s` is the duration of the iteration in virtual
            seconds (default: 1); a true `done` ends the trial. `rng` is a NumPy generator that gives equal
            numbers for the same iteration of a trial in every simulation; the generator is valid only during
            the call. An objective with a fourth parameter, `state`, receives in this parameter the value that
            it last returned under the key "state" (at first None); the trial stores this state in its
            checkpoints.
        param_space: search space, as for a `Tuner`.
        tune_config: settings of the search, as for a `Tuner`.
        workers: number of concurrent trials.
        horizon_s: virtual seconds after which the experiment ends; None: no limit.
        max_work: total number of iterations of all trials after which the experiment ends; None: no limit.
            Other iterations that end at the same time are still reported.
        seed: seed of all random numbers; None: the seed of `tune_config`, or a different seed each time.
        stragglers: standard deviation s of a random slowdown: each attempt takes 1 + |N(0, s)| times as long.
        failures: probability that a running attempt fails within a second; or a list of the failures as pairs
            (second, number of the trial). `FailureConfig` determines the consequence: by default the trial
            ends as failed.
        resume: True: paused and failed trials resume where they stopped. False: such trials restart from the
            beginning and repeat their iterations.
        run_config: settings of the run, of which only `stop` and `failure_config` are used.

    Returns:
        The results, as from a `Tuner`, and the timeline and the log of all events.

    Raises:
        ConfigError: an argument is wrong, or nothing ends the experiment; SpaceError: the search space is
            wrong.
    """
    tune, run = tune_config or TuneConfig(), run_config or RunConfig()
    require_kind("tune_config", tune, TuneConfig, "tune.TuneConfig(metric='loss', mode='min')")
    require_kind("run_config", run, RunConfig, "tune.RunConfig(stop={'training_iteration': 10})")
    require(
        callable(objective), f"objective={objective!r}: give a function (config, training_iteration, rng)"
    )
    require_whole("workers", workers, 1)
    for name, limit in (("horizon_s", horizon_s), ("max_work", max_work)):
        require_number(name, limit, "a number above 0", above=0, optional=True)
    require_number("stragglers", stragglers, "a standard deviation of 0 or more", least=0)
    require_whole("seed", seed, 0, optional=True)
    require(
        seed is None or tune.seed in (None, seed),
        f"seed={seed!r} and TuneConfig(seed={tune.seed!r}) differ; give it in one place",
    )
    require_one_of("resume", resume, (True, False))
    _require_takable(run)
    _require_end(tune, run, horizon_s, max_work)
    seed = seed if seed is not None else tune.seed if tune.seed is not None else seeds.fresh_seed()
    workers, tune = int(workers), replace(tune, seed=seed)
    loss = Failures(failures, seed)
    name = getattr(objective, "__name__", type(objective).__name__)
    space = setup.make_space(param_space, tune)
    facts = new_facts(safe_name(name), space, tune, run, None, 0.0)
    searcher, source, scheduler = setup.make_parts(tune, space, facts, trainable_name=safe_name(name)[:100])
    parts.warn_if_never_perturbed(tune, run, source.total)
    metric, mode, objectives = setup.goal_of(tune, searcher, scheduler)
    stop: list[Any] = list(run.stop) if isinstance(run.stop, tuple) else [run.stop] if run.stop else []
    if max_work is not None:
        stop.append(WorkLimit(max_work))
    limits = [limit for limit in (horizon_s, cast("float | None", tune.time_budget_s)) if limit is not None]
    retried = run.failure_config.max_failures != 0
    plan = replace(
        make_plan(tune, run, metric, objectives),
        stop=stop or None,
        time_budget_s=min(limits, default=None),
        checkpoints=CheckpointConfig(num_to_keep=1),
        keeps_processes=resume and stragglers == 0,
    )
    ledger = ResourceLedger({"CPU": workers}, tune.max_concurrent_trials or None, simulated=True)
    rules = StopRules.of(plan.stop)
    rules.begin(space, metric, mode, tune.limits, seed)
    controller = Controller(plan, source, scheduler, ledger, stop=rules)
    agenda: Agenda[ev.Event] = Agenda()
    executor = SimulatedExecutor(
        objective=objective,
        workers=workers,
        agenda=agenda,
        slowdowns=slowdowns(stragglers, seed),
        failures=loss,
        seed=seed,
        resume=resume,
        marks=retried,
        endless=not limits and max_work is None and plan.max_iteration is None,
        relentless=tune.num_samples == -1 or run.failure_config.max_failures == -1,
        timed=bool(limits),
    )
    facts |= {
        "trainable": name,
        "total_samples": source.total,
        "objective": [metric, mode],
        "objectives": [[each.metric, each.mode] for each in objectives],
    }
    store = MemoryStore(facts)
    _run_to_end(controller, executor, store, agenda)
    controller.raise_error()
    _warn_if_unjudged(parts.make_watch(plan.metrics, scheduler, tune, run), controller.trials)
    return Simulation(store, metric, mode, workers=workers, ended_s=agenda.now, errors=executor.errors)


def _warn_if_unjudged(watch: Callback, trials: Sequence[Trial]) -> None:
    """Warn like a Tuner if reports lack values for the scheduler, or end before the first judgement."""
    reported = next((trial for trial in trials if trial.last_result), None)
    if reported is not None:
        watch.on_trial_result(0, trials, reported, reported.last_result)
    watch.on_experiment_end(trials)


def _require_takable(run: RunConfig) -> None:
    """Raise ConfigError if a setting is given that a simulation would ignore."""
    plain = RunConfig()
    unheeded = [
        name for name, value in vars(run).items() if name not in _TAKEN and value != getattr(plain, name)
    ]
    require(
        not unheeded,
        f"run_config gives {', '.join(unheeded)}, but a simulation uses only {' and '.join(_TAKEN)}",
    )


def _require_end(tune: TuneConfig, run: RunConfig, *limits: float | None) -> None:
    """Raise ConfigError if the number of trials is unlimited and nothing ends the experiment."""
    require(
        tune.num_samples != -1
        or any(limit is not None for limit in (*limits, tune.time_budget_s))
        or run.stop is not None
        or run.failure_config.max_failed_trials is not None,
        "num_samples=-1 never ends: give horizon_s or max_work, or a number of samples",
    )
