"""The suite of strategies, over all of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.suites.strategies import Row, StrategySuite

pytestmark = pytest.mark.usefixtures("runtime")

ROWS = [
    Row("single", 1),
    Row("ddp", 1),
    Row("ddp", 2),
    Row("ddp", 4),
]


class TestStrategies(StrategySuite):
    @pytest.fixture(params=ROWS, ids=str)
    def row(self, request: Any) -> Any:
        return request.param
