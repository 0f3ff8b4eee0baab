"""W&B's own client in its offline mode: what it writes is read back from its files; no process stays."""

from __future__ import annotations

import json
import struct
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import wandb
from wandb.proto import wandb_internal_pb2 as messages

from tests.conftest import eventually
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.integrations.wandb import WandbLoggerCallback, setup_wandb

pytestmark = pytest.mark.usefixtures("inline", "offline")


def services() -> list[psutil.Process]:
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found += [each] if "wandb" in each.name() else []
    return found


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """Nothing goes out, and nothing is left; what W&B keeps of its own lies in the test's folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    yield
    assert eventually(lambda: not services()), services()


def records_in(path: Path) -> Iterator[messages.Record]:
    """The records of a file of W&B's, laid out as LevelDB's logs: in parts, in blocks of 32 KiB."""
    data, at, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:  # too little for the head of a part
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield messages.Record.FromString(parts)
            parts = b""


class Run:
    """What W&B would upload of one run."""

    def __init__(self) -> None:
        self.name = self.group = self.project = ""
        self.files = 0
        self.config: dict = {}
        self.history: list[dict] = []
        self.artifacts: list[str] = []
        self.exit_code = None


def runs_in(folder: Path) -> dict[str, Run]:
    """By id, the runs in all files below a folder, as `wandb sync` would put them together."""
    runs: dict[str, Run] = defaultdict(Run)
    for path in sorted(folder.rglob("*.wandb")):
        run = None
        for record in records_in(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                run = runs[record.run.run_id]
                run.name, run.group, run.project = (
                    record.run.display_name,
                    record.run.run_group,
                    record.run.project,
                )
                run.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
            elif run is None:
                continue
            elif kind == "config":
                run.config |= {item.key: json.loads(item.value_json) for item in record.config.update}
            elif kind == "history":
                run.history.append(
                    {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                )
            elif kind == "artifact":
                run.artifacts.append(record.artifact.name)
            elif kind == "exit":
                run.exit_code = record.exit.exit_code
        if run is not None:
            run.files += 1
    return runs


def values(run: Run, name: str) -> list:
    return [(each["training_iteration"], each[name]) for each in run.history if name in each]


def three(config):
    for step in range(1, 4):
        tune.report({"loss": config["lr"] / step, "eval": {"acc": 0.5, "f1": 0.25}, "text": "a"})


def test_a_run_per_trial(fit, tmp_path):  # row 1.30
    callback = WandbLoggerCallback(project="p", excludes=["eval/f1", "secret"])
    space = {"lr": tune.grid_search([1.0, 2.0]), "net": {"cls": dict, "all": [dict, {"a": 1}]}, "secret": "s"}
    fit(three, space, run={"callbacks": [callback]})
    assert not services()
    runs = sorted(runs_in(tmp_path).values(), key=lambda run: run.name)
    assert [(run.project, run.group, run.exit_code) for run in runs] == [("p", "e", 0)] * 2
    assert [run.name.rpartition("_")[2] for run in runs] == ["00000", "00001"]
    second = runs[1]
    assert second.config["lr"] == 2.0
    assert second.config["net/cls"] == "dict"
    assert second.config["net/all"] == ["dict", {"a": 1}]
    assert "date" in second.config
    assert "secret" not in second.config
    assert values(second, "loss") == [(1, 2.0), (2, 1.0), (3, pytest.approx(2 / 3))]
    assert values(second, "eval/acc") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert not values(second, "eval/f1")
    assert not values(second, "text")


def test_a_trial_that_goes_on_keeps_its_run(fit, fails_twice, tmp_path):  # row 1.30
    space = {"lr": tune.grid_search([1.0, 2.0])}
    callback = WandbLoggerCallback(project="p", upload_checkpoints=True)
    failures = {"failure_config": tune.FailureConfig(max_failures=1)}
    fit(fails_twice, space, run={"callbacks": [callback], **failures})
    before = runs_in(tmp_path)
    assert sorted(run.exit_code for run in before.values()) == [0, 1]
    run = tune.RunConfig(callbacks=[WandbLoggerCallback(project="p")], verbose=0)
    tune.Tuner.restore(str(tmp_path / "e"), fails_twice, resume_errored=True, run_config=run).fit()
    after = runs_in(tmp_path)
    assert set(after) == set(before)
    for run in after.values():
        assert values(run, "loss") == [(step, float(step)) for step in range(1, 5)]
    went_on = next(run for run in after.values() if run.config["lr"] == 1.0)
    assert (went_on.files, went_on.exit_code) == (3, 0)  # for `wandb sync`, which puts them together
    assert set(went_on.artifacts) == {f"checkpoint_{went_on.name}"}


def test_two_experiments_never_share_a_run(fit, tmp_path):
    for name in ("one", "two"):
        fit(three, {"lr": 1.0}, seed=7, run={"callbacks": [WandbLoggerCallback("p")], "name": name})
    assert sorted(run.group for run in runs_in(tmp_path).values()) == ["one", "two"]


def test_the_users_own_run_is_left_alone(fit, tmp_path):
    (tmp_path / "mine").mkdir()
    mine = wandb.init(
        project="mine", id="mine", dir=tmp_path / "mine", settings=wandb.Settings(console="off")
    )
    try:
        fit(three, {"lr": 1.0}, run={"callbacks": [WandbLoggerCallback("p")]})
        assert wandb.run is mine
        mine.log({"training_iteration": 1, "still": 1})
    finally:
        mine.finish()
        wandb.teardown()
    assert values(runs_in(tmp_path)["mine"], "still") == [(1, 1)]


def test_a_service_that_fails_touches_no_trial(fit, caplog):  # row 1.30
    callback = WandbLoggerCallback(project="a/project/cannot/be/named/so")
    grid = fit(three, {"lr": 1.0}, num_samples=3, run={"callbacks": [callback]})
    assert grid.num_terminated == 3
    told = [record.getMessage() for record in caplog.records if "Weights & Biases:" in record.getMessage()]
    assert len(told) == len(set(told)) == 1
    assert "opening a run failed; the experiment continues" in told[0]


def test_the_configuration_with_each_report_where_asked(fit, tmp_path):
    fit(
        three,
        {"lr": 1.0},
        run={"callbacks": [WandbLoggerCallback("p", log_config=True, group="g", notes="n")]},
    )
    (run,) = runs_in(tmp_path).values()
    assert run.group == "g"
    assert run.config["lr"] == 1.0


def test_the_key_is_given_once_and_its_file_is_read_at_once(tmp_path):
    (tmp_path / "key").write_text("secret\n")
    assert WandbLoggerCallback(api_key_file=str(tmp_path / "key"))._api_key == "secret"
    with pytest.raises(ConfigError, match="not both"):
        WandbLoggerCallback(api_key_file=str(tmp_path / "key"), api_key="secret")
    with pytest.raises(ConfigError, match="cannot be read"):
        WandbLoggerCallback(api_key_file=str(tmp_path / "nothing"))
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="has no key"):
        WandbLoggerCallback(api_key_file=str(tmp_path / "empty"))


def test_a_trial_may_set_wandb_up_itself(fit, tmp_path):
    def trainable(config):
        run = setup_wandb(config, project="p", settings=wandb.Settings(console="off"))
        first = Path(tmp_path, f"{config['lr']}")
        run.log({"training_iteration": 1 + first.exists(), "inside": config["lr"]})
        tune.report({"loss": 1.0})
        run.finish()
        if not first.exists():
            first.touch()
            raise ValueError
        wandb.teardown()

    run = {"failure_config": tune.FailureConfig(max_failures=1), "name": "inside"}
    fit(trainable, {"lr": tune.grid_search([1.0, 2.0])}, run=run, max_concurrent_trials=1)
    runs = runs_in(tmp_path)
    assert sorted(run.config["lr"] for run in runs.values()) == [1.0, 2.0]
    for run in runs.values():
        assert run.group == "inside"
        assert values(run, "inside") == [(1, run.config["lr"]), (2, run.config["lr"])]


def test_only_rank_zero_logs(monkeypatch, tmp_path):
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    run = setup_wandb(project="p", dir=str(tmp_path))
    run.log({"a": 1})
    run.finish()
    assert not runs_in(tmp_path)
