"""Where the workers of a gang meet: at a file of their machine, or at a store in worker 0's process."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from trainkit.runtime import api as runtime


def on_one_machine() -> bool:
    """Whether all workers of this session are on one machine."""
    return "near" in runtime.promises()


def file_place(held: ExitStack) -> str:
    """A place to meet on one machine.

    Args:
        held: removes the file as it closes.
    """
    path = runtime.scratch_dir() / f"gang-{secrets.token_hex(8)}"
    held.callback(path.unlink, missing_ok=True)
    return f"file://{path}"


def own_node() -> str:
    """The id of the machine that this process is on."""
    return runtime.get_runtime_context().get_node_id()


def own_address() -> str:
    """The address of this machine among those of the session."""
    own = own_node()
    return next(str(node["address"]) for node in runtime.nodes() if node["node_id"] == own)


def local_ranks(nodes: Sequence[str]) -> list[int]:
    """Each worker's number among those of its machine.

    Args:
        nodes: each worker's machine, by rank.
    """
    seen: Counter[str] = Counter()
    ranks = []
    for node in nodes:
        ranks.append(seen[node])
        seen[node] += 1
    return ranks
