"""The logger of the package."""

from __future__ import annotations

import logging

logger = logging.getLogger("trainkit.tune")
