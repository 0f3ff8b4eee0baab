"""Checkpoints that a trainer writes by itself: when they are due, their folder, and which are kept.

    <checkpoint_dir>/checkpoint_000007    a complete checkpoint (files.py); a later one has a higher number
    <checkpoint_dir>/metrics.json         the epoch's metrics of each checkpoint that was written at its end,
                                          and the calls of `update_scheduler` after it
    <checkpoint_dir>/.lock                locked by the trainer that uses the folder

The name of a folder has a consecutive number and not the training step, because training may also continue
from an earlier checkpoint. So the checkpoint with the highest number is always the checkpoint that was
written last.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import CheckpointError, ObjectStoreFullError
from trainkit.train.checkpoint.files import damage, is_checkpoint, remove_all, remove_left_over, sync
from trainkit.train.checkpoint.state import UnequalPlacesError
from trainkit.train.options import CheckpointRules
from trainkit.train.step.metrics import reduce_metrics
from trainkit.train.workers.background_saves import BackgroundSaves, write_states
from trainkit.train.workers.recovery import Snapshot, waiting_save_text

log = logging.getLogger(__name__)

_METRICS = "metrics.json"
_UPDATES = "update_scheduler()"
_RESULTS = "train()"
_NAME = re.compile(r"checkpoint_(\d{6,})")

Progress = tuple[int, int]
"""Numbers of finished epochs and of training steps."""

Results = Sequence[Mapping[str, Any]]
"""Results of the workers."""

Owed = tuple[Mapping[str, Any], Results]
"""Result of an epoch for all workers together, and the results of the workers."""


class CheckpointFolder:
    """Folder of numbered checkpoints.

    Args:
        path: absolute path; the folder is made with the first checkpoint.
        config: rules for keeping checkpoints: their number and their ranking.

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
        self._unlock: weakref.finalize[Any, Any] | None = None
        self._metrics: dict[str, dict[str, Any]] = {}

    def open(self) -> None:
        """Lock the folder, remove the leftovers of killed writers, and read the metrics of the checkpoints.

        Raises:
            CheckpointError: another trainer uses the folder, or the folder can't be written.
        """
        if self.path in _locked:
            raise CheckpointError(_in_use_text(self.path))
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CheckpointError(f"checkpoint_dir={str(self.path)!r} can't be written: {error}") from error
        _locked.add(self.path)
        self._unlock = weakref.finalize(self, _unlock, self.path, lock)
        try:
            # This kind of lock is used because, unlike a lock of `flock`, it is not inherited by processes
            # that outlive a killed program.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise CheckpointError(_in_use_text(self.path)) from error
            log.warning("%s can't be locked (%s): use it for a single trainer only", self.path, error)
        remove_left_over(self.path, "checkpoint_*", everywhere=True)
        existing = {each.name for each in self.complete()}
        try:
            metrics = _read_metrics(self.path)
        except (ValueError, TypeError, AttributeError) as error:
            text = "%s can't be read (%s), and is kept as %s: the scores of earlier checkpoints are unknown"
            log.warning(text, file := self.path / _METRICS, error, set_aside(file))
            metrics = {}
        self._metrics = {name: each for name, each in metrics.items() if name in existing}

    def close(self) -> None:
        """Unlock the folder for other trainers."""
        if self._unlock is not None:
            self._unlock()

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
        saved = sorted({*self.complete(), new}, key=number_of)
        kept = places_to_keep([self.score(each) for each in saved], self._config.num_to_keep)
        return [each for place, each in enumerate(saved) if place not in kept]

    def score(self, checkpoint: Path) -> float:
        """Return the score that ranks `checkpoint`; -inf for a checkpoint without a score."""
        if (name := self._config.checkpoint_score_attribute) is None:
            return 0.0
        value = self._metrics.get(checkpoint.name, {}).get(name, math.nan)
        if math.isnan(value):
            return -math.inf
        return float(value if self._config.checkpoint_score_order == "max" else -value)

    def has_metrics(self, checkpoint: Path) -> bool:
        """Return True if `checkpoint` was written at the end of an epoch."""
        return checkpoint.name in self._metrics

    def owed(self, checkpoint: Path) -> Owed | None:
        """Return the noted results of the epoch at whose end `checkpoint` was written; None if
        `update_scheduler` has been called since then.
        """
        noted = self._metrics.get(checkpoint.name, {})
        return None if _UPDATES in noted else noted.get(_RESULTS)

    def note(self, checkpoint: Path, metrics: Mapping[str, Any], results: Owed | None = None) -> None:
        """Add metrics, and results, of the epoch after which `checkpoint` was written; forget deleted
        checkpoints.
        """
        entries = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
        self._add(checkpoint, entries if results is None else {**entries, _RESULTS: results})

    def note_update(self, checkpoint: Path, metric: float | None) -> None:
        """Add a metric that `update_scheduler` has received since `checkpoint` was written."""
        earlier = self._metrics.get(checkpoint.name, {}).get(_UPDATES, ())
        self._add(checkpoint, {_UPDATES: [*earlier, metric]})

    def _add(self, checkpoint: Path, entries: Mapping[str, Any]) -> None:
        known = {checkpoint.name, *(each.name for each in self.complete())}
        held = {name: each for name, each in self._metrics.items() if name in known}
        self._metrics = {**held, checkpoint.name: {**held.get(checkpoint.name, {}), **entries}}
        aside = self.path / f".{_METRICS}.partial"
        try:
            aside.write_text(json.dumps(self._metrics, indent=2) + "\n")
            sync(aside)
            aside.replace(self.path / _METRICS)
        finally:
            aside.unlink(missing_ok=True)  # a signal may end the program here


def _read_metrics(folder: Path) -> dict[str, dict[str, Any]]:
    with suppress(FileNotFoundError):
        return {name: dict(each) for name, each in json.loads((folder / _METRICS).read_text()).items()}
    return {}


def noted_updates(checkpoint: Path) -> list[float | None]:
    """Return the metrics that `update_scheduler` has received since a trainer wrote `checkpoint` by itself;
    [] for other checkpoints.
    """
    with suppress(ValueError, TypeError, AttributeError):  # the user's own file of this name
        return list(_read_metrics(checkpoint.parent).get(checkpoint.name, {}).get(_UPDATES, ()))
    return []


_locked: set[Path] = set()
"""Folders that trainers of this process use.

This set is needed because the lock of a file holds only between processes.
"""


def _unlock(folder: Path, lock: int) -> None:
    _locked.discard(folder)
    os.close(lock)


def _in_use_text(folder: Path) -> str:
    return (
        f"checkpoint_dir={str(folder)!r} is used by another trainer: call its shutdown(), or pass another "
        "folder"
    )


def places_to_keep(scores: Sequence[float], num_to_keep: int | None) -> set[int]:
    """Return the positions in `scores` of the checkpoints to keep.

    The checkpoints to keep are the checkpoints with the best scores, and always the newest checkpoint. Among
    checkpoints with equal scores, the later checkpoints are kept.

    Args:
        scores: scores of all checkpoints, oldest first; -inf for a checkpoint without a score.
        num_to_keep: number of checkpoints to keep; None to keep all.
    """
    places = range(len(scores))
    if num_to_keep is None:
        return {*places}
    return {*sorted(places, key=lambda place: (scores[place], place))[-num_to_keep:], places[-1]}


def number_of(checkpoint: Path) -> int:
    """Return the number of a checkpoint's folder."""
    return int(checkpoint.name.rpartition("_")[2])


@dataclass(frozen=True)
class _Place:
    """Last state that is saved or loaded.

    Attributes:
        progress: progress of the workers in this state.
        path: checkpoint with this state; None if `load` has loaded the state from elsewhere.
        within_epoch: True if the checkpoint was not written at the end of an epoch.
    """

    progress: Progress = (0, 0)
    path: Path | None = None
    within_epoch: bool = False


class AutomaticCheckpoints:
    """Checkpoints that a trainer writes by itself in `checkpoint_dir`.

    Args:
        folder: absolute path of `checkpoint_dir`.
        config: rules for writing checkpoints within an epoch, and for keeping checkpoints.
        saves: writes of the trainer in the background, which run one after the other.
        updates: True if the program calls `update_scheduler` after an epoch.

    Attributes:
        every_steps: number of training steps between two checkpoints within an epoch; None for no such
            checkpoints.

    Raises:
        CheckpointError: `folder` is a file, or is itself a checkpoint.
    """

    def __init__(self, folder: Path, config: CheckpointRules, saves: BackgroundSaves, updates: bool) -> None:
        self._saves = saves
        self._folder = CheckpointFolder(folder, config)
        self._config = config
        self._updates = updates
        self.every_steps = config.every_steps
        self._last = _Place()
        self._begun_at = self._epoch_begun_at = SYSTEM.monotonic()
        self._warned: set[str] = set()

    def due_in_s(self) -> float | None:
        """Return the seconds until the next checkpoint by time is due; None without such checkpoints."""
        every_s = self._config.every_s
        return None if every_s is None else max(0.0, self._begun_at + every_s - SYSTEM.monotonic())

    def is_due(self, global_step: int) -> bool:
        """Return True if a checkpoint is due after `global_step` training steps."""
        return self.due_in_s() == 0 or self._multiples(global_step) > 0

    def save(
        self,
        progress: Progress,
        results: Results | None,
        *,
        copy: Callable[[Path, list[Path]], None] | None,
        write: Callable[[Path], None],
    ) -> None:
        """Write a checkpoint in the background, or at once if the state can't be copied.

        A failure is logged, and training continues. The next call of the trainer raises the failure, unless a
        later checkpoint is complete by then.

        Args:
            progress: progress of the workers.
            results: results of the epoch at whose end the checkpoint is written; None within an epoch.
            copy: function of the checkpoint and of the outdated checkpoints that copies the state and begins
                the write; None if the state can't be copied.
            write: function that writes the checkpoint.
        """
        with self._saves.logged():
            self._saves.wait()
        if results is not None:
            self._warn_without_score()
        with self._saves.logged():
            path, before = self._begin(progress, results)
            try:
                if copy is not None:
                    copy(path, self._outdated(path, before))
                    return
            except ObjectStoreFullError as error:
                log.warning("%s", waiting_save_text(path, str(error)))
            write(path)
            self._complete(path, before)

    def save_last(self, snapshot: Snapshot, *, sharded: bool) -> None:
        """Write a snapshot in this process, unless the last checkpoint has the snapshot's state or a later
        state.

        Args:
            snapshot: the last snapshot of the workers, which have ended.
            sharded: True to write the tensors in the files of sharded checkpoints.
        """
        if (progress := snapshot.progress()) is None:
            log.warning(
                "nothing is saved: no epoch has ended, and the position within the epoch is not known"
            )
            return
        with self._saves.logged():
            self._saves.wait()
        with self._saves.logged():
            last = self._last
            if progress < last.progress or not snapshot.is_whole:
                log.warning(
                    "no later state than the last checkpoint is saved (finished epochs: %d, steps: %d)",
                    *last.progress,
                )
                return
            if progress == last.progress and last.path is not None and last.path.exists():
                log.warning(
                    "the last checkpoint is %s (finished epochs: %d, steps: %d)", last.path, *progress
                )
                return
            path, before = self._begin(progress, None)
            write_states(path, snapshot.states or [], sharded=sharded)
            self._complete(path, before)
            log.warning("the state is saved as %s (finished epochs: %d, steps: %d)", path, *progress)

    def _begin(self, progress: Progress, results: Results | None) -> tuple[Path, Path | None]:
        """Return the folder for a checkpoint, and the checkpoint that it replaces."""
        last, path = self._last, self._folder.new()
        self._last, self._begun_at = _Place(progress, path, results is None), SYSTEM.monotonic()
        if results is not None:
            with self._saves.logged():
                reduced = reduce_metrics(results)
                self._folder.note(path, reduced, self._to_note((reduced, results)))
        # If the epoch has ended without a step after the last checkpoint, the checkpoint of the epoch's end
        # replaces this checkpoint.
        ends = last.within_epoch and progress == (last.progress[0] + 1, last.progress[1])
        return path, last.path if ends else None

    def _to_note(self, results: Owed) -> Owed | None:
        """Return `results` if a resumed trainer needs them, and if `metrics.json` can hold them."""
        try:
            return results if self._updates and json.dumps(results) else None
        except TypeError as error:
            self._warn(
                f"train(): {error}: a program that is killed between train() and update_scheduler() loses "
                "this update, unless train_epoch returns only numbers and strings"
            )
            return None

    def _outdated(self, path: Path, before: Path | None) -> list[Path]:
        """Return the checkpoints to delete once `path`, which replaces `before`, is complete."""
        outdated = self._folder.outdated(path)
        return outdated if before is None or before in outdated else [*outdated, before]

    def _complete(self, path: Path, before: Path | None) -> None:
        self._saves.failure = None
        remove_all(self._outdated(path, before))

    def moved(self, progress: Progress) -> None:
        """Note that the workers have loaded a state with this progress, which may be less than before."""
        self._last = _Place(progress)

    def note(self, progress: Progress, metrics: Mapping[str, Any]) -> None:
        """Add metrics of validation to the last checkpoint, if it has this progress."""
        if self._last.path is not None and self._last.progress == progress:
            with self._saves.logged():
                self._folder.note(self._last.path, metrics)
            self._warn_without_score()

    def note_update(self, progress: Progress, metric: Any) -> None:
        """Note a call of `update_scheduler` in the last checkpoint, if it has this progress and was written
        at an epoch's end.
        """
        last = self._last
        if last.path is not None and last.progress == progress and self._folder.has_metrics(last.path):
            number = metric.item() if hasattr(metric, "item") else metric
            if number is None or isinstance(number, (int, float)):
                with self._saves.logged():
                    self._folder.note_update(last.path, number)
            else:
                self._warn(
                    f"update_scheduler(): {metric!r} is not a number: a resumed trainer skips this call"
                )

    def _warn_without_score(self) -> None:
        """Warn if the last checkpoint of an epoch's end has no score."""
        path, name = self._last.path, self._config.checkpoint_score_attribute
        if path is not None and self._folder.has_metrics(path) and self._folder.score(path) == -math.inf:
            self._warn(
                f"checkpoint_score_attribute={name!r} is missing or nan in the metrics of train() and "
                "validate(): checkpoints without it are kept only while they are the newest"
            )

    def begin_epoch(self) -> None:
        """Note that an epoch begins."""
        self._epoch_begun_at = SYSTEM.monotonic()

    def end_epoch(self, global_step: int) -> None:
        """Warn at the end of an epoch in which the workers could not pause for a due checkpoint."""
        every_s, since = self._config.every_s, max(self._begun_at, self._epoch_begun_at)
        late = every_s is not None and SYSTEM.monotonic() > since + 2 * every_s
        if late or self._multiples(global_step - 1) > 0:
            self._warn(
                f"{'every_s' if late else 'every_steps'}: no checkpoint was written within the epoch, "
                "because the workers can't save this loop or data there (your own train_epoch must increase "
                "self.global_step and call iterator.add(metrics) after each batch); checkpoints are written "
                "at the end of each epoch"
            )

    def _warn(self, text: str) -> None:
        if (subject := text.partition(":")[0]) not in self._warned:
            self._warned.add(subject)
            log.warning("%s", text)

    def close(self) -> None:
        """Wait for the last checkpoint, and let other trainers use the folder."""
        try:
            with self._saves.logged():
                self._saves.end()
        finally:
            self._folder.close()

    def resume(self, load: Callable[[Path], None], progress: Callable[[], Progress]) -> Owed | None:
        """Lock the folder and load the newest checkpoint.

        If the newest checkpoint is damaged, warn and load the checkpoint before it.

        Args:
            load: function that loads a checkpoint into the workers.
            progress: function that returns the workers' progress.

        Returns:
            The results of the last epoch if the program was killed between this epoch and
            `update_scheduler`. The next call of `train` must only return them, so that the program calls
            `update_scheduler`.

        Raises:
            CheckpointError: another trainer uses the folder, a checkpoint does not fit the registered objects
                or was written by another program, or all checkpoints are damaged.
        """
        self._folder.open()
        damaged: dict[Path, CheckpointError] = {}
        for path in reversed(self._folder.complete()):
            try:
                load(path)
            except CheckpointError as error:
                found = error if isinstance(error, UnequalPlacesError) else damage(path)
                if found is None:
                    raise
                damaged[path] = found
                continue
            self._last = _Place(progress(), path, within_epoch=not self._folder.has_metrics(path))
            for bad, reason in damaged.items():
                log.warning(
                    "%s; %s is loaded instead, and %s is kept as %s", reason, path, bad, set_aside(bad)
                )
            owed = self._folder.owed(path)
            text = "TorchTrainer resumes from %s (finished epochs: %d, steps: %d)"
            again = "" if owed is None else "; the first train() only returns the result of the last epoch"
            log.warning(text + again, path, *self._last.progress)
            return owed
        if damaged:
            reasons = "; ".join(map(str, damaged.values()))
            raise CheckpointError(
                f"no checkpoint in {self._folder.path} can be loaded: {reasons}. Move this folder away to "
                "begin again"
            )
        return None

    def _multiples(self, global_step: int) -> int:
        """Return how many multiples of `every_steps` training has passed since the last checkpoint."""
        every = self.every_steps
        return 0 if every is None else global_step // every - self._last.progress[1] // every


def set_aside(damaged: Path) -> Path:
    """Rename a damaged checkpoint or file, so that the trainer ignores it; return its new path."""
    aside = damaged.with_name(f"damaged_{damaged.name}")
    shutil.rmtree(aside, ignore_errors=True)
    os.rename(damaged, aside)
    return aside
