"""Transfer of exceptions between processes, with tracebacks that omit trainkit's own frames."""

from __future__ import annotations

import functools
import os
import re
import site
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from trainkit import settings
from trainkit.errors import ActorDiedError, SerializationError, TaskError, TrainkitError, message_of
from trainkit.runtime.serialize import Packed, arguments_of, attributes_of, pack, rebuilt, unpack

P = ParamSpec("P")
T = TypeVar("T")

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_WRAPPERS = (
    "/torch/nn/modules/module.py",
    "/torch/nn/parallel/distributed.py",
    "/torch/utils/_contextlib.py",
)
"""Files of PyTorch whose frames come between a call and the called function in a traceback."""
_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


_PLACE = re.compile(r"(.*?)(?: \(pid (\d+)\))?:\n")
"""Pattern of the first line of a traceback from another process."""


def formatted(error: BaseException, *, chain: bool = True) -> str:
    """Return the traceback of an exception as text.

    Args:
        error: the exception.
        chain: True to include the exceptions in `__cause__` and `__context__`.
    """
    whole = traceback.TracebackException.from_exception(error)
    _cut(whole, error)
    return "".join(whole.format(chain=chain)).rstrip()


def user_frames(error: BaseException) -> bool:
    """Return True if `formatted` shows any frame of the exception's own traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames if settings.full_traceback() else kept(frames, error))


def kept(frames: Sequence[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """Return the frames of a traceback to show, which are the frames outside trainkit and PyTorch's wrappers.

    If code of trainkit or of a wrapper raised the error, the frames after the user's last frame are also
    shown. The frames after the user's last frame are left out for trainkit's own error classes, whose
    messages are sufficient.
    """
    foreign = [
        place
        for place, frame in enumerate(frames)
        if not frame.filename.startswith(_OWN) and not frame.filename.endswith(_WRAPPERS)
    ]
    last = foreign[-1] if foreign else -1
    raised_here = [] if isinstance(error, TrainkitError | ResultCountError) else list(frames[last + 1 :])
    return [frames[place] for place in foreign] + raised_here


def last_user_frame(text: str) -> str:
    """Return the last location in the user's code in a traceback, such as 'train.py:12 in f', or ''.

    Installed packages, Python and trainkit are not the user's code.
    """
    found = [frame for frame in _FRAME.finditer(text) if not frame["file"].startswith(_installed())]
    if not found:
        return ""
    frame = found[-1]
    return f"{os.path.basename(frame['file'])}:{frame['line']} in {frame['function']}"


def without_frames(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a public method so that its errors are raised without trainkit's frames in this process."""

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
        except Exception as error:
            if settings.full_traceback():
                raise
            raise error.with_traceback(_foreign(error.__traceback__))  # noqa: B904 (as above)

    return call


def _foreign(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of trainkit that precede a frame of other code."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    own = [each.tb_frame.f_code.co_filename.startswith(_OWN) for each in frames]
    last = max((place for place, inside in enumerate(own) if not inside), default=-1)
    for place in reversed(range(len(frames))):
        if not own[place] or place > last:
            each = frames[place]
            trace = TracebackType(trace, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return trace


def _cut(whole: traceback.TracebackException, error: BaseException) -> None:
    """Remove the frames that `kept` leaves out from the traceback of an exception,
    its causes and its contexts.
    """
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
    """Return the path prefixes of code that is not the user's code, including frozen modules."""
    paths = sysconfig.get_paths()
    named = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = {os.path.join(path, "") for path in [*named, *site.getsitepackages()]}
    return (_OWN, "<frozen ", *sorted(folders))


class RemoteTraceback(Exception):
    """Traceback of another process, which is shown above the local traceback as the cause.

    This exception is the cause of errors whose own text does not include the remote traceback, such as
    SyntaxErrors of user code and errors of trainkit.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n\n{self.text}"


class ResultCountError(ValueError):
    """Error of a function that returned a different number of values than its call requests."""


class ConstructorError(TaskError, ActorDiedError):
    """Error of an actor's constructor, which every call of the actor raises."""


class ActorExit(BaseException):
    """Exception that ends the actor whose code raises it.

    The user's `except Exception` does not catch this exception.
    """


def pack_failure(error: BaseException, where: str, *, of_constructor: bool = False) -> Packed:
    """Pack an exception of user code with its traceback, or as text if the exception can't be pickled.

    Args:
        error: the exception.
        where: name of the code that ran, such as "Model.fit (pid 12)".
        of_constructor: True if an actor's constructor raised the exception, so that the actor is unusable.
    """
    if isinstance(error, TaskError):
        # A nested call failed, so this process's frames are added to the traceback of the original cause.
        text = f"{error.remote_traceback}{_hop(error, where)}"
        return _pack(error.cause or error, text, where, of_constructor)
    if isinstance(error, TrainkitError) and isinstance(
        error.__cause__, RemoteTraceback
    ):  # `raisable` made this error, whose cause is the remote traceback
        return _pack(error, f"{error.__cause__.text}{_hop(error, where)}", where, of_constructor)
    return _pack(error, f"{where}:\n{_format(error)}", where, of_constructor)


def _pack(error: BaseException, text: str, where: str, of_constructor: bool) -> Packed:
    summary = _summary(error)
    candidates = [
        (type(error), arguments_of(error), attributes_of(error), text, summary, of_constructor),
        (type(error), tuple(str(item) for item in error.args), {}, text, summary, of_constructor),
        (None, (summary,), {}, text, summary, of_constructor),
    ]
    for candidate in candidates:
        try:
            packed = pack(candidate)
            unpack(packed)
        except Exception:  # this form can't be pickled or rebuilt, so the next, simpler form is tried
            continue
        return packed
    raise SerializationError(f"{where} raised {summary}, which could not be packed even as text")


def unpack_failure(packed: Packed) -> TaskError:
    """Return the exception that `pack_failure` packed, as an instance of TaskError and the original class."""
    try:
        parts = unpack(packed)
    except Exception as error:
        failure = TaskError(f"user code raised an exception that cannot be unpickled here: {error}")
        failure.remote_traceback = str(error)
        return failure
    return make_task_error(*parts)


def raisable(failure: TaskError) -> Exception:
    """Return the exception that `get` raises: the failure's cause if trainkit raised the cause, else the
    TaskError itself.
    """
    cause = failure.cause
    if isinstance(cause, TrainkitError) and not isinstance(failure, ConstructorError):
        if isinstance(cause, TaskError):  # the failed task only passed on an earlier task's error
            cause.remote_traceback = failure.remote_traceback
        else:
            cause.__cause__ = RemoteTraceback(failure.remote_traceback)
        return cause
    return failure


def make_task_error(
    kind: type[BaseException] | None,
    args: tuple[Any, ...],
    attributes: dict[str, Any],
    text: str,
    summary: str,
    of_constructor: bool = False,
) -> TaskError:
    """Return a TaskError that is also an instance of `kind` if Python allows both, else a plain TaskError.

    The error of a constructor is also an ActorDiedError.
    """
    base = ConstructorError if of_constructor else TaskError
    cause = rebuilt(kind, args, attributes) if kind is not None else None
    failure: TaskError | None = None
    if cause is not None and isinstance(cause, Exception):
        failure = _combine(base, cause, args, attributes)
    if failure is None:
        failure = base(summary)
    failure.cause = cause
    failure.remote_traceback = text
    place = _PLACE.match(text)
    seen = {
        "traceback_str": text,
        "function_name": place[1] if place else "",
        "pid": int(place[2]) if place and place[2] else None,
    }
    for name, value in seen.items():
        # The user's class may have its own attribute of this name, which must not be overwritten. The check
        # does not read the attribute, because a property may raise an error.
        if not hasattr(type(failure), name) and name not in vars(failure):
            setattr(failure, name, value)
    # The text of most errors includes the traceback. Python formats a SyntaxError differently, so for a
    # SyntaxError the traceback is shown as the cause.
    failure.__cause__ = RemoteTraceback(text) if isinstance(failure, SyntaxError) else None
    return failure


def _combine(
    base: type[TaskError], cause: Exception, args: tuple[Any, ...], attributes: dict[str, Any]
) -> TaskError | None:
    kind = type(cause)
    try:
        both = type(kind.__name__, (_PicklesByParts, base, kind), {"__module__": kind.__module__})
        failure = rebuilt(both, args, attributes)
        str(failure)
        repr(failure)
    except Exception:  # Python allows no such subclass, or the user's `__str__` raises an error
        return None
    return failure if isinstance(failure, TaskError) else None


class _PicklesByParts:
    """Base of combined errors, which makes them picklable although their class is not in a module."""

    def __reduce__(self) -> Any:
        error: Any = self
        cause = error.cause
        parts = (
            type(cause),
            arguments_of(cause),
            attributes_of(cause),
            error.remote_traceback,
            _summary(cause),
        )
        return make_task_error, (*parts, isinstance(error, ConstructorError))


def _summary(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {message_of(error)}"
    except Exception:  # an error in the user's __str__ must not hide the class of the exception
        return f"{type(error).__qualname__} (its __str__ raises)"


def _format(error: BaseException, *, chain: bool = True) -> str:
    """Return the traceback of `error` as text, or only a summary if the traceback can't be formatted."""
    try:
        return formatted(error, chain=chain)
    except Exception:  # formatting calls the user's __str__, which may raise
        return _summary(error)


def _hop(error: TrainkitError, where: str) -> str:
    """Return the frames and notes that this process adds to the traceback of a received failure."""
    try:
        passed_on = user_frames(error)
    except Exception:  # extracting the frames may raise, which must not hide the failure
        passed_on = True
    if passed_on:
        own = _format(error, chain=False).replace(str(error), message_of(error))
        return f"\n\nreached {where}:\n{own}"
    return "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
