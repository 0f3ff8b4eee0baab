"""Programs as Ray's documentation teaches them print the same under Ray and here."""

from __future__ import annotations

import pytest

from tests.runtime.ray.patterns import PROGRAMS
from tests.runtime.ray.patterns import run as _collected  # noqa: F401
from tests.runtime.ray.patterns.told import ALL_S, Told, told_by, told_by_ray

pytest.importorskip("ray", reason="Ray's side needs Ray: pip install 'trainkit-ml[ray]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def both() -> tuple[Told, Told]:
    """Of Ray, and of trainkit."""
    return told_by_ray(), told_by("trainkit")


@pytest.mark.timeout(2 * ALL_S + 180)
@pytest.mark.parametrize("name", PROGRAMS)
def test_prints_the_same_as_under_ray(name: str, both: tuple[Told, Told]) -> None:
    theirs, ours = (told.get(name) for told in both)
    assert theirs is not None, "Ray did not get so far"
    assert ours is not None, "trainkit did not get so far"
    assert not theirs["error"], theirs["error"]
    assert not ours["error"], ours["error"]
    assert theirs["printed"]
    assert ours["printed"] == theirs["printed"]
