"""Examples of other systems: how each is run here, and the row that it has in docs/compatibility.md."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Example:
    """Program of another system.

    Attributes:
        name: its path in the system's own examples.
        arguments: of its command line.
        environment: variables that it needs, wherever it runs.
        prepare: called with the home folder that it will have, to put data there.
        note: what is not as the system's authors run it, in words for the page.
        needs: what keeps it from running here under its own system too, such as a network; "": nothing.
        gap: what trainkit lacks; "": nothing.
        error: pattern of the text with which it ends, where it can't run.
        limit_s: so long it may take.
    """

    name: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], object] | None = None
    note: str = ""
    needs: str = ""
    gap: str = ""
    error: str = ""
    limit_s: float = 300.0

    @property
    def runs(self) -> bool:
        """True if it is to run here to its end."""
        return not self.needs and not self.gap

    def row(self) -> str:
        """Return its row in the table."""
        words = "runs" if self.runs else "does not run" if self.gap else "not run"
        return f"| `{self.name}` | {words} | {self.gap or self.needs or self.note} |"


@dataclass(frozen=True)
class System:
    """Other system, with the examples that its installed package, or a test here, has.

    Attributes:
        title: heading of its table.
        package: distribution that the examples come from; it is installed where the tests run.
        version: of that package, as the page names it.
        words: about its examples, in Markdown.
        write: writes an example's program, its imports changed, into a folder that it can import from;
            returns the file to run.
        examples: all of them.
    """

    title: str
    package: str
    version: str
    words: str
    write: Callable[[Example, Path], Path]
    examples: tuple[Example, ...]

    def installed(self) -> str | None:
        """Return the version of the package that is installed here."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None

    def counts(self) -> tuple[int, int, int]:
        """Return how many run, how many could on a machine without a network, and how many there are."""
        possible = [each for each in self.examples if not each.needs]
        return sum(each.runs for each in possible), len(possible), len(self.examples)

    def section(self) -> str:
        """Return its part of the page."""
        rows = "\n".join(each.row() for each in self.examples)
        return f"## {self.title}\n\n{self.words}\n\n| example | here | |\n| --- | --- | --- |\n{rows}\n"


def with_our_imports(source: str) -> str:
    """Return a program with `trainkit` for `ray` in its import lines, and nowhere else."""
    source = re.sub(r"^(\s*)from ray\b", r"\1from trainkit", source, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)import ray$", r"\1import trainkit as ray", source, flags=re.MULTILINE)
    return re.sub(r"^(\s*)import ray\.", r"\1import trainkit.", source, flags=re.MULTILINE)


def run(system: System, example: Example, folder: Path) -> tuple[int, str]:
    """Run an example's program in a process of its own, with nothing in its home but what it prepares.

    Args:
        system: that it is of.
        example: to run.
        folder: for the program, its home, its results and its working directory.

    Returns:
        The exit status, and all that it printed.

    Raises:
        subprocess.TimeoutExpired: it took longer than its limit.
    """
    programs, home, work = folder / "programs", folder / "home", folder / "work"
    for each in (programs, home, work):
        each.mkdir()
    program = system.write(example, programs)
    if example.prepare is not None:
        example.prepare(home)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TUNE_"))}
    env |= {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(programs), str(ROOT)]),
        "TRAINKIT_RESULTS_DIR": str(folder / "results"),
        **example.environment,
    }
    done = subprocess.run(
        [sys.executable, program, *example.arguments],
        cwd=work,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=example.limit_s,
        check=False,
    )
    return done.returncode, done.stdout
