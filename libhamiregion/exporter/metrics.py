"""The catalogue: every metric family that the exporter knows, with its labels and its unit.

Three origins. ``hami`` are the names, labels and values of HAMi's own monitor (2.10), so that
dashboards and rules written for it go on working; ``legacy`` are the names of before, on request;
``own`` are ours, all of them under the prefix ``hamiregion_`` and in base units.

docs/metrics.md lists the same; a test compares the two.
"""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

import attrs

Origin: TypeAlias = Literal["hami", "legacy", "own"]


class Unit(enum.Enum):
    """How a figure stands in the series, and how it is written."""

    #: A whole number, written as it is.
    WHOLE = "whole"
    #: Kept in percent and exported as a ratio, 37 as 0.37.
    PERCENT_AS_RATIO = "percent_as_ratio"
    #: A float, such as seconds.
    REAL = "real"


@attrs.frozen(eq=False)
class MetricFamily:
    """One name with its meaning.

    Attributes:
        name: As samples carry it; a counter's ends in ``_total``.
        help: One sentence.
        labels: Names of the labels, in the order in which series give their values.
        kind: ``gauge`` or ``counter``.
        unit: How figures are kept and written.
        constant: Labels that every sample has with the same value.
        origin: ``hami``, ``legacy`` or ``own``.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    kind: Literal["gauge", "counter"] = "gauge"
    unit: Unit = Unit.WHOLE
    constant: tuple[tuple[str, str], ...] = ()
    origin: Origin = "own"

    @property
    def base_name(self) -> str:
        """The family's name in OpenMetrics, where a counter's is without ``_total``."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name


_ZONE = (("zone", "vGPU"),)

#: The monitor's labels of a container's device, and those that it had before.
HAMI_DEVICE = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
LEGACY_DEVICE = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
#: The monitor's labels of a GPU, and those that it had before.
HAMI_HOST = ("node", "device_index", "device_uuid", "device_type")
LEGACY_HOST = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
#: Sizes that the monitor gave as the values of labels.
LEGACY_SIZES = ("context", "module", "data", "offset")
MIG = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")

#: A container; its UID tells apart pods that have had the same name.
CONTAINER = ("namespace", "pod", "container", "pod_uid")
#: A device of a container: HAMi's labels, for joins.
DEVICE = HAMI_DEVICE
#: A process on a device of its container's region.
PROCESS = (
    "namespace",
    "pod",
    "container",
    "container_id",
    "vdevice_index",
    "device_uuid",
    "pid",
    "host_pid",
)
#: A process that the driver knows and no region accounts for.
UNACCOUNTED = (
    "namespace",
    "pod",
    "container",
    "container_id",
    "device_index",
    "device_uuid",
    "host_pid",
    "process",
    "state",
)

_families: list[MetricFamily] = []


def _family(
    name: str,
    meaning: str,
    labels: tuple[str, ...],
    unit: Unit = Unit.WHOLE,
    *,
    origin: Origin = "own",
    zone: bool = True,
) -> MetricFamily:
    family = MetricFamily(
        name=name,
        help=meaning,
        labels=labels,
        kind="counter" if name.endswith("_total") else "gauge",
        unit=unit,
        constant=_ZONE if origin != "own" and zone else (),
        origin=origin,
    )
    _families.append(family)
    return family


def _hami(
    name: str, meaning: str, labels: tuple[str, ...], unit: Unit = Unit.WHOLE
) -> MetricFamily:
    return _family(name, meaning, labels, unit, origin="hami")


def _legacy(name: str, meaning: str, labels: tuple[str, ...]) -> MetricFamily:
    return _family(name, meaning, labels, origin="legacy")


# ---- HAMi's monitor: the GPUs --------------------------------------------------------------------

HOST_MEMORY_USED = _hami(
    "hami_host_gpu_memory_used_bytes",
    "Memory of the GPU that is in use, as the driver says.",
    HAMI_HOST,
)
HOST_UTILIZATION = _hami(
    "hami_host_gpu_utilization_ratio",
    "Share of the last sample in which a kernel ran on the GPU, 0 to 100.",
    HAMI_HOST,
)
HOST_MEMORY_UTILIZATION = _hami(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Share of the last sample in which the GPU's memory was read or written, 0 to 100.",
    HAMI_HOST[1:],
)
HOST_TEMPERATURE = _hami(
    "hami_host_gpu_temperature_celsius",
    "Temperature of the GPU's core.",
    HAMI_HOST,
)
HOST_POWER = _hami(
    "hami_host_gpu_power_usage_watts",
    "Power that the GPU draws.",
    HAMI_HOST,
    Unit.REAL,
)
HOST_ECC = _hami(
    "hami_host_gpu_ecc_errors_total",
    "Memory errors of the GPU's lifetime, corrected and uncorrected.",
    (*HAMI_HOST, "error_type"),
)

# ---- HAMi's monitor: the containers --------------------------------------------------------------

MEMORY_USED = _hami(
    "hami_vgpu_memory_used_bytes",
    "Memory accounted to the container on the device, over slots whose status is not 0.",
    HAMI_DEVICE,
)
MEMORY_LIMIT = _hami(
    "hami_vgpu_memory_limit_bytes",
    "The container's memory limit on the device; 0 is unlimited.",
    HAMI_DEVICE,
)
CONTAINER_MEMORY = _hami(
    "hami_container_device_memory_bytes",
    "The same figure as hami_vgpu_memory_used_bytes.",
    HAMI_DEVICE,
)
MEMORY_CONTEXT = _hami(
    "hami_vgpu_memory_context_bytes",
    "Of the memory accounted, CUDA contexts.",
    HAMI_DEVICE,
)
MEMORY_MODULE = _hami(
    "hami_vgpu_memory_module_bytes",
    "Of the memory accounted, modules.",
    HAMI_DEVICE,
)
MEMORY_BUFFER = _hami(
    "hami_vgpu_memory_buffer_bytes",
    "Of the memory accounted, buffers.",
    HAMI_DEVICE,
)
UTILIZATION = _hami(
    "hami_container_device_utilization_ratio",
    "SM utilisation of the container's processes, 0 to 100 each and summed.",
    HAMI_DEVICE,
)
LAST_KERNEL = _hami(
    "hami_container_last_kernel_elapsed_seconds",
    "Seconds since a process of the container last launched a kernel.",
    HAMI_DEVICE,
)
MIG_INFO = _hami(
    "hami_mig_device_info",
    "The MIG device that a container's device is; device_uuid is the GPU's.",
    (*HAMI_DEVICE, *MIG),
)
HAMI_BUILD = _family(
    "hami_build_info",
    "The program that serves these metrics in place of HAMi's monitor.",
    ("version", "revision", "build_date", "go_version", "compiler", "platform"),
    origin="hami",
    zone=False,
)

# ---- HAMi's monitor before: with --legacy-metrics ------------------------------------------------

LEGACY_HOST_MEMORY = _legacy(
    "HostGPUMemoryUsage", "As hami_host_gpu_memory_used_bytes.", LEGACY_HOST
)
LEGACY_HOST_UTILIZATION = _legacy(
    "HostCoreUtilization", "As hami_host_gpu_utilization_ratio.", LEGACY_HOST
)
LEGACY_MEMORY_USED = _legacy(
    "vGPU_device_memory_usage_in_bytes", "As hami_vgpu_memory_used_bytes.", LEGACY_DEVICE
)
LEGACY_MEMORY_LIMIT = _legacy(
    "vGPU_device_memory_limit_in_bytes", "As hami_vgpu_memory_limit_bytes.", LEGACY_DEVICE
)
LEGACY_MEMORY_PARTS = _legacy(
    "Device_memory_desc_of_container",
    "As hami_vgpu_memory_used_bytes, with its parts, in bytes, as the values of labels.",
    (*LEGACY_DEVICE, *LEGACY_SIZES),
)
LEGACY_UTILIZATION = _legacy(
    "Device_utilization_desc_of_container",
    "As hami_container_device_utilization_ratio.",
    LEGACY_DEVICE,
)
LEGACY_LAST_KERNEL = _legacy(
    "Device_last_kernel_of_container",
    "As hami_container_last_kernel_elapsed_seconds.",
    LEGACY_DEVICE,
)
LEGACY_MIG = _legacy("MigInfo", "As hami_mig_device_info.", (*LEGACY_DEVICE, "instanceid"))

# ---- ours: containers and their devices ----------------------------------------------------------

CONTAINER_INFO = _family(
    "hamiregion_container_info",
    "A container with a region: its id where it is known, and the region's layout.",
    (*CONTAINER, "container_id", "layout"),
)
CONTAINER_MISSING = _family(
    "hamiregion_container_missing_info",
    "A container without a region that can be read, and the reason.",
    (*CONTAINER, "reason"),
)
PRIORITY = _family(
    "hamiregion_container_priority",
    "Priority of the container's launches; 0 is the most urgent.",
    CONTAINER,
)
BLOCKED = _family(
    "hamiregion_container_blocked",
    "1 where the container's launches wait for those of a more urgent one, else 0.",
    CONTAINER,
)
MEMORY_COUNTED = _family(
    "hamiregion_device_memory_counted_bytes",
    "What libvgpu compares with the limit: the memory of all slots, whatever their status.",
    DEVICE,
)
SM_LIMIT = _family(
    "hamiregion_device_sm_limit_ratio",
    "The container's SM limit on the device; absent where there is none.",
    DEVICE,
    Unit.PERCENT_AS_RATIO,
)
MEMORY_DRIVER = _family(
    "hamiregion_device_memory_driver_bytes",
    "What the driver says the container's processes use of the device;"
    " absent where it is not known for all of them.",
    DEVICE,
)
MEMORY_DEAD = _family(
    "hamiregion_device_memory_dead_bytes",
    "Memory that slots of processes proved dead still count.",
    DEVICE,
)
MEMORY_ORPHANED = _family(
    "hamiregion_device_memory_orphaned_bytes",
    "Memory in slots that a live process left behind when libvgpu moved it: frozen there,"
    " while what it really uses counts nowhere.",
    DEVICE,
)
LOCK_HELD = _family(
    "hamiregion_lock_held_seconds",
    "For how long the region's lock has been held by the same process without a pause; else 0.",
    CONTAINER,
    Unit.REAL,
)
UNSETTLED_READS = _family(
    "hamiregion_unsettled_reads_total",
    "Scrapes in which the region could not be read without a writer in between.",
    CONTAINER,
)
CONTAINER_PROCESSES = _family(
    "hamiregion_container_processes",
    "Processes of the container: alive, dead or unknown with a slot; unlisted or escaped without.",
    (*CONTAINER, "state"),
)
PROCESSES_FOLDED = _family(
    "hamiregion_container_processes_folded",
    "Processes that are summed up under the pid other, because the container has too many.",
    CONTAINER,
)
CONTAINER_FINDINGS = _family(
    "hamiregion_container_findings",
    "What hamiregion doctor finds wrong with a container.",
    (*CONTAINER, "kind", "severity"),
)

# ---- ours: processes -----------------------------------------------------------------------------

PROCESS_MEMORY = _family(
    "hamiregion_process_memory_used_bytes",
    "Memory accounted to the process on the device.",
    PROCESS,
)
PROCESS_SM = _family(
    "hamiregion_process_sm_utilization_ratio",
    "SM utilisation of the process as its region has it; the limiter works with this figure.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
PROCESS_ENC = _family(
    "hamiregion_process_enc_utilization_ratio",
    "Encoder utilisation as the region has it; absent until something writes it: libvgpu does not.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
PROCESS_DEC = _family(
    "hamiregion_process_dec_utilization_ratio",
    "Decoder utilisation as the region has it; absent until something writes it: libvgpu does not.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
PROCESS_DRIVER_MEMORY = _family(
    "hamiregion_process_memory_driver_bytes",
    "Memory that the process uses of the device, as the driver says.",
    PROCESS,
)
PROCESS_DRIVER_SM = _family(
    "hamiregion_process_driver_sm_utilization_ratio",
    "Share of the last sample in which kernels of the process ran, as the driver says.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
PROCESS_DRIVER_ENC = _family(
    "hamiregion_process_driver_enc_utilization_ratio",
    "Encoder utilisation of the process, as the driver says.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
PROCESS_DRIVER_DEC = _family(
    "hamiregion_process_driver_dec_utilization_ratio",
    "Decoder utilisation of the process, as the driver says.",
    PROCESS,
    Unit.PERCENT_AS_RATIO,
)
UNACCOUNTED_MEMORY = _family(
    "hamiregion_unaccounted_process_memory_driver_bytes",
    "Memory used by a process that no region accounts for, as the driver says.",
    UNACCOUNTED,
)
UNACCOUNTED_SM = _family(
    "hamiregion_unaccounted_process_driver_sm_utilization_ratio",
    "SM utilisation of a process that no region accounts for, as the driver says.",
    UNACCOUNTED,
    Unit.PERCENT_AS_RATIO,
)
UNACCOUNTED_ENC = _family(
    "hamiregion_unaccounted_process_driver_enc_utilization_ratio",
    "Encoder utilisation of a process that no region accounts for, as the driver says.",
    UNACCOUNTED,
    Unit.PERCENT_AS_RATIO,
)
UNACCOUNTED_DEC = _family(
    "hamiregion_unaccounted_process_driver_dec_utilization_ratio",
    "Decoder utilisation of a process that no region accounts for, as the driver says.",
    UNACCOUNTED,
    Unit.PERCENT_AS_RATIO,
)

# ---- ours: the node and the exporter -------------------------------------------------------------

BUILD = _family(
    "hamiregion_build_info", "This exporter's version, and Python's.", ("version", "python_version")
)
CONTAINERS = _family(
    "hamiregion_containers",
    "Containers of the node, with a region that can be read and without.",
    ("region",),
)
FINDINGS = _family(
    "hamiregion_findings", "What hamiregion doctor finds on this node, by kind.", ("kind",)
)
ROOT_READABLE = _family(
    "hamiregion_root_readable",
    "1 where the directory of containers could be listed, else 0.",
    ("root",),
)
PROC_COMPLETE = _family(
    "hamiregion_proc_complete",
    "1 where /proc shows every process of the node with its mappings; else the dead stay unknown.",
    (),
)
NVML_UP = _family(
    "hamiregion_nvml_up",
    "1 where the driver answered the last time, else 0; absent where it is not asked.",
    (),
)
NVML_INFO = _family(
    "hamiregion_nvml_info", "What the driver answered, and its version.", ("state", "driver")
)
REFRESH_DURATION = _family(
    "hamiregion_refresh_duration_seconds",
    "How long the last refresh behind the scrapes took.",
    ("stage",),
    Unit.REAL,
)
REFRESH_TIME = _family(
    "hamiregion_refresh_timestamp_seconds",
    "When the last refresh behind the scrapes ended well, Unix time.",
    ("stage",),
    Unit.REAL,
)
ERRORS = _family("hamiregion_errors_total", "Failures of the exporter itself.", ("stage",))
AGENT_EVENTS = _family(
    "hamiregion_agent_events_total", "What an agent in this program has done.", ("event",)
)
AGENT_PAUSED = _family(
    "hamiregion_agent_paused",
    "1 where a task of an agent in this program waits, for example for another writer to go.",
    ("task",),
)
SCRAPES = _family("hamiregion_scrapes_total", "Scrapes before this one.", ())
SCRAPE_SECONDS = _family(
    "hamiregion_scrape_seconds_total",
    "Time that the scrapes before this one took to render.",
    (),
    Unit.REAL,
)
SCRAPE_DURATION = _family(
    "hamiregion_scrape_duration_seconds",
    "Time that the scrape before this one took to render.",
    (),
    Unit.REAL,
)

#: All families, in the order in which they are exported.
CATALOGUE: tuple[MetricFamily, ...] = tuple(_families)
