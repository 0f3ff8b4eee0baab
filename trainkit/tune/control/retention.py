"""Which checkpoints of a trial are kept; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.tune.checks import is_number
from trainkit.tune.config import CheckpointConfig
from trainkit.tune.schedulers.base import score_of
from trainkit.tune.trial import SavedCheckpoint
from trainkit.tune.values import lookup


def checkpoint_score(policy: CheckpointConfig, result: Mapping[str, Any]) -> float | None:
    """The number that ranks the checkpoint of this report, larger is better; None: rank by age."""
    if policy.checkpoint_score_attribute is None:
        return None
    value = lookup(result, policy.checkpoint_score_attribute)
    return score_of(value, policy.checkpoint_score_order) if is_number(value) else -math.inf


def to_drop(
    policy: CheckpointConfig, checkpoints: Sequence[SavedCheckpoint], *, running: bool
) -> list[SavedCheckpoint]:
    """Return those of `checkpoints`, oldest first, that are not kept.

    Kept are the `num_to_keep` best, later ones first among equals, and while the trial runs also the
    latest, since a retry goes on from it.
    """
    if policy.num_to_keep is None or len(checkpoints) <= policy.num_to_keep:
        return []

    def merit(checkpoint: SavedCheckpoint) -> tuple[float, int]:
        return (0.0 if checkpoint.score is None else checkpoint.score, checkpoint.number)

    kept = {checkpoint.number for checkpoint in sorted(checkpoints, key=merit)[-policy.num_to_keep :]}
    if running:
        kept.add(checkpoints[-1].number)
    return [checkpoint for checkpoint in checkpoints if checkpoint.number not in kept]
