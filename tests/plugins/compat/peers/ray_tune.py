"""The examples that Ray Tune's package brings along, `ray/tune/examples`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import torch
from torch import nn

from tests.plugins.compat.peers.base import Example, System, quietly, write_all
from tests.recipes.idx import write_mnist

QUICK = ("--smoke-test",)
DIGITS = "scikit-learn's digits in place of MNIST, which it would download"


def digits(home: Path) -> None:
    """Put digits where the examples keep MNIST."""
    write_mnist(home / "data", training=1400, validation=300)


def digits_and_judge(home: Path) -> None:
    """Put digits there, and a classifier of the shape that the GAN's examples judge images by."""
    digits(home)
    layers = {
        "conv1": nn.Conv2d(1, 10, 5),
        "conv2": nn.Conv2d(10, 20, 5),
        "fc1": nn.Linear(320, 50),
        "fc2": nn.Linear(50, 10),
    }
    models = home / ".ray" / "models"
    models.mkdir(parents=True)
    torch.save(nn.ModuleDict(layers).state_dict(), models / "mnist_cnn.pt")


VERSION = "2.60.0"


def files() -> Path:
    """Return the folder of the installed package."""
    installed = importlib.metadata.version("ray")
    if installed != VERSION:
        raise AssertionError(f"the page is about Ray {VERSION}, and {installed} is installed")
    spec = importlib.util.find_spec("ray")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def write(example: Example, theirs: Path, folder: Path) -> Path:
    """Write all examples into a package of their own, as they import one another; return the one to run."""
    examples = theirs / "tune" / "examples"

    def moved(text: str) -> str:
        loaded = r"\1import tune_examples; from tune_examples"
        text = re.sub(r"^(\s*)from ray\.tune\.examples", loaded, text, flags=re.MULTILINE)
        return text.replace("ray.tune.examples", "tune_examples")

    return write_all(example, examples, examples.rglob("*.py"), folder / "tune_examples", moved)


def quick(name: str, **more: object) -> Example:
    return Example(name, QUICK, **more)  # type: ignore[arg-type]


TENSORFLOW = {
    "needs": "needs TensorFlow; under Python 3.12 and later it says that there is none, and ends",
}
RLLIB = "trainkit has no RLlib"

QUIETLY = """
async_hyperband_example ax_example bayesopt_example bohb_example cifar10_pytorch
custom_checkpointing_with_callback custom_func_checkpointing hyperband_example hyperband_function_example
hyperopt_conditional_search_space_example lightgbm_example logging_example nevergrad_example
optuna_define_by_run_example optuna_example optuna_multiobjective_example pb2_example pbt_example
pbt_function tune_basic_example xgboost_example
"""

SYSTEM = System(
    title="Ray Tune",
    version=VERSION,
    words=(
        "The table lists the programs in `ray/tune/examples` of the installed package, run with"
        " `--smoke-test` if the program accepts this flag."
    ),
    files=files,
    write=write,
    examples=(
        *quietly(QUIETLY, *QUICK),
        quick("mlflow_example.py", environment={"MLFLOW_ALLOW_FILE_STORE": "true"}),
        quick("mlflow_ptl.py", needs="downloads MNIST by `datasets`"),
        quick("mnist_ptl_mini.py", needs="downloads MNIST by `datasets`"),
        quick("mnist_pytorch.py", prepare=digits, note=DIGITS),
        quick("mnist_pytorch_trainable.py", prepare=digits, note=DIGITS),
        Example("pb2_ppo_example.py", gap=RLLIB, error="PPO"),
        quick("pbt_convnet_example.py", prepare=digits, note=DIGITS),
        quick(
            "pbt_convnet_function_example.py",
            prepare=digits,
            environment={"RAY_CHDIR_TO_TRIAL_DIR": "1"},
            note=f"{DIGITS}; its trials write beside one another with `RAY_CHDIR_TO_TRIAL_DIR=1`",
        ),
        quick(
            "pbt_dcgan_mnist/pbt_dcgan_mnist_func.py",
            prepare=digits_and_judge,
            failed_trials=8,
            note="its trials all fail, as they read `checkpoint_interval`, which it never sets",
        ),
        quick(
            "pbt_dcgan_mnist/pbt_dcgan_mnist_trainable.py",
            prepare=digits_and_judge,
            changes={"num_samples=8": "num_samples=2"},
            note=f"{DIGITS}; 2 trials in place of 8",
        ),
        quick("pbt_memnn_example.py", **TENSORFLOW),
        Example("pbt_ppo_example.py", gap=RLLIB, error="No module named 'trainkit.rllib'"),
        quick(
            "pbt_transformers/pbt_transformers.py",
            needs="downloads a model and GLUE; written for Transformers 4",
        ),
        quick("pbt_tune_cifar10_with_keras.py", **TENSORFLOW),
        quick("tf_mnist_example.py", **TENSORFLOW),
        quick("tune_mnist_keras.py", **TENSORFLOW),
        quick(
            "xgboost_dynamic_resources_example.py",
            changes={'"num_parallel_tree": 2000': '"num_parallel_tree": 20'},
            note="forests of 20 trees in place of 2,000",
        ),
    ),
)
