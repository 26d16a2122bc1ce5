"""A node's directories as HAMi makes them, with real regions and real processes in them."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from libhamiregion import create_region, open_region, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from libhamiregion.errors import PathLike

MIB = 2**20
# For a process to start, or to take a step: only a machine that hangs takes so long.
_PATIENCE_S = 60.0
# Longer than a busy machine keeps one from ending in order, which gives its slot back.
_END_S = 10.0


class FakeProcess:
    """A process of a fake container: it holds a slot, and allocates and frees by steps.

    It allocates a step at a time up to a most, then frees down to a least, and so on; a step beyond
    the container's limit is refused, as it would be by libvgpu, and tried again. A lock that is
    held is waited for.

    Attributes:
        pid: Of the process, on the host and in its slot.
        device: The device that it uses.
        granted: How many of its allocations were granted.
        refused: How many were refused.
        killed: Whether `kill` has been called.
    """

    def __init__(
        self, region: PathLike, device: int, least: int, most: int, step: int, sm: int
    ) -> None:
        numbers = (device, least, most, step, sm)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.process", region, *map(str, numbers)],
            # It ends when the other end of its input is closed.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C is for the program that has made it, which then ends it in order.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.device = device
        self.granted = self.refused = 0
        self.killed = False

    def kill(self) -> None:
        """Kill it as `kill -9` does: its slot stays, and its memory stays charged."""
        self.killed = True
        self._process.kill()
        self._wait()

    def _tell(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 (it is a pipe)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b".")

    def _hear(self) -> None:
        """Wait for the answer to `_tell`."""
        output = self._process.stdout
        assert output is not None  # noqa: S101 (it is a pipe)
        # Not select(): a program with many files has numbers that it does not take.
        waiting = select.poll()
        waiting.register(output, select.POLLIN)
        ready = waiting.poll(_PATIENCE_S * 1000)
        said = output.read(1) if ready else b""
        if not said:
            how = f"ended with {self._process.wait()}" if ready else "does not answer"
            raise ChildProcessError(f"process {self.pid} of the fake node {how}")
        self.granted += said == b"+"
        self.refused += said == b"-"

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
        self, namespace: str, pod: str, name: str, root: Path, *, with_region: bool
    ) -> None:
        self.namespace = namespace
        self.pod = pod
        self.pod_uid = str(uuid.uuid4())
        self.name = name
        self.directory = root / f"{self.pod_uid}_{name}"
        self.region = self.directory / f"{uuid.uuid4()}.cache" if with_region else None
        self.processes: tuple[FakeProcess, ...] = ()

    def __repr__(self) -> str:
        return f"<FakeContainer {self.namespace}/{self.pod}/{self.name}>"

    def step(self) -> None:
        """Have each of its processes allocate or free once, and wait until all have.

        Raises:
            ChildProcessError: One has ended, and not by its `kill`.
        """
        running = [process for process in self.processes if not process.killed]
        for process in running:
            process._tell()
        for process in running:
            process._hear()


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
        self, directory: PathLike | None = None, containers: int = 0, processes: int = 1
    ) -> None:
        self._own = None
        if directory is None:
            self._own = tempfile.TemporaryDirectory(prefix="hamiregion-")
            directory = self._own.name
        self.directory = Path(os.fspath(directory))
        self.root = self.directory / "containers"
        self.pod_logs = self.directory / "pod-logs"
        self.root.mkdir(parents=True)
        self.pod_logs.mkdir()
        self.containers: tuple[FakeContainer, ...] = ()
        self._first = containers, processes

    def __enter__(self) -> Self:
        containers, processes = self._first
        try:
            made = [self._make(f"pod-{number}", processes) for number in range(containers)]
            # Started together, and then waited for.
            for container in made:
                _await(container)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and remove the directory if it is the node's own; may be repeated."""
        everyone = [each for container in self.containers for each in container.processes]
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
            ValueError: A limit or a count that there is not; see `create_region`.
        """
        made = self._make(
            pod or f"pod-{len(self.containers)}",
            processes if region else 0,
            name,
            namespace,
            memory_limits if region else None,
            sm_limits,
            uses if region else None,
        )
        _await(made)
        if made.region is not None:
            _set_last_launch(made.region, 0 if idle_s is None else time.time() - idle_s)
        return made

    def _make(
        self,
        pod: str,
        processes: int,
        name: str = "main",
        namespace: str = "default",
        memory_limits: Sequence[int | str | None] | None = ("8GiB",),
        sm_limits: Sequence[int | str | None] = (),
        uses: Sequence[tuple[int | str, int]] | None = None,
    ) -> FakeContainer:
        made = FakeContainer(namespace, pod, name, self.root, with_region=memory_limits is not None)
        made.directory.mkdir()
        # As the device plugin makes it: every user of the container may write there.
        made.directory.chmod(0o777)
        self._logs(made).mkdir(parents=True)
        if made.region is not None and memory_limits is not None:
            create_region(
                made.region,
                memory_limits=memory_limits,
                sm_limits=sm_limits,
                uuids=[_gpu_uuid(number) for number in range(len(memory_limits))],
            )
        # From here on it ends with the node, whatever happens.
        self.containers += (made,)
        for number, figures in enumerate(_figures(processes) if uses is None else _exact(uses)):
            assert made.region is not None  # noqa: S101 (without one there are no processes)
            device = number % len(memory_limits or (None,))
            made.processes += (FakeProcess(made.region, device, *figures),)
        return made

    def remove(self, container: FakeContainer) -> None:
        """End a container's processes and remove its files, as when its pod is deleted."""
        self.containers = tuple(each for each in self.containers if each is not container)
        for process in container.processes:
            process._wait()
        shutil.rmtree(container.directory)
        shutil.rmtree(self._logs(container).parent)

    @contextlib.contextmanager
    def hold_lock(self, container: FakeContainer) -> Iterator[None]:
        """Hold the lock of a container's region in this process; a context manager.

        The container's processes wait for it meanwhile, 50 s at most, as they wait in libvgpu.

        Raises:
            ValueError: The container has no region.
            LockTimeout: Another process holds the lock.
        """
        if container.region is None:
            raise ValueError(f"{container!r} has no region")
        with open_region(container.region, writable=True) as region, region.lock():
            yield

    def step(self) -> None:
        """Have every process allocate or free once, and wait until all have.

        Raises:
            ChildProcessError: One has ended, and not by its `kill`.
        """
        for container in self.containers:
            container.step()

    def _logs(self, container: FakeContainer) -> Path:
        pod = f"{container.namespace}_{container.pod}_{container.pod_uid}"
        return self.pod_logs / pod / container.name


def _await(container: FakeContainer) -> None:
    """Have its processes take their slots one after the other, in a fixed order."""
    for process in container.processes:
        process._tell()
        process._hear()


def _figures(processes: int) -> Iterator[tuple[int, int, int, int]]:
    """Least, most, step and SM of processes: each its own, so that none is taken for another's."""
    for number in range(processes):
        size = (1 + number % 3) * MIB
        yield 512 * size, 1024 * size, 128 * size, 10 + 7 * number % 20


def _exact(uses: Sequence[tuple[int | str, int]]) -> Iterator[tuple[int, int, int, int]]:
    for memory, sm_percent in uses:
        yield 0, parse_size(memory), 0, sm_percent


def _set_last_launch(region: Path, unix_s: float) -> None:
    """Write the time of the last launch, which only libvgpu does elsewhere."""
    with open_region(region) as opened:
        offset = opened.layout.offsets["last_kernel_time"]
    assert offset is not None  # noqa: S101 (the newest layout has it)
    with region.open("r+b") as file:
        file.seek(offset)
        file.write(int(unix_s).to_bytes(8, "little"))


def _gpu_uuid(number: int) -> str:
    """Name a GPU alike at every run, so that pictures are alike too."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'libhamiregion {number}')}"
