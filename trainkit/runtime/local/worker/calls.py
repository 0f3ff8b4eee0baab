"""Calls of a worker: unpacking an arriving call, running the call, and sending the answer."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import socket
import sys
import traceback
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from trainkit.clock import SYSTEM
from trainkit.errors import ObjectStoreFullError, TaskCancelledError, TaskError
from trainkit.runtime.calls.methods import method_of
from trainkit.runtime.calls.options import has_async_init
from trainkit.runtime.calls.results import require_iterator, split_results
from trainkit.runtime.failures import ActorExit, formatted, pack_failure
from trainkit.runtime.local.client.calls import COUNT_BYTES, CallCodec
from trainkit.runtime.local.client.node_client import NodeClient
from trainkit.runtime.local.client.refs import LocalRef
from trainkit.runtime.local.client.waiting import Waiter
from trainkit.runtime.local.memory.segments import opened
from trainkit.runtime.local.system import process
from trainkit.runtime.local.system.context import GivenName, calling
from trainkit.runtime.local.wire import channel
from trainkit.runtime.local.wire.messages import ShownAs, WorkerSpec
from trainkit.runtime.local.worker.bootstrap import TaskOutput
from trainkit.runtime.observability.call_recorder import CallRecorder
from trainkit.runtime.refs import DynamicObjectRefGenerator, ObjectRef
from trainkit.runtime.serialize import NUMBERS, PROTOCOL, SHORT, Packed, is_small, pack, unpack
from trainkit.runtime.specs import DYNAMIC, STREAMING


class ArrivedCall(NamedTuple):
    """Arrived call.

    A small call arrives in a batch and has no `body`. Any other call arrives in its own frame, with a `body`.

    Attributes:
        target: name of the method that a small call runs, or id of the definition of the function.
        arguments: packed arguments of a small call; see `serialize.lasting`.
        kind: kind of the frame in which the call arrived.
    """

    call_id: int
    target: str | int
    arguments: Any
    kind: int = channel.CALL
    body: Packed | None = None


class CallerConnection(channel.Connection):
    """Connection over which calls arrive.

    Attributes:
        spent_s: total run time, in seconds, of the calls whose answers wait to be sent over this connection.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.spent_s = 0.0

    def make_batch(self, entries: list[Any]) -> tuple[int, bytes]:
        ids, values, pickled = [], [], []
        for call_id, value, payload in entries:
            if payload is None:
                ids.append(call_id)
                values.append(value)
            else:
                pickled.append((call_id, payload))
        spent_s, self.spent_s = self.spent_s, 0.0
        return channel.ANSWERS, pickle.dumps((ids, values, pickled, spent_s), PROTOCOL)


def parts_of(call: ArrivedCall) -> Sequence[Any]:
    """Return the parts of a call: function definition, method name, number of results, args and kwargs, and,
    if the call has them, concurrency group and call name.
    """
    if call.body is None:
        arguments = call.arguments
        args, kwargs = (arguments, {}) if type(arguments) is tuple else pickle.loads(arguments)
        return None, call.target, 1, args, kwargs
    parts: Sequence[Any] = unpack(opened(call.body))
    return parts


def results_of(call: ArrivedCall) -> int:
    """Return the number of answers to a call that may be impossible to unpack; see `CallCodec.of_call`."""
    if call.body is None:
        return 1
    return max(1, int.from_bytes(call.body.payload[-COUNT_BYTES:], "little", signed=True))


Answers = Sequence[tuple[int, Packed]]


ENDS = (SystemExit, KeyboardInterrupt, ActorExit)
"""Exceptions of user code that end the process. Other exceptions of user code make only the call fail."""

_FUNCTIONS_KEPT = 256
_CANCELLED_KEPT = 10_000
_LONGEST_NAME = 200


class Cancelled(KeyboardInterrupt):
    """Exception that interrupts a running task when it is cancelled."""


# As the function `call` belongs to no file of the runtime, the SIGINT handler counts it as user code, and so
# may interrupt C code that it runs.
_THROUGH: dict[str, Any] = {}
exec(  # noqa: S102 - a constant text
    compile(
        "def through(function):\n"
        "    def call(*args, **kwargs):\n"
        "        return function(*args, **kwargs)\n"
        "    return call\n",
        "<call>",
        "exec",
    ),
    _THROUGH,
)


def interruptible(function: Any) -> Any:
    """Return `function` itself if it is a Python function or class, else a Python
    function that calls `function`.
    """
    if isinstance(function, (types.FunctionType, type)):
        return function
    call = _THROUGH["through"](function)
    call.__qualname__ = getattr(function, "__qualname__", type(function).__name__)
    return call


def end_fork(what: str, error: BaseException | None) -> NoReturn:
    """End this process, which user code in `what` has forked, with exit
    code 0 or the exit code for `error`.
    """
    if isinstance(error, SystemExit):
        code = process.exit_code(error)
    else:
        code = 0 if error is None else 1
        if error is not None:
            traceback.print_exception(error)
        sys.stderr.write(
            f"trainkit: pid {os.getpid()}, forked by {what}, has returned from it and ends with exit code "
            f"{code}, as only its parent answers the call. End such a process by os._exit()\n"
        )
    os._exit(process.flush_streams(code))


@dataclass(eq=False)
class Calls:
    """Runner of the calls of one worker. Each call runs in the thread that calls the runner's method.

    Args:
        spec: specification of the worker.
        codec: packer of results.
        waiter: object that waits for arguments.
        node: client of the node, which receives the name under which the actor's output is shown.
        parted: function that keeps a connection until its answers are written. The function is called after
            an answer to a caller that sends no more calls.

    Attributes:
        instance: the actor's object.
        made_of: class of the actor, already set while its constructor runs.
        beginning: unfinished coroutine of an `async def __init__`.
        begun_at: start time of the last call, by the monotonic clock.
        running: id of the call that a signal may interrupt, see `Interruption`; 0 if no call is running, or
            if the call's answer is about to be sent.
        interrupted: id of the last call that was interrupted.
        resolving: True while the running call waits for its arguments.
        cancelled: ids of cancelled calls, each with True if the calls started by the
            cancelled call are cancelled too.
        is_fork: True in a process that user code has forked, which must not answer calls.
        recorder: recorder of calls for the timeline; None to disable recording.
    """

    _spec: WorkerSpec
    _codec: CallCodec
    _waiter: Waiter
    _node: NodeClient
    _parted: Callable[[CallerConnection], None]
    _failed: Packed | None = None
    _functions: dict[int, Any] = field(default_factory=dict)
    _methods: dict[str, Callable[..., Any]] = field(default_factory=dict)
    instance: Any = None
    made_of: Any = None
    beginning: Coroutine[Any, Any, None] | None = None
    begun_at: float = 0.0
    running: int = 0
    interrupted: int = 0
    resolving: bool = False
    cancelled: dict[int, bool] = field(default_factory=dict)
    is_fork: bool = False
    recorder: CallRecorder | None = None

    def __post_init__(self) -> None:
        os.register_at_fork(after_in_child=lambda: setattr(self, "is_fork", True))

    def require_parent(self, what: str, error: BaseException | None = None) -> None:
        """End this process if user code in `what` forked it.

        `error` is the exception that the user code has raised; None if the code has returned.
        """
        if self.is_fork:
            end_fork(what, error)

    def require_failure(self, error: BaseException, method: str) -> None:
        """Raise the exception of a call again if the exception ends the process.

        Return if the exception only makes the call fail.
        """
        self.require_parent(method, error)
        if isinstance(error, ENDS) and not isinstance(error, Cancelled):
            raise error

    def run_small(self, conn: CallerConnection, call: ArrivedCall) -> None:
        """Run and answer a small call, faster than `run`."""
        call_id, target, arguments, _, _ = call
        method = str(target)
        try:
            if self.cancelled:
                self.require_wanted(call_id, method)
            start = 0.0
            if isinstance(target, str):
                function = self.bound(target)
                # The context variable is set to the call itself, because a new tuple would double the cost.
                calling.set(call)
            else:
                function = self._functions.get(target)
                if function is None:
                    self.running = 0
                    conn.send(channel.RETURNED, 0, Packed(pickle.dumps(([call_id], channel.UNKNOWN))))
                    return
                method = getattr(function, "__qualname__", type(function).__name__)
                TaskOutput.name_of_function = method
                start = self.begun_at = SYSTEM.monotonic()
                calling.set((call_id, method))
            if type(arguments) is tuple:
                result = function(*arguments)
            else:
                args, kwargs = pickle.loads(arguments)
                result = function(*args, **kwargs)
            if start:
                conn.spent_s += SYSTEM.monotonic() - start
            self.answer_value(conn, call_id, result, method)
        except ConstructorFailed as error:
            self.answer(conn, call_id, [(channel.FAILURE, error.failure)])
        except BaseException as error:
            self.require_failure(error, method)
            self.answer(conn, call_id, self.failed(error, channel.CALL, call_id, method, 1))

    def answer_value(self, conn: CallerConnection, call_id: int, result: Any, method: str) -> None:
        """Answer a call that returned one value."""
        if self.is_fork:
            end_fork(method, None)
        kind = type(result)
        entry: tuple[int, Any, bytes | None]
        if kind in NUMBERS or (kind is str and len(result) <= SHORT):
            entry = (call_id, result, None)
        elif is_small(result):
            entry = (call_id, None, pickle.dumps(result, PROTOCOL))
        else:
            self.answer(conn, call_id, list(self.packed(result, 1, method)))
            return
        self.running = 0
        TaskOutput.end_call()
        try:
            conn.post(entry)
        except OSError:
            return  # the caller has ended
        if conn.ended:
            self._parted(conn)

    def run(self, conn: CallerConnection, frame: ArrivedCall) -> None:
        """Unpack, run and answer the call in `frame`."""
        try:
            parts = parts_of(frame)
        except Exception as error:
            self.refuse(conn, frame, error)
            return
        self.carry_out(conn, frame.kind, frame.call_id, *parts)

    def carry_out(
        self,
        conn: CallerConnection,
        kind: int,
        call_id: int,
        definition: LocalRef | None,
        method: str,
        count: int,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        group: str | None = None,
        name: str | None = None,
    ) -> None:
        """Run and answer an unpacked call.

        The frame of this method marks where user code begins. So the method must call user code directly; see
        `_BOUNDARY`.
        """
        calling.set((call_id, method if name is None else GivenName(name)))
        if kind == channel.CALL and definition is not None:
            TaskOutput.name_of_function = method if name is None else name
        answers: list[tuple[int, Packed]] = []
        try:
            self.begun_at = SYSTEM.monotonic()
            if self.cancelled:
                self.require_wanted(call_id, method)
            function = self._target(kind, definition, method)
            if kind == channel.INIT:
                self.made_of = function
            if kwargs:
                kwargs = {name: self.resolved(value) for name, value in kwargs.items()}
            args = [self.resolved(value) for value in args]
            if kind == channel.INIT and has_async_init(function):
                self.instance = function.__new__(function, *args, **kwargs)
                self.beginning = self.instance.__init__(*args, **kwargs)
                return
            result = function(*args, **kwargs)
            self.require_parent(method)
            if kind == channel.INIT:
                self.instance = result
                self.show_as(result)
                TaskOutput.end_call()
                return
            if count == STREAMING:
                self.stream(conn, call_id, result, method)
                result, count = None, 1
            elif count != 1 and isinstance(result, AsyncIterator):
                result = _synchronous(result)
            answers.extend(self.packed(result, count, method))
        except ConstructorFailed as error:
            answers = [(channel.FAILURE, error.failure)] * max(1, count)
        except BaseException as error:
            self.require_failure(error, method)
            answers.extend(self.failed(error, kind, call_id, method, count)[len(answers) :])
            if kind == channel.INIT:
                return
        self.answer(conn, call_id, answers)

    def show_as(self, instance: Any) -> None:
        """Show the actor's output under the actor's `repr`, if its class defines `__repr__`
        and the actor has no label.
        """
        spec = self._spec
        named = (spec.class_name, spec.registration.name if spec.registration else "")
        own: object = type(instance).__repr__
        if own is object.__repr__ or spec.name not in named:
            return
        try:
            text = repr(instance)
        except Exception:  # if the user's `__repr__` raises an error, the actor keeps its default name
            traceback.print_exc()
            return
        self._node.tell(ShownAs(text.partition("\n")[0][:_LONGEST_NAME]))

    def stream(self, conn: CallerConnection, call_id: int, result: Any, method: str) -> None:
        """Send each value of the generator `result` when the generator yields it."""
        items = _synchronous(result) if isinstance(result, AsyncIterator) else result
        require_iterator(items, method)
        try:
            for item in items:
                self.send_item(conn, call_id, item, method)
                if self.cancelled:
                    self.require_wanted(call_id, method)
        finally:
            close = getattr(items, "close", None)
            if close is not None:  # closing the generator runs its `finally` blocks at once
                close()

    def forget_cancelled(self, call_id: int) -> bool:
        """Drop the cancellation of an ended call; return True if its child calls must be cancelled too."""
        return self.cancelled.pop(call_id, False)

    def require_wanted(self, call_id: int, method: str) -> None:
        """Raise TaskCancelledError if a call was cancelled."""
        if self.cancelled.pop(call_id, None) is not None:
            raise TaskCancelledError(f"{self.where(channel.CALL, method)} was cancelled")

    def cancel(self, call_id: int, recursive: bool) -> None:
        """Mark a call as cancelled.

        The call does not begin, or stops when it next checks for a cancellation.
        """
        self.cancelled[call_id] = recursive
        if len(self.cancelled) > _CANCELLED_KEPT:
            # A cancellation that arrives after its call has ended is not removed from `cancelled`.
            for stale in list(self.cancelled)[: -_CANCELLED_KEPT // 2]:
                self.cancelled.pop(stale, None)

    def packed(self, result: Any, count: int, method: str) -> Iterator[tuple[int, Packed]]:
        """Yield the answers of a call that returned `result`.

        If `result` is a generator that raises an exception, the exception follows the last answer.
        """
        if count == DYNAMIC:
            require_iterator(result, method, "dynamic")
            result = DynamicObjectRefGenerator.of(
                result, self._codec.put, functools.partial(self._failed_item, method)
            )
            count = 1
        for item in split_results(result, count, method):
            self.require_parent(method)
            yield channel.VALUE, self._codec.store(pack(item, f"the result of {method}"))

    def _failed_item(self, method: str, error: Exception) -> LocalRef:
        return self._codec.put_packed(channel.FAILURE, pack_failure(error, self.where(channel.CALL, method)))

    def failed(self, error: BaseException, kind: int, call_id: int, method: str, count: int) -> Answers:
        """Return the answers of a call that raised `error`.

        The failure of a constructor is kept for all later calls.
        """
        self.running = 0
        if self.interrupted == call_id != 0 and not isinstance(error, TaskCancelledError):
            cause, error = error, TaskCancelledError(f"{self.where(kind, method)} was cancelled while it ran")
            error.__cause__ = cause
        failure = pack_failure(error, self.where(kind, method), of_constructor=kind == channel.INIT)
        # If the object store is full, the failure is sent in the answer itself.
        with contextlib.suppress(ObjectStoreFullError):
            failure = self._codec.store(failure)
        if kind == channel.INIT:
            self._failed = failure
            # the error is printed, as perhaps no later call is made that would report it
            if not isinstance(error, TaskError):
                sys.stderr.write(f"{formatted(error)}\n")
        return [(channel.FAILURE, failure)] * max(1, count)

    def refuse(self, conn: CallerConnection, frame: ArrivedCall, error: Exception) -> None:
        """Send `error` as the answer to a call that can't be run, for example as it can't be unpacked."""
        answers = self.failed(error, frame.kind, frame.call_id, self._spec.name, results_of(frame))
        if frame.kind != channel.INIT:
            self.answer(conn, frame.call_id, answers)

    def send_item(self, conn: CallerConnection, call_id: int, item: Any, method: str) -> None:
        """Send one value of a streaming call. Raise an OSError if the caller's process has ended."""
        self.require_parent(method)
        conn.send(channel.ITEM, call_id, self._codec.store(pack(item, f"a value that {method} yielded")))
        if conn.ended:
            self._parted(conn)

    def answer(self, conn: CallerConnection, call_id: int, answers: Answers) -> None:
        """Send the answers of a call."""
        self.running = 0
        TaskOutput.end_call()
        for index, (kind, body) in enumerate(answers):
            try:
                channel.send_answer(conn, kind, body, call_id + index, self._spec.name)
            except OSError:
                return  # the caller has ended
        if conn.ended:
            self._parted(conn)

    def shown(self, method: str, name: str | None = None) -> str:
        """Return a call's name in the timeline: the user's name for the call, else the default name."""
        if name is not None:
            return name
        return f"{self._spec.class_name}.{method}" if self._spec.is_actor else method

    @property
    def actor_id(self) -> str | None:
        """Hexadecimal id of this process's actor; None if the process runs tasks."""
        return f"{self._spec.worker_id:016x}" if self._spec.is_actor else None

    def where(self, kind: int, method: str) -> str:
        """Return the name of a function or method with this process's pid, for error messages."""
        name = f"{self._spec.name}.{method}" if self._spec.is_actor and kind == channel.CALL else method
        return f"{name} (pid {os.getpid()})"

    def bound(self, method: str) -> Any:
        """Return a method of the actor. Raise ConstructorFailed if the constructor failed."""
        if self._failed is not None:
            raise ConstructorFailed(self._failed)
        found = self._methods.get(method)
        if found is None:
            found = self._methods[method] = method_of(self.instance, method)
        return found

    def _target(self, kind: int, definition: LocalRef | None, method: str) -> Any:
        if definition is None:
            return self.bound(method)
        function = self._functions.pop(definition.id, None)
        if function is None:
            function = interruptible(self._waiter.get([definition], None)[0])
        # The function moves to the end of the cache, because the entry at the front is dropped first.
        self._functions[definition.id] = function
        if len(self._functions) > _FUNCTIONS_KEPT:
            del self._functions[next(iter(self._functions))]
        return function

    def resolved(self, value: Any) -> Any:
        """Return `value`, or the value that it refers to if `value` is a reference."""
        if not isinstance(value, ObjectRef):
            return value
        self.resolving = True
        try:
            return self._waiter.get([value], None)[0]
        finally:
            self.resolving = False

    def forget(self) -> None:
        """Release the user's objects."""
        self.instance = None
        self._methods.clear()
        self._functions.clear()


@dataclass(eq=False, kw_only=True)
class RecordedCalls(Calls):
    """Runner that also records each call, from its beginning to its answer, for the timeline.

    Args:
        recorder: call recorder of this process.
    """

    recorder: CallRecorder

    def run_small(self, conn: CallerConnection, call: ArrivedCall) -> None:
        method: Any = call.target
        if not isinstance(method, str):
            function = self._functions.get(method)
            if function is None:  # the call is returned to its caller, which sends it again with the function
                super().run_small(conn, call)
                return
            method = getattr(function, "__qualname__", type(function).__name__)
        with self.recorder.recorded(self.shown(method), f"{call.call_id:016x}", self.actor_id):
            super().run_small(conn, call)

    def carry_out(
        self, conn: CallerConnection, kind: int, call_id: int, definition: Any, method: str, *more: Any
    ) -> None:
        is_call = kind == channel.CALL
        name = more[4] if len(more) == 5 else None  # the name of the call is the fifth optional argument
        shown, begun = self.shown(method if is_call else "__init__", name), SYSTEM.monotonic()
        try:
            super().carry_out(conn, kind, call_id, definition, method, *more)
        finally:
            if is_call or self.beginning is None:
                # An unfinished `async def __init__` is recorded when it ends.
                self.recorder.add(shown, begun, f"{call_id:016x}" if is_call else None, self.actor_id)


class ConstructorFailed(Exception):
    """Exception for calls of an actor whose constructor failed."""

    def __init__(self, failure: Packed) -> None:
        self.failure = failure


def _synchronous(items: AsyncIterator[Any]) -> Iterator[Any]:
    """Yield the items of an asynchronous iterator, in a process without a running event loop."""
    import asyncio  # imported only where needed, as the import takes a tenth of a second

    loop = asyncio.new_event_loop()
    try:
        while True:
            try:
                item = loop.run_until_complete(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            loop.run_until_complete(close())
        loop.close()
