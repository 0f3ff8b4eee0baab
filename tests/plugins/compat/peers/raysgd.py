"""The examples of RaySGD, as Ray 1.8, the last release that has all of it, brings them along."""

from __future__ import annotations

import re
from pathlib import Path

from recipes import cifar
from tests.plugins.compat.peers.archives import Archive
from tests.plugins.compat.peers.base import Example, System, write_all
from tests.plugins.compat.peers.ray_tune import digits_and_judge

RAY = Archive(
    "ray",
    "1.8.0",
    "9e4ccb5e4ba925d41d73e3af304c4ae19b44967d4f18f6e16655b43123a2ff5e",
    wheel_for=("--python-version=3.9", "--platform=manylinux2014_x86_64"),
)


def write(example: Example, theirs: Path, folder: Path) -> Path:
    """Write all examples into a package of their own, as they import one another; return the one to run."""
    sgd = theirs / "ray-1.8.0.data" / "purelib" / "ray" / "util" / "sgd"

    def moved(text: str) -> str:
        return re.sub(r"\bray\.util\.sgd\.(\w+)\.examples", r"sgd_examples.\1.examples", text)

    return write_all(example, sgd, sgd.glob("*/examples/**/*.py"), folder / "sgd_examples", moved)


SMOKE = ("--smoke-test",)
COLOURS = (
    "images of stripes in CIFAR-10's format in place of its own, which it would download; torchvision's "
    "`resnet18` in place of RaySGD's `ResNet18`, which is not here"
)
RESNET = {
    "from ray.util.sgd.torch.resnet import ResNet18": "from torchvision.models import resnet18\n\n\n"
    "def ResNet18(config):\n    return resnet18(num_classes=10)\n",
}
STRIPES = {
    "from torchvision.datasets import CIFAR10": "from recipes.cifar import SyntheticCIFAR10 as CIFAR10",
    **RESNET,
}
TENSORFLOW = {"needs": "needs TensorFlow", "error": "No module named 'tensorflow'"}


def stripes(home: Path) -> None:
    """Put images where the examples keep CIFAR-10."""
    cifar.prepare(home / "data", "synthetic")


SYSTEM = System(
    title="RaySGD v1",
    version=RAY.version,
    words=(
        "The table lists the programs in the `examples` folders of `ray/util/sgd`, run with `--smoke-test`"
        " if the program accepts this flag."
    ),
    files=RAY.folder,
    write=write,
    examples=(
        Example(
            "data/examples/mlp_identity.py",
            needs="gives the trainer functions that create its parts, which RaySGD 1.8 refuses too, and "
            "RaySGD's `Dataset`, which is not here",
        ),
        Example("tf/examples/cifar_tf_example.py", SMOKE, **TENSORFLOW),
        Example("tf/examples/tensorflow_train_example.py", SMOKE, **TENSORFLOW),
        Example(
            "torch/examples/cifar_pytorch_example.py", SMOKE, prepare=stripes, changes=STRIPES, note=COLOURS
        ),
        Example("torch/examples/cifar_pytorch_pbt.py", SMOKE, prepare=stripes, changes=STRIPES, note=COLOURS),
        Example(
            "torch/examples/dcgan.py",
            SMOKE,
            prepare=digits_and_judge,
            note="scikit-learn's digits in place of MNIST, which it would download",
        ),
        Example(
            "torch/examples/image_models/train.py",
            needs="needs the package timm as it was, and a folder of images",
        ),
        Example(
            "torch/examples/pytorch_pbt_failure.py",
            SMOKE,
            changes=RESNET,
            gap="kills its trials by `FailureInjectorCallback` of Ray's own tests, which is not here",
            error="No module named 'trainkit.tune.utils.mock'",
        ),
        Example("torch/examples/raysgd_torch_signatures.py"),
        Example(
            "torch/examples/segmentation/train_segmentation.py",
            needs="needs pycocotools, and downloads Pascal VOC",
        ),
        Example("torch/examples/train_example.py", SMOKE),
        Example(
            "torch/examples/transformers/transformers_example.py",
            needs="downloads a model and GLUE; written for Transformers 4",
        ),
        Example("torch/examples/tune_example.py", SMOKE),
    ),
)
