"""Graphs of calls, built with `bind` and executed for each input.

    with InputNode() as inp:
        graph = second.work.bind(first.work.bind(inp))
    trainkit.get(graph.execute(1))

A node is a call whose arguments may be other nodes. `execute` makes each call once, in the order in which the
calls were bound. `execute` does not wait for results: each call receives references to the results that it
needs.
"""

from __future__ import annotations

import importlib
import itertools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

from trainkit.errors import ArgumentTypeError, ConfigError, MissingDependencyError
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine

_serials = itertools.count()


class GraphInput(NamedTuple):
    """Arguments of `execute`.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def single(self) -> bool:
        """True if `execute` received exactly one argument, by position."""
        return len(self.args) == 1 and not self.kwargs


class DAGNode(ABC):
    """Node of a graph. A node also represents a whole graph: itself and all nodes that it needs.

    Args:
        args: positional arguments of the call. Each argument that is a node is replaced by the node's result,
            also inside lists, tuples and dictionaries.
        kwargs: keyword arguments of the call; nodes are replaced as in `args`.
    """

    def __init__(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> None:
        # Nodes are created after the nodes in their arguments, so these numbers give a valid order of calls.
        self._serial = next(_serials)
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Make the calls of the graph; return this node's reference or references without waiting.

        Args:
            *args: positional inputs of the graph.
            **kwargs: keyword inputs of the graph.

        Raises:
            ConfigError: the graph needs an input that was not passed.
        """
        return _executed(_ordered(self), GraphInput(args, kwargs))[self]

    def experimental_compile(self, *, enable_asyncio: bool = False, **buffers: Any) -> CompiledDAG:
        """Return the graph prepared for many executions.

        Args:
            enable_asyncio: True: calls of `execute_async`, from an event loop, execute the graph. False:
                calls of `execute` execute the graph.
            **buffers: Ray's settings of the buffers for results, such as `_buffer_size_bytes`. These settings
                have no effect, because trainkit limits neither the number nor the size of results.

        Raises:
            ConfigError: the graph has no InputNode, or each execution would create an actor.
        """
        unknown = sorted(set(buffers) - _BUFFERS)
        if unknown:
            raise TypeError(f"experimental_compile() got an unexpected keyword argument {unknown[0]!r}")
        return CompiledDAG(self, enable_asyncio=enable_asyncio)

    def __str__(self) -> str:
        return type(self).__name__

    def _needs(self) -> Iterator[DAGNode]:
        return _nodes_in((self._args, self._kwargs))

    @abstractmethod
    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        """Return the result of this node; `done` contains the results of the nodes that this node needs."""


_BUFFERS = frozenset(
    {
        "_buffer_size_bytes",
        "_default_communicator",
        "_max_buffered_results",
        "_max_inflight_executions",
        "_overlap_gpu_communication",
        "_submit_timeout",
    }
)


class InputNode(DAGNode):
    """Input of a graph: the argument of `execute`. Use `node["key"]` or `node.name` to select a part.

    If `execute` receives several arguments, `node[0]` is the first positional argument, `node["name"]` or
    `node.name` is a keyword argument, and the node itself is a `GraphInput` of all arguments.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __getitem__(self, key: Any) -> InputAttributeNode:
        return InputAttributeNode(self, key, is_attribute=False)

    def __getattr__(self, name: str) -> InputAttributeNode:
        if name.startswith("_"):
            raise AttributeError(name)
        return InputAttributeNode(self, name, is_attribute=True)

    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        return given.args[0] if given.single else given


class InputAttributeNode(DAGNode):
    """Part of a graph's input: an item or attribute of the only argument, or one of several arguments."""

    def __init__(self, whole: InputNode, key: Any, *, is_attribute: bool) -> None:
        super().__init__((whole,))
        self._key = key
        self._is_attribute = is_attribute

    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        if given.single:
            value = given.args[0]
            return getattr(value, self._key) if self._is_attribute else value[self._key]
        parts: Any = given.args if isinstance(self._key, int) else given.kwargs
        try:
            return parts[self._key]
        except LookupError:
            raise ConfigError(
                f"the graph needs the input {self._key!r}, but execute() was given {len(given.args)} "
                f"positional values and {sorted(given.kwargs)} by name: pass {self._key!r} too"
            ) from None


class _CallNode(DAGNode):
    """Call of a remote function or class.

    Args:
        called: a `RemoteFunction` or an `ActorClass`.
        args: see `DAGNode`.
        kwargs: see `DAGNode`.
    """

    def __init__(self, called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(args, kwargs)
        self._called = called

    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        return self._called.remote(*_replaced(self._args, done), **_replaced(self._kwargs, done))


class FunctionNode(_CallNode):
    """Node that calls a `RemoteFunction`."""


class ClassNode(_CallNode):
    """Node that creates an actor in each execution; `node.method.bind(...)` adds a call of a method.

    The actor ends when all its calls in the execution have ended. If the graph needs the result of a method
    of the actor, methods of the actor that were bound earlier are called too.

    Args:
        called: an `ActorClass`.
        args: see `DAGNode`.
        kwargs: see `DAGNode`.
    """

    def __init__(self, called: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__(called, args, kwargs)
        self._last: DAGNode = self

    def __getattr__(self, name: str) -> _UnboundMethod:
        if name.startswith("__"):
            raise AttributeError(name)
        return _UnboundMethod(self, name)


class _UnboundMethod:
    """Method of an actor that an execution of the graph will create."""

    def __init__(self, owner: ClassNode, name: str) -> None:
        self._owner = owner
        self._name = name
        self._options: dict[str, Any] = {}

    def options(self, **changes: Any) -> _UnboundMethod:
        """Return the method with other options; see `ActorMethod.options`."""
        other = _UnboundMethod(self._owner, self._name)
        other._options = {**self._options, **changes}
        return other

    def bind(self, *args: Any, **kwargs: Any) -> ClassMethodNode:
        """Return a node that calls this method of the actor."""
        owner = self._owner

        def found(done: Mapping[DAGNode, Any]) -> Any:
            method = getattr(done[owner], self._name)
            return method.options(**self._options) if self._options else method

        node = ClassMethodNode(found, args, kwargs, label=self._name, behind=(owner, owner._last))
        owner._last = node
        return node


class ClassMethodNode(DAGNode):
    """Node that calls a method of an actor.

    Args:
        method: function that receives the results of the needed nodes, and returns the `ActorMethod` to call.
        args: see `DAGNode`.
        kwargs: see `DAGNode`.
        label: name of the method, shown in pictures of the graph.
        actor: actor of the method, if the actor exists before the execution.
        behind: further nodes that must be executed before this node.
    """

    def __init__(
        self,
        method: Callable[[Mapping[DAGNode, Any]], Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        label: str,
        actor: Any = None,
        behind: Sequence[DAGNode] = (),
    ) -> None:
        super().__init__(args, kwargs)
        self._method = method
        self._behind = behind
        self.actor = actor
        self._label = label

    def __str__(self) -> str:
        return self._label

    def _needs(self) -> Iterator[DAGNode]:
        yield from self._behind
        yield from super()._needs()

    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        method = self._method(done)
        return method.remote(*_replaced(self._args, done), **_replaced(self._kwargs, done))


class MultiOutputNode(DAGNode):
    """Graph with several results. The result of an execution is the list of its nodes' results.

    Args:
        args: nodes whose results are returned.
    """

    def __init__(self, args: Sequence[DAGNode]) -> None:
        if not args or not all(isinstance(node, DAGNode) for node in args):
            raise ArgumentTypeError(f"MultiOutputNode({args!r}): pass a list of nodes that bind() returned")
        super().__init__(args)

    def _made(self, given: GraphInput, done: Mapping[DAGNode, Any]) -> Any:
        return [done[node] for node in self._args]


class CompiledDAG:
    """Graph of method calls of actors, whose order is computed once for many executions.

    Each execution sends all its calls immediately, even while earlier executions are running. An actor runs
    calls in the order in which they were sent, so it works on one execution after another. Different actors
    can work on different executions at the same time.

    Args:
        root: node whose result is the result of the graph.
        enable_asyncio: see `DAGNode.experimental_compile`.

    Raises:
        ConfigError: the graph has no InputNode, or each execution would create an actor.
    """

    def __init__(self, root: DAGNode, *, enable_asyncio: bool = False) -> None:
        self._root = root
        self._order = _ordered(root)
        self._is_async = enable_asyncio
        self._calling = threading.Lock()
        self._last: list[ObjectRef[Any]] = []
        self._is_open = True
        if any(isinstance(node, ClassNode) for node in self._order):
            raise ConfigError(
                "a graph that creates actors can't be compiled, because each execution would create "
                "new ones: create them by .remote(), and bind the methods of their handles"
            )
        if not any(isinstance(node, InputNode) for node in self._order):
            raise ConfigError("a compiled graph needs an InputNode: bind an InputNode to its first calls")

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Make the calls; return the reference or references of the graph's result without waiting.

        Raises:
            ConfigError: the graph was torn down, or compiled with `enable_asyncio=True`.
        """
        if self._is_async:
            raise ConfigError("the graph was compiled with enable_asyncio=True: await graph.execute_async()")
        return self._executed(args, kwargs)

    async def execute_async(self, *args: Any, **kwargs: Any) -> Any:
        """Make the calls; return an awaitable for each result of the graph, in a list if there are several.

        Raises:
            ConfigError: the graph was torn down, or compiled without `enable_asyncio=True`.
        """
        if not self._is_async:
            raise ConfigError("execute_async() needs experimental_compile(enable_asyncio=True)")
        return self._executed(args, kwargs)

    def _executed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        # The lock ensures that all actors receive the calls of the executions in the same order.
        with self._calling:
            if not self._is_open:
                raise ConfigError("the graph was torn down: compile it again")
            result = _executed(self._order, GraphInput(args, kwargs))[self._root]
            self._last = [ref for ref in _flat(result) if isinstance(ref, ObjectRef)]
            return result

    def teardown(self, kill_actors: bool = False) -> None:
        """Wait for the last execution, and refuse further executions. The actors keep running.

        Args:
            kill_actors: True: also kill the actors.
        """
        with self._calling:
            self._is_open = False
            last, self._last = self._last, []
        if last:
            engine().wait(last, len(last), None)
        if kill_actors:
            for actor in {node.actor for node in self._order if isinstance(node, ClassMethodNode)}:
                engine().kill(actor, no_restart=True)

    def visualize(self, filename: str = "compiled_graph", format: str = "png", view: bool = False) -> str:
        """Draw the graph into the file `filename`.`format`; return its source in Graphviz's language.

        Args:
            filename: name of the file without its extension.
            format: file format that Graphviz can write, such as "png" or "svg".
            view: True: also show the picture.

        Raises:
            MissingDependencyError: the package graphviz is not installed.
        """
        try:
            graphviz: Any = importlib.import_module("graphviz")
        except ImportError as error:
            raise MissingDependencyError("visualize() needs graphviz: pip install graphviz") from error
        drawn = graphviz.Digraph(name="compiled_graph", format=format)
        for node in self._order:
            drawn.node(str(node._serial), str(node))
            for needed in dict.fromkeys(node._needs()):
                drawn.edge(str(needed._serial), str(node._serial))
        drawn.render(filename, view=view)
        source: str = drawn.source
        return source


def _ordered(root: DAGNode) -> list[DAGNode]:
    """Return `root` and the nodes that it needs: inputs first, then the other nodes in the order of
    binding.
    """
    found = {root}
    left = [root]
    while left:
        for node in left.pop()._needs():
            if node not in found:
                found.add(node)
                left.append(node)

    # Inputs come first, so that a missing input is reported before any call is made.
    def rank(node: DAGNode) -> tuple[bool, int]:
        return not isinstance(node, (InputNode, InputAttributeNode)), node._serial

    return sorted(found, key=rank)


def _executed(order: Iterable[DAGNode], given: GraphInput) -> dict[DAGNode, Any]:
    done: dict[DAGNode, Any] = {}
    for node in order:
        done[node] = node._made(given, done)
    return done


def _nodes_in(value: Any) -> Iterator[DAGNode]:
    if isinstance(value, DAGNode):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            yield from _nodes_in(item)
    elif type(value) is dict:
        yield from _nodes_in(list(value.values()))


def _replaced(value: Any, done: Mapping[DAGNode, Any]) -> Any:
    if isinstance(value, DAGNode):
        return done[value]
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, done) for item in value)
    if type(value) is dict:
        return {key: _replaced(item, done) for key, item in value.items()}
    return value


def _flat(value: Any) -> list[Any]:
    return [part for item in value for part in _flat(item)] if isinstance(value, list) else [value]
