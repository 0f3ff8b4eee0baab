"""Moments of an operation: when functions are called and return, on the clock that all processes here share.

Nothing is added to what is measured: functions are wrapped from outside, in the process that they run in.
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
"""Nanoseconds of each moment in this process, in order."""


class Watched(NamedTuple):
    """A function to be wrapped.

    Attributes:
        owner: the class or module that holds it.
        name: by which it does.
        before, after: moments noted as it is called, and as it has returned; "" for none.
    """

    owner: Any
    name: str
    before: str = ""
    after: str = ""


def note(moment: str) -> None:
    """Note that it is now."""
    NOTED[moment].append(time.perf_counter_ns())


def watch(each: Watched) -> Any:
    """Wrap a function; return what was there, None if it was inherited."""
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
    """Wrap functions for the time of a `with`."""
    with ExitStack() as undone:
        for each in functions:
            own = watch(each)
            undo = functools.partial(setattr, each.owner, each.name, own)
            undone.callback(undo if own is not None else functools.partial(delattr, each.owner, each.name))
        yield


def stages(path: Mapping[str, str], noted: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Median microseconds from each moment of a path to the next, and of the whole.

    Args:
        path: moments in their order, each with the words for what leads to it; the first one's are for the
            whole. One operation is from a first moment to the last before the next first one.
        noted: by moment, its times in order.

    Raises:
        RuntimeError: a moment is missing in more than half of the operations: the code goes another way now.
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
