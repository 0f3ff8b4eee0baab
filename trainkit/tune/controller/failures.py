"""Out-of-memory errors, repeated node losses, and messages about failed trials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trainkit.errors import GangError, TuneError, WorkerDiedError
from trainkit.tune.core.setting_names import setting
from trainkit.tune.core.trial import Failure, Trial

TIMEOUT = "TrialTimeoutError"

_CLASSES = frozenset({"MemoryError", "OutOfMemoryError"})
"""Class names of out-of-memory errors in torch, NumPy, CuPy and Ray; base classes are also compared."""
_WORDS = (
    "memory limit exceeded",  # the runtime reports this when a worker exceeds its memory request
    "oom killer",  # the kernel's out-of-memory killer writes this
    "out of memory",  # CUDA reports this, and some libraries raise it as a RuntimeError.
    "can't allocate memory",  # torch's CPU allocator reports this
    "not enough memory",
    "cublas_status_alloc_failed",
    "running low on memory",  # Ray's memory monitor reports this
)
_SPEAKING = (RuntimeError, OSError, WorkerDiedError, GangError)
"""Errors whose text is searched for _WORDS.

The text of other errors, such as ValueError, may contain these words by chance.
"""


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if `error` says that a process, the machine or a GPU ran out of memory."""
    if _CLASSES & {cls.__name__ for cls in type(error).__mro__}:
        return True
    text = str(error).lower()
    # A TuneError is excluded, because its message quotes other errors.
    speaks = isinstance(error, _SPEAKING) and not isinstance(error, TuneError)
    return speaks and any(words in text for words in _WORDS)


# --- losses of nodes ------------------------------------------------------------------------------


class Losses:
    """Counter of consecutive node losses between which no trial has made progress."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._ended = 0
        self._furthest: dict[str, int] = {}

    def count(self, trials: Sequence[Trial]) -> int:
        """Count a further loss, and return the number of losses since a trial last progressed or ended.

        Args:
            trials: all trials, with their current iterations.
        """
        ended = sum(trial.status.is_finished for trial in trials)
        further = [t for t in trials if t.iteration > self._furthest.get(t.trial_id, 0)]
        self._in_a_row = 1 if further or ended > self._ended else self._in_a_row + 1
        self._ended = ended
        self._furthest |= {trial.trial_id: trial.iteration for trial in further}
        return self._in_a_row


def too_many_losses(in_a_row: int, problem: str) -> str:
    """Return the message for an experiment that ends because its node dies repeatedly."""
    return (
        f"{problem}, for the {in_a_row}th time in a row without progress of any trial. Find the cause, such "
        "as a lack of memory (see `dmesg`): fewer concurrent trials need less memory"
    )


# --- summaries of failures ------------------------------------------------------------------------


def timeout_words(limit_s: float) -> str:
    """Return the message of a TrialTimeoutError."""
    return (
        f"the attempt took longer than trial_timeout_s={limit_s:g} and was killed: "
        f"increase {setting('trial_timeout_s', 'TuneConfig')}, or save checkpoints and retry from them "
        f"by {setting('max_failures', 'FailureConfig')}"
    )


HOPELESS = 12
"""Number of failed trials after which an unlimited search ends if no trial has ever reported."""


def too_many_failed(trials: Sequence[Trial], folder: str, limit: int | None) -> str:
    """Return the message about failures and remedies for an experiment that ended because of failed trials.

    Args:
        trials: trials of the experiment.
        folder: folder of the experiment.
        limit: `max_failed_trials`; None: the experiment ended because all of its first trials failed without
            a report.
    """
    why = "this number reaches FailureConfig(max_failed_trials=...)"
    if limit is None:
        why = f"no trial has reported: an unlimited search stops after {HOPELESS} failed trials"
    failed = [(trial.trial_id, trial.failure) for trial in trials if trial.failure is not None]
    return (
        f"{len(failed)} of {len(trials)} trials have failed, and {why}:\n{grouped(failed)}\n"
        f"All results are kept: read them by tune.Tuner.restore({folder!r}, trainable).get_results(), or "
        f"`trainkit show {folder}`. Fix the cause, then continue by tune.Tuner.restore({folder!r}, "
        "trainable, restart_errored=True).fit()"
    )


def grouped(failed: Iterable[tuple[str, Failure]]) -> str:
    """Return a text that lists each error once, with its count, its place in the code and its trials.

    Args:
        failed: pairs of a trial id and its failure.
    """
    groups: dict[tuple[str, ...], list[tuple[str, Failure]]] = {}
    for trial_id, failure in failed:
        groups.setdefault(_place(failure), []).append((trial_id, failure))
    # The sort is stable, so groups of equal size keep their order.
    ordered = sorted(groups.values(), key=len, reverse=True)
    return "\n".join(_group_words(group) for group in ordered)


def _place(failure: Failure) -> tuple[str, ...]:
    """Return the class and stack frames of an error, which identify the error better than its message.

    The message of an error may depend on the configuration.
    """
    frames = re.findall(r'^ *File "(.+)", line (\d+), in (.+)$', failure.traceback, re.MULTILINE)
    if not frames:
        return (failure.kind, re.sub(r"\d+", "N", failure.message))
    return (failure.kind, *(" ".join(frame) for frame in frames))


def _group_words(group: Sequence[tuple[str, Failure]]) -> str:
    first = group[0][1]
    ids = ", ".join(trial_id for trial_id, _ in group[:10]) + (", ..." if len(group) > 10 else "")
    messages = {failure.message for _, failure in group}
    same = (
        first.message if len(messages) == 1 else f"{first.message} (and {len(messages) - 1} other messages)"
    )
    text = f"{len(group)} x {first.kind}: {same}\n  in {ids}"
    return f"{text}\n{first.traceback.rstrip()}" if first.traceback else text
