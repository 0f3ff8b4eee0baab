"""Client of one experiment: read it and steer it, from any process of its machine."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TuneError
from trainkit.train.data import ranks
from trainkit.tune.core.checks import how_to_resume
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import LogEvent, LogReader, Overview
from trainkit.tune.store.ownership import asker, leave_command, owner_of

_EVERY_S = 0.05


@dataclass(frozen=True)
class Answer:
    """Answer of an experiment to a command, which its history keeps.

    Attributes:
        id: of the command.
        verb: such as "pause".
        arguments: of the verb, by name.
        by: who gave it.
        outcome: in words.
        done: False if it was refused.
        seq: its place in the history.
        time: in seconds since 1970.
    """

    id: str
    verb: str
    arguments: dict[str, Any]
    by: str
    outcome: str
    done: bool
    seq: int
    time: float

    @classmethod
    def of(cls, event: LogEvent) -> Self:
        """Return the answer in an entry of the log."""
        return cls(**json.loads(event.detail), seq=event.seq, time=event.time)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON values."""
        return dataclasses.asdict(self)

    def as_json(self) -> str:
        """Return the answer as a line of JSON."""
        return json.dumps(self.as_dict())


class Experiment:
    """One experiment, to read and to steer, whichever process runs it.

    A command returns once the process that runs the experiment has acted and what it did is on disk, with
    who asked for it.

    Args:
        folder: of the experiment.
        by: says who steers, in the experiment's history; None: user, host and process.
        timeout_s: to wait for an answer, in seconds.

    Raises:
        ConfigError: `by` is empty.
        StoreError: there is no experiment in `folder`, or its file is damaged or foreign.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, by: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        if by == "":
            raise ConfigError("by='': say who steers, or leave it out")
        self.by = asker() if by is None else by
        self.timeout_s = timeout_s
        LogReader(self.folder).close()

    def __repr__(self) -> str:
        return f"Experiment({str(self.folder)!r})"

    # --- what it is -------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Return how the experiment stands."""
        return Overview.of(self.folder, SYSTEM.now(), with_trials=False)

    def status(self) -> dict[str, Any]:
        """Return how the experiment stands, as JSON values.

        By name: `folder`, `state` in words, `owner` (the pid of what runs it, None if nothing does),
        `created`, `metric`, `mode`, `counts` of trials by state, `total` (None: without end), `best` (a
        trial's id and its value), `ending`, `remaining_s`,
        `paused_by` ('': nobody), `held` (ids of the trials that were paused by themselves).
        """
        seen = self.overview()
        with LogReader(self.folder) as reader:
            steering = reader.steering()
        best = None if seen.best is None else {"trial_id": seen.best[0], "value": seen.best[1]}
        return {
            "folder": str(self.folder),
            "state": seen.state,
            "owner": seen.owner,
            "created": seen.created,
            "metric": seen.metric,
            "mode": seen.mode,
            "counts": seen.counted,
            "total": seen.total,
            "best": best,
            "ending": seen.ending,
            "remaining_s": seen.remaining_s,
            "paused_by": steering.paused_by,
            "held": list(steering.holds),
        }

    def trials(self) -> list[Trial]:
        """Return the trials in the order suggested, as they stand."""
        return list(Overview.of(self.folder, SYSTEM.now()).trials)

    def commands(self) -> list[Answer]:
        """Return the commands that were given to the experiment, in order, with what came of them."""
        with LogReader(self.folder) as reader:
            return [Answer.of(event) for event in reader.commands()]

    # --- what it is told --------------------------------------------------------------------------

    def stop(self, trial: str | None = None) -> Answer:
        """End a trial for good, or with None the experiment as Ctrl-C does.

        Args:
            trial: its id.

        Raises:
            TuneError: as `command`.
        """
        return self.command("stop", trial=trial)

    def pause(self, trial: str | None = None) -> Answer:
        """Hold a trial until it is resumed, or with None the experiment: nothing starts any more.

        A trial that runs is paused at its next report, from whose checkpoint it goes on. While the experiment
        is paused, those that can't save one run on to their end.

        Args:
            trial: its id.

        Raises:
            TuneError: as `command`; such as for a trial that runs and has no checkpoint to go on from.
        """
        return self.command("pause", trial=trial)

    def resume(self, trial: str | None = None) -> Answer:
        """Let a trial that was paused by its id go on, or with None the experiment.

        Args:
            trial: its id.

        Raises:
            TuneError: as `command`; such as where nobody has paused it.
        """
        return self.command("resume", trial=trial)

    def prioritise(self, trial: str) -> Answer:
        """Have a trial that waits, or is paused, run before the others.

        Args:
            trial: its id.

        Raises:
            TuneError: as `command`; such as for a trial that runs already.
        """
        return self.command("prioritise", trial=trial)

    def add(self, config: Mapping[str, Any]) -> Answer:
        """Have a configuration tried next.

        It counts as one of `num_samples`, as a point to evaluate does; beside a grid, which is tried whole,
        and once all samples were suggested, it is one more. What it leaves open is drawn.

        Args:
            config: hyperparameters of the search space, by name or nested.

        Raises:
            ConfigError: as `command`.
            TuneError: as `command`; such as for a value outside the space.
        """
        return self.command("add", config=dict(config))

    def set(
        self,
        *,
        num_samples: int | None = None,
        time_budget_s: float | None = None,
        max_concurrent_trials: int | None = None,
    ) -> Answer:
        """Raise or lower what the experiment goes by; None leaves a setting as it is.

        Args:
            num_samples: as in the TuneConfig, with those of before; -1: without end.
            time_budget_s: seconds from the beginning of this run; -1: no budget.
            max_concurrent_trials: trials at once, of which those that run are never ended; 0: as many as the
                resources allow.

        Raises:
            TuneError: as `command`; such as for fewer samples than were suggested.
        """
        return self.command(
            "set",
            num_samples=num_samples,
            time_budget_s=time_budget_s,
            max_concurrent_trials=max_concurrent_trials,
        )

    def command(self, verb: str, **arguments: Any) -> Answer:
        """Have the process that runs the experiment carry out a command, and wait until it has.

        Args:
            verb: of the command.
            arguments: of the verb; those that are None are left out.

        Raises:
            ConfigError: an argument can't be written as JSON.
            StoreError: the experiment's folder can't be written.
            TuneError: the command is refused, nobody runs the experiment, or the process that does has ended
                before it took the command up, or has not answered in time.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        with LogReader(self.folder) as reader:
            owner = owner_of(self.folder)
            if owner is None:
                raise TuneError(
                    f"nobody runs the experiment in {self.folder}, so there is nothing to {verb}; "
                    f"{how_to_resume(self.folder)}"
                )
            since = reader.last_event()
            file = leave_command(self.folder, verb, given, self.by)
            try:
                answer = self._await(reader, file, since, owner)
            finally:
                file.unlink(missing_ok=True)  # whoever is told of no answer is told the truth
        if not answer.done:
            raise TuneError(f"{verb} was refused: {answer.outcome}")
        return answer

    def _await(self, reader: LogReader, file: Path, since: int, owner: int) -> Answer:
        deadline = SYSTEM.monotonic() + self.timeout_s
        while True:
            overdue = SYSTEM.monotonic() >= deadline
            lost = owner_of(self.folder) is None
            # Not taken yet, it never will be once it is taken back.
            withdrawn = (overdue or lost) and _taken_back(file)
            # Asked again, as one that goes on with the experiment may have come and taken it.
            lost = lost and (withdrawn or owner_of(self.folder) is None)
            # Last: of a process that ends now, the answer is seen.
            for event in reader.commands(since):
                since = event.seq
                answer = Answer.of(event)
                if answer.id == file.stem:
                    return answer
            if lost:
                raise TuneError(
                    f"the process {owner or 'unknown'} that ran {self.folder} has ended before it took "
                    f"this up: {how_to_resume(self.folder)}, and ask again"
                )
            if overdue:
                if owner_of(self.folder) != owner and not withdrawn:
                    raise TuneError(
                        f"the process {owner or 'unknown'} that ran {self.folder} has ended since: unless "
                        "`commands()` has the answer, the command was lost, so ask again"
                    )
                end = (
                    "it has not taken it up, and won't" if withdrawn else "`commands()` will have its answer"
                )
                raise TuneError(
                    f"the process {owner or 'unknown'} that runs {self.folder} has not answered within "
                    f"{self.timeout_s:g} s: {end}"
                )
            SYSTEM.sleep(_EVERY_S)


def trace(
    pid: int, path: str | os.PathLike[str], *, steps: int = 5, timeout_s: float = ranks.TRACE_S
) -> Path:
    """Have a rank of a running trainer record its next steps by `torch.profiler`.

    A step goes from one batch to the next. The rank is slower while it is recorded, and so are those that
    wait for it.

    Args:
        pid: of the rank's process, on this machine; see `trainkit status` or the dashboard.
        path: of the file to write: JSON that Perfetto and Chrome's `about:tracing` show.
        steps: 1 to 100.
        timeout_s: for the rank to make them, in seconds.

    Returns:
        The file's path.

    Raises:
        ConfigError: an argument is out of range, or the process is no rank of a trainer.
        TrainkitError: the rank makes no steps, has ended, or is traced by somebody else.
    """
    target = Path(path).expanduser().absolute()
    with ranks.trace(pid, target.parent, steps, timeout_s) as recorded:
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                shutil.copyfileobj(recorded, file)
            aside.replace(target)  # so that nobody takes a part for the whole
        finally:
            aside.unlink(missing_ok=True)
    return target


def _taken_back(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True
