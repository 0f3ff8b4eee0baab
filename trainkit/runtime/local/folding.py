"""Lines that several workers print alike: shown once, and then how often they were repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

WINDOW_S = 5.0
TICK_S = 1.0
_MOST_LINES = 1_000


@dataclass
class Repeated:
    """A line that was shown, and its repetitions since.

    Attributes:
        source: number of the worker whose line was shown.
        since: when that was, by the monotonic clock.
        name: of the worker that repeated it last.
        pid: of that worker.
        count: how often other workers have repeated it since it was last shown.
        latest: when that last happened.
    """

    source: int
    since: float
    is_error: bool
    line: str
    name: str = ""
    pid: int = 0
    count: int = 0
    latest: float = 0.0

    @property
    def text(self) -> str:
        """The line with the number of its repetitions; a single one is shown as it is."""
        return self.line if self.count == 1 else f"{self.line} [repeated {self.count}x by other workers]"


class Folding:
    """Lines shown within the last seconds, so that other workers' repetitions of them are only counted.

    A worker's repetitions of its own lines are shown, and so is every line that differs by one character.
    """

    def __init__(self) -> None:
        self._shown: dict[tuple[bool, str], Repeated] = {}

    def __bool__(self) -> bool:
        return bool(self._shown)

    def fresh(
        self, source: int, name: str, pid: int, is_error: bool, lines: Sequence[str], now: float
    ) -> list[str]:
        """Return those of `lines` that are to be shown now; the others are counted.

        Args:
            source: number of the worker that printed them.
            name: of that worker.
            pid: of that worker.
            is_error: they came from its standard error.
            lines: in order.
            now: by the monotonic clock.
        """
        found = []
        for line in lines:
            known = self._shown.get((is_error, line))
            if known is None or known.source == source:
                found.append(line)
                if known is None and line.strip() and len(self._shown) < _MOST_LINES:
                    self._shown[is_error, line] = Repeated(source, now, is_error, line)
            else:
                known.name, known.pid = name, pid
                known.count, known.latest = known.count + 1, now
        return found

    def due(self, now: float) -> list[Repeated]:
        """Return the repetitions to be shown now: of lines whose time is up, and single ones a second later.

        Lines whose time is up are forgotten.
        """
        over = [key for key, known in self._shown.items() if known.since + WINDOW_S <= now]
        found = [known for known in map(self._shown.pop, over) if known.count]
        alone = [k for k in self._shown.values() if k.count == 1 and k.latest + TICK_S <= now]
        return found + _taken(alone)

    def last_of(self, pid: int) -> list[Repeated]:
        """Return the repetitions to be shown now that the worker has ended which made the last of each."""
        return _taken([known for known in self._shown.values() if known.count and known.pid == pid])


def _taken(pending: list[Repeated]) -> list[Repeated]:
    """Return copies of `pending`, of which nothing is pending any more."""
    taken = [replace(known) for known in pending]
    for known in pending:
        known.count = 0
    return taken
