"""Checkpoints on disk: whole or not at all, and plain."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trainkit.errors import CheckpointError
from trainkit.train.checkpoint import files
from trainkit.train.checkpoint.files import CheckpointMetadata
from trainkit.train.distributed.process_group import ProcessGroup

HEADER = CheckpointMetadata(epoch=3, global_step=40, world_size=2)


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    module = nn.BatchNorm1d(3)
    state = {
        "model": module.state_dict(),
        "note": {"a": [1, (2.5, None)], "b": {"x"}},
        "tensor": torch.arange(3),
    }
    files.write(tmp_path / "c", state, HEADER)
    loaded, header = files.read(tmp_path / "c")
    assert header == HEADER
    assert loaded["note"] == state["note"]
    assert torch.equal(loaded["tensor"], torch.arange(3))
    assert loaded["model"]._metadata == module.state_dict()._metadata  # type: ignore[attr-defined]
    assert names(tmp_path) == {"c"}


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.StepLR(optimizer, 2),
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 3]),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (epoch + 1)),
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.1, 0.2),
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ExponentialLR(optimizer, 0.9)], [2]
        ),
        lr_scheduler.ReduceLROnPlateau,
    ],
)
def test_schedulers_of_torch_are_plain_enough(tmp_path: Path, make: Any) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    files.write(tmp_path / "c", {"s": scheduler.state_dict(), "o": optimizer.state_dict()}, HEADER)
    loaded, _ = files.read(tmp_path / "c")
    assert loaded["s"] == scheduler.state_dict()
    assert loaded["o"] == optimizer.state_dict()


def test_what_is_not_plain_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state\['operator'\]\['sampler'\]\[1\] is a random.Random"):
        files.write(tmp_path / "c", {"operator": {"sampler": [0, random.Random()]}}, HEADER)
    assert names(tmp_path) == set()


def test_a_checkpoint_is_replaced_whole(tmp_path: Path) -> None:
    for number in range(3):
        files.write(tmp_path / "c", {"number": number}, CheckpointMetadata(number, number, 1))
        assert files.read(tmp_path / "c")[0] == {"number": number}
        assert names(tmp_path) == {"c"}


def test_folders_that_are_no_checkpoints_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    with pytest.raises(CheckpointError, match="exists and is not a checkpoint"):
        files.write(tmp_path / "thesis", {}, HEADER)
    assert names(tmp_path / "thesis") == {"chapter1.tex"}
    (tmp_path / "empty").mkdir()
    files.write(tmp_path / "empty", {}, HEADER)


def flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("state.pt", lambda data: data[:-100], "is damaged: state.pt has a wrong size or checksum"),
        ("state.pt", flip_a_bit, "is damaged: state.pt has a wrong size or checksum"),
        (
            "checkpoint.json",
            lambda data: data.replace(b'"global_step": 40', b'"global_step": 41'),
            "is damaged: checkpoint.json does not match its checksum",
        ),
        ("state.pt", None, "is not a complete checkpoint: .*state.pt is missing"),
        ("checkpoint.json", None, "is not a complete checkpoint: .*checkpoint.json is missing"),
        ("checkpoint.json", lambda data: data[:20], "can't be read"),
        (
            "checkpoint.json",
            lambda _: json.dumps({"format": files.FORMAT}).encode(),
            "can't be read: 'version'",
        ),
        ("checkpoint.json", lambda _: b"{}", "its checkpoint.json has other content"),
        (
            "checkpoint.json",
            lambda data: json.dumps({**json.loads(data), "version": 99}).encode(),
            "format version 99, but this trainkit reads up to 1",
        ),
        ("checkpoint.json", lambda _: b"[]", "its checkpoint.json has other content"),
    ],
)
def test_damage_is_found_and_told(tmp_path: Path, name: str, change: Any, text: str) -> None:
    files.write(tmp_path / "c", {"weights": torch.randn(1000)}, HEADER)
    file = tmp_path / "c" / name
    if change is None:
        file.unlink()
    else:
        before = file.read_bytes()
        file.write_bytes(change(before))
        assert file.read_bytes() != before
    with pytest.raises(CheckpointError, match=text):
        files.read(tmp_path / "c")


def test_a_checkpoint_of_earlier_versions_has_no_checksum_of_its_own(tmp_path: Path) -> None:
    files.write(tmp_path / "c", {"number": 1}, HEADER)
    header = tmp_path / "c" / "checkpoint.json"
    content = json.loads(header.read_text())
    del content["crc32"]
    header.write_text(json.dumps(content))
    assert files.read(tmp_path / "c") == ({"number": 1}, HEADER)


class Trap:
    def __reduce__(self) -> Any:
        return os.system, ("touch trapped",)


def test_reading_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files.write(tmp_path / "c", {}, HEADER)
    torch.save({"trap": Trap()}, tmp_path / "c" / "state.pt")
    header = json.loads((tmp_path / "c" / "checkpoint.json").read_text())
    header["files"]["state.pt"] = files.fingerprint(tmp_path / "c" / "state.pt")
    del header["crc32"]
    (tmp_path / "c" / "checkpoint.json").write_text(json.dumps(header))
    with pytest.raises(CheckpointError, match="can't be read"):
        files.read(tmp_path / "c")
    assert not (tmp_path / "trapped").exists()


WRITER = """
import sys, torch
from pathlib import Path
from trainkit.train import checkpoint
number = 0
while True:
    number += 1
    state = {"number": number, "weights": torch.full((200_000,), float(number))}
    checkpoint.write(Path(sys.argv[1]), state, checkpoint.Metadata(number, number, 1))
    print(number, flush=True)
"""


@pytest.mark.external
def test_a_killed_writer_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    where = tmp_path / "c"
    generator = random.Random(0)
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(where)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(generator.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        state, header = files.read(where)
        assert header.epoch == state["number"] >= acknowledged
        assert torch.equal(state["weights"], torch.full((200_000,), float(state["number"])))
    files.write(where, {}, HEADER)
    assert names(tmp_path) == {"c"}, "what killed writers left beside it is removed"


def test_without_an_exchange_of_folders_a_kill_leaves_one_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    where = tmp_path / "c"
    for number in range(2):
        files.write(where, {"number": number}, HEADER)
    assert names(tmp_path) == {"c"}
    # The moment between the two renames:
    where.rename(tmp_path / ".c.previous")
    assert files.read(where)[0] == {"number": 1}
    files.write(where, {"number": 2}, HEADER)
    files.write(where, {"number": 3}, HEADER)
    assert files.read(where)[0] == {"number": 3}
    assert names(tmp_path) == {"c"}


@pytest.mark.external
@pytest.mark.parametrize(("where", "sharded"), [("models", True), ("operator", False)])
def test_a_full_disk_is_told_with_what_is_free(where: str, sharded: bool, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk takes root")

    def save(values: int) -> None:
        state = {where: {"weights": torch.zeros(values)}}
        if sharded:
            files.write_sharded(folder / "c", state, HEADER, ProcessGroup())
        else:
            files.write(folder / "c", state, HEADER)

    try:
        save(1000)
        with pytest.raises(CheckpointError) as caught:
            save(1_000_000)
        text = re.escape(f"MB are free in {folder}); an earlier checkpoint there is unchanged")
        assert re.search(rf"was not written \(.*No space left on device.*; \d\.\d {text}$", str(caught.value))
        assert names(folder) == {"c"}
        files.read(folder / "c")
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
