"""`trainkit.tune.utils`, with what Ray's functions answer."""

from __future__ import annotations

import threading

import pytest

from trainkit import tune
from trainkit.tune.utils import (
    diagnose_serialization,
    flatten_dict,
    merge_dicts,
    validate_save_restore,
    wait_for_gpu,
)
from trainkit.tune.utils.mock_trainable import MyTrainableClass
from trainkit.tune.utils.util import unflatten_dict

NESTED = {"a": {"b": {"c": 1}, "d": {}}, "e": [1, {"f": 2}]}
FLAT = {"a/b/c": 1, "e": [1, {"f": 2}]}


def test_dictionaries_are_flattened_and_back():
    assert flatten_dict(NESTED) == FLAT
    assert unflatten_dict(FLAT) == {"a": {"b": {"c": 1}}, "e": [1, {"f": 2}]}
    assert flatten_dict(NESTED, delimiter=".", flatten_list=True) == {"a.b.c": 1, "e.0": 1, "e.1.f": 2}
    with pytest.raises(ValueError, match="contains the delimiter '/'"):
        flatten_dict({"a/b": 1}, prevent_delimiter=True)


def test_dictionaries_are_merged():
    assert merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}


def test_a_trainable_that_goes_on_from_its_checkpoint_is_valid():
    assert validate_save_restore(MyTrainableClass, {"width": 2})


def test_one_that_can_not_load_is_not():
    class Broken(tune.Trainable):
        def step(self):
            return {"m": 1}

        def save_checkpoint(self, checkpoint_dir):
            return {"m": 1}

        def load_checkpoint(self, checkpoint):
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        validate_save_restore(Broken)


def test_one_that_counts_its_iterations_by_itself_is_not():
    class Own(MyTrainableClass):
        def step(self):
            return {**super().step(), "training_iteration": 7}

    with pytest.raises(AssertionError, match="reported 7 instead of 4"):
        validate_save_restore(Own)


def test_what_keeps_a_trainable_from_a_worker_is_named():
    event = threading.Event()
    number = 3
    assert diagnose_serialization(lambda config: number) is True
    assert diagnose_serialization(lambda config: (event, number)) == {"event"}


@pytest.mark.process
def test_a_wait_for_a_gpu_ends_once_its_memory_is_free(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="needs nvidia-smi"):
        wait_for_gpu(0)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    looks = tmp_path / "looks"
    program = (
        tmp_path / "nvidia-smi"
    )  # prints what the driver's prints: GPU 1 is free from the second look on
    program.write_text(
        f"#!/bin/sh\nif [ -e {looks} ]; then used=1; else used=900; touch {looks}; fi\n"
        "echo '0, GPU-aa, 500, 1000'\necho \"1, GPU-bb, $used, 1000\"\n"
    )
    program.chmod(0o755)
    assert wait_for_gpu("GPU-bb", delay_s=0)
    assert wait_for_gpu(0, target_util=0.5)
    with pytest.raises(RuntimeError, match=r"still used 50\.0 % of its memory"):
        wait_for_gpu("0", retry=2, delay_s=0)
    with pytest.raises(ValueError, match="not one of this machine's GPUs 0, GPU-aa, 1, GPU-bb"):
        wait_for_gpu(4)
    with pytest.raises(RuntimeError, match="requested no GPU"):
        wait_for_gpu()
