"""A controller with trials that a test plays by hand: no process, no clock, no file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.controller.rules import Plan, StopRules
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.core.trial import Failure, Trial
from trainkit.tune.schedulers import FIFOScheduler, PopulationBasedTraining, TrialScheduler
from trainkit.tune.search import BasicVariantGenerator, Searcher
from trainkit.tune.search.trial_source import TrialSource
from trainkit.tune.space.search_space import Space
from trainkit.tune.store.restore import Restored, ResumeRule, restore_trials
from trainkit.tune.store.writer import ExperimentStore


class Play:
    """Drives a controller; every method returns the actions it asked for.

    Args:
        store: where the records go, and from which the experiment is restored; None: nowhere.
        first_total: how many trials there were to be at first, where that is known; 0: as many as there are.
        started: of how many trials, from the first on, the processes have come up.

    Attributes:
        records: everything it had recorded, in order.
        calls: by trial, what is out to it: setup, advance, save or stop.
        adoptions: asked for and not answered, in order.
    """

    def __init__(
        self,
        *,
        num_samples: int = 4,
        cpus: float = 2,
        scheduler: TrialScheduler | None = None,
        searcher: Searcher | None = None,
        request_of: Callable[[dict[str, Any]], PlacementGroupFactory] | None = None,
        max_concurrent: int | None = None,
        mode: str = "min",
        space: dict[str, Any] | None = None,
        store: ExperimentStore | None = None,
        first_total: int | None = 0,
        started: int = 0,
        metric: str | None = None,
        **plan: Any,
    ) -> None:
        self.plan = Plan(metrics=() if metric is None else (metric,), **plan)
        self.searcher = searcher or BasicVariantGenerator()
        searched = Space.of(space or {"x": tune.uniform(0, 1)})
        self.searcher.begin(searched, metric=metric, mode=mode, num_samples=num_samples, seed=0)
        source = TrialSource(
            self.searcher, searched, prefix="test", trainable_name="f", request_of=request_of
        )
        scheduler = scheduler or FIFOScheduler()
        scheduler.set_search_properties(
            metric,
            mode,
            scheduler_generator(0),
            self.searcher.total_samples if first_total == 0 else first_total,
        )
        self.store = store
        restored = Restored([])
        if store is not None:
            with store.reader() as reader:
                restored = restore_trials(
                    reader, source, scheduler, ResumeRule(), (), 1e6, StopRules.of(self.plan.stop)
                )
                store.commit(restored.records)
        for trial in restored.trials:
            trial.request = source.request(trial)
        self.controller = Controller(
            self.plan,
            source,
            scheduler,
            ResourceLedger({"CPU": cpus}, max_concurrent),
            restored.trials,
            restored.with_metric,
            owed=restored.owed,
            steering=restored.steering,
        )
        self.records: list[ev.Record] = []
        self.calls: dict[str, str] = {}
        self.adoptions: list[ev.Adopt] = []
        self.time = 0.0 if not restored.trials else 1e6
        self.iterations: dict[str, int] = {}
        self.begun = self._take(self.controller.begin(self.time))
        for index in range(started):
            self.started(index)

    def _take(self, step: ev.Step) -> list[ev.Action]:
        self.records += step.records
        if self.store is not None:
            for record in step.records:
                if isinstance(record, ev.CheckpointAdded):
                    place = self.store.folder / record.trial.dirname / record.checkpoint.dirname
                    place.mkdir(parents=True, exist_ok=True)
            self.store.commit(step.records)
        for action in step.actions:
            match action:
                case ev.Start(trial, _, iteration, _):
                    assert trial.trial_id not in self.calls, "two processes for one trial"
                    self.calls[trial.trial_id] = "setup"
                    self.iterations[trial.trial_id] = iteration
                case ev.Advance(trial_id):
                    assert self.calls[trial_id] == "", "advanced while it runs"
                    self.calls[trial_id] = "advance"
                case ev.Save(trial_id):
                    assert self.calls[trial_id] == "", "told to save while it runs"
                    self.calls[trial_id] = "save"
                case ev.Adopt():
                    self.adoptions.append(action)
                case ev.Stop(trial_id):
                    assert self.calls[trial_id] == "", "stopped while it runs"
                    self.calls[trial_id] = "stop"
                case ev.Release(trial_id) | ev.Kill(trial_id):
                    self.calls.pop(trial_id, None)
        return step.actions

    def send(self, *batch: ev.Event) -> list[ev.Action]:
        for event in batch:
            trial_id = getattr(event, "trial_id", None)
            if trial_id in self.calls:
                self.calls[trial_id] = ""
        return self._take(self.controller.handle(batch))

    def trial(self, index: int) -> Trial:
        return self.controller.trials[index]

    def _who(self, index: int) -> tuple[str, int, float]:
        trial = self.trial(index)
        self.time += 0.001
        return trial.trial_id, trial.attempt, self.time

    def placed(self, index: int) -> list[ev.Action]:
        trial_id, attempt, time = self._who(index)
        return self._take(self.controller.handle([ev.Placed(trial_id, attempt, time)]))

    def started(self, index: int) -> list[ev.Action]:
        return self.send(
            ev.Started(*self._who(index), pid=1000 + index, hostname="here", node_ip="127.0.0.1")
        )

    def ends(self, index: int, metrics: Mapping[str, Any] = MappingProxyType({})) -> list[ev.Action]:
        """It comes up, and its only report is its last."""
        self.started(index)
        return self.reported(index, metrics, done=True)

    def pauses(self, index: int, metrics: Mapping[str, Any]) -> list[ev.Action]:
        """It comes up, reports, and leaves a checkpoint as it is told to stop."""
        self.started(index)
        self.reported(index, metrics)
        return self.finished(index, f"checkpoint_{self.trial(index).next_checkpoint:06d}")

    def reported(
        self, index: int, metrics: Mapping[str, Any], checkpoint: str | None = None, done: bool = False
    ) -> list[ev.Action]:
        return self.send(self.report(index, metrics, checkpoint, done))

    def report(
        self, index: int, metrics: Mapping[str, Any], checkpoint: str | None = None, done: bool = False
    ) -> ev.Reported:
        trial_id = self.trial(index).trial_id
        self.iterations[trial_id] += 1
        iteration = self.iterations[trial_id]
        filled = {"training_iteration": iteration, **metrics}
        return ev.Reported(*self._who(index), iteration, filled, checkpoint, done)

    def finished(self, index: int, checkpoint: str | None = None, problem: str = "") -> list[ev.Action]:
        iteration = self.iterations[self.trial(index).trial_id]
        return self.send(ev.Finished(*self._who(index), iteration, checkpoint, problem))

    def saved(self, index: int, checkpoint: str | None = None) -> list[ev.Action]:
        iteration = self.iterations[self.trial(index).trial_id]
        return self.send(ev.Saved(*self._who(index), iteration, checkpoint))

    def adopted(self, problem: str = "") -> list[ev.Action]:
        """The first of the adoptions that were asked for is made, or is not."""
        asked = self.adoptions.pop(0)
        dirname = None if problem else asked.dirname
        return self.send(ev.Adopted(*self._who(asked.trial.index), dirname, problem))

    def failed(self, index: int, kind: str = "ValueError", retry: bool = True) -> list[ev.Action]:
        return self.send(ev.Failed(*self._who(index), Failure(kind, "no luck", "trace", retry)))

    def tick(self, seconds: float) -> list[ev.Action]:
        self.time += seconds
        return self.send(ev.Tick(self.time))

    def interrupt(self) -> list[ev.Action]:
        return self.send(ev.Interrupted(self.time))

    def order(self, verb: str, by: str = "ann", **arguments: Any) -> list[ev.Action]:
        """Somebody steers; what came of it is the last of `answers`."""
        return self.send(ev.CommandGiven(self.time, by, verb, arguments, f"c{len(self.answers)}"))

    @property
    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(each.detail) for each in self.recorded(ev.Noted) if each.kind == ev.COMMAND]

    def lost(self, by: str = "") -> list[ev.Action]:
        """The node has died, and every process with it."""
        self.calls.clear()
        return self.send(ev.SessionLost(self.time, "the node died", by))

    def statuses(self) -> list[str]:
        return [str(trial.status) for trial in self.controller.trials]

    def recorded(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]


def kinds(actions: list[ev.Action]) -> list[str]:
    return [type(action).__name__ for action in actions]


def refusal(play: Play) -> str:
    """Why the last command was refused."""
    assert play.answers[-1]["done"] is False
    return play.answers[-1]["outcome"]


def outcome(play: Play) -> str:
    assert play.answers[-1]["done"] is True, play.answers[-1]
    return play.answers[-1]["outcome"]


def configs(play: Play) -> list[dict[str, Any]]:
    return [trial.config for trial in play.controller.trials]


def population(**settings: Any) -> PopulationBasedTraining:
    given = {"perturbation_interval": 1, "hyperparam_mutations": {"x": [0.1, 0.5, 0.9]}, **settings}
    return PopulationBasedTraining("training_iteration", "m", "min", **given)
