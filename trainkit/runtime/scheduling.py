"""Placement groups, scheduling strategies, and the resources that objects of a program hold."""

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
    """Bundles of one reservation; made by `placement_group`, given to `.options(placement_group=)`.

    Attributes:
        id: names the reservation within the session; groups with the same id are equal.
        bundle_specs: the bundles asked for, in order.
        strategy: how they are spread over nodes; None where that is not known, as on one machine it makes
            no difference to a group that could be reserved.
        name: by which `get_placement_group` finds it; "" for none.
    """

    def __init__(
        self, group_id: int, bundles: Sequence[Bundle], *, strategy: str | None = None, name: str = ""
    ) -> None:
        self.id = PlacementGroupID(group_id)
        self.strategy = strategy
        self.name = name
        self.bundle_specs: list[dict[str, float]] = [dict(bundle) for bundle in bundles]

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """True once all bundles are reserved; False if `timeout_seconds` passed before."""
        return engine().await_group(self.id, timeout_seconds)

    def ready(self) -> ObjectRef[Any]:
        """A reference for `get` and `wait` that is done once all bundles are reserved."""
        return engine().group_ref(self.id)

    def require_room(self, request: Bundle, index: int) -> None:
        """Raise InfeasibleError if no bundle, or not that of `index`, could ever hold `request`."""
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
        """How many bundles the group has."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"PlacementGroup({self.id.hex()}, {self.bundle_specs})"


STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


def find(name: str) -> PlacementGroup:
    """The group of that name; see `trainkit.get_placement_group`."""
    return PlacementGroup(*engine().find_group(name), name=name)


def reserve(
    bundles: Sequence[Mapping[str, float]], strategy: str, name: str, lifetime: str | None
) -> PlacementGroup:
    """Ask the running engine for `bundles`; see `trainkit.placement_group`."""
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
    """Raise InfeasibleError if `strategy` needs more nodes than one machine is."""
    if strategy == "STRICT_SPREAD" and len(bundles) > 1:
        raise InfeasibleError(
            f"STRICT_SPREAD puts each of the {len(bundles)} bundles on another node, and this machine is "
            "one node; use 'SPREAD', which spreads them as far as there are nodes, or run on a cluster"
        )


def captured(placement: Placement, own: tuple[PlacementGroupId, list[Bundle]] | None) -> Placement:
    """Where something goes that a process starts.

    Args:
        placement: as asked for.
        own: the group of the process that asks, and its bundles; None if it is in none.

    Raises:
        InfeasibleError: the group captures it, and none of its bundles is large enough.
    """
    if own is None or not own[0].capture or placement.group is not None or placement.outside:
        return placement
    where, bundles = own
    PlacementGroup(where.group, bundles).require_room(placement.resources, -1)
    return replace(placement, group=PlacementGroupId(group=where.group, capture=True))


@dataclass(frozen=True)
class PlacementGroupSchedulingStrategy:
    """Take the resources from a placement group.

    Args:
        placement_group: the group; None takes them from the machine, also in a process whose own group
            captures what it starts.
        placement_group_bundle_index: which of its bundles; -1 any that fits.
        placement_group_capture_child_tasks: what runs there starts its own tasks and actors in the same
            group, unless they say otherwise; default False.
    """

    placement_group: PlacementGroup | None
    placement_group_bundle_index: int = -1
    placement_group_capture_child_tasks: bool | None = None


@dataclass(frozen=True)
class NodeAffinitySchedulingStrategy:
    """Run on the node of this id, as `nodes()` and `get_runtime_context().get_node_id()` give it.

    Args:
        node_id: hexadecimal.
        soft: where there is no such node, run anywhere, instead of an error.
    """

    node_id: str
    soft: bool

    def require_node(self) -> None:
        """Raise if what runs here would not be on the node asked for.

        Raises:
            InfeasibleError: there is no such node.
            ConfigError: there are several, and none can be chosen by its id.
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
    """`strategy` itself; raises ConfigError if it is none, or InfeasibleError if its node is not there."""
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
"""Packages whose threads shut down nothing of the user's."""


@dataclass(frozen=True)
class Holding:
    """Resources that one object holds.

    Attributes:
        owner: the object.
        place: where it was made, for messages.
        amounts: asks how much it holds now.
        close: gives it back.
    """

    owner: weakref.ref[Any]
    place: str
    amounts: Callable[[], Bundle]
    close: Callable[[], None]


_holdings: list[Holding] = []


def register(owner: Any, amounts: Callable[[], Bundle], close: Callable[[], None]) -> None:
    """Note that an object holds something, as long as it lives.

    Args:
        owner: the object, as the user has it.
        amounts: asks how much it holds now; refers to the owner only weakly.
        close: the owner's method to end it, by name in messages; refers to the owner only weakly.
    """
    place = place_of(_user_frame())
    _holdings.append(Holding(weakref.ref(owner), place, amounts, close))


def make_room(bundles: Sequence[Bundle], existing: Bundle, what: str) -> None:
    """Let a request of this program pass, or refuse it, if only objects of this program stand in its way.

    Args:
        bundles: what is asked for.
        existing: what the machine has in all.
        what: makes the request, as shown to the user.

    Raises:
        InfeasibleError: this thread would wait for what only it could give back.
    """
    if engine().name == "ray" or not _in_the_way(bundles, existing):  # a cluster may grow
        return
    if Ledger.of_machine(existing).take_all(bundles) is None:  # never to be met: nothing is closed for it
        return
    gc.collect()  # an object that is held by nobody, but for a circle of references, is dropped
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
    """Return what would have to be given back even if all others of the session did so; [] if nothing."""
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
    """Return whether no other thread of the program could give anything back."""
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
    """Return whether the user's statement binds the name anew that alone holds `owner`."""
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
    """Return the names of `owner`, but those of a notebook's history.

    It is a loop, as a comprehension would hold `owner` in a cell, one more object that refers to it.
    """
    names = []
    for name, value in list(namespace.items()):
        if value is owner and not _is_history(name):
            names.append(name)
    return names


def _is_history(name: str) -> bool:
    """Return whether a notebook has given the name to what a cell showed, such as '_' or '_12'."""
    return name.startswith("_") and (name.strip("_") == "" or name[1:].isdigit())


def _assigned_name(frame: FrameType) -> str | None:
    """Return the name that the statement which runs in `frame` binds; None if it binds none, or several."""
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
    """Return the innermost frame that is not of trainkit."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Return file and line, such as 'train.py:12'; of a notebook's cell its number and line."""
    if frame is None:
        return "an unknown place"
    filename = frame.f_code.co_filename
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named: Mapping[str, Any] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if filename in named:
        return f"cell {named[filename]}, line {frame.f_lineno}"
    return f"{os.path.basename(filename)}:{frame.f_lineno}"
