"""Objects that end trials, or the whole experiment, by what is reported: what RunConfig(stop=...) may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class Stopper(ABC):
    """Base of all stoppers.

    Asked about every report once, in the order in which reports are committed; after a restore it is told
    the reports of before again, so it keeps its state in plain attributes.
    """

    @abstractmethod
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """True ends the trial that has reported `result`."""

    def stop_all(self) -> bool:
        """True ends the experiment; asked after every report."""
        return False
