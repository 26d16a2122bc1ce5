"""Regions as hypothesis draws them: field by field, or with random bytes anywhere."""

import attrs
from hypothesis import strategies as st

from libhamiregion import Layout
from support.region_file import DEVICES, USED_PARTS, UTIL_PARTS, RegionFile

layouts = st.sampled_from(list(Layout))
devices = st.integers(0, DEVICES - 1)

# Small numbers, for sums that people can check, and the edges of what fits.
u64 = st.one_of(
    st.integers(0, 9), st.integers(0, 2**40), st.sampled_from([2**53, 2**63 - 1, 2**63, 2**64 - 1])
)
i32 = st.one_of(st.integers(-3, 9), st.sampled_from([-(2**31), 2**31 - 1, 4711, 2**22]))

good_uuids = st.one_of(
    st.just(b""),
    st.builds(
        bytes.__add__,
        st.sampled_from([b"GPU-", b"MIG-"]),
        st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=91).map(str.encode),
    ),
)
sm_limits = st.one_of(
    st.integers(0, 110), st.just(50), st.sampled_from([1001, 2**31, 2**63, 2**64 - 1])
)
good_device_nums = st.integers(0, DEVICES)


def per_device(values: st.SearchStrategy, *, max_size: int = 3) -> st.SearchStrategy:
    return st.dictionaries(devices, values, max_size=max_size)


@attrs.frozen
class SlotFields:
    """One slot; figures are device -> numbers in the order of the record's parts."""

    pid: int
    host_pid: int
    status: int
    used: dict[int, tuple[int, ...]]
    monitor: dict[int, int]
    util: dict[int, tuple[int, ...]]

    def store(self, file: RegionFile, slot: int) -> None:
        file.put("slot_pid", self.pid, slot=slot)
        file.put("slot_hostpid", self.host_pid, slot=slot)
        file.put("slot_status", self.status, slot=slot)
        for device, numbers in self.used.items():
            for part, number in zip(USED_PARTS, numbers, strict=True):
                file.put(f"slot_used.{part}", number, slot=slot, device=device)
        for device, number in self.monitor.items():
            file.put("slot_monitorused", number, slot=slot, device=device)
        if file.layout.has_utilization:
            for device, numbers in self.util.items():
                for part, number in zip(UTIL_PARTS, numbers, strict=True):
                    file.put(f"slot_util.{part}", number, slot=slot, device=device)


@attrs.frozen
class RegionFields:
    """What is stored into a created region; everything else stays as it was created."""

    layout: Layout
    device_num: int
    proc_num: int
    uuids: dict[int, bytes]
    limits: dict[int, int]
    sm_limits: dict[int, int]
    slots: list[SlotFields]
    header: dict[str, int]

    def store(self, file: RegionFile) -> None:
        file.put("device_num", self.device_num)
        file.put("proc_num", self.proc_num)
        for device, uuid in self.uuids.items():
            file.put("uuids", uuid, device=device)
        for device, limit in self.limits.items():
            file.put("limit", limit, device=device)
        for device, percent in self.sm_limits.items():
            file.put("sm_limit", percent, device=device)
        for number, slot in enumerate(self.slots):
            slot.store(file, number)
        for field, value in self.header.items():
            if self.layout.offsets[field] is not None:
                file.put(field, value)


emptied = st.builds(
    SlotFields,
    pid=i32,
    host_pid=i32,
    status=st.just(0),
    used=st.just({}),
    monitor=st.just({}),
    util=st.just({}),
)
slots = emptied | st.builds(
    SlotFields,
    pid=i32,
    host_pid=i32,
    status=i32,
    used=per_device(st.tuples(*[u64] * len(USED_PARTS))),
    monitor=per_device(u64),
    util=per_device(st.tuples(*[u64] * len(UTIL_PARTS))),
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "priority": i32,
        "utilization_switch": i32,
        "recent_kernel": i32,
        "last_kernel_time": u64,
        # In unversioned layouts more than a pid can be would look like a version.
        "owner_pid": st.integers(0, 2**31 - 1),
    },
)


@st.composite
def good_regions(draw: st.DrawFn) -> RegionFields:
    """Regions in which nothing is out of range."""
    drawn = draw(st.lists(slots, max_size=4))
    return RegionFields(
        layout=draw(layouts),
        device_num=draw(good_device_nums),
        # Slots behind proc_num are stale bytes.
        proc_num=draw(st.integers(0, len(drawn))),
        uuids=draw(per_device(good_uuids)),
        limits=draw(
            st.one_of(per_device(u64), u64.map(lambda limit: dict.fromkeys(range(16), limit)))
        ),
        sm_limits=draw(per_device(sm_limits)),
        slots=drawn,
        header=draw(headers),
    )


@attrs.frozen
class Damage:
    """A created region, bytes stored over it, and the size it is then given."""

    layout: Layout
    patches: list[tuple[int, bytes]]
    size: int

    def do(self, file: RegionFile) -> None:
        for offset, data in self.patches:
            file.put_bytes(offset, data)
        file.resize(self.size)


sizes = st.one_of(
    st.builds(
        lambda layout, delta: max(0, layout.size_bytes + delta),
        layouts,
        st.sampled_from([-4096, -1, 0, 1, 2, 32, 4096]),
    ),
    st.sampled_from([0, 1, 4, 100, 4096, 500_000, 2_100_000]),
)
patterns = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.builds(
        bytes.__mul__, st.sampled_from([b"\xff", b"\0", b"\x01", b"G"]), st.integers(1, 2500)
    ),
    u64.map(lambda number: number.to_bytes(8, "little")),
    i32.map(lambda number: number.to_bytes(4, "little", signed=True)),
)


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    layout = draw(layouts)
    offsets = layout.offsets
    slot = offsets["procs"] + offsets["slot_stride"] * draw(st.integers(0, 3))
    offset = st.one_of(
        # The fields before the table, a slot, and what follows the table; the magic more seldom.
        st.integers(12, offsets["procs"]),
        st.sampled_from([0, 4, 8, offsets["sem"], offsets["device_num"], offsets["proc_num"]]),
        st.integers(slot, slot + offsets["slot_stride"]),
        st.integers(offsets["proc_num"] - 8, layout.size_bytes),
    )
    return Damage(
        layout,
        draw(st.lists(st.tuples(offset, patterns), max_size=5)),
        draw(st.sampled_from([layout.size_bytes + 1] * 3 + [0])) or draw(sizes),
    )
