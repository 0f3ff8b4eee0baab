"""A real browser before a real dashboard, and the experiments that both look at."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.conftest import eventually
from trainkit.tune.store.reader import ExperimentReader

REPOSITORY = Path(__file__).parents[3]
CHROMIUM = shutil.which("chromium")
_ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
PATIENCE_MS = 60_000
"""How long the browser waits for what it is told to wait for."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the system's Chromium."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def commanded(root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Serve a folder of experiments by the command, in a process of its own; give the address it prints."""
    command = [sys.executable, "-m", "trainkit", "dashboard", str(root)]
    program = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    try:
        printed = program.stdout.readline()
        yield program, printed[printed.index("http") :].strip()
    finally:
        program.send_signal(signal.SIGINT)
        program.wait(60)
        program.stdout.close()


@contextmanager
def served(root: Path) -> Iterator[str]:
    """Serve a folder as `commanded` does; give the address alone."""
    with commanded(root) as (_, address):
        yield address


@dataclass
class Sight:
    """Page of the dashboard, and all that its console complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, browser: Browser, address: str, **options: Any) -> Sight:
        """Open the dashboard by the address that it prints."""
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        context.set_default_timeout(PATIENCE_MS)
        return cls.in_tab(context, address)

    @classmethod
    def in_tab(cls, context: BrowserContext, address: str) -> Sight:
        """Open the dashboard in another tab of the same browser."""
        page = context.new_page()
        seen = cls(page)
        page.on("console", lambda said: seen.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.goto(address)
        seen.settle()
        return seen

    def go(self, route: str) -> None:
        """Go to a route of the page, and wait until it is shown."""
        self.page.evaluate(
            "route => { document.getElementById('main').setAttribute('aria-busy', 'true'); "
            "if (location.hash === route) dispatchEvent(new HashChangeEvent('hashchange')); "
            "else location.hash = route; }",
            route,
        )
        self.settle()

    def settle(self) -> None:
        """Wait until the page has its content, and its charts in sight are drawn."""
        self.page.wait_for_selector("main:not([aria-busy]) h1")
        self.page.wait_for_function(
            "() => [...document.querySelectorAll('.chart')].filter(each => { const at = "
            "each.getBoundingClientRect(); return at.width && at.top < innerHeight && at.bottom > 0; })"
            ".every(each => each.dataset.state && each.dataset.state !== 'loading')"
        )

    def draw_all(self) -> None:
        """Scroll to each chart, so that all are drawn."""
        for chart in self.page.query_selector_all(".chart"):
            chart.scroll_into_view_if_needed()
            self.page.wait_for_function("each => ['drawn', 'failed'].includes(each.dataset.state)", arg=chart)
            assert chart.get_attribute("data-state") == "drawn", self.page.inner_text("main")

    def hide(self, hidden: bool = True) -> None:
        """Have the page see itself hidden, as a tab behind another one, or seen again."""
        self.page.evaluate(
            "hidden => { Object.defineProperty(document, 'hidden', {configurable: true, get: () => hidden}); "
            "document.dispatchEvent(new Event('visibilitychange')); }",
            hidden,
        )

    def ask(self, path: str) -> Any:
        """Ask the API as the page does."""
        return self.page.evaluate(
            "async path => (await fetch(path, {headers: {Authorization: 'Bearer ' + "
            "sessionStorage.getItem('trainkit-token')}})).json()",
            path,
        )

    def close(self) -> None:
        """Close the page."""
        self.page.context.close()


@contextmanager
def alive(root: Path, trainable: str = "train", name: str = "live") -> Iterator[Path]:
    """Run an experiment of one of the samples in a process of its own; its first trials have reported."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.plugins.dashboard.samples", str(root), trainable],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
    )
    try:
        assert eventually(lambda: program.poll() is not None or reports(root / name) >= 6, 120)
        assert program.poll() is None, "the program ended before its trials reported"
        yield root / name
    finally:
        program.terminate()
        try:
            program.wait(60)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
            raise


def reports(folder: Path) -> int:
    """Return how many reports an experiment has."""
    if not (folder / "experiment.sqlite").exists():
        return 0
    with ExperimentReader(folder) as reader:
        return sum(len(each) for each in reader.past().values())


def serious(page: Page) -> list[str]:
    """Return what axe finds that keeps people out, seriously or critically."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['help']}: {node['html'][:160]}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
