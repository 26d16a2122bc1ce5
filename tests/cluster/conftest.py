"""The API server that the tests of this directory share, and the figures that they take."""

import os
from collections.abc import Iterator

import pytest
from api_server import Cluster
from figures import LINES, Figure, note
from support.node_fixtures import nvml_library  # noqa: F401

# `make cluster` sets it, after it has built the server.
if "HAMIREGION_CLUSTER" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """The server; a test that ends it starts it again."""
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def figure() -> Figure:
    """Has a time shown at the end of the run."""
    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LINES:
        terminalreporter.section("figures")
        for line in LINES:
            terminalreporter.write_line(line)
