"""Transformers' Trainer in a function trainer, with PEFT and with the trainer's own data sets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.train.torch import library_loops
from tests.train.torch.launched import column, trainer, under_torchrun
from trainkit import train
from trainkit.errors import ConfigError, TrainingFailedError
from trainkit.train import Checkpoint, FailureConfig

PRELOAD = ("torch", "transformers.trainer")
pytestmark = pytest.mark.usefixtures("runtime")
LOGGED = ("eval_loss", "loss", "grad_norm", "learning_rate", "epoch")


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    return under_torchrun(tmp_path_factory.mktemp("launched"), "transformers", "peft")


@pytest.fixture(scope="module")
def trained(runtime: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of two workers, of which one fails in the third epoch."""
    folder, again = tmp_path_factory.mktemp("trained"), {"failure_config": FailureConfig(max_failures=1)}
    return trainer(library_loops.transformers, folder, {"fails_at": 2}, run=again).fit()


def test_the_curve_is_that_of_torchrun_though_a_worker_fails(launched: Any, trained: Any) -> None:
    for name in LOGGED:
        assert list(trained.metrics_dataframe[name]) == column(launched["transformers"], name)
    kept = {path.name for path in Path(trained.checkpoint.path, "checkpoint").iterdir()}
    assert {"model.safetensors", "trainer_state.json", "rng_state_0.pth", "rng_state_1.pth"} <= kept
    assert os.listdir(trained.checkpoint.path) == ["checkpoint"]


def test_a_run_begins_with_a_checkpoint_of_another(launched: Any, trained: Any, tmp_path: Path) -> None:
    earlier = Checkpoint.from_directory(trained.best_checkpoints[0][0].path)
    result = trainer(library_loops.transformers, tmp_path, resume_from_checkpoint=earlier).fit()
    assert list(result.metrics_dataframe["eval_loss"]) == column(launched["transformers"], "eval_loss")[1:]


def test_low_rank_updates_train_as_under_torchrun(launched: Any, tmp_path: Path) -> None:
    result = trainer(library_loops.peft, tmp_path).fit()
    for name in LOGGED:
        assert list(result.metrics_dataframe[name]) == column(launched["peft"], name)
    folder = Path(result.checkpoint.path, "checkpoint")
    assert (folder / "adapter_model.safetensors").exists()
    assert not (folder / "model.safetensors").exists()


def of_shards(config: dict[str, Any]) -> None:
    """Train for two passes over this worker's own batches, counted."""
    shard = train.get_dataset_shard("train")
    seen: list[int] = []

    def together(samples: list[Any]) -> dict[str, Any]:
        seen.extend(int(sample["input_ids"][0]) for sample in samples)
        return {name: library_loops.torch.stack([each[name] for each in samples]) for name in samples[0]}

    arguments = {"max_steps": 8, "save_strategy": "steps", "save_steps": 8, "eval_strategy": "no"}
    made = library_loops.transformers_trainer(
        config,
        library_loops.tiny_bert(),
        arguments=arguments,
        train_dataset=shard.iter_torch_batches(batch_size=4, collate_fn=together),
        eval_dataset=train.get_dataset_shard("valid").iter_torch_batches(batch_size=4),
    )
    made.train()
    everyone: list[Any] = [None, None]
    library_loops.dist.all_gather_object(everyone, seen)
    evaluated = made.evaluate()
    train.report({"everyone": everyone, "eval_loss": evaluated["eval_loss"]})


def test_a_trainer_takes_batches_of_a_shard(tmp_path: Path) -> None:
    data = library_loops.Sentences(32, 1)
    result = trainer(
        of_shards, tmp_path, datasets={"train": data, "valid": library_loops.Sentences(8, 2)}
    ).fit()
    words = [int(data[index]["input_ids"][0]) for index in range(32)]
    assert result.metrics["everyone"] == [words[0::2] * 2, words[1::2] * 2]
    assert result.metrics["eval_loss"] > 0


def whole_shard(config: dict[str, Any]) -> None:
    made = library_loops.transformers_trainer(config, library_loops.tiny_bert())
    given = train.get_dataset_shard("train")
    made.train_dataset = given if config["whole"] else iter(given.iter_torch_batches(batch_size=4))
    from trainkit.train.huggingface.transformers import prepare_trainer

    prepare_trainer(made)


@pytest.mark.parametrize(("whole", "kind"), [(True, "DatasetShard"), (False, "generator")])
def test_what_would_be_shared_twice_or_passed_once_is_refused(whole: bool, kind: str, tmp_path: Path) -> None:
    data = {"train": library_loops.Sentences(32, 1)}
    message = f"a data set is a {kind}: give get_dataset_shard"
    with pytest.raises(TrainingFailedError, match=message) as caught:
        trainer(whole_shard, tmp_path, {"whole": whole}, datasets=data, workers=1).fit()
    assert isinstance(caught.value.__cause__, ConfigError)


def sharded(config: dict[str, Any]) -> None:
    library_loops.transformers_trainer(config, library_loops.tiny_bert(), arguments={"fsdp": True})


def test_fsdp_without_a_gpu_is_refused(tmp_path: Path) -> None:
    """Accelerate was imported with the workers' template here, before they began."""
    with pytest.raises(
        TrainingFailedError, match="Accelerate was asked for FSDP, and this worker has no GPU"
    ):
        trainer(sharded, tmp_path).fit()
