"""Page of documentation on the league, and its picture, from a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.league import record

PICTURE = "tuning-league.png"
TEMPLATE = Path(__file__).with_name("page.md")
COLOURS = "blue orange green red purple brown pink olive cyan".split()


def title(stage: Mapping[str, Any]) -> str:
    """Return the name of a stage."""
    count = f"{stage['evaluations']} {'complete trainings' if stage['curves'] else 'evaluations'}"
    workers = "1 worker" if stage["workers"] == 1 else f"{stage['workers']} workers"
    seeds = "1 seed" if stage["seeds"] == 1 else f"{stage['seeds']} seeds"
    return f"{'Learning curves' if stage['curves'] else 'Complete evaluations'}: {count}, {workers}, {seeds}"


def points_of(stage: Mapping[str, Any]) -> list[int]:
    """Return the points of a stage's tables."""
    return [point for point in record.TOLD if point in stage["points"]]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def standings(stage: Mapping[str, Any]) -> str:
    """Return the table of mean ranks and geometric means."""
    points = points_of(stage)
    ranks = {point: record.ranks(stage, point) for point in points}
    means = {point: record.geometric_means(stage, point) for point in points}
    names = sorted(ranks[points[-1]], key=means[points[-1]].__getitem__)
    head = ["method", *(f"rank at {point}" for point in points), *(f"regret at {point}" for point in points)]
    return _table(
        head,
        [
            [name, *(f"{ranks[point][name]:.2f}" for point in points)]
            + [f"{means[point][name]:.3g}" for point in points]
            for name in names
        ],
    )


def in_short(stages: Sequence[Mapping[str, Any]]) -> str:
    """Return the table that compares ours with the peers at each point of each stage."""
    head = ["cells", "at", "peer", "mean rank", "the peer's mean rank", "regret as a share of the peer's"]
    head += ["better by 2 errors", "worse by 2", "worse by 3", "worst cell"]
    rows = []
    for stage in stages:
        for point in points_of(stage):
            if found := record.in_short(stage, point):
                row = [title(stage), str(point), found["peer"], f"{found['rank']:.2f}"]
                row += [f"{found['peer rank']:.2f}", f"{found['ratio']:.2f}"]
                count = found["cells"]
                row += [f"{found[name]} of {count}" if count else "-" for name in ("better", "two", "three")]
                rows.append([*row, found["worst"]])
    return _table(head, rows)


def cells(stage: Mapping[str, Any]) -> str:
    """Return the table of all cells, with ours, the best peer and the difference at each point."""
    points = points_of(stage)
    head = ["problem"]
    for point in points:
        head += [f"trainkit at {point}", "best peer", "difference"]
    rows = []
    for name, cell in stage["cells"].items():
        row = [name]
        for point in points:
            place, against = stage["points"].index(point), cell["against"].get(str(point))
            if against is None:
                row += ["-", "-", "-"]
                continue
            mean = {key: each["mean"][place] for key, each in cell["methods"].items()}
            apart = record.errors_apart(against)
            row += [
                f"{mean[record.OURS]:.3g}",
                f"{mean[against['peer']]:.3g} {against['peer']}",
                "-" if apart is None else f"{apart:+.1f}",
            ]
        rows.append(row)
    return _table(head, rows)


def all_means(stage: Mapping[str, Any]) -> str:
    """Return the table of the mean regrets of all methods at the last point."""
    names = sorted({name for cell in stage["cells"].values() for name in cell["methods"]})
    rows = []
    for problem, cell in stage["cells"].items():
        found = [cell["methods"].get(name) for name in names]
        texts = ["-" if each is None else f"{each['mean'][-1]:.3g}" for each in found]
        rows.append([problem, *texts])
    return _table(["problem", *names], rows)


def summary(found: Mapping[str, Any]) -> str:
    """Return the standings of all stages."""
    tables = [f"{title(stage)}\n\n{standings(stage)}" for stage in found["stages"]]
    return "\n".join([*tables, failures(found)])


def failures(found: Mapping[str, Any]) -> str:
    """Return the cells that ended with an error of the other library."""
    if not found["failed"]:
        return "No cell has ended with an error of a library.\n"
    head = "Cells that ended with an error of the library, by problem, method, workers, evaluations and seed:"
    return "\n".join([head, "", *(f"- {cell}: `{error}`" for cell, error in found["failed"].items()), ""])


def text(found: Mapping[str, Any]) -> str:
    """Return the page."""
    stages = found["stages"]
    rows = [[name, version, f"{found['seconds'][name]:.2g}"] for name, version in found["versions"].items()]
    parts = {
        "fewest": str(record.FEWEST),
        "smallest": f"{record.SMALLEST:g}",
        "in short": in_short(stages),
        "standings": "\n".join(map(_standing, stages)),
        "cells": "\n".join(map(_cells, stages)),
        "failures": failures(found),
        "methods": _table(["method", "version", "seconds of an evaluation"], rows),
    }
    page = TEMPLATE.read_text()
    for name, words in parts.items():
        page = page.replace(f"<!-- {name} -->", words)
    return page


def _standing(stage: Mapping[str, Any]) -> str:
    count = len(record.complete(stage["cells"]))
    return f"### {title(stage)}\n\nOver {count} problems; smaller is better.\n\n{standings(stage)}"


def _cells(stage: Mapping[str, Any]) -> str:
    left_out = ", ".join(stage["left_out"])
    reason = (
        "random search has not run all of the seeds, or has found the best configuration with all of them"
    )
    return (
        f"### Cells: {title(stage)}\n\n{cells(stage)}\n"
        f"{f'Left out, because {reason}: {left_out}.' + chr(10) * 2 if left_out else ''}"
        f"Mean regret at {stage['evaluations']}:\n\n{all_means(stage)}"
    )


def draw(path: Path, found: Mapping[str, Any]) -> None:
    """Draw the geometric means of the regret by the number of evaluations, a panel for each stage."""
    from benchmarks.search_pictures import save
    from trainkit.plugins.plots import style

    stages = found["stages"]
    found_names = {name for stage in stages for name in record.ranks(stage, stage["points"][-1])}
    names = [*sorted(found_names - {record.OURS, record.REFERENCE}), record.REFERENCE, record.OURS]
    _, only = style.figure_of(None, (12.0, 3.6 * ((len(stages) + 2) // 3)))
    figure = only.get_figure()
    only.remove()
    panels = figure.subplots((len(stages) + 2) // 3, 3, squeeze=False).flat
    for stage, panel in zip(stages, panels, strict=False):
        means = [record.geometric_means(stage, point) for point in stage["points"]]
        for number, name in enumerate(names):
            if name in means[0]:
                ours = name == record.OURS
                panel.plot(
                    stage["points"],
                    [each[name] for each in means],
                    color="black"
                    if ours or name == record.REFERENCE
                    else f"tab:{COLOURS[number % len(COLOURS)]}",
                    linewidth=2.5 if ours else 1.2,
                    linestyle="--" if name == record.REFERENCE else "-",
                    label=name,
                )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(title(stage).replace(": ", "\n"), fontsize=9)
        panel.set_xlabel("complete trainings" if stage["curves"] else "evaluations")
        panel.legend(fontsize=6)
    for panel in panels:
        panel.remove()
    figure.axes[0].set_ylabel("regret (random search at its end: 1)")
    save(figure, path)


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write the page, and its picture into the folder of pictures beside its folder."""
    path.write_text(text(found))
    draw(path.parent.parent / "images" / PICTURE, found)
