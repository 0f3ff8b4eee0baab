"""Scripts in the form of Accelerate's and torchrun's own, under trainkit and under their launchers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.local.programs import Programs

SCRIPTS = Path(__file__).parent / "run_scripts"
TORCHRUN, ACCELERATE, TRAINKIT = "torch.distributed.run", "accelerate.commands.launch", "trainkit run"
FLAGS = {
    TORCHRUN: ("--standalone", "--nproc-per-node", "2"),
    # On two ranks without a GPU, it begins them as torchrun does when told of GPUs, and by MPI else.
    ACCELERATE: ("--multi_gpu", "--num_machines", "1", "--dynamo_backend", "no", "--num_processes", "2"),
}

pytestmark = pytest.mark.timeout(1300)


@pytest.fixture(autouse=True)
def on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def printed(
    folder: Path, launcher: str, script: str, *arguments: str, flags: tuple[str, ...] = FLAGS[TORCHRUN]
) -> tuple[list[str], int, str]:
    """Return the lines that a script prints on two ranks, its launcher's exit code, and what it tells."""
    folder.mkdir(exist_ok=True)
    programs = Programs(folder)
    command = ("-m", *launcher.split(), *flags)
    program = programs.begin((SCRIPTS / f"{script}.py").read_text(), *arguments, flags=command)
    try:
        out, err = program.communicate(timeout=600)
        assert programs.nothing_is_left()
    finally:
        programs.end()
    return out.splitlines(), program.returncode, err


@pytest.mark.parametrize(
    ("launcher", "script", "arguments", "lines"),
    [
        (ACCELERATE, "accelerate_vision", ("--cpu", "--mixed_precision", "bf16"), 4),
        (TORCHRUN, "fully_sharded", (), 8),
    ],
)
def test_a_script_computes_what_it_does_under_its_own_launcher(
    launcher: str, script: str, arguments: tuple[str, ...], lines: int, tmp_path: Path
) -> None:
    """Two ranks print each loss to its last bit."""
    flags = FLAGS[launcher]
    theirs, code, err = printed(tmp_path / "theirs", launcher, script, *arguments, flags=flags)
    assert code == 0, err[-4000:]
    ours, code, err = printed(tmp_path / "ours", TRAINKIT, script, *arguments, flags=flags)
    assert code == 0, err[-4000:]
    assert len(ours) >= lines
    assert ours == theirs


def test_a_restart_goes_on_from_the_snapshot_as_torchruns_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the store that torchrun's agent shares with its ranks, new ones may get a dead rank's address.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    again = (*FLAGS[TORCHRUN], "--max-restarts", "1")
    theirs, code, err = printed(tmp_path / "theirs", TORCHRUN, "snapshots", "5", "2", flags=again)
    assert code == 0, err[-4000:]
    ours, code, err = printed(tmp_path / "ours", TRAINKIT, "snapshots", "5", "2", flags=again)
    assert code == 0, err[-4000:]
    assert "was killed by SIGKILL" in err
    assert len(ours) == 10
    assert ours == theirs
