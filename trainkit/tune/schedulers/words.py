"""Decisions in words: the facts of a decision as text, by the rule that made it.

The words of a rule stand beside the rule. A rule without words shows its facts as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Facts = Mapping[str, Any]
Words = Callable[[Facts], str]

_WORDS: dict[str, Words] = {}


def words_of(rule: str) -> Callable[[Words], Words]:
    """Return a decorator for the function that puts the facts of a rule's decisions into words."""

    def decorated(words: Words) -> Words:
        _WORDS[rule] = words
        return words

    return decorated


def in_words(reason: Facts) -> str:
    """Return such as 'rung 4, rank 3 of 8, 2 go on, cutoff 0.25'; '' where nothing was judged."""
    words = _WORDS.get(str(reason.get("rule")), _listed)
    try:
        return words(reason)
    except (KeyError, TypeError, ValueError):  # a scheduler of the user's may have a rule of the same name
        return _listed(reason)


def number_words(value: Any) -> str:
    """Return a number with six digits, or 'no score' for None."""
    return f"{value:.6g}" if isinstance(value, float) else "no score" if value is None else str(value)


def _listed(reason: Facts) -> str:
    return ", ".join(f"{name} {number_words(value)}" for name, value in reason.items())


@words_of("late report")
def _late_words(reason: Facts) -> str:
    del reason
    return "too late to count, it was judged before"
