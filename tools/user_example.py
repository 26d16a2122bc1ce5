"""What a user's own file looks like: `mypy --strict` must accept it, and it must run.

Each assert_type would fail if a public name had lost its type on the way into the wheel.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import libhamiregion as hami

if TYPE_CHECKING:
    from typing_extensions import assert_type
else:

    def assert_type(value: object, _type: object) -> object:
        """Accept anything: typing has it from 3.11 on, and 3.10 is supported."""
        return value


GIB = 1024**3


def free_bytes(device: hami.DeviceUsage) -> int:
    """Bytes that the container may still allocate; an unlimited device has no such number."""
    free = device.memory_free_bytes
    assert_type(free, int | None)
    return 0 if free is None else free


def lower(path: Path) -> hami.LimitChange:
    """Give the container half of what it has on its first device."""
    with hami.open_region(path, writable=True) as region:
        limit = region.memory_limit(0)
        assert_type(limit, int | None)
        if limit is None:
            raise ValueError(f"{path}: device 0 is unlimited")
        change = region.set_memory_limit(limit // 2, device=0, expected=limit)
        assert_type(change, hami.LimitChange)
        assert_type(region.set_sm_limit(50), tuple[hami.LimitChange, ...])
        return change


def main(directory: Path) -> None:
    """Create a region, edit it, and read it back, alone and as one of a set."""
    path = directory / "example.cache"
    hami.create_region(path, memory_limits=["2GiB"], sm_limits=[100])
    assert hami.identify(path) is hami.Layout.V1_2

    change = lower(path)
    assert (change.before, change.after) == (2 * GIB, GIB), change

    with hami.open_region(path) as region:
        snapshot = region.snapshot()
        assert_type(snapshot, hami.RegionSnapshot)
        assert snapshot.devices[0].sm_limit_percent == 50, snapshot
        assert free_bytes(snapshot.devices[0]) == GIB, snapshot
        for process in snapshot.processes:
            assert_type(process, hami.ProcessUsage)

    with hami.RegionSet([path]) as regions:
        table = regions.read()
    assert_type(table, hami.RegionTable)
    assert_type(table.devices.memory_limit_bytes, memoryview)
    assert list(table.devices.memory_limit_bytes) == [GIB], table
    assert_type(table.devices.uuid(0), str | None)
    assert_type(snapshot.to_dict(), dict[str, Any])
    with hami.open_region(path, writable=True) as region:
        edits = [
            hami.LimitEdit(memory_limit="50%", device=0),
            hami.LimitEdit(sm_limit=None, device=0),
        ]
        assert_type(
            region.edit_limits(edits, dry_run=True), tuple[hami.LimitChange | hami.ValueChange, ...]
        )

    try:
        hami.open_region(directory / "missing.cache").close()
    except hami.RegionError as error:
        missing = isinstance(error, FileNotFoundError)
    else:
        missing = False
    assert missing, "a file that does not exist gave no error, or another one"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
