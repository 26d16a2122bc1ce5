"""What others do to a region, and what a program does for itself, leave the program its work."""

import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.cuda_program import OUT, SUCCESS, CudaProgram, packed
from support.limited import Limited
from support.region_file import locate, truncate
from support.wait import PATIENCE_S, eventually

import libhamiregion as hami
from libhamiregion.units import GIB, MIB

Make = Callable[..., Limited]

NOT_INITIALIZED = 3


class Allocating:
    """A program that allocates and frees without a pause; `count` says how often."""

    def __init__(self, scene: Limited) -> None:
        self.program = scene.program().start()
        self.count = 0
        self._thread = threading.Thread(target=self._allocate, daemon=True)
        self._is_over = False
        self._thread.start()

    def _allocate(self) -> None:
        while not self._is_over:
            code, address = self.program.call("cuMemAlloc_v2", OUT, MIB)
            if code == SUCCESS:
                self.program.free(address)
            self.count += 1

    def is_held_up(self) -> bool:
        before = self.count
        time.sleep(0.5)
        return self.count == before

    def end(self) -> None:
        self._is_over = True
        self._thread.join()


@pytest.fixture
def suspended(limited) -> Iterator[tuple[Limited, Allocating]]:
    """A region, and a program in it that is suspended."""
    scene = limited(memory=[GIB])
    allocating = Allocating(scene)
    scene.region.suspend(allocating.program.pid)
    eventually(allocating.is_held_up)
    yield scene, allocating
    allocating.end()


def goes_on(allocating: Allocating) -> None:
    before = allocating.count
    try:
        eventually(lambda: allocating.count > before)
    except AssertionError:
        allocating.program.process.kill()
        raise


def test_a_program_that_is_resumed_goes_on_within_a_quarter_of_a_second(suspended):
    """Without a load from elsewhere: once is enough."""
    scene, allocating = suspended
    pid = allocating.program.pid

    def goes_on_soon() -> bool:
        scene.region.resume(pid)
        goes_on(allocating)
        scene.region.suspend(pid)
        before = -1
        while allocating.count > before:
            before = allocating.count
            time.sleep(0.05)
        # The library has just seen its status.
        scene.region.resume(pid)
        began_s = time.monotonic()
        goes_on(allocating)
        return time.monotonic() - began_s < 0.25

    eventually(goes_on_soon)


def test_a_suspended_program_goes_on_when_its_slot_is_taken_away(suspended):
    """Nobody could resume it any more; with its next allocation it has a slot again."""
    scene, allocating = suspended
    offset, form = locate(hami.Layout.V1_2, "slot_pid", slot=0)
    with scene.path.open("r+b") as file:
        file.seek(offset)
        assert file.read(4) == struct.pack(form, allocating.program.pid)
        file.seek(offset)
        file.write(struct.pack(form, 0))
    goes_on(allocating)
    eventually(
        lambda: allocating.program.pid in [each.pid for each in scene.region.snapshot().processes]
    )


def test_a_suspended_program_goes_on_when_its_region_is_truncated(suspended):
    scene, allocating = suspended
    truncate(scene.path, 0)
    goes_on(allocating)


def test_a_pool_that_the_program_destroys_is_not_asked_about_any_more(limited, c_programs, inject):
    """The driver's pools are pointers: one that is used after its end may end the program."""
    done = limited(memory=[GIB], inject=inject).run(str(c_programs / "pool_ends"), "50000")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_threads_of_the_library_answer_to_the_programs_sandbox(limited, c_programs):
    program = str(c_programs / "sandboxed")
    done = limited(memory=[GIB]).run(program)
    if done.returncode == 2:
        pytest.skip(f"no sandbox can be had: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_is_held_behind_the_filter_of_a_container_engine(limited, c_programs, inject):
    """What such a filter denies by default is no system call that the library needs."""
    scene = limited(memory=[2 * GIB], sm=[50, None], inject=inject)
    storm = [str(c_programs / "storm"), *map(str, (1, 2, 3, 3, 60, 256 * MIB, 6, 0))]
    done = scene.run(str(c_programs / "contained"), *storm)
    if done.returncode == 2:
        pytest.skip(f"no filter can be had: {done.stderr}")
    assert done.returncode == 0, done.stderr
    said = [tuple(map(int, line.split())) for line in done.stderr.splitlines()]
    assert sum(granted for granted, _ in said) > 0
    assert sum(refused for _, refused in said) > 0
    assert scene.used() == 0


def test_the_driver_is_not_called_while_it_ends(limited, inject):
    """By atexit(), for longer than the library's thread ever rests."""
    program = limited(memory=[GIB], inject=inject).program(FAKE_CUDA_END_MS="1200").start()
    program.allocate(MIB)
    assert program.end() == ""


def test_a_library_may_use_the_driver_as_it_is_loaded(limited, c_programs):
    """While another thread does so for the first time, and the loader is busy."""
    scene = limited(memory=[GIB, GIB])
    library = str(c_programs / "libconstructing.so")
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", f"import ctypes; ctypes.CDLL({library!r})"],
        env=scene.environment(),
    )
    try:
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_a_complaint_that_nobody_reads_ends_no_program(limited, c_programs):
    scene = limited(memory=[GIB])
    scene.path.unlink()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [c_programs / "pool_ends", "1"],
        env=scene.environment(HAMIREGION_ON_ERROR="open"),
        stderr=writer,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 0


def test_a_capture_goes_on_while_the_library_asks_about_pools(limited):
    """What is not safe in a capture ends it, in whichever thread it is called."""
    program = limited(memory=[GIB]).program().start()
    pool = program.do("cuDeviceGetDefaultMemPool", OUT, 0)
    program.do("cuMemPoolSetAttribute", pool, 4, packed("Q", 2**64 - 1))
    program.do("cuMemFreeAsync", program.do("cuMemAllocAsync", OUT, MIB, 0), 0)
    stream, other = program.do("cuStreamCreate", OUT, 1), program.do("cuStreamCreate", OUT, 1)
    program.do("cuStreamBeginCapture_v2", stream, 0)
    # The thread that looks around asks ten times a second while a pool keeps what nobody uses.
    time.sleep(1)
    made = program.do("cuMemAllocAsync", OUT, 64 * MIB, other)
    program.do("cuMemFreeAsync", made, other)
    program.do("cuStreamEndCapture", stream, OUT)


def test_the_child_of_a_program_that_uses_cuda_gets_the_drivers_answer(limited, bare):
    scene = limited(memory=[GIB], sm=[1, None])
    codes = []
    for program in (bare().start(), scene.program().start()):
        address, pool = program.allocate(MIB), program.do("cuDeviceGetDefaultMemPool", OUT, 0)
        context = program.do("cuCtxGetCurrent", OUT)
        kernel = program.kernel()
        launch = ["cuLaunchKernel", kernel, *(1,) * 6, 0, None, None, None]
        program.call(*launch)
        status, found = program.calls(
            ["fork"],
            ["cuMemAlloc_v2", OUT, MIB],
            ["cuMemAllocAsync", OUT, MIB, None],
            ["cuMemFree_v2", address],
            ["cuDevicePrimaryCtxRetain", OUT, 0],
            ["cuCtxDestroy_v2", context],
            ["cuMemPoolTrimTo", pool, 0],
            ["cuMemPoolDestroy", pool],
            launch,
            launch,
        )[0]
        assert status == 0
        codes.append([code for code, *_ in found])
        program.free(address)
        assert program.end() == ""
    assert codes[0] == codes[1]
    assert set(codes[0]) == {NOT_INITIALIZED}


def test_a_fork_takes_each_lock_that_it_gives_back(limited, c_programs, inject):
    """Else it would give back a lock that another thread holds."""
    scene = limited(memory=[GIB], sm=[50, None], inject=inject)
    environment = scene.environment()
    before = environment.get("LD_PRELOAD", "")
    environment["LD_PRELOAD"] = f"{c_programs / 'libunlocking.so'} {before}"
    program = CudaProgram(environment).start()
    program.allocate(MIB)
    program.nvml_memory(0)
    status, _ = program.calls(["fork"], ["cuMemFree_v2", 0])[0]
    assert status == 0
    assert program.info()[1] == GIB
    assert program.end() == ""
