"""The engine suites on the engines that need nothing but this package."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.suites.engine import EngineSuite
from tests.suites.engine_actors import ActorSuite
from tests.suites.engine_arguments import ArgumentSuite
from tests.suites.engine_calls import CallSuite
from tests.suites.engine_placement import PlacementSuite
from tests.suites.engine_retries import RetrySuite
from tests.suites.engine_state import StateSuite
from tests.suites.parts import BUILT_IN, Keeper, nested_surroundings, surroundings

SUITES = {
    "": EngineSuite,
    "Actors": ActorSuite,
    "Arguments": ArgumentSuite,
    "Calls": CallSuite,
    "Placement": PlacementSuite,
    "Retries": RetrySuite,
    "State": StateSuite,
}
for engine in BUILT_IN:
    for what, suite in SUITES.items():
        name = f"Test{engine.title()}{what}"
        globals()[name] = type(name, (suite,), {"engine": engine, "__module__": __name__})
        if engine == "local" and what:
            pytest.mark.process(globals()[name])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"engine": "local", "local_mode": True}, "local_mode=True needs engine='inline'"),
        ({"address": "auto", "engine": "inline"}, "needs engine='ray'"),
        ({"num_cpus": -1}, "negative"),
        ({"num_gpus": 0.5}, "whole GPUs"),
        ({"resources": {"cpu": 1}}, "given twice"),
        ({"object_store_memory": -1}, "object_store_memory must be .* not -1"),
        ({"object_store_memory": 1000}, "must be at least 1048576 bytes"),
        ({"object_store_memory": 10**400}, "less than 2"),
        ({"object_store_memory": "1e9"}, "object_store_memory must be .* not '1e9'"),
        ({"_system_config": "x"}, "_system_config must be a dictionary, not 'x'"),
        ({"engine": "ray", "_system_config": [1]}, "_system_config must be a dictionary, not \\[1\\]"),
        ({"preload": "torch"}, "list of module names"),
        ({"namespace": 123}, "namespace must be .* not 123"),
        ({"resources": ["a"]}, "amounts by name"),
        ({"preload": ["no_such_module"]}, "module 'no_such_module' is not on"),
        ({"runtime_env": {"conda": "base"}}, "conda"),
    ],
)
def test_wrong_arguments_of_init_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(trainkit.errors.ConfigError, match=text):
        trainkit.init(**arguments)
    assert not trainkit.is_initialized()


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_settings_of_rays_own_processes_are_told_to_have_no_effect(
    engine: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"object_spilling_config": "{}", "max_io_workers": 4}
    with trainkit.init(engine=engine, num_cpus=1, _system_config=settings):
        (record,) = caplog.records
    told = record.getMessage()
    assert f"no effect on the {engine} engine: object_spilling_config, max_io_workers are" in told
    assert told.endswith("Use init(object_spilling_directory='...') for object_spilling_config")


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_session_may_have_thousands_of_resources(engine: str) -> None:
    trainkit.init(engine=engine, num_cpus=1, resources={f"seat {number}": 1 for number in range(10_000)})
    try:
        assert trainkit.cluster_resources()["seat 9999"] == 1
        assert (
            trainkit.get(trainkit.remote(resources={"seat 5000": 1})(surroundings).remote("NONE"))[0] is None
        )
    finally:
        trainkit.shutdown()


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_what_a_session_gives_to_all_its_workers(engine: str, tmp_path: Path) -> None:
    folder = str(tmp_path.resolve())
    inner_folder = tmp_path.resolve() / "inner"
    inner_folder.mkdir()
    environment = {"env_vars": {"SUITE_A": "1"}, "working_dir": folder}
    trainkit.init(engine=engine, num_cpus=2, namespace="mine", runtime_env=environment)
    try:
        task = trainkit.remote(surroundings)
        assert trainkit.get(task.remote("SUITE_A")) == ("1", folder)
        assert trainkit.get(task.options(env={"SUITE_A": "2"}).remote("SUITE_A")) == ("2", folder)
        inner = {"env_vars": {"SUITE_A": "2"}, "working_dir": str(inner_folder)}
        nested = trainkit.remote(nested_surroundings)
        assert trainkit.get(nested.remote("SUITE_A")) == ("1", folder)
        assert trainkit.get(nested.options(runtime_env=inner).remote("SUITE_A")) == ("2", str(inner_folder))
        actor = trainkit.remote(Keeper).options(name="here").remote("found")
        assert trainkit.get(trainkit.get_actor("here", "mine").get.remote()) == "found"
        assert trainkit.get(actor.context.remote())["namespace"] == "mine"
    finally:
        trainkit.shutdown()


@pytest.mark.parametrize("engine", ["local", "inline"])
def test_arguments_without_a_meaning_are_told_once(
    engine: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainkit.runtime.session._told", set())
    given = {"dashboard_port": 8265, "_temp_dir": "/nowhere", "enable_resource_isolation": False}
    trainkit.shutdown()
    for _ in range(2):
        with trainkit.init(num_cpus=1, engine=engine, include_dashboard=True, **given):
            pass
    told = [record.message for record in caplog.records if "has no effect" in record.message]
    assert told == [
        "init(include_dashboard, dashboard_port, _temp_dir) has no effect on the "
        f"{engine} engine, only on Ray's. For a dashboard run `trainkit dashboard`"
    ]


def test_the_level_of_the_log_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("trainkit")
    monkeypatch.setattr(log, "level", log.level)
    trainkit.shutdown()
    for given, level in (("error", logging.ERROR), (logging.INFO, logging.INFO)):
        with trainkit.init(engine="inline", logging_level=given):
            assert log.level == level
    with trainkit.init(engine="inline", logging_level="error", configure_logging=False):
        assert log.level == logging.INFO
    with pytest.raises(trainkit.errors.ConfigError, match=r"logging_level must be .*warning.* not 'bogus'"):
        trainkit.init(engine="inline", logging_level="bogus")
