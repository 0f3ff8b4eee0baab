"""What to say of a metric that was not reported; pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from trainkit.tune.values import flatten

AUTOMATIC = frozenset(
    "training_iteration time_this_iter_s time_total_s timesteps_total trial_id experiment_tag date timestamp "
    "pid hostname node_ip config done checkpoint_dir_name iterations_since_restore time_since_restore".split()
)
"""Keys that every result gets without being reported."""


def missing_metric(name: str, results: Iterable[Mapping[str, Any]]) -> str:
    """Text on a metric that isn't there: its name, what was reported instead, the nearest spelling."""
    names: dict[str, None] = {}
    for result in results:
        names.update(dict.fromkeys(flatten({k: v for k, v in result.items() if k != "config"})))
    reported = [key for key in names if key not in AUTOMATIC]
    if not reported:
        how = f"call tune.report({{{name!r}: value}}) or return a dictionary"
        return f"{name!r}, but nothing was reported; {how}"
    text = f"{name!r}, which was not reported; reported were {', '.join(sorted(reported))}"
    near = difflib.get_close_matches(name, [*reported, *AUTOMATIC], n=1)
    return f"{text}. Did you mean {near[0]!r}?" if near else text
