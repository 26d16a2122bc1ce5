"""Fixtures of nodes with real processes, which directories import as they need them."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from fake_nvml.driver import STATE, FakeDriver
from fake_nvml.scenes import initialisations

from libhamiregion.agent import Feedback
from libhamiregion.exporter import NodeExporter
from libhamiregion.node import Node, NvmlSampler
from libhamiregion.observation import processes
from support.agent_tasks import MONITOR, Events
from support.container_factory import close_factory
from support.containers import Starter, containers
from support.doctor_node import DoctorNode
from support.exposition import exporter_of
from support.node_scene import GPU, NodeScene
from support.run_scene import RunScene


@pytest.fixture(scope="session")
def nvml_library(fake_libraries, tmp_path_factory) -> Path:
    """The fake libnvidia-ml.so.1, alone in its directory."""
    name = "libnvidia-ml.so.1"
    # No link: this process loads it, and tests look whether it has loaded the other one.
    return Path(shutil.copy(fake_libraries / name, tmp_path_factory.mktemp("fake-nvml") / name))


@pytest.fixture
def fake_driver(nvml_library, tmp_path, monkeypatch) -> Iterator[FakeDriver]:
    """A driver of the test's own, for this process and its children; plays nothing yet."""
    state = tmp_path / "nvml-scene"
    monkeypatch.setenv(STATE, str(state))
    driver = FakeDriver(nvml_library, state)
    # Answers to calls that an earlier test gave up are of no use.
    give_back(driver)
    state.unlink()
    yield driver
    if driver.was_unloaded:
        # It went without its initialisations being given back.
        give_back(driver)


def give_back(driver: FakeDriver) -> None:
    """Have the library, which this process loads once, count no initialisation."""
    driver.play()
    while hasattr(pynvml.nvmlLib, "fake_nvml_initialised") and initialisations():
        # A call that comes back at this moment may have given back the last one itself.
        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()


@pytest.fixture
def nvml_sampler(fake_driver) -> Iterator[NvmlSampler]:
    """A sampler that sees the host's pids; open, with no scene yet."""
    with NvmlSampler(fake_driver.library, host_namespace=True) as opened:
        yield opened


@pytest.fixture
def files(tmp_path) -> Iterator[NodeScene]:
    """The directories of a node of the test's own; no container yet."""
    with NodeScene(tmp_path) as made:
        yield made


@pytest.fixture
def exporter(files) -> Iterator[NodeExporter]:
    """An exporter of these files, without the doctor; each scrape observes anew."""
    with files.open() as node:
        yield exporter_of(node)


@pytest.fixture(autouse=True)
def own_monitor(monkeypatch) -> None:
    """The feedback heeds no fake monitor of another test that runs at the same time."""
    monkeypatch.setattr(processes, "MONITOR_NAMES", frozenset({MONITOR}))


def node_scene(tmp_path: Path) -> Iterator[NodeScene]:
    """A node of the test's own, each container of which has one GPU; no container yet."""
    with NodeScene(tmp_path, uuids=[GPU]) as made:
        yield made


scene = pytest.fixture(node_scene)


@pytest.fixture
def node(scene) -> Iterator[Node]:
    """A node of the containers in the scene alone."""
    with Node(scene.root) as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def container_factory_end() -> Iterator[None]:
    """What the first container has started ends with the tests."""
    yield
    close_factory()


@pytest.fixture
def start() -> Iterator[Starter]:
    """Starts processes in pid namespaces of their own."""
    with containers() as starter:
        yield starter


@pytest.fixture
def doctor_node(tmp_path) -> Iterator[DoctorNode]:
    """A node to be diagnosed; no container yet."""
    with contextlib.closing(DoctorNode(tmp_path)) as made:
        yield made


@pytest.fixture
def events() -> Events:
    """What a task says."""
    return Events()


@pytest.fixture
def feedback(node, events) -> Iterator[Feedback]:
    """The feedback of that node, not started."""
    task = Feedback(node, emit=events.append)
    yield task
    task.stop()


@pytest.fixture(scope="session")
def busy_program(c_programs) -> Path:
    """A C program that keeps a GPU busy."""
    return c_programs / "busy"


@pytest.fixture
def runs(fake_libraries, tmp_path) -> Iterator[RunScene]:
    """A machine with two GPUs, on which programs run under budgets."""
    with contextlib.closing(RunScene(fake_libraries, tmp_path)) as made:
        yield made
