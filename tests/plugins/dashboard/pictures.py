"""Pictures of the dashboard for the docs: `python -m tests.plugins.dashboard.pictures docs/images`."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser

import trainkit
from tests.conftest import eventually
from tests.plugins.dashboard import samples
from tests.plugins.dashboard.browser import Sight, alive, chromium, reports, served
from tests.plugins.dashboard.test_ranks import training

ROUTES = {
    "experiments": "#/",
    "experiments-compared": "#/compare/digits/digits-seed-1",
    "overview": "#/experiments/digits",
    "trials": "#/experiments/digits?tab=trials&sort=last",
    "charts": "#/experiments/digits?tab=charts",
    "parallel": "#/experiments/digits?tab=charts&chart=parallel",
    "pairs": "#/experiments/digits?tab=charts&chart=matrix",
    "rungs": "#/experiments/digits?tab=charts&chart=rungs",
    "lineage": "#/experiments/population?tab=charts&chart=lineage",
}


def main(folder: Path) -> None:
    """Run the experiments that are shown, and take a picture of each page."""
    with tempfile.TemporaryDirectory() as above:
        root = Path(above) / "runs"
        root.mkdir()
        trainkit.init(num_cpus=2, log_to_driver=False)
        samples.halving(root, num_samples=60, other="tanh")
        samples.halving(root, "digits-seed-1", num_samples=30, other="tanh", seed=1)
        samples.population(root)
        trainkit.shutdown()
        with alive(root) as live, served(root) as address, chromium() as browser:
            assert eventually(lambda: reports(live) >= 60, 120)
            seen = Sight.of(browser, address)
            best = [
                row["trial_id"]
                for row in seen.ask("/api/experiments/digits/trials?sort=last&limit=3")["rows"]
            ]
            owner = seen.ask(f"/api/experiments/{live.name}")["owner"]
            (session,) = [
                each["session_id"] for each in seen.ask("/api/sessions") if each["driver_pid"] == owner
            ]
            routes = {
                **ROUTES,
                "trial": f"#/experiments/digits/trials/{best[0]}",
                "compare": f"#/experiments/digits/compare?trials={','.join(best)}",
                "session": f"#/sessions/{session}",
            }
            for name, route in routes.items():
                take(seen, route, folder / f"dashboard-{name}.png")
            assert seen.complaints == [], seen.complaints
            seen.close()
            dark = Sight.of(browser, address, color_scheme="dark")
            take(dark, ROUTES["overview"], folder / "dashboard-dark.png")
            dark.close()
            phone = Sight.of(browser, address, viewport={"width": 400, "height": 800})
            take(phone, ROUTES["overview"], folder / "dashboard-phone.png")
            phone.close()
            ranks(browser, address, Path(above), folder / "dashboard-ranks.png")


def ranks(browser: Browser, address: str, scratch: Path, file: Path) -> None:
    """Train on two ranks, one of them slow in its step, and take a picture of both."""
    trainkit.init(num_cpus=2, log_to_driver=False)
    try:
        with training(scratch, steps=1):
            seen = Sight.of(browser, address)
            (session,) = [
                each["session_id"] for each in seen.ask("/api/sessions") if each["driver_pid"] == os.getpid()
            ]
            seen.go(f"#/sessions/{session}")
            trainers = seen.page.locator("section[aria-label=Trainers]")
            # The figures are of some seconds.
            assert eventually(lambda: "straggler" in trainers.inner_text(), 60)
            trainers.screenshot(path=file)
            assert seen.complaints == [], seen.complaints
            seen.close()
    finally:
        trainkit.shutdown()


def take(seen: Sight, route: str, file: Path) -> None:
    """Take a picture of what the window shows at a route, down to where the page ends."""
    seen.go(route)
    seen.page.wait_for_timeout(500)  # hover and fade have ended
    seen.settle()
    window = seen.page.viewport_size
    assert window is not None
    end = seen.page.evaluate("Math.ceil(document.getElementById('main').getBoundingClientRect().bottom)")
    height = min(end, window["height"])
    seen.page.screenshot(path=file, clip={"x": 0, "y": 0, "width": window["width"], "height": height})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
