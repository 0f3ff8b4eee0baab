"""Client of actors: starts, calls and kills actors, and finds them by name in this session or another."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, ObjectLostError, TrainkitError, did_you_mean
from trainkit.runtime import specs
from trainkit.runtime.local.client import actors, reconnecting
from trainkit.runtime.local.client.futures import Results
from trainkit.runtime.local.client.refs import CallConnection, LocalRef, is_own
from trainkit.runtime.local.client.waiting import pending
from trainkit.runtime.local.wire import messages, sessions
from trainkit.runtime.local.wire.channel import INIT, Descriptor, descriptors_explained
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.serialize import Handle, lasting

making = threading.RLock()
"""Lock held while an actor with `get_if_exists` is looked up or started; taken before `in_turn` and
`_meeting`.
"""

_meeting = threading.RLock()
"""Lock held while this process connects to an actor, so that two threads do not connect to the same actor."""

_SEARCH_S = 2.0
_TURN_S = 10.0
_LOOK_S = 0.5
_TRY_S = 0.001
_ROOM_BYTES = 1 << 20
_Answer = messages.Found | messages.NotFound
Met = tuple[actors.ActorEndpoint, specs.Interface]


class ActorLookup:
    """Lookup of actors by name, in this process's session and in other sessions of the user.

    Args:
        parts: objects that all client classes of this process share, such as its connection to the node.
        namespace: this process's namespace, which is the default for lookups.
    """

    def __init__(self, parts: actors.ClientParts, namespace: str) -> None:
        self._parts = parts
        self._node = parts.node
        self._namespace = namespace

    def is_abroad(self, actor: actors.ActorEndpoint) -> bool:
        """Return True if an actor belongs to a different session than this process."""
        return actor.peer.home not in (None, self._parts.mark)

    def find(self, name: str, namespace: str | None) -> Met:
        """Return the endpoint and the interface of the actor named `name`; see `Engine.find_actor`."""
        with descriptors_explained:
            own = self._find_own(name, namespace)
            if not isinstance(own, messages.NotFound):
                return own
            met, looked_at, known = self._find_abroad(name, own.namespace)
        if met is None:
            where = "; ".join(["this session", *looked_at])
            hint = did_you_mean(name, sorted({*own.names, *known} - {name}))
            raise ConfigError(
                f"no actor named {name!r} exists in the namespace {own.namespace!r} (searched: {where})."
                f"{hint} Names are set by .options(name=...) and end with their actor. Other programs find "
                "only actors with lifetime='detached'"
            )
        return met

    def holder(self, wanted: specs.Registration) -> Met | None:
        """Return this session's actor with the wanted name, or else a detached actor of another session."""
        own = self._find_own(wanted.name, wanted.namespace)
        if isinstance(own, messages.NotFound):
            return self._find_abroad(wanted.name, own.namespace)[0]
        return own

    def register(
        self,
        request: messages.StartActor,
        peer: CallConnection,
        handles: Sequence[Handle],
        buffers: Sequence[Any],
    ) -> Met | messages.NotFound | None:
        """Request the start of a named actor.

        Args:
            request: start request that is sent to the node.
            peer: this process's end of the actor's first connection.
            handles: other end of the actor's first connection, then handles that the node keeps for restarts.
            buffers: data of the constructor call that the node keeps for restarts.

        Returns:
            None if a new actor starts, the existing actor with get_if_exists=True, or NotFound if the
            existing actor has just ended.

        Raises:
            ConfigError: a different actor already has the name.
        """
        wanted = request.registration
        if wanted is None:
            raise ConfigError("an actor without a name can't be registered")
        with in_turn(Path(self._parts.mark).parent) if wanted.detached else contextlib.nullcontext():
            if wanted.detached:
                found = self.holder(wanted)
                if found is not None and wanted.get_if_exists:
                    return found
                if found is not None and self.is_abroad(found[0]):
                    session = sessions.session_at(Path(found[0].peer.home or ""))
                    holder = f"a detached actor of {session or 'another session'}"
                    raise ConfigError(
                        specs.taken_message(wanted.name, wanted.namespace or self._namespace, holder)
                    )
            try:
                answer: messages.Found | None = self._node.demand(request, handles, buffers)
            except (KeyboardInterrupt, SystemExit):
                # The node may have registered the actor already, and the actor would wait forever for its
                # first frame. So the node is asked to kill the actor.
                self._node.tell(messages.Kill(request.worker_id, "its request was interrupted"))
                raise
        if answer is None:
            if wanted.detached:
                # With a large send buffer, the kernel delivers the next frame even if this program ends just
                # after sending it.
                peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
            return None
        return self._find_own(wanted.name, wanted.namespace)

    def _find_own(self, name: str, namespace: str | None) -> Met | messages.NotFound:
        """Return the actor named `name` in this process's session."""
        message = messages.FindActor(name, namespace, False)
        return self._ask_for(self._parts.mark, lambda conn: self._node.demand(message, conn))

    def _ask_for(self, home: str, ask: Callable[[Sequence[Descriptor]], _Answer]) -> Met | messages.NotFound:
        """Connect to an actor in the session with the folder `home`.

        The function `ask` sends a request for the actor to that session's node.

        A new connection is made only if this process has no connection to the actor. Each connection uses a
        descriptor of the node until the actor accepts the connection, and a busy actor accepts connections
        late.
        """
        answer = ask(())
        if isinstance(answer, messages.NotFound):
            return answer
        with _meeting:
            known = actors.known_endpoint(home, answer.worker_id)
            if known is not None:
                return known, answer.interface
            ours, theirs = socket.socketpair()
            with ours:
                answer = ask([Descriptor(theirs.detach())])
                if isinstance(answer, messages.NotFound):
                    return answer
                sock = socket.socket(fileno=ours.detach())
            return self._met(home, answer, sock)

    def _met(self, home: str, answer: messages.Found, sock: socket.socket) -> Met:
        connection = actors.ActorConnection if answer.life is None else reconnecting.ReconnectingConnection
        peer = connection(sock, answer.label, answer.worker_id)
        peer.home, peer.in_order, peer.max_task_retries = home, answer.in_order, answer.max_task_retries
        endpoint = actors.shared(actors.ActorEndpoint(peer))
        if endpoint.peer is peer:
            peer.follow(self._parts, life=answer.life or 0)
        return endpoint, answer.interface

    def _find_abroad(self, name: str, namespace: str) -> tuple[Met | None, list[str], list[str]]:
        """Search the user's other sessions for a detached actor named `name`.

        Returns:
            A tuple of the actor or None, descriptions of the searched sessions, and names of actors in these
            sessions.
        """
        looked_at: list[str] = []
        known: list[str] = []
        for session in sessions.sessions(Path(self._parts.mark).parent):
            home = str(session.folder)
            if home == self._parts.mark:
                continue
            looked_at.append(str(session))
            message = messages.FindActor(name, namespace, True)
            try:
                with sessions.connect(session.folder) as node:
                    found = self._ask_for(home, lambda conn: node.ask(message, conn, _SEARCH_S))  # noqa: B023
            except ObjectLostError:  # this process has no descriptor left, so the session may have the actor
                raise
            except TrainkitError as error:  # an ended or hanging session is only mentioned in the final error
                looked_at[-1] += f", which did not answer: {error}"
                continue
            if not isinstance(found, messages.NotFound):
                return found, looked_at, known
            if name in found.names:
                looked_at[-1] += ", whose actor of that name is not detached"
            known.extend(found.names)
        return None, looked_at, known


class ActorClient:
    """Client that starts, calls and kills actors for this process.

    Args:
        parts: objects that all client classes of this process share, such as its connection to the node.
        lookup: object that finds actors by name.
        results: factory of the references that a call returns.
    """

    def __init__(self, parts: actors.ClientParts, lookup: ActorLookup, results: Results) -> None:
        self._parts = parts
        self._node = parts.node
        self._lookup = lookup
        self._codec = parts.codec
        self._results = results

    def start(self, spec: specs.ActorSpec) -> actors.ActorEndpoint:
        """Request the start of an actor and return the actor's endpoint; see `Engine.start_actor`."""
        wanted = spec.registration
        with descriptors_explained:
            if wanted is None or not wanted.get_if_exists:
                return self._start(spec)
            with making:  # concurrent threads must start one actor and share one connection to it
                found = self._lookup.holder(wanted)
                return self._start(spec) if found is None else found[0]

    def _start(self, spec: specs.ActorSpec) -> actors.ActorEndpoint:
        placement = self._parts.placed(spec.placement, spec.name)
        definition = self._codec.definition(spec.cls, spec.name)
        waits_for = pending(spec.args, spec.kwargs)
        body = self._codec.of_call(definition, spec.name, 1, spec.args, spec.kwargs)
        endpoint, first = reconnecting.endpoint_of(self._parts, spec)
        peer = endpoint.peer
        peer.tells_failures = not is_own(spec.cls)
        constructor_call, kept = reconnecting.constructor_call(spec, body)
        request = messages.StartActor(
            peer.worker_id or 0,
            spec.name,
            placement,
            self._parts.environment(),
            conduct=messages.ActorConduct(
                spec.concurrency,
                spec.interface.is_async,
                is_registered=spec.registration is not None,
                max_task_retries=spec.max_task_retries,
                is_restarted=spec.max_restarts != 0,
            ),
            constructor_call=constructor_call,
            registration=spec.registration,
            class_name=spec.cls.__name__,
            interface=None if spec.registration is None else spec.interface,
            ready=not waits_for,
        )
        try:
            if spec.registration is not None:
                existing = self._lookup.register(request, peer, [first, *kept.handles], kept.buffers)
                if isinstance(existing, messages.NotFound):  # the actor with the name has ended meanwhile
                    return self._start(spec)
                if existing is not None:
                    return existing[0]
            # The class and the constructor's arguments are sent directly to the new process, which reads them
            # when it runs. If the node refuses the actor, the connection closes and later calls report the
            # refusal.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.send(INIT, 0, body)
            if spec.registration is None:
                self._node.tell(request, [first, *kept.handles], kept.buffers)
        finally:  # this also runs after Ctrl-C, as the actor would otherwise keep its name and never start
            if waits_for:
                tell = functools.partial(self._node.tell, messages.ArgumentsThere(request.worker_id))
                parts = self._parts
                parts.waiter.when_all(waits_for, lambda: parts.background.run(tell))
        return endpoint

    def call(
        self,
        actor: actors.ActorEndpoint,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        spec: specs.MethodSpec,
    ) -> list[ObjectRef[Any]]:
        """Send one method call; see `Engine.call`."""
        peer = actor.peer
        if peer.takes_small_calls and spec.is_plain:
            arguments = lasting(args, kwargs)
            if arguments is not None:
                # The code for plain small calls is inlined for speed, because they are the most frequent
                # calls.
                results = self._results
                ref = LocalRef(results.new_id(), peer)
                ref.body = method  # the name is set before sending, because the answer overwrites it
                peer.request_soon(ref, method, arguments)
                if results.started is not None:
                    results.started.add(ref)
                return [ref]
        waits_for = pending(args, kwargs)
        body = self._codec.of_call(
            None, method, spec.num_returns, args, kwargs, spec.concurrency_group, spec.name
        )
        if waits_for or peer.keeps_back:
            refs = self._results.new(spec.num_returns, None)
            held = actors.CallAwaitingArguments(
                self._parts, actor, peer, method, body.owned(), refs, spec, ready=not waits_for
            )
            peer.hold(held, waits_for)
        else:
            refs = self._results.new(spec.num_returns, peer)
            for ref in refs:
                ref.body = method
            peer.call(actor, body, refs, spec)
        return self._results.handed_out(refs, spec.num_returns)

    def kill(self, actor: actors.ActorEndpoint, no_restart: bool) -> None:
        """End an actor; see `Engine.kill`."""
        peer, reason = actor.peer, "it was killed by trainkit.kill()"
        if peer.worker_id is None:
            return
        if self._lookup.is_abroad(actor):
            sessions.kill(peer.home or "", peer.worker_id, reason, not no_restart)
        else:
            self._node.demand_end(messages.Kill(peer.worker_id, reason, not no_restart))


@contextlib.contextmanager
def in_turn(parent: Path) -> Iterator[None]:
    """Let only one thread of all the user's programs run the block at a time.

    The block prevents that two threads create detached actors with the same name.

    Raises:
        TrainkitError: another thread has been running the block for 10 s.
    """
    global _turns
    # The folder itself is locked, because a lock file would be left behind. The kernel releases the lock on
    # the folder when the process ends.
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _await_turn(parent, fd)
        try:
            yield
        finally:
            _turns += 1
    finally:
        os.close(fd)


_turns = 0
"""Number of times that threads of this process have left the block of `in_turn`."""


def _await_turn(parent: Path, fd: int) -> None:
    """Lock the folder `parent`, which is open as `fd`.

    Raise TrainkitError if one thread keeps the lock for 10 s.
    """
    seen, since = (_lock_holder(fd), _turns), SYSTEM.monotonic()
    while not _locks(fd):
        now = _lock_holder(fd), _turns
        if now != seen:
            seen, since = now, SYSTEM.monotonic()
        elif SYSTEM.monotonic() - since > _TURN_S:
            who = "another program" if now[0] is None else f"a program (pid {now[0]})"
            raise TrainkitError(
                f"{who} has been creating a detached actor for {_TURN_S:g} s and holds the lock of {parent}: "
                "see what that program waits for, or end it"
            )


def _locks(fd: int) -> bool:
    """Try for 0.5 s to lock the file `fd`. Return True on success."""
    deadline = SYSTEM.monotonic() + _LOOK_S
    while SYSTEM.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        SYSTEM.sleep(_TRY_S)
    return False


def _lock_holder(fd: int) -> int | None:
    """Return the pid of the process that has locked `fd`; None if the kernel does not show the process."""
    inode = f":{os.fstat(fd).st_ino}"
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            parts = line.split()  # each line looks like "1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF"
            if parts[1] == "FLOCK" and parts[5].endswith(inode):
                return int(parts[4])
    return None
