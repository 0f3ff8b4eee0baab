"""What `with_parameters` binds is in memory once, however many trials have it; row 1.25."""

from __future__ import annotations

import functools
import gc
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

import trainkit
from trainkit import tune

pytestmark = pytest.mark.usefixtures("runtime")

SIZE = 100 << 20  # bytes


def memory(pid: int | str = "self") -> int:
    """Bytes of a process; a page that n processes share counts as an n-th."""
    fields = re.findall(r"^Pss: +(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return 1024 * int(fields[0])


def meet(folder: str, name: object) -> int:
    """Wait until all four trials are here; say how many are."""
    Path(folder, f"{name}").touch()
    deadline = time.monotonic() + 60
    while (there := len(list(Path(folder).iterdir()))) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    return there


def reads(config, data, folders, driver):
    before = memory()
    total = float(data.sum())  # every page is touched
    together = meet(folders[0], config["n"])
    grown, of_driver = memory() - before, memory(driver)
    meet(folders[1], config["n"])  # none goes, or its share would fall to others
    return {
        "total": total,
        "grown": grown,
        "driver": of_driver,
        "writeable": bool(data.flags.writeable),
        "together": together,
    }


class Reads(tune.Trainable):
    def setup(self, config, data, folders, driver):
        self.told = reads(config, data, folders, driver)

    def step(self):
        return {**self.told, "done": True}


@pytest.mark.parametrize("trainable", [reads, Reads])
def test_large_data_is_mapped_by_every_trial_and_copied_by_none(fit, tmp_path, trainable):  # row 1.25
    data = np.ones(SIZE // 8)
    folders = [tmp_path / "read", tmp_path / "measured"]
    for folder in folders:
        folder.mkdir()
    before = memory()
    names = [str(folder) for folder in folders]
    bound = tune.with_parameters(trainable, data=data, folders=names, driver=os.getpid())
    grid = fit(bound, {"n": tune.grid_search([0, 1, 2, 3])})
    assert [result.metrics["together"] for result in grid] == [4] * 4
    assert [result.metrics["total"] for result in grid] == [SIZE / 8] * 4
    grown = sum(result.metrics["grown"] for result in grid) + grid[0].metrics["driver"] - before
    assert grown < 1.3 * SIZE  # less, where memory of an earlier value was used again
    assert not any(result.metrics["writeable"] for result in grid)


def test_what_a_reference_stands_for_is_handed_over(fit):
    data = trainkit.put(np.arange(100_000.0))
    bound = tune.with_parameters(
        lambda config, data, scale: {"sum": float(data.sum()) * scale}, data=data, scale=2
    )
    (result,) = fit(bound)
    assert result.metrics["sum"] == 2 * np.arange(100_000.0).sum()
    gc.collect()  # the experiment's parts refer to each other, and one of them to the parameters


def test_bindings_add_up_and_later_ones_win(fit):
    def trainable(config, a, b, c):
        return {"sum": a + b + c}

    bound = tune.with_parameters(tune.with_parameters(trainable, a=1, b=2), b=20, c=300)
    assert fit(bound)[0].metrics["sum"] == 321
    assert bound({}) == {"sum": 321}  # also without a Tuner


def add(config, a=0, b=0):
    return {"sum": a + b, **tune.get_context().get_trial_resources()}


@pytest.mark.parametrize(
    "trainable",
    [
        functools.partial(tune.with_resources(add, {"cpu": 2}), a=1, b=2),
        tune.with_resources(functools.partial(tune.with_parameters(add, a=5, b=2), a=1), {"cpu": 2}),
        tune.with_parameters(functools.partial(tune.with_resources(add, {"cpu": 2}), a=1), b=2),
    ],
)
def test_a_partial_of_what_is_bound_keeps_name_request_and_parameters(fit, trainable):
    (result,) = fit(trainable)
    assert (result.metrics["sum"], result.metrics["CPU"]) == (3, 2)
    assert Path(result.path).name.startswith("add_")
