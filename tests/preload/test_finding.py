"""However a program comes to a function of the driver, it comes to the library's."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from fake_cuda.driver import FakeGpus
from limited import Limited

Make = Callable[..., Limited]


def test_every_way_to_a_function_leads_to_the_same_one(
    limited: Make, c_programs: Path, inject: str
) -> None:
    done = limited(inject=inject).run(str(c_programs / "finding"), str(c_programs / "libother.so"))
    assert (done.returncode, done.stderr) == (0, "")


LOCAL = """
import ctypes, sys
beside = ctypes.CDLL(sys.argv[1])
print([beside.beside_finds(name) for name in (b"cuInit", b"cuMemAlloc_v2", b"cuNothing")])
"""


def test_a_library_that_only_its_caller_sees_finds_the_driver(
    limited: Make, c_programs: Path, inject: str
) -> None:
    """As a module of Python does: what it needs is not among what every search finds."""
    beside = str(c_programs / "libbeside.so")
    done = limited(inject=inject).run(sys.executable, "-I", "-S", "-c", LOCAL, beside)
    assert (done.stdout, done.stderr) == ("[1, 1, 0]\n", "")


def test_the_ways_are_those_of_the_driver_itself(gpus: FakeGpus, c_programs: Path) -> None:
    command = [c_programs / "finding", c_programs / "libother.so"]
    done = subprocess.run(command, env=gpus.environment(), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
