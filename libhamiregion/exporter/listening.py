"""Where a server listens: ``127.0.0.1:9394``, ``:9394`` for all addresses, ``[::1]:9394``."""

from __future__ import annotations

import errno
import re
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

_BACKLOG: Final = 128
# The kernel keeps as much for each slow client; without a bound some 4 MiB.
_SEND_BUFFER_BYTES: Final = 256 * 1024
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})"
)
_REASONS: Final = {
    errno.EADDRINUSE: "the port is in use",
    errno.EADDRNOTAVAIL: "this machine does not have that address",
    errno.EACCES: "not allowed; ports under 1024 need the right to bind them",
}


class ListenError(Exception):
    """An address that cannot be listened on; the message is one line that says why."""


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``:PORT`` for all addresses, or ``[IPv6]:PORT``.

    Returns:
        Host, empty for all addresses, and port; port 0 lets the system choose one.

    Raises:
        ValueError: It is something else.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{text!r} is no address such as 127.0.0.1:9394, :9394 or [::1]:9394")
    host = match["v6"] or match["host"]
    return ("" if host == "::" else host), int(match["port"])


def listen_on(addresses: Iterable[str]) -> tuple[socket.socket, ...]:
    """Open what accepts connections at these addresses.

    Raises:
        ListenError: It is not possible to listen at one of them.
        ValueError: One is no address.
    """
    opened: list[socket.socket] = []
    parsed = [(text, *parse_listen(text)) for text in addresses]
    try:
        for text, host, port in parsed:
            try:
                opened.append(_listen(host, port))
            except (OSError, UnicodeError) as error:
                code = getattr(error, "errno", None) or 0
                reason = _REASONS.get(code) or getattr(error, "strerror", None) or str(error)
                raise ListenError(f"cannot listen on {text}: {reason}") from error
    except ListenError:
        for each in opened:
            each.close()
        raise
    return tuple(opened)


def _listen(host: str, port: int) -> socket.socket:
    if host:
        # A name may have several addresses; IPv4 is the one that all clients have.
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, target = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.create_server(target, family=family, backlog=_BACKLOG)
    elif socket.has_dualstack_ipv6():
        listener = socket.create_server(
            ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
        )
    else:
        listener = socket.create_server(("", port), backlog=_BACKLOG)
    # Inherited by what is accepted.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setblocking(False)
    return listener
