"""What holds around `fit` in the driver, and has to hold around each fold in a worker too."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from sklearn import config_context, get_config

Filter = tuple[Any, "str | re.Pattern[str] | None", type[Warning], "str | re.Pattern[str] | None", int]
"""As in `warnings.filters`: action, message, category, module, line."""


@dataclass(frozen=True)
class Surroundings:
    """scikit-learn's configuration and Python's filters of warnings, as joblib's workers are given them.

    Attributes:
        config: as `sklearn.get_config` gave it, with `enable_metadata_routing`, `transform_output` ...
        filters: the first that fits a warning decides.
    """

    config: Mapping[str, Any]
    filters: Sequence[Filter]

    @classmethod
    def here(cls) -> Self:
        """Those of this thread, now."""
        return cls(get_config(), tuple(cast("list[Filter]", warnings.filters)))

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Have them hold here, until the block ends."""
        with config_context(**self.config), warnings.catch_warnings():
            warnings.resetwarnings()
            for action, message, category, module, line in self.filters:
                if message is None and module is None:
                    warnings.simplefilter(action, category, line, append=True)
                else:
                    warnings.filterwarnings(
                        action, _pattern(message), category, _pattern(module), line, append=True
                    )
            yield


def _pattern(text: str | re.Pattern[str] | None) -> str:
    if text is None:
        return ""
    return text.pattern if isinstance(text, re.Pattern) else rf"{re.escape(text)}\Z"
