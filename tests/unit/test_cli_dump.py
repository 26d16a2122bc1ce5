"""`hamiregion dump`: the fields of a file with their offsets, whatever state it is in."""

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli_process import COMMAND
from golden_regions import GoldenRegion
from integration.called import call
from region_bytes import RegionFile, RegionFileFactory, locate

from libhamiregion import Layout, RegionError, identify, open_region

pytestmark = pytest.mark.every_layout

FORMS = {"i32": "<i", "u32": "<I", "u64": "<Q"}
ONE_GIB = 2**30
UUID = "GPU-9f1c2a60-0d5e-4c3b-8a77-1b2f6e5d4c30"


def dumped(path: os.PathLike[str] | str, *options: str) -> dict[str, Any]:
    answer = call("dump", "--json", *options, os.fspath(path))
    assert (answer.returncode, answer.stderr) == (0, "")
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def by_name(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    fields = {field["name"]: field for field in found["fields"]}
    assert len(fields) == len(found["fields"])
    return fields


def faults(found: dict[str, Any]) -> dict[str, str]:
    listed = {field["name"]: field["fault"] for field in found["fields"] if field["fault"]}
    assert found["faults"] == len(listed)
    return listed


def test_each_field_is_what_stands_at_its_offset(golden: GoldenRegion) -> None:
    """Each number is the file's, no two fields overlap, and all that is in use is shown."""
    content = golden.path.read_bytes()
    found = dumped(golden.path, "--all")
    assert (found["layout"], found["chosen"], found["error"]) == (
        golden.layout.value,
        "identified",
        None,
    )
    assert found["size_bytes"] == len(content) == golden.expected["file_size"]
    assert found["behind_bytes"] == 1
    assert found["missing"] == []
    end = 0
    for field in sorted(found["fields"], key=lambda field: field["offset"]):
        offset, form = field["offset"], FORMS.get(field["type"])
        assert offset >= end
        if form is None:
            text = content[offset : offset + 96].rstrip(b"\0").decode()
            assert (field["type"], field["value"]) == ("text", text)
            end = offset + 96
        else:
            assert (field["value"],) == struct.unpack_from(form, content, offset)
            end = offset + struct.calcsize(form)
    assert end <= golden.layout.size_bytes


def test_a_golden_region_holds_what_its_library_said(golden: GoldenRegion) -> None:
    fields, expected = by_name(dumped(golden.path)), golden.expected
    assert fields["proc_num"]["value"] == expected["proc_num"]
    for device in range(16):
        assert fields[f"limit[{device}]"]["value"] == expected["memory_limit"][device]
        assert fields[f"sm_limit[{device}]"]["value"] == expected["sm_limit"][device]
    used = [
        sum(
            field["value"]
            for name, field in fields.items()
            if name.startswith("procs[") and name.endswith(f".used[{device}].total")
        )
        for device in range(expected["device_num"])
    ]
    assert used == expected["device_used"]


def test_a_sound_file_has_no_fault(layout: Layout, region_file: RegionFileFactory) -> None:
    file = region_file(layout, memory_limits=(ONE_GIB,), sm_limits=(50,), uuids=[UUID])
    file.add_process(7, {0: ONE_GIB})
    assert faults(dumped(file)) == {}
    fields = by_name(dumped(file))
    assert fields["limit[0]"]["note"] == "1 GiB"
    assert fields["sm_limit[0]"]["note"] == "50 %"
    assert fields["procs[0].used[0].total"]["offset"] == locate(layout, "slot_used.total")[0]
    assert "procs[0].used[1].total" not in fields
    assert "procs[0].used[1].total" in by_name(dumped(file, "--all"))


def why_not(file: RegionFile) -> str | None:
    """Why the file does not open."""
    try:
        identify(file)
    except RegionError as error:
        return str(error)
    return None


BROKEN = (
    ("magic", 5, "initialized_flag", "not the magic number 19920718"),
    ("magic", 0, "initialized_flag", "not set: being made"),
    ("owner_pid", 2**31, "owner_pid", "above every pid"),
    ("sem", 2, "sem.value", "above 1: it excludes nobody"),
    ("device_num", 17, "device_num", "more than 16"),
    ("uuids", b"\x1b[2J", "uuids[0]", "no GPU- or MIG- text"),
    ("proc_num", 1025, "proc_num", "not within 0 to 1024"),
    ("proc_num", -1, "proc_num", "not within 0 to 1024"),
    ("utilization_switch", 7, "utilization_switch", "neither 0 nor 1"),
    ("slot_pid", 0, "procs[0].pid", "0 in use: HAMi up to 2.8.0 hangs there"),
    ("slot_pid", -5, "procs[0].pid", "negative"),
    ("slot_hostpid", -5, "procs[0].hostpid", "negative"),
    ("slot_status", 3, "procs[0].status", "none of 0, 1 and 2"),
)


@pytest.mark.parametrize("layout", [Layout.UNVERSIONED_NO_UTIL, Layout.V1_2])
def test_what_is_wrong_stands_beside_the_field(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    for field, value, name, fault in BROKEN:
        file = region_file(layout, uuids=[UUID])
        file.add_process(7, {0: 5})
        file.put(field, value)
        found = dumped(file, "--layout", layout.value)
        assert faults(found) == {name: fault}
        assert found["error"] == why_not(file)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_what_libvgpu_writes_into_a_status_is_no_fault(file: RegionFile, status: int) -> None:
    file.add_process(7, {0: 5})
    file.put("slot_status", status)
    found = dumped(file)
    assert by_name(found)["procs[0].status"]["value"] == status
    assert faults(found) == {}


@pytest.mark.parametrize("layout", [Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2])
def test_an_attached_process_has_signed_with_a_pid(file: RegionFile) -> None:
    with open_region(file, writable=True) as region, region.attach(), region.lock():
        owner = by_name(dumped(file))["owner_pid"]
    assert (owner["note"], owner["fault"]) == (f"pid {os.getpid()}, attached", None)


@pytest.mark.parametrize("layout", [Layout.V1_1_POSTINIT, Layout.V1_2])
def test_a_death_in_a_seqlock_is_seen(file: RegionFile) -> None:
    file.add_process(7, {0: 5})
    file.put("slot_seqlock", 9)
    file.put("slot_used.total", 6)
    assert faults(dumped(file)) == {
        "procs[0].seqlock": "odd: a writer is inside, or has died there",
        "procs[0].used[0].total": "not the sum of context, module and data",
    }


def test_a_file_cut_anywhere_is_shown_as_far_as_it_goes(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(ONE_GIB,), uuids=[UUID])
    for slot in range(3):
        file.add_process(7 + slot, {0: 5})
    whole = by_name(dumped(file))
    end = layout.size_bytes
    content = file.content()
    for size in (0, 30, 1_700, 5_000, end // 2, end - 48):
        file.path.write_bytes(content[:size])
        found = dumped(file, "--layout", layout.value)
        assert found["error"] is not None or size > end // 2
        assert found["missing"]
        fields = by_name(found)
        for name, field in fields.items():
            assert (field["offset"], field["value"]) == (
                whole[name]["offset"],
                whole[name]["value"],
            )
        lengths = {"i32": 4, "u32": 4, "u64": 8, "text": 96}
        ends = [field["offset"] + lengths[field["type"]] for field in fields.values()]
        assert max(ends, default=0) <= size


def test_the_text_names_the_first_and_the_last_field_behind_the_end(
    region_file: RegionFileFactory,
) -> None:
    file = region_file(memory_limits=(ONE_GIB,))
    file.path.write_bytes(file.content()[: Layout.V1_2.offsets["proc_num"]])
    answer = call("dump", "--layout", "1.2", os.fspath(file.path))
    assert "missing  proc_num to sem_postinit+8: the file ends before them\n" in answer.stdout


def test_a_damaged_file_is_read_in_the_layout_that_it_most_likely_has(
    layout: Layout, region_file: RegionFileFactory
) -> None:
    file = region_file(layout, memory_limits=(ONE_GIB,))
    file.put("proc_num", 5000)
    file.put("device_num", 99)
    found = dumped(file)
    assert (found["layout"], found["chosen"]) == (layout.value, "guessed")


def test_a_named_layout_is_used_whatever_the_file_is(region_file: RegionFileFactory) -> None:
    file = region_file(Layout.V1_2, memory_limits=(ONE_GIB,))
    found = dumped(file, "--layout", "unversioned")
    assert (found["layout"], found["chosen"], found["error"]) == ("unversioned", "named", None)
    assert by_name(found)["limit[1]"]["value"] == ONE_GIB


def test_a_newer_version_is_told(region_file: RegionFileFactory) -> None:
    file = region_file()
    file.put("minor_version", 3)
    found = dumped(file)
    assert found["error"] is None
    assert faults(found) == {"minor_version": "newer than any that is known"}


def test_slots_behind_the_last_one_are_shown_when_asked_for(
    region_file: RegionFileFactory,
) -> None:
    file = region_file()
    file.add_process(7, {0: 5})
    file.add_process(8, {0: 6})
    file.put("proc_num", 1)
    assert "procs[1].pid" not in by_name(dumped(file))
    behind = by_name(dumped(file, "--all"))["procs[1].pid"]
    assert (behind["value"], behind["note"]) == (8, "not in use")
    assert "procs[2].pid" not in by_name(dumped(file, "--all"))
    # Where nothing tells how many are in use, all that hold something are.
    file.put("proc_num", -1)
    assert "procs[1].pid" in by_name(dumped(file))


def test_nothing_in_a_file_steers_a_terminal(region_file: RegionFileFactory) -> None:
    file = region_file(uuids=[UUID])
    file.put("uuids", b"GPU-\x1b]0;owned\x07\r\n\x9b31m")
    for options in ((), ("--json",)):
        answer = call("dump", *options, str(file.path))
        assert answer.returncode == 0
        assert all(line.isprintable() for line in answer.stdout.splitlines())
        assert answer.stdout.count("\n") < 200
        assert "owned" in answer.stdout
    assert "BAD: no GPU- or MIG- text" in call("dump", str(file.path)).stdout


def test_a_file_that_may_not_be_read_is_named(region_file: RegionFileFactory) -> None:
    path = region_file().path
    path.chmod(0)
    # What root may do beyond others is taken from it.
    less = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    if less and shutil.which("setpriv") is None:
        pytest.skip("needs setpriv of util-linux")
    words = [*less, *COMMAND, "dump", str(path)]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (1, f"Error: {path}: Permission denied\n")


def test_any_bytes_are_dumped(tmp_path: Path) -> None:
    for number, content in enumerate(
        (b"", b"\xff" * 3000, os.urandom(40_000).ljust(2_008_953, b"\0"))
    ):
        path = tmp_path / f"{number}.cache"
        path.write_bytes(content)
        for options in ((), ("--layout", "1.1-postinit")):
            found = dumped(path, *options)
            assert found["size_bytes"] == len(content)
            assert found["error"] is not None


def test_dumping_changes_nothing(region_file: RegionFileFactory) -> None:
    file = region_file(memory_limits=(ONE_GIB,))
    before = RegionFile(file.path, file.layout).content()
    dumped(file, "--all")
    assert file.content() == before
