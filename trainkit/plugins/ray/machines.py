"""Ray on several machines: the nodes of a Slurm job, or hosts that are reached by SSH.

The head of Ray runs on the machine of the program. `node.py` runs Ray on each other machine, started by
`srun` or `ssh`, and ends with the program. All of them share a token, which only they know.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trainkit import registry
from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.plugins.cluster.commands import GRACE_S, Event, RemoteCommand, removed_at_end
from trainkit.plugins.cluster.machines import SCHEME, Machine, Machines
from trainkit.plugins.ray import has_several_nodes

START_S = 300.0
"""Seconds in which Ray must have started on all machines. A shared file system may be slow to load Ray."""

_JOB_POOLS = "trainkit.job_pools"
_LAST_LINES, _DEATH_WAIT_MS = 15, "RAY_timeout_ms_task_wait_for_death_info"
_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"

_logger = logging.getLogger(__name__)


def found(address: str | None, arguments: Mapping[str, Any]) -> Spread | None:
    """Return Ray on several machines, or on a pool of jobs; None for this machine, or for a Ray that runs.

    Raises:
        ConfigError: the address is wrong.
    """
    scheme = (address or "").partition("://")[0]
    if scheme in registry.added(_JOB_POOLS):
        return registry.loaded(_JOB_POOLS, scheme)(address, arguments)  # type: ignore[no-any-return]
    several = Machines.named(address) if address and address.startswith(SCHEME) else None
    if address is None and has_several_nodes():
        several = Machines.allocated()
    return None if several is None else Spread(several, arguments)


def is_here(machine: Machine, variables: Mapping[str, str] = os.environ) -> bool:
    """Return True if this program runs on `machine`."""
    if machine.by == "slurm":
        return machine.name == variables.get("SLURMD_NODENAME")
    names = {"localhost", host := socket.gethostname(), host.partition(".")[0]}
    return machine.by == "here" or (machine.port is None and machine.name in names)


class Spread:
    """Ray on several machines, from `with` to its end.

    Args:
        machines: machines whose CPUs and GPUs are used. If this machine is missing, it runs only the head.
        arguments: arguments of `ray.init`. Resources and labels are given to each machine.
    """

    def __init__(self, machines: Machines, arguments: Mapping[str, Any]) -> None:
        self._here = next(filter(is_here, machines), None)
        self._others = [machine for machine in machines if machine is not self._here]
        self._each = {
            name: arguments[name]
            for name in ("num_cpus", "num_gpus", "resources", "labels", "_memory", "object_store_memory")
            if name in arguments
        }
        self._kept: str | None = arguments.get("_temp_dir")
        self._folder = self._kept or ""
        self._lines: dict[str, list[str]] = {}
        self._ended: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Spread:
        with contextlib.ExitStack() as stack:
            if self._kept is None:
                # Users of one machine can't share Ray's default folder.
                self._folder = tempfile.mkdtemp(prefix="ray-", dir=os.environ.get("RAY_TMPDIR") or "/tmp")
                stack.enter_context(removed_at_end(self._folder))
            stack.enter_context(_token())
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def of_head(self) -> dict[str, Any]:
        """Return the arguments of `ray.init` for the head."""
        head: dict[str, Any] = {
            "_temp_dir": self._kept or f"{self._folder}/0",
            "_node_ip_address": self._own_address(),
        }
        if self._here is None:
            return {"num_cpus": 0, "num_gpus": 0, "resources": None, "labels": None, **head}
        return head | self._of(self._here) | {"_node_name": self._here.name}

    def _of(self, machine: Machine) -> dict[str, Any]:
        known = {} if machine.cpus is None else {"num_cpus": machine.cpus}
        return known | self._each

    def _own_address(self) -> str | None:
        """Return the address of this machine in the network of the others; None: let Ray choose."""
        for machine in self._others[:1]:
            with contextlib.suppress(OSError, UnicodeError), socket.socket(type=socket.SOCK_DGRAM) as probe:
                probe.connect((machine.name, 9))  # sends nothing
                address = str(probe.getsockname()[0])
                return None if address.startswith("127.") else address
        return None

    def join(self, address: str) -> contextlib.AbstractContextManager[None]:
        """Start Ray on the other machines, and wait until all of them have joined the head at `address`.

        Returns:
            Context that ends before the head ends.

        Raises:
            ConfigError: a machine has not joined.
        """
        commands: list[RemoteCommand] = []

        def stop() -> None:
            for command in commands:
                command.leave()
            for command in commands:
                if not command.join(2 * GRACE_S):
                    command.kill()

        self._stack.callback(stop)
        for number, machine in enumerate(self._others, start=1):
            # The paths of sockets must be short, and different on machines that share a folder.
            where = {"folder": self._folder, "part": f"{number}", "is_kept": self._kept is not None}
            asked = {"address": address, "name": machine.name, **where, **self._of(machine)}
            words = [sys.executable, "-m", "trainkit.plugins.ray.node", json.dumps(asked)]
            commands.append(RemoteCommand(machine, words, tell=self._on_event))
        self._await({machine.name for machine in self._others})
        return contextlib.nullcontext()

    def _on_event(self, event: Event) -> None:
        name = event.machine.name
        if event.kind in ("out", "err"):
            lines = [*self._lines.get(name, []), event.data.decode(errors="replace").rstrip()]
            self._lines[name] = lines[-_LAST_LINES:]
        elif event.kind == "ended":
            self._ended[name] = str(event.error or "it has ended")

    def _await(self, names: Collection[str]) -> None:
        import ray

        deadline = SYSTEM.monotonic() + START_S
        while missing := set(names) - {node["NodeName"] for node in ray.nodes() if node["Alive"]}:
            for name in sorted(missing & self._ended.keys()):
                said = "\n".join(self._lines.get(name, []))
                raise ConfigError(f"Ray can't start on {name}: {self._ended[name]}\n{said}".rstrip())
            if SYSTEM.monotonic() > deadline:
                raise ConfigError(
                    f"Ray has not started on {', '.join(sorted(missing))} within {START_S:.0f} s: these "
                    "machines must be able to open connections to this machine on all ports"
                )
            SYSTEM.sleep(0.05)


@contextlib.contextmanager
def _token() -> Iterator[None]:
    """Let Ray accept only processes that have a token, made here unless the user has one."""
    # Ray notices a lost machine after ten seconds; until then, its actors would only be "unavailable".
    asked = {_DEATH_WAIT_MS: "60000"} | ({} if os.environ.get(_MODE) else {_MODE: "token"})
    if not os.environ.get(_TOKEN) and not os.environ.get(_TOKEN_PATH):
        asked[_TOKEN] = secrets.token_hex(32)
    os.environ.update(asked)
    _read_again()
    try:
        yield
    finally:
        for name in asked:
            os.environ.pop(name, None)
        _read_again()


def _read_again() -> None:
    """Let Ray read the variables of its token again in this process, where Ray remembers them."""
    import ray

    if not hasattr(ray._raylet, "AuthenticationTokenLoader"):
        _logger.warning(
            "Ray %s has no tokens, so all users of this network can use its processes: pip install -U ray",
            ray.__version__,
        )
        return
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
