"""A real Tuner in another process, steered by the command line and the client, and killed meanwhile."""

from __future__ import annotations

import ast
import contextlib
import getpass
import json
import os
import re
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conftest import eventually
from tests.tune.experiment.steered import Driver
from trainkit.cli.main import main
from trainkit.client import Experiment
from trainkit.errors import TuneError
from trainkit.tune.results.overview import LogReader
from trainkit.tune.store.ownership import owner_of

pytestmark = pytest.mark.external


@pytest.fixture
def driver(tmp_path):
    made = Driver(tmp_path)
    yield made
    made.kill()


def test_a_trial_and_then_all_are_paused_and_go_on_over_a_kill(driver, capsys):
    driver.start()
    assert eventually(lambda: driver.has_begun)
    folder = str(driver.folder)
    assert main(["pause", folder, "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["verb"], answer["done"]) == ("pause", True)
    assert eventually(lambda: driver.trials()[0].status == "PAUSED")
    assert eventually(lambda: driver.reports(2)), "the third has its place"
    asked = Experiment(folder, by="ann")
    assert asked.pause().by == "ann"
    assert eventually(lambda: [trial.status for trial in driver.trials()] == ["PAUSED"] * 3)
    with pytest.raises(TuneError, match="pause was refused: the experiment was paused already by ann"):
        asked.pause()
    driver.kill()
    with pytest.raises(TuneError, match="no process runs"):
        asked.resume()
    driver.start("restore")
    assert eventually(lambda: asked.overview().owner is not None)
    before = [trial.iteration for trial in driver.trials()]
    time.sleep(1.0)
    assert [trial.iteration for trial in driver.trials()] == before, "it is paused still"
    assert asked.status()["paused_by"] == "ann"
    assert main(["why", folder]) == 0
    told = capsys.readouterr().out
    assert f"runs in process {asked.overview().owner}, paused by ann" in told
    assert "command: pause by ann: nothing starts until" in told
    assert re.search(rf"command: pause {driver.trials()[0].name} by .+: ", told), told
    assert main(["resume", folder]) == 0
    assert capsys.readouterr().out == "the experiment resumes\n"
    assert eventually(lambda: driver.reports(2) > before[2])
    assert driver.reports(0) == before[0], "it was paused by itself"
    assert asked.status()["held"] == [driver.trials()[0].trial_id]
    assert main(["first", folder, "0"]) == 0
    asked.resume(driver.trials()[0].trial_id)
    assert driver.finish() == [("TERMINATED", True)] * 3
    assert [each.verb for each in asked.commands()] == [
        "pause",
        "pause",
        "pause",
        "resume",
        "prioritise",
        "resume",
    ]
    with LogReader(driver.folder) as reader:
        iterations = [len(reader.history(trial.trial_id)) for trial in reader.trials()]
        assert iterations == [reader.trials()[place].iteration for place in range(3)], "no report is missing"


def test_one_trial_and_then_all_are_stopped_from_another_shell(driver, capsys):  # rows 1.32 and 2.11
    driver.start()
    assert eventually(lambda: driver.has_begun)
    folder, process = driver.folder, driver.process
    assert owner_of(folder) == process.pid
    assert main(["show", str(folder)]) == 0
    assert f"{folder}: runs in process {process.pid}" in capsys.readouterr().out
    assert main(["stop", str(folder), "none"]) == 1
    assert "no trial has an id" in capsys.readouterr().err
    assert main(["stop", str(folder), "1"]) == 0
    by = f"{getpass.getuser()}@{socket.gethostname()} (pid {os.getpid()})"
    assert f"_00001 is TERMINATED: stopped by {by}" in capsys.readouterr().out
    with LogReader(folder) as reader:
        told = [each for each in reader.events(driver.trials()[1].trial_id) if each.kind == "command"]
    stops = [(each.verb, each.by, each.seq) for each in Experiment(folder).commands()]
    assert stops == [("stop", by, told[0].seq)]
    before = driver.reports(0)
    assert eventually(lambda: driver.reports(2) and driver.reports(0) > before), "the others go on"
    assert main(["stop", str(folder)]) == 0, "as by Ctrl-C"
    assert " ended: stopped by" in capsys.readouterr().out
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert [status for status, _ in ast.literal_eval(out)] == ["PENDING", "TERMINATED", "PENDING"]
    assert "Tuner.restore" in err
    assert owner_of(folder) is None
    assert main(["stop", str(folder)]) == 1
    assert "no process runs" in capsys.readouterr().err


def test_a_command_during_kills_is_in_the_history_once_or_was_answered_by_an_error(driver):
    driver.start()
    assert eventually(lambda: driver.has_begun)
    told: list[tuple[str, int]] = []
    over = threading.Event()

    def steer(number: int) -> None:
        asked = Experiment(driver.folder, by=f"asker {number}", timeout_s=20)
        while not over.is_set():
            for verb in (asked.pause, asked.resume):
                try:
                    answer = verb()
                    told.append((answer.id, answer.seq))
                except TuneError as error:
                    if "no process runs" in str(error):
                        time.sleep(0.1)

    with ThreadPoolExecutor(3) as executor:
        running = [executor.submit(steer, number) for number in range(3)]
        try:
            for _ in range(3):
                answered = len(told)
                assert eventually(lambda least=answered + 5: len(told) > least)
                assert driver.process is not None
                driver.process.send_signal(signal.SIGKILL)
                driver.process.communicate()
                driver.start("restore")
        finally:
            over.set()
        for each in running:
            each.result()
    history = Experiment(driver.folder).commands()
    assert len({each.id for each in history}) == len(history), "none twice"
    assert set(told) <= {(each.id, each.seq) for each in history if each.done}
    with contextlib.suppress(TuneError):  # nobody may have it paused
        assert eventually(lambda: Experiment(driver.folder).overview().owner is not None)
        Experiment(driver.folder).resume()
    assert driver.finish() == [("TERMINATED", True)] * 3
    assert not list((driver.folder / "commands").iterdir())


def test_further_configurations_and_samples_are_made_over_a_kill(driver, capsys):
    driver.start()
    assert eventually(lambda: driver.has_begun)
    folder, root = str(driver.folder), json.dumps(str(driver.root))
    assert main(["set", folder, "--max-concurrent-trials", "2", "--num-samples", "4"]) == 0
    assert main(["add", folder, "x=0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["arguments"] == {"config": {"x": 0.5}}
    assert main(["add", folder, "x=2.5"]) == 1
    assert "x=2.5 is not in uniform" in capsys.readouterr().err
    assert main(["add", folder, "x"]) == 1
    assert "must have the form NAME=VALUE" in capsys.readouterr().err
    assert main(["add", folder, '{"x": 0.75}']) == 0
    assert main(["set", folder, "--num-samples", "1"]) == 1
    assert "are already suggested" in capsys.readouterr().err
    driver.kill()
    driver.start("restore")
    assert driver.finish() == [("TERMINATED", True)] * 4
    assert [trial.config["x"] for trial in driver.trials()][2:] == [0.5, 0.75]
    assert [each.verb for each in Experiment(folder).commands() if each.done] == ["set", "add", "add"]
    assert Experiment(folder).status()["total"] == 4
    assert json.dumps(driver.trials()[2].config["root"]) == root
