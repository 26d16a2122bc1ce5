"""Sums over slots are modulo 2^64, as libvgpu and HAMi's monitor add them."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cached_slots import MIB, CachedSlot

from libhamiregion import (
    Layout,
    LimitBelowUsage,
    MemoryLimitExceeded,
    RegionSet,
    create_region,
    open_region,
)
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import FindingKind, Node, Observer, diagnose
from libhamiregion.report.recorder import read_samples

UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"
POD = "7d5f7d7e-6d0c-4f6e-8d5e-000000000001"
WRAPPED = 2**64 - 350 * MIB

pytestmark = pytest.mark.parametrize("layout", [Layout.V1_1_POSTINIT, Layout.V1_2])


@pytest.fixture
def moved(tmp_path: Path, layout: Layout) -> Iterator[Path]:
    """A region in which 70 MiB are in use, one slot counts 400 MiB too many and one too few."""
    path = tmp_path / "containers" / f"{POD}_train" / "usage.cache"
    path.parent.mkdir(parents=True)
    create_region(path, layout=layout, memory_limits=["768MiB"], uuids=[UUID])
    with contextlib.ExitStack() as stack:

        def start() -> CachedSlot:
            return stack.enter_context(CachedSlot(path, layout))

        killed, refused, live = start(), start(), start()
        for process, mib in ((killed, 300), (refused, 20), (live, 400)):
            process("add", mib * MIB)
        killed.kill()
        refused("remove_dead")
        newcomer = start()
        newcomer("add", 50 * MIB)
        live("add", -400 * MIB)
        yield path


def cli(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "libhamiregion", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def test_what_is_used_is_shown_and_the_rest_can_be_allocated(moved: Path) -> None:
    with open_region(moved, writable=True) as region:
        snapshot = region.snapshot()
        assert [each.devices[0].memory_used_bytes for each in snapshot.processes] == [
            400 * MIB,
            20 * MIB,
            WRAPPED,
        ]
        assert snapshot.devices[0].memory_used_bytes == region.memory_used(0) == 70 * MIB
        with pytest.raises(LimitBelowUsage):
            region.set_memory_limit(70 * MIB - 1, device=0)
        region.set_memory_limit("170MiB", device=0)
        with region.attach() as slot:
            slot.charge(0, 100 * MIB)
            with pytest.raises(MemoryLimitExceeded):
                slot.charge(0, 1)


def test_tables_and_commands_show_what_is_used(moved: Path) -> None:
    with RegionSet([moved]) as regions:
        table = regions.read()
        assert table.devices.memory_used_bytes.tolist() == [70 * MIB]
        assert table.devices.to_dict()["memory_used_bytes"] == [70 * MIB]
        assert table.usages.to_dict()["memory_used_bytes"] == [
            400 * MIB,
            20 * MIB,
            None,
        ]
    assert "70MiB" in cli("show", moved).stdout
    assert "TiB" not in cli("show", moved).stdout
    (device,) = json.loads(cli("show", "--json", moved).stdout)["devices"]
    assert device["memory_used_bytes"] == 70 * MIB


def test_the_node_floor_exports_and_records_what_is_used(moved: Path) -> None:
    with Node(moved.parents[1]) as node:
        node.refresh()
        text = NodeExporter(node).render().decode()
        used = [line for line in text.splitlines() if line.startswith("hami_vgpu_memory_used_b")]
        assert [float(line.split()[-1]) for line in used] == [70 * MIB]
        (sample,) = read_samples(Observer(node).observe()).values()
        assert sample.memory_used_bytes == 70 * MIB
        kinds = [each.kind for each in diagnose(node, settle_s=0)]
        assert FindingKind.USAGE_IMPOSSIBLE in kinds
        assert FindingKind.USAGE_ABOVE_LIMIT not in kinds


def test_a_sum_that_is_no_size_is_null(moved: Path, layout: Layout) -> None:
    with moved.open("r+b") as file:
        slot = layout.offsets["procs"] + layout.offsets["slot_used"] + 32
        file.seek(slot)
        file.write(bytes(8))
    with RegionSet([moved]) as regions:
        assert regions.read().devices.to_dict()["memory_used_bytes"] == [None]
    assert "TiB" not in cli("show", moved).stdout
    with Node(moved.parents[1]) as node:
        node.refresh()
        assert read_samples(Observer(node).observe()) == {}
