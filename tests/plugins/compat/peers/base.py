"""Examples of other systems: how each is run here, and the row that it has in docs/compatibility.md."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainkit.tune.core.trial import TrialStatus
from trainkit.tune.store.reader import ExperimentReader
from trainkit.tune.store.schema import FILENAME

ROOT = Path(__file__).parents[4]

BY_HAND = Path(__file__).with_name("by_hand.json")
"""When `python -m tests.plugins.compat.table --from` last ran a system's rows, and at which commit."""


@dataclass(frozen=True)
class Example:
    """Program of another system.

    Attributes:
        name: its path in the system's own examples.
        arguments: of its command line.
        environment: variables that it needs, wherever it runs.
        prepare: called with the home folder that it will have, to put data there.
        note: what is not as the system's authors run it, in words for the page.
        needs: what keeps it from running here under its own system too, such as a network, so that it isn't
            tried; "": nothing.
        gap: what trainkit lacks; "": nothing.
        error: pattern of the text with which it ends, where trainkit lacks something.
        failed_trials: how many of its trials are to fail, as it shows what comes of that.
        changes: what it says, and what it says here, in the order of the text; `note` tells of it.
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
    failed_trials: int = 0
    changes: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 600.0

    @property
    def runs(self) -> bool:
        """True if it is to run here to its end."""
        return not self.needs and not self.gap

    def row(self) -> str:
        """Return its row in the table."""
        words = "runs" if self.runs else "does not run" if self.gap else "not run"
        return f"| `{self.name}` | {words} | {self.gap or self.needs or self.note} |"


def quietly(names: str, *arguments: str) -> list[Example]:
    """Return the examples of these names that run, without a word about them."""
    return [Example(f"{name}.py", arguments) for name in names.split()]


@dataclass(frozen=True)
class System:
    """Other system, with its examples.

    Attributes:
        title: heading of its table.
        version: as the page names it; None: that of the commit they were run from by hand.
        words: about its examples, in Markdown.
        examples: all of them.
        write: writes an example's program, its imports changed, into a folder that it can import from;
            takes the folder of the system's own files, too, and returns the file to run.
        files: returns the folder of its own files, of just that version; None: no package has them, so that
            `python -m tests.plugins.compat.table --from FOLDER` runs the examples of a checkout.
        folder: of the examples in a checkout, every `*.py` there.
    """

    title: str
    words: str
    examples: tuple[Example, ...]
    write: Callable[[Example, Path, Path], Path]
    version: str | None = None
    files: Callable[[], Path] | None = None
    folder: str = "."

    def counts(self) -> tuple[int, int, int]:
        """Return how many run, how many could on a machine without a network, and how many there are."""
        possible = [each for each in self.examples if not each.needs]
        return sum(each.runs for each in possible), len(possible), len(self.examples)

    def by_hand(self) -> dict[str, str]:
        """Return when, and at which commit, its rows were last found to hold; {}: never."""
        found: dict[str, dict[str, str]] = json.loads(BY_HAND.read_text())
        return found.get(self.title, {})

    def section(self) -> str:
        """Return its part of the page."""
        rows = "\n".join(each.row() for each in sorted(self.examples, key=lambda each: each.name))
        words = self.words
        if self.files is None:
            words += " No package contains these scripts: they were run by hand,"
            words += " from {commit} of {committed}, on {date}."
            words = words.format(**self.by_hand())
        return f"## {self.title}\n\n{words}\n\n| example | here | |\n| --- | --- | --- |\n{rows}\n"


SEARCHES = {
    "GridSearchCV": "TuneGridSearchCV",
    "HalvingGridSearchCV": "TuneHalvingGridSearchCV",
    "HalvingRandomSearchCV": "TuneHalvingRandomSearchCV",
    "RandomizedSearchCV": "TuneSearchCV",
}
"""By their names in scikit-learn, and here."""


def with_our_imports(source: str) -> str:
    """Return a program with our modules and searches in its import lines, and nothing else changed.

    Those of Ray, of tune-sklearn, and scikit-learn's searches are replaced.
    """
    for theirs, here in (
        (r"from ray\b", "from trainkit"),
        (r"from tune_sklearn\b", "from trainkit.sklearn"),
        (r"import ray$", "import trainkit as ray"),
        (r"import ray as\b", "import trainkit as"),
        (r"import ray(\.[\w.]+)$", r"import trainkit\2, trainkit as ray"),
        (r"import ray(\.[\w.]+ as)\b", r"import trainkit\2"),
    ):
        source = re.sub(rf"^(\s*){theirs}", rf"\1{here}", source, flags=re.MULTILINE)
    imports = r"^([ \t]*)from sklearn\.model_selection import (\([^)]*\)|[^\n(]*)\n"
    return re.sub(imports, _with_our_searches, source, flags=re.MULTILINE)


def _with_our_searches(line: re.Match[str]) -> str:
    names = [name for name in re.findall(r"\w+", line[2]) if name in SEARCHES]
    ours = [f"{line[1]}from trainkit.sklearn import {SEARCHES[name]} as {name}\n" for name in names]
    return line[0] + "".join(ours)


def changed(example: Example, source: str) -> str:
    """Return an example's text with the changes that its row tells of.

    Raises:
        AssertionError: it doesn't say that.
    """
    for old, new in example.changes.items():
        if old not in source:
            raise AssertionError(f"{example.name} doesn't say {old!r}")
        source = source.replace(old, new)
    return source


def write_alone(example: Example, theirs: Path, folder: Path) -> Path:
    """Write the program of an example that imports no other."""
    program = folder / Path(example.name).name
    program.write_text(with_our_imports(changed(example, (theirs / example.name).read_text())))
    return program


def write_all(
    example: Example, theirs: Path, files: Iterable[Path], folder: Path, moved: Callable[[str], str]
) -> Path:
    """Write all examples into a package of their own, as they import one another; return the one to run."""
    for file in files:
        name = file.relative_to(theirs)
        text = moved(file.read_text())
        if name == Path(example.name):
            text = changed(example, text)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(with_our_imports(text))
    return folder / example.name


def failed_trials(folder: Path) -> int:
    """Return how many trials of the experiments below `folder` ended in an error."""
    failed = 0
    for file in folder.rglob(FILENAME):
        with ExperimentReader(file.parent) as reader:
            failed += sum(trial.status is TrialStatus.ERROR for trial in reader.trials())
    return failed


def mistake(system: System, example: Example, theirs: Path, folder: Path) -> str:
    """Run an example; return in what it differs from its row, with what it printed, and "" if in nothing.

    Args:
        system: that it is of.
        example: to run.
        theirs: the folder of the system's own files.
        folder: for the program, its home, its results and its working directory.

    Raises:
        subprocess.TimeoutExpired: it took longer than its limit.
    """
    if example.needs:
        return ""
    status, printed = run(system, example, theirs, folder)
    if not example.runs:
        if status == 0 and not failed_trials(folder):
            return "it runs now: let its row say so"
        return "" if re.search(example.error, printed) else f"another error: {printed[-5000:]}"
    if status != 0:
        return f"exit status {status}: {printed[-5000:]}"
    failed = failed_trials(folder)
    return "" if failed == example.failed_trials else f"{failed} trials failed: {printed[-5000:]}"


def run(system: System, example: Example, theirs: Path, folder: Path) -> tuple[int, str]:
    """Run an example's program in a process of its own, with nothing in its home but what it prepares.

    Returns:
        The exit status, and all that it printed.
    """
    programs, home, work = folder / "programs", folder / "home", folder / "work"
    for each in (programs, home, work):
        each.mkdir()
    program = system.write(example, theirs, programs)
    if example.prepare is not None:
        example.prepare(home)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TUNE_"))}
    env |= {
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "MPLBACKEND": "agg",
        "PYTHONPATH": os.pathsep.join([str(programs), str(ROOT)]),
        "TRAINKIT_RESULTS_DIR": str(folder / "results"),
        **example.environment,
    }
    with tempfile.TemporaryDirectory() as sessions:  # its own, as a detached actor outlives a program
        env["TRAINKIT_RUNTIME_DIR"] = sessions
        try:
            done = subprocess.run(
                [sys.executable, program, *example.arguments],
                cwd=work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=example.limit_s,
                check=False,
            )
        finally:
            stop = [sys.executable, "-m", "trainkit", "stop", "--all", "--yes"]
            subprocess.run(stop, cwd=work, env=env, capture_output=True, check=False)
    return done.returncode, done.stdout
