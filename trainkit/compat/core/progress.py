"""Progress by the names of `ray.experimental.tqdm_ray`, in lines: as such, the output of workers is shown."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from typing import Any, Self

from trainkit.clock import SYSTEM


class tqdm:
    """Count of what is done, shown as a line of standard output each time that some seconds have passed.

    Args:
        iterable: what is counted; None if `update` is called.
        desc: text before the count.
        total: how many there will be; default, the length of `iterable` if it has one.
        unit: name of one of them.
        position: without effect, as lines follow one another.
        flush_interval_s: seconds between two lines.

    Attributes:
        n: how many are done.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: float | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float = 1.0,
    ) -> None:
        del position
        self._iterable = iterable
        self._desc = desc
        self._unit = unit or "it"
        self._interval_s = flush_interval_s
        self._begun_at = self._shown_at = SYSTEM.monotonic()
        self._shown_n: float | None = None
        self.total = len(iterable) if total is None and isinstance(iterable, Sized) else total
        self.n: float = 0

    def set_description(self, desc: str) -> None:
        """Change the text before the count."""
        self._desc = desc

    def update(self, n: float = 1) -> None:
        """Count `n` more."""
        self.n += n
        if SYSTEM.monotonic() - self._shown_at >= self._interval_s:
            self.refresh()

    def refresh(self) -> None:
        """Show the count as it is now."""
        self._shown_at, self._shown_n = SYSTEM.monotonic(), self.n
        passed_s = self._shown_at - self._begun_at
        rate = f", {self.n / passed_s:.2f} {self._unit}/s" if passed_s else ""
        of = f"/{self.total} ({100 * self.n / self.total:.0f}%)" if self.total else ""
        safe_print(f"{self._desc}: " * bool(self._desc) + f"{self.n}{of} in {passed_s:.1f} s{rate}")

    def close(self) -> None:
        """Show the last count, unless it was shown."""
        if self.n != self._shown_n:
            self.refresh()

    def __iter__(self) -> Iterator[Any]:
        try:
            for item in () if self._iterable is None else self._iterable:
                yield item
                self.update()
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def safe_print(*args: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = True) -> None:
    """Print, as a line of its own among those of the counts; the arguments are those of `print`."""
    out = file or sys.stdout
    out.write(sep.join(map(str, args)) + end)
    if flush:
        out.flush()
