"""Charts in a notebook: a real kernel runs the cells, and a real browser draws what it sends."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import run_python
from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.charts.notebook import PLOTLY, LiveChart, widget_of

pytest.importorskip("jupyter_client")
pytest.importorskip("ipykernel")
pytest.importorskip("anywidget")
from tests.test_notebook import Run, running_kernel

pytestmark = pytest.mark.external

CHROMIUM = shutil.which("chromium")
VIEW = "application/vnd.jupyter.widget-view+json"

FIT = """
import time, trainkit
from trainkit import tune
from trainkit.plugins.dashboard.charts.notebook import LiveChart

trainkit.init(engine="inline", num_cpus=1, ignore_reinit_error=True)

def train(config):
    for step in range(1, 6):
        time.sleep(0.05)
        tune.report({"loss": config["x"] / step, "size": config["x"]})

results = tune.Tuner(
    train,
    param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
    tune_config=tune.TuneConfig(metric=METRIC, mode=MODE),
    run_config=tune.RunConfig(storage_path=".", name="NAME", verbose=0, callbacks=[CHART]),
).fit()
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a cell, which must not fail, and returns the messages that come of it."""
    with running_kernel(tmp_path_factory.mktemp("notebook")) as run_cell:

        def run(code: str) -> list[dict[str, Any]]:
            messages = run_cell(code)
            failed = contents(messages, "error")
            assert not failed, "\n".join(failed[0]["traceback"])
            return messages

        yield run


def cell(name: str, chart: str, metric: Any = "loss", mode: Any = "min") -> str:
    code = FIT.replace("NAME", name).replace("CHART", chart)
    return code.replace("METRIC", repr(metric)).replace("MODE", repr(mode))


def contents(messages: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [message["content"] for message in messages if message["msg_type"] == kind]


def figures(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures that the widget was given, in order."""
    states = [
        content["data"]["state"]
        for kind in ("comm_open", "comm_msg")
        for content in contents(messages, kind)
        if "state" in content["data"]
    ]
    return [state["figure"] for state in states if "figure" in state]


def test_a_chart_follows_the_experiment_and_a_picture_stays(kernel: Run):
    messages = kernel(cell("curves", "LiveChart(every_s=0.05)"))
    (shown,) = [each for each in contents(messages, "display_data") if VIEW in each["data"]]
    drawn = figures(messages)
    assert drawn[0]["data"] == [], "before the first report"
    assert "no trial has reported" in drawn[0]["layout"]["title"]["text"]
    points = [sum(len(trace["x"]) for trace in figure["data"]) for figure in drawn]
    assert points == sorted(points) and len(set(points)) > 3, "it grew while fit() ran"

    (left,) = contents(messages, "update_display_data")
    assert left["transient"] == shown["transient"], "it takes the place of the chart"
    assert set(left["data"]) == {"text/plain", "image/png", PLOTLY}
    assert base64.b64decode(left["data"]["image/png"]).startswith(b"\x89PNG")
    assert left["data"][PLOTLY] == drawn[-1]
    assert left["data"]["text/plain"] == "curves of curves"
    assert contents(messages, "comm_close"), "no widget is left behind"


def test_what_can_never_be_drawn_is_said_and_a_table_stays(kernel: Run):
    messages = kernel(cell("none", "LiveChart('rungs')"))
    (left,) = contents(messages, "update_display_data")
    assert "ResultGrid(3 trials" in left["data"]["text/plain"]
    assert figures(messages)[-1]["layout"]["title"]["text"]


SLOW = """
from trainkit.plugins.dashboard import charts
plain = charts.chart
def slow(*given):
    time.sleep(0.2)
    return plain(*given)
charts.chart = slow
try:
    FIT
finally:
    charts.chart = plain
"""


def test_a_chart_that_takes_long_is_drawn_seldom(kernel: Run):
    kernel("import time")
    fit = cell("slow", "LiveChart(every_s=0.05)").strip().replace("\n", "\n    ")
    assert 2 <= len(figures(kernel(SLOW.replace("FIT", fit)))) <= 4


def test_a_missing_package_is_refused_when_the_chart_is_made(kernel: Run):
    made = """
import sys
from trainkit.errors import MissingDependencyError
from trainkit.plugins.dashboard.charts.notebook import LiveChart
for kind, missing in (("curves", ["plotly"]), ("importances", ["sklearn", "optuna"])):
    held = {name: sys.modules.pop(name, None) for name in missing}
    sys.modules.update(dict.fromkeys(missing))
    try:
        LiveChart(kind)
    except MissingDependencyError as error:
        print(error)
    for name, module in held.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module
"""
    said = "".join(each["text"] for each in contents(kernel(made), "stream"))
    assert "live charts need plotly" in said and "importances need optuna" in said


def test_elsewhere_than_in_a_notebook_it_is_refused():
    with pytest.raises(ConfigError, match="does not run in one: leave LiveChart out"):
        LiveChart()
    with pytest.raises(ConfigError, match="choose one of history, curves, "):
        LiveChart("pie")
    with pytest.raises(ConfigError, match="positive number of seconds"):
        LiveChart(every_s=0)


DRIVER = """
async ([script, first, second]) => {
  globalThis.define = () => { throw new Error("a page's own loader"); };
  globalThis.define.amd = true;
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const { default: widget } = await import(url);
  let figure = first, changed;
  const model = {
    get: (name) => (name === "figure" ? figure : undefined),
    on: (event, call) => { changed = call; },
    off: () => { changed = undefined; },
  };
  const el = document.body.appendChild(document.createElement("div"));
  const end = widget.render({ model, el });
  const curves = () => el.querySelectorAll(".scatterlayer .trace").length;
  const until = async (holds) => {
    for (let tries = 0; tries < 2000 && !holds(); tries += 1) {
      await new Promise((done) => setTimeout(done, 10));
    }
  };
  await until(() => el.textContent.includes("nothing yet"));
  const before = [curves(), el.textContent.includes("nothing yet")];
  figure = second;
  changed();
  await until(() => curves() === 3);
  const after = curves();
  const heights = new Set();
  for (let tries = 0; tries < 4; tries += 1) {
    figure = structuredClone(second);
    changed();
    await new Promise((done) => setTimeout(done, 200));
    heights.add(el.offsetHeight);
  }
  end();
  await until(() => el.querySelectorAll("svg").length === 0);
  return [before, after, el.querySelectorAll("svg").length, changed === undefined, [...heights]];
}
"""


def test_a_notebook_needs_no_server():
    """Its extra brings none."""
    names = "sys.modules['starlette'] = sys.modules['uvicorn'] = None"
    run_python("-c", f"import sys; {names}; import trainkit.plugins.dashboard.charts.notebook")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_a_browser_draws_the_widget_without_a_network():
    playwright = pytest.importorskip("playwright.sync_api")
    first = {"data": [], "layout": {"title": {"text": "nothing yet"}}}
    lines = [{"type": "scatter", "mode": "lines", "x": [1, 2], "y": [n, 1]} for n in range(3)]
    widget = widget_of(first)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        page = browser.new_page()
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        drawn = page.evaluate(DRIVER, [str(widget._esm), first, {"data": lines, "layout": {}}])
        browser.close()
    assert drawn[:-1] == [[0, True], 3, 0, True]
    assert drawn[-1] == [450], "what stands below it stays where it is"
    assert problems == []
    assert [url for url in asked if not url.startswith("blob:")] == []
