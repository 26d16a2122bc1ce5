"""The queue of password checks: one at a time, and no address keeps another from its turn."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
from typing import Final

# Checks that wait for their turn, all addresses together: half as many as there are connections.
_WAITING_LIMIT: Final = 64
# Addresses whose last turn is remembered; the one with the oldest is forgotten first.
_REMEMBERED: Final = 1024
# Whoever has an address of IPv6 has the rest of its network, too.
_NETWORK_BITS: Final = 64


class TooManyChecks(Exception):
    """More passwords wait to be checked than can be in reasonable time."""


class CheckQueue:
    """Hands out turns one at a time, each to the address that has had none for longest.

    An address that has just come is served next, however many checks the others have waiting.
    Where too many wait, the address with the most of them loses one.

    To be used on one event loop.
    """

    def __init__(self) -> None:
        self._is_taken = False
        #: Who waits, oldest first, with the address that it asks from.
        self._waiting: dict[asyncio.Future[None], str] = {}
        #: When each address had its last turn, as a number that grows; oldest first.
        self._last_turn: dict[str, int] = {}
        self._count = itertools.count(1)

    def ask(self, address: str) -> asyncio.Future[None]:
        """Ask for a turn.

        Args:
            address: Where the client connects from; empty where that is not known.

        Returns:
            Done when the turn has come, which `end` gives back. It fails with `TooManyChecks`
            where another one takes its place. Whoever settles it otherwise gives the place up.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.add_done_callback(lambda done: self._waiting.pop(done, None))
        self._waiting[turn] = _network(address)
        if not self._is_taken:
            self._grant()
        elif len(self._still_waiting()) > _WAITING_LIMIT:
            self._refuse_one()
        return turn

    def end(self) -> None:
        """Give back a turn that was had."""
        self._is_taken = False
        self._grant()

    def _still_waiting(self) -> dict[asyncio.Future[None], str]:
        # What was settled in this round of the loop has not been removed yet.
        return {turn: address for turn, address in self._waiting.items() if not turn.done()}

    def _grant(self) -> None:
        waiting = self._still_waiting()
        if not waiting:
            return
        turn = min(waiting, key=lambda each: self._last_turn.get(waiting[each], 0))
        address = waiting[turn]
        self._last_turn.pop(address, None)
        self._last_turn[address] = next(self._count)
        if len(self._last_turn) > _REMEMBERED:
            del self._last_turn[next(iter(self._last_turn))]
        self._is_taken = True
        turn.set_result(None)

    def _refuse_one(self) -> None:
        waiting = self._still_waiting()
        addresses = list(waiting.values())

        def burden(turn: asyncio.Future[None]) -> tuple[int, int]:
            address = waiting[turn]
            return addresses.count(address), self._last_turn.get(address, 0)

        # Of those that are equal the last one that came.
        max(reversed(waiting), key=burden).set_exception(TooManyChecks())


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False))
