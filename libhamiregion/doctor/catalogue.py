"""Every kind of finding: how bad it is, what it means, and what to do.

The list on the documentation's page about the doctor is made of it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


class Severity(enum.Enum):
    """How bad a finding is."""

    #: A limit does not hold, processes hang or soon will, or figures are plainly wrong.
    ERROR = "error"
    #: Something is wrong that may do harm later.
    WARNING = "warning"
    #: Worth knowing; it may be intended.
    INFO = "info"


class FindingKind(enum.Enum):
    """What is wrong. The values fit a label; `explanation` has the sentences."""

    HOST_PID_WRONG = "host_pid_wrong"

    DEAD_PROCESS_COUNTED = "dead_process_counted"
    SLOT_MOVED = "slot_moved"
    SLOT_WITHOUT_PID = "slot_without_pid"
    SEQLOCK_STUCK = "seqlock_stuck"
    SLOT_TABLE_FULL = "slot_table_full"
    PROCESSES_UNKNOWN = "processes_unknown"
    NOT_OBSERVED = "not_observed"

    LOCK_STUCK = "lock_stuck"
    SEMAPHORE_IMPOSSIBLE = "semaphore_impossible"

    GPU_FAILED = "gpu_failed"
    GPU_OVERCOMMITTED = "gpu_overcommitted"
    MIG_APPLY_STUCK = "mig_apply_stuck"
    USAGE_ABOVE_LIMIT = "usage_above_limit"
    USAGE_IMPOSSIBLE = "usage_impossible"
    FIGURE_IMPOSSIBLE = "figure_impossible"
    PROCESS_ESCAPES = "process_escapes"
    SHARE_NOT_LIMITED = "share_not_limited"
    PROCESS_GONE = "process_gone"
    DRIVER_MEMORY_DIFFERS = "driver_memory_differs"
    UTILIZATION_NOT_RECORDED = "utilization_not_recorded"
    DEVICES_REORDERED = "devices_reordered"
    DEVICE_COUNT_ZERO = "device_count_zero"
    SM_LIMIT_OFF = "sm_limit_off"
    LAUNCHES_BLOCKED = "launches_blocked"

    LAYOUT_MIXED = "layout_mixed"
    LAYOUT_NEWER = "layout_newer"
    REGIONS_DOUBLED = "regions_doubled"
    DIRECTORY_BORROWED = "directory_borrowed"
    REGION_LOST = "region_lost"
    REGION_MISSING = "region_missing"
    ROOT_UNREADABLE = "root_unreadable"

    @property
    def explanation(self) -> Explanation:
        """What it means, its consequence, and what to do."""
        return CATALOGUE[self]


@attrs.frozen
class Explanation:
    """One kind of finding in general; a `Finding` has the particulars.

    Attributes:
        severity: The usual severity.
        what: What is wrong, and why; causes in backquotes.
        consequence: The consequence.
        advice: What to do.
        is_transient: Whether a healthy node can show it for a moment, so that it counts only if it
            is found twice.
    """

    severity: Severity
    what: str
    consequence: str
    advice: str
    is_transient: bool = False

    @property
    def is_repairable(self) -> bool:
        """Whether `repair` repairs it."""
        return _REPAIR in self.advice


# The option is replaced by the root of the container that a finding is about.
_REPAIR = "`hamiregion doctor --repair --root DIR`"


def _transient(severity: Severity, what: str, consequence: str, advice: str) -> Explanation:
    return Explanation(severity, what, consequence, advice, is_transient=True)


CATALOGUE: Mapping[FindingKind, Explanation] = {
    FindingKind.HOST_PID_WRONG: _transient(
        Severity.WARNING,
        "A live process's slot has no host pid (`missing`), its pid in the container"
        " (`container_pid`), or that of another process (`swapped`, `foreign`) or none (`dead`).",
        "the process's utilisation is 0 or another's, and its SM limit is off.",
        f"{_REPAIR} stores the right one; `hamiregion agent` keeps it right",
    ),
    FindingKind.DEAD_PROCESS_COUNTED: Explanation(
        Severity.WARNING,
        "Processes that were killed still count.",
        "the container can allocate that much less, until libvgpu cleans up.",
        f"{_REPAIR} or `hamiregion reap POD` frees their slots",
    ),
    FindingKind.SLOT_MOVED: Explanation(
        Severity.ERROR,
        "A live process writes to a slot that does not count (`orphaned`; `idle` is a note), or has"
        " two that count (`doubled`): libvgpu 2.8.1 and later moved it.",
        "its memory is not counted, and the container can pass its limit; or it counts twice.",
        f"{_REPAIR} takes the real slot in and empties the copy",
    ),
    FindingKind.SLOT_WITHOUT_PID: _transient(
        Severity.ERROR,
        "A slot that counts has pid 0.",
        "up to HAMi 2.8.0 the next process to start hangs with the lock held.",
        f"{_REPAIR} removes it; do that before another process starts",
    ),
    FindingKind.SEQLOCK_STUCK: Explanation(
        Severity.ERROR,
        "A slot's seqlock stays odd: its writer was killed (`dead_writer`) or is stopped"
        " (`live_writer`, `unknown_writer`).",
        "processes hang at their next allocation, from HAMi-core of September 2026 on all of the"
        " container, one of them with the lock.",
        f"{_REPAIR} frees a dead writer's slot; `kill -CONT` continues one that is stopped",
    ),
    FindingKind.SLOT_TABLE_FULL: Explanation(
        Severity.ERROR,
        "All process slots of the region are taken, or nine in ten (a warning). Emptied slots count"
        " too: HAMi's library checks only how many are taken.",
        "in a full table the next process to start fails, also if some slots are emptied.",
        "if no process lives, `hamiregion reap POD` makes the table free; else restart the"
        " container",
    ),
    FindingKind.PROCESSES_UNKNOWN: _transient(
        Severity.WARNING,
        "The processes of some slots are not known: /proc hides some (`sight`), several match"
        " (`ambiguous`), or time ran out (`no_time`).",
        "nothing is reported or repaired for these slots.",
        "run as root on the host, or in a pod with hostPID: true and the capability SYS_PTRACE",
    ),
    FindingKind.NOT_OBSERVED: _transient(
        Severity.WARNING,
        "Processes of the container could not be read in time.",
        "whether they use the region, or have escaped its limits, is not known.",
        "check what the container runs; no honest CUDA program does this for long",
    ),
    FindingKind.LOCK_STUCK: Explanation(
        Severity.ERROR,
        "The region's lock is held by a dead process (`dead_owner`), by none (`ownerless`), or by"
        " one at every check (`live_owner`, `unknown_owner`: a warning); or the start-up semaphore"
        " is taken in an unused region (`startup`).",
        "processes cannot start, leave or allocate, or exit after they have waited 5 minutes.",
        f"{_REPAIR} or `hamiregion lock recover POD` frees it",
    ),
    FindingKind.SEMAPHORE_IMPOSSIBLE: Explanation(
        Severity.ERROR,
        "The lock's semaphore (`lock`) or the start-up semaphore (`startup`) is above 1.",
        "several processes are inside at once and damage each other's accounting.",
        f"{_REPAIR} sets it right",
    ),
    FindingKind.GPU_FAILED: _transient(
        Severity.ERROR,
        "A GPU cannot be reached (`gpu_is_lost`), has to be reset (`reset_required`), is no longer"
        " listed (`not_found`), or gives another error.",
        "programs on it fail or hang, and it has no figures.",
        "see dmesg for an Xid; reset the GPU, or drain and restart the node",
    ),
    FindingKind.GPU_OVERCOMMITTED: _transient(
        Severity.INFO,
        "A GPU is at least 95 % full, and the memory limits on it exceed it.",
        "allocations fail below the limits, or memory moves to the host.",
        "see `hamiregion containers --by gpu`; lower limits, or move pods",
    ),
    FindingKind.MIG_APPLY_STUCK: Explanation(
        Severity.WARNING,
        "HAMi has held its lock for changing the MIG layout for more than 10 minutes.",
        "NVML stays closed: there are no figures of the driver.",
        "see the log of HAMi's device plugin; if it changes nothing, remove the lock file",
    ),
    FindingKind.USAGE_ABOVE_LIMIT: _transient(
        Severity.ERROR,
        "More memory is in use than the limit allows: the limit was lowered, or several processes"
        " allocated at the same moment.",
        "libvgpu refuses every allocation.",
        "raise the limit (`hamiregion limits set`), or end processes",
    ),
    FindingKind.USAGE_IMPOSSIBLE: _transient(
        Severity.ERROR,
        "A slot counts more memory than any GPU has: its counter went below zero. Up to HAMi 2.9"
        " the cause may be another process of the container, whose slot was moved and given away.",
        "every allocation is refused, or none.",
        "restart the container; `hamiregion reap POD` frees a dead process's slot",
    ),
    FindingKind.FIGURE_IMPOSSIBLE: _transient(
        Severity.WARNING,
        "A limit or a figure of a slot (`region`), or of the `driver` (a note), cannot be, such as"
        " 101 %.",
        "it is shown as unknown, such a limit as unlimited; libvgpu skips its SM control while the"
        " SM utilisation cannot be.",
        "`hamiregion agent` writes the driver's figures, `hamiregion limits set` a limit; else"
        " restart the process",
    ),
    FindingKind.PROCESS_ESCAPES: _transient(
        Severity.ERROR,
        "A process of the container uses a GPU and has no slot: libvgpu is not loaded in it"
        " (`no_library`), as after a login over SSH, or is switched off (`other`).",
        "no limit holds for it, and others on that GPU run out of memory below their limits.",
        "start it with libvgpu in LD_PRELOAD, without CUDA_DISABLE_CONTROL",
    ),
    FindingKind.SHARE_NOT_LIMITED: _transient(
        Severity.ERROR,
        "The container was given a share of a GPU and uses one, and none of its processes maps a"
        " region: libvgpu is not loaded (`no_library`), or could not make it (`no_region`). The"
        " exporter reports it after 30 s.",
        "no limit holds, and others on that GPU run out of memory below their limits.",
        "mount libvgpu.so and the region's directory into the container, and restart it",
    ),
    FindingKind.PROCESS_GONE: _transient(
        Severity.ERROR,
        "The driver lists a process that does not exist any more.",
        "its memory stays taken.",
        "reset the GPU, or drain and restart the node",
    ),
    FindingKind.DRIVER_MEMORY_DIFFERS: _transient(
        Severity.WARNING,
        "The container uses more memory by the driver (`driver_more`) or less (`driver_less`; not"
        " if it oversubscribes) than is accounted, by over a tenth and 256 MiB a process (768 MiB"
        " without a context).",
        "the limit holds for the accounted figure only.",
        "leave that much room on the GPU; if the driver's is smaller, restart the process",
    ),
    FindingKind.UTILIZATION_NOT_RECORDED: _transient(
        Severity.WARNING,
        "The driver sees a process at work and the region says 0, though the host pid is right.",
        "metrics from the region show a utilisation of 0.",
        "run `hamiregion agent`, or use the driver's figures (`hamiregion ps`)",
    ),
    FindingKind.DEVICES_REORDERED: _transient(
        Severity.WARNING,
        "CUDA_VISIBLE_DEVICES hides or reorders GPUs, by the `environment` or the `driver`.",
        "libvgpu counts memory by NVML's index and has limits by CUDA's: a limit may not hold, and"
        " HAMi's utilisation is under another GPU.",
        "give the container only the GPUs that it uses",
    ),
    FindingKind.DEVICE_COUNT_ZERO: _transient(
        Severity.WARNING,
        "Processes use memory and the region names no device: none has used NVML.",
        "HAMi's monitor shows nothing, and the driver's figures cannot be matched.",
        "run nvidia-smi once in the container, with libvgpu loaded",
    ),
    FindingKind.SM_LIMIT_OFF: _transient(
        Severity.WARNING,
        "An SM limit is off: in the region while others use the GPU (`switch`), by"
        " GPU_CORE_UTILIZATION_POLICY (`policy`), or because device 0 has none (`device_0`).",
        "launches are not held back.",
        "see the cause; a wrong host pid, which has the same effect, is a finding of its own",
    ),
    FindingKind.LAUNCHES_BLOCKED: _transient(
        Severity.ERROR,
        "Launches are blocked (recent_kernel is below 0), and no monitor or agent runs.",
        "SM-limited processes hang at their next launch.",
        "start HAMi's monitor or `hamiregion agent`",
    ),
    FindingKind.LAYOUT_MIXED: Explanation(
        Severity.ERROR,
        "Processes of one region run different generations of libvgpu: they map different lengths"
        " (`mapped_length`), or the file is too long for its layout (`file_size`).",
        "they overwrite each other's limits, locks and figures.",
        "restart the container, with all its processes",
    ),
    FindingKind.LAYOUT_NEWER: Explanation(
        Severity.WARNING,
        "The region has a newer version than any known here. It is read as the newest known one.",
        "new fields are not shown, and nothing is written or repaired.",
        "install a libhamiregion that knows the version",
    ),
    FindingKind.REGIONS_DOUBLED: _transient(
        Severity.WARNING,
        "Processes use another region of the directory than the newest.",
        "each has its own limits, and only the newest is shown.",
        "restart the container",
    ),
    FindingKind.DIRECTORY_BORROWED: Explanation(
        Severity.ERROR,
        "Processes of another pod use the region: its directory was mounted into that pod, as"
        " volcano-vgpu may if two pods start at once.",
        "both pods share one region's limits, and the figures are their sum.",
        "delete the named pods, so that each gets its own directory",
    ),
    FindingKind.REGION_LOST: _transient(
        Severity.ERROR,
        "Processes use a region whose file was deleted or replaced (`deleted`) or truncated"
        " (`cut_short`).",
        "new processes do not share their limits; a truncated file ends them with SIGBUS.",
        "restart the named processes",
    ),
    FindingKind.REGION_MISSING: _transient(
        Severity.INFO,
        "The directory has no readable region: the file is `not_ready`, `truncated`,"
        " `not_a_region`, of an `unknown_layout`, refused (`no_permission`), gone (`stale`), or"
        " reading it `failed`.",
        "the container has no figures, and libvgpu in it may have no limits.",
        "delete a file that stays unfinished; run as root if it may not be read",
    ),
    FindingKind.ROOT_UNREADABLE: _transient(
        Severity.WARNING,
        "A directory of containers cannot be listed.",
        "its containers are missing from all output.",
        "name the right directory with --root, or mount it",
    ),
}
