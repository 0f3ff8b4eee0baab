"""The engine suites on the engines that need nothing but this package."""

from __future__ import annotations

import pytest

import trainkit
from tests.suites.engine import EngineSuite
from tests.suites.engine_actors import ActorSuite
from tests.suites.engine_calls import CallSuite
from tests.suites.engine_placement import PlacementSuite
from tests.suites.engine_state import StateSuite


class TestInline(EngineSuite):
    engine = "inline"


class TestInlineActors(ActorSuite):
    engine = "inline"


class TestInlineCalls(CallSuite):
    engine = "inline"


class TestInlinePlacement(PlacementSuite):
    engine = "inline"


class TestInlineState(StateSuite):
    engine = "inline"


class TestLocal(EngineSuite):
    engine = "local"


class TestLocalActors(ActorSuite):
    engine = "local"


class TestLocalCalls(CallSuite):
    engine = "local"


class TestLocalPlacement(PlacementSuite):
    engine = "local"


class TestLocalState(StateSuite):
    engine = "local"


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(trainkit.errors.ConfigError, match="'local', 'inline' and 'ray'"):
        trainkit.init(engine="spark")
