"""A node full of containers: their directories, kubelet's logs, real processes, and a driver.

Used by the benchmarks of what works on whole nodes, in their own process or as a server:

    with node_scene(directory, containers=256) as scene:
        node = Node(scene.root, names=PodLogNames(scene.logs))
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from scene import DEVICES, PROCESSES, copies

from libhamiregion import Layout, open_region

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fake_nvml.driver import FakeDriver, build
from poke import RegionFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIB = 1 << 20
GIB = 1 << 30
_PROGRAM = Path(__file__).with_name("mapping_processes.c")


@attrs.frozen
class NodeScene:
    """A node that stands until the end of `node_scene`.

    Attributes:
        root: Holds the containers' directories.
        logs: Holds the pods' logs.
        regions: The containers' region files.
        pids: Of the processes, region by region; empty without processes.
        driver: The GPUs' driver; its environment makes programs use it.
    """

    root: Path
    logs: Path
    regions: tuple[RegionFile, ...]
    pids: tuple[tuple[int, ...], ...]
    driver: FakeDriver

    def environment(self) -> dict[str, str]:
        """The environment of a program that shall see this node's driver."""
        return {**self.driver.environment(), "NODE_NAME": "bench-node"}

    def work(self, step: int) -> None:
        """Let time pass: every process uses other figures than before."""
        for number, region in enumerate(self.regions):
            for slot in range(PROCESSES):
                for device in range(DEVICES):
                    used = (64 + (number * 31 + slot * 7 + device * 3 + step) % 999) * MIB
                    region.put("slot_used.data", used, device=device, slot=slot)
                    region.put("slot_used.total", used + 300 * MIB, device=device, slot=slot)
                    busy = (number + slot * 13 + device + step) % 25
                    region.put("slot_util.sm", busy, device=device, slot=slot)


@contextlib.contextmanager
def node_scene(directory: Path, containers: int, *, processes: bool = True) -> Iterator[NodeScene]:
    """Build a node of so many containers with two devices and four processes each.

    Args:
        directory: An empty one, which stays as it is afterwards.
        containers: How many.
        processes: Whether the slots' processes are there: real ones that map the regions. Without
            them the slots are those of the dead.
    """
    root, logs = directory / "containers", directory / "pods"
    root.mkdir(parents=True)
    logs.mkdir()
    regions = []
    for number, path in enumerate(copies(directory, containers)):
        pod_uid = str(uuid.UUID(int=number + 1))
        home = root / f"{pod_uid}_main"
        home.mkdir()
        regions.append(RegionFile(path.rename(home / "usage.cache"), Layout.V1_2))
        (logs / f"team-{number % 7}_training-job-{number:04}-abcde_{pod_uid}" / "main").mkdir(
            parents=True
        )
    driver = FakeDriver(build(directory), directory / "nvml-scene")
    with contextlib.ExitStack() as stack:
        pids: Sequence[tuple[int, ...]] = ()
        if processes:
            pids = stack.enter_context(_processes(directory, regions))
            for region, own in zip(regions, pids, strict=True):
                for slot, pid in enumerate(own):
                    region.put("slot_pid", pid, slot=slot)
                    region.put("slot_hostpid", pid, slot=slot)
                    region.put("slot_status", 1, slot=slot)
        with open_region(regions[0]) as region:
            uuids = region.uuids
        driver.play(*_driver_lines(uuids, pids))
        scene = NodeScene(root, logs, tuple(regions), tuple(pids), driver)
        scene.work(0)
        yield scene


def _driver_lines(uuids: Sequence[str | None], pids: Sequence[tuple[int, ...]]) -> Iterator[str]:
    for device in range(DEVICES):
        yield f"device {device} {uuids[device]} {80 * GIB} {40 * GIB} 37 12 NVIDIA H100 80GB HBM3"
    for own in pids:
        for pid in own:
            for device in range(DEVICES):
                yield f"process {device} compute {pid} {700 * MIB}"


@contextlib.contextmanager
def _processes(directory: Path, regions: Sequence[RegionFile]) -> Iterator[list[tuple[int, ...]]]:
    """Real processes, four for each region, which map it as their container's would."""
    program = directory / "mapping_processes"
    subprocess.run(["cc", "-O1", "-o", str(program), str(_PROGRAM)], check=True)
    listed = directory / "regions.list"
    listed.write_text("".join(f"{os.fspath(region)}\n" for region in regions))
    with subprocess.Popen(
        [str(program), str(PROCESSES), str(listed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        found: list[list[int]] = [[] for _ in regions]
        try:
            while line := parent.stdout.readline().strip():
                number, pid = line.split()
                found[int(number)].append(int(pid))
            yield [tuple(own) for own in found]
        finally:
            # Its children end with it.
            parent.stdin.close()
            parent.wait()
