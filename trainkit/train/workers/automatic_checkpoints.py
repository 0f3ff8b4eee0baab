"""Checkpoints that a trainer writes by itself: when one is due, its folder, and which earlier ones are kept.

    <checkpoint_dir>/checkpoint_000007    a complete checkpoint (files.py); a later one has a higher number
    <checkpoint_dir>/metrics.json         the epoch's metrics of each checkpoint that was written at its end

A number and not the training step names a folder, because training may also continue from an earlier
checkpoint. So the newest checkpoint is always the one that was written last.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import CheckpointError, ObjectStoreFullError
from trainkit.train.checkpoint.files import damage, is_checkpoint, remove_all, remove_left_over
from trainkit.train.options import CheckpointRules
from trainkit.train.workers.background_saves import BackgroundSaves, write_states
from trainkit.train.workers.recovery import Snapshot, waiting_save_text

log = logging.getLogger(__name__)

_METRICS = "metrics.json"
_NAME = re.compile(r"checkpoint_(\d{6,})")

Progress = tuple[int, int]
"""Numbers of finished epochs and of training steps."""


class CheckpointFolder:
    """Folder of numbered checkpoints.

    Args:
        path: absolute path; the folder is made with the first checkpoint.
        config: how many checkpoints are kept, and which.

    Raises:
        CheckpointError: `path` is a file, or is itself a checkpoint.
    """

    def __init__(self, path: Path, config: CheckpointRules) -> None:
        if path.exists() and not path.is_dir():
            raise CheckpointError(f"checkpoint_dir={str(path)!r} is a file: pass the path of a folder")
        if is_checkpoint(path):
            raise CheckpointError(
                f"checkpoint_dir={str(path)!r} is a single checkpoint: pass a folder for many checkpoints, "
                "and call load() to start from this one"
            )
        self.path = path
        self._config = config
        self._next = 0

    def complete(self) -> list[Path]:
        """Return the folders of all complete checkpoints, oldest first."""
        found = [each for each in self.path.glob("checkpoint_*") if _NAME.fullmatch(each.name)]
        return sorted(found, key=number_of)

    def new(self) -> Path:
        """Return the folder for the next checkpoint, which has the highest number so far."""
        numbers = [number_of(each) for each in self.complete()]
        self._next = max([self._next, *(number + 1 for number in numbers)]) + 1
        return self.path / f"checkpoint_{self._next - 1:06d}"

    def outdated(self, new: Path) -> list[Path]:
        """Return the checkpoints to delete once the checkpoint `new` is complete."""
        metrics, saved = self._metrics(), [*self.complete(), new]
        scores = [score(self._config, metrics.get(each.name, {})) for each in saved]
        kept = places_to_keep(scores, self._config.num_to_keep)
        return [each for place, each in enumerate(saved) if place not in kept]

    def note(self, checkpoint: Path, metrics: Mapping[str, Any]) -> None:
        """Add metrics of the epoch after which `checkpoint` was written; forget deleted checkpoints."""
        numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        known = {checkpoint.name, *(each.name for each in self.complete())}
        held = {name: each for name, each in self._metrics().items() if name in known}
        held[checkpoint.name] = {**held.get(checkpoint.name, {}), **numbers}
        self.path.mkdir(parents=True, exist_ok=True)
        aside = self.path / f".{_METRICS}.partial"
        aside.write_text(json.dumps(held, indent=2) + "\n")
        aside.replace(self.path / _METRICS)

    def clean(self) -> None:
        """Remove what writers and deletions left that were killed."""
        remove_left_over(self.path, "checkpoint_*")

    def _metrics(self) -> dict[str, dict[str, Any]]:
        try:
            held: dict[str, dict[str, Any]] = json.loads((self.path / _METRICS).read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise CheckpointError(
                f"{self.path / _METRICS} can't be read: delete this file ({error})"
            ) from error
        return held


def score(config: CheckpointRules, metrics: Mapping[str, Any]) -> float:
    """Return the score that ranks a checkpoint with these metrics; larger is better."""
    if (name := config.checkpoint_score_attribute) is None:
        return 0.0
    value = metrics.get(name, math.nan)
    if math.isnan(value):
        return -math.inf
    return float(value if config.checkpoint_score_order == "max" else -value)


def places_to_keep(scores: Sequence[float], num_to_keep: int | None) -> set[int]:
    """Return which checkpoints are kept: the best, later ones among equals, and the newest in any case.

    Args:
        scores: scores of all checkpoints, oldest first; -inf for a checkpoint without a score.
        num_to_keep: number of checkpoints to keep; None to keep all.
    """
    places = range(len(scores))
    if num_to_keep is None or max(scores) == -math.inf:  # the attribute's name may be misspelt
        return {*places}
    return {*sorted(places, key=lambda place: (scores[place], place))[-num_to_keep:], places[-1]}


def number_of(checkpoint: Path) -> int:
    """Return the number of a checkpoint's folder."""
    return int(checkpoint.name.rpartition("_")[2])


class AutomaticCheckpoints:
    """Checkpoints that a trainer writes by itself in `checkpoint_dir`.

    Args:
        folder: absolute path of `checkpoint_dir`.
        config: when checkpoints are written within an epoch, and which are kept.
        saves: writes of the trainer in the background, which run one after the other.

    Raises:
        CheckpointError: `folder` is a file, or is itself a checkpoint.
    """

    def __init__(self, folder: Path, config: CheckpointRules, saves: BackgroundSaves) -> None:
        self._saves = saves
        self._folder = CheckpointFolder(folder, config)
        self._config = config
        self._last: Path | None = None
        self._progress: Progress = (0, 0)
        self._begun_at = SYSTEM.monotonic()
        self._warned = False

    @property
    def every_steps(self) -> int | None:
        """Number of training steps between two checkpoints within an epoch; None for no such checkpoints."""
        return self._config.every_steps

    def due_in_s(self) -> float | None:
        """Return the seconds until the next checkpoint by time is due; None without such checkpoints."""
        every_s = self._config.every_s
        return None if every_s is None else max(0.0, self._begun_at + every_s - SYSTEM.monotonic())

    def is_due(self, global_step: int) -> bool:
        """Return True if a checkpoint is due after `global_step` training steps."""
        return self.due_in_s() == 0 or self._multiples(global_step) != 0

    def save(
        self,
        progress: Progress,
        metrics: Mapping[str, Any] | None,
        *,
        copy: Callable[[Path, list[Path]], None] | None,
        write: Callable[[Path], None],
    ) -> None:
        """Write a checkpoint in the background, or at once if the state can't be copied.

        A failure is logged, and training continues. The next call of the trainer raises it, unless a later
        checkpoint is complete by then.

        Args:
            progress: progress of the workers.
            metrics: metrics of the epoch at whose end the checkpoint is written; None within an epoch.
            copy: function of the checkpoint and of the outdated checkpoints that copies the state and begins
                the write; None if the state can't be copied.
            write: function that writes the checkpoint.
        """
        with self._saves.logged():
            self._saves.wait()
        with self._saves.logged():
            path, outdated = self._begin(progress)
            if metrics is not None:
                self._folder.note(path, metrics)
            try:
                if copy is not None:
                    copy(path, outdated)
                    return
            except ObjectStoreFullError as error:
                log.warning("%s", waiting_save_text(path, str(error)))
            write(path)
            remove_all(outdated)

    def save_last(self, snapshot: Snapshot, *, sharded: bool) -> None:
        """Write a snapshot in this process, unless the last checkpoint has its state.

        Args:
            snapshot: the last snapshot of the workers, which have ended.
            sharded: True to write the tensors in the files of sharded checkpoints.
        """
        progress = snapshot.progress()
        if progress is None or not snapshot.is_whole:
            return
        with self._saves.logged():
            self._saves.wait()
        with self._saves.logged():
            if self._last is not None and self._progress == progress and self._last.exists():
                return
            path, outdated = self._begin(progress)
            write_states(path, snapshot.states or [], sharded=sharded)
            remove_all(outdated)
            log.warning("the state after the last step is saved as %s", path)

    def _begin(self, progress: Progress) -> tuple[Path, list[Path]]:
        """Return the folder for a checkpoint, and the checkpoints to delete once it is complete."""
        before = self._last if self._progress[1] == progress[1] else None
        self._last, self._progress, self._begun_at = self._folder.new(), progress, SYSTEM.monotonic()
        outdated = self._folder.outdated(self._last)
        if before is not None and before not in outdated:
            # The epoch has ended without a further step: its end replaces the last place within the epoch.
            outdated.append(before)
        return self._last, outdated

    def note(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        """Add metrics of training or validation to the last checkpoint, if it has this progress."""
        if self._last is not None and self._progress == progress:
            self._folder.note(self._last, metrics)

    def end_epoch(self, global_step: int) -> None:
        """Warn at the end of an epoch in which the workers could not pause for a checkpoint."""
        every_s = self._config.every_s
        late = every_s is not None and SYSTEM.monotonic() > self._begun_at + 2 * every_s
        if not self._warned and (late or self._multiples(global_step - 1) > 0):
            self._warned = True
            log.warning(
                "%s: no checkpoint was written within the epoch, because the workers can't save this loop or "
                "data there; checkpoints are written at the end of each epoch",
                "every_s" if late else "every_steps",
            )

    def resume(self, load: Callable[[Path], None], progress: Callable[[], Progress]) -> None:
        """Load the newest checkpoint; if it is damaged, load the newest undamaged one and warn.

        Args:
            load: function that loads a checkpoint into the workers.
            progress: function that returns the workers' progress.

        Raises:
            CheckpointError: a checkpoint does not fit the registered objects or is foreign, or all
                checkpoints are damaged.
        """
        self._folder.clean()
        damaged: dict[Path, CheckpointError] = {}
        for path in reversed(self._folder.complete()):
            try:
                load(path)
            except CheckpointError:
                if (found := damage(path)) is None:
                    raise
                damaged[path] = found
                continue
            self._last, self._progress = path, progress()
            for bad, reason in damaged.items():
                log.warning(
                    "%s; %s is loaded instead, and %s is kept as %s", reason, path, bad, set_aside(bad)
                )
            log.warning("TorchTrainer resumes from %s: epoch %d, step %d", path, *self._progress)
            return
        if damaged:
            reasons = "; ".join(map(str, damaged.values()))
            raise CheckpointError(
                f"no checkpoint in {self._folder.path} can be loaded: {reasons}. Move this folder away to "
                "begin again"
            )

    def _multiples(self, global_step: int) -> int:
        """Return how many multiples of `every_steps` training has passed since the last checkpoint.

        The number is negative after a state from an earlier step was loaded.
        """
        every = self._config.every_steps
        return 0 if every is None else global_step // every - self._progress[1] // every


def set_aside(damaged: Path) -> Path:
    """Rename a damaged checkpoint, so that it no longer counts as a checkpoint; return its new path."""
    aside = damaged.with_name(f"damaged_{damaged.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(damaged, aside)
    return aside
