"""Agent of a run on several machines: it runs the ranks of its machine, as the leader of the run asks.

| message of the leader | effect | answer |
| --- | --- | --- |
| meet: address | open the port of the rendezvous store | store: address and port |
| start: values of `ScriptOptions` | run the ranks | ended: `RankFailure` or null |
| signal: number | send the signal to the ranks, once | |
| stop: words | kill the ranks | ended |
| say: line and text | print them | |
| end: exit code | end the session and this process | |
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import ipaddress
import os
import queue
import signal
import socket
import struct
import threading
import types
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainkit.plugins.launch.launcher import LocalRanks, RankFailure, handle_signals, listening_at
from trainkit.plugins.launch.links import Link
from trainkit.plugins.launch.script import RankStreams, ScriptOptions, say, tell
from trainkit.runtime import signals

_REACH_S = 20.0
_SIOCGIFADDR = 0x8915


class Agent:
    """Runs the ranks of this machine.

    Args:
        link: connection to the leader.
        options: script to run, and settings of its ranks on this machine.
        streams: destinations of the ranks' output.
        hello: what the leader needs to know of this machine, besides its number of ranks.
    """

    def __init__(
        self, link: Link, options: ScriptOptions, streams: RankStreams, hello: dict[str, Any]
    ) -> None:
        self._link = link
        self._options = options
        self._ranks = LocalRanks(options, streams)
        self._hello = hello | {"ranks": options.num_workers}
        self._orders: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._delivered: set[int] = set()
        self._store: socket.socket | None = None

    def run(self) -> int:
        """Obey the leader until it ends the run; return the exit code that the leader has sent.

        Raises:
            TrainkitError: the ranks can't run on this machine.
        """
        handle_signals(self._signalled)
        working = threading.Thread(target=self._work, daemon=True)
        working.start()
        with self._ranks.session():
            self._send("hello", self._hello)
            threading.Thread(target=self._listen, daemon=True).start()
            while True:
                kind, content = self._orders.get()
                if kind == "meet":
                    self._meet(content)
                elif kind == "start":
                    self._send("ended", self._start(content))
                else:
                    break
        self._tasks.put(None)
        working.join()
        return int(content)

    def _send(self, kind: str, content: Any) -> None:
        # A signal handler may call this method while it runs, so a thread does the work.
        self._tasks.put(functools.partial(self._link.send, kind, content))

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _listen(self) -> None:
        while (message := self._link.receive()) is not None:
            kind, content = message
            if kind == "signal":
                self._tasks.put(functools.partial(self._deliver, content))
            elif kind == "stop":
                self._stop(content)
            elif kind == "say":
                say(content[0])
                tell(content[1])
            else:
                if kind == "start":
                    self._ranks.is_ending = bool(self._delivered)
                self._orders.put(message)
                if kind == "end":
                    return
        self._stop("")
        with contextlib.suppress(OSError):  # if this is a host of SSH, the connection has ended
            say("the connection to the launcher that leads the run was lost; the ranks were ended")
        self._orders.put(("lost", 1))

    def _stop(self, told: str) -> None:
        self._ranks.is_ending = True
        self._ranks.send(signal.SIGKILL, told)

    def _signalled(self, number: int, frame: types.FrameType | None) -> None:
        self._send("signalled", number)
        self._tasks.put(functools.partial(self._deliver, number))

    def _deliver(self, number: int) -> None:
        """Send a signal to the ranks, if it is the first of its number, and has not reached the ranks yet."""
        if number in self._delivered:
            return
        self._delivered.add(number)
        self._ranks.is_ending = True
        signals.announce()
        if not signals.is_of_job(number):
            self._ranks.send(number)

    def _meet(self, address: str) -> None:
        if self._store is None:
            self._store = listening_at(address, self._options.port)
        self._send("store", self._store.getsockname()[:2])

    def _start(self, values: dict[str, Any]) -> dict[str, Any] | None:
        options = replace(self._options, **values)
        variables = network_variables(options.address, self._hello["addresses"])
        missing = {name: value for name, value in variables.items() if name not in os.environ}
        options = replace(options, variables={**options.variables, **missing})
        failure = self._unreachable(options) if options.node_rank else None
        if failure is None:
            failure = self._ranks.attempt(options, None if options.node_rank else self._store)
        return None if failure is None or self._ranks.is_ending else asdict(failure)

    def _unreachable(self, options: ScriptOptions) -> RankFailure | None:
        place = options.address, options.port
        try:
            socket.create_connection(place, timeout=_REACH_S).close()
        except OSError as error:
            how = f"{options.host} can't reach the first machine at {place[0]}:{place[1]} ({error})"
            return RankFailure(f"{how}: let the machines connect to each other, or pass --master-addr", 1)
        return None


def hello_of(name: str, address: str = "") -> dict[str, Any]:
    """Return what the leader needs to know of this machine.

    Args:
        name: name of the machine in messages; "": the host's name.
        address: address by which other machines reach this machine, if it is known.
    """
    found = [address] if address else []
    with contextlib.suppress(OSError):  # the host's name has no address
        found += [str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    # This sends nothing: the kernel chooses the address of the route, if there is a route.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect(("192.0.2.1", 9))
        found.append(asking.getsockname()[0])
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    own = {"name": name or socket.gethostname(), "addresses": list(dict.fromkeys(found))}
    return own | {"loopback": [boot, os.stat("/proc/self/ns/net").st_ino]}


def network_variables(address: str, own: list[str]) -> dict[str, str]:
    """Return the variables by which ranks choose the network over which they reach `address`.

    Args:
        address: address of the rendezvous store.
        own: addresses of this machine.
    """
    if is_loopback(address):
        return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")
    # Gloo would choose the address of the host's name, which is the loopback address on many systems.
    names = filter(None, (interface_of(each) for each in own if not is_loopback(each)))
    name = next(names, "")
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def is_loopback(address: str) -> bool:
    """Return True if `address` reaches only this machine."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an IPv4 address; "" if no interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # the interface has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
