"""Events that go into the controller, records and actions that come out.

Nobody changes one, which type checkers see to. A report comes to a dozen, so they are dataclasses with slots
that are not frozen. To make one takes two thirds of the time of a named tuple and a fifth of that of a frozen
one; to read a field, a quarter of that of a named tuple.

executor --Event--> controller --Record--> store, then callbacks
                               --Action--> executor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


# --- events: what has happened; `time` is in seconds and never falls ------------------------------


class Placed(_Fixed):
    """The trial has its resources and a process, which is about to set it up; told of where that is timed."""

    trial_id: str
    attempt: int
    time: float


class Started(_Fixed):
    """The trial's process has set it up and waits for the word to run."""

    trial_id: str
    attempt: int
    time: float
    pid: int
    hostname: str
    node_ip: str


class Reported(_Fixed):
    """The trial has reported, and waits in `report()`; with `done` it has ended too.

    `problem`, here and in `Finished`, is the traceback of what the user's clean-up raised.
    """

    trial_id: str
    attempt: int
    time: float
    iteration: int
    metrics: dict[str, Any]
    checkpoint: str | None = None
    done: bool = False
    problem: str = ""


class Finished(_Fixed):
    """The trial's process has nothing more to do: it ended by itself, or after a Stop."""

    trial_id: str
    attempt: int
    time: float
    iteration: int
    checkpoint: str | None = None
    problem: str = ""


class Saved(_Fixed):
    """The trial has saved a checkpoint where it waits, or can't."""

    trial_id: str
    attempt: int
    time: float
    iteration: int
    checkpoint: str | None


class Adopted(_Fixed):
    """A paused trial's folder holds a copy of another's checkpoint; None: `problem` says why it doesn't."""

    trial_id: str
    attempt: int
    time: float
    checkpoint: str | None
    problem: str = ""


class Failed(_Fixed):
    """The trial raised, or its process died."""

    trial_id: str
    attempt: int
    time: float
    failure: Failure


class Interrupted(_Fixed):
    """The user asks for an orderly end, by Ctrl-C or by SIGTERM."""

    time: float
    by_sigterm: bool = False


class CallbackRaised(_Fixed):
    """A callback has raised, and the experiment is to end by it; `why` says so."""

    time: float
    why: str


class CommandGiven(_Fixed):
    """Somebody steers the experiment: a verb with its arguments, as `steering.VERBS` has them.

    `by` says who, `id` tells the command from all others.
    """

    time: float
    by: str
    verb: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


class SessionLost(_Fixed):
    """The runtime's node is gone, and every trial's process with it; `by` says who ended it, if somebody did.

    `problem` says what became of the node.
    """

    time: float
    problem: str
    by: str = ""


class Tick(_Fixed):
    """Nothing but time has passed."""

    time: float


Event = (
    Placed
    | Started
    | Reported
    | Finished
    | Saved
    | Adopted
    | Failed
    | Interrupted
    | CallbackRaised
    | CommandGiven
    | SessionLost
    | Tick
)


# --- records: what the store keeps, in this order -------------------------------------------------


class TrialAdded(_Fixed):
    """A configuration was suggested."""

    trial: Trial


class AttemptStarted(_Fixed):
    """An attempt runs, in this process, from this iteration on, with the trial's present configuration."""

    trial: Trial
    attempt: int
    time: float
    pid: int
    hostname: str
    node_ip: str
    iteration: int


class ResultAdded(_Fixed):
    """A report; `result` is what callbacks see, `metrics` what the trial sent."""

    trial: Trial
    attempt: int
    iteration: int
    time: float
    metrics: dict[str, Any]
    result: dict[str, Any]


class DecisionMade(_Fixed):
    """Decision on a report, with its reason."""

    trial: Trial
    attempt: int
    iteration: int
    decision: Decision


class CheckpointAdded(_Fixed):
    """A checkpoint is complete, on disk and committed."""

    trial: Trial
    attempt: int
    checkpoint: SavedCheckpoint


class CheckpointDropped(_Fixed):
    """A checkpoint is no longer needed; its folder goes once this is committed."""

    trial: Trial
    checkpoint: SavedCheckpoint


class StatusChanged(_Fixed):
    """A trial's status, with the reason; `attempt` is the one that runs next, if one does."""

    trial: Trial
    time: float
    status: TrialStatus
    reason: str
    attempt: int
    failures: int
    failure: Failure | None = None
    retried: bool = False


class Rearranged(_Fixed):
    """A trial's next attempt runs otherwise: alone, with what is now its configuration or its request.

    Attributes:
        config: its new configuration; None: the same as before.
        donor: whose checkpoint it goes on from; None: its own.
        donor_iteration: how many reports the donor had made before that checkpoint.
        before: what it reserved, where its scheduler has changed that; None: it has not.
    """

    trial: Trial
    time: float
    config: dict[str, Any] | None = None
    donor: Trial | None = None
    donor_iteration: int = 0
    before: PlacementGroupFactory | None = None


class Noted(_Fixed):
    """Something about the experiment as a whole, or worth knowing of a trial."""

    time: float
    kind: str
    detail: str = ""
    trial_id: str | None = None


class SettingsChanged(_Fixed):
    """Settings that the experiment goes by from now on.

    Attributes:
        settings: those that a command has changed, as TuneConfig has them.
        total_samples: how many trials there will be; None: without end.
    """

    settings: Mapping[str, Any]
    total_samples: int | None


SETTABLE = "num_samples", "time_budget_s", "max_concurrent_trials"
"""Settings that a command can change."""

BEGAN = "began"
COMMAND = "command"
REARRANGED = "rearranged"
NO_MORE_TRIALS = "no more trials"
TOTAL = "total"
LEFT_OUT = "addition left out"
SESSION_LOST = "session lost"
"""Kinds of stored events that a restore or a person reads, besides the statuses."""

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


# --- actions: what the executor does, after the records are committed -----------------------------


class Start(_Fixed):
    """Start a process for this attempt of the trial, from its checkpoint if it has one."""

    trial: Trial
    attempt: int
    iteration: int
    checkpoint: SavedCheckpoint | None


class Advance(_Fixed):
    """Let the trial run to its next report."""

    trial_id: str


class Save(_Fixed):
    """Let the trial save a checkpoint where it waits, if it can."""

    trial_id: str


class Adopt(_Fixed):
    """Put a copy of the donor's checkpoint into the trial's folder, as `dirname`."""

    trial: Trial
    donor: Trial
    checkpoint: SavedCheckpoint
    dirname: str


class Stop(_Fixed):
    """End the trial at the report where it waits; with `save`, a class saves a checkpoint first."""

    trial_id: str
    save: bool


class Release(_Fixed):
    """The trial is over: let its process and its resources go."""

    trial_id: str


class Interrupt(_Fixed):
    """Interrupt what the trial runs, so that its clean-up runs and it ends."""

    trial_id: str


class Kill(_Fixed):
    """End the trial's process now."""

    trial_id: str


class Renew(_Fixed):
    """Begin a new session in place of the one that was lost."""


class DeleteCheckpoint(_Fixed):
    """Remove the folder of a dropped checkpoint."""

    trial: Trial
    checkpoint: SavedCheckpoint


Action = Start | Advance | Save | Adopt | Stop | Release | Interrupt | Kill | Renew | DeleteCheckpoint

FILES_ONLY = (Adopt, DeleteCheckpoint)
"""Kinds of actions that no process of a session is needed for."""


@dataclass(slots=True)
class Step:
    """Records and actions that a batch of events led to."""

    records: list[Record] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)

    def take(self) -> Step:
        """Return what has gathered here, which is then gone from here."""
        taken = Step(self.records, self.actions)
        self.records, self.actions = [], []
        return taken


class ActionHandler:
    """Base class of executors: a method for each kind of action that they can carry out."""

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Do what the controller wants done; returns at once."""
        for action in actions:
            method = getattr(self, _METHODS[type(action)], None)
            if method is None:
                raise TypeError(f"{type(self).__name__} can't carry out {action!r}")
            method(action)

    def interrupt(self, action: Interrupt) -> None:
        """Do nothing, where trials can't be interrupted: they are killed."""


_NAMES = "start advance save adopt stop release interrupt kill renew delete_checkpoint".split()
_METHODS: Mapping[type[Action], str] = dict(zip(get_args(Action), _NAMES, strict=True))
