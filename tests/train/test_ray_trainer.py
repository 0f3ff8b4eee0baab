"""Trainers on a Ray cluster of two nodes, both on this machine: each worker is on a node of its own."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainkit
from tests.conftest import eventually
from tests.train.operators import Digits, gang_losses, make_parts, plain_loop, plain_losses
from trainkit.errors import GangError
from trainkit.runtime.local.system import process
from trainkit.train import BATCH_SIZE, CheckpointConfig, TorchTrainer
from trainkit.train.checkpoint import files
from trainkit.train.workers import placement, recovery

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


def test_a_checkpoint_is_written_while_training_continues(tmp_path: Path) -> None:
    with make_trainer() as trainer:
        trainer.train(num_steps=2)
        expected = trainer.state_dict()
        trainer.save(tmp_path / "c", wait=False)
        trainer.train(num_steps=2)
    state, header = files.read(tmp_path / "c")
    assert (header.epoch, header.world_size) == (1, 2)
    assert torch.equal(state["models"][0]["0.weight"], expected["models"][0]["0.weight"])


class Dies(Digits):
    """The last worker is killed in the middle of the first epoch, once."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        once = Path(batch_info.get("once", os.devnull))
        if self.world_rank == self.world_size - 1 and batch_info["batch_idx"] == 2 and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train_batch(batch, batch_info)


def plain_model(epochs: list[int]) -> nn.Module:
    """Return the model that a plain loop makes of epochs of so many steps."""
    model, *others, _ = make_parts(CONFIG)
    for steps in epochs:
        plain_loop(model, *others, steps)
    return model


def lose_a_machine(cluster: Any, pids: list[int]) -> None:
    """End the second node; the first holds the cluster's own books."""
    cluster.remove_node(list(cluster.worker_nodes)[-1], allow_graceful=False)
    # A machine's processes outlive its raylet by a moment, in which they could finish an epoch.
    assert eventually(lambda: not all(map(process.exists, pids)), 60)


def test_a_gang_through_its_losses(tmp_path: Path, ray_cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One trainer for all, as a Ray worker takes five seconds of processor time to import what it needs."""
    once = tmp_path / "once"
    with make_trainer(Dies, min_workers=1, timeout_s=300) as trainer:
        nodes, pids, variables = zip(*trainer.apply_all_workers(whereabouts), strict=True)
        assert len(set(nodes)) == 2
        assert variables == (["0", "2", "0", "1"], ["1", "2", "0", "1"])
        ranks = trainer.apply_all_operators(lambda operator: (operator.world_rank, operator.local_rank))
        assert ranks == [(0, 0), (1, 0)]

        # A killed worker is replaced, and the epoch runs again.
        result = trainer.train(info={"once": str(once)})
        assert once.exists()
        assert (result["epoch"], result["num_samples"]) == (1, 75)
        assert gang_losses(trainer) == pytest.approx(plain_losses(CONFIG, 4), abs=1e-9)
        nodes, after, _ = zip(*trainer.apply_all_workers(whereabouts), strict=True)
        assert len(set(nodes)) == 2 and after[1] != pids[1]

        result = trainer.train(num_steps=STEPS, profile=True)
        assert (result["epoch"], result["num_samples"]) == (2, 75 + 75 + 40)
        assert "mean_fwd_s" in result["profile"]
        assert gang_losses(trainer) == pytest.approx(plain_losses(CONFIG, 4 + STEPS), abs=1e-9)

        # Without its machine, a worker's place is gone: one goes on alone, two again with a new machine.
        trainer.train()  # what was applied to the operators made the snapshot out of date
        monkeypatch.setattr(recovery, "REFORM_WAIT_S", 3.0)
        lose_a_machine(ray_cluster, after)
        sizes = [len(trainer.train(reduce_results=False))]
        monkeypatch.setattr(placement, "AT_ONCE_S", 60.0)  # that a loaded machine may take for it
        ray_cluster.add_node(num_cpus=1, include_dashboard=False)
        assert eventually(lambda: trainkit.available_resources().get("CPU", 0) >= 1, 60)
        sizes.append(len(trainer.train(reduce_results=False)))
        assert sizes == [1, 2]
        model, plain = trainer.get_model(), plain_model([4, STEPS, 4, 4, 4])
        for name, value in plain.state_dict().items():
            assert torch.allclose(model.state_dict()[name], value, atol=1e-9, rtol=0)

        validation = trainer.validate()
        _, _, criterion, _, loader = make_parts(CONFIG)
        features, target = loader.dataset.tensors  # type: ignore[attr-defined]
        assert validation["val_loss"] == pytest.approx(criterion(model(features), target).item(), abs=1e-9)
        where = trainer.save(tmp_path / "checkpoint")
        trainer.train()
        trainer.load(where)
        assert trainer.validate()["val_loss"] == pytest.approx(validation["val_loss"], abs=1e-12)

        # Without a snapshot, it is told at once what was lost and what to do, and the trainer has ended.
        last = trainer.apply_all_workers(os.getpid)
        trainer.train(max_retries=0)
        lose_a_machine(ray_cluster, last)
        with pytest.raises(GangError, match=r"of 2 died.*no snapshot of the workers' state exists.*load\(\)"):
            trainer.train()
        with pytest.raises(GangError, match="have ended"):
            trainer.train()
    assert eventually(lambda: not any(process.exists(pid) for pid in {*pids, *after, *last}))


class Waits(Digits):
    """Its workers note their steps, and wait within the second epoch until a machine is lost."""

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        metrics = super().train_batch(batch, batch_info)
        folder, step = Path(batch_info["folder"]), batch_info["batch_idx"]
        with (folder / "steps").open("a") as file:
            file.write(f"{batch_info['epoch_idx']}.{step} ")
        if (batch_info["epoch_idx"], step) == (1, 2) and not (folder / "lost").exists():
            (folder / f"reached{self.world_rank}").touch()
            while not (folder / "lost").exists():
                time.sleep(0.01)
        return metrics


@pytest.mark.slow
@pytest.mark.parametrize(("every_steps", "first"), [(None, "1.0"), (2, "1.2")], ids=["by epochs", "by steps"])
def test_a_machine_lost_within_an_epoch(
    every_steps: int | None,
    first: str,
    tmp_path: Path,
    ray_cluster: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The epoch begins again, or continues after the last checkpoint by steps, with the same numbers."""
    monkeypatch.setattr(recovery, "REFORM_WAIT_S", 3.0)
    monkeypatch.setattr(placement, "AT_ONCE_S", 60.0)
    if trainkit.cluster_resources()["CPU"] < 2:
        ray_cluster.add_node(num_cpus=1, include_dashboard=False)
    assert eventually(lambda: trainkit.available_resources().get("CPU", 0) >= 2, 60)
    config = CheckpointConfig(every_steps=every_steps, num_to_keep=2)
    saved = {"checkpoint_dir": tmp_path / "checkpoints", "checkpoint_config": config}
    info = {"folder": str(tmp_path)}
    with make_trainer(Waits, min_workers=1, timeout_s=300, **saved) as trainer:
        trainer.train(info=info)
        nodes, pids, _ = zip(*trainer.apply_all_workers(whereabouts), strict=True)
        assert len(set(nodes)) == 2

        def lose() -> None:
            assert eventually(lambda: all((tmp_path / f"reached{rank}").exists() for rank in (0, 1)), 200)
            lose_a_machine(ray_cluster, pids)
            (tmp_path / "steps").unlink()
            (tmp_path / "lost").touch()

        with ThreadPoolExecutor(1) as pool:
            losing = pool.submit(lose)
            result = trainer.train(info=info, reduce_results=False)
            losing.result()
        assert [(each["epoch"], each["num_samples"]) for each in result] == [(2, 75)]
        assert (tmp_path / "steps").read_text().split()[0] == first
        model, plain = trainer.get_model(), plain_model([4, 4])
        for name, value in plain.state_dict().items():
            assert torch.allclose(model.state_dict()[name], value, atol=1e-9, rtol=0)
