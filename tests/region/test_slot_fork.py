"""What a forked child may do with its parent's region and slot: nothing, and it harms neither."""

import os
from collections.abc import Callable

from forked import in_child
from slot_bytes import pids
from support.actors import MakeActor
from support.region_file import RegionFile

from libhamiregion import Region, RegionClosed, Slot, open_region

AFTER_FORK: dict[str, Callable[[Region, Slot], object]] = {
    "charge": lambda _, slot: slot.charge(0, 1),
    "release": lambda _, slot: slot.release(0, 1),
    "detach": lambda _, slot: slot.detach(),
    "attach": lambda region, _: region.attach(),
    "lock": lambda region, _: region.lock().__enter__(),
    "lock_state": lambda region, _: region.lock_state(),
    "recover_lock": lambda region, _: region.recover_lock(),
    "reap": lambda region, _: region.reap(),
    "repair_slots": lambda region, _: region.repair_slots(),
    "suspend": lambda region, slot: region.suspend(slot.pid),
}


def test_in_a_child_every_call_refuses_each_time_and_the_parents_slot_is_untouched(
    file: RegionFile,
) -> None:
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 11)
        before = file.content()

        def in_the_child() -> dict[str, list[str]]:
            told: dict[str, list[str]] = {name: [] for name in AFTER_FORK}
            for _ in range(2):
                for name, call in AFTER_FORK.items():
                    try:
                        call(region, slot)
                    except RegionClosed as error:
                        told[name].append(str(error))
            return told

        for name, messages in in_child(in_the_child).items():
            assert len(messages) == 2, name
            assert all("before fork()" in message for message in messages), name
        assert file.content() == before
        slot.release(0, 1)
        assert region.memory_used(0) == 10


# The child ends as interpreters do, with its exit handlers.
FORK_AND_END = """
import os, sys
child = os.fork()
if child == 0:
    sys.exit(0)
answer = os.waitpid(child, 0)[1]
"""


def test_the_end_of_a_child_leaves_the_parents_slot(file: RegionFile, actor: MakeActor) -> None:
    parent = actor(file)
    parent("attach")
    parent("slot.charge", 0, 12)
    before = file.content()
    assert parent("evaluate", FORK_AND_END) == 0
    assert file.content() == before
    parent("slot.charge", 0, 1)
    with open_region(file) as region:
        assert region.memory_used(0) == 13


def test_a_child_attaches_as_itself_once_it_has_opened_the_region_again(file: RegionFile) -> None:
    with open_region(file, writable=True) as region, region.attach() as slot:
        slot.charge(0, 4)

        def in_the_child() -> tuple[int, list[int], int]:
            with open_region(file, writable=True) as again, again.attach() as own:
                own.charge(0, 30)
                return own.pid, pids(file), again.memory_used(0)

        child, both, used = in_child(in_the_child)
        assert child != os.getpid()
        assert both == [os.getpid(), child]
        assert used == 34
        assert pids(file) == [os.getpid()]
        assert region.memory_used(0) == 4
