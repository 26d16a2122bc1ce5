"""Which processes are proved to be of other pods than a region."""

import os
import uuid
from collections.abc import Collection, Iterator

import attrs
import pytest
from support.containers import container_with

from libhamiregion import Region, open_region
from libhamiregion.node import HostProcess, ProcessTable
from libhamiregion.node.processes import in_turn
from libhamiregion.node.procfs import file_identity
from libhamiregion.node.slots import other_pod_processes
from libhamiregion.observation.names import ContainerId
from libhamiregion.observation.processes import (
    Entry,
    FileUser,
    Mapping,
    ProcessView,
    ProcVisibility,
)

OURS, OTHER = str(uuid.uuid4()), str(uuid.uuid4())
# A static pod, as its cgroup names it; the API has another UID for it.
STATIC = uuid.uuid4().hex
OWN_PID = 10


@pytest.fixture
def region(region_file) -> Iterator[Region]:
    with open_region(region_file()) as opened:
        yield opened


def entry(pid: int, pod_uid: str | None, *, inner_pid: int = 7) -> Entry:
    container = ContainerId("cafe" * 16, pod_uid)
    process = HostProcess(
        pid=pid,
        start_time_ticks=pid * 100,
        ns_pids=(pid, inner_pid),
        uid=0,
        user="root",
        command="train",
        container=container,
    )
    return Entry(pid * 100, process, unread="no_time")


OWN = entry(OWN_PID, None)


def found(
    region: Region,
    *entries: Entry,
    pod_uid: str | None = OURS,
    pids: Collection[int] = (7,),
    users: Collection[int] = (),
    own: Entry | None = OWN,
) -> list[tuple[int, int]]:
    table = ProcessTable()
    device, inode = file_identity(region)
    known = {}
    for each in (*entries, *((own,) if own else ())):
        mapping = Mapping(device, inode, 0, 0, 0, True, "", False)
        uses = (FileUser(each.process, None, mapping),) if each.process.pid in users else ()
        known[each.process.pid] = attrs.evolve(each, uses=uses)
    visibility = ProcVisibility(own_pid=OWN_PID)
    table.view = ProcessView(entries=known, visibility=visibility)
    return other_pod_processes(
        table.view,
        container_with(region, pod_uid=pod_uid, directory="/"),
        pids,
    )


def test_processes_of_other_pods_with_the_pid_of_a_slot_are(region):
    entries = [entry(300, OTHER), entry(200, OTHER)]
    entries += [entry(201, OTHER, inner_pid=8), entry(202, OTHER, inner_pid=9)]
    expected = [(200, 20000), (201, 20100), (300, 30000)]
    assert found(region, *entries, pids=[8, 7]) == expected


@pytest.mark.parametrize("pod_uid", [OURS, None, STATIC], ids=["the same", "none", "static"])
def test_a_process_that_may_be_of_the_same_pod_is_not(region, pod_uid):
    assert found(region, entry(200, pod_uid)) == []


def test_none_is_if_the_regions_pod_is_not_known(region):
    assert found(region, entry(200, OTHER), pod_uid=None) == []


def test_a_process_that_maps_the_region_is_not(region):
    assert found(region, entry(200, OTHER), entry(201, OTHER), users={200}) == [(201, 20100)]


def test_none_is_on_a_node_that_is_in_a_pod_itself(region):
    """The outermost pod is that of all its processes, whatever the regions' pods are."""
    assert found(region, entry(200, OTHER), own=entry(OWN_PID, OTHER)) == []


def test_none_is_if_this_process_is_not_shown(region):
    assert found(region, entry(200, OTHER), own=None) == []


def test_a_refresh_reads_wanted_processes_again():
    table = ProcessTable()
    table.refresh()
    # A second time, because it was new.
    table.refresh()
    before = table.view.entries[os.getpid()]
    table.refresh()
    assert table.view.entries[os.getpid()] is before
    table.refresh([os.getpid()])
    assert table.view.entries[os.getpid()].read_s > before.read_s


def test_the_users_of_a_file_are_those_that_map_it(region):
    table = ProcessTable()
    table.refresh()
    device, inode = file_identity(region)
    assert [user.process.pid for user in table.view.users_of((device, inode))] == [os.getpid()]
    # Inode 0 is no file's, so no other test's process can map it.
    assert table.view.users_of((device, 0)) == ()


def test_a_container_with_many_processes_does_not_keep_others_waiting():
    due = [Entry(1, budget_key=key) for key in (*"aaaa", "b", "c", "c")]
    assert [each.budget_key for each in in_turn(due)] == [*"abc", *"ac", *"aa"]
