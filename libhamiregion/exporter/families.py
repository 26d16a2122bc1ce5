"""The table of families: every metric, with its labels, unit and how its number is read.

Three origins. ``hami`` are the names, labels and values of HAMi's own monitor (2.10), so that
dashboards and rules written for it go on working; ``legacy`` are the names of before, on request;
``own`` are ours, all of them under the prefix ``hamiregion_`` and in base units.

docs/metrics.md lists the same; a test compares the two.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import attrs

from libhamiregion._core import lib

Origin: TypeAlias = Literal["hami", "legacy", "own"]
#: How a cell becomes a number of the text; see csrc/samples.h.
WriteAs: TypeAlias = int

WHOLE: WriteAs = lib.HR_WRITE_UNSIGNED
SIGNED: WriteAs = lib.HR_WRITE_SIGNED
#: Kept in percent and exported as a ratio, 37 as 0.37.
RATIO: WriteAs = lib.HR_WRITE_RATIO
#: A ratio that is absent where there is no limit: 0, and 100 and above.
LIMIT_RATIO: WriteAs = lib.HR_WRITE_SM_LIMIT
#: Seconds since the time in the cell; absent where that is 0.
SINCE: WriteAs = lib.HR_WRITE_SINCE
#: 1 where the cell is negative, else 0.
NEGATIVE: WriteAs = lib.HR_WRITE_NEGATIVE
#: The cells are doubles, such as seconds.
REAL: WriteAs = lib.HR_WRITE_DOUBLE
#: Always 1: what is told stands in the labels.
INFO: WriteAs = lib.HR_WRITE_ONE


@attrs.frozen(eq=False)
class MetricFamily:
    """One name with its meaning.

    Attributes:
        name: As samples carry it; a counter's ends in ``_total``. A summary has the samples
            ``_sum`` and ``_count``.
        help: One sentence.
        labels: Names of the labels, in the order in which series give their values.
        kind: ``gauge``, ``counter`` or ``summary``.
        write_as: How a cell becomes a number.
        column: The column of regions, devices or usages that it is read from at each scrape; None
            where a collector makes its values.
        constant: Labels that every sample has with the same value.
        origin: ``hami``, ``legacy`` or ``own``.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    kind: Literal["gauge", "counter", "summary"] = "gauge"
    write_as: WriteAs = WHOLE
    column: str | None = None
    constant: tuple[tuple[str, str], ...] = ()
    origin: Origin = "own"

    @property
    def base_name(self) -> str:
        """The family's name in OpenMetrics, where a counter's is without ``_total``."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name

    def number(self, cell: float, now_s: int) -> float | None:
        """The number that the text has for a cell; None where it has no sample."""
        if self.write_as in (RATIO, LIMIT_RATIO):
            return None if self.write_as == LIMIT_RATIO and not 0 < cell < 100 else cell / 100
        if self.write_as == SINCE:
            return max(0, now_s - cell) if cell else None
        return int(cell < 0) if self.write_as == NEGATIVE else cell


_ZONE = (("zone", "vGPU"),)

#: The monitor's labels of a container's device, and those that it had before.
HAMI_DEVICE = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
LEGACY_DEVICE = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")
#: The monitor's labels of a GPU, and those that it had before.
HAMI_HOST = ("node", "device_index", "device_uuid", "device_type")
LEGACY_HOST = ("nodeid", "deviceidx", "deviceuuid", "devicetype")
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
    write_as: WriteAs = WHOLE,
    column: str | None = None,
    *,
    origin: Origin = "own",
    zone: bool = True,
    kind: Literal["gauge", "counter", "summary"] | None = None,
) -> MetricFamily:
    family = MetricFamily(
        name=name,
        help=meaning,
        labels=labels,
        kind=kind or ("counter" if name.endswith("_total") else "gauge"),
        write_as=write_as,
        column=column,
        constant=_ZONE if origin != "own" and zone else (),
        origin=origin,
    )
    _families.append(family)
    return family


def _hami(
    name: str, meaning: str, labels: tuple[str, ...], write_as: WriteAs = WHOLE
) -> MetricFamily:
    return _family(name, meaning, labels, write_as, origin="hami")


def _legacy(
    name: str, meaning: str, labels: tuple[str, ...], write_as: WriteAs = WHOLE
) -> MetricFamily:
    return _family(name, meaning, labels, write_as, origin="legacy")


def _gpu(name: str, meaning: str, write_as: WriteAs = WHOLE) -> MetricFamily:
    return _hami(name, meaning, HAMI_HOST, write_as)


def _hami_device(name: str, meaning: str, column: str, write_as: WriteAs = WHOLE) -> MetricFamily:
    return _family(name, meaning, HAMI_DEVICE, write_as, column, origin="hami")


def _legacy_device(name: str, meaning: str, column: str, write_as: WriteAs = WHOLE) -> MetricFamily:
    return _family(name, meaning, LEGACY_DEVICE, write_as, column, origin="legacy")


def _device(
    name: str, meaning: str, column: str | None = None, write_as: WriteAs = WHOLE
) -> MetricFamily:
    return _family(name, meaning, DEVICE, write_as, column)


def _container(
    name: str, meaning: str, column: str | None = None, write_as: WriteAs = WHOLE
) -> MetricFamily:
    return _family(name, meaning, CONTAINER, write_as, column)


def _process(
    name: str, meaning: str, column: str | None = None, write_as: WriteAs = WHOLE
) -> MetricFamily:
    return _family(name, meaning, PROCESS, write_as, column)


def _unaccounted(name: str, meaning: str, write_as: WriteAs = WHOLE) -> MetricFamily:
    return _family(name, meaning, UNACCOUNTED, write_as)


# ---- HAMi's monitor: the GPUs --------------------------------------------------------------------

HOST_MEMORY_USED = _gpu(
    "hami_host_gpu_memory_used_bytes", "Memory of the GPU that is in use, as the driver says."
)
HOST_UTILIZATION = _gpu(
    "hami_host_gpu_utilization_ratio",
    "Share of the last sample in which a kernel ran on the GPU, 0 to 100.",
)
HOST_MEMORY_UTILIZATION = _hami(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Share of the last sample in which the GPU's memory was read or written, 0 to 100.",
    HAMI_HOST[1:],
)
HOST_TEMPERATURE = _gpu("hami_host_gpu_temperature_celsius", "Temperature of the GPU's core.")
HOST_POWER = _gpu("hami_host_gpu_power_usage_watts", "Power that the GPU draws.", REAL)
HOST_ECC = _hami(
    "hami_host_gpu_ecc_errors_total",
    "Memory errors of the GPU's lifetime, corrected and uncorrected.",
    (*HAMI_HOST, "error_type"),
)

# ---- HAMi's monitor: the containers --------------------------------------------------------------

MEMORY_USED = _hami_device(
    "hami_vgpu_memory_used_bytes",
    "Memory accounted to the container on the device, over slots whose status is not 0.",
    "memory_used_bytes",
)
MEMORY_LIMIT = _hami_device(
    "hami_vgpu_memory_limit_bytes",
    "The container's memory limit on the device; 0 is unlimited.",
    "memory_limit_bytes",
)
CONTAINER_MEMORY = _hami_device(
    "hami_container_device_memory_bytes",
    "The same figure as hami_vgpu_memory_used_bytes.",
    "memory_used_bytes",
)
MEMORY_CONTEXT = _hami_device(
    "hami_vgpu_memory_context_bytes",
    "Of the memory accounted, CUDA contexts.",
    "memory_context_bytes",
)
MEMORY_MODULE = _hami_device(
    "hami_vgpu_memory_module_bytes", "Of the memory accounted, modules.", "memory_module_bytes"
)
MEMORY_BUFFER = _hami_device(
    "hami_vgpu_memory_buffer_bytes", "Of the memory accounted, buffers.", "memory_data_bytes"
)
UTILIZATION = _hami_device(
    "hami_container_device_utilization_ratio",
    "SM utilisation of the container's processes, 0 to 100 each and summed.",
    "sm_util_percent",
)
LAST_KERNEL = _hami_device(
    "hami_container_last_kernel_elapsed_seconds",
    "Seconds since a process of the container last launched a kernel.",
    "last_kernel_time_s",
    SINCE,
)
MIG_INFO = _hami(
    "hami_mig_device_info",
    "The MIG device that a container's device is; device_uuid is the GPU's.",
    (*HAMI_DEVICE, *MIG),
    INFO,
)
HAMI_BUILD = _family(
    "hami_build_info",
    "The program that serves these metrics in place of HAMi's monitor.",
    ("version", "revision", "build_date", "go_version", "compiler", "platform"),
    INFO,
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
LEGACY_MEMORY_USED = _legacy_device(
    "vGPU_device_memory_usage_in_bytes", "As hami_vgpu_memory_used_bytes.", "memory_used_bytes"
)
LEGACY_MEMORY_LIMIT = _legacy_device(
    "vGPU_device_memory_limit_in_bytes", "As hami_vgpu_memory_limit_bytes.", "memory_limit_bytes"
)
LEGACY_MEMORY_PARTS = _legacy(
    "Device_memory_desc_of_container",
    "As hami_vgpu_memory_used_bytes, with its parts, in bytes, as the values of labels.",
    (*LEGACY_DEVICE, "context", "module", "data", "offset"),
)
LEGACY_UTILIZATION = _legacy_device(
    "Device_utilization_desc_of_container",
    "As hami_container_device_utilization_ratio.",
    "sm_util_percent",
)
LEGACY_LAST_KERNEL = _legacy_device(
    "Device_last_kernel_of_container",
    "As hami_container_last_kernel_elapsed_seconds.",
    "last_kernel_time_s",
    SINCE,
)
LEGACY_MIG = _legacy("MigInfo", "As hami_mig_device_info.", (*LEGACY_DEVICE, "instanceid"), INFO)

# ---- ours: containers and their devices ----------------------------------------------------------

CONTAINER_INFO = _family(
    "hamiregion_container_info",
    "A container with a region: its id where it is known, and the region's layout.",
    (*CONTAINER, "container_id", "layout"),
    INFO,
)
CONTAINER_MISSING = _family(
    "hamiregion_container_missing_info",
    "A container without a region that can be read, and the reason.",
    (*CONTAINER, "reason"),
    INFO,
)
PRIORITY = _container(
    "hamiregion_container_priority",
    "Priority of the container's launches; 0 is the most urgent.",
    "priority",
    SIGNED,
)
BLOCKED = _container(
    "hamiregion_container_blocked",
    "1 where the container's launches wait for those of a more urgent one, else 0.",
    "recent_kernel",
    NEGATIVE,
)
MEMORY_COUNTED = _device(
    "hamiregion_device_memory_counted_bytes",
    "What libvgpu compares with the limit: the memory of all slots, whatever their status.",
    "memory_used_bytes",
)
SM_LIMIT = _device(
    "hamiregion_device_sm_limit_ratio",
    "The container's SM limit on the device; absent where there is none.",
    "sm_limit_percent",
    LIMIT_RATIO,
)
MEMORY_DRIVER = _device(
    "hamiregion_device_memory_driver_bytes",
    "What the driver says the container's processes use of the device;"
    " absent where it is not known for all of them.",
)
MEMORY_DEAD = _device(
    "hamiregion_device_memory_dead_bytes", "Memory that slots of processes proved dead still count."
)
MEMORY_ORPHANED = _device(
    "hamiregion_device_memory_orphaned_bytes",
    "Memory in slots that a live process left behind when libvgpu moved it: frozen there,"
    " while what it really uses counts nowhere.",
)
LOCK_HELD = _container(
    "hamiregion_lock_held_seconds",
    "For how long the region's lock has been held by the same process without a pause; else 0.",
    None,
    REAL,
)
UNSETTLED_READS = _container(
    "hamiregion_unsettled_reads_total",
    "Scrapes in which the region could not be read without a writer in between.",
)
CONTAINER_PROCESSES = _family(
    "hamiregion_container_processes",
    "Processes of the container: alive, dead or unknown with a slot; unlisted or escaped without.",
    (*CONTAINER, "state"),
)
PROCESSES_FOLDED = _container(
    "hamiregion_container_processes_folded",
    "Processes that are summed up under the pid other, because the container has too many.",
)
CONTAINER_FINDINGS = _family(
    "hamiregion_container_findings",
    "What hamiregion doctor finds wrong with a container.",
    (*CONTAINER, "kind", "severity"),
)

# ---- ours: processes -----------------------------------------------------------------------------

PROCESS_MEMORY = _process(
    "hamiregion_process_memory_used_bytes",
    "Memory accounted to the process on the device.",
    "memory_used_bytes",
)
PROCESS_SM = _process(
    "hamiregion_process_sm_utilization_ratio",
    "SM utilisation of the process as its region has it; the limiter works with this figure.",
    "sm_util_percent",
    RATIO,
)
PROCESS_ENC = _process(
    "hamiregion_process_enc_utilization_ratio",
    "Encoder utilisation as the region has it; absent until something writes it: libvgpu does not.",
    "enc_util_percent",
    RATIO,
)
PROCESS_DEC = _process(
    "hamiregion_process_dec_utilization_ratio",
    "Decoder utilisation as the region has it; absent until something writes it: libvgpu does not.",
    "dec_util_percent",
    RATIO,
)
PROCESS_DRIVER_MEMORY = _process(
    "hamiregion_process_memory_driver_bytes",
    "Memory that the process uses of the device, as the driver says.",
)
PROCESS_DRIVER_SM = _process(
    "hamiregion_process_driver_sm_utilization_ratio",
    "Share of the last sample in which kernels of the process ran, as the driver says.",
    None,
    RATIO,
)
PROCESS_DRIVER_ENC = _process(
    "hamiregion_process_driver_enc_utilization_ratio",
    "Encoder utilisation of the process, as the driver says.",
    None,
    RATIO,
)
PROCESS_DRIVER_DEC = _process(
    "hamiregion_process_driver_dec_utilization_ratio",
    "Decoder utilisation of the process, as the driver says.",
    None,
    RATIO,
)
UNACCOUNTED_MEMORY = _unaccounted(
    "hamiregion_unaccounted_process_memory_driver_bytes",
    "Memory used by a process that no region accounts for, as the driver says.",
)
UNACCOUNTED_SM = _unaccounted(
    "hamiregion_unaccounted_process_driver_sm_utilization_ratio",
    "SM utilisation of a process that no region accounts for, as the driver says.",
    RATIO,
)
UNACCOUNTED_ENC = _unaccounted(
    "hamiregion_unaccounted_process_driver_enc_utilization_ratio",
    "Encoder utilisation of a process that no region accounts for, as the driver says.",
    RATIO,
)
UNACCOUNTED_DEC = _unaccounted(
    "hamiregion_unaccounted_process_driver_dec_utilization_ratio",
    "Decoder utilisation of a process that no region accounts for, as the driver says.",
    RATIO,
)

# ---- ours: the node and the exporter -------------------------------------------------------------

BUILD = _family(
    "hamiregion_build_info",
    "This exporter's version, and Python's.",
    ("version", "python_version"),
    INFO,
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
    "hamiregion_nvml_info", "What the driver answered, and its version.", ("state", "driver"), INFO
)
REFRESH_DURATION = _family(
    "hamiregion_refresh_duration_seconds",
    "How long the last refresh behind the scrapes took.",
    ("stage",),
    REAL,
)
REFRESH_TIME = _family(
    "hamiregion_refresh_timestamp_seconds",
    "When the last refresh behind the scrapes ended well, Unix time.",
    ("stage",),
    REAL,
)
ERRORS = _family("hamiregion_errors_total", "Failures of the exporter itself.", ("stage",))
COLLECTOR_SUCCESS = _family(
    "hamiregion_collector_success",
    "1 where the collector succeeded the last time, else 0.",
    ("collector",),
)
COLLECTOR_DURATION = _family(
    "hamiregion_collector_duration_seconds",
    "How long the collector took the last time.",
    ("collector",),
    REAL,
)
AGENT_EVENTS = _family(
    "hamiregion_agent_events_total", "What an agent in this program has done.", ("event",)
)
AGENT_PAUSED = _family(
    "hamiregion_agent_paused",
    "1 where a task of an agent in this program waits, for example for another writer to go.",
    ("task",),
)
SCRAPE_DURATION = _family(
    "hamiregion_scrape_duration_seconds",
    "Time that the scrapes before this one took, summed, and their number.",
    (),
    REAL,
    kind="summary",
)

#: All families, in the order in which they are exported.
FAMILIES: tuple[MetricFamily, ...] = tuple(_families)
