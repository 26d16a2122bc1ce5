"""What is shown as dead is what reaping would free, whatever /proc shows: there is one proof."""

import os
import signal

import pytest
from support.actors import map_libvgpu
from support.containers import Container, look, mounted_proc, needs_namespaces, states
from support.forked import unprivileged
from support.namespaces import overlay_mount
from support.region_file import RegionFile

from libhamiregion import Layout, create_region, open_region
from libhamiregion.node import ProcessTable

NOBODY = 3_999_999

pytestmark = needs_namespaces


@pytest.fixture(params=[Layout.V1_1, Layout.V1_2])
def region(request, region_file) -> RegionFile:
    """One with a slot of a process that never was."""
    file = region_file(request.param, memory_limits=("8GiB",))
    file.add_process(NOBODY, {0: 640})
    return file


def charged(inside: Container, file: RegionFile, pid: int = 0) -> int:
    """Attach a process of a container, or one of its children, and let it use memory."""
    to = (f"@{pid}",) if pid else ()
    own: int = inside.tell(*to, "attach", file.path)
    inside.tell(*to, "charge", 1000)
    return own


def test_monitors_strangers_and_several_that_could_be_meant(start, region):
    monitor, users, stranger = start(0), start(), start()
    charged(users, region)
    stranger.tell("map", region.path)
    monitor.tell("map", region.path)
    region.add_process(monitor.process.pid, {0: 1})
    expected = {1: "unknown", monitor.process.pid: "unknown", NOBODY: "dead"}
    assert states(look(region)) == expected


JUDGE = """
from libhamiregion.node.procfs import file_identity
from libhamiregion.node import Container, ProcessTable, match_slots
import mmap, os, time
descriptor = os.open(path, os.O_RDWR)
scene.mapping = mmap.mmap(descriptor, 0)
os.close(descriptor)
table, snapshot, read_s = ProcessTable(), region.snapshot(), time.monotonic()
table.refresh()
pids = [each.pid for each in snapshot.processes]
container = Container(region=region, identity=file_identity(region))
found = match_slots(table.view, container, pids, read_s)
shown = {slot.pid: slot.state for slot in found.slots}
answer = shown, {slot.pid for slot in region.reap(dry_run=True)}
"""


def test_this_process_with_libvgpu_loaded(actor, region, tmp_path):
    process = actor(region)
    map_libvgpu(process, tmp_path)
    region.add_process(process.pid, {0: 1})
    shown, freed = process("evaluate", JUDGE, path=os.fspath(region))
    assert (shown, freed) == ({process.pid: "unknown", NOBODY: "dead"}, {NOBODY})


@pytest.mark.root
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_for_a_user_without_privileges(hidepid, start, public_directory):
    path = public_directory / "region.cache"
    create_region(path)
    path.chmod(0o666)
    file = RegionFile(path, open_region(path).layout)
    file.add_process(NOBODY, {0: 640})
    charged(start(), file)
    with mounted_proc(public_directory, f"hidepid={hidepid}") as proc:
        expected = {1: "unknown", NOBODY: "unknown" if hidepid else "dead"}
        assert unprivileged(lambda: states(look(path, ProcessTable(proc)))) == expected


@pytest.mark.slow(keep=1)
@pytest.mark.root
def test_a_file_that_is_mapped_through_an_overlay(start, region, tmp_path):
    prefix, merged, upper = overlay_mount(tmp_path)
    path = upper / "usage.cache"
    region.path.rename(path)
    inside = start(1, prefix)
    inside.tell("attach", merged / "usage.cache")
    inside.tell("charge", 1000)
    assert states(look(path)) == {1: "unknown", NOBODY: "dead"}
    os.kill(inside.host_pid, signal.SIGKILL)
    inside.process.wait()
    assert states(look(path)) == {1: "dead", NOBODY: "dead"}
