"""Traces of a trainer's ranks; any process on the same machine can request a trace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainkit.plugins.profile import ranks


def trace(
    pid: int, path: str | os.PathLike[str], *, steps: int = 5, timeout_s: float = ranks.TRACE_S
) -> Path:
    """Record the next steps of a rank of a running trainer with `torch.profiler`.

    A step is the time from one batch to the next. The rank is slower during the recording, and other ranks
    may have to wait for it.

    Args:
        pid: process id of the rank on this machine, as `trainkit status` and the dashboard show it.
        path: path of the trace file to write: JSON that Perfetto and Chrome's `about:tracing` can show.
        steps: number of steps to record, 1 to 100.
        timeout_s: seconds to wait until these steps are recorded.

    Returns:
        Absolute path of the trace file.

    Raises:
        ConfigError: an argument is out of range, or the process is not a rank of a trainer.
        TrainkitError: the rank makes no steps or has ended, or another trace of the rank is being recorded.
    """
    target = Path(path).expanduser().absolute()
    with ranks.trace(pid, target.parent, steps, timeout_s) as recorded:
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                shutil.copyfileobj(recorded, file)
            # The file is renamed when it is complete, so that nobody reads a partial file.
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    return target
