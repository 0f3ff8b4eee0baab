"""What happens when a worker fails: its cause is told, nothing hangs, nothing is left."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

import trainkit
from tests.conftest import eventually, is_running
from tests.train.operators import Digits, lose_patience
from trainkit.errors import CheckpointError, GangError, SerializationError
from trainkit.train import TorchTrainer, TrainingOperator
from trainkit.train.workers import gather

pytestmark = pytest.mark.usefixtures("runtime")


class Faulty(Digits):
    """Worker `config["rank"]` does `config["fault"]` in its third step.

    Where that is to hang, the others don't wait for long.
    """

    def train_batch(self, batch: Any, batch_info: dict[str, Any]) -> Any:
        if batch_info["batch_idx"] == 2 and self.world_rank == self.config["rank"]:
            self.config["fault"]()
        if batch_info["batch_idx"] == 2 and self.config["fault"] in (spin, freeze):
            lose_patience()
        return super().train_batch(batch, batch_info)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise LookupError("the third batch is cursed")


def freeze() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def spin() -> None:
    while True:
        pass


def gang(fault: Any, rank: int, *, operator: type[TrainingOperator] = Faulty, **options: Any) -> TorchTrainer:
    config = {"fault": fault, "rank": rank, "samples": 400, **options.pop("config", {})}
    return TorchTrainer(
        training_operator_cls=operator,
        config=config,
        use_gpu=False,
        # Who waits for it does not pass by mistake, but runs into the test's own limit.
        **{"num_workers": 2, "timeout_s": 1800, **options},
    )


def gone(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


@pytest.mark.parametrize(("use_local", "rank"), [(False, 1), (True, 0), (True, 1)])
def test_an_exception_ends_the_others_and_shows_its_traceback(use_local: bool, rank: int) -> None:
    with gang(fail, rank, use_local=use_local) as trainer:
        pids = [pid for pid in trainer.apply_all_workers(os.getpid) if pid != os.getpid()]
        with pytest.raises(LookupError, match="the third batch is cursed") as caught:
            trainer.train()
        assert any(f"raised by worker {rank} of 2" in note for note in caught.value.__notes__)
        if not (use_local and rank == 0):
            assert "in train_batch" in caught.value.remote_traceback  # type: ignore[attr-defined]
        assert eventually(lambda: gone(pids))


@pytest.mark.parametrize(("use_local", "fault", "rank"), [(False, spin, 0), (True, freeze, 1)])
def test_a_worker_that_hangs_is_named_with_the_step_that_waits(
    use_local: bool, fault: Any, rank: int
) -> None:
    with gang(fault, rank, timeout_s=120, use_local=use_local) as trainer:
        pids = [pid for pid in trainer.apply_all_workers(os.getpid) if pid != os.getpid()]
        with pytest.raises(GangError) as caught:
            trainer.train(max_retries=0)
        assert str(caught.value) == (
            f"worker {rank} of 2 did not enter step 3 within timeout_s=120, where worker {1 - rank} waited: "
            f"it hangs, or the code or data need more time; no snapshot of the workers' state exists: make a "
            f"new TorchTrainer, and load() a checkpoint into it"
        )
        assert caught.value.__cause__ is not None, "what the waiting worker raised"
        assert eventually(lambda: gone(pids))
    assert not dist.is_initialized()


class FreezesAtTheEnd(Digits):
    """Behind the last exchange of gradients, where nobody waits for it any more."""

    def train_epoch(self, *args: Any, **kwargs: Any) -> Any:
        result = super().train_epoch(*args, **kwargs)
        if self.world_rank == 1:
            freeze()
        return result


@pytest.mark.slow
def test_a_worker_that_hangs_after_the_last_step() -> None:
    with (
        gang(die, -1, timeout_s=20, operator=FreezesAtTheEnd) as trainer,  # for the workers' start too
        pytest.raises(
            GangError, match=r"worker 1 of 2 did not finish train\(\) within timeout_s=20 after the other"
        ),
    ):
        trainer.train(max_retries=0)


def descendants() -> set[int]:
    """All of this process but the session's templates: it forks a further one once more is imported here."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found |= {child.pid} if child.name() != "trainkit-tmpl" else set()
    return found


class BadSetup(Digits):
    def setup(self, config: dict[str, Any]) -> None:
        if self.world_rank == 1:
            raise FileNotFoundError("no data here")
        super().setup(config)


@pytest.mark.parametrize("use_local", [False, True])
def test_a_failed_setup_leaves_nothing(
    use_local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gang(die, -1, use_local=use_local).shutdown()  # the first of a program leaves a folder of torch's
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = descendants()
    with pytest.raises(FileNotFoundError, match="no data here"):
        gang(die, -1, operator=BadSetup, use_local=use_local)
    assert eventually(lambda: descendants() <= before)
    assert not list(tmp_path.iterdir())


def test_mistakes_that_no_worker_is_alone_with_end_nobody() -> None:
    with gang(die, -1) as trainer:
        with pytest.raises(LookupError):
            trainer.apply_all_workers(fail)
        with pytest.raises(SerializationError):
            trainer.train(info={"lock": threading.Lock()}, max_retries=0)
        assert trainer.train(max_retries=0)["epoch"] == 1


def test_a_loader_that_fails_on_one_worker() -> None:
    class BadLoader(Digits):
        def setup(self, config: dict[str, Any]) -> None:
            super().setup(config)
            if self.world_rank == 1:
                self._train_feed.loader.collate_fn = lambda batch: fail()  # type: ignore[union-attr]

    with gang(die, -1, operator=BadLoader) as trainer, pytest.raises(LookupError, match="cursed"):
        trainer.train()


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_a_disk_that_is_full_in_save(tmp_path: Path) -> None:
    """No file may grow further than a few kilobytes, as on a disk that has no more."""
    where = tmp_path / "c"
    with gang(die, -1) as trainer:
        trainer.train()
        trainer.save(where)
        before = trainer.validate()["val_loss"]
        trainer.train()
        trainer.apply_all_workers(lambda: limit_files(4096))
        with pytest.raises(
            CheckpointError, match=r"was not written .*; an earlier checkpoint there is unchanged"
        ):
            trainer.save(where)
        assert {entry.name for entry in tmp_path.iterdir()} == {"c"}
        trainer.apply_all_workers(lambda: limit_files(resource.RLIM_INFINITY))
        trainer.load(where)
        assert trainer.validate()["val_loss"] == pytest.approx(before, abs=1e-12)
        assert trainer.train()["epoch"] == 2


def test_a_trainer_that_is_dropped_gives_its_cpus_back() -> None:
    for _ in range(2):
        trainer = gang(die, -1, num_workers=3)
        assert trainer.train()["epoch"] == 1
        del trainer
    assert eventually(lambda: trainkit.available_resources().get("CPU") == 4)


class Interrupting:
    """Ctrl-C comes as it is sent to the second worker."""

    sent = 0

    def __reduce__(self) -> Any:
        type(self).sent += 1
        if self.sent == 2:
            raise KeyboardInterrupt
        return len, ("",)


def test_ctrl_c_between_the_calls_of_two_workers_leaves_neither() -> None:
    with gang(die, -1) as trainer:
        pids = trainer.apply_all_workers(os.getpid)
        with pytest.raises(KeyboardInterrupt):
            trainer.update_scheduler(Interrupting())
        assert Interrupting.sent == 2
        assert eventually(lambda: gone(pids))
        with pytest.raises(GangError, match=r"update_scheduler\(\) was interrupted by Keyboard.*no snapshot"):
            trainer.train()


@trainkit.remote(num_cpus=0)
def wait_for(path: str) -> None:
    assert eventually(Path(path).exists)


@pytest.mark.parametrize("timeout_s", [300, float("inf")])
def test_who_keeps_the_others_waiting_is_named(
    timeout_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wait for as long as it takes, as ranks of a script do, need no warning."""

    class Released(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (tmp_path / "late").touch()

    (tmp_path / "early").touch()
    monkeypatch.setattr(gather, "TELL_S", 0.1)
    released = Released()
    gather.log.addHandler(released)
    refs = [wait_for.remote(str(tmp_path / name)) for name in ("early", "late")]
    results = gather.GatheredResults(
        {ref: rank for rank, ref in enumerate(refs)},
        what="train_line",
        world_size=2,
        at_once=True,
        timeout_s=timeout_s,
        end_workers=lambda: None,
    )
    if timeout_s == float("inf"):
        trainkit.get(refs[0])
        threading.Timer(1.0, (tmp_path / "late").touch).start()
    try:
        results.collect()
    finally:
        gather.log.removeHandler(released)
    assert not results.failed
    told = "worker 1 of 2 has not finished train_line() or reported in it" in caplog.text
    assert told == (timeout_s == 300)
