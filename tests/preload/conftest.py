"""GPUs of a test's own, regions on them, and programs that use them through the library."""

import contextlib
from collections.abc import Callable, Iterator

import pytest
from fake_cuda.driver import FakeGpus
from support.busy_programs import BusyProgram, Observer
from support.cuda_program import CudaProgram
from support.limited import INJECTIONS, Limited

from libhamiregion.units import GIB


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
    with contextlib.ExitStack() as made:
        yield lambda: made.enter_context(CudaProgram(gpus.environment()))


@pytest.fixture
def observer(bare) -> Observer:
    return Observer(bare())


@pytest.fixture
def busy(c_programs) -> Iterator[Callable[..., BusyProgram]]:
    """A factory of busy programs; arguments are those of `BusyProgram`."""
    with contextlib.ExitStack() as made:
        yield lambda scene, kernel, **wanted: made.enter_context(
            BusyProgram(scene, c_programs, kernel, **wanted)
        )
