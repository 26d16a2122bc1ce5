"""Where a server listens: ``127.0.0.1:9394``, ``:9394`` for all addresses, ``[::1]:9394``."""

from __future__ import annotations

import contextlib
import errno
import re
import socket
from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

# Connections that the kernel completes before they are accepted.
_BACKLOG: Final = 128
# Of what was sent and not read, the kernel keeps as much for each slow client; without a bound of
# ours some 4 MiB.
_SEND_BUFFER_BYTES: Final = 256 * 1024
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>[0-9]{1,5})")


class ListenError(Exception):
    """An address that cannot be listened on; the message is one line that says why."""


@attrs.frozen
class ListenAddress:
    """A host, or all of them, and a port; port 0 lets the system choose one."""

    host: str | None
    port: int

    def __str__(self) -> str:
        host = self.host or ""
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


def parse_listen(text: str) -> ListenAddress:
    """Read ``HOST:PORT``, ``:PORT`` for all addresses, or ``[IPv6]:PORT``.

    Raises:
        ValueError: It is something else.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f"{text!r} is no address such as 127.0.0.1:9394, :9394 or [::1]:9394")
    if match["v6"] is not None:
        try:
            socket.inet_pton(socket.AF_INET6, match["v6"].partition("%")[0])
        except OSError:
            raise ValueError(f"{match['v6']!r} is no IPv6 address") from None
        # [::] takes IPv4 as well, as everywhere else.
        host: str | None = None if match["v6"] == "::" else match["v6"]
        return ListenAddress(host, int(match["port"]))
    return ListenAddress(match["host"] or None, int(match["port"]))


def listen_on(addresses: Iterable[str]) -> tuple[socket.socket, ...]:
    """Open what accepts connections at these addresses.

    Raises:
        ListenError: It is not possible to listen at one of them.
        ValueError: One is no address.
    """
    parsed = [parse_listen(address) for address in addresses]
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        for address in parsed:
            for each in _listen(address):
                opened.callback(each.close)
                sockets.append(each)
        opened.pop_all()
    return tuple(sockets)


def _listen(address: ListenAddress) -> tuple[socket.socket, ...]:
    """Open what accepts connections there, one socket per address that the host's name has.

    Raises:
        ListenError: The address is in use, not of this machine, or not allowed.
    """
    if address.host is None:
        return (_listen_everywhere(address),)
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ListenError(f"cannot listen on {address}: {reason}") from error
    sockets: list[socket.socket] = []
    refused: OSError | None = None
    with contextlib.ExitStack() as opened:
        for family, _, _, _, target in dict.fromkeys(found):
            # One port for all addresses, also where the system chose it for the first of them.
            port = sockets[0].getsockname()[1] if sockets else target[1]
            try:
                sockets.append(_bound(family, (str(target[0]), port, *target[2:])))
            except OSError as error:
                # A name may have addresses that this machine lacks, such as ::1 of localhost.
                if error.errno not in _NOT_HERE:
                    raise _refusal(address, error) from error
                refused = error
                continue
            opened.callback(sockets[-1].close)
        if not sockets:
            assert refused is not None  # noqa: S101 (getaddrinfo finds something or raises)
            raise _refusal(address, refused) from refused
        opened.pop_all()
    return tuple(sockets)


def _listen_everywhere(address: ListenAddress) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            try:
                return _bound(socket.AF_INET6, ("", address.port), dualstack=True)
            except OSError as error:
                # Built in, and switched off.
                if error.errno not in _NOT_HERE:
                    raise
        return _bound(socket.AF_INET, ("", address.port))
    except OSError as error:
        raise _refusal(address, error) from error


def _bound(family: int, target: tuple[Any, ...], *, dualstack: bool = False) -> socket.socket:
    listener = socket.create_server(
        target, family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack
    )
    # Inherited by what is accepted.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
    listener.setblocking(False)
    return listener


def _refusal(address: ListenAddress, error: OSError) -> ListenError:
    reasons = {
        errno.EADDRINUSE: "the port is in use",
        errno.EADDRNOTAVAIL: "this machine does not have that address",
        errno.EACCES: "not allowed; ports under 1024 need the right to bind them",
    }
    reason = reasons.get(error.errno or 0) or error.strerror or str(error)
    return ListenError(f"cannot listen on {address}: {reason}")
