"""Template process: has imported what workers need, and forks them.

A template runs no tensor operation, touches no GPU and imports no user module, so that it has one
thread: a fork copies only the thread that calls it, and a lock that another held would stay locked.
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
from trainkit.runtime.local.wire import messages
from trainkit.runtime.local.wire.channel import NOTICE, Connection, Descriptor, Frame, encoded
from trainkit.runtime.local.worker.bootstrap import Inherited, prepare
from trainkit.runtime.local.worker.main import run_worker
from trainkit.runtime.serialize import LostHandle
from trainkit.runtime.session import PRELOADS

_FLUSH_S = 60.0
_NAME = "trainkit-tmpl"

_IDLE_MS = 500
"""After so long without a request there is time for what takes most of a second."""


def run_template(sock: socket.socket, lifeline: int, preload: frozenset[str]) -> NoReturn:
    """Import `preload`, then fork what the node at `sock` asks for until it closes.

    Args:
        sock: to the node.
        lifeline: reading end of a pipe whose writer is the node: the workers end with it.
        preload: packages.
    """
    process.set_name(_NAME)
    prepare()
    template = _Template(sock, lifeline)
    # It would look through all modules again and again, for a third of the time that torch takes to import.
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
            messages.Unusable(
                f"importing {', '.join(sorted(preload))} started a thread, which no fork survives"
            )
        )
        os._exit(1)
    # Finalizers of what lives now are not a child's to run as it ends: those of torch's operators alone would
    # have it copy thousands of pages.
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False
    # Nothing that lives now is looked at by a child's collector, which would unshare its pages.
    gc.freeze()
    gc.enable()
    template.tell(messages.Ready())
    # With less than torch to copy it would take as long as dozens of forks win.
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
        """Send a short message from a process that this one has forked."""
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
        """Do what the node asks for until it closes.

        Args:
            when_idle: called once, as soon as the node has asked for nothing for a moment.
        """
        self._children = process.ChildWatch()
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
                pass  # a template that is not made, or a log that is not written to
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
                messages.ForkFailed(serial, "its template has more than one thread, which no fork survives")
            )
            return
        parent = os.getpid()
        sys.stdout.flush()  # what an import has printed is none of the child's
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
                # By itself, so that the node never finds its template gone first, and asks another.
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
