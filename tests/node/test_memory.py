"""Containers decide how much stands in their regions, and not what it costs to look at it."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from support.containers import needs_namespaces
from support.namespaces import NEW_NAMESPACE
from support.node_root import Root
from support.wait import PATIENCE_S

from libhamiregion import Layout, create_region
from libhamiregion.layouts import DEVICE_CAPACITY, SLOT_CAPACITY

PROBE = Path(__file__).parents[1] / "support/node_memory.py"
UUIDS = [f"GPU-{number:08}-1111-2222-3333-444444444444" for number in range(DEVICE_CAPACITY)]


def fill(path: Path, first_pid: int) -> None:
    """All slots in use by processes that never were, all devices named and used by each."""
    offsets = {name: at or 0 for name, at in Layout.V1_2.offsets.items()}
    slot = bytearray(offsets["slot_stride"])
    for device in range(DEVICE_CAPACITY):
        at = offsets["slot_used"] + device * offsets["slot_used_stride"] + 32
        struct.pack_into("<Q", slot, at, 1 << 20)
    with path.open("r+b") as file:
        for number in range(SLOT_CAPACITY):
            struct.pack_into("<i", slot, offsets["slot_pid"], first_pid + number)
            struct.pack_into("<i", slot, offsets["slot_status"], 1)
            file.seek(offsets["procs"] + number * len(slot))
            file.write(slot)
        file.seek(offsets["proc_num"])
        file.write(struct.pack("<i", SLOT_CAPACITY))


def looked(root: Path, *mapped: Path) -> tuple[int, int, float]:
    command = [*(NEW_NAMESPACE if mapped else ()), sys.executable, str(PROBE), str(root)]
    ran = subprocess.run(
        [*command, *map(str, mapped)],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    views, left_out, mib = ran.stdout.split()
    return int(views), int(left_out), float(mib)


@pytest.mark.slow
def test_sixty_full_tables_cost_less_than_100_mib(tmp_path: Path) -> None:
    root = Root(tmp_path / "containers")
    for number in range(60):
        fill(root.region(f"c{number}", uuids=UUIDS), 3_000_000)
    views, left_out, mib = looked(root.path)
    assert (views, left_out) == (60, 60)
    assert mib < 100


@pytest.mark.slow(keep=1)
@needs_namespaces
@pytest.mark.parametrize("pids", ["invented", "own"])
def test_one_process_that_maps_16_full_regions_costs_less_than_100_mib(
    pids: str, tmp_path: Path
) -> None:
    root = Root(tmp_path / "containers")
    for number in range(16):
        path = tmp_path / f"{pids}-{number}.cache"
        create_region(path, uuids=UUIDS)
        fill(path, 3_000_000)
    views, left_out, mib = looked(root.path, tmp_path)
    assert (views, left_out) == (16, 16)
    assert mib < 100
