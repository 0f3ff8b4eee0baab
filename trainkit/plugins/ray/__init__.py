"""Ray engine: the same functions on a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.util import find_spec

_LARGEST_STEP = 0xFFFFFFF0
"""Number above which Slurm's step ids mean a batch script or an interactive shell, and no `srun`."""

_logger = logging.getLogger(__name__)


def has_several_nodes(variables: Mapping[str, str] = os.environ) -> bool:
    """Return True if this program runs in the batch script of a Slurm job whose several nodes it can use.

    A program that `srun` has started uses its own node, because `srun` may have started it several times.
    """
    nodes = int(variables.get("SLURM_JOB_NUM_NODES") or 1)
    step = int(variables.get("SLURM_STEP_ID") or _LARGEST_STEP)
    if nodes < 2 or step < _LARGEST_STEP:
        return False
    if find_spec("ray") is None:
        _logger.warning(
            "this job has %d nodes, and trainkit uses only this node: pip install 'trainkit-ml[ray]' to use "
            "all nodes, or call trainkit.init('local') if one node is enough",
            nodes,
        )
        return False
    return True
