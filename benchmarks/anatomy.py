"""Where time goes: `python -m benchmarks.anatomy [--only OPERATION] [--small]`.

For an actor call, a task, a report, a trial, a training step and a fold, this prints the time in
microseconds, its limit, and the time of each stage. The limit is bare work that the operation can't avoid,
measured alternately with it in the same run: for a call and a task, a round trip of a pickle between two
processes; for a report, a bare commit to SQLite; for a trial, a fork and the wait for its end; for a training
step, the plain loop; for a fold, plain fit and score.

Functions are wrapped from outside to record moments, in the process in which they run. Each moment takes half
a microsecond.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import trainkit
from benchmarks import anatomy_work, limits
from benchmarks.interleaved import Plain
from benchmarks.moments import NOTED, Watched, note, stages, watching
from benchmarks.rows import Report, Row, parser
from trainkit import train, tune

PARTS = 6
"""Number of measurements of each operation and its limit, in turn; each measurement has its own medians."""


class Operation(NamedTuple):
    """An operation that is measured by stages.

    Attributes:
        limit: bare work.
        count: number of operations to which the time of `limit` belongs.
        part: function that measures several operations; returns microseconds by stage, the whole first.
        held: stages that have limits too, as shares of the whole's limit.
    """

    limit: Plain
    count: int
    part: Callable[[], Mapping[str, float]]
    held: Mapping[str, float] = MappingProxyType({})


def _calls(what: str, count: int, make: Callable[[], tuple[Any, Callable[[], Any]]]) -> Iterator[Operation]:
    """Yield the operation of calling one remote function or method, one call at a time."""
    from trainkit.runtime.local.client.refs import CallConnection

    path = {
        "call": what,
        "sent": "driver: reference and arguments, to the socket",
        "arrived": "to the worker, and read there",
        "user": "worker: to the user's code",
        "answered": "worker: the answer, to the socket",
        "read": "back to the driver",
        "got": "driver: the value, out of get()",
    }
    function, noted = make()

    def part() -> Mapping[str, float]:
        NOTED.clear()
        noted()
        for index in range(count):
            note("call")
            trainkit.get(function.remote(index))
            note("got")
        return stages(path, {**noted(), **NOTED})

    functions = (Watched(CallConnection, "_write", "sent"), Watched(CallConnection, "on_frame", "read"))
    with limits.round_trips(count) as limit, watching(*functions):
        yield Operation(limit, count, part, {path["arrived"]: 0.5, path["read"]: 0.5})


@contextmanager
def actor_call(scale: float) -> Iterator[Operation]:
    """Measure `get(actor.method.remote(1))`."""

    def make() -> tuple[Any, Callable[[], Any]]:
        actor = trainkit.remote(anatomy_work.Answering).remote()
        return actor.same, lambda: trainkit.get(actor.noted.remote())

    with trainkit.init(num_cpus=1):
        yield from _calls("an actor call", max(20, int(1_000 * scale)), make)


@contextmanager
def task(scale: float) -> Iterator[Operation]:
    """Measure `get(task.remote(1))`, with one CPU, so that only one worker exists."""

    def make() -> tuple[Any, Callable[[], Any]]:
        trainkit.get(trainkit.remote(anatomy_work.watch_calls).remote())
        noted = trainkit.remote(anatomy_work.noted)
        return trainkit.remote(anatomy_work.same), lambda: trainkit.get(noted.remote())

    with trainkit.init(num_cpus=1):
        yield from _calls("a task", max(20, int(1_000 * scale)), make)


def _fit(folder: str, trainable: Any, space: dict[str, Any], samples: int) -> tune.ResultGrid:
    config = tune.TuneConfig(
        metric="loss", mode="min", num_samples=samples, max_concurrent_trials=1, search_alg="random"
    )
    run = tune.RunConfig(storage_path=folder, name=f"run_{len(list(Path(folder).iterdir()))}", verbose=0)
    return tune.Tuner(trainable, param_space=space, tune_config=config, run_config=run).fit()


@contextmanager
def report(scale: float) -> Iterator[Operation]:
    """Measure `tune.report(...)`, in a trial that is an actor."""
    from trainkit.runtime.local.client.refs import CallConnection
    from trainkit.tune.controller.controller import Controller
    from trainkit.tune.store.writer import ExperimentStore

    count = max(20, int(500 * scale))
    path = {
        "report": "a report",
        "read": "worker: checked, and sent to the driver",
        "decide": "driver: out of the reference, to the loop",
        "decided": "driver: the controller, with scheduler and stop rules",
        "commit": "driver: to the store",
        "committed": "driver: the commit",
        "told": "driver: the next call, to the socket",
        "back": "worker: back to the user's code",
    }
    functions = (
        Watched(CallConnection, "on_frame", "read"),
        Watched(Controller, "handle", "decide", "decided"),
        Watched(ExperimentStore, "commit", "commit", "committed"),
        Watched(CallConnection, "_write", "told"),
    )
    with tempfile.TemporaryDirectory() as folder, trainkit.init(num_cpus=1), watching(*functions):
        file = Path(folder, "moments.json")
        storage = Path(folder, "experiments")
        storage.mkdir()

        def part() -> Mapping[str, float]:
            NOTED.clear()
            _fit(str(storage), anatomy_work.reporting, {"reports": count, "file": str(file)}, 1)
            return stages(path, {**NOTED, **json.loads(file.read_text())})

        with limits.commits(Path(folder), 100) as limit:
            yield Operation(limit, 100, part, {path["committed"]: 1})


@contextmanager
def trial(scale: float) -> Iterator[Operation]:
    """Measure trials that report once, one after another, each in a separate process."""
    from benchmarks import anatomy_trials
    from trainkit.runtime.local.client.node_client import NodeClient
    from trainkit.tune.controller.controller import Controller
    from trainkit.tune.executor.actors import ActorExecutor, LeavingProcesses
    from trainkit.tune.store.writer import ExperimentStore

    count = max(6, int(30 * scale))
    path = {
        "fork": "a trial",
        "asked": "driver: the request for a process, to the socket",
        "forked": "node and template: resources granted, a worker forked",
        "made": "worker: its surroundings, and the trial's actor",
        "told": "to the call that says what to run",
        "runs": "worker: the trial's folder and log files, to the user's code",
        "decide": "back to the driver's loop",
        "decided": "driver: the controller",
        "committed": "driver: the commit",
        "leaves": "the last words, to the process being told to leave",
        "next": "it has left, and the next one is chosen",
    }
    functions = (
        Watched(ActorExecutor, "_fork", "fork"),
        Watched(NodeClient, "tell", "asked"),
        Watched(Controller, "handle", "decide", "decided"),
        Watched(ExperimentStore, "commit", after="committed"),
        Watched(LeavingProcesses, "let_leave", after="leaves"),
    )
    session = trainkit.init(num_cpus=1, preload=["benchmarks.anatomy_trials"])
    with tempfile.TemporaryDirectory() as folder, session, watching(*functions):

        def part() -> Mapping[str, float]:
            NOTED.clear()
            results = _fit(folder, anatomy_trials.trivial, {"x": tune.uniform(0, 1)}, count)
            noted = {
                moment: sorted(int(result.metrics[moment]) for result in results)
                for moment in (*anatomy_trials.MOMENTS, "runs")
            }
            return stages(path, {**NOTED, **noted, "next": NOTED["fork"][1:]})

        yield Operation(Plain(limits.forks), limits.FORKS, part, {path["forked"]: 1})


@contextmanager
def training_step(scale: float) -> Iterator[Operation]:
    """Measure a step of one worker, and a step of the plain loop."""
    import torch
    from torch.utils.data import DataLoader

    from benchmarks.training_data import make_data
    from benchmarks.training_job import BATCH_SIZE, make_model, make_optimizer, train_steps
    from benchmarks.training_trainer import Digits

    count = max(4, int(150 * scale))
    path = {
        "counted": "a training step",
        "fetched": "the batch, out of the loader",
        "begun": "to train_batch()",
        "forward": "to the forward pass",
        "backward": "forward and backward",
        "stepped": "the optimizer's step",
        "counted again": "metrics",
    }
    torch.set_num_threads(1)
    model, data = make_model(), make_data()
    optimizer, loader = make_optimizer(model), DataLoader(data, BATCH_SIZE, shuffle=True)
    with train.TorchTrainer(training_operator_cls=Digits, config={"data": data}, use_gpu=False) as trainer:
        trainer.apply_all_operators(anatomy_work.watch_steps)

        def part() -> Mapping[str, float]:
            trainer.train(num_steps=count, max_retries=0)
            (noted,) = trainer.apply_all_operators(anatomy_work.noted_steps)
            return stages(path, {**noted, "counted again": noted["counted"][1:]})

        yield Operation(Plain(lambda: train_steps(model, optimizer, loader, 4)), 4, part)
    trainkit.shutdown()


@contextmanager
def fold(scale: float) -> Iterator[Operation]:
    """Measure a fold of a search over estimators with one job, and plain fit and score."""
    from sklearn.base import clone

    from benchmarks.anatomy_folds import DATA, SPLITS, Stamped, parts_of, scored
    from trainkit.sklearn import TuneGridSearchCV

    X, y = DATA
    grid = {"var_smoothing": [10.0**-power for power in range(3, 3 + max(4, int(40 * scale)))]}

    def plain() -> None:
        for train_rows, test_rows in SPLITS:
            scored(clone(Stamped()).fit(X[train_rows], y[train_rows]), X[test_rows], y[test_rows])

    def part() -> Mapping[str, float]:
        search = TuneGridSearchCV(Stamped(), grid, cv=SPLITS, n_jobs=1, scoring=scored, refit=False)
        return parts_of(search.fit(X, y).cv_results_)

    with trainkit.init(num_cpus=1):
        yield Operation(Plain(plain), len(SPLITS), part)


OPERATIONS: Mapping[str, Callable[[float], AbstractContextManager[Operation]]] = {
    "actor call": actor_call,
    "task": task,
    "report": report,
    "trial": trial,
    "training step": training_step,
    "fold": fold,
}


def rows_of(operation: Operation, parts: int) -> Iterator[Row]:
    """Yield a row for the whole operation beside its limit, and a row for each stage."""
    limit, count, part, held = operation
    bare, found = [], []
    for _ in range(parts):
        bare.append(limit.look() / count * 1e6)
        found.append(part())
    whole, *rest = found[0]
    yield Row(whole, "us").measured([each[whole] for each in found], bare, plain=limit.times)
    for stage in rest:
        least = [each * held[stage] for each in bare] if stage in held else ()
        row = Row(f"{whole}: {stage}", "us")
        yield row.measured([each[stage] for each in found], least, plain=limit.times)


def main() -> None:
    """Measure and print the rows."""
    options = parser(__doc__)
    options.add_argument("--only", choices=list(OPERATIONS), action="append", help="may be given again")
    given = options.parse_args()
    with Report("anatomy", "limit", small=given.small) as report:
        for name in given.only or OPERATIONS:
            with OPERATIONS[name](0.0 if given.small else 1.0) as operation:
                for row in rows_of(operation, 1 if given.small else PARTS):
                    report.add(row)


if __name__ == "__main__":
    # Imported by its name, because objects of `__main__` would be sent to workers by value.
    importlib.import_module("benchmarks.anatomy").main()
