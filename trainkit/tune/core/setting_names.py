"""Names of settings in messages: the tuner's own, or those of the interface through which it is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SettingNames:
    """Names of an interface that runs experiments for its users, such as the searches for scikit-learn.

    Attributes:
        names: by the tuner's setting, the user's argument.
        other: format of a setting that is not in `names`, with its name as the only field.
        resume: how the user goes on with an experiment that has ended early.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    other: str = "{}"
    resume: str = ""


_CURRENT: ContextVar[SettingNames | None] = ContextVar("names of settings", default=None)


@contextlib.contextmanager
def named_as(names: SettingNames) -> Iterator[None]:
    """Have messages of this thread name settings so, until the block ends."""
    token = _CURRENT.set(names)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def setting(name: str, owner: str = "", value: str = "...") -> str:
    """Return the name of a setting for a message.

    Args:
        name: such as "stop".
        owner: class of the setting, for a message without its value: "RunConfig" gives "RunConfig(stop=...)".
        value: in place of the dots.
    """
    current = _CURRENT.get()
    if current is None:
        return f"{owner}({name}={value})" if owner else name
    return current.names.get(name) or (current.other.format(name) if owner else name)


def how_to_resume(path: object) -> str:
    """Return how to go on with the experiment at `path`."""
    current = _CURRENT.get()
    return f"go on by Tuner.restore({str(path)!r}, trainable).fit()" if current is None else current.resume


def already_there(path: object) -> str:
    """Return the message that there is an experiment at `path` where a new one is to be."""
    resume = ""
    if _CURRENT.get() is None:
        resume = f"go on with it by Tuner.restore({str(path)!r}, trainable).fit(), or "
    return f"{path} already holds an experiment; {resume}choose another {setting('name', 'RunConfig')}"
