"""Every environment variable that trainkit reads, in one place; all start with TRAINKIT_.

Read at the time of the call, so a test or a notebook can change them.

| variable | meaning | default |
| --- | --- | --- |
| TRAINKIT_RUNTIME_DIR | where sessions have their folders | $XDG_RUNTIME_DIR, else the temporary folder |
| TRAINKIT_NAMESPACE | namespace of named actors, where `init` names none | default |
| TRAINKIT_LOG_DIR | where what workers print is kept | trainkit-USER/logs in the temporary folder |
| TRAINKIT_RESULTS_DIR | where experiments are written | ~/trainkit_results |
| TRAINKIT_STOP_GRACE_S | seconds a trial has to its next report after Ctrl-C or the time budget | 5 |

One more, SESSION_MARK, is set by trainkit for the processes that it starts, to find them by.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

LOG_DIR = "TRAINKIT_LOG_DIR"

SESSION_MARK = "TRAINKIT_SESSION_MARK"
"""The path of a session's folder: every process of it is started with it, and hands it on."""


def runtime_dir() -> Path:
    """Folder that sessions make their folders in."""
    own = os.environ.get("TRAINKIT_RUNTIME_DIR") or os.environ.get("XDG_RUNTIME_DIR")
    return Path(own or tempfile.gettempdir())


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
    return Path(os.environ.get("TRAINKIT_RESULTS_DIR") or "~/trainkit_results").expanduser()


def stop_grace_s() -> float:
    """Seconds that a trial has to reach its next report once the experiment must end; then it is killed."""
    return float(os.environ.get("TRAINKIT_STOP_GRACE_S") or 5)
