"""Metrics of a session: counters, gauges and histograms, with the interface of `ray.util.metrics`.

Each process stores its values in its own files in the session's folder, by means of Prometheus' Python
library. `prometheus_text` combines the files of all processes of the session, including processes that have
ended. If no session is running, nothing is stored.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, MissingDependencyError
from trainkit.runtime import session
from trainkit.runtime.engine import Engine

FOLDER = "metrics"
"""Subfolder of the session's folder for the metrics files."""
_VALID = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_VALID_TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PAGE = 4096


def _library(module: str) -> Any:
    try:
        return importlib.import_module(f"prometheus_client.{module}")
    except ImportError as error:
        raise MissingDependencyError.of("metrics need prometheus-client", "metrics", error) from error


@functools.cache
def _file_class() -> Any:
    base = _library("mmap_dict").MmapedDict

    class File(base):  # type: ignore[misc, valid-type]
        """Memory-mapped file of numbers by key.

        Disk space is reserved in advance, because a failed write to mapped memory would kill the process.
        """

        def _init_value(self, key: str) -> None:
            size = self._capacity
            # Besides its key, an entry takes up to 32 bytes: length, padding, value and time.
            while self._used + len(key.encode()) + 32 > size:
                size *= 2
            if size > self._capacity:
                _allocate(self._f.fileno(), self._capacity, size)
            super()._init_value(key)

    return File


def _allocate(file: int, begin: int, end: int) -> None:
    """Extend a file to `end`, and reserve disk space from `begin`.

    Raises:
        OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, begin, end - begin)
    else:
        os.pwrite(file, bytes(end - begin), begin)


class _Values:
    """Metric values that this process records in the running session. Each kind of metric has one file."""

    def __init__(self) -> None:
        self._forget()
        # A forked child process must not write to its parent's files.
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # A signal handler or a `__del__` may record a value in this thread while the thread is writing
        # another value. In this case, the value is queued.
        self._lock = threading.RLock()
        self._asked: list[tuple[Metric, float, dict[str, str], bool]] = []
        self._writes = False
        self._engine: weakref.ref[Engine] | None = None
        self._files: dict[str, Any] = {}
        self._is_full = False

    def write(
        self, engine: Engine, metric: Metric, value: float, labels: dict[str, str], *, adds: bool
    ) -> None:
        """Set a value of a metric, or add to the current value."""
        with self._lock:
            self._asked.append((metric, value, labels, adds))
            while self._asked and not self._writes:
                self._write_asked(engine)

    def _write_asked(self, engine: Engine) -> None:
        self._writes = True
        try:
            if self._engine is None or self._engine() is not engine:
                self.close()
                self._engine = weakref.ref(engine)
                session.at_end(self.close)
            while self._asked:
                metric, value, labels, adds = self._asked.pop(0)
                if self._is_full:
                    continue
                file = self._files.get(metric._kind)
                if file is None:
                    file = self._opened(engine.scratch_dir() / FOLDER, metric._kind)
                    self._files[metric._kind] = file
                for key, number in metric._entries(value, labels):
                    file.write_value(key, number + file.read_value(key)[0] if adds else number, SYSTEM.now())
        except OSError as error:  # If the metric can't be recorded, the caller must not fail.
            self._is_full = True
            sys.stderr.write(f"trainkit: metrics of this process are no longer recorded: {error}\n")
        finally:
            self._writes = False

    def close(self) -> None:
        """Close the files of a session that has ended."""
        with self._lock:
            files, self._files, self._is_full = self._files, {}, False
            for file in files.values():
                file.close()

    def _opened(self, folder: Path, kind: str) -> Any:
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{kind}_{os.getpid()}.db"
        # An existing file was written by an earlier process with the same pid. Counters continue from the
        # values in this file.
        if not path.exists():
            # Readers must not see a file before its space is allocated, so it is created under a temporary
            # name.
            begun = path.with_suffix(".begun")
            try:
                with open(begun, "wb") as file:
                    _allocate(file.fileno(), 0, _PAGE)
            except OSError:
                begun.unlink(missing_ok=True)
                raise
            begun.rename(path)
        return _file_class()(str(path))


_values = _Values()


def prometheus_text(folder: Path | None = None) -> str:
    """Return the metrics of a session in Prometheus' text format.

    Counters and histograms are summed over all processes of the session, including processes that have ended.
    The value of a gauge is the value that was set last in any process. The dashboard serves this text at
    `/api/sessions/SESSION/metrics`.

    Args:
        folder: folder with the metrics files of a session; None means the running session.

    Raises:
        ConfigError: the session runs on Ray, which provides its metrics itself.
        MissingDependencyError: the package prometheus-client is not installed.
    """
    if folder is None:
        engine = session.running()
        if engine is None:
            return ""
        if engine.name == "ray":
            raise ConfigError(
                "Ray serves the metrics of its sessions itself, at the metrics_export_port of a node"
            )
        folder = engine.scratch_dir() / FOLDER
    if not folder.is_dir():
        return ""
    registry = _library("registry").CollectorRegistry()
    _library("multiprocess").MultiProcessCollector(registry, path=str(folder))
    text: bytes = _library("exposition").generate_latest(registry)
    return text.decode()


class Metric:
    """Base class of metrics.

    Args:
        name: name of the metric: letters, digits, "_" and ":", not beginning with a digit. For any other
            name, a warning is logged, and the metric stores no values.
        description: description shown with the metric.
        tag_keys: names of the tags that each value has: letters, digits and "_", not beginning with a digit.

    Raises:
        TypeError: `tag_keys` is not a tuple of strings.
        ValueError: the name is empty, a tag's name is invalid, or another kind of metric has this name.
    """

    _kind = ""
    _reserved = ""
    _kinds: ClassVar[dict[str, str]] = {}

    def __init__(self, name: str, description: str = "", tag_keys: tuple[str, ...] | None = None) -> None:
        if not name:
            raise ValueError("the name of a metric must not be empty")
        self._is_valid = _VALID.fullmatch(name) is not None
        if not self._is_valid:
            warnings.warn(
                f"the metric {name!r} is discarded: use letters, digits, _ and :, but no digit at the start",
                UserWarning,
                stacklevel=2,
            )
        self._name = name
        self._description = description
        self._tag_keys = tag_keys or ()
        self._default_tags: dict[str, str] = {}
        self._keys: dict[tuple[str, ...], str] = {}
        self._of_ray: Any = None
        if not isinstance(self._tag_keys, tuple):
            raise TypeError(f"tag_keys must be a tuple of strings, not {self._tag_keys!r}")
        for key in self._tag_keys:
            if not isinstance(key, str):
                raise TypeError(f"tag_keys must be a tuple of strings, but {key!r} is not a string")
            if not _VALID_TAG.fullmatch(key) or key == self._reserved:
                raise ValueError(
                    f"{name} can't have a tag {key!r}: use letters, digits and _, but no digit at the start"
                    + (f", and not {key}, which Prometheus reserves" if key == self._reserved else "")
                )
        if self._kinds.setdefault(name, self._kind) != self._kind:
            raise ValueError(f"a metric {name!r} of a different type already exists: use a different name")

    def set_default_tags(self, default_tags: dict[str, str]) -> Self:
        """Set the tags of values that are recorded without explicit tags; return this metric.

        Raises:
            ValueError: a key is not among `tag_keys`.
            TypeError: a value is not a string.
        """
        self._require_tags(default_tags)
        self._default_tags = default_tags
        return self

    @property
    def info(self) -> dict[str, Any]:
        """Dictionary of the metric's name, description, tag keys and default tags."""
        return {
            "name": self._name,
            "description": self._description,
            "tag_keys": self._tag_keys,
            "default_tags": self._default_tags,
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keys": {}, "_of_ray": None}

    def _require_tags(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            if key not in self._tag_keys:
                raise ValueError(f"the metric {self._name} has no tag {key!r}: its tags are {self._tag_keys}")
            if not isinstance(value, str):
                raise TypeError(f"the tag {key} of the metric {self._name} must be a string, not {value!r}")

    def _labels(self, tags: Mapping[str, str] | None) -> dict[str, str]:
        self._require_tags(tags or {})
        given = {**self._default_tags, **(tags or {})}
        missing = [key for key in self._tag_keys if key not in given]
        if missing:
            raise ValueError(f"the metric {self._name} has no values for the tags {', '.join(missing)}")
        return {key: given[key] for key in self._tag_keys}

    def _key(self, suffix: str, labels: Mapping[str, str]) -> str:
        known = suffix, *labels.values()
        key = self._keys.get(known)
        if key is None:
            make, name = (
                _library("mmap_dict").mmap_key,
                self._name.removesuffix("_total" * (suffix == "_total")),
            )
            key = make(name, name + suffix, [*labels], [*labels.values()], self._description)
            self._keys[known] = key
        return key

    def _record(self, verb: str, value: float, tags: Mapping[str, str] | None) -> None:
        """Store a value; in a session on Ray, call the method `verb` of Ray's metric instead."""
        if not isinstance(value, int | float):
            raise TypeError(f"the value of a metric must be a number, not {value!r}")
        labels = self._labels(tags)
        if not self._is_valid:
            return
        engine = session.running()
        if engine is None:
            return
        if engine.name == "ray":
            if self._of_ray is None:
                self._of_ray = self._made_by(importlib.import_module("ray.util.metrics"))
            getattr(self._of_ray, verb)(value, labels)
        else:
            _values.write(engine, self, value, labels, adds=verb != "set")

    def _made_by(self, ray_metrics: Any) -> Any:
        return getattr(ray_metrics, type(self).__name__)(self._name, self._description, self._tag_keys)

    def _entries(self, value: float, labels: dict[str, str]) -> list[tuple[str, float]]:
        """Return the entries that change when `value` is recorded, as pairs of a key and a number."""
        return [(self._key("", labels), value)]


class Counter(Metric):
    """Metric that only grows, such as the number of samples read; see `Metric` for the arguments."""

    _kind = "counter"

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Increase the counter.

        Raises:
            ValueError: `value` is not above 0, or `tags` do not match the metric's tags.
            TypeError: `value` is not a number, or a tag is not a string.
        """
        if isinstance(value, int | float) and value <= 0:
            raise ValueError(f"the counter {self._name} cannot decrease: inc({value}) needs a positive value")
        self._record("inc", value, tags)

    def _entries(self, value: float, labels: dict[str, str]) -> list[tuple[str, float]]:
        return [(self._key("_total", labels), value)]


class Gauge(Metric):
    """Metric that rises and falls, such as the number of waiting requests; see `Metric` for the arguments."""

    _kind = "gauge_mostrecent"
    _reserved = "pid"

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        """Set the gauge for the whole session, replacing the values of all processes; None changes nothing.

        Raises:
            ValueError: `tags` do not match the metric's tags.
            TypeError: `value` is not a number, or a tag is not a string.
        """
        if value is not None:
            self._record("set", value, tags)


class Histogram(Metric):
    """Metric that counts how many values lie between given boundaries, and sums the values.

    Args:
        name, description, tag_keys: see `Metric`.
        boundaries: upper limits of the intervals, above 0 and increasing. A last interval, up to infinity, is
            added.

    Raises:
        ValueError: the boundaries are missing, or not above 0 and increasing.
    """

    _kind = "histogram"
    _reserved = "le"

    def __init__(
        self,
        name: str,
        description: str = "",
        boundaries: Sequence[float] | None = None,
        tag_keys: tuple[str, ...] | None = None,
    ) -> None:
        super().__init__(name, description, tag_keys)
        if boundaries is None or len(boundaries) == 0:
            raise ValueError(f"the histogram {name} needs boundaries, such as boundaries=[0.1, 1.0]")
        if min(boundaries) <= 0 or sorted(set(boundaries)) != list(boundaries):
            raise ValueError(f"boundaries={boundaries} must be increasing numbers above 0")
        self.boundaries = boundaries

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Record a value.

        Raises:
            ValueError: `tags` do not match the metric's tags.
            TypeError: `value` is not a number, or a tag is not a string.
        """
        self._record("observe", value, tags)

    @property
    def info(self) -> dict[str, Any]:
        """Dictionary of the metric's name, description, tag keys, default tags and boundaries."""
        return {**super().info, "boundaries": self.boundaries}

    def _made_by(self, ray_metrics: Any) -> Any:
        return ray_metrics.Histogram(self._name, self._description, list(self.boundaries), self._tag_keys)

    def _entries(self, value: float, labels: dict[str, str]) -> list[tuple[str, float]]:
        shown = _library("utils").floatToGoString
        ends = [*(float(end) for end in self.boundaries if end < math.inf), math.inf]
        own = next((end for end in ends if value <= end), ends[-1])
        buckets = [(self._key("_bucket", {**labels, "le": shown(end)}), float(end == own)) for end in ends]
        return [*buckets, (self._key("_sum", labels), value)]
