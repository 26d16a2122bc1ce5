"""The table of families: every metric, with its labels, unit and how its number is read.

Three origins. ``hami`` are the names, labels and values of HAMi's own monitor, so that
dashboards and rules written for it go on working; ``legacy`` are the names of before, on request;
``own`` are ours, all of them under the prefix ``hamiregion_`` and in base units.

docs/metrics.md lists the same; a test compares the two.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

import attrs

Origin: TypeAlias = Literal["hami", "legacy", "own"]
#: How a cell becomes a number of the text.
WriteAs: TypeAlias = Literal[
    "whole", "signed", "ratio", "limit ratio", "since", "negative", "real", "info"
]

WHOLE: WriteAs = "whole"
SIGNED: WriteAs = "signed"
#: Kept in percent and exported as a ratio, 37 as 0.37.
RATIO: WriteAs = "ratio"
#: A ratio that is absent where there is no limit: 0, and 100 and above.
LIMIT_RATIO: WriteAs = "limit ratio"
#: Seconds since the time in the cell; absent where that is 0.
SINCE: WriteAs = "since"
#: 1 where the cell is negative, else 0.
NEGATIVE: WriteAs = "negative"
#: The cells are doubles, such as seconds.
REAL: WriteAs = "real"
#: Always 1: what is told stands in the labels.
INFO: WriteAs = "info"


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

#: The monitor's labels of a container's device, of a GPU, and of a MIG device beside these.
DEVICE = ("namespace", "pod", "container", "vdevice_index", "device_uuid")
HOST = ("node", "device_index", "device_uuid", "device_type")
MIG = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
BUILD_LABELS = ("version", "revision", "build_date", "go_version", "compiler", "platform")
#: What the monitor called its labels before; those that are missing here it did not have.
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

#: A container; its UID tells apart pods that have had the same name.
CONTAINER = ("namespace", "pod", "container", "pod_uid")
#: A process on a device of its container's region.
PROCESS = (*DEVICE[:3], "container_id", *DEVICE[3:], "pid", "host_pid")
#: A process that the driver knows and no region accounts for.
UNACCOUNTED = (
    *(*DEVICE[:3], "container_id", "device_index", "device_uuid"),
    *("host_pid", "process", "state"),
)

_families: list[MetricFamily] = []
_former: dict[MetricFamily, MetricFamily] = {}


def _family(
    name: str,
    meaning: str,
    column: str | None = None,
    write_as: WriteAs = WHOLE,
    *,
    labels: tuple[str, ...] = (),
    kind: Literal["gauge", "counter", "summary"] | None = None,
    formerly: str | None = None,
) -> MetricFamily:
    is_hami = name.startswith("hami_")
    family = MetricFamily(
        name=name,
        help=meaning,
        labels=labels,
        kind=kind or ("counter" if name.endswith("_total") else "gauge"),
        write_as=write_as,
        column=column,
        constant=_ZONE if is_hami and labels != BUILD_LABELS else (),
        origin="hami" if is_hami else "own",
    )
    _families.append(family)
    if formerly is not None:
        _former[family] = attrs.evolve(
            family,
            name=formerly,
            help=f"As {name}.",
            labels=tuple(FORMER_LABELS[each] for each in labels if each in FORMER_LABELS),
            column=None,
            origin="legacy",
        )
    return family


_gpu = partial(_family, labels=HOST)
_device = partial(_family, labels=DEVICE)
_container = partial(_family, labels=CONTAINER)
_process = partial(_family, labels=PROCESS)
_unaccounted = partial(_family, labels=UNACCOUNTED)


# ---- HAMi's monitor: the GPUs --------------------------------------------------------------------

HOST_MEMORY_USED = _gpu(
    "hami_host_gpu_memory_used_bytes",
    "Memory of the GPU that is in use, as the driver says.",
    formerly="HostGPUMemoryUsage",
)
HOST_UTILIZATION = _gpu(
    "hami_host_gpu_utilization_ratio",
    "Share of the last sample in which a kernel ran on the GPU, 0 to 100.",
    formerly="HostCoreUtilization",
)
HOST_MEMORY_UTILIZATION = _gpu(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Share of the last sample in which the GPU's memory was read or written, 0 to 100.",
)
HOST_TEMPERATURE = _gpu("hami_host_gpu_temperature_celsius", "Temperature of the GPU's core.")
HOST_POWER = _gpu("hami_host_gpu_power_usage_watts", "Power that the GPU draws.", write_as=REAL)
HOST_ECC = _family(
    "hami_host_gpu_ecc_errors_total",
    "Memory errors of the GPU's lifetime, corrected and uncorrected.",
    labels=(*HOST, "error_type"),
)

# ---- HAMi's monitor: the containers --------------------------------------------------------------

MEMORY_USED = _device(
    "hami_vgpu_memory_used_bytes",
    "Memory accounted to the container on the device, over slots whose status is not 0.",
    "memory_used_bytes",
    formerly="vGPU_device_memory_usage_in_bytes",
)
MEMORY_LIMIT = _device(
    "hami_vgpu_memory_limit_bytes",
    "The container's memory limit on the device; 0 is unlimited.",
    "memory_limit_bytes",
    formerly="vGPU_device_memory_limit_in_bytes",
)
CONTAINER_MEMORY = _device(
    "hami_container_device_memory_bytes",
    "The same figure as hami_vgpu_memory_used_bytes.",
    "memory_used_bytes",
)
MEMORY_CONTEXT = _device(
    "hami_vgpu_memory_context_bytes",
    "Of the memory accounted, CUDA contexts.",
    "memory_context_bytes",
)
MEMORY_MODULE = _device(
    "hami_vgpu_memory_module_bytes", "Of the memory accounted, modules.", "memory_module_bytes"
)
MEMORY_BUFFER = _device(
    "hami_vgpu_memory_buffer_bytes", "Of the memory accounted, buffers.", "memory_data_bytes"
)
UTILIZATION = _device(
    "hami_container_device_utilization_ratio",
    "SM utilisation of the container's processes, 0 to 100 each and summed.",
    "sm_util_percent",
    formerly="Device_utilization_desc_of_container",
)
LAST_KERNEL = _device(
    "hami_container_last_kernel_elapsed_seconds",
    "Seconds since a process of the container last launched a kernel.",
    "last_kernel_time_s",
    SINCE,
    formerly="Device_last_kernel_of_container",
)
MIG_INFO = _family(
    "hami_mig_device_info",
    "The MIG device that a container's device is; device_uuid is the GPU's.",
    labels=(*DEVICE, *MIG),
    write_as=INFO,
    formerly="MigInfo",
)
HAMI_BUILD = _family(
    "hami_build_info",
    "The program that serves these metrics in place of HAMi's monitor.",
    labels=BUILD_LABELS,
    write_as=INFO,
)

MEMORY_PARTS = MetricFamily(
    "Device_memory_desc_of_container",
    "As hami_vgpu_memory_used_bytes, with its parts, in bytes, as the values of labels.",
    (*(FORMER_LABELS[each] for each in DEVICE), "context", "module", "data", "offset"),
    constant=_ZONE,
    origin="legacy",
)

# ---- ours: containers and their devices ----------------------------------------------------------

CONTAINER_INFO = _family(
    "hamiregion_container_info",
    "A container with a region: its id where it is known, and the region's layout.",
    labels=(*CONTAINER, "container_id", "layout"),
    write_as=INFO,
)
CLAIM_INFO = _family(
    "hamiregion_claim_info",
    "A resource claim with a region, once for each pod of the node that holds it (`container` is"
    " empty); with the claim's UID alone if kubelet's checkpoint cannot be read.",
    labels=("claim", "namespace", "pod", "container"),
    write_as=INFO,
)
CONTAINER_MISSING = _family(
    "hamiregion_container_missing_info",
    "A container without a region that can be read, and the reason.",
    labels=(*CONTAINER, "reason"),
    write_as=INFO,
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
UNNAMED_MEMORY_LIMIT = _device(
    "hamiregion_unnamed_device_memory_limit_bytes",
    "The container's memory limit on a device that has no uuid yet, because no process of it has"
    " begun with CUDA; 0 is unlimited. hami_vgpu_memory_limit_bytes follows.",
    "memory_limit_bytes",
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
LOCK_SAME_OWNER = _container(
    "hamiregion_lock_same_owner_seconds",
    "For how long every check has found the region's lock with the same owner; absent if it is"
    " free. Releases between two checks are not seen.",
    None,
    REAL,
)
CONTAINER_PROCESSES = _family(
    "hamiregion_container_processes",
    "Processes of the container: alive, dead or unknown with a slot; unlisted or escaped without;"
    " unread where there are too many slots to look at.",
    labels=(*CONTAINER, "state"),
)
PROCESSES_FOLDED = _container(
    "hamiregion_container_processes_folded",
    "Processes that are summed up under the pid other, because the container has too many.",
)
CONTAINER_FINDINGS = _family(
    "hamiregion_container_findings",
    "What hamiregion doctor finds wrong with a container.",
    labels=(*CONTAINER, "kind", "severity"),
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
    write_as=RATIO,
)
UNACCOUNTED_ENC = _unaccounted(
    "hamiregion_unaccounted_process_driver_enc_utilization_ratio",
    "Encoder utilisation of a process that no region accounts for, as the driver says.",
    write_as=RATIO,
)
UNACCOUNTED_DEC = _unaccounted(
    "hamiregion_unaccounted_process_driver_dec_utilization_ratio",
    "Decoder utilisation of a process that no region accounts for, as the driver says.",
    write_as=RATIO,
)

# ---- ours: the node and the exporter -------------------------------------------------------------

BUILD = _family(
    "hamiregion_build_info",
    "This exporter's version, and Python's.",
    labels=("version", "python_version"),
    write_as=INFO,
)
CONTAINERS = _family(
    "hamiregion_containers",
    "Containers of the node, with a region that can be read and without.",
    labels=("region",),
)
FINDINGS = _family(
    "hamiregion_findings", "What hamiregion doctor finds on this node, by kind.", labels=("kind",)
)
ROOT_READABLE = _family(
    "hamiregion_root_readable",
    "1 where the directory of containers could be listed, else 0.",
    labels=("root",),
)
PROC_COMPLETE = _family(
    "hamiregion_proc_complete",
    "1 where /proc shows every process of the node with its mappings; else the dead stay unknown.",
)
GAPS = _family(
    "hamiregion_observation_gaps",
    "How much the last observation of the node could not look at: slots, processes, roots, or the"
    " driver; by container where it is known. What a gap hides is unknown, not dead.",
    labels=(*CONTAINER, "container_id", "kind"),
)
NVML_UP = _family(
    "hamiregion_nvml_up",
    "1 where the driver answered the last time, else 0; absent where it is not asked.",
)
NVML_INFO = _family(
    "hamiregion_nvml_info",
    "What the driver answered, and its version.",
    labels=("state", "driver"),
    write_as=INFO,
)
REFRESH_TIME = _family(
    "hamiregion_refresh_timestamp_seconds",
    "When the last refresh behind the scrapes ended well, Unix time.",
    labels=("stage",),
    write_as=REAL,
)
ERRORS = _family("hamiregion_errors_total", "Failures of the exporter itself.", labels=("stage",))
COLLECTOR_SUCCESS = _family(
    "hamiregion_collector_success",
    "1 where the collector succeeded the last time, else 0.",
    labels=("collector",),
)
COLLECTOR_DURATION = _family(
    "hamiregion_collector_duration_seconds",
    "How long the collector took the last time.",
    labels=("collector",),
    write_as=REAL,
)
AGENT_EVENTS = _family(
    "hamiregion_agent_events_total", "What an agent in this program has done.", labels=("event",)
)
AGENT_PAUSED = _family(
    "hamiregion_agent_paused",
    "1 where a task of an agent in this program waits, for example for another writer to go.",
    labels=("task",),
)
SCRAPE_DURATION = _family(
    "hamiregion_scrape_duration_seconds",
    "Time that the scrapes before this one took, summed, and their number.",
    write_as=REAL,
    kind="summary",
)

#: Families to what they were called before; see `libhamiregion.exporter.legacy`.
FORMER = dict(_former)

#: All families, in the order in which they are exported.
FAMILIES: tuple[MetricFamily, ...] = (
    *(each for each in _families if each.origin == "hami"),
    *FORMER.values(),
    MEMORY_PARTS,
    *(each for each in _families if each.origin == "own"),
)

#: Every label that some family has.
LABEL_NAMES = frozenset(name for each in FAMILIES for name in (*each.labels, *dict(each.constant)))
