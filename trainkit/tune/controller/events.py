"""Events that go into the controller, and records and actions that come out.

No code may change events, records and actions; type checkers verify this. Each report creates about a dozen
of these objects, so their classes are unfrozen dataclasses with slots. An object of such a class is created
in two thirds of the time of a named tuple, and in a fifth of the time of a frozen dataclass. A field is read
in a quarter of the time of a named tuple.

executor --Event--> controller --Record--> store, then callbacks
                               --Action--> executor
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, dataclass_transform, get_args

from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision


@dataclass_transform(frozen_default=True)
class _Kind(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
        made = super().__new__(mcs, name, bases, body)
        return made if "__slots__" in body else dataclass(slots=True)(made)


class _Fixed(metaclass=_Kind):
    __slots__ = ()


# --- events: `time` is in seconds and never decreases ---------------------------------------------


class _OfAttempt(_Fixed):
    """Base class of the events of one attempt of a trial."""

    trial_id: str
    attempt: int
    time: float


class Placed(_OfAttempt):
    """The trial has its resources and a process that is not set up yet; sent only if trials have timeouts."""


class Started(_OfAttempt):
    """The trial's process has been set up and waits for permission to run."""

    pid: int
    hostname: str
    node_ip: str


class Reported(_OfAttempt):
    """The trial has reported and waits in `report()`; if `done` is True, the trial has also ended.

    `problem`, here and in `Finished`, is the traceback of an exception in the user's clean-up.
    """

    iteration: int
    metrics: dict[str, Any]
    checkpoint: str | None = None
    done: bool = False
    problem: str = ""


class Finished(_OfAttempt):
    """The trial's run is complete: the trial ended by itself or after a Stop."""

    iteration: int
    checkpoint: str | None = None
    problem: str = ""


class Saved(_OfAttempt):
    """The trial has saved a checkpoint at its report, or can't save a checkpoint."""

    iteration: int
    checkpoint: str | None


class Adopted(_OfAttempt):
    """The copy of a donor's checkpoint to a paused trial's folder has ended; if the copy failed, `problem`
    says why.
    """

    checkpoint: str | None
    problem: str = ""


class Failed(_OfAttempt):
    """The trial raised an exception, or its process died; if `preempted` is True, with its machine."""

    failure: Failure
    preempted: bool = False


class NodeEnding(_OfAttempt):
    """The node of the trial's process is about to end; sent repeatedly until the process has ended."""


class Interrupted(_Fixed):
    """The user requests a clean end by Ctrl-C or SIGTERM."""

    time: float
    by_sigterm: bool = False


class CallbackRaised(_Fixed):
    """A callback has raised an exception that must end the experiment; `why` is the reason."""

    time: float
    why: str


class CommandGiven(_Fixed):
    """A user's command to the experiment: a verb of `steering.VERBS` with its arguments.

    `by` is the name of the user; `id` identifies the command.
    """

    time: float
    by: str
    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


class SessionLost(_Fixed):
    """The runtime's node and all trial processes have ended; `by` names the user who ended the node.

    `problem` says what happened to the node.
    """

    time: float
    problem: str
    by: str = ""


class Tick(_Fixed):
    """Time has passed without another event."""

    time: float


Event = (
    Placed
    | Started
    | Reported
    | Finished
    | Saved
    | Adopted
    | Failed
    | NodeEnding
    | Interrupted
    | CallbackRaised
    | CommandGiven
    | SessionLost
    | Tick
)


# --- records: stored in this order ----------------------------------------------------------------


class TrialAdded(_Fixed):
    """A new trial, with a suggested configuration."""

    trial: Trial


class _AttemptRecord(_Fixed):
    """Base class of the records of one attempt of a trial."""

    trial: Trial
    attempt: int


class AttemptStarted(_AttemptRecord):
    """An attempt has started in a process, at an iteration, with the trial's current configuration."""

    time: float
    pid: int
    hostname: str
    node_ip: str
    iteration: int


class ResultAdded(_AttemptRecord):
    """A report: `metrics` as the trial sent them, and `result` as callbacks see it."""

    iteration: int
    time: float
    metrics: dict[str, Any]
    result: dict[str, Any]


class DecisionMade(_AttemptRecord):
    """A decision on a report, with its reason."""

    iteration: int
    decision: Decision


class CheckpointAdded(_AttemptRecord):
    """A checkpoint is complete, on disk and committed."""

    checkpoint: SavedCheckpoint


class CheckpointDropped(_Fixed):
    """A checkpoint is no longer needed; its folder is deleted after the commit of this record."""

    trial: Trial
    checkpoint: SavedCheckpoint


class StatusChanged(_Fixed):
    """A trial's new status, with the reason; `attempt` is the next attempt to run, if any."""

    trial: Trial
    time: float
    status: TrialStatus
    reason: str
    attempt: int
    failures: int
    failure: Failure | None = None
    retried: bool = False


class Rearranged(_Fixed):
    """A trial's next attempt runs alone, or with a new configuration or resource request.

    Attributes:
        config: new configuration; None: unchanged.
        donor: trial from whose checkpoint the attempt resumes; None: the trial's own checkpoint.
        donor_iteration: number of the donor's reports before the checkpoint from which the attempt resumes.
        before: previous resource request, if the scheduler changed it; otherwise None.
    """

    trial: Trial
    time: float
    config: dict[str, Any] | None = None
    donor: Trial | None = None
    donor_iteration: int = 0
    before: PlacementGroupFactory | None = None


class Noted(_Fixed):
    """A note about the whole experiment, or about one trial."""

    time: float
    kind: str
    detail: str = ""
    trial_id: str | None = None


class SettingsChanged(_Fixed):
    """Changed settings of the experiment, which apply from now on.

    Attributes:
        settings: settings of TuneConfig that a command has changed.
        total_samples: total number of trials; None: no limit.
    """

    settings: Mapping[str, Any]
    total_samples: int | None


SETTABLE = "num_samples", "time_budget_s", "max_concurrent_trials"
"""Settings that commands can change."""

BEGAN = "began"
COMMAND = "command"
REARRANGED = "rearranged"
NO_MORE_TRIALS = "no more trials"
TOTAL = "total"
LEFT_OUT = "addition left out"
SESSION_LOST = "session lost"
"""Kinds of notes that a restore or a person reads; trial statuses are further kinds."""

Record = (
    TrialAdded
    | AttemptStarted
    | ResultAdded
    | DecisionMade
    | CheckpointAdded
    | CheckpointDropped
    | StatusChanged
    | Rearranged
    | SettingsChanged
    | Noted
)


# --- actions: carried out after the commit of the records -----------------------------------------


class Start(_Fixed):
    """Start a process for this attempt of the trial, from the trial's checkpoint if it has one."""

    trial: Trial
    attempt: int
    iteration: int
    checkpoint: SavedCheckpoint | None


class Advance(_Fixed):
    """Let the trial run to its next report."""

    trial_id: str


class Save(_Fixed):
    """Let the trial save a checkpoint at its current report, if the trial supports this."""

    trial_id: str


class Adopt(_Fixed):
    """Copy the donor's checkpoint into the trial's folder as `dirname`."""

    trial: Trial
    donor: Trial
    checkpoint: SavedCheckpoint
    dirname: str


class Stop(_Fixed):
    """End the trial at its current report; with `save`, a `Trainable` class saves a checkpoint first."""

    trial_id: str
    save: bool


class Release(_Fixed):
    """Release the process and the resources of an ended trial."""

    trial_id: str


class Interrupt(_Fixed):
    """Interrupt the trial's running code, so that its clean-up runs and the trial ends."""

    trial_id: str


class Kill(_Fixed):
    """Kill the trial's process now."""

    trial_id: str


class Renew(_Fixed):
    """Begin a new runtime session in place of the lost session."""


class DeleteCheckpoint(_Fixed):
    """Remove the folder of a dropped checkpoint."""

    trial: Trial
    checkpoint: SavedCheckpoint


Action = Start | Advance | Save | Adopt | Stop | Release | Interrupt | Kill | Renew | DeleteCheckpoint

FILES_ONLY = (Adopt, DeleteCheckpoint)
"""Kinds of actions that need only files and no trial process."""


@dataclass(slots=True)
class Step:
    """Records and actions that result from a batch of events."""

    records: list[Record] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def take(self) -> Step:
        """Return the collected records and actions, and clear this object."""
        taken = Step(self.records, self.actions)
        self.records, self.actions = [], []
        return taken


_NAMES = "start advance save adopt stop release interrupt kill renew delete_checkpoint".split()
_METHODS: Mapping[type[Action], str] = dict(zip(get_args(Action), _NAMES, strict=True))


def carry_out(executor: object, action: Action) -> None:
    """Call the executor's method for this kind of action; the method returns at once."""
    method = getattr(executor, _METHODS[type(action)], None)
    if method is None:
        raise TypeError(f"{type(executor).__name__} can't carry out {action!r}")
    method(action)
