"""A node full of containers whose processes are real: for the exporter, which shows no others.

Run by test_exporter.py, and by who wants a whole exporter to measure.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
from scene import DEVICES, PROCESSES, compiler, copies

from libhamiregion import Layout
from libhamiregion.node import ChainedNames, Node, NvmlSampler, PodLogNames

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from fake_nvml.driver import STATE, FakeDriver, build  # noqa: E402
from poke import RegionFile  # noqa: E402

MIB = 1 << 20
UUIDS = tuple(f"GPU-{device:08}-1111-2222-3333-444444444444" for device in range(DEVICES))


@attrs.frozen
class BusyNode:
    """Its directories, and a driver that knows its processes."""

    root: Path
    logs: Path
    driver: FakeDriver

    def open(self) -> Node:
        return Node(self.root, names=ChainedNames([PodLogNames(self.logs)]))

    def sampler(self) -> NvmlSampler:
        os.environ[STATE] = str(self.driver.state)
        return NvmlSampler(self.driver.library, host_namespace=True, sensors=True)


def mapping_program(directory: Path) -> Path:
    program = directory / "mapping_processes"
    source = str(HERE / "mapping_processes.c")
    subprocess.run([*compiler(), "-O1", "-o", str(program), source], check=True)
    return program


@contextlib.contextmanager
def busy_node(directory: Path, containers: int) -> Iterator[BusyNode]:
    """So many containers with two devices and four processes each, which live until the end."""
    root, logs = directory / "containers", directory / "logs"
    paths = []
    for number, made in enumerate(copies(directory, containers)):
        uid = f"0b5c1e64-27a1-4a1c-8a3c-7ab0d3{number:06x}"
        (logs / f"team-{number % 7}_train-{number}-worker-0_{uid}" / "main").mkdir(parents=True)
        path = root / f"{uid}_main" / "usage.cache"
        path.parent.mkdir(parents=True)
        paths.append(made.rename(path))
    listed = directory / "list"
    listed.write_text("".join(f"{path}\n" for path in paths))
    command = [str(mapping_program(directory)), str(PROCESSES), str(listed)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pids: dict[int, list[int]] = {}
        for line in iter(process.stdout.readline, "\n"):
            file, pid = map(int, line.split())
            pids.setdefault(file, []).append(pid)
        for file, own in pids.items():
            region = RegionFile(paths[file], Layout.V1_2)
            for slot, pid in enumerate(own):
                region.put("slot_pid", pid, slot=slot)
                region.put("slot_hostpid", pid, slot=slot)
        driver = FakeDriver(build(directory / "nvml"), directory / "nvml-scene")
        everybody = [pid for own in pids.values() for pid in own]
        driver.play(*(line for device in range(DEVICES) for line in _lines(device, everybody)))
        yield BusyNode(root, logs, driver)
        process.stdin.close()


def _lines(device: int, pids: list[int]) -> Iterator[str]:
    yield f"device {device} {UUIDS[device]} {81920 * MIB} {5000 * MIB} 37 12 NVIDIA H100 80GB HBM3"
    yield f"sensors {device} 41 187500 3 1"
    for pid in pids:
        yield f"process {device} compute {pid} {300 * MIB}"
