"""A controller with trials that a test plays by hand: no process, no clock, no file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainkit import tune
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.controller import Controller
from trainkit.tune.controller.rules import Plan
from trainkit.tune.core.capacity import ResourceLedger
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.core.trial import Failure, Trial
from trainkit.tune.schedulers import FIFOScheduler, TrialScheduler
from trainkit.tune.search import BasicVariantGenerator, Searcher
from trainkit.tune.search.trial_source import Proposals, TrialSource
from trainkit.tune.space.search_space import Space


class Play:
    """Drives a controller; every method returns the actions it asked for.

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
        **plan: Any,
    ) -> None:
        self.plan = Plan(**plan)
        self.searcher = searcher or BasicVariantGenerator()
        searched = Space.of(space or {"x": tune.uniform(0, 1)})
        self.searcher.begin(searched, metric=self.plan.metric, mode=mode, num_samples=num_samples, seed=0)
        proposals = Proposals(self.searcher, searched)
        scheduler = scheduler or FIFOScheduler()
        scheduler.set_search_properties(
            self.plan.metric, mode, scheduler_generator(0), self.searcher.total_samples
        )
        source = TrialSource(
            proposals,
            varied=searched.varied,
            prefix="test",
            trainable_name="f",
            request_of=request_of or (lambda config: PlacementGroupFactory([{"CPU": 1}])),
        )
        self.controller = Controller(
            self.plan, source, proposals, scheduler, ResourceLedger({"CPU": cpus}, max_concurrent)
        )
        self.records: list[ev.Record] = []
        self.calls: dict[str, str] = {}
        self.adoptions: list[ev.Adopt] = []
        self.time = 0.0
        self.iterations: dict[str, int] = {}
        self.begun = self._take(self.controller.begin(self.time))

    def _take(self, step: ev.Step) -> list[ev.Action]:
        self.records += step.records
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

    def lost(self, by: str = "") -> list[ev.Action]:
        """The node has died, and every process with it."""
        self.calls.clear()
        return self.send(ev.SessionLost(self.time, "the node died", by))

    def statuses(self) -> list[str]:
        return [str(trial.status) for trial in self.controller.trials]

    def recorded(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]
