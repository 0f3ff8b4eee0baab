"""Launcher that runs scripts on several ranks, in place of torchrun."""

from __future__ import annotations

from trainkit.runtime import session

RANKS = "trainkit.plugins.launch.preload"
"""Module imported by the process from which ranks are forked."""

session.register(RANKS, when="trainkit.plugins.launch.script")
