"""Charts in a notebook that are updated while `fit()` runs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, MetricError
from trainkit.plugins.dashboard import charts
from trainkit.plugins.plots import kinds
from trainkit.plugins.plots.figures import Figure, text
from trainkit.plugins.plots.style import as_png
from trainkit.tune.callbacks.base import Callback
from trainkit.tune.core.checks import load, require
from trainkit.tune.core.metrics import encode
from trainkit.tune.core.trial import Trial
from trainkit.tune.display import notebook_display
from trainkit.tune.results.result_grid import ResultGrid

KINDS = [kind for kind in kinds.KINDS if kind != "compare"]
"""Kinds of charts that can be drawn without choosing trials."""
PLOTLY = "application/vnd.plotly.v1+json"

# The line below hides any module loader of the page, because Plotly would register with the loader and not
# become a global name.
_HEAD = "const module = undefined, exports = undefined, define = undefined;\n"
_DRAW = """
const drawer = globalThis.Plotly;
export default {
  render({ model, el }) {
    const place = document.createElement("div");
    el.append(place);
    let drawn;
    const draw = () => {
      const figure = model.get("figure");
      place.style.height = `${figure.layout.height ?? 450}px`; // or Plotly has none at every second drawing
      drawn = drawer.react(place, figure.data, figure.layout, { responsive: true, displaylogo: false });
    };
    model.on("change:figure", draw);
    draw();
    return () => {
      model.off("change:figure", draw);
      drawn.then(() => drawer.purge(place)); // what is half drawn would go on without a place
    };
  },
};
"""


def widget_of(figure: Figure) -> Any:
    """Return a widget that shows a Plotly figure. To show a different figure, set the widget's attribute
    `figure`.

    The widget needs no network, because the package plotly contains Plotly's script.

    Raises:
        MissingDependencyError: anywidget or plotly is not installed.
    """
    anywidget = load("anywidget", "live charts", "notebook")
    traitlets = load("traitlets", "live charts", "notebook")
    load("plotly", "live charts", "notebook")
    script = resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")
    members = {"_esm": _HEAD + script + _DRAW, "figure": traitlets.Dict().tag(sync=True)}
    return type("Chart", (anywidget.AnyWidget,), members)(figure=figure)


class LiveChart(Callback):
    """Chart in the output of a notebook cell that runs an experiment, updated every second.

        tune.Tuner(..., run_config=tune.RunConfig(callbacks=[LiveChart()])).fit()

    When the experiment ends, the chart is replaced by a picture, which remains in the saved notebook.

    Args:
        kind: kind of the chart, such as "curves", "parallel" or "importances"; see `results.plot`.
        every_s: seconds between updates. If an update takes more than a tenth of this time, updates come less
            often.

    Raises:
        ConfigError: the kind does not exist, or the program does not run in a notebook.
        MissingDependencyError: anywidget, plotly or matplotlib is not installed, or, for importances, neither
            scikit-learn nor optuna.
    """

    def __init__(self, kind: str = "curves", *, every_s: float = 1.0) -> None:
        require(kind in KINDS, f"LiveChart has no kind {kind!r}: choose one of {', '.join(KINDS)}")
        require(every_s > 0, f"every_s of LiveChart must be a positive number of seconds, not {every_s!r}")
        display = notebook_display()
        if display is None:
            raise ConfigError(
                "LiveChart works in notebooks only, and this program does not run in one: leave "
                "LiveChart out; `trainkit dashboard` draws the same charts in a browser"
            )
        load("matplotlib", "pictures of live charts", "notebook")
        for package in ("anywidget", "plotly"):
            load(package, "live charts", "notebook")
        if kind == "importances" and find_spec("sklearn") is None:
            load("optuna", "importances", "tune")
        self._display: Callable[..., Any] = display
        self._kind = kind
        self._every_s = self._refresh_s = every_s
        self._folder = Path()
        self._next = 0.0
        self._widget: Any = None
        self._place: Any = None

    def setup(self, *given: Any, **info: Any) -> None:
        self._folder = Path(info["experiment_path"])
        self._next = info["time"] + self._every_s
        self._widget = widget_of(self._figure())
        self._place = self._display(self._widget, display_id=True)

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        if info["time"] >= self._next:
            begun = SYSTEM.monotonic()
            self._widget.figure = self._figure()
            # The tuner waits while the chart is drawn, so drawing takes at most a tenth of the tuner's time.
            self._next = info["time"] + max(self._every_s, 11 * (SYSTEM.monotonic() - begun))

    def on_experiment_end(self, trials: Sequence[Trial], **info: Any) -> None:
        figure = self._figure()
        self._widget.figure = figure
        try:
            self._place.update(self._picture(figure), raw=True)
        finally:
            self._widget.close()

    def _figure(self) -> Figure:
        try:
            figure = charts.chart(self._folder, self._kind, {})
        except (ConfigError, MetricError) as error:  # The chart shows the error until data exists.
            figure = {"data": [], "layout": {"title": {"text": text(error)}}}
        plain: Figure = json.loads(encode(figure))
        return plain

    def _picture(self, figure: Figure) -> Mapping[str, Any]:
        """Return the chart for the saved notebook: a picture, and a Plotly figure where it is supported."""
        results = ResultGrid.from_path(self._folder)
        shown: dict[str, Any] = {"text/plain": repr(results), "text/html": results._repr_html_()}
        if figure["data"]:
            png = as_png(results.plot(self._kind))
            shown = {
                "text/plain": f"{self._kind} of {self._folder.name}",
                "image/png": base64.b64encode(png).decode(),
                PLOTLY: figure,
            }
        return shown
