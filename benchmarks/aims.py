"""Aims of the rows, by benchmark and row name: the table for judging speed."""

from __future__ import annotations

from typing import NamedTuple


class Aim(NamedTuple):
    """Aim of a row.

    Attributes:
        value: limit of the row's value, in its unit: an upper limit, or a lower one where more is better.
        times: lower limit of the factor by which the row is better than the other side.
    """

    value: float | None = None
    times: float | None = None


NO_AIM = Aim()


def of(part: float) -> Aim:
    """Return the aim of taking at most the share `part` of the other side's time."""
    return Aim(times=1 / part)


AIMS = {
    "runtime": {
        "import trainkit": Aim(100),
        "import and init to the first answer": Aim(0.3),
        "actor calls, one at a time": Aim(times=8),
        "actor calls, many in flight": Aim(times=20),
        "tasks, one at a time": Aim(times=8),
        "tasks, many in flight": Aim(200_000, times=20),
        "200 times a task in a task in a task, 1 CPU": Aim(times=3),
        "200 times a task in a task in a task, 2 CPUs": Aim(times=3),
        "put of a small value": Aim(times=10),
        "get of a small value": Aim(times=10),
        "100 MB array as an argument, the first": Aim(times=0.9),
        "100 MB array as an argument, each after it": Aim(times=3),
        "a second reader of one 100 MB array copies": Aim(1),
        "ten more actors, each with torch": Aim(times=30),
        "ten more actors that import torch themselves": Aim(1.5),
        "unshared memory of each while idle": Aim(15),
        "a call with 200 idle actors, against none": Aim(1.2),
        "a million small calls leave in the driver": Aim(10),
        "a million small calls leave in the node": Aim(10),
        "a million small calls leave in the worker": Aim(10),
    },
    "tuning": {
        "trainkit --help": Aim(0.08),
        "import trainkit.tune and a first Tuner": Aim(0.15),
        "a trivial trial in a fresh process, of 100": Aim(8, times=120),
        "a trivial trial with reuse_actors=True, of 1,000": Aim(1.5),
        "a trivial trial on the inline engine, of 100": Aim(5),
        "results from two trials, all default loggers": Aim(15_000, times=12),
        "10,000 trials: the last thousand, times the first": Aim(1.1),
        "10,000 trials: the driver's memory grows from trial 500 on": Aim(100),
        "10,000 trials: a write of the state after 5,000": Aim(5),
        "10,000 trials: that is more than after trial 500 by": Aim(10),
        "10,000 trials: restore of them all": Aim(3),
        "10,000 x 0.1 s on 16 CPUs, reuse: over 62.5 s by": Aim(3),
        "10,000 x 0.1 s on 16 CPUs, fresh: over 62.5 s by": Aim(25),
        "OptunaSearch's CPU time beyond random's, of that loop's": Aim(2),
        "on the disk, of a trial": Aim(times=1),
        "files on the disk, of a trial": Aim(times=1),
        "100,000 trials: the last thousand, times the first": Aim(1.1),
        "100,000 trials: the driver's memory at the end": Aim(500),
        "100,000 trials: restore of them all": Aim(20),
        "100,000 trials: trainkit ls": Aim(1),
        "100,000 trials: get_dataframe": Aim(5),
    },
    "training": {
        "an epoch on one worker, on one core": Aim(times=0.99),
        "an epoch on one worker, where a core is free": Aim(times=1.15),
        "a step of two DDP workers (torchrun)": Aim(times=1),
        "bookkeeping of an epoch, workers: 1": Aim(1),
        "bookkeeping of an epoch, workers: 2": Aim(1),
        "held by each of two workers with FSDP2 (DDP)": of(0.6),
        "a step while a checkpoint is written (undisturbed)": of(1.1),
        "save(wait=False) beyond the copy": Aim(0.1),
        "from nothing to the first epoch of two workers": of(0.35),
        "a second trainer and its first epoch (torchrun from nothing)": of(0.15),
        "from nothing to the first epoch of a function on two workers": of(0.65),
        "a second fit of a function (torchrun from nothing)": of(0.3),
        "from nothing to the first epoch of a script, two ranks (torchrun)": of(0.65),
        "from nothing to the first epoch of a script, two ranks (accelerate launch)": of(0.65),
        "a step of a function on two workers (torchrun)": Aim(times=0.99),
    },
    "sklearn_searches": {
        "48 fits of an SVM on the digits": of(1.05),
        "300 tiny fits, warm": of(1.1),
        "SGD with early stopping (RandomizedSearchCV)": of(0.4),
        "SGD with early stopping (HalvingRandomSearchCV)": of(0.8),
        "its best score (RandomizedSearchCV)": Aim(times=0.995),
        "its best score (HalvingRandomSearchCV)": Aim(times=0.998),
        "300 tiny fits in a new program": of(0.5),
        "4 candidates of an SVM in 50 folds": of(1),
        "1,000 tiny candidates": of(1),
        "memory of that program and its workers, of 1,000": of(1),
        "5,000 tiny candidates": of(1),
        "memory of that program and its workers, of 5,000": of(1),
        "unshared memory of 4 workers on 500 MB grows by": Aim(600),
    },
    "pools": {
        "empty calls (ProcessPoolExecutor)": Aim(times=3),
        "empty calls (loky)": Aim(times=5),
        "copies of a 100 MB array that eight calls take": Aim(1),
        "cross_val_score of an SVM with two jobs (loky)": of(1),
        "from an import to the first result (loky)": Aim(0.3),
    },
    "dashboard": {
        "5,000 trials: first contentful paint, of a new server": Aim(1),
        "5,000 trials: the page with its best trials, of a new server": Aim(1),
        "5,000 trials: a page of the table, shown": Aim(0.3),
        "curves of 200 trials: drawn": Aim(0.5),
        "100,000 trials: first contentful paint, of a new server": Aim(3),
        "100,000 trials: the page with its best trials, of a new server": Aim(3),
        "100,000 trials: the server's memory then": Aim(300),
        "reports of two trials beside five clients without a browser (none)": Aim(times=0.97),
    },
    "decision_cost": {
        "ASHA, stopping": Aim(100),
        "ASHA, promotion": Aim(100),
        "median, whole iterations": Aim(100),
        "median, time_total_s": Aim(5_000),
        "BOHB, a suggestion": Aim(20_000),
    },
    "simulator": {
        "FIFO, 27 reports a trial: jobs": Aim(60_000),
        "ASHA stopping, a report a rung: jobs": Aim(50_000),
        "ASHA promotion, a report a rung: jobs": Aim(40_000),
        "10,000 workers, 200,000 jobs (ASHA, a report a rung): CPU": Aim(12),
        "10,000 workers, 1,000,000 jobs (ASHA, a report a rung): CPU": Aim(60),
    },
    "gpu": {
        "one device: a step": Aim(times=0.98),
        "one device: high-water mark of memory": Aim(times=0.98),
        "two workers, DDP (torchrun): a step": Aim(times=0.98),
    },
    "decisions": {"differences without a known cause": Aim(0)},
    "search": {"toy: figures that differ where nothing is drawn": Aim(0)},
    "kills": {
        "acknowledged results missing": Aim(0),
        "results there twice": Aim(0),
        "numbers that differ from an undisturbed run": Aim(0),
        "requests to end that were ignored": Aim(0),
        "programs that hang": Aim(0),
        "things left behind": Aim(0),
        "errors that do not name the damaged file": Aim(0),
        "exit codes that do not name the signal": Aim(0),
        "ranks that end at different steps": Aim(0),
        "incomplete files after a request to end": Aim(0),
    },
    "resume_time": {
        **{f"beyond a start at {percent} % of an epoch": Aim(1.5) for percent in (10, 50, 90)},
        "the program grows over many saves by": Aim(10),
        "its session grows over many saves by": Aim(10),
    },
    "soak": {"calls answered wrongly": Aim(0), "processes left behind": Aim(0)},
}
