"""Places for tasks and actors: resources, placement groups, nodes, environments."""

from __future__ import annotations

import importlib
from typing import Any

from tests.runtime.ray.patterns import program


def of(ray: Any, module: str) -> Any:
    """A module of `ray` or `trainkit`."""
    return importlib.import_module(f"{ray.__name__}.{module}")


@program
def one_at_a_time_by_a_resource(ray: Any) -> None:
    @ray.remote(resources={"licence": 1})
    def use(log):
        ray.get(log.enter.remote())
        return ray.get(log.leave.remote())

    @ray.remote(num_cpus=0)
    class Log:
        def __init__(self):
            self.inside = self.most = 0

        def enter(self):
            self.inside += 1
            self.most = max(self.most, self.inside)

        def leave(self):
            self.inside -= 1
            return self.most

    log = Log.remote()
    print(ray.get([use.remote(log) for _ in range(3)]))


@program
def what_a_task_was_given(ray: Any) -> None:
    @ray.remote(num_cpus=0.5, resources={"licence": 0.25})
    def mine():
        return sorted(ray.get_runtime_context().get_assigned_resources().items())

    print(ray.get(mine.remote()))
    print(ray.cluster_resources()["CPU"], ray.cluster_resources()["licence"])


@program
def bundles_reserved_together(ray: Any) -> None:
    groups, strategies = of(ray, "util.placement_group"), of(ray, "util.scheduling_strategies")
    group = groups.placement_group([{"CPU": 1}, {"CPU": 2}], strategy="PACK")
    print(group.wait(60), ray.get(group.ready()) is not False, group.bundle_count)

    @ray.remote(num_cpus=2)
    def inside():
        found = groups.get_current_placement_group()
        return found.id == group.id, found == group

    where = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=1)
    print(ray.get(inside.options(scheduling_strategy=where).remote()))
    print(groups.placement_group_table(group)["strategy"])
    groups.remove_placement_group(group)


@program
def an_actor_in_a_bundle(ray: Any) -> None:
    groups, strategies = of(ray, "util.placement_group"), of(ray, "util.scheduling_strategies")

    @ray.remote(num_cpus=1)
    class Member:
        def place(self):
            return ray.get_runtime_context().get_placement_group_id() is not None

    group = groups.placement_group([{"CPU": 1}, {"CPU": 1}], strategy="PACK")
    members = [
        Member.options(scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, index)).remote()
        for index in range(2)
    ]
    print(ray.get([member.place.remote() for member in members]))
    groups.remove_placement_group(group)


@program
def children_in_the_same_group(ray: Any) -> None:
    groups, strategies = of(ray, "util.placement_group"), of(ray, "util.scheduling_strategies")

    @ray.remote(num_cpus=1)
    def child():
        return groups.get_current_placement_group() is not None

    @ray.remote(num_cpus=1)
    def parent():
        return groups.get_current_placement_group() is not None, ray.get(child.remote())

    group = groups.placement_group([{"CPU": 1}, {"CPU": 1}])
    for capture in (True, False):
        strategy = strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=capture
        )
        print(ray.get(parent.options(scheduling_strategy=strategy).remote()))
    groups.remove_placement_group(group)


@program
def the_node_that_this_runs_on(ray: Any) -> None:
    strategies = of(ray, "util.scheduling_strategies")
    here = ray.get_runtime_context().get_node_id()

    @ray.remote
    def where():
        return ray.get_runtime_context().get_node_id()

    strategy = strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    print(ray.get(where.options(scheduling_strategy=strategy).remote()) == here)
    print([node["NodeID"] == here and node["Alive"] for node in ray.nodes()])


@program
def variables_of_the_environment(ray: Any) -> None:
    import os

    @ray.remote
    def see():
        return os.environ.get("PATTERNS")

    @ray.remote
    class Caller:
        def call(self):
            return os.environ.get("PATTERNS"), ray.get(see.remote())

    environment = of(ray, "runtime_env").RuntimeEnv(env_vars={"PATTERNS": "caller"})
    print(ray.get(see.remote()), ray.get(Caller.options(runtime_env=environment).remote().call.remote()))
