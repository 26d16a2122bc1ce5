"""A process that does in a region what libvgpu of HAMi 2.10 does, told by lines on its stdin.

By what is known of it: it takes the lock to join, sweeps dead slots away by moving the last one
into the hole and clearing what it was moved from, counts by atomic adds inside the seqlock, sums
`total` over all slots below proc_num before it allocates, and leaves a slot with pid 0 when it
ends. One thing at a time, so that plain stores do for its atomics.
"""

import json
import mmap
import os
import struct
import sys

from libhamiregion import Layout

AT = Layout.V1_2.offsets
SLOT = AT["slot_stride"]
TOTAL, DATA = 32, 16
DEVICES = 16


class Libvgpu:
    """One process of the region."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123
            self.map = mmap.mmap(file.fileno(), 0)
        self.at: int | None = None

    def get(self, offset: int, form: str = "<i") -> int:
        return struct.unpack_from(form, self.map, offset)[0]

    def put(self, offset: int, value: int, form: str = "<i") -> None:
        struct.pack_into(form, self.map, offset, value)

    def slot(self, index: int) -> int:
        return int(AT["procs"]) + index * int(SLOT)

    def count(self) -> int:
        return self.get(AT["proc_num"])

    def pid_of(self, index: int) -> int:
        return self.get(self.slot(index) + AT["slot_pid"])

    def lock(self) -> None:
        assert self.get(AT["sem"]) == 1
        self.put(AT["sem"], 0)
        self.put(AT["owner_pid"], os.getpid(), "<Q")

    def unlock(self) -> None:
        self.put(AT["owner_pid"], 0, "<Q")
        self.put(AT["sem"], 1)

    def sweep(self) -> None:
        index = 0
        while index < self.count():
            if self.lives(self.pid_of(index)):
                index += 1
                continue
            last, hole = self.slot(self.count() - 1), self.slot(index)
            if last != hole:
                self.map[hole : hole + SLOT] = self.map[last : last + SLOT]
            self.map[last : last + SLOT] = bytes(SLOT)
            self.put(AT["proc_num"], self.count() - 1)

    @staticmethod
    def lives(pid: int) -> bool:
        return pid > 0 and os.path.exists(f"/proc/{pid}")  # noqa: PTH110

    def join(self) -> list[int]:
        """Take a slot, and return the pids in the table then."""
        self.lock()
        self.sweep()
        self.at = self.slot(self.count())
        self.clear(self.at)
        self.put(self.at + AT["slot_pid"], os.getpid())
        self.put(self.at + AT["slot_status"], 1)
        self.put(AT["proc_num"], self.count() + 1)
        self.unlock()
        return [self.pid_of(index) for index in range(self.count())]

    def clear(self, slot: int) -> None:
        """Field by field, those that it knows: what stands between them stays."""
        for device in range(DEVICES):
            used = slot + AT["slot_used"] + device * AT["slot_used_stride"]
            for step in range(0, TOTAL + 8, 8):
                self.put(used + step, 0, "<Q")
            self.put(slot + AT["slot_monitorused"] + device * 8, 0, "<Q")
        self.put(slot + AT["slot_seqlock"], 0, "<Q")
        self.put(slot + AT["slot_hostpid"], 0)

    def used(self) -> int:
        """What it compares with the limit."""
        place = AT["slot_used"] + TOTAL
        return sum(self.get(self.slot(index) + place, "<Q") for index in range(self.count()))

    def settled(self) -> bool:
        """Whether its reader finds every slot at rest: an odd seqlock makes it spin."""
        return all(
            self.get(self.slot(index) + AT["slot_seqlock"], "<Q") % 2 == 0
            for index in range(self.count())
        )

    def allocate(self, nbytes: str) -> bool:
        limit = self.get(AT["limit"], "<Q")
        if limit and self.used() + int(nbytes) > limit:
            self.lock()
            self.sweep()
            self.unlock()
            if self.used() + int(nbytes) > limit:
                return False
        slot = self.own()
        for step in (0, TOTAL, DATA, 0):
            place = slot + (AT["slot_used"] + step if step else AT["slot_seqlock"])
            self.put(place, self.get(place, "<Q") + (int(nbytes) if step else 1), "<Q")
        return True

    def own(self) -> int:
        """Its slot: where it was, or searched again by its pid."""
        assert self.at is not None
        if self.get(self.at + AT["slot_pid"]) != os.getpid():
            index = [self.pid_of(each) for each in range(self.count())].index(os.getpid())
            self.at = self.slot(index)
        return self.at

    def leave(self) -> int:
        """End normally: the slot stays, without a pid."""
        slot = self.own()
        self.put(slot + AT["slot_pid"], 0)
        self.put(slot + AT["slot_status"], 0)
        return self.count()


def main() -> None:
    process = Libvgpu(sys.argv[1])
    for line in sys.stdin:
        what, *words = line.split()
        print(json.dumps(getattr(process, what)(*words)), flush=True)


if __name__ == "__main__":
    main()
