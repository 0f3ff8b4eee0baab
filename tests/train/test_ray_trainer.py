"""Trainers on a Ray cluster of two nodes, both on this machine: each worker is on a node of its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import trainkit
from tests.conftest import eventually
from tests.train.operators import Digits, gang_losses, make_parts, plain_losses
from tests.train.raysgd_cifar import train_cifar
from trainkit import tune
from trainkit.errors import GangError
from trainkit.runtime.local.system import process
from trainkit.train import BATCH_SIZE, TorchTrainer
from trainkit.train.workers import recovery

pytestmark = pytest.mark.usefixtures("ray_cluster")
CONFIG = {"samples": 75, BATCH_SIZE: 20, "dtype": torch.float64}
STEPS = 10


def make_trainer(operator_cls: type[Digits] = Digits, **arguments: Any) -> TorchTrainer:
    return TorchTrainer(
        training_operator_cls=operator_cls, config=CONFIG, use_gpu=False, **{"num_workers": 2, **arguments}
    )


def whereabouts() -> tuple[str, int, list[str]]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    variables = [os.environ[name] for name in names]
    return trainkit.get_runtime_context().get_node_id(), os.getpid(), variables


def test_two_workers_on_two_nodes(tmp_path: Path) -> None:
    with make_trainer() as trainer:
        nodes, pids, variables = zip(*trainer.apply_all_workers(whereabouts), strict=True)
        assert len(set(nodes)) == 2
        assert variables == (["0", "2", "0", "1"], ["1", "2", "0", "1"])
        ranks = trainer.apply_all_operators(lambda operator: (operator.world_rank, operator.local_rank))
        assert ranks == [(0, 0), (1, 0)]

        result = trainer.train(num_steps=STEPS, profile=True)
        assert (result["epoch"], result["num_samples"]) == (1, 75 + 75 + 40)
        assert "mean_fwd_s" in result["profile"]
        assert gang_losses(trainer) == pytest.approx(plain_losses(CONFIG, STEPS), abs=1e-9)

        validation = trainer.validate()
        model = trainer.get_model()
        _, _, criterion, _, loader = make_parts(CONFIG)
        features, target = loader.dataset.tensors  # type: ignore[attr-defined]
        assert validation["val_loss"] == pytest.approx(criterion(model(features), target).item(), abs=1e-9)

        where = trainer.save(tmp_path / "checkpoint")
        trainer.train()
        trainer.load(where)
        assert trainer.validate()["val_loss"] == pytest.approx(validation["val_loss"], abs=1e-12)
    assert eventually(lambda: not any(process.exists(pid) for pid in pids))
    with make_trainer(num_workers=1, use_local=True) as alone:
        alone.load(where)
        assert alone.validate()["val_loss"] == pytest.approx(validation["val_loss"], abs=1e-9)


class Dies(Digits):
    """Worker 1 is killed in the middle of the first epoch, once."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        once = Path(batch_info["once"])
        if self.world_rank == 1 and batch_info["batch_idx"] == 2 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_batch(batch, batch_info)


def test_a_killed_worker_is_replaced_and_the_epoch_runs_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    with make_trainer(Dies) as trainer:
        before = trainer.apply_all_workers(os.getpid)
        result = trainer.train(info={"once": str(once)})
        assert once.exists()
        assert (result["epoch"], result["num_samples"]) == (1, 75)
        assert gang_losses(trainer) == pytest.approx(plain_losses(CONFIG, 4), abs=1e-9)
        nodes, after, _ = zip(*trainer.apply_all_workers(whereabouts), strict=True)
        assert len(set(nodes)) == 2 and after[1] != before[1]
        once.unlink()
        with pytest.raises(GangError, match="worker 1 of 2 died"):
            trainer.train(info={"once": str(once)}, max_retries=0)
    assert eventually(lambda: not any(process.exists(pid) for pid in {*before, *after}))


def test_a_lost_machine(ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker's place is gone: one worker goes on alone, and the other comes back with a machine."""
    monkeypatch.setattr(recovery, "REFORM_WAIT_S", 3.0)
    with make_trainer(min_workers=1, timeout_s=60) as trainer:
        pids = trainer.apply_all_workers(os.getpid)
        sizes = [len(trainer.train(reduce_results=False))]
        # The first machine holds the cluster's own books.
        ray_cluster.remove_node(list(ray_cluster.worker_nodes)[-1], allow_graceful=False)
        # A machine's processes outlive its raylet by a moment, in which they could finish an epoch.
        assert eventually(lambda: not all(map(process.exists, pids)), 60)
        sizes.append(len(trainer.train(reduce_results=False)))
        ray_cluster.add_node(num_cpus=1, include_dashboard=False)
        assert eventually(lambda: trainkit.available_resources().get("CPU", 0) >= 1, 60)
        sizes.append(len(trainer.train(reduce_results=False)))
        model = trainer.get_model()
    assert sizes == [2, 1, 2]
    plain, optimizer, criterion, loader, _ = make_parts(CONFIG)
    for _ in range(3):
        for features, target in loader:
            optimizer.zero_grad()
            criterion(plain(features), target).backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        assert torch.allclose(model.state_dict()[name], value, atol=1e-9, rtol=0)


def test_a_lost_machine_without_a_snapshot(ray_cluster: Any) -> None:
    """It is told at once what was lost and what to do, and the trainer has ended."""
    with make_trainer(timeout_s=60) as trainer:
        pids = trainer.apply_all_workers(os.getpid)
        trainer.train(max_retries=0)
        ray_cluster.remove_node(list(ray_cluster.worker_nodes)[-1], allow_graceful=False)
        assert eventually(lambda: not all(map(process.exists, pids)), 60)
        with pytest.raises(GangError, match=r"of 2 died.*no snapshot holds the workers' state.*load\(\)"):
            trainer.train()
        with pytest.raises(GangError, match="have ended"):
            trainer.train()
    ray_cluster.add_node(num_cpus=1, include_dashboard=False)
    assert eventually(lambda: trainkit.available_resources().get("CPU", 0) >= 2, 60)


def test_a_script_for_raysgd() -> None:
    stats, validation, _ = train_cifar(test_mode=True, num_workers=2, num_epochs=1)
    assert (stats["num_samples"], validation["num_samples"]) == (64, 63)


def test_row_1_1_a_trial_of_two_workers(tmp_path: Path) -> None:
    trainable = TorchTrainer.as_trainable(
        training_operator_cls=Digits, config=CONFIG, num_workers=2, use_gpu=False
    )
    grid = tune.Tuner(
        trainable,
        param_space={"lr": 0.2},
        tune_config=tune.TuneConfig(metric="val_loss", mode="min"),
        run_config=tune.RunConfig(
            name="gangs", storage_path=str(tmp_path), verbose=0, stop={"training_iteration": 1}
        ),
    ).fit()
    assert [(result.metrics["epoch"], result.metrics["num_samples"]) for result in grid] == [(1, 75)]
