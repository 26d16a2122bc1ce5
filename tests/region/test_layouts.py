"""The offset table that the core works with is the published one."""

from support.every_layout import every_layout  # noqa: F401 (the fixture layout)

from libhamiregion import Layout
from libhamiregion.layouts import LAYOUTS

# As published, by hand: header fields, then the slot's.
HEADER = (
    "sm_init_flag",
    "owner_pid",
    "sem",
    "sem_postinit",
    "device_num",
    "uuids",
    "limit",
    "sm_limit",
    "procs",
    "slot_stride",
    "proc_num",
    "utilization_switch",
    "recent_kernel",
    "priority",
    "last_kernel_time",
)
SLOT = (
    "slot_pid",
    "slot_hostpid",
    "slot_seqlock",
    "slot_used",
    "slot_used_stride",
    "slot_monitorused",
    "slot_util",
    "slot_util_stride",
    "slot_status",
)
# fmt: off
PUBLISHED = {
    Layout.UNVERSIONED_NO_UTIL: (
        804_680, None,
        (4, 8, 16, None, 48, 56, 1592, 1720, 1848, 784, 804_664, 804_668, 804_672, 804_676, None),
        (0, 4, None, 8, 40, 648, None, 0, 776),
    ),
    Layout.UNVERSIONED: (
        1_197_896, None,
        (4, 8, 16, None, 48, 56, 1592, 1720, 1848, 1168,
         1_197_880, 1_197_884, 1_197_888, 1_197_892, None),
        (0, 4, None, 8, 40, 648, 776, 24, 1160),
    ),
    Layout.V1_1: (
        2_008_952, (1, 1),
        (12, 16, 24, None, 56, 64, 1600, 1728, 1856, 1960,
         2_008_896, 2_008_900, 2_008_904, 2_008_908, 2_008_912),
        (0, 4, None, 8, 64, 1032, 1160, 48, 1928),
    ),
    Layout.V1_1_POSTINIT: (
        2_008_984, (1, 1),
        (12, 16, 24, 56, 88, 96, 1632, 1760, 1888, 1960,
         2_008_928, 2_008_932, 2_008_936, 2_008_940, 2_008_944),
        (0, 4, 8, 16, 64, 1040, 1168, 48, 1936),
    ),
    Layout.V1_2: (
        2_008_952, (1, 2),
        (12, 16, 24, 2_008_920, 56, 64, 1600, 1728, 1856, 1960,
         2_008_896, 2_008_900, 2_008_904, 2_008_908, 2_008_912),
        (0, 4, 1936, 8, 64, 1032, 1160, 48, 1928),
    ),
}
# fmt: on


def test_offsets_are_the_published_ones(layout):
    size, version, header, slot = PUBLISHED[layout]
    assert layout.size_bytes == size
    assert layout.version == version
    assert layout.offsets == dict(
        [*zip(HEADER, header, strict=True), *zip(SLOT, slot, strict=True)]
    )


def test_values_are_the_published_names_in_the_order_of_the_releases():
    names = ["unversioned-no-util", "unversioned", "1.1", "1.1-postinit", "1.2"]
    assert [layout.value for layout in Layout] == names
    assert [layout.number for layout in Layout] == [0, 1, 2, 3, 4]
    assert Layout("1.1-postinit") is Layout.V1_1_POSTINIT


# Utilisation, a seqlock per slot, and an SM limit that counts for its device alone.
FLAGS = {
    Layout.UNVERSIONED_NO_UTIL: (False, False, False),
    Layout.UNVERSIONED: (True, False, False),
    Layout.V1_1: (True, False, False),
    Layout.V1_1_POSTINIT: (True, True, False),
    Layout.V1_2: (True, True, True),
}


def test_flags_say_what_a_layout_has(layout):
    flags = layout.has_utilization, layout.has_seqlock, layout.has_limit_per_device
    assert flags == FLAGS[layout]


def test_the_last_layout_is_the_newest():
    """Identification takes a file of a version to come for one of the last row's."""
    assert LAYOUTS[-1].version == max(each.version for each in Layout if each.version is not None)


def test_only_layouts_with_a_version_are_locked():
    assert [each for each in Layout if not each.has_lock] == [
        Layout.UNVERSIONED_NO_UTIL,
        Layout.UNVERSIONED,
    ]
