"""Basic authentication against bcrypt hashes, which are slow on purpose."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

# Programs that make such hashes cut there; bcrypt 5 raises instead.
_BCRYPT_BYTES: Final = 72
# Each keeps a thread and a connection.
_WAITING_LIMIT: Final = 16


class TooManyChecks(Exception):
    """Too many passwords wait to be checked."""


class Passwords:
    """Checks passwords one at a time, and remembers the last right one of each user.

    A password that was right before is known at once, however many guesses wait. What is remembered
    is hashed with a secret of this process.

    Threads: may be shared.

    Args:
        timeout_s: How long a check waits for those before it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._checking = threading.Lock()
        self._places = threading.BoundedSemaphore(_WAITING_LIMIT)

    def allow(self, users: Mapping[str, str], header: str) -> bool:
        """Whether a request may see everything.

        Args:
            users: User to bcrypt hash; empty allows every request.
            header: Authorization; empty if there is none.

        Raises:
            TooManyChecks: Too many other checks wait, or they did not end in time.
        """
        if not users:
            return True
        given = credentials(header)
        if given is None:
            return False
        user, password = given
        hashed = users.get(user)
        # The hash is part of it: a password that was right for another hash is not known.
        known = (hashed or "").encode() + b"\0" + password
        digest = hashlib.blake2b(known, key=self._secret).digest()
        if hashed is not None and self._is_known(user, digest):
            return True
        # An unknown user takes as long as one that there is.
        slowest = max(users.values(), key=_cost)
        is_right = self._check(slowest if hashed is None else hashed, password)
        if hashed is None or not is_right:
            return False
        self._right[user] = digest
        return True

    def _check(self, hashed: str, password: bytes) -> bool:
        if not self._places.acquire(blocking=False):
            raise TooManyChecks
        try:
            if not self._checking.acquire(timeout=self._timeout_s):
                raise TooManyChecks
            try:
                return _matches(hashed, password)
            finally:
                self._checking.release()
        finally:
            self._places.release()

    def _is_known(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), digest)


def credentials(header: str) -> tuple[str, bytes] | None:
    """Read user and password from the header ``Authorization``; None if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, separator, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if separator else None
    except (binascii.Error, ValueError):
        return None


def _cost(hashed: str) -> int:
    return int(hashed[4:6])


def _matches(hashed: str, password: bytes) -> bool:
    import bcrypt

    # bcrypt takes no NUL, and no hash was made of one.
    cut = password[:_BCRYPT_BYTES].replace(b"\0", b"")
    return bcrypt.checkpw(cut, hashed.encode()) and b"\0" not in password
