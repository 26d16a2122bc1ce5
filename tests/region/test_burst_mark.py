"""The mark that makes the SM limits of a region soft, and where it is kept."""

import json
import mmap
import os
import re
from pathlib import Path

import pytest
from support.command_line import call, refused
from support.region_file import truncate, unchanged

import libhamiregion as hami
from libhamiregion import Layout

WITH_ROOM = (Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2)


def made(path: Path, layout: Layout = Layout.V1_2) -> str:
    hami.create_region(path, layout=layout, sm_limits=[50, 30], uuids=["GPU-one", "GPU-two"])
    return str(path)


@pytest.mark.parametrize("layout", WITH_ROOM)
def test_it_is_set_and_taken_away_and_every_handle_sees_it(tmp_path, layout):
    path = made(tmp_path / "region.cache", layout)
    before = Path(path).read_bytes()
    with hami.open_region(path) as reader, hami.open_region(path, writable=True) as region:
        assert not reader.burst
        change = region.set_burst(True)
        assert (change.field, change.before, change.after) == ("burst", 0, 1)
        assert str(change) == f"{path}: burst off -> on"
        assert reader.burst
        assert region.set_burst(True).before == 1
        with hami.open_region(path) as third:
            assert third.burst
            assert third.layout is layout
            assert third.snapshot().devices[1].sm_limit_percent == 30
        assert region.set_burst(False).before == 1
        assert not reader.burst
    assert Path(path).read_bytes()[: len(before)] == before


@pytest.mark.parametrize("layout", WITH_ROOM)
def test_it_is_behind_what_libvgpu_maps_and_writes_and_within_the_last_page(tmp_path, layout):
    """libvgpu maps the structure, and stores a zero just behind it each time it starts."""
    path = made(tmp_path / "region.cache", layout)
    size = layout.size_bytes
    with hami.open_region(path, writable=True) as region:
        region.set_burst(True)
        content = Path(path).read_bytes()
        assert content[size + 8 : size + 12] == b"brst"
        assert not any(content[size : size + 8])
        assert len(content) - 1 >> 12 == size - 1 >> 12
        descriptor = os.open(path, os.O_WRONLY)
        os.pwrite(descriptor, b"\0", size)
        os.close(descriptor)
        assert region.burst
        # Nobody else writes there; what has been written by somebody is no mark.
        with Path(path).open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[size + 8 : size + 12] = b"\1\0\0\0"
        assert not region.burst


def test_a_dry_run_and_what_is_refused_change_nothing(tmp_path):
    path = made(tmp_path / "region.cache")
    with unchanged(path):
        with hami.open_region(path, writable=True) as region:
            assert region.set_burst(True, dry_run=True).after == 1
            with pytest.raises(TypeError, match="burst is True or False, not int"):
                region.set_burst(1)  # type: ignore[arg-type]
        with hami.open_region(path) as reader, pytest.raises(hami.RegionReadOnly):
            reader.set_burst(True)


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED_NO_UTIL, Layout.UNVERSIONED])
def test_older_layouts_have_no_room_for_it(tmp_path, layout):
    """HAMi's monitor knows their files by the exact size."""
    path = made(tmp_path / "region.cache", layout)
    with unchanged(path), hami.open_region(path, writable=True) as region:
        assert not region.burst
        with pytest.raises(ValueError, match="has no room for burst"):
            region.set_burst(True)


def test_a_region_that_is_gone_is_stale(tmp_path):
    path = made(tmp_path / "region.cache")
    with hami.open_region(path, writable=True) as region:
        Path(path).unlink()
        with pytest.raises(hami.RegionStale):
            region.set_burst(True)
        made(Path(path))
        with pytest.raises(hami.RegionStale):
            region.set_burst(True)
    with hami.open_region(path, writable=True) as region:
        assert not region.burst
        truncate(path, 4096)
        with pytest.raises(hami.RegionStale):
            _ = region.burst
        with pytest.raises(hami.RegionStale):
            region.set_burst(True)
    with pytest.raises(hami.RegionClosed):
        _ = region.burst
    assert Path(path).stat().st_size == 4096


# ---- The command line ---------------------------------------------------------------------------


def test_limits_set_get_and_show_know_it(tmp_path):
    path = made(tmp_path / "region.cache")
    answer = call("limits", "set", path, "--burst")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == "burst off -> on, at once, also in running processes\n"
    assert call("limits", "set", path, "--burst").stdout == "burst on -> on (unchanged)\n"
    assert call("limits", "set", path, "--burst", "--device", "0").returncode == 2
    assert "burst" in call("limits", "get", path).stdout
    assert json.loads(call("limits", "get", path, "--json").stdout)["burst"] is True
    assert re.search(r"^sm-limiting +on, burst$", call("show", path).stdout, re.MULTILINE)
    assert json.loads(call("show", path, "--json").stdout)["burst"] is True
    answer = call("limits", "set", path, "--no-burst", "--sm", "40", "--device", "1", "--json")
    told = json.loads(answer.stdout)
    assert told["burst"] == {"before": True, "after": False}
    assert [each["after"] for each in told["changes"]] == [40]
    assert json.loads(call("limits", "get", path, "--json").stdout)["burst"] is False
    assert "burst" not in call("show", path).stdout
    told = json.loads(call("limits", "set", path, "--sm", "30", "--json").stdout)
    assert told["burst"] is None


def test_limits_set_changes_no_limit_where_there_is_no_room_for_burst(tmp_path):
    path = made(tmp_path / "region.cache", Layout.UNVERSIONED)
    with unchanged(path):
        assert "has no room for burst" in refused("limits", "set", path, "--burst", "--sm", "20")


def test_if_equals_compares_a_limit(tmp_path):
    path = made(tmp_path / "region.cache")
    said = refused("limits", "set", path, "--burst", "--if-equals", "50")
    assert "--if-equals compares one limit" in said


def test_an_undo_leaves_a_burst_mark_that_another_program_has_set(tmp_path):
    path = made(tmp_path / "region.cache")
    with hami.open_region(path, writable=True) as region:
        region.set_burst(True)
        unchanged = region.set_burst(True)
        region.set_burst(False)
        assert [each.status for each in hami.undo([unchanged])] == ["conflict"]
        assert not region.burst
