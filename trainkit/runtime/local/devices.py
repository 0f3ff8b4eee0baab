"""What this machine has that a session can share out: CPUs, memory, and GPUs by index or UUID."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from trainkit.runtime.local import cgroups


def cpu_count() -> int:
    """CPUs that this process may run on, within its container's quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroups.cpu_quota()
    return max(1, allowed if quota is None else min(allowed, round(quota)))


def memory_bytes() -> int:
    """Memory of the machine, or of its container."""
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroups.memory_limit()
    return present if limit is None else min(present, limit)


def gpu_count() -> int:
    """GPUs that this process may see; never imports torch and never starts CUDA."""
    return len(visible_gpus())


def gpu_ids(names: Iterable[str]) -> list[int | str]:
    """Return names of GPUs as `get_gpu_ids` gives them: numbers where they are such, else UUIDs."""
    return [int(name) if name.isdigit() else name for name in names]


def gpu_name(index: int, visible: Sequence[str]) -> str:
    """Return what CUDA_VISIBLE_DEVICES calls a GPU; one that was only declared is called by its index."""
    return visible[index] if index < len(visible) else str(index)


def visible_gpus() -> list[str]:
    """Names that CUDA_VISIBLE_DEVICES would take for each visible GPU: its own entries, or indices."""
    declared = os.environ.get("CUDA_VISIBLE_DEVICES")
    if declared is not None:
        # CUDA ends the list at the first name that is no device, such as "" or "-1".
        names = [name.strip() for name in declared.split(",")]
        end = next((at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))
        return names[:end]
    try:
        present = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    except OSError:
        return []
    return [str(index) for index in range(len(present))]
