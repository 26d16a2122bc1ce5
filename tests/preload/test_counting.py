"""Every way to allocate is counted, and everything that frees is too."""

import random
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from support.cuda_program import OUT, OUT_OF_MEMORY, SUCCESS, CudaProgram, packed, room
from support.limited import Limited
from support.wait import eventually

from libhamiregion.units import GIB, MIB

CONTEXT = 256 * MIB
SIZE = 32 * MIB
DEVICE, FLOAT = 1, 0x20

Way = Callable[[CudaProgram], int]


def context_bytes(scene: Limited) -> int:
    return scene.region.snapshot().processes[0].devices[0].memory_context_bytes


def array(levels: int = 0) -> Way:
    """2,048 x 4,096 floats: 32 MiB, with smaller levels beside it 128 MiB / 3."""
    descriptor = packed("QQQiII", 2048, 4096, 0, FLOAT, 1, 0)

    def make(program: CudaProgram) -> int:
        if levels:
            return int(program.do("cuMipmappedArrayCreate", OUT, descriptor, levels))
        return int(program.do("cuArray3DCreate_v2", OUT, descriptor))

    return make


def physical(program: CudaProgram) -> int:
    properties = packed("iiiiQQ", 1, 0, DEVICE, 0, 0, 0)
    return int(program.do("cuMemCreate", OUT, SIZE, properties, 0))


def from_pool(program: CudaProgram) -> int:
    pool = program.do("cuMemPoolCreate", OUT, packed("iiiiQQ56x", 1, 0, DEVICE, 0, 0, 0))
    return int(program.do("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0))


def keep_all(program: CudaProgram) -> None:
    """Let the default pool of the first device keep what is freed."""
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    threshold = 4
    program.do("cuMemPoolSetAttribute", pool, threshold, packed("Q", 2**64 - 1))


def calling(name: str, *arguments: object) -> Way:
    return lambda program: int(program.do(name, *arguments))


WAYS: dict[str, tuple[Way, tuple[str, ...], int]] = {
    "linear": (calling("cuMemAlloc_v2", OUT, SIZE), ("cuMemFree_v2",), SIZE),
    "pitch": (
        lambda program: int(program.do("cuMemAllocPitch_v2", OUT, OUT, 1000, 32768, 4)[0]),
        ("cuMemFree_v2",),
        SIZE,
    ),
    "managed": (calling("cuMemAllocManaged", OUT, SIZE, 1), ("cuMemFree_v2",), SIZE),
    "linear, freed async": (calling("cuMemAlloc_v2", OUT, SIZE), ("cuMemFreeAsync", 0), SIZE),
    "physical": (physical, ("cuMemRelease",), SIZE),
    "array": (array(), ("cuArrayDestroy",), SIZE),
    "2D array": (
        calling("cuArrayCreate_v2", OUT, packed("QQiI", 2048, 4096, FLOAT, 1)),
        ("cuArrayDestroy",),
        SIZE,
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_allocation_counts_until_it_is_freed(started, way):
    make, (free, *more), size = WAYS[way]
    scene, program = started()
    # Managed memory need not be in the driver's figure, by which a context is measured each second:
    # until it is freed, the context may count for less.
    counted = CONTEXT if way == "managed" else CONTEXT + size
    for _ in range(2):
        made = make(program)
        assert counted <= scene.used() <= CONTEXT + size
        program.do(free, made, *more)
        eventually(lambda: scene.used() == CONTEXT)


def test_thousands_of_allocations_count_until_each_is_freed(started):
    scene, program = started()
    made = [out for _, out in program.calls(*[("cuMemAlloc_v2", OUT, 512)] * 6000)]
    assert scene.used() == CONTEXT + 6000 * 512
    random.Random(6000).shuffle(made)
    for gone in (made[:3000], made[3000:]):
        program.calls(*[("cuMemFree_v2", address) for address in gone])
    assert scene.used() == CONTEXT
    assert program.call("cuMemFree_v2", made[0])[0] != SUCCESS


@pytest.mark.parametrize("way", WAYS)
def test_an_allocation_that_would_pass_the_limit_is_refused_in_every_way(started, way):
    make, _, size = WAYS[way]
    scene, program = started(CONTEXT + size)
    program.allocate(1)
    with pytest.raises(AssertionError, match=f"gives {OUT_OF_MEMORY}"):
        make(program)
    assert scene.used() == CONTEXT + 1


def test_all_levels_of_an_array_count(started):
    scene, program = started()
    made = array(levels=3)(program)
    assert scene.used() == CONTEXT + SIZE + SIZE // 4 + SIZE // 16
    program.do("cuMipmappedArrayDestroy", made)
    assert scene.used() == CONTEXT


def test_physical_memory_counts_until_no_mapping_needs_it(started):
    scene, program = started()
    handle = physical(program)
    address = program.do("cuMemAddressReserve", OUT, SIZE, 0, 0, 0)
    assert scene.used() == CONTEXT + SIZE
    program.do("cuMemMap", address, SIZE, 0, handle, 0)
    program.do("cuMemRelease", handle)
    assert scene.used() == CONTEXT + SIZE
    program.do("cuMemUnmap", address, SIZE)
    assert scene.used() == CONTEXT


def test_physical_memory_that_a_second_handle_keeps_counts_as_context_memory(started):
    scene, program = started()
    handle = physical(program)
    address = program.do("cuMemAddressReserve", OUT, SIZE, 0, 0, 0)
    program.do("cuMemMap", address, SIZE, 0, handle, 0)
    again = program.do("cuMemRetainAllocationHandle", OUT, address)
    program.do("cuMemUnmap", address, SIZE)
    program.do("cuMemRelease", handle)
    eventually(lambda: context_bytes(scene) == CONTEXT + SIZE)
    program.do("cuMemRelease", again)
    eventually(lambda: context_bytes(scene) == CONTEXT)
    assert scene.used() == CONTEXT


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(
    ("form", "bytes_"),
    [(0x01, 1), (0x02, 2), (0x03, 4), (0x08, 1), (0x09, 2), (0x0A, 4), (0x10, 2), (0x20, 4)],
)
def test_arrays_count_their_channels_in_each_format(started, form, bytes_, channels):
    scene, program = started()
    program.do("cuArray3DCreate_v2", OUT, packed("QQQiII", 1024, 512, 0, form, channels, 0))
    assert scene.used() == CONTEXT + 1024 * 512 * bytes_ * channels


@pytest.mark.parametrize("way", [way for way in WAYS if way != "managed"])
def test_what_the_driver_refuses_stays_charged_nowhere(limited, bare, way):
    """Under a limit above the GPU's memory, which somebody else has filled."""
    make, _, size = WAYS[way]
    scene = limited(memory=[64 * GIB, 64 * GIB])
    program = scene.program().start()
    bare().start().allocate(16 * GIB - 2 * CONTEXT - size // 2)
    with pytest.raises(AssertionError, match=f"gives {OUT_OF_MEMORY}"):
        make(program)
    assert (scene.used(0), scene.used(1)) == (CONTEXT, 0)
    assert program.call("cuMemAllocAsync", OUT, size, 0)[0] == OUT_OF_MEMORY
    assert (scene.used(0), scene.used(1)) == (CONTEXT, 0)
    (process,) = scene.region.snapshot().processes
    assert process.devices[0].memory_context_bytes == CONTEXT
    assert process.devices[0].memory_data_bytes == 0


def test_physical_memory_of_the_host_does_not_count(started):
    scene, program = started()
    host = 2
    program.do("cuMemCreate", OUT, SIZE, packed("iiiiQQ", 1, 0, host, 0, 0, 0), 0)
    program.do("cuMemHostAlloc", OUT, SIZE, 0)
    assert scene.used() == CONTEXT


@pytest.mark.parametrize("free", [("cuMemFree_v2",), ("cuMemFreeAsync", 0)])
@pytest.mark.parametrize(
    "allocate", [calling("cuMemAllocAsync", OUT, SIZE, 0), from_pool], ids=["default", "own"]
)
def test_what_a_pool_gives_out_counts(started, allocate, free):
    scene, program = started()
    made = allocate(program)
    assert scene.used() == CONTEXT + SIZE
    program.do(free[0], made, *free[1:])
    program.do("cuCtxSynchronize")
    eventually(lambda: scene.used() == CONTEXT)


def test_what_another_devices_pool_gives_out_counts_on_that_device(limited):
    """A stream of one device may use the pool of another."""
    scene = limited(memory=[GIB, SIZE])
    program = scene.program().start()
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 1)
    made = program.do("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0)
    assert (scene.used(0), scene.used(1)) == (CONTEXT, SIZE)
    assert program.call("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0)[0] == OUT_OF_MEMORY
    program.do("cuMemFreeAsync", made, 0)
    program.do("cuMemPoolTrimTo", pool, 0)
    assert scene.used(1) == 0


def test_a_context_that_was_destroyed_makes_room_for_another(started):
    """More than can be known at one time are made one after the other, and each is known."""
    scene, program = started()
    for _ in range(300):
        program.do("cuCtxDestroy_v2", program.do("cuCtxCreate_v2", OUT, 0, 0))
    context = program.do("cuCtxCreate_v2", OUT, 0, 0)
    program.allocate(SIZE)
    assert scene.used() == 2 * CONTEXT + SIZE
    program.do("cuCtxDestroy_v2", context)
    assert scene.used() == CONTEXT


def test_a_pool_that_is_destroyed_before_its_last_allocation_is_freed_makes_room_too(started):
    scene, program = started(4 * GIB)
    properties = packed("iiiiQQ56x", 1, 0, DEVICE, 0, 0, 0)
    for _ in range(300):
        pool = program.do("cuMemPoolCreate", OUT, properties)
        made = program.do("cuMemAllocFromPoolAsync", OUT, SIZE, pool, 0)
        program.do("cuMemPoolDestroy", pool)
        assert scene.used() == CONTEXT + SIZE
        program.do("cuMemFreeAsync", made, 0)
        assert scene.used() == CONTEXT
    from_pool(program)
    assert scene.used() == CONTEXT + SIZE


def test_a_pool_goes_on_counting_where_the_driver_does_not_destroy_it(started):
    scene, program = started()
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    keep_all(program)
    made = program.do("cuMemAllocAsync", OUT, SIZE, 0)
    assert program.call("cuMemPoolDestroy", pool)[0] != SUCCESS
    program.do("cuMemFreeAsync", made, 0)
    assert scene.used() == CONTEXT + SIZE
    program.do("cuMemPoolTrimTo", pool, 0)
    assert scene.used() == CONTEXT


def test_memory_that_a_pool_only_keeps_stands_in_nobodys_way(started):
    """What was once in use is not what is in use."""
    _, program = started()
    keep_all(program)
    for _ in range(8):
        made = program.do("cuMemAllocAsync", OUT, 512 * MIB, 0)
        program.do("cuMemFreeAsync", made, 0)
        program.do("cuCtxSynchronize")
    program.free(program.allocate(600 * MIB))
    made = program.do("cuMemAllocAsync", OUT, 512 * MIB, 0)
    assert program.call("cuMemAlloc_v2", OUT, 600 * MIB)[0] == OUT_OF_MEMORY
    program.do("cuMemFreeAsync", made, 0)


def test_what_a_pool_took_for_a_refused_allocation_is_given_back(started):
    """Pools take memory in pieces of 32 MiB."""
    scene, program = started(CONTEXT + 40 * MIB)
    keep_all(program)
    program.allocate(16 * MIB)
    assert program.call("cuMemAllocAsync", OUT, MIB, 0)[0] == OUT_OF_MEMORY
    assert program.nvml_processes(0) == {program.pid: CONTEXT + 16 * MIB}
    assert scene.used() == CONTEXT + 16 * MIB


def test_what_a_pool_holds_beyond_the_limit_counts(started):
    """Other programs and the driver itself do not wait for a charge."""
    scene, program = started()
    keep_all(program)
    made = program.do("cuMemAllocAsync", OUT, MIB, 0)
    scene.region.set_memory_limit(CONTEXT, device=0, force=True)
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    program.do("fake_cuda_grow_pool", pool, 64 * MIB)
    eventually(lambda: scene.used() == CONTEXT + 64 * MIB)
    program.do("cuMemFreeAsync", made, 0)


def test_a_context_takes_what_a_pool_only_keeps(started):
    scene, program = started()
    keep_all(program)
    program.do("cuMemFreeAsync", program.do("cuMemAllocAsync", OUT, 640 * MIB, 0), 0)
    assert scene.used() == CONTEXT + 640 * MIB
    program.do("cuCtxCreate_v2", OUT, 0, 0)
    assert scene.used() == 2 * CONTEXT


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_a_reset_frees_all_that_its_context_had(started, reset):
    scene, program = started()
    for make, _, _ in WAYS.values():
        if make is not physical:
            make(program)
    kept = physical(program)
    program.do(reset, 0)
    assert scene.used() == SIZE
    program.do("cuMemRelease", kept)
    program.start()
    assert scene.used() == CONTEXT


def test_a_reset_frees_what_the_devices_own_pool_has_given_out(started):
    scene, program = started()
    keep_all(program)
    program.do("cuMemAllocAsync", OUT, SIZE, 0)
    program.do("cuDevicePrimaryCtxReset_v2", 0)
    assert scene.used() == 0


@pytest.mark.parametrize("release", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_the_last_release_of_a_context_frees_what_it_had(started, release):
    scene, program = started()
    program.do("cuDevicePrimaryCtxRetain", OUT, 0)
    program.allocate(SIZE)
    program.do(release, 0)
    assert scene.used() == CONTEXT + SIZE
    program.do(release, 0)
    assert scene.used() == 0


@pytest.mark.parametrize(
    ("create", "destroy"),
    [
        (("cuCtxCreate_v2", OUT, 0, 0), "cuCtxDestroy_v2"),
        (("cuCtxCreate_v3", OUT, None, 0, 0, 0), "cuCtxDetach"),
        (("cuCtxCreate_v4", OUT, None, 0, 0), "cuCtxDestroy_v2"),
    ],
)
def test_a_context_counts_with_all_that_is_in_it(started, create, destroy):
    scene, program = started(2 * GIB)
    context = program.do(*create)
    assert scene.used() == 2 * CONTEXT
    program.allocate(SIZE)
    program.do(destroy, context)
    assert scene.used() == CONTEXT


def test_a_context_that_is_destroyed_takes_all_that_was_allocated_in_it(started):
    """But for physical memory, which no context has."""
    scene, program = started(2 * GIB)
    context = program.do("cuCtxCreate_v2", OUT, 0, 0)
    for way, (make, _, _) in WAYS.items():
        if way != "managed":
            make(program)
    array(levels=3)(program)
    program.do("cuCtxDestroy_v2", context)
    assert scene.used() == CONTEXT + SIZE


def test_a_context_that_the_driver_does_not_destroy_goes_on_counting(started):
    """What is allocated in it afterwards is its own still, and goes with it."""
    scene, program = started(2 * GIB)
    primary = program.do("cuDevicePrimaryCtxRetain", OUT, 0)
    program.allocate(SIZE)
    assert program.call("cuCtxDestroy_v2", primary)[0] != SUCCESS
    program.allocate(SIZE)
    assert scene.used() == CONTEXT + 2 * SIZE
    program.do("cuDevicePrimaryCtxReset_v2", 0)
    assert scene.used() == 0


def test_the_last_detach_of_a_context_frees_what_it_had(limited):
    """The way in which PyCUDA ends its contexts."""
    scene = limited(memory=[2 * GIB])
    program = scene.program()
    program.do("cuInit", 0)
    context = program.do("cuCtxCreate_v2", OUT, 0, 0)
    program.do("cuCtxAttach", OUT, 0)
    program.allocate(SIZE)
    program.do("cuCtxDetach", context)
    assert scene.used() == CONTEXT + SIZE
    program.do("cuCtxDetach", context)
    assert scene.used() == 0


def test_each_device_has_books_of_its_own(limited):
    scene = limited(memory=[GIB, GIB])
    program = scene.program().start(0)
    first = program.allocate(700 * MIB)
    program.start(1)
    program.allocate(700 * MIB)
    program.free(first)
    assert (scene.used(0), scene.used(1)) == (CONTEXT, CONTEXT + 700 * MIB)


def test_a_pointer_that_is_not_ours_goes_to_the_driver(limited):
    program = limited(memory=[GIB]).program().start()
    assert program.call("cuMemFree_v2", 4096)[0] == 1
    assert program.call("cuMemFree_v2", 0)[0] == SUCCESS


def test_memory_of_a_graph_counts_as_long_as_the_driver_keeps_it(started):
    scene, program = started()
    graph = program.do("cuGraphCreate", OUT, 0)
    pool_properties = packed("iiiiQQ56x", 1, 0, DEVICE, 0, 0, 0)
    wanted = pool_properties + packed("QQQQ", 0, 0, SIZE, 0).removeprefix("bytes:")
    node = program.do("cuGraphAddMemAllocNode", OUT, graph, None, 0, wanted)
    allocation = bytes.fromhex(program.do("cuGraphMemAllocNodeGetParams", node, room(120)))
    (address,) = struct.unpack_from("Q", allocation, 112)
    executable = program.do("cuGraphInstantiateWithFlags", OUT, graph, 0)
    program.do("cuGraphLaunch", executable, 0)
    eventually(lambda: scene.used() == CONTEXT + SIZE)
    program.do("cuMemFree_v2", address)
    program.do("cuDeviceGraphMemTrim", 0)
    eventually(lambda: scene.used() == CONTEXT)


def test_memory_on_a_part_of_a_device_counts_on_that_device(limited):
    """Location type 6 of CUDA 13.5: the low byte is the device."""
    scene = limited(memory=[GIB, GIB])
    program = scene.program().start()
    program.do("cuMemCreate", OUT, SIZE, packed("iiiiQQ", 1, 0, 6, 0x300 + 1, 0, 0), 0)
    assert (scene.used(0), scene.used(1)) == (CONTEXT, SIZE)


ALLOCATE_STEADILY = """
import ctypes, sys, threading
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30))
cuda.cuMemFree_v2(pointer)
cuda.fake_cuda_grow(0, ctypes.c_uint64(500 << 20))
print(flush=True)
while True:
    cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20))
    cuda.cuMemFree_v2(pointer)
"""


def test_what_the_driver_takes_counts_while_a_program_allocates_steadily(limited):
    """NVML's figure and the charges are never of one moment."""
    scene = limited(memory=[4 * GIB], nvml="quirk slow-lists\n")
    command = [sys.executable, "-I", "-S", "-c", ALLOCATE_STEADILY]
    with subprocess.Popen(command, env=scene.environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"\n"
        eventually(lambda: context_bytes(scene) >= CONTEXT + 499 * MIB)
        assert context_bytes(scene) <= CONTEXT + 500 * MIB
        process.kill()


def test_managed_memory_hides_no_context(started):
    """It need not be on the device, so that NVML's figure has none of it."""
    scene, program = started(4 * GIB)
    attach_global = 1
    managed = program.do("cuMemAllocManaged", OUT, 2 * GIB, attach_global)
    other = scene.program().start()
    eventually(lambda: scene.used() == 2 * CONTEXT + 2 * GIB)
    # After its next measurement, which comes within a second.
    other.do("fake_cuda_grow", 0, 100 * MIB)
    eventually(lambda: scene.used() == 2 * CONTEXT + 100 * MIB + 2 * GIB)
    program.do("cuMemFree_v2", managed)
    eventually(lambda: scene.used() == 2 * CONTEXT + 100 * MIB)


def test_a_context_that_is_made_in_an_unknown_way_counts(limited):
    """The first allocation attaches, and starts the thread that measures contexts."""
    scene = limited(memory=[4 * GIB])
    program = scene.program()
    program.do("cuInit", 0)
    program.do("fake_cuda_create_context", OUT, 0, 0)
    program.allocate(SIZE)
    eventually(lambda: scene.used() == CONTEXT + SIZE)
