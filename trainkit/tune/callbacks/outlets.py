"""Where a picture of the experiment is shown again and again, in place of the last one."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from trainkit.tune.callbacks.picture import Picture, as_html, as_text, in_terminal

if TYPE_CHECKING:
    from rich.live import Live


Say = Callable[[str], None]
"""Prints a line for whoever reads along."""


class Outlet(Protocol):
    """Shows pictures, each in place of the last."""

    def show(self, picture: Picture) -> None:
        """Show this one."""

    def close(self) -> None:
        """The last one stays."""


class Terminal:
    """A block of a terminal; what is printed meanwhile appears above it."""

    def __init__(self) -> None:
        from rich.live import Live

        self._live: Live = Live(auto_refresh=False)
        self._live.start()

    def show(self, picture: Picture) -> None:
        self._live.update(in_terminal(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Notebook:
    """One output of a notebook's cell, as HTML, and as text for front ends that know no HTML.

    Args:
        display: IPython's.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, *pictures: Picture) -> None:
        output = {
            "text/html": "".join(map(as_html, pictures)),
            "text/plain": "\n".join(map(as_text, pictures)),
        }
        if self._handle is None:
            self._handle = self._display(output, raw=True, display_id=True)
        else:
            self._handle.update(output, raw=True)

    def close(self) -> None:
        pass


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` if this runs in a notebook's kernel; None elsewhere, a terminal's IPython too."""
    ipython = sys.modules.get("IPython")  # imported by the kernel long before
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


def has_screen() -> bool:
    """Whether standard output is a terminal in which a block can be drawn anew, of any letters."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"


QUIET_S = 1.0
"""Seconds that the end of an experiment waits for something before it says so."""


def wait_saying(what: str, wait: Callable[[float], object], timeout_s: float, say: Say) -> None:
    """Call `wait` with seconds to wait, and again for the rest of `timeout_s`, which `say` is told of.

    Args:
        what: is waited for, in words.
        wait: returns as soon as there is nothing more to wait for.
        timeout_s: for both together.
        say: prints a line; not called where the first wait was enough.
    """
    if wait(min(QUIET_S, timeout_s)) or timeout_s <= QUIET_S:
        return
    say(f"waiting for {what}, up to {timeout_s:g} s")
    wait(timeout_s - QUIET_S)


def say(line: str) -> None:
    """Print a line, for whoever reads along; letters that the output can't hold are spelled out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()
