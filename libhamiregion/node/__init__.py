"""The node: its containers, processes, names and GPUs."""

import logging

from .containers import Container, MissingReason
from .names import ClaimName, NodeNames, PodName
from .node import Node, NodeBusy, NodeSnapshot
from .nvml import NvmlSample, NvmlSampler, NvmlState
from .observation import ContainerDetails, Gap, Observation, Observer
from .process_reader import HostProcess, ProcessGap
from .processes import ProcessTable
from .roots import RootsUnreadable
from .rows import NodeProcess, ProcessDeviceRow, driver_gap, node_processes
from .selector import PodNamesUnknown, Selector
from .slots import SLOT_STATES, RegionProcesses, SlotStates, match_slots

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
    "RegionProcesses",
    "RootsUnreadable",
    "Selector",
    "SlotStates",
    "driver_gap",
    "match_slots",
    "node_processes",
]
