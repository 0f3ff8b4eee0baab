"""Template process, which imports packages that workers need, and forks the workers.

A template does not run tensor operations, use GPUs or import user modules, so that it has only one thread. A
fork copies only the calling thread, so a lock held by a different thread would stay locked in the child.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import select
import socket
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import NoReturn

from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.child_watch import ChildWatch
from trainkit.runtime.local.wire import messages
from trainkit.runtime.local.wire.channel import NOTICE, Connection, Descriptor, Frame, encoded
from trainkit.runtime.local.worker.bootstrap import Inherited, prepare
from trainkit.runtime.local.worker.main import run_worker
from trainkit.runtime.serialize import LostHandle
from trainkit.runtime.session import PRELOADS

_FLUSH_S = 60.0
_NAME = "trainkit-tmpl"

_IDLE_MS = 500
"""Idle time after which a template moves its memory to huge pages, which takes most of a second."""


def run_template(sock: socket.socket, lifeline: int, preload: frozenset[str]) -> NoReturn:
    """Import `preload`, then fork processes at the node's request until the connection closes.

    Args:
        sock: socket to the node.
        lifeline: reading end of a pipe that only the node can write to, so that the
            workers end with the node.
        preload: packages to import.
    """
    process.set_name(_NAME)
    prepare()
    template = _Template(sock, lifeline)
    # Garbage collection is off during imports, because it would visit all modules repeatedly, and take a
    # third of torch's import time.
    gc.disable()
    try:
        for package in sorted(preload, key=lambda name: (name not in PRELOADS, name)):
            for module in PRELOADS.get(package, (package,)):
                importlib.import_module(module)
    except Exception:
        template.tell(
            messages.Unusable(f"importing {', '.join(sorted(preload))} failed:\n{traceback.format_exc()}")
        )
        os._exit(1)
    if process.thread_count() != 1:
        template.tell(
            messages.Unusable(f"importing {', '.join(sorted(preload))} started a thread, so forks are unsafe")
        )
        os._exit(1)
    # A child must not run the finalizers of the template's objects when it ends. The finalizers of torch's
    # operators alone would copy thousands of memory pages.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    # A child's garbage collector skips frozen objects, as visiting them would copy their memory pages.
    gc.freeze()
    gc.enable()
    template.tell(messages.Ready())
    # Without torch, moving memory to huge pages takes as long as it saves in dozens of forks.
    template.serve(process.use_huge_pages if "torch" in sys.modules else None)
    os._exit(0)


class _NodeConnection(Connection):
    def __init__(self, sock: socket.socket, template: _Template) -> None:
        super().__init__(sock)
        self._template = template

    def on_frame(self, frame: Frame) -> None:
        self._template.handle(frame)

    def on_backlog(self) -> None:
        self.flush_blocking(_FLUSH_S)

    def announce(self, message: object) -> None:
        """Send a short message from a forked child of the template."""
        data = memoryview(encoded(NOTICE, 0, messages.packed(message)))
        while data:
            select.select([], [self.sock], [])
            with contextlib.suppress(BlockingIOError):
                data = data[self.sock.send(data) :]


class _Template:
    def __init__(self, sock: socket.socket, lifeline: int) -> None:
        self._conn = _NodeConnection(sock, self)
        self._lifeline = lifeline
        self._serials: dict[int, int] = {}
        self._inherited: Inherited | None = None

    def tell(self, message: object) -> None:
        self._conn.send(NOTICE, 0, messages.packed(message))

    def serve(self, when_idle: Callable[[], None] | None) -> None:
        """Handle requests of the node until the connection closes.

        Args:
            when_idle: function called once, when the node has not sent a request for 0.5 s;
                None to call no function.
        """
        self._children = ChildWatch()
        poll = select.poll()
        poll.register(self._conn, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        while not self._conn.closed:
            events = poll.poll(_IDLE_MS if when_idle is not None else None)
            if not events and when_idle is not None:
                when_idle()
                when_idle = None
            for fd, _ in events:
                if fd == self._conn.fileno():
                    with self._conn.reading:
                        self._conn.read_available()
                else:
                    for pid, status in self._children.ended():
                        self.tell(messages.Exited(pid, status, self._serials.pop(pid, 0)))

    def handle(self, frame: Frame) -> None:
        fds = [handle.take() for handle in frame.body.handles if isinstance(handle, Descriptor)]
        lost = next((handle for handle in frame.body.handles if isinstance(handle, LostHandle)), None)
        match messages.unpacked(frame.body):
            case messages.ForkWorker(spec) if lost is not None:
                self.tell(messages.ForkFailed(spec.serial, lost.why))
            case _ if lost is not None:
                # A request is ignored if its descriptor was lost: the new template's socket or the log file.
                pass
            case messages.ForkWorker(spec):
                inherited = self._inherited_by(spec)
                self._fork(spec.serial, f"tk-{spec.name}", lambda: run_worker(spec, inherited, fds))
            case messages.Redirect():
                process.take_output(fds[0])
            case messages.ForkTemplate(preload):
                sock = functools.partial(socket.socket, fileno=fds[0])
                self._fork(0, _NAME, lambda: run_template(sock(), self._lifeline, preload))
            case message:
                raise TypeError(f"a template cannot handle {message!r}")
        for fd in fds:
            os.close(fd)

    def _inherited_by(self, spec: messages.WorkerSpec) -> Inherited:
        text = spec.environment.inherited
        if self._inherited is None or self._inherited.text != text:
            self._inherited = Inherited(text)
        return self._inherited

    def _fork(self, serial: int, name: str, child: Callable[[], None]) -> None:
        if process.thread_count() != 1:
            self.tell(
                messages.ForkFailed(serial, "its template has more than one thread, so it can't be forked")
            )
            return
        parent = os.getpid()
        sys.stdout.flush()  # the child would print unflushed output again
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(messages.ForkFailed(serial, f"fork failed: {error}", refused=True))
            return
        if pid:
            self._serials[pid] = serial
            return
        try:
            process.set_name(name)
            if serial:
                process.die_with_writer(self._lifeline)
                # The child, not the template, sends the message `Forked`. If the template had to send the
                # message and died before sending it, the node would request the same worker from a different
                # template.
                self._conn.announce(messages.Forked(serial, os.getpid()))
            else:
                process.die_with_parent(parent)
            self._children.leave()
            self._conn.close()
            child()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)
