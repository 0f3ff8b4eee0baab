"""Scripts on several ranks, in place of torchrun."""

from __future__ import annotations

from trainkit.runtime import session

RANKS = "trainkit.plugins.launch.preload"
"""Module that the process imports which ranks are forked from."""

session.register(RANKS, when="trainkit.plugins.launch.script", is_slow=True)
