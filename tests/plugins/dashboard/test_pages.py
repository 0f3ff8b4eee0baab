"""Pages of the dashboard in a real browser: what they show, and how they follow what runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.conftest import eventually
from tests.plugins.dashboard import samples
from tests.plugins.dashboard.browser import CHROMIUM, PATIENCE_MS, Sight, alive, serious, served
from tests.plugins.dashboard.test_ranks import training
from trainkit.client import Experiment
from trainkit.plugins.plots.kinds import KINDS

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium here: apt-get install --no-install-recommends chromium"
)
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, session: None) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    samples.halving(folder, num_samples=60)
    samples.population(folder)
    samples.halving(folder, name="second", num_samples=8, seed=1)
    samples.marked(folder)
    samples.repeated(folder)
    samples.ended(folder)
    return folder


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[str]:
    with served(root) as running:
        yield running


@pytest.fixture
def sight(browser: Browser, server: str) -> Iterator[Sight]:
    seen = Sight.of(browser, server)
    yield seen
    seen.close()


@pytest.fixture(scope="module")
def live(root: Path, server: str) -> Iterator[Path]:
    with alive(root) as folder:
        yield folder


def best(sight: Sight, name: str, count: int = 1) -> list[str]:
    page = sight.ask(f"/api/experiments/{name}/trials?sort=last&limit={count}")
    return [row["trial_id"] for row in page["rows"]]


def routes(sight: Sight, name: str) -> dict[str, str]:
    """Return the routes of all pages of an experiment."""
    here = f"#/experiments/{name}"
    one, other = best(sight, name, 2)
    tabs = {tab: f"{here}?tab={tab}" for tab in ("trials", "charts", "events", "settings")}
    kinds = sight.ask(f"/api/experiments/{name}")["charts"]
    charts = {kind: f"{here}?tab=charts&chart={kind}" for kind in kinds if kind != "compare"}
    more = {"trial": f"{here}/trials/{one}", "compare": f"{here}/compare?trials={one},{other}"}
    return {"list": "#/", "overview": here, **tabs, **charts, **more}


def walk(sight: Sight, name: str) -> None:
    """Go to each page; none complains, none keeps anybody out, all are as wide as the window."""
    width = sight.page.viewport_size["width"]  # type: ignore[index]
    for what, route in routes(sight, name).items():
        sight.go(route)
        sight.draw_all()
        assert sight.page.query_selector(".problem") is None, what
        assert sight.complaints == [], what
        assert serious(sight.page) == [], what
        assert sight.page.evaluate("document.documentElement.scrollWidth") <= width, what


def test_each_page_of_a_finished_experiment(sight: Sight) -> None:
    walk(sight, "digits")


def test_states_spaces_and_settings_are_in_words(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/ended?tab=trials")
    infeasible = ["finished infeasible", "finished", "failed", "stopped early infeasible"]
    assert [" ".join(each.split()) for each in column(page, "state")] == infeasible
    assert not {"date", "timestamp", "pid", "hostname"} & set(page.locator("thead").inner_text().split())
    sight.go("#/experiments/ended?tab=settings")
    expect(page.locator("main")).to_contain_text("uniform(0.5, 0.99) when optimizer is 'sgd'")
    expect(page.locator("main")).to_contain_text("ASHAScheduler(")
    sight.go(f"#/experiments/ended/trials/{best(sight, 'ended')[0]}")
    expect(page.get_by_role("heading", name="Attempts")).to_be_visible()
    expect(page.get_by_role("heading", name="Checkpoints")).to_be_hidden()  # the trial has none
    assert sight.complaints == []


def test_each_page_of_a_population_on_a_telephone_in_the_dark(browser: Browser, server: str) -> None:
    view = {"viewport": {"width": 400, "height": 800}, "color_scheme": "dark"}
    seen = Sight.of(browser, server, **view)
    walk(seen, "population")
    background = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert max(map(int, re.findall(r"\d+", background)[:3])) < 60
    seen.close()


def test_each_page_of_a_running_experiment(sight: Sight, live: Path) -> None:
    walk(sight, live.name)


def test_a_button_of_the_page_before_cannot_be_pressed_while_another_is_loaded(
    sight: Sight, live: Path
) -> None:
    page = sight.page
    (trial,) = best(sight, live.name)
    sight.go(f"#/experiments/{live.name}")
    held: list[Route] = []
    page.route("**/trials/*", lambda route: held.append(route))
    page.evaluate("route => { location.hash = route; }", f"#/experiments/{live.name}/trials/{trial}")
    page.wait_for_function("document.getElementById('main').inert")
    expect(page.locator("h1")).to_have_text(live.name)  # whose Stop would end all its trials
    for each in held:
        each.continue_()
    page.unroute("**/trials/*")
    expect(page.locator("h1")).to_have_text(trial)
    page.wait_for_function("!document.getElementById('main').inert")


def test_a_session_shows_its_processes_and_their_stacks(sight: Sight, live: Path) -> None:
    page = sight.page
    owner = sight.ask(f"/api/experiments/{live.name}")["owner"]
    (session,) = (each for each in sight.ask("/api/sessions") if each["driver_pid"] == owner)
    sight.go("#/sessions")
    assert serious(page) == []
    page.get_by_role("link", name=session["session_id"]).click()
    expect(page.locator("h1")).to_have_text(session["program"])
    expect(page.locator("h1 + span")).to_contain_text(session["session_id"])
    page.locator(".scroll[aria-label=Processes]").get_by_role("button", name="Stacks").last.click()
    expect(page.locator("pre[aria-label=Stacks]")).to_contain_text("most recent call first")
    assert serious(page) == []
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    sizes = page.locator(".scroll[aria-label=Processes] td").filter(
        has_text=re.compile(r"^[\d.]+\s(MiB|GiB)$")
    )
    assert sizes.count() >= 3
    lines = (
        "cells => cells.map(each => { const text = document.createRange(); text.selectNodeContents(each); "
    )
    assert set(sizes.evaluate_all(lines + "return text.getClientRects().length; })")) == {1}
    assert sight.complaints == []


def test_the_ranks_of_a_trainer_and_a_trace_of_one_by_mouse(sight: Sight, tmp_path: Path) -> None:
    page = sight.page
    with training(tmp_path, steps=1) as pids:
        (session,) = (each for each in sight.ask("/api/sessions") if each["driver_pid"] == os.getpid())
        sight.go(f"#/sessions/{session['session_id']}")
        table = page.get_by_role("region", name="Ranks")
        expect(table.locator("tbody tr")).to_have_count(2)
        slow = table.locator("tbody tr").nth(1)
        expect(slow).to_contain_text("Napping")
        expect(slow).to_contain_text("1 of 2")
        expect(slow).to_contain_text(str(pids[1]))
        expect(slow).to_contain_text("straggler")  # as the page follows, without a reload
        assert serious(page) == []
        slow.get_by_role("button", name=f"Trace of rank 1, process {pids[1]}").click()
        for wrong, why in (("many", "an integer"), ("101", "must be 1 to 100")):
            page.get_by_label("Steps").fill(wrong)
            page.get_by_role("button", name="Record").click()
            expect(page.locator("dialog [role=alert]")).to_contain_text(why)
        assert all("409" in each for each in sight.complaints)  # the browser tells of what was refused
        sight.complaints.clear()
        page.get_by_label("Steps").fill("2")
        with page.expect_download() as download:
            page.get_by_role("button", name="Record").click()
        assert download.value.suggested_filename == f"trace-{pids[1]}.json"
        download.value.save_as(tmp_path / "trace.json")
        names = {each["name"] for each in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
        assert {"aten::addmm", "ProfilerStep#0", "ProfilerStep#1"} <= names
        expect(page.locator("dialog")).to_have_count(0)
        assert sight.complaints == []
    expect(page.get_by_role("region", name="Ranks")).to_have_count(0)


DRAWN = """place => {
    const modes = name => place.data.filter(each => each.type === 'scatter' && each.mode.includes(name));
    const sum = traces => traces.reduce((all, each) => all + [...each.x].filter(x => x !== null).length, 0);
    const count = marks => place.querySelectorAll(marks).length;
    return {
        points: [sum(modes('markers')), count('.scatterlayer path.point')],
        bars: [sum(place.data.filter(each => each.type === 'bar')), count('.barlayer .point path')],
        lines: [modes('lines').filter(each => each.x.length > 1).length, count('.scatterlayer .js-line') > 0],
    };
}"""


def test_each_chart_draws_what_its_figure_holds(sight: Sight) -> None:
    for kind, route in routes(sight, "digits").items():
        if "chart=" not in route:
            continue
        sight.go(route)
        chart = sight.page.locator(f"[data-kind={kind}]")
        expect(chart).to_have_attribute("data-state", "drawn")
        found = chart.evaluate(DRAWN)
        assert found["points"][0] == found["points"][1], kind
        assert found["bars"][0] == found["bars"][1], kind
        assert bool(found["lines"][0]) is found["lines"][1], kind
        assert found["points"][0] + found["bars"][0] + found["lines"][0] > 0, kind
    assert chart.evaluate(DRAWN)["lines"] == [1, True]  # the last one: the distribution of values


def test_names_that_are_html_are_text(sight: Sight) -> None:
    page, dialogs = sight.page, []
    page.on("dialog", lambda each: (dialogs.append(each.message), each.dismiss()))
    one = sight.ask("/api/experiments/digits/trials?search=onerror&limit=1")["rows"][0]["trial_id"]
    here = "#/experiments/digits"
    for route in ("?tab=trials&search=onerror", "?tab=settings", f"/trials/{one}", f"/compare?trials={one}"):
        sight.go(here + route)
        expect(page.get_by_text(samples.HOSTILE).first).to_be_visible()
        assert page.locator("main img").count() == 0, route
    assert dialogs == []
    assert sight.complaints == []  # what an element of such a name would load is none


def test_names_in_charts_are_text(sight: Sight) -> None:
    page, dialogs = sight.page, []
    page.on("dialog", lambda each: (dialogs.append(each.message), each.dismiss()))
    here = f"#/experiments/{quote(samples.HOSTILE, safe='')}?tab=charts&chart="
    name = samples.MARKED.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    sight.go(here)
    kinds = [each for each in KINDS if page.locator(f"[data-kind={each}]").count()]
    assert set(KINDS) - set(kinds) == {"lineage", "pareto", "compare"}
    for kind in kinds:
        sight.go(here + kind)
        chart = page.locator(f"[data-kind={kind}]")
        expect(chart).to_have_attribute("data-state", "drawn")
        if kind not in ("timeline", "parallel"):  # one names no metric, the other the end of it
            assert name in " ".join(chart.locator("text").all_text_contents()), kind
        hovered = chart.evaluate(
            "place => { const shown = []; place.data.forEach((trace, at) => { Plotly.Fx.hover(place, "
            "[{curveNumber: at, pointNumber: 0}]); shown.push(...[...place.querySelectorAll("
            "'.hoverlayer text')].map(each => each.textContent)); }); return shown.join(' '); }"
        )
        if kind in ("parallel", "importances"):
            assert name in hovered, kind
        assert chart.locator("a, img, [onerror], [style*='bold']").count() == 0, kind
    assert dialogs == []
    assert sight.complaints == []


def column(page: Page, name: str) -> list[str]:
    heads = page.locator("thead th").all_inner_texts()
    place = next(n for n, head in enumerate(heads) if head.split("\n")[0].strip(" ↑↓") == name)
    return page.locator(f"tbody tr td:nth-child({place + 1})").all_inner_texts()


def test_the_table_sorts_filters_and_pages_by_mouse_and_keeps_it_in_its_address(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=trials&limit=50")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(page.locator("tbody tr")).to_have_count(10)
    page.get_by_role("button", name="last loss").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("last loss")
    losses = list(map(float, column(page, "last loss")))
    assert losses == sorted(losses) and len(losses) == 50
    page.get_by_role("searchbox").fill("gelu")
    expect(page.locator("td", has_text="relu")).to_have_count(0)
    assert set(column(page, "activation")) == {"gelu"}
    page.reload()
    sight.settle()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("last loss")
    assert set(column(page, "activation")) == {"gelu"}


def test_the_table_by_keyboard_alone(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=trials")
    page.keyboard.press("/")
    page.keyboard.type("relu")
    expect(page.locator("td", has_text="gelu")).to_have_count(0)
    page.get_by_role("button", name="width").focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("width")
    page.keyboard.press("Enter")  # the focus is where it was
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("width")
    widths = list(map(int, column(page, "width")))
    assert widths == sorted(widths, reverse=True)
    page.locator("details.choose summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # the first column that can be left out
    page.keyboard.press("Space")
    expect(page.locator("thead")).not_to_contain_text("status")
    page.keyboard.press("Escape")
    expect(page.locator("details.choose[open]")).to_have_count(0)
    page.locator("tbody a").first.focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    trial = page.locator("tbody a").first.inner_text()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(trial)


def test_the_first_tab_skips_to_the_content(sight: Sight) -> None:
    sight.page.keyboard.press("Tab")
    expect(sight.page.locator(":focus")).to_have_text("Skip to content")
    sight.page.keyboard.press("Enter")
    expect(sight.page.locator("main")).to_be_focused()


def test_chosen_trials_are_compared(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=trials&sort=last")
    page.locator("tbody input").nth(0).check()
    page.locator("tbody input").nth(1).check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page.locator("h1")).to_have_text("2 trials compared")
    expect(page.locator("tr.differs").first).to_contain_text("lr")


def test_chosen_experiments_are_compared(sight: Sight) -> None:
    page, names = sight.page, ["digits", "second"]
    sight.go("#/")
    for name in names:
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("link", name="Compare 2").click()
    expect(page.locator("h1")).to_have_text("2 experiments compared")
    sight.settle()
    sight.draw_all()
    expect(page.locator("[data-kind=curves]")).to_have_attribute("data-state", "drawn")
    for kind in ("history", "edf"):
        chart = page.locator(f"[data-kind={kind}]")
        expect(chart).to_have_attribute("data-state", "drawn")
        assert chart.locator(".legendtext").all_text_contents() == names
        assert len(set(chart.evaluate("place => place.data.map(each => each.line.color)"))) == 2
    ends = page.locator("[data-kind=history]").evaluate("place => place.data.map(each => each.y.at(-1))")
    assert ends == [sight.ask(f"/api/experiments/{name}")["best"]["value"] for name in names]
    table = page.get_by_role("region", name="Experiments")
    expect(table.locator("tr.differs").filter(has_text=re.compile("^trials"))).to_contain_text("60 of 60")
    assert set(column(page, "experiment")) >= set(names)
    assert serious(page) == []
    assert sight.complaints == []


def test_an_interval_on_an_axis_filters_the_runs_and_is_in_the_link(sight: Sight, browser: Browser) -> None:
    page = sight.page
    sight.go("#/experiments/digits/compare")
    rows = page.get_by_role("region", name="Compared runs").locator("tbody tr")
    expect(rows).to_have_count(50)
    canvas = page.get_by_role("img", name="Parallel axes lr, width, activation, loss: 60 of 60 runs")
    box = canvas.bounding_box()
    assert box is not None
    x, bottom = box["x"] + box["width"] - 60, box["y"] + box["height"]  # the axis of the loss
    page.mouse.move(x, bottom - 10)
    page.mouse.down()
    page.mouse.move(x, bottom - 60, steps=5)
    page.mouse.up()
    chip = page.get_by_role("button", name=re.compile("Remove filter loss"))
    expect(chip).to_be_visible()
    low, high = json.loads(unquote(page.url).partition("in.metrics/loss=")[2])
    every = sight.ask("/api/experiments/digits/trials?limit=100")["rows"]
    kept = [row["trial_id"] for row in every if low <= row["last"] <= high]
    assert 1 <= len(kept) < 60
    expect(rows).to_have_count(len(kept))
    assert sorted(column(page, "trial")) == sorted(kept)
    page.get_by_label("log y").check()
    seen = Sight.of(browser, sight.page.url.replace("/#", f"/?token={token(sight)}#"))  # a link that was sent
    assert sorted(column(seen.page, "trial")) == sorted(kept)
    expect(seen.page.get_by_label("log y")).to_be_checked()
    seen.close()
    chip.focus()
    page.keyboard.press("Enter")
    expect(rows).to_have_count(50)
    page.get_by_text("Filter", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_label("Filter by").select_option("activation")
    page.get_by_label("relu").focus()
    page.keyboard.press("Space")
    expect(rows.filter(has_text="relu")).to_have_count(0)
    assert serious(page) == []
    assert sight.complaints == []


def token(sight: Sight) -> str:
    return str(sight.page.evaluate("sessionStorage.getItem('trainkit-token')"))


def test_the_mean_and_spread_over_seeds_are_one_row_and_one_band(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/seeds/compare?metrics=loss,accuracy")
    expect(page.get_by_role("region", name="Compared runs").locator("thead")).not_to_contain_text("batch")
    page.get_by_label("mean over").select_option("seed")
    assert column(page, "runs") == ["3", "3"]
    assert column(page, "last loss") == ["0.11 ± 0.1", "0.15 ± 0.1"]  # of 0.01, 0.11, 0.21 and so on
    slider = page.get_by_label("smoothing")
    slider.focus()
    page.keyboard.press("ArrowRight")
    chart = page.locator("[data-kind=curves]")
    expect(chart.locator(".ytitle").first).to_have_text("loss, smoothed by 0.05")
    bands = "place => place.data.filter(each => each.fill === 'tonexty').length"
    assert chart.evaluate(bands) == 4  # two settings, two metrics
    assert serious(page) == []
    assert sight.complaints == []


def test_tables_and_pictures_are_downloaded(sight: Sight, tmp_path: Path) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=trials")

    def saved(button: str, name: str) -> Path:
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        assert download.value.suggested_filename == name
        path = tmp_path / name
        download.value.save_as(path)
        return path

    with saved("CSV of all trials", "digits.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 60
    assert len(json.loads(saved("JSON of all trials", "digits.json").read_text())) == 60
    sight.go("#/experiments/digits?tab=charts&chart=history")
    assert saved("PNG of this chart", "digits-history.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert saved("SVG of this chart", "digits-history.svg").read_text().startswith("<svg")
    assert json.loads(saved("JSON of this chart", "digits-history.json").read_text())["data"]


def test_light_and_dark_are_switched_and_kept(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert light != dark
    assert serious(page) == []
    page.reload()
    sight.settle()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == dark


def test_a_note_is_kept(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=settings")
    page.get_by_role("textbox", name="Note").fill("<b>the best so far</b>")
    page.get_by_role("button", name="Save note").click()
    expect(page.locator("#toasts")).to_contain_text("The note is saved")
    page.reload()
    sight.settle()
    expect(page.get_by_role("textbox", name="Note")).to_have_value("<b>the best so far</b>")


def test_without_the_token_nothing_is_shown_but_what_to_do(browser: Browser, server: str) -> None:
    page = browser.new_page()
    page.goto(server.partition("?")[0])
    expect(page.get_by_role("alert")).to_contain_text("trainkit dashboard")
    assert "digits" not in page.content()
    page.close()


def test_the_token_leaves_the_address_and_no_cookie_is_set(sight: Sight) -> None:
    assert "token" not in sight.page.url
    assert sight.page.context.cookies() == []


# --- of what runs ---------------------------------------------------------------------------------

# Each value that the cell of a trial shows in a column, with the time when it is there: [shown, value].
SHOWN = """([trial, column]) => {
    const place = [...document.querySelectorAll('thead th')].findIndex(head => head.textContent === column);
    window.shown = [];
    new MutationObserver(() => {
        const value = Number(document.querySelector(`tr[data-trial='${trial}']`).children[place].textContent);
        if (value !== window.shown.at(-1)?.[1]) window.shown.push([Date.now(), value]);
    }).observe(document.querySelector('tbody'), {subtree: true, childList: true, characterData: true});
}"""


def test_a_report_is_on_the_page_within_a_second_without_a_reload(sight: Sight, live: Path) -> None:
    page = sight.page
    sight.go(f"#/experiments/{live.name}?tab=trials&status=running")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("reported_ms").check()
    trial = running_trial(sight, live)
    page.evaluate(SHOWN, [trial, "reported_ms"])

    def delays() -> list[int]:
        """Return the time from each report to where the page shows it, or a later one, in milliseconds."""
        page.wait_for_timeout(500)
        shown = page.evaluate("window.shown")
        history = sight.ask(f"/api/experiments/{live.name}/trials/{trial}/history")
        reported = [each["reported_ms"] for each in history]
        watched = [at for at in reported if shown and shown[0][1] < at <= shown[-1][1]]
        return [next(when for when, value in shown if value >= at) - at for at in watched]

    # Each of so many in a row; a busy machine may keep some message back, but not one in every twenty.
    def is_live() -> bool:
        found = delays()
        return any(max(found[at : at + 20]) < 1000 for at in range(len(found) - 19))

    assert eventually(is_live, 90), delays()
    assert min(delays()) > 0, "the clocks are the same"
    assert sight.complaints == []


def stop_one(live: Path) -> str:
    """Stop a trial that runs, and wait until it has ended; return its id."""
    experiment = Experiment(live)
    trial = next(each.trial_id for each in experiment.trials() if each.status == "RUNNING")
    experiment.stop(trial)
    assert eventually(
        lambda: {each.trial_id: each.status for each in experiment.trials()}[trial] == "TERMINATED", 120
    )
    return trial


def running_trial(sight: Sight, live: Path) -> str:
    page = sight.ask(f"/api/experiments/{live.name}/trials?status=RUNNING&limit=1")
    return str(page["rows"][0]["trial_id"])


def test_what_changes_before_the_stream_begins_is_shown(sight: Sight, live: Path) -> None:
    held: list[Route] = []
    sight.page.route("**/api/stream*", lambda route: held.append(route))
    trial = running_trial(sight, live)
    sight.go(f"#/experiments/{live.name}/trials/{trial}")
    expect(sight.page.locator("h1 + span .badge")).to_have_text("running")
    assert stop_one(live) == trial
    assert eventually(lambda: held != [], 60)
    held[-1].continue_()
    expect(sight.page.locator("h1 + span .badge")).to_have_text("stopped early")
    sight.page.unroute("**/api/stream*")


def test_a_filter_holds_for_what_changes(sight: Sight, live: Path) -> None:
    sight.go(f"#/experiments/{live.name}?tab=trials&status=running")
    rows = sight.page.locator("tr[data-trial]")
    expect(rows).to_have_count(2)
    trial = stop_one(live)
    expect(sight.page.locator(f"tr[data-trial='{trial}']")).to_have_count(0)
    expect(rows).to_have_count(2)  # the one that runs in its place
    assert sight.complaints == []


def test_a_hidden_page_has_no_stream_and_is_up_to_date_when_it_is_seen_again(
    sight: Sight, live: Path
) -> None:
    trial = running_trial(sight, live)
    sight.go(f"#/experiments/{live.name}/trials/{trial}")
    expect(sight.page.locator("#live")).to_have_attribute("data-state", "on")
    sight.hide()
    expect(sight.page.locator("#live")).to_have_attribute("data-state", "lost")
    assert stop_one(live) == trial
    expect(sight.page.locator("h1 + span .badge")).to_have_text("running")
    sight.hide(False)
    expect(sight.page.locator("h1 + span .badge")).to_have_text("stopped early")
    assert sight.complaints == []


def test_an_experiment_that_is_removed_is_said(sight: Sight, root: Path) -> None:
    gone = root / "gone"
    shutil.copytree(root / "second", gone)
    sight.go("#/experiments/gone")
    expect(sight.page.locator("#live")).to_have_attribute("data-state", "on")
    shutil.rmtree(gone)
    expect(sight.page.locator("#live")).to_have_attribute("title", re.compile("gone"))
    expect(sight.page.locator("h1")).to_have_text("gone")


def test_an_address_stays_where_one_went(sight: Sight) -> None:
    page = sight.page
    sight.go("#/experiments/digits?tab=trials")
    page.get_by_role("searchbox").fill("gelu")
    sight.go("#/experiments/population")  # before what was typed is looked for
    page.wait_for_timeout(1000)  # nothing is awaited: no later change comes
    assert page.url.endswith("#/experiments/population")


def test_what_is_shown_anew_keeps_the_focus_and_where_it_was_scrolled_to(sight: Sight, live: Path) -> None:
    page = sight.page
    owner = sight.ask(f"/api/experiments/{live.name}")["owner"]
    (session,) = (each for each in sight.ask("/api/sessions") if each["driver_pid"] == owner)
    sight.go(f"#/experiments/{live.name}?tab=trials&status=running")
    trial = page.locator("tbody a").first.inner_text()
    for route, kept in (
        ("#/", page.get_by_role("link", name=live.name, exact=True)),
        (f"#/experiments/{live.name}?tab=trials&sort=last", page.get_by_label(f"Compare {trial}")),
        (f"#/experiments/{live.name}", page.get_by_role("region", name="Best trials").get_by_text(trial)),
        (f"#/experiments/{live.name}/trials/{trial}", page.locator(".scroll[aria-label=Reports]")),
        (f"#/sessions/{session['session_id']}", page.get_by_role("button", name="Stacks").last),
    ):
        sight.go(route)
        kept.focus()
        scrolled = kept.evaluate("each => { each.scrollTop = 40; return each.scrollTop; }")
        page.evaluate(
            "() => { window.changes = 0; new MutationObserver(() => { window.changes += 1; }).observe("
            "document.getElementById('main'), {subtree: true, childList: true, characterData: true}); }"
        )
        page.wait_for_function("() => window.changes >= 4")
        expect(kept).to_be_focused()
        assert kept.evaluate("each => each.scrollTop") == scrolled, route
    assert sight.complaints == []
