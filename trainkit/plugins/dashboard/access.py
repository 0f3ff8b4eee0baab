"""Rules on who may send requests to a dashboard server.

This module needs none of the packages that the servers need.
"""

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
    """Rules on who may send requests to a server.

    Args:
        token: secret token in the address that the user received.
        host: address on which the server listens.
    """

    token: str
    host: str

    def __post_init__(self) -> None:
        if not self._is_loopback:
            # The names of the machine are looked up in advance, because a slow lookup during a request would
            # delay the answer.
            _ = self._names

    def knows_host(self, header: str) -> bool:
        """Return True if the header `Host` of a request names this server.

        A foreign site can make its own name point to this machine (DNS rebinding), so only the machine's own
        names are accepted. IP addresses are also accepted, because DNS rebinding only works with a name.
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
        """Return True if `shown` is the token. The comparison takes the same time for every `shown`."""
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
