"""Basic authentication against bcrypt hashes, which are slow on purpose."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from .check_queue import CheckQueue
from .scrapes import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

# What bcrypt looks at. Programs that make such hashes cut there; bcrypt 5 raises instead.
_BCRYPT_BYTES: Final = 72


class Passwords:
    """Knows who may come in, and remembers the last right password of each user.

    A wrong password takes the same time for every name, whether there is such a user or not, and
    whatever their hash costs. Nothing that is kept tells a password: what is remembered is hashed
    with a secret of this process.

    To be used on one event loop; the slow part runs in a thread, one check at a time, and the
    addresses that clients connect from take turns. A check whose client has gone is not made.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._right: dict[str, bytes] = {}
        self._queue = CheckQueue()

    async def allows(
        self,
        users: Mapping[str, str],
        user: str,
        password: bytes,
        *,
        address: str,
        gone: Callable[[], Awaitable[object]],
    ) -> bool:
        """Whether this user has this password.

        Args:
            users: User to bcrypt hash.
            user: As sent.
            password: As sent.
            address: Where the client connects from.
            gone: To be called once and awaited: returns when the client has gone.

        Raises:
            TooManyChecks: Try again later.
            ConnectionAbortedError: The client has gone before its turn.
        """
        hashed = users.get(user)
        # The hash is part of it: with another one set, what was right is so no longer. NUL ends it:
        # a user that is no longer there cannot send it as the beginning of the password.
        both = (hashed or "").encode() + b"\0" + password
        digest = hashlib.blake2b(both, key=self._secret).digest()
        if self._is_known(user, digest):
            return True
        await self._wait_for_turn(address, gone)
        # The same may have been checked meanwhile.
        if self._is_known(user, digest):
            self._queue.end()
            return True
        most = max(map(_cost, users.values()))
        check = in_thread(lambda: _matches(hashed, password, most))
        # The turn lasts as long as the thread works, also where nobody waits for it any more.
        check.add_done_callback(lambda _: self._queue.end())
        is_right = await asyncio.shield(check)
        if is_right:
            self._right = {name: kept for name, kept in self._right.items() if name in users}
            self._right[user] = digest
        return is_right

    async def _wait_for_turn(self, address: str, gone: Callable[[], Awaitable[object]]) -> None:
        """Wait for a turn, as long as the client does."""
        turn = self._queue.ask(address)
        if turn.done():
            turn.result()
            return
        client = asyncio.ensure_future(gone())
        client.add_done_callback(lambda _: _give_up(turn))
        try:
            # Not shielded, it would be cancelled with the task, though it may have been had.
            await asyncio.shield(turn)
        except asyncio.CancelledError:
            if turn.done() and turn.exception() is None:
                self._queue.end()
            turn.cancel()
            raise
        finally:
            client.cancel()

    def _is_known(self, user: str, digest: bytes) -> bool:
        return hmac.compare_digest(self._right.get(user, b""), digest)


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(ConnectionAbortedError("the client has gone"))


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
