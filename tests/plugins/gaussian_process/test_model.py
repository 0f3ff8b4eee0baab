"""The Gaussian process: its derivatives, its agreement with scikit-learn's, and its most probable kernel."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from trainkit import tune
from trainkit.plugins.gaussian_process import model
from trainkit.plugins.gaussian_process.curves import EarlyReports
from trainkit.plugins.gaussian_process.encoding import Encoding
from trainkit.tune.space.search_space import Space

SPACE = {
    "a": tune.uniform(0, 1),
    "b": tune.uniform(0, 1),
    "kind": tune.choice(["x", "y", "z"]),
    "c": tune.when({"kind": "x"}, tune.uniform(0, 1)),
}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    encoding = Encoding(Space.of(SPACE))
    rows = encoding.snapped(encoding.from_unit(rng.random((25, 4))))
    losses = np.sin(6 * rows[:, 0]) + rows[:, 1] + 0.5 * (rows[:, 2] == 1) + 0.01 * rng.normal(size=25)
    return encoding, rows, losses - losses.mean()


def test_the_density_has_the_gradient_that_it_says(data):
    posterior = model._Posterior(*data, model.Prior())
    for seed in range(3):
        logs = posterior.means + np.random.default_rng(seed).normal(0, 0.7, len(posterior.means))
        error = check_grad(lambda x: posterior(x)[0], lambda x: posterior(x)[1], logs)
        assert error < 1e-4 * np.abs(posterior(logs)[1]).max()


def test_the_density_has_the_gradient_with_a_column_of_missing_training(data):
    encoding, rows, losses = data
    missing = np.random.default_rng(1).integers(3, size=25)
    posterior = model._Posterior(encoding, np.column_stack([rows, missing]), losses, model.Prior())
    error = check_grad(lambda x: posterior(x)[0], lambda x: posterior(x)[1], posterior.means)
    assert error < 1e-4 * np.abs(posterior(posterior.means)[1]).max()


def test_the_fitted_kernel_is_the_most_probable(data):
    encoding, rows, losses = data
    posterior = model._Posterior(encoding, rows, losses, model.Prior())
    kernel = model.fitted_kernel(encoding, rows, losses, iterations=100)
    logs = np.log([*kernel.weights**-0.5, kernel.variance, kernel.noise])
    assert np.abs(posterior(logs)[1]).max() < 0.02
    assert kernel.weights[0] > 2 * kernel.weights[3]  # the losses do not depend on the last parameter


def test_it_predicts_as_scikit_learn_does(data):
    _, rows, losses = data
    numbers = rows[:, [0, 1, 3]]
    kernel = model.Kernel(np.zeros(3, bool), np.array([4.0, 1.0, 0.25]), 1.5, 0.01)
    theirs = GaussianProcessRegressor(
        ConstantKernel(1.5) * Matern([0.5, 1, 2], nu=2.5), alpha=0.01 + 1.5e-6, optimizer=None
    ).fit(numbers, losses)
    points = np.random.default_rng(1).random((40, 3))
    ours = model.GaussianProcess(kernel, numbers, losses).predict(points)
    for own, their in zip(ours, theirs.predict(points, return_std=True), strict=True):
        np.testing.assert_allclose(own, their, atol=1e-6)


def test_predictions_have_the_derivatives_that_they_say(data):
    encoding, rows, losses = data
    process = model.GaussianProcess(model.fitted_kernel(encoding, rows, losses), rows, losses)
    points = np.random.default_rng(1).random((5, 4))
    points[:, 2] = 1
    mean, deviation, by_mean, by_deviation = process.gradients(points)
    np.testing.assert_allclose([mean, deviation], process.predict(points), rtol=1e-9)
    for column in (0, 1, 3):
        step = np.zeros(4)
        step[column] = 1e-5
        above, below = process.predict(points + step), process.predict(points - step)
        for found, high, low in zip((by_mean, by_deviation), above, below, strict=True):
            np.testing.assert_allclose(found[:, column], (high - low) / 2e-5, rtol=1e-3, atol=1e-4)
    assert not by_mean[:, 2].any()


def test_results_before_the_end_count_as_far_as_they_agree_with_results_at_the_end(data):
    encoding, rows, losses = data
    places = list(range(25))
    for early_losses, agrees in ((losses, True), (np.random.default_rng(2).permutation(losses), False)):
        unknown = np.where(np.arange(25) < 18, 0.0, 1.0)
        ends = np.where(unknown > 0, early_losses, losses)
        early = EarlyReports(unknown.tolist(), places[:18], [1.0] * 18, early_losses[:18].tolist())
        process = model.process_of(encoding, rows, ends.tolist(), early)
        assert len(process.rows) == 25
        deviation = process.predict(rows)[1]
        assert (deviation[18:].mean() < 2 * deviation[:18].mean()) == agrees


def test_a_process_with_missing_training_has_the_derivatives_that_it_says(data):
    encoding, rows, losses = data
    missing = np.random.default_rng(1).integers(3, size=25).astype(float)
    kernel = model.fitted_kernel(encoding, np.column_stack([rows, missing]), losses)
    process = model.GaussianProcess(kernel, rows, losses, missing).with_expected(rows[:2] * 0.9)
    points = np.random.default_rng(1).random((5, 4))
    points[:, 2] = 1
    mean, deviation, by_mean, by_deviation = process.gradients(points)
    np.testing.assert_allclose([mean, deviation], process.predict(points), rtol=1e-9)
    step = np.array([1e-5, 0.0, 0.0, 0.0])
    above, below = process.predict(points + step), process.predict(points - step)
    for found, high, low in zip((by_mean, by_deviation), above, below, strict=True):
        np.testing.assert_allclose(found[:, 0], (high - low) / 2e-5, rtol=1e-3, atol=1e-4)


def test_an_expected_result_changes_no_mean_but_lowers_the_deviation(data):
    encoding, rows, losses = data
    process = model.GaussianProcess(model.fitted_kernel(encoding, rows, losses), rows, losses)
    running = np.array([[0.31, 0.77, 2, 0.5], [0.9, 0.1, 0, 0.2]])
    more = process.with_expected(running)
    points = np.random.default_rng(1).random((30, 4))
    np.testing.assert_allclose(more.predict(points)[0], process.predict(points)[0], atol=1e-5)
    assert (more.predict(running)[1] < 0.5 * process.predict(running)[1]).all()
    assert process.with_expected(np.zeros((0, 4))) is process


def test_equal_rows_with_different_losses_are_noise():
    encoding = Encoding(Space.of({"x": tune.uniform(0, 1)}))
    rows = np.repeat(np.linspace(0, 1, 5), 8)[:, None]
    losses = np.random.default_rng(0).normal(size=40)
    kernel = model.fitted_kernel(encoding, rows, losses)
    assert kernel.noise > 0.3
    assert np.isfinite(model.GaussianProcess(kernel, rows, losses).predict(rows)[0]).all()
