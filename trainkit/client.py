"""Client that reads and steers one experiment from any process on the experiment's machine."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TuneError
from trainkit.registry import added, loaded
from trainkit.tune.core.setting_names import how_to_resume
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import LogEvent, LogReader, Overview
from trainkit.tune.store.commands import asker, leave_command
from trainkit.tune.store.ownership import owner_of

_EVERY_S = 0.05


def __getattr__(name: str) -> Any:
    """Return a function that a plugin adds to this module, such as `trace`."""
    if name in added(__name__):
        return loaded(__name__, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True)
class Answer:
    """Answer of an experiment to a command, which is kept in the experiment's history.

    Attributes:
        id: identifier of the command.
        verb: verb of the command, such as "pause".
        arguments: arguments of the verb, by name.
        by: name of the sender.
        outcome: description of the command's effect, or the reason for its refusal.
        done: True if the command was executed, False if it was refused.
        seq: position of the answer in the history.
        time: time of the answer in seconds since 1970.
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
        """Return the answer that a log entry records."""
        return cls(**json.loads(event.detail), seq=event.seq, time=event.time)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as a dictionary of JSON values."""
        return dataclasses.asdict(self)

    def as_json(self) -> str:
        """Return the answer as a line of JSON."""
        return json.dumps(self.as_dict())


class Experiment:
    """Experiment that can be read and steered, whichever process runs it.

    Each method that sends a command returns after the process that runs the experiment has executed the
    command, and after the outcome and the sender's name are on disk.

    Args:
        folder: folder of the experiment.
        by: name of the sender in the experiment's history; None means user, host and process.
        timeout_s: seconds to wait for an answer.

    Raises:
        ConfigError: `by` is empty.
        StoreError: `folder` has no experiment, or its file is damaged or from another program.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, by: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self.folder = Path(folder).expanduser().absolute()
        if by == "":
            raise ConfigError("by must be a name or None, not ''")
        self.by = asker() if by is None else by
        self.timeout_s = timeout_s
        LogReader(self.folder).close()

    def __repr__(self) -> str:
        return f"Experiment({str(self.folder)!r})"

    # --- reading ----------------------------------------------------------------------------------

    def overview(self) -> Overview:
        """Return a summary of the experiment's current state."""
        return Overview.of(self.folder, SYSTEM.now(), with_trials=False)

    def status(self) -> dict[str, Any]:
        """Return the experiment's current state as JSON values.

        The keys are `folder`, `state` (a description), `owner` (pid of the process that runs the experiment,
        or None), `created` (time in seconds since 1970), `metric`, `mode`, `counts` (numbers of trials by
        state), `total` (number of trials; None for unlimited), `best` (id and value of the best trial),
        `ending` (reason for the end of the last run), `remaining_s` (estimated seconds), `paused_by` (`""` if
        the experiment is not paused) and `held` (ids of trials that were paused individually).
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
        """Return all trials with their current state, in the order in which they were suggested."""
        return list(Overview.of(self.folder, SYSTEM.now()).trials)

    def commands(self) -> list[Answer]:
        """Return all commands given to the experiment, in order, with their outcomes."""
        with LogReader(self.folder) as reader:
            return [Answer.of(event) for event in reader.commands()]

    # --- steering ---------------------------------------------------------------------------------

    def stop(self, trial: str | None = None) -> Answer:
        """End a trial for good. Without a trial id, end the experiment as Ctrl-C does.

        Args:
            trial: id of the trial.

        Raises:
            TuneError: see `command`.
        """
        return self.command("stop", trial=trial)

    def pause(self, trial: str | None = None) -> Answer:
        """Pause a trial until it is resumed. Without a trial id, pause the whole experiment.

        A running trial is paused at its next report, and later resumes from that report's checkpoint. When
        the whole experiment is paused, running trials that cannot save a checkpoint continue to their end.

        Args:
            trial: id of the trial.

        Raises:
            TuneError: see `command`; for example, the running trial has no checkpoint to resume from.
        """
        return self.command("pause", trial=trial)

    def resume(self, trial: str | None = None) -> Answer:
        """Resume a trial that was paused individually. Without a trial id, resume the paused experiment.

        Args:
            trial: id of the trial.

        Raises:
            TuneError: see `command`; for example, the trial is not paused.
        """
        return self.command("resume", trial=trial)

    def prioritise(self, trial: str) -> Answer:
        """Run a waiting or paused trial before all other trials.

        Args:
            trial: id of the trial.

        Raises:
            TuneError: see `command`; for example, the trial is already running.
        """
        return self.command("prioritise", trial=trial)

    def add(self, config: Mapping[str, Any]) -> Answer:
        """Evaluate a configuration as the experiment's next trial.

        The configuration counts towards `num_samples`, like a point to evaluate. With a grid, or after all
        samples have been suggested, the configuration is an additional sample. Missing parameters are
        sampled.

        Args:
            config: values of hyperparameters, by name or nested like the search space.

        Raises:
            ConfigError: see `command`.
            TuneError: see `command`; for example, a value is outside the search space.
        """
        return self.command("add", config=dict(config))

    def set(
        self,
        *,
        num_samples: int | None = None,
        time_budget_s: float | None = None,
        max_concurrent_trials: int | None = None,
    ) -> Answer:
        """Raise or lower limits of the experiment. None leaves a limit unchanged.

        Args:
            num_samples: total number of samples, as in TuneConfig, including earlier samples; -1 for no
                limit.
            time_budget_s: seconds from the beginning of this run; -1 for no limit.
            max_concurrent_trials: number of concurrent trials; 0 for as many as the resources allow. Running
                trials are never ended to meet a lower limit.

        Raises:
            TuneError: see `command`; for example, more samples have already been suggested.
        """
        return self.command(
            "set",
            num_samples=num_samples,
            time_budget_s=time_budget_s,
            max_concurrent_trials=max_concurrent_trials,
        )

    def command(self, verb: str, **arguments: Any) -> Answer:
        """Send a command to the process that runs the experiment, and wait until it has been executed.

        Args:
            verb: verb of the command.
            arguments: arguments of the verb. Arguments that are None are not sent.

        Raises:
            ConfigError: an argument can't be written as JSON.
            StoreError: the experiment's folder can't be written.
            TuneError: the command was refused, no process runs the experiment, or the process that runs it
                ended before it read the command or did not answer in time.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        with LogReader(self.folder) as reader:
            owner = owner_of(self.folder)
            if owner is None:
                raise TuneError(
                    f"no process runs the experiment in {self.folder}, so there is nothing to {verb}; "
                    f"{how_to_resume(self.folder)}"
                )
            since = reader.last_event()
            file = leave_command(self.folder, verb, given, self.by)
            try:
                answer = self._await(reader, file, since, owner)
            finally:
                # if this call fails, the command must not be executed later
                file.unlink(missing_ok=True)
        if not answer.done:
            raise TuneError(f"{verb} was refused: {answer.outcome}")
        return answer

    def _await(self, reader: LogReader, file: Path, since: int, owner: int) -> Answer:
        deadline = SYSTEM.monotonic() + self.timeout_s
        while True:
            overdue = SYSTEM.monotonic() >= deadline
            lost = owner_of(self.folder) is None
            # The command is withdrawn, so that no process executes it after this call has failed.
            withdrawn = (overdue or lost) and _taken_back(file)
            # The owner is looked up again, because another process may have resumed the experiment and read
            # the command meanwhile.
            lost = lost and (withdrawn or owner_of(self.folder) is None)
            # The answers are read after the owner was looked up. So an answer is found even if the owner
            # wrote it just before its end.
            for event in reader.commands(since):
                since = event.seq
                answer = Answer.of(event)
                if answer.id == file.stem:
                    return answer
            if lost:
                raise TuneError(
                    f"the process {owner or 'unknown'} that ran {self.folder} has ended before it handled "
                    f"the command: {how_to_resume(self.folder)}, and send the command again"
                )
            if overdue:
                if owner_of(self.folder) != owner and not withdrawn:
                    raise TuneError(
                        f"the process {owner or 'unknown'} that ran {self.folder} has ended: unless "
                        "`commands()` shows the answer, the command was lost, so send it again"
                    )
                end = "the command was withdrawn" if withdrawn else "`commands()` will show the answer"
                raise TuneError(
                    f"the process {owner or 'unknown'} that runs {self.folder} has not answered within "
                    f"{self.timeout_s:g} s: {end}"
                )
            SYSTEM.sleep(_EVERY_S)


def _taken_back(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True
