"""Failures: what is raised, what is tried again, and what is stopped."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from tests.runtime.ray.patterns import program


@program
def an_error_keeps_its_class(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def divide(left, right):
        return left / right

    try:
        ray.get(divide.remote(1, 0))
    except ZeroDivisionError as error:
        print(isinstance(error, ray.exceptions.RayTaskError))


@program
def an_error_reaches_who_depends_on_it(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def fail():
        raise ValueError("no value")

    @ray.remote(max_retries=0)
    def double(value):
        return 2 * value

    try:
        ray.get(double.remote(double.remote(fail.remote())))
    except ray.exceptions.RayTaskError as error:
        print("no value" in str(error))


@program
def a_failed_result_counts_as_done(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def fail():
        raise ValueError

    ready, rest = ray.wait([fail.remote()], timeout=60)
    print(len(ready), rest)


@program
def errors_that_are_tried_again(ray: Any) -> None:
    @ray.remote(max_retries=5, retry_exceptions=[ConnectionError])
    def flaky(folder):
        runs = len(list(Path(folder).iterdir()))
        Path(folder, str(runs)).touch()
        if runs < 2:
            raise ConnectionError("not yet")
        return runs

    with tempfile.TemporaryDirectory() as folder:
        print(ray.get(flaky.remote(folder)))


@program
def a_process_that_dies_is_tried_again(ray: Any) -> None:
    @ray.remote(max_retries=2)
    def crash_once(path):
        if not os.path.exists(path):
            Path(path).touch()
            os._exit(1)
        return "second time"

    with tempfile.TemporaryDirectory() as folder:
        print(ray.get(crash_once.remote(os.path.join(folder, "mark"))))


@program
def a_process_that_dies_for_good(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def crash():
        os._exit(1)

    try:
        ray.get(crash.remote())
    except ray.exceptions.WorkerCrashedError:
        print("the worker crashed")


@program
def a_task_that_is_cancelled(ray: Any) -> None:
    @ray.remote(max_retries=0)
    def sleep(path):
        import time

        Path(path).touch()
        for _ in range(6000):
            time.sleep(0.01)

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "mark")
        running = sleep.remote(path)
        while not os.path.exists(path):
            ray.wait([running], timeout=0.01)
        ray.cancel(running)
        try:
            ray.get(running)
        except ray.exceptions.TaskCancelledError:
            print("cancelled")


@program
def an_actor_that_is_made_anew(ray: Any) -> None:
    @ray.remote(max_restarts=1, max_task_retries=-1)
    class Crashing:
        def __init__(self, folder):
            self.folder = Path(folder)

        def work(self):
            lives = len(list(self.folder.iterdir()))
            (self.folder / str(lives)).touch()
            if lives == 0:
                os._exit(1)
            return lives

    with tempfile.TemporaryDirectory() as folder:
        print(ray.get(Crashing.remote(folder).work.remote()))


@program
def an_actor_that_ends_itself_in_order_is_made_anew(ray: Any) -> None:
    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Leaving:
        def __init__(self, folder):
            self.folder = Path(folder)

        def work(self):
            lives = len(list(self.folder.iterdir()))
            (self.folder / str(lives)).touch()
            if lives == 0:
                os._exit(0)
            return lives

    with tempfile.TemporaryDirectory() as folder:
        print(ray.get(Leaving.remote(folder).work.remote()))


@program
def an_actor_that_goes_on_from_its_file(ray: Any) -> None:
    @ray.remote(max_restarts=-1, max_task_retries=-1)
    class Saved:
        def __init__(self, path):
            self.path = Path(path)
            self.count = int(self.path.read_text()) if self.path.exists() else 0

        def add(self, crash=False):
            if crash and self.count == 3:
                self.count += 1
                self.path.write_text(str(self.count))
                os._exit(1)
            self.count += 1
            self.path.write_text(str(self.count))
            return self.count

    with tempfile.TemporaryDirectory() as folder:
        saved = Saved.remote(os.path.join(folder, "count"))
        first = [ray.get(saved.add.remote()) for _ in range(3)]
        print(first, ray.get(saved.add.remote(crash=True)))


@program
def a_supervisor_makes_a_new_worker(ray: Any) -> None:
    @ray.remote
    class Worker:
        def work(self, value):
            if value < 0:
                os._exit(1)
            return value + 1

    @ray.remote
    class Supervisor:
        def __init__(self):
            self.worker = Worker.remote()
            self.replaced = 0

        def work(self, value):
            try:
                return ray.get(self.worker.work.remote(value))
            except ray.exceptions.RayActorError:
                self.worker = Worker.remote()
                self.replaced += 1
                return None

        def count(self):
            return self.replaced

    supervisor = Supervisor.remote()
    print(
        ray.get([supervisor.work.remote(value) for value in (1, -1, 2)]), ray.get(supervisor.count.remote())
    )


@program
def a_constructor_that_fails(ray: Any) -> None:
    @ray.remote
    class Broken:
        def __init__(self):
            raise ValueError("no way to make it")

        def ping(self):
            return "pong"

    try:
        ray.get(Broken.remote().ping.remote())
    except ray.exceptions.RayActorError as error:
        print("no way to make it" in str(error))


@program
def a_killed_actor(ray: Any) -> None:
    @ray.remote
    class Idle:
        def ping(self):
            return "pong"

    idle = Idle.remote()
    print(ray.get(idle.ping.remote()))
    ray.kill(idle)
    try:
        ray.get(idle.ping.remote())
    except ray.exceptions.RayActorError:
        print("the actor is dead")


@program
def an_actor_that_leaves(ray: Any) -> None:
    @ray.remote
    class Leaving:
        def ping(self):
            return "pong"

        def leave(self):
            ray.actor.exit_actor()

    leaving = Leaving.remote()
    print(ray.get(leaving.ping.remote()))
    for call in (leaving.leave, leaving.ping):
        try:
            ray.get(call.remote())
        except ray.exceptions.RayActorError:
            print("it has left")


@program
def an_error_of_a_method_leaves_the_actor(ray: Any) -> None:
    @ray.remote
    class Careful:
        def __init__(self):
            self.calls = 0

        def take(self, value):
            self.calls += 1
            if value < 0:
                raise ValueError("below zero")
            return self.calls

    careful = Careful.remote()
    refs = [careful.take.remote(value) for value in (1, -1, 1)]
    print(ray.get(refs[0]))
    try:
        ray.get(refs[1])
    except ValueError:
        print("refused")
    print(ray.get(refs[2]))


@program
def the_last_handle_is_gone_and_its_results_stay(ray: Any) -> None:
    @ray.remote
    class Maker:
        def make(self):
            return [ray.put("made")]

    maker = Maker.remote()
    (ref,) = ray.get(maker.make.remote())
    print(ray.get(ref))


@program
def what_travels_by_functions_of_its_own(ray: Any) -> None:
    import threading

    class Guarded:
        def __init__(self, value):
            self.value = value
            self.lock = threading.Lock()

    @ray.remote
    def value_of(guarded):
        with guarded.lock:
            return guarded.value

    try:
        value_of.remote(Guarded(1))
    except TypeError:
        print("a lock can't travel")
    ray.util.register_serializer(Guarded, serializer=lambda it: it.value, deserializer=Guarded)
    print(ray.get(value_of.remote(Guarded(2))))
    ray.util.deregister_serializer(Guarded)
