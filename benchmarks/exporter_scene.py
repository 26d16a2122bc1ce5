"""A node full of containers whose processes are real: for the exporter, which shows no others.

Run by test_exporter.py, and by hand, to measure a whole exporter.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from scene import DEVICES, PROCESSES, compiler

from libhamiregion import Layout, create_region

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from fake_nvml.driver import FakeDriver, build  # noqa: E402
from support.region_file import RegionFile  # noqa: E402

from libhamiregion.units import MIB  # noqa: E402

UUIDS = tuple(f"GPU-{device:08}-1111-2222-3333-444444444444" for device in range(DEVICES))


MEMORY = 300 * MIB


@attrs.frozen
class BusyNode:
    """Its directories, and a driver that knows its processes."""

    root: Path
    logs: Path
    driver: FakeDriver
    regions: tuple[RegionFile, ...]
    pids: tuple[int, ...]

    def work(self, step: int, *, utilization: bool = True) -> int:
        """Let every process launch kernels, as libvgpu's watcher writes it; returns when it did.

        Without their utilisation for an agent, which would take what stands for 15 s, and is not
        what the driver says, for what libvgpu does not write.
        """
        now_s = int(time.time())
        for number, region in enumerate(self.regions):
            region.put("last_kernel_time", now_s)
            if not utilization:
                continue
            for slot in range(PROCESSES):
                for device in range(DEVICES):
                    busy = (number + slot * 13 + device + step) % 25
                    region.put("slot_util.sm", busy, device=device, slot=slot)
        return now_s

    def launch(self) -> None:
        """Let every container launch a kernel: libvgpu stores a mark."""
        for region in self.regions:
            region.put("recent_kernel", 2)


def mapping_program(directory: Path) -> Path:
    program = directory / "mapping_processes"
    source = str(HERE / "mapping_processes.c")
    subprocess.run([*compiler(), "-O1", "-o", str(program), source], check=True)
    return program


@contextlib.contextmanager
def busy_node(directory: Path, containers: int, *, at_work: bool = False) -> Iterator[BusyNode]:
    """So many containers with two devices and four processes each, which live until the end.

    Healthy ones: the doctor finds nothing. `at_work` has the processes fault pages in and map as
    much as CUDA programs do.
    """
    root, logs = directory / "containers", directory / "logs"
    paths = []
    for number in range(containers):
        uid = f"0b5c1e64-27a1-4a1c-8a3c-7ab0d3{number:06x}"
        (logs / f"team-{number % 7}_train-{number}-worker-0_{uid}" / "main").mkdir(parents=True)
        path = root / f"{uid}_main" / "usage.cache"
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o777)
        create_region(
            path,
            uuids=UUIDS,
            memory_limits=["8GiB"] * DEVICES,
            sm_limits=[50] * DEVICES,
            priority=1,
        )
        path.chmod(0o666)
        paths.append(path)
    listed = directory / "list"
    listed.write_text("".join(f"{path}\n" for path in paths))
    command = [str(mapping_program(directory)), str(PROCESSES), str(listed)]
    with subprocess.Popen(
        [*command, *(["busy"] if at_work else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids: list[int] = []
        regions = tuple(RegionFile(path, Layout.V1_2) for path in paths)
        for line in iter(process.stdout.readline, "\n"):
            file, pid = map(int, line.split())
            regions[file].add_process(pid, dict.fromkeys(range(DEVICES), MEMORY), host_pid=pid)
            pids.append(pid)
        driver = FakeDriver(build(directory / "nvml"), directory / "nvml-scene")
        driver.play(*(line for device in range(DEVICES) for line in _lines(device, pids)))
        yield BusyNode(root, logs, driver, regions, tuple(pids))
        process.stdin.close()


def _lines(device: int, pids: list[int]) -> Iterator[str]:
    yield f"device {device} {UUIDS[device]} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"
    yield f"sensors {device} 41 187500 3 1"
    for pid in pids:
        yield f"process {device} compute {pid} {MEMORY}"
