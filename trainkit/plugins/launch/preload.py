"""Imports of the process that the ranks of a script are forked from, without trainers' own modules."""

from __future__ import annotations

import importlib

for _name in ("numpy.random", "torch", "torch._dynamo", "trainkit.plugins.launch.script"):
    importlib.import_module(_name)
