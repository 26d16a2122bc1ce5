"""The API server that the tests of this directory share, and the figures that they take."""

import os
from collections.abc import Callable, Iterator

import pytest
from api_server import Cluster

# `make cluster` sets it, after it has built the server.
if "HAMIREGION_CLUSTER" not in os.environ:
    collect_ignore_glob = ["test_*.py"]

Figure = Callable[[str, float], None]
_figures: list[str] = []


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The server; a test that ends it starts it again."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def figure() -> Figure:
    """Has a time shown at the end of the run."""

    def note(what: str, seconds: float) -> None:
        _figures.append(f"{seconds:8.3f} s  {what}")

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _figures:
        terminalreporter.section("figures")
        for line in _figures:
            terminalreporter.write_line(line)
