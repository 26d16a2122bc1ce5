"""The node: its containers, processes, names and GPUs."""

from .cgroups import ContainerId, parse_cgroup
from .containers import Container, MissingReason, MissingRegion
from .daemon_names import DockerApiNames, KubernetesNames
from .matching import RegionProcesses, SlotMatch
from .names import ChainedNames, DockerNames, NameResolver, PodLogNames, PodName
from .node import ContainerView, Node, NodeChanges, NodeSnapshot
from .nvml import (
    NvmlDevice,
    NvmlFault,
    NvmlMigDevice,
    NvmlProcess,
    NvmlSample,
    NvmlSampler,
    NvmlState,
    NvmlUtilization,
)
from .processes import HostProcess, MappedRegion, ProcessTable
from .selecting import Selector

__all__ = [
    "ChainedNames",
    "Container",
    "ContainerId",
    "ContainerView",
    "DockerApiNames",
    "DockerNames",
    "HostProcess",
    "KubernetesNames",
    "MappedRegion",
    "MissingReason",
    "MissingRegion",
    "NameResolver",
    "Node",
    "NodeChanges",
    "NodeSnapshot",
    "NvmlDevice",
    "NvmlFault",
    "NvmlMigDevice",
    "NvmlProcess",
    "NvmlSample",
    "NvmlSampler",
    "NvmlState",
    "NvmlUtilization",
    "PodLogNames",
    "PodName",
    "ProcessTable",
    "RegionProcesses",
    "Selector",
    "SlotMatch",
    "parse_cgroup",
]
