"""A Syncer of a user's own, as for Ray 2.3, copies an experiment and brings it back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.tune.sync.failing_storage import LOCAL_ONLY, names, saving
from trainkit import tune
from trainkit.errors import ConfigError, StorageError
from trainkit.tune.syncer import SyncConfig, Syncer

pytestmark = pytest.mark.usefixtures("inline", "results")


class Vault(Syncer):
    """Copies `vault://name` to a folder when it is waited for, as one does that starts a command."""

    def __init__(self, folder: Path):
        super().__init__(sync_period=1)
        self.folder, self.todo, self.calls = folder, None, []
        self.broken = False

    def sync_up(self, local_dir, remote_dir, exclude=None):
        return self._begin("up", lambda: shutil.copytree(local_dir, self._at(remote_dir), dirs_exist_ok=True))

    def sync_down(self, remote_dir, local_dir, exclude=None):
        return self._begin(
            "down", lambda: shutil.copytree(self._at(remote_dir), local_dir, dirs_exist_ok=True)
        )

    def delete(self, remote_dir):
        return self._begin("delete", lambda: shutil.rmtree(self._at(remote_dir)))

    def wait(self, timeout=None):
        if self.broken:
            raise RuntimeError("the vault is shut")
        self.todo()

    def _at(self, address):
        return self.folder / address.removeprefix("vault://")

    def _begin(self, verb, todo):
        self.calls.append(verb)
        self.todo = todo
        return True


def test_a_syncer_is_called_and_an_experiment_restored_by_it(fit, restore, tmp_path, results):
    vault = Vault(tmp_path / "vault")
    place = {"storage_path": "vault://b", "storage_filesystem": vault}
    fit(saving, run={**place, "checkpoint_config": tune.CheckpointConfig(num_to_keep=1)})
    assert names(vault.folder / "b" / "e") == names(results / "e") - LOCAL_ONLY
    assert "up" in vault.calls and "down" not in vault.calls
    shutil.rmtree(results)
    again = Vault(tmp_path / "vault")
    grid = restore(saving, "vault://b/e", storage_filesystem=again, num_samples=2)
    assert [len(result.history) for result in grid] == [4, 4]
    shutil.rmtree(results)
    assert len(tune.ResultGrid.from_path("vault://b/e", storage_filesystem=Vault(tmp_path / "vault"))) == 2


def test_checkpoints_that_were_dropped_are_deleted_by_it(fit, restore, tmp_path):
    vault = Vault(tmp_path / "vault")
    keep = tune.CheckpointConfig(num_to_keep=1)
    run = {"storage_path": "vault://b", "storage_filesystem": vault}
    fit(saving, {"steps": 1}, run=run)
    anew = tune.ResumeConfig(finished=tune.ResumeConfig.ResumeType.RESTART)
    given = {"storage_filesystem": vault, "param_space": {"steps": 3}, "resume_config": anew}
    restore(saving, "vault://b/e", run={"checkpoint_config": keep}, **given)
    (left,) = [path for path in vault.folder.rglob("checkpoint_*") if path.is_dir()]
    assert "delete" in vault.calls and left.name != "checkpoint_000000"


def test_one_that_fails_is_told_before_the_first_trial(fit, tmp_path):
    vault = Vault(tmp_path / "vault")
    vault.broken = True
    with pytest.raises(StorageError, match=r"the vault is shut.*Nothing was started"):
        fit(saving, run={"storage_path": "vault://b", "storage_filesystem": vault})


class Nesting(Vault):
    """Has another one begin while it copies."""

    def wait(self, timeout=None):
        with pytest.raises(StorageError, match="vault/b/f"):  # there is none
            tune.Tuner.can_restore("vault://b/f", storage_filesystem=Vault(self.folder))
        super().wait(timeout)


def test_what_a_killed_program_had_copied_goes_with_the_next_one(fit, tmp_path, results):
    left = results / ".syncer-killed"
    (left / "vault").mkdir(parents=True)
    fit(saving, run={"storage_path": "vault://b", "storage_filesystem": Nesting(tmp_path / "vault")})
    assert not left.exists()
    assert not [path for path in results.iterdir() if path.name != "e"]


def test_settings_of_older_releases_are_refused_with_what_to_give():
    with pytest.raises(ConfigError, match=r"no setting 'syncer'. Give RunConfig\(storage_filesystem="):
        SyncConfig(syncer="aws s3 sync {source} {target}")
    with pytest.raises(ConfigError, match=r"no setting 'upload_dir'. Give RunConfig\(storage_path="):
        SyncConfig(upload_dir="s3://b")
    with pytest.raises(ConfigError, match=r"no setting 'local_dir'. Give storage_path"):
        tune.RunConfig(local_dir="b")
