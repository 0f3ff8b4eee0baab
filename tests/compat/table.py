"""docs/compatibility.md, made from the lists in tests/compat/peers, each row of which a test runs.

`python -m tests.compat.table` writes the page.
"""

from __future__ import annotations

from tests.compat.peers import SYSTEMS
from tests.compat.peers.base import ROOT

PAGE = ROOT / "docs" / "compatibility.md"

HEAD = """\
# What moves by its imports

A program of another system moves to trainkit by changing its imports, and nothing else. This page has what
became of the examples of those systems. A test runs each in a process of its own, without a network: one that
is said to run ends in order, and one that is not ends with the error that the reason tells of. "Not run" is
what can't run on such a machine under its own system either.
"""


def page() -> str:
    """Return the page."""
    summary = ["| system | version | run | of those that can | all |", "| --- | --- | --- | --- | --- |"]
    for system in SYSTEMS:
        run, possible, total = system.counts()
        summary.append(f"| {system.title} | {system.version} | {run} | {possible} | {total} |")
    parts = [HEAD, "\n".join(summary) + "\n", *(system.section() for system in SYSTEMS)]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
