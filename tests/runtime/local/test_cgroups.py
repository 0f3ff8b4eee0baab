"""The limits of a container, from the kernel's texts of both versions."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

import trainkit
from trainkit.runtime.local.system import devices

VERSION_2 = "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
VERSION_1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
DOCKER_1 = "35 31 0:32 /docker/1f3a /sys/fs/cgroup/memory ro master:5 - cgroup cgroup rw,memory\n"


def found(membership: str, mounts: str, controller: str = "memory") -> list[str]:
    return [str(folder) for folder in devices.group_folders(membership, mounts, controller)]


@pytest.mark.parametrize(
    ("text", "limit"),
    [("max\n", None), ("536870912\n", 536870912), ("9223372036854771712\n", 9223372036854771712), ("", None)],
)
def test_memory_limits(text: str, limit: int | None) -> None:
    assert devices.parse_memory(text) == limit


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("-1\n 100000\n", None), ("200000\n 100000\n", 2.0)]
    + [(text, None) for text in ("", " ", "100000 0")],
)
def test_cpu_quotas(text: str, cpus: float | None) -> None:
    assert devices.parse_cpu(text) == cpus


def test_groups_in_groups_of_version_2() -> None:
    assert found("0::/user.slice/app.scope\n", VERSION_2) == [
        "/sys/fs/cgroup/user.slice/app.scope",
        "/sys/fs/cgroup/user.slice",
        "/sys/fs/cgroup",
    ]
    assert found("0::/\n", VERSION_2) == ["/sys/fs/cgroup"], "a container with a view of its own"
    assert found("0::/../../system.slice\n", VERSION_2) == ["/sys/fs/cgroup"], "outside that view"


def test_groups_in_groups_of_version_1() -> None:
    membership = "4:memory:/docker/1f3a\n1:cpu,cpuacct:/batch\n0::/\n"
    assert found(membership, VERSION_1) == [
        "/sys/fs/cgroup/memory/docker/1f3a",
        "/sys/fs/cgroup/memory/docker",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/unified",
    ]
    assert found(membership, VERSION_1, "cpu") == [
        "/sys/fs/cgroup/cpu,cpuacct/batch",
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/unified",
    ]


def test_a_container_sees_its_own_group_as_the_top_one() -> None:
    assert found("4:memory:/docker/1f3a\n", DOCKER_1) == ["/sys/fs/cgroup/memory"]
    assert found("4:memory:/docker/1f3a/inner\n", DOCKER_1) == [
        "/sys/fs/cgroup/memory/inner",
        "/sys/fs/cgroup/memory",
    ]


def test_no_groups() -> None:
    assert found("", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n") == []


def test_the_smallest_limit_on_the_way_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "/proc/self/cgroup": "0::/outer/inner\n",
        "/proc/self/mountinfo": VERSION_2,
        "/sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "/sys/fs/cgroup/outer/memory.max": "300000000\n",
        "/sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
        "/sys/fs/cgroup/outer/cpu.max": "40000 100000\n",
    }
    monkeypatch.setattr(devices, "_read", lambda path: texts.get(str(PurePosixPath(path)), ""))
    assert devices.memory_bytes() == 300_000_000
    assert devices.cpu_count() == 1
    trainkit.init(object_spilling_directory=False)
    assert trainkit.cluster_resources()["memory"] == 300_000_000
    with pytest.raises(trainkit.errors.ObjectStoreFullError, match=r"holds 85\.8 MiB in all"):
        trainkit.put(bytes(100_000_000))
    trainkit.shutdown()
