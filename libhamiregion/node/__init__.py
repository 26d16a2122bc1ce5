"""The node: its containers, processes, names and GPUs."""

from .containers import Container, MissingReason, MissingRegion
from .daemon_names import DockerApiNames, KubernetesNames
from .doctor import Explanation, Finding, FindingKind, Repair, Severity, diagnose, repair
from .matching import HostProcess, RegionProcesses, SlotMatch
from .names import ChainedNames, DockerNames, NameResolver, PodLogNames, PodName
from .node import Node, NodeChanges, NodeSnapshot
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
from .selector import Selector
from .slot_tracker import SLOT_STATES, SlotStates
from .usage import NodeProcess, ProcessDeviceRow, driver_gap, node_processes
from .views import ContainerView

__all__ = [
    "SLOT_STATES",
    "ChainedNames",
    "Container",
    "ContainerView",
    "DockerApiNames",
    "DockerNames",
    "Explanation",
    "Finding",
    "FindingKind",
    "HostProcess",
    "KubernetesNames",
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
    "RegionProcesses",
    "Repair",
    "Selector",
    "Severity",
    "SlotMatch",
    "SlotStates",
    "diagnose",
    "driver_gap",
    "node_processes",
    "repair",
]
