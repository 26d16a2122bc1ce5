"""A node's directories as HAMi makes them, with real regions and real processes in them."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from libhamiregion import create_region, open_region, parse_size
from libhamiregion.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Self

    from libhamiregion import Region
    from libhamiregion.errors import PathLike
    from libhamiregion.node import Node

    # Least, most and step in bytes, and SM percent.
    Figures = tuple[int, int, int, int]
    # A container, and the device that is used there.
    Job = tuple["FakeContainer", int, Figures]

#: The command of a process to take the lock; every other byte is a step.
TAKE_LOCK = b"L"
# For a process to start, or to take a step: only a machine that hangs takes so long.
_PATIENCE_S = 60.0
# Longer than a busy machine keeps one from ending in order, which gives its slot back.
_END_S = 10.0
_MAX_PERCENT = 100


class FakeProcess:
    """A process of fake containers: it holds a slot in each, and allocates and frees by steps.

    It allocates a step at a time up to a most, then frees down to a least, and so on; a step beyond
    the container's limit is refused, as it would be by libvgpu, and tried again. A lock that is
    held is waited for.

    Attributes:
        pid: Of the process, on the host and in its slot.
        device: The device that it uses.
        granted: How many of its allocations were granted, in all its containers.
        refused: How many were refused.
        killed: Whether `kill` has been called.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        arguments = [(each.region, device, *figures) for each, device, figures in jobs]
        self._containers = [each for each, _, _ in jobs]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                f"{__package__}.process",
                *map(str, itertools.chain(*arguments)),
            ],
            # It ends when the other end of its input is closed.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C is for the program that has made it, which then ends it in order.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.device = jobs[0][1]
        self.granted = self.refused = 0
        self.killed = False

    def kill(self, *, holding_lock: bool = False, in_update: bool = False) -> None:
        """Kill it as `kill -9` does: its slot stays, and its memory stays charged.

        Args:
            holding_lock: While it holds the region's lock, which others then wait for until
                `Region.recover_lock` frees it.
            in_update: In the middle of an update of its slot, whose seqlock then stays odd until
                `Region.reap` empties the slot.
        """
        if holding_lock:
            self._tell(TAKE_LOCK)
            self._hear()
        self.killed = True
        self._process.kill()
        self._wait()
        for container in self._containers if in_update else ():
            _make_seqlock_odd(container, self.pid)

    def _tell(self, command: bytes = b".") -> None:
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(command)

    def _hear(self) -> None:
        """Wait for the answers to `_tell`."""
        output = self._process.stdout
        assert output is not None  # noqa: S101 (it is a pipe)
        # Not select(): a program with many files has numbers that it does not take.
        waiting = select.poll()
        waiting.register(output, select.POLLIN)
        left = len(self._containers)
        while left:
            ready = waiting.poll(_PATIENCE_S * 1000)
            answers = output.read(left) if ready else b""
            if not answers:
                how = f"ended with {self._process.wait()}" if ready else "does not answer"
                raise ChildProcessError(f"process {self.pid} of the fake node {how}")
            self.granted += answers.count(b"+")
            self.refused += answers.count(b"-")
            left -= len(answers)

    def _release(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        self._process.stdin.close()

    def _wait(self) -> None:
        self._release()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None  # noqa: S101 (it is a pipe)
        self._process.stdout.close()


class FakeContainer:
    """A container of a `FakeNode`; made by its `add`.

    Attributes:
        namespace: Of the pod.
        pod: Its name.
        pod_uid: Its UID.
        name: The container's own name.
        directory: Its directory below the node's root.
        region: The path of its region; None if it has none.
        processes: Its processes, those that were killed included.
    """

    def __init__(
        self, namespace: str, pod: str, name: str, root: Path, *, with_region: bool = True
    ) -> None:
        if "/" in f"{namespace}{pod}{name}":
            raise ValueError(f"a name of a fake container has a slash: {namespace=} {pod=} {name=}")
        self.namespace = namespace
        self.pod = pod
        self.pod_uid = str(uuid.uuid4())
        self.name = name
        self.directory = root / f"{self.pod_uid}_{name}"
        self.region = self.directory / f"{uuid.uuid4()}.cache" if with_region else None
        self.processes: tuple[FakeProcess, ...] = ()

    def __repr__(self) -> str:
        return f"<FakeContainer {self.namespace}/{self.pod}/{self.name}>"

    def open(self, *, writable: bool = False) -> Region:
        """Open its region; close it, or use it as a context manager.

        Raises:
            ValueError: It has no region.
        """
        if self.region is None:
            raise ValueError(f"{self!r} has no region")
        return open_region(self.region, writable=writable)

    def step(self) -> None:
        """Have each of its processes allocate or free once, and wait until all have.

        Raises:
            ChildProcessError: One has ended, and not by its `kill`.
        """
        _step(self.processes)


class FakeNode:
    """A node's directories as HAMi makes them, with real regions and real processes in them.

    A context manager. Between two calls of `step` no figure changes, so that a test can compare a
    program's output with the regions. Needs no GPU, no HAMi and no root.

        with FakeNode(tmp_path, containers=3) as node:
            node.step()

    Threads: one at a time.

    Args:
        directory: An empty directory, or one that does not exist, for the node's files, which stay
            there. None: one of its own, which is removed.
        containers: How many containers to begin with, each in a pod of its own. They are made when
            the context is entered; without `with`, use `add`.
        processes: How many processes each of these has.
        shared_processes: Let the same processes work in all of these containers, each with a slot
            in every region: hundreds of containers are then there in a second. What is done to
            such a process (`FakeProcess.kill`, `FakeContainer.step`) is done in all of them.

    Attributes:
        directory: Where the node's files are.
        root: The containers' directories: ``--root``, and the argument of `Node`.
        pod_logs: Kubelet's directories, with the pods' names: ``--pod-logs``, `NodeNames`.
        containers: Those there are.

    Raises:
        FileExistsError: The directory has ``containers`` or ``pod-logs`` already, such as those of
            an earlier node.

    Shell: ``hamiregion demo --node``.
    """

    def __init__(
        self,
        directory: PathLike | None = None,
        containers: int = 0,
        processes: int = 1,
        *,
        shared_processes: bool = False,
    ) -> None:
        self._own = None
        if directory is None:
            self._own = tempfile.TemporaryDirectory(prefix="hamiregion-")
            directory = self._own.name
        self.directory = Path(os.fspath(directory))
        self.root = self.directory / "containers"
        self.pod_logs = self.directory / "pod-logs"
        self.root.mkdir(parents=True)
        try:
            self.pod_logs.mkdir()
        except OSError:
            self.root.rmdir()
            raise
        self.containers: tuple[FakeContainer, ...] = ()
        # Counts those that were removed too: no name and no figure is given twice.
        self._numbers = itertools.count()
        self._first = containers, processes, shared_processes

    def __enter__(self) -> Self:
        containers, processes, is_shared = self._first
        try:
            jobs = []
            for _ in range(containers):
                number = next(self._numbers)
                made = FakeContainer("default", f"pod-{number}", "main", self.root)
                self._make(made, ("8GiB",), ())
                jobs.append([(made, 0, figures) for figures in _figures(number, processes)])
            # Started together, and then waited for.
            for group in zip(*jobs, strict=True) if is_shared else zip(itertools.chain(*jobs)):
                _start(group)
            _attach(self._processes())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and remove the directory if it is the node's own; may be repeated."""
        everyone = self._processes()
        # All at once; the slots are given back.
        for process in everyone:
            process._release()
        for process in everyone:
            process._wait()
        if self._own is not None:
            self._own.cleanup()

    def add(
        self,
        name: str = "main",
        *,
        pod: str | None = None,
        namespace: str = "default",
        memory_limits: Sequence[int | str | None] = ("8GiB",),
        sm_limits: Sequence[int | str | None] = (),
        processes: int = 1,
        uses: Sequence[tuple[int | str, int]] | None = None,
        idle_s: float | None = None,
        region: bool = True,
    ) -> FakeContainer:
        """Add a container in a pod of its own.

        Args:
            name: Its own name.
            pod: The pod's name; None makes one up.
            namespace: The namespace of the pod.
            memory_limits: One per device; each container's device N is the node's GPU N.
            sm_limits: One per device; those left out are unlimited.
            processes: How many, each on a device in turn.
            uses: Memory (int or "3GiB", the context included) and SM percent of each process, in
                place of `processes`: they hold exactly that, and no step changes it.
            idle_s: How long ago the container's last launch was; None: it never launched.
            region: False makes the directory alone, as of a container that has not used CUDA.

        Returns:
            The container, once all its processes have a slot.

        Raises:
            ValueError: A limit or a count that there is not (see `create_region`), or a slash in a
                name. Nothing is left of the container.
        """
        number = next(self._numbers)
        made = FakeContainer(namespace, pod or f"pod-{number}", name, self.root, with_region=region)
        try:
            self._make(made, memory_limits, sm_limits)
            if region:
                figures = _figures(number, processes) if uses is None else _exact(uses)
                devices = itertools.cycle(range(len(memory_limits) or 1))
                for device, each in zip(devices, figures, strict=False):
                    _start([(made, device, each)])
                _attach(made.processes)
                _set_last_launch(made, 0 if idle_s is None else time.time() - idle_s)
        except BaseException:
            self.remove(made)
            raise
        return made

    def _make(
        self,
        container: FakeContainer,
        memory_limits: Sequence[int | str | None],
        sm_limits: Sequence[int | str | None],
    ) -> None:
        """Make the files of a container."""
        # From here on its processes end with the node, whatever happens.
        self.containers += (container,)
        container.directory.mkdir()
        # As the device plugin makes it: every user of the container may write there.
        container.directory.chmod(0o777)
        self._logs(container).mkdir(parents=True)
        if container.region is not None:
            create_region(
                container.region,
                memory_limits=memory_limits,
                sm_limits=sm_limits,
                uuids=[_gpu_uuid(number) for number in range(len(memory_limits))],
            )

    def remove(self, container: FakeContainer) -> None:
        """End a container's processes and remove its files, as when its pod is deleted.

        Processes that it shares with other containers go on.
        """
        self.containers = tuple(each for each in self.containers if each is not container)
        others = self._processes()
        for process in container.processes:
            if process not in others:
                process._wait()
        for directory in (container.directory, self._logs(container).parent):
            shutil.rmtree(directory, ignore_errors=True)

    def node(self) -> Node:
        """Return the node as the library sees it; refresh it, and use it as a context manager.

        The same as ``Node(fake.root, names=NodeNames(fake.pod_logs))``.
        """
        # Not at import: its own processes have no need of it.
        from libhamiregion.node import Node, NodeNames

        return Node(self.root, names=NodeNames(self.pod_logs))

    @contextlib.contextmanager
    def hold_lock(self, container: FakeContainer) -> Iterator[None]:
        """Hold the lock of a container's region in this process; a context manager.

        The container's processes wait for it meanwhile, 50 s at most, as they wait in libvgpu.

        Raises:
            ValueError: The container has no region.
            LockTimeout: Another process holds the lock.
        """
        with container.open(writable=True) as region, region.lock():
            yield

    def step(self) -> None:
        """Have every process allocate or free once, and wait until all have.

        Raises:
            ChildProcessError: One has ended, and not by its `kill`.
        """
        _step(self._processes())

    def _processes(self) -> Sequence[FakeProcess]:
        every = itertools.chain(*(container.processes for container in self.containers))
        return tuple(dict.fromkeys(every))

    def _logs(self, container: FakeContainer) -> Path:
        pod = f"{container.namespace}_{container.pod}_{container.pod_uid}"
        return self.pod_logs / pod / container.name


def _start(jobs: Sequence[Job]) -> None:
    """Start a process for one or more containers."""
    process = FakeProcess(jobs)
    for container, _, _ in jobs:
        container.processes += (process,)


def _attach(processes: Sequence[FakeProcess]) -> None:
    """Have processes take their slots one after the other, in a fixed order."""
    for process in processes:
        process._tell()
        process._hear()


def _step(processes: Sequence[FakeProcess]) -> None:
    """Have processes allocate or free once, all at the same time."""
    running = [process for process in processes if not process.killed]
    for process in running:
        process._tell()
    for process in running:
        process._hear()


def _figures(container: int, processes: int) -> Iterator[Figures]:
    """Yield figures of processes: each its own, so that none is taken for another's."""
    for number in range(container, container + processes):
        size = (1 + number % 3) * MIB + container % 64 * MIB // 256
        yield 512 * size, 1024 * size, 128 * size, 10 + 7 * number % 20


def _exact(uses: Iterable[tuple[int | str, int]]) -> Iterator[Figures]:
    for memory, sm_percent in uses:
        if not 0 <= sm_percent <= _MAX_PERCENT:
            raise ValueError(f"SM use is 0 to {_MAX_PERCENT} percent, not {sm_percent}")
        yield 0, parse_size(memory), 0, sm_percent


def _set_last_launch(container: FakeContainer, unix_s: float) -> None:
    """Write the time of the last launch, which only libvgpu does elsewhere."""
    with container.open() as region:
        offset = region.layout.offsets["last_kernel_time"]
    with _opened_at(container, offset or 0) as file:
        file.write(int(unix_s).to_bytes(8, "little"))


def _make_seqlock_odd(container: FakeContainer, pid: int) -> None:
    """Leave a slot as an update does that was not finished."""
    with container.open() as region:
        offsets = region.layout.offsets
        slots = {each.pid: each.slot for each in region.snapshot().processes}
    stride, start, seqlock = (
        offsets[each] or 0 for each in ("slot_stride", "procs", "slot_seqlock")
    )
    with _opened_at(container, start + slots[pid] * stride + seqlock) as file:
        lowest = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([lowest | 1]))


@contextlib.contextmanager
def _opened_at(container: FakeContainer, offset: int) -> Iterator[BinaryIO]:
    """Open the file of a region, for what the library never writes."""
    assert container.region is not None  # noqa: S101 (it was opened as a region)
    with container.region.open("r+b", buffering=0) as file:
        file.seek(offset)
        yield file


def _gpu_uuid(number: int) -> str:
    """Name a GPU alike at every run, so that pictures are alike too."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'libhamiregion {number}')}"
