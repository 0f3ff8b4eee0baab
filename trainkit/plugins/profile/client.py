"""Traces of a trainer's ranks, from any process of its machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from trainkit.plugins.profile import ranks


def trace(
    pid: int, path: str | os.PathLike[str], *, steps: int = 5, timeout_s: float = ranks.TRACE_S
) -> Path:
    """Have a rank of a running trainer record its next steps by `torch.profiler`.

    A step goes from one batch to the next. The rank is slower while it is recorded, and so are those that
    wait for it.

    Args:
        pid: of the rank's process, on this machine; see `trainkit status` or the dashboard.
        path: of the file to write: JSON that Perfetto and Chrome's `about:tracing` show.
        steps: 1 to 100.
        timeout_s: for the rank to make them, in seconds.

    Returns:
        The file's path.

    Raises:
        ConfigError: an argument is out of range, or the process is no rank of a trainer.
        TrainkitError: the rank makes no steps, has ended, or is traced by somebody else.
    """
    target = Path(path).expanduser().absolute()
    with ranks.trace(pid, target.parent, steps, timeout_s) as recorded:
        aside = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with aside.open("wb") as file:
                shutil.copyfileobj(recorded, file)
            aside.replace(target)  # so that nobody takes a part for the whole
        finally:
            aside.unlink(missing_ok=True)
    return target
