"""A node with kubelet's directories, a pod that runs, and directories of pods that have gone."""

import contextlib
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from libhamiregion.agent import StaleDirectoryCleaner
from libhamiregion.node import Node
from libhamiregion.services.events import Event
from support.agent_tasks import Events, one_pass
from support.node_scene import NodeScene
from support.own_cgroups import cgroup_of_pod
from support.wait import eventually

# The shortest time that a pod has to be gone in these tests.
SOON_S = 0.05


@contextlib.contextmanager
def running_pod() -> Iterator[str]:
    """The UID of a pod of which a process runs, by its cgroup."""
    uid = str(uuid.uuid4())
    with cgroup_of_pod(uid, "ab" * 32) as cgroup, process_in(cgroup):
        yield uid


@contextlib.contextmanager
def process_in(cgroup: Path) -> Iterator[int]:
    """A process that does nothing in a cgroup, and its end."""
    procs = cgroup / "cgroup.procs"
    process = subprocess.Popen(["sh", "-c", f"echo $$ > {procs} && exec sleep 1000"])
    try:
        eventually(lambda: str(process.pid) in procs.read_text().split())
        yield process.pid
    finally:
        process.kill()
        process.wait()
        eventually(lambda: not procs.read_text())


class StaleScene(NodeScene):
    """A node, what kubelet knows of its pods, and one pod that is there.

    Attributes:
        pods: What kubelet has below /var/lib/kubelet/pods.
        alive: The UID of the pod that is there and runs.
    """

    def __init__(self, directory: Path, alive: str) -> None:
        super().__init__(directory)
        self.pods = directory / "kubelet-pods"
        self.pods.mkdir()
        self.alive = alive
        self.add_pod(alive)
        self.leave(alive)
        self.events = Events()
        self._opened = contextlib.ExitStack()

    def close(self) -> None:
        self._opened.close()
        super().close()

    def add_pod(self, uid: str) -> None:
        """What kubelet makes for a pod."""
        (self.pod_logs / f"research_bert-0_{uid}").mkdir()
        (self.pods / uid).mkdir()

    def remove_pod(self, uid: str) -> None:
        (self.pod_logs / f"research_bert-0_{uid}").rmdir()
        (self.pods / uid).rmdir()

    def leave(self, uid: str = "", name: str = "train", *, region: bool = True) -> Path:
        """A container's directory, of a pod that kubelet does not know by this."""
        return self.container(name, pod=None, pod_uid=uid, region=region).directory

    def cleaner(self, **options: Any) -> StaleDirectoryCleaner:
        node = Node([self.root, *options.pop("roots", ())], **options.pop("node", {}))
        self._opened.callback(node.close)
        options = {"gone_after_s": SOON_S, "emit": self._emit, **options}
        cleaner = StaleDirectoryCleaner(
            node, pod_logs=self.pod_logs, kubelet_pods=self.pods, **options
        )
        cleaner.interval_s = SOON_S
        return cleaner

    def _emit(self, event: Event) -> None:
        # Another test's process may be one whose maps are too long to be read.
        if "not every process shows what it maps" not in event.message:
            self.events.append(event)

    def quarantined(self) -> list[Path]:
        return [each for each in self.root.iterdir() if each.name.startswith(".gone-")]

    def saw(self, event: str) -> Callable[[], bool]:
        return lambda: bool(self.events.of(event))


def until(cleaner: StaleDirectoryCleaner, condition: Callable[[], object]) -> None:
    """Do passes until the condition is true."""

    def passed() -> object:
        one_pass(cleaner)
        return condition()

    eventually(passed)


def gone(*paths: Path) -> Callable[[], bool]:
    """Whether none of these is there any more."""
    return lambda: not any(os.path.lexists(each) for each in paths)


def names(directory: Path) -> list[str]:
    """What is in a directory, sorted."""
    return sorted(each.name for each in directory.iterdir())
