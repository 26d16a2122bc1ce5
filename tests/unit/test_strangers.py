"""Which processes are known to be of other pods than a region."""

import uuid

import pytest

from libhamiregion.node.cgroups import ContainerId
from libhamiregion.node.matching import HostProcess
from libhamiregion.node.process_entry import Entry
from libhamiregion.node.strangers import Strangers

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


def strangers(*entries: Entry, own_pod: str | None = None, own_pid: int = OWN_PID) -> Strangers:
    kernel_thread = Entry(1)
    known = {each.identity[0]: each for each in entries}
    return Strangers({**known, OWN_PID: entry(OWN_PID, own_pod), 2: kernel_thread}, own_pid)


def test_those_of_other_pods_with_the_pid_of_a_slot_are() -> None:
    found = strangers(
        entry(300, OTHER),
        entry(200, OTHER),
        entry(201, OTHER, inner_pid=8),
        entry(202, OTHER, inner_pid=9),
    )
    assert found.of(OURS, [8, 7], ()) == [(200, 20000), (201, 20100), (300, 30000)]


@pytest.mark.parametrize("pod_uid", [OURS, None, STATIC], ids=["the same", "none", "static"])
def test_nobody_is_who_may_be_of_the_same_pod(pod_uid: str | None) -> None:
    assert strangers(entry(200, pod_uid)).of(OURS, [7], ()) == []


def test_nobody_is_where_the_regions_pod_is_not_known() -> None:
    assert strangers(entry(200, OTHER)).of(None, [7], ()) == []


def test_who_maps_the_region_is_none() -> None:
    assert strangers(entry(200, OTHER), entry(201, OTHER)).of(OURS, [7], {200}) == [(201, 20100)]


def test_nobody_is_on_a_node_that_is_in_a_pod_itself() -> None:
    """The outermost pod is that of all its processes, whatever the regions' pods are."""
    assert strangers(entry(200, OTHER), own_pod=OTHER).of(OURS, [7], ()) == []


def test_nobody_is_where_this_process_is_not_shown() -> None:
    assert strangers(entry(200, OTHER), own_pid=0).of(OURS, [7], ()) == []
