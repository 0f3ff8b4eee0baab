"""Resources that the program's own objects hold, and checks that a request does not wait for them forever."""

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
from dataclasses import dataclass
from types import FrameType
from typing import Any

from trainkit.errors import InfeasibleError
from trainkit.resources import QUANTUM, Bundle, describe, total
from trainkit.runtime.placement import Ledger
from trainkit.runtime.session import engine

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
"""Packages whose background threads never free a user's resources."""


@dataclass(frozen=True)
class Holding:
    """Resources that are reserved for one object, such as a trainer.

    Attributes:
        owner: weak reference to the object.
        place: location in the code where the object was made, for messages.
        amounts: function that returns the amounts that are reserved now.
        close: function that frees the resources.
    """

    owner: weakref.ref[Any]
    place: str
    amounts: Callable[[], Bundle]
    close: Callable[[], None]


_holdings: list[Holding] = []


def register(owner: Any, amounts: Callable[[], Bundle], close: Callable[[], None]) -> None:
    """Record that resources are reserved for an object while the object exists.

    Args:
        owner: object of the user for which the resources are reserved.
        amounts: function that returns the amounts reserved now. The function must have only a weak reference
            to the owner.
        close: method of the owner that frees the resources. The method object must have only a weak reference
            to the owner.
    """
    place = place_of(_user_frame())
    _holdings.append(Holding(weakref.ref(owner), place, amounts, close))


def make_room(bundles: Sequence[Bundle], existing: Bundle, what: str) -> None:
    """Raise or warn if a request would wait for resources that only this program's own objects can free.

    Before the check, garbage is collected, and objects that the running statement replaces are closed.

    Args:
        bundles: requested amounts.
        existing: total amounts of the machine.
        what: name of the requester, for messages.

    Raises:
        InfeasibleError: the thread would wait for resources that only this thread could free.
    """
    # A cluster may grow, so the thread may wait without an error.
    if "near" not in engine().promises or not _in_the_way(bundles, existing):
        return
    # A request that can never be met fails elsewhere, so no resources are freed for such a request.
    if Ledger.of_machine(existing).take_all(bundles) is None:
        return
    gc.collect()  # the collection removes objects that only reference cycles keep alive
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
            "%s waits for resources that this program holds itself, until a thread calls shutdown(): %s",
            what,
            held,
        )
        return
    raise InfeasibleError(
        f"{what} asks for {describe(total(bundles))}, but this program holds the missing resources: {held}. "
        "Waiting would never end: call shutdown() first, or write `with TorchTrainer(...) as trainer:`"
    )


def _in_the_way(bundles: Sequence[Bundle], existing: Bundle) -> list[Holding]:
    """Return the holdings of this program that would block the request even if all other programs freed their
    resources.
    """
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
    """Return True if no other thread of the program could free resources."""
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
    """Return True if the running statement assigns a new value to the only name that refers to `owner`."""
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
    """Return the names that refer to `owner`, without names of a notebook's history, such as `_12`.

    The code is a loop because a comprehension would keep a further reference to `owner`.
    """
    names = []
    for name, value in list(namespace.items()):
        if value is owner and not _is_history(name):
            names.append(name)
    return names


def _is_history(name: str) -> bool:
    """Return True if a notebook uses the name for the output of a cell, such as '_' or '_12'."""
    return name.startswith("_") and (name.strip("_") == "" or name[1:].isdigit())


def _assigned_name(frame: FrameType) -> str | None:
    """Return the name to which the running statement of `frame` assigns the result of a call; else None."""
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
    """Return the innermost stack frame with code outside trainkit."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType | None) -> str:
    """Return the file and line of a frame, such as 'train.py:12'.

    In a notebook, return the cell's number and line.
    """
    if frame is None:
        return "an unknown place"
    filename = frame.f_code.co_filename
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    named: Mapping[str, Any] = getattr(getattr(shell, "compile", None), "_filename_map", {})
    if filename in named:
        return f"cell {named[filename]}, line {frame.f_lineno}"
    return f"{os.path.basename(filename)}:{frame.f_lineno}"
