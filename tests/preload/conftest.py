"""GPUs of a test's own, regions on them, and programs that use them through the library."""

import fcntl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cuda_program import CudaProgram
from fake_cuda.driver import FakeGpus, build
from limited import INJECTIONS, Limited


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The fake libcuda.so.1 and libnvidia-ml.so.1; all workers of a run build them once."""
    base = tmp_path_factory.getbasetemp()
    place = (base if worker_id == "master" else base.parent) / "fake-cuda"
    place.mkdir(exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(place, optimise="-O0")


@pytest.fixture(scope="session")
def c_programs(fake_libraries: Path) -> Path:
    """Where the C programs of this directory are, built."""
    with (fake_libraries / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "--silent", f"BUILD={fake_libraries}"]
        subprocess.run(command, cwd=Path(__file__).parent, check=True)
    return fake_libraries


@pytest.fixture
def gpus(fake_libraries: Path, tmp_path: Path) -> FakeGpus:
    """Two GPUs of 16 GiB, whose contexts take 256 MiB each."""
    return FakeGpus(fake_libraries, tmp_path / "gpus")


@pytest.fixture(params=INJECTIONS)
def inject(request: pytest.FixtureRequest) -> str:
    """Each of the ways into a program in turn."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def limited(gpus: FakeGpus, tmp_path: Path) -> Iterator[Callable[..., Limited]]:
    """A factory of regions on these GPUs; keyword arguments are those of `Limited`."""
    made: list[Limited] = []

    def make(**wanted: object) -> Limited:
        made.append(Limited(gpus, tmp_path / f"limited-{len(made)}", **wanted))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def bare(gpus: FakeGpus) -> Iterator[Callable[[], CudaProgram]]:
    """A factory of programs that no library limits."""
    made: list[CudaProgram] = []

    def make() -> CudaProgram:
        made.append(CudaProgram(gpus.environment()))
        return made[-1]

    yield make
    for program in made:
        program.kill()
