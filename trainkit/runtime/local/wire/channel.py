"""Connections that exchange frames over a Unix socket, with file descriptors as ancillary data.

    sender ──send()──▶ kernel's buffer ──▶ read_available() ──▶ on_frame(frame)
              └─ full? ─▶ backlog ──flush(), by the background thread──▶ kernel's buffer

A send never blocks, because data that the kernel doesn't accept waits in the backlog. Only one thread at a
time may read from a connection, under the reading lock. The reading thread processes every frame that has
arrived, including frames that other threads wait for. Descriptors are sent beside the bytes, and a frame's
header contains the number of its descriptors.

Small calls and answers are posted, which means that they may be collected and sent in a batch. A single
posted entry (call or answer) is sent at once. Entries that follow quickly (a burst) are collected until the
batch is full, until a thread waits for an answer, or until the next tick of the background thread.
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
from typing import Any, NamedTuple

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectLostError, TrainkitError
from trainkit.runtime.failures import pack_failure
from trainkit.runtime.serialize import Handle, LostHandle, Packed
from trainkit.runtime.signals import InterruptGuard

# The header of a frame contains the frame's kind, True if the body is in shared memory, the numbers of
# handles and of buffers, the call id, and the size of the body.
HEADER = struct.Struct("<B?HIQQ")

INIT = 1  # the frame is an actor's first, with its class and its constructor's arguments
CALL = 2  # the frame calls a method, or a task's function, with arguments
VALUE = 3  # the frame answers a call or a request
FAILURE = 4  # the frame answers a call that raised, or a failed request
CONNECT = 5  # the frame's only handle is a new connection to the receiving process
REQUEST = 6  # the frame is a request to the node, which answers with VALUE or FAILURE
NOTICE = 7  # the frame is a message to or from the node that gets no answer
CALLS = 8  # the frame contains several small calls
ANSWERS = 9  # the frame contains several small values, and the run time of their calls
RETURNED = 10  # the frame contains the ids of calls that the sender returns without running them, and why
ITEM = 11  # the frame contains one value of a streaming call, which ends with VALUE or FAILURE
CANCEL = 12  # the frame asks a promise's owner to stop the call, with the bytes `force` and `recursive`

BLOCKED = "blocked"  # reason for RETURNED: the running call waits for other calls
SLOW = "slow"  # reason for RETURNED: the running call takes long
UNKNOWN = "unknown"  # reason for RETURNED: the worker does not have the function, or has forgotten it


MOST = 256
"""Maximum number of small calls or answers in one frame, as a larger batch delays the receiver."""

_ALONE_S = 30e-6
"""Seconds since the last batch after which a posted entry is sent at once."""


class Frame(NamedTuple):
    """Message on a connection, with its kind, the id of its call, and its body."""

    kind: int
    call_id: int
    body: Packed


def encoded(kind: int, call_id: int, body: Packed) -> bytes:
    """Return a frame as bytes, without its descriptors."""
    if not body.handles and not body.buffers:
        return b"%b%b" % (HEADER.pack(kind, False, 0, 0, call_id, len(body.payload)), body.payload)
    lengths = struct.pack(f"<{len(body.buffers)}Q", *(len(buffer) for buffer in body.buffers))
    kinds = bytes(handle.kind for handle in body.handles)
    parts = [kinds, lengths, body.payload, *body.buffers]
    size = sum(len(part) for part in parts)
    return b"".join([HEADER.pack(kind, body.stored, len(kinds), len(body.buffers), call_id, size), *parts])


PROMISE = 3  # type code of handles that stand for pending references
ACTOR = 2  # type code of handles to actors that are never restarted
RECONNECTING_ACTOR = 9  # type code of handles to restartable actors
_FDS_PER_SEND = 250  # the kernel's limit SCM_MAX_FD is 253
_RECV_BYTES = 1 << 16
_WHOLE_BYTES = 1 << 14
"""Size in bytes up to which the kernel accepts a whole frame or nothing, as its buffer is much larger."""
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_CUT_OFF = int(socket.MSG_CTRUNC)  # a plain int is used, as enum operations are slow
_RECEIVE_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
SHORT_WAIT_S = 60e-6
"""Longest busy wait for an answer, in seconds. Sleeping and waking would take about as long."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(_FDS_PER_SEND * 4)
_LOST = -1
"""Placeholder for a received descriptor that this process could not open."""


class Descriptor:
    """Handle for a plain file descriptor.

    This object owns the descriptor until the descriptor is taken or sent.
    """

    kind = 0
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self) -> int:
        """Return the descriptor, which the caller then owns."""
        fd, self._fd = self._fd, -1
        return fd

    open_fd = take

    def copy(self) -> Descriptor:
        """Return a duplicate of the descriptor."""
        return Descriptor(os.dup(self._fd))

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


HANDLE_KINDS: dict[int, Callable[[int], Handle]] = {0: Descriptor}
"""Functions that make a handle from a descriptor, by the handle's kind. Other modules add entries."""


class _Socket(socket.socket):
    """Socket that closes without a warning when it is garbage-collected with its connection."""

    def __del__(self) -> None:
        self.close()


def no_descriptor_left() -> ObjectLostError:
    """Return the error that this process has no file descriptor left."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ObjectLostError(
        f"this process (pid {os.getpid()}) had no file descriptor left: its limit is {limit}. Each handle, "
        "unfinished result and large object takes one: release some, or raise the limit (ulimit -n)."
    )


def explain(error: OSError) -> None:
    """Raise a readable error if `error` means that no file descriptor is left. Otherwise return."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise no_descriptor_left() from error


class Explained:
    """Context manager that replaces an OSError of its block with a readable error.

    Args:
        explain: function that raises a readable error for a known OSError, and returns for any other error.
    """

    def __init__(self, explain: Callable[[OSError], None]) -> None:
        self._explain = explain

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._explain(error)


descriptors_explained = Explained(explain)
"""Context manager that raises a readable error if its block has no descriptor left to open."""


class Connection:
    """One end of a Unix stream socket. Subclasses process arriving frames, and may post entries in batches.

    Args:
        sock: a connected socket, which this connection owns from now on.

    Attributes:
        ticking: True while the background thread flushes posted entries every millisecond.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, sock.detach())
        self.reading = threading.Lock()
        self.closed = False
        self.ended = False
        """True if the process at the other end has finished sending. The process may still read."""
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.Lock())
        self._followers = 0
        self._send_lock = threading.RLock()
        self._backlog: deque[tuple[memoryview, list[int]]] = deque()
        self._half_closed = False
        self._is_quick = False
        self.ticking = False
        self._posted: list[Any] = []
        self._last_sent = 0.0
        self._close_when_sent = False
        self._partial = bytearray()
        self._fds: deque[int] = deque()

    def on_frame(self, frame: Frame) -> None:
        """Process an arrived frame. The reading thread calls this method."""

    def on_end(self) -> None:
        """Handle the end of the other process's sending. The reading thread calls this method once."""
        self.closed = True
        with self._send_lock:
            self._drop_backlog()
        self.on_close()

    def on_close(self) -> None:
        """Handle the end of the connection. This method is called once."""

    def on_backlog(self) -> None:
        """Arrange a call of `flush` for the time when the kernel's buffer, which is full, has room again."""
        raise BlockingIOError(errno.EAGAIN, "the connection is full, and no thread flushes it")

    def make_batch(self, entries: list[Any]) -> tuple[int, bytes]:
        """Return the kind and the body of the frame that carries posted `entries`."""
        raise NotImplementedError("a connection that posts entries defines make_batch()")

    def tick(self) -> None:
        """Arrange that the posted entries are sent soon."""

    def on_tick(self) -> bool:
        """Do periodic work in the background thread while `ticking` is True. Return True to continue."""
        return False

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, kind: int, call_id: int, body: Packed) -> None:
        """Send a frame, or queue it in the backlog if the kernel's buffer is full.

        Raises:
            BrokenPipeError, ConnectionResetError: the other end has closed.
            ObjectLostError, ObjectStoreFullError: no descriptor is left for a handle of the frame, and the
                frame was not sent.
        """
        if self._posted:
            with self._send_lock:
                self.flush_posted()
                self._transmit(kind, call_id, body)
        else:
            self._transmit(kind, call_id, body)

    def _transmit(self, kind: int, call_id: int, body: Packed) -> None:
        if not body.handles and body.size_bytes <= _WHOLE_BYTES:  # most calls take this fast path
            self._send_frame(encoded(kind, call_id, body), [])
            return
        # Without the guard, Ctrl-C could interrupt a half-sent frame before the rest of the frame is queued.
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
            # Ctrl-C is deferred, because a backlog without a call of `on_backlog` would never be flushed. The
            # handler of Ctrl-C runs after the lock is released.
            with InterruptGuard(acts=False) as guard:
                self._backlog.append(rest)
                self.on_backlog()
        guard.act()

    def post(self, entry: Any) -> None:
        """Send `entry` at once if it is not part of a burst, else soon in a batch.

        Raises:
            BrokenPipeError: the connection is closed.
        """
        with self._send_lock:
            self._require_open()
            self._posted.append(entry)
            count = len(self._posted)
            if count >= MOST or (count == 1 and SYSTEM.monotonic() - self._last_sent > _ALONE_S):
                self.flush_posted()
            elif not self.ticking:
                self.tick()

    def post_together(self, entries: list[Any]) -> None:
        """Send `entries`, at most `MOST`, in one frame now. Raise the same errors as `post`."""
        with self._send_lock:
            self._require_open()
            self._posted.extend(entries)
            self.flush_posted()

    def _require_open(self) -> None:
        if self.closed:
            raise BrokenPipeError(errno.EPIPE, "the connection is closed")

    def flush_posted(self) -> None:
        """Send the posted entries now."""
        with self._send_lock:
            if len(self._posted) > 1:
                # Without the guard, Ctrl-C could lose or repeat entries that other threads wait for.
                with InterruptGuard():
                    self._send_posted()
            elif self._posted:
                self._send_posted()

    def _send_posted(self) -> None:
        entries, self._posted = self._posted, []
        kind, data = self.make_batch(entries)
        self._transmit(kind, 0, Packed(data))
        self._last_sent = SYSTEM.monotonic()

    @property
    def has_posted(self) -> bool:
        """True if an entry waits to be sent in a batch."""
        return bool(self._posted)

    def flush_if_open(self) -> None:
        """Send the posted entries now, unless the connection is closed."""
        if self._posted and not self.closed:
            with contextlib.suppress(OSError):  # the process at the other end has ended
                self.flush_posted()

    def _write(self, data: memoryview, fds: list[int]) -> tuple[memoryview, list[int]] | None:
        """Write the part of `data` and `fds` that the kernel accepts. Return the rest, or None if all fit."""
        try:
            while fds:
                now, later = fds[:_FDS_PER_SEND], fds[_FDS_PER_SEND:]
                # While descriptors remain, each send carries one byte, so that the rest of the frame follows
                # the last descriptor.
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
        """Ask the other process to serve a new connection, and return one end of it; None on failure.

        This connection must have no other use, because a frame that the kernel does not accept at once is
        dropped.
        """
        ours, theirs = socket.socketpair()
        with theirs, self._send_lock, contextlib.suppress(OSError):
            self.send(CONNECT, 0, Packed(b"", (), [Descriptor(ours.detach())]))
            if not self._backlog:
                return theirs.detach()
            self._drop_backlog()
        return None

    def open_fd(self) -> int:
        """Return the descriptor of a new connection to the process at the other end, for a third process."""
        ours, theirs = socket.socketpair()
        # If the process at the other end is dead, the receiver finds the connection closed.
        with contextlib.suppress(OSError):
            self.send(CONNECT, 0, Packed(b"", (), [Descriptor(ours.detach())]))
        return theirs.detach()

    @property
    def has_backlog(self) -> bool:
        """True if data waits for room in the kernel's buffer."""
        return bool(self._backlog)

    def flush(self) -> None:
        """Write as much of the backlog as the kernel accepts now."""
        with self._send_lock:
            while self._backlog:
                data, fds = self._backlog.popleft()
                try:
                    rest = self._write(data, fds)
                except OSError:
                    self._drop_backlog()  # the other end has closed, which the reading thread notices
                    break
                if rest is not None:
                    self._backlog.appendleft(rest)
                    return
            if self._close_when_sent:
                self.close()
            elif self._half_closed:
                self._shutdown_write()

    def flush_blocking(self, timeout_s: float) -> None:
        """Write the whole backlog. Wait up to `timeout_s` each time the kernel's buffer is full."""
        poll = select.poll()
        with self._send_lock:
            if self._backlog:  # without a backlog, another thread may have closed this end
                poll.register(self.sock, select.POLLOUT)
        while self._backlog and poll.poll(timeout_s * 1000):
            self.flush()

    def finish_sending(self) -> None:
        """Shut down sending once the backlog is written. Answers to earlier calls still arrive."""
        self.flush_if_open()
        with self._send_lock:
            if not self._half_closed and not self.closed:
                self._half_closed = True
                if not self._backlog:
                    self._shutdown_write()

    def close_when_sent(self) -> None:
        """Close this end as soon as the backlog is written."""
        self.flush_if_open()
        with self._send_lock:
            if self._backlog:
                self._close_when_sent = True
            else:
                self.close()

    def _shutdown_write(self) -> None:
        if self._pid != os.getpid():
            return  # this is a forked child, and only the parent may shut the socket down
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.EBADF):
                raise

    def _drop_backlog(self) -> None:
        while self._backlog:
            _close_all(self._backlog.popleft()[1])

    def wait_until(self, done: Callable[[], bool], timeout_s: float | None, guard: InterruptGuard) -> None:
        """Read, or let another thread read, until `done()` is True, the time is over, or the connection ends.

        Ctrl-C also ends the wait.
        """
        now = SYSTEM.monotonic
        deadline = None if timeout_s is None else now() + timeout_s
        left = timeout_s
        while not done() and not guard.noted:
            if self.reading.acquire(blocking=False):
                try:
                    if self.closed:
                        return
                    if not done() and not self._receive_shortly():
                        begun = now()
                        if guard.poll([self.sock.fileno()], left):
                            self.read_available()
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

    def _receive_shortly(self) -> bool:
        """Poll for up to 60 us if the last answers arrived quickly, as sleeping would take longer."""
        if self._is_quick:
            now = SYSTEM.monotonic
            end = now() + SHORT_WAIT_S
            while now() < end:
                if self.read_available():
                    return True
                os.sched_yield()
            self._is_quick = False
        return False

    def release_reading(self) -> None:
        """Release the reading lock, and wake the threads that wait for frames."""
        self.reading.release()
        self._wake_followers()

    def _wake_followers(self) -> None:
        # A waiting thread counts itself before it checks the reading lock. So either this method sees the
        # waiting thread, or the waiting thread finds the lock free.
        if self._followers:
            with self._changed:
                self._changed.notify_all()

    def read_all(self) -> None:
        """Process all arrived frames. Several reads may be needed, because a read ends at each descriptor."""
        with self.reading:
            while self.read_available():
                pass

    def try_read(self) -> bool:
        """Process the arrived frames and return True. Return False if another thread is reading."""
        if not self.reading.acquire(blocking=False):
            return False
        try:
            self.read_available()
        finally:
            self.release_reading()
        return True

    def read_available(self) -> bool:
        """Process the frames that have arrived, without waiting. The caller must hold the lock `reading`.

        Return True if data or the end of the connection had arrived.
        """
        if self.closed or self.ended:
            return False
        try:
            data, ancillary, flags_back, _ = self.sock.recvmsg(_RECV_BYTES, _ANCILLARY_BYTES, _RECEIVE_FLAGS)
        except BlockingIOError:
            return False
        except OSError:  # the connection was reset, as the other end died with unread data
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
        for length in lengths:  # each buffer is a separate copy, which is writable and aligned
            buffers.append(bytearray(body[at : at + length]))
            at += length
        return Packed(payload, buffers, handles)

    def _take_fds(self, count: int) -> list[int]:
        """Return the `count` descriptors of a frame, with `_LOST` for each lost descriptor.

        The kernel delivers the descriptors of one send together. If the kernel can't open all descriptors of
        a send, it reports that the remaining descriptors are lost, but not how many. A send contains
        descriptors of only one frame, see `_write`.
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
        """Drop the received part of an incomplete frame."""
        self._partial = bytearray()
        _close_all(fd for fd in self._fds if fd != _LOST)
        self._fds.clear()

    def close(self) -> None:
        """Close this end now. Frames that are not yet written or read are lost."""
        self.closed = True
        with self._send_lock:
            self._drop_backlog()
        self.sock.close()
        self.forget_received()

    def __del__(self) -> None:
        self.close()


def send_answer(conn: Connection, kind: int, body: Packed, call_id: int, where: str) -> None:
    """Send an answer. If the answer can't be sent, send an error that says `where` the call ran.

    Raises:
        OSError: the other end has closed.
    """
    try:
        conn.send(kind, call_id, body)
    except (BrokenPipeError, ConnectionResetError):
        raise
    except (OSError, TrainkitError) as error:  # no descriptor or memory is left for the answer
        is_ours = isinstance(error, TrainkitError)
        failure = error if is_ours else ObjectLostError(f"the result could not be sent: {error}")
        conn.send(FAILURE, call_id, pack_failure(failure, where))


def _open_all(handles: Iterable[Handle]) -> list[int]:
    fds: list[int] = []
    try:
        with descriptors_explained:
            for handle in handles:
                fds.append(handle.open_fd())  # noqa: PERF401 - if one fails, the earlier ones are closed
    except BaseException:
        _close_all(fds)
        raise
    return fds


def _close_all(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)
