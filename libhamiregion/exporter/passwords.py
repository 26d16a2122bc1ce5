"""Basic authentication against bcrypt hashes, which are slow on purpose."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Programs that make such hashes cut there; bcrypt 5 raises instead.
_BCRYPT_BYTES: Final = 72
# An address from which a right password came has a seat of its own for this time.
_SEAT_S: Final = 86_400.0
_SEATS: Final = 64


class Busy(Exception):
    """A request that has waited too long for others; the message names them."""


class Passwords:
    """Checks passwords one at a time, and remembers the last right one of each user.

    A password that was right before is known at once, however many guesses wait. It is kept hashed
    with a secret of this process. Addresses from which a right password came within a day do not
    wait for the others: their checks are made one at a time alongside.

    Threads: may be shared.

    Args:
        timeout_s: How long a check waits for those before it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._checking = threading.Lock()
        self._checking_known = threading.Lock()
        # Address to the monotonic time of its last right password.
        self._seats: dict[str, float] = {}

    def allow(self, users: Mapping[str, str], header: str, address: str) -> bool:
        """Whether a request may see everything.

        Args:
            users: User to bcrypt hash; empty allows every request.
            header: Authorization; empty if there is none.
            address: The client's.

        Raises:
            Busy: Other checks did not end in time.
        """
        if not users:
            return True
        given = credentials(header)
        if given is None:
            return False
        user, password = given
        # An unknown user takes as long as a known one.
        hashed = users.get(user) or next(iter(users.values()))
        # The hash is part of it: a password that was right for another hash is not known.
        digest = hashlib.blake2b(hashed.encode() + password, key=self._secret).digest()
        if user in users and hmac.compare_digest(self._right.get(user, b""), digest):
            self._keep_seat(address)
            return True
        is_seated = time.monotonic() - self._seats.get(address, float("-inf")) < _SEAT_S
        checking = self._checking_known if is_seated else self._checking
        if not checking.acquire(timeout=self._timeout_s):
            raise Busy("too many passwords to check")
        try:
            is_right = _matches(hashed, password) and user in users
        finally:
            checking.release()
        if is_right:
            self._right[user] = digest
            self._keep_seat(address)
        return is_right

    def _keep_seat(self, address: str) -> None:
        self._seats[address] = time.monotonic()
        if len(self._seats) > _SEATS:
            seats = self._seats.copy()
            self._seats.pop(min(seats, key=seats.__getitem__), None)


def credentials(header: str) -> tuple[str, bytes] | None:
    """Read user and password from the header ``Authorization``; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if separator else None
    except ValueError:
        return None


def _matches(hashed: str, password: bytes) -> bool:
    import bcrypt

    # bcrypt takes no NUL, and no hash was made of one.
    return b"\0" not in password and bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode())
