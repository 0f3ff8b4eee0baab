"""What trials reserve, in every form of asking; what they see of it; and that waiting for it always ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

import trainkit
from tests.conftest import all_is_free, eventually
from trainkit import air, train, tune
from trainkit.errors import ConfigError, InfeasibleError

PRELOAD = ("torch",)

GPUS = ("4", "5", "6", "7")


@pytest.fixture(scope="module", autouse=True)
def four_declared_gpus() -> Iterator[None]:
    """A session with devices that this machine doesn't have: only their numbers are handed out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(GPUS))
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.delenv(name, raising=False)
        trainkit.init(num_cpus=4, num_gpus=4, preload=PRELOAD)
        yield
        trainkit.shutdown()


def devices(config):
    seen = os.environ["CUDA_VISIBLE_DEVICES"]
    return {"seen": seen.split(",") if seen else [], "ids": [str(one) for one in trainkit.get_gpu_ids()]}


@pytest.mark.parametrize(("gpus", "count"), [(0, 0), (0.5, 1), (1, 1), (2, 2)])
def test_a_trial_sees_the_gpus_it_asked_for(fit, gpus, count):  # row 1.17
    trainable = tune.with_resources(devices, {"cpu": 0.5, "gpu": gpus})
    grid = fit(trainable, num_samples=4, allow_duplicates=True)
    for result in grid:
        seen = result.metrics["seen"]
        assert len(seen) == count
        assert [GPUS.index(one) for one in seen] == sorted(GPUS.index(one) for one in seen)


def test_trials_at_once_have_different_gpus_and_halves_share(fit, tmp_path):  # row 1.17
    def meets(config):
        (tmp_path / f"{config['n']}").touch()
        while len(list(tmp_path.glob("[0-9]"))) < 4:  # all four run at once
            threading.Event().wait(0.01)
        return devices(config)

    grid = fit(tune.with_resources(meets, {"cpu": 1, "gpu": 0.5}), {"n": tune.grid_search([0, 1, 2, 3])})
    seen = sorted(result.metrics["seen"][0] for result in grid)
    assert len(set(seen)) >= 2
    assert all(seen.count(one) <= 2 for one in seen)


@pytest.mark.parametrize("cpus", [1, 3])
def test_threads_are_the_cpus_asked_for(fit, cpus):  # row 1.44
    def threads(config):
        import torch

        return {"torch": torch.get_num_threads(), "omp": int(os.environ["OMP_NUM_THREADS"])}

    (result,) = fit(tune.with_resources(threads, {"cpu": cpus}))
    assert (result.metrics["torch"], result.metrics["omp"]) == (cpus, cpus)


# --- ways to ask ----------------------------------------------------------------------------------


def asked(config):
    return dict(tune.get_trial_resources())


@pytest.mark.parametrize(
    ("resources", "reserved"),
    [
        ({"cpu": 2}, {"CPU": 2}),
        ({"CPU": 1, "GPU": 0.5}, {"CPU": 1, "GPU": 0.5}),
        ({"cpu": 1, "gpu": 0, "custom_resources": {"GPU": 1}}, None),
        (lambda config: {"cpu": config["n"]}, {"CPU": 3}),
        (lambda config: tune.PlacementGroupFactory([{"CPU": config["n"]}]), {"CPU": 3}),
        (tune.PlacementGroupFactory([{"CPU": 1, "GPU": 1}, {"CPU": 2}]), {"CPU": 3, "GPU": 1}),
        (tune.ScalingConfig(), {"CPU": 2}),
        (air.ScalingConfig(num_workers=2, trainer_resources={"CPU": 0}), {"CPU": 2}),
        (train.ScalingConfig(num_workers=2, use_gpu=True), {"CPU": 1, "GPU": 2}),
        (
            air.ScalingConfig(num_workers=2, use_gpu=True, resources_per_worker={"CPU": 1, "GPU": 0.5}),
            {"CPU": 3, "GPU": 1},
        ),
    ],
)
def test_every_way_to_ask(fit, resources, reserved):
    if reserved is None:
        with pytest.raises(ConfigError, match="given twice"):
            tune.with_resources(asked, {**resources, "custom_resources": {"gpu": 1}, "GPU": 1})
        return

    class Asked(tune.Trainable):
        def step(self):
            return {**self.trial_resources, "done": True}

    for name, trainable in [("function", asked), ("class", Asked)]:
        (result,) = fit(tune.with_resources(trainable, resources), {"n": 3}, run={"name": name})
        assert {key: result.metrics.get(key) for key in reserved} == reserved


def test_custom_resources_are_resources():
    bound = tune.with_resources(asked, {"cpu": 1, "custom_resources": {"licence": 2}})
    assert bound.request({}).required_resources == {"CPU": 1, "licence": 2}
    with pytest.raises(ConfigError, match=r"extra_cpu.*PlacementGroupFactory"):
        tune.with_resources(asked, {"cpu": 1, "extra_cpu": 2})


def test_a_request_tells_what_it_is():
    group = tune.PlacementGroupFactory([{}, {"CPU": 1}, {"CPU": 2, "GPU": 0.5}])
    assert not group.head
    assert group.head_cpus == 0
    assert group.required_resources == {"CPU": 3, "GPU": 0.5}
    assert group.strategy == "PACK"
    assert tune.PlacementGroupFactory([{"cpu": 2}]).head_cpus == 2
    same = tune.PlacementGroupFactory([{"CPU": 0, "gpu": 0}, {"cpu": 1}, {"GPU": 0.5, "CPU": 2}])
    assert {group, same} == {group}
    reserved = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}]).to_placement_group()
    assert reserved.wait(60)
    trainkit.remove_placement_group(reserved)


def test_a_scaling_config_says_what_it_comes_to():
    config = air.ScalingConfig(
        num_workers=3, use_gpu=True, resources_per_worker={"CPU": 2, "GPU": 1, "licence": 1}
    )
    assert (config.num_cpus_per_worker, config.num_gpus_per_worker) == (2, 1)
    assert config.additional_resources_per_worker == {"licence": 1}
    assert config.total_resources == {"CPU": 6, "GPU": 3, "licence": 3}
    bundles = config.as_placement_group_factory().bundles
    assert [dict(bundle) for bundle in bundles[:2]] == [{}, {"CPU": 3, "GPU": 1, "licence": 1}]
    assert len(bundles) == 4
    assert air.ScalingConfig().total_resources == {"CPU": 1}
    assert air.ScalingConfig(num_workers=2, use_gpu=True).total_resources == {"GPU": 2}
    assert air.ScalingConfig(trainer_resources={"CPU": 2}).total_resources == {"CPU": 3}


@pytest.mark.parametrize(
    "resources",
    [{"gpu": 5}, {"licence": 1}, tune.PlacementGroupFactory([{"CPU": 1}] * 5), lambda config: {"cpu": 9}],
)
def test_what_can_never_fit_is_refused_at_once(fit, resources, tmp_path):  # row 1.4
    with pytest.raises(InfeasibleError, match=r"asks for .*, but this machine has 4 CPU, 4 GPU"):
        fit(tune.with_resources(asked, resources))
    assert not (tmp_path / "e").exists()


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (
            lambda config: 1 / 0,
            r"resources of a trial of asked are unknown.*ZeroDivisionError: .*configuration \{\}",
        ),
        (
            lambda config: tune.PlacementGroupFactory([3]),
            "bundle 0 of a trial must be amounts by name, .*, not 3",
        ),
    ],
)
def test_a_function_that_cannot_say_is_named(fit, resources, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        fit(tune.with_resources(asked, resources))
    assert not (tmp_path / "e").exists()


# --- no deadlock ----------------------------------------------------------------------------------


@trainkit.remote
def who():
    return os.getpid()


def test_groups_that_fit_one_at_a_time_take_turns(fit):  # row 1.4
    def trains(config):
        group = trainkit.get_current_placement_group()
        workers = [who.options(placement_group=group, num_cpus=1).remote() for _ in range(2)]
        return {"workers": len(set(trainkit.get(workers)))}

    group = tune.PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}, {"CPU": 1}])
    grid = fit(tune.with_resources(trains, group), num_samples=5, allow_duplicates=True)
    assert (grid.num_terminated, grid.num_errors) == (5, 0)


def test_requests_of_different_sizes_all_get_their_turn(fit):
    def sized(config):
        if config["n"] == 4:
            return tune.PlacementGroupFactory([{}, {"CPU": 2}, {"CPU": 2}])
        return {"cpu": config["n"]}

    grid = fit(tune.with_resources(asked, sized), {"n": tune.grid_search([1, 4, 2, 4, 3, 1])})
    assert [result.metrics["CPU"] for result in grid] == [1, 4, 2, 4, 3, 1]


def test_after_it_all_nothing_is_held():
    assert eventually(all_is_free)
