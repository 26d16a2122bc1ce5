"""Charging and releasing: what is stored, what is refused, and what is enforced."""

import pickle
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from lock_bytes import NOBODY, hold, is_free, let_go
from slot_bytes import MARK_FLAG, WITH_SEQLOCK, WITHOUT_SEQLOCK, differences, slot_bytes, slot_range
from support.actors import MakeActor
from support.region_file import DEVICES, RegionFile, RegionFileFactory

from libhamiregion import (
    Layout,
    LockTimeout,
    MemoryLimitExceeded,
    RegionError,
    Slot,
    open_region,
)

KINDS = ("context", "module", "data")
MIB = 2**20


def used(file: RegionFile, device: int, slot: int = 0) -> dict[str, int]:
    parts = (*KINDS, "offset", "total")
    return {part: file.get(f"slot_used.{part}", device=device, slot=slot) for part in parts}


# ---- what is stored ----


@pytest.mark.parametrize("kind", KINDS)
def test_a_charge_stands_in_its_kind_and_in_the_total_and_nowhere_else(
    layout: Layout, kind: Any, file: RegionFile
) -> None:
    file.add_process(NOBODY, {0: 3, 7: 5})
    with open_region(file, writable=True) as region, region.attach() as slot:
        before = file.content()
        for device in (0, 7, DEVICES - 1):
            slot.charge(device, 100 + device, kind)
            amounts = used(file, device, slot=1)
            assert amounts.pop(kind) == amounts.pop("total") == 100 + device
            assert set(amounts.values()) == {0}
            slot.release(device, 60, kind)
            amounts = used(file, device, slot=1)
            assert amounts[kind] == amounts["total"] == 40 + device
        start, end = slot_range(layout, 1)
        assert all(start <= a < b <= end for a, b in differences(before, file.content()))
        for device in (0, 7, DEVICES - 1):
            slot.release(device, 40 + device, kind)
        if layout.has_seqlock:
            assert file.get("slot_seqlock", slot=1) == MARK_FLAG + 2 * 9
            file.put("slot_seqlock", MARK_FLAG, slot=1)
        assert file.content() == before


def test_any_order_of_charges_and_releases_adds_up_and_never_goes_below_zero(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    chance = random.Random(0)
    file = region_file(layout)
    expected: Counter[tuple[int, str]] = Counter()
    with open_region(file, writable=True) as region, region.attach() as slot:
        for _ in range(300):
            device, kind = chance.choice([0, 1, 15]), chance.choice(KINDS)
            nbytes = chance.choice([0, 1, chance.randrange(10**6), chance.randrange(2**40)])
            if chance.random() < 0.5:
                slot.charge(device, nbytes, kind)  # type: ignore[arg-type]
                expected[device, kind] += nbytes
            elif nbytes > expected[device, kind]:
                with pytest.raises(ValueError, match="too many"):
                    slot.release(device, nbytes, kind)  # type: ignore[arg-type]
            else:
                slot.release(device, nbytes, kind)  # type: ignore[arg-type]
                expected[device, kind] -= nbytes
            amounts = used(file, device)
            assert all(amounts[kind] == expected[device, kind] for kind in KINDS)
            assert amounts["total"] == sum(amounts[kind] for kind in KINDS)
            assert region.memory_used(device) == amounts["total"]


# ---- what is refused ----

REFUSED: dict[str, tuple[Callable[[Slot], None], str]] = {
    "device -1": (lambda slot: slot.charge(-1, 1), "a device is 0 to 15, not -1"),
    "device 16": (lambda slot: slot.charge(16, 1), "a device is 0 to 15, not 16"),
    "device 2**40": (lambda slot: slot.charge(2**40, 1), "a device is 0 to 15"),
    "release of device 16": (lambda slot: slot.release(16, 1), "a device is 0 to 15, not 16"),
    "kind": (lambda slot: slot.charge(0, 1, "total"), "context, module or data, not 'total'"),  # type: ignore[arg-type]
    "kind of a release": (lambda slot: slot.release(0, 1, ""), "context, module or data"),  # type: ignore[arg-type]
    "-1 bytes": (lambda slot: slot.charge(0, -1), "bytes is 0 to .* not -1"),
    "-1 bytes of a release": (lambda slot: slot.release(0, -1), "bytes is 0 to .* not -1"),
    "2**62 bytes": (lambda slot: slot.charge(0, 2**62), f"bytes is .*, not {2**62}"),
    "2**63 bytes": (lambda slot: slot.charge(0, 2**63), f"bytes is .*, not {2**63}"),
    "2**64 bytes": (lambda slot: slot.charge(0, 2**64), f"bytes is .*, not {2**64}"),
    "more than there is": (
        lambda slot: slot.release(0, 51),
        "charged 50 bytes of data on device 0: 51",
    ),
    "what is on another device": (
        lambda slot: slot.release(1, 1),
        "charged 0 bytes of data on device 1: 1 ",
    ),
    "what is of another kind": (
        lambda slot: slot.release(0, 1, "module"),
        "charged 0 bytes of module",
    ),
}


def test_what_makes_no_sense_is_a_value_error_and_changes_nothing(file: RegionFile) -> None:
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 50)
        before = file.content()
        for call, message in REFUSED.values():
            with pytest.raises(ValueError, match=message) as caught:
                call(slot)
            assert not isinstance(caught.value, RegionError)
            assert file.content() == before


# ---- what is enforced ----


def test_a_charge_past_the_limit_is_refused_with_all_its_figures(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(MIB, 8 * MIB))
    file.add_process(NOBODY, {1: 2 * MIB})
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(1, MIB, "module")
        before = file.content()
        with pytest.raises(MemoryLimitExceeded) as caught:
            slot.charge(1, 5 * MIB + 1, "context")
        error = caught.value
        assert (error.device, error.path) == (1, str(file.path))
        assert (error.used_bytes, error.limit_bytes) == (3 * MIB, 8 * MIB)
        assert error.requested_bytes == 5 * MIB + 1
        assert isinstance(error, MemoryError)
        for part in (str(file.path), "device 1", "3 MiB", "8 MiB", "limit"):
            assert part in str(error)
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
        assert file.content() == before
        # To the last byte is not past it.
        slot.charge(1, 5 * MIB)
        assert region.memory_used(1) == 8 * MIB
        with pytest.raises(MemoryLimitExceeded):
            slot.charge(1, 1)
        slot.charge(0, MIB)


def test_the_limit_is_read_anew_at_each_charge(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=(100,))
    with (
        open_region(file, writable=True) as region,
        open_region(file, writable=True) as editor,
        region.attach() as slot,
    ):
        slot.charge(0, 100)
        editor.set_memory_limit(150, device=0)
        slot.charge(0, 50)
        editor.set_memory_limit(149, device=0, force=True)
        with pytest.raises(MemoryLimitExceeded) as caught:
            slot.charge(0, 0)
        assert (caught.value.used_bytes, caught.value.limit_bytes) == (150, 149)
        # What is above the limit can always be given back.
        slot.release(0, 1)
        slot.charge(0, 0)
        editor.set_memory_limit(None, device=0)
        slot.charge(0, 2**40)


def test_processes_share_one_limit(
    layout: Layout, region_file: RegionFileFactory, actor: MakeActor
) -> None:
    file = region_file(layout, memory_limits=(100,))
    one, other = actor(file), actor(file)
    one("attach")
    other("attach")
    one("slot.charge", 0, 60)
    with pytest.raises(MemoryLimitExceeded) as caught:
        other("slot.charge", 0, 41)
    assert caught.value.used_bytes == 60
    other("slot.charge", 0, 40)
    one("slot.detach")
    other("slot.charge", 0, 60)
    with open_region(file) as region:
        assert region.memory_used(0) == 100


# ---- the lock, threads, processes ----


@pytest.mark.parametrize("layout", WITHOUT_SEQLOCK)
def test_up_to_2_8_0_accounting_waits_for_the_lock(file: RegionFile, actor: MakeActor) -> None:
    holder = actor(file)
    with open_region(file, writable=True) as region:
        slot = region.attach(timeout_s=0.05)
        slot.charge(0, 5)
        hold(file, holder.pid)
        before = slot_bytes(file, 0)
        for method in (slot.charge, slot.release):
            with pytest.raises(LockTimeout, match=f"owner_pid {holder.pid}"):
                method(0, 1)
        assert slot_bytes(file, 0) == before
        let_go(file)
        slot.release(0, 5)
        assert is_free(file)


@pytest.mark.parametrize("layout", WITH_SEQLOCK)
def test_from_2_8_1_on_accounting_does_not_need_the_lock(
    file: RegionFile, actor: MakeActor
) -> None:
    holder = actor(file)
    with open_region(file, writable=True) as region:
        slot = region.attach(timeout_s=0.05)
        hold(file, holder.pid)
        slot.charge(0, 5)
        slot.release(0, 4)
        assert region.memory_used(0) == 1
        assert (file.get("sem"), file.get("owner_pid")) == (0, holder.pid)
        let_go(file)
        slot.detach()


def test_processes_that_account_at_once_lose_nothing(file: RegionFile, actor: MakeActor) -> None:
    others = [actor(file) for _ in range(3)]
    work = (
        "for _ in range(200): slot.charge(0, 5); slot.release(0, 4); slot.charge(1, 1, 'context')"
    )
    for other in others:
        other("attach")
    for other in others:
        other.start("evaluate", work)
    for other in others:
        other.outcome()
    with open_region(file) as region:
        assert (region.memory_used(0), region.memory_used(1)) == (600, 600)
        for other in others:
            other("slot.detach")
        assert (region.memory_used(0), region.memory_used(1)) == (0, 0)
    assert is_free(file)
