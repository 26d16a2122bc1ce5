"""Process slots as bytes of a region file, and what libvgpu does to them."""

import contextlib
import struct
import threading
from collections.abc import Iterator

from libhamiregion import Layout, open_region
from support.actors import Actor
from support.region_file import RegionFile, locate
from support.wait import eventually

WITH_SEQLOCK = [Layout.V1_2]
WITHOUT_SEQLOCK = [Layout.V1_1]
LOCKABLE = [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2]

# A file that says 1.1 may be used by processes of 2.8.2 and later, after an upgrade; its slots and
# theirs are the same but for the seqlock, which has no other use in it.
WITH_NEWER = [*WITH_SEQLOCK, Layout.V1_1]
NOBODYS = 2**31 - 1
"""The name of a slot that belongs to nobody."""


def attached(process: Actor, nbytes: int) -> Actor:
    """Attach a process that has a region open, and let it use memory."""
    process("attach")
    process("slot.charge", 0, nbytes)
    return process


def slot_range(layout: Layout, slot: int) -> tuple[int, int]:
    start, _ = locate(layout, "slot_pid", slot=slot)
    stride = layout.offsets["slot_stride"]
    assert stride is not None
    return start, start + stride


def slot_bytes(file: RegionFile, slot: int) -> bytes:
    start, end = slot_range(file.layout, slot)
    return file.content()[start:end]


MARK_FLAG = 1 << 62
"""In the seqlock of a slot that has a mark."""


def unmarked(layout: Layout, content: bytes) -> bytes:
    """A slot's bytes without its process's mark: two words of a usage record, and the flag."""
    slot = bytearray(content)
    used, stride = layout.offsets["slot_used"], layout.offsets["slot_used_stride"]
    assert used is not None
    assert stride is not None
    if stride >= 56:
        slot[used + 40 : used + 56] = bytes(16)
        at = _seqlock_offset(layout)
        seqlock = int.from_bytes(slot[at : at + 8], "little") & ~MARK_FLAG
        slot[at : at + 8] = seqlock.to_bytes(8, "little")
    return bytes(slot)


def forget_marks(file: RegionFile) -> None:
    """Take the marks out of the slots: what is left has to be judged by /proc."""
    for slot in range(file.get("proc_num")):
        put_slot(file, slot, unmarked(file.layout, slot_bytes(file, slot)))


def _seqlock_offset(layout: Layout) -> int:
    offset = (Layout.V1_2 if layout is Layout.V1_1 else layout).offsets["slot_seqlock"]
    assert offset is not None
    return offset


def put_slot(file: RegionFile, slot: int, content: bytes) -> None:
    file.put_bytes(slot_range(file.layout, slot)[0], content)


def pids(file: RegionFile) -> list[int]:
    """Of the slots that count, in their order."""
    return [file.get("slot_pid", slot=slot) for slot in range(file.get("proc_num"))]


def used(file: RegionFile) -> int:
    """What is counted on device 0."""
    with open_region(file) as region:
        return region.memory_used(0)


def move_last_into(file: RegionFile, hole: int) -> int:
    """What libvgpu does to remove a slot; the last one's bytes stay behind. Returns where."""
    last: int = file.get("proc_num") - 1
    put_slot(file, hole, slot_bytes(file, last))
    file.put("proc_num", last)
    return last


def _seqlock_at(file: RegionFile, slot: int) -> int:
    layout = Layout.V1_2 if file.layout is Layout.V1_1 else file.layout
    start, _ = slot_range(file.layout, slot)
    offset = layout.offsets["slot_seqlock"]
    assert offset is not None
    return start + offset


def seqlock_of(file: RegionFile, slot: int) -> int:
    """Where a process counts that remembers its slot, also in a file of 1.1."""
    with file.path.open("rb") as stream:
        stream.seek(_seqlock_at(file, slot))
        return int(struct.unpack("<Q", stream.read(8))[0])


def put_seqlock(file: RegionFile, slot: int, value: int) -> None:
    file.put_bytes(_seqlock_at(file, slot), struct.pack("<Q", value))


def account(file: RegionFile, slot: int, nbytes: int) -> None:
    """As libvgpu of 2.8.1 and later does, in the slot that it remembers."""
    put_seqlock(file, slot, seqlock_of(file, slot) + 1)
    for part in ("total", "data"):
        name = f"slot_used.{part}"
        file.put(name, file.get(name, slot=slot) + nbytes, slot=slot)
    put_seqlock(file, slot, seqlock_of(file, slot) + 1)


def start(file: RegionFile, process: Actor, nbytes: int, *, host_pid: int | None = None) -> int:
    """A process of libvgpu takes its slot and accounts. Returns where it will go on to do so."""
    known = process.pid_here if host_pid is None else host_pid
    slot = file.add_process(process.pid, host_pid=known)
    account(file, slot, nbytes)
    return slot


@contextlib.contextmanager
def at_work(file: RegionFile, *slots: int) -> Iterator[None]:
    """Meanwhile their processes account there, again and again, and hold what they have."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.001):
            for slot in slots:
                put_seqlock(file, slot, seqlock_of(file, slot) + 2)

    before = [seqlock_of(file, slot) for slot in slots]
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        eventually(
            lambda: all(seqlock_of(file, at) > was for at, was in zip(slots, before, strict=True))
        )
        yield
    finally:
        over.set()
        thread.join()


def differences(before: bytes, after: bytes) -> list[tuple[int, int]]:
    """Where two contents differ, as ranges."""
    assert len(before) == len(after)
    found: list[tuple[int, int]] = []
    block = 4096
    for start in range(0, len(before), block):
        if before[start : start + block] == after[start : start + block]:
            continue
        for at in range(start, min(start + block, len(before))):
            if before[at] == after[at]:
                continue
            if found and found[-1][1] == at:
                found[-1] = (found[-1][0], at + 1)
            else:
                found.append((at, at + 1))
    return found
