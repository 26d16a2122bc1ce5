"""A process that allocates as libvgpu does from September 2026 on.

It adds up, compares and adds under the region's lock, and waits without a limit until the seqlock
of each slot is even, with the lock. Commands on stdin: one allocation of so many bytes each.
"""

import mmap
import os
import sys
import time

from libhamiregion import Layout


class Memory:
    """The words of a mapped region."""

    def __init__(self, path: str, layout: Layout) -> None:
        with open(path, "r+b") as file:  # noqa: PTH123 (a descriptor to map)
            self._bytes = mmap.mmap(file.fileno(), 0)
        self._at = {name: offset or 0 for name, offset in layout.offsets.items()}
        # In a file that says 1.1, processes of 2.8.1 and later keep it where 1.2 has it.
        self._seqlock = self._at["slot_seqlock"] or Layout.V1_2.offsets["slot_seqlock"] or 0
        self._words = memoryview(self._bytes).cast("B")

    def at(self, name: str, slot: int = 0) -> int:
        """Where a field is."""
        if not name.startswith("slot_"):
            return self._at[name]
        offset = self._seqlock if name == "slot_seqlock" else self._at[name]
        return self._at["procs"] + slot * self._at["slot_stride"] + offset

    def get(self, offset: int, size: int = 8) -> int:
        """Read one word."""
        return int.from_bytes(self._words[offset : offset + size], "little")

    def put(self, offset: int, value: int, size: int = 8) -> None:
        """Write one word."""
        self._words[offset : offset + size] = value.to_bytes(size, "little")


def main() -> None:
    """Take a slot, then allocate as told."""
    memory = Memory(sys.argv[1], Layout(sys.argv[2]))
    total = memory.at("slot_used") - memory.at("slot_pid") + 32
    data = total - 16
    count = memory.get(memory.at("proc_num"), 4)
    own = memory.at("slot_pid", count)
    memory.put(memory.at("slot_status", count), 1, 4)
    memory.put(own, os.getpid(), 4)
    memory.put(memory.at("proc_num"), count + 1, 4)
    print("ready", flush=True)
    for line in sys.stdin:
        while memory.get(memory.at("sem"), 4) == 0:
            time.sleep(0.001)
        memory.put(memory.at("sem"), 0, 4)
        memory.put(memory.at("owner_pid"), os.getpid())
        print("inside", flush=True)
        used = 0
        for slot in range(memory.get(memory.at("proc_num"), 4)):
            while memory.get(memory.at("slot_seqlock", slot)) % 2:
                pass
            used += memory.get(memory.at("slot_pid", slot) + total)
        seqlock = memory.at("slot_seqlock", count)
        memory.put(seqlock, memory.get(seqlock) + 1)
        for at in (own + total, own + data):
            memory.put(at, memory.get(at) + int(line))
        memory.put(seqlock, memory.get(seqlock) + 1)
        memory.put(memory.at("owner_pid"), 0)
        memory.put(memory.at("sem"), 1, 4)
        print(used, time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    main()
