"""A real Tuner in another process, steered by the command line and the client, and killed meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trainkit
from tests.conftest import eventually
from trainkit.cli.main import main
from trainkit.client import Experiment
from trainkit.errors import TuneError
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import LogReader

pytestmark = pytest.mark.external

SCRIPT = """
import sys, time
from pathlib import Path
import trainkit
from trainkit import tune

class Counts(tune.Trainable):
    def setup(self, config):
        self.n, self.go_on = 0, Path(config["root"], "go on")
    def step(self):
        time.sleep(0.02)
        self.n += 1
        return {"n": self.n, "done": self.go_on.exists() and self.n >= 5}
    def save_checkpoint(self, folder):
        Path(folder, "n").write_text(str(self.n))
    def load_checkpoint(self, folder):
        self.n = int(Path(folder, "n").read_text())

if __name__ == "__main__":
    trainkit.init(num_cpus=2)
    if sys.argv[2] == "new":
        run = tune.RunConfig(storage_path=sys.argv[1], name="e", verbose=0)
        tuner = tune.Tuner(Counts, run_config=run,
            param_space={"x": tune.uniform(0, 1), "root": sys.argv[1]},
            tune_config=tune.TuneConfig(num_samples=3, seed=1))
    else:
        tuner = tune.Tuner.restore(sys.argv[1] + "/e", Counts)
    grid = tuner.fit()
    print([(str(result.status), result.metrics["n"] >= 5) for result in grid])
"""


class Driver:
    """The program that runs the experiment, begun anew after each kill."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "e"
        (root / "driver.py").write_text(SCRIPT)
        self.process: subprocess.Popen[str] | None = None

    def start(self, how: str = "new") -> None:
        self.process = subprocess.Popen(
            [sys.executable, self.root / "driver.py", self.root, how],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(trainkit.__file__).parents[1])},
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def finish(self) -> str:
        (self.root / "go on").touch()
        assert self.process is not None
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, err
        return out

    def trials(self) -> list[Trial]:
        if not (self.folder / "experiment.sqlite").exists():
            return []
        with LogReader(self.folder) as reader:
            return reader.trials()

    def reports(self, index: int) -> int:
        found = self.trials()
        return found[index].iteration if len(found) > index else 0


@pytest.fixture
def driver(tmp_path):
    made = Driver(tmp_path)
    yield made
    made.kill()


def test_a_trial_and_then_all_are_paused_and_go_on_over_a_kill(driver, capsys):
    driver.start()
    assert eventually(lambda: driver.reports(0) and driver.reports(1))
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
    with pytest.raises(TuneError, match="nobody runs"):
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
    assert main(["resume", folder]) == 0
    assert capsys.readouterr().out == "the experiment goes on\n"
    assert eventually(lambda: driver.reports(2) > before[2])
    assert driver.reports(0) == before[0], "it was paused by itself"
    assert asked.status()["held"] == [driver.trials()[0].trial_id]
    assert main(["first", folder, "0"]) == 0
    asked.resume(driver.trials()[0].trial_id)
    assert driver.finish() == f"{[('TERMINATED', True)] * 3}\n"
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


def test_a_command_during_kills_is_in_the_history_once_or_was_answered_by_an_error(driver):
    driver.start()
    assert eventually(lambda: driver.reports(0) and driver.reports(1))
    told: list[tuple[str, int]] = []
    failed = 0

    def steer(number: int) -> None:
        nonlocal failed
        asked = Experiment(driver.folder, by=f"asker {number}", timeout_s=20)
        for _ in range(12):
            for verb in (asked.pause, asked.resume):
                try:
                    answer = verb()
                    told.append((answer.id, answer.seq))
                except TuneError as error:
                    failed += 1
                    if "nobody runs" in str(error):
                        time.sleep(0.1)

    with ThreadPoolExecutor(3) as executor:
        running = [executor.submit(steer, number) for number in range(3)]
        for _ in range(3):
            time.sleep(1.5)
            assert driver.process is not None
            driver.process.send_signal(signal.SIGKILL)
            driver.process.communicate()
            driver.start("restore")
        for each in running:
            each.result()
    history = Experiment(driver.folder).commands()
    assert len({each.id for each in history}) == len(history), "none twice"
    assert set(told) <= {(each.id, each.seq) for each in history if each.done}
    assert told
    with contextlib.suppress(TuneError):  # nobody may have it paused
        assert eventually(lambda: Experiment(driver.folder).overview().owner is not None)
        Experiment(driver.folder).resume()
    assert driver.finish() == f"{[('TERMINATED', True)] * 3}\n"
    assert not list((driver.folder / "commands").iterdir())


def test_further_configurations_and_samples_are_made_over_a_kill(driver, capsys):
    driver.start()
    assert eventually(lambda: driver.reports(0) and driver.reports(1))
    folder, root = str(driver.folder), json.dumps(str(driver.root))
    assert main(["set", folder, "--max-concurrent-trials", "2", "--num-samples", "4"]) == 0
    assert main(["add", folder, "x=0.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["arguments"] == {"config": {"x": 0.5}}
    assert main(["add", folder, "x=2.5"]) == 1
    assert "outside" in capsys.readouterr().err
    assert main(["add", folder, "x"]) == 1
    assert "give NAME=VALUE" in capsys.readouterr().err
    assert main(["add", folder, '{"x": 0.75}']) == 0
    assert main(["set", folder, "--num-samples", "1"]) == 1
    assert "were suggested already" in capsys.readouterr().err
    driver.kill()
    driver.start("restore")
    assert driver.finish() == f"{[('TERMINATED', True)] * 4}\n"
    assert [trial.config["x"] for trial in driver.trials()][2:] == [0.5, 0.75]
    assert [each.verb for each in Experiment(folder).commands() if each.done] == ["set", "add", "add"]
    assert Experiment(folder).status()["total"] == 4
    assert json.dumps(driver.trials()[2].config["root"]) == root
