"""`results.plot()`: each kind, its options, many trials, and what it says where there is nothing to draw."""

from __future__ import annotations

import io
import math
import textwrap

import pytest

from tests.conftest import run_python, session_fixture
from tests.tune.schedulers.pbt.test_pbt_runs import Toy, pbt
from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.plugins.plots.figures import BEST, limit
from trainkit.plugins.plots.kinds import KINDS
from trainkit.tune.core.lineage import Exchange, ages
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import ASHAScheduler

pytest.importorskip("matplotlib")
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure


def objective(config):
    for step in range(1, 10):
        loss = (config["x"] - 2) ** 2 + config["lr"] + 1 / step
        tune.report({"loss": loss, "eval": {"acc": -loss}, "tokens": 100 * step, "odd": math.nan})


SPACE = {
    "x": tune.uniform(-3, 3),
    "lr": tune.loguniform(1e-4, 1e-1),
    "optimizer": tune.choice([{"name": "sgd", "momentum": tune.uniform(0, 1)}, {"name": "adam"}]),
}


session = session_fixture(engine="inline", num_cpus=2)


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> ResultGrid:
    run = tune.RunConfig(storage_path=tmp_path_factory.mktemp("plots"), name="e", verbose=0)
    scheduler = ASHAScheduler(max_t=9, reduction_factor=3)
    config = tune.TuneConfig(metric="loss", mode="min", num_samples=27, seed=5, scheduler=scheduler)
    return tune.Tuner(objective, param_space=SPACE, tune_config=config, run_config=run).fit()


def drawn(figure: Figure) -> bytes:
    """The picture itself: it must come out without an error, a warning or a display."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=40)
    assert file.getvalue().startswith(b"\x89PNG")
    return file.getvalue()


def test_learning_curves(grid):
    figure = grid.plot()
    drawn(figure)
    (axes,) = figure.axes
    best = grid.get_best_result()
    (first,) = [
        line for line in axes.get_lines() if line.get_color() == BEST[0] and len(line.get_xdata()) > 1
    ]
    assert list(first.get_ydata()) == [report["loss"] for report in best.history]
    assert first.get_label() == f"{best.trial_id}   {best.metrics['loss']:.4g}"
    (others,) = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert len(others.get_segments()) == 27 - 5
    assert axes.get_legend().get_texts()[-1].get_text() == "22 others"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("training iteration", "loss")


def test_curves_over_another_count_with_log_axes(grid):
    (axes,) = grid.plot("curves", metric="eval/acc", mode="max", x="tokens", log_x=True, best=1).axes
    assert axes.get_xscale() == "log"
    assert max(max(line.get_xdata()) for line in axes.get_lines()) == 900
    (axes,) = grid.plot("curves", log_y=True).axes
    assert axes.get_yscale() == "log"
    with pytest.raises(MetricError, match="numbers above 0"):
        grid.plot("curves", metric="eval/acc", log_y=True)  # all below 0


def test_whole_numbers_have_whole_ticks_and_long_names_are_cut(fit, tmp_path):
    counts = {"n": tune.randint(1, 8)}
    run = {"storage_path": tmp_path, "name": "counts"}
    grid = fit(lambda config: {"loss": 0.3}, counts, metric="loss", num_samples=12, seed=1, run=run)
    (axes,) = grid.plot("parallel").axes
    assert all(text.get_text().isdigit() for text in axes.texts[:-1])
    long = "a_name_that_is/much_longer_than_the_others"
    space = {"kind": tune.choice([None, {"w": tune.uniform(0, 1)}]), long: tune.uniform(0, 1)}
    grid = fit(lambda config: {"loss": config[long]}, space, metric="loss", num_samples=8, seed=1)
    (axes,) = grid.plot("curves").axes
    assert all(float(tick).is_integer() for tick in axes.get_xticks())
    (axes,) = grid.plot("parallel").axes
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names[1] == "…onger_than_the_others"
    assert not any("Float" in text.get_text() for text in axes.texts)  # a branch is no value


def test_parallel_coordinates_of_chosen_parameters(grid):
    (axes,) = grid.plot("parallel coordinates", params=["lr", "x"], log_metric=True).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["lr", "x", "loss"]
    with pytest.raises(ConfigError, match="'width' cannot be drawn: the hyperparameters that vary are x, lr"):
        grid.plot("parallel", params=["width"])


def test_into_axes_of_the_users(grid):
    figure = Figure()
    for axes, kind in zip(figure.subplots(1, 3), ("curves", "parallel", "rungs"), strict=True):
        assert grid.plot(kind, ax=axes) is figure
        assert axes.has_data()
    drawn(figure)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"kind": "curve"}, ConfigError, "'lineage' (origin of the weights"),
        ({"kind": "curves", "logx": True}, ConfigError, "Did you mean 'log_x'"),
        ({"kind": "curves", "metric": "los"}, MetricError, "Did you mean 'loss'"),
        ({"kind": "curves", "x": "token"}, MetricError, "Did you mean 'tokens'"),
        (
            {"kind": "curves", "metric": "odd"},
            MetricError,
            "'odd' and 'training_iteration' cannot be plotted: no report has",
        ),
        ({"kind": "curves", "mode": "most"}, ConfigError, "mode='most'"),
        ({"kind": "curves", "best": -1}, ConfigError, "best=-1"),
        ({"kind": "compare"}, ConfigError, "trials=[ID, ID]"),
        ({"kind": "slice", "mode": "most"}, ConfigError, "mode='most'"),
        ({"kind": "edf", "mode": "most"}, ConfigError, "mode='most'"),
        ({"kind": "slice", "columns": 0}, ConfigError, "columns=0"),
        ({"kind": "matrix", "more": "width"}, MetricError, "'width'"),
    ],
)
def test_what_cannot_be_drawn_says_why(grid, arguments, error, words):
    with pytest.raises(error) as caught:
        grid.plot(**arguments)
    assert words in str(caught.value)


def test_without_metric_or_decisions(fit):
    grid = fit(lambda config: {"loss": 1}, {"x": tune.grid_search([1, 2])})
    for kind in ("curves", "parallel", "rungs"):
        with pytest.raises(ConfigError, match="no metric and mode to plot"):
            grid.plot(kind)
    with pytest.raises(ConfigError, match=r"no rungs to draw: .*ASHAScheduler"):
        grid.plot("rungs", metric="loss", mode="min")
    with pytest.raises(ConfigError, match="no metric and mode to plot"):
        grid.plot("curves", metric="loss")
    drawn(grid.plot("curves", metric="loss", mode="min"))
    drawn(grid.plot("parallel", metric="loss", mode="min"))


CHOSEN = {
    "compare": lambda grid: {"trials": [result.trial_id for result in grid[:2]]},
    "contour": lambda grid: {"params": ["x", "lr"]},
    "matrix": lambda grid: {"params": ["x", "optimizer/name"], "more": ["tokens"]},
    "pareto": lambda grid: {"metric": ["loss", "tokens"], "mode": ["min", "min"]},
}


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"lineage"}))
def test_each_kind_of_the_page_is_a_picture(grid, kind):
    options = CHOSEN.get(kind, lambda grid: {})(grid)
    figure = grid.plot(kind, **options)
    drawn(figure)
    chart = grid.plot(kind, backend="plotly", **options)
    assert chart.data and chart.layout.title.text and "<div" in chart.to_html(include_plotlyjs=False)
    assert all(axes.has_data() for axes in figure.axes)
    assert len(figure.axes) == {"slice": 4, "matrix": 7, "contour": 2}.get(kind, 1)  # one is of the colours
    if kind == "slice":
        assert len({axes.get_ylim() for axes in figure.axes}) == 1
    if kind == "pareto":
        assert [text.get_text().split()[0] for text in figure.axes[0].get_legend().get_texts()] == [
            "dominated",
            "front",
        ]
    if kind == "timeline":
        assert figure.axes[0].get_legend() is not None and figure.axes[0].get_xlim()[0] == 0
    if kind in ("slice", "matrix"):
        with pytest.raises(ConfigError, match="leave ax out"):
            grid.plot(kind, ax=Figure().subplots())


def test_a_few_wild_values_do_not_spoil_an_axis():
    values = [*(n / 10 for n in range(50)), 1e9, math.inf]
    low, high = limit(values, "min")
    assert low < 0
    assert 4.9 < high < 10
    assert limit(values, "max") is None  # the best is never cut off
    assert limit([-value for value in values], "max") == (pytest.approx(-high), pytest.approx(-low))
    assert limit([1.0] * 20, "min") is None
    assert limit([1.0, 1e9], "min") is None


@pytest.mark.external
def test_drawing_leaves_pyplot_alone_and_lack_of_matplotlib_is_explained(grid):
    code = textwrap.dedent(
        f"""
        import sys
        from trainkit.errors import MissingDependencyError
        from trainkit.tune.results.result_grid import ResultGrid
        grid = ResultGrid.from_path({grid.experiment_path!r})
        assert not {{"matplotlib", "optuna", "pandas"}} & set(sys.modules)
        grid.plot("curves"), grid.plot("rungs")
        assert "matplotlib.pyplot" not in sys.modules
        for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
            del sys.modules[name]
        for missing in ("matplotlib", "optuna", "pandas"):
            sys.modules[missing] = None
        for ask in (grid.plot, grid.to_optuna, grid.get_dataframe, lambda: grid.plot("parallel")):
            try:
                ask()
            except MissingDependencyError as error:
                print(error)
        """
    )
    done = run_python("-c", code)
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "plots need matplotlib",
        "studies need optuna",
        "tables need pandas",
        "plots need matplotlib",
    ]
    assert all("pip install 'trainkit-ml[tune]'" in line for line in lines)


# --- lineages -------------------------------------------------------------------------------------


@pytest.fixture
def population(fit):
    return fit(
        Toy, metric="q", mode="max", num_samples=6, scheduler=pbt(synch=True), seed=2,
        run={"stop": {"training_iteration": 16}},
    )  # fmt: skip


def test_a_lineage(population):
    figure = population.plot("lineage")
    drawn(figure)
    (axes,) = figure.axes
    exchanges = population.exchanges()
    members, takes_over = [each for each in axes.collections if isinstance(each, LineCollection)]
    assert len(members.get_segments()) == len(population) + len(exchanges)
    assert len(takes_over.get_segments()) == len(exchanges) > 0
    assert axes.get_title(loc="left") == f"lineage of 6 trials, {len(exchanges)} exchanges"
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[1]]
    best = population.get_best_result()
    assert len(way.get_xdata()) == sum(map(len, best.lineage())) == 16
    assert way.get_ydata()[-1] == best.metrics["q"]


def test_a_hyperparameter_along_the_lineage(population):
    (axes,) = population.plot("lineage", hyperparameter="lr", log_y=True).axes
    assert (axes.get_ylabel(), axes.get_yscale()) == ("lr", "log")
    (way,) = [line for line in axes.get_lines() if line.get_color() == BEST[1]]
    assert way.get_ydata()[-1] == population.get_best_result().config["lr"]


def test_without_an_exchange_there_is_nothing_to_draw(fit):
    grid = fit(lambda config: {"q": 1.0}, metric="q", mode="max", num_samples=2)
    with pytest.raises(ConfigError, match="PopulationBasedTraining"):
        grid.plot("lineage")


def test_reports_are_counted_along_the_weights():
    age = ages(
        [
            Exchange("a", 4, {}, donor="b", donor_iteration=8),
            Exchange("a", 4, {}),  # tried again with another configuration, from the state taken over
            Exchange("c", 6, {}, donor="a", donor_iteration=6),
            Exchange("b", 0, {}),  # begun anew
        ]
    )
    assert [age("a", iteration) for iteration in (3, 4, 5, 6)] == [3, 4, 9, 10]
    assert [age("c", iteration) for iteration in (6, 7)] == [6, 11]
    assert age("b", 9) == 9
