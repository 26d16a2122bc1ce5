"""What can be wrong with a node, as a table: how to make it so, and what the doctor finds.

Scenes that need more than regions and their processes (a driver, cgroups, several diagnoses) are in
the tests about those.
"""

import os
import signal

import attrs

from libhamiregion import Layout, open_region
from libhamiregion.doctor import FindingKind, Severity
from support.doctor_node import DoctorNode
from support.doctor_scene_table import Expected, container_scene, scene
from support.lock_bytes import NOBODY, hold, set_value
from support.node_scene import GIB, GPU, SceneContainer
from support.region_file import SLOTS
from support.slot_bytes import WITH_SEQLOCK, move_last_into

GONE = NOBODY + 1
# The last one that the kernel gives.
LAST_PID = (1 << 22) - 1
OTHER_GPU = GPU.replace("0000", "1111")
# One of the generations that lock for everything, one of those that do not.
BOTH = (Layout.V1_1, Layout.V1_2)


# ---- All is well --------------------------------------------------------------------------------


@scene(layouts=(Layout.V1_1, Layout.V1_1_POSTINIT, Layout.V1_2))
def containers_nested_and_not_with_forks_a_monitor_and_a_reader(
    node: DoctorNode, layout: Layout
) -> None:
    first, second = node.container(layout=layout), node.container(layout=layout, name="serve")
    inside = first.start(2)
    first.spawn(inside)
    inside.child("fork")
    second.start(0)
    monitor, reader = second.enter(0), second.enter(0)
    for place in (first, second):
        monitor.tell("map", place.path)
        reader.tell("map", place.path, "r")
    node.container().path.unlink()


@container_scene()
def a_dead_process_that_holds_nothing(place: SceneContainer) -> None:
    inside = place.start()
    place.kill(inside, place.spawn(inside, used=0)[0])


@container_scene()
def what_earlier_processes_left_behind_the_last_slot(place: SceneContainer) -> None:
    """The same pid in slots long given up, near and far."""
    inside = place.start()
    for slot in (5, 900):
        place.put("slot_pid", 1, slot=slot)
        place.put("slot_hostpid", 77, slot=slot)
    place.put("slot_pid", GONE, slot=1)
    inside.tell("charge", GIB)


@container_scene()
def a_process_without_a_pid_namespace_has_one_pid(place: SceneContainer) -> None:
    inside = place.start(0)
    assert place.host_pids() == {inside.process.pid: inside.process.pid}


# ---- Host pids ----------------------------------------------------------------------------------


def host_pid_wrong(cause: str, *says: str, severity: Severity | None = None) -> Expected:
    return Expected(FindingKind.HOST_PID_WRONG, cause, severity, says=says)


@container_scene(
    host_pid_wrong("missing", " is 0; /proc"),
    mended=(),
    layouts=(Layout.V1_1,),
    depth=1,
)
@container_scene(host_pid_wrong("missing", " is 0; /proc"), mended=(), depth=2)
def a_missing_host_pid(place: SceneContainer, depth: int) -> None:
    place.spawn(place.start(depth), host_pid=False)


@scene(host_pid_wrong("missing", "its SM limit is off"), mended=())
def a_missing_host_pid_where_an_sm_limit_is(node: DoctorNode, layout: Layout) -> None:
    node.container(layout=layout, sm_limits=[50]).start(host_pid=False)


@container_scene(host_pid_wrong("container_pid"), mended=(), depth=1)
@container_scene(host_pid_wrong("container_pid"), mended=(), depth=2)
def the_containers_own_pid_as_host_pid(place: SceneContainer, depth: int) -> None:
    place.start(depth)
    place.set_host_pid(1, 1)


SWAPPED = host_pid_wrong("swapped", severity=Severity.ERROR)


@scene(SWAPPED, attrs.evolve(SWAPPED, says=("_train'",)), mended=())
def host_pids_swapped_between_two_containers(node: DoctorNode, layout: Layout) -> None:
    places = [node.container(layout=layout), node.container(layout=layout, name="serve")]
    first, second = (place.start() for place in places)
    places[0].set_host_pid(1, second.host_pid)
    places[1].set_host_pid(1, first.host_pid)


@container_scene(host_pid_wrong("swapped", "2 processes have the host pid"), mended=())
def host_pids_swapped_inside_one_container(place: SceneContainer) -> None:
    inside = place.start()
    pid, host_pid = place.spawn(inside)
    place.set_host_pid(1, host_pid)
    place.set_host_pid(pid, inside.host_pid)


@container_scene(host_pid_wrong("dead"), mended=(), number=4_194_303)
@container_scene(host_pid_wrong("dead"), mended=(), number=2**31 - 1)
@container_scene(host_pid_wrong("dead"), mended=(), number=-7)
def a_host_pid_that_nobody_has(place: SceneContainer, number: int) -> None:
    place.start()
    place.put("slot_hostpid", number)


@container_scene(host_pid_wrong("dead"), mended=(), lives=False)
@container_scene(host_pid_wrong("foreign", severity=Severity.ERROR), mended=(), lives=True)
def the_host_pid_of_a_process_beside(place: SceneContainer, lives: bool) -> None:
    inside = place.start()
    pid, host_pid = inside.child("spawn")
    place.set_host_pid(1, host_pid)
    if not lives:
        inside.tell("kill", pid)


# This process, a kernel thread.
@container_scene(host_pid_wrong("foreign", severity=Severity.ERROR), mended=(), whose="our own")
@container_scene(
    host_pid_wrong("foreign", "2", severity=Severity.ERROR), mended=(), whose="the kernel's"
)
def the_host_pid_of_a_stranger(place: SceneContainer, whose: str) -> None:
    place.start()
    place.set_host_pid(1, os.getpid() if whose == "our own" else 2)


# ---- Slots --------------------------------------------------------------------------------------


@container_scene(
    Expected(
        FindingKind.DEAD_PROCESS_COUNTED,
        severity=Severity.WARNING,
        says=("4 GiB of 2 dead processes still counted", "pids "),
    ),
    mended=("slot of dead process",),
    used=2 * GIB,
    layouts=BOTH,
)
def killed_processes_that_count(place: SceneContainer) -> None:
    inside = place.start(2)
    killed = [place.spawn(inside, used=2 * GIB)[0] for _ in range(2)]
    place.spawn(inside)
    for pid in killed:
        place.kill(inside, pid)


@container_scene(Expected(FindingKind.DEAD_PROCESS_COUNTED), mended=(), used=0)
def a_process_that_became_another_program(place: SceneContainer) -> None:
    inside = place.enter()
    pid, _ = place.spawn(inside)
    inside.tell(f"@{pid}", "execute")
    place.forget(pid)


@container_scene(Expected(FindingKind.SLOT_MOVED), layouts=(Layout.V1_1,))
def a_process_of_2_8_0_that_stands_twice(place: SceneContainer) -> None:
    """It accounts in both."""
    place.add_process(GONE, {0: GIB})
    place.start()
    move_last_into(place, 0)
    place.put("proc_num", 2)
    assert place.used() == 2 * GIB


def slot_without_pid(severity: Severity) -> Expected:
    return Expected(FindingKind.SLOT_WITHOUT_PID, severity=severity)


@container_scene(
    slot_without_pid(Severity.ERROR), mended=(), used=GIB, layouts=BOTH[:1], holding=GIB
)
@container_scene(slot_without_pid(Severity.ERROR), mended=(), used=GIB, layouts=BOTH[:1], holding=0)
@container_scene(slot_without_pid(Severity.WARNING), mended=(), used=GIB, holding=GIB)
# One that is empty wedges early generations only.
@container_scene(holding=0)
def a_slot_without_a_pid(place: SceneContainer, holding: int) -> None:
    place.add_process(0, {0: holding} if holding else {})
    place.start()


@container_scene(
    Expected(FindingKind.SEQLOCK_STUCK, "dead_writer"), mended=(), layouts=(*WITH_SEQLOCK,)
)
def a_seqlock_that_a_killed_writer_left_odd(place: SceneContainer) -> None:
    inside = place.start()
    pid, _ = place.spawn(inside, used=0)
    place.put("slot_seqlock", 7, slot=1)
    place.kill(inside, pid)


@container_scene(Expected(FindingKind.SEQLOCK_STUCK, "live_writer", says=("kill -CONT",)))
def a_seqlock_that_a_live_writer_keeps_odd(place: SceneContainer) -> None:
    inside = place.start()
    place.put("slot_seqlock", 7)
    os.kill(inside.host_pid, signal.SIGSTOP)


@container_scene(
    Expected(FindingKind.SLOT_TABLE_FULL, severity=Severity.WARNING), taken=SLOTS * 9 // 10
)
@container_scene(
    Expected(
        FindingKind.SLOT_TABLE_FULL,
        severity=Severity.ERROR,
        says=(
            "1024 of 1024 slots taken",
            "1 by live processes, 1021 by dead ones",
            "2 are emptied",
        ),
    ),
    taken=SLOTS,
)
def a_full_table(place: SceneContainer, taken: int) -> None:
    place.start()
    place.put("proc_num", taken)
    for slot in range(1, SLOTS):
        place.put("slot_pid", GONE + slot, slot=slot)
        place.put("slot_status", int(slot > 2), slot=slot)


@container_scene(Expected(FindingKind.PROCESSES_UNKNOWN, "ambiguous"))
def two_processes_that_one_slot_can_mean(place: SceneContainer) -> None:
    inside, stranger = place.start(), place.enter()
    stranger.tell("map", place.path)
    assert inside.init_pid == stranger.init_pid == 1


# ---- The lock -----------------------------------------------------------------------------------


@container_scene(
    Expected(
        FindingKind.LOCK_STUCK, "dead_owner", pid=LAST_PID, says=(f"held by process {LAST_PID},",)
    ),
    mended=("the dead owner's lock was freed",),
    layouts=BOTH,
)
def a_lock_whose_owner_is_gone(place: SceneContainer) -> None:
    place.start()
    hold(place, LAST_PID)


@container_scene(
    Expected(FindingKind.LOCK_STUCK, "dead_owner", says=("held by an unknown process, which is",)),
    mended=("the dead owner's lock was freed",),
)
def a_lock_that_is_signed_by_no_pid(place: SceneContainer) -> None:
    place.start()
    hold(place, NOBODY)


@container_scene(Expected(FindingKind.LOCK_STUCK, "dead_owner"), mended=("lock was freed",))
def a_process_killed_with_the_lock_in_its_hands(place: SceneContainer) -> None:
    inside = place.start()
    pid, _ = place.spawn(inside, used=0)
    inside.tell(f"@{pid}", "lock")
    place.kill(inside, pid)


@scene(
    Expected(
        FindingKind.LOCK_STUCK,
        "ownerless",
    ),
    mended=("the lock without a signature was freed",),
)
def a_lock_that_nobody_has_signed_for_and_nobody_there(node: DoctorNode, layout: Layout) -> None:
    hold(node.container(layout=layout), 0)


@container_scene(
    Expected(FindingKind.LOCK_STUCK, "live_owner", pid=1, says=("held by process 1", "HOST_PID"))
)
def a_lock_that_a_live_process_does_not_give_back(place: SceneContainer) -> None:
    inside = place.start()
    inside.tell("lock")
    os.kill(inside.host_pid, signal.SIGSTOP)


@container_scene(
    Expected(FindingKind.SEMAPHORE_IMPOSSIBLE, "lock", says=("is 2",)),
    mended=("the semaphore was set right",),
    attached=True,
)
@container_scene(
    Expected(FindingKind.SEMAPHORE_IMPOSSIBLE, "lock", says=("is 2",)),
    mended=("the semaphore was set right",),
    attached=False,
)
def a_semaphore_that_was_given_back_twice(place: SceneContainer, attached: bool) -> None:
    if attached:
        place.start()
    set_value(place, 2)


STARTUP = Expected(FindingKind.SEMAPHORE_IMPOSSIBLE, "startup")


@container_scene(STARTUP, mended=(), layouts=(Layout.V1_1_POSTINIT,), value=3, attached=False)
@container_scene(
    Expected(FindingKind.LOCK_STUCK, "startup"),
    mended=(),
    layouts=(Layout.V1_1_POSTINIT,),
    value=0,
    attached=False,
)
# While processes use the region it may be in use, for as long as anybody can tell.
@container_scene(layouts=(Layout.V1_1_POSTINIT,), value=0, attached=True)
def the_start_up_semaphore(place: SceneContainer, value: int, attached: bool) -> None:
    if attached:
        place.start()
    set_value(place, value, "sem_postinit")


@container_scene(
    Expected(FindingKind.LOCK_STUCK),
    Expected(FindingKind.DEAD_PROCESS_COUNTED),
    Expected(FindingKind.HOST_PID_WRONG),
    mended=("lock was freed", "slot of dead process", "host pid"),
)
def what_a_lock_of_the_dead_hides(place: SceneContainer) -> None:
    """What is repaired comes after the lock."""
    inside = place.start(host_pid=False)
    place.kill(inside, place.spawn(inside)[0])
    hold(place, NOBODY)


# ---- Memory and limits --------------------------------------------------------------------------


@container_scene(
    Expected(
        FindingKind.USAGE_ABOVE_LIMIT, device=0, says=("6 GiB in use on device 0, limit 4 GiB",)
    )
)
def usage_above_the_limit(place: SceneContainer) -> None:
    place.start(used=6 * GIB)
    with open_region(place.path, writable=True) as region:
        region.set_memory_limit("4GiB", force=True)


@container_scene(Expected(FindingKind.USAGE_IMPOSSIBLE, pid=1, says=("-4096 as a signed number",)))
def a_counter_that_went_below_zero(place: SceneContainer) -> None:
    place.start()
    place.put("slot_used.total", (1 << 64) - 4096)


# It has not used any yet.
@scene(used=0, holding=0)
@scene(Expected(FindingKind.DEVICE_COUNT_ZERO, says=("1 GiB",)), holding=GIB)
def a_region_that_names_no_device(node: DoctorNode, layout: Layout, holding: int) -> None:
    place = node.container(layout=layout, uuids=[])
    place.put("device_num", 0)
    place.start(used=holding)


ALL_LIMITS = {"CUDA_DEVICE_MEMORY_LIMIT": "8g", "CUDA_DEVICE_SM_LIMIT": "50"}


@scene(layouts=(*BOTH,))
def an_sm_limit_that_holds(node: DoctorNode, layout: Layout) -> None:
    node.container(layout=layout, sm_limits=[50]).start(environment=ALL_LIMITS)


@scene(Expected(FindingKind.SM_LIMIT_OFF, "switch", says=("50 % on device 0",)), policy="default")
# A forced process does not care about the switch.
@scene(policy="force")
@scene(policy="FORCE")
def an_sm_limit_that_is_switched_off_while_others_compete(
    node: DoctorNode, layout: Layout, policy: str
) -> None:
    node.container(layout=layout).start()
    place = node.container(layout=layout, sm_limits=[50])
    place.start(environment={"GPU_CORE_UTILIZATION_POLICY": policy})
    place.put("utilization_switch", 0)


# As HAMi's monitor has it.
@scene()
def an_sm_limit_that_is_switched_off_while_nobody_competes(
    node: DoctorNode, layout: Layout
) -> None:
    place = node.container(layout=layout, sm_limits=[50])
    place.start()
    place.put("utilization_switch", 0)


@scene(Expected(FindingKind.SM_LIMIT_OFF, "policy", says=("GPU_CORE_UTILIZATION_POLICY",)))
def an_sm_limit_that_the_environment_switches_off(node: DoctorNode, layout: Layout) -> None:
    place = node.container(layout=layout, sm_limits=[50])
    place.start(environment={"GPU_CORE_UTILIZATION_POLICY": "disable"})


@scene(Expected(FindingKind.SM_LIMIT_OFF, "device_0", device=1), layouts=(Layout.V1_1,))
@scene()
def an_sm_limit_on_device_1_alone(node: DoctorNode, layout: Layout) -> None:
    """Until 2.8.2 it takes one on device 0."""
    node.container(layout=layout, uuids=[GPU, OTHER_GPU], sm_limits=[None, 50]).start()


@scene(Expected(FindingKind.LAUNCHES_BLOCKED, severity=Severity.ERROR))
def blocked_launches_that_nobody_will_unblock(node: DoctorNode, layout: Layout) -> None:
    place = node.container(layout=layout, sm_limits=[50])
    place.start()
    place.put("recent_kernel", -1)


# ---- Files --------------------------------------------------------------------------------------


def cut_short(size: int) -> Expected:
    says = (f"{size} bytes long", "HOST_PID")
    return Expected(FindingKind.REGION_LOST, "cut_short", pid=1, says=says)


@container_scene(cut_short(0), size=0)
@container_scene(cut_short(100), size=100)
@container_scene(cut_short(1_900_000), size=1_900_000)
def a_region_cut_short_under_its_processes(place: SceneContainer, size: int) -> None:
    place.start()
    place.resize(size)


@container_scene(Expected(FindingKind.LAYOUT_MIXED, "mapped_length", says=("layout unversioned",)))
def a_process_that_maps_the_region_as_another_layout(place: SceneContainer) -> None:
    place.start()
    # Not a child of the first: a fork keeps what its parent maps.
    other = place.enter()
    pid, _ = other.child("spawn")
    other.tell(f"@{pid}", "map_bytes", place.path, Layout.UNVERSIONED.size_bytes)


@container_scene(Expected(FindingKind.LAYOUT_MIXED, "file_size"), layouts=(Layout.V1_1,))
def a_region_that_2_8_1_has_made_longer(place: SceneContainer) -> None:
    place.start()
    place.resize(Layout.V1_1_POSTINIT.size_bytes + 1)


@container_scene(
    Expected(FindingKind.LAYOUT_NEWER, severity=Severity.WARNING, says=("version 1.3",))
)
def a_region_of_a_version_to_come(place: SceneContainer) -> None:
    place.start()
    place.put("minor_version", 3)


def missing(cause: str) -> Expected:
    return Expected(FindingKind.REGION_MISSING, cause, Severity.INFO)


@scene()
def a_directory_without_a_file(node: DoctorNode, layout: Layout) -> None:
    node.container(layout=layout).path.unlink()


@scene(missing("not_ready"))
def a_file_that_is_empty(node: DoctorNode, layout: Layout) -> None:
    node.container(layout=layout).resize(0)


@scene(missing("not_a_region"))
def a_link_in_the_place_of_the_file(node: DoctorNode, layout: Layout) -> None:
    place = node.container(layout=layout)
    elsewhere = node.root.with_name("elsewhere")
    elsewhere.write_text("somebody else's")
    place.path.unlink()
    place.path.symlink_to(elsewhere)


@container_scene(missing("not_a_region"))
def a_pipe_in_the_place_of_the_file(place: SceneContainer) -> None:
    place.path.unlink()
    os.mkfifo(place.path)


@scene(missing("unknown_layout"))
def a_file_of_a_version_that_nobody_knows(node: DoctorNode, layout: Layout) -> None:
    node.container(layout=layout).put("major_version", 77)


@scene(Expected(FindingKind.ROOT_UNREADABLE, says=("containers", "No such file or directory")))
def a_root_that_is_not_there(node: DoctorNode, layout: Layout) -> None:  # noqa: ARG001
    node.root.rmdir()
