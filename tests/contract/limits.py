"""The figures and tables of the contract: floors, plugins, layers, counts that may only fall, and reasons.

A count that has not reached its target yet is held where it stands: a change may lower it, and then lowers
the figure here; it may not raise it.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """A count that may only fall, until it has reached its target.

    Attributes:
        today: the most there may be.
        target: the most there are to be in the end.
        slack: a count may be so far below `today` before the figure has to follow.
    """

    today: int
    target: int
    slack: int = 0


COUNTS = {
    "imports between doors": Limit(0, 0),
    "imports within runtime/local": Limit(0, 0),
    "names of plugins in the core": Limit(0, 0),
    "imports between plugins": Limit(0, 0),
    "imports within tune": Limit(0, 0),
    "imports within train": Limit(0, 0),
    "rooms without a layer": Limit(0, 0),
    "circles of files": Limit(0, 0),
    "chains through a part": Limit(0, 0),
    "crowded folders": Limit(0, 0),
    "lines of the core": Limit(46_000, 46_000, slack=300),
    "long files": Limit(0, 0),
    "small files": Limit(0, 0),
    "files with two unconnected parts": Limit(0, 0),
    "classes of one name": Limit(0, 0),
    "constructors of many parts": Limit(0, 0),
    "docstrings that are riddles": Limit(0, 0),
    "aliases outside compat": Limit(0, 0),
}

PLUGINS = {
    "check_resume": Limit(800, 600, slack=60),
    "cluster": Limit(600, 600, slack=60),
    "compat": Limit(2_960, 2_500, slack=60),
    "dashboard": Limit(3_480, 3_200, slack=60),
    "gaussian_process": Limit(1_480, 1_400, slack=60),
    "hydra": Limit(530, 500, slack=60),
    "integrations": Limit(1_505, 1_200, slack=60),
    "job_pool": Limit(405, 400, slack=60),
    "launch": Limit(1_490, 1_400, slack=60),
    "learned_stopping": Limit(240, 240, slack=60),
    "lightning": Limit(1_155, 1_100, slack=60),
    "median": Limit(265, 260, slack=60),
    "pareto": Limit(142, 140, slack=60),
    "pb2": Limit(355, 350, slack=60),
    "pipeline": Limit(785, 800, slack=60),
    "plateau": Limit(88, 85, slack=60),
    "plots": Limit(1_635, 1_630, slack=60),
    "pools": Limit(890, 900, slack=60),
    "profile": Limit(660, 600, slack=60),
    "ray": Limit(1_230, 1_200, slack=60),
    "repeater": Limit(225, 220, slack=60),
    "searchers": Limit(1_495, 1_100, slack=60),
    "simulation": Limit(507, 500, slack=60),
    "slurm": Limit(750, 640, slack=60),
    "sweep": Limit(835, 650, slack=60),
    "testing": Limit(750, 750, slack=60),
    "transformers": Limit(160, 160, slack=60),
}
"""Lines of code of each plugin. A plugin has an entry here before it has a file."""

ARROWS = {
    "compat": {"pools"},  # Ray's multiprocessing
    "dashboard": {
        "cluster",
        "compat",
        "integrations",
        "plots",
        "profile",
        "slurm",
    },  # hosts, metrics, Optuna's storage, charts, figures of ranks, jobs
    "job_pool": {"cluster", "ray", "slurm"},  # Ray on each job, and Slurm's commands
    "launch": {"cluster"},  # ranks on several machines
    "plots": {"integrations"},  # hyperparameters, importances
    "lightning": {"integrations"},  # reports of a training function
    "ray": {"cluster"},  # Ray on the machines of an allocation
    "slurm": {"cluster"},
}
"""Plugins that a plugin may import."""

ENGLISH = {
    "anew": Limit(0, 0),
    "told": Limit(0, 0),
    "goes on with": Limit(0, 0),
    "of before": Limit(0, 0),
    "comes to": Limit(0, 0),
    "is none": Limit(5, 0),
    "lets go": Limit(1, 0),
    "in order": Limit(0, 0),
    "that of": Limit(7, 0),
    "who": Limit(1, 0),
    "inversion": Limit(0, 0),
    "none of": Limit(0, 0),
}
"""Places in docs, docstrings, comments and messages that break a rule of `english.RULES`."""

FILES_IN_A_FOLDER = 16
LINES_IN_A_FILE = 640
LINES_OF_A_SMALL_FILE = 120
LINES_OF_A_PART = 25
PARTS_OF_A_CONSTRUCTOR = 6

# A module may import from its own door and from any floor below it. Doors of one floor don't meet.
FLOORS = [
    {"errors", "settings", "resources", "clock", "registry", "lazy"},
    {"runtime"},
    {"tune"},
    {"train"},
    {"sklearn"},
    {"client"},
    {"cli"},
    {"", "__main__"},  # trainkit/__init__.py, the front of the house, and `python -m trainkit`
    {"plugins"},  # connected by their entry points: the core names no plugin
]
DOORS = {door for floor in FLOORS for door in floor} | {f"plugins.{name}" for name in PLUGINS}

# From the top down. Rooms with "|" between them don't meet; those with a comma may.
LAYERS = {
    "runtime.local": "main > worker > client | node > memory > wire, system",
    "tune": (
        "tuner > experiment > executor > results > sync > config"
        " > callbacks > display > store > controller > search > schedulers > trial, space > core"
    ),
    "train": (
        "torch > trainer > tune > workers > options > operator > step > strategies"
        " > data, checkpoint > distributed > keys"
    ),
}

# Loaded when first needed, so never at the head of a module; `train` is about torch, and may.
HEAVY = {"matplotlib", "optuna", "pandas", "ray", "rich", "scipy", "sklearn", "torch", "torchvision"}
MAY_HEAD = {
    "train": {"torch"},
    "sklearn": {"sklearn", "scipy"},
    "plugins.compat.creators": {"torch"},  # loaded for an operator
    "plugins.integrations.optuna_storage": {"optuna"},  # its one class extends Optuna's
    "plugins.job_pool": {"ray"},  # loaded when a session has a pool
    "plugins.launch": {"torch"},  # loaded in ranks
    "plugins.lightning": {"torch"},
    "plugins.pipeline": {"torch"},
    "plugins.profile.finders": {"torch"},  # loaded when a trainer searches
    "plugins.ray": {"ray"},  # loaded when this engine is chosen
    "plugins.testing": {"torch"},  # loaded by the test files of strategies
    "plugins.transformers": {"torch"},
}

CHAINS: dict[str, str] = {
    "trainkit/plugins/lightning/fit.py self.trainer.fit_loop.epoch_loop._should_accumulate": (
        "Lightning tells nowhere else whether a batch's gradients wait for the next"
    ),
    "trainkit/plugins/ray/values.py self.handle._actor_id.hex": "Ray keeps the id of an actor nowhere else",
    "trainkit/plugins/searchers/hyperopt.py self._pyll.stochastic.sample": "a module of Hyperopt's",
}
"""Calls that reach through a part for a reason: "file chain" -> reason. At most 19."""

SMALL_FILES: dict[str, str] = {
    "trainkit/runtime/local/worker/debugger.py": "a terminal's debugger, which the environment is not about",
    "trainkit/plugins/dashboard/optuna.py": "another server than ours, with Optuna's pages",
    "trainkit/plugins/profile/client.py": "a function of `trainkit.client`, which needs no command",
    "trainkit/runtime/observability/listings.py": "rows of listings, where api.py has the calls of users",
    "trainkit/plugins/launch/libraries.py": "checks of libraries, which the worker is not about",
    "trainkit/train/torch/worker.py": "runs in a worker, where trial.py runs in the trial's process",
    "trainkit/train/workers/formation.py": "needs torch, which the launcher of scripts does without",
    "trainkit/cli/main.py": "the entry point of the installed command, which no other file may import",
    "trainkit/plugins/gaussian_process/curves.py": "estimates of results, which the searcher is not about",
    "trainkit/plugins/job_pool/cluster.py": "reads Ray's state, which the pool is not about",
    "trainkit/plugins/sweep/counted.py": "a file of earlier reports, which the command is not about",
    "trainkit/plugins/slurm/code.py": "a copy of the project's code, which the command is not about",
    "trainkit/plugins/slurm/settings.py": "settings of a site from files, which the command is not about",
    "trainkit/plugins/gaussian_process/priors.py": "beliefs of users, which the searcher is not about",
}
"""Small files with one importer that stand by themselves for a reason: file -> reason."""

SEVERAL_PARTS: dict[str, str] = {
    "trainkit/train/checkpoint/shards.py": "one format of files, which one half writes and the other reads",
    "trainkit/train/workers/pausing.py": "both sides of a pause: when it comes, and what it suspends",
    "trainkit/errors.py": "all exceptions that users catch, in one list",
    "trainkit/sklearn/search.py": "the two public searches, in one module as in scikit-learn",
    "trainkit/tune/config.py": "the two settings classes of a Tuner, which users import together",
    "trainkit/runtime/api.py": "all functions of the runtime that users call, in one list",
    "trainkit/plugins/lightning/function_trainer.py": (
        "all that Lightning's trainer needs in a training function, under Ray's names"
    ),
}
"""Files whose parts do not use each other and stand together for a reason: file -> reason. At most 9."""

# fmt: off
PUBLIC = {
    "trainkit": {
        "__version__", "actor", "air", "cloudpickle", "dag", "errors", "exceptions", "runtime_context",
        "runtime_env", "sklearn", "train", "tune", "ActorID", "JobID", "NodeID", "ObjectID",
        "PlacementGroupID", "TaskID", "WorkerID",
        "util", "DynamicObjectRefGenerator", "ObjectRef", "ObjectRefGenerator",
        "available_resources", "cancel", "cluster_resources", "exit_actor", "get", "get_actor",
        "get_current_placement_group", "get_gpu_ids", "get_placement_group", "get_runtime_context", "init",
        "is_initialized", "kill", "list_actors", "list_objects", "list_placement_groups", "list_tasks",
        "method", "nodes", "placement_group", "put", "remote", "remove_placement_group", "shutdown",
        "timeline", "wait",
    },
}
# fmt: on
