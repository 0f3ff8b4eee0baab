"""What to say of a metric that was not reported; pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from trainkit.tune.values import flatten

AUTOMATIC = frozenset(
    "training_iteration time_this_iter_s time_total_s timesteps_total trial_id experiment_tag date timestamp "
    "pid hostname node_ip config done checkpoint_dir_name iterations_since_restore time_since_restore".split()
)
"""Keys that every result gets without being reported."""


BARE = "_metric"
"""Name of a number that was reported or returned without one."""


def missing_metric(name: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Text on a metric that isn't there: its name, what was reported instead, the nearest spelling."""
    names: dict[str, None] = {}
    for result in results:
        names.update(dict.fromkeys(flatten({k: v for k, v in result.items() if k != "config"})))
    reported = [key for key in names if key not in AUTOMATIC]
    if not reported:
        how = f"call tune.report({{{name!r}: value}}) or return a dictionary"
        return f"{name!r}, but nothing was reported; {how}"
    if reported == [BARE]:
        return f"{name!r}, but only a number was reported: give its name, as tune.report({{{name!r}: value}})"
    text = f"{name!r}, which was not reported; reported were {', '.join(sorted(reported))}"
    near = difflib.get_close_matches(name, [*reported, *AUTOMATIC], n=1)
    return f"{text}. Did you mean {near[0]!r}?" if near else text


ALIKE = 0.8
"""Least likeness of a name to the one that a warning suggests for it (difflib)."""

LONG, LONGER = 5, 7
"""Letters of a word in which one too few, or two swapped, are a slip; and those in which a wrong one is.

'rmse' and 'rmsle' are two metrics, and so are 'f1_macro' and 'f1_micro'.
"""


def misspelt(name: str, result: Mapping[str, Any]) -> str | None:
    """Return the reported name that `name` is a misspelling of; None if there is none.

    'los' is one of 'loss', but 'val_loss' is not, nor is 'mape' one of 'mae': each word must be its
    counterpart, or differ from it by one slip. Names that differ in numbers alone are different names.
    """
    reported = flatten({key: value for key, value in result.items() if key != "config"})
    alike = [other for other in reported if _is_slip(name, other)]
    return next(iter(difflib.get_close_matches(name, alike, n=1, cutoff=0.0)), None)


def _is_slip(name: str, other: str) -> bool:
    if re.sub(r"\d", "", name) == re.sub(r"\d", "", other):
        return False
    words, others = _words(name), _words(other)
    if "".join(words) == "".join(others):
        return True
    return len(words) == len(others) and all(map(_is_slip_of_word, words, others))


def _is_slip_of_word(word: str, other: str) -> bool:
    """Return whether one letter is missing, doubled or replaced, or two are swapped, or none."""
    short, long = sorted((word, other), key=len)
    if short == long:
        return True
    if short[0] != long[0] or len(short) < 3:
        return False
    if len(short) + 1 == len(long):
        if long[:-1] == short:
            return len(long) >= LONG or long[-1] == short[-1]  # 'los' and 'loss', but not 'map' and 'mape'
        return len(short) >= LONG and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))
    wrong = [at for at in range(len(long)) if len(short) == len(long) and short[at] != long[at]]
    match wrong:
        case [at]:
            return len(long) >= LONGER and short[at].isalpha() and long[at].isalpha()
        case [first, second]:
            swapped = short[first] == long[second] and short[second] == long[first]
            return len(long) >= LONG and second == first + 1 and swapped
    return False


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^0-9a-zA-Z]+", name.lower()) if word]
