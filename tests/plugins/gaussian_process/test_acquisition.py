"""Log expected improvement, also far in its tails, and the rows at which it is largest."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from trainkit import tune
from trainkit.plugins.gaussian_process import acquisition, model
from trainkit.plugins.gaussian_process.encoding import Encoding
from trainkit.tune.space.search_space import Space


@pytest.mark.parametrize("steps", [-1e4, -100, -26, -25, -24.9, -10, -1, 0, 1, 10])
def test_the_logarithm_is_right_to_its_tails(steps):
    with mpmath.workdps(60):
        exact = mpmath.mpf(steps)
        scale = mpmath.exp(-exact * exact / 2) / mpmath.sqrt(2 * mpmath.pi)
        # Where erfc loses all digits of the sum, the continued fraction of Mills' ratio does not.
        gain = scale + exact * mpmath.erfc(-exact / mpmath.sqrt(2)) / 2 if steps > -50 else scale / exact**2
        expected = float(mpmath.log(gain)) + np.log(0.3)
    found = acquisition.log_improvement(0.3 * steps, np.zeros(1), np.full(1, 0.3))
    assert found[0] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_it_rises_with_every_step():
    steps = np.linspace(-60, 10, 5000)
    found = acquisition.log_improvement(0.0, -steps, np.ones(len(steps)))
    assert (np.diff(found) > 0).all()


def process_of(encoding: Encoding, loss, number: int = 20) -> model.GaussianProcess:
    rows = encoding.snapped(encoding.from_unit(np.random.default_rng(0).random((number, len(encoding)))))
    losses = np.array([loss(row) for row in rows])
    losses = (losses - losses.mean()) / losses.std()
    return model.GaussianProcess(model.fitted_kernel(encoding, rows, losses), rows, losses)


@pytest.mark.parametrize("seed", range(3))
def test_no_random_row_is_better_than_the_first_proposal(seed):
    space = {
        "a": tune.uniform(0, 1),
        "b": tune.loguniform(1e-3, 1),
        "n": tune.randint(0, 9),
        "kind": tune.choice(["x", "y", "z"]),
        "c": tune.when({"kind": "x"}, tune.uniform(0, 1)),
    }
    encoding = Encoding(Space.of(space))
    process = process_of(encoding, lambda row: (row[0] - 0.3) ** 2 + row[1] * row[2] + (row[3] == 1))
    rng = np.random.default_rng(seed)
    rows = acquisition.proposals(process, encoding, rng)
    best = float(process.mean(process.rows).min())
    drawn = encoding.snapped(encoding.from_unit(rng.random((20_000, len(encoding)))))
    ours, others = (acquisition.log_improvement(best, *process.predict(each)) for each in (rows[:1], drawn))
    assert ours[0] > others.max() - 0.02
    np.testing.assert_allclose(encoding.snapped(rows), rows, atol=1e-12)


def test_known_rows_are_not_proposed():
    encoding = Encoding(Space.of({"a": tune.choice(["x", "y"]), "b": tune.randint(0, 3)}))
    process = process_of(encoding, lambda row: row[1], number=40)
    assert len({row.tobytes() for row in process.rows}) == 6
    assert not len(acquisition.proposals(process, encoding, np.random.default_rng(0)))


def test_neighbours_change_something_and_stay_in_the_space():
    space = {**{f"x{n}": tune.uniform(0, 1) for n in range(8)}, "kind": tune.choice(list("abcd"))}
    encoding = Encoding(Space.of(space))
    rows = np.repeat([[0.0] * 8 + [2]], 300, axis=0)
    near = acquisition.neighbours(encoding, rows, 0.1, np.random.default_rng(0))
    assert near.min() >= 0 and near[:, :8].max() <= 1 and set(near[:, 8]) == {0, 1, 2, 3}
    changed = (near != rows).sum(axis=1)
    assert changed.max() == 9 and np.median(changed) < 6 and changed.min() > 0


def test_a_neighbour_in_a_list_has_another_value():
    encoding = Encoding(Space.of({"a": tune.choice(["x", "y"]), "b": tune.choice([True, None])}))
    rows = np.repeat([[1.0, 0.0]], 100, axis=0)
    near = acquisition.neighbours(encoding, rows, 0.1, np.random.default_rng(0))
    assert (near != rows).any(axis=1).all() and set(near.ravel()) == {0, 1}


def test_proposals_stay_in_the_bulk_of_a_normal_distribution():
    encoding = Encoding(Space.of({"a": tune.randn(0, 1), "b": tune.qrandn(10, 2, 0.5)}))
    process = process_of(encoding, lambda row: -row.sum())
    rows = acquisition.proposals(process, encoding, np.random.default_rng(0))
    configs = [encoding.config(row, {}, np.random.default_rng(0)) for row in rows]
    assert 2 < max(config["a"] for config in configs) < 3.1
    assert max(config["b"] for config in configs) <= 16.5
