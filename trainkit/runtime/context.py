"""Data about the session, which `init` returns."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from trainkit.runtime.session import engine


def address_info(node_id: str, session_dir: str | None) -> dict[str, Any]:
    """Return data about a session on this machine, with Ray's names as keys.

    Values for missing services are None.
    """
    return {
        "node_ip_address": "127.0.0.1",
        "node_id": node_id,
        "session_dir": session_dir,
        "webui_url": "",
        **dict.fromkeys(
            (
                "address",
                "dashboard_agent_listen_port",
                "gcs_address",
                "metrics_export_port",
                "object_store_address",
                "raylet_socket_name",
                "redis_address",
            )
        ),
    }


class SessionContext(Mapping[str, Any]):
    """Return value of `init`, with data about the session. As a context manager, the object ends the session.

    Args:
        address_info: data about the session, with Ray's names as keys.
        shutdown: function that ends the session.

    Attributes:
        address_info: data by Ray's names, such as "node_id", "address" and "session_dir". Values for services
            that do not exist, such as "gcs_address" on one machine, are None. `context["node_id"]` also reads
            a value of `address_info`.
        dashboard_url: address of Ray's dashboard; "" without a dashboard.
        python_version: Python version of this process.
        ray_version: version of Ray; None on the other engines.
    """

    def __init__(self, address_info: Mapping[str, Any], shutdown: Callable[[], None]) -> None:
        self.address_info = dict(address_info)
        self.dashboard_url: str = self.address_info.get("webui_url") or ""
        self.python_version = platform.python_version()
        self.ray_version: str | None = self.address_info.pop("ray_version", None)
        self._shutdown = shutdown

    def disconnect(self) -> None:
        """End the session, as `shutdown` does."""
        self._shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shutdown()

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __repr__(self) -> str:
        return f"SessionContext(dashboard_url={self.dashboard_url!r}, address_info={self.address_info})"


def promises() -> frozenset[str]:
    """Return the names of the promises that the current engine keeps; see `trainkit.runtime.engine`."""
    return engine().promises
