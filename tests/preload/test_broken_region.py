"""A program whose region is missing, or breaks while it runs."""

import os
import sys
import threading
import time

import pytest
from support.cuda_program import OUT, OUT_OF_MEMORY, SUCCESS, CudaProgram
from support.region_file import RegionFile, truncate
from support.wait import PATIENCE_S

from libhamiregion import Layout
from libhamiregion.units import GIB, MIB

NOT_PERMITTED = 800
REFUSED = "CUDA contexts and memory are refused"
FREE = "nothing is limited"


def policy(name: str | None) -> dict[str, str]:
    return {} if name is None else {"HAMIREGION_ON_ERROR": name}


@pytest.mark.parametrize(
    ("name", "code", "effect"),
    [(None, NOT_PERMITTED, REFUSED), ("refuse", NOT_PERMITTED, REFUSED), ("open", SUCCESS, FREE)],
)
def test_without_a_region_the_policy_decides_about_contexts(limited, inject, name, code, effect):
    scene = limited(memory=[GIB], inject=inject)
    scene.path.unlink()
    program = scene.program(**policy(name))
    program.do("cuInit", 0)
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == code
    said = program.end()
    assert said.startswith(f"libhamiregion: the region {scene.path} cannot be used: there is no")
    assert said.endswith(f"; {effect}\n")


@pytest.mark.parametrize(
    ("name", "code", "effect"),
    [(None, SUCCESS, FREE), ("refuse", NOT_PERMITTED, REFUSED), ("open", SUCCESS, FREE)],
)
def test_a_region_that_is_truncated_later_ends_no_program(limited, inject, name, code, effect):
    scene = limited(memory=[GIB], inject=inject)
    program = scene.program(**policy(name)).start()
    assert program.call("cuMemAlloc_v2", OUT, 2 * GIB)[0] == OUT_OF_MEMORY
    truncate(scene.path, 4096)
    for _ in range(5):
        assert program.call("cuMemAlloc_v2", OUT, MIB)[0] == code
    said = program.end()
    assert said.count("\n") == 1
    assert said.endswith(f": it was truncated or replaced; {effect}\n")


@pytest.mark.parametrize("value", [None, ""])
def test_a_program_without_the_variable_is_refused_and_told_so(limited, inject, value):
    scene = limited(memory=[GIB], inject=inject)
    environment = scene.environment()
    del environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    if value is not None:
        environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = value
    program = CudaProgram(environment)
    program.do("cuInit", 0)
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == NOT_PERMITTED
    assert program.nvml_memory(0)[0] == 16 * GIB
    variable = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
    assert program.end() == f"libhamiregion: {variable} names no region; {REFUSED}\n"


def test_a_full_table_refuses_the_next_program(limited, inject):
    scene = limited(memory=[GIB], inject=inject)
    table = RegionFile(scene.path, Layout.V1_2)
    for slot in range(1024):
        table.put("slot_pid", os.getpid(), slot=slot)
        table.put("slot_status", 1, slot=slot)
    table.put("proc_num", 1024)
    program = scene.program()
    program.do("cuInit", 0)
    assert program.call("cuDevicePrimaryCtxRetain", OUT, 0)[0] == NOT_PERMITTED
    said = program.end()
    assert said.endswith(f" cannot be used: all of its slots are taken; {REFUSED}\n")


HANDLING = """
import ctypes, os, signal, sys, time
cuda, context, address = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
def allocate():
    return cuda.cuMemAlloc_v2(ctypes.byref(address), 1 << 20)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert allocate() == 0
signal.signal(signal.SIGBUS, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS})
time.sleep(0.05)
os.truncate(sys.argv[1], 4096)
print(allocate())
"""


def test_a_program_that_takes_the_handler_away_and_blocks_the_signal_survives(limited, inject):
    """The library looks for both again, at the latest after a few milliseconds."""
    scene = limited(memory=[GIB], inject=inject)
    done = scene.run(sys.executable, "-I", "-S", "-c", HANDLING, str(scene.path))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


class Launch:
    """Launches of a kernel by a program, made in a thread."""

    def __init__(self, program: CudaProgram, count: int = 1) -> None:
        kernel = program.kernel()
        call = ("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
        self.program = program
        self.codes: list[int] = []
        self.thread = threading.Thread(
            target=lambda: self.codes.append(max(program.call(*call)[0] for _ in range(count))),
            daemon=True,
        )
        self.thread.start()

    def code(self) -> int | None:
        """The highest code; None: they do not come back."""
        self.thread.join(PATIENCE_S)
        if not self.codes:
            self.program.process.kill()
        return self.codes[0] if self.codes else None


def test_a_launch_that_feedback_holds_goes_on_when_the_region_is_lost(limited):
    scene = limited(sm=[50, None])
    scene.region.set_recent_kernel(-1)
    launch = Launch(scene.program().start())
    time.sleep(0.2)
    assert not launch.codes
    truncate(scene.path, 4096)
    assert launch.code() == SUCCESS


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("field", "value"), [("proc_num", 5000), ("device_num", 99), ("uuids", b"\1")]
)
def test_no_launch_waits_for_ever_under_the_limit_of_a_region_that_is_damaged(
    limited, field, value
):
    """Any process of the container can write there."""
    scene = limited(sm=[50, None])
    program = scene.program().start()
    RegionFile(scene.path, Layout.V1_2).put(field, value)
    assert Launch(program, count=50).code() == SUCCESS
    said = program.end().removeprefix("libhamiregion: ")
    assert said == f"the region cannot be used any more (-6): it is corrupt; {FREE}\n"
