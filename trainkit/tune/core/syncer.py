"""Copies of experiments that a user's own class makes, by the methods of Ray 2.3's Syncer."""

from __future__ import annotations

from abc import ABC, abstractmethod


class Syncer(ABC):
    """Copier of folders, for `RunConfig(storage_path=..., storage_filesystem=MySyncer())`.

    All methods are called in one thread at a time, `wait` after each of the others. What they raise, or
    False, means that the copy was not made; it is told of once, and made in the next round.

    Args:
        sync_period: kept for classes that read it; `SyncConfig(sync_period=)` says how often it is called.
        sync_timeout: the same.
    """

    def __init__(self, sync_period: float = 300, sync_timeout: float = 1800) -> None:
        self.sync_period = sync_period
        self.sync_timeout = sync_timeout

    @abstractmethod
    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy what is in a local folder to an address, over what is there; False: it can't begin now."""

    @abstractmethod
    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy what is at an address into a local folder; False: it can't begin now."""

    @abstractmethod
    def delete(self, remote_dir: str) -> bool:
        """Delete a folder at an address; False: it can't begin now."""

    def wait(self, timeout: float | None = None) -> None:
        """Return when what was begun last is done, and raise if it failed."""
