"""Ray's TuneClient and TuneServer over a running experiment."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.tune.experiment.test_steered_from_outside import Driver
from trainkit.client import Experiment
from trainkit.errors import ConfigError, DashboardError, TuneError
from trainkit.tune.web_server import TuneClient, TuneServer

pytestmark = pytest.mark.external


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.kill()


@contextlib.contextmanager
def served(root: Path) -> Iterator[TuneServer]:
    server = TuneServer(root, port=0)
    try:
        yield server
    finally:
        server.shutdown()
    assert not server.is_alive()


def test_a_script_of_rays_steers_a_running_experiment(driver: Driver) -> None:
    driver.start()
    assert eventually(lambda: bool(driver.reports(0) and driver.reports(1)))
    with served(driver.root) as server:
        client = TuneClient(server.address)
        assert (client.server_address, client.server_port) == (
            "127.0.0.1",
            server._dashboard.server_address[1],
        )
        trials = client.get_all_trials()["trials"]
        assert [trial["id"] for trial in trials] == [trial.trial_id for trial in driver.trials()]
        first = trials[0]
        assert (first["trainable_name"], first["status"]) == ("Counts", "RUNNING")
        assert first["config"] == driver.trials()[0].config
        assert first["result"]["n"] >= 1
        one = client.get_trial(first["id"])["trial"]
        assert one["config"] == first["config"] and one["result"]["n"] >= first["result"]["n"]

        added: dict[str, Any] = {"run": "Counts", "config": {"x": 0.5}}
        assert client.add_trial("e", added) == {
            "trials": [
                {
                    "id": None,
                    "trainable_name": "Counts",
                    "config": {"x": 0.5},
                    "status": "PENDING",
                    "result": None,
                }
            ]
        }
        (stopped,) = client.stop_trial(first["id"])["trials"]
        assert stopped["id"] == first["id"]
        assert eventually(lambda: client.get_trial(first["id"])["trial"]["status"] == "TERMINATED")
        assert eventually(lambda: bool(driver.reports(2)))
        assert client.get_all_trials(timeout=30)["trials"][2]["config"]["x"] == 0.5

        with pytest.raises(TuneError, match="has ended already"):
            client.stop_trial(first["id"])
        with pytest.raises(TuneError, match="refused it"):
            client.get_trial("../e")
        with pytest.raises(TuneError, match="a configuration gives x=7, outside"):
            client.add_trial("e", {"config": {"x": 7}})
        with pytest.raises(ConfigError, match="has stop: a trial that is added runs 'Counts'"):
            client.add_trial("e", {**added, "stop": {"n": 3}})
        with pytest.raises(ConfigError, match="has run='Other'"):
            client.add_trial("e", {**added, "run": "Other"})
        with pytest.raises(ConfigError, match="cannot be written as JSON"):
            client.add_trial("e", {"config": {"x": object()}})

        assert len(client.stop_experiment()["trials"]) == 3
        driver.finish()
        with pytest.raises(TuneError, match="nobody runs"):
            client.stop_experiment()
    commands = Experiment(driver.folder).commands()
    assert [each.verb for each in commands if each.done] == ["add", "stop", "stop"]


def test_a_client_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks a host, a port or a token"):
        TuneClient("localhost", 4321)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DashboardError, match="cannot be used"):
            TuneServer(tmp_path, port)
    with pytest.raises(TuneError, match="no server answers at localhost:"):
        TuneClient("localhost", port, token="x")
    with served(tmp_path) as server:
        port = server._dashboard.server_address[1]
        with pytest.raises(TuneError, match="refused it"):
            TuneClient("localhost", port, token="x")
        with pytest.raises(TuneError, match="not one experiment but none"):
            TuneClient(server.address)
        with pytest.raises(TuneError, match="refused it"):
            TuneClient(server.address, experiment="e")
