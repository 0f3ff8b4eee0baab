"""Names of settings in messages, by the interface that the user calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SettingNames:
    """Names of the settings in messages, and defaults, for an interface such as the scikit-learn searches.

    Attributes:
        names: names of the interface's arguments, by the setting of the tuner that each argument sets.
        other: format string for a setting missing in `names`, with the setting's name as its only field; "":
            the setting keeps its name in the tuner.
        resume: instruction for resuming an experiment that ended early; "{path!r}" stands for the
            experiment's folder.
        doing: name of the activity in messages, such as "Tuning".
        raises: True if the interface raises a trial's error, so that messages need not print the error too.
        trains: True if the only trial is a training; see `settings.stop_grace_s`.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    other: str = ""
    resume: str = "resume by Tuner.restore({path!r}, trainable).fit()"
    doing: str = "Tuning"
    raises: bool = False
    trains: bool = False


_CURRENT: ContextVar[SettingNames | None] = ContextVar("names of settings", default=None)


@contextlib.contextmanager
def named_as(names: SettingNames) -> Iterator[None]:
    """Let messages of this thread use `names` for settings, until the block ends."""
    token = _CURRENT.set(names)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def setting(name: str, owner: str = "", value: str = "...") -> str:
    """Return the name of a setting for a message.

    Args:
        name: name of the setting, such as "stop".
        owner: class of the setting, if the message must name it: "RunConfig" gives "RunConfig(stop=...)".
        value: text that replaces the dots in "RunConfig(stop=...)".
    """
    current = _CURRENT.get() or SettingNames()
    other = current.other.format(name) if current.other else f"{owner}({name}={value})"
    return current.names.get(name) or (other if owner else name)


def doing() -> str:
    """Return the name of the activity for messages, such as "Tuning"."""
    return (_CURRENT.get() or SettingNames()).doing


def raises() -> bool:
    """Return True if the error of a trial is raised to the user."""
    return (_CURRENT.get() or SettingNames()).raises


def is_training() -> bool:
    """Return True if the only trial is a training."""
    return (_CURRENT.get() or SettingNames()).trains


def how_to_resume(path: object) -> str:
    """Return the instruction for resuming the experiment at `path`."""
    return (_CURRENT.get() or SettingNames()).resume.format(path=str(path))


def already_there(path: object) -> str:
    """Return the message for a new experiment whose `path` already holds an experiment."""
    resume = ""
    if _CURRENT.get() is None:
        resume = f"resume it by Tuner.restore({str(path)!r}, trainable).fit(), or "
    return f"{path} already holds an experiment; {resume}choose another {setting('name', 'RunConfig')}"


def went_beside(path: object, folder: object) -> str:
    """Return the message that a new experiment is in `folder`, because `path` already holds an experiment."""
    return f"{path} already holds an experiment, which stays unchanged: the new one is in {folder}"
