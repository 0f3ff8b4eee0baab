"""What the arguments of `tune.run` mean, those of Ray 1.x too; pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainkit.errors import ConfigError
from trainkit.tune.policies import CheckpointConfig

OBSOLETE = {
    "export_formats": "export_model() is not called: save a checkpoint, and export from that",
    "global_checkpoint_period": "every report is kept before report() returns",
    "loggers": "give callbacks=[...]; CSV and JSON files are written by themselves",
    "queue_trials": "a trial that does not fit waits; one that never will is refused",
    "ray_auto_init": "the runtime starts by itself",
    "server_port": "there is no server",
    "sync_on_checkpoint": "give sync_config=tune.SyncConfig(...)",
    "sync_to_cloud": "give storage_path='s3://...'",
    "sync_to_driver": "all trials write where the experiment is",
    "trial_executor": "there is one executor",
    "upload_dir": "give storage_path='s3://...'",
    "with_server": "there is no server",
    "_entrypoint": "it was Ray's own",
    "_remote": "it was Ray's own",
    "_remote_string_queue": "it was Ray's own",
}
"""Arguments that some Ray took, and why they do nothing here."""


def obsolete_words(given: Iterable[str], known: Iterable[str]) -> str:
    """Say which arguments have no effect, and what has; '' if none was given.

    Args:
        given: names that `tune.run` does not take.
        known: names that it takes.

    Raises:
        ConfigError: no Ray took one of them; the nearest name is told.
    """
    names = sorted(given)
    for name in names:
        if name not in OBSOLETE:
            near = difflib.get_close_matches(name, [*known, *OBSOLETE], n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise ConfigError(f"tune.run() takes no argument {name!r}{hint}")
    return "; ".join(f"{name} has no effect: {OBSOLETE[name]}" for name in names)


def checkpoint_settings(
    config: CheckpointConfig | Mapping[str, Any] | None,
    *,
    keep_checkpoints_num: int | None,
    checkpoint_score_attr: str | None,
    checkpoint_freq: int,
    checkpoint_at_end: bool,
) -> CheckpointConfig:
    """Return the arguments of Ray 1.x as a CheckpointConfig; "min-loss" means the least loss.

    Raises:
        ConfigError: both ways were used.
    """
    old = {
        "keep_checkpoints_num": keep_checkpoints_num,
        "checkpoint_score_attr": checkpoint_score_attr,
        "checkpoint_freq": checkpoint_freq,
        "checkpoint_at_end": checkpoint_at_end,
    }
    used = [name for name, value in old.items() if value]
    if config is not None:
        if used:
            raise ConfigError(f"give checkpoint_config or {', '.join(used)}, not both")
        return CheckpointConfig(**config) if isinstance(config, Mapping) else config
    score = checkpoint_score_attr or ""
    return CheckpointConfig(
        num_to_keep=keep_checkpoints_num,
        checkpoint_score_attribute=score.removeprefix("min-") or None,
        checkpoint_score_order="min" if score.startswith("min-") else "max",
        checkpoint_frequency=checkpoint_freq,
        checkpoint_at_end=checkpoint_at_end or None,
    )


@dataclass(frozen=True)
class Resuming:
    """Whether `tune.run` goes on with an experiment.

    Attributes:
        wanted: it does, where there is one.
        required: there must be one.
        how: for `Tuner.restore`.
    """

    wanted: bool = False
    required: bool = False
    how: dict[str, Any] = field(default_factory=dict)


_ERRORED = {
    "ERRORED": {"resume_errored": True},
    "RESTART_ERRORED": {"restart_errored": True},
    "ERRORED_ONLY": {"resume_unfinished": False, "resume_errored": True},
    "RESTART_ERRORED_ONLY": {"resume_unfinished": False, "restart_errored": True},
}


def resuming(resume: bool | str | None, resume_config: Any = None) -> Resuming:
    """Return what `resume` asks for: True, "LOCAL", "REMOTE", "AUTO", "ERRORED_ONLY", "AUTO+ERRORED", ...

    Raises:
        ConfigError: it is none of these.
    """
    if resume is None or resume is False:
        return Resuming()
    head, _, tail = ("LOCAL" if resume is True else str(resume)).partition("+")
    if head in _ERRORED and not tail:
        head, tail = "LOCAL", head
    if head == "PROMPT":
        raise ConfigError("resume='PROMPT' would ask: give True, or 'AUTO' to go on where there is something")
    if head not in ("LOCAL", "REMOTE", "AUTO") or (tail and tail not in _ERRORED):
        raise ConfigError(
            f"resume={resume!r}: give True or 'AUTO', which may be followed by one of "
            f"{', '.join(f'+{name}' for name in _ERRORED)}; or 'ERRORED_ONLY'"
        )
    if resume_config is not None and tail:
        raise ConfigError(f"resume={resume!r} and resume_config contradict each other: give one")
    how = {"resume_config": resume_config} if resume_config is not None else dict(_ERRORED.get(tail, {}))
    return Resuming(wanted=True, required=head != "AUTO", how=how)
