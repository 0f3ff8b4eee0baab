"""The verbs that steer, given on the pages in a real browser: each by mouse, and each by keyboard alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.conftest import eventually
from tests.plugins.dashboard.browser import CHROMIUM, PATIENCE_MS, Sight, alive, serious, served
from trainkit.client import Answer, Experiment

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here: apt-get install --no-install-recommends chromium"
)
expect.set_options(timeout=PATIENCE_MS)

WHO = re.compile(r"\S+@\S+ \(pid \d+\), by the dashboard")


class Mouse:
    """Hand that clicks."""

    def __init__(self, page: Page) -> None:
        self.page = page

    def press(self, wanted: Locator) -> None:
        wanted.click()

    def write(self, field: Locator, text: str) -> None:
        field.click()
        self._type(text)

    def _type(self, text: str) -> None:
        self.page.keyboard.press("ControlOrMeta+A")
        self.page.keyboard.type(text)


class Keyboard(Mouse):
    """Hand that never touches the mouse: Tab leads to all that can be pressed or written."""

    def press(self, wanted: Locator) -> None:
        self._go(wanted)
        self.page.keyboard.press("Enter")

    def write(self, field: Locator, text: str) -> None:
        self._go(field)
        self._type(text)

    def _go(self, wanted: Locator) -> None:
        expect(wanted).to_be_visible()
        for _ in range(300):
            if wanted.evaluate("each => each === document.activeElement"):
                return
            self.page.keyboard.press("Tab")
        pytest.fail(f"Tab does not lead to {wanted}")


class Steers:
    """Somebody who steers a running experiment on its pages."""

    def __init__(self, seen: Sight, folder: Path, hand: type[Mouse]) -> None:
        self.seen, self.page, self.name = seen, seen.page, folder.name
        self.experiment = Experiment(folder)
        self.hand = hand(seen.page)

    def press(self, name: str, role: Any = "button") -> None:
        """Press what has this name, and nothing more in it."""
        self.hand.press(self.page.locator("main").get_by_role(role, name=name, exact=True).first)

    def confirm(self, name: str) -> None:
        """Press a button of the question."""
        self.hand.press(self.page.get_by_role("dialog").get_by_role("button", name=name, exact=True))

    def write(self, label: str, text: str) -> None:
        self.hand.write(self.page.get_by_role("dialog").get_by_label(label), text)

    def answered(self, words: str) -> None:
        """Wait for the acknowledgement, which comes once the program has acted; the focus is kept."""
        expect(self.page.locator(".toast:not(.bad)").filter(has_text=words)).to_be_visible()
        expect(self.page.get_by_role("dialog")).to_have_count(0)
        assert self.page.evaluate("document.activeElement.tagName") != "BODY", words
        assert words in self.commands()[-1].outcome, "it was said before it was so"

    def commands(self) -> list[Answer]:
        return self.experiment.commands()

    def row(self, trial: str) -> Locator:
        return self.page.locator(f"tr[data-trial='{trial}']")

    def running(self) -> list[str]:
        return [each.trial_id for each in self.experiment.trials() if each.status == "RUNNING"]


@contextmanager
def steering(browser: Browser, root: Path, hand: type[Mouse]) -> Iterator[Steers]:
    with alive(root, "Saving") as folder, served(root) as server:
        seen = Sight.of(browser, server)
        yield Steers(seen, folder, hand)
        assert seen.complaints == []
        seen.close()


@pytest.mark.parametrize("hand", [Mouse, Keyboard])
def test_every_verb(hand: type[Mouse], browser: Browser, tmp_path: Path) -> None:
    with steering(browser, tmp_path, hand) as who:
        page = who.page
        who.press(who.name, "link")
        expect(page.locator("h1")).to_have_text(who.name)
        who.press("Trials", "link")
        rows = page.locator("tr[data-trial]")
        statuses = page.locator("tr[data-trial] .badge")
        expect(statuses.filter(has_text="running")).to_have_count(2)

        who.press("Pause")
        assert serious(page) == []
        who.confirm("Pause")
        who.answered("nothing starts until the experiment is resumed")
        expect(statuses.filter(has_text="paused")).to_have_count(2)
        expect(statuses.filter(has_text="running")).to_have_count(0)
        who.press("Resume")
        who.answered("the experiment resumes")
        expect(statuses.filter(has_text="running")).to_have_count(2)

        first, second = who.running()
        who.press(first, "link")
        expect(page.locator("h1")).to_have_text(first)
        status = page.locator("h1 + span .badge")
        who.press("Pause")
        who.answered("pauses at its next report")
        expect(status).to_have_text("paused")
        who.press("Run first")
        who.answered("runs before the others once it is resumed")
        who.press("Resume")
        who.answered(f"trial {first} goes on")
        expect(page.locator(".scroll[aria-label='Events of the trial']")).to_contain_text(WHO)

        # A third one at once: the one that was put first, before all that are new.
        who.press(who.name, "link")
        who.press("Trials", "link")
        assert eventually(lambda: len(who.running()) == 2, 120)
        expect(who.row(first).locator(".badge")).to_have_text("pending")
        before = len(who.experiment.trials())
        who.press("Limits…")
        who.write("Number of samples", "9")
        who.write("Concurrent trials", "3")
        who.confirm("Change")
        who.answered("from now on num_samples=9, max_concurrent_trials=3")
        expect(who.row(first).locator(".badge")).to_have_text("running")
        expect(page.get_by_role("group", name="Summary")).to_contain_text("/ 9")
        assert len(who.experiment.trials()) == before

        who.press("Add…")
        who.write("Configuration, as JSON", '{"lr": 0.0123, "width": 64, "activation": "gelu"}')
        who.confirm("Add")
        who.answered("is tried next")
        who.press(second, "link")
        expect(page.locator("h1")).to_have_text(second)  # before that, "Stop" is the whole experiment's
        who.press("Stop")
        who.confirm("Stop")
        who.answered(f"trial {second} ends at its next report")
        expect(status).to_have_text("stopped early")
        expect(page.get_by_role("group", name="Steer")).to_be_hidden()
        assert page.evaluate("document.activeElement.tagName") != "BODY"
        who.press(who.name, "link")
        who.press("Trials", "link")
        expect(who.row(second).locator(".badge")).to_have_text("stopped early")
        expect(rows.filter(has_text="0.0123").locator(".badge")).to_have_text("running")

        who.press("Stop")
        who.confirm("Stop")
        who.answered("the experiment ends")
        expect(page.locator("h1 + span")).to_contain_text("stopped early")
        expect(page.get_by_role("group", name="Steer")).to_be_hidden()
        expect(statuses.filter(has_text="running")).to_have_count(0)

        given = [
            ("pause", {}),
            ("resume", {}),
            ("pause", {"trial": first}),
            ("prioritise", {"trial": first}),
            ("resume", {"trial": first}),
            ("set", {"num_samples": 9, "max_concurrent_trials": 3}),
            ("add", {"config": {"lr": 0.0123, "width": 64, "activation": "gelu"}}),
            ("stop", {"trial": second}),
            ("stop", {}),
        ]
        kept = who.commands()
        assert [(each.verb, each.arguments) for each in kept] == given
        assert all(each.done and WHO.fullmatch(each.by) for each in kept)
        who.press("Events", "link")
        lines = page.locator(".scroll[aria-label=Events] tbody tr").filter(
            has=page.locator(".badge", has_text="command")
        )
        expect(lines).to_have_count(len(given))
        for line, each in zip(lines.all(), reversed(kept), strict=True):  # the latest first
            cells = line.locator("td").all_inner_texts()
            assert (cells[0], cells[3], cells[4]) == (str(each.seq), each.arguments.get("trial", ""), each.by)
            assert cells[5].startswith(each.verb) and cells[5].endswith(each.outcome)


def test_what_is_refused_is_said_where_it_was_asked(browser: Browser, tmp_path: Path) -> None:
    """What was written stays, to be mended; what was wrong is said beside it."""
    with steering(browser, tmp_path, Keyboard) as who:
        page, dialog = who.page, who.page.get_by_role("dialog")
        who.seen.go(f"#/experiments/{who.name}")
        who.press("Add…")
        for text, words in (
            ('{"lr": ', "not valid JSON"),
            ('{"lr": 7}', "not in loguniform"),
            ('{"depth": 7}', "depth"),
        ):
            who.write("Configuration, as JSON", text)
            who.confirm("Add")
            expect(dialog.get_by_role("alert")).to_contain_text(words)
            expect(dialog.get_by_label("Configuration, as JSON")).to_have_value(text)
            assert serious(page) == []
        who.confirm("Cancel")
        who.press("Limits…")
        who.write("Number of samples", "many")
        who.confirm("Change")
        expect(dialog.get_by_role("alert")).to_contain_text("many")
        who.write("Number of samples", "1")
        who.confirm("Change")
        expect(dialog.get_by_role("alert")).to_contain_text("num_samples")
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
        expect(page.get_by_role("button", name="Limits…")).to_be_focused()
        who.press("Trials", "link")
        who.press(who.running()[0], "link")
        who.press("Resume")
        expect(page.locator(".toast.bad")).to_contain_text("is not paused: RUNNING")
        expect(page.get_by_role("button", name="Resume")).to_be_focused()
        given = [("add", False), ("add", False), ("set", False), ("resume", False)]
        assert [(each.verb, each.done) for each in who.commands()] == given
        assert ["409" in each for each in who.seen.complaints] == [True] * len(
            given
        )  # the browser's own words
        who.seen.complaints.clear()


def test_a_question_that_is_not_confirmed_does_nothing(browser: Browser, tmp_path: Path) -> None:
    with steering(browser, tmp_path, Keyboard) as who:
        who.seen.go(f"#/experiments/{who.name}")
        who.press("Stop")
        expect(who.page.get_by_role("dialog")).to_contain_text("all its trials stop")
        who.page.keyboard.press("Escape")
        expect(who.page.get_by_role("dialog")).to_have_count(0)
        expect(who.page.get_by_role("button", name="Stop")).to_be_focused()
        who.press("Stop")
        who.confirm("Cancel")
        expect(who.page.get_by_role("dialog")).to_have_count(0)
        assert who.commands() == []
