"""Scripts in the form of Accelerate's examples and torchrun's tutorials, under trainkit and torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.local.programs import Programs

SCRIPTS = Path(__file__).parent / "run_scripts"
TORCHRUN, TRAINKIT = ("torch.distributed.run",), ("trainkit", "run")

pytestmark = pytest.mark.timeout(1300)


@pytest.fixture(autouse=True)
def on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def printed(
    folder: Path, module: tuple[str, ...], script: str, *arguments: str, flags: tuple[str, ...] = ()
) -> tuple[list[str], int, str]:
    """Return the lines that a script prints on two ranks, its launcher's exit code, and what it tells."""
    folder.mkdir(exist_ok=True)
    programs = Programs(folder)
    launcher = ("-m", *module, "--standalone", "--nproc-per-node", "2", *flags)
    program = programs.begin((SCRIPTS / f"{script}.py").read_text(), *arguments, flags=launcher)
    try:
        out, err = program.communicate(timeout=600)
        assert programs.nothing_is_left()
    finally:
        programs.end()
    return out.splitlines(), program.returncode, err


@pytest.mark.parametrize(
    ("script", "arguments", "lines"),
    [
        ("accelerate_language", ("--cpu",), 3),
        ("accelerate_vision", ("--cpu", "--mixed_precision", "bf16"), 4),
        ("accelerate_features", ("--cpu",), 13),
        ("gpt", (), 5),
        ("collectives", (), 5),
        ("fully_sharded", (), 8),
    ],
)
def test_a_script_computes_what_it_does_under_torchrun(
    script: str, arguments: tuple[str, ...], lines: int, tmp_path: Path
) -> None:
    """Two ranks print each loss to its last bit."""
    theirs, code, err = printed(tmp_path / "theirs", TORCHRUN, script, *arguments)
    assert code == 0, err[-4000:]
    ours, code, err = printed(tmp_path / "ours", TRAINKIT, script, *arguments)
    assert code == 0, err[-4000:]
    assert len(ours) >= lines
    assert ours == theirs


def test_a_restart_goes_on_from_the_snapshot_as_torchruns_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the store that torchrun's agent shares with its ranks, new ones may get a dead rank's address.
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    again = ("--max-restarts", "1")
    theirs, code, err = printed(tmp_path / "theirs", TORCHRUN, "snapshots", "5", "2", flags=again)
    assert code == 0, err[-4000:]
    ours, code, err = printed(tmp_path / "ours", TRAINKIT, "snapshots", "5", "2", flags=again)
    assert code == 0, err[-4000:]
    assert "was killed by SIGKILL" in err
    assert len(ours) == 10
    assert ours == theirs
