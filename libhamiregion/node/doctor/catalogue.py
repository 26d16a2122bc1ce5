"""What can be wrong on a node, and what each kind of finding means.

The documentation's page on the doctor is made of it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping


class Severity(enum.Enum):
    """How bad a finding is."""

    #: A limit does not hold, processes are stuck or soon will be, or figures are plainly wrong.
    ERROR = "error"
    #: Something is wrong, and what works today may not work tomorrow.
    WARNING = "warning"
    #: Worth knowing, and it may be meant.
    INFO = "info"


class FindingKind(enum.Enum):
    """What is wrong. The values are words that fit a label; `explanation` has the sentences."""

    HOST_PID_MISSING = "host_pid_missing"
    HOST_PID_IS_CONTAINER_PID = "host_pid_is_container_pid"
    HOST_PID_SWAPPED = "host_pid_swapped"
    HOST_PID_DEAD = "host_pid_dead"
    HOST_PID_FOREIGN = "host_pid_foreign"

    DEAD_PROCESS_COUNTED = "dead_process_counted"
    ORPHANED_SLOT = "orphaned_slot"
    DOUBLED_SLOT = "doubled_slot"
    SLOT_WITHOUT_PID = "slot_without_pid"
    SEQLOCK_STUCK = "seqlock_stuck"
    SLOT_TABLE_FULL = "slot_table_full"
    SLOT_TABLE_NEARLY_FULL = "slot_table_nearly_full"
    USAGE_SUMS_DIFFER = "usage_sums_differ"
    PROCESSES_UNKNOWN = "processes_unknown"

    LOCK_HELD_BY_DEAD = "lock_held_by_dead"
    LOCK_OWNERLESS = "lock_ownerless"
    LOCK_HELD_TOO_LONG = "lock_held_too_long"
    SEMAPHORE_IMPOSSIBLE = "semaphore_impossible"
    STARTUP_LOCK_HELD = "startup_lock_held"

    USAGE_ABOVE_LIMIT = "usage_above_limit"
    USAGE_IMPOSSIBLE = "usage_impossible"
    PROCESS_ESCAPES = "process_escapes"
    DRIVER_MEMORY_DIFFERS = "driver_memory_differs"
    UTILIZATION_NOT_RECORDED = "utilization_not_recorded"
    DEVICE_COUNT_ZERO = "device_count_zero"
    SM_LIMIT_OFF = "sm_limit_off"
    LAUNCHES_BLOCKED = "launches_blocked"

    LAYOUT_MIXED = "layout_mixed"
    REGION_TRUNCATED = "region_truncated"
    REGION_UNLINKED = "region_unlinked"
    SEVERAL_CACHE_FILES = "several_cache_files"
    REGION_MISSING = "region_missing"
    ROOT_UNREADABLE = "root_unreadable"

    @property
    def explanation(self) -> Explanation:
        """What it means, what comes of it, and what to do."""
        return CATALOGUE[self]


@attrs.frozen
class Explanation:
    """One kind of finding, in general; a `Finding` has the particulars.

    Attributes:
        severity: The usual one.
        what: What is wrong, and how it comes about.
        evidence: What it is told by.
        consequence: What comes of it.
        advice: What to do.
        repair: What `repair` does about it; None if it leaves it alone.
        passes: Whether it can be there for a moment on a healthy node, so that it is believed only
            if it is seen again.
    """

    severity: Severity
    what: str
    evidence: str
    consequence: str
    advice: str
    repair: str | None = None
    passes: bool = False


# The option is replaced by the root of the container that a finding is about.
_REPAIR = "`hamiregion doctor --repair --root DIR`"
_NO_UTILIZATION = (
    "libvgpu looks its own processes up by this number in the driver's lists: the process's"
    " utilisation stays 0 in every metric, the driver's figure of its memory is missing"
)
_SET_HOST_PID = (
    "stores the pid that /proc proves, after looking once more that it is still that process"
)
_HOST_PID_ADVICE = (
    f"{_REPAIR} stores the right one, and libvgpu takes it up within 120 ms;"
    " `hamiregion agent` keeps it right"
)
_LOCK_CONSEQUENCE = (
    "nobody can take the lock: processes cannot start or leave, up to HAMi 2.8.0 not even allocate,"
    " and from 2.8.1 on those that wait exit after 5 minutes"
)

CATALOGUE: Mapping[FindingKind, Explanation] = {
    # ---- host pids ---------------------------------------------------------------------------
    FindingKind.HOST_PID_MISSING: Explanation(
        Severity.WARNING,
        "A live process has no host pid in its slot: libvgpu did not find itself in the driver's"
        " list of processes when it made its context.",
        "The slot's hostpid is 0; which process it is was proved through /proc.",
        f"{_NO_UTILIZATION}, and its SM limit is off.",
        _HOST_PID_ADVICE,
        _SET_HOST_PID,
        passes=True,
    ),
    FindingKind.HOST_PID_IS_CONTAINER_PID: Explanation(
        Severity.WARNING,
        "A live process has its pid of the container where its host pid should be: newer drivers"
        " answer libvgpu with pids of the container's own namespace.",
        "The slot's hostpid equals its pid, and /proc shows another pid on the host.",
        f"{_NO_UTILIZATION}, and the SM limit is steered by a utilisation of 0, so it hardly holds"
        " anything back. On the host the number may be another process's, whose figures then count"
        " here.",
        _HOST_PID_ADVICE,
        _SET_HOST_PID,
        passes=True,
    ),
    FindingKind.HOST_PID_SWAPPED: Explanation(
        Severity.ERROR,
        "A slot has the host pid of a process that has another slot: libvgpu compares the driver's"
        " list before and after it makes a context, and two processes that start together can take"
        " each other's pid.",
        "Both processes are proved through /proc by the files that they map and their pids.",
        "utilisation and driver memory of the one are booked on the other: metrics blame the wrong"
        " container, and the SM limit of one throttles, or frees, the other.",
        _HOST_PID_ADVICE,
        _SET_HOST_PID,
        passes=True,
    ),
    FindingKind.HOST_PID_DEAD: Explanation(
        Severity.WARNING,
        "A live process's slot has a host pid that no process has.",
        "/proc of the host has no such pid; which process it really is was proved there.",
        f"{_NO_UTILIZATION}, and once the number is used again, a stranger's figures count here.",
        _HOST_PID_ADVICE,
        _SET_HOST_PID,
        passes=True,
    ),
    FindingKind.HOST_PID_FOREIGN: Explanation(
        Severity.ERROR,
        "A live process's slot has the host pid of a process that has nothing to do with the"
        " region.",
        "/proc has a process of that number, and it has no slot in any region.",
        f"{_NO_UTILIZATION}, and what the other process does on a GPU counts as this container's.",
        _HOST_PID_ADVICE,
        _SET_HOST_PID,
        passes=True,
    ),
    # ---- slots -------------------------------------------------------------------------------
    FindingKind.DEAD_PROCESS_COUNTED: Explanation(
        Severity.WARNING,
        "Processes that were killed still count: SIGKILL leaves them no time to give up their"
        " slot.",
        "No process that maps the region has their pid; /proc shows all processes.",
        "the container can allocate that much less, until libvgpu cleans up when an allocation is"
        " refused or a process starts; metrics show it as used.",
        f"{_REPAIR} frees them, as does `hamiregion reap FILE`",
        "frees the slots of those that are proved dead, again under the region's lock",
    ),
    FindingKind.ORPHANED_SLOT: Explanation(
        Severity.ERROR,
        "A live process writes to a slot that counts no more: libvgpu 2.8.1 and later moved it when"
        " it removed dead ones, without the process's knowledge.",
        "The process's pid stands in a slot behind the last one that counts, which is seen moving,"
        " while its copy among those that count stands still. While the process is idle this is"
        " told, as information, where the two differ: an earlier process may have left the slot.",
        "what it allocates from now on is counted by nobody, so the container can pass its limit.",
        f"{_REPAIR} takes the real slot in and empties the copy",
        "takes the real slot in and empties the frozen copy, under the region's lock, while the"
        " process is seen writing there",
    ),
    FindingKind.DOUBLED_SLOT: Explanation(
        Severity.WARNING,
        "A live process stands in two slots that count: a repair was killed half way, or a newcomer"
        " stepped over a slot that an idle process may come back to.",
        "Two slots below the number of slots have the same pid and count memory.",
        "its memory counts twice: once as it is, once as it was.",
        f"{_REPAIR} empties the one that stands still",
        "empties the slot that stands still while the process is seen writing to the other one,"
        " under the region's lock",
        passes=True,
    ),
    FindingKind.SLOT_WITHOUT_PID: Explanation(
        Severity.ERROR,
        "A slot that counts has pid 0, which no process has.",
        "It stands below the number of slots, and its pid is 0.",
        "up to HAMi 2.8.0 the next process to start loops for ever with the lock held, and hangs"
        " the container; what the slot holds counts against the limit.",
        f"{_REPAIR} removes it; do that before another process starts",
        "removes or empties it, and the slots of dead processes with it, under the region's lock",
        passes=True,
    ),
    FindingKind.SEQLOCK_STUCK: Explanation(
        Severity.ERROR,
        "A slot's seqlock is odd and stays so: a writer went inside and has not come out. It was"
        " killed there, or is stopped.",
        "The same odd number at several looks; the process is dead, or alive and does not move.",
        "the figures of the slot may belong to two moments, and libvgpu's own readers spin on it"
        " for ever: processes hang at their next allocation.",
        f"{_REPAIR} mends it where the writer is dead; a live one that is stopped"
        " has to go on (`kill -CONT`) or be ended",
        "frees the slot if its process is proved dead, which makes the seqlock even; a live"
        " process's is left alone",
    ),
    FindingKind.SLOT_TABLE_FULL: Explanation(
        Severity.ERROR,
        "All process slots of the region are taken.",
        "The number of slots stands at the most that a region has.",
        "the next process to start in the container finds no slot and fails.",
        "empty the slots of dead processes with `hamiregion reap FILE`: processes of this library"
        " take them again; for others, end the processes that still use the region, and reap"
        " again; if all of them live, the container runs more GPU processes than a region can hold",
    ),
    FindingKind.SLOT_TABLE_NEARLY_FULL: Explanation(
        Severity.WARNING,
        "Nine in ten process slots of the region are taken.",
        "The number of slots.",
        "once all are, the next process to start in the container fails.",
        "find out why so many processes use CUDA, or die without giving up their slots;"
        " `hamiregion reap FILE` empties those of dead ones",
    ),
    FindingKind.USAGE_SUMS_DIFFER: Explanation(
        Severity.WARNING,
        "Memory stands in slots of status 0 (exited) that are not proved dead.",
        "The sum over all slots, which libvgpu enforces, differs from the sum over those whose"
        " status is not 0, which HAMi's monitor shows.",
        "the container is refused memory that its metrics show as free.",
        "see whether the process has really ended; if it lives, `hamiregion resume` gives it its"
        " status back",
        passes=True,
    ),
    FindingKind.PROCESSES_UNKNOWN: Explanation(
        Severity.WARNING,
        "It cannot be told for some slots which process they belong to, or whether it lives.",
        "/proc does not show enough, or several processes could be meant.",
        "nothing is said about these slots and nothing is repaired: no news is no good news here.",
        "run as root on the host; or in a pod with hostPID: true, the host's /proc and the"
        " capability SYS_PTRACE, without which maps cannot be read",
        passes=True,
    ),
    # ---- the lock ----------------------------------------------------------------------------
    FindingKind.LOCK_HELD_BY_DEAD: Explanation(
        Severity.ERROR,
        "The region's lock is held by a process that is dead: it was killed inside.",
        "The lock is taken and signed with a pid that no process which maps the region has.",
        f"{_LOCK_CONSEQUENCE}. libvgpu repairs it itself after 10 s, unless another process has"
        " that pid by then.",
        f"{_REPAIR} gives it back, as does `hamiregion lock recover FILE`",
        "gives the lock back and finishes what its holder was doing, with the same proof",
    ),
    FindingKind.LOCK_OWNERLESS: Explanation(
        Severity.ERROR,
        "The region's lock is taken and nobody has signed for it: its holder was killed in the few"
        " instructions between taking and signing, or between clearing and giving back.",
        "The semaphore stands at 0, owner_pid is 0, and neither moves.",
        f"{_LOCK_CONSEQUENCE}. libvgpu up to 2.8.0 forces it after about 10 s.",
        f"{_REPAIR} gives it back, after watching it for 10 s if processes use the region",
        "gives the lock back if nobody else maps the region, or nothing has moved for 10 s",
    ),
    FindingKind.LOCK_HELD_TOO_LONG: Explanation(
        Severity.ERROR,
        "One live process has held the region's lock without a pause, far longer than the"
        " milliseconds that anybody needs.",
        "The same signature at every one of many looks.",
        f"{_LOCK_CONSEQUENCE}.",
        "see what the process does: if it is stopped, `kill -CONT` lets it go on; if it hangs in"
        f" the driver, end it, and then run {_REPAIR}. A live owner's lock is never broken",
    ),
    FindingKind.SEMAPHORE_IMPOSSIBLE: Explanation(
        Severity.ERROR,
        "The semaphore of the region's lock, or of libvgpu's start-up, stands above 1: it was given"
        " back twice.",
        "Its value.",
        "the lock excludes nobody: several processes are inside at once and spoil each other's"
        " accounting.",
        f"{_REPAIR} sets it right",
        "sets the semaphore to what it must be",
    ),
    FindingKind.STARTUP_LOCK_HELD: Explanation(
        Severity.ERROR,
        "The second semaphore of layout 1.1-postinit, which libvgpu takes at start-up, is taken"
        " though no process uses the region.",
        "sem_postinit stands at 0 and nobody maps the file.",
        "the next process to start in the container waits for it.",
        f"{_REPAIR} gives it back",
        "gives it back while nobody maps the region",
        passes=True,
    ),
    # ---- memory, devices, limits -------------------------------------------------------------
    FindingKind.USAGE_ABOVE_LIMIT: Explanation(
        Severity.ERROR,
        "More memory is in use than the limit allows: the limit was lowered, or several processes"
        " allocated at the same moment.",
        "The sum over all slots, and the limit in the region.",
        "libvgpu refuses every allocation, and shows programs an enormous amount of free memory,"
        " because it subtracts without a sign.",
        "raise the limit above what is used (`hamiregion limits set`), or end processes",
        passes=True,
    ),
    FindingKind.USAGE_IMPOSSIBLE: Explanation(
        Severity.ERROR,
        "A slot counts more memory than any GPU has: more was given back than had been taken, and"
        " the number went below zero.",
        "A total of a petabyte or more.",
        "sums wrap around or are enormous: every allocation is refused, or none.",
        "restart the process that it belongs to; `hamiregion reap FILE` frees a dead one's slot",
        passes=True,
    ),
    FindingKind.PROCESS_ESCAPES: Explanation(
        Severity.ERROR,
        "A process in the container uses a GPU and has no slot in its region: it runs without"
        " libvgpu, as after a login over SSH that lost LD_PRELOAD, or with it switched off.",
        "The driver lists it; its cgroup, or the region that it maps, says whose it is.",
        "neither limit holds for it, nobody counts its memory, and the others on that GPU run out"
        " before their own limits.",
        "start it so that libvgpu is preloaded (LD_PRELOAD or /etc/ld.so.preload), without"
        " CUDA_DISABLE_CONTROL; end it if it does not belong there",
        passes=True,
    ),
    FindingKind.DRIVER_MEMORY_DIFFERS: Explanation(
        Severity.WARNING,
        "The driver's figure for the container's memory is far from what is accounted. libvgpu does"
        " not see every kind of allocation, and not every version counts contexts.",
        "They differ by more than a tenth, and by more than 256 MiB per process, or 768 MiB where"
        " no context is accounted: what modules, and contexts on large GPUs, usually take.",
        "the limit holds for the accounted figure only.",
        "if the driver's is the larger one, leave that much between the limits and the GPU's"
        " memory; if it is the smaller one, restart the process, whose books are wrong",
        passes=True,
    ),
    FindingKind.UTILIZATION_NOT_RECORDED: Explanation(
        Severity.WARNING,
        "The driver sees a process at work on the SMs and the region says 0, though the host pid is"
        " right: some versions of libvgpu measure only while an SM limit is on.",
        "The driver's sample of the last second, and the slot.",
        "every metric that comes from the region shows a utilisation of 0.",
        "run `hamiregion agent`, which keeps the figures current; or take the driver's"
        " (`hamiregion ps --nvml`)",
        passes=True,
    ),
    FindingKind.DEVICE_COUNT_ZERO: Explanation(
        Severity.WARNING,
        "Processes use memory and the region names no device: nothing in the container has"
        " initialised NVML through libvgpu.",
        "device_num is 0, and slots count memory.",
        "what goes by uuid, HAMi's monitor above all, shows nothing for this container, and the"
        " driver's figures cannot be matched.",
        "run nvidia-smi once inside the container, with libvgpu loaded: it fills the devices in",
        passes=True,
    ),
    FindingKind.SM_LIMIT_OFF: Explanation(
        Severity.WARNING,
        "An SM limit is set and does not work, or may not.",
        "What switches it off: the switch in the region, GPU_CORE_UTILIZATION_POLICY in a process's"
        " environment, device 0 without a limit, or a layout that records no utilisation.",
        "launches are not held back.",
        "see the cause; a missing host pid, which switches it off too, is a finding of its own",
        passes=True,
    ),
    FindingKind.LAUNCHES_BLOCKED: Explanation(
        Severity.ERROR,
        "Launches are blocked in favour of a more urgent container, and nobody runs who would ever"
        " unblock them: the monitor that blocked them has gone.",
        "recent_kernel is below 0; no HAMi monitor and no `hamiregion agent` runs on the node.",
        "SM-limited processes of the container wait for ever at their next launch.",
        "start HAMi's monitor or `hamiregion agent`, which lift it in their first round",
        passes=True,
    ),
    # ---- files -------------------------------------------------------------------------------
    FindingKind.LAYOUT_MIXED: Explanation(
        Severity.ERROR,
        "Processes of one region run different generations of libvgpu: it was upgraded under"
        " running containers.",
        "They map different lengths of the file; or the file is longer than its layout makes it.",
        "each generation has its fields at other places, so they read and overwrite each other's"
        " limits, locks and figures.",
        "restart the container, and let no process of the old generation live on",
    ),
    FindingKind.REGION_TRUNCATED: Explanation(
        Severity.ERROR,
        "The region's file was cut short while processes have it mapped, as `shrreg-tool"
        " --create_new` does.",
        "The file's size, and the processes that map it.",
        "each of these processes dies of SIGBUS when it next touches its region.",
        "restart the container's processes; what was in the region is lost",
        passes=True,
    ),
    FindingKind.REGION_UNLINKED: Explanation(
        Severity.ERROR,
        "Processes use a region whose file was deleted or replaced.",
        "/proc shows the mapping as deleted.",
        "they share limits and accounting with nobody: processes that start from now on use another"
        " region, and monitors see none of it. Both together can pass the limit.",
        "restart the processes that are named",
        passes=True,
    ),
    FindingKind.SEVERAL_CACHE_FILES: Explanation(
        Severity.INFO,
        "The container's directory holds several .cache files. The newest that is a region counts.",
        "The directory's listing.",
        "usually a leftover of an earlier start. If processes use another one of them, its usage is"
        " not seen.",
        "delete the files that no process uses",
    ),
    FindingKind.REGION_MISSING: Explanation(
        Severity.INFO,
        "The container's directory holds something in the region's place, and no region that can be"
        " read: it is not ready yet, a link or another file, of an unknown layout, may not be read,"
        " or went while it was opened. Nothing was followed.",
        "What the system, or the file's first fields, say.",
        "the container has no figures, and libvgpu in it may have no limits.",
        "see the evidence: a file that stays unfinished has lost its creator, delete it; one that"
        " may not be read wants root",
        passes=True,
    ),
    FindingKind.ROOT_UNREADABLE: Explanation(
        Severity.WARNING,
        "A directory in which containers are looked for cannot be listed.",
        "What the system says.",
        "its containers are missing from everything.",
        "name the right directory with --root, or mount it",
        passes=True,
    ),
}
