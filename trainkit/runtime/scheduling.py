"""Placement groups, scheduling strategies, and resources that objects of the program hold."""

from __future__ import annotations

import ast
import contextlib
import gc
import linecache
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Literal

from trainkit.errors import ArgumentTypeError, ConfigError, InfeasibleError
from trainkit.resources import QUANTUM, Bundle, describe, normalize, require_feasible, total
from trainkit.runtime.placement import Ledger, NodeLabelSchedulingStrategy
from trainkit.runtime.session import engine
from trainkit.runtime.specs import ObjectRef, Placement, PlacementGroupID, PlacementGroupId


class PlacementGroup:
    """Reservation of bundles, made by `placement_group` and used by `.options(placement_group=)`.

    Attributes:
        id: id of the reservation in the session; groups with equal ids are equal.
        bundle_specs: requested bundles, in order.
        strategy: placement strategy; None if unknown, because on one machine it makes no difference to a
            reserved group.
        name: name for `get_placement_group`; "" if unnamed.
    """

    def __init__(
        self, group_id: int, bundles: Sequence[Bundle], *, strategy: str | None = None, name: str = ""
    ) -> None:
        self.id = PlacementGroupID(group_id)
        self.strategy = strategy
        self.name = name
        self.bundle_specs: list[dict[str, float]] = [dict(bundle) for bundle in bundles]

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Return True once all bundles are reserved, False if `timeout_seconds` passed before."""
        return engine().await_group(self.id, timeout_seconds)

    def ready(self) -> ObjectRef[Any]:
        """Return a reference for `get` and `wait` that is done once all bundles are reserved."""
        return engine().group_ref(self.id)

    def require_room(self, request: Bundle, index: int) -> None:
        """Raise InfeasibleError if no bundle, or not bundle `index`, could ever hold `request`."""
        bundles = self.bundle_specs if index < 0 else [self.bundle_specs[index]]
        if not any(
            all(amount <= bundle.get(name, 0) for name, amount in request.items()) for bundle in bundles
        ):
            where = "no bundle" if index < 0 else f"bundle {index} not"
            raise InfeasibleError(
                f"a request for {describe(request)} can never be met in this placement group: {where} large "
                f"enough among {self.bundle_specs}"
            )

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the group."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def find(name: str) -> PlacementGroup:
    """Return the group with that name; see `trainkit.get_placement_group`."""
    return PlacementGroup(*engine().find_group(name), name=name)


def reserve(
    bundles: Sequence[Mapping[str, float]], strategy: str, name: str, lifetime: str | None
) -> PlacementGroup:
    """Request `bundles` from the running engine; see `trainkit.placement_group`."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy={strategy!r}; there are {', '.join(STRATEGIES)}")
    if lifetime not in (None, "detached"):
        raise ConfigError(f"lifetime={lifetime!r}; there are None and 'detached'")
    if not bundles:
        raise ConfigError("placement_group([]): give at least one bundle, such as {'CPU': 1}")
    checked = [normalize(bundle, what=f"bundle {index}") for index, bundle in enumerate(bundles)]
    totals = engine().cluster_resources()
    require_feasible(checked, totals, what="the placement group")
    if Ledger.of_machine(totals).take_all(checked) is None:
        raise InfeasibleError(
            f"the placement group's bundles {checked} cannot be placed together on {describe(totals)}: a "
            "fraction of a GPU must lie on one"
        )
    group_id = engine().reserve(checked, strategy, name, lifetime == "detached")
    return PlacementGroup(group_id, checked, strategy=strategy, name=name)


def require_one_node(bundles: Sequence[Bundle], strategy: str) -> None:
    """Raise InfeasibleError if `strategy` needs more than one node."""
    if strategy == "STRICT_SPREAD" and len(bundles) > 1:
        raise InfeasibleError(
            f"STRICT_SPREAD needs a separate node for each of the {len(bundles)} bundles, and this machine "
            "is one node: use 'SPREAD', which uses as many nodes as there are, or run on a cluster"
        )


def captured(placement: Placement, own: tuple[PlacementGroupId, list[Bundle]] | None) -> Placement:
    """Return the placement of something that a process starts.

    Args:
        placement: requested placement.
        own: group of the requesting process and its bundles; None if it is in no group.

    Raises:
        InfeasibleError: the group captures the request, and no bundle is large enough for it.
    """
    if own is None or not own[0].capture or placement.group is not None or placement.outside:
        return placement
    where, bundles = own
    PlacementGroup(where.group, bundles).require_room(placement.resources, -1)
    return replace(placement, group=PlacementGroupId(group=where.group, capture=True))


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Strategy to take resources from a placement group.

    Args:
        placement_group: the group. None takes them from the machine, even if the process's own group captures
            its children.
        placement_group_bundle_index: index of the bundle to use; -1 means any bundle that fits.
        placement_group_capture_child_tasks: children of the task or actor run in the same group by default;
            default False.
    """

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Strategy to run on one node, whose id `nodes()` and `get_runtime_context().get_node_id()` return.

    Args:
        node_id: id in hexadecimal digits.
        soft: if the node does not exist, run anywhere instead of raising.
    """

    node_id: str
    soft: bool

    def require_node(self) -> None:
        """Raise an error if work started here would run on another node.

        Raises:
            InfeasibleError: the node does not exist.
            ConfigError: the session has several nodes, and none can be chosen by its id.
        """
        if self.soft:
            return
        living = [node["node_id"] for node in engine().state("nodes") if node["alive"]]
        if self.node_id not in living:
            raise InfeasibleError(
                f"there is no node {self.node_id!r} to run on; there are {', '.join(living)}. soft=True runs "
                "anywhere then"
            )
        if len(living) > 1:
            raise ConfigError(
                f"of {len(living)} nodes, none can be chosen by its id: give each a custom resource of its "
                "own and ask for that, or pass soft=True"
            )


SchedulingStrategy = (
    Literal["DEFAULT", "SPREAD"]
    | PlacementGroupSchedulingStrategy
    | NodeAffinitySchedulingStrategy
    | NodeLabelSchedulingStrategy
    | None
)


def checked_strategy(strategy: SchedulingStrategy) -> SchedulingStrategy:
    """Return `strategy`; raise ConfigError if it is invalid, InfeasibleError if its node is missing."""
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        strategy.require_node()
        return strategy
    if isinstance(strategy, (PlacementGroupSchedulingStrategy, NodeLabelSchedulingStrategy)):
        return strategy
    if strategy in (None, "DEFAULT", "SPREAD"):
        return strategy
    kind = ConfigError if isinstance(strategy, str) else ArgumentTypeError
    raise kind(
        f"scheduling_strategy={strategy!r}; there are 'DEFAULT', 'SPREAD' (the same on one machine), "
        "PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy and NodeLabelSchedulingStrategy"
    )


logger = logging.getLogger("trainkit")

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_IDLE_THREADS = (
    "ipykernel",
    "IPython",
    "tornado",
    "zmq",
    "debugpy",
    "_pydevd",
    "pydevd",
    "tqdm",
    "torch",
    "trainkit",
)
"""Packages whose background threads never shut down a user's object."""


@dataclass(frozen=True)
class Holding:
    """Resources that one object holds.

    Attributes:
        owner: the object.
        place: place in the code where it was made, for messages.
        amounts: function that returns the amounts it holds now.
        close: function that frees them.
    """

    owner: weakref.ref[Any]
    place: str
    amounts: Callable[[], Bundle]
    close: Callable[[], None]


_holdings: list[Holding] = []


def register(owner: Any, amounts: Callable[[], Bundle], close: Callable[[], None]) -> None:
    """Record that an object holds resources, for as long as it lives.

    Args:
        owner: the object that the user has.
        amounts: function that returns the amounts it holds now; must refer to the owner only weakly.
        close: method of the owner that frees them, named in messages; must refer to the owner only weakly.
    """
    place = place_of(_user_frame())
    _holdings.append(Holding(weakref.ref(owner), place, amounts, close))


def make_room(bundles: Sequence[Bundle], existing: Bundle, what: str) -> None:
    """Raise or warn if a request would wait for resources that only this program's own objects could free.

    Objects that the running statement replaces are closed first, and garbage is collected.

    Args:
        bundles: requested amounts.
        existing: total amounts of the machine.
        what: name of the requester, for the user.

    Raises:
        InfeasibleError: the thread would wait for resources that only this thread could free.
    """
    if engine().name == "ray" or not _in_the_way(bundles, existing):  # a cluster may grow
        return
    if Ledger.of_machine(existing).take_all(bundles) is None:  # it can never be met
        return
    gc.collect()  # drops objects that only reference cycles keep alive
    for holding in _in_the_way(bundles, existing):
        owner = holding.owner()
        if owner is not None and _is_being_replaced(owner):
            holding.close()
        del owner
    blockers = _in_the_way(bundles, existing)
    if not blockers:
        return
    held = "; ".join(_words(holding) for holding in blockers)
    if not _waits_for_itself():
        logger.warning(
            "%s waits for what this program holds itself, until another thread calls shutdown(): %s",
            what,
            held,
        )
        return
    raise InfeasibleError(
        f"{what} asks for {describe(total(bundles))}, and this program holds what is missing itself: {held}. "
        f"Nobody else could give it back while this waits: call shutdown() first, or write `with "
        f"TorchTrainer(...) as trainer:`"
    )


def _in_the_way(bundles: Sequence[Bundle], existing: Bundle) -> list[Holding]:
    """Return this program's holdings that block the request even if all others free their resources."""
    _holdings[:] = [holding for holding in _holdings if holding.owner() is not None]
    held = [(holding, amounts) for holding in _holdings if (amounts := holding.amounts())]
    own = total([amounts for _, amounts in held])
    short = {
        name
        for name, amount in total(bundles).items()
        if round(amount * QUANTUM) > round((existing.get(name, 0) - own.get(name, 0)) * QUANTUM)
    }
    return [holding for holding, amounts in held if short & amounts.keys()]


def _words(holding: Holding) -> str:
    return f"{type(holding.owner()).__name__}, made at {holding.place}, {describe(holding.amounts())}"


def _waits_for_itself() -> bool:
    """Return whether no other thread of the program could free resources."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return all(
        thread is threading.main_thread() or _is_idle(thread)
        for thread in threading.enumerate()
        if thread.is_alive()
    )


def _is_idle(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.partition(".")[0] in _IDLE_THREADS for module in modules)


def _is_being_replaced(owner: Any) -> bool:
    """Return whether the running statement assigns a new value to the only name that refers to `owner`."""
    frame = _user_frame()
    if frame is None or frame.f_code.co_name != "<module>":
        return False
    namespace = frame.f_globals
    if _names(namespace, owner) != [_assigned_name(frame)]:
        return False
    known = {id(namespace), id(namespace.get("Out")), id(namespace.get("_oh"))}
    others = [holder for holder in gc.get_referrers(owner) if not isinstance(holder, FrameType)]
    return all(id(holder) in known for holder in others)


def _names(namespace: Mapping[str, Any], owner: Any) -> list[str]:
    """Return the names that refer to `owner`, without those of a notebook's history.

    This is a loop because a comprehension would keep `owner` in a cell, which is one more reference to it.
    """
    names = []
    for name, value in list(namespace.items()):
        if value is owner and not _is_history(name):
            names.append(name)
    return names


def _is_history(name: str) -> bool:
    """Return whether a notebook uses the name for the output of a cell, such as '_' or '_12'."""
    return name.startswith("_") and (name.strip("_") == "" or name[1:].isdigit())


def _assigned_name(frame: FrameType) -> str | None:
    """Return the name that the running statement of `frame` assigns; None if it assigns none or several."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    with contextlib.suppress(SyntaxError):
        for node in ast.parse(source).body:
            if node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call()):
                        return name
                return None
    return None


def _user_frame() -> FrameType | None:
    """Return the innermost frame outside trainkit."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Return file and line, such as 'train.py:12'; in a notebook, the cell's number and line."""
    if frame is None:
        return "an unknown place"
    filename = frame.f_code.co_filename
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named: Mapping[str, Any] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if filename in named:
        return f"cell {named[filename]}, line {frame.f_lineno}"
    return f"{os.path.basename(filename)}:{frame.f_lineno}"
