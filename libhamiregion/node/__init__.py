"""The node: its containers, processes, names and GPUs."""

import logging

from .claims import ClaimName
from .containers import Container, MissingReason
from .docker_api_names import DockerApiNames
from .doctor import Finding, FindingKind, Repair, Severity, diagnose, repair
from .driver_lists import driver_gap
from .kubernetes_error import KubernetesError
from .kubernetes_names import KubernetesNames
from .matching import HostProcess, RegionProcesses
from .names import ChainedNames, DockerNames, PodLogNames, PodName
from .node import Node, NodeBusy
from .node_changes import NodeChanges
from .node_pods import NodePods
from .node_process import NodeProcess, ProcessDeviceRow
from .node_snapshot import NodeSnapshot
from .nvml import NvmlSample, NvmlSampler, NvmlState
from .observation import Gap, Observation, Observer
from .process_entry import ProcessGap
from .process_rows import node_processes
from .processes import ProcessTable
from .roots import RootsUnreadable
from .selector import PodNamesUnknown, Selector
from .slot_tracker import SLOT_STATES, SlotStates
from .views import ContainerView

# A program that sets up no logging gets none of it on its standard error.
logging.getLogger("libhamiregion").addHandler(logging.NullHandler())

__all__ = [
    "SLOT_STATES",
    "ChainedNames",
    "ClaimName",
    "Container",
    "ContainerView",
    "DockerApiNames",
    "DockerNames",
    "Finding",
    "FindingKind",
    "Gap",
    "HostProcess",
    "KubernetesError",
    "KubernetesNames",
    "MissingReason",
    "Node",
    "NodeBusy",
    "NodeChanges",
    "NodePods",
    "NodeProcess",
    "NodeSnapshot",
    "NvmlSample",
    "NvmlSampler",
    "NvmlState",
    "Observation",
    "Observer",
    "PodLogNames",
    "PodName",
    "PodNamesUnknown",
    "ProcessDeviceRow",
    "ProcessGap",
    "ProcessTable",
    "RegionProcesses",
    "Repair",
    "RootsUnreadable",
    "Selector",
    "Severity",
    "SlotStates",
    "diagnose",
    "driver_gap",
    "node_processes",
    "repair",
]
