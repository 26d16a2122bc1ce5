"""Process slots as bytes of a region file, and what libvgpu does to them."""

from poke import RegionFile, locate

from libhamiregion import Layout

WITH_SEQLOCK = [layout for layout in Layout if layout.has_seqlock]
WITHOUT_SEQLOCK = [layout for layout in Layout if not layout.has_seqlock]


def slot_range(layout: Layout, slot: int) -> tuple[int, int]:
    start, _ = locate(layout, "slot_pid", slot=slot)
    stride = layout.offsets["slot_stride"]
    assert stride is not None
    return start, start + stride


def slot_bytes(file: RegionFile, slot: int) -> bytes:
    start, end = slot_range(file.layout, slot)
    return file.content()[start:end]


def put_slot(file: RegionFile, slot: int, content: bytes) -> None:
    file.put_bytes(slot_range(file.layout, slot)[0], content)


def pids(file: RegionFile) -> list[int]:
    """Of the slots that count, in their order."""
    return [file.get("slot_pid", slot=slot) for slot in range(file.get("proc_num"))]


def move_last_into(file: RegionFile, hole: int) -> int:
    """What libvgpu does to remove a slot; the last one's bytes stay behind. Returns where."""
    last: int = file.get("proc_num") - 1
    put_slot(file, hole, slot_bytes(file, last))
    file.put("proc_num", last)
    return last


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
