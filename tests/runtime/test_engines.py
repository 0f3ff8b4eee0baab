"""The engine suite on every engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import trainkit
from tests.conftest import SESSION_CPUS
from tests.suites.engine import EngineSuite


class TestInline(EngineSuite):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def session(cls) -> Iterator[None]:
        trainkit.init(engine="inline", num_cpus=SESSION_CPUS)
        yield
        trainkit.shutdown()


class TestLocal(EngineSuite):
    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def session(cls) -> Iterator[None]:
        trainkit.init(num_cpus=SESSION_CPUS)
        yield
        trainkit.shutdown()


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(trainkit.errors.ConfigError, match="'local', 'inline' and 'ray'"):
        trainkit.init(engine="spark")
