"""TensorBoard logger, and the binary format of its event files."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from trainkit.tune.callbacks.loggers import FileLoggerCallback
from trainkit.tune.core.checks import is_finite, is_number
from trainkit.tune.core.metrics import PLAIN_TYPES, flatten, step_of
from trainkit.tune.core.trial import Trial, TrialStatus

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_HPARAMS = "_hparams_"
_HPARAMS_TAG = f"{_HPARAMS}/".encode()
_HEAD_OF_STEP, _HEAD_OF_SUMMARY = bytes([2 << 3 | _VARINT]), bytes([5 << 3 | _BYTES])
_double = struct.Struct("<Bd").pack
_float = struct.Struct("<f").pack
_FLOAT_MAX = 3.4028234663852886e38
_STRING, _BOOL, _NUMBER = 1, 2, 3
_SUCCESS, _FAILURE = 1, 2


# --- messages -------------------------------------------------------------------------------------


def file_version(wall_time: float) -> bytes:
    """Return the event with which every event file begins."""
    return _event(wall_time, 0) + _text(3, "brain.Event:2")


def restart(wall_time: float, step: int) -> bytes:
    """Return an event that makes readers discard this step and later steps, even from other files."""
    return _event(wall_time, step) + _message(7, _whole(1, 1))


def scalars(wall_time: float, step: int, values: Sequence[tuple[str, float]]) -> bytes:
    """Return one event with a scalar for each tag."""
    try:
        summary = b"".join([_head_of_scalar(tag) + _float(value) for tag, value in values])
    except OverflowError:
        summary = b"".join([_head_of_scalar(tag) + _float(_as_float(value)) for tag, value in values])
    return _event(wall_time, step) + _message(5, summary)


def hyperparameters(
    wall_time: float, config: Mapping[str, Any], metrics: Sequence[str], *, failed: bool
) -> tuple[bytes, bytes, bytes]:
    """Return three events for the HPARAMS tab: names and types, a run's values, and the run's final status.

    Args:
        wall_time: time in seconds since 1970. If all runs pass the same time, the first and the last event
            are equal for runs with equal names, types and status.
        config: flat hyperparameters. Values other than numbers, booleans and strings become strings; None is
            left out.
        metrics: tags of the scalars to show beside the hyperparameters.
        failed: True if the run failed.
    """
    typed = {name: _typed(value) for name, value in config.items() if value is not None}
    kinds = tuple((name, kind) for name, (kind, _) in typed.items())
    given = [_message(1, _text(1, name) + _message(2, value)) for name, (_, value) in typed.items()]
    return (
        _there_is(wall_time, kinds, tuple(metrics)),
        _of_plugin(wall_time, "session_start_info", 3, b"".join(given)),
        _ended(wall_time, _FAILURE if failed else _SUCCESS),
    )


@lru_cache(maxsize=256)  # the cache helps because the same arguments recur for many trials
def _there_is(wall_time: float, kinds: tuple[tuple[str, int], ...], metrics: tuple[str, ...]) -> bytes:
    infos = [_message(4, _text(1, name) + _whole(4, kind)) for name, kind in kinds]
    infos += [_message(5, _message(1, _text(2, tag))) for tag in metrics]
    return _of_plugin(wall_time, "experiment", 2, b"".join(infos))


@lru_cache(maxsize=256)
def _ended(wall_time: float, status: int) -> bytes:
    return _of_plugin(wall_time, "session_end_info", 4, _whole(1, status))


def _of_plugin(wall_time: float, name: str, number: int, content: bytes) -> bytes:
    plugin = _text(1, "hparams") + _message(2, _message(number, content))
    value = _text(1, f"{_HPARAMS}/{name}") + _message(9, _message(1, plugin))
    return _event(wall_time, 0) + _message(5, _message(1, value))


def _typed(value: Any) -> tuple[int, bytes]:
    """Return the type of a hyperparameter, and its value as an encoded google.protobuf.Value."""
    if isinstance(value, bool):
        return _BOOL, _whole(4, value)
    if is_number(value):
        return _NUMBER, struct.pack("<Bd", 2 << 3 | _EIGHT_BYTES, float(value))
    text = value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)
    return _STRING, _text(3, text)


def _event(wall_time: float, step: int) -> bytes:
    return _double(1 << 3 | _EIGHT_BYTES, wall_time) + (_whole(2, step) if step else b"")


@lru_cache(maxsize=4096)
def _head_of_scalar(tag: str) -> bytes:
    """Return an encoded scalar of a Summary message without its last four bytes, which contain the number."""
    head = _text(1, tag) + bytes([2 << 3 | _FOUR_BYTES])
    return bytes([1 << 3 | _BYTES]) + _varint(len(head) + 4) + head


def _as_float(value: float) -> float:
    """Round to single precision; values out of range become infinite, as in protocol buffers."""
    if -_FLOAT_MAX <= value <= _FLOAT_MAX or value != value:
        return value
    return float("inf") if value > 0 else float("-inf")


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode("utf-8", "backslashreplace"))


def _message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def _whole(number: int, value: int) -> bytes:
    return bytes([number << 3 | _VARINT]) + _varint(value)


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # protocol buffers encode a negative number as its 64-bit two's complement
    if value < 128:
        return bytes([value])
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


# --- records --------------------------------------------------------------------------------------


def records(events: Sequence[bytes]) -> list[bytes]:
    """Return each event as a record: length, checksum of the length, event, checksum of the event."""
    return [
        _head_of_record(len(event)) + event + struct.pack("<I", checksum)
        for event, checksum in zip(events, _masked(events), strict=True)
    ]


def events_of(data: bytes) -> list[bytes]:
    """Return the events in a file's records, up to the first incomplete record; checksums are ignored."""
    events, at = [], 0
    while at + 12 <= len(data):
        end = at + 12 + int.from_bytes(data[at : at + 8], "little")
        if end + 4 > len(data):
            break
        events.append(data[at + 12 : end])
        at = end + 4
    return events


def is_summary(event: bytes) -> bool:
    """Return True for an event that the function `scalars` or `hyperparameters` has made."""
    at = 9  # the event's time takes the first 9 bytes
    if event[at : at + 1] == _HEAD_OF_STEP:
        at += 1
        while event[at] & 128:
            at += 1
        at += 1
    return event[at : at + 1] == _HEAD_OF_SUMMARY


def is_hyperparameters(event: bytes) -> bool:
    """Return True for one of the three events that the function `hyperparameters` makes."""
    return event.find(_HPARAMS_TAG, 0, 64) >= 0


@lru_cache(maxsize=256)
def same_record(event: bytes) -> bytes:
    """Return the record of an event from a cache.

    Use this function for events that are equal in many files.
    """
    return records([event])[0]


@lru_cache(maxsize=4096)
def _head_of_record(length: int) -> bytes:
    head = struct.pack("<Q", length)
    return head + struct.pack("<I", _masked([head])[0])


def _next_state(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_next_state(byte) for byte in range(256)]
"""CRC-32C table: next state for each byte; the reflected polynomial is 0x82F63B78."""
_FEW = 40
"""Minimum number of byte strings for which one vectorised pass is faster than a loop."""


def _masked(texts: Sequence[bytes]) -> list[int]:
    """Return the checksums of byte strings, masked (rotated and offset) as records require."""
    crcs = crc32c(texts)
    return [((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF for crc in crcs]


def crc32c(texts: Sequence[bytes]) -> list[int]:
    """Return the CRC-32C of each byte string. Source: RFC 3720, appendix B.4."""
    if len(texts) < _FEW:
        return [_crc32c(text) for text in texts]
    # NumPy is imported here, because programs that only restore or read an experiment don't need it.
    import numpy as np

    table = np.array(_TABLE, dtype=np.uint32)
    # The byte strings are sorted by length, longest first, so that finished byte strings are always at the
    # end.
    order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
    lengths = np.array([len(texts[place]) for place in order])
    longest = int(lengths[0])
    grid = np.frombuffer(b"".join(texts[place].ljust(longest, b"\0") for place in order), dtype=np.uint8)
    columns = np.ascontiguousarray(grid.reshape(len(order), longest).T)
    still = len(order) - np.searchsorted(lengths[::-1], np.arange(longest), side="right")
    crc = np.full(len(order), 0xFFFFFFFF, dtype=np.uint32)
    for column, count in zip(columns, still.tolist(), strict=True):
        part = crc[:count]
        crc[:count] = table[(part ^ column[:count]) & 0xFF] ^ (part >> 8)
    found = [0] * len(texts)
    for place, value in zip(order, (~crc).tolist(), strict=True):
        found[place] = value
    return found


def _crc32c(text: bytes) -> int:
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in text:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


OWN_SUFFIX = ".trainkit"
"""Suffix of the logger's own files, because the trial itself may write event files to its folder."""
_NO_SCALARS = frozenset(
    {"config", "training_iteration", "timestamp", "iterations_since_restore", "time_since_restore", "pid"}
)
_TIMES = frozenset({"time_this_iter_s", "time_total_s"})


def _numbers(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return tag and value of each number of a report that TensorBoard shows."""
    values = []
    for name, value in result.items():
        if name not in _NO_SCALARS:
            kind = type(value)
            if (kind is float or kind is int) and type(name) is str:  # this fast path handles most values
                values.append((name, value))
            elif kind not in PLAIN_TYPES or type(name) is not str:
                values += [(tag, each) for tag, each in flatten({name: value}).items() if is_number(each)]
    return values


class TBXLoggerCallback(FileLoggerCallback):
    """TensorBoard logger; view the logs with `tensorboard --logdir` and the experiment's folder.

    Tags are the metrics' names, with nested names joined by '/'. Numbers are shown, including NaN and
    infinities. Strings, booleans and lists are not shown. The step is `timesteps_total` if trials report this
    value, otherwise the iteration. A trial that resumes after a failure or a restore has no duplicate steps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()
        self._begun = 0.0
        self._paths: dict[str, str] = {}
        self._shown: dict[str, list[str]] = {}
        """Tags of the last report, by trial, for the HPARAMS tab."""

    def setup(self, *given: Any, **info: Any) -> None:
        self._begun = float(info["time"])
        super().setup(*given, **info)

    def log_trial_results(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        path, parts = self._paths.get(trial.trial_id), []
        if path is None:
            path = self._paths[trial.trial_id] = self._new_path(trial)
            parts = [same_record(file_version(self._begun))]
        parts += self._records(trial, results)
        if trial.status.is_finished:  # a finished trial makes no further reports, so its state is released
            parts += self._last_records(trial)
        with open(path, "ab") as file:
            file.write(b"".join(parts))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        path = self._paths.get(trial.trial_id)
        if path is not None and trial.status.is_finished:
            with open(path, "ab") as file:
                file.write(b"".join(self._last_records(trial)))
        self._forget(trial)

    def length(self, trial: Trial) -> int:
        files = [self.contents(trial, name) for name in self._own_files(trial)]
        summaries = [event for file in files for event in events_of(file) if is_summary(event)]
        ends = sum(map(is_hyperparameters, summaries))
        whole = ends == (3 if trial.status.is_finished else 0)
        return len(summaries) - ends if whole else -1

    def _rewrite_log(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> None:
        """Replace the old file by a new file, which makes a running TensorBoard discard the old data."""
        old = self._own_files(trial)
        self._paths.pop(trial.trial_id, None)
        if results:
            path = Path(self._new_path(trial))
            path.parent.mkdir(exist_ok=True)
            head = [file_version(self._begun), restart(self._begun, 0)]
            parts = [*map(same_record, head), *self._records(trial, results)]
            if trial.status.is_finished:
                parts += self._last_records(trial)
            else:
                self._paths[trial.trial_id] = str(path)
            aside = path.with_name(".tensorboard.partial")
            aside.write_bytes(b"".join(parts))
            aside.rename(path)
            old = [each for each in old if each != path.name]
        for each in old:
            (self.trial_dir(trial) / each).unlink()

    def _new_path(self, trial: Trial) -> str:
        name = f"events.out.tfevents.{int(self._begun):010d}.{self._host}.{trial.attempt}{OWN_SUFFIX}"
        return f"{self.folder}/{trial.dirname}/{name}"

    def _own_files(self, trial: Trial) -> list[str]:
        try:
            names = os.listdir(f"{self.folder}/{trial.dirname}")
        except FileNotFoundError:  # the trial never ran
            return []
        return [name for name in names if name.endswith(OWN_SUFFIX)]

    def _records(self, trial: Trial, results: Sequence[Mapping[str, Any]]) -> list[bytes]:
        events, tags = [], []
        for result in results:
            values = _numbers(result)
            date = result.get("timestamp")
            wall_time = float(date) if date is not None and is_finite(date) else self._begun
            events.append(scalars(wall_time, step_of(result), values))
            tags = [tag for tag, _ in values]
        self._shown[trial.trial_id] = [tag for tag in tags if tag not in _TIMES]
        return records(events)

    def _last_records(self, trial: Trial) -> list[bytes]:
        """Return the last records of a trial's event file, and forget the trial."""
        there_is, given, ended = hyperparameters(
            self._begun,
            flatten(trial.config),
            self._shown.get(trial.trial_id, []),
            failed=trial.status is TrialStatus.ERROR,
        )
        self._forget(trial)
        same = same_record
        return [same(there_is), *records([given]), same(ended)]

    def _forget(self, trial: Trial) -> None:
        self._paths.pop(trial.trial_id, None)
        self._shown.pop(trial.trial_id, None)
