"""The queue of password checks: whose turn it is, and who is refused."""

from __future__ import annotations

import asyncio

import pytest

from libhamiregion.exporter import check_queue
from libhamiregion.exporter.check_queue import CheckQueue, TooManyChecks


async def served(queue: CheckQueue, waiting: dict[str, asyncio.Future[None]]) -> list[str]:
    """The names of those that wait, in the order in which they are served."""
    order = []
    while waiting:
        queue.end()
        name = next(name for name, turn in waiting.items() if turn.done())
        order.append(name)
        del waiting[name]
        await asyncio.sleep(0)
    return order


def test_addresses_take_turns_however_much_each_asks() -> None:
    async def scene() -> list[str]:
        queue = CheckQueue()
        assert queue.ask("10.0.0.1").done()
        asked = [("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "10.0.0.1"), ("d", "10.0.0.2")]
        return await served(queue, {name: queue.ask(address) for name, address in asked})

    assert asyncio.run(scene()) == ["d", "a", "b", "c"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2001:db8::1", "2001:db8::ffff:2"),
        ("fe80::1%eth0", "fe80::2%eth0"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_a_network_of_ipv6_is_one_address(one: str, other: str) -> None:
    async def scene() -> list[str]:
        queue = CheckQueue()
        queue.ask(one)
        asked = [("same", other), ("new", "2001:db8:0:1::1")]
        return await served(queue, {name: queue.ask(address) for name, address in asked})

    assert asyncio.run(scene()) == ["new", "same"]


def test_where_too_many_wait_the_address_with_most_loses_its_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_queue, "_WAITING_LIMIT", 3)

    async def scene() -> None:
        queue = CheckQueue()
        queue.ask("10.0.0.1")
        many = [queue.ask("10.0.0.1") for _ in range(3)]
        new = queue.ask("10.0.0.2")
        assert isinstance(many[2].exception(), TooManyChecks)
        assert not any(each.done() for each in (*many[:2], new))
        # All have one each but the first: it loses again.
        assert not queue.ask("10.0.0.3").done()
        assert isinstance(many[1].exception(), TooManyChecks)
        # All have one each: of them the first has had a turn.
        assert not queue.ask("10.0.0.4").done()
        assert isinstance(many[0].exception(), TooManyChecks)
        # None has had one: who comes last is refused.
        assert isinstance(queue.ask("10.0.0.5").exception(), TooManyChecks)
        assert not new.done()

    asyncio.run(scene())


def test_who_has_gone_is_passed_over_in_the_same_moment() -> None:
    async def scene() -> None:
        queue = CheckQueue()
        queue.ask("10.0.0.1")
        gone, stays = queue.ask("10.0.0.1"), queue.ask("10.0.0.1")
        gone.cancel()
        queue.end()
        assert stays.done()
        queue.end()
        # Nobody waits: the next one need not.
        assert queue.ask("10.0.0.1").done()

    asyncio.run(scene())


def test_no_more_addresses_are_remembered_than_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_queue, "_REMEMBERED", 3)

    async def scene() -> CheckQueue:
        queue = CheckQueue()
        for number in range(10):
            assert queue.ask(f"10.0.0.{number}").done()
            queue.end()
        return queue

    assert list(asyncio.run(scene())._last_turn) == ["10.0.0.7", "10.0.0.8", "10.0.0.9"]
