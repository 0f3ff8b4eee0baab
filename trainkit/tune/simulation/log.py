"""A record as a line of text, for logs that are compared."""

from __future__ import annotations

import json
from typing import Any

from trainkit.tune.control import events as ev
from trainkit.tune.schedulers.base import Decision
from trainkit.tune.trial import Failure, SavedCheckpoint, Trial
from trainkit.tune.values import encode_config

_LEFT_OUT = "result"
"""Field of a report that repeats the others."""


def line_of(record: ev.Record) -> str:
    """Return `record` as a line of JSON: its kind, then its fields by name."""
    fields: dict[str, Any] = {
        name: getattr(record, name) for name in type(record).__match_args__ if name != _LEFT_OUT
    }
    if isinstance(record, ev.TrialAdded):
        fields["config"] = encode_config(record.trial.suggested)
    return json.dumps([type(record).__name__, fields], default=_plain)


def _plain(value: Any) -> Any:
    match value:
        case Trial():
            return value.trial_id
        case Decision():
            return [value.verdict, dict(value.reason), [donor.trial_id for donor in value.donors]]
        case Failure():
            return [value.kind, value.message]
        case SavedCheckpoint():
            return [value.number, value.iteration]
    return repr(value)
