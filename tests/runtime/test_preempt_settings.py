"""Settings for the announced end of a job, from arguments of `init` and from environment variables."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from trainkit.errors import ConfigError
from trainkit.settings import PreemptSettings


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREEMPT_SIGNALS", "STOP_BEFORE_S", "JOB_END_TIME"):
        monkeypatch.delenv(f"TRAINKIT_{name}", raising=False)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)


def test_sigterm_always_ends_the_program_cleanly() -> None:
    assert PreemptSettings.of() == PreemptSettings((signal.SIGTERM,), None)
    assert PreemptSettings.of(["usr1"]).numbers == (signal.SIGTERM, signal.SIGUSR1)
    numbers: Any = [signal.SIGUSR1]
    assert PreemptSettings.of(numbers).numbers == (signal.SIGTERM, signal.SIGUSR1)


def test_an_argument_replaces_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINKIT_PREEMPT_SIGNALS", "USR1, SIGUSR2")
    assert PreemptSettings.of().numbers == (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
    assert PreemptSettings.of(["SIGUSR2"]).numbers == (signal.SIGTERM, signal.SIGUSR2)
    assert PreemptSettings.of([]).numbers == (signal.SIGTERM,)


@pytest.mark.parametrize("names", [["SIGKILL"], "SIGUSR1", ["USR1", "CHLD"]])
def test_another_signal_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"preempt_signals=.* is not supported: give a list of"):
        PreemptSettings.of(names)


def test_the_time_to_stop_lies_before_the_end_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set TRAINKIT_JOB_END_TIME"):
        PreemptSettings.of(before_s=60)
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1000")
    assert PreemptSettings.of(before_s=60).stop_at == 940
    monkeypatch.setenv("TRAINKIT_STOP_BEFORE_S", "10")
    assert PreemptSettings.of().stop_at == 990
    monkeypatch.setenv("TRAINKIT_JOB_END_TIME", "2000")
    assert PreemptSettings.of().stop_at == 1990
    with pytest.raises(ConfigError, match="stop_before_s must be a number of 0 or more, not -1"):
        PreemptSettings.of(before_s=-1)
    monkeypatch.setenv("TRAINKIT_JOB_END_TIME", "noon")
    with pytest.raises(ConfigError, match="must be numbers: could not convert"):
        PreemptSettings.of(before_s=60)
