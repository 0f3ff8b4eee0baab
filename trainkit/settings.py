"""All environment variables that trainkit reads. The names of trainkit's own variables start with TRAINKIT_.

Each variable is read at the time of the call, so that a test or a notebook can change it.

| variable | meaning | default |
| --- | --- | --- |
| TRAINKIT_RUNTIME_DIR | folder for the sessions' folders | $XDG_RUNTIME_DIR, else the temporary folder |
| TRAINKIT_NAMESPACE | namespace of named actors, if `init` gives none | default |
| TRAINKIT_LOG_DIR | folder for the output of workers | trainkit-USER/logs in the temporary folder |
| TRAINKIT_DEDUP_LOGS | 0: repeat a line that several workers print | show the line once, with a count |
| TRAINKIT_TIMELINE | 1: sessions record when their calls run, for `trainkit.timeline` | 0 |
| TRAINKIT_IGNORE_UNHANDLED_ERRORS | 1: hide failures of calls whose results are not read | show each once |
| TRAINKIT_RESULTS_DIR | folder for experiments | ~/trainkit_results |
| TRAINKIT_STOP_GRACE_S | seconds to end after Ctrl-C, SIGTERM or the time budget | training 20, trials 5 |
| TRAINKIT_PREEMPT_SIGNALS | signals that end the program like SIGTERM, such as USR1,USR2 | SIGTERM only |
| TRAINKIT_STOP_BEFORE_S | seconds before the end of the job at which the program ends like by SIGTERM | off |
| TRAINKIT_JOB_END_TIME | Unix time at which the job ends | $SLURM_JOB_END_TIME |
| TRAINKIT_CHDIR_TO_TRIAL_DIR | 0: trials run in the program's folder | each trial runs in its own folder |
| TRAINKIT_FULL_TRACEBACK | 1: tracebacks also show trainkit's own frames | trainkit's frames are left out |

trainkit itself sets SESSION_MARK, EXPERIMENT_MARK, PAUSES and TERMINAL for the processes that it starts.

These variables of Ray are also read, if trainkit's own variable is not set:

| variable | meaning |
| --- | --- |
| RAY_DEDUP_LOGS | TRAINKIT_DEDUP_LOGS |
| RAY_IGNORE_UNHANDLED_ERRORS | TRAINKIT_IGNORE_UNHANDLED_ERRORS |
| RAY_PROFILING | TRAINKIT_TIMELINE |
| TUNE_RESULT_DIR | TRAINKIT_RESULTS_DIR |
| TUNE_FORCE_TRIAL_CLEANUP_S | TRAINKIT_STOP_GRACE_S |
| RAY_CHDIR_TO_TRIAL_DIR | TRAINKIT_CHDIR_TO_TRIAL_DIR |
| TUNE_DISABLE_DATED_SUBDIR | 1: an unnamed experiment is named after its trainable, without a date |
| TUNE_DISABLE_AUTO_CALLBACK_LOGGERS | 1: no default loggers are added |
| TUNE_DISABLE_STRICT_METRIC_CHECKING | 1: TuneConfig(strict_metric_checking=False) |

trainkit sets OLD_WORKING_DIR for trials. trainkit ignores all other variables of Ray.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainkit.errors import ConfigError

logger = logging.getLogger("trainkit")

RUNTIME_DIR = "TRAINKIT_RUNTIME_DIR"
RESULTS_DIR = "TRAINKIT_RESULTS_DIR"
LOG_DIR = "TRAINKIT_LOG_DIR"
DEDUP_LOGS = "TRAINKIT_DEDUP_LOGS"
IGNORE_UNHANDLED_ERRORS = "TRAINKIT_IGNORE_UNHANDLED_ERRORS"
TIMELINE = "TRAINKIT_TIMELINE"
STOP_GRACE_S, PREEMPT_SIGNALS = "TRAINKIT_STOP_GRACE_S", "TRAINKIT_PREEMPT_SIGNALS"
JOB_END_TIME = "TRAINKIT_JOB_END_TIME"

SESSION_MARK = "TRAINKIT_SESSION_MARK"
"""Environment variable with the path of a session's folder. The session's processes inherit the variable."""

EXPERIMENT_MARK = "TRAINKIT_EXPERIMENT"
"""Environment variable that marks an experiment's processes.

Only the marked processes run the experiment's tasks.
"""

TRIAL_ID, TRIAL_DIR = "TRAINKIT_TRIAL_ID", "TRAINKIT_TRIAL_DIR"
"""Environment variables of a sweep's program: the id and the folder of its trial."""

PAUSES = "TRAINKIT_PAUSES"
"""Environment variable with the file of a worker group's `PausePage`, for `train.preempted()`."""

TERMINAL = "TRAINKIT_TERMINAL"
"""Environment variable with the device of the program's standard input, for `breakpoint()` in a worker."""

ELSEWHERE = "elsewhere"
"""Subfolder of a session's folder with links to folders that are removed with the session."""


def runtime_dir() -> Path:
    """Return the parent folder of the sessions' folders."""
    own = os.environ.get(RUNTIME_DIR) or os.environ.get("XDG_RUNTIME_DIR")
    return Path(own or tempfile.gettempdir())


def dedup_logs() -> bool:
    """Return True if a line that several workers print is shown only once, with a count."""
    return (os.environ.get(DEDUP_LOGS) or os.environ.get("RAY_DEDUP_LOGS") or "1") != "0"


def tells_unhandled_errors() -> bool:
    """Return True if a call's failure is shown when no program reads the call's result."""
    ours = os.environ.get(IGNORE_UNHANDLED_ERRORS)
    return (ours or os.environ.get("RAY_IGNORE_UNHANDLED_ERRORS") or "0") == "0"


def records_calls() -> bool:
    """Return True if sessions record the times of their calls."""
    return (os.environ.get(TIMELINE) or os.environ.get("RAY_PROFILING") or "0") != "0"


def log_dir() -> Path:
    """Return the folder that keeps the output of the workers of the newest ten sessions."""
    own = os.environ.get(LOG_DIR)
    return (
        Path(own).expanduser() if own else Path(tempfile.gettempdir()) / f"trainkit-{_user_name()}" / "logs"
    )


def log_dir_is_own() -> bool:
    """Return True if `log_dir` is the default folder, which must not have been created by another user."""
    return not os.environ.get(LOG_DIR)


def _user_name() -> str:
    import pwd  # Windows lacks this module

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user in a container may have no name
        return str(os.getuid())


def default_namespace() -> str:
    """Return the default namespace of named actors, which all of a user's programs share."""
    return os.environ.get("TRAINKIT_NAMESPACE") or "default"


def results_dir() -> Path:
    """Return the default folder for experiments, if RunConfig names no folder."""
    own = os.environ.get(RESULTS_DIR) or os.environ.get("TUNE_RESULT_DIR")
    return Path(own or "~/trainkit_results").expanduser()


def full_traceback() -> bool:
    """Return True if tracebacks also show the frames of trainkit."""
    return os.environ.get("TRAINKIT_FULL_TRACEBACK", "0") != "0"


def stop_grace_s(*, training: bool = False) -> float:
    """Return the seconds that a trial or a training has to end before it is killed.

    Args:
        training: True for the workers of a trainer. The default for workers is well below 30 s, after which
            Slurm and Kubernetes send SIGKILL.
    """
    text = os.environ.get(STOP_GRACE_S) or os.environ.get("TUNE_FORCE_TRIAL_CLEANUP_S")
    return float(text or (20 if training else 5))


def preempt_signals() -> list[str]:
    """Return the names of the signals that end the program cleanly, in addition to SIGTERM."""
    return os.environ.get(PREEMPT_SIGNALS, "").replace(",", " ").split()


def stop_before_s() -> float | None:
    """Return the seconds before the end of the job at which the program ends; None for no such end."""
    text = os.environ.get("TRAINKIT_STOP_BEFORE_S")
    return float(text) if text else None


def job_end_time() -> float | None:
    """Return the Unix time at which the job ends; None if it is unknown."""
    text = os.environ.get(JOB_END_TIME) or os.environ.get("SLURM_JOB_END_TIME")
    return float(text) if text else None


NUMBERS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals by which schedulers announce the end of a job."""


@dataclass(frozen=True)
class PreemptSettings:
    """Settings for the announced end of a job.

    Attributes:
        numbers: signals that end the program cleanly.
        stop_at: Unix time at which the program ends as if by SIGTERM; None if it does not end by itself.
    """

    numbers: tuple[int, ...] = (signal.SIGTERM,)
    stop_at: float | None = None

    @classmethod
    def of(cls, names: Sequence[str] | None = None, before_s: float | None = None) -> PreemptSettings:
        """Return settings for arguments of `init`; environment variables replace a missing argument.

        Raises:
            ConfigError: a signal is not supported, or the end of the job is unknown.
        """
        given = preempt_signals() if names is None else names
        full = [f"SIG{str(getattr(name, 'name', name)).upper().removeprefix('SIG')}" for name in given]
        if isinstance(names, str) or (unknown := sorted(set(full) - {number.name for number in NUMBERS})):
            wrong = repr(names) if isinstance(names, str) else ", ".join(unknown)
            raise ConfigError(
                f"preempt_signals={wrong} is not supported: give a list of SIGTERM, SIGUSR1 and SIGUSR2"
            )
        numbers = tuple(number for number in NUMBERS if number.name in ("SIGTERM", *full))
        try:
            before_s, end = stop_before_s() if before_s is None else before_s, job_end_time()
        except ValueError as error:
            raise ConfigError(
                "TRAINKIT_STOP_BEFORE_S, TRAINKIT_JOB_END_TIME and SLURM_JOB_END_TIME must be numbers: "
                f"{error}"
            ) from error
        if before_s is None:
            return cls(numbers)
        if not 0 <= before_s < math.inf:
            raise ConfigError(f"stop_before_s must be a number of 0 or more, not {before_s!r}")
        if end is None:
            raise ConfigError(
                "stop_before_s needs the end of the job, but SLURM_JOB_END_TIME is missing: set "
                "TRAINKIT_JOB_END_TIME to the Unix time at which the job ends"
            )
        return cls(numbers, end - before_s)


# --- variables of Ray Tune ------------------------------------------------------------------------

OLD_WORKING_DIR = "TUNE_ORIG_WORKING_DIR"
"""Environment variable with the program's folder, for trials that run in their own folders."""


def experiments_are_dated() -> bool:
    """Return True if an experiment without a name gets the name of its trainable and the date."""
    return os.environ.get("TUNE_DISABLE_DATED_SUBDIR", "0") != "1"


def chdir_asked() -> bool:
    """Return True if trials run in their own folders by default, when RunConfig does not set
    `chdir_to_trial_dir`.
    """
    ours = os.environ.get("TRAINKIT_CHDIR_TO_TRIAL_DIR")
    return (ours or os.environ.get("RAY_CHDIR_TO_TRIAL_DIR") or "1") != "0"


def loggers_come_by_themselves() -> bool:
    """Return True if every experiment gets the default loggers."""
    return os.environ.get("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "0") != "1"


def metric_is_required() -> bool:
    """Return True if every trial must report the metric before it ends."""
    return os.environ.get("TUNE_DISABLE_STRICT_METRIC_CHECKING", "0") != "1"
