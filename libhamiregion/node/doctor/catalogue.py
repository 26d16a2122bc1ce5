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

    USAGE_ABOVE_LIMIT = "usage_above_limit"
    USAGE_IMPOSSIBLE = "usage_impossible"
    PROCESS_ESCAPES = "process_escapes"
    DRIVER_MEMORY_DIFFERS = "driver_memory_differs"
    UTILIZATION_NOT_RECORDED = "utilization_not_recorded"
    DEVICE_COUNT_ZERO = "device_count_zero"
    SM_LIMIT_OFF = "sm_limit_off"
    LAUNCHES_BLOCKED = "launches_blocked"

    LAYOUT_MIXED = "layout_mixed"
    LAYOUT_NEWER = "layout_newer"
    DIRECTORY_BORROWED = "directory_borrowed"
    REGION_LOST = "region_lost"
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
        what: What is wrong, and how it comes about; causes in backquotes.
        consequence: What comes of it.
        advice: What to do.
        repair: What `repair` does about it; None if it leaves it alone.
        is_transient: Whether it can be there for a moment on a healthy node, so that it is
            believed only if it is seen again.
    """

    severity: Severity
    what: str
    consequence: str
    advice: str
    repair: str | None = None
    is_transient: bool = False


# The option is replaced by the root of the container that a finding is about.
_REPAIR = "`hamiregion doctor --repair --root DIR`"

CATALOGUE: Mapping[FindingKind, Explanation] = {
    FindingKind.HOST_PID_WRONG: Explanation(
        Severity.WARNING,
        "A live process's slot has another host pid than its own: none (`missing`: libvgpu did not"
        " find itself in the driver's list), its pid inside the container (`container_pid`: newer"
        " drivers answer with those), that of another process with a slot (`swapped`: two that"
        " started together took each other's, an error), of a stranger (`foreign`, an error), or"
        " one that no process has (`dead`).",
        "libvgpu looks its processes up by this number in the driver's lists: the process's"
        " utilisation stays 0 or is another process's, the driver's figure of its memory is"
        " missing, and its SM limit is off.",
        f"{_REPAIR} stores the right one, and libvgpu takes it up within 120 ms;"
        " `hamiregion agent` keeps it right",
        "stores the pid that /proc proves, after looking once more that it is still that process",
        is_transient=True,
    ),
    # ---- slots -------------------------------------------------------------------------------
    FindingKind.DEAD_PROCESS_COUNTED: Explanation(
        Severity.WARNING,
        "Processes that were killed still count: SIGKILL leaves them no time to give up their"
        " slot.",
        "the container can allocate that much less, until libvgpu cleans up when an allocation is"
        " refused or a process starts; metrics show it as used.",
        f"{_REPAIR} frees them, as does `hamiregion reap FILE`",
        "frees the slots of those that are proved dead, again under the region's lock",
    ),
    FindingKind.SLOT_MOVED: Explanation(
        Severity.ERROR,
        "A live process writes to a slot behind the last one that counts (`orphaned`: libvgpu 2.8.1"
        " and later moved it when it removed dead ones), or stands in two slots that count"
        " (`doubled`: a repair was killed half way, or a newcomer stepped over a slot). While the"
        " process is idle (`idle`) this is information: an earlier process may have left the slot.",
        "what it allocates is counted by nobody, so the container can pass its limit; or it counts"
        " twice.",
        f"{_REPAIR} takes the real slot in and empties the copy",
        "takes the real slot in and empties the one that stands still, under the region's lock,"
        " while the process is seen writing",
    ),
    FindingKind.SLOT_WITHOUT_PID: Explanation(
        Severity.ERROR,
        "A slot that counts has pid 0, which no process has.",
        "up to HAMi 2.8.0 the next process to start loops for ever with the lock held, and hangs"
        " the container; what the slot holds counts against the limit.",
        f"{_REPAIR} removes it; do that before another process starts",
        "removes or empties it, and the slots of dead processes with it, under the region's lock",
        is_transient=True,
    ),
    FindingKind.SEQLOCK_STUCK: Explanation(
        Severity.ERROR,
        "A slot's seqlock is odd and stays so: a writer went inside and has not come out. It was"
        " killed there (`dead_writer`), or is stopped (`live_writer`, `unknown_writer`).",
        "the figures of the slot may belong to two moments, and libvgpu's own readers spin on it"
        " for ever: processes hang at their next allocation.",
        f"{_REPAIR} mends it where the writer is dead; a live one that is stopped"
        " has to go on (`kill -CONT`) or be ended",
        "frees the slot if its process is proved dead, which makes the seqlock even",
    ),
    FindingKind.SLOT_TABLE_FULL: Explanation(
        Severity.ERROR,
        "All process slots of the region are taken, or nine in ten (a warning).",
        "once all are taken, the next process to start in the container finds no slot and fails.",
        "empty the slots of dead processes with `hamiregion reap FILE`; if all of them live, the"
        " container runs more GPU processes than a region can hold",
    ),
    FindingKind.PROCESSES_UNKNOWN: Explanation(
        Severity.WARNING,
        "It cannot be told for some slots which process they belong to, or whether it lives:"
        " /proc does not show enough (`sight`), or several processes could be meant (`ambiguous`).",
        "nothing is said about these slots and nothing is repaired: no news is no good news here.",
        "run as root on the host; or in a pod with hostPID: true, the host's /proc and the"
        " capability SYS_PTRACE, without which maps cannot be read",
        is_transient=True,
    ),
    FindingKind.NOT_OBSERVED: Explanation(
        Severity.WARNING,
        "Processes of the container could not be looked at: reading them takes more time than a"
        " container has a share of (tens of thousands of mappings, hundreds of new processes a"
        " second), or never ends, as that of a process whose memory is locked by a file system of"
        " its own.",
        "what these processes map is unknown: whether they use the region, and whether they have"
        " escaped its limits. Nobody else's figures are older for it.",
        "look at what the container runs; no honest CUDA program does this for long",
        is_transient=True,
    ),
    # ---- the lock ----------------------------------------------------------------------------
    FindingKind.LOCK_STUCK: Explanation(
        Severity.ERROR,
        "The region's lock is held by a process that is dead (`dead_owner`), by nobody who has"
        " signed (`ownerless`: killed right after taking it), or by the same live process at every"
        " check (`live_owner`, `unknown_owner`: a warning, because it may be a busy lock); or the"
        " start-up semaphore of layout 1.1-postinit is taken though no process uses the region"
        " (`startup`).",
        "nobody can take the lock: processes cannot start or leave, up to HAMi 2.8.0 not even"
        " allocate, and from 2.8.1 on those that wait exit after 5 minutes. From HAMi 2.10 on a"
        " refused allocation waits for the lock as well: without a signature a running process"
        " hangs on it, and exits after 5 minutes.",
        f"{_REPAIR} gives it back, as does `hamiregion lock recover FILE`",
        "gives the lock of a dead owner back; one without a signature if nobody else maps the"
        " region, or nothing has moved for 10 s. A live owner's is never broken",
    ),
    FindingKind.SEMAPHORE_IMPOSSIBLE: Explanation(
        Severity.ERROR,
        "The semaphore of the region's lock (`lock`), or of libvgpu's start-up (`startup`), stands"
        " above 1: it was given back twice.",
        "the lock excludes nobody: several processes are inside at once and spoil each other's"
        " accounting.",
        f"{_REPAIR} sets it right",
        "sets the semaphore to what it must be",
    ),
    # ---- memory, devices, limits -------------------------------------------------------------
    FindingKind.USAGE_ABOVE_LIMIT: Explanation(
        Severity.ERROR,
        "More memory is in use than the limit allows: the limit was lowered, or several processes"
        " allocated at the same moment.",
        "libvgpu refuses every allocation, and up to HAMi 2.9 shows programs an enormous amount of"
        " free memory, because it subtracts without a sign.",
        "raise the limit above what is used (`hamiregion limits set`), or end processes",
        is_transient=True,
    ),
    FindingKind.USAGE_IMPOSSIBLE: Explanation(
        Severity.ERROR,
        "A slot counts more memory than any GPU has: more was given back than had been taken, and"
        " the number went below zero.",
        "sums wrap around or are enormous: every allocation is refused, or none.",
        "restart the process that it belongs to; `hamiregion reap FILE` frees a dead one's slot",
        is_transient=True,
    ),
    FindingKind.PROCESS_ESCAPES: Explanation(
        Severity.ERROR,
        "The driver lists a process of the container that has no slot in its region: it runs"
        " without libvgpu (`no_library`), as after a login over SSH that lost LD_PRELOAD, or with"
        " it switched off (`other`).",
        "neither limit holds for it, nobody counts its memory, and the others on that GPU run out"
        " before their own limits.",
        "start it so that libvgpu is preloaded (LD_PRELOAD or /etc/ld.so.preload), without"
        " CUDA_DISABLE_CONTROL; end it if it does not belong there",
        is_transient=True,
    ),
    FindingKind.DRIVER_MEMORY_DIFFERS: Explanation(
        Severity.WARNING,
        "The driver's figure for the container's memory is larger (`driver_more`) or smaller"
        " (`driver_less`) than what is accounted, by more than a tenth, and by more than 256 MiB"
        " per process, or 768 MiB where no context is accounted.",
        "the limit holds for the accounted figure only.",
        "if the driver's is the larger one, leave that much between the limits and the GPU's"
        " memory; if it is the smaller one, restart the process, whose books are wrong",
        is_transient=True,
    ),
    FindingKind.UTILIZATION_NOT_RECORDED: Explanation(
        Severity.WARNING,
        "The driver sees a process at work on the SMs and the region says 0, though the host pid is"
        " right: some versions of libvgpu measure only while an SM limit is on.",
        "every metric that comes from the region shows a utilisation of 0.",
        "run `hamiregion agent`, which keeps the figures current; or take the driver's"
        " (`hamiregion ps`)",
        is_transient=True,
    ),
    FindingKind.DEVICE_COUNT_ZERO: Explanation(
        Severity.WARNING,
        "Processes use memory and the region names no device: nothing in the container has"
        " initialised NVML through libvgpu.",
        "what goes by uuid, HAMi's monitor above all, shows nothing for this container, and the"
        " driver's figures cannot be matched.",
        "run nvidia-smi once inside the container, with libvgpu loaded: it fills the devices in",
        is_transient=True,
    ),
    FindingKind.SM_LIMIT_OFF: Explanation(
        Severity.WARNING,
        "An SM limit is set and does not work, or may not: it is switched off in the region"
        " (`switch`; a note while nobody competes, as HAMi's monitor does that), by"
        " GPU_CORE_UTILIZATION_POLICY in a process's environment (`policy`), because device 0 has"
        " none (`device_0`), or the layout records no utilisation (`no_utilization`, a note).",
        "launches are not held back.",
        "see the cause; a wrong host pid, which switches it off too, is a finding of its own",
        is_transient=True,
    ),
    FindingKind.LAUNCHES_BLOCKED: Explanation(
        Severity.ERROR,
        "Launches are blocked in favour of a more urgent container (recent_kernel is below 0), and"
        " no HAMi monitor and no `hamiregion agent` runs on the node who would unblock them.",
        "SM-limited processes of the container wait for ever at their next launch.",
        "start HAMi's monitor or `hamiregion agent`, which lift it in their first round",
        is_transient=True,
    ),
    # ---- files -------------------------------------------------------------------------------
    FindingKind.LAYOUT_MIXED: Explanation(
        Severity.ERROR,
        "Processes of one region run different generations of libvgpu, which was upgraded under"
        " running containers: they map different lengths of the file (`mapped_length`), or the"
        " file is longer than its layout makes it (`file_size`).",
        "each generation has its fields at other places, so they read and overwrite each other's"
        " limits, locks and figures.",
        "restart the container, and let no process of the old generation live on",
    ),
    FindingKind.LAYOUT_NEWER: Explanation(
        Severity.WARNING,
        "The region's version is newer than any that is known here, such as 1.3: its libvgpu is"
        " newer than this library. It is read by the newest layout known, whose fields all pass for"
        " what they should be.",
        "what the version has added is not shown, and nothing is written: no limit can be changed,"
        " nothing repaired, no utilisation kept current.",
        "install a libhamiregion that knows the version",
    ),
    FindingKind.DIRECTORY_BORROWED: Explanation(
        Severity.ERROR,
        "Processes of another pod use the region: the device plugin mounted this container's"
        " directory into that pod, as volcano-vgpu may where two pods start on a node at once, or a"
        " process has opened it by itself.",
        "both pods count in one region and share its limits: each can allocate only what the other"
        " leaves, the figures are the sum, and the other pod's own directory stays empty.",
        "delete the pods that are named, so that each gets a directory of its own",
    ),
    FindingKind.REGION_LOST: Explanation(
        Severity.ERROR,
        "Processes use a region whose file was deleted or replaced (`deleted`), or cut short"
        " (`cut_short`), as `shrreg-tool --create_new` does.",
        "they share limits and accounting with nobody that starts from now on, monitors see none of"
        " it, and where the file was cut short they die of SIGBUS when they next touch it.",
        "restart the processes that are named",
        is_transient=True,
    ),
    FindingKind.REGION_MISSING: Explanation(
        Severity.INFO,
        "The container's directory holds something in the region's place, and no region that can be"
        " read: it is `not_ready` yet, `not_a_region` but a link or another file, of an"
        " `unknown_layout`, may not be read (`no_permission`), went while it was opened (`stale`),"
        " or the system `failed`. Nothing was followed.",
        "the container has no figures, and libvgpu in it may have no limits.",
        "see the evidence: a file that stays unfinished has lost its creator, delete it; one that"
        " may not be read wants root",
        is_transient=True,
    ),
    FindingKind.ROOT_UNREADABLE: Explanation(
        Severity.WARNING,
        "A directory in which containers are looked for cannot be listed.",
        "its containers are missing from everything.",
        "name the right directory with --root, or mount it",
        is_transient=True,
    ),
}
