"""Label texts: names of containers and processes, safe to show, in Prometheus' notation."""

from __future__ import annotations

import os
import re
from functools import cached_property
from typing import TYPE_CHECKING

import attrs

from libhamiregion.text import printable

from .families import BY_NAME, CONTAINER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from libhamiregion.node import Container, PodName
    from libhamiregion.observation.names import ContainerId

#: In place of all values above the limit.
OTHER = "other"

# Names of Kubernetes have 253 characters at most: none of those is cut.
_VALUE_LIMIT = 253
_PROGRAM_LIMIT = 64
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def safe_value(text: str) -> str:
    r"""Make a label's value of a text from outside: printable characters, not too many.

    >>> safe_value("a\nb")
    'a\\nb'
    """
    return printable(text, _VALUE_LIMIT)


def program_of(command: str) -> str:
    r"""Name the program of a command line: arguments can hold secrets.

    >>> program_of("/usr/bin/python3 train.py --token secret")
    'python3'
    """
    words = command.split(maxsplit=1)
    name = words[0].rstrip("/").rpartition("/")[2] if words else ""
    return printable(name, _PROGRAM_LIMIT)


def label_text(names: Sequence[str], *values: str) -> str:
    r"""Write names and values as a sample line has them, without the braces.

    >>> label_text(("pod", "device_uuid"), 'a"b', "GPU-1")
    'pod="a\\"b",device_uuid="GPU-1"'
    """
    pairs = zip(names, values, strict=True)
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def read_labels(text: str) -> dict[str, str]:
    r"""Read the names and values of a label text.

    >>> read_labels('pod="a\\"b",zone="vGPU"')
    {'pod': 'a"b', 'zone': 'vGPU'}
    """
    return {
        name: _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
        for name, value in _LABEL.findall(text)
    }


@attrs.frozen(slots=False)
class ContainerLabels:
    """The names of a container in labels.

    Where no file of the node names a pod, ``namespace`` is empty and ``pod`` is the pod's UID.
    HAMi's monitor leaves such containers out.

    Attributes:
        namespace: The pod's namespace; empty outside Kubernetes and where it is not known.
        pod: The pod's name, else its UID; empty outside Kubernetes.
        container: Its name or its claim's; else the claim's UID, the container's id, or a path.
        pod_uid: Empty outside Kubernetes, and of a claim.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str

    @cached_property
    def monitor(self) -> str:
        """The label text that HAMi's metrics begin with."""
        return label_text(CONTAINER[:3], self.namespace, self.pod, self.container)

    @cached_property
    def own(self) -> str:
        """The label text of `families.CONTAINER`."""
        return f"{self.monitor},{label_text(CONTAINER[3:], self.pod_uid)}"

    def text(self, name: str, *values: str) -> str:
        """The label text of a series about this container.

        Args:
            name: Of the family.
            values: Of the labels that follow the container's.
        """
        labels = BY_NAME[name].labels
        own, more = (self.own, 4) if labels[: len(CONTAINER)] == CONTAINER else (self.monitor, 3)
        return f"{own},{label_text(labels[more:], *values)}" if values else own

    @classmethod
    def of(cls, container: Container) -> ContainerLabels:
        """Name a container by the node's files."""
        name = container.pod_name
        own = (
            container.used_by
            or container.directory_name
            or (None if name is None else name.container)
            or container.claim_uid
            or (None if container.container_id is None else container.container_id.id)
            or container.directory
            or container.region_path
        )
        pod = None if name is None else name.pod
        return cls(
            safe_value((name and name.namespace) or ""),
            safe_value(pod or container.pod_uid or ""),
            safe_value(own or ""),
            safe_value(container.pod_uid or ""),
        )

    @classmethod
    def of_cgroup(
        cls, names: Mapping[str, PodName], container_id: ContainerId | None
    ) -> ContainerLabels:
        """Name the container of a cgroup that is none of the node's containers."""
        if container_id is None:
            return cls("", "", "", "")
        found = names.get(container_id.id)
        pod_uid = container_id.pod_uid or ""
        values = ("", pod_uid, "")
        if found is not None:
            values = (found.namespace or "", found.pod or pod_uid, found.container or "")
        return cls(*map(safe_value, (*values, pod_uid)))


def hidden_by_others(labels: Mapping[Container, ContainerLabels]) -> set[Container]:
    """Find the containers that another one of the same names replaces in HAMi's metrics.

    The newest is shown: for some minutes a pod that was made again has its old directory too.
    Prometheus refuses two series with the same labels.
    """
    newest: dict[str, Container] = {}
    hidden: set[Container] = set()
    for container, each in labels.items():
        other = newest.setdefault(each.monitor, container)
        if other is not container:
            old, new = sorted((other, container), key=_rank)
            newest[each.monitor] = new
            hidden.add(old)
    return hidden


def _rank(container: Container) -> tuple[bool, int, str]:
    path = container.directory or container.region_path or ""
    try:
        changed_ns = os.lstat(container.directory or "").st_mtime_ns
    except OSError:
        changed_ns = 0
    return container.identity is not None, changed_ns, path
