"""The dashboard on large experiments: `python -m benchmarks.dashboard [--small]`.

The trials of a finished search are copied within its file until it has 5,000, or 100,000, trials. A new
server, in a separate process, answers each time. Chromium paints the pages, and each page measures its own
times. If Chromium or Playwright is missing, only the server's answers are timed. Prints a table, and its rows
as one line of JSON.

A search is also followed while it runs: by clients that read the same data as an open page, which measures
the server's share, and by pages in a browser on this machine, which also use its processors.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

import trainkit
from benchmarks.interleaved import HERE, Plain, Served, environment, in_turn, timed
from benchmarks.rows import MORE, Report, Row, parser
from trainkit import tune
from trainkit.tune.store.schema import FILENAME

PAGES = 5
CURVES = 200
NO_BROWSER = "needs Chromium and playwright"
WRITER = """
import sys, threading, time
from pathlib import Path
import trainkit
from trainkit import tune

folder, name, count, begin = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])

def trainable(config):
    tune.report({"loss": config["x"]})
    while not begin.exists():
        time.sleep(0.001)
    for step in range(count):
        tune.report({"loss": config["x"] / (step + 2)})

class Told(tune.Callback):
    reports, start = 0, 0.0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.reports += 1
        if self.reports == 2:
            print("begun", flush=True)
        elif self.reports == 3:
            self.start = time.perf_counter()
        elif self.reports == 2 * count + 2:
            print("rate", (2 * count - 1) / (time.perf_counter() - self.start), flush=True)

trainkit.init(num_cpus=2)
tune.Tuner(
    trainable,
    param_space={"x": tune.uniform(-10, 10)},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=2),
    run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0, callbacks=[Told()]),
).fit()
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
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=trials, seed=0, reuse_actors=True, search_alg="random"
        ),
        run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0),
    ).fit()
    return folder / name


def copied(source: Path, folder: Path, trials: int) -> Path:
    """Return the folder of a new experiment that repeats the trials of `source` until it has `trials`."""
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
    """A dashboard in a separate process."""

    pid: int
    port: int
    token: str

    def get(self, path: str) -> Any:
        """Return the API's answer."""
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
        """Memory of the server's process in megabytes."""
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
    """Request the data that the first page of an experiment shows."""
    for path in ("/status", f"/experiments/{name}", f"/experiments/{name}/trials?sort=last&limit=8"):
        server.get(path)


# --- in a browser ---------------------------------------------------------------------------------


SHOWN = """
// Resolves to the milliseconds from `since` on to the end of the frame that shows what `there` looks for.
window.whenShown = (there, since) => new Promise((resolve) => {
  const took = () => resolve(performance.now() - since);
  const end = () => scheduler.postTask(took, { priority: "user-blocking" });
  const look = () => { if (there()) { watch.disconnect(); requestAnimationFrame(end); } };
  const watch = new MutationObserver(look);
  watch.observe(document, { subtree: true, childList: true, attributes: true });
  look();
});
"""
FIRST = """
window.best = whenShown(() => document.querySelector("[aria-label='Best trials'] tbody tr"), 0);
window.painted = new Promise((resolve) => new PerformanceObserver((list) => {
  for (const each of list.getEntriesByName("first-contentful-paint")) resolve(each.startTime);
}).observe({ type: "paint", buffered: true }));
"""
NEXT = """() => {
  const first = () => document.querySelector("tr[data-trial]").dataset.trial, before = first();
  window.turned = new Promise((resolve) => addEventListener("click", (event) =>
    resolve(whenShown(() => first() !== before, event.timeStamp)), { capture: true, once: true }));
}"""
DRAWN = """route => {
  const since = performance.now();
  location.hash = route;
  return whenShown(() => document.querySelector("[data-kind=curves][data-state=drawn]"), since);
}"""
COMPARED = """whenShown(() => document.querySelector("[aria-label='Compared runs'] tbody tr"), 0)"""
ALL_DRAWN = """() => {
  const charts = [...document.querySelectorAll(".chart")];
  return charts.length > 0 && charts.every((each) => each.dataset.state === "drawn");
}"""


class Painter:
    """Chromium, in which pages are opened; each page measures its own times.

    Args:
        browser: browser object of Playwright.
    """

    def __init__(self, browser: Any) -> None:
        self._browser = browser

    def first(self, server: Server, name: str) -> tuple[float, float]:
        """Return the seconds from the navigation's start to the first content, and to the best trials."""
        with self._page(server, f"/experiments/{name}") as page:
            return page.evaluate("painted") / 1000, page.evaluate("best") / 1000

    def table(self, server: Server, name: str) -> float:
        """Return the seconds from the click on "Next" to the rows of the table's next page."""
        with self._page(server, f"/experiments/{name}?tab=trials") as page:
            page.wait_for_selector("tr[data-trial]")
            page.evaluate(NEXT)
            page.get_by_role("button", name="Next").click()
            return float(page.evaluate("turned")) / 1000

    def curves(self, server: Server, name: str) -> float:
        """Return the seconds to draw the curves of all trials, after the chart library is loaded."""
        route = f"/experiments/{name}?tab=charts&chart="
        with self._page(server, f"{route}history") as page:
            page.wait_for_selector("[data-kind=history][data-state=drawn]")
            return float(page.evaluate(DRAWN, f"{route}curves&most={CURVES}")) / 1000

    def compared(self, server: Server, name: str) -> tuple[float, float]:
        """Return the seconds from the navigation to the runs compared, and of the slowest step of a brush."""
        with self._page(server, f"/experiments/{name}/compare") as page:
            first = float(page.evaluate(COMPARED)) / 1000
            box = page.locator(".axes canvas").last.bounding_box()
            steps = []
            page.mouse.move(box["x"] + box["width"] - 60, box["y"] + box["height"] - 20)
            page.mouse.down()
            for step in range(1, 21):
                page.mouse.move(box["x"] + box["width"] - 60, box["y"] + box["height"] - 20 - 10 * step)
                page.wait_for_timeout(50)
                steps.append(float(page.evaluate("document.documentElement.dataset.brushed ?? 0")) / 1000)
            page.mouse.up()
            return first, max(steps)

    @contextmanager
    def following(self, server: Server, name: str) -> Iterator[None]:
        """Keep pages open, each of a separate user, that follow an experiment from its first reports on."""
        with contextlib.ExitStack() as stack:
            route = f"/experiments/{name}"
            pages = [stack.enter_context(self._page(server, route)) for _ in range(PAGES)]
            told = "Number(document.documentElement.dataset.told ?? 0)"
            for page in pages:
                page.wait_for_function(ALL_DRAWN)
                page.wait_for_function(f"() => {told}")
            before = [page.evaluate(told) for page in pages]
            yield
            for page, known in zip(pages, before, strict=True):
                page.wait_for_function(f"known => {told} > known", arg=known)

    @contextmanager
    def _page(self, server: Server, route: str) -> Iterator[Any]:
        context = self._browser.new_context(viewport={"width": 1400, "height": 900})
        context.set_default_timeout(120_000)
        with closing(context):
            context.add_init_script(SHOWN + FIRST)
            page = context.new_page()
            page.goto(server.address(route))
            yield page


@contextmanager
def painter() -> Iterator[Painter | None]:
    """Start the system's Chromium; yield None if it is missing."""
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

Following = Callable[["Server", str], AbstractContextManager[None]]
"""Function of a server and an experiment's name; within its context, the experiment is followed."""


def follow(server: Server, name: str, begun: threading.Barrier) -> int:
    """Read an experiment as an open page does, until it ends; return the number of its changes.

    Args:
        server: server of the dashboard.
        name: name of the experiment.
        begun: barrier to wait at after the first change.
    """
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    drawn, heard = 0.0, 0
    with closing(connection):
        head = {"Authorization": f"Bearer {server.token}"}
        connection.request("GET", f"/api/stream?experiment={name}", headers=head)
        answer = connection.getresponse()
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            change = json.loads(line[6:])
            heard += 1
            if heard == 1:
                begun.wait(60)
            if change["rows"] or change["more"]:
                server.get(f"/experiments/{name}/trials?sort=last&limit=8")
                if time.monotonic() - drawn > 2:
                    drawn = time.monotonic()
                    for kind in ("history", "curves"):
                        server.get(f"/experiments/{name}/charts/{kind}?metric=loss")
            if not change["summary"]["running"]:
                return heard
    raise RuntimeError("the stream of an experiment has ended before it")


@contextmanager
def clients(server: Server, name: str) -> Iterator[None]:
    """Follow an experiment from its first change on, with several clients without a browser."""
    begun = threading.Barrier(PAGES + 1)
    with ThreadPoolExecutor(PAGES) as threads:
        followed = [threads.submit(follow, server, name, begun) for _ in range(PAGES)]
        begun.wait(60)
        yield
        if min(each.result(60) for each in followed) < 2:
            raise RuntimeError("a client was there, and heard nothing of the experiment")


@contextmanager
def nobody(server: Server, name: str) -> Iterator[None]:
    """Follow the experiment with no client."""
    yield


def writes(root: Path, server: Server, count: int, followed: Following) -> float:
    """Return the reports per second of two trials, after their followers have seen the first report."""
    name = f"writes-{time.monotonic_ns()}"
    begin = root.parent / name
    with Served([sys.executable, "-c", WRITER, str(root), name, str(count), str(begin)]) as writer:
        writer.line("begun")
        with followed(server, name):
            begin.touch()
            rate = float(writer.line("rate").split()[1])
    return rate


def main() -> None:
    """Measure and print the rows."""
    given = parser(__doc__).parse_args()
    trials, sizes, reports, count, rounds = (
        (4, (120, 240), 3, 200, 1) if given.small else (CURVES, (5_000, 100_000), 100, 20_000, 5)
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

        def measured(once: Callable[[Server], Any], *rows: Row, new: bool = False) -> None:
            """Add rows of seconds, measured on one server, or each time on a new server."""
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
            sides = zip(*values, strict=True) if len(rows) > 1 else [values]
            for row, side in zip(rows, sides, strict=True):
                report.add(row.measured(side, plain=plain.times))

        for size, words in zip(sizes, ("5,000", "100,000"), strict=True):
            name = names[size]
            measured(
                lambda server, name=name: timed(lambda: first_answers(server, name)),
                Row(f"{words} trials: first answers of a new server", "s"),
                new=True,
            )
            painted = Row(f"{words} trials: first contentful paint, of a new server", "s")
            best = Row(f"{words} trials: the page with its best trials, of a new server", "s")
            if browser is None:
                for row in (painted, best):
                    report.skip(row.name, NO_BROWSER)
            else:
                measured(lambda server, name=name: browser.first(server, name), painted, best, new=True)
            measured(
                lambda server, name=name, size=size: timed(
                    lambda: server.get(f"/experiments/{name}/trials?offset={random.randrange(size - 100)}")
                ),
                Row(f"{words} trials: a page of the table", "s"),
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
            lambda server: timed(lambda: server.get(f"/experiments/curves/charts/curves?most={CURVES}")),
            Row("curves of 200 trials: the answer", "s"),
        )
        drawn = Row("curves of 200 trials: drawn", "s")
        shown = Row("5,000 trials: a page of the table, shown", "s")
        compared = Row("1,000 of 5,000 trials compared: the first picture, of a new server", "s")
        brushed = Row("1,000 of 5,000 trials compared: the slowest step of a brush", "s")
        beside = [
            Row("reports of two trials beside five clients without a browser (none)", "1/s", MORE),
            Row("reports of two trials beside five pages in a browser here (none)", "1/s", MORE),
        ]
        followers: list[Following] = [nobody, clients]
        if browser is None:
            for row in (drawn, shown, compared, brushed, beside.pop()):
                report.skip(row.name, NO_BROWSER)
        else:
            measured(lambda server: browser.curves(server, "curves"), drawn)
            measured(lambda server: browser.table(server, names[sizes[0]]), shown)
            measured(lambda server: browser.compared(server, names[sizes[0]]), compared, brushed, new=True)
            followers.append(browser.following)
        with served(root) as server:
            plain.look()
            none, *sides = in_turn(
                [partial(writes, root, server, count, each) for each in followers],
                rounds,
                0 if given.small else 1,
            )
            plain.look()
        for row, side in zip(beside, sides, strict=True):
            report.add(row.measured(side, none, plain.times))


if __name__ == "__main__":
    main()
