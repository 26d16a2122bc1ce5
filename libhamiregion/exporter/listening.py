"""Addresses to listen on: ``127.0.0.1:9394``, ``:9394`` for all addresses, ``[::1]:9394``."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

# Connections beyond these are lost, and their clients try again after 1, 3, 7 ... seconds.
_BACKLOG: Final = 1024
# The kernel keeps as much for each slow client; without a bound some 4 MiB.
_SEND_BUFFER_BYTES: Final = 256 * 1024
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<v6>[0-9a-fA-F:.]+(?:%\w+)?)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})"
)


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
    """Open the sockets that accept connections at these addresses.

    Raises:
        ListenError: It is not possible to listen at one of them.
        ValueError: One is no address.
    """
    opened: list[socket.socket] = []
    for text, (host, port) in [(text, parse_listen(text)) for text in addresses]:
        try:
            opened.append(_listen(host, port))
        except (OSError, UnicodeError) as error:
            for each in opened:
                each.close()
            reason = getattr(error, "strerror", None) or str(error)
            # create_server adds the address.
            raise ListenError(f"cannot listen on {text}: {reason.partition(' (')[0]}") from error
    return tuple(opened)


def _listen(host: str, port: int) -> socket.socket:
    dual = not host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual or ":" in host else socket.AF_INET
    address = (host, port)
    listener = socket.create_server(address, family=family, backlog=_BACKLOG, dualstack_ipv6=dual)
    # Inherited by what is accepted.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setblocking(False)
    return listener
