"""Where workers meet: addresses, interfaces, and who is on which machine."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest
import torch.distributed as dist

from trainkit.errors import ConfigError
from trainkit.train.distributed.process_group import _interface_of
from trainkit.train.distributed.rendezvous import LocalRank, RendezvousStore, by_machine, local_ranks

# Two processes of one machine that take each other for those of two.
MEMBER = """
import sys
from trainkit.train.distributed.process_group import join_process_group
from trainkit.train.distributed.rendezvous import Rendezvous, RendezvousStore

rank = int(sys.argv[1])
listener = RendezvousStore("127.0.0.1") if rank == 0 else None
if listener is not None:
    print(listener.place, flush=True)
place = listener.place if listener is not None else sys.argv[2]
group = join_process_group(
    Rendezvous(place, "gloo", 300), rank=rank, world_size=2, address="127.0.0.1", listener=listener
)
print(group.gather_integers(rank + 5), flush=True)
group.leave()
"""


def test_workers_of_a_machine_follow_each_other() -> None:
    nodes = ["b", "a", "b", "c", "a", "b"]
    order = by_machine(nodes)
    assert order == [0, 2, 5, 1, 4, 3]
    assert [each.node_rank for each in local_ranks([nodes[worker] for worker in order])] == [0, 0, 0, 1, 1, 2]


def test_workers_are_counted_by_machine() -> None:
    assert local_ranks(["a", "b", "a", "a"]) == [
        LocalRank(0, 3),
        LocalRank(0, 1, 1),
        LocalRank(1, 3),
        LocalRank(2, 3),
    ]


def test_the_store_listens_at_one_address_only() -> None:
    before = set(_listening())
    listener = RendezvousStore("127.0.0.1")
    (found,) = set(_listening()) - before
    assert (found.ip, f"tcp://{found.ip}:{found.port}") == ("127.0.0.1", listener.place)
    client = dist.TCPStore(found.ip, found.port, is_master=False, wait_for_workers=False)
    client.set("key", "value")
    assert listener.store.get("key") == b"value"
    with pytest.raises(ConfigError, match=r"can't listen on 203\.0\.113\.7, the address of its machine"):
        RendezvousStore("203.0.113.7")


def test_an_interface_is_found_by_its_address() -> None:
    assert _interface_of("127.0.0.1") == "lo"
    assert _interface_of("203.0.113.7") is None


def test_processes_meet_at_an_address() -> None:
    members = [subprocess.Popen([sys.executable, "-c", MEMBER, "0"], stdout=subprocess.PIPE, text=True)]
    try:
        assert members[0].stdout is not None
        place = members[0].stdout.readline().strip()
        members.append(
            subprocess.Popen([sys.executable, "-c", MEMBER, "1", place], stdout=subprocess.PIPE, text=True)
        )
        assert [member.communicate(timeout=300)[0].strip() for member in members] == ["[5, 6]"] * 2
    finally:
        for member in members:
            member.kill()
            member.wait()


def _listening() -> list[psutil._common.addr]:
    connections = psutil.Process(os.getpid()).net_connections("inet")
    return [found.laddr for found in connections if found.status == psutil.CONN_LISTEN]
