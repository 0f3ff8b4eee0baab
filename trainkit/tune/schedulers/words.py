"""The facts of a decision as text, by the rule that made it; no effects.

A scheduler's decision names its rule and gives facts; here they become words, for the console, for
`trainkit why` and for a trial's reason. A rule without words of its own shows its facts as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]


def in_words(reason: Facts) -> str:
    """Such as 'rung 4, rank 3 of 8, 2 go on, cutoff 0.25'; '' where nothing was judged."""
    words = _RULES.get(str(reason.get("rule")))
    try:
        return words(reason) if words is not None else _listed(reason)
    except (KeyError, TypeError, ValueError):  # a scheduler of the user's may have a rule of the same name
        return _listed(reason)


def _rung(reason: Facts) -> str:
    judged = f"{_place(reason)}, rank {reason['rank']} of {reason['entries']}, {reason['places']} go on"
    if "cutoff" in reason:  # else there is no place yet, or no finite score
        judged += f", cutoff {reason['cutoff']:.6g}"
    return f"{judged}, past {reason['skipped']} lower" if "skipped" in reason else judged


def _place(reason: Facts) -> str:
    rung = f"rung {reason['rung']:g}"
    return f"{rung} of bracket {reason['bracket']}" if "bracket" in reason else rung


def _not_chosen(reason: Facts) -> str:
    rank = f"{_place(reason)}, rank {reason['rank']} of {reason['entries']}"
    if "awaits" in reason:
        return f"{rank} so far, {reason['awaits']} more were to come there"
    places = f"{reason['places']} place{'s' * (reason['places'] != 1)}"
    return f"{rank}, {places}" + (", its turn had not come" if "due" in reason else "")


def _finish(reason: Facts) -> str:
    return f"{_place(reason)}, rank {reason['rank']} of {reason['entries']}, to train one to the end"


def _waits(reason: Facts) -> str:
    return f"it waits to be promoted from {_place(reason)}"


def _max_t(reason: Facts) -> str:
    return f"reached max_t={reason['max_t']:g}"


def _late(reason: Facts) -> str:
    del reason
    return "too late to count, it was judged before"


def _milestone(reason: Facts) -> str:
    waits = (
        f"waits for {reason['awaits']} more to come there" if reason["awaits"] else "the last to come there"
    )
    return f"{_place(reason)}, {waits}"


def _barrier(reason: Facts) -> str:
    return f"waits at {reason['at']:g} for all members, {reason['arrived']} of {reason['members']} are there"


def _turn(reason: Facts) -> str:
    return f"its turn again, from {reason['time']:g} on"


def _exploit(reason: Facts) -> str:
    found = f"{_population(reason)}, takes over {reason['donor']} with {_number(reason['donor_score'])}"
    steps = [
        f"{name} {_number(change['old'])} -> {_number(change['new'])}"
        for name, change in reason.get("changes", {}).items()
        if change["old"] != change["new"]
    ]
    return found + (f"; {', '.join(steps)}" if steps else "")


def _replay(reason: Facts) -> str:
    return f"change {reason['change']} of {reason['changes']} in its schedule, at {reason['at']:g}"


def _population(reason: Facts) -> str:
    return f"rank {reason['rank']} of {reason['members']} with {_number(reason['score'])}"


def _median(reason: Facts) -> str:
    return (
        f"best {reason['best']:.6g} at {reason['time']:g}, "
        f"median of {reason['others']} others {reason['median']:.6g}"
    )


def _time_slice(reason: Facts) -> str:
    if "needed" not in reason:
        return "its turn again"
    return (
        f"makes way at {reason['time']:g}, as {reason['others']} of {reason['needed']} others have got there"
    )


def _losers_last(reason: Facts) -> str:
    del reason
    return "nobody else wants the place"


def _resources(reason: Facts) -> str:
    return (
        f"{reason['before']} before, {reason['after']} from now on" if "after" in reason else "it is resized"
    )


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "no score" if value is None else str(value)


def _listed(reason: Facts) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in reason.items())


_RULES: Mapping[str, Callable[[Facts], str]] = {
    "barrier": _barrier,
    "exploit": _exploit,
    "finish": _finish,
    "late report": _late,
    "losers last": _losers_last,
    "max_t": _max_t,
    "median": _median,
    "milestone": _milestone,
    "not chosen": _not_chosen,
    "population": _population,
    "replay": _replay,
    "resources": _resources,
    "rung": _rung,
    "time slice": _time_slice,
    "turn": _turn,
    "waits": _waits,
}
