"""What every engine keeps of placement: groups and strategies, GPUs by index, memory, custom resources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import trainkit
from tests.conftest import SESSION_CPUS, eventually
from tests.suites.parts import (
    Keeper,
    await_file,
    bundles_here,
    bundles_of_children,
    bundles_of_grandchild,
    gpus,
    start_and_wait_for,
)
from trainkit.errors import ActorDiedError, ConfigError, InfeasibleError, WorkerDiedError
from trainkit.plugins.testing.engine import Suite, needs
from trainkit.runtime.scheduling import PlacementGroupSchedulingStrategy

MIB = 1 << 20
TOTALS = {"CPU": SESSION_CPUS, "GPU": 2, "licence": 2}


def keeper(**options: Any) -> Any:
    return trainkit.remote(Keeper).options(**options).remote()


def available(name: str) -> float:
    return trainkit.available_resources().get(name, 0)


class PlacementSuite(Suite):
    """Inherit and name the engine; the GPUs are declared, and need not exist."""

    settings: ClassVar = {"num_cpus": SESSION_CPUS, "num_gpus": 2, "resources": {"licence": 2}}

    @pytest.fixture(autouse=True)
    def all_is_given_back(self) -> Iterator[None]:
        yield
        assert eventually(lambda: all(available(name) == amount for name, amount in TOTALS.items()), 30)

    # groups

    @pytest.mark.parametrize("strategy", ["SPREAD", "STRICT_PACK"])
    def test_on_one_machine_most_strategies_are_the_same(self, strategy: str) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}], strategy=strategy)
        assert group.wait(30)
        task = trainkit.remote(num_cpus=2)(bundles_here).options(placement_group=group)
        assert trainkit.get(task.remote()) == [{"CPU": 1}, {"CPU": 2}]
        trainkit.remove_placement_group(group)

    def test_bundles_that_must_be_apart_cannot_be_on_one_machine(self) -> None:
        with pytest.raises(InfeasibleError, match=r"(one|1) node"):
            trainkit.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
        group = trainkit.placement_group([{"CPU": 1}], strategy="STRICT_SPREAD")
        assert group.wait(30)
        trainkit.remove_placement_group(group)

    def test_a_group_is_found_by_its_name(self) -> None:
        group = trainkit.placement_group([{"CPU": 1, "GPU": 1}], name="found")
        assert group.wait(30)
        again = trainkit.get_placement_group("found")
        assert again.id == group.id
        assert again.bundle_specs == [{"CPU": 1, "GPU": 1}]
        with pytest.raises(ConfigError, match="found"):
            trainkit.placement_group([{"CPU": 1}], name="found")
        trainkit.remove_placement_group(again)
        with pytest.raises(ConfigError, match="found"):
            trainkit.get_placement_group("found")
        group = trainkit.placement_group([{"CPU": 1}], name="found")
        assert group.wait(30)
        trainkit.remove_placement_group(group)

    def test_a_group_travels(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}])
        assert trainkit.get(trainkit.remote(num_cpus=0)(lambda group: group.wait(30)).remote(group))
        trainkit.remove_placement_group(group)

    def test_a_strategy_for_one_call(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}])
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
        task = trainkit.remote(bundles_here)
        inside = task.options(num_cpus=2, scheduling_strategy=strategy)
        assert trainkit.get(inside.remote()) == group.bundle_specs
        for outside in ("DEFAULT", "SPREAD", None):
            assert trainkit.get(task.options(scheduling_strategy=outside).remote()) is None
        with pytest.raises(InfeasibleError, match="bundle 0"):
            task.options(num_cpus=2, scheduling_strategy=PlacementGroupSchedulingStrategy(group, 0))
        with pytest.raises(ConfigError, match="not both"):
            task.options(scheduling_strategy=strategy, placement_group=group)
        trainkit.remove_placement_group(group)

    def test_what_runs_in_a_group_starts_others_outside_of_it(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}])
        member = keeper(placement_group=group, num_cpus=1)
        assert trainkit.get(member.bundles.remote()) == [{"CPU": 1}]
        assert trainkit.get(member.nested_bundles.remote()) is None
        trainkit.remove_placement_group(group)

    @pytest.mark.parametrize("capture", [True, False])
    def test_a_group_may_capture_what_is_started_in_it(self, capture: bool) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}])
        there = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=capture)
        apart = PlacementGroupSchedulingStrategy(None)
        task = trainkit.remote(bundles_of_children).options(scheduling_strategy=there)
        same = group.bundle_specs if capture else None
        assert trainkit.get(task.remote(apart)) == [same, same, None]
        task = trainkit.remote(bundles_of_grandchild).options(scheduling_strategy=there)
        assert trainkit.get(task.remote()) == same
        trainkit.remove_placement_group(group)

    def test_what_a_group_captures_must_fit_into_it(self) -> None:
        def ask_for_more() -> None:
            trainkit.get(trainkit.remote(num_cpus=3)(bundles_here).remote())

        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 2}])
        there = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        with pytest.raises(InfeasibleError, match="3 CPU can never be met in this placement group"):
            trainkit.get(trainkit.remote(ask_for_more).options(scheduling_strategy=there).remote())
        trainkit.remove_placement_group(group)

    def test_what_runs_in_a_removed_group_is_ended(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}, {"CPU": 1}])
        member = keeper(placement_group=group, num_cpus=1, placement_group_bundle_index=1)
        assert trainkit.get(member.get.remote()) is None
        trainkit.remove_placement_group(group)
        trainkit.remove_placement_group(group)

        def has_ended() -> bool:
            try:
                trainkit.get(member.get.remote())
            except ActorDiedError as error:
                return "placement group" in str(error)
            return False

        assert eventually(has_ended)  # Ray ends it some time after
        with pytest.raises(WorkerDiedError, match="placement group"):
            trainkit.get(trainkit.remote(bundles_here).options(placement_group=group).remote())
        with pytest.raises(ActorDiedError, match="placement group"):
            trainkit.get(keeper(placement_group=group, num_cpus=1).get.remote())
        with pytest.raises(ConfigError, match="removed"):
            trainkit.get(group.ready())

    @pytest.mark.parametrize(
        ("arguments", "error", "text"),
        [
            (([{"CPU": 1}], "TIGHT"), ConfigError, "strategy must be one of .* not 'TIGHT'"),
            (
                ([{"CPU": 1}], "PACK", "", "for ever"),
                ConfigError,
                "lifetime must be None or 'detached', not 'for ever'",
            ),
            (([],), ConfigError, "at least one bundle"),
            (([{"CPU": -1}],), ConfigError, "negative"),
            (([{"CPU": 3}, {"CPU": 2}],), InfeasibleError, "not enough CPU"),
            (([{"GPU": 0.6}, {"GPU": 0.6}, {"GPU": 0.6}],), InfeasibleError, "must fit on one GPU"),
        ],
    )
    def test_wrong_groups_are_refused(self, arguments: Any, error: type[Exception], text: str) -> None:
        with pytest.raises(error, match=text):
            trainkit.placement_group(*arguments)

    def test_wrong_places_are_refused(self) -> None:
        group = trainkit.placement_group([{"CPU": 1}])
        with pytest.raises(ConfigError, match="the group has 1 bundles"):
            trainkit.remote(Keeper).options(placement_group=group, placement_group_bundle_index=1)
        with pytest.raises(ConfigError, match=r"scheduling_strategy must be .* not 'NEAR'"):
            trainkit.remote(Keeper).options(scheduling_strategy="NEAR")
        assert group.wait(30)
        trainkit.remove_placement_group(group)

    # GPUs

    def test_the_driver_sees_all_gpus(self) -> None:
        assert trainkit.get_gpu_ids() == [0, 1]
        assert trainkit.cluster_resources()["GPU"] == 2

    def test_whole_gpus_have_one_holder(self) -> None:
        holders = [keeper(num_gpus=1) for _ in range(2)]
        (one, _), (other, _) = trainkit.get([holder.gpus.remote() for holder in holders])
        assert sorted([*one, *other]) == [0, 1]
        assert eventually(lambda: available("GPU") == 0)
        assert trainkit.get(holders[0].gpus.remote())[0] == one, "as long as it lives"

    def test_fractions_share_a_gpu(self) -> None:
        halves = [keeper(num_gpus=0.5) for _ in range(2)]
        (one, _), (other, _) = trainkit.get([half.gpus.remote() for half in halves])
        assert one == other
        assert len(one) == 1
        assert eventually(lambda: available("GPU") == 1)

    def test_a_task_is_given_gpus_for_its_time(self) -> None:
        for _ in range(3):
            (ids, _) = trainkit.get(trainkit.remote(num_gpus=1)(gpus).remote())
            assert len(ids) == 1

    def test_a_bundle_holds_gpus_for_its_members(self) -> None:
        group = trainkit.placement_group([{"GPU": 1}, {"GPU": 1}])
        at = [{"placement_group": group, "placement_group_bundle_index": index} for index in (0, 1)]
        members = [keeper(num_gpus=1, **where) for where in at]
        (one, _), (other, _) = trainkit.get([member.gpus.remote() for member in members])
        assert sorted([*one, *other]) == [0, 1]
        trainkit.remove_placement_group(group)

    @needs("isolation")
    def test_a_worker_sees_its_gpus_and_no_others(self) -> None:
        for count in (0, 0.5, 1, 2):
            ids, visible = trainkit.get(trainkit.remote(num_gpus=count)(gpus).remote())
            assert visible is not None
            assert len([name for name in visible.split(",") if name]) == len(ids) == -(-count // 1)

    @pytest.mark.parametrize(
        ("options", "error", "text"),
        [
            ({"num_gpus": 3}, InfeasibleError, "not enough GPU"),
            ({"memory": 1 << 60}, InfeasibleError, "not enough memory"),
            ({"memory": -1}, ConfigError, "negative"),
            ({"resources": {"licence": 3}}, InfeasibleError, "not enough licence"),
            ({"resources": {"memory": 1}}, ConfigError, "pass the option memory"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, options: dict[str, Any], error: type[Exception], text: str
    ) -> None:
        with pytest.raises(error, match=text):
            keeper(**options)

    # amounts

    def test_what_is_held_is_not_available(self) -> None:
        before = available("memory")
        actor = keeper(num_cpus=1, memory=64 * MIB, resources={"licence": 0.5})
        trainkit.get(actor.get.remote())
        assert eventually(lambda: (available("CPU"), available("licence")) == (SESSION_CPUS - 1, 1.5))
        assert eventually(lambda: available("memory") == before - 64 * MIB)

    @needs("placement")
    def test_who_does_not_fit_waits(self, tmp_path: Any) -> None:
        holder = keeper(num_cpus=SESSION_CPUS)
        trainkit.get(holder.get.remote())
        waiting = trainkit.remote(bundles_here).remote()
        group = trainkit.placement_group([{"CPU": 1}])
        assert not group.wait(0.2)
        assert trainkit.wait([waiting], timeout=0.2)[0] == []
        trainkit.kill(holder)
        assert group.wait(60)
        assert trainkit.get(waiting, timeout=60) is None
        trainkit.remove_placement_group(group)

    @needs("placement")
    def test_a_waiting_group_lets_nobody_in(self, tmp_path: Any) -> None:
        started, go = tmp_path / "started", tmp_path / "go"
        running = trainkit.remote(num_cpus=SESSION_CPUS)(start_and_wait_for).remote(started, go)
        await_file(started)
        group = trainkit.placement_group([{"CPU": 1}])
        inside = trainkit.remote(bundles_here).options(placement_group=group).remote()
        assert trainkit.wait([inside], timeout=0.2)[0] == []
        go.touch()
        assert trainkit.get([running, inside], timeout=60) == ["waited", [{"CPU": 1}]]
        trainkit.remove_placement_group(group)
