"""From a trial's answer to an event, and from what it raised to what is kept of that; pure."""

from __future__ import annotations

from typing import Any

from trainkit.errors import (
    ConfigError,
    MetricError,
    SerializationError,
    TaskError,
    WorkerDiedError,
    message_of,
)
from trainkit.tune.control import events as ev
from trainkit.tune.control.failing import is_out_of_memory
from trainkit.tune.running.protocol import Place
from trainkit.tune.trial import Failure


def event_of(trial_id: str, attempt: int, time: float, answer: Any) -> ev.Event:
    """Return the event that `answer`, to whichever call, is."""
    if type(answer) is tuple:
        iteration, metrics, checkpoint, done, problem = answer
        if metrics is None and not done:
            return ev.Saved(trial_id, attempt, time, iteration, checkpoint)
        if metrics is None:
            return ev.Finished(trial_id, attempt, time, iteration, checkpoint, problem)
        return ev.Reported(trial_id, attempt, time, iteration, metrics, checkpoint, done, problem)
    if type(answer) is Place:
        return ev.Started(trial_id, attempt, time, answer.pid, answer.hostname, answer.node_ip)
    raise TypeError(f"a trial cannot answer {answer!r}")


def failure_of(error: BaseException) -> Failure:
    """What is kept of an exception; a mistake in the arguments would only be made again."""
    cause = error.cause if isinstance(error, TaskError) and error.cause is not None else error
    wrong = (MetricError, ConfigError, SerializationError)
    return Failure(
        kind=type(cause).__name__,
        message=message_of(cause),
        traceback=error.remote_traceback if isinstance(error, TaskError) else _last_words(error),
        retry=not isinstance(cause, wrong) and not isinstance(error, wrong),
        out_of_memory=is_out_of_memory(cause),
    )


def remembered(error: BaseException) -> BaseException:
    """Return `error` without the frames of this program, which it would keep alive for nothing."""
    return error.with_traceback(None)


def _last_words(error: BaseException) -> str:
    return error.stderr_tail if isinstance(error, WorkerDiedError) else ""
