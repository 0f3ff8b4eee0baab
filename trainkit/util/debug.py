"""Messages that are wanted once, by the names of `ray.util.debug`."""

from __future__ import annotations

import threading

from trainkit.clock import SYSTEM

_PERIOD_S = 60.0
_lock = threading.Lock()
_seen: set[str] = set()
_disabled = False
_periodic = False
_last = 0.0


def log_once(key: str) -> bool:
    """Return True for the first call with this key in this process, else False.

    Args:
        key: names the message, as in `if log_once("slow"): logger.warning(...)`.
    """
    global _last
    with _lock:
        if _disabled:
            return False
        now = SYSTEM.monotonic()
        if _periodic and now - _last > _PERIOD_S:
            _seen.clear()
        if key in _seen:
            return False
        _seen.add(key)
        _last = now
        return True


def disable_log_once_globally() -> None:
    """Have `log_once` return False from now on."""
    global _disabled
    _disabled = True


def enable_periodic_logging() -> None:
    """Have `log_once` return True for a key again once it has not done so for a minute."""
    global _periodic
    _periodic = True
