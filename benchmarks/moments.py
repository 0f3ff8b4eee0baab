"""Moments of an operation: times of calls and returns, on the clock that all processes of a machine share.

The measured code is not changed: functions are wrapped from outside, in the process in which they run.
"""

from __future__ import annotations

import functools
import statistics
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

NOTED: dict[str, list[int]] = defaultdict(list)
"""Nanoseconds of each moment in this process, in order of time."""


class Watched(NamedTuple):
    """A function to be wrapped.

    Attributes:
        owner: class or module that has the function.
        name: name of the function in the owner.
        before, after: moments recorded at the call and at the return; "" for none.
    """

    owner: Any
    name: str
    before: str = ""
    after: str = ""


def note(moment: str) -> None:
    """Record the current time for a moment."""
    NOTED[moment].append(time.perf_counter_ns())


def watch(each: Watched) -> Any:
    """Wrap a function; return the owner's own function, or None if it was inherited."""
    inner, own = getattr(each.owner, each.name), vars(each.owner).get(each.name)

    @functools.wraps(inner)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if each.before:
            note(each.before)
        answer = inner(*args, **kwargs)
        if each.after:
            note(each.after)
        return answer

    setattr(each.owner, each.name, wrapped)
    return own


@contextmanager
def watching(*functions: Watched) -> Iterator[None]:
    """Wrap functions during a `with` block."""
    with ExitStack() as undone:
        for each in functions:
            own = watch(each)
            undo = functools.partial(setattr, each.owner, each.name, own)
            undone.callback(undo if own is not None else functools.partial(delattr, each.owner, each.name))
        yield


def stages(path: Mapping[str, str], noted: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the median microseconds from each moment of a path to the next, and of the whole path.

    Args:
        path: moments in order, each with the name of the stage that leads to it; the first name is for the
            whole. An operation extends from one first moment until before the next first moment.
        noted: times of each moment, in order.

    Raises:
        RuntimeError: a moment is missing in at least half of the operations, because the code has changed.
    """
    first, *later = path
    begins, found = noted.get(first, ()), defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    for index, begin in enumerate(begins):
        end = begins[index + 1] if index + 1 < len(begins) else float("inf")
        times = [begin]
        for moment in later:
            known = noted.get(moment, ())
            place = bisect_left(known, times[-1])
            if place == len(known) or known[place] > end:
                missing[moment] += 1
                break
            times.append(known[place])
        else:
            for words, start, stop in zip(list(path.values())[1:], times, times[1:], strict=False):
                found[words].append(stop - start)
            found[path[first]].append(times[-1] - begin)
    if sum(missing.values()) * 2 >= len(begins):
        raise RuntimeError(
            f"of {len(begins)} operations ({path[first]}) these lack a moment: {dict(missing)}"
        )
    return {words: statistics.median(found[words]) / 1e3 for words in path.values()}
