"""The fake driver behaves as the real one does where the library's tests rely on it."""

import time
from collections.abc import Callable

import pytest
from fake_cuda.driver import GIB, MIB, FakeGpus
from support.cuda_program import (
    CONTEXT_IS_DESTROYED,
    NOT_INITIALIZED,
    OUT,
    OUT_OF_MEMORY,
    CudaProgram,
    packed,
)
from support.wait import eventually

CONTEXT = 256 * MIB
TOTAL = 16 * GIB
FOUND, UNKNOWN, TOO_OLD = 0, 1, 2
LEGACY, PER_THREAD = 1, 2
RELEASE_THRESHOLD = 4

Bare = Callable[[], CudaProgram]


def used(program: CudaProgram) -> int:
    free, total = program.info()
    return total - free


def test_memory_of_all_processes_comes_out_of_one_device(bare: Bare) -> None:
    first, second = bare().start(), bare().start()
    address = first.allocate(10 * GIB)
    assert used(second) == 10 * GIB + 2 * CONTEXT
    assert second.call("cuMemAlloc_v2", OUT, 6 * GIB)[0] == OUT_OF_MEMORY
    first.free(address)
    assert used(second) == 2 * CONTEXT


def test_a_killed_process_gives_its_memory_back(bare: Bare) -> None:
    first, second = bare().start(), bare().start()
    first.allocate(10 * GIB)
    first.kill()
    eventually(lambda: used(second) == CONTEXT)


def test_exec_gives_the_memory_back(bare: Bare) -> None:
    first, second = bare().start(), bare().start()
    first.allocate(GIB)
    with pytest.raises(EOFError):
        first.call("exec", "true")
    eventually(lambda: used(second) == CONTEXT)


def test_a_forked_child_cannot_use_the_driver(bare: Bare) -> None:
    program = bare().start()
    status, (init, info) = program.calls(["fork"], ["cuInit", 0], ["cuMemGetInfo_v2", OUT, OUT])[0]
    assert (status, init[0], info[0]) == (0, NOT_INITIALIZED, NOT_INITIALIZED)
    assert used(program) == CONTEXT


def test_a_reset_context_takes_its_memory_along(bare: Bare) -> None:
    program, other = bare().start(), bare().start()
    program.allocate(GIB)
    program.do("cuMemAllocAsync", OUT, GIB, 0)
    program.do("cuDevicePrimaryCtxReset_v2", 0)
    assert program.call("cuMemAlloc_v2", OUT, 1)[0] == CONTEXT_IS_DESTROYED
    assert used(other) == CONTEXT


def test_a_pool_keeps_what_its_threshold_says(bare: Bare) -> None:
    program = bare().start()
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    address = program.do("cuMemAllocAsync", OUT, 100 * MIB, 0)
    assert used(program) == CONTEXT + 128 * MIB
    program.do("cuMemFreeAsync", address, 0)
    assert used(program) == CONTEXT + 128 * MIB
    program.do("cuCtxSynchronize")
    assert used(program) == CONTEXT
    program.do("cuMemPoolSetAttribute", pool, RELEASE_THRESHOLD, packed("Q", 2**64 - 1))
    program.free(program.do("cuMemAllocAsync", OUT, 100 * MIB, 0))
    program.do("cuCtxSynchronize")
    assert used(program) == CONTEXT + 128 * MIB
    program.do("cuMemPoolTrimTo", pool, 0)
    assert used(program) == CONTEXT


@pytest.mark.parametrize(
    ("name", "version", "stream", "symbol"),
    [
        ("cuMemAlloc", 2000, LEGACY, "cuMemAlloc"),
        ("cuMemAlloc", 12000, LEGACY, "cuMemAlloc_v2"),
        ("cuMemAllocAsync", 12000, LEGACY, "cuMemAllocAsync"),
        ("cuMemAllocAsync", 12000, PER_THREAD, "cuMemAllocAsync_ptsz"),
        ("cuGraphInstantiate", 12000, LEGACY, "cuGraphInstantiate_v2"),
        ("cuCtxCreate", 13000, LEGACY, "cuCtxCreate_v4"),
        ("cuCtxCreate", 12000, LEGACY, "cuCtxCreate_v3"),
        ("cuStreamBeginCapture", 10010, PER_THREAD, "cuStreamBeginCapture_v2_ptsz"),
        ("cuGetProcAddress", 11030, LEGACY, "cuGetProcAddress"),
    ],
)
def test_a_name_and_a_version_make_a_function(
    bare: Bare, name: str, version: int, stream: int, symbol: str
) -> None:
    program = bare()
    found, status = program.do("cuGetProcAddress_v2", f"text:{name}", OUT, version, stream, OUT)
    assert status == FOUND
    assert found == program.do("symbol", symbol)


@pytest.mark.parametrize(
    ("name", "version", "status"),
    [("cuNothing", 12000, UNKNOWN), ("cuMemAllocAsync", 2000, TOO_OLD)],
)
def test_a_function_that_is_not_there_is_null(
    bare: Bare, name: str, version: int, status: int
) -> None:
    answer = bare().do("cuGetProcAddress_v2", f"text:{name}", OUT, version, LEGACY, OUT)
    assert answer == [0, status]


def test_nvml_lists_the_processes_with_what_they_use(bare: Bare) -> None:
    program, other = bare().start(), bare().start(1)
    program.allocate(GIB)
    assert other.nvml_processes(0) == {program.pid: GIB + CONTEXT}
    assert other.nvml_processes(1) == {other.pid: CONTEXT}
    assert other.nvml_memory(0) == (TOTAL, TOTAL - GIB - CONTEXT, GIB + CONTEXT)
    program.kill()
    eventually(lambda: other.nvml_processes(0) == {})


def test_two_busy_processes_share_the_time_of_a_device(gpus: FakeGpus, bare: Bare) -> None:
    gpus.settings["FAKE_CUDA_SAMPLE_MS"] = "50"
    programs = [bare().start() for _ in range(2)]
    for program in programs:
        module = program.do("cuModuleLoadData", OUT, "text:any image")
        kernel = program.do("cuModuleGetFunction", OUT, module, "text:busy_10ms")
        launch = ("cuLaunchKernel", kernel, *[1] * 6, 0, 0, None, None)
        program.calls(*[launch] * 40)
    half = {program.pid: 50 for program in programs}
    eventually(lambda: programs[0].nvml_samples(0, int(time.time() * 1e6) - 100_000) == half)
