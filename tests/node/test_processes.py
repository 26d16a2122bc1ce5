"""Which processes are known to be of other pods than a region."""

import uuid
from collections import defaultdict
from collections.abc import Collection

import pytest

from libhamiregion.node.cgroups import ContainerId
from libhamiregion.node.matching import HostProcess
from libhamiregion.node.process_entry import Entry
from libhamiregion.node.processes import other_pod_processes

OURS, OTHER = str(uuid.uuid4()), str(uuid.uuid4())
# A static pod, as its cgroup names it; the API has another UID for it.
STATIC = uuid.uuid4().hex
OWN_PID = 10


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
    *entries: Entry,
    pod_uid: str | None = OURS,
    pids: Collection[int] = (7,),
    users: Collection[int] = (),
    own: Entry | None = OWN,
) -> list[tuple[int, int]]:
    by_pid: defaultdict[int, list[Entry]] = defaultdict(list)
    for each in entries:
        assert each.process is not None
        by_pid[each.process.ns_pids[-1]].append(each)
    return other_pod_processes(by_pid, own, pod_uid, pids, users)


def test_those_of_other_pods_with_the_pid_of_a_slot_are() -> None:
    entries = [entry(300, OTHER), entry(200, OTHER)]
    entries += [entry(201, OTHER, inner_pid=8), entry(202, OTHER, inner_pid=9)]
    assert found(*entries, pids=[8, 7]) == [(200, 20000), (201, 20100), (300, 30000)]


@pytest.mark.parametrize("pod_uid", [OURS, None, STATIC], ids=["the same", "none", "static"])
def test_nobody_is_who_may_be_of_the_same_pod(pod_uid: str | None) -> None:
    assert found(entry(200, pod_uid)) == []


def test_nobody_is_where_the_regions_pod_is_not_known() -> None:
    assert found(entry(200, OTHER), pod_uid=None) == []


def test_who_maps_the_region_is_none() -> None:
    assert found(entry(200, OTHER), entry(201, OTHER), users={200}) == [(201, 20100)]


def test_nobody_is_on_a_node_that_is_in_a_pod_itself() -> None:
    """The outermost pod is that of all its processes, whatever the regions' pods are."""
    assert found(entry(200, OTHER), own=entry(OWN_PID, OTHER)) == []


def test_nobody_is_where_this_process_is_not_shown() -> None:
    assert found(entry(200, OTHER), own=None) == []
