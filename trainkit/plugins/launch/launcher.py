"""Launcher of a script's ranks on this machine: it starts the session and the ranks, and restarts them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainkit.errors import ActorDiedError, ConfigError, GangError, TaskError, message_of
from trainkit.plugins.launch import script
from trainkit.plugins.launch.script import (
    STORE,
    DescriptorChannel,
    RankStreams,
    RendezvousHost,
    ScriptError,
    ScriptOptions,
    ScriptWorker,
    say,
    tell,
)
from trainkit.runtime import api as runtime
from trainkit.runtime import signals
from trainkit.runtime.restart_policy import signal_name
from trainkit.settings import PreemptSettings
from trainkit.train.distributed.failure_cause import LostOthersError, is_exit
from trainkit.train.workers.placement import WorkerPlacement
from trainkit.train.workers.worker_group import WorkerGroup


@dataclass(frozen=True)
class RankFailure:
    """Description of a failure that ended the run of a script.

    Attributes:
        event: line of text that says which rank failed, and how.
        code: exit code that the launcher returns.
        text: traceback from the rank; "" if no traceback exists or the rank has already printed it.
        is_consequence: True if ranks only lost their connections: the cause may be on another machine.
    """

    event: str
    code: int
    text: str = ""
    is_consequence: bool = False


LATE = "did not end in time, and is killed"
"""Words about a rank that has not ended within the time after a signal."""


class LocalRanks:
    """Ranks of a script on this machine, in a session that serves one attempt after the other.

    Args:
        options: script to run, and settings of its ranks.
        streams: destinations of the ranks' output.

    Attributes:
        is_ending: True once the ranks must end, so that their errors are not failures.
    """

    def __init__(self, options: ScriptOptions, streams: RankStreams) -> None:
        self.is_ending = False
        self._options = options
        self._streams = streams
        self._ranks: dict[int, int] = {}
        self._channel: Any = None
        self._placement = WorkerPlacement(options.bundle)
        self._host: Any = None

    def __bool__(self) -> bool:
        return bool(self._ranks)

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        """Start the session, and end it with the block.

        Raises:
            InfeasibleError: the machine has too few GPUs.
        """
        options = self._options
        # torch is imported, and reads OMP_NUM_THREADS, before `ScriptWorker.start` sets variables.
        threads = options.variables.get("OMP_NUM_THREADS")
        runtime.init(
            engine="local",
            num_cpus=options.num_workers * options.bundle["CPU"],
            preload=(script.__name__,),
            runtime_env={"env_vars": {"OMP_NUM_THREADS": threads} if threads else {}},
            log_to_driver=False,
        )
        try:
            self._channel = DescriptorChannel(str(runtime.scratch_dir()))
            self._host = runtime.remote(RendezvousHost).options(num_cpus=0, label="rendezvous").remote()
            self._placement.take(options.num_workers)
            yield
        finally:
            runtime.shutdown()

    def attempt(self, options: ScriptOptions, listening: socket.socket | None) -> RankFailure | None:
        """Run the script on all ranks of this machine; return the failure that ended it, if any.

        Args:
            options: options of this attempt.
            listening: socket of the rendezvous store; None if another machine serves the store.
        """
        self._options = options
        streams = self._streams.open(options.restarts, options.num_workers, options.first_rank)
        self._channel.given = {**streams, STORE: [] if listening is None else [listening.fileno()]}
        served = None if listening is None else self._host.listen.remote(str(runtime.scratch_dir()))
        group = WorkerGroup(options, self._placement, "rank", ScriptWorker)
        group.is_end = lambda error: self.is_ending or is_exit(error)
        pids: list[int] = []
        try:
            group.start(None)
            self._streams.sent()
            pids = group.call("apply", os.getpid)
            for rank, pid in enumerate(pids):
                # If the rank has been killed, the next call of the group reports the failure.
                with contextlib.suppress(ProcessLookupError):
                    self._ranks[rank] = os.pidfd_open(pid)
            if self.is_ending:  # the other machines have ended in the meantime
                self.send(signal.SIGKILL)
            if served is not None:
                runtime.get(served)  # The rendezvous store must be served before any script connects to it.
            group.call("run")
        except (TaskError, GangError) as error:
            return failure_of(error, options, pids)
        finally:
            group.close(force=True)
            while self._ranks:
                os.close(self._ranks.popitem()[1])
            self._streams.finish()
        return None

    def send(self, number: int, told: str = "") -> None:
        """Send a signal to all ranks that run; `told` is said of each rank that gets the signal."""
        for rank, fd in list(self._ranks.items()):
            with contextlib.suppress(OSError):  # The rank has ended.
                signal.pidfd_send_signal(fd, number)
                if told:
                    say(f"rank {self._options.first_rank + rank} {told}")


class Launcher:
    """Run of a script on this machine: starts the ranks, and restarts all ranks after a failure.

    Args:
        options: script to run, and settings of its ranks.
        streams: destinations of the ranks' output.
    """

    def __init__(self, options: ScriptOptions, streams: RankStreams) -> None:
        self._options = options
        self._ranks = LocalRanks(options, streams)
        self._signal: int | None = None

    def run(self) -> int:
        """Run the script on all ranks; return the launcher's exit code.

        Raises:
            ConfigError: the rendezvous port is in use.
            InfeasibleError: the machine has too few GPUs.
        """
        options = self._options
        with listening_at(options.address, options.port) as listening:
            handle_signals(self._signalled)
            with self._ranks.session():
                return self._run(replace(options, port=listening.getsockname()[1]), listening)

    def _run(self, options: ScriptOptions, listening: socket.socket) -> int:
        while True:
            failure = self._ranks.attempt(options, listening)
            if self._signal is not None:
                return 128 + self._signal
            if failure is None:
                return 0
            say(failure.event)
            tell(failure.text)
            if options.restarts == options.max_restarts:
                return failure.code
            options = replace(options, restarts=options.restarts + 1)
            say(f"restarting all ranks, restart {options.restarts} of {options.max_restarts}")

    def _signalled(self, number: int, frame: types.FrameType | None) -> None:
        if not self._ranks:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        if self._signal is not None:
            self._ranks.send(signal.SIGKILL)
            return
        self._signal = number
        self._ranks.is_ending = True
        signals.announce()
        name, seconds = signal.Signals(number).name, self._options.shutdown_s
        how = "has reached" if signals.is_of_job(number) else "is sent to"
        say(f"{name} {how} all ranks, which have {seconds:g} s to end; a second {name} ends them at once")
        if how == "is sent to":
            self._ranks.send(number)
        late = threading.Timer(seconds, self._ranks.send, [signal.SIGKILL, LATE])
        late.daemon = True
        late.start()


def handle_signals(handler: Callable[[int, types.FrameType | None], None]) -> None:
    """Call `handler` on Ctrl-C and on signals that announce the end of the job."""
    for number in (signal.SIGINT, *PreemptSettings.of().numbers):
        # A shell makes its background jobs ignore Ctrl-C, and an ignored signal must remain ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, handler)


def listening_at(address: str, port: int) -> socket.socket:
    """Return a socket that listens at `address` and `port`.

    Raises:
        ConfigError: the port is in use, or the address does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=socket.SOMAXCONN)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"the ranks can't meet at {address}:{port} ({error}): choose another port, or pass none to get a "
            "free port; the address must belong to this machine"
        ) from error


def failure_of(error: BaseException, options: ScriptOptions, pids: Sequence[int]) -> RankFailure:
    """Describe a failure of the ranks.

    Args:
        error: exception raised by the call that ran the script on all ranks.
        options: options of the attempt.
        pids: process id of each rank of this machine, in the order of ranks.

    Raises:
        BaseException: no rank caused `error`, which is raised again.
    """
    first, world_size = options.first_rank, options.all_ranks
    others = "; the other ranks were ended" if world_size > 1 else ""
    here = f" on {options.host}" if options.host else ""
    cause = error.cause if isinstance(error, TaskError) else error.__cause__
    lost = cause.cause if isinstance(cause, TaskError) else cause
    if isinstance(cause, ScriptError):
        pid = pids[cause.rank - first]
        event = f"rank {cause.rank} of {world_size}{here} (pid {pid}) raised {cause.kind}{others}"
        return RankFailure(event, 1, cause.text)
    if isinstance(lost, LostOthersError):
        event = "a rank lost the others, and no rank has failed: they ended early or never connected"
        return RankFailure(event, 1, lost.text, is_consequence=True)
    if not isinstance(cause, ActorDiedError) or cause.pid not in pids:
        raise error
    code = cause.exit_code
    how = f"was ended: {message_of(cause)}" if code is None else f"ended with exit code {code}"
    if code is not None and code < 0:
        how = f"was killed by {signal_name(-code)}"
    rank = first + pids.index(cause.pid)
    event = f"rank {rank} of {world_size}{here} (pid {cause.pid}) {how}{others}"
    return RankFailure(event, 1 if code is None else code if code > 0 else 128 - code)
