"""The examples that Ray Tune's package brings along, `ray/tune/examples`."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import torch
from torch import nn

from tests.plugins.compat.peers.base import Example, System, changed, with_our_imports
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
    for file in examples.rglob("*.py"):
        name = file.relative_to(examples)
        text = re.sub(
            r"^(\s*)from ray\.tune\.examples",
            r"\1import tune_examples; from tune_examples",
            file.read_text(),
            flags=re.MULTILINE,
        )
        if name == Path(example.name):
            text = changed(example, text)
        moved = folder / "tune_examples" / name
        moved.parent.mkdir(parents=True, exist_ok=True)
        moved.write_text(with_our_imports(text.replace("ray.tune.examples", "tune_examples")))
    return folder / "tune_examples" / example.name


def quick(name: str, **more: object) -> Example:
    return Example(name, QUICK, **more)  # type: ignore[arg-type]


TENSORFLOW = {
    "needs": "needs TensorFlow; under Python 3.12 and later it says that there is none, and ends",
}
RLLIB = "trainkit has no RLlib"

SYSTEM = System(
    title="Ray Tune",
    version=VERSION,
    words=(
        "The programs in `ray/tune/examples` of the installed package, with `--smoke-test` where it is taken."
    ),
    files=files,
    write=write,
    examples=(
        quick("async_hyperband_example.py"),
        quick("ax_example.py"),
        quick("bayesopt_example.py"),
        quick("bohb_example.py"),
        quick("cifar10_pytorch.py"),
        quick("custom_checkpointing_with_callback.py"),
        quick("custom_func_checkpointing.py"),
        quick("hyperband_example.py"),
        quick("hyperband_function_example.py"),
        quick("hyperopt_conditional_search_space_example.py"),
        quick("lightgbm_example.py"),
        quick("logging_example.py"),
        quick(
            "mlflow_example.py",
            environment={"MLFLOW_ALLOW_FILE_STORE": "true"},
        ),
        quick("mlflow_ptl.py", needs="downloads MNIST by `datasets`"),
        quick("mnist_ptl_mini.py", needs="downloads MNIST by `datasets`"),
        quick("mnist_pytorch.py", prepare=digits, note=DIGITS),
        quick("mnist_pytorch_trainable.py", prepare=digits, note=DIGITS),
        quick("nevergrad_example.py"),
        quick("optuna_define_by_run_example.py"),
        quick("optuna_example.py"),
        quick("optuna_multiobjective_example.py"),
        quick("pb2_example.py"),
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
        quick("pbt_example.py"),
        quick("pbt_function.py"),
        quick("pbt_memnn_example.py", **TENSORFLOW),
        Example("pbt_ppo_example.py", gap=RLLIB, error="No module named 'trainkit.rllib'"),
        quick(
            "pbt_transformers/pbt_transformers.py",
            needs="downloads a model and GLUE; written for Transformers 4",
        ),
        quick("pbt_tune_cifar10_with_keras.py", **TENSORFLOW),
        quick("tf_mnist_example.py", **TENSORFLOW),
        quick("tune_basic_example.py"),
        quick("tune_mnist_keras.py", **TENSORFLOW),
        quick(
            "xgboost_dynamic_resources_example.py",
            changes={'"num_parallel_tree": 2000': '"num_parallel_tree": 20'},
            note="forests of 20 trees in place of 2,000",
        ),
        quick("xgboost_example.py"),
    ),
)
