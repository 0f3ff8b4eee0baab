"""Ranks of trainers in the dashboard: how they spend their time, whom they keep waiting, and traces."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import trainkit
from tests.conftest import eventually
from tests.plugins.dashboard.conftest import Asker, Reply, served
from tests.plugins.dashboard.test_sessions import own
from trainkit import client
from trainkit.cli.main import main
from trainkit.errors import ConfigError, GangError, TaskError
from trainkit.plugins.dashboard import threads
from trainkit.plugins.profile import ranks
from trainkit.runtime.api import scratch_dir
from trainkit.train import RunConfig, ScalingConfig, TorchTrainer, TrainingOperator
from trainkit.train import torch as functions

NAP_S = 0.1
BATCH = 4


class Rows(Dataset[Any]):
    """Samples that take their time to load."""

    def __init__(self, nap_s: float) -> None:
        self._nap_s = nap_s

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> Any:
        time.sleep(self._nap_s)
        return torch.full((3,), float(index)), torch.zeros(1)


class Napping(TrainingOperator):
    """Operator whose ranks sleep in their loader, or in their step, as the configuration says."""

    def setup(self, config: dict[str, Any]) -> None:
        model = nn.Linear(3, 1)
        self.register(
            models=model, optimizers=torch.optim.SGD(model.parameters(), lr=1e-9), criterion=nn.MSELoss()
        )
        loads = config.get("loads") == self.world_rank
        self.register_data(train_loader=DataLoader(Rows(NAP_S / BATCH * loads), batch_size=BATCH))

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if self.config.get("steps") == self.world_rank:
            time.sleep(NAP_S)
        while Path(self.config["folder"], "hold").exists():
            Path(self.config["folder"], f"held-{self.world_rank}").touch()
            time.sleep(0.01)
        metrics = super().train_batch(batch, batch_info)
        if Path(self.config["folder"], "end").exists():
            raise EOFError
        return metrics


@contextmanager
def training(folder: Path, **config: Any) -> Iterator[list[int]]:
    """Train without end on two ranks; yield their pids once both have trained for some time."""
    with TorchTrainer(
        training_operator_cls=Napping,
        config={"folder": str(folder), **config},
        num_workers=2,
        use_gpu=False,
    ) as trainer:
        pids = trainer.apply_all_workers(os.getpid)

        def train() -> None:
            with pytest.raises((TaskError, GangError)):
                trainer.train(num_steps=10**6, max_retries=0)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            assert eventually(lambda: all(each["batches"] > 2 for each in ranks.rows(pids)), 60)
            yield pids
        finally:
            (folder / "hold").unlink(missing_ok=True)
            (folder / "end").touch()
            thread.join()


def rows_of(ask: Asker, pids: list[int]) -> list[dict[str, Any]]:
    """Return what the API tells of the ranks in these processes, in the order of the processes."""
    found = {each["pid"]: each for each in ask.get(own(ask))["ranks"]}
    return [found[pid] for pid in pids if pid in found]


def traced(ask: Asker, pid: int, **body: Any) -> Reply:
    return ask("POST", f"/api{own(ask)}/workers/{pid}/trace", body)


def refused(reply: Reply, status: int = 409) -> str:
    assert reply.status == status, reply.body[:500]
    return str(reply.json["error"])


def left(ask: Asker) -> list[Path]:
    """Return what traces have left in the folder of the session."""
    return list(scratch_dir().glob("trace-*"))


@pytest.mark.slow
def test_a_rank_that_waits_for_its_data(ask: Asker, tmp_path: Path) -> None:
    with training(tmp_path, loads=0) as pids:
        assert eventually(lambda: rows_of(ask, pids)[0]["batches"] > 10, 60)
        waiting, other = rows_of(ask, pids)
        assert (waiting["rank"], other["rank"], waiting["world_size"]) == (0, 1, 2)
        assert waiting["trainer"] == "Napping" and waiting["group"] == other["group"]
        assert waiting["wait_s"] >= waiting["batches"] * NAP_S
        assert waiting["data_wait_percent"] > other["data_wait_percent"]
        assert waiting["samples_per_s"] == pytest.approx(BATCH * waiting["batches_per_s"])
        assert waiting["batches_per_s"] <= 1 / NAP_S
        # It is what the others wait for, whatever it does with its time.
        assert eventually(lambda: rows_of(ask, pids)[0]["straggles"], 60)
        assert rows_of(ask, pids)[1]["rank_wait_percent"] > 0


@pytest.mark.slow
def test_a_rank_that_is_slow_in_its_step_is_the_straggler(ask: Asker, tmp_path: Path) -> None:
    with training(tmp_path, steps=1) as pids:
        assert eventually(lambda: [each["straggles"] for each in rows_of(ask, pids)] == [False, True], 60)
        other, slow = rows_of(ask, pids)
        assert slow["step_s"] >= slow["batches"] * NAP_S - NAP_S
        assert slow["own_s"] > other["own_s"]

        def the_other_waits() -> bool:
            other, slow = rows_of(ask, pids)
            return bool(slow["rank_wait_percent"] < other["rank_wait_percent"])

        assert eventually(the_other_waits, 60)
        # Both go on at the same pace: nothing but the waiting tells them apart.
        assert abs(slow["batches"] - other["batches"]) <= 2
    assert rows_of(ask, pids) == []  # they have left their trainer


def test_a_trace_has_as_many_steps_as_were_asked_for(
    ask: Asker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with training(tmp_path) as pids:
        reply = traced(ask, pids[1], steps=3)
        assert reply.status == 200, reply.body[:500]
        assert reply.headers["Content-Disposition"] == f'attachment; filename="trace-{pids[1]}.json"'
        written = client.trace(pids[0], tmp_path / "client.json", steps=3)
        assert main(["trace", str(pids[0]), "--steps", "3", "-o", str(tmp_path / "command.json")]) == 0
        assert "command.json" in capsys.readouterr().out
        for text in (reply.body, written.read_bytes(), (tmp_path / "command.json").read_bytes()):
            events = json.loads(text)["traceEvents"]
            names = [each["name"] for each in events if each.get("ph") == "X"]
            assert {"aten::addmm", "aten::mse_loss"} <= set(names)
            assert sum(name.startswith("ProfilerStep#") for name in names) == 3
        assert left(ask) == [] and list(tmp_path.glob("trace-*")) == []
        with served(ask.server.root, read_only=True) as reader:
            assert "is read-only" in refused(traced(reader, pids[0], steps=3), 403)


def test_traces_that_are_refused(ask: Asker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with training(tmp_path, steps=0) as pids:
        for steps in (0, -1, 101):
            assert "must be 1 to 100" in refused(traced(ask, pids[0], steps=steps))
        assert "the maximum is 300 seconds" in refused(traced(ask, pids[0], steps=1, timeout_s=301))
        for body in ({}, {"steps": "3"}, {"steps": 1.5}, {"steps": 3, "path": "/etc/passwd"}):
            refused(traced(ask, pids[0], **body), 400)  # type: ignore[arg-type]
        assert "not a rank of one of your trainers" in refused(traced(ask, os.getpid(), steps=3))
        assert traced(ask, 1, steps=3).status == 404
        with pytest.raises(ConfigError, match="not a rank of one of your trainers"):
            client.trace(1, tmp_path / "none.json")

        first: list[Reply] = []
        (tmp_path / "hold").touch()
        one = threading.Thread(target=lambda: first.append(traced(ask, pids[0], steps=20)))
        one.start()
        assert eventually(lambda: left(ask) != [], 60)
        assert "another trace" in refused(traced(ask, pids[0], steps=1))
        with monkeypatch.context() as patch:
            patch.setattr(threads, "MAX_BESIDE", 1)
            assert "try again when one has finished" in refused(traced(ask, pids[1], steps=1), 429)
            assert rows_of(ask, pids), "what else is asked is answered meanwhile"
        (tmp_path / "hold").unlink()
        one.join()
        assert first[0].status == 200

        (tmp_path / "hold").touch()
        assert eventually((tmp_path / "held-0").exists, 60)
        before = ranks.ranks_of(pids[0])[0].page.batches
        assert "has made 0 of 3 steps within 0.5 s" in refused(traced(ask, pids[0], steps=3, timeout_s=0.5))
        begun = time.monotonic()
        with served(ask.server.root) as other:
            cut_off: list[Reply] = []
            one = threading.Thread(target=lambda: cut_off.append(traced(other, pids[0], steps=3)))
            one.start()
            assert eventually(lambda: left(ask) != [], 60)
        assert left(ask) == [], "a server that ends waits for no trace"
        one.join()
        assert "is canceled" in refused(cut_off[0]) and time.monotonic() - begun < ranks.TRACE_S / 2
        # Whoever goes away leaves no thread that waits for the rank.
        given_up = HTTPConnection(*ask.address, timeout=60)
        head = {"Authorization": f"Bearer {ask.server.token}"}
        path = f"/api{own(ask)}/workers/{pids[0]}/trace"
        given_up.request("POST", path, json.dumps({"steps": 3, "timeout_s": 300}), head)
        assert eventually(lambda: left(ask) != [], 60)
        given_up.close()
        assert eventually(lambda: left(ask) == [], 60)
        (tmp_path / "hold").unlink()
        # What was given up is not recorded later, and the next request finds the rank free.
        assert eventually(lambda: ranks.ranks_of(pids[0])[0].page.batches > before + 2, 60)
        assert traced(ask, pids[0], steps=1).status == 200
        assert left(ask) == []


def test_a_rank_that_is_killed_while_it_is_traced(ask: Asker, tmp_path: Path) -> None:
    with training(tmp_path, steps=0) as pids:
        replies: list[Reply] = []
        path = f"/api{own(ask)}/workers/{pids[0]}/trace"
        one = threading.Thread(target=lambda: replies.append(ask("POST", path, {"steps": 100})))
        one.start()
        assert eventually(lambda: left(ask) != [], 60)
        os.kill(pids[0], signal.SIGKILL)
        one.join()
        assert "has ended before its trace was complete" in refused(replies[0])
    assert left(ask) == [] and rows_of(ask, pids) == []


def test_a_profiler_of_the_users_own_is_left_alone(ask: Asker, tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        loader = functions.prepare_data_loader(DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own_profiler:
            while not (tmp_path / "end").exists():
                for (batch,) in loader:
                    batch.mean()
                    time.sleep(0.01)
        assert own_profiler.events()

    with fitting(loop, tmp_path) as pids:
        assert eventually(lambda: any(each["batches"] for each in ranks.rows(pids())), 60)
        (pid,) = pids()
        assert "another profiler is already running in the process" in refused(traced(ask, pid, steps=2))


@contextmanager
def fitting(
    loop: Callable[[dict[str, Any]], None], folder: Path, workers: int = 1, **more: Any
) -> Iterator[Callable[[], list[int]]]:
    """Run a training function in a thread; yield what returns the pids of its ranks."""
    trainer = functions.TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
        run_config=RunConfig(storage_path=str(folder), name="run", verbose=0),
        **more,
    )
    thread = threading.Thread(target=trainer.fit)
    thread.start()

    def pids() -> list[int]:
        living = [each["pid"] for each in trainkit.list_actors() if each["state"] == "ALIVE"]
        return [pid for pid in living if pid is not None and ranks.ranks_of(pid)]

    try:
        assert eventually(lambda: len(pids()) == workers, 60)
        yield pids
    finally:
        (folder / "end").touch()
        thread.join()


def test_ranks_of_a_training_function(ask: Asker, tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        from trainkit import train

        rank = train.get_context().get_world_rank()
        model = functions.prepare_model(nn.Linear(3, 1))
        loader = functions.prepare_data_loader(DataLoader(TensorDataset(torch.ones(64, 3)), batch_size=8))
        shard = train.get_dataset_shard("train").iter_torch_batches(batch_size=8)
        over = torch.zeros(())
        while not over:
            for batches in (loader, shard):
                for batch in batches:
                    time.sleep(NAP_S * rank)
                    model(batch[0] if isinstance(batch, list) else batch).sum().backward()
            over += (tmp_path / "end").exists()
            dist.all_reduce(over)  # all ranks end after the same pass

    samples = torch.ones(64, 3)
    with fitting(loop, tmp_path, 2, datasets={"train": samples}) as pids:
        assert eventually(
            lambda: [each["straggles"] for each in ask.get(own(ask))["ranks"]] == [False, True], 60
        )
        for each in ask.get(own(ask))["ranks"]:
            assert each["trainer"] == "loop" and each["batches"] > 0
        first, second = sorted(pids(), key=lambda pid: ranks.ranks_of(pid)[0].page.rank)
        reply = traced(ask, second, steps=2)
        assert reply.status == 200, reply.body[:500]
        assert any(each["name"] == "aten::addmm" for each in json.loads(reply.body)["traceEvents"])
        assert {first, second} == {each["pid"] for each in ask.get(own(ask))["ranks"]}


def test_steps_of_optimizers_count_where_the_loader_is_not_known(ask: Asker, tmp_path: Path) -> None:
    """As in a loop of one's own, in Lightning, Transformers and Accelerate, and in plain scripts."""

    def loop(config: dict[str, Any]) -> None:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)

        def epoch(loader: Any) -> None:
            for (batch,) in loader:
                model(batch).sum().backward()
                optimizer.step()
                time.sleep(0.01)

        own_loader = DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4)
        while not (tmp_path / "prepare").exists() and not (tmp_path / "end").exists():
            epoch(own_loader)
        while not (tmp_path / "end").exists():
            epoch(functions.prepare_data_loader(own_loader))

    with fitting(loop, tmp_path) as pids:
        (pid,) = pids()
        assert eventually(lambda: bool(rows_of(ask, [pid])[0]["batches_per_s"]), 60)
        (row,) = rows_of(ask, [pid])
        assert (row["counts"], row["wait_s"], row["data_wait_percent"]) == ("optimizer steps", None, None)
        assert row["batches"] > 0 and row["samples_per_s"] is None and row["batches_per_s"] <= 100
        events = json.loads(traced(ask, pid, steps=2).body)["traceEvents"]
        assert sum(each["name"].startswith("ProfilerStep#") for each in events if each.get("ph") == "X") == 2
        (tmp_path / "prepare").touch()
        assert eventually(lambda: bool(rows_of(ask, [pid])[0]["samples_per_s"]), 60)
        (row,) = rows_of(ask, [pid])
        assert row["counts"] == "batches" and row["batches_per_s"] <= 100 and row["wait_s"] > 0


def test_a_loop_over_a_loader_of_its_own_says_so(ask: Asker, tmp_path: Path) -> None:
    def loop(config: dict[str, Any]) -> None:
        while not (tmp_path / "end").exists():
            for (batch,) in DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=4):
                batch.mean()
                time.sleep(0.01)

    with fitting(loop, tmp_path) as pids:
        (pid,) = pids()
        (row,) = rows_of(ask, [pid])
        assert (row["batches"], row["batches_per_s"], row["own_s"], row["straggles"]) == (0, None, None, None)
        assert "prepare_data_loader" in refused(traced(ask, pid, steps=2))
