"""Tasks of the agent on a node, their events, and other programs that write."""

import contextlib
import os
import select
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import libhamiregion
from libhamiregion.agent import Task
from libhamiregion.node import Observation, Observer
from libhamiregion.services.events import Event
from support.region_file import RegionFile
from support.wait import PATIENCE_S

# What HAMi's monitor is called in these tests: those of other programs that test have other names.
MONITOR = f"vGPUmonitor-{uuid.uuid4().hex[:8]}"
WRITER = Path(__file__).with_name("other_writer.py")
# Last: an editable installation is not on the path, and a wheel's is already there.
PACKAGES = str(Path(libhamiregion.__file__).parents[1])


def launch(file: RegionFile) -> None:
    """What libvgpu stores at a launch."""
    file.put("recent_kernel", 2)


def values(file: RegionFile) -> tuple[int, int]:
    """The two fields that the feedback writes."""
    return file.get("recent_kernel"), file.get("utilization_switch")


def one_pass(task: Task) -> None:
    """Observe the node anew and run a task on it, as the agent's loop does."""
    task.run(_seen(task))


def start_task(task: Task) -> None:
    task.start(lambda: _seen(task))


def _seen(task: Task) -> Observation:
    observer = Observer(task._node)  # type: ignore[attr-defined]
    return observer.observe(slots=task.needs == "slots", processes_max_age_s=0.0)


@contextlib.contextmanager
def stopping(task: Task) -> Iterator[None]:
    """Stop a task at the end, whatever happens."""
    try:
        yield
    finally:
        task.stop()


class Events(list[Event]):
    """Collects events; give its `append` to what emits them."""

    def kinds(self, container: str | None = None) -> list[str]:
        return [
            each.event
            for each in self
            if container is None or (each.container or "").endswith(f"/{container}")
        ]

    def of(self, event: str) -> list[Event]:
        return [each for each in self if each.event == event]


class OtherWriter(contextlib.AbstractContextManager):
    """A process that calls itself what it is told, and maps regions for writing until it ends."""

    def __init__(
        self,
        name: str,
        regions: Sequence[RegionFile] = (),
        *,
        inside: Sequence[str] = (),
        chroot: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        words = [name, str(WRITER), str(chroot or ""), *(str(each.path) for each in regions)]
        # The name is what the process has for its own: argv[0].
        launch = f"import os, sys; os.execv({sys.executable!r}, sys.argv[1:])"
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-I", "-S", "-c", launch, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Python finds its packages by argv[0], which says something else here.
            env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, PACKAGES]), **(env or {})},
        )
        self._wait()

    def map(self, region: RegionFile) -> None:
        """Have it map one more region."""
        self.process.stdin.write(f"{region.path}\n".encode())
        self.process.stdin.flush()
        self._wait()

    def _wait(self) -> None:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else b""
        if line != b"ready\n":
            self.end()
            pytest.fail("the other writer did not start")

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self.process.stdin.close()
        self.process.stdout.close()

    def __exit__(self, *_: object) -> None:
        self.end()
