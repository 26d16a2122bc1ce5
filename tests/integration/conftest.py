"""What tests with several programs share."""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
from fake_nvml.driver import STATE, FakeDriver, build
from fake_nvml.scenes import initialisations

from libhamiregion.host.nvml import NvmlSampler


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libnvidia-ml.so.1, alone in its directory."""
    return build(tmp_path_factory.mktemp("fake-nvml"))


@pytest.fixture
def fake_driver(
    nvml_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FakeDriver]:
    """A driver of the test's own, for this process and its children; plays nothing yet."""
    state = tmp_path / "nvml-scene"
    monkeypatch.setenv(STATE, str(state))
    driver = FakeDriver(nvml_library, state)
    yield driver
    if driver.was_unloaded and pynvml.nvmlLib is not None:
        # It went without its initialisations being given back.
        driver.play()
        while initialisations():
            pynvml.nvmlShutdown()


@pytest.fixture
def nvml_sampler(fake_driver: FakeDriver) -> Iterator[NvmlSampler]:
    """A sampler that sees the host's pids; open, with no scene yet."""
    with NvmlSampler(fake_driver.library, host_namespace=True) as opened:
        yield opened
