"""GPUs of a test's own, regions on them, and programs that use them through the library."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_cuda.driver import GIB, FakeGpus
from support.busy_programs import BusyProgram, Observer
from support.cuda_program import CudaProgram
from support.limited import INJECTIONS, Limited


@pytest.fixture
def gpus(fake_libraries, tmp_path) -> FakeGpus:
    """Two GPUs of 16 GiB, whose contexts take 256 MiB each."""
    return FakeGpus(fake_libraries, tmp_path / "gpus")


@pytest.fixture(params=INJECTIONS)
def inject(request) -> str:
    """Each of the ways into a program in turn."""
    return request.param


@pytest.fixture
def limited(gpus, tmp_path) -> Iterator[Callable[..., Limited]]:
    """A factory of regions on these GPUs; keyword arguments are those of `Limited`."""
    made: list[Limited] = []

    def make(**wanted: object) -> Limited:
        made.append(Limited(gpus, tmp_path / f"limited-{len(made)}", **wanted))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def started(limited) -> Callable[..., tuple[Limited, CudaProgram]]:
    """A factory of regions with that much memory, each with a program that has its context."""

    def start(nbytes: int = GIB) -> tuple[Limited, CudaProgram]:
        scene = limited(memory=[nbytes])
        return scene, scene.program().start()

    return start


@pytest.fixture
def bare(gpus) -> Iterator[Callable[[], CudaProgram]]:
    """A factory of programs that no library limits."""
    made: list[CudaProgram] = []

    def make() -> CudaProgram:
        made.append(CudaProgram(gpus.environment()))
        return made[-1]

    yield make
    for program in made:
        program.kill()


@pytest.fixture
def observer(bare) -> Observer:
    return Observer(bare())


@pytest.fixture
def busy(c_programs) -> Iterator[Callable[..., BusyProgram]]:
    """A factory of busy programs; arguments are those of `BusyProgram`."""
    made: list[BusyProgram] = []

    def start(scene: Any, kernel: str, **wanted: object) -> BusyProgram:
        made.append(BusyProgram(scene, c_programs, kernel, **wanted))
        return made[-1]

    yield start
    for program in made:
        program.kill()
