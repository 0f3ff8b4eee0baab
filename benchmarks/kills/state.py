"""State of a campaign: a file with a line of JSON for each cycle, from which the campaign resumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.kills.cycle import Record
from benchmarks.kills.findings import FAULTY
from benchmarks.kills.plan import FAULTS, Cycle, as_json

State = list[dict[str, Any]]


def read(path: Path | None, seed: int, parts: Sequence[str], *, signals: bool = False) -> State:
    """Return the cycles of a campaign so far; [] for a new campaign.

    Raises:
        ValueError: the file belongs to a campaign with a different seed, other parts, or other faults.
    """
    if path is None or not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        theirs = line.get("signals", False)
        if (line["seed"], line["parts"], theirs) != (seed, list(parts), signals):
            flag = " --signals" if theirs else ""
            raise ValueError(
                f"{path} belongs to a campaign with --seed {line['seed']} --parts {' '.join(line['parts'])}"
                f"{flag}: give the same arguments, or a different file"
            )
    return found


def line_of(
    cycle: Cycle, record: Record, seed: int, parts: Sequence[str], *, took_s: float, signals: bool = False
) -> dict[str, Any]:
    """Return the line of a cycle."""
    findings = record.findings
    return {
        "cycle": cycle.number,
        "part": cycle.part,
        "seed": seed,
        "parts": list(parts),
        "signals": signals,
        "struck": [as_json(strike) for strike in record.struck],
        "codes": record.codes,
        "acknowledged": findings.acknowledged,
        "there": findings.there,
        "within": findings.within,
        "lost": findings.lost,
        "uncut": findings.uncut,
        "took_s": round(took_s, 2),
        **findings.faults,
    }


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append the line of a cycle."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


@dataclass
class Total:
    """Sum over cycles.

    Attributes:
        cycles: number of cycles.
        kills: number of faults, by target and fault.
        acknowledged: number of acknowledged results.
        there: number of these results that are there in the end.
        within: number of these results that are places within an epoch.
        lost: number of finished steps that were made again after a request to end.
        uncut: number of cuts that found no file.
        phases: number of requests to end, by phase.
        faults: number of findings that must not be, by kind.
    """

    cycles: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    there: int = 0
    within: int = 0
    lost: int = 0
    uncut: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the line of a cycle."""
        self.cycles += 1
        self.kills.update(strike["fault"] for strike in line["struck"])
        self.acknowledged += line["acknowledged"]
        self.there += line["there"]
        self.within += line["within"]
        self.lost += line.get("lost", 0)
        self.uncut += line.get("uncut", 0)
        self.phases.update(strike["phase"] for strike in line["struck"] if strike.get("phase"))
        self.faults.update({name: len(line.get(name, ())) for name in FAULTY})


def totals(lines: Iterable[Mapping[str, Any]], parts: Iterable[str]) -> dict[str, Total]:
    """Return the total of each part."""
    found = {part: Total() for part in parts}
    for line in lines:
        found[line["part"]].add(line)
    return found


def table(found: Mapping[str, Total]) -> str:
    """Return a table with a line for each part: faults by kind, then what the checks found."""
    head = ["part", "cycles", *FAULTS, "uncut", "acked", "there", *FAULTY]
    rows = [
        [
            part,
            total.cycles,
            *(total.kills[fault] for fault in FAULTS),
            total.uncut,
            total.acknowledged,
            total.there,
            *(total.faults[name] for name in FAULTY),
        ]
        for part, total in found.items()
    ]
    widths = [max(len(str(row[at])) for row in [head, *rows]) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            f"{cell!s:>{width}}" if at else f"{cell!s:<{width}}"
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )
