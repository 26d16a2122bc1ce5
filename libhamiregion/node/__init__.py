"""The node: its containers, processes, names and GPUs."""

from .cgroups import ContainerId, parse_cgroup
from .containers import Container, MissingReason, MissingRegion
from .daemon_names import DockerApiNames, KubernetesNames
from .doctor import Explanation, Finding, FindingKind, Repair, Severity, diagnose, repair
from .host_process import HostProcess, RegionMapping
from .mapped import MappedFile, MappedRegion
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
from .processes import ProcessTable
from .selecting import Selector
from .usage import NodeProcess, ProcessDeviceRow, driver_gap, node_processes

__all__ = [
    "ChainedNames",
    "Container",
    "ContainerId",
    "ContainerView",
    "DockerApiNames",
    "DockerNames",
    "Explanation",
    "Finding",
    "FindingKind",
    "HostProcess",
    "KubernetesNames",
    "MappedFile",
    "MappedRegion",
    "MissingReason",
    "MissingRegion",
    "NameResolver",
    "Node",
    "NodeChanges",
    "NodeProcess",
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
    "ProcessDeviceRow",
    "ProcessTable",
    "RegionMapping",
    "RegionProcesses",
    "Repair",
    "Selector",
    "Severity",
    "SlotMatch",
    "diagnose",
    "driver_gap",
    "node_processes",
    "parse_cgroup",
    "repair",
]
