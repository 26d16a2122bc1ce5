"""A node for the doctor, and the doctor's rounds through it."""

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from libhamiregion.doctor import Finding, FindingKind, Repair, examine, repair
from libhamiregion.node import Node, NvmlSampler, Observer
from support.containers import Container
from support.node_scene import GIB, GPU, NodeScene, SceneContainer
from support.wait import eventually

# Long enough to look twice.
SETTLE_S = 0.03


class DoctorNode(NodeScene):
    """A node whose containers have 8 GiB of one GPU; their pods have no names."""

    def __init__(self, directory: Path, *, outside: bool = False, **options: Any) -> None:
        super().__init__(directory, memory_limits=[8 * GIB], uuids=[GPU])
        # Other tests run at the same time, with regions of their own.
        self.node = Node(self.root, outside=outside, **options)

    def started(self, **options: Any) -> tuple[SceneContainer, Container]:
        """A container, and its process that uses the region."""
        place = self.container()
        return place, place.start(**options)

    def findings(
        self, *, sampler: NvmlSampler | None = None, **options: Any
    ) -> tuple[Finding, ...]:
        observer = Observer.for_command(self.node, sampler=sampler)
        return examine(observer, **{"settle_s": SETTLE_S, **options})

    def undisturbed_findings(self) -> tuple[Finding, ...]:
        """The findings of a look at which no other test had a process that cannot be read.

        Such a one may be a monitor.
        """
        found: tuple[Finding, ...] = ()

        def is_undisturbed() -> bool:
            nonlocal found
            found = self.findings()
            return not self.node.processes.view.gaps

        eventually(is_undisturbed)
        return found

    def kinds(self, **options: Any) -> list[FindingKind]:
        return kinds(self.findings(**options))

    def repair(self, **options: Any) -> tuple[Repair, ...]:
        return repair(self.node, self.findings(), **options)

    def content(self) -> list[dict[str, bytes | int]]:
        """What lies in the containers' directories: the bytes of a file, the mode of the rest."""
        return [
            {
                path.name: path.read_bytes() if stat.S_ISREG(mode := path.lstat().st_mode) else mode
                for path in sorted(each.directory.iterdir())
            }
            for each in self.containers
        ]

    def close(self) -> None:
        self.node.close()
        super().close()


def kinds(findings: Iterable[Finding]) -> list[FindingKind]:
    """The kinds found, sorted by name, each as often as it was found."""
    return sorted((each.kind for each in findings), key=lambda kind: kind.value)
