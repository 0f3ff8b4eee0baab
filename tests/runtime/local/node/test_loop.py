"""The event loop of the node: readers, timers, connections and their ends."""

from __future__ import annotations

import socket

from trainkit.runtime.local.node.loop import Loop, try_send
from trainkit.runtime.local.wire.channel import NOTICE, Connection, Frame
from trainkit.runtime.serialize import Packed


def test_what_waits_for_its_time_is_not_set_twice() -> None:
    loop, ran = Loop(), list[str]()

    def again() -> None:
        ran.append("again")
        if len(ran) < 3:
            assert loop.after(0.0, again), "it waits no more"

    assert loop.after(0.01, again)
    assert not loop.after(0.0, again)
    assert loop.after(0.05, loop.stop)
    loop.run(lambda: None)
    assert ran == ["again"] * 3


def test_what_the_kernel_does_not_take_is_sent_later() -> None:
    loop, size = Loop(), 4 << 20
    ours, theirs = socket.socketpair()
    conn = loop.connection(ours, lambda _: None, lambda: None)
    received = []

    def on_frame(frame: Frame) -> None:
        received.append(len(frame.body.payload))
        loop.stop()

    loop.connection(theirs, on_frame, lambda: None)
    conn.send(NOTICE, 0, Packed(bytes(size)))
    assert conn.has_backlog
    loop.run(lambda: None)
    assert received == [size]
    assert not conn.has_backlog


def test_a_connection_that_was_ended_is_read_no_more() -> None:
    loop, seen = Loop(), []
    ours, theirs = socket.socketpair()
    conn = loop.connection(ours, lambda _: seen.append("frame"), lambda: seen.append("closed"))
    loop.end(conn)
    try_send(Connection(theirs), NOTICE, 0, Packed(b""))
    loop.after(0.01, loop.stop)
    loop.run(lambda: None)
    assert seen == []
