"""Every environment variable that trainkit reads, in one place; all start with TRAINKIT_.

Read at the time of the call, so a test or a notebook can change them.

| variable | meaning | default |
| --- | --- | --- |
| TRAINKIT_RUNTIME_DIR | where sessions have their folders | $XDG_RUNTIME_DIR, else the temporary folder |
| TRAINKIT_NAMESPACE | namespace of named actors, where `init` names none | default |
| TRAINKIT_LOG_DIR | where what workers print is kept | trainkit-USER/logs in the temporary folder |
| TRAINKIT_DEDUP_LOGS | 0: a line that several workers print is shown each time | once, with a count |
| TRAINKIT_TIMELINE | 1: sessions record when their calls run, for `trainkit.timeline` | 0 |
| TRAINKIT_IGNORE_UNHANDLED_ERRORS | 1: failures that nobody asks for are not shown | they are, once |
| TRAINKIT_RESULTS_DIR | where experiments are written | ~/trainkit_results |
| TRAINKIT_STOP_GRACE_S | seconds a trial has to end after Ctrl-C, SIGTERM or the time budget | 5 |
| TRAINKIT_CHDIR_TO_TRIAL_DIR | 0: trials run where the program does | each runs in its own folder |
| TRAINKIT_FULL_TRACEBACK | 1: tracebacks also show the frames of trainkit itself | they are left out |

SESSION_MARK, EXPERIMENT_MARK and TERMINAL are set by trainkit for processes that it starts.

Of Ray's variables these are heeded, where the one of ours is not set:

| variable | as |
| --- | --- |
| RAY_DEDUP_LOGS | TRAINKIT_DEDUP_LOGS |
| RAY_IGNORE_UNHANDLED_ERRORS | TRAINKIT_IGNORE_UNHANDLED_ERRORS |
| RAY_PROFILING | TRAINKIT_TIMELINE |
| TUNE_RESULT_DIR | TRAINKIT_RESULTS_DIR |
| TUNE_FORCE_TRIAL_CLEANUP_S | TRAINKIT_STOP_GRACE_S |
| RAY_CHDIR_TO_TRIAL_DIR | TRAINKIT_CHDIR_TO_TRIAL_DIR |
| TUNE_DISABLE_DATED_SUBDIR | 1: an experiment without a name has that of its trainable, without a date |
| TUNE_DISABLE_AUTO_CALLBACK_LOGGERS | 1: no logger comes by itself |
| TUNE_DISABLE_STRICT_METRIC_CHECKING | 1: TuneConfig(strict_metric_checking=False) |

OLD_WORKING_DIR is set for trials; the others warn, once.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger("trainkit")

LOG_DIR = "TRAINKIT_LOG_DIR"
DEDUP_LOGS = "TRAINKIT_DEDUP_LOGS"
IGNORE_UNHANDLED_ERRORS = "TRAINKIT_IGNORE_UNHANDLED_ERRORS"
TIMELINE = "TRAINKIT_TIMELINE"

SESSION_MARK = "TRAINKIT_SESSION_MARK"
"""The path of a session's folder: every process of it is started with it, and hands it on."""

EXPERIMENT_MARK = "TRAINKIT_EXPERIMENT"
"""Of processes that serve one experiment: others' tasks are not run by them, nor its own by others."""

TERMINAL = "TRAINKIT_TERMINAL"
"""The device that a program reads its standard input from, for `breakpoint()` in a worker."""

ELSEWHERE = "elsewhere"
"""In a session's folder: links to folders that are removed with it, however it ends."""


def runtime_dir() -> Path:
    """Folder that sessions make their folders in."""
    own = os.environ.get("TRAINKIT_RUNTIME_DIR") or os.environ.get("XDG_RUNTIME_DIR")
    return Path(own or tempfile.gettempdir())


def dedup_logs() -> bool:
    """Return whether a line that several workers print alike is shown once."""
    return (os.environ.get(DEDUP_LOGS) or os.environ.get("RAY_DEDUP_LOGS") or "1") != "0"


def tells_unhandled_errors() -> bool:
    """Return whether failures of calls that nobody asks for are shown."""
    ours = os.environ.get(IGNORE_UNHANDLED_ERRORS)
    return (ours or os.environ.get("RAY_IGNORE_UNHANDLED_ERRORS") or "0") == "0"


def records_calls() -> bool:
    """Return whether sessions record when their calls run."""
    return (os.environ.get(TIMELINE) or os.environ.get("RAY_PROFILING") or "0") != "0"


def log_dir() -> Path:
    """Folder that the output of each session's workers is kept in, the newest ten sessions'."""
    own = os.environ.get(LOG_DIR)
    return (
        Path(own).expanduser() if own else Path(tempfile.gettempdir()) / f"trainkit-{_user_name()}" / "logs"
    )


def log_dir_is_own() -> bool:
    """Whether the folder is the default, which nobody but this user may have made."""
    return not os.environ.get(LOG_DIR)


def _user_name() -> str:
    import pwd  # only on systems that have the local engine

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user need not have a name
        return str(os.getuid())


def default_namespace() -> str:
    """Namespace of named actors: one for all of a user's programs."""
    return os.environ.get("TRAINKIT_NAMESPACE") or "default"


def results_dir() -> Path:
    """Folder that experiments are written to when RunConfig names none."""
    own = os.environ.get("TRAINKIT_RESULTS_DIR") or os.environ.get("TUNE_RESULT_DIR")
    return Path(own or "~/trainkit_results").expanduser()


def full_traceback() -> bool:
    """Return whether tracebacks show the frames of trainkit too."""
    return os.environ.get("TRAINKIT_FULL_TRACEBACK", "0") != "0"


def stop_grace_s() -> float:
    """Seconds that a trial has to end once the experiment must end; then it is killed."""
    return float(os.environ.get("TRAINKIT_STOP_GRACE_S") or os.environ.get("TUNE_FORCE_TRIAL_CLEANUP_S") or 5)


# --- Ray Tune's -----------------------------------------------------------------------------------

OLD_WORKING_DIR = "TUNE_ORIG_WORKING_DIR"
"""Where the program runs, for a trial, which may run in its own folder."""


def experiments_are_dated() -> bool:
    """Return whether an experiment without a name is called by its trainable and the date."""
    return os.environ.get("TUNE_DISABLE_DATED_SUBDIR", "0") != "1"


def chdir_asked() -> bool:
    """Return whether trials run in their own folders, where RunConfig says nothing of it."""
    ours = os.environ.get("TRAINKIT_CHDIR_TO_TRIAL_DIR")
    return (ours or os.environ.get("RAY_CHDIR_TO_TRIAL_DIR") or "1") != "0"


def loggers_come_by_themselves() -> bool:
    """Whether every experiment has the default loggers."""
    return os.environ.get("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "0") != "1"


def metric_is_required() -> bool:
    """Whether a trial that ends must have reported the metric."""
    return os.environ.get("TUNE_DISABLE_STRICT_METRIC_CHECKING", "0") != "1"
