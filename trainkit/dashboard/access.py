"""Rule of who may ask a server of the dashboard; it needs no package of either server."""

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
    """Rule of who may ask.

    Args:
        token: that was shown to the user.
        host: address that the server listens at.
    """

    token: str
    host: str

    def __post_init__(self) -> None:
        if not self._is_loopback:
            _ = self._names  # to look them up may take long: not while others wait for an answer

    def knows_host(self, header: str) -> bool:
        """Return True if a `Host` header names this server.

        Another site may let its own name resolve to this machine (DNS rebinding), so only the machine's own
        names are accepted. An IP address is always accepted, as it resolves to nothing.
        """
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match["name"].lower()
        if self._is_loopback:
            return name in _LOOPBACK or name.strip("[]") == self.host
        return name in self._names or _is_address(name)

    def knows_token(self, headers: Iterable[str]) -> bool:
        """Return True if the only `Authorization` header brings the token."""
        shown = list(headers)
        scheme, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        return self.is_token(token.strip()) and scheme.lower() == "bearer"

    def is_token(self, shown: str) -> bool:
        """Return True if `shown` is the token; the comparison takes the same time wherever they differ."""
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
