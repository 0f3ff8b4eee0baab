"""Rule for access to a dashboard server. This module needs no package of the servers."""

from __future__ import annotations

import hmac
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})


@dataclass(frozen=True)
class Access:
    """Rule for access to a server.

    Args:
        token: token that was shown to the user.
        host: address on which the server listens.
    """

    token: str
    host: str

    def __post_init__(self) -> None:
        if not self._is_loopback:
            _ = self._names  # the names are resolved now, so that a slow lookup does not delay requests later

    def knows_host(self, header: str) -> bool:
        """Return True if a `Host` header names this server.

        Another site can let its own name resolve to this machine (DNS rebinding), so only the machine's own
        names are accepted. IP addresses are always accepted, because they need no resolution.
        """
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match["name"].lower()
        if self._is_loopback:
            return name in _LOOPBACK or name.strip("[]") == self.host
        return name in self._names or _is_address(name)

    def knows_token(self, headers: Iterable[str]) -> bool:
        """Return True if exactly one `Authorization` header exists and contains the token."""
        shown = list(headers)
        scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        return self.is_token(token.strip()) and scheme.lower() == "bearer"

    def is_token(self, shown: str) -> bool:
        """Return True if `shown` is the token; the comparison takes constant time."""
        return hmac.compare_digest(shown.encode(), self.token.encode())

    @property
    def _is_loopback(self) -> bool:
        return self.host == "localhost" or (
            _is_address(self.host) and ipaddress.ip_address(self.host).is_loopback
        )

    @cached_property
    def _names(self) -> frozenset[str]:
        return _LOOPBACK | {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
