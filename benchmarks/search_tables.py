"""Tables of comparisons by problem: each of our rows, with the rows of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks import reference, search_peers, search_work
from benchmarks.over_seeds import Cell

RANDOM, MODEL = 100, 20
"""Number of seeds for a random search, and for a search that fits models."""

Work = Callable[[int], list[float]]
"""Function from a seed to a figure for each point."""


@dataclass(frozen=True)
class Row:
    """One of our rows, its function for a seed, and the rows of other libraries to compare with.

    Attributes:
        peers: names of rows in the reference.
        paired: functions of other libraries' rules that run on the same streams, by name.
    """

    name: str
    work: Work
    peers: Sequence[str] = ()
    paired: Mapping[str, Work] = field(default_factory=dict)
    seeds: int = RANDOM


@dataclass(frozen=True)
class Table:
    """A problem: its points, other libraries' rows, and our rows; `sign` is -1 where more is better."""

    title: str
    points: Sequence[float]
    peers: Mapping[str, Mapping[float, Cell]]
    rows: Sequence[Row]
    sign: int = 1


def tables() -> dict[str, Table]:
    """Return the tables by problem."""
    return {
        "digits": _digits(),
        "digits-parallel": Table(
            "digits table, regret after the time of five full trainings, by workers",
            search_work.WORKERS,
            reference.DIGITS_PARALLEL,
            [
                Row(
                    "ASHA, stopping",
                    partial(search_work.digits_by_workers, "ASHA, stopping"),
                    ["Syne Tune ASHA, simulated"],
                ),
                Row(
                    "ASHA, promotion",
                    partial(search_work.digits_by_workers, "ASHA, promotion"),
                    ["Syne Tune ASHA, simulated"],
                ),
            ],
        ),
        "boosting": _curves("boosting"),
        "network": _curves("network"),
        "ones-8": _ones(8, (5, 10, 20, 40, 60), reference.ONES_8),
        "ones-16": _ones(16, (5, 10, 20, 40), reference.ONES_16),
        "toy": Table(
            "PBT toy of Ray's documentation, best value after so many steps",
            search_work.TOY_POINTS,
            reference.TOY,
            [Row("PBT", search_work.toy, ["Ray's example, own loop"])],
            sign=-1,
        ),
        "toy-paper": Table(
            "PBT toy as in the paper, best value after so many steps",
            search_work.PAPER_POINTS,
            reference.TOY_PAPER,
            [Row("PBT, tie='random'", search_work.toy_of_the_paper, ["the paper's setting, ties at random"])],
            sign=-1,
        ),
        "bandit": _bandit(),
    }


def _digits() -> Table:
    def row(name: str, peers: Sequence[str], rules: Sequence[str] = ()) -> Row:
        work = partial(search_work.digits, name)
        streams = {f"{rule}'s rule, same streams": partial(search_work.rule_digits, rule) for rule in rules}
        return Row(name, work, peers, streams)

    every = list(search_peers.RULES)
    halving = "Optuna SuccessiveHalvingPruner"
    return Table(
        "digits table, regret after so much work",
        search_work.DIGITS_POINTS,
        reference.DIGITS,
        [
            row("random", ["random"]),
            row("ASHA, stopping", ["Ray ASHA", "Syne Tune ASHA rule", "Optuna's place rule", halving], every),
            row("ASHA, promotion", ["Ray ASHA", "promotion ASHA, published rule", halving], every),
            row("HyperBand", ["Hyperband, published sizes", "Optuna HyperbandPruner"]),
            row("median", ["median rule", "Optuna MedianPruner"]),
            _learned(search_work.digits),
        ],
    )


def _learned(work: Callable[[str, int], list[float]]) -> Row:
    """Return the row of learned stopping, compared with our other schedulers on the same streams."""
    others = {
        "no stopping": "random",
        "our ASHA, stopping": "ASHA, stopping",
        "our ASHA, promotion": "ASHA, promotion",
    }
    paired = {label: partial(work, name) for label, name in others.items()}
    return Row("learned stopping", partial(work, "learned stopping"), paired=paired)


def _curves(name: str) -> Table:
    title = f"{name} table, regret after so much work"
    return Table(title, search_work.DIGITS_POINTS, {}, [_learned(partial(search_work.crossing, name))])


def _ones(d: int, points: Sequence[float], peers: Mapping[str, Mapping[float, Cell]]) -> Table:
    held = [
        ("random", "Optuna random", RANDOM),
        ("HyperBand, from scratch", "HpBandSter Hyperband", RANDOM),
        ("BOHB, from scratch", "HpBandSter BOHB", MODEL),
        ("BOHB, from scratch, HpBandSter's min_bandwidth", "HpBandSter BOHB", MODEL),
        ("ASHA, promotion", "Optuna random + HyperbandPruner", RANDOM),
        ("Optuna TPE", "Optuna TPE", MODEL),
        ("Optuna TPE + ASHA", "Optuna TPE + HyperbandPruner", MODEL),
        ("Optuna TPE + ASHA, promotion", "Optuna TPE + HyperbandPruner", MODEL),
        ("default", "Optuna TPE", MODEL),
        ("hyperopt TPE", "hyperopt TPE", MODEL),
    ]
    return Table(
        f"counting ones, d={d}, regret after so much work",
        points,
        peers,
        [
            Row(name, partial(search_work.ones, name, d, points), [peer], seeds=seeds)
            for name, peer, seeds in held
            if peer in peers
        ],
    )


def _bandit() -> Table:
    known = reference.BANDIT
    return Table(
        "drifting bandit, best mean gain: 1 with drift, 0 without",
        (1, 0),
        {name: {1: known[True][name], 0: known[False][name]} for name in known[True]},
        [
            Row(
                name,
                partial(search_work.bandit, name),
                [name, "uniform"] if name == "PB2" else [name],
                seeds=MODEL if name == "PB2" else RANDOM,
            )
            for name in known[True]
        ],
        sign=-1,
    )
