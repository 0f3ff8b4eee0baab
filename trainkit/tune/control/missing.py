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
"""How alike two names are that are taken for one (difflib); 'val_loss' and 'train_loss' are less so."""


def misspelt(name: str, result: Mapping[str, Any]) -> str | None:
    """Return the reported name that `name` is a misspelling of; None if there is none.

    'los' is one of 'loss', but 'val_loss' is not: each word must be much like its counterpart, and names
    that differ in numbers alone are different names.
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
    return len(words) == len(others) and all(
        difflib.SequenceMatcher(None, word, each).ratio() >= ALIKE
        for word, each in zip(words, others, strict=True)
    )


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[^0-9a-zA-Z]+", name.lower()) if word]
