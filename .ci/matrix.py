"""Try the wheel in empty environments: `python .ci/matrix.py [--oldest | --newest] [extra ...]`.

For each extra, an environment of its own gets the wheel with that extra, and nothing else; a program then
uses what the extra brings. Prints a line each, and ends with the number of those that failed.

With `--newest`, one environment gets all extras that tests need, without the pins of constraints.txt, as a
fresh install of today has them. The tests of the tiers `unit` and `model` (of all folders, or of those that
are named in place of extras) and the README's programs are run in it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUNE = """
from trainkit import tune
def trainable(config):
    tune.report({"loss": config["x"] ** 2})
searcher = {searcher}
results = tune.Tuner(
    trainable,
    param_space={{"x": tune.uniform(-1, 1)}},
    tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=4, search_alg=searcher),
    run_config=tune.RunConfig(storage_path="{folder}", verbose=0),
).fit()
assert len(results) == 4 and not results.errors, results
"""
TORCH = """
import torch
from torch import nn
from trainkit.train import TorchTrainer, TrainingOperator
class Operator(TrainingOperator):
    def setup(self, config):
        model = nn.Linear(4, 1)
        data = torch.utils.data.TensorDataset(torch.rand(32, 4), torch.rand(32, 1))
        self.model, self.optimizer, self.criterion = self.register(
            models=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1), criterion=nn.MSELoss()
        )
        self.register_data(train_loader=torch.utils.data.DataLoader(data, 8))
if __name__ == "__main__":
    trainer = TorchTrainer(training_operator_cls=Operator, num_workers=2)
    assert trainer.train()["train_loss"] > 0
    trainer.shutdown()
"""
CALLS = """
import trainkit
trainkit.init({engine}num_cpus=2)
assert trainkit.get(trainkit.remote(lambda x: x + 1).remote(1)) == 2
trainkit.shutdown()
"""
SERVER = """
import os, subprocess, sys
command = [os.path.join(os.path.dirname(sys.executable), "trainkit"), "dashboard", "{folder}"]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
assert "127.0.0.1" in server.stdout.readline()
server.terminate()
server.wait(60)
"""
SEARCH = """
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from trainkit.sklearn import TuneGridSearchCV
search = TuneGridSearchCV(LogisticRegression(max_iter=500), {{"C": [0.1, 1.0]}}, cv=3)
search.fit(*load_iris(return_X_y=True))
assert search.best_score_ > 0.9
"""
SEARCHERS = {
    "ax": "AxSearch",
    "bayesopt": "BayesOptSearch",
    "hyperopt": "HyperOptSearch",
    "nevergrad": "NevergradSearch",
    "rustuna": "RustunaSearch",
    "skopt": "SkOptSearch",
    "smac": "SMACSearch",
}
PROGRAMS = {
    "": CALLS.format(engine=""),
    "ray": CALLS.format(engine='engine="ray", '),
    "train": TORCH,
    "lightning": TORCH + "import pytorch_lightning\n",
    "transformers": TORCH + "import transformers, accelerate\n",
    "tune": TUNE.replace("{searcher}", "tune.search.optuna.OptunaSearch()"),
    "sklearn": SEARCH,
    "demo": SEARCH + TORCH,
    "dashboard": SERVER,
    "optuna-dashboard": "import optuna_dashboard\n" + TUNE.replace("{searcher}", "None"),
    "hydra": (
        "from hydra.core.plugins import Plugins\nfrom hydra.plugins.sweeper import Sweeper\n"
        "assert 'TrainkitSweeper' in [each.__name__ for each in Plugins.instance().discover(Sweeper)]\n"
    ),
    "notebook": "from trainkit.dashboard.notebook import LiveChart\nimport anywidget, plotly\n",
    "storage": TUNE.replace("{searcher}", "None").replace("{folder}", "memory://experiments"),
    **{extra: TUNE.replace("{searcher}", f"tune.search.{name}()") for extra, name in SEARCHERS.items()},
}


def oldest(extra: str) -> list[str]:
    """Return the lowest version of each package that the package and an extra ask for, as pins."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"]]
    ahead = [extra] if extra else []
    while ahead:
        for each in extras[ahead.pop()]:
            own = re.fullmatch(r"trainkit-ml\[(.*)\]", each)
            ahead += own[1].split(",") if own else []
            asked += [] if own else [each]
    return [each.replace(">=", "==") for each in asked]


def tried(python: str, wheel: Path, extra: str, lowest: bool) -> str:
    """Return how the program of an extra ended in an environment of its own; "" means well."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = f"{folder}/bin/python"
        packages = [f"{wheel}[{extra}]" if extra else str(wheel), *(oldest(extra) if lowest else [])]
        # The first line of what a program says in the end is enough to know where to look.
        steps = (
            [own, "-m", "pip", "install", "--quiet", *packages],
            [own, "-m", "pip", "check"],
            [own, f"{folder}/program.py"],
        )
        program = PROGRAMS.get(extra, CALLS.format(engine=""))
        Path(folder, "program.py").write_text(
            program.replace("{folder}", folder).replace("{{", "{").replace("}}", "}")
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False, cwd=folder)
            if done.returncode:
                lines = (done.stderr or done.stdout).strip().splitlines()
                return lines[-1] if lines else f"ended with code {done.returncode}"
        listed = subprocess.run(
            [own, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
        ).stdout
        names = {re.split("[<>=]", each)[0].lower() for each in oldest(extra)}
        print("   ", *(line for line in listed.split() if line.split("==")[0].lower() in names))
        return ""


def tried_newest(python: str, wheel: Path, folders: list[str]) -> int:
    """Run the unit tests in `folders` and the README's programs with the newest versions.

    Returns:
        The exit code of pytest.
    """
    pinned = (ROOT / "constraints.txt").read_text().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = f"{folder}/bin/python"
        # torch keeps its pin: a newer one from the public index brings gigabytes of GPU libraries.
        torch = [line for line in pinned if line.startswith(("torch==", "torchvision=="))]
        subprocess.run([own, "-m", "pip", "install", "--quiet", f"{wheel}[dev]", *torch], check=True)
        subprocess.run([own, ROOT / ".ci" / "mend_torchvision.py"], check=True)
        installed = subprocess.run(
            [own, "-m", "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True
        ).stdout
        print("newer than the pins:", *sorted({*installed.split()} - {*pinned}), flush=True)
        tests = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=quick"]
        readme = "tests/test_docs.py::test_each_block_of_the_readme_runs_alone"
        ended = [
            subprocess.run([*tests, *more], cwd=ROOT).returncode
            for more in (["--tier", "unit,model", *folders], [readme])
        ]
        return max(ended)


def main() -> int:
    """Build the wheel and try it."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("extras", nargs="*", help="default: all that have a program")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the environments")
    parser.add_argument("--oldest", action="store_true", help="the lowest versions that are asked for")
    parser.add_argument("--newest", action="store_true", help="the newest versions, with the unit tests")
    given = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        if given.newest:
            return tried_newest(given.python, wheel, given.extras)
        for extra in given.extras or PROGRAMS:
            why = tried(given.python, wheel, "" if extra == "none" else extra, given.oldest)
            failed += bool(why)
            print(f"{extra or 'none':20}{why or 'works'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
