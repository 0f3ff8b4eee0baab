"""The keys that every result gets besides what the trial reported; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Origin(NamedTuple):
    """Where the results of one attempt come from: its trial and its process."""

    trial_id: str
    experiment_tag: str
    config: Mapping[str, Any]
    pid: int
    hostname: str
    node_ip: str


def full_result(metrics: Mapping[str, Any], origin: Origin, *, done: bool) -> dict[str, Any]:
    """Return a report as users see it; a key that the trial reported itself keeps its value."""
    return {
        "trial_id": origin.trial_id,
        "experiment_tag": origin.experiment_tag,
        "date": None,  # which the trial's meter has filled in
        "pid": origin.pid,
        "hostname": origin.hostname,
        "node_ip": origin.node_ip,
        "config": origin.config,
        "done": done,
        **metrics,
    }
