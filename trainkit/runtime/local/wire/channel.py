"""Connections: frames over a Unix socket, with file descriptors beside them.

    sender ──send()──▶ kernel's buffer ──▶ read_available() ──▶ on_frame(frame)
              └─ full? ─▶ backlog ──flush(), by the pump's thread──▶ kernel's buffer

A send never blocks: what the kernel doesn't take waits in the backlog. Any thread may read, one at a
time: it holds the reading lock, hands on every frame that has arrived, and so completes other threads'
waits too. Descriptors travel beside the bytes, and a frame says how many of them are its own.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple

from trainkit.errors import ObjectLostError, TrainkitError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.serialize import Handle, LostHandle, Packed
from trainkit.runtime.signals import InterruptGuard

# kind, whether the body lies in a segment, handle count, buffer count, call id, bytes that follow
HEADER = struct.Struct("<B?HIQQ")

INIT = 1  # the first frame to an actor: its class and its constructor's arguments
CALL = 2  # a method, or a task's function, with its arguments
VALUE = 3  # the answer to a call, or to a request
FAILURE = 4  # user code raised
CONNECT = 5  # a further connection to this process; it is the frame's only handle
REQUEST = 6  # to the node, which answers with VALUE or FAILURE
NOTICE = 7  # to or from the node, not answered
CALLS = 8  # several small calls
ANSWERS = 9  # several small values, and how long they took
RETURNED = 10  # the numbers of calls that will not be begun here, to be made elsewhere, and why
ITEM = 11  # what a streaming call has yielded; VALUE or FAILURE ends it
CANCEL = (
    12  # to the owner of a promise: the call is to be stopped, by force or not, and what it started or not
)

BLOCKED = "blocked"  # the call before them waits for others
SLOW = "slow"  # the call before them takes long
UNKNOWN = "unknown"  # their function is not known here, or no more


class Frame(NamedTuple):
    """One message: its kind, the call it belongs to, and what it carries."""

    kind: int
    call_id: int
    body: Packed


def encoded(kind: int, call_id: int, body: Packed) -> bytes:
    """Return a frame as bytes; its descriptors go beside."""
    if not body.handles and not body.buffers:
        return b"%b%b" % (HEADER.pack(kind, False, 0, 0, call_id, len(body.payload)), body.payload)
    lengths = struct.pack(f"<{len(body.buffers)}Q", *(len(buffer) for buffer in body.buffers))
    kinds = bytes(handle.kind for handle in body.handles)
    parts = [kinds, lengths, body.payload, *body.buffers]
    size = sum(len(part) for part in parts)
    return b"".join([HEADER.pack(kind, body.stored, len(kinds), len(body.buffers), call_id, size), *parts])


PROMISE = 3
"""Kind of the handles that are pending references."""
ACTOR = 2
"""Kind of the handles of actors."""
RECONNECTING_ACTOR = 9
"""Kind of the handles of actors that can be restarted."""
_FDS_PER_SEND = 250  # the kernel's SCM_MAX_FD is 253
_RECV_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 14
"""Bytes that the kernel takes as a whole or not at all, as they are far less than its buffer."""
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CUT_OFF = int(socket.MSG_CTRUNC)  # to ask an enumeration takes longer than all else around it
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
SHORT_WAIT_S = 60e-6
"""A process that is put to sleep and woken has lost about as much; so a wait that is likely to be shorter
is spent looking, and leaving the CPU to whoever wants it.
"""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_FDS_PER_SEND * 4)


_LOST = -1
"""Among received descriptors, in place of those of a send that this process could not open."""


class Descriptor:
    """Handle that is a bare descriptor, owned by this object until it is taken or sent."""

    kind = 0
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self) -> int:
        """Return the descriptor, which the caller now owns."""
        fd, self._fd = self._fd, -1
        return fd

    open_fd = take

    def copy(self) -> Descriptor:
        """Return a second descriptor for the same thing."""
        return Descriptor(os.dup(self._fd))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


HANDLE_KINDS: dict[int, Callable[[int], Handle]] = {0: Descriptor}
"""Functions that make a handle of a received descriptor, by the handle's kind; other modules add theirs."""


class _Socket(socket.socket):
    """Closes without a warning when it is collected: a connection lasts as long as it is referred to."""

    def __del__(self) -> None:
        self.close()


def no_descriptor_left() -> ObjectLostError:
    """Return the error for what could not be had for want of a file descriptor."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ObjectLostError(
        f"this process (pid {os.getpid()}) had no file descriptor left for it: its limit is {limit}. Actors "
        "that it has handles of, results that are still to come or to be sent, and large objects take one "
        "each: release some, or raise the limit (ulimit -n)."
    )


def explain(error: OSError) -> None:
    """Raise what the kernel refused for want of a descriptor in words; returns if it is something else."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise no_descriptor_left() from error


class Explained:
    """Context that raises an OSError of its block in words, if `explain` has some for it.

    Args:
        explain: raises an error in words, or returns.
    """

    def __init__(self, explain: Callable[[OSError], None]) -> None:
        self._explain = explain

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            self._explain(error)


descriptors_explained = Explained(explain)
"""Context for what takes a file descriptor."""


class Connection:
    """One end of a Unix stream socket. Subclasses say what happens with a frame.

    Args:
        sock: connected; owned from here on.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock.detach())
        self.reading = threading.Lock()
        self.closed = False
        self.ended = False
        """The other end sends nothing more; it may still read."""
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._followers = 0
        self._send_lock = threading.RLock()
        self._backlog: deque[tuple[memoryview, list[int]]] = deque()
        self._half_closed = False
        self._is_quick = False
        self._close_when_sent = False
        self._partial = bytearray()
        self._fds: deque[int] = deque()

    def on_frame(self, frame: Frame) -> None:
        """Deal with a frame that has arrived; called by the thread that reads."""

    def on_end(self) -> None:
        """Deal with the other end sending nothing more; called once, by the thread that reads."""
        self.closed = True
        with self._send_lock:
            self._drop_backlog()
        self.on_close()

    def on_close(self) -> None:
        """Deal with the end of the connection; called once."""

    def on_backlog(self) -> None:
        """Arrange a call of `flush` when the socket can be written to, as a send did not fit."""
        raise BlockingIOError(errno.EAGAIN, "the connection is full, and nobody would flush it")

    def fileno(self) -> int:
        return self.sock.fileno()

    # sending

    def send(self, kind: int, call_id: int, body: Packed) -> None:
        """Send a frame, or queue it.

        Raises:
            BrokenPipeError, ConnectionResetError: the other end is gone.
            ObjectLostError, ObjectStoreFullError: there is no descriptor for one of its handles, and nothing
                was sent.
        """
        if not body.handles and body.size_bytes <= _WHOLE_BYTES:  # the fast path: most calls
            self._send_frame(encoded(kind, call_id, body), [])
            return
        # Ctrl-C between a part of a frame and the note of the rest would leave half a frame sent.
        with InterruptGuard():
            self._send_frame(encoded(kind, call_id, body), _open_all(body.handles))

    def _send_frame(self, data: bytes, fds: list[int]) -> None:
        with self._send_lock:
            if self._half_closed or self.closed or self._pid != os.getpid():
                _close_all(fds)
                raise BrokenPipeError(errno.EPIPE, "the connection is closed")
            if self._backlog:
                self._backlog.append((memoryview(data), fds))
                return
            rest = self._write(memoryview(data), fds)
            if rest is None:
                return
            # A backlog that nobody is told of would never be flushed. A handler runs without the lock.
            with InterruptGuard(acts=False) as guard:
                self._backlog.append(rest)
                self.on_backlog()
        guard.act()

    def _write(self, data: memoryview, fds: list[int]) -> tuple[memoryview, list[int]] | None:
        """Write what the kernel takes now; returns what is left, or None."""
        try:
            while fds:
                now, later = fds[:_FDS_PER_SEND], fds[_FDS_PER_SEND:]
                # With descriptors still to come, only one byte goes along, so that the rest of the
                # frame follows the last of them.
                chunk = data[:1] if later else data
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", now))]
                sent = self.sock.sendmsg([chunk], ancillary, _SEND_FLAGS)
                _close_all(now)
                data, fds = data[sent:], later
            while len(data):
                data = data[self.sock.send(data, _SEND_FLAGS) :]
        except BlockingIOError:
            return data, fds
        except OSError:
            _close_all(fds)
            raise
        return None

    def open_further(self) -> int | None:
        """Have the other end serve one more connection, and return this end of it; None if it does no more.

        Nothing else is sent over this one, so that what the kernel does not take at once can be dropped.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._send_lock, contextlib.suppress(OSError):
            self.send(CONNECT, 0, Packed(b"", (), [Descriptor(ours.detach())]))
            if not self._backlog:
                return theirs.detach()
            self._drop_backlog()
        return None

    @property
    def has_backlog(self) -> bool:
        """Return True if data waits for room in the kernel's buffer."""
        return bool(self._backlog)

    def flush(self) -> None:
        """Write as much of the backlog as the kernel takes now."""
        with self._send_lock:
            while self._backlog:
                data, fds = self._backlog.popleft()
                try:
                    rest = self._write(data, fds)
                except OSError:
                    self._drop_backlog()  # the other end is gone; whoever reads finds out
                    break
                if rest is not None:
                    self._backlog.appendleft(rest)
                    return
            if self._close_when_sent:
                self.close()
            elif self._half_closed:
                self._shutdown_write()

    def flush_blocking(self, timeout_s: float) -> None:
        """Write the whole backlog, waiting up to `timeout_s` each time the kernel's buffer is full."""
        poll = select.poll()
        with self._send_lock:
            if self._backlog:  # else another thread may have sent it, and closed this end
                poll.register(self.sock, select.POLLOUT)
        while self._backlog and poll.poll(timeout_s * 1000):
            self.flush()

    def finish_sending(self) -> None:
        """Tell the other end that nothing more comes, once the backlog is written; replies still arrive."""
        with self._send_lock:
            if not self._half_closed and not self.closed:
                self._half_closed = True
                if not self._backlog:
                    self._shutdown_write()

    def close_when_sent(self) -> None:
        """Close this end as soon as the backlog is written."""
        with self._send_lock:
            if self._backlog:
                self._close_when_sent = True
            else:
                self.close()

    def _shutdown_write(self) -> None:
        if self._pid != os.getpid():
            return  # a forked copy: the socket is its parent's to shut down
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def _drop_backlog(self) -> None:
        while self._backlog:
            _close_all(self._backlog.popleft()[1])

    # reading

    def wait_until(
        self,
        done: Callable[[], bool],
        timeout_s: float | None,
        now: Callable[[], float],
        guard: InterruptGuard,
    ) -> None:
        """Read, or let another thread read, until `done()`, `timeout_s` passed, it closed or Ctrl-C came."""
        deadline = None if timeout_s is None else now() + timeout_s
        left = timeout_s
        while not done() and not guard.noted:
            if self.reading.acquire(blocking=False):
                try:
                    if self.closed:
                        return
                    if not done() and not self._receive_shortly(now):
                        begun = now()
                        if guard.poll([self.sock.fileno()], left):
                            self._receive()
                        self._is_quick = now() - begun < 2 * SHORT_WAIT_S
                finally:
                    self.release_reading()
            else:
                with self._changed:
                    self._followers += 1
                    try:
                        if self.reading.locked() and not done():
                            self._changed.wait(guard.patience(left))
                    finally:
                        self._followers -= 1
            if deadline is not None:
                left = deadline - now()
                if left <= 0:
                    return

    def _receive_shortly(self, now: Callable[[], float]) -> bool:
        """Look for what is about to arrive, if the last answers came quickly: to sleep would take longer."""
        if self._is_quick:
            end = now() + SHORT_WAIT_S
            while now() < end:
                if self._receive():
                    return True
                os.sched_yield()
            self._is_quick = False
        return False

    def release_reading(self) -> None:
        """Let another thread read, and wake those that wait for what has been read."""
        self.reading.release()
        self._wake_followers()

    def _wake_followers(self) -> None:
        # A follower counts itself before it looks whether someone reads, so none is missed: either
        # it is counted here, or it finds the lock free.
        if self._followers:
            with self._changed:
                self._changed.notify_all()

    def read_available(self) -> None:
        """Hand on what has arrived, without waiting. The caller holds `reading`."""
        self._receive()

    def read_all(self) -> None:
        """Hand on all that has arrived: one read ends at each message with descriptors."""
        with self.reading:
            while self._receive():
                pass

    def try_read(self) -> bool:
        """Hand on what has arrived, if no other thread is reading now; returns whether that was done."""
        if not self.reading.acquire(blocking=False):
            return False
        try:
            self.read_available()
        finally:
            self.release_reading()
        return True

    def _receive(self) -> bool:
        """Hand on what has arrived; returns whether anything had."""
        if self.closed or self.ended:
            return False
        try:
            data, ancillary, flags_back, _ = self.sock.recvmsg(_RECV_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        except OSError:  # reset: the other end died with something unread
            data, ancillary, flags_back = b"", [], 0
        if ancillary:
            for _, _, raw in ancillary:
                self._fds.extend(array.array("i", raw[: len(raw) - len(raw) % 4]))
        if flags_back & _CUT_OFF:
            self._fds.append(_LOST)
        if data:
            self._feed(data)
        else:
            self.ended = True
            self.on_end()
        self._wake_followers()
        return True

    def _feed(self, data: bytes) -> None:
        chunk: bytes | bytearray = data
        if self._partial:
            self._partial += data
            chunk = self._partial
        at, end = 0, len(chunk)
        on_frame = self.on_frame
        while end - at >= HEADER.size:
            kind, stored, handle_count, buffer_count, call_id, size = HEADER.unpack_from(chunk, at)
            start = at + HEADER.size
            if end - start < size:
                break
            at = start + size
            if not handle_count and not buffer_count:
                on_frame(Frame(kind, call_id, Packed(bytes(chunk[start:at]))))
            else:
                body = self._split(bytes(chunk[start:at]), handle_count, buffer_count)
                body.stored = stored
                on_frame(Frame(kind, call_id, body))
        self._partial = bytearray(chunk[at:]) if at < end else bytearray()

    def _split(self, body: bytes, handle_count: int, buffer_count: int) -> Packed:
        handles = [
            HANDLE_KINDS[kind](fd) if fd != _LOST else LostHandle(kind, str(no_descriptor_left()))
            for kind, fd in zip(body[:handle_count], self._take_fds(handle_count), strict=True)
        ]
        lengths = struct.unpack_from(f"<{buffer_count}Q", body, handle_count)
        at = len(body) - sum(lengths)
        payload = body[handle_count + 8 * buffer_count : at]
        buffers: list[bytearray] = []
        for length in lengths:  # each its own, writable and aligned
            buffers.append(bytearray(body[at : at + length]))
            at += length
        return Packed(payload, buffers, handles)

    def _take_fds(self, count: int) -> list[int]:
        """Return the descriptors of a frame that has so many, with `_LOST` in place of each lost one.

        The kernel hands on those of one send together, and says only that some behind those it could
        open are lost. A send has those of one frame alone, see `_write`.
        """
        taken: list[int] = []
        while len(taken) < count:
            fd = self._fds.popleft()
            if fd == _LOST:
                send_ends = len(taken) - len(taken) % _FDS_PER_SEND + _FDS_PER_SEND
                taken += [_LOST] * (min(count, send_ends) - len(taken))
            else:
                taken.append(fd)
        return taken

    def forget_received(self) -> None:
        """Drop what has come of a frame that is not whole."""
        self._partial = bytearray()
        _close_all(fd for fd in self._fds if fd != _LOST)
        self._fds.clear()

    def close(self) -> None:
        """Close this end now; frames not yet written or read are lost."""
        self.closed = True
        with self._send_lock:
            self._drop_backlog()
        self.sock.close()
        self.forget_received()

    def __del__(self) -> None:
        self.close()


def send_answer(conn: Connection, kind: int, body: Packed, call_id: int, where: str) -> None:
    """Send an answer, or why it can't be sent, with `where` it ran.

    Raises:
        OSError: the other end is gone.
    """
    try:
        conn.send(kind, call_id, body)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, TrainkitError) as error:  # no descriptor left for what goes with it
        conn.send(FAILURE, call_id, pack_failure(_unsent(error), where))


def _unsent(error: OSError | TrainkitError) -> TrainkitError:
    """Return the error for an answer that there is no descriptor for."""
    if isinstance(error, TrainkitError):
        return error
    return ObjectLostError(
        f"the result could not be sent: {error}. Each handle, reference and large object in it takes a file "
        "descriptor of the process that returns it: release some, or raise the limit (ulimit -n)."
    )


def _open_all(handles: Iterable[Handle]) -> list[int]:
    fds: list[int] = []
    try:
        with descriptors_explained:
            for handle in handles:
                fds.append(handle.open_fd())  # noqa: PERF401 - those opened before one that fails are closed
    except BaseException:
        _close_all(fds)
        raise
    return fds


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
