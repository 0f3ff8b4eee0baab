"""Launcher that runs a script on several ranks (one process each), in place of torchrun."""

from __future__ import annotations

from trainkit.runtime import session

RANKS = "trainkit.plugins.launch.preload"
"""Module that the process from which ranks are forked imports in advance."""

session.register(RANKS, when="trainkit.plugins.launch.script")
