"""What every engine keeps of actors: names, handles, ends, restarts, and several calls at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually
from tests.suites.parts import (
    Begun,
    Courier,
    Keeper,
    Leaver,
    Meeting,
    Mortal,
    Patient,
    Plain,
    Talker,
    await_file,
    value_of_named,
)
from trainkit.errors import ActorDiedError, ConfigError
from trainkit.plugins.testing.engine import Suite, needs


def keeper(value: Any = None, **options: Any) -> Any:
    return trainkit.remote(Keeper).options(**options).remote(value)


def is_known(name: str, namespace: str | None = None) -> bool:
    try:
        trainkit.get_actor(name, namespace)
    except ConfigError:
        return False
    return True


def succeeds(call: Callable[[], Any]) -> bool:
    """Whether a call reaches a living actor, one that is being made anew."""
    try:
        trainkit.get(call())
    except ActorDiedError:
        return False
    return True


def was_made_anew(actor: Any) -> bool:
    try:
        return bool(trainkit.get(actor.context.remote())["restarted"])
    except ActorDiedError:
        return False


def is_dead(actor: Any) -> bool:
    return not succeeds(actor.get.remote)


class ActorSuite(Suite):
    """Inherit and name the engine; every test uses the public verbs alone.

    Attributes:
        crowd: how many threads ask for one actor at once.
    """

    crowd = 1000

    # names

    def test_an_actor_is_found_by_its_name(self) -> None:
        actor = keeper(1, name="found")
        trainkit.get(actor.set.remote(2))
        again = trainkit.get_actor("found")
        assert trainkit.get(again.get.remote()) == 2
        assert trainkit.get(again.twice.remote()) == [2, 2], "the handle knows how methods are called"

    def test_a_task_and_an_actor_find_it_too(self) -> None:
        actor, other = keeper("here", name="sought"), keeper()
        assert trainkit.get(trainkit.remote(value_of_named).remote("sought")) == "here"
        assert trainkit.get(other.value_of_named.remote("sought")) == "here"
        assert trainkit.get(actor.get.remote()) == "here"

    def test_a_name_that_is_taken_is_refused(self) -> None:
        actor = keeper(1, name="taken")
        with pytest.raises(ConfigError, match="taken"):
            keeper(2, name="taken")
        assert trainkit.get(actor.get.remote()) == 1

    def test_each_namespace_has_names_of_its_own(self) -> None:
        here, there = keeper("here", name="twin"), keeper("there", name="twin", namespace="elsewhere")
        assert trainkit.get(trainkit.get_actor("twin").get.remote()) == "here"
        assert trainkit.get(trainkit.get_actor("twin", "elsewhere").get.remote()) == "there"
        with pytest.raises(ConfigError, match="twin"):
            trainkit.get_actor("twin", namespace="nowhere")
        assert trainkit.get([here.get.remote(), there.get.remote()]) == ["here", "there"]

    def test_the_one_that_exists_is_used_if_that_is_asked_for(self) -> None:
        actors = [keeper(value, name="single", get_if_exists=True) for value in (1, 2)]
        assert trainkit.get([actor.get.remote() for actor in actors]) == [1, 1]
        trainkit.get(actors[0].set.remote(3))
        assert trainkit.get(actors[1].get.remote()) == 3

    def test_many_threads_at_once_make_one_actor(self) -> None:
        def value(number: int) -> Any:
            return trainkit.get(
                keeper(number, name="crowded", lifetime="detached", get_if_exists=True).get.remote()
            )

        with ThreadPoolExecutor(self.crowd) as pool:
            assert len(set(pool.map(value, range(self.crowd)))) == 1
        trainkit.kill(trainkit.get_actor("crowded"))

    @needs("parallel")
    def test_one_that_ends_while_it_is_asked_for_is_made_again(self) -> None:
        def pass_by(number: int) -> Any:
            return trainkit.get(keeper(number, name="fleeting", get_if_exists=True).get.remote())

        with ThreadPoolExecutor(20) as pool:
            assert set(pool.map(pass_by, range(self.crowd // 5))) <= set(range(self.crowd))

    def test_a_name_is_free_once_the_last_handle_is_gone(self) -> None:
        actor = keeper(1, name="passing")
        assert trainkit.get(actor.get.remote()) == 1
        del actor
        assert eventually(lambda: not is_known("passing"))
        assert trainkit.get(keeper(2, name="passing").get.remote()) == 2

    def test_a_name_is_free_once_its_actor_is_killed(self) -> None:
        actor = keeper(1, name="victim")
        trainkit.get(actor.get.remote())
        trainkit.kill(actor)
        assert eventually(lambda: not is_known("victim"))
        assert trainkit.get(keeper(2, name="victim").get.remote()) == 2

    def test_a_detached_actor_needs_no_handle(self) -> None:
        actor = keeper(5, name="stays", lifetime="detached")
        assert trainkit.get(actor.get.remote()) == 5
        del actor
        again = trainkit.get_actor("stays")
        assert trainkit.get(again.get.remote()) == 5
        trainkit.kill(again)
        assert eventually(lambda: not is_known("stays"))

    # handles

    def test_a_handle_passes_through_a_task_and_an_object(self) -> None:
        actor = keeper(1)
        back = trainkit.get(trainkit.remote(lambda handles: handles[0]).remote([actor]))
        trainkit.get(back.set.remote(2))
        (stored,) = trainkit.get(trainkit.put([actor]))
        assert trainkit.get([handle.get.remote() for handle in (actor, back, stored)]) == [2, 2, 2]

    def test_a_handle_in_another_process_keeps_the_actor(self) -> None:
        holder, actor = keeper(), keeper("kept")
        trainkit.get(holder.set.remote(actor))
        del actor
        assert trainkit.get(trainkit.get(holder.get.remote()).get.remote()) == "kept"

    def test_an_actor_itself_can_be_called(self) -> None:
        assert trainkit.get(keeper(1).__call__.remote(2)) == 3

    def test_what_a_class_has_is_there_through_the_remote_class(self) -> None:
        remote = trainkit.remote(Keeper)
        assert remote.LIMIT == 7
        assert remote.doubled(2) == 4
        assert {"LIMIT", "doubled", "get", "remote", "options"} <= set(dir(remote))
        with pytest.raises(AttributeError, match="missing"):
            remote.missing  # noqa: B018
        actor = remote.remote()
        assert {"get", "doubled", "__ray_ready__"} <= set(dir(actor))
        assert trainkit.get(actor.doubled.remote(3)) == 6

    def test_an_attribute_does_not_hide_a_method(self) -> None:
        actor = keeper()
        trainkit.get(actor.__ray_call__.remote(lambda own: setattr(own, "get", "hidden")))
        assert trainkit.get(actor.get.remote()) is None

    def test_every_actor_has_methods_of_ray(self) -> None:
        actor = keeper(1)
        assert trainkit.get(actor.__ray_ready__.remote()) is True
        call = actor.__ray_call__.remote(
            lambda own, more, function: (own.value, more, function), 2, function=3
        )
        assert trainkit.get(call) == (1, 2, 3)
        with pytest.raises(TypeError):
            actor.__ray_call__.remote()
        assert trainkit.get(trainkit.remote(Courier).remote().__ray_ready__.remote()) is True

    def test_an_actor_is_told_to_end_behind_its_calls(self) -> None:
        actor = keeper(1, max_restarts=1)
        before, end = actor.get.remote(), actor.__ray_terminate__.remote()
        assert trainkit.get(before) == 1
        with pytest.raises(ActorDiedError):
            trainkit.get(end)
        assert eventually(lambda: is_dead(actor))

    def test_a_handle_has_the_id_of_its_actor(self) -> None:
        actor, other = keeper(name="known by its id"), keeper()
        inside = trainkit.get(actor.context.remote())["actor_id"]
        found = trainkit.get_actor("known by its id")
        assert actor._actor_id.hex() == found._actor_id.hex() == actor._ray_actor_id.hex() == inside
        assert actor._actor_id == found._actor_id != other._actor_id
        assert actor._actor_id.binary().hex() == inside

    # ends

    def test_an_actor_may_leave_from_deep_down_and_is_not_made_anew(self) -> None:
        actor = trainkit.remote(Leaver).options(max_restarts=3).remote()
        assert trainkit.get(actor.same.remote(1)) == 1
        for call in (lambda: actor.leave.remote(50), lambda: actor.same.remote(2)):
            with pytest.raises(ActorDiedError, match="exit_actor"):
                trainkit.get(call())

    @pytest.mark.parametrize("method", ["leave_in_spite_of_a_handler", "leave_async"])
    def test_nothing_keeps_it_from_leaving(self, method: str) -> None:
        actor = trainkit.remote(Leaver).options(name=f"leaver-{method}").remote()
        with pytest.raises(ActorDiedError, match="exit_actor"):
            trainkit.get(getattr(actor, method).remote())
        assert eventually(lambda: not is_known(f"leaver-{method}"))

    def test_a_program_that_an_actor_ends_is_the_actors_own(self) -> None:
        actor = trainkit.remote(Leaver).remote()
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.exit.remote(4))
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.same.remote(1))

    def test_what_an_actor_made_ends_with_it(self) -> None:
        actor = keeper()
        child = trainkit.get(actor.make_another.remote("child"))
        assert trainkit.get(child.get.remote()) == "child"
        trainkit.kill(actor)
        assert eventually(lambda: is_dead(child))

    # restarts

    def test_a_killed_actor_may_be_made_anew(self) -> None:
        actor = trainkit.remote(Mortal).options(max_restarts=1).remote(5)
        assert trainkit.get(actor.add.remote(1)) == 6
        assert not trainkit.get(actor.context.remote())["restarted"]
        trainkit.kill(actor, no_restart=False)
        assert eventually(lambda: was_made_anew(actor), 30)
        assert trainkit.get(actor.add.remote(1)) == 6, "made by its constructor, with the same arguments"
        trainkit.kill(actor, no_restart=False)
        assert eventually(lambda: not succeeds(actor.context.remote), 30), "once was all it was allowed"

    def test_an_actor_that_is_not_to_be_made_anew_is_not(self) -> None:
        once, often = keeper(), keeper(max_restarts=-1)
        trainkit.get([once.get.remote(), often.get.remote()])
        trainkit.kill(once, no_restart=False)
        trainkit.kill(often)
        assert eventually(lambda: is_dead(once) and is_dead(often))

    @needs("restarts")
    def test_a_call_that_death_interrupted_is_made_again(self, tmp_path: Path) -> None:
        actor = trainkit.remote(Mortal).options(max_restarts=1, max_task_retries=1).remote()
        assert trainkit.get(actor.die_once.remote(tmp_path / "died"), timeout=60) > 0

    @needs("restarts")
    def test_a_call_that_death_interrupted_fails_without_retries(self, tmp_path: Path) -> None:
        actor = trainkit.remote(Mortal).options(max_restarts=1).remote(2)
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.die_once.remote(tmp_path / "died"), timeout=60)
        assert eventually(lambda: succeeds(actor.context.remote), 30)
        assert trainkit.get(actor.add.remote(1)) == 3
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.die.remote(), timeout=60)
        assert eventually(lambda: not succeeds(actor.context.remote), 30)

    # several calls at once

    def test_async_methods_and_plain_ones_of_one_actor(self) -> None:
        courier = trainkit.remote(Courier).remote()
        assert trainkit.get(courier.plain.remote()) == "plain"
        assert trainkit.get(courier.post.remote(7)) == 1
        assert trainkit.get(courier.post.remote(8)) == 2
        both = trainkit.get([courier.take.remote(), courier.take.remote()])
        assert sorted(both) == [7, 8]  # calls of async methods keep no order
        with pytest.raises(LookupError, match="nothing here"):
            trainkit.get(courier.fail.remote())
        trainkit.get(courier.say.remote())
        assert trainkit.get(courier.listen.remote()) == "heard"

    @needs("concurrent")
    def test_an_async_call_may_wait_for_another(self) -> None:
        courier = trainkit.remote(Courier).remote()
        waiting = [courier.listen.remote() for _ in range(20)]
        taken = courier.take.remote()
        trainkit.get([courier.say.remote(), courier.post.remote(3)])
        assert trainkit.get(waiting, timeout=60) == ["heard"] * 20
        assert trainkit.get(taken, timeout=60) == 3

    @needs("concurrent")
    def test_async_calls_overlap_only_as_far_as_allowed(self) -> None:
        courier = trainkit.remote(Courier).options(max_concurrency=1).remote()
        waiting, said = courier.listen.remote(), courier.say.remote()
        assert trainkit.wait([waiting, said], timeout=0.3)[0] == []
        trainkit.kill(courier)

    @needs("concurrent")
    def test_calls_run_in_as_many_threads_as_allowed(self) -> None:
        meeting = trainkit.remote(Meeting).options(max_concurrency=2, concurrency_groups={"io": 1}).remote()
        one, other = trainkit.get([meeting.meet.remote() for _ in range(2)], timeout=60)
        assert one != other

    @needs("concurrent")
    def test_a_group_of_methods_has_threads_of_its_own(self) -> None:
        meeting = trainkit.remote(Meeting).options(concurrency_groups={"io": 1}).remote()
        waiting = meeting.listen.remote()
        assert trainkit.get(meeting.say.remote(), timeout=60) == "said"
        assert trainkit.get(waiting, timeout=60)

    @needs("concurrent")
    def test_a_call_may_be_put_in_a_group(self) -> None:
        plain = trainkit.remote(Plain).options(concurrency_groups={"io": 1}).remote()
        waiting = plain.listen.remote()
        trainkit.get(plain.say.options(concurrency_group="io").remote(), timeout=60)
        assert trainkit.get(waiting, timeout=60)

    @needs("concurrent")
    @pytest.mark.parametrize("blocked", ["io", "_default"])
    def test_a_group_of_async_methods_has_a_loop_of_its_own(self, blocked: str, tmp_path: Path) -> None:
        started, go = tmp_path / "started", tmp_path / "go"
        actor = trainkit.remote(Talker).options(concurrency_groups={"io": 2, "compute": 1}).remote()
        block = actor.block if blocked == "io" else actor.block_plainly
        waiting = block.remote(started, go)
        await_file(started)
        others = [actor.compute, actor.plain if blocked == "io" else actor.listen]
        assert len(set(trainkit.get([other.remote() for other in others], timeout=60))) == 2
        go.touch()
        assert trainkit.get(waiting, timeout=60) == "waited"
        assert len({trainkit.get(actor.listen.remote()) for _ in range(2)}) == 1

    @needs("concurrent", "unharmed")
    def test_an_actor_goes_on_whose_tasks_were_all_cancelled(self) -> None:
        actor = trainkit.remote(Talker).options(concurrency_groups={"io": 1, "compute": 1}).remote()
        for _ in range(2):
            assert trainkit.get(actor.cancel_all.remote(), timeout=60) >= 0
            trainkit.get([actor.plain.remote(), actor.compute.remote()], timeout=60)

    @needs("concurrent")
    def test_an_async_method_may_end_its_actor(self) -> None:
        actor = trainkit.remote(Talker).options(concurrency_groups={"io": 1, "compute": 1}).remote()
        with pytest.raises(ActorDiedError):
            trainkit.get(actor.leave.remote(), timeout=60)

    @needs("restarts")
    def test_an_actor_is_made_anew_whatever_its_exit_code(self, tmp_path: Path) -> None:
        actor = trainkit.remote(Mortal).options(max_restarts=1, max_task_retries=1).remote()
        assert trainkit.get(actor.exit_once.remote(tmp_path / "exited"), timeout=60) > 0

    @needs("restarts")
    def test_one_that_nobody_has_is_not_made_anew(self) -> None:
        actor = keeper(max_restarts=-1, name="unwanted")
        trainkit.get(actor.get.remote())
        del actor
        assert eventually(lambda: not is_known("unwanted"), 30)

    def test_methods_in_groups_are_called_as_others(self) -> None:
        meeting = trainkit.remote(Meeting).options(concurrency_groups={"io": 2}).remote()
        assert trainkit.get(meeting.say.remote()) == "said"
        assert trainkit.get(meeting.listen.remote())

    def test_a_group_that_is_not_declared_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="io"):
            trainkit.remote(Meeting).remote()

    # an actor that is made on its event loop

    @needs("near")
    def test_an_async_init_has_ended_before_the_first_call(self, tmp_path: Path) -> None:
        (tmp_path / "go").touch()
        actor = trainkit.remote(Begun).remote(tmp_path / "go")
        assert trainkit.get(actor.has_begun.remote(), timeout=60) == "yes"
        grouped = trainkit.remote(Begun).options(concurrency_groups={"io": 1}).remote(tmp_path / "go")
        assert trainkit.get(grouped.has_begun.remote(), timeout=60) == "yes"
        failing = trainkit.remote(Begun).remote()
        for _ in range(2):
            with pytest.raises(LookupError, match="nothing to wait for"):
                trainkit.get(failing.has_begun.remote(), timeout=60)

    @needs("near", "concurrent")
    def test_calls_wait_for_an_async_init(self, tmp_path: Path) -> None:
        for options in ({}, {"concurrency_groups": {"io": 1}}):
            go = tmp_path / str(len(options))
            actor = trainkit.remote(Begun).options(**options).remote(go)
            ref = actor.has_begun.remote()
            assert trainkit.wait([ref], timeout=0.2) == ([], [ref])
            go.touch()
            assert trainkit.get(ref, timeout=60) == "yes"

    @needs("unharmed", "background")
    @pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
    def test_a_method_is_told_that_it_was_cancelled(self, options: dict[str, Any], tmp_path: Path) -> None:
        actor = trainkit.remote(Patient).options(**options).remote()
        ref = actor.run.remote(tmp_path / "started")
        await_file(tmp_path / "started")
        trainkit.cancel(ref)
        assert trainkit.get(ref, timeout=60) == "ended early"
        assert trainkit.get(actor.is_canceled.remote()) is False
        with pytest.raises(ConfigError, match="only inside a task"):
            trainkit.get_runtime_context().is_canceled()
