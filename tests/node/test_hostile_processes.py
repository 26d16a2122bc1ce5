"""A container makes its own processes expensive to read, or impossible: nobody else notices."""

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from support.actors import map_libvgpu
from support.agent_process import Agent, agents
from support.containers import container_with
from support.hostile_processes import MOST_MAPPINGS, locked_process, mapping_storm
from support.own_cgroups import cgroup_of_pod, needs_cgroups
from support.region_file import RegionFile
from support.wait import PATIENCE_S, eventually, on_this_machine_s

from libhamiregion import RegionStale, open_region
from libhamiregion.node import Node, ProcessGap, ProcessTable, match_slots, processes
from libhamiregion.node.outside import mapped_regions, open_mapped
from libhamiregion.node.workers import Blocked
from libhamiregion.observation.names import ContainerId
from libhamiregion.observation.processes import Entry
from libhamiregion.units import MIB

pytestmark = pytest.mark.slow

CONTAINER_ID = "cafe" * 16


@pytest.fixture
def start(scene, tmp_path) -> Iterator[Callable[..., Agent]]:
    with agents(scene, tmp_path) as starter:
        yield starter


# ---- Expensive ----------------------------------------------------------------------------------


@needs_cgroups
def test_a_storm_of_processes_that_share_65000_mappings_is_a_gap_of_its_container(
    actor, tmp_path, region_file
):
    uid = str(uuid.uuid4())
    container = ContainerId(CONTAINER_ID, uid)
    region = region_file(memory_limits=("1GiB",))
    honest = actor(region, attach=True)
    table = ProcessTable()
    with (
        cgroup_of_pod(uid, CONTAINER_ID) as cgroup,
        mapping_storm(
            tmp_path, cgroup, "shared", processes=400, lifetime_ms=8000, mappings=MOST_MAPPINGS
        ),
    ):
        gaps: list[ProcessGap] = []
        deadline_s = time.monotonic() + 3 * PATIENCE_S
        while not gaps:
            assert time.monotonic() < deadline_s
            with open_region(region) as opened:
                read_s = time.monotonic()
                spent_s = time.process_time()
                table.refresh()
                # Without shares each of 400 processes takes 0.03 to 0.1 s.
                assert time.process_time() - spent_s < on_this_machine_s(4.0)
                found = match_slots(
                    table.view,
                    container_with(opened),
                    [honest.pid],
                    read_s,
                )
            assert found.host_pids == {honest.pid: honest.pid_here}
            # Another test may play a storm as well.
            gaps = [each for each in table.view.gaps if each.container == container]
        assert gaps == [ProcessGap(container, CONTAINER_ID, gaps[0].count, "no_time")]
        assert table.view.hides_users_of(uid)
        # It does not make the node incomplete: who is not read is known to be its container's.
        assert table.view.visibility.sees_all_pids
        # Another container starts a process meanwhile, and it is read at once.
        late = actor(region, attach=True)
        with open_region(region) as opened:
            read_s = time.monotonic()
            table.refresh()
            found = match_slots(
                table.view,
                container_with(opened),
                [late.pid],
                read_s,
            )
        assert found.host_pids == {late.pid: late.pid_here}


@pytest.fixture
def honest(scene, actor) -> RegionFile:
    """A container with one process, whose figures are to be exported."""
    file = scene.container("honest")
    actor(file, attach=True)
    file.put("slot_used.total", 640 * MIB)
    return file


# ---- Impossible ---------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path) -> Iterator[int]:
    with locked_process(tmp_path / "fuse") as process:
        process.lock()
        yield process.pid


def test_a_process_that_blocks_its_reader_is_not_asked_again_and_all_others_are_read(
    actor, locked, region_file
):
    region = region_file(memory_limits=("1GiB",))
    table = ProcessTable()

    def is_blocked() -> bool:
        table.refresh()
        return "blocked" in [gap.reason for gap in table.view.gaps]

    eventually(is_blocked)
    found = table.view.get(locked)
    assert found.command.startswith("[")
    read: list[object] = []
    read_one = table._read

    def counted(directory: int, known: Entry) -> Entry:
        read.append(known.identity[0])
        return read_one(directory, known)

    table._read = counted  # type: ignore[method-assign]
    honest = actor(region, attach=True)

    def is_honest_read() -> bool:
        assert is_blocked()
        assert locked not in read
        return read.count(honest.pid_here) >= 2

    eventually(is_honest_read)
    with pytest.raises(Blocked):
        table.ask(found, list)
    assert table.view.has_libvgpu(found) is None


def test_what_is_known_of_a_program_ends_when_it_calls_exec(actor, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_KEPT_S", 0.0)
    process = actor()
    table = ProcessTable()
    table.refresh()
    found = table.view.get(process.pid_here)
    assert found is not None
    assert table.view.has_libvgpu(found) is False
    map_libvgpu(process, tmp_path)
    table.refresh()
    assert table.view.has_libvgpu(found) is True
    process.start("evaluate", "import os; os.execv('/bin/sleep', ['sleep', '1000'])")

    def is_another_program() -> bool:
        table.refresh()
        now = table.view.get(process.pid_here)
        return now is not None and now.command == "sleep 1000"

    eventually(is_another_program)
    assert table.view.has_libvgpu(found) is False


def test_a_region_outside_the_roots_is_left_where_its_only_user_blocks_whoever_opens_it(
    actor, tmp_path, region_file
):
    """Its maps have been read before; the link to the file is what blocks now."""
    root = tmp_path / "containers"
    root.mkdir()
    region = region_file(memory_limits=("1GiB",))
    other = region_file(memory_limits=("2GiB",))
    with (
        locked_process(tmp_path / "fuse", region.path) as process,
        Node(root, outside=True) as node,
    ):
        node.processes.refresh()
        assert [each.pid for each in node.processes.view].count(process.pid) == 1
        (mapped,) = (
            each for each in mapped_regions(node.processes.view) if process.pid in each.pids
        )
        process.lock()
        # Not before Linux 6.17 does the kernel find a mapping without the lock.
        with pytest.raises((RegionStale, OSError)):
            open_mapped(node.processes, mapped)
        actor(other, attach=True)

        def is_other_open() -> bool:
            node.refresh()
            found = {each.path_in_namespace: each for each in node.containers}
            lost = found.get(str(region.path))
            assert lost is None or lost.region is None
            return str(other.path) in found and found[str(other.path)].region is not None

        eventually(is_other_open)
