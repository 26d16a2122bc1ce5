"""Data frames get what is in the regions, typed, with null for nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from support.node_scene import NodeScene
from support.region_file import RegionFile

from libhamiregion import Layout, RegionSet, RegionSnapshot, RegionTable, create_region, open_region
from libhamiregion.units import GIB

# pandas and polars take a second to import, which every worker would spend.
if TYPE_CHECKING:
    import pandas as pd

TABLES = ("regions", "devices", "processes", "usages")


@pytest.fixture
def golden_table(golden_regions, tmp_path) -> RegionTable:
    """All golden regions, and one that was cut after it had been opened."""
    cut = tmp_path / "cut.cache"
    create_region(cut, memory_limits=["1GiB"])
    with RegionSet([*(golden.path for golden in golden_regions), cut]) as regions:
        with cut.open("r+b") as stream:
            stream.truncate(100)
        return regions.read()


@pytest.fixture
def snapshots(golden_regions) -> list[RegionSnapshot]:
    found = []
    for golden in golden_regions:
        with open_region(golden.path) as region:
            found.append(region.snapshot())
    return found


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    import pandas as pd

    return [
        {name: None if pd.isna(cell) else cell for name, cell in row.items()}
        for row in frame.to_dict("records")
    ]


def test_devices_are_those_of_the_snapshots(golden_table, snapshots):
    expected = [
        {
            "path": snapshot.path,
            "device": device.index,
            **attrs.asdict(device),
            "memory_free_bytes": device.memory_free_bytes,
        }
        for snapshot in snapshots
        for device in snapshot.devices
    ]
    for row, device in zip(rows(golden_table.devices.to_pandas()), expected, strict=True):
        del row["memory_offset_bytes"], device["index"]
        assert row == device


def test_processes_and_usages_are_those_of_the_snapshots(golden_table, snapshots):
    processes = iter(rows(golden_table.processes.to_pandas()))
    usages = iter(rows(golden_table.usages.to_pandas()))
    for snapshot in snapshots:
        for process in snapshot.processes:
            expected = attrs.asdict(process, filter=lambda field, _: field.name != "devices")
            assert next(processes) == {"path": snapshot.path, **expected}
            for usage in process.devices:
                row = next(usages)
                uuid = snapshot.device(usage.index).uuid
                assert (row["path"], row["pid"], row["uuid"]) == (snapshot.path, process.pid, uuid)
                figures = attrs.asdict(usage)
                assert row["device"] == figures.pop("index")
                assert {name: row[name] for name in figures} == figures
    assert list(processes) == list(usages) == []


def test_a_region_that_failed_has_its_error_and_nothing_else(golden_table):
    *whole, failed = rows(golden_table.regions.to_pandas())
    assert {row["error"] for row in whole} == {None}
    assert all(row["layout"] and row["taken_at_ns"] > 0 for row in whole)
    assert failed["path"].endswith("cut.cache")
    assert failed["error"] == str(golden_table.error(len(whole)))
    assert {cell for name, cell in failed.items() if name not in {"path", "error"}} == {None}


def test_polars_and_dicts_have_the_same_cells_as_pandas(golden_table):
    import polars as pl

    for name in TABLES:
        columns = getattr(golden_table, name)
        assert columns.to_polars().to_dict(as_series=False) == columns.to_dict()
        assert rows(columns.to_pandas()) == columns.to_polars().to_dicts()
    schema = golden_table.devices.to_polars().schema
    assert (schema["memory_limit_bytes"], schema["uuid"]) == (pl.Int64, pl.String)
    assert golden_table.regions.to_polars().schema["settled"] == pl.Boolean


def test_differences_of_columns_are_right_over_the_limit_and_null_without_one(tmp_path):
    path = tmp_path / "a.cache"
    create_region(path, memory_limits=["4GiB", None, "4GiB"])
    RegionFile(path, Layout.V1_2).add_process(7, {0: 5 * GIB, 1: GIB, 2: GIB})
    with RegionSet([path]) as regions:
        columns = regions.read().devices
    table = columns.to_pandas()
    assert list(table.memory_free_bytes.fillna(-1)) == [0, -1, 3 * GIB]
    assert list((table.memory_limit_bytes - table.memory_used_bytes).fillna(7)) == [
        -GIB,
        7,
        3 * GIB,
    ]
    frame = columns.to_polars()
    difference = frame["memory_limit_bytes"] - frame["memory_used_bytes"]
    assert difference.to_list() == [-GIB, None, 3 * GIB]


def test_identity_columns_stand_beside_the_path(region_file):
    first, second = region_file(name="a"), region_file(name="b")
    first.add_process(7, {0: GIB})
    second.add_process(8, {0: GIB})
    with RegionSet([first.path, second.path]) as regions:
        table = regions.read()
    told = table.with_identity(pod=["bert-0", None]).with_identity(team=["a", "b"])
    found = told.usages.to_pandas()
    assert list(found.columns[:4]) == ["path", "pod", "team", "pid"]
    assert [(row["pod"], row["team"], row["pid"]) for row in rows(found)] == [
        ("bert-0", "a", 7),
        (None, "b", 8),
    ]
    assert "pod" not in table.usages.to_pandas().columns
    with pytest.raises(ValueError, match="pod has 1 cells for 2 regions"):
        table.with_identity(pod=["bert-0"])


def test_a_dict_of_a_snapshot_is_what_json_takes(snapshots):
    for snapshot in snapshots:
        found = json.loads(json.dumps(snapshot.to_dict()))
        assert found["layout"] == snapshot.layout.value
        assert found["devices"] == [attrs.asdict(device) for device in snapshot.devices]
        assert [each["pid"] for each in found["processes"]] == [
            process.pid for process in snapshot.processes
        ]
        assert list(found) == [field.name for field in attrs.fields(RegionSnapshot)]


def test_a_nodes_frames_say_whose_each_row_is(tmp_path):
    files = NodeScene(tmp_path)
    files.container("train", memory_limits=["6GiB"])
    files.container("serve", pod=None, memory_limits=["1GiB"])
    with files.open() as node:
        node.refresh(processes=False)
        snapshot = node.snapshot()
    found = rows(snapshot.named_table().devices.to_pandas())
    assert {each["container"]: each["pod"] for each in found} == {"train": "bert-0", "serve": None}
    assert {each["namespace"] for each in found} == {"research", None}
