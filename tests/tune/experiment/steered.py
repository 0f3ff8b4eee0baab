"""A real Tuner in a process of its own, which tests steer from outside and kill."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

from tests.tune import programs
from trainkit.tune.core.trial import Trial
from trainkit.tune.results.overview import LogReader

SCRIPT = """
import sys, time
from pathlib import Path
import trainkit
from trainkit import tune

class Counts(tune.Trainable):
    def setup(self, config):
        self.n, self.go_on, self.hang = 0, Path(config["root"], "go on"), Path(config["root"], "hang")
    def step(self):
        if self.hang.exists():
            Path(self.hang.parent, f"hangs {self.trial_id}").touch()
            time.sleep(600)
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
            param_space={"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"]), "root": sys.argv[1]},
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
        self.process = programs.begin(self.root / "driver.py", self.root, how)

    @property
    def has_begun(self) -> bool:
        """True once the first two trials have reported.

        Raises:
            RuntimeError: the program has ended.
        """
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(self.process.communicate()[1])
        return bool(self.reports(0) and self.reports(1))

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def finish(self) -> list[tuple[str, bool]]:
        """Let the trials end; return of each its status, and whether it has come to its end by itself."""
        (self.root / "go on").touch()
        assert self.process is not None
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, err
        found: list[tuple[str, bool]] = ast.literal_eval(out)
        return found

    def trials(self) -> list[Trial]:
        if not (self.folder / "experiment.sqlite").exists():
            return []
        with LogReader(self.folder) as reader:
            return reader.trials()

    def reports(self, index: int) -> int:
        found = self.trials()
        return found[index].iteration if len(found) > index else 0
