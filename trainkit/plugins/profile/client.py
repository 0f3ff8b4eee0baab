"""Traces of a trainer's ranks, requested by any process on the same machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainkit.plugins.profile import ranks


def trace(
    pid: int, path: str | os.PathLike[str], *, steps: int = 5, timeout_s: float = ranks.TRACE_S
) -> Path:
    """Record the next steps of a rank of a running trainer with `torch.profiler`.

    A step is the time from one batch to the next. While the rank is recorded, it is slower, and so are the
    ranks that wait for it.

    Args:
        pid: id of the rank's process, on this machine; `trainkit status` and the dashboard show it.
        path: path of the trace file, as JSON that Perfetto and Chrome's `about:tracing` show.
        steps: number of steps to record, 1 to 100.
        timeout_s: longest wait for these steps, in seconds.

    Returns:
        Absolute path of the file.

    Raises:
        ConfigError: an argument is out of range, or the process is not a rank of a trainer.
        TrainkitError: the rank makes no steps, has ended, or another trace of it is being recorded.
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
