"""Results of other libraries on the same problems, measured once with the versions named here.

Ray 2.60.0, Syne Tune 0.16.0, Optuna 5.0.0, hyperopt 0.3.0, HpBandSter 0.7.4 with ConfigSpace 0.7.1. Each row
has means ± deviations over seeds at given amounts of work, in units of the largest resource.
"""

from __future__ import annotations

from benchmarks.over_seeds import Cell


def _row(seeds: int, points: str, cells: str) -> dict[float, Cell]:
    """Parse "5 10" and ".302±.118 .250±.089" into a cell for each point."""
    made = {}
    for point, cell in zip(points.split(), cells.split(), strict=True):
        mean, _, sd = cell.partition("±")
        made[float(point)] = Cell(float(mean), float(sd) if sd else None, seeds)
    return made


_ONES = "5 10 20 40 60"
ONES_8 = {
    "Optuna random": _row(20, _ONES, ".302±.118 .250±.089 .205±.070 .193±.056 .174±.042"),
    "HpBandSter Hyperband": _row(10, _ONES, ".177±.062 .155±.046 .149±.041 .126±.039 .112±.036"),
    "HpBandSter BOHB": _row(10, _ONES, ".065±.036 .041±.023 .036±.018 .035±.019 .034±.019"),
    "Optuna random + HyperbandPruner": _row(20, _ONES, ".262±.108 .206±.062 .158±.043 .138±.035 .125±.027"),
    "Optuna TPE": _row(20, _ONES, ".302±.118 .250±.089 .152±.095 .078±.053 .039±.028"),
    "Optuna TPE + HyperbandPruner": _row(20, _ONES, ".270±.107 .178±.076 .092±.056 .045±.045 .028±.038"),
    "hyperopt TPE": _row(20, _ONES, ".331±.089 .281±.076 .237±.069 .107±.055 .095±.041"),
}
_ONES = "5 10 20 40"
ONES_16 = {
    "Optuna random": _row(10, _ONES, ".375 .344 .318 .287"),
    "HpBandSter Hyperband": _row(10, _ONES, ".269 .259 .255 .227"),
    "HpBandSter BOHB": _row(6, _ONES, ".221±.027 .188±.036 .165±.045 .117±.023"),
    "Optuna TPE + HyperbandPruner": _row(10, _ONES, ".349 .278 .224 .181±.067"),
}
_DIGITS = "3 5 10 20"
DIGITS = {
    "random": _row(200, _DIGITS, ".0314±.070 .0167±.021 .0061±.007 .0033±.0026"),
    "Ray ASHA": _row(200, _DIGITS, ".0229±.064 .0059±.009 .0021±.0016 .0011±.0010"),
    "Syne Tune ASHA rule": _row(200, _DIGITS, ".0231±.064 .0069±.011 .0023±.0018 .0011±.0010"),
    "Optuna's place rule": _row(200, _DIGITS, ".0213±.064 .0043±.0043 .0019±.0015 .0010±.0010"),
    "promotion ASHA, published rule": _row(200, _DIGITS, ".0052±.0057 .0029±.0021 .0018±.0013 .0010±.0010"),
    "median rule": _row(200, _DIGITS, ".0314±.070 .0149±.019 .0032±.0030 .0016±.0011"),
    "Hyperband, published sizes": _row(200, _DIGITS, ".0038±.0030 .0038±.0030 .0024±.0018 .0015±.0012"),
    "Optuna SuccessiveHalvingPruner": _row(40, _DIGITS, ".0172 .0045 .0019 .0008"),
    "Optuna HyperbandPruner": _row(40, _DIGITS, ".0241 .0104 .0036 .0018"),
    "Optuna MedianPruner": _row(40, _DIGITS, ".0234 .0129 .0031 .0012"),
}
DIGITS_PARALLEL = {
    "Syne Tune ASHA, simulated": _row(10, "1 4 16", ".0135±.019 .0013±.0013 .0004±.0008"),
}
"""Rows by number of workers, each for the time of five full trainings."""
TOY = {
    "Ray's example, own loop": _row(500, "20 50 100", ".862±.195 1.175±.056 1.1999±.0012"),
}
TOY_PAPER = {
    "the paper's setting, ties at random": _row(
        500, "50 100 200 400", ".404±.082 .764±.157 1.126±.087 1.1997±.0014"
    ),
}
TOY_TRACE = {4: 0.24382, 8: 0.52572, 12: 0.72431, 16: 0.87540, 20: 0.96088, 24: 1.04186}
"""Best value by step without randomness: weights are copied, hyperparameters are kept."""
TOY_ENDS = {50: 1.1843, 100: 1.1998}
BANDIT = {
    True: {
        "no exploit": Cell(0.803, 0.123, 100),
        "uniform": Cell(0.975, 0.016, 100),
        "PBT": Cell(0.976, 0.040, 100),
        "PB2": Cell(0.984, 0.022, 12),
    },
    False: {
        "no exploit": Cell(0.937, None, 100),
        "uniform": Cell(0.990, 0.015, 100),
        "PBT": Cell(0.993, 0.013, 100),
        "PB2": Cell(0.995, 0.011, 12),
    },
}
"""True: the best choice drifts. Only PB2's number of seeds is published; 100 is assumed for the others."""
