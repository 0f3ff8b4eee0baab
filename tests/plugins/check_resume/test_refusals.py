"""Scripts that can't be checked: exit code 2, and one text that says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainkit.cli.main import main


@pytest.mark.parametrize(
    ("flags", "script", "says"),
    [
        ((), "raise SystemExit(3)", "the script failed without a kill, exit code 3"),
        ((), "print('hello')", "no optimizer step was recorded"),
        ((), "print('hello')", "hello"),
        (("--timeout", "0.3"), "import time; time.sleep(600)", "did not end or reach step 20 within 0.3 s"),
        (("--link", "nothing"), "", "No such file or directory: "),
        (("--workers", "2"), "", "--workers 2,3 and {workers} in the command"),
        (
            ("--kill-at", "19"),
            "",
            "the run has 20 optimizer steps: a check needs at least 3",
        ),
    ],
)
def test_a_script_that_cannot_be_checked(
    flags: tuple[str, ...],
    script: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text(script)
    monkeypatch.chdir(tmp_path)
    assert main(["check-resume", *flags, "train.py"]) == 2
    assert says in capsys.readouterr().err


def test_a_program_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-resume", "no-such-program"]) == 2
    assert "there is no script and no program 'no-such-program'" in capsys.readouterr().err


def test_a_script_works_in_an_empty_folder_and_finds_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = "import os, sys; sys.exit(f'{sorted(os.listdir())} {os.getcwd() == sys.argv[1]} {sys.argv[2:]}')"
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "data").mkdir()
    (tmp_path / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["check-resume", "--link", "data", "train.py", "{run}", "config.yaml"]) == 2
    assert f"['data'] True ['{tmp_path / 'config.yaml'}']" in capsys.readouterr().err
