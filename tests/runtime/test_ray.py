"""The Ray engine: the suite of every engine, and what only Ray does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import trainkit
from tests.conftest import SESSION_CPUS
from tests.suites.engine import EngineSuite

pytest.importorskip("ray", reason="the Ray engine needs Ray: pip install 'trainkit[ray]'")


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        trainkit.init(engine="ray", num_cpus=SESSION_CPUS, include_dashboard=False)
        yield
        trainkit.shutdown()


class TestRay(EngineSuite):
    pass
