"""Actors found by name, in this session or in another."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainkit.errors import ConfigError, ObjectLostError, TrainkitError
from trainkit.runtime.local.client import reconnecting
from trainkit.runtime.local.client.actors import ActorConnection, ActorEndpoint, shared
from trainkit.runtime.local.client.refs import CallConnection, LocalRef
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.channel import Descriptor, explain
from trainkit.runtime.local.wire.messages import FindActor, Found, Kill, NotFound, Shutdown, StartActor
from trainkit.runtime.local.wire.names import nearest, taken_message
from trainkit.runtime.serialize import Handle
from trainkit.runtime.specs import Interface, Registration

if TYPE_CHECKING:
    from trainkit.runtime.local.client.engine import LocalEngine

making = threading.RLock()
"""Held while an actor is made that may be there already.

Always taken before the turn of `doors.in_turn`, and that before `_meeting`.
"""

_meeting = threading.RLock()
"""Held while a connection to an actor is made that other threads may be about to make too."""

_FAREWELL_S = 5.0
_SEARCH_S = 2.0
_ROOM_BYTES = 1 << 20
_Answer = Found | NotFound


class _Nobody(NamedTuple):
    """Nobody has a name.

    Attributes:
        own: the answer of this process's session.
        looked_at: the other sessions.
        known: the names that they have.
    """

    own: NotFound
    looked_at: Sequence[str]
    known: Sequence[str]


def find_actor(engine: LocalEngine, name: str, namespace: str | None) -> tuple[ActorEndpoint, Interface]:
    """The actor of that name; see `Engine.find_actor`."""
    try:
        found = _find(engine, name, namespace)
    except OSError as error:
        explain(error)
        raise
    if isinstance(found, _Nobody):
        raise ConfigError(_not_found(name, found))
    return found


def existing(engine: LocalEngine, wanted: Registration | None) -> ActorEndpoint | None:
    """Return the actor that is good enough for who wants to register one; None if there is none."""
    if wanted is None or wanted.name is None or not wanted.get_if_exists:
        return None
    found = _find(engine, wanted.name, wanted.namespace)
    return None if isinstance(found, _Nobody) else found[0]


def register(
    engine: LocalEngine,
    request: StartActor,
    peer: CallConnection,
    handles: Sequence[Handle],
    buffers: Sequence[Any],
) -> tuple[ActorEndpoint, Interface] | NotFound | None:
    """Ask for the actor of `request`, which has a registration.

    Args:
        engine: this process's.
        request: for the node.
        peer: this process's end of the actor's first connection.
        handles: the other end, and what else goes with the request.
        buffers: what goes with it too.

    Returns:
        The actor that there is already, if that is good enough; NotFound if it has ended since; else None.

    Raises:
        ConfigError: its name is taken.
    """
    wanted = request.registration
    if wanted is None or wanted.name is None:
        raise ConfigError("only an actor with a name can be registered")
    with sessions.in_turn(_home(engine)) if wanted.detached else contextlib.nullcontext():
        if wanted.detached:
            found = _find(engine, wanted.name, wanted.namespace)
            if not isinstance(found, _Nobody) and wanted.get_if_exists:
                return found
            if not isinstance(found, _Nobody) and is_abroad(engine, found[0]):
                session = sessions.session_at(Path(found[0].peer.home or ""))
                holder = f"a detached actor of {session or 'another session'}"
                raise ConfigError(
                    taken_message(wanted.name, wanted.namespace or engine.place.namespace, holder)
                )
        try:
            answer: Found | None = _answer(engine, engine.link.ask(request, handles, buffers))
        except KeyboardInterrupt:  # it may be registered, and would wait for its first frame for ever
            engine.link.tell(Kill(request.worker_id, "who asked for it was interrupted"))
            raise
    if answer is None:
        if wanted.detached:
            # What is sent to it next is then the kernel's, and arrives also if this program ends at once.
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM_BYTES)
        return None
    return _find_own(engine, wanted.name, wanted.namespace)


def farewell(engine: LocalEngine) -> bool:
    """Tell the node that the program ends; returns, once all of it is dead, whether detached actors stay."""
    try:
        return bool(engine.get([engine.link.ask(Shutdown())], _FAREWELL_S)[0])
    except TrainkitError:  # it has ended, or will be made to
        return False


def is_abroad(engine: LocalEngine, actor: ActorEndpoint) -> bool:
    """Whether an actor belongs to another session than this process."""
    return actor.peer.home not in (None, engine.mark)


def kill_abroad(actor: ActorEndpoint, reason: str, restart: bool) -> None:
    """End an actor of another session; with `restart` it may be made anew."""
    peer = actor.peer
    if peer.home is not None and peer.worker_id is not None:
        sessions.kill(peer.home, peer.worker_id, reason, restart)


def _home(engine: LocalEngine) -> Path:
    return Path(engine.mark).parent


def _answer(engine: LocalEngine, ref: LocalRef) -> Any:
    return engine.get([ref], None)[0]


def _find(engine: LocalEngine, name: str, namespace: str | None) -> tuple[ActorEndpoint, Interface] | _Nobody:
    """The actor of that name in this process's session, or a detached one in another."""
    own = _find_own(engine, name, namespace)
    if not isinstance(own, NotFound):
        return own
    met, looked_at, known = _find_abroad(engine, name, own.namespace)
    return _Nobody(own, looked_at, known) if met is None else met


def _find_own(
    engine: LocalEngine, name: str, namespace: str | None
) -> tuple[ActorEndpoint, Interface] | NotFound:
    """The actor of that name in this process's session."""
    message = FindActor(name, namespace, False)
    return _ask_for(engine, engine.mark, lambda conn: _answer(engine, engine.link.ask(message, conn)))


def _ask_for(
    engine: LocalEngine, home: str, ask: Callable[[Sequence[Descriptor]], _Answer]
) -> tuple[ActorEndpoint, Interface] | NotFound:
    """Meet the actor that `ask` finds in the session with the mark `home`.

    It is handed a new connection only if this process has none: one that is busy takes none up, and
    those which wait for it take descriptors of the node.
    """
    answer = ask(())
    if isinstance(answer, NotFound):
        return answer
    with _meeting:
        known = reconnecting.known_endpoint(home, answer.worker_id)
        if known is not None:
            return known, answer.interface
        ours, theirs = socket.socketpair()
        with ours:
            answer = ask([Descriptor(theirs.detach())])
            if isinstance(answer, NotFound):
                return answer
            sock = socket.socket(fileno=ours.detach())
        return _met(engine, home, answer, sock)


def _met(
    engine: LocalEngine, home: str, answer: Found, sock: socket.socket
) -> tuple[ActorEndpoint, Interface]:
    if answer.life is not None:
        line = reconnecting.ReconnectingConnection(sock, answer.label, answer.worker_id)
        line.home, line.in_order = home, answer.in_order
        endpoint = shared(reconnecting.ReconnectingEndpoint(line))
        if endpoint.peer is line:
            line.follow(engine, home, answer.max_task_retries, answer.life)
        return endpoint, answer.interface
    peer = ActorConnection(sock, answer.label, answer.worker_id)
    peer.home, peer.in_order, peer.max_task_retries = home, answer.in_order, answer.max_task_retries
    return shared(ActorEndpoint(peer)), answer.interface


def _find_abroad(
    engine: LocalEngine, name: str, namespace: str
) -> tuple[tuple[ActorEndpoint, Interface] | None, list[str], list[str]]:
    """A detached actor of that name in another of the user's sessions.

    Returns:
        The actor; the sessions looked at, and the names that they have.
    """
    looked_at: list[str] = []
    known: list[str] = []
    for session in sessions.sessions(_home(engine)):
        home = str(session.folder)
        if home == engine.mark:
            continue
        looked_at.append(str(session))
        message = FindActor(name, namespace, True)
        try:
            with sessions.connect(session.folder) as node:
                found = _ask_for(engine, home, lambda conn: node.ask(message, conn, _SEARCH_S))  # noqa: B023
        except ObjectLostError:  # for want of a descriptor, so that it may have that name
            raise
        except TrainkitError as error:  # it has just ended, or is stopped: told if nothing is found
            looked_at[-1] += f", which could not be asked: {error}"
            continue
        if not isinstance(found, NotFound):
            return found, looked_at, known
        if name in found.names:
            looked_at[-1] += ", whose actor of that name is its own, not detached"
        known.extend(found.names)
    return None, looked_at, known


def _not_found(name: str, nobody: _Nobody) -> str:
    own, looked_at, known = nobody
    where = "; ".join(["this session", *looked_at])
    near = nearest(name, sorted({*own.names, *known} - {name}))
    hint = f": did you mean {near!r}?" if near else "."
    return (
        f"there is no actor named {name!r} in the namespace {own.namespace!r} (looked in {where}){hint} "
        "Names are given by .options(name=...), end with their actor, and reach other programs with "
        "lifetime='detached'"
    )
