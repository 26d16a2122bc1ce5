"""The node: its containers, processes, names and GPUs."""

import logging

from libhamiregion.observation.containers import Container, MissingReason
from libhamiregion.observation.model import ContainerDetails, Gap, NodeSnapshot, Observation
from libhamiregion.observation.names import ClaimName, PodName
from libhamiregion.observation.pairing import driver_gap
from libhamiregion.observation.processes import (
    SLOT_STATES,
    HostProcess,
    ProcessGap,
    ProcessView,
    RegionProcesses,
    SlotStates,
)
from libhamiregion.observation.rows import NodeProcess, ProcessDeviceRow, node_processes
from libhamiregion.observation.selector import PodNamesUnknown, Selector

from .names import NodeNames
from .node import Node, NodeBusy
from .nvml import NvmlSample, NvmlSampler, NvmlState
from .processes import ProcessTable
from .reader import Observer
from .roots import RootsUnreadable
from .slots import match_slots

# A program that sets up no logging gets none of it on its standard error.
logging.getLogger("libhamiregion").addHandler(logging.NullHandler())

__all__ = [
    "SLOT_STATES",
    "ClaimName",
    "Container",
    "ContainerDetails",
    "Gap",
    "HostProcess",
    "MissingReason",
    "Node",
    "NodeBusy",
    "NodeNames",
    "NodeProcess",
    "NodeSnapshot",
    "NvmlSample",
    "NvmlSampler",
    "NvmlState",
    "Observation",
    "Observer",
    "PodName",
    "PodNamesUnknown",
    "ProcessDeviceRow",
    "ProcessGap",
    "ProcessTable",
    "ProcessView",
    "RegionProcesses",
    "RootsUnreadable",
    "Selector",
    "SlotStates",
    "driver_gap",
    "match_slots",
    "node_processes",
]
