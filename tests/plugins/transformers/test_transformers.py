"""Transformers' Trainer in a function trainer, with PEFT and with the trainer's own data sets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.torch import library_loops
from tests.train.torch.launched import column, trainer, under_torchrun
from trainkit import train, tune
from trainkit.errors import ConfigError, InfeasibleError, WorkerGroupError
from trainkit.train import FailureConfig

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


def test_low_rank_updates_train_as_under_torchrun(launched: Any, tmp_path: Path) -> None:
    result = trainer(library_loops.peft, tmp_path).fit()
    for name in LOGGED:
        assert list(result.metrics_dataframe[name]) == column(launched["peft"], name)
    folder = Path(result.checkpoint.path, "checkpoint")
    assert (folder / "adapter_model.safetensors").exists()
    assert not (folder / "model.safetensors").exists()


GLOBAL = 12


def by_steps(config: dict[str, Any]) -> None:
    """Train with checkpoints within epochs, and note the words of each batch and the weights."""
    rank, workers = train.get_context().get_world_rank(), train.get_context().get_world_size()
    folder = Path(config["folder"])

    def together(samples: list[Any]) -> dict[str, Any]:
        with (folder / f"rank{rank}").open("a") as file:
            file.write(f"{[each['input_ids'].tolist() for each in samples]}\n")
        return {name: library_loops.torch.stack([each[name] for each in samples]) for name in samples[0]}

    torch.manual_seed(0)
    arguments = {
        "per_device_train_batch_size": GLOBAL // workers,
        "num_train_epochs": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 1,
    }
    made = library_loops.transformers_trainer(
        config,
        library_loops.tiny_bert(),
        arguments=arguments,
        train_dataset=library_loops.Sentences(60, 1),
        data_collator=together,
    )
    path = library_loops.resumed_from()
    made.train(resume_from_checkpoint=None if path is None else os.path.join(path, "checkpoint"))
    weights = [parameter.detach().tolist() for parameter in made.model.parameters()]
    if rank == 0:
        torch.save(weights, folder / "weights")


def global_batches(folder: Path) -> list[list[Any]]:
    """Return the sorted samples of each step, over all workers."""
    parts = [map(json.loads, path.read_text().splitlines()) for path in folder.glob("rank*")]
    return [sorted(sample for part in step for sample in part) for step in zip(*parts, strict=True)]


def test_checkpoints_by_steps_continue_with_the_next_batch_on_any_number_of_workers(tmp_path: Path) -> None:
    def run(name: str, workers: int, **more: Any) -> Any:
        folder = tmp_path / name
        folder.mkdir()
        return folder, trainer(by_steps, tmp_path, {"folder": str(folder)}, workers=workers, **more).fit()

    whole, result = run("whole", 2)
    epochs = [report["epoch"] for _, report in result.best_checkpoints]
    assert epochs == [0.4, 0.8, 1.2, 1.6, 2.0]
    steps = global_batches(whole)
    for workers, number in ((2, 0), (3, 2), (1, 3)):
        begun = result.best_checkpoints[number][0]
        folder, rest = run(f"on{workers}", workers, resume_from_checkpoint=begun)
        assert global_batches(folder) == steps[2 * (number + 1) :]
        assert rest.metrics["epoch"] == 2
        if workers == 2:
            assert torch.load(folder / "weights") == torch.load(whole / "weights")


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


@pytest.mark.parametrize(("whole", "kind"), [(True, "a shard"), (False, "an iterator")])
def test_what_would_be_shared_twice_or_passed_once_is_refused(whole: bool, kind: str, tmp_path: Path) -> None:
    data = {"train": library_loops.Sentences(32, 1)}
    message = f"does not accept {kind} as a data set: pass get_dataset_shard"
    with pytest.raises(WorkerGroupError, match=message) as caught:
        trainer(whole_shard, tmp_path, {"whole": whole}, datasets=data, workers=1).fit()
    assert [type(error) for error in caught.value.worker_failures.values()] == [ConfigError]


def searched(folder: Path, **more: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    from trainkit.train.huggingface.transformers import prepare_trainer

    arguments: dict[str, Any] = {"num_train_epochs": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    arguments |= more.pop("arguments", {})
    return prepare_trainer(
        Trainer(
            args=TrainingArguments(output_dir=str(folder), report_to=[], disable_tqdm=True, **arguments),
            train_dataset=library_loops.Sentences(32, 1),
            eval_dataset=library_loops.Sentences(8, 2),
            **{"model_init": library_loops.tiny_bert} | more,
        )
    )


def test_a_trainer_searches_its_arguments(tmp_path: Path) -> None:
    """The losses are those of the trainer by itself, with these arguments from the beginning."""
    own = searched(tmp_path / "own", arguments={"learning_rate": 0.01, "per_device_train_batch_size": 8})
    own.train()
    space = {"learning_rate": tune.grid_search([1e-6, 0.01]), "per_device_train_batch_size": 8}
    base = searched(tmp_path / "base")
    vars(base.args)["_setup_devices"] = torch.device("meta")  # as another machine's, none of the trials'
    best = base.hyperparameter_search(
        backend="trainkit",
        hp_space=lambda _: space,
        n_trials=1,
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=train.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    evaluated = [entry["eval_loss"] for entry in own.state.log_history if "eval_loss" in entry]
    assert best.hyperparameters == {"learning_rate": 0.01, "per_device_train_batch_size": 8}
    assert best.objective == evaluated[-1]
    assert not best.run_summary.errors
    result = best.run_summary.get_best_result()
    assert [report["objective"] for report in result.history] == evaluated
    assert (Path(result.checkpoint.path) / "checkpoint" / "model.safetensors").exists()


def test_a_search_without_evaluations_has_one_at_the_end(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    seen = tmp_path / "seen"
    arguments = {"eval_strategy": "no", "save_strategy": "no", "weight_decay": 0}
    base = searched(tmp_path / "base", arguments=arguments)

    class Seen(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            seen.write_text(f"{args.weight_decay} {args.seed!r}")

    def of_trial(config: dict[str, Any]) -> Any:
        assert config is None or config == {"seed": 3.0, "weight_decay": 0.01}
        return library_loops.tiny_bert()

    base.model_init = of_trial
    base.add_callback(Seen())
    best = base.hyperparameter_search(
        lambda _: {"seed": 3.0, "weight_decay": 0.01},
        lambda metrics: -metrics["eval_loss"],
        1,
        "maximize",
        backend="trainkit",
        run_config=train.RunConfig(storage_path=str(tmp_path), verbose=0),
    )
    assert seen.read_text() == "0.01 3"
    assert best.objective == -best.run_summary[0].metrics["eval_loss"]


@pytest.mark.parametrize(
    ("more", "options", "message"),
    [
        ({"model_init": None, "model": nn.Linear(1, 1)}, {}, r"pass Trainer\(model_init=\.\.\.\)"),
        ({}, {}, "needs hp_space, such as lambda"),
        (
            {},
            {"hp_space": lambda _: {"learning_rat": 1}},
            "has no attribute 'learning_rat'.* 'learning_rate'",
        ),
        ({}, {"hp_space": lambda _: {}, "direction": ["minimize"]}, "pass 'minimize' or 'maximize'"),
    ],
)
def test_a_search_that_cannot_be_is_refused(more: Any, options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        searched(tmp_path, **more).hyperparameter_search(backend="trainkit", **options)


def test_a_trial_of_a_trainer_with_a_gpu_has_one(tmp_path: Path) -> None:
    base = searched(tmp_path / "base")
    vars(base.args)["_n_gpu"] = 2
    run = train.RunConfig(storage_path=str(tmp_path), verbose=0)
    with pytest.raises(InfeasibleError, match="GPU"):
        base.hyperparameter_search(lambda _: {"seed": 3}, backend="trainkit", run_config=run)


def sharded(config: dict[str, Any]) -> None:
    library_loops.transformers_trainer(config, library_loops.tiny_bert(), arguments={"fsdp": True})


def test_fsdp_without_a_gpu_is_refused(tmp_path: Path) -> None:
    """Accelerate was imported with the workers' template here, before they began."""
    with pytest.raises(WorkerGroupError, match="Accelerate was asked for FSDP, and this worker has no GPU"):
        trainer(sharded, tmp_path).fit()
