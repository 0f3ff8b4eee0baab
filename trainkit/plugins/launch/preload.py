"""Imports for the process from which a script's ranks are forked, without trainkit's trainers."""

from __future__ import annotations

import importlib

for _name in ("numpy.random", "torch", "torch._dynamo", "trainkit.plugins.launch.script"):
    importlib.import_module(_name)
