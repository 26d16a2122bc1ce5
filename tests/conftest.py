"""What all tests share: region files, the golden regions, how hypothesis runs."""

import contextlib
import fcntl
import gc
import itertools
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_cuda.driver import build
from hypothesis import settings
from support.actors import Actor, ProcessFactory
from support.golden_regions import NAMES, GoldenRegion, unpack
from support.own_processes import move_into_own_processes
from support.region_file import RegionFile, RegionFileFactory
from support.run_summary import pytest_terminal_summary
from support.wait import PATIENCE_S

from libhamiregion import Layout, create_region

if TYPE_CHECKING:
    from fake_kubernetes.server import FakeApi

PRELOAD = Path(__file__).with_name("preload")
# The longest of `make test`, as measured. They start first: none keeps the others' workers waiting.
LONGEST = {
    "test_program[test_lock_points]",
    "test_program[test_snapshot]",
    "test_program[test_slot_races]",
    "test_program[test_sigbus]",
    "test_two_hundred_containers_need_a_process_for_all_and_not_one_each",
    "test_any_text_is_a_size_or_a_value_error",
    "test_any_change_gives_an_error_or_an_observation_that_can_be_used",
    "test_a_slot_whose_detaching_was_interrupted_does_nothing_to_a_later_one[1.2]",
    "test_a_holder_that_came_through_an_overlay_is_not_robbed_from_below[1.1-a bind mount]",
    "test_a_program_has_what_nobody_else_uses_and_gives_it_back[standin]",
}

# Programs of the tests import tests/support, as the tests do.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# The machines that run these are busy: an example that takes long proves nothing.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

# Hooks of this directory that have a file of their own.
__all__ = ["pytest_terminal_summary"]

# What is started in the background or by nohup ignores these, and so would all it starts.
for _number, _action in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGTERM, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _action)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """A test may wait a few times; one that takes longer hangs. `--timeout` says otherwise.

    All of them run among processes of their own, but for those with a real GPU.
    """
    if not hasattr(config, "workerinput"):
        move_into_own_processes(is_on_host=config.option.markexpr == "gpu")
    if config.getoption("timeout", None) is None:
        config.option.timeout = 4 * PATIENCE_S


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Give each worker processes of its own: what one test starts costs no other worker's time."""
    if config.option.markexpr != "gpu":
        for spec in specs:
            spec.python = shlex.join([sys.executable, "-m", "support.in_own_processes"])


@pytest.fixture(scope="session")
def _locks(tmp_path_factory) -> Iterator[Path]:
    """Directories for locks, none of which exists yet."""
    base = tmp_path_factory.mktemp("locks")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _locks_of_its_own(_locks) -> None:
    """Give each test, and the processes that it starts, locks that no other test can hold.

    A lock is named by its root's inode, which another test's directory can get.
    """
    os.environ["HAMIREGION_LOCKS"] = str(next(_locks))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `root` for other users; of a `slow(keep=N)` test keep N items quick.

    The longest come first.
    """
    items.sort(key=lambda item: item.name not in LONGEST)
    kept: dict[str, list[pytest.Item]] = {}
    for item in items:
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="needs root"))
        markers = list(item.iter_markers("slow"))
        if markers and all("keep" in marker.kwargs for marker in markers):
            kept.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for matrix in kept.values():
        count = matrix[0].get_closest_marker("slow").kwargs["keep"]
        for number in range(min(count, len(matrix))):
            item = matrix[number * len(matrix) // count if count < len(matrix) else number]
            item.own_markers[:] = [each for each in item.own_markers if each.name != "slow"]


def pytest_collection_finish() -> None:
    """Exempt the million objects that collection makes from every later garbage collection."""
    gc.collect()
    gc.freeze()


# Without a seqlock in its slots and with one; both have a lock that can be taken.
_TWO_LAYOUTS = (Layout.V1_1, Layout.V1_2)


def pytest_make_parametrize_id(val: object) -> str | None:
    """A layout is called by its version in the names of tests."""
    return val.value if isinstance(val, Layout) else None


@pytest.fixture(params=NAMES)
def golden(request, tmp_path) -> GoldenRegion:
    """Each golden region in turn, a copy of the test's own."""
    return unpack(request.param, tmp_path)


@pytest.fixture
def golden_regions(tmp_path) -> list[GoldenRegion]:
    """All golden regions at once."""
    return [unpack(name, tmp_path) for name in NAMES]


@pytest.fixture
def region_file(tmp_path) -> RegionFileFactory:
    """A factory of region files; keyword arguments are those of `create_region`."""
    made = 0

    def make(layout: Layout = Layout.V1_2, *, name: str = "", **spec: Any) -> RegionFile:
        nonlocal made
        made += 1
        path = tmp_path / (name or f"region-{made}.cache")
        create_region(path, layout=layout, **spec)
        file = RegionFile(path, layout)
        if "uuids" not in spec:
            # As libvgpu leaves it until something in the container initialises NVML.
            file.put("device_num", 0)
        return file

    return make


@pytest.fixture(params=_TWO_LAYOUTS)
def layout(request) -> Layout:
    """Two layouts in turn; files whose subject branches on the layout override this."""
    return request.param


@pytest.fixture
def file(region_file, layout) -> RegionFile:
    """A region of each of these layouts in turn."""
    return region_file(layout)


@pytest.fixture
def empty_proc(tmp_path) -> Path:
    """A /proc without processes, which proves nothing."""
    (tmp_path / "proc").mkdir()
    return tmp_path / "proc"


@pytest.fixture
def public_directory() -> Iterator[Path]:
    """A directory that every user may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="hamiregion-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory, worker_id) -> Path:
    """The fake libcuda.so.1 and libnvidia-ml.so.1, alone in their directory.

    All workers of a run build them once.
    """
    base = tmp_path_factory.getbasetemp()
    place = (base if worker_id == "master" else base.parent) / "fake-cuda"
    place.mkdir(exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(place, optimise="-O0")


@pytest.fixture(scope="session")
def c_programs(fake_libraries) -> Path:
    """Where the C programs of tests/preload are, built."""
    with (fake_libraries / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "--silent", f"BUILD={fake_libraries}"]
        subprocess.run(command, cwd=PRELOAD, check=True)
    return fake_libraries


@pytest.fixture(scope="session")
def process_factory() -> Iterator[ProcessFactory]:
    """Where other processes come from."""
    with contextlib.closing(ProcessFactory()) as process_factory:
        yield process_factory


@pytest.fixture
def actor(process_factory) -> Iterator[Callable[..., Actor]]:
    """A factory of other processes; given a path, each opens that region."""
    yield process_factory.actor
    process_factory.kill_all()


@pytest.fixture
def api() -> Iterator["FakeApi"]:
    """An API server of the test's own, with no pods yet."""
    pytest.importorskip("ijson", reason="needs the extra kubernetes")
    from fake_kubernetes.server import FakeApi

    with FakeApi() as api:
        yield api


@pytest.fixture
def bystander() -> Iterator[int]:
    """A process of the host, outside every container."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()
