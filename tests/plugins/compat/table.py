"""docs/compatibility.md, made from the lists in tests/plugins/compat/peers.

`python -m tests.plugins.compat.table` writes the page. The tests run each row of a system whose examples a
package has; `--from FOLDER` runs the rows of the others that are in FOLDER, a git checkout of their sources.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.plugins.compat.peers import SYSTEMS
from tests.plugins.compat.peers.base import BY_HAND, ROOT, System, mistake

PAGE = ROOT / "docs" / "compatibility.md"

HEAD = """\
# What moves by its imports

Many programs for Ray, RaySGD, tune-sklearn and scikit-learn run on trainkit if only their imports change.
This page lists examples of these projects, and the result of each example with trainkit's imports. Each
example runs in a process of its own, without a network. If a package contains the examples, a test runs them.
An example that "runs" ends cleanly, without a failed trial. An example that "does not run" ends with an error
for the given reason. An example that is "not run" can't run on the test machine with its own system either.
"""


def page() -> str:
    """Return the page."""
    summary = ["| system | version | run | of those that can | all |", "| --- | --- | --- | --- | --- |"]
    for system in SYSTEMS:
        run, possible, total = system.counts()
        share = f"{run} ({100 * run / possible:.0f}%)"
        version = system.version or system.by_hand()["commit"]
        summary.append(f"| {system.title} | {version} | {share} | {possible} | {total} |")
    parts = [HEAD, "\n".join(summary) + "\n", *(system.section() for system in SYSTEMS)]
    return "\n".join(parts)


def check(system: System, checkout: Path) -> list[str]:
    """Run a system's examples from a checkout; return the rows that don't hold, and note when all do."""
    theirs = checkout / system.folder
    listed = {each.name for each in system.examples}
    wrong = [
        f"{name}: has no row"
        for name in sorted({str(file.relative_to(theirs)) for file in theirs.rglob("*.py")} - listed)
    ]
    for example in system.examples:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = mistake(system, example, theirs, Path(folder))
            except subprocess.TimeoutExpired:
                found = f"takes longer than {example.limit_s:.0f} s"
        print(f"{system.title}: {example.name}: {found[-500:] or 'as its row says'}", flush=True)
        wrong += [f"{example.name}: {found}"] * bool(found)
    if not wrong:
        git = ["git", "-C", str(checkout), "log", "-1", "--date=short", "--format=%h %ad"]
        commit, committed = subprocess.check_output([*git, "--", system.folder], text=True).split()
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        known = json.loads(BY_HAND.read_text())
        known[system.title] = {"commit": commit, "committed": committed, "date": today}
        BY_HAND.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")
    return wrong


def main() -> int:
    """Check what is to be checked, and write the page if all rows hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="checkout", type=Path, help="checkout of another system's repository")
    parser.add_argument("--only", default="", help="systems whose title has this")
    options = parser.parse_args()
    wrong = []
    for system in SYSTEMS:
        if options.checkout and system.files is None and (options.checkout / system.folder).exists():
            wrong += check(system, options.checkout) if options.only in system.title else []
    if wrong:
        print(f"{len(wrong)} rows don't hold", file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
