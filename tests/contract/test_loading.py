"""Weight and public names of the package when it is imported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import run_python
from tests.contract import limits
from trainkit.lazy import IMPORT

ROOT = Path(__file__).parents[2]

WITHOUT_PLUGINS = """
import trainkit
from trainkit import tune

def objective(config):
    tune.report({"loss": config["x"]})

if __name__ == "__main__":
    trainkit.init(num_cpus=2)
    results = tune.Tuner(
        objective,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler="asha", search_alg="random"),
        run_config=tune.RunConfig(name="e", storage_path="."),
    ).fit()
    print(trainkit.__file__, results.get_best_result().config, tune.config.DEFAULT_LOGGERS)
"""


def printed(code: str) -> str:
    return run_python("-c", code, cwd=ROOT).stdout.strip()


def test_import_is_light() -> None:
    heavy = sorted(
        limits.HEAVY | {"numpy", "cloudpickle", "psutil", "greenlet", "asyncio", "multiprocessing"}
    )
    assert printed(f"import sys, trainkit; print(sorted(set({heavy}) & set(sys.modules)))") == "[]"


def test_tune_leaves_torch_alone() -> None:
    assert printed("import sys, trainkit.tune; print('torch' in sys.modules)") == "False"


def test_what_is_named_after_scikit_learn_loads_it_when_a_search_is_asked_for() -> None:
    loaded = "print('sklearn' in sys.modules)"
    assert printed(f"import sys, trainkit; trainkit.sklearn; {loaded}") == "False"
    assert printed(f"import sys, trainkit; trainkit.sklearn.TuneSearchCV; {loaded}") == "True"


def test_a_worker_loads_what_spreads_models_only_when_it_is_asked_for() -> None:
    """DTensors take half a second to import; one worker, and DDP, have no use for them."""
    loaded = "sorted({'torch.distributed.tensor', 'torch.distributed.checkpoint'} & set(sys.modules))"
    assert (
        printed(f"import sys, trainkit.train.worker, trainkit.train.strategies.ddp; print({loaded})") == "[]"
    )


def test_the_core_works_without_plugins(tmp_path: Path) -> None:
    def ignored(folder: str, names: list[str]) -> set[str]:
        is_plugins = Path(folder) == ROOT / "trainkit" / "plugins"
        return {name for name in names if name == "__pycache__" or (is_plugins and name != "__init__.py")}

    shutil.copytree(ROOT / "trainkit", tmp_path / "trainkit", ignore=ignored)
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_PLUGINS)
    done = run_python(program, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    path = tmp_path / "trainkit" / "__init__.py"
    assert done.stdout.splitlines()[-1] == f"{path} {{'x': 1}} ('json', 'csv')"
    assert len(list(tmp_path.glob("e/*/progress.csv"))) == 2


def test_the_collector_rests_while_a_name_is_loaded() -> None:
    watch = "gc.callbacks.append(lambda *given: found.append(given))"
    shown = "print(len([1 for phase, _ in found if phase == 'start']), gc.isenabled())"
    count, after = printed(
        f"import gc, trainkit.tune as tune; found = []; {watch}; tune.Tuner; {shown}"
    ).split()
    assert int(count) <= 2, "one may come at once when it is over"
    assert after == "True"


@pytest.mark.parametrize(
    "stub", sorted((ROOT / "trainkit").rglob("__init__.pyi")), ids=lambda stub: stub.parent.name
)
def test_no_module_stands_where_a_name_of_its_package_is_meant(stub: Path) -> None:
    """Python sets a module as an attribute of its package when it is imported, over what was there."""
    package = ".".join(stub.parent.relative_to(ROOT).parts)
    elsewhere = {name for home, name in IMPORT.findall(stub.read_text()) if home != package}
    assert not {name for name in elsewhere if (stub.parent / f"{name}.py").exists()}


@pytest.mark.parametrize("module", limits.PUBLIC)
def test_public_names(module: str) -> None:
    """A name enters or leaves the public surface by a change of this test, never by accident."""
    names = printed(f"import {module} as m; [getattr(m, name) for name in m.__all__]; print(*m.__all__)")
    assert set(names.split()) == limits.PUBLIC[module]
