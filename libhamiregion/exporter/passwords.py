"""Basic authentication against bcrypt hashes, which are slow on purpose."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from .working import Worker

# As many right answers as there may be users, and enough wrong ones to make an old password in
# somebody's configuration cheap. Two caches: guesses never push out what is right.
_RIGHT_LIMIT: Final = 1024
_WRONG_LIMIT: Final = 128
# Checks that wait for the thread: at a tenth of a second each, nobody waits for more.
_WAITING_LIMIT: Final = 32
# What bcrypt looks at. Programs that make such hashes cut there; bcrypt 5 raises instead.
_BCRYPT_BYTES: Final = 72


class TooManyChecks(Exception):
    """More passwords wait to be checked than can be in reasonable time."""


class Passwords:
    """Knows who may come in, and remembers whom it has checked.

    Nothing that is kept tells a password: what is remembered is hashed with a secret of this
    process. To be used on the event loop alone; the slow part runs in the thread of `worker`.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._wrong: OrderedDict[bytes, None] = OrderedDict()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}

    async def allows(self, users: Mapping[str, str], user: bytes, password: bytes) -> bool:
        """Whether this user has this password.

        Args:
            users: User to bcrypt hash.
            user: As sent.
            password: As sent.

        Raises:
            TooManyChecks: Try again later.
        """
        hashed = _hash_of(users, user)
        # The hash is part of the key: with another one set, what was right is so no longer.
        key = self._key(user, (hashed or "").encode(), password)
        for cache, verdict in ((self._right, True), (self._wrong, False)):
            if key in cache:
                cache.move_to_end(key)
                return verdict
        check = self._checking.get(key)
        if check is None:
            if len(self._checking) >= _WAITING_LIMIT:
                raise TooManyChecks
            # For a user that there is not, the time is that of a wrong password: of the dearest
            # one, where they cost differently.
            candidate = hashed or max(users.values(), key=_cost)
            check = self._worker.run(lambda: _matches(candidate, password) and hashed is not None)
            self._checking[key] = check
            check.add_done_callback(lambda done: self._remember(key, done))
        # Many may wait for one check, and any of them may go away.
        return await _shared(check)

    def _remember(self, key: bytes, check: asyncio.Future[bool]) -> None:
        del self._checking[key]
        if check.cancelled() or check.exception() is not None:
            return
        right = check.result()
        cache, limit = (self._right, _RIGHT_LIMIT) if right else (self._wrong, _WRONG_LIMIT)
        cache[key] = None
        if len(cache) > limit:
            cache.popitem(last=False)

    def _key(self, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self._secret, digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()


def credentials(header: bytes) -> tuple[bytes, bytes] | None:
    """User and password from the header ``Authorization``; None if it has none of this kind."""
    scheme, _, encoded = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        plain = base64.b64decode(encoded.strip(), validate=True)
    except binascii.Error:
        return None
    user, separator, password = plain.partition(b":")
    return (user, password) if separator else None


def _hash_of(users: Mapping[str, str], user: bytes) -> str | None:
    try:
        return users.get(user.decode())
    except UnicodeDecodeError:
        return None


def _cost(hashed: str) -> str:
    """What stands for the cost in ``$2b$12$...``: two digits."""
    return hashed[4:6]


def _matches(hashed: str, password: bytes) -> bool:
    import bcrypt

    try:
        return bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed.encode())
    except ValueError:
        # Such as a NUL in the password.
        return False


async def _shared(future: asyncio.Future[bool]) -> bool:
    import asyncio

    return await asyncio.shield(future)
