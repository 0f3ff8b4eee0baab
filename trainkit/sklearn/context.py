"""Context in which workers evaluate folds: scikit-learn's configuration and warning filters."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

from sklearn import config_context, get_config

Filter = tuple[Any, "str | re.Pattern[str] | None", type[Warning], "str | re.Pattern[str] | None", int]
"""Warning filter: action, message, category, module and line, as in `warnings.filters`."""


@dataclass(frozen=True)
class SklearnContext:
    """Configuration of scikit-learn and warning filters, as joblib sends them to its workers.

    Attributes:
        config: result of `sklearn.get_config`, such as `enable_metadata_routing` and `transform_output`.
        filters: warning filters; the first filter that matches a warning decides.
    """

    config: Mapping[str, Any]
    filters: Sequence[Filter]

    @classmethod
    def current(cls) -> Self:
        """Return the current context of this thread."""
        return cls(get_config(), tuple(cast("list[Filter]", warnings.filters)))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the context in this thread until the block ends."""
        with config_context(**self.config), warnings.catch_warnings():
            warnings.resetwarnings()
            cast("list[Filter]", warnings.filters).extend(self.filters)
            yield
