"""Picture of a search and the final training: validation error over epochs, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

STOPPED, FINISHED, BEST, FINAL, INK = "#c8ccd4", "#7aa6d6", "#1f4e8c", "#d1495b", "#333842"


def draw(
    path: Path,
    *,
    trials: Mapping[str, Sequence[float]],
    best: str,
    final: Sequence[float],
    max_t: int,
    title: str,
) -> None:
    """Write the picture to `path`.

    Args:
        path: path of the picture, ending in .png or .svg.
        trials: validation accuracy after each epoch, from 0 to 1, by trial id.
        best: id of the highlighted trial.
        final: validation accuracy after each epoch of the final training.
        max_t: number of epochs of a trial that was not stopped.
        title: title with the model and the data.
    """
    # The figure is made without pyplot, so nothing global changes and no display is needed.
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    search, training = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))

    ended = {trial for trial, accuracies in trials.items() if len(accuracies) < max_t}
    for trial in sorted(trials, key=lambda trial: trial not in ended):  # finished trials are drawn on top
        if trial != best:
            plot(search, trials[trial], STOPPED if trial in ended else FINISHED, width=1.2)
    plot(search, trials[best], BEST, width=2.6, label="the best trial")
    plot(training, final, FINAL, width=2.6, label=f"{final[-1]:.1%} correct")
    search.set_title(f"{len(trials)} trials, {len(ended)} of them stopped early")
    training.set_title("the best configuration on two workers")

    search.set_ylabel("validation error", color=INK)
    search.set_yscale("log")
    search.set_ylim(bottom=0.6 * search.get_ylim()[0])
    search.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    search.yaxis.set_major_formatter(FuncFormatter(lambda error, _: f"{100 * error:g} %"))
    search.yaxis.set_minor_locator(NullLocator())
    for axes in (search, training):
        axes.set_xlabel("epoch", color=INK)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(True, which="major", color="#eceef2")
        axes.set_axisbelow(True)
        axes.tick_params(which="both", length=0, colors=INK)
        axes.spines[:].set_visible(False)
        axes.title.set(fontsize=11, color=INK)
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    figure.savefig(path)


def plot(axes, accuracies: Sequence[float], color: str, *, width: float, label: str = "") -> None:
    """Add one learning curve, with a dot at its end and the label beside it."""
    from matplotlib.patheffects import withStroke

    epochs = range(1, len(accuracies) + 1)
    errors = [max(1 - accuracy, 1e-4) for accuracy in accuracies]  # a logarithmic axis can't show 0
    axes.plot(epochs, errors, color=color, linewidth=width, solid_capstyle="round")
    axes.plot(epochs[-1], errors[-1], "o", color=color, markersize=2.5 * width)
    if label:
        axes.annotate(
            label,
            (epochs[-1], errors[-1]),
            (2, -16),
            textcoords="offset points",
            horizontalalignment="right",
            color=color,
            fontweight="bold",
            path_effects=[withStroke(linewidth=4, foreground="white")],  # readable across other curves
        )
