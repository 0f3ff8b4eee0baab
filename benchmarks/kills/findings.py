"""Findings: pure comparisons of acknowledged results with those that are there in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

Acks = Sequence[Sequence[Any]]
"""Acknowledged results in the order of time; the first entry of each is its kind."""
Check = Callable[[Acks, Any, Any], "Findings"]
"""Function of acknowledged results, the outcome, and the outcome of an undisturbed run."""


@dataclass
class Findings:
    """Result of a cycle's check.

    Attributes:
        acknowledged: number of results that the program was told to be safe.
        there: number of these results that are there in the end.
        within: number of these results that are places within an epoch.
        lost: number of finished steps that were made again after a request to end.
        uncut: number of cuts that found no file.
        missing: acknowledged results that are not there.
        twice: results that are there more than once.
        differing: numbers that differ from those of an undisturbed run.
        ignored: requests to end that a program ignored.
        hung: waits that did not end, with the processes that waited.
        left: processes, segments, sockets and files that a program left behind.
        unnamed: errors about a damaged file that do not name it.
        exits: exit codes that do not name the signal that ended the program.
        apart: ranks that ended at different steps after a request to end.
        halves: incomplete files that a program left after a request to end.
    """

    acknowledged: int = 0
    there: int = 0
    within: int = 0
    lost: int = 0
    uncut: int = 0
    missing: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    halves: list[str] = field(default_factory=list)

    def compare(self, acknowledged: Iterable[Hashable], there: Iterable[Hashable]) -> None:
        """Note which acknowledged results are missing, and which results are there twice."""
        told, found = set(acknowledged), Counter(there)
        self.acknowledged += len(told)
        self.there += len(told & found.keys())
        self.missing += [str(each) for each in sorted(told - found.keys(), key=str)]
        self.twice += [str(each) for each, count in found.items() if count > 1]

    def equal(self, name: str, value: Any, expected: Any) -> None:
        """Note a value that differs from the expected value."""
        if value != expected:
            self.differing.append(f"{name}: {_short(value)} instead of {_short(expected)}")

    def add(self, other: Findings) -> None:
        """Add the findings of another check."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def faults(self) -> dict[str, list[str]]:
        """All that must not be, by kind."""
        return {name: found for name in FAULTY if (found := getattr(self, name))}


FAULTY = ("missing", "twice", "differing", "ignored", "hung", "left", "unnamed", "exits", "apart", "halves")
"""Attributes of `Findings` that must be empty."""


def of_kind(acks: Acks, kind: str) -> list[tuple[Any, ...]]:
    """Return the acknowledged results of one kind, without the kind."""
    return [tuple(ack[1:]) for ack in acks if ack[0] == kind]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
