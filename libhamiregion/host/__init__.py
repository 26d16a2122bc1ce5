"""The node: its containers, processes, names and GPUs."""

from .cgroups import ContainerId, parse_cgroup
from .daemon_names import DockerApiNames, KubernetesNames
from .matching import RegionProcesses, SlotMatch
from .names import ChainedNames, DockerNames, NameResolver, PodLogNames, PodName
from .processes import HostProcess, MappedRegion, ProcessTable

__all__ = [
    "ChainedNames",
    "ContainerId",
    "DockerApiNames",
    "DockerNames",
    "HostProcess",
    "KubernetesNames",
    "MappedRegion",
    "NameResolver",
    "PodLogNames",
    "PodName",
    "ProcessTable",
    "RegionProcesses",
    "SlotMatch",
    "parse_cgroup",
]
