"""However a program comes to a function of the driver, it comes to the library's."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.process import finished

from libhamiregion.run.libraries import preloaded_library
from libhamiregion.units import GIB


def test_every_way_to_a_function_leads_to_the_same_one(limited, c_programs, inject):
    done = limited(inject=inject).run(str(c_programs / "finding"), str(c_programs / "libother.so"))
    assert (done.returncode, done.stderr) == (0, "")


LOCAL = """
import ctypes, sys
beside = ctypes.CDLL(sys.argv[1])
print([beside.beside_finds(name) for name in (b"cuInit", b"cuMemAlloc_v2", b"cuNothing")])
"""


def test_a_library_that_only_its_caller_sees_finds_the_driver(limited, c_programs, inject):
    """As a module of Python does: what it needs is not among what every search finds."""
    beside = str(c_programs / "libbeside.so")
    done = limited(inject=inject).run(sys.executable, "-I", "-S", "-c", LOCAL, beside)
    assert (done.stdout, done.stderr) == ("[1, 1, 0]\n", "")


PLAIN = """
import ctypes
cuda, nvml = ctypes.CDLL("libcuda.so"), ctypes.CDLL("libnvidia-ml.so")
total, memory, device = ctypes.c_size_t(), (ctypes.c_uint64 * 3)(), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and nvml.nvmlInit_v2() == 0
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, memory) == 0
print(total.value, memory[0])
"""


def test_a_program_that_opens_the_plain_names_is_shown_its_limit(limited, inject):
    """As numba does first; the names without a version are links of a development package."""
    scene = limited(memory=[GIB], inject=inject)
    done = scene.run(sys.executable, "-I", "-S", "-c", PLAIN)
    assert (done.stdout, done.stderr) == (f"{GIB} {GIB}\n", "")


CLOSING = """
import ctypes
libc, cuda = ctypes.CDLL(None), ctypes.CDLL("libcuda.so.1")
libc.dlclose.argtypes = (ctypes.c_void_p,)
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
allocate = cuda.cuMemAlloc_v2
for _ in range(2):
    libc.dlclose(cuda._handle)
print(allocate(ctypes.byref(address), 1 << 20))
"""


def test_a_program_that_closes_the_driver_once_too_often_goes_on(limited, inject):
    """The library keeps the driver's addresses, and so the driver."""
    done = limited(inject=inject).run(sys.executable, "-I", "-S", "-c", CLOSING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_the_ways_are_those_of_the_driver_itself(gpus, c_programs):
    command = [c_programs / "finding", c_programs / "libother.so"]
    done = subprocess.run(command, env=gpus.environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_functions_that_an_older_driver_lacks_are_not_shown_by_their_name():
    """A program that finds one by dlsym() takes the driver for one that has it."""
    library = Path(preloaded_library()).with_name("libcuda-standin.so")
    shown = finished(["nm", "-D", "--defined-only", str(library)], check=True).stdout
    names = {line.split()[-1] for line in shown.splitlines()}
    assert "cuMemAlloc_v2" in names
    assert names.isdisjoint(
        {"cuCtxCreate_v4", "cuGreenCtxCreate", "cuGreenCtxDestroy", "cuGraphInstantiateWithParams"}
    )
