"""Basic authentication against bcrypt hashes, which are slow on purpose."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from .scrapes import in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

# Checks that wait for their turn: at a tenth of a second each, nobody waits for more.
_WAITING_LIMIT: Final = 32
# What bcrypt looks at. Programs that make such hashes cut there; bcrypt 5 raises instead.
_BCRYPT_BYTES: Final = 72


class TooManyChecks(Exception):
    """More passwords wait to be checked than can be in reasonable time."""


class Passwords:
    """Knows who may come in, and remembers the last right password of each user.

    A wrong password takes the same time for every name, whether there is such a user or not, and
    whatever their hash costs. Nothing that is kept tells a password: what is remembered is hashed
    with a secret of this process.

    To be used on one event loop; the slow part runs in a thread, one check at a time.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._waiting = 0
        self._turn = asyncio.Lock()

    async def allows(self, users: Mapping[str, str], user: str, password: bytes) -> bool:
        """Whether this user has this password.

        Args:
            users: User to bcrypt hash.
            user: As sent.
            password: As sent.

        Raises:
            TooManyChecks: Try again later.
        """
        hashed = users.get(user)
        # The hash is part of it: with another one set, what was right is so no longer. NUL ends it:
        # a user that is no longer there cannot send it as the beginning of the password.
        both = (hashed or "").encode() + b"\0" + password
        digest = hashlib.blake2b(both, key=self._secret).digest()
        if self._is_known(user, digest):
            return True
        if self._waiting >= _WAITING_LIMIT:
            raise TooManyChecks
        most = max(map(_cost, users.values()))
        self._waiting += 1
        try:
            async with self._turn:
                # The same may have been checked meanwhile.
                if self._is_known(user, digest):
                    return True
                is_right = await in_thread(lambda: _matches(hashed, password, most))
        finally:
            self._waiting -= 1
        if is_right:
            self._right = {name: kept for name, kept in self._right.items() if name in users}
            self._right[user] = digest
        return is_right

    def _is_known(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), digest)


def credentials(header: bytes) -> tuple[str, bytes] | None:
    """User and password from the header ``Authorization``; None if it has none of this kind."""
    scheme, _, encoded = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        plain = base64.b64decode(encoded.strip(), validate=True)
        user, separator, password = plain.partition(b":")
        return (user.decode(), password) if separator else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def _cost(hashed: str) -> int:
    """What stands for the cost in ``$2b$12$...``: one more takes twice as long."""
    return int(hashed[4:6])


def _matches(hashed: str | None, password: bytes, most: int) -> bool:
    """Check a password in the time that the most expensive hash takes.

    A check costs 2 ** cost. With one more for each cost from the hash's own to `most` less one, it
    is 2 ** most for every hash.
    """
    import bcrypt

    cut = password[:_BCRYPT_BYTES].replace(b"\0", b"")
    cost = most if hashed is None else _cost(hashed)
    for rounds in [most] if hashed is None else range(cost, most):
        bcrypt.hashpw(cut, bcrypt.gensalt(rounds))
    # bcrypt takes no NUL, and no hash was made of one.
    return hashed is not None and bcrypt.checkpw(cut, hashed.encode()) and b"\0" not in password
