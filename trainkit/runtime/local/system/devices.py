"""CPUs, memory and GPUs of the machine, within the limits of its container."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")
"""Files with a cgroup's memory limit, in cgroup version 2 and in version 1."""


def memory_limit() -> int | None:
    """Return the memory limit of this process's cgroups in bytes; None without a limit."""
    texts = [_read(folder / name) for folder in _folders("memory") for name in _MEMORY_FILES]
    limits = [limit for limit in map(parse_memory, texts) if limit is not None]
    return min(limits, default=None)


def cpu_quota() -> float | None:
    """Return the CPU quota of this process's cgroups, in CPUs; None without a quota."""
    quotas = []
    for folder in _folders("cpu"):
        text = _read(folder / "cpu.max")  # cgroup version 1 has each of the two numbers in its own file
        text = text or f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
        quota = parse_cpu(text)
        if quota is not None:
            quotas.append(quota)
    return min(quotas, default=None)


def parse_memory(text: str) -> int | None:
    """Return the limit in the text of a cgroup's file; None without a limit.

    Without a limit, the file contains "max" in cgroup version 2, and a number larger than any machine's
    memory in version 1.
    """
    text = text.strip()
    return int(text) if text.isdigit() else None


def parse_cpu(text: str) -> float | None:
    """Return the CPUs that a text with quota and period, such as "150000 100000", allows.

    Return None for "max", -1 or no text.
    """
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdigit() for number in numbers) or not int(numbers[1]):
        return None
    return int(numbers[0]) / int(numbers[1])


def group_folders(membership: str, mounts: str, controller: str) -> list[PurePosixPath]:
    """Return the folders of the cgroups that limit a process, innermost first.

    All mounted versions of cgroups are included.

    Args:
        membership: text of /proc/self/cgroup, such as "4:memory:/docker/1f3a" and "0::/user.slice".
        mounts: text of /proc/self/mountinfo.
        controller: "memory" or "cpu".
    """
    folders = []
    for root, point, version, options in _cgroup_mounts(mounts):
        if version == 1 and controller not in options.split(","):
            continue
        group = _group(membership, "" if version == 2 else controller)
        if group is None:
            continue
        inside = PurePosixPath(group)
        # A container may see its own cgroup as the top folder, although the list of memberships shows the
        # cgroup's name on the host.
        inside = inside.relative_to(root) if inside.is_relative_to(root) else PurePosixPath()
        if ".." in inside.parts:  # the cgroup is outside the visible part of the hierarchy
            inside = PurePosixPath()
        folders += [PurePosixPath(point, part) for part in (inside, *inside.parents)]
    return list(dict.fromkeys(folders))


def _cgroup_mounts(mounts: str) -> Iterator[tuple[str, str, int, str]]:
    """Yield the root, the mount point, the version and the options of each mounted cgroup hierarchy."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) >= 5 and len(kind) >= 3 and kind[0] in ("cgroup", "cgroup2"):
            yield fields[3], fields[4].replace("\\040", " "), 2 if kind[0] == "cgroup2" else 1, kind[2]


def _group(membership: str, controller: str) -> str | None:
    """Return the path of a process's cgroup for a version 1 `controller`.

    If `controller` is "", return the path in cgroup version 2, whose line has no names of controllers.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path
    return None


def _folders(controller: str) -> list[Path]:
    membership, mounts = _read(Path("/proc/self/cgroup")), _read(Path("/proc/self/mountinfo"))
    return [Path(folder) for folder in group_folders(membership, mounts, controller)]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # the outermost cgroup does not have this file
        return ""


def cpu_count() -> int:
    """Return the number of CPUs that this process may use, within its container's quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, allowed if quota is None else min(allowed, round(quota)))


def memory_bytes() -> int:
    """Return the memory of the machine or container in bytes."""
    present = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory_limit()
    return present if limit is None else min(present, limit)


def gpu_count() -> int:
    """Return the number of visible GPUs, without importing torch or starting CUDA."""
    return len(visible_gpus())


def gpu_ids(names: Iterable[str]) -> list[int | str]:
    """Return GPU names in the form of `get_gpu_ids`, with indices as int and UUIDs as str."""
    return [int(name) if name.isdigit() else name for name in names]


def gpu_name(index: int, visible: Sequence[str]) -> str:
    """Return the name of the GPU `index` in CUDA_VISIBLE_DEVICES, or the index if no such GPU is visible."""
    return visible[index] if index < len(visible) else str(index)


def visible_gpus() -> list[str]:
    """Return a name for each visible GPU: the GPU's entry in CUDA_VISIBLE_DEVICES, or its index if the
    variable is not set.
    """
    declared = os.environ.get("CUDA_VISIBLE_DEVICES")
    if declared is not None:
        # CUDA ends the list at the first invalid name, such as "" or "-1".
        names = [name.strip() for name in declared.split(",")]
        end = next((at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))
        return names[:end]
    try:
        present = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    except OSError:
        return []
    return [str(index) for index in range(len(present))]
