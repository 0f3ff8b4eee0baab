"""The scripts of Ray's documentation: those of Ray Tune's guides."""

from __future__ import annotations

from tests.compat.peers.base import Example, System, write_alone
from tests.compat.peers.ray_tune import DIGITS, TENSORFLOW, digits

TUNE = System(
    title="Ray Tune's guides",
    words="The scripts of `doc/source/tune/doc_code` in Ray's repository.",
    write=write_alone,
    folder="doc/source/tune/doc_code",
    examples=(
        Example("faq.py", **TENSORFLOW),
        Example("fault_tolerance.py"),
        Example("keras_hyperopt.py", needs="needs Keras", error="No module named 'keras'"),
        Example("key_concepts.py"),
        Example("pytorch_optuna.py", prepare=digits, note=DIGITS),
        Example("stopping.py", failed_trials=1, note="one trial fails on purpose"),
        Example("trainable.py"),
        Example("trial_checkpoint.py"),
        Example(
            "tune.py",
            gap="reports `...`, which is no metric: its trials fail",
            error="other_data",
        ),
    ),
)
