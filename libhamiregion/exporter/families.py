"""The table of families: every metric, with its meaning and labels.

Three origins. ``hami`` are the names, labels and values of HAMi's own monitor, so that dashboards
and rules written for it go on working; ``legacy`` are its former names, on request; ``own`` are
ours, all of them under the prefix ``hamiregion_`` and in base units.

docs/metrics.md lists the same; a test compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection

Origin: TypeAlias = Literal["hami", "legacy", "own"]


@attrs.frozen(eq=False)
class MetricFamily:
    """One name with its meaning.

    Attributes:
        name: As samples carry it; a counter's ends in ``_total``. A summary has the samples
            ``_sum`` and ``_count``.
        help: One sentence.
        labels: Names of the labels, in the order in which series give their values.
        origin: ``hami``, ``legacy`` or ``own``.
        constant: Labels that every sample has with the same value.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    origin: Origin
    constant: tuple[tuple[str, str], ...] = ()

    @property
    def kind(self) -> Literal["gauge", "counter", "summary"]:
        """``gauge``, ``counter`` or ``summary``."""
        if self.name == "hamiregion_scrape_duration_seconds":
            return "summary"
        return "counter" if self.name.endswith("_total") else "gauge"


#: The monitor's labels of a container's device, and of a GPU.
DEVICE = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
HOST = ("node", "device_index", "device_uuid", "device_type")
#: A container; its UID tells apart pods that have had the same name.
CONTAINER = ("namespace", "pod", "container", "pod_uid")
#: A process on a device of its container's region.
PROCESS = (*DEVICE[:3], "container_id", *DEVICE[3:], "pid", "host_pid")
#: A process that the driver knows and no region accounts for.
UNACCOUNTED = (*DEVICE[:3], "container_id", *HOST[1:3], "host_pid", "process", "state")

_HAMI: dict[tuple[str, ...], dict[str, str]] = {
    HOST: {
        "hami_host_gpu_memory_used_bytes": "Memory of the GPU in use, by the driver.",
        "hami_host_gpu_utilization_ratio": "Share of the time with a kernel on the GPU, 0 to 100.",
        "hami_host_gpu_memory_controller_utilization_ratio": (
            "Share of the time in which the GPU's memory was read or written, 0 to 100."
        ),
        "hami_host_gpu_temperature_celsius": "Temperature of the GPU's core.",
        "hami_host_gpu_power_usage_watts": "Power that the GPU draws.",
    },
    (*HOST, "error_type"): {
        "hami_host_gpu_ecc_errors_total": "Memory errors of the GPU's lifetime."
    },
    DEVICE: {
        "hami_vgpu_memory_used_bytes": (
            "Memory accounted to the container on the device, over slots whose status is not 0."
        ),
        "hami_vgpu_memory_limit_bytes": "The container's memory limit on the device; 0: unlimited.",
        "hami_container_device_memory_bytes": "The same as hami_vgpu_memory_used_bytes.",
        "hami_vgpu_memory_context_bytes": "Of the memory accounted, CUDA contexts.",
        "hami_vgpu_memory_module_bytes": "Of the memory accounted, modules.",
        "hami_vgpu_memory_buffer_bytes": "Of the memory accounted, buffers.",
        "hami_container_device_utilization_ratio": (
            "SM utilisation of the container's processes, 0 to 100 each and summed."
        ),
        "hami_container_last_kernel_elapsed_seconds": (
            "Seconds since a process of the container last launched a kernel."
        ),
    },
    (*DEVICE, "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id"): {
        "hami_mig_device_info": "The MIG device of a container; device_uuid is the GPU's."
    },
    ("version", "revision", "build_date", "go_version", "compiler", "platform"): {
        "hami_build_info": "The program that serves these metrics in place of HAMi's monitor."
    },
}

_OWN: dict[tuple[str, ...], dict[str, str]] = {
    HOST: {
        "hamiregion_gpu_memory_total_bytes": "Memory of the GPU, or of the MIG device, in all.",
        "hamiregion_gpu_container_devices": (
            "Devices of containers on it; without labels where the GPU is not known."
        ),
        "hamiregion_gpu_memory_limits_bytes": (
            "Sum of their memory limits; an unlimited one is the whole GPU."
        ),
        "hamiregion_gpu_sm_limits_ratio": ("Sum of their SM limits; an unlimited one is 1."),
    },
    ("uuid", "index", "state"): {
        "hamiregion_gpu_state": "1; the state is ok, or how the GPU fails."
    },
    (*CONTAINER, "container_id", "layout"): {
        "hamiregion_container_info": "A container with a region; its id where it is known."
    },
    ("claim", "namespace", "pod", "container"): {
        "hamiregion_claim_info": (
            "A resource claim with a region, and each pod of the node that holds it; the claim's"
            " UID alone if kubelet's checkpoint cannot be read."
        ),
    },
    (*CONTAINER, "reason"): {
        "hamiregion_container_missing_info": "A container without figures, and the reason."
    },
    CONTAINER: {
        "hamiregion_container_priority": "Priority of the container's launches; 0 is most urgent.",
        "hamiregion_container_memory_refusals_total": (
            "Allocations and contexts refused by a memory limit, to programs of hamiregion run."
        ),
        "hamiregion_container_blocked": "1 if the container's launches wait for a more urgent one.",
        "hamiregion_lock_same_owner_seconds": (
            "For how long every check has found the region's lock with the same owner; absent if"
            " it is free. Releases between two checks are not seen."
        ),
        "hamiregion_container_processes_folded": (
            "Processes that are summed up under the pid other, because the container has too many."
        ),
    },
    (*CONTAINER, "state"): {
        "hamiregion_container_processes": (
            "Processes of the container: alive, dead or unknown with a slot; unlisted or escaped"
            " without; unread if there are too many slots."
        ),
    },
    (*CONTAINER, "kind", "severity"): {
        "hamiregion_container_findings": "Findings of hamiregion doctor about a container."
    },
    DEVICE: {
        "hamiregion_device_memory_counted_bytes": (
            "The memory of all slots, whatever their status: libvgpu compares it with the limit."
        ),
        "hamiregion_unnamed_device_memory_limit_bytes": (
            "The memory limit on a device that has no uuid yet, because no process of the"
            " container has begun with CUDA; 0: unlimited."
        ),
        "hamiregion_device_sm_limit_ratio": "The container's SM limit; absent if there is none.",
        "hamiregion_device_memory_driver_bytes": (
            "Memory of the container's processes on the device, by the driver; absent if it is not"
            " known for all of them."
        ),
        "hamiregion_device_memory_dead_bytes": "Memory that slots of dead processes still count.",
        "hamiregion_device_memory_orphaned_bytes": (
            "Memory in slots that a live process left when libvgpu moved it; its real use counts"
            " nowhere."
        ),
    },
    PROCESS: {
        "hamiregion_process_memory_used_bytes": "Memory accounted to the process on the device.",
        "hamiregion_process_sm_utilization_ratio": "SM utilisation of the process in its region.",
        "hamiregion_process_memory_driver_bytes": "Memory of the process, by the driver.",
        "hamiregion_process_driver_sm_utilization_ratio": "SM utilisation, by the driver.",
    },
    (*CONTAINER, *HOST[1:3]): {
        "hamiregion_driver_container_memory_used_bytes": (
            "Memory of a container without a region on a GPU, by the driver; 0 if it is idle."
        ),
        "hamiregion_driver_container_sm_utilization_ratio": (
            "SM utilisation of a container without a region, by the driver; none under MPS."
        ),
    },
    UNACCOUNTED: {
        "hamiregion_unaccounted_process_memory_driver_bytes": (
            "Memory of a process without a region."
        ),
        "hamiregion_unaccounted_process_driver_sm_utilization_ratio": (
            "SM utilisation of a process without a region."
        ),
    },
    ("version", "python_version"): {
        "hamiregion_build_info": "This exporter's version, and Python's."
    },
    ("region",): {
        "hamiregion_containers": "Containers of the node: present with figures, missing without."
    },
    ("kind", "severity"): {
        "hamiregion_findings": "Findings of hamiregion doctor on this node, with its containers."
    },
    ("root",): {
        "hamiregion_root_readable": "1 if the directory of containers could be listed, else 0."
    },
    (*CONTAINER, "container_id", "kind"): {
        "hamiregion_observation_gaps": (
            "Slots, processes, roots or drivers that could not be read: unknown, not dead."
        ),
    },
    ("state", "driver"): {"hamiregion_nvml_info": "The driver's answer, and its version."},
    ("stage",): {
        "hamiregion_refresh_timestamp_seconds": "When the stage last succeeded, Unix time.",
        "hamiregion_errors_total": "Failures of the exporter itself.",
    },
    ("collector",): {
        "hamiregion_collector_success": "1 if the collector succeeded the last time, else 0.",
        "hamiregion_collector_duration_seconds": "Time that the collector took the last time.",
    },
    ("event",): {"hamiregion_agent_events_total": "Work that an agent in this program has done."},
    ("task",): {"hamiregion_agent_paused": "1 if a task of an agent in this program waits."},
    (): {
        "hamiregion_proc_complete": "1 if /proc shows every process of the node, else 0.",
        "hamiregion_findings_timestamp_seconds": "When the doctor last diagnosed, Unix time.",
        "hamiregion_nvml_up": "1 if the driver answered; absent if it is not asked.",
        "hamiregion_scrape_duration_seconds": "Time that earlier scrapes took, and their number.",
    },
}

#: The monitor's labels to their former names; it did not have the others.
FORMER_LABELS = {
    "namespace": "podnamespace",
    "pod": "podname",
    "container": "ctrname",
    "vdevice_index": "vdeviceid",
    "device_uuid": "deviceuuid",
    "node": "nodeid",
    "device_index": "deviceidx",
    "device_type": "devicetype",
    "gpu_instance_id": "instanceid",
}
#: The monitor's names to their former ones.
FORMER = {
    "hami_host_gpu_memory_used_bytes": "HostGPUMemoryUsage",
    "hami_host_gpu_utilization_ratio": "HostCoreUtilization",
    "hami_vgpu_memory_used_bytes": "vGPU_device_memory_usage_in_bytes",
    "hami_vgpu_memory_limit_bytes": "vGPU_device_memory_limit_in_bytes",
    "hami_container_device_utilization_ratio": "Device_utilization_desc_of_container",
    "hami_container_last_kernel_elapsed_seconds": "Device_last_kernel_of_container",
    "hami_mig_device_info": "MigInfo",
}
MEMORY_PARTS = "Device_memory_desc_of_container"


def former_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Give labels the names that they had before."""
    return tuple(FORMER_LABELS[each] for each in labels if each in FORMER_LABELS)


def _made() -> list[MetricFamily]:
    zone = (("zone", "vGPU"),)
    hami = [
        MetricFamily(name, meaning, labels, "hami", () if name == "hami_build_info" else zone)
        for labels, names in _HAMI.items()
        for name, meaning in names.items()
    ]
    legacy = [
        MetricFamily(
            FORMER[each.name], f"As {each.name}.", former_labels(each.labels), "legacy", zone
        )
        for each in hami
        if each.name in FORMER
    ]
    parts = (*former_labels(DEVICE), "context", "module", "data", "offset")
    meaning = "As hami_vgpu_memory_used_bytes, with its parts, in bytes, as the values of labels."
    legacy.append(MetricFamily(MEMORY_PARTS, meaning, parts, "legacy", zone))
    own = [
        MetricFamily(name, meaning, labels, "own")
        for labels, names in _OWN.items()
        for name, meaning in names.items()
    ]
    return [*hami, *legacy, *own]


#: All families, in the order in which they are exported.
FAMILIES: tuple[MetricFamily, ...] = tuple(_made())
#: Families by name.
BY_NAME = {each.name: each for each in FAMILIES}


def check_names(names: Collection[str] | None) -> None:
    """Make sure that there is a family of each name.

    Raises:
        ValueError: There is none.
    """
    if unknown := {*(names or ())} - BY_NAME.keys():
        raise ValueError(f"no metric is called {min(unknown)!r}; FAMILIES lists the names")
