"""Overview of an experiment from its folder, which another process may still be writing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.estimate import RunningTrial, remaining_s
from trainkit.tune.controller.rules import INTERRUPTED
from trainkit.tune.controller.state import Steering
from trainkit.tune.core.constraints import VIOLATION
from trainkit.tune.core.metrics import decode
from trainkit.tune.core.objectives import NONE_BEST, NONE_FEASIBLE
from trainkit.tune.core.trial import STATES, Trial, TrialStatus, state_of
from trainkit.tune.results.reading import metric_and_mode
from trainkit.tune.schedulers.base import in_words
from trainkit.tune.store.ownership import owner_of
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.trial.environment import log_files

VALUE = "coalesce(json_extract(metrics, ?), json_extract(metrics, ?))"
FINITE = "CASE WHEN typeof(value) IN ('integer', 'real') THEN value END"
"""SQL expressions for a metric's value at its two possible `paths`, and for the value if it is a finite
number.
"""


def experiments_in(root: Path) -> list[Path]:
    """Return the experiment folders in `root`, sorted by name; or `root` if it is an experiment itself."""
    if (root / FILENAME).exists():
        return [root]
    return sorted(path.parent for path in root.glob(f"*/{FILENAME}"))


def paths(metric: str) -> tuple[str, str]:
    """Return the two possible JSON paths of a metric: as a flat key, and as nested keys."""
    return "$." + json.dumps(metric), "$." + ".".join(map(json.dumps, metric.split("/")))


_OF_PLACE = ("trial_id", "attempt", "iteration", "verdict")
"""Keys of a decision that identify the decision and do not belong to its reason."""


def reasons_of(decision: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the reason for a decision of a scheduler or a stop rule, as values by name and as text.

    The schedulers' function `load_words` must have been called before.
    """
    facts = {name: value for name, value in decision.items() if name not in _OF_PLACE}
    return facts, str(facts["stop"]) if "stop" in facts else in_words(facts)


@dataclass(frozen=True, slots=True)
class Report:
    """One report of a trial."""

    trial_id: str
    attempt: int
    iteration: int
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogEvent:
    """Entry of the log with its number in the log and its time in seconds since 1970."""

    seq: int
    time: float
    kind: str
    detail: str


class LogReader(ExperimentReader):
    """Reader of an experiment's log, which may still be written."""

    def events(self, trial_id: str | None = None) -> list[LogEvent]:
        """Return the log entries of a trial in order; None: entries about the whole experiment."""
        rows = self._rows(
            "SELECT seq, time, kind, detail FROM events WHERE trial_id IS ? ORDER BY seq", trial_id
        )
        return [LogEvent(*row) for row in rows]

    def last_event(self) -> int:
        """Return the number of the last log entry; 0 for an empty log."""
        (row,) = self._rows("SELECT coalesce(max(seq), 0) FROM events")
        return int(row[0])

    def commands(self, after: int = 0) -> list[LogEvent]:
        """Return the commands to the experiment after log entry `after`, in order."""
        rows = self._rows(
            "SELECT seq, time, kind, detail FROM events WHERE seq > ? AND kind = ? ORDER BY seq",
            after,
            ev.COMMAND,
        )
        return [LogEvent(*row) for row in rows]

    def steering(self) -> Steering:
        """Return the users' commands that still apply."""
        found = Steering()
        for event in self.commands():
            command = decode(event.detail)
            if command["done"]:
                found.take(command["verb"], command["arguments"], command["by"], event.time)
        concerned = {*found.holds, *found.pulled, *found.first}
        for (trial_id,) in self._rows(
            "SELECT trial_id FROM trials WHERE status IN ('TERMINATED', 'ERROR') "
            "AND trial_id IN (SELECT value FROM json_each(?))",
            json.dumps(list(concerned)),
        ):
            found.forget(trial_id)
        return found

    def stand_still(self) -> None:
        """Freeze the reader's view, so that all later reads return the state at the time of this call."""
        list(self._rows("BEGIN"))

    def counts(self, *, owned: bool) -> Counter[str]:
        """Return the number of trials by state.

        Args:
            owned: True if a process runs the experiment; otherwise running trials count as interrupted.
        """
        self._connection.create_function("state_of", 2, state_of, deterministic=True)
        meant = {"interrupted": "pending"} if owned else {"running": "interrupted"}
        numbers: Counter[str] = Counter()
        for state, number in self._rows("SELECT state_of(status, reason), count(*) FROM trials GROUP BY 1"):
            numbers[meant.get(state, state)] += number
        return numbers

    def last_values(self, metric: str) -> dict[str, float]:
        """Return the metric in each trial's last report if it is finite, in the order of suggestion.

        Args:
            metric: name, or a path such as "eval/loss".
        """
        found = self._rows(
            # The subquery reads only the last report of each trial. The plus before trial_index makes SQLite
            # sort the trials instead of looking up each trial by an index.
            f"SELECT trial_id, (SELECT {VALUE} FROM results r WHERE r.trial_id = t.trial_id "
            "ORDER BY attempt DESC, iteration DESC LIMIT 1) FROM trials t ORDER BY +trial_index",
            *paths(metric),
        )
        return {trial_id: value for trial_id, value in found if isinstance(value, (int, float))}

    def lengths(self) -> tuple[list[float], list[float]]:
        """Return the duration of each ended trial's last attempt, and the start time of each running
        attempt.
        """
        rows = list(
            self._rows(
                "SELECT max(a.started), e.ended, t.status FROM attempts a JOIN trials t USING (trial_id) "
                "LEFT JOIN (SELECT trial_id, max(time) AS ended FROM events WHERE kind IN "
                "('TERMINATED', 'ERROR') GROUP BY trial_id) e USING (trial_id) GROUP BY trial_id"
            )
        )
        ended = [end - started for started, end, _ in rows if end is not None and end >= started]
        return ended, [started for started, _, status in rows if status == TrialStatus.RUNNING]

    def reports_after(self, seq: int, trial_id: str | None = None) -> Iterator[tuple[int, Report]]:
        """Yield the reports of one trial or of all trials after log entry `seq`, each with the number of its
        log entry.
        """
        for entry, trial, attempt, iteration, metrics in self._rows(
            "SELECT seq, trial_id, attempt, iteration, metrics FROM results "
            "WHERE seq > ? AND (? IS NULL OR trial_id = ?) ORDER BY seq",
            seq,
            trial_id,
            trial_id,
        ):
            yield entry, Report(trial, attempt, iteration, decode(metrics))


def printed_files(folder: Path, dirname: str, log_to_file: Any) -> list[Path]:
    """Return the files with a trial's printed output; [] if no output is kept.

    Args:
        folder: folder of the experiment.
        dirname: name of the trial's folder.
        log_to_file: `log_to_file` of RunConfig; files with the default names are always found.
    """
    names = dict.fromkeys((*(log_files(log_to_file) or ()), *(log_files(True) or ())))
    found = (inside(folder, dirname, name) for name in names)
    return [path for path in found if path is not None and path.is_file()]


def kept_files(reader: LogReader, dirname: str) -> list[Path]:
    """Return the files with the printed output of the trial in `dirname`.

    Raises:
        ConfigError: no output is kept.
    """
    found = printed_files(reader.folder, dirname, reader.facts()["run_config"]["log_to_file"])
    if not found:
        raise ConfigError(
            f"{reader.folder / dirname} has no printed output: set RunConfig(log_to_file=True) to store it"
        )
    return found


def inside(folder: Path, *names: str) -> Path | None:
    """Return the path `names` below `folder`, with links resolved;
    None if the path is missing or leads out of `folder`.
    """
    try:
        base = folder.resolve(strict=True)
        found = base.joinpath(*names).resolve(strict=True)
    # These errors occur if a name contains a zero byte or a link is circular.
    except (OSError, ValueError, RuntimeError):
        return None
    return found if found == base or base in found.parents else None


CUT_OFF = f"{INTERRUPTED.why}: its program has ended"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """Overview of an experiment that may be running in another process.

    Attributes:
        folder: folder of the experiment.
        owner: pid of the process that runs the experiment, or None.
        created: creation time in seconds since 1970.
        metric, mode: metric and mode that define the best trial; None: the experiment has no metric.
        counted: number of trials by state. Interrupted trials and pending trials have separate counts. If no
            process runs the experiment, no trial counts as running.
        best: id and value of the trial with the best last report. None if the experiment has no metric, no
            feasible last report has a finite value, or all trials have failed.
        ending: reason for the end of the last run; '' if the last run is not over or was killed.
        total: total number of trials; None: no limit, or unknown.
        trials: trials in the order of suggestion; empty if not requested.
        remaining_s: estimated remaining seconds; None: unknown.
        paused_by: name of the sender that paused the whole experiment, or ''.
        none_feasible: True if last reports have the metric, but all of them violate a constraint.
    """

    folder: Path
    owner: int | None
    created: float
    metric: str | None
    mode: str | None
    counted: dict[str, int]
    best: tuple[str, Any] | None
    ending: str
    total: int | None
    trials: Sequence[Trial]
    remaining_s: float | None
    paused_by: str
    none_feasible: bool = False

    @classmethod
    def of(
        cls,
        folder: Path,
        now: float,
        *,
        with_trials: bool = True,
        open_reader: Callable[[Path], LogReader] = LogReader,
    ) -> Overview:
        """Return the overview of the experiment in `folder`.

        Args:
            folder: folder of the experiment.
            now: current time in seconds since 1970.
            with_trials: False omits the trials and is several times as fast.
            open_reader: function that opens the experiment in a folder.

        Raises:
            StoreError: the experiment is missing, or its file is damaged or was not written by trainkit.
        """
        # The owner is looked up before the file is read. So if the owner ends between the two steps, the file
        # already shows its end.
        owner = owner_of(folder)
        with open_reader(folder) as log:
            log.stand_still()
            facts = log.facts()
            metric, mode = metric_and_mode(facts)
            numbers = log.counts(owned=owner is not None)
            values = {} if metric is None or numbers.keys() == _FAILED else log.last_values(metric)
            limited = facts["tune_config"].get("constraints")
            violations = log.last_values(VIOLATION) if limited else dict.fromkeys(values, 0.0)
            trials = log.trials() if with_trials else []
            ending = "" if owner is not None else _ending(log.events())
            ended, begun = ([], []) if owner is None else log.lengths()
            paused_by = log.steering().paused_by
        if owner is None:
            for trial in trials:
                # No process runs the experiment, so the trial's process was killed before it could set a new
                # status.
                if trial.status is TrialStatus.RUNNING:
                    trial.status, trial.reason = TrialStatus.PENDING, CUT_OFF
        feasible = {trial_id: value for trial_id, value in values.items() if violations.get(trial_id) == 0}
        total, best = facts.get("total_samples"), (min if mode == "min" else max)
        to_come = None if total is None else max(0, total - numbers.total()) + numbers["pending"]
        running = [RunningTrial(now - started) for started in begun]
        return cls(
            folder=folder,
            owner=owner,
            created=facts["created"],
            metric=metric,
            mode=mode,
            counted={word: numbers[word] for word in STATES if numbers[word]},
            # Without a mode, values can't be compared.
            best=best(feasible.items(), key=itemgetter(1), default=None) if mode else None,
            ending=ending,
            total=total,
            trials=trials,
            remaining_s=None if owner is None or paused_by else remaining_s(ended, running, to_come),
            paused_by=paused_by,
            none_feasible=bool(values) and not feasible,
        )

    @property
    def state(self) -> str:
        """State, such as 'runs in process 17, paused by ann' or 'ended: all trials have ended'."""
        paused = f", paused by {self.paused_by}" if self.paused_by else ""
        if self.owner is not None:
            return f"runs in process {self.owner or 'unknown'}{paused}"
        return f"ended: {self.ending}{paused}" if self.ending else f"killed{paused}"

    @property
    def counts(self) -> str:
        """Numbers of trials by state in words, such as '3 running, 10 finished, 2 stopped'."""
        return ", ".join(f"{number} {word}" for word, number in self.counted.items())

    @property
    def best_words(self) -> str:
        """Best trial by last report, such as 'loss=0.25 of 5f3a_00007'; '' if no trial has reported."""
        if self.none_feasible:
            return NONE_FEASIBLE
        if self.best is None:
            return NONE_BEST if self.metric is not None and self.counted.keys() == _FAILED else ""
        trial_id, value = self.best
        return f"{self.metric}={value:.6g} of {trial_id}"


_FAILED = {"failed"}
"""States of the trials if all trials have failed."""


def _ending(events: Sequence[LogEvent]) -> str:
    """Return the reason for the end of the last run; '' if the run did not end regularly."""
    for event in reversed(events):
        if event.kind == "ended":
            return event.detail
        if event.kind == ev.BEGAN:
            break
    return ""
