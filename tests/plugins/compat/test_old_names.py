"""Names where Ray's scripts look for them, and former paths: served by `trainkit/plugins/compat`."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainkit
from trainkit import tune
from trainkit.plugins.compat import finder

ROOT = Path(__file__).parents[3]

PLACES = {
    "trainkit": "ActorID JobID NodeID ObjectID PlacementGroupID TaskID WorkerID",
    "trainkit.actor": "ActorClass ActorHandle ActorProxy exit_actor",
    "trainkit.air": "Checkpoint CheckpointConfig FailureConfig Result RunConfig ScalingConfig",
    "trainkit.air.checkpoint": "Checkpoint",
    "trainkit.air.config": "CheckpointConfig FailureConfig RunConfig ScalingConfig",
    "trainkit.air.integrations.mlflow": "MLflowLoggerCallback setup_mlflow",
    "trainkit.air.integrations.wandb": "WandbLoggerCallback setup_wandb",
    "trainkit.air.result": "Result",
    "trainkit.air.session": "get_checkpoint report get_trial_id get_world_rank",
    "trainkit.cloudpickle": "dump dumps load loads CloudPickler register_pickle_by_value",
    "trainkit.runtime_context": "RuntimeContext get_runtime_context",
    "trainkit.runtime_env": "RuntimeEnv",
    "trainkit.train": "Checkpoint CheckpointConfig FailureConfig Result RunConfig ScalingConfig "
    "get_checkpoint get_context report",
    "trainkit.tune.callback": "Callback",
    "trainkit.tune.error": "TuneError",
    "trainkit.tune.execution.placement_groups": "PlacementGroupFactory",
    "trainkit.tune.experiment": "Experiment Trial",
    "trainkit.tune.experiment.experiment": "Experiment",
    "trainkit.tune.experiment.trial": "Trial",
    "trainkit.tune.logger": "CSVLoggerCallback JsonLoggerCallback LoggerCallback",
    "trainkit.tune.registry": "get_trainable_cls register_trainable",
    "trainkit.tune.result": "DEFAULT_METRIC TIME_TOTAL_S TRAINING_ITERATION",
    "trainkit.tune.result_grid": "ResultGrid",
    "trainkit.tune.sample": "Categorical Domain Float Integer choice sample_from uniform",
    "trainkit.tune.schedulers": "ASHAScheduler AsyncHyperBandScheduler FIFOScheduler TrialScheduler",
    "trainkit.tune.schedulers.hb_bohb": "HyperBandForBOHB",
    "trainkit.tune.schedulers.hyperband": "HyperBandScheduler",
    "trainkit.tune.schedulers.trial_scheduler": "FIFOScheduler TrialScheduler",
    "trainkit.tune.search.sample": "Categorical Domain Float Integer choice sample_from uniform",
    "trainkit.tune.search.variant_generator": "grid_search",
    "trainkit.tune.stopper": "Stopper",
    "trainkit.tune.suggest": "BasicVariantGenerator Searcher",
    "trainkit.tune.suggest.basic_variant": "BasicVariantGenerator",
    "trainkit.tune.suggest.variant_generator": "grid_search",
    "trainkit.tune.trainable": "Trainable with_parameters",
    "trainkit.tune.trial": "Trial",
    "trainkit.tune.tune_config": "TuneConfig",
    "trainkit.tune.tuner": "Tuner",
    "trainkit.tune.analysis.experiment_analysis": "ExperimentAnalysis",
    "trainkit.tune.context": "TuneContext get_context",
    "trainkit.tune.integration.mlflow": "MLflowLoggerCallback",
    "trainkit.tune.integration.wandb": "WandbLoggerCallback",
    "trainkit.tune.logger.csv": "CSVLoggerCallback",
    "trainkit.tune.logger.json": "JsonLoggerCallback",
    "trainkit.tune.logger.logger": "LoggerCallback",
    "trainkit.tune.logger.tensorboardx": "TBXLoggerCallback",
    "trainkit.tune.sklearn": "TuneGridSearchCV TuneSearchCV",
    "trainkit.tune.stopper.experiment_plateau": "ExperimentPlateauStopper",
    "trainkit.tune.stopper.function_stopper": "FunctionStopper",
    "trainkit.tune.stopper.maximum_iteration": "MaximumIterationStopper",
    "trainkit.tune.stopper.noop": "NoopStopper",
    "trainkit.tune.stopper.stopper": "CombinedStopper Stopper",
    "trainkit.tune.stopper.timeout": "TimeoutStopper",
    "trainkit.tune.stopper.trial_plateau": "TrialPlateauStopper",
    "trainkit.tune.syncer": "SyncConfig Syncer",
    "trainkit.tune.trainable.trainable": "Trainable",
    "trainkit.tune.trainable.util": "with_parameters",
    "trainkit.tune.tune": "run run_experiments",
    "trainkit.tune.utils": "flatten_dict merge_dicts validate_save_restore",
    "trainkit.tune.utils.mock_trainable": "MyTrainableClass",
    "trainkit.tune.utils.util": "flatten_dict unflatten_dict merge_dicts",
    "trainkit.tune.utils.placement_groups": "PlacementGroupFactory",
    "trainkit.util": "ActorPool placement_group remove_placement_group get_placement_group as_completed "
    "map_unordered register_serializer deregister_serializer get_node_ip_address log_once list_named_actors "
    "inspect_serializability",
    "trainkit.util.actor_pool": "ActorPool",
    "trainkit.util.check_serialize": "inspect_serializability FailureTuple",
    "trainkit.util.collective": "allgather allreduce barrier broadcast create_collective_group "
    "destroy_collective_group get_collective_group_size get_rank init_collective_group is_group_initialized "
    "recv reduce reducescatter send ReduceOp",
    "trainkit.util.collective.types": "Backend ReduceOp",
    "trainkit.util.debug": "log_once",
    "trainkit.util.helpers": "as_completed map_unordered",
    "trainkit.util.metrics": "Counter Gauge Histogram Metric",
    "trainkit.util.placement_group": "placement_group remove_placement_group placement_group_table "
    "get_current_placement_group get_placement_group PlacementGroup",
    "trainkit.util.queue": "Queue Empty Full",
    "trainkit.util.scheduling_strategies": "PlacementGroupSchedulingStrategy NodeAffinitySchedulingStrategy "
    "NodeLabelSchedulingStrategy In NotIn Exists DoesNotExist",
    "trainkit.util.serialization": "register_serializer deregister_serializer",
    "trainkit.util.sgd": "TorchTrainer",
    "trainkit.util.sgd.torch": "BaseTorchTrainable CreatorOperator TorchTrainer TrainingOperator",
    "trainkit.util.sgd.torch.constants": "SCHEDULER_STEP NUM_STEPS USE_FP16",
    "trainkit.util.sgd.torch.torch_trainer": "BaseTorchTrainable TorchTrainer",
    "trainkit.util.sgd.torch.training_operator": "CreatorOperator TrainingOperator",
    "trainkit.util.sgd.utils": "AverageMeter BATCH_SIZE NUM_SAMPLES TimerCollection override",
    "trainkit.util.state": "list_actors list_nodes list_objects list_placement_groups list_tasks "
    "list_workers list_logs get_actor get_node get_objects get_placement_group get_task get_worker get_log",
}


@pytest.mark.parametrize("module", PLACES)
def test_names_are_where_rays_scripts_look_for_them(module: str) -> None:
    found = importlib.import_module(module)
    for name in PLACES[module].split():
        value = getattr(found, name)
        assert name in dir(found)
        if module.startswith("trainkit.tune."):
            assert value is getattr(tune, name, value)


NOT_HERE = {
    "dragonfly": "DragonflySearch",
    "flaml": "BlendSearch, or CFO,",
    "hebo": "HEBOSearch",
    "sigopt": "SigOptSearch",
    "zoopt": "ZOOptSearch",
}


@pytest.mark.parametrize("package", ["search", "suggest"])
@pytest.mark.parametrize("module", NOT_HERE)
def test_searchers_that_are_not_here_say_what_to_take(package: str, module: str) -> None:
    words = f"{NOT_HERE[module]} is not in trainkit: take OptunaSearch"
    for _ in range(2):
        with pytest.raises(ImportError, match=words) as caught:
            importlib.import_module(f"trainkit.tune.{package}.{module}")
        assert caught.value.name == f"trainkit.tune.{package}.{module}"


# What a served module can do


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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


@pytest.mark.external
def test_threads_import_old_paths_at_the_same_time() -> None:
    script = """
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
"""
    run("-c", script)


@pytest.mark.external
def test_old_paths_are_found_before_trainkit_imports_anything() -> None:
    script = """
import sys
class Watch:
    def find_spec(self, path, search=None, target=None):
        if path not in ("trainkit", "__future__"):
            first.append(type(sys.meta_path[0]).__name__)
first = []
sys.meta_path.insert(0, Watch())
import trainkit
assert set(first) == {"OldPaths"}, first
"""
    run("-c", script)


@pytest.mark.external
def test_modules_are_there_without_an_import_of_each() -> None:
    script = (
        "import trainkit, sys; assert 'asyncio' not in sys.modules; "
        "trainkit.util.queue.Queue, trainkit.util.state.list_actors, trainkit.exceptions.RayError, "
        "trainkit.util.scheduling_strategies.PlacementGroupSchedulingStrategy, trainkit.actor.exit_actor, "
        "trainkit.tune.stopper.Stopper, trainkit.tune.registry.register_trainable"
    )
    run("-c", script)


@pytest.mark.external
def test_the_table_is_read_once_a_module_is_looked_for() -> None:
    script = (
        "import trainkit; from trainkit.plugins.compat.finder import table\n"
        "assert not table.cache_info().currsize; "
        "import trainkit.errors; trainkit.get; assert table.cache_info().currsize"
    )
    run("-c", script)


@pytest.mark.external
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_workers_know_old_paths(engine: str) -> None:
    script = f"""
import trainkit
@trainkit.remote
def look():
    from trainkit.util.queue import Empty
    from trainkit.tune.sample import uniform
    return Empty, uniform
trainkit.init(engine="{engine}", num_cpus=1)
empty, uniform = trainkit.get(look.remote())
from trainkit import tune
assert uniform is tune.uniform
"""
    run("-c", script)


STUBS = sorted(
    path.relative_to(ROOT).with_suffix("")
    for path in (ROOT / "trainkit").rglob("*.pyi")
    if not path.with_suffix(".py").exists()
)


@pytest.mark.parametrize("stub", STUBS, ids=str)
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
