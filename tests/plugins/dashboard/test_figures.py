"""Charts: each figure of plain data, and each kind of chart of experiments that ran."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.dashboard import samples
from tests.plugins.dashboard.conftest import served
from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.plugins.dashboard.charts import available, chart
from trainkit.plugins.dashboard.experiments.board import Board
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.plugins.plots import figures, kinds, parameter_figures
from trainkit.plugins.plots.figures import Bar, Figure, Line, Scored
from trainkit.plugins.plots.kinds import KINDS
from trainkit.plugins.plots.parameter_figures import Parameter
from trainkit.plugins.plots.rungs import Entry, RungLabels
from trainkit.tune.results.hyperparameters import Hyperparameter, importances
from trainkit.tune.results.result_grid import ResultGrid

pytestmark = pytest.mark.process

TRIALS = Scored(["a", "b", "c", "d", "e"], [0, 1, 2, 3, 5], [3.0, 2.0, 2.5, 1.0, 1.5])
LR = Parameter("lr", [0.1, 0.01, 0.001, 0.1, 0.02], log=True)
KIND = Parameter("kind", ["x", "y", None, "x", "y"], choices=["x", "y"])


def xy(trace: Any) -> list[tuple[Any, Any]]:
    return list(zip(trace["x"], trace["y"], strict=True))


def plain(figure: Any) -> Any:
    """Return the figure as JSON has it; fails on NaN, and on what is not plain."""
    return json.loads(json.dumps(figure, allow_nan=False))


def test_best_curves_have_names_and_the_others_are_one_trace_with_gaps() -> None:
    lines = [Line(name, [(1, 3.0), (2, 1.0)]) for name in "abcd"]
    figure = plain(figures.curves(lines, metric="loss", mode="min", best=2, log_y=True))
    others, second, first = figure["data"]
    assert [first["name"], second["name"], others["name"]] == ["a   1", "b   1", "2 others"]
    assert xy(others) == [(1, 3.0), (2, 1.0), (None, None), (1, 3.0), (2, 1.0)]
    assert others["customdata"] == ["c", "c", None, "d", "d"]
    assert figure["layout"]["yaxis"]["type"] == "log"


def test_a_thinned_curve_has_each_peak() -> None:
    points = [(float(n), {4321: 50.0, 4322: -50.0, 7000: 70.0}.get(n, n % 3 / 10)) for n in range(10_000)]
    thin = figures.thinned(points)
    assert len(thin) <= figures.MAX_POINTS and thin == sorted(thin)
    assert {(4321, 50), (4322, -50), (7000, 70)} <= set(thin)
    assert len(figures.thinned([(float(n), 1.0) for n in range(10_000)])) <= figures.MAX_POINTS


def test_history_follows_the_best_so_far() -> None:
    dots, best = plain(figures.history(TRIALS, metric="loss", mode="min"))["data"]
    assert dots["y"] == [3.0, 2.0, 2.5, 1.0, 1.5]
    assert xy(best) == [(0, 3.0), (1, 2.0), (2, 2.0), (3, 1.0), (5, 1.0)]
    assert plain(figures.history(TRIALS, metric="loss", mode="max"))["data"][1]["y"] == [3.0] * 5


def test_an_infeasible_trial_is_never_the_best_so_far() -> None:
    states = {"a": "finished", "b": "stopped", "c": "finished", "d": "finished", "e": "failed"}
    figure = figures.history(TRIALS, metric="loss", mode="min", infeasible=["a", "d"], states=states)
    *dots, best = plain(figure)["data"]
    assert {each["name"]: each["y"] for each in dots} == {
        "finished": [2.5],
        "stopped early": [2.0],
        "failed": [1.5],
        "infeasible": [3.0, 1.0],
    }
    assert xy(best) == [(1, 2.0), (2, 2.0), (3, 2.0), (5, 1.5)]
    figure = figures.history(TRIALS, metric="loss", mode="min", infeasible=list("abcde"))
    assert xy(plain(figure)["data"][1]) == []


def test_parallel_coordinates_cross_each_axis_where_the_value_is() -> None:
    figure = plain(parameter_figures.parallel([LR, KIND], TRIALS, metric="loss", mode="min"))
    lines = {trace["customdata"][0]: trace for trace in figure["data"]}
    assert lines["d"]["name"] == "best: d"  # drawn last, so on top
    assert figure["data"][-1] is lines["d"]
    assert lines["c"]["y"] == [0.0, parameter_figures.INACTIVE, 0.75]
    assert lines["b"]["y"] == [pytest.approx(0.5), 0.75, 0.5]
    assert figure["layout"]["xaxis"]["ticktext"] == ["lr", "kind", "loss"]
    assert ticks(figure, 0) == ["0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1"]
    assert ticks(figure, 2) == ["1", "1.5", "2", "2.5", "3"]


def ticks(figure: Any, axis: int) -> list[str]:
    return [each["text"] for each in figure["layout"]["annotations"] if each["x"] == axis]


@pytest.mark.parametrize(
    ("values", "whole", "words"),
    [
        ([1, 7, 3, 2, 5], True, ["2", "4", "6"]),
        ([1, 2, 1, 2, 2], True, ["1", "2"]),
        ([0.0123, 0.987, 0.5, 0.5, 0.5], False, ["0.2", "0.4", "0.6", "0.8"]),
        ([0.0, 0.3, 0.1, 0.1, 0.1], False, ["0", "0.1", "0.2", "0.3"]),
        ([4.0] * 5, False, ["4"]),
    ],
)
def test_parallel_axes_have_round_ticks(values: list[float], whole: bool, words: list[str]) -> None:
    axis = Parameter("n", values, whole=whole)
    figure = parameter_figures.parallel([axis], TRIALS, metric="loss", mode="min")
    assert ticks(figure, 0) == words


def test_importances_come_in_order() -> None:
    (bars,) = plain(parameter_figures.importances({"a": 0.1, "b": 0.7}, metric="loss", method="forest"))[
        "data"
    ]
    assert bars["y"] == ["a", "b"] and bars["x"] == [0.1, 0.7]  # the last one is on top


def test_a_slice_has_a_plot_for_each_hyperparameter_without_those_that_lack_it() -> None:
    figure = plain(parameter_figures.slices([LR, KIND], TRIALS, metric="loss", columns=1))
    lr, kind = figure["data"]
    assert lr["x"] == LR.values and kind["x"] == ["x", "y", "x", "y"]
    assert kind["customdata"] == ["a", "b", "d", "e"]
    layout = figure["layout"]
    assert layout["xaxis"]["type"] == "log" and layout["xaxis2"]["categoryarray"] == ["x", "y"]
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]  # the first is above


def test_contours_are_within_the_values_and_choices_have_none() -> None:
    width = Parameter("width", [1, 5, 2, 9, 3])
    surface, dots = plain(parameter_figures.contour(LR, width, TRIALS, metric="loss", mode="min"))["data"]
    assert all(1.0 <= value <= 3.0 for row in surface["z"] for value in row)
    assert surface["x"][0] == 0.001 and surface["x"][-1] == pytest.approx(0.1)
    assert dots["customdata"] == list("abcde")
    (dots,) = plain(parameter_figures.contour(LR, KIND, TRIALS, metric="loss", mode="min"))["data"]
    assert dots["marker"]["color"] == [3.0, 2.0, 1.0, 1.5]  # without c, which has no kind


def test_a_matrix_has_a_plot_for_each_pair_without_trials_that_lack_either() -> None:
    loss = Parameter("loss", TRIALS.values)
    figure = plain(parameter_figures.matrix([LR, KIND, loss], TRIALS, metric="loss", mode="min"))
    layout, places = figure["layout"], {(each["xaxis"], each["yaxis"]): each for each in figure["data"]}
    assert list(places) == [("x1", "y1"), ("x1", "y2"), ("x2", "y2")]
    titles = [layout[axis]["title"]["text"] for axis in ("xaxis", "xaxis2", "yaxis", "yaxis2")]
    assert titles == ["lr", "kind", "kind", "loss"] and layout["xaxis"]["type"] == "log"
    assert layout["yaxis"]["domain"][0] > layout["yaxis2"]["domain"][1]  # the first is above
    assert xy(places["x1", "y2"]) == list(zip(LR.values, TRIALS.values, strict=True))
    assert places["x2", "y2"]["customdata"] == ["a", "b", "d", "e"]
    assert places["x2", "y2"]["marker"]["color"] == [3.0, 2.0, 1.0, 1.5]
    assert layout["coloraxis"]["reversescale"] is True  # the best is the brightest in both modes


def test_rungs_show_who_went_on_and_the_cutoff() -> None:
    levels = {
        1.0: [Entry("a", 3.0, False, math.nan), Entry("b", 1.0, True, 2.0)],
        2.0: [Entry("b", 0.5, True, math.nan)],
    }
    figure = figures.rungs(levels, metric="loss", mode="min", labels=RungLabels())
    ways, stayed, went_on, cutoff = plain(figure)["data"]
    assert stayed["customdata"] == ["a"] and went_on["customdata"] == ["b", "b"]
    assert [y for y in ways["y"] if y is not None] == [1.0, 0.5]
    assert set(cutoff["y"]) == {2.0, None}


def test_a_lineage_has_members_takeovers_and_the_way_of_the_best() -> None:
    ways = [Line("a", [(1, 1.0), (2, 2.0)]), Line("b", [(3, 3.0)])]
    figure = plain(figures.lineage(ways, [[(2, 2.0), (3, 3.0)]], [(1, 1.0), (3, 3.0)], shown="score"))
    members, takes, best = figure["data"]
    assert members["customdata"] == ["a", "a", None, "b"]
    assert xy(takes) == [(2, 2.0), (3, 3.0)] and xy(best) == [(1, 1.0), (3, 3.0)]


def test_a_timeline_has_a_bar_for_each_attempt_by_outcome() -> None:
    bars = [Bar("a", 0, 0.0, 2.0, 0, "failed"), Bar("a", 1, 2.0, 5.0, 0, "finished")]
    finished, failed = plain(figures.timeline(bars))["data"]
    assert (finished["base"], finished["x"], finished["name"]) == ([2.0], [3.0], "finished (1)")
    assert (failed["base"], failed["x"], failed["y"]) == ([0.0], [2.0], [0])
    layout = figures.timeline(bars[:1])["layout"]
    assert layout["showlegend"] and layout["xaxis"]["range"] == [0, 2.0]


def test_a_pareto_front_is_a_line_in_order() -> None:
    points = {"a": (3.0, 1.0), "b": (1.0, 3.0), "c": (4.0, 4.0)}
    others, front = plain(figures.pareto(points, ["a", "b"], x="loss", y="cost"))["data"]
    assert xy(front) == [(1.0, 3.0), (3.0, 1.0)] and others["customdata"] == ["c"]


def test_an_edf_rises_to_all_trials() -> None:
    first, second = plain(figures.edf({"one": [3, 1, 2], "two": [5]}, metric="loss"))["data"]
    assert xy(first) == [(1, pytest.approx(1 / 3)), (2, pytest.approx(2 / 3)), (3, 1.0)]
    assert second["name"] == "two"


M = samples.MARKED
ODD = Parameter(M, [0.1, 0.2, 0.3, 0.4, 0.5])
CHOICE = Parameter(M, [M, samples.HOSTILE] * 2 + [M], choices=[M, samples.HOSTILE])
MARKED_TRIALS = Scored([M, *"bcde"], [0, 1, 2, 3, 4], [3.0, 2.0, 2.5, 1.0, 1.5])
MARKED_FIGURES = {
    "curves": figures.curves([Line(M, [(1, 2.0)]), Line("b", [(1, 2.0)])], metric=M, mode="min", x=M, best=1),
    "history": figures.history(MARKED_TRIALS, metric=M, mode="min"),
    "rungs": figures.rungs({1.0: [Entry(M, 1.0, True, 2.0)]}, metric=M, mode="min", labels=RungLabels()),
    "lineage": figures.lineage([Line(M, [(1, 1.0)])], [], [], shown=M),
    "timeline": figures.timeline([Bar(M, 0, 0.0, 2.0, 0, "failed")]),
    "pareto": figures.pareto({M: (1.0, 2.0), "b": (2.0, 3.0)}, [M], x=M, y=M),
    "edf": figures.edf({M: [1.0, 2.0]}, metric=M),
    "parallel": parameter_figures.parallel([ODD, CHOICE], MARKED_TRIALS, metric=M, mode="min"),
    "importances": parameter_figures.importances({M: 1.0}, metric=M, method="forest"),
    "slice": parameter_figures.slices([ODD, CHOICE], MARKED_TRIALS, metric=M),
    "matrix": parameter_figures.matrix([ODD, CHOICE], MARKED_TRIALS, metric=M, mode="min"),
    "contour": parameter_figures.contour(LR, ODD, MARKED_TRIALS, metric=M, mode="min"),
    "contour of choices": parameter_figures.contour(ODD, CHOICE, MARKED_TRIALS, metric=M, mode="min"),
}


def shown(figure: Any) -> list[str]:
    """Return every text of a figure but the ids of points, which are not drawn."""
    if isinstance(figure, str):
        return [figure]
    if isinstance(figure, dict):
        return [each for name, value in figure.items() if name != "customdata" for each in shown(value)]
    return [each for value in figure for each in shown(value)] if isinstance(figure, (list, tuple)) else []


@pytest.mark.parametrize("kind", MARKED_FIGURES)
def test_no_figure_has_a_name_that_is_more_than_text(kind: str) -> None:
    texts = [each.replace("<br>", "") for each in shown(MARKED_FIGURES[kind])]
    assert any("javascript" in each for each in texts), "the name is shown"
    assert [each for each in texts if not each.isprintable() or any(mark in each for mark in "<%$")] == []


# --- of experiments -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, session: None) -> Path:
    folder = tmp_path_factory.mktemp("charts")
    samples.halving(folder, num_samples=12)
    samples.population(folder)
    return folder


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"lineage", "compare", "pareto"}))
def test_each_kind_of_chart_names_trials_of_the_experiment(root: Path, kind: str) -> None:
    figure = plain(chart(root / "digits", kind, {}))
    grid = ResultGrid.from_path(root / "digits")
    shown = {trial for trace in figure["data"] for trial in trace.get("customdata", []) if trial is not None}
    assert figure["data"] and shown <= {result.trial_id for result in grid}
    if kind not in ("importances", "edf"):  # which show none
        assert grid.get_best_result().trial_id in shown
    if kind in ("history", "curves", "parallel", "slice", "matrix", "timeline"):
        assert len(shown) == 12


@pytest.mark.parametrize("name", ["digits", "population"])
def test_just_the_charts_that_are_available_can_be_drawn(root: Path, name: str) -> None:
    drawn = []
    for kind in KINDS.keys() - {"compare"}:  # which needs trials to be chosen
        with contextlib.suppress(ConfigError, MetricError):
            chart(root / name, kind, {})
            drawn.append(kind)
    assert set(drawn) == set(available(root / name)) - {"compare"}
    assert ("rungs" in drawn, "lineage" in drawn) == (name == "digits", name == "population")


@pytest.mark.parametrize("mode", ["min", "max"])
def test_of_more_trials_than_are_shown_the_best_counts(
    root: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *dots, _ = chart(root / "digits", "history", {"mode": mode})["data"]
    values = {trial_id: y for each in dots for trial_id, y in zip(each["customdata"], each["y"], strict=True)}
    winner = (min if mode == "min" else max)(values, key=values.__getitem__)
    best = values[winner]
    monkeypatch.setattr(kinds, "MOST_TRIALS", 1)
    monkeypatch.setattr(kinds, "MOST_LINES", 1)
    shown, so_far = chart(root / "digits", "history", {"mode": mode})["data"]
    assert (len(shown["y"]), so_far["y"]) == (1, [best])
    lines = chart(root / "digits", "parallel", {"mode": mode})["data"]
    assert [trace["name"] for trace in lines] == [f"best: {winner}"]


def test_compare_shows_the_chosen_trials_by_another_metric(root: Path) -> None:
    ids = [result.trial_id for result in ResultGrid.from_path(root / "digits")][:2]
    query = {"trials": ",".join(ids), "metric": "accuracy", "mode": "max", "x": "time_total_s"}
    figure = plain(chart(root / "digits", "compare", query))
    assert [trace["name"].split()[0] for trace in figure["data"]] == ids[::-1]
    assert figure["layout"]["yaxis"]["title"]["text"] == "accuracy"


def test_a_mode_that_is_asked_for_is_of_the_metric_that_has_none(root: Path) -> None:
    asked = {"metric": "loss,accuracy", "mode": "max"}
    others, front = plain(chart(root / "digits", "pareto", asked))["data"]
    best = min(xy(front) + xy(others))
    assert best in xy(front), "loss is smaller where it is better, as the experiment has it"


@pytest.mark.parametrize(
    ("kind", "query", "words"),
    [
        ("pie", {}, "'pie' is not a chart"),
        ("curves", {"colour": "red"}, "no option 'colour'"),
        ("curves", {"best": "-1"}, "best must be an integer"),
        ("curves", {"log_y": "yes"}, "log_y"),
        ("history", {"mode": "best"}, "mode"),
        ("slice", {"params": "nothing"}, "'nothing' cannot be drawn"),
        ("compare", {}, "needs trials to compare"),
        ("compare", {"trials": "nobody"}, "no trial 'nobody'"),
        ("lineage", {}, "no lineage"),
        ("pareto", {}, "needs two metrics"),
        ("rungs", {"bracket": "7"}, "bracket"),
        ("importances", {"method": "guess"}, "method"),
        ("matrix", {"more": ",".join(f"m{number}" for number in range(12))}, "at most 12"),
    ],
)
def test_what_cannot_be_drawn_is_said(root: Path, kind: str, query: dict[str, str], words: str) -> None:
    with pytest.raises(NotFoundError if kind == "pie" else ConfigError, match=words):
        chart(root / "digits", kind, query)


def remarks(figure: Figure) -> list[str]:
    return [each["text"] for each in figure["layout"].get("annotations", ()) if "has no mode" in each["text"]]


def test_a_mode_that_nobody_has_given_is_assumed_and_said(root: Path) -> None:
    for kind in ("history", "curves", "parallel", "matrix", "rungs"):
        assert remarks(chart(root / "digits", kind, {})) == []
        assert remarks(chart(root / "digits", kind, {"metric": "accuracy", "mode": "max"})) == []
        assert remarks(chart(root / "digits", kind, {"metric": "accuracy"})) == [
            "accuracy has no mode: smaller values count as better"
        ]
    assert remarks(chart(root / "digits", "edf", {"metric": "accuracy"})) == [], "none is better there"
    assert remarks(chart(root / "digits", "pareto", {"metric": "accuracy,loss"})) != []


def test_without_a_mode_nothing_is_the_best(root: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for loss in (3.0, 1.0, 2.0):
            tune.report({"loss": loss})

    tune.run(train, metric="loss", name="no mode", storage_path=str(root), verbose=0)
    board = Board(root)
    summary, (_, (row,)) = board.summary(root / "no mode"), board.table(root / "no mode").page()
    assert (summary["metric"], summary["mode"], summary["best"]) == ("loss", None, None)
    assert (row["last"], row["best"]) == (2.0, None)
    with served(root) as ask:
        assert ask.get("/experiments/no%20mode")["objectives"] == [{"metric": "loss", "mode": None}]
    assert remarks(chart(root / "no mode", "history", {})) == [
        "loss has no mode: smaller values count as better"
    ]


@pytest.mark.parametrize("method", ["forest", "ped_anova"])
def test_importances_find_the_hyperparameter_that_matters(method: str) -> None:
    matters = Hyperparameter("matters", values={n: float(n % 10) for n in range(60)})
    other = Hyperparameter("other", values={n: float(n * 7 % 13) for n in range(60)})
    kind = Hyperparameter("kind", values={n: "ab"[n % 3 == 0] for n in range(60)})
    shares, words = importances(
        [other, matters, kind], [float(n % 10) ** 2 for n in range(60)], "min", method
    )
    assert max(shares, key=shares.__getitem__) == "matters"
    assert sum(shares.values()) == pytest.approx(1.0)
    assert ("scikit-learn" in words) == (method == "forest")
