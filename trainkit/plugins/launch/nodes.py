"""Leader of a run on several machines: it joins the ranks of all nodes, restarts and ends them together."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import queue
import secrets
import signal
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.cluster.commands import Event, RemoteCommand, show
from trainkit.plugins.cluster.machines import Machine, Machines
from trainkit.plugins.launch.agent import Agent, hello_of, is_loopback
from trainkit.plugins.launch.flags import machines_of, meeting_place, options_of, streams_of
from trainkit.plugins.launch.launcher import LATE, RankFailure, handle_signals, listening_at
from trainkit.plugins.launch.links import PATIENCE_S, Link, PipeLink, SocketLink, accept, joined, key_of
from trainkit.plugins.launch.script import say, tell
from trainkit.runtime.local.system import boot

_WHICH_MACHINES = (
    "say which machines: pass --hosts host1,host2 to start them by SSH, start `trainkit run` once in the "
    "batch script of a Slurm job of several nodes, or start it on each machine with --node-rank and "
    "--rdzv-endpoint"
)
_CAUSE_S = 5.0
"""Seconds in which another node may report the failure because of which ranks have lost their connections."""
_END_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Settings of a run on several machines.

    Attributes:
        least, most: numbers of machines with which the ranks may run.
        max_restarts: maximum number of restarts of all ranks after failures.
        shutdown_s: seconds from a signal until ranks that still run are killed.
        address: address of the rendezvous store; "": an address of the first machine.
        times: seconds in which enough machines must be ready, and seconds that machines above the least
            number then have to become ready.
    """

    least: int
    most: int
    max_restarts: int = 0
    shutdown_s: float = 30.0
    address: str = ""
    times: tuple[float, float] = (600.0, 30.0)


@dataclass(eq=False)
class Node:
    """Machine of the run.

    Attributes:
        name: name of the machine in messages.
        send: function that sends a message to the machine's agent.
        hello: description of the machine by its agent; {} until the agent is ready.
        seen: signals of which the machine has reported.
    """

    name: str
    send: Callable[[str, Any], None]
    hello: dict[str, Any] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)


class Leader:
    """Leader of a run.

    Args:
        options: settings of the run.
        joins: True if launchers join by themselves; False if `begin` starts them all.
    """

    def __init__(self, options: RunOptions, *, joins: bool) -> None:
        self._options = options
        self._joins = joins
        self._nodes: list[Node] = []
        self._events: queue.SimpleQueue[tuple[Node | None, str, Any]] = queue.SimpleQueue()
        self._signal: int | None = None
        self._seen: set[int] = set()
        self._losses: list[str] = []

    def run(self) -> int:
        """Run the script on all machines; return the exit code of the run.

        Raises:
            ConfigError: too few machines can take part.
        """
        code = 1
        try:
            code = self._run()
        except ConfigError as error:
            if not self._joins:
                raise
            self._say(str(error))
        finally:
            self._send("end", code)
        return code

    def _run(self) -> int:
        restarts = 0
        while True:
            members = self._gathered()
            failure = self._round(members, restarts) if members else None
            if self._signal is not None:
                return 128 + self._signal
            if failure is None:
                return 0
            self._say(failure.event, failure.text)
            if restarts == self._options.max_restarts:
                return failure.code
            if not self._joins and len(self._nodes) < self._options.least:
                self._say(f"the ranks can't start again: they need {self._options.least} machines")
                return failure.code
            restarts += 1
            self._say(f"restarting all ranks, restart {restarts} of {self._options.max_restarts}")

    # -- machines -----------------------------------------------------------------------------

    def begin(self, machine: Machine, command: Sequence[str], first: Any, python: str) -> RemoteCommand:
        """Start an agent on a machine.

        Args:
            machine: where the agent runs.
            command: command line of the agent.
            first: first message to the agent.
            python: Python on the machine.
        """

        def told(event: Event) -> None:
            if event.kind in ("out", "err"):
                try:
                    show(event)
                except OSError:  # The reader has gone. The ranks may still save, as after SIGTERM.
                    self._events.put((None, "signalled", signal.SIGPIPE))
            elif event.kind == "report":
                self._events.put((node, *json.loads(event.data)))
            elif event.kind == "ended":
                self._events.put((node, "lost", str(event.error or f"the launcher on {machine} ended")))

        running = RemoteCommand(machine, command, python=python, tell=told)

        def send(kind: str, content: Any) -> None:
            running.write(json.dumps([kind, content]).encode() + b"\n")

        node = Node(machine.name, send)
        self._nodes.append(node)
        send("arguments", first)
        return running

    def join(self, link: SocketLink) -> None:
        """Receive the messages of a launcher that has joined, until it ends."""
        node = Node(link.peer, link.send)
        self._events.put((node, "joined", None))
        while (message := link.receive()) is not None:
            self._events.put((node, *message))
        self._events.put((node, "lost", f"the connection to {node.name} was lost"))

    def on_signal(self, number: int, frame: types.FrameType | None) -> None:
        """Handle a signal of this process."""
        self._events.put((None, "signalled", number))

    def _gathered(self) -> list[Node]:
        """Wait for machines; return those that take part, in the order of their ranks; [] after a signal."""
        least, most = self._options.least, self._options.most
        begun = SYSTEM.monotonic()
        enough, quiet = begun + self._options.times[0], begun + PATIENCE_S
        while self._signal is None:
            ready = [node for node in self._nodes if node.hello]
            late = ", ".join(node.name for node in self._nodes if not node.hello)
            if len(ready) >= most or not (self._joins or late):
                break
            if len(ready) >= least:
                enough = min(enough, SYSTEM.monotonic() + self._options.times[1])
            if self._next(min(enough, quiet)) is None:
                if enough <= quiet:
                    self._losses += [f"{late} did not answer in time"] if late else []
                    break
                quiet = math.inf
                self._say(f"waiting for {late or 'launchers'}: {len(ready)} of {most} machines are ready")
        if self._signal is not None:
            return []
        ready = [node for node in self._nodes if node.hello][:most]
        if len(ready) < least:
            found = f"{len(ready)} of {least} machines are ready"
            raise ConfigError("; ".join([*self._losses, found]))
        for loss in self._losses:
            self._say(loss)
        self._losses.clear()
        return sorted(ready, key=lambda node: node.hello.get("node_rank") or 0)

    def _next(self, latest: float = math.inf) -> tuple[Node | None, str, Any] | None:
        """Return the next event; None at the time `latest`."""
        left = max(0.0, latest - SYSTEM.monotonic())
        try:
            node, kind, content = self._events.get(timeout=None if left == math.inf else left)
        except queue.Empty:
            return None
        if kind == "signalled":
            self._on_signal(node, content)
        elif kind == "late":
            self._send("stop", LATE)
        elif node is None:
            return node, kind, content
        elif kind == "joined":
            self._nodes.append(node)
        elif kind == "hello":
            node.name = content["name"]
            index, taken = content["node_rank"], [each.hello.get("node_rank") for each in self._nodes]
            if self._joins and index is not None and index in taken:
                node.send("say", [f"another launcher has --node-rank {index}: give each machine its own", ""])
                node.send("end", 1)
                self._nodes.remove(node)
            else:
                node.hello = content
        elif kind in ("lost", "refused") and node in self._nodes:
            self._nodes.remove(node)
            self._losses.append(content if kind == "lost" else f"{node.name}: {content}")
        return node, kind, content

    def _send(self, kind: str, content: Any) -> None:
        for node in self._nodes:
            node.send(kind, content)

    def _say(self, line: str, text: str = "") -> None:
        if self._joins:
            self._send("say", [line, text])
            return
        with contextlib.suppress(BrokenPipeError):  # the ranks must end cleanly without a reader, too
            say(line)
            tell(text)

    # -- ranks --------------------------------------------------------------------------------

    def _round(self, members: list[Node], restarts: int) -> RankFailure | None:
        """Run the ranks of all members until all have ended; return the first failure."""
        members[0].send("meet", self._address(members))
        store = None
        while store is None:
            node, kind, content = self._next() or (None, "", None)
            if self._signal is not None:
                return None
            if node is members[0] and kind == "store":
                store = content
            elif node in members and node not in self._nodes:
                return RankFailure(self._losses.pop(), 1)
        ranks = 0
        total = sum(node.hello["ranks"] for node in members)
        for index, node in enumerate(members):
            values = {"first_rank": ranks, "world_size": total, "node_rank": index, "nodes": len(members)}
            values |= {"address": store[0], "port": store[1], "restarts": restarts, "host": node.name}
            node.send("start", values)
            ranks += node.hello["ranks"]
        return self._first_failure(set(members))

    def _address(self, members: Sequence[Node]) -> str:
        if self._options.address:
            return self._options.address
        if all(node.hello["loopback"] == members[0].hello["loopback"] for node in members):
            return "127.0.0.1"
        found = [address for address in members[0].hello["addresses"] if not is_loopback(address)]
        if not found:
            raise ConfigError(
                f"{members[0].name} knows no address by which other machines reach it: pass --master-addr"
            )
        return str(found[0])

    def _first_failure(self, running: set[Node]) -> RankFailure | None:
        cause: RankFailure | None = None
        latest = math.inf
        while running:
            event = self._next(latest)
            if event is None:  # No other node has reported a cause.
                latest = math.inf
                self._send("stop", "")
                continue
            node, kind, content = event
            if node not in running or kind not in ("ended", "lost", "refused"):
                continue
            running.discard(node)
            failure = RankFailure(**content) if kind == "ended" and content else None
            if kind != "ended":
                failure = RankFailure(self._losses.pop(), 1)
            if failure is None or (cause is not None and not cause.is_consequence):
                continue
            if not failure.is_consequence:
                cause, latest = failure, math.inf
                self._send("stop", "")
            elif cause is None:
                cause, latest = failure, SYSTEM.monotonic() + _CAUSE_S
        return cause

    def _on_signal(self, node: Node | None, number: int) -> None:
        seen = self._seen if node is None else node.seen
        if self._signal is not None:
            if seen and number != signal.SIGPIPE:
                self._send("stop", "")
            seen.add(number)
            return
        self._signal = number
        seen.add(number)
        sent = signal.SIGTERM if number == signal.SIGPIPE else signal.Signals(number)
        name, seconds = sent.name, self._options.shutdown_s
        again = f"a second {name} ends them at once"
        self._say(f"{name} is sent to all ranks, which have {seconds:g} s to end; {again}")
        self._send("signal", int(sent))
        late = threading.Timer(seconds, self._events.put, [(None, "late", None)])
        late.daemon = True
        late.start()


def run(arguments: argparse.Namespace) -> int:
    """Run a script on several machines; return the exit code.

    This program leads the run, is one of several launchers, or runs the ranks of one machine for a leader.

    Args:
        arguments: parsed flags of `trainkit run`.
    """
    if arguments.as_node:
        return _serve()
    found = Machines.named(arguments.hosts) if arguments.hosts else None
    if found is not None and arguments.nnodes == "1":
        arguments.nnodes = str(len(found))
    least, most = machines_of(arguments.nnodes)
    options = RunOptions(
        least=least,
        most=most,
        max_restarts=arguments.max_restarts,
        shutdown_s=arguments.shutdown_timeout,
        times=_times(arguments.rdzv_conf),
    )
    if arguments.standalone:
        arguments.rdzv_id, arguments.standalone = secrets.token_hex(16), False
    if found is None and (arguments.rdzv_endpoint or arguments.master_addr):
        host, port = meeting_place(arguments)
        if port > _LARGEST_PORT:
            raise ConfigError(f"--rdzv-endpoint {host}:{port}: the port must be {_LARGEST_PORT} at most")
        arguments.rdzv_endpoint, arguments.master_port = "", None
        return _join(arguments, options, host, port or _PORT)
    if found is None and int(os.environ.get("SLURM_STEP_NUM_NODES") or 1) == 1:
        found = Machines.allocated()
    if found is None:
        raise ConfigError(f"--nnodes {arguments.nnodes}: {_WHICH_MACHINES}")
    if len(found) < least:
        raise ConfigError(
            f"--nnodes {arguments.nnodes} needs more machines than {', '.join(map(str, found))}"
        )
    address = arguments.master_addr or ""
    return _lead(replace(options, address=address), found[:most], {"arguments": vars(arguments)})


def _lead(options: RunOptions, machines: Sequence[Machine], first: dict[str, Any]) -> int:
    """Start an agent on each machine, and lead the run; return its exit code.

    Args:
        options: settings of the run.
        machines: machines of the run.
        first: first message to each agent.
    """
    leader = Leader(options, joins=False)
    handle_signals(leader.on_signal)
    command = [sys.executable, "-m", "trainkit", "run", "--as-node", "-"]
    running: list[RemoteCommand] = []
    try:
        for machine in machines:
            named = first | {"machine": machine.name, "by": machine.by}
            running.append(leader.begin(machine, command, named, sys.executable))
        return leader.run()
    finally:
        latest = SYSTEM.monotonic() + _END_S
        for agent in running:
            if not (agent.has_begun and agent.join(max(0.0, latest - SYSTEM.monotonic()))):
                agent.kill()


_PORT = 29500
"""Default port of torchrun."""
_LARGEST_PORT = 65_535


def _times(conf: str) -> tuple[float, float]:
    """Return the times in "join_timeout=60,last_call_timeout=5"; other entries have no effect."""
    given = dict(part.split("=", 1) for part in conf.split(",") if "=" in part)
    try:
        return float(given.get("join_timeout", 600)), float(given.get("last_call_timeout", 30))
    except ValueError as error:
        raise ConfigError(f"--rdzv-conf {conf}: the times must be numbers of seconds") from error


def _serve() -> int:
    """Run the ranks of this machine for a leader that has started this process."""
    link = PipeLink()
    _, first = link.receive() or ("", {})
    if not first:
        return 1
    # The third word is the address of this machine, by which the leader has reached it.
    reached = os.environ.get("SSH_CONNECTION", "").split()[2:3] if first["by"] == "ssh" else []
    try:
        return _as_node(link, argparse.Namespace(**first["arguments"]), first["machine"], *reached)
    except TrainkitError:  # the leader has received it, and reports it
        return 1


def _join(arguments: argparse.Namespace, options: RunOptions, host: str, port: int) -> int:
    """Run the ranks of this machine, with launchers that the user starts on the other machines."""
    key = key_of(str(arguments.rdzv_id), f"{host}:{port}")
    listening = leading = None
    if not arguments.node_rank:
        try:
            listening = listening_at(host, port)
        except ConfigError:
            if arguments.node_rank == 0:
                raise
    if listening is not None:
        if is_loopback(listening.getsockname()[0]) and not is_loopback(host):
            # The others know this machine's name by another address.
            listening.close()
            listening, host = listening_at("", port), ""
        leader = Leader(replace(options, address=host), joins=True)
        threading.Thread(target=accept, args=(listening, key, leader.join), daemon=True).start()
        leading = threading.Thread(target=leader.run, daemon=True)
        leading.start()
    link = joined(host or "localhost", port, key, options.times[0])
    try:
        return _as_node(link, arguments, "", link.address)
    finally:
        if leading is not None:  # it sends the end to the other machines
            leading.join(_END_S)


def _as_node(link: Link, arguments: argparse.Namespace, name: str, address: str = "") -> int:
    hello = hello_of(name, arguments.local_addr or address) | {"node_rank": arguments.node_rank}
    try:
        with boot.begun():
            options = options_of(arguments)
            return Agent(link, options, streams_of(arguments, options), hello).run()
    except TrainkitError as error:
        link.send("refused", str(error))
        raise
