"""Former paths and names of Ray's, which `trainkit/plugins/compat` serves; `public_names.txt` lists them."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from tests.conftest import run_python
from trainkit import tune
from trainkit.plugins.compat import finder

ROOT = Path(__file__).parents[3]

# What a served module can do


def test_all_names_are_imported_by_a_star() -> None:
    names: dict[str, object] = {}
    exec("from trainkit.util import *", names)
    assert names["placement_group"] is trainkit.placement_group
    assert {"ActorPool", "queue", "state", "scheduling_strategies"} <= names.keys()
    exec("from trainkit.cloudpickle import *; from trainkit.tune.sample import *", names)
    assert "dumps" in names
    assert names["uniform"] is tune.uniform


def test_pickles_that_name_an_old_path_are_read() -> None:
    assert pickle.loads(b"ctrainkit.tune.sample\nuniform\n.") is tune.uniform


def test_a_value_is_of_its_own_module_and_a_module_of_its_own_name() -> None:
    from trainkit.tune.suggest import optuna

    assert optuna.__name__ == "trainkit.tune.suggest.optuna"
    assert inspect.getmodule(optuna.OptunaSearch).__name__.startswith("trainkit.tune.search.optuna")
    assert "trainkit.tune.search" in str(optuna.__doc__)
    assert importlib.reload(optuna).OptunaSearch is tune.search.OptunaSearch


def test_a_module_and_a_function_of_one_name() -> None:
    from trainkit.util.placement_group import PlacementGroup

    assert trainkit.util.placement_group is trainkit.placement_group
    assert PlacementGroup.__module__.startswith("trainkit.runtime.")


def test_a_wrong_name_is_told_the_right_one() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Stoper'\. Did you mean 'Stopper'\?"):
        tune.stopper.Stoper  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tune.stopper.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="Nothing"):
        from trainkit.tune.suggest import Nothing  # noqa: F401
    with pytest.raises(ImportError, match=r"Did you mean 'choice'\?"):
        from trainkit.tune import choise  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'trainkit\.utill'"):
        importlib.import_module("trainkit.utill")


PROGRAMS = {
    "threads import old paths at the same time": """
import importlib, threading, trainkit
from concurrent.futures import ThreadPoolExecutor
paths = ["trainkit.util.queue", "trainkit.util", "trainkit.util.placement_group", "trainkit.tune.sample",
         "trainkit.tune.suggest.optuna", "trainkit.air.session", "trainkit.exceptions"] * 4
start = threading.Barrier(len(paths))
def load(path):
    start.wait()
    return dir(importlib.import_module(path))
with ThreadPoolExecutor(len(paths)) as pool:
    assert all(pool.map(load, paths))
import trainkit.util
assert trainkit.util.placement_group is trainkit.placement_group
""",
    "modules are there without an import of each": """
import trainkit, sys
assert "asyncio" not in sys.modules
trainkit.util.queue.Queue, trainkit.util.state.list_actors, trainkit.exceptions.RayError
trainkit.util.scheduling_strategies.PlacementGroupSchedulingStrategy, trainkit.actor.exit_actor
trainkit.tune.stopper.Stopper, trainkit.tune.registry.register_trainable
""",
    "workers know old paths": """
import trainkit
@trainkit.remote
def look():
    from trainkit.util.queue import Empty
    from trainkit.tune.sample import uniform
    return Empty, uniform
trainkit.init(num_cpus=1)
empty, uniform = trainkit.get(look.remote())
from trainkit import tune
assert uniform is tune.uniform
""",
}


@pytest.mark.external
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_use_old_paths(program: str) -> None:
    run_python("-c", PROGRAMS[program])


STUBS = sorted(
    path.relative_to(ROOT).with_suffix("")
    for path in (ROOT / "trainkit").rglob("*.pyi")
    if not path.with_suffix(".py").exists()
)


@pytest.mark.parametrize(
    "stub",
    # Transformers takes ten seconds to import.
    [pytest.param(stub, marks=pytest.mark.external if "huggingface" in stub.parts else ()) for stub in STUBS],
    ids=str,
)
def test_type_checkers_see_what_is_served(stub: Path) -> None:
    module = importlib.import_module(".".join(stub.parts).removesuffix(".__init__"))
    text = (ROOT / f"{stub}.pyi").read_text()
    for home in re.findall(r"^from (\S+) import \*", text, re.M):
        given = dict[str, object]()
        exec(f"from {home} import *", given)
        starred = [name for name in given if name in dir(module)]
        assert starred and all(getattr(module, name) is given[name] for name in starred)
    for home, there, name in re.findall(r"^from (\S+) import (\w+) as (\w+)", text, re.M):
        served = getattr(module, name, None)
        said = getattr(__import__(home, fromlist=[there]), there)
        assert served is said or inspect.ismodule(said) or name.startswith("_")


# The table


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Let `trainkit.attic` be a package of two modules, to which a table adds old names."""
    attic = tmp_path / "attic"
    attic.mkdir()
    (attic / "__init__.py").write_text('"""A package of today."""\nkept = 1\n')
    (attic / "chest.py").write_text("lamp = 'lamp'\n_secret = 2\n")
    (attic / "shelf.py").write_text("loaded = True\n")
    lines = """
    attic attic.chest                     # the package was a module once
    attic:light attic.chest:lamp
    attic:candle - take the lamp
    cellar:key attic.chest:lamp
    cellar.barrel cellar.cask             # moved twice
    cellar.cask attic.chest
    cellar.box attic.shelf                # split
    cellar.box attic.chest
    """
    before = finder.table()
    monkeypatch.setattr(trainkit, "__path__", [*trainkit.__path__, str(tmp_path)])
    monkeypatch.setattr(finder, "table", lambda: before | finder.parsed(lines.splitlines()))
    yield
    for name in list(sys.modules):
        if name.startswith(("trainkit.attic", "trainkit.cellar")):
            del sys.modules[name]
    for name in ("attic", "cellar"):
        vars(trainkit).pop(name, None)


@pytest.mark.usefixtures("rows")
def test_a_module_of_today_has_the_names_of_a_former_one_besides_its_own() -> None:
    attic = importlib.import_module("trainkit.attic")
    assert attic.kept == 1
    assert attic.light == attic.lamp == "lamp"
    assert attic._secret == 2
    assert "trainkit.attic.shelf" not in sys.modules
    assert importlib.import_module("trainkit.attic.shelf").loaded
    with pytest.raises(AttributeError, match=r"trainkit\.attic\.candle is not here: take the lamp"):
        attic.candle  # noqa: B018
    assert {"kept", "lamp", "light", "chest"} <= set(dir(attic))
    assert inspect.getsource(attic).startswith('"""A package of today.')


@pytest.mark.usefixtures("rows")
def test_former_modules_were_moved_renamed_and_split() -> None:
    cellar = importlib.import_module("trainkit.cellar")
    assert cellar.key == cellar.barrel.lamp == "lamp"
    assert cellar.box.loaded
    assert cellar.box.lamp == "lamp"
    assert dir(cellar) == ["barrel", "box", "cask", "key"]
    assert dir(cellar.box) == ["lamp", "loaded"]
    with pytest.warns(RuntimeWarning, match="found in sys.modules"):
        assert runpy.run_module("trainkit.cellar.cask")["_secret"] == 2  # as `python -m` does


@pytest.mark.external
@pytest.mark.parametrize(
    "module",
    [
        *(
            "tune",
            "tune.schedulers",
            "tune.search",
            "tune.logger",
            "tune.trainable",
            "tune.trainable.trainable",
        ),
        *("tune.trainable.util", "tune.integration.pytorch_lightning", "tune.integration.xgboost"),
        *("tune.integration.lightgbm", "train", "train.torch", "train.lightning", "train.context", "air"),
    ],
)
def test_every_public_name_of_rays_is_here_or_says_what_to_use(module):
    there = importlib.import_module(f"ray.{module}")
    own = {name for name, value in vars(there).items() if getattr(value, "__module__", "") == there.__name__}
    theirs = {name for name in getattr(there, "__all__", own) if not name.startswith("_")}
    ours = importlib.import_module(f"trainkit.{module}")
    row = finder.table().get(f"trainkit.{module}", finder.Row())
    assert {name for name in theirs if not hasattr(ours, name)} <= row.gone.keys()
    for name in theirs & row.gone.keys():
        with pytest.raises(AttributeError, match=f"{name} is not here: "):
            getattr(ours, name)


@pytest.mark.parametrize(
    ("module", "instead"),
    [
        ("train.xgboost", r"xgboost\.train\(\) in a trial, with TuneReportCheckpointCallback"),
        ("train.lightgbm", r"lightgbm\.train\(\) in a trial, with TuneReportCheckpointCallback"),
        ("train.data_parallel_trainer", "TorchTrainer trains a function on several workers"),
        ("train.base_trainer", "TorchTrainer trains a function or an operator"),
        ("train.backend", r"TorchConfig\(backend="),
        ("tune.integration.ray_train", r"trainer\.fit\(\)\.metrics"),
        ("tune.trainable.function_trainable", r"extend tune\.Trainable"),
        ("util.iter", r"ActorPool of trainkit\.util"),
        ("util.sgd.data", r"train\(dataset=\)"),
        ("util.sgd.torch.resnet", r"torchvision\.models"),
        ("tune.logger.aim", r"extend tune\.LoggerCallback"),
        ("tune.web_server", r"trainkit\.client\.Experiment"),
    ],
)
def test_a_module_of_rays_that_is_not_here_says_what_to_take(module, instead):
    with pytest.raises(ImportError, match=rf"trainkit\.{module} is not here: .*{instead}"):
        importlib.import_module(f"trainkit.{module}")
