"""What is shown as dead is what reaping would free, whatever /proc shows: there is one proof."""

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from actors import Actor
from containers import (
    Container,
    Starter,
    containers,
    libvgpu,
    look,
    mounted_proc,
    needs_namespaces,
    states,
)
from forked import unprivileged
from namespaces import needs_first_namespace
from own_cgroups import cgroup_of_pod
from poke import RegionFile, RegionFileFactory

from libhamiregion import Layout, create_region, open_region
from libhamiregion.node import ProcessTable, processes

MakeActor = Callable[..., Actor]

NOBODY = 3_999_999

pytestmark = [needs_namespaces, needs_first_namespace]


@pytest.fixture
def container() -> Iterator[Starter]:
    with containers() as start:
        yield start


@pytest.fixture(params=[Layout.V1_1, Layout.V1_2], ids=lambda layout: layout.value)
def region(request: pytest.FixtureRequest, region_file: RegionFileFactory) -> RegionFile:
    """One with a slot of a process that never was."""
    file = region_file(request.param, memory_limits=("8GiB",))
    file.add_process(NOBODY, {0: 640})
    return file


def judged(path: os.PathLike[str], proc: object = "/proc", **options: object) -> dict[int, str]:
    """The states that are shown, after a comparison with what reaping would free."""
    shown = states(look(path, ProcessTable(str(proc)), **options))
    with open_region(path, writable=True) as opened:
        freed = {slot.pid for slot in opened.reap(proc=str(proc), dry_run=True)}
    assert {pid for pid, state in shown.items() if state == "dead"} == freed
    return shown


def charged(inside: Container, file: RegionFile, pid: int = 0) -> int:
    """Attach a process of a container, or one of its children, and let it use memory."""
    to = (f"@{pid}",) if pid else ()
    own: int = inside.tell(*to, "attach", file.path)
    inside.tell(*to, "charge", 1000)
    return own


# ---- what becomes of processes ----


def test_the_living_the_killed_and_those_that_never_were(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    children = [inside.tell("spawn") for _ in range(3)]
    for pid in (0, *children):
        charged(inside, region, pid)
    inside.tell("kill", children[0])
    inside.tell("zombie", children[1])
    assert judged(region) == {
        1: "alive",
        children[0]: "dead",
        children[1]: "dead",
        children[2]: "alive",
        NOBODY: "dead",
    }


def test_another_program_under_the_same_pid_and_one_that_only_reads(
    container: Starter, region: RegionFile
) -> None:
    inside = container()
    execs, again, reads = inside.tell("spawn"), inside.tell("spawn", 499), inside.tell("spawn")
    for pid in (execs, again):
        charged(inside, region, pid)
    inside.tell(f"@{execs}", "execute")
    inside.tell("kill", again)
    assert inside.tell("spawn", 499) == again
    inside.tell(f"@{reads}", "map", region.path, "r")
    region.add_process(reads, {0: 1})
    assert judged(region) == dict.fromkeys((execs, again, reads, NOBODY), "dead")


def test_one_whose_first_thread_has_ended(container: Starter, region: RegionFile) -> None:
    inside = container()
    charged(inside, region)
    inside.tell("leave_first_thread")
    assert judged(region) == {1: "alive", NOBODY: "dead"}


# ---- who stands beside the container ----


def test_monitors_strangers_and_several_that_could_be_meant(
    container: Starter, region: RegionFile
) -> None:
    monitor, users, stranger = container(0), container(), container()
    charged(users, region)
    stranger.tell("map", region.path)
    monitor.tell("map", region.path)
    region.add_process(monitor.process.pid, {0: 1})
    expected = {1: "unknown", monitor.process.pid: "unknown", NOBODY: "dead"}
    assert judged(region) == expected


@pytest.mark.parametrize("regions", [1, 2])
def test_one_whose_cgroup_names_another_pod(
    regions: int, container: Starter, region: RegionFile, region_file: RegionFileFactory
) -> None:
    """Also if it has many regions, as a monitor: one of the two names may be wrong."""
    inside = container()
    charged(inside, region)
    for _ in range(regions - 1):
        inside.tell("map", region_file().path)
    with cgroup_of_pod(str(uuid.uuid4()), "ab" * 32) as cgroup:
        (cgroup / "cgroup.procs").write_text(str(inside.host_pid))
        assert judged(region, pod_uid=str(uuid.uuid4())) == {1: "unknown", NOBODY: "dead"}


# ---- this very process ----


def test_this_process_without_a_slot_of_its_own(region: RegionFile) -> None:
    region.add_process(os.getpid(), {0: 1})
    with open_region(region, writable=True):
        assert judged(region) == {os.getpid(): "dead", NOBODY: "dead"}


JUDGE = """
from libhamiregion.node import ProcessTable
import mmap, os
descriptor = os.open(path, os.O_RDWR)
scene.mapping = mmap.mmap(descriptor, 0)
os.close(descriptor)
table, snapshot = ProcessTable(), region.snapshot()
table.refresh()
shown = {slot.pid: slot.state for slot in table.match(region, snapshot).slots}
answer = shown, {slot.pid for slot in region.reap(dry_run=True)}
"""


def test_this_process_with_libvgpu_loaded(actor: MakeActor, region: RegionFile) -> None:
    process = actor(region)
    region.add_process(process.pid, {0: 1})
    shown, freed = process("evaluate", JUDGE, path=os.fspath(region))
    assert (shown, freed) == ({process.pid: "unknown", NOBODY: "dead"}, {NOBODY})


# ---- what /proc does not show ----


def test_from_the_containers_own_namespace(
    container: Starter, region: RegionFile, tmp_path: Path
) -> None:
    inside, stranger = container(), container()
    charged(inside, region)
    stranger.tell("load", libvgpu(tmp_path))
    own, other = (f"/proc/{each.host_pid}/root/proc" for each in (inside, stranger))
    assert judged(region, own) == {1: "alive", NOBODY: "unknown"}, "a sidecar's, perhaps"
    inside.tell("load", libvgpu(tmp_path))
    assert judged(region, own) == {1: "alive", NOBODY: "dead"}
    assert judged(region, other) == {1: "unknown", NOBODY: "unknown"}


@pytest.mark.root
@pytest.mark.parametrize("hidepid", [0, 1, 2])
def test_for_a_user_without_privileges(
    hidepid: int, container: Starter, public_directory: Path
) -> None:
    path = public_directory / "region.cache"
    create_region(path)
    path.chmod(0o666)
    file = RegionFile(path, open_region(path).layout)
    file.add_process(NOBODY, {0: 640})
    charged(container(), file)
    with mounted_proc(public_directory, f"hidepid={hidepid}") as proc:
        expected = {1: "unknown", NOBODY: "unknown" if hidepid else "dead"}
        assert unprivileged(lambda: judged(path, proc)) == expected


def test_processes_that_the_table_leaves_out(
    actor: MakeActor, region: RegionFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_FILES_LIMIT", 0)
    process = actor(region)
    process("attach")
    process("slot.charge", 0, 1)
    assert judged(region) == {process.pid: "unknown", NOBODY: "dead"}


@pytest.mark.root
def test_a_file_that_is_mapped_through_an_overlay(
    container: Starter, region: RegionFile, tmp_path: Path
) -> None:
    merged = tmp_path / "merged"
    for name in ("upper", "merged", "lower", "work"):
        (tmp_path / name).mkdir()
    path = tmp_path / "upper" / "usage.cache"
    region.path.rename(path)
    options = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    mount = f'mount -t overlay overlay -o {options} {merged} && exec "$@"'
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh")
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"cannot mount an overlay here: {tried.stderr.strip()}")
    inside = container(1, prefix)
    inside.tell("attach", merged / "usage.cache")
    inside.tell("charge", 1000)
    assert judged(path) == {1: "unknown", NOBODY: "dead"}
    os.kill(inside.host_pid, signal.SIGKILL)
    inside.process.wait()
    assert judged(path) == {1: "dead", NOBODY: "dead"}
