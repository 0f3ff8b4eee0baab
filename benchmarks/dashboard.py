"""The dashboard on large experiments: `python -m benchmarks.dashboard [--small]`.

A search that ran is copied within its file until it has 5,000, or 100,000, trials. A new server, a program of
its own, answers each time. What a page shows is painted by Chromium; where it or Playwright is missing, only
the server's answers are timed. Prints a table, and its rows as one line of JSON.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

import trainkit
from benchmarks.interleaved import HERE, Plain, environment, in_turn, output_of, timed
from benchmarks.rows import MORE, Report, Row, parser
from trainkit import tune
from trainkit.tune.store.schema import FILENAME

PAGES = 5
CURVES = 200
WRITER = """
import sys, time
import trainkit
from trainkit import tune

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])

def trainable(config):
    for step in range(count):
        tune.report({"loss": config["x"] / (step + 1)})

trainkit.init(num_cpus=2)
tuner = tune.Tuner(
    trainable,
    param_space={"x": tune.uniform(-10, 10)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
    run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0),
)
start = time.perf_counter()
tuner.fit()
print(2 * count / (time.perf_counter() - start))
"""


def search(folder: Path, name: str, trials: int, reports: int) -> Path:
    """Run a search; each trial reports `reports` times. Return its folder."""

    def trainable(config: dict[str, Any]) -> None:
        for step in range(1, reports + 1):
            tune.report({"loss": config["lr"] + config["width"] / step, "accuracy": 1 / config["width"]})

    tune.Tuner(
        trainable,
        param_space={
            "lr": tune.loguniform(1e-4, 1e-1),
            "width": tune.randint(8, 128),
            "activation": tune.choice(["relu", "gelu", "tanh"]),
        },
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=trials, seed=0, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0),
    ).fit()
    return folder / name


def copied(source: Path, folder: Path, trials: int) -> Path:
    """Return the folder of an experiment in which the trials of `source` stand again and again."""
    folder.mkdir()
    shutil.copy(source / FILENAME, folder / FILENAME)
    with closing(sqlite3.connect(folder / FILENAME)) as file, file:
        ((count, last),) = file.execute(
            "SELECT (SELECT count(*) FROM trials), max((SELECT max(seq) FROM trials), "
            "(SELECT max(seq) FROM results), (SELECT max(seq) FROM events), "
            "(SELECT coalesce(max(seq), 0) FROM decisions))"
        )
        made = {
            "trial_id": "trial_id || '_' || copy",
            "name": "name || '_' || copy",
            "trial_index": f"trial_index + copy * {count}",
            "seq": f"seq + copy * {last + 1}",
        }
        file.execute("CREATE TEMP TABLE copies (copy INTEGER)")
        file.executemany("INSERT INTO copies VALUES (?)", ((copy,) for copy in range(1, trials // count)))
        for table in ("trials", "attempts", "results", "decisions", "events"):
            columns = [column[1] for column in file.execute(f"PRAGMA table_info({table})")]
            file.execute(
                f"INSERT INTO {table} SELECT {', '.join(made.get(each, each) for each in columns)} "
                f"FROM {table}, copies WHERE trial_id IS NOT NULL"
            )
        file.execute("UPDATE experiment SET value = ? WHERE key = 'total_samples'", (trials,))
    return folder


@dataclass
class Server:
    """A dashboard in a process of its own."""

    pid: int
    port: int
    token: str

    def get(self, path: str) -> Any:
        """Return what the API answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        with closing(connection):
            connection.request("GET", f"/api{path}", headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered by {answer.status}: {text.decode()[:500]}")
        return json.loads(text)

    def address(self, route: str) -> str:
        """Return the address of a page."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}#{route}"

    @property
    def memory_mb(self) -> float:
        """Memory that it holds."""
        return float(psutil.Process(self.pid).memory_info().rss / 1e6)


@contextmanager
def served(root: Path) -> Iterator[Server]:
    """Serve a folder of experiments."""
    command = [sys.executable, "-m", "trainkit", "dashboard", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd=HERE.parent)
    assert process.stdout is not None
    with process.stdout:
        try:
            printed = process.stdout.readline()
            port, token = printed.split("127.0.0.1:")[1].strip().split("/?token=")
            yield Server(process.pid, int(port), token)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def first_answers(server: Server, name: str) -> None:
    """Ask for what the first page of an experiment shows."""
    for path in ("/status", f"/experiments/{name}", f"/experiments/{name}/trials?sort=last&limit=8"):
        server.get(path)


# --- in a browser ---------------------------------------------------------------------------------


class Painter:
    """Chromium, in which pages are opened.

    Args:
        browser: of Playwright.
    """

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def first(self, server: Server, name: str) -> float:
        """Return the seconds from an address to the page of an experiment with its best trials."""
        return self._opened(server, f"/experiments/{name}", "[aria-label='Best trials'] tbody tr")

    def table(self, server: Server, name: str) -> float:
        """Return the seconds that the next page of the table takes, from the click to its rows."""
        with self._page(server, f"/experiments/{name}?tab=trials") as page:
            page.wait_for_selector("tr[data-trial]")
            before = page.get_attribute("tr[data-trial]", "data-trial")
            start = time.perf_counter()
            page.get_by_role("button", name="Next").click()
            page.wait_for_function(
                "before => document.querySelector('tr[data-trial]').dataset.trial !== before", arg=before
            )
            return time.perf_counter() - start

    def curves(self, server: Server, name: str) -> float:
        """Return the seconds that the curves of all trials take, once the chart library is there."""
        route = f"/experiments/{name}?tab=charts&chart="
        with self._page(server, f"{route}history") as page:
            page.wait_for_selector("[data-kind=history][data-state=drawn]")
            start = time.perf_counter()
            page.evaluate("route => { location.hash = route; }", f"{route}curves&most={CURVES}")
            page.wait_for_selector("[data-kind=curves][data-state=drawn]")
            return time.perf_counter() - start

    def _opened(self, server: Server, route: str, shown: str) -> float:
        start = time.perf_counter()
        with self._page(server, route) as page:
            page.wait_for_selector(shown)
            return time.perf_counter() - start

    @contextmanager
    def _page(self, server: Server, route: str) -> Iterator[Any]:
        context = self._browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(120_000)
        with closing(context):
            page = context.new_page()
            page.goto(server.address(route))
            yield page


@contextmanager
def painter() -> Iterator[Painter | None]:
    """Start the system's Chromium; None where there is none."""
    path = shutil.which("chromium")
    if path is None or find_spec("playwright") is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        with closing(browser):
            yield Painter(browser)


# --- beside a writer ------------------------------------------------------------------------------


@dataclass
class OpenPages:
    """Pages that follow an experiment as the browser's do: by a stream, and by the table when it says so."""

    server: Server
    name: str
    over: threading.Event = field(default_factory=threading.Event)
    heard: int = 0

    def follow(self) -> None:
        """Listen until it is over."""
        while not self.over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
            with closing(connection), contextlib.suppress(OSError, http.client.HTTPException, RuntimeError):
                head = {"Authorization": f"Bearer {self.server.token}"}
                connection.request("GET", f"/api/stream?experiment={self.name}", headers=head)
                answer = connection.getresponse()
                while answer.status == 200 and not self.over.is_set():
                    line = answer.readline()
                    if not line:
                        break
                    if line.startswith(b"data: "):
                        self.heard += 1
                        if json.loads(line[6:])["more"]:
                            self.server.get(f"/experiments/{self.name}/trials")
            self.over.wait(0.1)  # the experiment has not begun yet


def writes(root: Path, server: Server, pages: int, count: int) -> float:
    """Return the reports a second of two trials, while so many pages are open."""
    name = f"writes-{time.monotonic_ns()}"
    opened = OpenPages(server, name)
    threads = [threading.Thread(target=opened.follow) for _ in range(pages)]
    for each in threads:
        each.start()
    try:
        rate = float(output_of([sys.executable, "-c", WRITER, str(root), name, str(count)], environment()))
    finally:
        opened.over.set()
        for each in threads:
            each.join()
    if pages and opened.heard < pages:
        raise RuntimeError(f"{pages} pages were open, and heard {opened.heard} times of the experiment")
    return rate


def main() -> None:
    """Measure and print."""
    given = parser(__doc__).parse_args()
    trials, sizes, reports, count, rounds = (
        (4, (120, 240), 3, 200, 1) if given.small else (CURVES, (5_000, 100_000), 100, 10_000, 5)
    )
    plain = Plain(lambda: sum(range(500_000)))
    trainkit.init(num_cpus=2)
    folders = tempfile.TemporaryDirectory(prefix="dashboard-", ignore_cleanup_errors=True)
    with Report("dashboard", "none", small=given.small) as report, folders as temporary, painter() as browser:
        root = Path(temporary, "experiments")
        source = search(root, "short", trials, 2)
        search(root, "curves", trials, reports)
        trainkit.shutdown()
        names = {size: copied(source, root / f"trials-{size}", size).name for size in sizes}

        def measured(row: Row, once: Callable[[Server], float], *, new: bool = False) -> None:
            """Add a row of seconds: on one server, or on a new one each time."""
            values = []
            with contextlib.ExitStack() as stack:
                server = stack.enter_context(served(root))
                for number in range(rounds + (not new)):
                    plain.look()
                    if new:
                        with served(root) as fresh:
                            values.append(once(fresh))
                    elif (value := once(server)) and number:  # the first one reads
                        values.append(value)
            report.add(row.measured(values, plain=plain.times))

        for size, words in zip(sizes, ("5,000", "100,000"), strict=True):
            name = names[size]
            measured(
                Row(f"{words} trials: first answers of a new server", "s"),
                lambda server, name=name: timed(lambda: first_answers(server, name)),
                new=True,
            )
            painted = Row(f"{words} trials: first paint, of a new server", "s")
            if browser is None:
                report.skip(painted.name, "needs Chromium and playwright")
            else:
                measured(painted, lambda server, name=name: browser.first(server, name), new=True)
            measured(
                Row(f"{words} trials: a page of the table", "s"),
                lambda server, name=name, size=size: timed(
                    lambda: server.get(f"/experiments/{name}/trials?offset={random.randrange(size - 100)}")
                ),
            )
        by = "sort=config/lr&descending=true"
        values, memory = [], []
        for _ in range(rounds):
            plain.look()
            with served(root) as server:
                values.append(timed(lambda: server.get(f"/experiments/{names[sizes[1]]}/trials?{by}")))
                memory.append(server.memory_mb)
        report.add(
            Row("100,000 trials: sorted by a hyperparameter, at first", "s").measured(
                values, plain=plain.times
            )
        )
        report.add(Row("100,000 trials: the server's memory then", "MB").measured(memory))
        measured(
            Row("curves of 200 trials: the answer", "s"),
            lambda server: timed(lambda: server.get(f"/experiments/curves/charts/curves?most={CURVES}")),
        )
        drawn = Row("curves of 200 trials: drawn", "s")
        shown = Row("5,000 trials: a page of the table, shown", "s")
        if browser is None:
            for row in (drawn, shown):
                report.skip(row.name, "needs Chromium and playwright")
        else:
            measured(drawn, lambda server: browser.curves(server, "curves"))
            measured(shown, lambda server: browser.table(server, names[sizes[0]]))
        with served(root) as server:
            plain.look()
            sides = in_turn(
                [lambda: writes(root, server, PAGES, count), lambda: writes(root, server, 0, count)],
                rounds,
                0 if given.small else 1,
            )
            plain.look()
        beside = Row("reports of two trials with five open pages (none)", "1/s", MORE)
        report.add(beside.measured(sides[0], sides[1], plain.times))


if __name__ == "__main__":
    main()
