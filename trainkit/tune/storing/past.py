"""What trials had reported before a restore, for callbacks to look at: read only where they do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload

Result = dict[str, Any]


class PastResults(Sequence[Result]):
    """A trial's results, oldest first; how many there are is known without reading them.

    Args:
        length: how many.
        read: reads them.
    """

    def __init__(self, length: int, read: Callable[[], list[Result]]) -> None:
        self._length = length
        self._read = read
        self._results: list[Result] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...
    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if self._results is None:
            self._results = self._read()
        return self._results[index]
