"""BOHB's scheduler: Hyperband, whose results at each budget teach the searcher.

Source: Falkner, Klein, Hutter, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", ICML 2018,
arXiv:1807.01774.
"""

from __future__ import annotations

from typing import ClassVar

from trainkit.tune.schedulers.hyperband import HyperBandScheduler


class HyperBandForBOHB(HyperBandScheduler):
    """`HyperBandScheduler` under the name that goes with the searcher `TuneBOHB`.

    The searcher suggests the trials of a bracket one by one, as workers get free, from all that is known
    by then. Each result at a level reaches it once, whatever is decided on the trial, with the level's
    place among those of all brackets as `budget` in the decision's reason.

    Ray's class of this name differs from its `HyperBandScheduler` in two points, which hold for both here:
    the widest bracket comes first, and trials pause before their bracket is full.
    """

    label: ClassVar[str] = "BOHB's HyperBand"
