"""Names of `ray._private.internal_api`: values freed by hand, and a text about large objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainkit.errors import ArgumentTypeError
from trainkit.runtime.api import list_objects
from trainkit.runtime.session import engine
from trainkit.runtime.specs import ObjectRef


def free(object_refs: ObjectRef[Any] | Sequence[ObjectRef[Any]], local_only: bool = False) -> None:
    """Let go of values though references to them are left, whose `get` then raises ObjectLostError.

    What other processes have of them is theirs: the memory is free when they have let go too.

    Args:
        object_refs: one reference, or several. One that is not done is waited for.
        local_only: without effect, as no process reaches into another.

    Raises:
        ArgumentTypeError: something else is among them.
    """
    del local_only
    refs = [object_refs] if isinstance(object_refs, ObjectRef) else list(object_refs)
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise ArgumentTypeError(f"free() takes references, and was given {ref!r}")
    engine().free(refs)


def memory_summary(**selection: Any) -> str:
    """Return a table of the session's large objects, as `trainkit.list_objects` lists them.

    Args:
        **selection: Ray's choice of what to show, such as `units="MB"`. Without effect.
    """
    del selection
    rows = list_objects()
    names = list(dict.fromkeys(name for row in rows for name in row))
    total = sum(row["size_bytes"] for row in rows)
    lines = ["\t".join(names), *("\t".join(str(row.get(name, "")) for name in names) for row in rows)]
    return "\n".join([f"{len(rows)} large objects, {total} bytes", *(lines if rows else [])])
