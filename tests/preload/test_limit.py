"""A program is held to the memory limit of its region, and shown it as its GPU."""

from pathlib import Path

import pytest
from fake_cuda.driver import gpu_uuid, stop
from support.command_line import call
from support.cuda_program import (
    NOT_INITIALIZED,
    OUT,
    OUT_OF_MEMORY,
    SUCCESS,
    CudaProgram,
    packed,
    room,
)
from support.lock_bytes import hold, is_free
from support.process import piped
from support.region_file import RegionFile
from support.wait import eventually

import libhamiregion as hami
from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB
TOTAL = 16 * GIB


def refused(program: CudaProgram, size: int) -> bool:
    code = program.call("cuMemAlloc_v2", OUT, size)[0]
    assert code in (SUCCESS, OUT_OF_MEMORY)
    return bool(code == OUT_OF_MEMORY)


def test_memory_is_granted_up_to_the_limit_and_not_a_byte_more(limited, inject):
    scene = limited(memory=[GIB, None], inject=inject)
    program = scene.program().start()
    assert scene.used() == CONTEXT
    address = program.allocate(GIB - CONTEXT)
    assert scene.used() == GIB
    assert refused(program, 1)
    program.free(address)
    assert refused(program, GIB - CONTEXT + 1)
    assert not refused(program, GIB - CONTEXT)


def test_a_size_beyond_any_number_is_refused_and_the_limit_holds_on(started):
    scene, program = started(4 * GIB)
    for size in (2**63, 2**64 - 1):
        assert refused(program, size)
    # Rows of 1 GiB, of which the number of bytes is 2^64 + 1 GiB.
    assert program.call("cuMemAllocPitch_v2", OUT, OUT, GIB, 2**34 + 1, 4)[0] == OUT_OF_MEMORY
    assert scene.used() == CONTEXT
    assert not refused(program, GIB)
    assert refused(program, 3 * GIB)


def test_memory_that_nvml_does_not_know_is_not_taken_for_use(limited, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("quirk unknown-memory\n")
    scene = limited(memory=[4 * GIB])
    program = scene.program(FAKE_NVML_STATE=str(rules)).start()
    assert not refused(program, GIB)
    measured = scene.program().start()
    # By the second measurement of one program, a second later, the other has had one as well.
    for grown in (100 * MIB, 200 * MIB):
        measured.do("fake_cuda_grow", 0, 100 * MIB)
        eventually(lambda grown=grown: scene.used() == GIB + CONTEXT + grown)
    assert not refused(program, GIB)


def test_two_programs_share_one_limit(limited):
    scene = limited(memory=[2 * GIB])
    first, second = scene.program().start(), scene.program().start()
    first.allocate(GIB)
    assert refused(second, GIB)
    second.allocate(GIB - 2 * CONTEXT)
    assert refused(first, 1)
    assert scene.used() == 2 * GIB


def test_each_layout_holds_the_limit(limited, layout):
    scene = limited(memory=[GIB], layout=layout)
    program = scene.program().start()
    assert refused(program, GIB - CONTEXT + 1)
    program.free(program.allocate(GIB - CONTEXT))
    assert scene.used() == CONTEXT


def test_the_limit_is_the_gpu_that_the_program_sees(limited, inject):
    scene = limited(memory=[4 * GIB, None], inject=inject)
    program = scene.program().start()
    assert program.do("cuDeviceTotalMem_v2", OUT, 0) == 4 * GIB
    assert program.info() == (4 * GIB - CONTEXT, 4 * GIB)
    program.allocate(GIB)
    assert program.info() == (3 * GIB - CONTEXT, 4 * GIB)
    assert program.nvml_memory(0) == (4 * GIB, 3 * GIB - CONTEXT, GIB + CONTEXT)
    assert program.nvml_memory(1) == (TOTAL, TOTAL, 0)


def test_the_free_memory_of_a_budget_is_never_more_than_is_free(started, bare):
    _, program = started(4 * GIB)
    bare().start().allocate(13 * GIB)
    free, total = program.info()
    assert (free, total) == (3 * GIB - 2 * CONTEXT, 4 * GIB)
    assert program.nvml_memory(0)[1] == free
    assert refused(program, free + 1)
    assert not refused(program, free)


@pytest.mark.parametrize("arguments", [(None, OUT), (OUT, None), (None, None)])
def test_memory_info_can_be_asked_for_in_part(limited, arguments):
    program = limited(memory=[GIB]).program().start()
    code, *outs = program.call("cuMemGetInfo_v2", *arguments)
    assert code == SUCCESS
    assert all(out in (GIB, GIB - CONTEXT) for out in outs)


def test_nvml_shows_what_the_region_uses_and_not_what_others_do(limited, bare):
    bare().start().allocate(2 * GIB)
    program = limited(memory=[4 * GIB]).program().start()
    program.allocate(GIB)
    assert program.nvml_memory(0) == (4 * GIB, 3 * GIB - CONTEXT, GIB + CONTEXT)


def test_a_limit_below_what_is_used_leaves_nothing_free(started):
    scene, program = started(4 * GIB)
    program.allocate(3 * GIB)
    scene.region.set_memory_limit(GIB, device=0, force=True)
    assert program.info() == (0, GIB)
    total, free, used = program.nvml_memory(0)
    assert (total, free) == (GIB, 0)
    assert used <= 3 * GIB + CONTEXT
    assert refused(program, 1)


def test_a_limit_above_the_gpus_memory_shows_the_gpu_as_it_is(limited):
    program = limited(memory=[64 * GIB]).program().start()
    program.allocate(GIB)
    assert program.info() == (TOTAL - CONTEXT - GIB, TOTAL)
    assert program.do("cuDeviceTotalMem_v2", OUT, 0) == TOTAL
    assert program.nvml_memory(0) == (TOTAL, TOTAL - CONTEXT - GIB, CONTEXT + GIB)


def test_an_edited_limit_holds_at_the_next_allocation(started):
    scene, program = started()
    assert refused(program, GIB)
    scene.region.set_memory_limit(3 * GIB, device=0)
    address = program.allocate(2 * GIB)
    program.free(address)
    scene.region.set_memory_limit(GIB, device=0)
    assert refused(program, 2 * GIB)
    scene.region.set_memory_limit(None, device=0)
    assert not refused(program, 8 * GIB)
    assert program.info() == (TOTAL - 8 * GIB - CONTEXT, TOTAL)


def test_a_killed_neighbour_is_reaped_before_an_allocation_is_refused(limited):
    scene = limited(memory=[2 * GIB])
    first, second = scene.program().start(), scene.program().start()
    first.allocate(GIB)
    first.kill()
    assert not refused(second, GIB)
    assert scene.used() == GIB + CONTEXT


def test_a_killed_neighbour_is_reaped_by_those_who_stay(limited):
    scene = limited(memory=[2 * GIB])
    first, second = scene.program().start(), scene.program().start()
    first.allocate(GIB)
    assert second.info()[0] == GIB - 2 * CONTEXT
    first.kill()
    eventually(lambda: scene.used() == CONTEXT)
    assert second.info()[0] == 2 * GIB - CONTEXT


def test_a_neighbour_that_was_killed_with_the_lock_is_reaped_by_those_who_stay(limited):
    scene = limited(memory=[2 * GIB])
    first, second = scene.program().start(), scene.program().start()
    first.allocate(GIB)
    assert second.info()[0] == GIB - 2 * CONTEXT
    file = RegionFile(scene.path, hami.Layout.V1_2)
    stop(first.pid, scene.gpus.state)
    hold(file, first.pid)
    first.kill()
    eventually(lambda: scene.used() == CONTEXT)
    assert is_free(file)


def test_a_program_that_ends_leaves_no_slot(started):
    scene, program = started(2 * GIB)
    program.allocate(GIB)
    assert program.end() == ""
    assert scene.region.snapshot().processes == ()


def test_a_device_that_the_region_does_not_name_is_not_limited(limited):
    scene = limited(memory=[GIB], uuids=[gpu_uuid(1)])
    program = scene.program().start(0)
    program.allocate(2 * GIB)
    assert scene.used() == 0
    program.start(1)
    assert refused(program, GIB)
    assert scene.used() == CONTEXT


@pytest.mark.parametrize("visible", ["1,0", f"{gpu_uuid(1)},{gpu_uuid(0)}"])
def test_devices_are_told_by_their_uuids_not_by_their_order(limited, visible):
    scene = limited(memory=[GIB, 4 * GIB])
    program = scene.program(CUDA_VISIBLE_DEVICES=visible).start(0)
    program.allocate(2 * GIB)
    assert (scene.used(0), scene.used(1)) == (0, 2 * GIB + CONTEXT)
    assert program.info()[1] == 4 * GIB
    program.start(1)
    assert refused(program, GIB)


def test_a_device_that_was_asked_for_too_soon_is_limited_all_the_same(limited):
    """Before cuInit() the driver does not say which one it is."""
    scene = limited(memory=[GIB])
    program = scene.program()
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == NOT_INITIALIZED
    program.start()
    assert scene.used() == CONTEXT
    assert refused(program, GIB)


def test_the_uuid_and_the_name_of_a_device_stay_as_they_are(limited, bare):
    program, other = limited(memory=[GIB]).program().start(), bare().start()
    for question in (("cuDeviceGetUuid", room(16), 0), ("cuDeviceGetName", room(64), 64, 0)):
        assert program.do(*question) == other.do(*question)


def test_a_context_that_does_not_fit_is_refused(limited):
    scene = limited(memory=[CONTEXT + 100 * MIB])
    first = scene.program().start()
    first.allocate(MIB)
    second = scene.program()
    second.do("cuInit", 0)
    code = second.call("cuDevicePrimaryCtxRetain", OUT, 0)[0]
    assert code in (SUCCESS, OUT_OF_MEMORY)
    if code == SUCCESS:
        # The driver's own figure is known afterwards only: then nothing more is granted.
        second.do("cuCtxSetCurrent", second.do("cuDevicePrimaryCtxRetain", OUT, 0))
        assert refused(second, 1)
        assert refused(first, 1)


def test_a_gpu_that_the_region_does_not_name_is_shown_as_it_is(limited, inject):
    """By CUDA and by NVML alike; its index in the region is another GPU's."""
    scene = limited(memory=[GIB], uuids=[gpu_uuid(1)], inject=inject)
    program = scene.program()
    program.do("cuInit", 0)
    assert [program.nvml_memory(index)[0] for index in (0, 1)] == [TOTAL, GIB]
    assert [program.do("cuDeviceTotalMem_v2", OUT, index) for index in (0, 1)] == [TOTAL, GIB]


def test_a_region_without_uuids_counts_gpus_by_their_index(limited, inject):
    scene = limited(memory=[GIB, 2 * GIB], uuids=[], inject=inject)
    program = scene.program().start(1)
    program.allocate(MIB)
    assert (scene.used(0), scene.used(1)) == (0, CONTEXT + MIB)
    assert [program.nvml_memory(index)[0] for index in (0, 1)] == [GIB, 2 * GIB]


def test_contexts_that_do_not_fit_are_refused_however_their_processes_start(limited, c_programs):
    """The thread that looks around measures at the same moment."""
    scene = limited(memory=[CONTEXT + 100 * MIB])
    scene.program().start()
    done = scene.run(str(c_programs / "crowding"), "40")
    assert (done.returncode, done.stderr) == (0, "")
    assert scene.used() == CONTEXT


def test_what_the_driver_takes_beyond_the_limit_counts(started):
    """It cannot be refused; the program is not told that it is free."""
    scene, program = started()
    program.allocate(500 * MIB)
    program.do("fake_cuda_grow", 0, 400 * MIB)
    eventually(lambda: scene.used() == CONTEXT + 900 * MIB)
    assert program.info() == (0, GIB)
    assert refused(program, 1)


@pytest.mark.slow
def test_threads_that_ask_for_what_a_killed_program_held_all_get_it(limited, c_programs):
    """Whichever of them has reaped it."""
    threads, size = 8, 64 * MIB
    scene = limited(memory=[2 * CONTEXT + threads * size])
    survivor = piped(
        [str(c_programs / "together"), str(threads), str(size)], env=scene.environment()
    )
    try:
        assert survivor.stdout.readline() == "started\n"
        for _ in range(12):
            victim = scene.program().start()
            victim.allocate(threads * size)
            victim.kill()
            survivor.stdin.write("\n")
            survivor.stdin.flush()
            assert survivor.stdout.readline() == f"{threads}\n"
    finally:
        survivor.kill()
        survivor.communicate()


def test_a_refusal_looks_at_no_process_for_a_slot_that_is_empty(limited):
    """A process that ends leaves its slot, where a neighbour's lies behind it."""

    def reads(program: CudaProgram) -> int:
        lines = Path(f"/proc/{program.pid}/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["syscr"])

    scene = limited(memory=[GIB])
    first = scene.program().start()
    second = scene.program().start()
    first.end()
    snapshot = scene.region.snapshot()
    assert (snapshot.slot_count, snapshot.processes[0].slot) == (2, 1)
    assert refused(second, GIB)
    before = reads(second)
    calls = 200
    # In one line, which is one read.
    answers = second.calls(*[("cuMemAlloc_v2", OUT, GIB)] * calls)
    assert {code for code, *_ in answers} == {OUT_OF_MEMORY}
    # A look reads at least a file of each process; the thread that looks around does so too.
    processes = len([each for each in Path("/proc").iterdir() if each.name.isdecimal()])
    assert reads(second) - before < calls / 4 * processes


def test_the_context_counts_where_the_driver_shows_the_pids_of_the_host(limited, gpus, bare):
    """Among programs of other containers, which no slot claims either."""
    offset = 100_000_000  # no process has such a pid
    gpus.settings["FAKE_CUDA_PID_OFFSET"] = str(offset)
    others = [bare().start() for _ in range(2)]
    scene = limited(memory=[GIB])
    first = scene.program().start()
    assert scene.used() == CONTEXT
    second = scene.program().start()
    assert scene.used() == 2 * CONTEXT
    host_pids = {each.pid: each.host_pid for each in scene.region.snapshot().processes}
    assert host_pids == {each.pid: each.pid + offset for each in (first, second)}
    assert len(others) == 2


def test_a_pool_that_grows_beyond_the_limit_is_trimmed_again(started):
    """By a piece, 32 MiB here, of which little is asked for: then the allocation is undone."""
    scene, program = started()

    def held() -> int:
        return scene.used() - CONTEXT

    pointers = [program.do("cuMemAllocAsync", OUT, 32 * MIB, None) for _ in range(5)]
    assert held() == 5 * 32 * MIB
    filled = program.allocate(GIB - scene.used() - 20 * MIB)
    code, _ = program.call("cuMemAllocAsync", OUT, 8 * MIB, None)
    assert code == OUT_OF_MEMORY
    assert scene.used() == GIB - 20 * MIB
    # It is no more than what one piece takes, and fits with it.
    program.free(filled)
    pointers.append(program.do("cuMemAllocAsync", OUT, 8 * MIB, None))
    assert held() == 6 * 32 * MIB
    for pointer in pointers:
        program.do("cuMemFreeAsync", pointer, None)
    program.do("cuCtxSynchronize")
    eventually(lambda: held() == 0)


def test_nothing_that_fits_is_refused_to_a_pool(started):
    scene, program = started(CONTEXT + 64 * MIB)
    first = program.do("cuMemAllocAsync", OUT, 64 * MIB, None)
    assert program.call("cuMemAllocAsync", OUT, 1, None)[0] == OUT_OF_MEMORY
    program.do("cuMemFreeAsync", first, None)
    for _ in range(2):
        program.do("cuMemAllocAsync", OUT, 32 * MIB, None)
    assert scene.used() == CONTEXT + 64 * MIB


def test_each_refusal_by_the_limit_counts_once(limited, inject):
    """Of the driver's own refusals none does, nor does what a second try is granted."""
    scene = limited(memory=[GIB], inject=inject)
    size = scene.path.stat().st_size
    assert scene.region.snapshot().refusals is None
    program = scene.program().start()
    assert scene.region.snapshot().refusals == 0
    # Else the system would forget the count with its copy of the last page.
    assert scene.path.stat().st_size > size
    device_memory = packed("iiiiQQ", 1, 0, 1, 0, 0, 0)
    ways: list[tuple[object, ...]] = [
        ("cuMemAlloc_v2", OUT, GIB),
        ("cuMemAllocAsync", OUT, GIB, None),
        ("cuMemAllocManaged", OUT, 2**62, 1),
        ("cuMemCreate", OUT, GIB, device_memory, 0),
    ]
    for number, way in enumerate(ways, 1):
        assert program.call(*way)[0] == OUT_OF_MEMORY
        assert scene.region.snapshot().refusals == number
    # A pool that is trimmed first makes room.
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    program.do("cuMemPoolSetAttribute", pool, 4, packed("Q", 2**64 - 1))
    program.do("cuMemFreeAsync", program.do("cuMemAllocAsync", OUT, 500 * MIB, None), None)
    program.do("cuStreamSynchronize", None)
    program.allocate(GIB - CONTEXT)
    assert scene.region.snapshot().refusals == len(ways)
    other = scene.program()
    other.do("cuInit", 0)
    assert other.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == OUT_OF_MEMORY
    assert scene.region.snapshot().refusals == len(ways) + 1
    shown = call("show", str(scene.path)).stdout
    assert ["refused", str(len(ways) + 1), "allocations"] in map(str.split, shown.splitlines())
    # Without a limit the driver alone refuses.
    scene.region.set_memory_limit(None, device=0)
    assert program.call("cuMemAlloc_v2", OUT, 2**50)[0] == OUT_OF_MEMORY
    assert scene.region.snapshot().refusals == len(ways) + 1
