"""What lies in shared memory, and who holds it, as the kernel tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MARK = "/memfd:trainkit"


def objects(processes: Mapping[int, str]) -> list[dict[str, Any]]:
    """The segments that these processes hold, largest first.

    Args:
        processes: names by pid; one that has ended holds nothing.
    """
    found: dict[int, dict[str, Any]] = {}
    for pid in processes:
        folder = f"/proc/{pid}/fd"
        try:
            descriptors = os.listdir(folder)
        except OSError:  # it ended
            continue
        for descriptor in descriptors:
            path = f"{folder}/{descriptor}"
            try:
                if not os.readlink(path).startswith(_MARK):
                    continue
                status = os.stat(path)
            except OSError:  # closed meanwhile
                continue
            row = found.setdefault(
                status.st_ino,
                {"object_id": f"{status.st_ino:016x}", "size_bytes": status.st_size, "pids": []},
            )
            if pid not in row["pids"]:
                row["pids"].append(pid)
    return sorted(found.values(), key=lambda row: -int(row["size_bytes"]))
