"""Connection to the node: requests, notices, and the errors that callers get after the node has ended."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeVar

from trainkit.errors import ActorDiedError, NodeDiedError, ObjectLostError, TrainkitError, WorkerDiedError
from trainkit.runtime import restart_policy
from trainkit.runtime.local.client.launch import NodeProcess
from trainkit.runtime.local.client.refs import CallConnection, LocalRef
from trainkit.runtime.local.wire import sessions
from trainkit.runtime.local.wire.channel import NOTICE, REQUEST, Frame
from trainkit.runtime.local.wire.messages import Output, QueryExit, Waits, packed, unpacked
from trainkit.runtime.serialize import Handle, Packed

_SERIAL_SHIFT = 40
_BLOCK = 1 << 39
_MOST_RETURNS = 1 << 12


class Ids:
    """Source of ids that are unique in the session.

    The ids start at a random number, so that they differ from the ids of other sessions.

    Args:
        serial: number of this process in the session.

    Attributes:
        next: function that returns a new id.
    """

    def __init__(self, serial: int) -> None:
        first = (serial << _SERIAL_SHIFT) + int.from_bytes(os.urandom(8), "little") % (_BLOCK // 2)
        self.next = itertools.count(first + 1).__next__
        self._first_block = first + _BLOCK
        self._blocks = itertools.count(self._first_block, _MOST_RETURNS)

    def block(self, count: int) -> range:
        """Return `count` consecutive ids."""
        if count > _MOST_RETURNS:
            raise ValueError(f"a call can return {_MOST_RETURNS} references at most, not {count}")
        first = next(self._blocks)
        return range(first, first + count)

    def call_of(self, number: int) -> int:
        """Return the id of the call that produces the reference `number`.

        The id of a call is the id of its first result.
        """
        beyond = number - self._first_block
        return number if beyond < 0 else number - beyond % _MOST_RETURNS


class NodeClient(CallConnection):
    """Connection to the node.

    Args:
        sock: socket that is connected to the node.
        ids: generator of the ids of this process's references and calls.
        answer: function that waits for a reference and returns its value.
        in_background: function that runs its argument in the background thread.
        node: the node process, in the driver; None in a worker.

    Attributes:
        new_id: function that returns an id that is unique in the session.
    """

    def __init__(
        self,
        sock: socket.socket,
        ids: Ids,
        answer: Callable[[LocalRef], Any],
        in_background: Callable[[Callable[[], None]], None],
        node: NodeProcess | None,
    ) -> None:
        super().__init__(sock, "the node")
        self.new_id = ids.next
        self._answer = answer
        self._in_background = in_background
        self._node = node
        self.closing = False
        self._lost = False
        self._ended_by = ""
        self.on_notice: Callable[[Any, Packed], None] = show_notice

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == NOTICE:
            self.on_notice(unpacked(frame.body), frame.body)
        else:
            super().on_frame(frame)

    def ask(self, message: Any, handles: Sequence[Handle] = (), buffers: Sequence[Any] = ()) -> LocalRef:
        """Send a request and return the reference that receives its answer."""
        ref = LocalRef(self.new_id(), self)
        self.request(REQUEST, packed(message, handles, buffers), [ref])
        return ref

    def demand(self, message: Any, handles: Sequence[Handle] = (), buffers: Sequence[Any] = ()) -> Any:
        """Send a request and wait for its answer."""
        return self._answer(self.ask(message, handles, buffers))

    def demand_end(self, message: Any) -> None:
        """Send a request to end an actor or a group, and wait. Do nothing if the node has ended."""
        with contextlib.suppress(NodeDiedError):
            if not self.closed:
                self.demand(message)

    def tell(self, message: Any, handles: Sequence[Handle] = (), buffers: Sequence[Any] = ()) -> None:
        """Send a message that has no answer."""
        with contextlib.suppress(OSError):  # the closed connections of the node report that it has ended
            self.send(NOTICE, 0, packed(message, handles, buffers))

    def close(self) -> None:
        super().close()
        self._fail_pending()  # threads that wait for answers would wait forever without this call

    def on_close(self) -> None:
        if self._node is not None and not self.closing:
            self._lost, self._ended_by = True, sessions.ended_by(Path(self._node.mark))
        super().on_close()
        if self._node is not None and not self.closing:
            self._in_background(self._node.end_leftovers)

    def lost(self) -> TrainkitError:
        """Return the error for requests that fail because the node has ended."""
        if self.closing and not self._lost:
            return ObjectLostError("the session of this reference or actor has been shut down")
        how = "" if self._node is None else self._node.status()
        text = f"the process that supervises the workers ended{how and f' ({how})'}, and the workers with it"
        if self._ended_by:
            text = f"the session was ended with `trainkit stop` by {self._ended_by}, and its workers with it"
        error = NodeDiedError(f"{text}; call trainkit.init() to start a new session")
        error.how, error.ended_by = how, self._ended_by
        return error

    def exit_of(self, peer: CallConnection) -> restart_policy.ExitRecord:
        """Return the node's record of how the process at the other end of `peer` ended."""
        if peer.worker_id is None:
            return restart_policy.ExitRecord(reason="its connection closed")
        exit_: restart_policy.ExitRecord = self.demand(QueryExit(peer.worker_id))
        return exit_

    def death_of(self, peer: CallConnection) -> TrainkitError:
        """Return the error for calls to an actor whose connection closed."""
        is_abroad = peer.home not in (None, self.home)
        if not is_abroad and (self.closing or self.closed):
            return self.lost()
        try:
            exit_ = sessions.query_exit(peer.home, peer.worker_id) if is_abroad else self.exit_of(peer)
        except (NodeDiedError, ObjectLostError) as error:  # the node has ended, or the actor is alive
            return error
        died = death(ActorDiedError, exit_, peer.name)
        died.actor_id = f"{peer.worker_id or 0:016x}"
        return died


Died = TypeVar("Died", bound=WorkerDiedError)


def death(kind: type[Died], exit_: restart_policy.ExitRecord, name: str, consequence: str = "") -> Died:
    """Return the error for unfinished calls of the ended process `name`; see `restart_policy.describe`."""
    error = kind(restart_policy.describe(exit_, name, consequence))
    error.pid, error.exit_code, error.stderr_tail = exit_.pid, exit_.code, exit_.stderr_tail
    return error


def show_notice(message: Any, _: Packed) -> None:
    """Print the output of workers and the messages of the node."""
    match message:
        case Output(name, pid, is_error, lines):
            _write(sys.stderr if is_error else sys.stdout, [f"({name} pid={pid}) {line}" for line in lines])
        case Waits(text):
            _write(sys.stderr, [f"trainkit: {text}"])
        case _:
            raise TypeError(f"the node sent an unknown message: {message!r}")


def _write(stream: TextIO | None, lines: Sequence[str]) -> None:
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    text = "".join(f"{line}\n" for line in lines).encode(encoding, "backslashreplace").decode(encoding)
    with contextlib.suppress(OSError, ValueError):  # the user closed the stream, or its reader has ended
        stream.write(text)
        stream.flush()
