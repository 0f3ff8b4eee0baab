"""Sources of a program's metrics: lines of its output, a JSON file, or TensorBoard's files.

A source reads files that the program writes. `new` returns the reports since the last call. A line or an
object without the metric is no report.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from trainkit.errors import ConfigError

Report = dict[str, Any]

_PAIR = re.compile(
    r"([A-Za-z_][\w./-]*)\s*[=:]\s*([-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?))(?!\w|\.\d)",
    re.IGNORECASE,
)
"""A name, "=" or ":", and a number, such as `loss=0.12` and `val/acc: 1e-3`."""


class Source(Protocol):
    """Source of reports."""

    def new(self, *, ended: bool = False) -> Iterator[Report]:
        """Yield the reports since the last call.

        Args:
            ended: True: the program has ended well, so that its last line is complete even without a newline.
        """


class GrowingFile:
    """File that a program appends to, read line by line.

    Args:
        path: path of the file, which need not exist yet.
        from_end: True: skip what the file contains already, such as lines of an earlier attempt.
    """

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset, self._earlier = 0, None
        if from_end and path.exists():
            self._offset, self._earlier = path.stat().st_size, path.stat().st_mtime_ns

    def lines(self, *, ended: bool = False) -> Iterator[str]:
        """Yield the lines since the last call; a line without its end is read later, unless `ended`."""
        if not self._path.exists():
            return
        now = self._path.stat()
        rewritten = now.st_size == self._offset and self._earlier not in (None, now.st_mtime_ns)
        if now.st_size < self._offset or rewritten:  # the program has begun the file again
            self._offset = 0
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n") and not ended:
                    return
                self._offset, self._earlier = self._offset + len(line), None
                yield line.decode(errors="replace").rstrip("\r\n")


class OutputLines:
    """Lines with metrics among a program's output.

    Without a pattern, a line is a report if it is a JSON object with the metric, or if it contains the metric
    as `name=number` or `name: number`; all numbers with a name in this line belong to the report.

    Args:
        file: the program's output.
        metric: name of the metric.
        pattern: regular expression with a named group for each metric, in place of the above.
    """

    def __init__(self, file: GrowingFile, metric: str, pattern: re.Pattern[str] | None = None) -> None:
        self._file, self._metric, self._pattern = file, metric, pattern

    def new(self, *, ended: bool = False) -> Iterator[Report]:
        for line in self._file.lines(ended=ended):
            found = matched(line, self._pattern) if self._pattern else metrics_in(line)
            if self._metric in found:
                yield found


def matched(line: str, pattern: re.Pattern[str]) -> Report:
    """Return the named groups of a pattern that is found in a line, as numbers where they are numbers."""
    found = pattern.search(line)
    groups = found.groupdict() if found else {}
    return {name: _value(text) for name, text in groups.items() if text is not None}


def metrics_in(line: str) -> Report:
    """Return the metrics of a line: a JSON object, or all numbers with a name."""
    if line.lstrip().startswith("{"):
        try:
            return dict(json.loads(line))
        except ValueError:
            pass  # an ordinary line that begins with a brace
    return {name: _value(text) for name, text in _PAIR.findall(line)}


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


class JsonFile:
    """JSON file with metrics: one object that the program writes again and again, or one object per line.

    Args:
        path: path of the file; a name that ends in `.jsonl` has one object per line.
        metric: name of the metric.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._path, self._metric = path, metric
        self._file = GrowingFile(path, from_end=True) if path.suffix == ".jsonl" else None
        # A new attempt may write the same text as an earlier attempt.
        self._earlier, self._last = self._state(), ""

    def new(self, *, ended: bool = False) -> Iterator[Report]:
        if self._file is not None:
            texts = [line for line in self._file.lines(ended=ended) if line.strip()]
        else:
            texts = self._changed(ended)
        for text in texts:
            found = _object(self._path, text)
            if self._metric in found:
                yield found

    def _changed(self, ended: bool) -> list[str]:
        """Return the text of the file if it has changed and is complete."""
        if self._state() in (None, self._earlier):
            return []
        text = self._path.read_text("utf-8", errors="replace").strip()
        if text == self._last or not (ended or _is_json(text)):
            return []
        self._last = text
        return [text]

    def _state(self) -> tuple[int, ...] | None:
        if not self._path.exists():
            return None
        stat = self._path.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False  # the program is writing the file
    return True


def _object(path: Path, text: str) -> Report:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} contains text that is not JSON: {text[:80]!r} ({error})") from None
    if not isinstance(found, Mapping):
        raise ConfigError(f'{path} contains {found!r}: write an object, such as {{"loss": 0.1}}')
    return dict(found)


_TENSOR_FORMS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""Formats of `struct` for the content of a tensor, by TensorFlow's numbers of types."""


class TensorBoardFiles:
    """Scalars in the event files of a folder; each step with the metric is a report.

    Args:
        folder: folder of the event files, with its subfolders.
        metric: tag of the metric.
    """

    def __init__(self, folder: Path, metric: str) -> None:
        self._folder, self._metric = folder, metric
        self._offsets = {path: path.stat().st_size for path in self._files()}
        self._values: Report = {}

    def new(self, *, ended: bool = False) -> Iterator[Report]:
        del ended
        for path in self._files():
            for event in self._events(path):
                for value in event.summary.value:
                    number = _scalar(value)
                    if number is not None:
                        self._values[value.tag] = number
                        if value.tag == self._metric:
                            yield {**self._values, "step": event.step}

    def _files(self) -> list[Path]:
        return sorted(self._folder.rglob("events.out.tfevents.*"))

    def _events(self, path: Path) -> Iterator[Any]:
        """Yield the complete events since the last call.

        A record is its length in 8 bytes, a checksum of 4, the event, and a checksum of 4 (TensorFlow,
        `record_writer.h`).
        """
        from tensorboardX.proto import event_pb2

        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            while len(head := file.read(12)) == 12:
                length = struct.unpack("<Q", head[:8])[0]
                body = file.read(length + 4)
                if len(body) < length + 4:
                    return
                self._offsets[path] = file.tell()
                yield event_pb2.Event.FromString(body[:length])


def _scalar(value: Any) -> float | None:
    """Return the number in a value of an event: a simple value, or a tensor as TensorFlow 2 writes it."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    tensor = value.tensor
    for number in (*tensor.float_val, *tensor.double_val):
        return float(number)
    form = _TENSOR_FORMS.get(tensor.dtype, "")
    if not form or len(tensor.tensor_content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, tensor.tensor_content)[0])
