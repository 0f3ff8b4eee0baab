"""What candidates, and what they are evaluated on, are known again by: digests of their pickles."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cloudpickle.cloudpickle import _DYNAMIC_CLASS_TRACKER_BY_CLASS

from trainkit.errors import SerializationError
from trainkit.runtime.serialize import pack
from trainkit.sklearn.cv_results import Outcome

CANDIDATE = "candidate_key"
"""The reported text by which a candidate is known again."""

Known = Mapping[str, Sequence[Outcome]]
"""By a candidate's key, what its first folds came to."""


def digest(value: Any, what: str) -> str:
    """Return a text that is the same for values that are pickled alike; arrays are read, not copied.

    Raises:
        SerializationError: `value` can't be pickled.
    """
    packed = pack(value, what)
    payload = bytes(packed.payload)
    # A class of `__main__` travels with a name that is drawn anew in each program.
    for drawn in list(_DYNAMIC_CLASS_TRACKER_BY_CLASS.values()):
        payload = payload.replace(drawn.encode(), b"")
    found = hashlib.blake2b(payload, digest_size=16)
    for buffer in packed.buffers:
        found.update(buffer)
    return found.hexdigest()


def candidate_key(parameters: Mapping[str, Any], task: str = "") -> str:
    """Return what a candidate is known by; '' if its parameters can't be pickled here again.

    Args:
        parameters: of the candidate.
        task: digest of what it is evaluated on, where experiments with others may lie beside.
    """
    try:
        return task + digest(dict(parameters), "the parameters")
    except SerializationError:  # it came here pickled by an earlier state; it is only not known again
        return ""
