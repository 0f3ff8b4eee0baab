"""Tracebacks as text, without the frames of trainkit itself: the user's frames and the cause.

TRAINKIT_FULL_TRACEBACK=1 keeps all frames.
"""

from __future__ import annotations

import functools
import os
import re
import site
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from trainkit import settings
from trainkit.errors import TrainkitError

P = ParamSpec("P")
T = TypeVar("T")

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_WRAPPERS = (
    "/torch/nn/modules/module.py",
    "/torch/nn/parallel/distributed.py",
    "/torch/utils/_contextlib.py",
)
"""Files of PyTorch whose frames stand between a call and what was called."""
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


def formatted(error: BaseException, *, chain: bool = True) -> str:
    """Return the traceback of an exception as text.

    Args:
        error: the exception.
        chain: also those that it was raised from, or while handling.
    """
    whole = traceback.TracebackException.from_exception(error)
    _cut(whole, error)
    return "".join(whole.format(chain=chain)).rstrip()


def user_frames(error: BaseException) -> bool:
    """Return whether any frame of the exception's own traceback is left by `formatted`."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames if settings.full_traceback() else kept(frames, error))


def kept(frames: Sequence[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames that are shown: those outside trainkit, but for wrappers of PyTorch.

    The others stay where they are what raised and the error does not say what to do about it.
    """
    foreign = [
        place
        for place, frame in enumerate(frames)
        if not frame.filename.startswith(_OWN) and not frame.filename.endswith(_WRAPPERS)
    ]
    last = foreign[-1] if foreign else -1
    raised_here = [] if isinstance(error, TrainkitError) else list(frames[last + 1 :])
    return [frames[place] for place in foreign] + raised_here


def last_user_frame(text: str) -> str:
    """Return the place in the user's code that a traceback's text ends in, such as 'train.py:12 in f'.

    Code of installed packages, of Python and of trainkit is not the user's; '' where there is no other.
    """
    found = [frame for frame in _FRAME.finditer(text) if not frame["file"].startswith(_installed())]
    if not found:
        return ""
    frame = found[-1]
    return f"{os.path.basename(frame['file'])}:{frame['line']} in {frame['function']}"


def without_frames(method: Callable[P, T]) -> Callable[P, T]:
    """Make a public method raise what another process raised without the frames that lie beneath it."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TrainkitError as error:
            if settings.full_traceback():
                raise
            cause = error.__cause__
            while isinstance(cause, TrainkitError):
                cause = cause.with_traceback(None).__cause__
            raise error.with_traceback(None)  # noqa: B904 (it is raised again, with the cause it has)

    return call


def _cut(whole: traceback.TracebackException, error: BaseException) -> None:
    """Leave out of a traceback, and of those in its chain, what `kept` leaves out."""
    if settings.full_traceback():
        return
    whole.stack = traceback.StackSummary.from_list(kept(whole.stack, error))
    if whole.__cause__ is not None and error.__cause__ is not None:
        _cut(whole.__cause__, error.__cause__)
    if whole.__context__ is not None and error.__context__ is not None:
        _cut(whole.__context__, error.__context__)
    if isinstance(error, BaseExceptionGroup):
        for part, inner in zip(whole.exceptions or (), error.exceptions, strict=False):
            _cut(part, inner)


@functools.cache
def _installed() -> tuple[str, ...]:
    """Return the folders of code that is not the user's; of a frozen or generated module, its sign."""
    paths = sysconfig.get_paths()
    named = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = {os.path.join(path, "") for path in [*named, *site.getsitepackages()]}
    return (_OWN, "<frozen ", *sorted(folders))
