"""The lock and the slots from both sides of a pid namespace, as between a node and its containers.

`outside` makes processes where the tests run, `inside` in one new namespace, `deeper` in another
one within that. Inside, the library sees itself and what is deeper, not what is outside.
"""

import contextlib
from collections.abc import Iterator

import pytest
from support.actors import Actor, MakeActor, ProcessFactory
from support.lock_bytes import hold, is_free, let_go, owner_of, set_value, value_of
from support.namespaces import NEW_NAMESPACE, is_number, why_no_new_namespace
from support.region_file import RegionFile, unchanged
from support.slot_bytes import at_work, attached, forget_marks, pids, used
from support.wait import eventually

from libhamiregion import Layout, LockNotRecoverable, LockTimeout, ReapedSlot

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_new_namespace()), reason=why_no_new_namespace()),
]


@pytest.fixture(scope="module")
def containers() -> Iterator[list[ProcessFactory]]:
    """Where processes of new namespaces come from: a container, one inside it, and another one."""
    with contextlib.ExitStack() as stack:

        def enter(*words: str) -> ProcessFactory:
            return stack.enter_context(contextlib.closing(ProcessFactory(*words, *NEW_NAMESPACE)))

        first, other = enter(), enter()
        member = first.actor()
        within = enter("nsenter", "-t", str(member.pid_here), "--pid", "--mount")
        # Once it has made an actor it has started, and takes no pid of the first one by itself.
        within.actor()
        yield [first, within, other]


@pytest.fixture
def actors(containers) -> Iterator[list[MakeActor]]:
    yield [each.actor for each in containers]
    # Whoever is inside first.
    for each in (containers[1], containers[2], containers[0]):
        each.kill_all()


@pytest.fixture
def outside(actor) -> MakeActor:
    return actor


@pytest.fixture
def inside(actors) -> MakeActor:
    return actors[0]


@pytest.fixture
def deeper(actors) -> MakeActor:
    return actors[1]


@pytest.fixture
def elsewhere(actors) -> MakeActor:
    return actors[2]


def with_pid(make: MakeActor, pid: int, path: RegionFile | None = None, **options: object) -> Actor:
    """The next process of that namespace has this number."""
    store = "open('/proc/sys/kernel/ns_last_pid', 'w').write(str(pid - 1))"
    for _ in range(100):
        make()("evaluate", store, pid=pid)
        process = make(path, **options)
        if process.pid == pid:
            return process
        # Who had this number last has ended, and may not be reaped yet.
        process.kill()
    pytest.fail(f"no process got the pid {pid}")


# ---- signatures ----


def sees_death(judge: Actor) -> None:
    """Who reads the dead one's maps at this moment keeps its byte locked for that long."""
    eventually(lambda: judge("region.lock_state").owner_life == "dead")


def test_inside_one_signs_with_the_pid_that_it_has_there(file, outside, inside):
    member = attached(inside(file), 0)
    assert member.pid != member.pid_here
    member("lock")
    assert owner_of(file) == member.pid
    for judge in (outside(file), inside(file), outside(file, writable=False)):
        state = judge("region.lock_state")
        assert (state.owner_pid, state.owner_life) == (member.pid, "alive")
        assert not state.by_library
        outsider = judge.pid == judge.pid_here
        assert state.owner_host_pid == (member.pid_here if outsider else member.pid)
    member("unlock")
    assert is_free(file)


def test_one_that_is_not_attached_signs_with_a_number_whoever_else_is_there(file, outside, inside):
    """Which namespace the processes with slots are in does not matter."""
    first = attached(outside(file), 0)
    member = attached(inside(file), 0)
    for make in (outside, inside):
        late = make(file)
        late("lock")
        assert is_number(file.get("owner_pid"))
        for judge in (first, member):
            assert judge("region.lock_state").owner_life == "alive"
        late.kill()
        for judge in (first, member):
            sees_death(judge)
        member("lock", 0.5)
        assert owner_of(file) == member.pid
        member("unlock")
        assert is_free(file)


# ---- deaths ----


@pytest.mark.parametrize("whose", ["this library", "libvgpu"])
def test_one_inside_is_killed_and_one_outside_recovers_the_lock(whose, file, outside, inside):
    holder, bystander = attached(inside(file), 5), attached(inside(file), 6)
    if whose == "libvgpu":
        hold(file, holder.pid)
    else:
        holder("lock")
    recoverer = outside(file)
    if whose == "libvgpu":
        with pytest.raises(LockNotRecoverable, match="live"):
            recoverer("region.recover_lock", watch_s=0)
    holder.kill()
    assert recoverer("region.recover_lock", watch_s=0).dead_owner
    assert is_free(file)
    recoverer("lock", 0.5)
    recoverer("unlock")
    bystander("slot.charge", 0, 1)
    assert used(file) == 12


# ---- reaping ----


def test_from_outside_the_dead_inside_are_reaped_and_the_living_spared(file, outside, inside):
    members = [attached(inside(file), 10**number) for number in range(4)]
    reaper = outside(file)
    assert reaper("region.reap") == ()
    for number in (0, 2):
        members[number].kill()
    assert used(file) == 1111
    reaped = reaper("region.reap")
    assert {(slot.pid, slot.memory_bytes) for slot in reaped} == {
        (members[0].pid, 1),
        (members[2].pid, 100),
    }
    assert used(file) == 1010
    for number in (1, 3):
        members[number]("slot.charge", 0, 1)
        with pytest.raises(ValueError, match=f"process {members[number].pid} is alive"):
            reaper("region.reap", [members[number].pid])
    assert used(file) == 1012


def test_an_orphan_inside_is_repaired_from_outside(region_file, outside, inside):
    file = region_file(Layout.V1_2)
    orphan = inside(file)
    slot = file.add_process(orphan.pid, {0: 70}, host_pid=orphan.pid_here)
    file.put("proc_num", slot)
    assert used(file) == 0
    doctor = outside(file)
    with at_work(file, slot):
        eventually(lambda: doctor("region.repair_slots").repaired == (orphan.pid,))
    assert used(file) == 70


# ---- two levels deep ----


@pytest.mark.slow(keep=1)
def test_two_levels_deep_a_process_is_named_by_its_innermost_pid(file, outside, inside, deeper):
    # Different numbers on all three levels.
    member = attached(with_pid(deeper, 7000, file), 5)
    assert pids(file) == [7000]
    hold(file, 7000)
    for judge in (outside(file), inside(file)):
        state = judge("region.lock_state")
        assert (state.owner_pid, state.owner_life) == (7000, "alive")
        with pytest.raises(LockNotRecoverable):
            judge("region.recover_lock", watch_s=0)
    assert outside(file)("region.lock_state").owner_host_pid == member.pid_here
    let_go(file)
    assert outside(file)("region.reap") == ()
    member("lock")
    assert owner_of(file) == 7000
    member.kill()
    judge = outside(file)
    sees_death(judge)
    assert judge("region.recover_lock", watch_s=0).dead_owner
    assert judge("region.reap") == (ReapedSlot(7000, 5),)
    assert is_free(file)


# ---- equal numbers ----


def test_a_host_process_with_the_number_of_a_dead_one_inside_is_not_taken_for_it(
    file, outside, inside
):
    """It maps the region too, as an exporter does."""
    exporter = outside(file, writable=False)
    member = attached(with_pid(inside, exporter.pid, file), 9)
    member("lock")
    reaper = outside(file)
    state = reaper("region.lock_state")
    assert (state.owner_pid, state.owner_life) == (exporter.pid, "alive")
    assert state.owner_host_pid == member.pid_here
    member.kill()
    sees_death(reaper)
    assert reaper("region.recover_lock", watch_s=0).dead_owner
    assert reaper("region.reap") == (ReapedSlot(exporter.pid, 9),)
    exporter("region.snapshot")


def test_a_host_writer_does_not_take_the_lock_of_one_inside_with_its_own_number(
    file, outside, inside
):
    writer = outside(file)
    member = with_pid(inside, writer.pid, file)
    member("attach")
    hold(file, member.pid)
    for _ in range(3):
        with pytest.raises(LockTimeout):
            writer("lock", 0.02)
        with pytest.raises(LockNotRecoverable, match="live"):
            writer("region.recover_lock", watch_s=0)
    state = writer("region.lock_state")
    assert (state.owner_life, state.owner_host_pid) == ("alive", member.pid_here)
    assert (value_of(file), file.get("owner_pid")) == (0, member.pid)
    let_go(file)
    writer("lock", 0.5)
    assert is_number(file.get("owner_pid"))
    writer("unlock")
    assert writer("region.reap") == ()


@pytest.mark.parametrize("attached_too", [False, True])
def test_one_in_another_container_does_not_take_the_lock_of_its_namesake(
    attached_too, file, inside, elsewhere
):
    """Low numbers are common: both have a process 500."""
    holder = with_pid(inside, 500, file)
    if attached_too:
        holder("attach")
    stranger = with_pid(elsewhere, 500, file)
    hold(file, 500)
    with unchanged(file):
        with pytest.raises(LockTimeout):
            stranger("lock", 0.05)
        with pytest.raises(LockNotRecoverable):
            stranger("region.recover_lock", watch_s=0)
    assert inside(file)("region.lock_state").owner_life == "alive"
    hold(file, 0)
    with pytest.raises(LockNotRecoverable):
        stranger("region.recover_lock", watch_s=0)
    set_value(file, 1)


def test_a_stranger_with_the_number_of_a_slot_is_no_proof_that_one_sees_everybody(
    file, inside, elsewhere
):
    """A tool in another container looks on, and a second one reaps."""
    attached(with_pid(inside, 500, file), 5)
    member = attached(inside(file), 6)
    with_pid(elsewhere, 500, file, writable=False)
    reaper = elsewhere(file)
    forget_marks(file)
    assert reaper("region.reap") == ()
    with pytest.raises(ValueError, match="not known"):
        reaper("region.reap", [member.pid])
    assert used(file) == 11
    hold(file, member.pid)
    assert reaper("region.lock_state").owner_life == "unknown"
    with pytest.raises(LockNotRecoverable):
        reaper("region.recover_lock", watch_s=0)
